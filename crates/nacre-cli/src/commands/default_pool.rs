//! The pool that is used when none is named.
//!
//! It stands in the user's own folder of run-time files, where nobody else can put one. A pool that
//! an earlier version made in /dev/shm itself goes on to be used if it is the user's.

use crate::attached::Attached;
use crate::commands::create;
use crate::commands::survival::{SafeFrom, survival};
use crate::failure::{Failure, Result};
use crate::size;
use nacre_runtime::{Folder, Trust, base, memory_limit, old_default_pool, setting};
use nacre_store::WriteMode;
use nacre_volume::{Access, Owner, Volume};
use rustix::fs::statvfs;
use std::path::{Path, PathBuf};

const FILE: &str = "default.pool";
const VARIABLE: &str = "NACRE_DEFAULT_POOL";
const OTHERS_WRITE: u32 = 0o002;
const LARGEST: u64 = 1 << 30;
/// From here on a quarter of what is free is enough.
const COMFORTABLE: u64 = 64 << 20;
const SMALLEST: u64 = 24 << 20;
/// What sessions of small pools need beside the pool, at most twice of it.
const SESSION: u64 = 8 << 20;

/// The caller's default pool, made at first use, of `wanted` bytes. Says on standard error what it
/// is.
pub fn find_or_make(quiet: bool, wanted: Option<u64>) -> Result<PathBuf> {
    let path = match named() {
        Some(path) => path,
        None => match existing()? {
            Some(path) => path,
            None => Folder::make_of_user()?.path().join(FILE),
        },
    };
    let volume = if path.exists() {
        refuse_other_size(&path, wanted)?;
        open(&path)?
    } else {
        make(&path, wanted)?
    };
    if !quiet {
        let (shown, bytes) = (path.display(), size::human(volume.len()));
        eprintln!("nacre: using the default pool {shown} ({bytes})");
        for line in survival(volume.survives(), SafeFrom::Return).lines() {
            eprintln!("nacre: what is in it {}", line.replace("  ", " "));
        }
        eprintln!(
            "nacre: make a lasting one with `nacre create --size 10G FILE`, use it with --pool FILE"
        );
    }
    Ok(path)
}

/// The pool that is named, or the default one, if there is one.
pub fn unless(pool: Option<&PathBuf>) -> Result<PathBuf> {
    if let Some(pool) = pool {
        return Ok(pool.clone());
    }
    let found = match named() {
        Some(path) => Some(path).filter(|path| path.exists()),
        None => existing()?,
    };
    let found = found.ok_or_else(|| {
        Failure::Usage(
            "no pool is named, and there is no default pool yet: `nacre run -- PROGRAM` makes it"
                .to_owned(),
        )
    })?;
    open(&found)?;
    Ok(found)
}

/// The one that the environment names.
fn named() -> Option<PathBuf> {
    setting(VARIABLE).map(PathBuf::from)
}

/// The one that was made before.
fn existing() -> Result<Option<PathBuf>> {
    if let Some(folder) = Folder::of_user()?
        && folder.look(FILE)?.is_some()
    {
        return Ok(Some(folder.path().join(FILE)));
    }
    let old = base().join(old_default_pool(Trust::user()?));
    // What somebody else put there is no pool of ours.
    let ours = old.symlink_metadata().is_ok_and(|found| found.is_file()) && open(&old).is_ok();
    Ok(ours.then_some(old))
}

/// Opens a pool that nobody named on the command line. What stands at the usual place must be the
/// caller's alone; one that the environment names may be another's, but not everybody's.
fn open(path: &Path) -> Result<Volume> {
    let volume = Volume::open(path, Access::ReadOnly)?;
    let Owner { uid, gid, mode } = volume.owner();
    let trust = match named() {
        Some(_) if mode & OTHERS_WRITE == 0 => Trust { uid, gid, mode },
        _ => Trust::user()?,
    };
    match trust.accepts_owner(uid, gid, mode) {
        true => Ok(volume),
        false => Err(Failure::ForeignPool {
            pool: path.to_path_buf(),
            owner: uid,
        }),
    }
}

/// A pool that is there keeps its size.
fn refuse_other_size(path: &Path, wanted: Option<u64>) -> Result<()> {
    let meta = path
        .metadata()
        .map_err(|error| Failure::io(path.display(), error))?;
    match wanted.filter(|&wanted| wanted != meta.len()) {
        None => Ok(()),
        Some(_) => Err(Failure::Usage(format!(
            "--size: the default pool {0} is there already, with {1}; leave --size out, or remove the pool with \
             `nacre delete {0}` first",
            path.display(),
            size::human(meta.len())
        ))),
    }
}

fn make(path: &Path, wanted: Option<u64>) -> Result<Volume> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let free = free_in_memory(folder)?;
    let Some(bytes) = wanted.or(share_of(free)) else {
        return Err(Failure::Usage(too_little(folder, free)));
    };
    drop(create::make(
        &[path.to_path_buf()],
        create::Taking::new(bytes),
        Some(WriteMode::Direct),
    )?);
    // Attached once and left properly, so that the first program starts as fast as the next.
    let attached = Attached::open(path, Access::ReadWrite, None).and_then(Attached::detach);
    if let Err(failure) = attached {
        // Of no use, and it takes the room that is wanted. The failure says more than this one
        // would.
        let _ = std::fs::remove_file(path);
        return Err(failure);
    }
    Ok(Volume::open(path, Access::ReadOnly)?)
}

/// Bytes that files in this folder of shared memory may still take.
pub fn free_in_memory(folder: &Path) -> Result<u64> {
    let space = statvfs(folder).map_err(|error| Failure::io(folder.display(), error))?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    Ok(memory_limit().map_or(free, |limit| free.min(limit)))
}

/// At most a quarter of what is free, in whole mebibytes; at most half where there is little, as
/// the session of the pool and the program's own shared memory want some. `None` if that is not
/// enough for a pool.
pub fn share_of(free: u64) -> Option<u64> {
    let bytes = (free / 4).clamp(COMFORTABLE, LARGEST).min(free / 2) >> 20 << 20;
    let least = (free >= SMALLEST + SESSION).then_some(SMALLEST)?;
    Some(bytes.max(least))
}

fn too_little(folder: &Path, free: u64) -> String {
    let folder = folder.display();
    format!(
        "{folder} has {} free; the default pool needs at least {} there. Make it larger (`mount -o remount,size=1G \
         {folder}`, `docker run --shm-size=1g`), or use a pool on a disk: `nacre create --size 1G FILE`, then `nacre run \
         --pool FILE`, with NACRE_SESSION_DIR=FOLDER if there is no room for its session either",
        size::human(free),
        size::human(SMALLEST + SESSION),
    )
}

#[cfg(test)]
mod tests {
    use super::{SESSION, SMALLEST, share_of};

    #[test]
    fn a_sensible_share() {
        assert_eq!(share_of(100 << 30), Some(1 << 30));
        assert_eq!(share_of(2 << 30), Some(512 << 20));
        assert_eq!(share_of(64 << 20), Some(32 << 20));
        assert_eq!(share_of(32 << 20), Some(24 << 20));
        assert_eq!(share_of(31 << 20), None);
        for mib in 32..10_000u64 {
            let share = share_of(mib << 20).unwrap_or(0);
            assert!(
                share >= SMALLEST && share + SESSION <= mib << 20,
                "{mib} MiB"
            );
        }
    }
}
