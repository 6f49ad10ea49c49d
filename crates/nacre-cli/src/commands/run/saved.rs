//! `nacre run --save-to`: a pool in memory that a restart of the machine finds again.
//!
//! Its memory is the image of a pool on a disk (D39), so it is saved as a cache is written back.
//! That nobody waits for it is a property of the pool.

use super::default_pool::{free_in_memory, share_of};
use crate::commands::create::{self, Taking};
use crate::every;
use crate::failure::{Failure, Result};
use crate::size;
use crate::tree_path::absolute;
use nacre_runtime::{Trust, base, has_other_names};
use nacre_volume::{Owner, Volume};
use rustix::fs::statvfs;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often it is saved unless told.
const EVERY: Duration = Duration::from_secs(5);

const OTHERS_WRITE: u32 = 0o002;

/// A pool in memory, and the file that it is saved to.
pub struct Saved<'a> {
    pub file: &'a Path,
    /// Another name of it.
    pub name: Option<&'a Path>,
    pub every: Option<Duration>,
    pub size: Option<u64>,
    pub cache: Option<u64>,
    pub quiet: bool,
}

impl Saved<'_> {
    /// The pool to use, made if it is not there.
    pub fn find_or_make(&self) -> Result<PathBuf> {
        let file = absolute(self.file)?;
        match file.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Nothing is made where it could not get its name.
                match self.name.filter(|name| name.exists()) {
                    Some(name) => return Err(taken(name, &file)),
                    None => self.make(&file)?,
                }
            }
            _ => self.find(&file)?,
        }
        if let Some(name) = self.name {
            give_name(name, &file)?;
        }
        Ok(file)
    }

    fn find(&self, file: &Path) -> Result<()> {
        refuse_others_name(file)?;
        let (known, owner) = Volume::inspect_with_owner(file)?;
        refuse_others(file, owner)?;
        let shown = file.display();
        if known.saved_every == 0 {
            return Err(Failure::Usage(format!(
                "{shown}: a pool of its own, where fsync waits for the disk; use it with --pool {shown}, or save to \
                 another file"
            )));
        }
        if let Some(wanted) = self.size.filter(|&wanted| wanted != known.own().size) {
            let (is, wanted) = (size::human(known.own().size), size::human(wanted));
            return Err(Failure::Usage(format!(
                "--size {wanted}: {shown} is there already, with {is}; leave --size out"
            )));
        }
        match self.every.map(millis) {
            Some(every) if every != known.saved_every => {
                Ok(Volume::store_saved_every(file, every)?)
            }
            _ => Ok(()),
        }
    }

    fn make(&self, file: &Path) -> Result<()> {
        let bytes = self.size.map_or_else(|| usual_size(file), Ok)?;
        let (volume, _) = create::make(&[file.to_path_buf()], Taking::new(bytes), None)?;
        let is_cached = volume.is_cached();
        drop(volume);
        let every = self.every.unwrap_or(EVERY);
        let marked = match is_cached {
            // All of it stays in memory unless told.
            true => Volume::store_cache(file, self.cache.unwrap_or(bytes))
                .and_then(|()| Volume::store_saved_every(file, millis(every)))
                .map_err(Failure::from),
            false => Err(Failure::Usage(format!(
                "{}: --save-to is for a file on a disk; a pool there is in memory itself, or lasts without",
                file.display()
            ))),
        };
        if marked.is_err() {
            // The failure that is on its way says more than this one would.
            let _ = fs::remove_file(file);
        } else if !self.quiet {
            eprintln!(
                "nacre: new pool in memory of {}, saved to {} every {}; fsync does not wait for that",
                size::human(bytes),
                file.display(),
                every::human(every)
            );
        }
        marked
    }
}

/// The caller expects a pool of its own, which is made if it is missing: what somebody else has put
/// there first is not meant.
fn refuse_others(file: &Path, owner: Owner) -> Result<()> {
    let trust = Trust::user()?;
    let Owner { uid, gid, mode } = owner;
    let alone = Trust {
        gid,
        mode: mode & !OTHERS_WRITE,
        ..trust
    };
    match alone.accepts_owner(uid, gid, mode) {
        true => Ok(()),
        false => Err(Failure::ForeignPool {
            pool: file.to_path_buf(),
            owner: uid,
        }),
    }
}

/// A link that somebody else made leads elsewhere the next moment; one that cannot be told from the
/// file itself leads to another file of the caller's.
fn refuse_others_name(file: &Path) -> Result<()> {
    if has_other_names(file) == Ok(true) {
        return Err(Failure::ForeignName(file.to_path_buf()));
    }
    let failed = |error| Failure::io(file.display(), error);
    let owner = file.symlink_metadata().map_err(failed)?.uid();
    match owner == 0 || owner == Trust::user()?.uid {
        true => Ok(()),
        false => Err(Failure::ForeignPool {
            pool: file.to_path_buf(),
            owner,
        }),
    }
}

fn millis(every: Duration) -> u32 {
    every.as_millis() as u32
}

/// By what is free where pools in memory are, and on the disk.
fn usual_size(file: &Path) -> Result<u64> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    let space = statvfs(folder).map_err(|error| Failure::io(folder.display(), error))?;
    let on_disk = space.f_bavail.saturating_mul(space.f_frsize);
    let free = free_in_memory(base())?.min(on_disk);
    share_of(free).ok_or_else(|| {
        Failure::Usage(format!(
            "{}: {} are free; say with --size how large the pool is to be",
            file.display(),
            size::human(free)
        ))
    })
}

/// Makes a link that leads other commands to the pool.
fn give_name(name: &Path, file: &Path) -> Result<()> {
    match symlink(file, name) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => check_name(name, file),
        Err(error) => Err(Failure::io(name.display(), error)),
    }
}

fn check_name(name: &Path, file: &Path) -> Result<()> {
    let of_file = fs::canonicalize(file).map_err(|error| Failure::io(file.display(), error))?;
    if fs::canonicalize(name).is_ok_and(|found| found == of_file) {
        return refuse_others_name(name);
    }
    Err(taken(name, file))
}

fn taken(name: &Path, file: &Path) -> Failure {
    let (name, file) = (name.display(), file.display());
    Failure::Usage(format!(
        "{name} is there already and is not {file}; choose another name, which need not exist. What a pool holds is \
         copied by `nacre cp -r {name}:/ {file}:/`"
    ))
}
