//! What of a disk is in memory, what mappings show of it, and which free units it may need.

use std::ops::Range;
use std::time::Duration;

use nacre_media::{Image, Media, MediaFailed};
use nacre_types::{DeviceOffset, UNIT_SIZE, UnitNo, VolumeOffset};

use crate::error::VolumeError;
use crate::image::ahead::len;
use crate::layout::{DATA_START, LEAST_ROOM};
use crate::scrub::{in_volume, settle_doubted_in};
use crate::volume::Volume;

impl Volume {
    /// Units that were free are used for something new from now on.
    #[cold]
    pub fn note_taken(&self, at: VolumeOffset, len: u64) {
        if let Some((image, at)) = self.imaged(at) {
            image.note_taken(at, len);
        }
    }

    /// Units that nothing refers to any more are about to be free.
    #[cold]
    pub fn note_freed(&self, at: VolumeOffset, len: u64) {
        if let Some((image, at)) = self.imaged(at) {
            image.note_freed(at, len);
        }
    }

    /// Which units are free has been found out again.
    pub fn unsettle(&self) {
        if let Some(image) = self.head.media.image() {
            image.unsettle();
        }
    }

    /// Whether what is stored to free units has to go through the journal: the version that the
    /// disk has may need what they hold.
    pub fn is_spent(&self, at: VolumeOffset, len: u64) -> bool {
        let imaged = self.imaged(at);
        imaged.is_some_and(|(image, at)| image.is_spent(at, len))
    }

    /// As [`Volume::is_spent`], of the 64 units from a multiple of 64 on, each a bit.
    pub fn spent_of(&self, first: UnitNo) -> u64 {
        const { assert!(DATA_START.is_multiple_of(UNIT_SIZE * u64::BITS as u64)) };
        let imaged = self.imaged(first.offset());
        imaged.map_or(0, |(image, at)| image.spent_of(at))
    }

    /// Calls `found` with units, that many, that were freed and are spent no more since the version
    /// that was written last. Nobody takes a version meanwhile.
    pub fn each_regained(&self, mut found: impl FnMut(UnitNo, u64)) {
        if let Some(image) = self.head.media.image() {
            image.each_regained(|range| {
                let start = in_volume(range.start).0 / UNIT_SIZE;
                found(UnitNo(start), len(&range) / UNIT_SIZE);
            });
        }
    }

    /// Whether contents that a call overwrites, of so many bytes, had better be stored elsewhere:
    /// all of it would go through the journal.
    pub fn had_better_move(&self, len: usize) -> bool {
        let image = self.head.media.image();
        image.is_some_and(|image| image.had_better_move(len))
    }

    /// How many of the first of `count` units are alike, and whether overwriting them would cost
    /// the journal all of their bytes.
    pub fn first_alike(&self, at: VolumeOffset, count: u64) -> (u64, bool) {
        match self.imaged(at) {
            Some((image, at)) => image.first_alike(at, count),
            None => (count, false),
        }
    }

    /// The image, and where a place lies in it.
    fn imaged(&self, at: VolumeOffset) -> Option<(&Image, u64)> {
        let image = self.head.media.image()?;
        Some((image, self.find(at).1.get()))
    }

    /// From now on so many bytes of the disk should be in memory at most.
    pub fn set_room(&self, bytes: u64) {
        if let Some(image) = self.head.media.image() {
            image.set_room(bytes.max(LEAST_ROOM));
        }
    }

    /// Keeps the image as small as the caller's control group has to have it, whoever else uses it.
    pub fn lower_room(&self) {
        if let Some((cache, image)) = self.cached()
            && let Some(bytes) = cache.room_of_group()
        {
            image.lower_room(bytes);
        }
    }

    /// Gives memory back that others lack where the image lies.
    pub fn leave_spare(&self) {
        if let Some(image) = self.head.media.image() {
            image.leave_spare();
        }
    }

    /// What was just stored at a place has checksums of its own, which tell if the disk has
    /// something else: that is no damage.
    pub fn checks_itself(&self, at: VolumeOffset, len: u64) {
        if let Some((image, at)) = self.imaged(at).filter(|(image, _)| image.has_sums()) {
            image.leave_unsummed(at..at + len);
        }
    }

    /// Whether a mapping of so many bytes is to come by windows, so that what is not used of it may
    /// leave memory.
    pub fn maps_by_windows(&self, len: u64) -> bool {
        let image = self.head.media.image();
        image.is_some_and(|image| image.wants_windows(len))
    }

    /// Whether so many bytes more may stay in memory for as long as somebody maps them.
    pub fn may_stay(&self, len: u64) -> bool {
        let image = self.head.media.image();
        image.is_none_or(|image| image.may_stay(len))
    }

