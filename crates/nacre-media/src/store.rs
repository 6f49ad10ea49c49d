//! The choke point: every store to a medium, every flush and every fence of the project is made
//! here.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use nacre_types::{DeviceOffset, LINE_SIZE, StoreKind};
use rustix::fs::fdatasync;
use rustix::io::Errno;
use rustix::mm::{MsyncFlags, msync};

use crate::arch;
use crate::device::Device;
use crate::error::{CopyError, MediaFailed};
use crate::granularity::{Cutter, first_piece};
use crate::imaged::Before;
use crate::kind::FlushMethod;
use crate::map;
use crate::media::Media;
use crate::observer::Watcher;
use crate::own_writes::write_at;
use crate::token::Unfenced;
use crate::traffic::Direction;
use crate::user::{UserBytes, ZEROS};

/// So many bytes are asked for before they are stored; from then on the processor sees what comes
/// next.
const PREFETCHED: usize = 8 * LINE_SIZE as usize;

impl Media {
    /// Stores 8 bytes, little-endian, at `at` (a multiple of 8) and flushes their line.
    ///
    /// After a crash they are all old or all new. Other threads that see the value see what this
    /// one stored before (release).
    #[inline]
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn store_u64(&self, at: DeviceOffset, value: u64, kind: StoreKind) -> Unfenced {
        self.store_u64_lazy(at, value, kind);
        self.flush_as(at, 8, kind)
    }

    /// As [`Media::store_u64`] without the flush: durable some time, at the latest with the next
    /// flush of the line and a fence.
    #[inline]
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn store_u64_lazy(&self, at: DeviceOffset, value: u64, kind: StoreKind) {
        let Some(address) = self.plain_address(at, 8) else {
            return self.imaged_store_u64(at, value, kind);
        };
        let address = address.cast::<u64>();
        assert!(address.is_aligned(), "store at a misaligned offset");
        // SAFETY: the mapping holds 8 aligned bytes there, checked above; everybody accesses them
        // atomically.
        unsafe { AtomicU64::from_ptr(address) }.store(value.to_le(), Ordering::Release);
        if let Some(watcher) = self.watcher() {
            watcher.word(at, value, kind);
        }
    }

    /// Stores `bytes` and flushes their lines. Nothing is said about the order in which they become
    /// durable.
    ///
    /// Where the device fails the bytes are lost, and the fence says so.
    #[inline]
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn write(&self, at: DeviceOffset, bytes: &[u8], kind: StoreKind) -> Unfenced {
        let stream = bytes.len() >= self.stream_min;
        let (from, len) = (bytes.as_ptr(), bytes.len());
        if self.put::<false>(at, from, len, kind, stream).is_err() {
            self.watched.fail();
        }
        Unfenced::nothing()
    }

    /// As [`Media::write`], where the cache does not hold the lines: fewer bytes then go past it.
    #[cfg_attr(feature = "explore", track_caller)]
    pub(crate) fn write_fresh(&self, at: DeviceOffset, bytes: &[u8], kind: StoreKind) -> Unfenced {
        let stream = bytes.len() >= self.stream_min.min(map::STREAM_MIN_FRESH);
        let (from, len) = (bytes.as_ptr(), bytes.len());
        if self.put::<true>(at, from, len, kind, stream).is_err() {
            self.watched.fail();
        }
        Unfenced::nothing()
    }

    /// Stores the program's bytes and flushes their lines. An error may leave a part stored.
    #[inline]
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn write_user(
        &self,
        at: DeviceOffset,
        bytes: UserBytes<'_>,
        kind: StoreKind,
    ) -> Result<Unfenced, CopyError> {
        let stream = bytes.len() >= self.stream_min;
        self.put::<false>(at, bytes.as_ptr(), bytes.len(), kind, stream)?;
        Ok(Unfenced::nothing())
    }

    /// As [`Media::write_user`], of contents that programs could read there before: behind an image
    /// only what changes of them is a store (D116).
    #[inline]
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn overwrite_user(
        &self,
        at: DeviceOffset,
        bytes: UserBytes<'_>,
    ) -> Result<Unfenced, CopyError> {
        if self.image.get().is_none() {
            return self.write_user(at, bytes, StoreKind::Data);
        }
        let target = (at, StoreKind::Data);
        self.imaged_put(target, bytes.as_ptr(), bytes.len(), Before::Contents)?;
        Ok(Unfenced::nothing())
    }

    /// As [`Media::write_user`], where nobody has been lately, so that the cache does not hold the
    /// lines: fewer bytes then go past it.
    #[inline]
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn write_user_fresh(
        &self,
        at: DeviceOffset,
        bytes: UserBytes<'_>,
        kind: StoreKind,
    ) -> Result<Unfenced, CopyError> {
        let stream = bytes.len() >= self.stream_min.min(map::STREAM_MIN_FRESH);
        self.put::<true>(at, bytes.as_ptr(), bytes.len(), kind, stream)?;
        Ok(Unfenced::nothing())
    }

