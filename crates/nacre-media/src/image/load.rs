//! How units come into an image: when they are asked for, or before, when they are read one behind
//! the other.

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU64, AtomicUsize, fence};

use nacre_types::{DeviceOffset, UNIT_SIZE};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::{CHUNK, EPOCHS, Image, STRIPES, units};
use crate::arch::thread_address;
use crate::error::MediaFailed;
use crate::fault::wait_for_room;

/// Readers that go on where they stopped are known by where that was; so many of a process are.
const STREAMS: usize = 8;
/// The most that is read ahead of one of them.
const AHEAD_MAX: u64 = 1 << 20;
/// At most this part of the room is read ahead.
const AHEAD_SHARE: u64 = 8;

/// Where readers stopped that may go on there. Guesses: nothing depends on them.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// The end of what came last for a reader, and how much that was.
    ends: [(AtomicU64, AtomicU64); STREAMS],
    next: AtomicUsize,
}

impl Streams {
    /// How much to load from `start` on for who asks for `len` bytes there.
    fn ahead(&self, start: u64, len: u64) -> u64 {
        let known = self.ends.iter();
        let found = known
            .clone()
            .find(|(end, _)| end.load(Relaxed) == start && start > 0);
        let (end, window) = found.unwrap_or_else(|| {
            let next = self.next.fetch_add(1, Relaxed);
            &self.ends[next % STREAMS]
        });
        let loaded = match found {
            Some(_) => (window.load(Relaxed) * 2).clamp(CHUNK, AHEAD_MAX).max(len),
            None => len,
        };
        end.store(start + loaded, Relaxed);
        window.store(loaded, Relaxed);
        loaded
    }
}

impl Image {
    /// Sees to it that a range of the device is there, and stays: its address is given away.
    #[inline]
    pub(crate) fn pin(&self, at: DeviceOffset, len: u64) -> Result<(), MediaFailed> {
        let range = units(at.get()..at.get() + len);
        if !self.pinned.has_all(range.clone()) {
            let new = self.pinned.set_all(range);
            self.head().pinned.fetch_add(new, Relaxed);
        }
        self.ensure(at, len)
    }

    /// As `pin`, of a range that a program maps.
    pub fn pin_range(&self, range: Range<u64>) -> Result<(), MediaFailed> {
        self.pin(DeviceOffset(range.start), range.end - range.start)
    }

    /// Units that are about to be new contents: nobody has an address in them.
    pub(crate) fn unpin(&self, range: Range<u64>) {
        let whole = range.start.div_ceil(UNIT_SIZE)..range.end / UNIT_SIZE;
        if whole.start < whole.end && self.pinned.has_any(whole.clone()) {
            let gone = self.pinned.clear_all(whole);
            self.head().pinned.fetch_sub(gone, Relaxed);
        }
    }

    /// Sees to it that a range of the device is there. It may go again at any time, unless it is
    /// pinned or a store has begun.
    #[inline]
    pub(crate) fn ensure(&self, at: DeviceOffset, len: u64) -> Result<(), MediaFailed> {
        let at = at.get();
        match self.present.has_all(units(at..at + len)) {
            true => Ok(()),
            false => self.load(at..at + len),
        }
    }

    /// Calls `copy` with the address of a range within one chunk, again if the range was not there
    /// all the time.
    pub(crate) fn read<T>(
        &self,
        at: DeviceOffset,
        len: u64,
        mut copy: impl FnMut(*const u8) -> T,
    ) -> Result<T, MediaFailed> {
        let range = units(at.get()..at.get() + len);
        self.count_read(range.end - range.start);
        let epoch = self.epoch(range.start);
        loop {
            let before = epoch.load(Acquire);
            self.ensure(at, len)?;
            let done = copy(self.address(at.get()));
            fence(Acquire);
            let there = self.present.has_all(range.clone());
            if there && epoch.load(Relaxed) == before {
                self.used.set_all(range);
                return Ok(done);
            }
        }
    }

    pub(super) fn epoch(&self, unit: u64) -> &AtomicU64 {
        let chunk = unit / (CHUNK / UNIT_SIZE);
        &self.head().epochs[chunk as usize % EPOCHS]
    }

    fn count_read(&self, units: u64) {
        let stripe = thread_address() >> 12;
        self.head().reads[stripe % STRIPES]
            .0
            .fetch_add(units, Relaxed);
    }

