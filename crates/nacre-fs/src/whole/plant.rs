//! Making a tree that shares the units of another one.

use crate::Fs;
use crate::FsError;
use crate::acl::AclKind;
use crate::create::WHITEOUT_DEVICE;
use crate::error::Result;
use crate::inode::{FileType, file_type, is_directory};
use crate::live::LiveEntry;
use crate::permission::{Access, Caps, Cred, SET_GID, SET_UID};
use crate::whole::hold::{Held, Member, Name, Survey};
use nacre_store::layout::{FLAG_ACL, FLAG_DEFAULT_ACL, FLAG_KEPT};
use nacre_store::{INLINE_MAX, NewObject, Tree, Tx};
use nacre_types::{ObjectId, Timestamp};
use std::ops::ControlFlow;

/// Of the flags, those that a copy has like its original.
const COPIED: u32 = FLAG_ACL | FLAG_DEFAULT_ACL | FLAG_KEPT;

/// What was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Planted {
    /// Folders.
    pub folders: u64,
    /// Everything else.
    pub files: u64,
    /// Sizes of the files, added up.
    pub bytes: u64,
}

/// Where the root of a new tree is.
#[derive(Clone, Copy)]
pub(crate) enum RootPlace {
    /// A new object: its parent, and the hash of its name there.
    New { parent: ObjectId, key: u64 },
    /// A folder that there is, and that the transaction has emptied.
    Old(ObjectId),
}

/// A tree to be made.
pub(crate) struct Planting<'p, 'f> {
    fs: &'f Fs,
    cred: &'p Cred,
    held: &'p Held<'f>,
    tree: &'p Survey,
    now: Timestamp,
    flags: u32,
}

impl<'p, 'f> Planting<'p, 'f> {
    pub(crate) fn new(
        fs: &'f Fs,
        cred: &'p Cred,
        held: &'p Held<'f>,
        tree: &'p Survey,
        now: Timestamp,
    ) -> Self {
        Self {
            fs,
            cred,
            held,
            tree,
            now,
            flags: 0,
        }
    }

    /// All objects get these `FLAG_*` bits.
    pub(crate) fn with_flags(self, flags: u32) -> Self {
        Self { flags, ..self }
    }

    /// Makes everything but the name of the root.
    pub(crate) fn plant(&self, tx: &mut Tx<'f>, place: RootPlace) -> Result<(ObjectId, Planted)> {
        let mut made: Vec<ObjectId> = Vec::with_capacity(self.tree.members.len());
        let mut planted = Planted::default();
        tx.expect_objects(self.tree.members.len());
        for (number, member) in self.tree.members.iter().enumerate() {
            self.check_readable(member)?;
            let id = match place {
                RootPlace::Old(id) if number == 0 => {
                    self.copy_attributes(tx, member, id)?;
                    id
                }
                RootPlace::New { parent, key } if number == 0 => {
                    self.make(tx, member, parent, key)?
                }
                _ => self.make(tx, member, made[member.parent], member.key_hash)?,
            };
            self.copy_xattrs(tx, member, id)?;
            made.push(id);
            planted.count(member);
        }
        let folders = self.tree.names.chunk_by(|one, next| one.dir == next.dir);
        for names in folders {
            self.enter_names(tx, names, &made)?;
        }
        Ok((made[0], planted))
    }

    /// Puts the names of a folder into its copy, which has none.
    fn enter_names(&self, tx: &mut Tx<'f>, names: &[Name], made: &[ObjectId]) -> Result<()> {
        let dir = made[names[0].dir];
        let entry = |name: &Name| {
            let child = &self.tree.members[name.child];
            let entry = LiveEntry::of(made[name.child], child.attrs.mode)?;
            Ok((self.tree.key(name), entry.encode()))
        };
        let entries: Vec<_> = names.iter().map(entry).collect::<Result<_>>()?;
        if tx.is_created(dir) {
            return match tx.tree_fill(dir, Tree::Entries, entries)? {
                true => Ok(()),
                false => Err(FsError::corrupt(
                    dir,
                    "names are there twice or in disorder",
                )),
            };
        }
        for (key, entry) in entries {
            if !tx.tree_insert(dir, Tree::Entries, key, &entry)? {
                return Err(FsError::corrupt(dir, "a name is there twice"));
            }
        }
        Ok(())
    }

