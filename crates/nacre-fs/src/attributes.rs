//! Reading and changing the attributes of inodes.

use crate::Fs;
use crate::error::{FsError, Result};
use crate::file::check_regular;
use crate::inode::{InodeRef, PERMISSION_MASK, Stat, is_directory};
use crate::permission::{
    Access, Caps, Cred, SET_GID, check_thawed, set_id_bits_dropped_by_write, set_id_bits_to_drop,
};
use nacre_store::layout::{FLAG_ACL, NAME_MAX};
use nacre_store::{Attrs, ObjectGuard};
use nacre_types::{Timestamp, UNIT_SIZE};

/// What `utimens` does to one of the times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// Leave it.
    Omit,
    /// The present.
    Now,
    /// This point in time.
    At(Timestamp),
}

impl SetTime {
    fn apply(self, to: &mut i64, now: Timestamp) {
        match self {
            SetTime::Omit => {}
            SetTime::Now => *to = now.0,
            SetTime::At(time) => *to = time.0,
        }
    }
}

/// Space and limits of the whole pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FsStat {
    /// All units that data can use.
    pub units: u64,
    /// Free units.
    pub free_units: u64,
    /// Of these, those for contents that nobody asked to be on all disks (D80).
    pub available_units: u64,
    /// Most inodes.
    pub objects: u64,
    /// Inodes that can still be made.
    pub free_objects: u64,
    /// Bytes of a unit.
    pub unit_size: u32,
    /// Longest name in bytes.
    pub name_max: u32,
    /// The pool takes no changes.
    pub read_only: bool,
    /// Identity of the pool (`f_fsid`).
    pub id: u64,
}

impl Fs {
    /// All attributes.
    #[inline(always)]
    pub fn getattr(&self, node: InodeRef) -> Result<Stat> {
        let stat = self
            .store
            .attrs_as(node.object(), |attrs| Stat::new(node.ino, attrs))?;
        if stat.generation != node.generation {
            return Err(FsError::Stale);
        }
        Ok(stat)
    }

    /// Whether the caller may access the inode so. Asking for nothing tells if it exists.
    #[inline]
    pub fn access(&self, cred: &Cred, node: InodeRef, want: Access) -> Result<()> {
        let attrs = self.attrs(node)?;
        let stored_here = is_directory(&attrs) || check_regular(&attrs).is_ok();
        if want.contains(Access::WRITE) && stored_here {
            self.check_writable()?;
        }
        self.check_access(cred, node.object(), &attrs, want)
    }

    /// Changes the permission bits.
    pub fn chmod(&self, cred: &Cred, node: InodeRef, permissions: u32) -> Result<()> {
        let (guard, attrs) = self.lock(node)?;
        self.check_writable()?;
        check_thawed(&attrs)?;
        if !cred.owns(&attrs) {
            return Err(FsError::NotPermitted);
        }
        let foreign = !cred.in_group(attrs.gid) && !cred.has(Caps::FSETID);
        let kept = if foreign { !SET_GID } else { u32::MAX };
        let mode = attrs.mode & !PERMISSION_MASK | permissions & PERMISSION_MASK & kept;
        if attrs.flags & FLAG_ACL == 0 {
            return self.change(&guard, |attrs| attrs.mode = mode);
        }
        let mut tx = self.store.begin()?;
        self.change_acl_mode(&mut tx, node.object(), mode)?;
        tx.set_attrs(node.object(), |attrs| {
            (attrs.mode, attrs.ctime) = (mode, self.store.now().0);
        })?;
        Ok(tx.commit()?)
    }

