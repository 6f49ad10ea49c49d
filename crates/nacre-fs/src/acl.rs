//! POSIX access control lists as Linux has them (acl(5)): who else than owner, group and others
//! may do what, and what new inodes of a directory inherit.
//!
//! A list is kept as the extended attribute that programs see. A flag of the inode says that there
//! is one, so that nobody else looks for it. An access list that says no more than the mode is not
//! kept.

use crate::Fs;
use crate::error::{FsError, Result};
use crate::inode::FileType;
use crate::permission::{Access, Cred, Guarded, check_access};
use nacre_store::layout::{FLAG_ACL, FLAG_DEFAULT_ACL, FLAG_KEPT};
use nacre_store::{Attrs, Tree, Tx};
use nacre_types::ObjectId;

const VERSION: u32 = 2;
const HEADER_LEN: usize = 4;
const ENTRY_LEN: usize = 8;
/// The id of entries that name nobody.
const NOBODY: u32 = u32::MAX;
const ALL: u16 = 7;

/// Which of the two lists of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AclKind {
    /// The list that says who may access the inode.
    Access,
    /// What is made in the directory inherits it.
    Default,
}

impl AclKind {
    /// By the name of the extended attribute.
    pub(crate) fn of(name: &[u8]) -> Option<AclKind> {
        let kinds = [AclKind::Access, AclKind::Default];
        kinds.into_iter().find(|kind| kind.name() == name)
    }

    pub(crate) fn name(self) -> &'static [u8] {
        match self {
            AclKind::Access => b"system.posix_acl_access",
            AclKind::Default => b"system.posix_acl_default",
        }
    }

    /// The flag of inodes that have one.
    pub(crate) fn flag(self) -> u32 {
        match self {
            AclKind::Access => FLAG_ACL,
            AclKind::Default => FLAG_DEFAULT_ACL,
        }
    }
}

/// The `ACL_*` tags of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
enum Tag {
    Owner = 1,
    User = 2,
    OwningGroup = 4,
    Group = 8,
    Mask = 16,
    Other = 32,
}

impl Tag {
    fn from_number(number: u16) -> Option<Tag> {
        let all = [
            Tag::Owner,
            Tag::User,
            Tag::OwningGroup,
            Tag::Group,
            Tag::Mask,
            Tag::Other,
        ];
        all.into_iter().find(|&tag| tag as u16 == number)
    }

    fn names_somebody(self) -> bool {
        matches!(self, Tag::User | Tag::Group)
    }
}

#[derive(Clone, Copy, Debug)]
struct AclEntry {
    tag: Tag,
    allowed: u16,
    id: u32,
}

impl AclEntry {
    fn decode(bytes: &[u8]) -> Option<AclEntry> {
        let (numbers, id) = bytes.split_at_checked(4)?;
        let tag = Tag::from_number(u16::from_le_bytes([numbers[0], numbers[1]]))?;
        let allowed = u16::from_le_bytes([numbers[2], numbers[3]]);
        let id = u32::from_le_bytes(id.try_into().ok()?);
        let named = tag.names_somebody();
        let sound = !(named && id == NOBODY);
        let id = if named { id } else { NOBODY };
        sound.then_some(AclEntry { tag, allowed, id })
    }

    fn encode(self) -> [u8; ENTRY_LEN] {
        let mut bytes = [0; ENTRY_LEN];
        bytes[..2].copy_from_slice(&(self.tag as u16).to_le_bytes());
        bytes[2..4].copy_from_slice(&self.allowed.to_le_bytes());
        bytes[4..].copy_from_slice(&self.id.to_le_bytes());
        bytes
    }
}

/// Entries in the order owner, users, owning group, groups, mask, others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Acl(Vec<AclEntry>);

