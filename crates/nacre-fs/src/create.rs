//! New inodes and new names for old ones.

use crate::Fs;
use crate::acl::Inherited;
use crate::error::{FsError, Result};
use crate::inode::{FileType, Found, InodeRef, PERMISSION_MASK, is_directory};
use crate::live::{LiveEntry, check_linked};
use crate::name::{check_name, is_dot_or_dot_dot};
use crate::permission::{Caps, Cred, check_thawed, inherit};
use crate::watch::Events;
use nacre_media::UserBytes;
use nacre_store::layout::{EntryKey, FLAG_DEFAULT_ACL, FLAG_KEPT, FLAG_LINKABLE};
use nacre_store::{Attrs, INLINE_MAX, NewObject, Tree, Tx};
use nacre_types::{FileOffset, ObjectId, Timestamp};

/// Most names of an inode, and most subdirectories.
pub(crate) const LINK_MAX: u32 = 1 << 31;
/// Longest symbolic link target in bytes.
const TARGET_MAX: usize = 4095;
/// Number of a whiteout, a character device that leads nowhere: anybody may make it.
pub(crate) const WHITEOUT_DEVICE: u64 = 0;

/// The permission bits that a new inode is to have, and those of the caller's umask: it counts
/// where the directory has no default access control list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewMode {
    bits: u32,
    umask: u32,
}

impl NewMode {
    /// These bits, but for those of the umask.
    #[inline(always)]
    pub fn masked(bits: u32, umask: u32) -> NewMode {
        NewMode { bits, umask }
    }
}

impl From<u32> for NewMode {
    #[inline(always)]
    fn from(bits: u32) -> NewMode {
        NewMode::masked(bits, 0)
    }
}

/// An inode to be made in a directory.
#[derive(Clone, Copy)]
struct NewInode<'a> {
    /// Type and permission bits.
    mode: u32,
    umask: u32,
    rdev: u64,
    /// Target of a short symbolic link.
    inline: &'a [u8],
    /// `FLAG_*` bits.
    flags: u32,
    pinned: bool,
}

impl NewInode<'_> {
    fn plain(file_type: FileType, permissions: impl Into<NewMode>) -> NewInode<'static> {
        let NewMode { bits, umask } = permissions.into();
        NewInode {
            mode: file_type.mode_bits() | bits & PERMISSION_MASK,
            umask,
            rdev: 0,
            inline: &[],
            flags: 0,
            pinned: false,
        }
    }

    fn is_directory(&self) -> bool {
        FileType::from_mode(self.mode) == Some(FileType::Directory)
    }
}

impl Fs {
    /// Makes an empty regular file and pins it. `Exists` if the name is taken.
    pub fn create(
        &self,
        cred: &Cred,
        dir: InodeRef,
        name: &[u8],
        mode: impl Into<NewMode>,
    ) -> Result<InodeRef> {
        let new = NewInode {
            pinned: true,
            ..NewInode::plain(FileType::Regular, mode)
        };
        self.make(cred, dir, name, new)
    }

    /// Makes a directory.
    pub fn mkdir(
        &self,
        cred: &Cred,
        dir: InodeRef,
        name: &[u8],
        mode: impl Into<NewMode>,
    ) -> Result<InodeRef> {
        self.make(cred, dir, name, NewInode::plain(FileType::Directory, mode))
    }

    /// Makes a node of the type in `mode`: regular file, fifo, socket or device.
    pub fn mknod(
        &self,
        cred: &Cred,
        dir: InodeRef,
        name: &[u8],
        mode: impl Into<NewMode>,
        rdev: u64,
    ) -> Result<InodeRef> {
        let mode = mode.into();
        let file_type = FileType::from_mode(mode.bits).unwrap_or(FileType::Regular);
        let rdev = match file_type {
            FileType::CharDevice if rdev == WHITEOUT_DEVICE => rdev,
            FileType::CharDevice | FileType::BlockDevice if !cred.has(Caps::MKNOD) => {
                return Err(FsError::NotPermitted);
            }
            FileType::CharDevice | FileType::BlockDevice => rdev,
            FileType::Directory => return Err(FsError::NotPermitted),
            FileType::Symlink => return Err(FsError::Invalid),
            FileType::Regular | FileType::Fifo | FileType::Socket => 0,
        };
        self.make(
            cred,
            dir,
            name,
            NewInode {
                rdev,
                ..NewInode::plain(file_type, mode)
            },
        )
    }