    fn check_readable(&self, member: &Member) -> Result<()> {
        let want = match file_type(member.id, &member.attrs)? {
            FileType::Directory => Access::READ | Access::EXEC,
            FileType::Regular => Access::READ,
            FileType::CharDevice if member.attrs.rdev == WHITEOUT_DEVICE => return Ok(()),
            FileType::CharDevice | FileType::BlockDevice if !self.cred.has(Caps::MKNOD) => {
                return Err(FsError::NotPermitted);
            }
            _ => return Ok(()),
        };
        self.fs
            .check_access(self.cred, member.id, &member.attrs, want)
    }

    /// Mode, owner and group of the copy.
    fn owner(&self, member: &Member) -> (u32, u32, u32) {
        let attrs = &member.attrs;
        let mine = self.cred.uid == attrs.uid && self.cred.in_group(attrs.gid);
        if mine || self.cred.has(Caps::CHOWN) {
            return (attrs.mode, attrs.uid, attrs.gid);
        }
        let mode = attrs.mode & !(SET_UID | SET_GID);
        (mode, self.cred.uid, self.cred.gid)
    }

    fn make(
        &self,
        tx: &mut Tx<'f>,
        member: &Member,
        parent: ObjectId,
        parent_key: u64,
    ) -> Result<ObjectId> {
        let is_folder = is_directory(&member.attrs);
        let (mode, uid, gid) = self.owner(member);
        let id = tx.create(&NewObject {
            mode,
            uid,
            gid,
            rdev: member.attrs.rdev,
            nlink: member.links,
            flags: self.flags | member.attrs.flags & COPIED,
            parent: if is_folder { parent.0 } else { 0 },
            parent_key: if is_folder { parent_key } else { 0 },
            time: self.now.0,
            past: Some([member.attrs.atime, member.attrs.mtime]),
            size: 0,
        })?;
        match file_type(member.id, &member.attrs)? {
            FileType::Regular => tx.data_share(self.held.guard(member), id)?,
            FileType::Symlink => self.copy_target(tx, member, id)?,
            _ => {}
        }
        Ok(id)
    }

    fn copy_target(&self, tx: &mut Tx<'f>, member: &Member, id: ObjectId) -> Result<()> {
        let mut target = [0; INLINE_MAX];
        match self.fs.store.inline(member.id, &mut target)? {
            0 => tx.data_share(self.held.guard(member), id)?,
            len => {
                tx.set_inline(id, &target[..len])?;
                tx.set_attrs(id, |attrs| attrs.size = len as u64)?;
            }
        }
        Ok(())
    }

    /// Gives a folder that there is what others are made with.
    fn copy_attributes(&self, tx: &mut Tx<'f>, member: &Member, id: ObjectId) -> Result<()> {
        let (mode, uid, gid) = self.owner(member);
        Ok(tx.set_attrs(id, |attrs| {
            (attrs.atime, attrs.mtime) = (member.attrs.atime, member.attrs.mtime);
            (attrs.mode, attrs.uid, attrs.gid) = (mode, uid, gid);
            attrs.flags = attrs.flags & !COPIED | member.attrs.flags & COPIED;
        })?)
    }

    /// Extended attributes, as far as the caller may set them.
    fn copy_xattrs(&self, tx: &mut Tx<'f>, member: &Member, id: ObjectId) -> Result<()> {
        if member.attrs.xattrs == 0 {
            return Ok(());
        }
        for (name, value) in self.xattrs(member.id)? {
            tx.tree_insert(id, Tree::Xattrs, &name, &value)?;
        }
        Ok(())
    }

    fn xattrs(&self, id: ObjectId) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut found = Vec::new();
        let all = self.cred.has(Caps::SYS_ADMIN);
        let store = &self.fs.store;
        store.tree_scan(id, Tree::Xattrs, &[], &mut |name, value, _| {
            if all || name.starts_with(b"user.") || AclKind::of(name).is_some() {
                found.push((name.to_vec(), value.to_vec()));
            }
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }
}

impl Planted {
    fn count(&mut self, member: &Member) {
        match is_directory(&member.attrs) {
            true => self.folders += 1,
            false => {
                self.files += 1;
                self.bytes += member.attrs.size;
            }
        }
    }
}
