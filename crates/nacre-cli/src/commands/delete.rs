//! `nacre delete`.

use crate::attached::sweep;
use crate::emulated::kept_beside;
use crate::failure::{Failure, Result};
use crate::output;
use crate::users::{refuse_if_open, take_alone};
use clap::Args;
use nacre_runtime::one_user;
use nacre_store::runtime;
use nacre_volume::{Access, Volume};
use std::fmt::Write;
use std::fs;
use std::io::{self, BufRead, IsTerminal};
use std::os::unix::fs::MetadataExt;
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
    let (_, owner) = Volume::inspect_with_owner(pool)?;
    refuse_if_open(pool)?;
    if !arguments.force && !confirmed(pool)? {
        return Err(Failure::Usage(format!(
            "{}: not deleted; say yes, or use --force",
            pool.display()
        )));
    }
    let mut removed = Vec::new();
    let devices = if let Ok(volume) = Volume::open(pool, Access::ReadWrite) {
        let _alone = volume.lock_exclusive()?;
        take_alone(pool, &volume)?;
        let devices = Volume::delete(&[pool])?;
        removed.extend(remove_leftovers(&volume)?);
        devices
    } else {
        Volume::delete(&[pool])?
    };
    let mut text = format!("{}: deleted\n", pool.display());
    for (path, removed) in devices {
        let what = if removed { "removed" } else { "labels erased:" };
        let _ = writeln!(text, "  {what} {}", path.display());
    }
    sweep();
    let kept = kept_beside(pool);
    if is_of_users(&kept, owner.uid) && was_there(&kept, fs::remove_file(&kept))? {
        removed.push(kept);
    }
    for path in removed {
        let _ = writeln!(text, "  removed {}", path.display());
    }
    output::write(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// What dead processes left in shared memory: the folder with the session, counters, fifos and
/// sockets of the pool. Answers what was there.
fn remove_leftovers(volume: &Volume) -> Result<Option<PathBuf>> {
    let folder = runtime::folder(volume)?;
    Ok(folder.map(|folder| {
        folder.clear();
        folder.leave();
        folder.path().to_owned()
    }))
}

/// Whether it is a file of the caller's or of the pool's owner. What somebody else put there stays.
fn is_of_users(place: &Path, owner: u32) -> bool {
    let is_theirs = |uid| uid == owner || one_user() == Some(uid);
    let found = place.symlink_metadata();
    found.is_ok_and(|found| found.is_file() && is_theirs(found.uid()))
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