    /// Makes a symbolic link. Targets of more than 64 bytes get data units.
    pub fn symlink(
        &self,
        cred: &Cred,
        dir: InodeRef,
        name: &[u8],
        target: &[u8],
    ) -> Result<InodeRef> {
        if target.is_empty() {
            return Err(FsError::NotFound);
        }
        if target.len() > TARGET_MAX {
            return Err(FsError::NameTooLong);
        }
        let new = NewInode::plain(FileType::Symlink, 0o777);
        if target.len() <= INLINE_MAX {
            return self.make(
                cred,
                dir,
                name,
                NewInode {
                    inline: target,
                    ..new
                },
            );
        }
        self.make_long_symlink(cred, dir, name, target, new)
    }

    /// The target is written into a nameless inode, which then gets its name.
    fn make_long_symlink(
        &self,
        cred: &Cred,
        dir: InodeRef,
        name: &[u8],
        target: &[u8],
        new: NewInode<'_>,
    ) -> Result<InodeRef> {
        let node = self.make_nameless(
            cred,
            dir,
            NewInode {
                flags: FLAG_LINKABLE,
                ..new
            },
        )?;
        let linked = self
            .write_target(node, target)
            .and_then(|()| self.link(cred, node, dir, name));
        let unpinned = self.unpin(node.ino);
        linked.and(unpinned).map(|()| node)
    }

    fn write_target(&self, node: InodeRef, target: &[u8]) -> Result<()> {
        let (guard, _) = self.lock(node)?;
        let target_bytes = UserBytes::from(target);
        let written = self
            .store
            .write(&guard, FileOffset(0), target_bytes, self.write_mode)?;
        if written == target.len() {
            Ok(())
        } else {
            Err(FsError::NoSpace)
        }
    }

    /// Makes a regular file without a name (`O_TMPFILE`) and pins it. It may get a name later if it
    /// is `linkable`, and goes with its last pin otherwise.
    pub fn tmpfile(
        &self,
        cred: &Cred,
        dir: InodeRef,
        mode: impl Into<NewMode>,
        linkable: bool,
    ) -> Result<InodeRef> {
        let flags = if linkable { FLAG_LINKABLE } else { 0 };
        let new = NewInode {
            flags,
            ..NewInode::plain(FileType::Regular, mode)
        };
        self.make_nameless(cred, dir, new)
    }

    fn make_nameless(&self, cred: &Cred, dir: InodeRef, new: NewInode<'_>) -> Result<InodeRef> {
        let parent = self.attrs(dir)?;
        self.check_search(cred, dir, &parent)?;
        check_linked(&parent)?;
        self.check_writable()?;
        self.check_directory_write(cred, dir.object(), &parent)?;
        let inherited = self.inherited_from(dir, &parent, &new)?;
        let mut tx = self.store.begin()?;
        let now = self.store.now();
        let onode = new_object(cred, dir, &parent, &new, inherited.as_ref(), now);
        let object = tx.create(&onode)?;
        if let Some(inherited) = &inherited {
            inherited.give(&mut tx, object)?;
        }
        self.commit_new(tx, object, true)
    }

    fn make(&self, cred: &Cred, dir: InodeRef, name: &[u8], new: NewInode<'_>) -> Result<InodeRef> {
        let node = self.make_untold(cred, dir, name, new)?;
        if self.is_watched() {
            let kind = Events::kind(new.is_directory());
            self.tell_name(dir, name, Events::CREATE | kind, 0);
        }
        Ok(node)
    }

