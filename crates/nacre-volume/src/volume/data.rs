//! The data path: volume offsets to devices. Ranges that do not lie in the volume are a bug of the
//! caller and panic.

use std::ops::Range;

use nacre_media::{
    CheckedRange, CheckedSlice, CopyError, Media, MediaFailed, Unfenced, UserBytes, UserBytesMut,
};
use nacre_types::{DeviceOffset, StoreKind, VolumeOffset};

use crate::volume::{Segment, Volume};

impl Volume {
    /// The segment of a volume offset, the device offset there, and how many bytes of the segment
    /// follow.
    #[inline(always)]
    pub(crate) fn find(&self, at: VolumeOffset) -> (&Segment, DeviceOffset, u64) {
        let segment = self.segment_of(at);
        let skip = at.get() - segment.start;
        (
            segment,
            segment.media.start().add(skip),
            segment.end - at.get(),
        )
    }

    #[inline(always)]
    fn segment_of(&self, at: VolumeOffset) -> &Segment {
        if at.get() < self.head.end {
            &self.head
        } else {
            self.find_in_rest(at)
        }
    }

    /// An offset behind the last segment yields that, whose media then refuses it.
    #[cold]
    #[inline(never)]
    fn find_in_rest(&self, at: VolumeOffset) -> &Segment {
        assert!(
            at.get() <= self.len(),
            "volume offset {at} is behind the end of {} bytes",
            self.len()
        );
        let rest = || self.rest.iter().chain(&self.behind);
        rest()
            .find(|segment| at.get() < segment.end)
            .or(rest().last())
            .unwrap_or(&self.head)
    }

