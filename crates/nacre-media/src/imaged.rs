//! Loads and stores of a device behind an image, or of several devices that hold the same.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use nacre_types::{DeviceOffset, LINE_SIZE, PAGE_SIZE, StoreKind};

use crate::arch;
use crate::error::{CopyError, MediaFailed};
use crate::fault::POISON;
use crate::image::{CHUNK, Image};
use crate::kind::Access;
use crate::media::Media;
use crate::mirror::Mirror;
use crate::token::Unfenced;
use crate::user::{UserBytesMut, ZEROS};

/// Two pages of [`POISON`]: a page's worth from any place within the first.
#[repr(align(4096))]
struct Poisoned([u8; 2 * PAGE_SIZE as usize]);

static POISONED: Poisoned = Poisoned([POISON; 2 * PAGE_SIZE as usize]);

/// As many bytes of poison, aligned as `at` is. They are only read.
fn poisoned(at: DeviceOffset, len: u64) -> *mut u8 {
    assert!(len <= PAGE_SIZE, "more than a page is loaded at once");
    let skip = (at.get() % PAGE_SIZE) as usize;
    POISONED.0[skip..].as_ptr().cast_mut()
}

/// Stores of so many bytes look first, as the kernel maps 16 pages around one that is loaded.
const MAP_AROUND_MIN: usize = 32 << 10;

/// From how many bytes of a call on stores bypass the cache. Below that a version copies them from
/// there soon, or a program reads them.
const PAST_CACHE_MIN: usize = 256 << 10;

/// What was where something is stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// What counts for nobody.
    Nothing,
    Something,
    /// Contents of a file: the disk has them, or will have with the next version.
    Contents,
}

impl Media {
    /// The image behind a range of the window, which is there from now on. Whoever asks for another
    /// range has a bug and panics.
    fn imaged(&self, at: DeviceOffset, len: u64, access: Access) -> &Image {
        let skip = at.get().wrapping_sub(self.start);
        let inside = skip.checked_add(len).is_some_and(|end| end <= self.len);
        let allowed = access == Access::ReadOnly || self.access() == Access::ReadWrite;
        match self.image.get() {
            Some(image) if inside && allowed => image,
            _ => self.refuse(at, len),
        }
    }

    #[inline]
    fn leg_to_read(&self) -> Option<&Media> {
        self.mirror.as_ref().map(|mirror| mirror.reader())
    }

    /// The devices that all get a store, which must lie in the window.
    #[inline]
    fn mirror_to_store(&self, at: DeviceOffset, len: u64) -> Option<&Mirror> {
        let mirror = self.mirror.as_deref()?;
        let skip = at.get().wrapping_sub(self.start);
        let inside = skip.checked_add(len).is_some_and(|end| end <= self.len);
        match inside && self.access() == Access::ReadWrite {
            true => Some(mirror),
            false => self.refuse(at, len),
        }
    }

    /// Address of `len` bytes at `at`, to be read: of [`POISON`] if they do not come.
    #[inline(never)]
    pub(crate) fn imaged_address(&self, at: DeviceOffset, len: u64) -> *mut u8 {
        if let Some(leg) = self.leg_to_read() {
            return leg.address(at, len);
        }
        let image = self.imaged(at, len, Access::ReadOnly);
        match image.pin(at, len) {
            Ok(()) => image.address(at.get()),
            Err(MediaFailed) => {
                self.watched.fail();
                poisoned(at, len)
            }
        }
    }

    /// Copies `len` bytes at `at` to memory that may be the program's.
    ///
    /// # Safety
    /// As for `PlainCopy::copy`, of `to`.
    #[inline(never)]
    pub(crate) unsafe fn imaged_read(
        &self,
        at: DeviceOffset,
        to: *mut u8,
        len: usize,
    ) -> Result<(), CopyError> {
        if let Some(leg) = self.leg_to_read() {
            let from = leg.address(at, len as u64);
            // SAFETY: the caller's promise; the source is mapped, and no reference covers it.
            return unsafe { self.copier.plain.copy(to, from, len) };
        }
        let image = self.imaged(at, len as u64, Access::ReadOnly);
        let mut done = 0;
        while done < len {
            let at = at.add(done as u64);
            let part = ((CHUNK - at.get() % CHUNK) as usize).min(len - done);
            let to = to.wrapping_add(done);
            // SAFETY: the caller's promise; the source is mapped, and no reference covers it.
            let copy = |from| unsafe { self.copier.plain.copy(to, from, part) };
            image.read(at, part as u64, copy)??;
            done += part;
        }
        Ok(())
    }