    /// How many bytes of windows this process should have at most.
    pub fn window_share(&self) -> u64 {
        let image = self.head.media.image();
        image.map_or(u64::MAX, Image::window_share)
    }

    /// A range of the disk is about to be mapped by this process, which may then `store` there.
    /// `false`: it is pinned for good, as no window is to be had there.
    pub fn begin_window(&self, range: Range<u64>, store: bool) -> Result<bool, MediaFailed> {
        let image = self.head.media.image().ok_or(MediaFailed)?;
        let begun = image.begin_window(range.clone(), store)?;
        if !begun {
            image.pin_range(range)?;
        }
        Ok(begun)
    }

    /// The program may store to a window from now on.
    pub fn store_through_window(&self, range: Range<u64>) {
        if let Some(image) = self.head.media.image() {
            image.store_through_window(range);
        }
    }

    /// A window ends. `stays`: it is mapped for good from now on.
    pub fn end_window(&self, range: Range<u64>, stays: bool) -> Result<(), MediaFailed> {
        let image = self.head.media.image().ok_or(MediaFailed)?;
        if stays {
            image.pin_range(range.clone())?;
        }
        image.end_window(range)
    }

    /// The windows end of a process that is gone, or that has none any more.
    pub fn end_windows_of(&self, number: u64) {
        if let Some(image) = self.head.media.image() {
            image.end_windows_of(number);
        }
    }

    /// Drops all that memory need not hold; answers how many bytes.
    pub fn drop_memory(&self) -> u64 {
        let image = self.head.media.image();
        image.map_or(0, Image::drop_all) * UNIT_SIZE
    }

    /// Drops what memory need not hold of a range.
    pub fn drop_range(&self, at: VolumeOffset, len: u64) {
        if let Some((image, at)) = self.imaged(at) {
            image.drop_range(at..at + len);
        }
    }

    /// Units that are free in the version that the disk has and in its journal, and that nobody
    /// takes meanwhile: the disk need not keep what it holds there. Files keep their room unless
    /// `files` is set. Answers how many bytes of devices that are. Nobody commits meanwhile.
    pub fn discard(&self, at: VolumeOffset, len: u64, files: bool) -> Result<u64, VolumeError> {
        if at.0 >= self.front_len() {
            return self.discard_behind(at, len, files);
        }
        let Some((cache, image)) = self.cached() else {
            return Ok(0);
        };
        let discard = |(_, there, part): (_, DeviceOffset, Range<usize>)| {
            let range = there.get()..there.get() + part.len() as u64;
            let legs = cache.disk.legs();
            let settled = legs.map(|legs| settle_doubted_in((legs, image), range.clone()));
            let settled = settled.unwrap_or(Ok(()));
            let taken = settled.and_then(|()| cache.disk.discard(&range, files));
            taken.map_err(|why| cache.failed(why.into()))
        };
        self.parts(at, len).map(discard).sum()
    }

    /// Whether any device would be told by [`Volume::discard`].
    pub fn has_disk_to_tell(&self, files: bool) -> bool {
        let cached = self.cached();
        let behind = || self.behind.iter().filter_map(|it| it.media.device());
        cached.is_some_and(|(cache, _)| cache.disk.is_told(files))
            || behind().any(|device| files || !device.is_file())
    }

    fn discard_behind(&self, at: VolumeOffset, len: u64, files: bool) -> Result<u64, VolumeError> {
        let discard = |(media, there, part): (&Media, DeviceOffset, Range<usize>)| {
            let told = media.device().filter(|device| files || !device.is_file());
            let range = there.get()..there.get() + part.len() as u64;
            let done = told.map_or(Ok(false), |device| {
                nacre_media::discard(device.fd(), &range)
            });
            let failed = |_| VolumeError::WriteFailed(self.path().to_owned());
            done.map(|done| part.len() as u64 * u64::from(done))
                .map_err(failed)
        };
        self.parts(at, len).map(discard).sum()
    }

    /// Whether a range of one device is in memory now.
    pub fn has_range(&self, at: VolumeOffset, len: u64) -> bool {
        let imaged = self.imaged(at);
        imaged.is_none_or(|(image, at)| image.has_range(at..at + len))
    }

    /// As [`nacre_media::Image::begin_load`], of a range of one device.
    pub fn begin_load(&self, at: VolumeOffset, len: u64, tag: u64) -> bool {
        let imaged = self.imaged(at);
        imaged.is_some_and(|(image, at)| image.begin_load(at..at + len, tag))
    }

    /// As [`nacre_media::Image::take_loaded`].
    pub fn take_loaded(&self, most: Duration, tell: impl FnMut(u64)) {
        if let Some(image) = self.head.media.image() {
            image.take_loaded(most, tell);
        }
    }
}