    /// Asks for the lines of `len` bytes from `first` on, unless they will go past the cache.
    #[inline(always)]
    pub(crate) fn prefetch(&self, first: *mut u8, len: usize) {
        let end = match len {
            len if len >= self.stream_min => 0,
            len => len.min(PREFETCHED),
        };
        let mut line = 0;
        while line < end {
            arch::prefetch_line(first.wrapping_add(line));
            line += LINE_SIZE as usize;
        }
    }

    /// Stores `len` zero bytes and flushes their lines.
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn zero(&self, at: DeviceOffset, len: u64, kind: StoreKind) -> Unfenced {
        for skip in (0..len).step_by(ZEROS.len()) {
            let piece = (len - skip).min(ZEROS.len() as u64) as usize;
            let stream = piece >= self.stream_min;
            let from = ZEROS.as_ptr();
            if self
                .put::<true>(at.add(skip), from, piece, kind, stream)
                .is_err()
            {
                self.watched.fail();
            }
        }
        Unfenced::nothing()
    }

    /// Flushes the lines that hold `len` bytes at `at`, of structures that were changed by lazy
    /// stores.
    #[inline]
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn flush(&self, at: DeviceOffset, len: u64) -> Unfenced {
        self.flush_as(at, len, StoreKind::Metadata)
    }

    /// As [`Media::flush`], of what `kind` says.
    #[inline]
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn flush_as(&self, at: DeviceOffset, len: u64, kind: StoreKind) -> Unfenced {
        let Some(start) = self.plain_address(at, len) else {
            return self.imaged_flush(at, len, kind);
        };
        // SAFETY: the range lies in the mapping, and the method was chosen for this processor.
        unsafe { arch::flush_lines(self.flush, start, len as usize) };
        if let Some(watcher) = self.watcher() {
            watcher.flushed(at, len, kind);
        }
        Unfenced::nothing()
    }

    /// Whether somebody flushes, or watches what is flushed.
    pub fn has_to_flush(&self) -> bool {
        self.flush != FlushMethod::None || self.watcher.get().is_some()
    }

    /// Makes durable what lazy stores left in `len` bytes at `at`, which earlier calls made, if
    /// that takes a flush and a fence at most. None: it takes more, or is seen by an observer, or
    /// the device has failed. It holds nothing.
    #[inline(always)]
    pub fn persist_now(&self, at: DeviceOffset, len: u64) -> Option<()> {
        if matches!(self.flush, FlushMethod::Msync | FlushMethod::Commit)
            || self.watcher.get().is_some()
        {
            return None;
        }
        match self.flush {
            FlushMethod::None => self.health().ok(),
            _ => self.fence(self.flush(at, len)).ok(),
        }
    }

    /// Waits until every store of this thread that was flushed is as durable as the device makes
    /// it.
    ///
    /// Fails if it cannot be: a write-back failed, the device's file was truncated, its memory is
    /// damaged. A device that has failed once fails every later fence.
    #[inline]
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn fence(&self, stores: Unfenced) -> Result<(), MediaFailed> {
        arch::order_stores();
        self.fenced(stores, true)?;
        self.health()
    }

    /// As [`Media::fence`], between two steps of a call: no later store of this thread becomes
    /// durable before an earlier one. Where stores need no flush this takes no instruction, as
    /// others see them in the order in which they are made, and always succeeds: the fence at the
    /// end fails if the device has.
    #[inline]
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn order(&self, stores: Unfenced) -> Result<(), MediaFailed> {
        if self.flush == FlushMethod::None {
            // Stores past the cache are fenced where they are made.
            arch::order_cached_stores();
            return self.fenced(stores, false);
        }
        if self.flush == FlushMethod::Commit {
            return self.fenced(stores, false);
        }
        self.fence(stores)
    }

    #[inline]
    #[cfg_attr(feature = "explore", track_caller)]
    fn fenced(&self, _stores: Unfenced, last: bool) -> Result<(), MediaFailed> {
        if matches!(self.flush, FlushMethod::Msync | FlushMethod::Commit) {
            self.wait_for_disk(last)?;
        }
        if let Some(watcher) = self.watcher() {
            watcher.observer.fence(watcher.device);
        }
        Ok(())
    }