    /// As `read_user`.
    #[inline(never)]
    pub(crate) fn imaged_read_user(
        &self,
        at: DeviceOffset,
        mut to: UserBytesMut<'_>,
    ) -> Result<(), CopyError> {
        if let Some(mirror) = self.mirror.as_deref() {
            return mirror.read_user(at, to);
        }
        self.tell_read(at, to.len() as u64);
        // SAFETY: the destination is the program's, as `UserBytesMut::from_raw` demands.
        unsafe { self.imaged_read(at, to.as_mut_ptr(), to.len()) }
    }

    /// As [`Media::read_user`], of several devices that hold the same, or behind an image. `None`:
    /// not all of it is there, or goes wrong. Unless `may_find_out` it holds nothing, and changes
    /// nothing but `to` and what tells which units are in use; `None`, too, if it has to be found
    /// out which device is right.
    pub fn read_unsliced(
        &self,
        at: DeviceOffset,
        to: UserBytesMut<'_>,
        may_find_out: bool,
    ) -> Option<()> {
        match self.mirror.as_deref() {
            Some(mirror) if may_find_out => mirror.read_user(at, to).ok(),
            Some(mirror) => mirror.try_read_user(at, to),
            None => self.read_present(at, to),
        }
    }

    /// Copies what an image has, chunk by chunk.
    fn read_present(&self, at: DeviceOffset, mut to: UserBytesMut<'_>) -> Option<()> {
        let len = to.len();
        let image = self.imaged(at, len as u64, Access::ReadOnly);
        self.tell_read(at, len as u64);
        let mut done = 0;
        while done < len {
            let at = at.get() + done as u64;
            let part = ((CHUNK - at % CHUNK) as usize).min(len - done);
            let to = to.as_mut_ptr().wrapping_add(done);
            // SAFETY: the destination is the program's, as `UserBytesMut::from_raw` demands; the
            // source is mapped, and no reference covers it.
            let copy = |from| unsafe { self.copier.plain.copy(to, from, part) }.is_ok();
            image.read_present(at..at + part as u64, copy)?;
            done += part;
        }
        Some(())
    }

    /// Sees to it that bytes that are mapped elsewhere have come from the disk, and will come to
    /// all devices that hold them.
    pub fn bring(&self, at: DeviceOffset, len: u64) {
        if let Some(mirror) = &self.mirror {
            return mirror.expect_mapped(at.get(), len);
        }
        if self.readable == 0 && len > 0 {
            self.loaded(self.imaged(at, len, Access::ReadOnly).pin(at, len));
        }
    }

    /// Puts bytes of a record into an image that is this process's alone.
    pub fn restore(&self, home: u64, bytes: &[u8]) {
        let at = DeviceOffset(home);
        let image = self.imaged(at, bytes.len() as u64, Access::ReadOnly);
        self.loaded(image.pin(at, bytes.len() as u64));
        let to = image.address(at.get());
        // SAFETY: the range is mapped, and nobody else uses the image.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    fn loaded(&self, done: Result<(), MediaFailed>) {
        if done.is_err() {
            self.watched.fail();
        }
    }

    #[inline(never)]
    #[cfg_attr(feature = "explore", track_caller)]
    pub(crate) fn imaged_store_u64(&self, at: DeviceOffset, value: u64, kind: StoreKind) {
        if let Some(mirror) = self.mirror_to_store(at, 8) {
            assert!(at.get().is_multiple_of(8), "store at a misaligned offset");
            return mirror.store_u64(at, value, kind);
        }
        let image = self.imaged(at, 8, Access::ReadWrite);
        let address = image.address(at.get()).cast::<u64>();
        assert!(address.is_aligned(), "store at a misaligned offset");
        let Ok(entered) = image.begin(at, 8) else {
            return self.watched.fail();
        };
        // SAFETY: the image is mapped there, aligned as just checked; everybody accesses it
        // atomically.
        unsafe { AtomicU64::from_ptr(address) }.store(value.to_le(), Ordering::Release);
        drop(entered);
        if let Some(watcher) = self.watcher() {
            watcher.word(at, value, kind);
        }
    }