    #[cold]
    fn load(&self, range: Range<u64>) -> Result<(), MediaFailed> {
        let _loading = self.head().loading.lock();
        let wanted = units(range);
        let absent = |unit: &u64| !self.present.has(*unit);
        let missing = wanted.clone().filter(absent).count() as u64;
        if missing == 0 {
            return Ok(());
        }
        self.head().awaited.fetch_add(missing, Relaxed);
        let loaded = self.with_ahead(&wanted);
        self.make_room(loaded.end - loaded.start);
        let all = self.load_units(loaded);
        // What was not asked for may be out of reach.
        all.or_else(|_| self.load_units(wanted))
            .map_err(|_| MediaFailed)
    }

    /// The units to load for who waits for some.
    fn with_ahead(&self, wanted: &Range<u64>) -> Range<u64> {
        let start = wanted.start * UNIT_SIZE;
        let len = wanted.end * UNIT_SIZE - start;
        let most = (self.room() / AHEAD_SHARE).saturating_mul(UNIT_SIZE);
        let ahead = self.streams.ahead(start, len).min(most).max(len);
        let end = (start + ahead).min(self.window.end.max(start + len));
        wanted.start..end.div_ceil(UNIT_SIZE)
    }

    /// Loads the units of a range that are not there.
    fn load_units(&self, range: Range<u64>) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let rest = at..range.end;
            let absent = |unit: &u64| !self.present.has(*unit);
            let Some(first) = rest.clone().find(absent) else {
                break;
            };
            let behind = (first..rest.end).find(|unit| !absent(unit));
            at = behind.unwrap_or(rest.end);
            let bytes = first * UNIT_SIZE..at * UNIT_SIZE;
            self.allocate(&bytes)?;
            self.fetch(&bytes)?;
            self.head().loaded.fetch_add(at - first, Relaxed);
            self.came(first..at);
        }
        Ok(())
    }

    fn came(&self, units: Range<u64>) {
        // They are not the first to go.
        self.used.set_all(units.clone());
        let new = self.present.set_all(units);
        self.head().present.fetch_add(new, Relaxed);
    }

    /// Takes the memory of a range, so that nobody is killed who touches it.
    fn allocate(&self, range: &Range<u64>) -> io::Result<()> {
        let len = range.end - range.start;
        loop {
            match fallocate(&self.file, FallocateFlags::KEEP_SIZE, range.start, len) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::NOSPC | Errno::NOMEM) if self.drop_some(len / UNIT_SIZE) > 0 => {}
                Err(Errno::NOSPC | Errno::NOMEM) => wait_for_room(),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Reads a range of the disk to its place, past the page cache if that can be.
    fn fetch(&self, range: &Range<u64>) -> io::Result<()> {
        if let Some(direct) = &self.direct
            && self.fetch_by(direct.as_raw_fd(), range).is_ok()
        {
            return Ok(());
        }
        self.fetch_by(self.disk.fd().as_raw_fd(), range)
    }

    fn fetch_by(&self, disk: RawFd, range: &Range<u64>) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let (to, len) = (self.address(at), (range.end - at) as usize);
            // SAFETY: the place is mapped, and nobody uses it before the bits of its units are set.
            let read = unsafe { libc::pread64(disk, to.cast::<c_void>(), len, at as i64) };
            match read {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                1.. => at += read as u64,
                _ => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    /// Units that are about to be stored to as a whole need not come from the disk.
    pub(crate) fn claim(&self, range: Range<u64>) -> Result<(), MediaFailed> {
        let whole = range.start.div_ceil(UNIT_SIZE)..range.end / UNIT_SIZE;
        if whole.is_empty() || self.present.has_all(whole.clone()) {
            return Ok(());
        }
        let _loading = self.head().loading.lock();
        self.make_room(whole.end - whole.start);
        for unit in whole.filter(|&unit| !self.present.has(unit)) {
            let bytes = unit * UNIT_SIZE..(unit + 1) * UNIT_SIZE;
            self.allocate(&bytes).map_err(|_| MediaFailed)?;
            self.came(unit..unit + 1);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{AHEAD_MAX, CHUNK, Streams};

    #[test]
    fn who_goes_on_gets_more_each_time() {
        let streams = Streams::default();
        let mut at = 4096;
        assert_eq!(streams.ahead(at, 4096), 4096);
        at += 4096;
        let mut last = CHUNK;
        for _ in 0..8 {
            let loaded = streams.ahead(at, 4096);
            assert_eq!(loaded, last);
            at += loaded;
            last = (last * 2).min(AHEAD_MAX);
        }
    }

    #[test]
    fn who_jumps_gets_what_was_asked_for() {
        let streams = Streams::default();
        for at in [1 << 20, 5 << 20, 3 << 20, 9 << 20] {
            assert_eq!(streams.ahead(at, 8192), 8192);
        }
        assert_eq!(streams.ahead((5 << 20) + 8192, 8192), CHUNK);
    }
}