    #[inline(always)]
    fn make_untold(
        &self,
        cred: &Cred,
        dir: InodeRef,
        name: &[u8],
        new: NewInode<'_>,
    ) -> Result<InodeRef> {
        check_new_name(name)?;
        let mut room = EntryKey::room();
        let key = room.of(self.seed, name);
        let (_guard, parent) = self.lock(dir)?;
        self.check_search(cred, dir, &parent)?;
        match self.make_in(cred, dir, &parent, key, new) {
            Ok(node) => {
                let file_type = FileType::from_mode(new.mode).ok_or(FsError::Invalid)?;
                self.remember(dir, name, &parent, Found { node, file_type })?;
                Ok(node)
            }
            // It may be there by that.
            Err(FsError::Io) => Err(FsError::Io),
            // Whatever is in the way, a name that is taken comes first.
            Err(_) if self.entry(dir.object(), key)?.is_some() => Err(FsError::Exists),
            Err(error) => Err(error),
        }
    }

    /// Makes an inode in a locked directory; an error if the name is taken.
    fn make_in(
        &self,
        cred: &Cred,
        dir: InodeRef,
        parent: &Attrs,
        key: &EntryKey,
        new: NewInode<'_>,
    ) -> Result<InodeRef> {
        self.check_addable(cred, dir, parent)?;
        if new.is_directory() && parent.nlink >= LINK_MAX {
            return Err(FsError::TooManyLinks);
        }
        let inherited = self.inherited_from(dir, parent, &new)?;
        let now = self.store.now();
        let mut tx = self.store.begin()?;
        let mut onode = new_object(cred, dir, parent, &new, inherited.as_ref(), now);
        onode.nlink = if new.is_directory() { 2 } else { 1 };
        onode.parent_key = if new.is_directory() { key.hash() } else { 0 };
        let object = tx.create(&onode)?;
        if !new.inline.is_empty() {
            tx.set_inline(object, new.inline)?;
        }
        if let Some(inherited) = &inherited {
            inherited.give(&mut tx, object)?;
        }
        insert_entry(&mut tx, dir, key, object, onode.mode)?;
        if new.is_directory() {
            tx.set_attrs(dir.object(), |attrs| attrs.nlink += 1)?;
        }
        touch_directory(&mut tx, dir, now)?;
        self.commit_new(tx, object, new.pinned)
    }

    /// Enters a whiteout at a vacant name of a locked directory that the caller may change.
    pub(crate) fn enter_whiteout(
        &self,
        tx: &mut Tx<'_>,
        cred: &Cred,
        (dir, parent): (InodeRef, &Attrs),
        key: &EntryKey,
    ) -> Result<()> {
        let new = NewInode {
            rdev: WHITEOUT_DEVICE,
            ..NewInode::plain(FileType::CharDevice, 0)
        };
        let inherited = self.inherited_from(dir, parent, &new)?;
        let now = self.store.now();
        let mut onode = new_object(cred, dir, parent, &new, inherited.as_ref(), now);
        onode.nlink = 1;
        let object = tx.create(&onode)?;
        if let Some(inherited) = &inherited {
            inherited.give(tx, object)?;
        }
        insert_entry(tx, dir, key, object, onode.mode)
    }

    /// What a new inode has of the directory's default access control list, and whether its
    /// contents are on all disks as those of the directory.
    #[inline(always)]
    fn inherited_from(
        &self,
        dir: InodeRef,
        parent: &Attrs,
        new: &NewInode<'_>,
    ) -> Result<Option<Inherited>> {
        match parent.flags & (FLAG_DEFAULT_ACL | FLAG_KEPT) {
            0 => Ok(None),
            _ => self.inherited(dir.object(), parent.flags, (new.mode, new.umask)),
        }
    }

    /// Commits a transaction that makes `object`. The pin is there before anybody can see the
    /// object, so that a removal right after the commit leaves it alone.
    fn commit_new(&self, tx: Tx<'_>, object: ObjectId, pinned: bool) -> Result<InodeRef> {
        let generation = tx.generation(object)?;
        let node = InodeRef {
            ino: object.ino(),
            generation,
        };
        if !pinned {
            return tx.commit().map(|()| node).map_err(FsError::from);
        }
        self.add_pin(object)?;
        let committed = tx.commit();
        if committed.is_err() {
            self.drop_pin(object)?;
        }
        committed.map(|()| node).map_err(FsError::from)
    }