impl Acl {
    /// From the value of the attribute. An empty list stands for none. Whether it [makes
    /// sense](Acl::is_valid) is told later, as in Linux.
    pub(crate) fn decode(value: &[u8]) -> Result<Acl> {
        if value.is_empty() {
            return Ok(Acl::default());
        }
        let (version, entries) = value
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(FsError::Invalid)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(FsError::Unsupported);
        }
        if entries.len() % ENTRY_LEN != 0 {
            return Err(FsError::Invalid);
        }
        let entries = entries.chunks(ENTRY_LEN).map(AclEntry::decode);
        Ok(Acl(entries
            .collect::<Option<_>>()
            .ok_or(FsError::Invalid)?))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            value.extend_from_slice(&entry.encode());
        }
        value
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each kind of entry at its place; a mask where somebody is named.
    pub(crate) fn is_valid(&self) -> bool {
        let tags: Vec<Tag> = self.0.iter().map(|entry| entry.tag).collect();
        let ascends = tags.is_sorted_by_key(|&tag| tag as u16);
        let count = |wanted: Tag| tags.iter().filter(|&&tag| tag == wanted).count();
        let once = [Tag::Owner, Tag::OwningGroup, Tag::Other];
        let masks = count(Tag::Mask);
        let named = tags.iter().any(|tag| tag.names_somebody());
        ascends
            && self.0.iter().all(|entry| entry.allowed <= ALL)
            && once.into_iter().all(|tag| count(tag) == 1)
            && (masks == 1 || masks == 0 && !named)
    }

    fn find(&mut self, wanted: Tag) -> Option<&mut AclEntry> {
        self.0.iter_mut().find(|entry| entry.tag == wanted)
    }

    /// Whether it says something that a mode cannot say.
    fn says_more(&self) -> bool {
        let plain = [Tag::Owner, Tag::OwningGroup, Tag::Other];
        self.0.iter().any(|entry| !plain.contains(&entry.tag))
    }

    /// The entries that the bits of a mode stand for: those of the group for the mask if there is
    /// one.
    fn classes(&mut self) -> impl Iterator<Item = (&mut AclEntry, u32)> {
        let masked = self.find(Tag::Mask).is_some();
        self.0.iter_mut().filter_map(move |entry| {
            let shift = match entry.tag {
                Tag::Owner => 6,
                Tag::OwningGroup if !masked => 3,
                Tag::Mask => 3,
                Tag::Other => 0,
                _ => return None,
            };
            Some((entry, shift))
        })
    }

    /// The permission bits that it stands for.
    fn bits(&mut self) -> u32 {
        let bits = self.classes();
        bits.fold(0, |bits, (entry, shift)| {
            bits | u32::from(entry.allowed) << shift
        })
    }

    /// Takes over the permission bits of a mode.
    fn change_mode(&mut self, mode: u32) {
        for (entry, shift) in self.classes() {
            entry.allowed = (mode >> shift) as u16 & ALL;
        }
    }

    /// Allows no more than the mode does by which an inode is made; the inode's mode.
    fn limit(&mut self, mode: u32) -> u32 {
        for (entry, shift) in self.classes() {
            entry.allowed &= (mode >> shift) as u16;
        }
        mode & !0o777 | self.bits()
    }

    /// What Linux's `posix_acl_permission` says.
    fn allows(&self, cred: &Cred, inode: &Guarded, want: u16) -> bool {
        let mut in_a_group = false;
        for entry in &self.0 {
            let enough = want & !entry.allowed == 0;
            match entry.tag {
                Tag::Owner if cred.uid == inode.uid => return enough,
                Tag::User if cred.uid == entry.id => return enough && self.mask_allows(want),
                Tag::OwningGroup | Tag::Group => {
                    let gid = match entry.tag {
                        Tag::Group => entry.id,
                        _ => inode.gid,
                    };
                    let member = cred.in_group(gid);
                    if member && enough {
                        return self.mask_allows(want);
                    }
                    in_a_group |= member;
                }
                Tag::Other => return enough && !in_a_group,
                Tag::Owner | Tag::User | Tag::Mask => {}
            }
        }
        false
    }

    fn mask_allows(&self, want: u16) -> bool {
        let mask = self.0.iter().find(|entry| entry.tag == Tag::Mask);
        mask.is_none_or(|mask| want & !mask.allowed == 0)
    }
}

/// What an inode inherits from its directory, mostly from its default list.
pub(crate) struct Inherited {
    /// Its mode, with its type.
    pub(crate) mode: u32,
    /// Its contents are on all disks (D80).
    kept: bool,
    access: Option<Acl>,
    default: Option<Acl>,
}

impl Inherited {
    /// Flags of the new inode.
    pub(crate) fn flags(&self) -> u32 {
        let flag = |acl: &Option<Acl>, kind: AclKind| acl.as_ref().map_or(0, |_| kind.flag());
        let kept = if self.kept { FLAG_KEPT } else { 0 };
        flag(&self.access, AclKind::Access) | flag(&self.default, AclKind::Default) | kept
    }

    /// Gives the new inode its lists.
    #[cold]
    pub(crate) fn give(&self, tx: &mut Tx<'_>, object: ObjectId) -> Result<()> {
        let lists = [
            (AclKind::Access, &self.access),
            (AclKind::Default, &self.default),
        ];
        for (kind, acl) in lists {
            if let Some(acl) = acl {
                tx.tree_insert(object, Tree::Xattrs, kind.name(), &acl.encode())?;
            }
        }
        Ok(())
    }
}

impl Fs {
    /// As [`check_access`], of an inode with these attributes.
    #[inline(always)]
    pub(crate) fn check_access(
        &self,
        cred: &Cred,
        id: ObjectId,
        attrs: &Attrs,
        want: Access,
    ) -> Result<()> {
        check_access(cred, attrs, want, |inode| {
            self.listed(cred, id, inode, want)
        })
    }

