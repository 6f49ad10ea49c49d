//! Folders of pools that are gone.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre_types::Uuid;
use rustix::fs::OFlags;
use rustix::io::read;

use crate::base::base;
use crate::error::RuntimeError;
use crate::find::{PoolKey, names};
use crate::folder::Folder;
use crate::identity::one_user;

/// Name of the file in a pool's folder that says where the pool was.
pub(crate) const ORIGIN: &str = "pool";
/// More than a path and what follows it.
const NOTE_MAX: usize = 4096 + 64;

/// The run-time folder of a pool.
#[derive(Debug)]
pub struct PoolFolder {
    /// Which pool it is.
    pub key: PoolKey,
    /// Its folder.
    pub folder: Arc<Folder>,
}

/// All folders of pools that the caller may look into, whoever made them: to tell about them, not
/// to join what is in them.
pub fn pool_folders() -> Result<Vec<PoolFolder>, RuntimeError> {
    let found = names("nacre-")?.into_iter().filter_map(|name| {
        let key = key_of(name.to_str()?)?;
        let folder = Folder::of_its_maker(&base().join(name)).ok()??;
        let folder = Arc::new(folder);
        Some(PoolFolder { key, folder })
    });
    Ok(found.collect())
}

/// All folders of the calling user that belong to pools that were removed or moved.
///
/// Whether somebody still uses one the caller has to find out.
pub fn sweep() -> Result<Vec<PoolFolder>, RuntimeError> {
    let mut found = pool_folders()?;
    let user = one_user();
    found.retain(|pool| Some(pool.folder.trust().uid) == user && pool.is_gone());
    Ok(found)
}

impl PoolFolder {
    /// Whether the pool is no more where it was when its folder was last found. Whoever finds the
    /// folder of a pool that was moved notes its new place, so that it is not gone any more.
    pub fn is_gone(&self) -> bool {
        let device = self.key.device;
        let gone = |(path, of): (PathBuf, _)| !stands(&path, of_device(of).unwrap_or(device));
        origin(&self.folder).is_some_and(gone)
    }
}

/// The pool of a folder's name.
fn key_of(name: &str) -> Option<PoolKey> {
    let rest = name.strip_prefix("nacre-")?;
    let (uuid, rest) = (rest.get(..36)?, rest.get(36..)?.strip_prefix('-')?);
    let device = of_device(rest.split('~').next()?)?;
    let uuid = uuid.parse::<Uuid>().ok()?;
    Some(PoolKey { uuid, device })
}

/// The numbers of a file, as they stand in names.
fn of_device(text: impl AsRef<str>) -> Option<(u64, u64)> {
    let (device, inode) = text.as_ref().split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some((number(device)?, number(inode)?))
}

/// The path that was noted, and the numbers of what was there. They are not those of the folder's
/// name where the pool has lost the device that gave it.
fn origin(folder: &Folder) -> Option<(PathBuf, String)> {
    let note = noted(folder)?;
    let (path, of) = note.split_once('\0').unwrap_or((&note, ""));
    path.starts_with('/')
        .then(|| (PathBuf::from(path), of.to_owned()))
}

fn noted(folder: &Folder) -> Option<String> {
    let fd = folder.open_file(ORIGIN, OFlags::RDONLY).ok()??;
    let mut bytes = vec![0; NOTE_MAX];
    let len = read(&fd, &mut bytes[..]).ok()?;
    String::from_utf8(bytes[..len].to_vec()).ok()
}

/// What is noted of a pool at a path.
fn note_of(pool: &Path) -> Option<String> {
    let found = std::fs::metadata(pool).ok().filter(Metadata::is_file);
    let numbers = found.map(|found| format!("\0{:x}-{:x}", found.dev(), found.ino()));
    Some(format!("{}{}", pool.to_str()?, numbers.unwrap_or_default()))
}

fn stands(path: &PathBuf, device: (u64, u64)) -> bool {
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() => (found.dev(), found.ino()) == device,
        // A device, or a place that cannot be looked at now.
        Ok(_) => true,
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

impl Folder {
    /// Removes the folder of a pool if nothing but the note of its origin is in it.
    pub fn leave_if_unused(&self) {
        if self.names() == [ORIGIN] && self.remove(ORIGIN).is_ok() {
            self.leave();
        }
    }

    /// Notes where the pool of this folder is, for [`sweep`].
    pub fn note_origin(&self, pool: &Path) {
        let note = note_of(pool);
        if note.is_some() && note == noted(self) {
            return;
        }
        // There is one if the pool was somewhere else before.
        let _before = self.remove(ORIGIN);
        if let Some(note) = note
            && let Ok(fd) = self.make_file(ORIGIN)
        {
            // Without the note the folder stays until somebody removes it.
            let _ = rustix::io::write(&fd, note.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::key_of;

    #[test]
    fn a_key_survives_its_name() {
        let text = "nacre-01234567-89ab-cdef-0123-456789abcdef-2a-1f";
        let key = key_of(text).expect("a key");
        assert_eq!((key.to_string().as_str(), key.device), (text, (0x2a, 0x1f)));
        assert_eq!(key_of(&format!("{text}~77")), Some(key));
        for other in [
            "nacre-0",
            "nacre-default-0.pool",
            "nacre-01234567-89ab-cdef-0123-456789abcdef",
        ] {
            assert_eq!(key_of(other), None);
        }
    }
}
