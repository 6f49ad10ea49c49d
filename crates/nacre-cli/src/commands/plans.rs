//! `nacre plans`: what each first program of a `nacre run` would otherwise find out again.

use crate::commands::run::preload;
use crate::failure::{Failure, Result};
use clap::Args;
use nacre_runtime::plans_beside;
use rustix::fs::{SealFlags, fcntl_get_seals};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio, id};
use std::{env, path::PathBuf};

const EXAMPLES: &str = "\
Examples:
  sudo nacre plans            as `make install` and the package do; again when glibc was updated
  sudo nacre plans --remove";

/// Work out ahead how the C library is to be patched, so that programs start sooner
///
/// Without it, the first program of each `nacre run` finds that out or proves it. What is kept is
/// used by this build of Nacre and with this C library alone, and believed as the library is: it
/// must belong to root or to the program's user, and nobody else may write it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Remove what is kept
    #[arg(long)]
    remove: bool,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let library = preload::POOLS.find()?;
    let place = plans_beside(&library);
    let failed = |error| Failure::io(place.display(), error);
    // What is there already would be used and not made.
    match fs::remove_file(&place) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    if !arguments.remove {
        let made = make(&library).map_err(failed)?;
        keep(made, &place).map_err(failed)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Has a program start that does nothing. It surveys all of the C library: it is told of no place
/// where somebody could have left a plan.
fn make(library: &Path) -> io::Result<File> {
    let unable = || io::Error::other("no file in memory for the plans");
    let (name, plans) = preload::plans().ok_or_else(unable)?;
    let nowhere = "/proc/self/none";
    let mut command = Command::new(env::current_exe()?);
    command.arg("--version").env_clear().stdout(Stdio::null());
    command.env("LD_PRELOAD", library).env("NACRE_PLANS", name);
    command.env("NACRE_MOUNTS", format!("/nacre={nowhere}"));
    command.env("NACRE_EMPTY_HANDED", id().to_string());
    command.env("XDG_CACHE_HOME", nowhere);
    let status = command.status()?;
    let sealed = fcntl_get_seals(&plans)?.contains(SealFlags::WRITE);
    let failed = || io::Error::other("the C library could not be patched here");
    (status.success() && sealed)
        .then(|| File::from(plans))
        .ok_or_else(failed)
}

/// Puts it there whole or not at all.
fn keep(mut made: File, place: &Path) -> io::Result<()> {
    let next = PathBuf::from(format!("{}.{}", place.display(), id()));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o644);
    let done = options.open(&next).and_then(|mut file| {
        io::copy(&mut made, &mut file)?;
        file.set_permissions(Permissions::from_mode(0o644))?;
        fs::rename(&next, place)
    });
    if done.is_err() {
        let _ = fs::remove_file(&next);
    }
    done
}
