//! Locks on a pool that the kernel releases when their holder dies: to come in or go out.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use nacre_media::Device;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::VolumeError;
use crate::members::presence::{Presence, enter, release};
use crate::volume::Volume;

/// Is told of a wait for a lock on a file that somebody else holds; the wait ends as what it
/// answers is dropped.
pub type WaitReport = fn(&Path, BorrowedFd<'_>) -> Box<dyn Any>;

static WAIT_REPORT: OnceLock<WaitReport> = OnceLock::new();

/// Says whom to tell of waits for locks.
pub fn report_waits_for_locks(report: WaitReport) {
    WAIT_REPORT.get_or_init(|| report);
}

/// A held lock on a pool (`flock` on its first device, or on all that hold the same), released on
/// drop or by the holder's death. It keeps off only others that lock too. A pool in anonymous
/// memory has nobody to lock out.
#[derive(Debug)]
pub struct PoolLock(Vec<OwnedFd>);

impl Volume {
    /// Becomes present, or changes from one presence to another; on all devices, so that they
    /// cannot be used as parts of different pools either. `false`: others are present whom that
    /// excludes, and this one is not any more.
    ///
    /// Each side first shows itself and then looks for the other: of two who exclude each other, at
    /// most one gets in.
    pub fn enter(&self, presence: Presence) -> Result<bool, VolumeError> {
        for device in self.all_devices()? {
            if !enter(&device, presence)? {
                self.leave()?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Is present no longer. Children that were forked since then are not either.
    pub fn leave(&self) -> Result<(), VolumeError> {
        for device in self.all_devices()? {
            release(&device)?;
        }
        Ok(())
    }

    /// Of copies, those that this process has; by a number that all processes agree on. Where
    /// nobody can tell which disks they are by now, whoever locked none would be beside others.
    pub(crate) fn all_devices(&self) -> Result<Vec<Arc<Device>>, VolumeError> {
        if let Some(legs) = self.legs() {
            let legs = legs.in_use().map_err(|why| self.disk_failed(why))?;
            let devices = legs.into_iter().map(|(_, leg)| Arc::clone(&leg.device));
            return Ok(by_number(devices.collect()));
        }
        Ok(self.fixed_devices())
    }

    /// As [`Volume::all_devices`], of a pool that keeps them while it is open; of copies in memory,
    /// those that are mapped.
    pub(crate) fn fixed_devices(&self) -> Vec<Arc<Device>> {
        if let Some(parts) = self.parts_on_disks() {
            let disks = parts.disks().iter();
            return disks.map(|disk| Arc::clone(&disk.device)).collect();
        }
        let Some(mirror) = self.mirror() else {
            let devices = self
                .real_segments()
                .filter_map(|segment| segment.media.device());
            return devices.cloned().collect();
        };
        let legs = mirror.mapped().filter_map(|(_, leg)| leg.device());
        by_number(legs.cloned().collect())
    }

    /// Waits until nobody else holds a lock on the pool, and takes it.
    pub fn lock_exclusive(&self) -> Result<PoolLock, VolumeError> {
        self.lock(FlockOperation::LockExclusive)
            .map(|lock| lock.unwrap_or(PoolLock(Vec::new())))
    }

    /// As [`Volume::lock_exclusive`] without waiting; `None` if somebody holds it.
    pub fn try_lock_exclusive(&self) -> Result<Option<PoolLock>, VolumeError> {
        self.lock(FlockOperation::NonBlockingLockExclusive)
    }

    fn lock(&self, operation: FlockOperation) -> Result<Option<PoolLock>, VolumeError> {
        let mut devices = self.all_devices()?;
        if !self.has_copies() {
            devices.truncate(1);
        }
        let mut locks = PoolLock(Vec::new());
        for device in &devices {
            let Some(mut lock) = lock_device(device, operation)? else {
                return Ok(None);
            };
            locks.0.append(&mut lock.0);
        }
        Ok(Some(locks))
    }
}

/// Devices in an order that all processes agree on.
fn by_number(mut devices: Vec<Arc<Device>>) -> Vec<Arc<Device>> {
    devices.sort_by_key(|device| device.identity().numbers());
    devices
}

/// Locks through a descriptor of its own, which no fork before this shares.
pub(crate) fn lock_device(
    device: &Device,
    operation: FlockOperation,
) -> Result<Option<PoolLock>, VolumeError> {
    let fd = device.reopen()?;
    let is_free = || flock(&fd, FlockOperation::NonBlockingLockExclusive).is_ok();
    let mut _reported = None;
    if operation == FlockOperation::LockExclusive
        && let Some(report) = WAIT_REPORT.get()
        && !is_free()
    {
        _reported = Some(report(device.path(), fd.as_fd()));
    }
    loop {
        match flock(&fd, operation) {
            Ok(()) => return Ok(Some(PoolLock(vec![fd]))),
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
        for fd in &self.0 {
            // Closing, which follows, unlocks too.
            let _ = flock(fd, FlockOperation::Unlock);
        }
    }
}
