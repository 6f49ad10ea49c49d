//! Extended attributes, in the namespaces `user`, `trusted` and `security`, and the two of `system`
//! that are access control lists.

use crate::Fs;
use crate::acl::{Acl, AclKind};
use crate::error::{FsError, Result};
use crate::inode::{FileType, InodeRef, is_directory, is_regular};
use crate::permission::{Access, Caps, Cred, SET_GID, STICKY, check_thawed};
use bitflags::bitflags;
use nacre_store::layout::FLAG_KEPT;
use nacre_store::{Attrs, Tree};
use std::ops::ControlFlow;

/// Longest name with its namespace, in bytes.
const XATTR_NAME_MAX: usize = 255;
/// Says on how many disks contents are, in a pool whose disks hold a part together (D80). It is a
/// flag of the inode there.
pub(crate) const COPIES: &[u8] = b"user.nacre.copies";
/// Longest value in bytes.
const XATTR_VALUE_MAX: usize = 64 << 10;

bitflags! {
    /// The kernel's `XATTR_*` flags.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct XattrFlags: u32 {
        /// The attribute must not exist yet.
        const CREATE = 1;
        /// The attribute must exist.
        const REPLACE = 2;
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Namespace {
    User,
    Trusted,
    Security,
    Acl(AclKind),
}

impl Namespace {
    fn of(name: &[u8]) -> Result<Namespace> {
        if name.is_empty() || name.len() > XATTR_NAME_MAX {
            return Err(FsError::RangeTooSmall);
        }
        if let Some(kind) = AclKind::of(name) {
            return Ok(Namespace::Acl(kind));
        }
        let known: [(&[u8], Namespace); 3] = [
            (b"user.", Namespace::User),
            (b"trusted.", Namespace::Trusted),
            (b"security.", Namespace::Security),
        ];
        let (prefix, namespace) = known
            .into_iter()
            .find(|(prefix, _)| name.starts_with(prefix))
            .ok_or(FsError::Unsupported)?;
        if name.len() == prefix.len() || name.contains(&0) {
            return Err(FsError::Invalid);
        }
        Ok(namespace)
    }

    fn check_read(self, fs: &Fs, cred: &Cred, node: InodeRef, attrs: &Attrs) -> Result<()> {
        match self {
            Namespace::User if !holds_user_attributes(attrs) => Err(FsError::NoAttribute),
            Namespace::User => fs.check_access(cred, node.object(), attrs, Access::READ),
            Namespace::Acl(_) if is_link(attrs) => Err(FsError::Unsupported),
            Namespace::Acl(kind) if attrs.flags & kind.flag() == 0 => Err(FsError::NoAttribute),
            Namespace::Acl(_) => Ok(()),
            Namespace::Trusted if !cred.has(Caps::SYS_ADMIN) => Err(FsError::NoAttribute),
            Namespace::Trusted | Namespace::Security => Ok(()),
        }
    }

    pub(crate) fn check_write(
        self,
        fs: &Fs,
        cred: &Cred,
        node: InodeRef,
        attrs: &Attrs,
        name: &[u8],
    ) -> Result<()> {
        let allowed = match self {
            Namespace::User => {
                let sticky = is_directory(attrs) && attrs.mode & STICKY != 0;
                holds_user_attributes(attrs) && (!sticky || cred.owns(attrs))
            }
            Namespace::Security if name == b"security.capability" => cred.has(Caps::SETFCAP),
            Namespace::Trusted | Namespace::Security => cred.has(Caps::SYS_ADMIN),
            Namespace::Acl(_) => cred.owns(attrs),
        };
        match self {
            _ if !allowed => Err(FsError::NotPermitted),
            Namespace::User => fs.check_access(cred, node.object(), attrs, Access::WRITE),
            Namespace::Trusted | Namespace::Security | Namespace::Acl(_) => Ok(()),
        }
    }
}

fn is_link(attrs: &Attrs) -> bool {
    FileType::from_mode(attrs.mode) == Some(FileType::Symlink)
}

fn holds_user_attributes(attrs: &Attrs) -> bool {
    is_regular(attrs) || is_directory(attrs)
}

impl Fs {
    /// Copies the value and returns its length; an empty buffer only asks for the length.
    pub fn get_xattr(
        &self,
        cred: &Cred,
        node: InodeRef,
        name: &[u8],
        value: &mut [u8],
    ) -> Result<usize> {
        let namespace = Namespace::of(name)?;
        let attrs = self.attrs(node)?;
        namespace.check_read(self, cred, node, &attrs)?;
        if namespace == Namespace::User && attrs.flags & FLAG_KEPT != 0 && name == COPIES {
            return copy_out(self.most_copies().to_string().as_bytes(), value);
        }
        let mut found = Vec::new();
        if attrs.xattrs == 0
            || !self
                .store
                .tree_get(node.object(), Tree::Xattrs, name, &mut found)?
        {
            return Err(FsError::NoAttribute);
        }
        copy_out(&found, value)
    }

    /// Sets an attribute.
    pub fn set_xattr(
        &self,
        cred: &Cred,
        node: InodeRef,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let namespace = Namespace::of(name)?;
        if value.len() > XATTR_VALUE_MAX {
            return Err(FsError::AttributeTooBig);
        }
        if let Namespace::Acl(kind) = namespace {
            return self.set_acl(cred, node, kind, Acl::decode(value)?);
        }
        if name == COPIES && self.store.has_common() {
            return self.set_copies(cred, node, Some(value), flags);
        }
        let (_guard, attrs) = self.lock(node)?;
        self.check_writable()?;
        check_thawed(&attrs)?;
        namespace.check_write(self, cred, node, &attrs, name)?;
        let mut tx = self.store.begin()?;
        let new = tx.tree_insert(node.object(), Tree::Xattrs, name, value)?;
        if new && flags.contains(XattrFlags::REPLACE) {
            return Err(FsError::NoAttribute);
        }
        if !new && flags.contains(XattrFlags::CREATE) {
            return Err(FsError::Exists);
        }
        tx.set_attrs(node.object(), |attrs| attrs.ctime = self.store.now().0)?;
        Ok(tx.commit()?)
    }

    /// Removes an attribute.
    pub fn remove_xattr(&self, cred: &Cred, node: InodeRef, name: &[u8]) -> Result<()> {
        let namespace = Namespace::of(name)?;
        if let Namespace::Acl(kind) = namespace {
            return self.set_acl(cred, node, kind, Acl::default());
        }
        if name == COPIES && self.store.has_common() {
            return self.set_copies(cred, node, None, XattrFlags::REPLACE);
        }
        let (_guard, attrs) = self.lock(node)?;
        self.check_writable()?;
        check_thawed(&attrs)?;
        namespace.check_write(self, cred, node, &attrs, name)?;
        let mut tx = self.store.begin()?;
        if !tx.tree_remove(node.object(), Tree::Xattrs, name)? {
            return Err(FsError::NoAttribute);
        }
        tx.set_attrs(node.object(), |attrs| attrs.ctime = self.store.now().0)?;
        Ok(tx.commit()?)
    }

    /// Sets an access control list, or removes it by an empty one.
    fn set_acl(&self, cred: &Cred, node: InodeRef, kind: AclKind, acl: Acl) -> Result<()> {
        let (_guard, attrs) = self.lock(node)?;
        self.check_writable()?;
        check_thawed(&attrs)?;
        if is_link(&attrs) {
            return Err(FsError::Unsupported);
        }
        if kind == AclKind::Default && !is_directory(&attrs) {
            return match acl.is_empty() {
                true => Ok(()),
                false => Err(FsError::PermissionDenied),
            };
        }
        if !cred.owns(&attrs) {
            return Err(FsError::NotPermitted);
        }
        if !acl.is_empty() && !acl.is_valid() {
            return Err(FsError::Invalid);
        }
        let foreign = !cred.in_group(attrs.gid) && !cred.has(Caps::FSETID);
        let dropped = if foreign { SET_GID } else { 0 };
        let mut tx = self.store.begin()?;
        self.put_acl(&mut tx, node.object(), kind, acl, dropped)?;
        tx.set_attrs(node.object(), |attrs| attrs.ctime = self.store.now().0)?;
        Ok(tx.commit()?)
    }

    /// Copies the names, each with a NUL behind it, and returns their length; an empty buffer only
    /// asks for it. `trusted` names are shown to administrators only.
    pub fn list_xattr(&self, cred: &Cred, node: InodeRef, list: &mut [u8]) -> Result<usize> {
        let attrs = self.attrs(node)?;
        let mut names = Vec::new();
        if attrs.flags & FLAG_KEPT != 0 {
            names.extend_from_slice(COPIES);
            names.push(0);
        }
        if attrs.xattrs != 0 {
            self.store
                .tree_scan(node.object(), Tree::Xattrs, &[], &mut |name, _, _| {
                    let shown = match AclKind::of(name) {
                        Some(kind) => attrs.flags & kind.flag() != 0,
                        None => !name.starts_with(b"trusted.") || cred.has(Caps::SYS_ADMIN),
                    };
                    if shown {
                        names.extend_from_slice(name);
                        names.push(0);
                    }
                    ControlFlow::Continue(())
                })?;
        }
        copy_out(&names, list)
    }
}

fn copy_out(from: &[u8], to: &mut [u8]) -> Result<usize> {
    if !to.is_empty() {
        to.get_mut(..from.len())
            .ok_or(FsError::RangeTooSmall)?
            .copy_from_slice(from);
    }
    Ok(from.len())
}