    /// The devices of a mirror are fenced one by one. The last fence of a call waits for a disk;
    /// so does each where the kernel alone knows what is dirty.
    #[cold]
    fn wait_for_disk(&self, last: bool) -> Result<(), MediaFailed> {
        if let Some(mirror) = &self.mirror {
            let done = mirror.fence();
            return done.inspect_err(|_| self.watched.fail());
        }
        match self.flush {
            FlushMethod::Msync => self.write_back(),
            _ if last => self.imaged_fence()?,
            _ => {}
        }
        Ok(())
    }

    /// Writes whole pages that nobody stores to otherwise, without reading what was there.
    /// [`Media::settle_pages`] makes them durable. Fails if the device takes them not; that says
    /// nothing about what it has.
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn write_pages(&self, at: DeviceOffset, bytes: &[u8]) -> Result<Unfenced, MediaFailed> {
        let Some(file) = self.paged_file() else {
            return Ok(self.write(at, bytes, StoreKind::Data));
        };
        let mut done = 0;
        while done < bytes.len() {
            match write_at(file.fd(), &bytes[done..], at.get() + done as u64) {
                Ok(0) => return Err(MediaFailed),
                Ok(len) => done += len,
                Err(Errno::INTR) => {}
                Err(_) => return Err(MediaFailed),
            }
        }
        Ok(Unfenced::nothing())
    }

    /// What [`Media::write_pages`] wrote before is durable on return, as far as the device makes
    /// it so.
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn settle_pages(&self, stores: Unfenced) -> Result<(), MediaFailed> {
        let Some(file) = self.paged_file() else {
            return self.fence(stores);
        };
        loop {
            match fdatasync(file.fd()) {
                Err(Errno::INTR) => {}
                done => return done.map_err(|_| MediaFailed),
            }
        }
    }

    /// The device, if it is mapped through its page cache.
    fn paged_file(&self) -> Option<&Device> {
        let device = self.device().filter(|_| self.flush == FlushMethod::Msync);
        device.map(|device| &**device)
    }

    /// Writes the whole window's dirty pages back. Those of other threads come along, which nothing
    /// forbids; pages that are being written back already are waited for.
    fn write_back(&self) {
        let start = std::ptr::with_exposed_provenance_mut::<c_void>(self.base_addr());
        loop {
            // SAFETY: the range is our mapping; syncing changes no contents.
            match unsafe { msync(start, self.len as usize, MsyncFlags::SYNC) } {
                Ok(()) => return,
                Err(Errno::INTR) => {}
                Err(_) => return self.watched.fail(),
            }
        }
    }

    /// Stores `len` bytes from `from` and flushes their lines. If `FRESH`, what was there counts
    /// for nobody.
    #[inline]
    #[cfg_attr(feature = "explore", track_caller)]
    fn put<const FRESH: bool>(
        &self,
        at: DeviceOffset,
        from: *const u8,
        len: usize,
        kind: StoreKind,
        stream: bool,
    ) -> Result<(), CopyError> {
        let Some(to) = self.plain_address(at, len as u64) else {
            let before = if FRESH {
                Before::Nothing
            } else {
                Before::Something
            };
            return self.imaged_put((at, kind), from, len, before);
        };
        // SAFETY: the address was just checked.
        unsafe { self.put_to(to, (at, kind), from, len, stream) }
    }

    /// As `put`; past the cache if `stream`.
    ///
    /// # Safety
    /// `to` is the address of `at`, and `len` writable bytes are mapped there.
    #[inline(always)]
    #[cfg_attr(feature = "explore", track_caller)]
    pub(crate) unsafe fn put_to(
        &self,
        to: *mut u8,
        (at, kind): (DeviceOffset, StoreKind),
        from: *const u8,
        len: usize,
        stream: bool,
    ) -> Result<(), CopyError> {
        if let Some(cutter) = self.cutter_of(kind, len) {
            return self.put_counted(cutter, at, from, len, stream);
        }
        // SAFETY: the caller's promise.
        unsafe { self.put_whole(to, (at, kind), from, len, stream) }
    }

    /// What cuts such a store, if anything does.
    #[inline(always)]
    fn cutter_of(&self, kind: StoreKind, len: usize) -> Option<&Cutter> {
        let cutter = self.cutter.get().filter(|_| kind == StoreKind::Data)?;
        cutter.concerns(Direction::Write, len).then_some(cutter)
    }

    /// Whether the thread counts among those that store while it makes such a store.
    pub(crate) fn is_counted(&self, kind: StoreKind, len: usize) -> bool {
        self.cutter_of(kind, len).is_some()
    }

