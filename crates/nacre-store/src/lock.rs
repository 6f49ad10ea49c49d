//! Object locks, version counters and stable reads.

use nacre_session::{ICore, OwnedLock};
use nacre_types::ObjectId;

use crate::error::Result;
use crate::store::Store;

/// The exclusive lock of one object; released on drop.
pub struct ObjectGuard<'s> {
    store: &'s Store,
    id: ObjectId,
}

/// A lock of the session that belongs to no object; released on drop.
pub struct OwnedGuard<'s> {
    lock: &'s OwnedLock,
}

/// While it lives, the object's version is odd and optimistic readers wait.
pub struct ChangeMark<'s> {
    icore: Option<&'s ICore>,
}

impl ObjectGuard<'_> {
    /// The locked object.
    pub fn id(&self) -> ObjectId {
        self.id
    }
    /// Makes the version odd until the mark drops.
    pub fn begin_change(&self) -> ChangeMark<'_> {
        unreachable!()
    }
}

impl Store {
    /// Locks an object.
    pub fn lock(&self, _id: ObjectId) -> Result<ObjectGuard<'_>> {
        unreachable!()
    }
    /// Locks if free.
    pub fn try_lock(&self, _id: ObjectId) -> Result<Option<ObjectGuard<'_>>> {
        unreachable!()
    }
    /// Locks several, ascending.
    pub fn lock_many(&self, _ids: &[ObjectId]) -> Result<Vec<ObjectGuard<'_>>> {
        unreachable!()
    }
    /// Two.
    pub fn lock_pair(
        &self,
        _a: ObjectId,
        _b: ObjectId,
    ) -> Result<(ObjectGuard<'_>, Option<ObjectGuard<'_>>)> {
        unreachable!()
    }
    /// Rename lock.
    pub fn lock_rename(&self) -> Result<OwnedGuard<'_>> {
        unreachable!()
    }
    /// Any lock of the session.
    pub fn lock_owned<'s>(&'s self, _lock: &'s OwnedLock) -> Result<OwnedGuard<'s>> {
        unreachable!()
    }
    /// Stable read.
    pub fn read_stable<T>(
        &self,
        _id: ObjectId,
        _read: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        unreachable!()
    }
    /// In-core part of an object.
    pub fn icore(&self, _id: ObjectId) -> Result<&ICore> {
        unreachable!()
    }
}
