//! `nacre delete`.

use crate::attached::{refuse_if_used, take_alone};
use crate::emulated::kept_beside;
use crate::failure::{Failure, Result};
use crate::output;
use clap::Args;
use nacre_emulator::path_beside;
use nacre_session::Session;
use nacre_volume::{Access, Volume};
use std::fs;
use std::io::{self, BufRead, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  nacre delete my.pool             asks first, on a terminal
  nacre delete --force my.pool     does not ask

Devices that are files are removed; other devices lose their labels.";

/// Destroy a pool and everything in it
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Any device of the pool
    #[arg(value_name = "POOL")]
    pool: PathBuf,
    /// Do not ask
    #[arg(long)]
    force: bool,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let pool = &arguments.pool;
    let label = Volume::inspect(pool)?;
    refuse_if_used(pool, label.pool)?;
    if !arguments.force && !confirmed(pool)? {
        return Err(Failure::Usage(format!(
            "{}: not deleted; say yes, or use --force",
            pool.display()
        )));
    }
    let session = Session::path_for(label.pool);
    if let Ok(volume) = Volume::open(pool, Access::ReadWrite) {
        let _alone = volume.lock_exclusive()?;
        take_alone(pool, &volume)?;
        Volume::delete(&[pool])?;
    } else {
        Volume::delete(&[pool])?;
    }
    remove_leftovers(&session)?;
    let kept = kept_beside(pool);
    ignore_absence(&kept, fs::remove_file(&kept))?;
    output::write(format!("{}: deleted\n", pool.display()).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// What dead processes left in shared memory: the session and its two folders, for fifos and
/// sockets of the pool and for the kernel's side of open files.
fn remove_leftovers(session: &Path) -> Result<()> {
    ignore_absence(session, fs::remove_file(session))?;
    let counters = path_beside(session);
    ignore_absence(&counters, fs::remove_file(&counters))?;
    for suffix in [".d", ".fd"] {
        let mut folder = session.as_os_str().to_os_string();
        folder.push(suffix);
        ignore_absence(Path::new(&folder), fs::remove_dir_all(&folder))?;
    }
    Ok(())
}

fn ignore_absence(place: &Path, removed: io::Result<()>) -> Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Failure::io(place.display(), error))
        }
        _ => Ok(()),
    }
}

fn confirmed(pool: &Path) -> Result<bool> {
    if !io::stdin().is_terminal() {
        return Ok(false);
    }
    eprint!(
        "{}: destroy this pool and everything in it? [y/N] ",
        pool.display()
    );
    let mut answer = String::new();
    io::stdin()
        .lock()
        .read_line(&mut answer)
        .map_err(|error| Failure::io("standard input", error))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