    /// Stores data while the thread counts among those that store.
    #[inline(never)]
    #[cfg_attr(feature = "explore", track_caller)]
    fn put_counted(
        &self,
        cutter: &Cutter,
        at: DeviceOffset,
        from: *const u8,
        len: usize,
        stream: bool,
    ) -> Result<(), CopyError> {
        let (_turn, piece) = cutter.enter(Direction::Write, len);
        if piece < len {
            return self.put_cut(piece, at, from, len, stream);
        }
        let to = self.store_address(at, len as u64);
        // SAFETY: the address was just checked.
        unsafe { self.put_whole(to, (at, StoreKind::Data), from, len, stream) }
    }

    /// Stores data in pieces of `piece` bytes, each in the device's buffer before the next begins.
    #[cfg_attr(feature = "explore", track_caller)]
    fn put_cut(
        &self,
        piece: usize,
        at: DeviceOffset,
        from: *const u8,
        len: usize,
        stream: bool,
    ) -> Result<(), CopyError> {
        let mut done = 0;
        while done < len {
            let at = at.add(done as u64);
            let part = first_piece(at.get(), len - done, piece);
            let from = from.wrapping_add(done);
            let stream = stream && part >= LINE_SIZE as usize;
            let to = self.store_address(at, part as u64);
            // SAFETY: the address was just checked.
            unsafe { self.put_whole(to, (at, StoreKind::Data), from, part, stream)? };
            done += part;
            if done < len {
                self.order_pieces();
            }
        }
        Ok(())
    }

    fn order_pieces(&self) {
        arch::order_stores();
        if let Some(watcher) = self.watcher() {
            watcher.observer.ordered(watcher.device);
        }
    }

    /// As `put_to`, uncut; past the cache if `stream` and at least a line.
    ///
    /// # Safety
    /// As for `put_to`.
    #[inline(always)]
    #[cfg_attr(feature = "explore", track_caller)]
    unsafe fn put_whole(
        &self,
        to: *mut u8,
        (at, kind): (DeviceOffset, StoreKind),
        from: *const u8,
        len: usize,
        stream: bool,
    ) -> Result<(), CopyError> {
        // SAFETY: `to` is a checked range of the mapping, which no reference covers; the source is
        // a live slice or the program's memory, faults on which are caught.
        let done = unsafe {
            if stream {
                self.put_streamed(to, from, len)
            } else {
                self.put_cached(to, from, len)
            }
        };
        self.tell_of_bytes((at, kind), len);
        done
    }

    /// Tells the observer of bytes that were stored.
    #[inline(always)]
    #[cfg_attr(feature = "explore", track_caller)]
    pub(crate) fn tell_of_bytes(&self, (at, kind): (DeviceOffset, StoreKind), len: usize) {
        if let Some(watcher) = self.watcher() {
            watcher.bytes(at, len as u64, kind, || self.copied(at, len));
        }
    }

    /// # Safety
    /// As for `PlainCopy::copy`; `to` must be in the mapping.
    #[inline]
    pub(crate) unsafe fn put_cached(
        &self,
        to: *mut u8,
        from: *const u8,
        len: usize,
    ) -> Result<(), CopyError> {
        // SAFETY: what the caller vouches for is what is needed.
        unsafe {
            self.copier.plain.copy(to, from, len)?;
            arch::flush_lines(self.flush, to, len);
        }
        Ok(())
    }

    /// Whole lines go past the cache, a part of a line at either end through it.
    ///
    /// # Safety
    /// As for `put_cached`; `len` must be at least a line.
    #[inline(never)]
    pub(crate) unsafe fn put_streamed(
        &self,
        to: *mut u8,
        from: *const u8,
        len: usize,
    ) -> Result<(), CopyError> {
        const LINE: usize = LINE_SIZE as usize;
        let head = to.addr().wrapping_neg() % LINE;
        let tail = (len - head) % LINE;
        let middle = len - head - tail;
        // SAFETY: the three pieces make up the caller's range; the middle one starts at a line and
        // is whole lines long.
        unsafe {
            if head > 0 {
                self.put_cached(to, from, head)?;
            }
            let streamed =
                self.copier
                    .stream(to.wrapping_add(head), from.wrapping_add(head), middle);
            if self.flush == FlushMethod::None {
                // For `order`.
                arch::order_stores();
            }
            streamed?;
            if tail > 0 {
                self.put_cached(
                    to.wrapping_add(len - tail),
                    from.wrapping_add(len - tail),
                    tail,
                )?;
            }
        }
        Ok(())
    }

    /// The observer, if there is one.
    #[inline]
    #[cfg_attr(feature = "explore", track_caller)]
    pub(crate) fn watcher(&self) -> Option<&Watcher> {
        #[cfg(feature = "explore")]
        nacre_types::site::note();
        self.watcher.get()
    }

    /// A copy of bytes of the device, for an observer.
    pub(crate) fn copied(&self, at: DeviceOffset, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.copy_out(at, &mut bytes);
        bytes
    }
}
