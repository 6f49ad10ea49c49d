//! Labels are changed under a lock, by what is read under it.

use std::path::Path;

use nacre_media::{Access, DeviceIdentity};
use rustix::fs::FlockOperation;

use crate::error::VolumeError;
use crate::members::Members;
use crate::open::lock::{PoolLock, lock_device};

/// The lock of a pool's labels, which is that of its first device.
pub(crate) struct Locked {
    first: DeviceIdentity,
    _lock: PoolLock,
}

impl Locked {
    fn new(found: &Members, operation: FlockOperation) -> Result<Option<Self>, VolumeError> {
        let first = &found.members[0].device;
        Ok(lock_device(first, operation)?.map(|lock| Self {
            first: first.identity(),
            _lock: lock,
        }))
    }

    /// `None`: somebody else has it.
    pub fn at_once(found: &Members) -> Result<Option<Self>, VolumeError> {
        Self::new(found, FlockOperation::NonBlockingLockExclusive)
    }

    /// Whether it is that of the pool as it was found later: another device may be the first one.
    pub fn is_of(&self, found: &Members) -> bool {
        found.members[0].device.identity() == self.first
    }
}

impl Members {
    /// As [`Members::find`] of the pool that a device belongs to, whose labels nobody else changes
    /// as long as the lock is held.
    pub fn find_locked(member: &Path) -> Result<(Self, Locked), VolumeError> {
        loop {
            let before = Self::find(&[member], Access::ReadWrite)?;
            let locked = Locked::new(&before, FlockOperation::LockExclusive)?;
            let found = Self::find(&[member], Access::ReadWrite)?;
            if let Some(locked) = locked.filter(|locked| locked.is_of(&found)) {
                return Ok((found, locked));
            }
        }
    }
}
