//! One of several disks, as the explorer sees it.

use std::ops::Range;

use nacre_cache::{Disk, DiskFailed};

use super::file::FileDisk;
#[cfg(feature = "explore")]
use crate::tap::{self, DiskEvent};

/// One of the disks, with its number in the table.
#[derive(Clone, Copy)]
pub(super) struct One<'d>(pub usize, pub &'d FileDisk);

impl One<'_> {
    /// Lets the explorer see what is done to a disk, or fail it.
    #[cfg(feature = "explore")]
    fn tell(self, event: impl FnOnce() -> DiskEvent) -> Result<(), DiskFailed> {
        if tap::disk_fails(self.0) {
            return Err(as_wished());
        }
        tap::disk(self.0, event);
        Ok(())
    }

    /// As `tell`. If it fails, what waited may be lost.
    #[cfg(feature = "explore")]
    fn tell_sync(self, event: impl FnOnce() -> DiskEvent) -> Result<(), DiskFailed> {
        if tap::sync_fails() || tap::disk_fails(self.0) {
            tap::disk(self.0, || DiskEvent::SyncFailed);
            return Err(as_wished());
        }
        tap::disk(self.0, event);
        Ok(())
    }
}

#[cfg(feature = "explore")]
fn as_wished() -> DiskFailed {
    DiskFailed("as the explorer wished".into())
}

impl Disk for One<'_> {
    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), DiskFailed> {
        self.1.read(at, to)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), DiskFailed> {
        #[cfg(feature = "explore")]
        self.tell(|| DiskEvent::Write(at, bytes.to_vec()))?;
        self.1.write(at, bytes)
    }

    fn write_through(&self, at: u64, bytes: &[u8]) -> Result<(), DiskFailed> {
        #[cfg(feature = "explore")]
        self.tell(|| DiskEvent::Through(at, bytes.to_vec()))?;
        self.1.write_through(at, bytes)
    }

    fn sync(&self) -> Result<(), DiskFailed> {
        #[cfg(feature = "explore")]
        self.tell_sync(|| DiskEvent::Sync)?;
        self.1.sync()
    }

    fn settle(&self, ranges: &[Range<u64>]) -> Result<(), DiskFailed> {
        #[cfg(feature = "explore")]
        self.tell_sync(|| DiskEvent::Settle(ranges.to_vec()))?;
        self.1.settle(ranges)
    }
}

/// A disk on which what is asked for lies so many bytes nearer to the start.
#[derive(Clone, Copy)]
pub(super) struct Shifted<'d> {
    pub one: One<'d>,
    pub back: u64,
}

impl Disk for Shifted<'_> {
    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), DiskFailed> {
        self.one.read(at.wrapping_sub(self.back), to)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), DiskFailed> {
        self.one.write(at.wrapping_sub(self.back), bytes)
    }

    fn write_through(&self, at: u64, bytes: &[u8]) -> Result<(), DiskFailed> {
        self.one.write_through(at.wrapping_sub(self.back), bytes)
    }

    fn sync(&self) -> Result<(), DiskFailed> {
        self.one.sync()
    }
}