    /// Gives an inode another name.
    pub fn link(&self, cred: &Cred, node: InodeRef, dir: InodeRef, name: &[u8]) -> Result<()> {
        check_new_name(name)?;
        let mut room = EntryKey::room();
        let key = room.of(self.seed, name);
        let _guards = self.store.lock_pair(dir.object(), node.object())?;
        let parent = self.attrs(dir)?;
        let attrs = self.attrs(node)?;
        self.check_vacant(cred, dir, &parent, key)?;
        check_linkable(&attrs)?;
        let now = self.store.now();
        let mut tx = self.store.begin()?;
        insert_entry(&mut tx, dir, key, node.object(), attrs.mode)?;
        touch_directory(&mut tx, dir, now)?;
        tx.set_attrs(node.object(), |attrs| {
            attrs.nlink += 1;
            attrs.flags &= !FLAG_LINKABLE;
            attrs.ctime = now.0;
        })?;
        tx.commit()?;
        if self.is_watched() {
            self.tell_self(node, Events::ATTRIB);
            self.tell_name(dir, name, Events::CREATE, 0);
        }
        Ok(())
    }

    /// The caller may add the name to the (locked) directory and it is free.
    pub(crate) fn check_vacant(
        &self,
        cred: &Cred,
        dir: InodeRef,
        parent: &Attrs,
        key: &EntryKey,
    ) -> Result<()> {
        self.check_search(cred, dir, parent)?;
        if self.entry(dir.object(), key)?.is_some() {
            return Err(FsError::Exists);
        }
        self.check_addable(cred, dir, parent)
    }

    /// The caller may add names to the directory.
    fn check_addable(&self, cred: &Cred, dir: InodeRef, parent: &Attrs) -> Result<()> {
        check_linked(parent)?;
        self.check_writable()?;
        self.check_directory_write(cred, dir.object(), parent)
    }
}

fn new_object(
    cred: &Cred,
    dir: InodeRef,
    parent: &Attrs,
    new: &NewInode<'_>,
    inherited: Option<&Inherited>,
    now: Timestamp,
) -> NewObject {
    let (mode, flags) = match inherited {
        None => (new.mode & !new.umask, new.flags),
        Some(inherited) => (inherited.mode, new.flags | inherited.flags()),
    };
    let (gid, mode) = inherit(cred, parent, mode, new.is_directory());
    let parent = if new.is_directory() {
        dir.object().0
    } else {
        0
    };
    NewObject {
        mode,
        uid: cred.uid,
        gid,
        rdev: new.rdev,
        nlink: 0,
        flags,
        parent,
        parent_key: 0,
        time: now.0,
        past: None,
        size: new.inline.len() as u64,
    }
}

/// Names that may be given to something new.
pub(crate) fn check_new_name(name: &[u8]) -> Result<()> {
    if is_dot_or_dot_dot(name) {
        return Err(FsError::Exists);
    }
    check_name(name)
}

/// Enters a name that must be new.
pub(crate) fn insert_entry(
    tx: &mut Tx<'_>,
    dir: InodeRef,
    key: &EntryKey,
    object: ObjectId,
    mode: u32,
) -> Result<()> {
    let entry = LiveEntry::of(object, mode)?;
    match tx.tree_insert(dir.object(), Tree::Entries, key.as_bytes(), &entry.encode())? {
        true => Ok(()),
        false => Err(FsError::Exists),
    }
}

/// What a change of entries does to the directory's times.
pub(crate) fn touch_directory(tx: &mut Tx<'_>, dir: InodeRef, now: Timestamp) -> Result<()> {
    Ok(tx.touch_times(dir.object(), Some(now.0), now.0)?)
}

/// A nameless inode gets a name only if it was made for that.
fn check_linkable(attrs: &Attrs) -> Result<()> {
    if is_directory(attrs) {
        return Err(FsError::NotPermitted);
    }
    check_thawed(attrs)?;
    if attrs.nlink == 0 && attrs.flags & FLAG_LINKABLE == 0 {
        return Err(FsError::NotFound);
    }
    if attrs.nlink >= LINK_MAX {
        return Err(FsError::TooManyLinks);
    }
    Ok(())
}
