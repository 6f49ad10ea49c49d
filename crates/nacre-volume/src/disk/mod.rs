//! What stands behind an image, as a disk.

mod alone;
pub(crate) mod cache;
mod calls;
mod doubt;
mod file;
mod legs;
mod mapped;
mod one;
mod own;
mod parts;
mod sealed;

use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use nacre_cache::{Disk, DiskFailed};
use nacre_media::{Access, Device, DeviceKind, DiskLegs, Image, Media, MediaError};
use nacre_types::site;

#[cfg(feature = "explore")]
use crate::tap::{self, DiskEvent};
pub(crate) use calls::not_over;
use file::FileDisk;
pub(crate) use legs::{Leg, LegsDisk};
use mapped::MappedDisk;
pub(crate) use own::Own;
pub(crate) use parts::{PartDisk, PartsDisk};

/// From so many bytes on, what is new goes home before the record: a second wait then costs less
/// than writing it twice. The explorer has small files.
pub(crate) const HOME_FIRST: u64 = if cfg!(feature = "explore") {
    1
} else {
    64 << 10
};

/// A device that holds a journal.
#[derive(Debug)]
pub(crate) enum DeviceDisk {
    /// The kernel writes it; where its data is.
    File(FileDisk, Range<u64>),
    /// It is memory (D62).
    Mapped(MappedDisk),
    /// Several disks that hold the same (D76).
    Legs(Arc<LegsDisk>),
    /// Several disks that each hold a part (D77).
    Parts(Arc<PartsDisk>),
}

/// Which part of a device is used, from `start` on.
#[derive(Clone, Copy)]
pub(crate) struct Parts {
    pub start: u64,
    pub data: u64,
    pub journal: u64,
}

impl Parts {
    /// What records name, as the rest is not theirs to change.
    pub fn homes(self) -> Range<u64> {
        self.start..self.start + self.data
    }
}

impl DeviceDisk {
    /// A device of this kind.
    pub fn new(device: &Arc<Device>, kind: DeviceKind, parts: Parts) -> Result<Self, MediaError> {
        let file = matches!(kind, DeviceKind::Disk | DeviceKind::CachedFile);
        #[cfg(feature = "explore")]
        let file = file || tap::writes_by_calls();
        let writable = device.access() == Access::ReadWrite;
        Ok(match file {
            true => Self::File(FileDisk::with_long_writes(device, writable), parts.homes()),
            false => Self::Mapped(MappedDisk::new(device, parts)?),
        })
    }

    /// For who reads it too: the fd past the page cache.
    pub fn shared(&self) -> Option<Arc<OwnedFd>> {
        match self {
            Self::File(file, _) => file.shared(),
            Self::Mapped(_) | Self::Legs(_) | Self::Parts(_) => None,
        }
    }

