//! Onodes: reading and verifying, attributes.
use nacre_types::{ObjectId, VolumeOffset};

use crate::error::Result;
use crate::layout::INLINE_MAX;
use crate::lock::ObjectGuard;
use crate::store::Store;

/// The attributes of an object. Times are ns since the epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attrs {
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Links.
    pub nlink: u32,
    /// Size in bytes.
    pub size: u64,
    /// Mapped units.
    pub units: u64,
    /// Last read.
    pub atime: i64,
    /// Last change of the contents.
    pub mtime: i64,
    /// Last change of the onode.
    pub ctime: i64,
    /// Birth.
    pub btime: i64,
    /// Device number.
    pub rdev: u64,
    /// Life of the object number.
    pub generation: u32,
    /// `FLAG_*`.
    pub flags: u32,
    /// Parent directory of a directory.
    pub parent: u64,
    /// Hash of the own entry in the parent.
    pub parent_key: u64,
    /// Keys in the entries tree.
    pub entries: u64,
    /// Keys in the xattrs tree.
    pub xattrs: u64,
}

/// A new object. Times are ns since the epoch.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewObject {
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u64,
    /// Links.
    pub nlink: u32,
    /// `FLAG_*`.
    pub flags: u32,
    /// Parent directory of a directory.
    pub parent: u64,
    /// Hash of the own entry in the parent.
    pub parent_key: u64,
    /// Birth and all other times.
    pub time: i64,
    /// Size in bytes (symbolic links).
    pub size: u64,
}

impl Store {
    /// Attributes.
    pub fn attrs(&self, _id: ObjectId) -> Result<Attrs> {
        unreachable!()
    }
    /// Attributes under the lock.
    pub fn attrs_locked(&self, _guard: &ObjectGuard<'_>) -> Result<Attrs> {
        unreachable!()
    }
    /// One lazy store of the access time.
    pub fn set_atime_lazy(&self, _id: ObjectId, _time: i64) -> Result<()> {
        unreachable!()
    }
    /// Lazy stores of the modification and change times.
    pub fn set_times_lazy(&self, _id: ObjectId, _mtime: i64, _ctime: i64) -> Result<()> {
        unreachable!()
    }
    /// Inline bytes.
    pub fn inline(&self, _id: ObjectId, _bytes: &mut [u8; INLINE_MAX]) -> Result<usize> {
        unreachable!()
    }
    /// Address of the onode.
    pub(crate) fn onode_at(&self, _id: ObjectId) -> Result<VolumeOffset> {
        unreachable!()
    }
    /// Address of a live onode.
    pub(crate) fn onode_live(&self, _id: ObjectId) -> Result<VolumeOffset> {
        unreachable!()
    }
}
