//! A lock on a pool that the kernel releases when its holder dies.

use std::os::fd::OwnedFd;

use nacre_media::Device;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::VolumeError;
use crate::volume::Volume;

/// A held lock on a pool (`flock` on its first device), released on drop or by the holder's death. It keeps off only others
/// that lock too. A pool in anonymous memory has nobody to lock out.
#[derive(Debug)]
pub struct PoolLock(Option<OwnedFd>);

impl Volume {
    /// Waits until nobody else holds a lock on the pool, and takes it.
    pub fn lock_exclusive(&self) -> Result<PoolLock, VolumeError> {
        self.lock(FlockOperation::LockExclusive)
            .map(|lock| lock.unwrap_or(PoolLock(None)))
    }

    /// Waits until nobody else holds the pool exclusively, and takes a share of the lock.
    pub fn lock_shared(&self) -> Result<PoolLock, VolumeError> {
        self.lock(FlockOperation::LockShared)
            .map(|lock| lock.unwrap_or(PoolLock(None)))
    }

    /// As [`Volume::lock_exclusive`] without waiting; `None` if somebody holds it.
    pub fn try_lock_exclusive(&self) -> Result<Option<PoolLock>, VolumeError> {
        self.lock(FlockOperation::NonBlockingLockExclusive)
    }

    fn lock(&self, operation: FlockOperation) -> Result<Option<PoolLock>, VolumeError> {
        match self.head.media.device() {
            Some(device) => lock_device(device, operation),
            None => Ok(Some(PoolLock(None))),
        }
    }
}

/// Locks through a descriptor of its own, which no fork before this shares.
pub(crate) fn lock_device(
    device: &Device,
    operation: FlockOperation,
) -> Result<Option<PoolLock>, VolumeError> {
    let fd = device.reopen()?;
    loop {
        match flock(&fd, operation) {
            Ok(()) => return Ok(Some(PoolLock(Some(fd)))),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => {
                return Err(VolumeError::System {
                    path: device.path().to_owned(),
                    action: "lock it",
                    errno,
                });
            }
        }
    }
}

impl Drop for PoolLock {
    /// Unlocks even where a child that was forked meanwhile still has the descriptor.
    fn drop(&mut self) {
        if let Some(fd) = &self.0 {
            // Closing, which follows, unlocks too.
            let _ = flock(fd, FlockOperation::Unlock);
        }
    }
}
