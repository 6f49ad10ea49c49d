//! `nacre delete`.

use crate::attached::{refuse_if_used, take_alone};
use crate::emulated::kept_beside;
use crate::failure::{Failure, Result};
use crate::output;
use clap::Args;
use nacre_emulator::path_beside;
use nacre_session::Session;
use nacre_volume::{Access, Volume};
use std::fmt::Write;
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
    let devices = if let Ok(volume) = Volume::open(pool, Access::ReadWrite) {
        let _alone = volume.lock_exclusive()?;
        take_alone(pool, &volume)?;
        Volume::delete(&[pool])?
    } else {
        Volume::delete(&[pool])?
    };
    let mut text = format!("{}: deleted\n", pool.display());
    for (path, removed) in devices {
        let what = if removed { "removed" } else { "labels erased:" };
        let _ = writeln!(text, "  {what} {}", path.display());
    }
    for path in remove_leftovers(pool, &session)? {
        let _ = writeln!(text, "  removed {}", path.display());
    }
    output::write(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// What dead processes left in shared memory: the session and its two folders, for fifos and
/// sockets of the pool and for the kernel's side of open files; and counters kept beside the pool. Answers what was there.
fn remove_leftovers(pool: &Path, session: &Path) -> Result<Vec<PathBuf>> {
    let folder = |suffix| {
        let mut folder = session.as_os_str().to_os_string();
        folder.push(suffix);
        PathBuf::from(folder)
    };
    let files = [session.to_owned(), path_beside(session), kept_beside(pool)];
    let mut removed = Vec::new();
    for file in files {
        if was_there(&file, fs::remove_file(&file))? {
            removed.push(file);
        }
    }
    for folder in [folder(".d"), folder(".fd")] {
        if was_there(&folder, fs::remove_dir_all(&folder))? {
            removed.push(folder);
        }
    }
    Ok(removed)
}

fn was_there(place: &Path, removed: io::Result<()>) -> Result<bool> {
    match removed {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Failure::io(place.display(), error)),
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
