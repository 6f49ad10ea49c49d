//! Getting hold of inodes: stale references, locks, directory entries.

use crate::Fs;
use crate::error::{FsError, Result};
use crate::inode::{FileType, InodeRef, is_directory};
use crate::permission::{Access, Cred};
use nacre_store::layout::EntryKey;
use nacre_store::layout::EntryValue;
use nacre_store::{Attrs, ObjectGuard, Tree};
use nacre_types::ObjectId;

/// Bytes of an encoded directory entry.
pub(crate) const ENTRY_LEN: usize = 9;

/// What a directory entry says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LiveEntry {
    pub(crate) object: ObjectId,
    pub(crate) file_type: FileType,
}

impl LiveEntry {
    pub(crate) fn of(object: ObjectId, mode: u32) -> Result<LiveEntry> {
        let file_type = FileType::from_mode(mode)
            .ok_or_else(|| FsError::corrupt(object, "the inode has no file type"))?;
        Ok(LiveEntry { object, file_type })
    }

    pub(crate) fn encode(self) -> [u8; ENTRY_LEN] {
        EntryValue {
            object: self.object,
            kind: self.file_type.dirent_type(),
        }
        .encode()
    }

    /// Decodes an entry of the directory `dir`.
    #[inline]
    pub(crate) fn decode(dir: ObjectId, value: &[u8]) -> Result<LiveEntry> {
        EntryValue::decode(value)
            .and_then(|entry| {
                let file_type = FileType::from_dirent(entry.kind)?;
                Some(LiveEntry {
                    object: entry.object,
                    file_type,
                })
            })
            .ok_or_else(|| undecodable(dir))
    }
}

fn undecodable(dir: ObjectId) -> FsError {
    FsError::corrupt(dir, "a directory entry cannot be decoded")
}

/// Removed directories take no new names.
pub(crate) fn check_linked(dir: &Attrs) -> Result<()> {
    if dir.nlink == 0 {
        return Err(FsError::NotFound);
    }
    Ok(())
}

impl Fs {
    /// A directory that the caller may search.
    #[inline]
    pub(crate) fn check_search(&self, cred: &Cred, dir: InodeRef, attrs: &Attrs) -> Result<()> {
        if !is_directory(attrs) {
            return Err(FsError::NotDirectory);
        }
        self.check_access(cred, dir.object(), attrs, Access::EXEC)
    }

    /// A consistent snapshot of the attributes. Final while the caller holds the lock.
    #[inline]
    pub(crate) fn attrs(&self, node: InodeRef) -> Result<Attrs> {
        let attrs = self.store.attrs(node.object())?;
        if attrs.generation != node.generation {
            return Err(FsError::Stale);
        }
        Ok(attrs)
    }

    /// Locks one inode.
    #[inline]
    pub(crate) fn lock(&self, node: InodeRef) -> Result<(ObjectGuard<'_>, Attrs)> {
        let guard = self.store.lock(node.object())?;
        let attrs = self.store.attrs_locked(&guard)?;
        if attrs.generation != node.generation {
            return Err(FsError::Stale);
        }
        Ok((guard, attrs))
    }

    /// As [`Fs::attrs`], of an inode that the caller has locked.
    #[inline]
    pub(crate) fn attrs_held(&self, node: InodeRef) -> Result<Attrs> {
        let attrs = self.store.attrs_held(node.object())?;
        if attrs.generation != node.generation {
            return Err(FsError::Stale);
        }
        Ok(attrs)
    }

    /// Runs `read` until nobody has changed the object meanwhile.
    pub(crate) fn stable<T>(
        &self,
        node: InodeRef,
        mut read: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        self.store.read_stable(node.object(), || Ok(read()))?
    }

    #[inline]
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.store.is_writable() {
            Ok(())
        } else {
            Err(FsError::ReadOnly)
        }
    }

    pub(crate) fn entry(&self, dir: ObjectId, key: &EntryKey) -> Result<Option<LiveEntry>> {
        let mut value = [0; ENTRY_LEN];
        let found = self
            .store
            .tree_get_into(dir, Tree::Entries, key.as_bytes(), &mut value)?;
        match found {
            None => Ok(None),
            Some(ENTRY_LEN) => LiveEntry::decode(dir, &value).map(Some),
            Some(_) => Err(undecodable(dir)),
        }
    }
}
