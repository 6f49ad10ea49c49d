//! Finding and making folders in the base, where others may have taken any name.
//!
//! The first name is known from the pool or the user. If something stands there that is not
//! trusted, the folder has the name with a random end, and is found by its owner among all names
//! that begin alike. So nobody can use up the names, and all who look find the same folder:
//! one is made only when none is there, and for pools that happens under the pool's lock.

use std::ffi::OsStr;
use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};

use nacre_types::Uuid;
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, fstat, openat};

use crate::base::{base, check};
use crate::error::RuntimeError;
use crate::folder::{Folder, Seen, system};
use crate::trust::Trust;

/// How the names of earlier versions' default pools begin.
const OLD_DEFAULT: &str = "nacre-default-";
/// How often somebody who is overtaken by others tries again.
const TRIES: usize = 100;

/// Which pool: copies of one have the same label, but other devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolKey {
    /// As the label says.
    pub uuid: Uuid,
    /// Device and inode of the first device, as its descriptor says.
    pub device: (u64, u64),
}

impl Display for PoolKey {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let PoolKey { uuid, device } = self;
        write!(f, "nacre-{uuid}-{:x}-{:x}", device.0, device.1)
    }
}

impl Folder {
    /// The folder of those who may write a pool, if there is one.
    pub fn of_pool(key: PoolKey, trust: Trust) -> Result<Option<Folder>, RuntimeError> {
        find(&key.to_string(), trust)
    }

    /// As [`Folder::of_pool`]; made if it is missing. The caller holds the pool's lock.
    pub fn make_of_pool(key: PoolKey, trust: Trust) -> Result<Folder, RuntimeError> {
        find_or_make(&key.to_string(), trust)
    }

    /// The folder of the user that the process is, if there is one.
    pub fn of_user() -> Result<Option<Folder>, RuntimeError> {
        let trust = Trust::user()?;
        find(&user_name(trust), trust)
    }

    /// As [`Folder::of_user`]; made if it is missing.
    pub fn make_of_user() -> Result<Folder, RuntimeError> {
        let trust = Trust::user()?;
        find_or_make(&user_name(trust), trust)
    }
}

/// Device and inode of the file at a path in the folder of the user that the process is, as that
/// folder was found by its owner, or at the place where earlier versions had the user's default
/// pool. `None` if the path is somewhere else.
///
/// Fails if the file there is not the user's alone, or there is none: whatever else the path leads
/// to is not meant.
pub fn own_file(path: &Path) -> Result<Option<(u64, u64)>, RuntimeError> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(None);
    };
    // Told by its beginning, which costs those nothing who use another pool there.
    let name_starts = name.as_encoded_bytes().starts_with(OLD_DEFAULT.as_bytes());
    let is_old = name_starts && parent == base();
    if !is_old && parent.parent() != Some(base()) {
        return Ok(None);
    }
    let Ok(user) = Trust::user() else {
        return Ok(None);
    };
    let foreign = || RuntimeError::Foreign(path.to_owned());
    if is_old {
        let is_default = name.to_str() == Some(&old_default_pool(user));
        let found = is_default.then(|| private_file(path, user).ok_or_else(foreign));
        return found.transpose();
    }
    let usual = user_name(user);
    let is_own = |folder: &str| folder == usual || folder.starts_with(&beginning(&usual));
    if !parent
        .file_name()
        .and_then(OsStr::to_str)
        .is_some_and(is_own)
    {
        return Ok(None);
    }
    let own = Folder::of_user()?.filter(|own| own.path() == parent);
    let name = name.to_str().ok_or_else(foreign)?;
    let file = own.ok_or_else(foreign)?.open_and_look(name, OFlags::PATH)?;
    let (_, found) = file.ok_or_else(foreign)?;
    Ok(Some((found.st_dev, found.st_ino)))
}

/// Name in the base by which earlier versions knew a user's default pool.
pub fn old_default_pool(user: Trust) -> String {
    format!("{OLD_DEFAULT}{}.pool", user.uid)
}

/// Device and inode of a regular file that nobody else can have made or write. A link is none.
fn private_file(path: &Path, user: Trust) -> Option<(u64, u64)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = openat(CWD, path, flags, Mode::empty()).ok()?;
    let found = fstat(&fd).ok()?;
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    (is_file && user.accepts(&found)).then_some((found.st_dev, found.st_ino))
}

fn user_name(user: Trust) -> String {
    format!("nacre-{}", user.uid)
}

fn find(name: &str, trust: Trust) -> Result<Option<Folder>, RuntimeError> {
    check(&trust)?;
    match Folder::accepted(&base().join(name), trust)? {
        Seen::Ours(folder) => Ok(Some(folder)),
        Seen::Missing | Seen::Foreign => other_name(name, trust),
    }
}

fn find_or_make(name: &str, trust: Trust) -> Result<Folder, RuntimeError> {
    for _ in 0..TRIES {
        if let Some(folder) = find(name, trust)? {
            return Ok(folder);
        }
        let path = base().join(name);
        if let Some(folder) = Folder::made(&path, trust)? {
            return Ok(folder);
        }
        // Somebody of ours was quicker, or it is not ours.
        if let Seen::Foreign = Folder::accepted(&path, trust)? {
            let other = base().join(format!("{}{}", beginning(name), Uuid::random()));
            Folder::made(&other, trust)?;
        }
    }
    Err(RuntimeError::Foreign(base().join(name)))
}

fn beginning(name: &str) -> String {
    format!("{name}~")
}

/// The first folder in the order of names that is ours.
fn other_name(name: &str, trust: Trust) -> Result<Option<Folder>, RuntimeError> {
    let beginning = beginning(name);
    for name in names(&beginning)? {
        if let Seen::Ours(folder) = Folder::accepted(&base().join(name), trust)? {
            return Ok(Some(folder));
        }
    }
    Ok(None)
}

/// All names in the base with this beginning, in order.
pub(crate) fn names(beginning: &str) -> Result<Vec<PathBuf>, RuntimeError> {
    let path = base();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = openat(CWD, path, flags, Mode::empty());
    let fd = opened.map_err(|errno| system("open the folder of sessions", path, errno))?;
    let entries = Dir::new(fd).map_err(|errno| system("read", path, errno))?;
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.file_name().to_str().ok()?.to_owned()))
        .filter(|name| name.starts_with(beginning))
        .map(PathBuf::from)
        .collect();
    found.sort();
    Ok(found)
}