    /// As `put`.
    #[inline(never)]
    #[cfg_attr(feature = "explore", track_caller)]
    pub(crate) fn imaged_put(
        &self,
        (at, kind): (DeviceOffset, StoreKind),
        from: *const u8,
        len: usize,
        before: Before,
    ) -> Result<(), CopyError> {
        if let Some(mirror) = self.mirror_to_store(at, len as u64) {
            return mirror.put((at, kind), from, len);
        }
        let image = self.imaged(at, len as u64, Access::ReadWrite);
        let past_cache = len >= PAST_CACHE_MIN;
        let mut done = 0;
        while done < len {
            let at = at.add(done as u64);
            let room = (CHUNK - at.get() % CHUNK) as usize;
            let part = room.min(len - done);
            let from = from.wrapping_add(done);
            let fresh = before == Before::Nothing;
            if fresh && kind == StoreKind::Data && from.addr() != ZEROS.as_ptr().addr() {
                image.unpin(at.get()..at.get() + part as u64);
            }
            self.put_piece(image, at, (from, part), (before, past_cache))?;
            if let Some(watcher) = self.watcher() {
                watcher.bytes(at, part as u64, kind, || self.copied(at, part));
            }
            done += part;
        }
        Ok(())
    }

    fn put_piece(
        &self,
        image: &Image,
        at: DeviceOffset,
        (from, len): (*const u8, usize),
        (before, past_cache): (Before, bool),
    ) -> Result<(), CopyError> {
        if image.put_absent(at, from, len) {
            return Ok(());
        }
        if before == Before::Nothing {
            let claimed = image.claim(at.get()..at.get() + len as u64);
            claimed?;
        }
        self.prefetch(image.address(at.get()), len);
        let (_entered, range) = match before {
            Before::Contents => image.begin_changes(at, len as u64, |part: Range<u64>| {
                let (skip, len) = (part.start as usize, (part.end - part.start) as usize);
                let there = image.address(at.get()).wrapping_add(skip);
                // SAFETY: the image is mapped there; of the source faults are caught.
                unsafe { self.copier.are_equal(there, from.wrapping_add(skip), len) }
            })?,
            _ => (image.begin(at, len as u64)?, 0..len as u64),
        };
        let (skip, len) = (range.start as usize, (range.end - range.start) as usize);
        let to = image.address(at.get()).wrapping_add(skip);
        let from = from.wrapping_add(skip);
        // SAFETY: the range is mapped, and no reference covers it; the source is a live slice or
        // the program's memory, faults on which are caught.
        let done = unsafe {
            self.map_around(to, len)?;
            match past_cache && len >= LINE_SIZE as usize {
                true => self.put_streamed(to, from, len),
                // The gate orders them.
                false => return self.put_cached(to, from, len),
            }
        };
        arch::order_stores();
        done
    }

    /// Before many bytes are stored. A load has the kernel map all that is there around its page, a
    /// store that page alone.
    ///
    /// # Safety
    /// The place may be read: a fault gives an error.
    unsafe fn map_around(&self, to: *const u8, len: usize) -> Result<(), CopyError> {
        let mut byte = 0;
        match len {
            // SAFETY: as for the caller.
            MAP_AROUND_MIN.. => unsafe { self.copier.plain.copy(&raw mut byte, to, 1) },
            _ => Ok(()),
        }
    }

    /// Bytes that a program stored by itself belong to the next version.
    #[inline(never)]
    #[cfg_attr(feature = "explore", track_caller)]
    pub(crate) fn imaged_flush(&self, at: DeviceOffset, len: u64, kind: StoreKind) -> Unfenced {
        if let Some(mirror) = self.mirror_to_store(at, len) {
            return mirror.flush(at, len, kind);
        }
        let image = self.imaged(at, len, Access::ReadWrite);
        self.loaded(match kind {
            StoreKind::Data => image.note_stored(at.get()..at.get() + len),
            _ => image.begin(at, len).map(drop),
        });
        if let Some(watcher) = self.watcher() {
            watcher.flushed(at, len, kind);
        }
        Unfenced::nothing()
    }

    /// A fence of a device behind an image: the disk waits for a commit, unless each fence is one.
    #[inline(never)]
    pub(crate) fn imaged_fence(&self) -> Result<(), MediaFailed> {
        match self.image.get() {
            Some(image) => image.fence(),
            None => Ok(()),
        }
    }
}