    /// Changes owner and group; `None` leaves one as it is.
    pub fn chown(
        &self,
        cred: &Cred,
        node: InodeRef,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<()> {
        let (guard, attrs) = self.lock(node)?;
        self.check_writable()?;
        check_thawed(&attrs)?;
        check_chown(cred, &attrs, uid, gid)?;
        let dropped = if is_directory(&attrs) {
            0
        } else {
            set_id_bits_to_drop(cred, &attrs)
        };
        if dropped != 0 && !cred.owns(&attrs) {
            return Err(FsError::NotPermitted);
        }
        self.change(&guard, |attrs| {
            attrs.uid = uid.unwrap_or(attrs.uid);
            attrs.gid = gid.unwrap_or(attrs.gid);
            attrs.mode &= !dropped;
        })
    }

    /// Sets access and modification time.
    pub fn utimens(
        &self,
        cred: &Cred,
        node: InodeRef,
        atime: SetTime,
        mtime: SetTime,
    ) -> Result<()> {
        if (atime, mtime) == (SetTime::Omit, SetTime::Omit) {
            return Ok(());
        }
        let (guard, attrs) = self.lock(node)?;
        self.check_writable()?;
        check_thawed(&attrs)?;
        if !cred.owns(&attrs) {
            if (atime, mtime) != (SetTime::Now, SetTime::Now) {
                return Err(FsError::NotPermitted);
            }
            self.check_access(cred, node.object(), &attrs, Access::WRITE)?;
        }
        let now = self.store.now();
        self.change(&guard, |attrs| {
            atime.apply(&mut attrs.atime, now);
            mtime.apply(&mut attrs.mtime, now);
        })
    }

    /// One durable change of attributes, with a new ctime.
    pub(crate) fn change(
        &self,
        guard: &ObjectGuard<'_>,
        change: impl FnOnce(&mut Attrs),
    ) -> Result<()> {
        let mut tx = self.store.begin()?;
        tx.set_attrs(guard.id(), |attrs| {
            change(attrs);
            attrs.ctime = self.store.now().0;
        })?;
        Ok(tx.commit()?)
    }

    /// Sets the size of a file that the caller may write.
    pub fn truncate(&self, cred: &Cred, node: InodeRef, size: u64) -> Result<()> {
        let attrs = self.attrs(node)?;
        check_regular(&attrs)?;
        self.check_access(cred, node.object(), &attrs, Access::WRITE)?;
        self.set_size(cred, node, size)
    }

    /// Sets the size of a file that is open for writing.
    pub fn set_size(&self, cred: &Cred, node: InodeRef, size: u64) -> Result<()> {
        self.with_room(|| {
            let (guard, attrs) = self.lock(node)?;
            check_regular(&attrs)?;
            self.check_writable()?;
            self.drop_set_id(cred, &guard, &attrs)?;
            Ok(self.store.truncate(&guard, size)?)
        })
    }

    /// Takes the set-id bits that a change of the data takes.
    pub(crate) fn drop_set_id(
        &self,
        cred: &Cred,
        guard: &ObjectGuard<'_>,
        attrs: &Attrs,
    ) -> Result<()> {
        match set_id_bits_dropped_by_write(cred, attrs) {
            0 => Ok(()),
            dropped => self.change(guard, |attrs| attrs.mode &= !dropped),
        }
    }

    /// Space and limits.
    pub fn statfs(&self) -> Result<FsStat> {
        let space = self.store.statfs();
        let uuid = self.store.volume().uuid().0;
        let id = uuid
            .iter()
            .fold(0, |id: u64, &byte| id.rotate_left(8) ^ u64::from(byte));
        Ok(FsStat {
            units: space.units,
            free_units: space.free_units,
            available_units: space.free_alone,
            objects: space.objects,
            free_objects: space.free_objects,
            unit_size: UNIT_SIZE as u32,
            name_max: NAME_MAX as u32,
            read_only: !self.store.is_writable(),
            id,
        })
    }
}

fn check_chown(cred: &Cred, attrs: &Attrs, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    if cred.has(Caps::CHOWN) {
        return Ok(());
    }
    let mine = cred.uid == attrs.uid;
    let uid_allowed = uid.is_none_or(|uid| mine && uid == attrs.uid);
    let gid_allowed = gid.is_none_or(|gid| mine && (gid == attrs.gid || cred.in_group(gid)));
    if uid_allowed && gid_allowed {
        return Ok(());
    }
    Err(FsError::NotPermitted)
}