    /// Kernel fds that it has besides its device's.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Self::File(file, _) => file.fds().collect(),
            Self::Legs(legs) => legs.fds().collect(),
            Self::Parts(parts) => parts.fds().collect(),
            _ => Vec::new(),
        }
    }

    /// Whether each disk has all of the data.
    pub fn is_whole(&self) -> bool {
        match self {
            Self::File(..) | Self::Mapped(_) => true,
            Self::Legs(legs) => legs.own().is_none(),
            Self::Parts(_) => false,
        }
    }

    /// The disks that hold the same, if it is several.
    pub fn legs(&self) -> Option<&Arc<LegsDisk>> {
        match self {
            Self::Legs(legs) => Some(legs),
            _ => None,
        }
    }

    /// The disks that hold each a part, if it is several.
    pub fn parts(&self) -> Option<&Arc<PartsDisk>> {
        match self {
            Self::Parts(parts) => Some(parts),
            _ => None,
        }
    }

    /// Several disks, for who loads from them.
    pub fn several(&self) -> Option<Arc<dyn DiskLegs>> {
        match self {
            Self::File(..) | Self::Mapped(_) => None,
            Self::Legs(legs) => Some(Arc::clone(legs) as Arc<dyn DiskLegs>),
            Self::Parts(parts) => Some(Arc::clone(parts) as Arc<dyn DiskLegs>),
        }
    }

    /// The mapping of a device that is memory.
    pub fn mapped(&self) -> Option<&Arc<Media>> {
        match self {
            Self::File(..) | Self::Legs(_) | Self::Parts(_) => None,
            Self::Mapped(mapped) => Some(mapped.media()),
        }
    }

    /// Whether `len` bytes that are new, of `all` such, go home before the record, in whole units
    /// of `whole` bytes. Memory is worn by what is written, and by nothing that is waited for.
    pub fn goes_first(&self, len: u64, whole: u64, all: u64) -> bool {
        match self {
            Self::File(..) | Self::Legs(_) | Self::Parts(_) => all >= HOME_FIRST,
            // The record and its checkpoint write them twice.
            Self::Mapped(_) => whole <= 2 * len,
        }
    }

    /// Writes pieces of the image as they are by now, durably, where that needs no copy. Answers
    /// those that do.
    pub fn write_from(
        &self,
        image: &Image,
        pieces: &[Range<u64>],
    ) -> Result<Vec<Range<u64>>, DiskFailed> {
        match self {
            // The explorer sees what was written.
            Self::File(file, _) if cfg!(not(feature = "explore")) => {
                file.write_shared(pieces, |piece| image.memory(piece))
            }
            _ => Ok(pieces.to_vec()),
        }
    }

    /// What the disk holds in a range means nothing in any version that counts: it need not keep
    /// it. Answers how many bytes of devices that are. Nobody commits meanwhile.
    pub fn discard(&self, range: &Range<u64>, files: bool) -> Result<u64, DiskFailed> {
        let bytes = match self {
            // The explorer finds anything there.
            _ if cfg!(feature = "explore") => self.spoil(range),
            Self::File(file, _) => file.discard(range, files),
            Self::Mapped(_) => Ok(0),
            Self::Legs(legs) => legs.discard(range, files),
            Self::Parts(parts) => parts.discard(range, files),
        }?;
        match self.legs() {
            // T4: what a seal is of that is set behind this is there for good.
            Some(_) => self.settle(std::slice::from_ref(range)).map(|()| bytes),
            None => Ok(bytes),
        }
    }

    /// Whether any device would be told by [`DeviceDisk::discard`].
    pub fn is_told(&self, files: bool) -> bool {
        match self {
            _ if cfg!(feature = "explore") => true,
            Self::File(file, _) => file.is_told(files),
            Self::Mapped(_) => false,
            Self::Legs(legs) => legs.is_told(files),
            Self::Parts(parts) => parts.is_told(files),
        }
    }

    fn spoil(&self, range: &Range<u64>) -> Result<u64, DiskFailed> {
        let len = range.end - range.start;
        let anything = vec![0xdb; len as usize];
        self.write(range.start, &anything).map(|()| len)
    }

    #[cfg(feature = "explore")]
    fn is_several(&self) -> bool {
        self.several().is_some()
    }

    /// Several disks tell themselves.
    #[cfg(feature = "explore")]
    fn tell(&self, event: impl FnOnce() -> DiskEvent) {
        if !self.is_several() {
            tap::disk(0, event);
        }
    }

    /// A sync that fails, of whatever part: what waited may be lost, and nobody is told again.
    #[cfg(feature = "explore")]
    fn fail_as_wished(&self) -> Result<(), DiskFailed> {
        if !tap::sync_fails() || self.is_several() {
            return Ok(());
        }
        tap::disk(0, || DiskEvent::SyncFailed);
        Err(DiskFailed("as the explorer wished".into()))
    }

    fn way(&self) -> &dyn Disk {
        match self {
            Self::File(file, _) => file,
            Self::Mapped(mapped) => mapped,
            Self::Legs(legs) => &**legs,
            Self::Parts(parts) => &**parts,
        }
    }
}

impl Disk for &DeviceDisk {
    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), DiskFailed> {
        self.way().read(at, to)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), DiskFailed> {
        #[cfg(feature = "explore")]
        self.tell(|| DiskEvent::Write(at, bytes.to_vec()));
        self.way().write(at, bytes)
    }

    fn write_through(&self, at: u64, bytes: &[u8]) -> Result<(), DiskFailed> {
        if !site::step() {
            return self.write(at, bytes);
        }
        #[cfg(feature = "explore")]
        self.tell(|| DiskEvent::Through(at, bytes.to_vec()));
        self.way().write_through(at, bytes)
    }

    #[cfg(not(feature = "explore"))]
    fn write_all_through(&self, pieces: &[(u64, &[u8])]) -> Result<(), DiskFailed> {
        self.way().write_all_through(pieces)
    }

    /// The explorer sees that before the end any part of each may be there.
    #[cfg(feature = "explore")]
    fn write_all_through(&self, pieces: &[(u64, &[u8])]) -> Result<(), DiskFailed> {
        let mut each = pieces.iter();
        each.try_for_each(|&(at, bytes)| self.write(at, bytes))?;
        let range = |&(at, bytes): &(u64, &[u8])| at..at + bytes.len() as u64;
        let ranges: Vec<_> = pieces.iter().map(range).collect();
        self.settle(&ranges)
    }

    fn at_once(&self) -> usize {
        self.way().at_once()
    }

    fn sync(&self) -> Result<(), DiskFailed> {
        #[cfg(feature = "explore")]
        self.fail_as_wished()?;
        if !site::step() {
            return Ok(());
        }
        #[cfg(feature = "explore")]
        self.tell(|| DiskEvent::Sync);
        self.way().sync()
    }

    fn settle(&self, ranges: &[Range<u64>]) -> Result<(), DiskFailed> {
        #[cfg(feature = "explore")]
        self.fail_as_wished()?;
        if !site::step() {
            return Ok(());
        }
        #[cfg(feature = "explore")]
        self.tell(|| DiskEvent::Settle(ranges.to_vec()));
        self.way().settle(ranges)
    }

    fn gathers(&self) -> Option<u64> {
        self.way().gathers()
    }

    fn prepare_write(&self, range: Range<u64>) {
        self.way().prepare_write(range);
    }

    fn begin_writing(&self, range: Range<u64>) {
        self.way().begin_writing(range);
    }

    fn grain(&self) -> u64 {
        self.way().grain()
    }

    fn homes(&self) -> Range<u64> {
        match self {
            DeviceDisk::File(_, homes) => homes.clone(),
            _ => self.way().homes(),
        }
    }

    fn forget(&self, at: u64, len: u64) {
        self.way().forget(at, len);
    }
}