    /// The parts of a range on each device: the media, the device offset there, the part's place in
    /// the range.
    #[inline(never)]
    pub(crate) fn parts(
        &self,
        at: VolumeOffset,
        len: u64,
    ) -> impl Iterator<Item = (&Media, DeviceOffset, Range<usize>)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            if done == len {
                return None;
            }
            let (segment, start, room) = self.find(at.add(done));
            assert!(
                room > 0,
                "{len} bytes at {at} reach behind the end of the volume"
            );
            let part = done..done + room.min(len - done);
            done = part.end;
            Some((
                &segment.media,
                start,
                part.start as usize..part.end as usize,
            ))
        })
    }

    /// The `N` bytes at `at` (both multiples of 8), checked once for all loads and stores in them.
    /// They must lie on one device: any that do not cross a multiple of 4 MiB do.
    #[inline(always)]
    pub fn checked_range<const N: usize>(&self, at: VolumeOffset) -> CheckedRange<'_, N> {
        let (segment, at, _) = self.find(at);
        segment.media.checked_range(at)
    }

    /// The 8 bytes at `at` (a multiple of 8), little-endian; atomic, sees what was stored before
    /// them (acquire).
    #[inline]
    pub fn load_u64(&self, at: VolumeOffset) -> u64 {
        let (segment, at, _) = self.find(at);
        segment.media.load_u64(at)
    }

    /// `N` neighbouring words, each as [`Volume::load_u64`]. The range must not cross a multiple of
    /// 4 MiB.
    #[inline]
    pub fn load_words<const N: usize>(&self, at: VolumeOffset) -> [u64; N] {
        let (segment, at, _) = self.find(at);
        segment.media.load_words(at)
    }

    /// The 4 bytes at `at` (a multiple of 4), as [`Volume::load_u64`].
    #[inline]
    pub fn load_u32(&self, at: VolumeOffset) -> u32 {
        let (segment, at, _) = self.find(at);
        segment.media.load_u32(at)
    }

    /// The 2 bytes at `at` (a multiple of 2), as [`Volume::load_u64`].
    #[inline]
    pub fn load_u16(&self, at: VolumeOffset) -> u16 {
        let (segment, at, _) = self.find(at);
        segment.media.load_u16(at)
    }

    /// The byte at `at`.
    #[inline]
    pub fn load_u8(&self, at: VolumeOffset) -> u8 {
        let (segment, at, _) = self.find(at);
        segment.media.load_u8(at)
    }

    /// Copies bytes of the volume to `to`; torn if others store there. Where a device fails it
    /// gives poison, and [`Volume::health`] tells.
    #[inline]
    pub fn read(&self, at: VolumeOffset, to: &mut [u8]) {
        let (segment, start, room) = self.find(at);
        if to.len() as u64 <= room {
            return segment.media.read(start, to);
        }
        for (media, at, part) in self.parts(at, to.len() as u64) {
            media.read(at, &mut to[part]);
        }
    }

    /// The `N` bytes at `at`, as [`Volume::read`]. The range must lie on one device: any that does
    /// not cross a multiple of 4 MiB.
    #[inline]
    pub fn read_array<const N: usize>(&self, at: VolumeOffset) -> [u8; N] {
        let (segment, at, _) = self.find(at);
        segment.media.read_array(at)
    }

    /// Fills the program's buffer with bytes of the volume. An error may leave a part copied.
    #[inline(always)]
    pub fn read_user(&self, at: VolumeOffset, mut to: UserBytesMut<'_>) -> Result<(), CopyError> {
        let (segment, start, room) = self.find(at);
        if to.len() as u64 <= room {
            return segment.media.read_user(start, to);
        }
        let mut parts = self.parts(at, to.len() as u64);
        parts.try_for_each(|(media, at, part)| media.read_user(at, to.slice(part)))
    }

    /// As [`Volume::read_user`], of bytes that are in no [`CheckedSlice`]: of a pool with copies,
    /// or behind an image. `None`: they do not lie on one device, not all are there, or it failed.
    /// Unless `may_find_out` nothing is held, for a caller that may be interrupted and never come
    /// back; `None`, too, if it has to be found out which copies are right.
    #[inline(never)]
    pub fn read_unsliced(
        &self,
        at: VolumeOffset,
        to: UserBytesMut<'_>,
        may_find_out: bool,
    ) -> Option<()> {
        let (segment, at, room) = self.find(at);
        match to.len() as u64 <= room {
            true => segment.media.read_unsliced(at, to, may_find_out),
            false => None,
        }
    }

    /// Says that `len` bytes at `at`, which this process has not used yet, will be stored to. A
    /// hint: it saves page faults.
    #[inline]
    pub fn expect_stores(&self, at: VolumeOffset, len: u64) {
        const STEP: usize = 128 << 10;
        for skip in (0..len).step_by(STEP) {
            let (segment, at, _) = self.find(at.add(skip));
            segment.media.expect_stores(at);
        }
    }

    /// Stores 8 bytes, little-endian, at `at` (a multiple of 8), and flushes their line. After a
    /// crash they are all old or all new.
    #[inline]
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn store_u64(&self, at: VolumeOffset, value: u64, kind: StoreKind) -> Unfenced {
        let (segment, at, _) = self.find(at);
        segment.media.store_u64(at, value, kind)
    }

    /// As [`Volume::store_u64`] without the flush: durable at the latest with the next flush of the
    /// line and a fence.
    #[inline]
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn store_u64_lazy(&self, at: VolumeOffset, value: u64, kind: StoreKind) {
        let (segment, at, _) = self.find(at);
        segment.media.store_u64_lazy(at, value, kind);
    }

    /// Stores `bytes` and flushes their lines, in no particular order.
    #[inline]
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn write(&self, at: VolumeOffset, bytes: &[u8], kind: StoreKind) -> Unfenced {
        let (segment, start, room) = self.find(at);
        if bytes.len() as u64 <= room {
            return segment.media.write(start, bytes, kind);
        }
        let mut stored = Unfenced::nothing();
        for (media, at, part) in self.parts(at, bytes.len() as u64) {
            stored.join(media.write(at, &bytes[part], kind));
        }
        stored
    }

    /// Stores the program's bytes and flushes their lines, in no particular order. An error may
    /// leave a part stored.
    #[inline(always)]
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn write_user(
        &self,
        at: VolumeOffset,
        bytes: UserBytes<'_>,
        kind: StoreKind,
    ) -> Result<Unfenced, CopyError> {
        let (segment, start, room) = self.find(at);
        if bytes.len() as u64 <= room {
            return segment.media.write_user(start, bytes, kind);
        }
        let mut stored = Unfenced::nothing();
        for (media, at, part) in self.parts(at, bytes.len() as u64) {
            stored.join(media.write_user(at, bytes.slice(part), kind)?);
        }
        Ok(stored)
    }

    /// As [`Volume::write_user`], of contents that programs could read there before: of a disk only
    /// what changes of them is written.
    #[inline(always)]
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn overwrite_user(
        &self,
        at: VolumeOffset,
        bytes: UserBytes<'_>,
    ) -> Result<Unfenced, CopyError> {
        let (segment, start, room) = self.find(at);
        if bytes.len() as u64 <= room {
            return segment.media.overwrite_user(start, bytes);
        }
        let mut stored = Unfenced::nothing();
        for (media, at, part) in self.parts(at, bytes.len() as u64) {
            stored.join(media.overwrite_user(at, bytes.slice(part))?);
        }
        Ok(stored)
    }

    /// As [`Volume::write_user`], where nobody has been lately: the first bytes of units that were
    /// just taken.
    #[inline(always)]
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn write_user_fresh(
        &self,
        at: VolumeOffset,
        bytes: UserBytes<'_>,
        kind: StoreKind,
    ) -> Result<Unfenced, CopyError> {
        let (segment, start, room) = self.find(at);
        if bytes.len() as u64 <= room {
            return segment.media.write_user_fresh(start, bytes, kind);
        }
        self.write_user(at, bytes, kind)
    }

    /// The `len` bytes at `at`, checked once for all copies. None: they do not lie on one device.
    #[inline(always)]
    pub fn checked_slice(&self, at: VolumeOffset, len: usize) -> Option<CheckedSlice<'_>> {
        let segment = self.segment_of(at);
        segment.media.checked_slice(at.get() - segment.start, len)
    }

    /// Stores `len` zero bytes and flushes their lines, in no particular order.
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn zero(&self, at: VolumeOffset, len: u64, kind: StoreKind) -> Unfenced {
        let (segment, start, room) = self.find(at);
        if len <= room {
            return segment.media.zero(start, len, kind);
        }
        let mut stored = Unfenced::nothing();
        for (media, at, part) in self.parts(at, len) {
            stored.join(media.zero(at, part.len() as u64, kind));
        }
        stored
    }

    /// Flushes the lines that hold `len` bytes at `at`, of structures that were changed by lazy
    /// stores.
    #[inline]
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn flush(&self, at: VolumeOffset, len: u64) -> Unfenced {
        self.flush_as(at, len, StoreKind::Metadata)
    }

    /// As [`Volume::flush`], of what `kind` says.
    #[inline]
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn flush_as(&self, at: VolumeOffset, len: u64, kind: StoreKind) -> Unfenced {
        let (segment, start, room) = self.find(at);
        if len <= room {
            return segment.media.flush_as(start, len, kind);
        }
        let mut flushed = Unfenced::nothing();
        for (media, at, part) in self.parts(at, len) {
            flushed.join(media.flush_as(at, part.len() as u64, kind));
        }
        flushed
    }

    /// As [`nacre_media::Media::has_to_flush`], of any device.
    pub fn has_to_flush(&self) -> bool {
        self.head.media.has_to_flush() || self.rest.iter().any(|one| one.media.has_to_flush())
    }

    /// As [`nacre_media::Media::persist_now`]. None on several devices, too.
    #[inline(always)]
    pub fn persist_now(&self, at: VolumeOffset, len: u64) -> Option<()> {
        if !self.rest.is_empty() {
            return None;
        }
        let (segment, at, _) = self.find(at);
        segment.media.persist_now(at, len)
    }

    /// Waits until every store of this thread that was flushed is as durable as the devices make
    /// it; fails, now and from then on, if one of them cannot.
    #[inline(always)]
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn fence(&self, stores: Unfenced) -> Result<(), MediaFailed> {
        if !self.rest.is_empty() {
            self.fence_rest()?;
        }
        self.head.media.fence(stores)
    }

    /// As [`Volume::fence`], between two steps of a call: orders what was stored before what will
    /// be. Where nothing has to be flushed it always succeeds.
    #[inline(always)]
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn order(&self, stores: Unfenced) -> Result<(), MediaFailed> {
        if !self.rest.is_empty() {
            self.order_rest()?;
        }
        self.head.media.order(stores)
    }

    /// Writes whole units of devices behind the others, of which nothing means anything yet.
    /// [`Volume::settle_behind`] makes them durable.
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn write_behind(&self, at: VolumeOffset, bytes: &[u8]) -> Result<Unfenced, MediaFailed> {
        let mut stored = Unfenced::nothing();
        for (media, at, part) in self.parts(at, bytes.len() as u64) {
            stored.join(media.write_pages(at, &bytes[part])?);
        }
        Ok(stored)
    }

    /// What was written behind before is durable on return.
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn settle_behind(&self, mut stores: Unfenced) -> Result<(), MediaFailed> {
        for segment in &self.behind {
            segment.media.settle_pages(stores.take())?;
        }
        Ok(())
    }

    #[inline(never)]
    #[cfg_attr(feature = "explore", track_caller)]
    fn order_rest(&self) -> Result<(), MediaFailed> {
        let mut all = Ok(());
        for segment in &self.rest {
            all = all.and(segment.media.order(Unfenced::nothing()));
        }
        all
    }

    #[inline(never)]
    #[cfg_attr(feature = "explore", track_caller)]
    fn fence_rest(&self) -> Result<(), MediaFailed> {
        let mut all = Ok(());
        for segment in &self.rest {
            all = all.and(segment.media.fence(Unfenced::nothing()));
        }
        all
    }
}