    /// Names of a directory may be added or removed.
    pub(crate) fn check_directory_write(
        &self,
        cred: &Cred,
        dir: ObjectId,
        attrs: &Attrs,
    ) -> Result<()> {
        self.check_access(cred, dir, attrs, Access::WRITE | Access::EXEC)
    }

    /// Whether the list of an inode with `FLAG_ACL` allows it. `None` if it has lost it meanwhile.
    #[cold]
    fn listed(
        &self,
        cred: &Cred,
        id: ObjectId,
        inode: &Guarded,
        want: Access,
    ) -> Result<Option<bool>> {
        if let Some(acl) = self.acl(id, AclKind::Access)? {
            return Ok(Some(acl.allows(cred, inode, want.bits() as u16)));
        }
        match self.store.attrs(id)?.flags & FLAG_ACL {
            0 => Ok(None),
            // Damaged: nobody but the owner is let in.
            _ => Ok(Some(false)),
        }
    }

    fn acl(&self, id: ObjectId, kind: AclKind) -> Result<Option<Acl>> {
        let mut value = Vec::new();
        let found = self
            .store
            .tree_get(id, Tree::Xattrs, kind.name(), &mut value)?;
        let damaged = || FsError::corrupt(id, "an access control list cannot be decoded");
        let decode = || Acl::decode(&value).ok().filter(Acl::is_valid);
        found.then(|| decode().ok_or_else(damaged)).transpose()
    }

    /// What an inode of this mode inherits that is made in a directory with these flags.
    #[cold]
    pub(crate) fn inherited(
        &self,
        dir: ObjectId,
        flags: u32,
        (mode, umask): (u32, u32),
    ) -> Result<Option<Inherited>> {
        let lists = match flags & FLAG_DEFAULT_ACL {
            0 => None,
            _ => self.inherited_lists(dir, mode)?,
        };
        // Others have no attributes of the user, and no contents that could be elsewhere.
        let has_contents = matches!(
            FileType::from_mode(mode),
            Some(FileType::Regular | FileType::Directory)
        );
        if flags & FLAG_KEPT == 0 || !has_contents {
            return Ok(lists);
        }
        let plain = Inherited {
            mode: mode & !umask,
            kept: true,
            access: None,
            default: None,
        };
        Ok(Some(Inherited {
            kept: true,
            ..lists.unwrap_or(plain)
        }))
    }

    fn inherited_lists(&self, dir: ObjectId, mode: u32) -> Result<Option<Inherited>> {
        if FileType::from_mode(mode) == Some(FileType::Symlink) {
            return Ok(None);
        }
        let Some(default) = self.acl(dir, AclKind::Default)? else {
            return Ok(None);
        };
        let mut access = default.clone();
        let mode = access.limit(mode);
        let folder = FileType::from_mode(mode) == Some(FileType::Directory);
        Ok(Some(Inherited {
            kept: false,
            mode,
            access: access.says_more().then_some(access),
            default: folder.then_some(default),
        }))
    }

    /// Sets a list of a locked inode, or removes it by an empty one. The mode follows an access
    /// list, and loses the `dropped` bits then.
    pub(crate) fn put_acl(
        &self,
        tx: &mut Tx<'_>,
        id: ObjectId,
        kind: AclKind,
        acl: Acl,
        dropped: u32,
    ) -> Result<()> {
        let mut acl = Some(acl).filter(|acl| !acl.is_empty());
        let mut bits = None;
        if kind == AclKind::Access {
            bits = acl.as_mut().map(Acl::bits);
            acl = acl.filter(Acl::says_more);
        }
        match &acl {
            Some(acl) => {
                tx.tree_insert(id, Tree::Xattrs, kind.name(), &acl.encode())?;
            }
            None => {
                tx.tree_remove(id, Tree::Xattrs, kind.name())?;
            }
        }
        Ok(tx.set_attrs(id, |attrs| {
            attrs.flags &= !kind.flag();
            attrs.flags |= acl.as_ref().map_or(0, |_| kind.flag());
            if let Some(bits) = bits {
                attrs.mode = attrs.mode & !(0o777 | dropped) | bits;
            }
        })?)
    }

    /// Takes over the permission bits of a new mode into the list of a locked inode.
    #[cold]
    pub(crate) fn change_acl_mode(&self, tx: &mut Tx<'_>, id: ObjectId, mode: u32) -> Result<()> {
        if let Some(mut acl) = self.acl(id, AclKind::Access)? {
            acl.change_mode(mode);
            tx.tree_insert(id, Tree::Xattrs, AclKind::Access.name(), &acl.encode())?;
        }
        Ok(())
    }
}
