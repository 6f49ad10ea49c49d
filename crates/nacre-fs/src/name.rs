//! Names and the encoding of directory entries.

use crate::error::{FsError, Result};
use nacre_store::layout;
use nacre_types::position_of;

/// Longest name in bytes.
pub(crate) const NAME_MAX: usize = 255;
const HASH_LEN: usize = 8;

/// Names that a directory may hold; `.` and `..` are nobody's to make.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(FsError::NameTooLong);
    }
    if name.is_empty() {
        return Err(FsError::NotFound);
    }
    if position_of(name, *b"/\0").is_some() {
        return Err(FsError::Invalid);
    }
    Ok(())
}

pub(crate) fn is_dot_or_dot_dot(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// Key of a directory entry: the hash, big-endian so that keys sort by it, and the name.
pub(crate) struct EntryKey {
    bytes: [u8; HASH_LEN + NAME_MAX],
    len: usize,
    hash: u64,
}

impl EntryKey {
    /// Room for a key, to be filled where it lies: it is too large to be moved about.
    #[inline]
    pub(crate) const fn room() -> EntryKey {
        EntryKey {
            bytes: [0; HASH_LEN + NAME_MAX],
            len: 0,
            hash: 0,
        }
    }

    /// The key of `name`, which has passed `check_name`.
    #[inline]
    pub(crate) fn of(&mut self, seed: u64, name: &[u8]) -> &EntryKey {
        self.hash = layout::entry_hash(seed, name);
        self.len = HASH_LEN + name.len();
        self.bytes[..HASH_LEN].copy_from_slice(&self.hash.to_be_bytes());
        self.bytes[HASH_LEN..self.len].copy_from_slice(name);
        self
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }
}
