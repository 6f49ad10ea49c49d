//! The pool that is used when none is named.

use crate::attached::Attached;
use crate::commands::create;
use crate::commands::info::survival;
use crate::failure::{Failure, Result};
use crate::size;
use nacre_store::WriteMode;
use nacre_volume::{Access, Volume};
use rustix::fs::statvfs;
use rustix::process::geteuid;
use std::env;
use std::path::{Path, PathBuf};

const FOLDER: &str = "/dev/shm";
const VARIABLE: &str = "NACRE_DEFAULT_POOL";
const LARGEST: u64 = 1 << 30;
const SMALLEST: u64 = 64 << 20;

/// The caller's default pool, made at first use. Says on standard error what it is.
pub fn find_or_make(quiet: bool) -> Result<PathBuf> {
    let path = path();
    let volume = if path.exists() {
        Volume::open(&path, Access::ReadOnly)?
    } else {
        make(&path)?
    };
    if !quiet {
        let (shown, bytes) = (path.display(), size::human(volume.len()));
        eprintln!("nacre: using the default pool {shown} ({bytes})");
        for line in survival(volume.survives()).lines() {
            eprintln!("nacre: what is in it {}", line.replace("  ", " "));
        }
        eprintln!(
            "nacre: make a lasting one with `nacre create --size 10G FILE`, use it with --pool FILE"
        );
    }
    Ok(path)
}

/// Where it is, or would be.
pub fn path() -> PathBuf {
    env::var_os(VARIABLE).map_or_else(
        || Path::new(FOLDER).join(format!("nacre-default-{}.pool", geteuid().as_raw())),
        PathBuf::from,
    )
}

/// The pool that is named, or the default one, if there is one.
pub fn unless(named: Option<&PathBuf>) -> Result<PathBuf> {
    let pool = named.cloned().unwrap_or_else(path);
    if named.is_none() && !pool.exists() {
        return Err(Failure::Usage(format!(
            "no pool is named, and there is no default pool {} yet: `nacre run -- PROGRAM` makes it",
            pool.display()
        )));
    }
    Ok(pool)
}

fn make(path: &Path) -> Result<Volume> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let space = statvfs(folder).map_err(|error| Failure::io(folder.display(), error))?;
    let bytes = share_of(space.f_bavail.saturating_mul(space.f_frsize));
    let volume = create::make(&[path.to_path_buf()], Some(bytes), WriteMode::Direct, false)?;
    drop(volume);
    // Attached once and left properly, so that the first program starts as fast as the next.
    Attached::open(path, Access::ReadWrite, None)?.detach()?;
    Ok(Volume::open(path, Access::ReadOnly)?)
}

/// At most a quarter of what is free, in whole mebibytes.
fn share_of(free: u64) -> u64 {
    (free / 4).clamp(SMALLEST, LARGEST) >> 20 << 20
}

#[cfg(test)]
mod tests {
    use super::share_of;

    #[test]
    fn a_sensible_share() {
        assert_eq!(share_of(100 << 30), 1 << 30);
        assert_eq!(share_of(2 << 30), 512 << 20);
        assert_eq!(share_of(0), 64 << 20);
    }
}
