//! Names go away; inodes go when nobody needs them any more.

use crate::Fs;
use crate::create::touch_directory;
use crate::error::{FsError, Result};
use crate::inode::{Found, InodeRef, is_directory};
use crate::live::{ENTRY_LEN, LiveEntry};
use crate::name::is_dot_or_dot_dot;
use crate::permission::{Cred, check_sticky, check_thawed};
use crate::watch::Events;
use nacre_store::layout::EntryKey;
use nacre_store::{Attrs, ObjectGuard, Tree, Tx};
use nacre_types::{ObjectId, Timestamp};

impl Fs {
    /// Removes a name that is not a directory's.
    pub fn unlink(&self, cred: &Cred, dir: InodeRef, name: &[u8]) -> Result<()> {
        if is_dot_or_dot_dot(name) {
            return Err(FsError::IsDirectory);
        }
        self.remove(cred, dir, name, false, None)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, cred: &Cred, dir: InodeRef, name: &[u8]) -> Result<()> {
        match name {
            b"." => Err(FsError::Invalid),
            b".." => Err(FsError::NotEmpty),
            _ => self.remove(cred, dir, name, true, None),
        }
    }

    /// As [`Fs::rmdir`] if it is a `directory`, else as [`Fs::unlink`], for a caller whom a lookup
    /// with the same credentials has just told what the name stands for.
    pub fn remove_found(
        &self,
        cred: &Cred,
        dir: InodeRef,
        name: &[u8],
        directory: bool,
        found: Found,
    ) -> Result<()> {
        self.remove(cred, dir, name, directory, Some(found))
    }

    fn remove(
        &self,
        cred: &Cred,
        dir: InodeRef,
        name: &[u8],
        directory: bool,
        mut known: Option<Found>,
    ) -> Result<()> {
        loop {
            let found = match known.take() {
                Some(found) => found,
                None => self.find(cred, dir, name)?.ok_or(FsError::NotFound)?,
            };
            let (_guard, victim) = self.store.lock_pair(dir.object(), found.node.object())?;
            let Some(victim) = victim else {
                return Err(FsError::corrupt(
                    dir.object(),
                    "the directory contains itself",
                ));
            };
            match self.remove_locked(cred, dir, name, &victim, directory) {
                Ok(()) => {
                    if self.is_watched() {
                        self.tell_removed(dir, name, found.node, Events::kind(directory));
                    }
                    return Ok(());
                }
                // It may be gone by that, or by the next attach.
                Err(FsError::Io) => return Err(FsError::Io),
                // If the name stands for something else by now, it is tried with that.
                Err(error) if self.still_found(dir, name, Some(found))? => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// Fails if the name does not stand for the victim.
    fn remove_locked(
        &self,
        cred: &Cred,
        dir: InodeRef,
        name: &[u8],
        victim: &ObjectGuard<'_>,
        directory: bool,
    ) -> Result<()> {
        let parent = self.attrs_held(dir)?;
        let attrs = self.store.attrs_locked(victim)?;
        self.check_writable()?;
        self.check_removable(cred, (dir, &parent), &attrs, directory)?;
        if directory {
            check_empty(&attrs)?;
        }
        let now = self.store.now();
        let mut room = EntryKey::room();
        let key = room.of(self.seed, name);
        let _unseen = victim.begin_change();
        let mut tx = self.store.begin()?;
        take_entry(&mut tx, dir, key, victim.id())?;
        if directory {
            tx.set_attrs(dir.object(), |attrs| {
                attrs.nlink = attrs.nlink.saturating_sub(1);
            })?;
        }
        touch_directory(&mut tx, dir, now)?;
        self.drop_link(&mut tx, victim.id(), &attrs, now)?;
        Ok(tx.commit()?)
    }

    /// Takes one name (a directory's only one) from a locked inode, and frees it if that was the
    /// last one and nobody has it open. The caller has begun a change of the inode: whoever pins
    /// it meanwhile either is counted here or sees the result.
    pub(crate) fn drop_link(
        &self,
        tx: &mut Tx<'_>,
        object: ObjectId,
        attrs: &Attrs,
        now: Timestamp,
    ) -> Result<()> {
        let left = if is_directory(attrs) {
            0
        } else {
            attrs.nlink.saturating_sub(1)
        };
        if left == 0 && !self.is_pinned(object)? {
            return Ok(tx.remove(object)?);
        }
        Ok(tx.set_attrs(object, |attrs| {
            attrs.nlink = left;
            attrs.ctime = now.0;
        })?)
    }
}

/// Removes a name of `object` from a locked directory.
pub(crate) fn take_entry(
    tx: &mut Tx<'_>,
    dir: InodeRef,
    key: &EntryKey,
    object: ObjectId,
) -> Result<()> {
    let mut value = [0; ENTRY_LEN];
    let len = tx.tree_take(dir.object(), Tree::Entries, key.as_bytes(), &mut value)?;
    let value = value.get(..len.unwrap_or(0)).unwrap_or_default();
    match LiveEntry::decode(dir.object(), value)?.object == object {
        true => Ok(()),
        false => Err(FsError::corrupt(
            dir.object(),
            "a name stands for something else",
        )),
    }
}

/// A directory that is to go holds nothing.
pub(crate) fn check_empty(dir: &Attrs) -> Result<()> {
    match dir.has_entries {
        false => Ok(()),
        true => Err(FsError::NotEmpty),
    }
}

impl Fs {
    /// The rules of removing or replacing `victim` in `dir`.
    #[inline]
    pub(crate) fn check_removable(
        &self,
        cred: &Cred,
        (dir, dir_attrs): (InodeRef, &Attrs),
        victim: &Attrs,
        directory: bool,
    ) -> Result<()> {
        self.check_directory_write(cred, dir.object(), dir_attrs)?;
        check_sticky(cred, dir_attrs, victim)?;
        check_thawed(victim)?;
        match (directory, is_directory(victim)) {
            (true, false) => Err(FsError::NotDirectory),
            (false, true) => Err(FsError::IsDirectory),
            _ => Ok(()),
        }
    }
}
