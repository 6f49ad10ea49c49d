//! How units come into an image: when they are asked for, or before, when they are read one behind
//! the other.

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU64, fence};

use nacre_types::{DeviceOffset, UNIT_SIZE};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::{CHUNK, DiskFds, EPOCHS, Image, Mapped, REGION, REGION_LOCKS, STRIPES, units};
use crate::arch::thread_address;
use crate::error::MediaFailed;
use crate::fault::wait_for_room;
use crate::own_writes::is_beyond_limit;
use crate::shared_mutex::SharedMutex;

/// At most this part of the room is read ahead.
const AHEAD_SHARE: u64 = 8;

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

    /// As `pin`, of a range that a program maps. It fails if so much may not stay.
    pub fn pin_range(&self, range: Range<u64>) -> Result<(), MediaFailed> {
        let len = range.end - range.start;
        match self.may_stay(len) {
            true => self.pin(DeviceOffset(range.start), len),
            false => Err(MediaFailed),
        }
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
    /// all the time. What had to come for it is no more in use than what nobody read: who is read
    /// once does not drive out who is read again.
    pub(crate) fn read<T>(
        &self,
        at: DeviceOffset,
        len: u64,
        mut copy: impl FnMut(*const u8) -> T,
    ) -> Result<T, MediaFailed> {
        let range = units(at.get()..at.get() + len);
        self.count_read(range.end - range.start);
        let epoch = self.epoch(range.start);
        let was_there = self.present.has_all(range.clone());
        loop {
            let before = epoch.load(Acquire);
            self.ensure(at, len)?;
            let done = copy(self.address(at.get()));
            fence(Acquire);
            let there = self.present.has_all(range.clone());
            if there && epoch.load(Relaxed) == before {
                match was_there {
                    true => self.used.set_all(range),
                    false => self.used.clear_all(range),
                };
                return Ok(done);
            }
        }
    }

    /// Calls `copy` with the address of a range within one chunk, if it was there all the time.
    /// `None`: it was not, or `copy` failed.
    #[inline(always)]
    pub(crate) fn read_present(
        &self,
        range: Range<u64>,
        copy: impl FnOnce(*const u8) -> bool,
    ) -> Option<()> {
        let units = units(range.clone());
        let epoch = self.epoch(units.start);
        let before = epoch.load(Acquire);
        if !self.present.has_all(units.clone()) || !copy(self.address(range.start)) {
            return None;
        }
        fence(Acquire);
        if !self.present.has_all(units.clone()) || epoch.load(Relaxed) != before {
            return None;
        }
        self.count_read(units.end - units.start);
        self.used.set_all(units);
        Some(())
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
        let wanted = units(range);
        let missing = self.missing(&wanted);
        if missing == 0 {
            return Ok(());
        }
        self.count_awaited(missing);
        let stride = self.strides.next(&wanted);
        let mut parts = by_region(self.with_ahead(&wanted));
        let all = parts.try_for_each(|part| self.load_part(part, &wanted));
        // Not before: what has come for this read would make way.
        if let Some(stride) = stride {
            self.ask_along(stride, &wanted);
        }
        all.map_err(|_| MediaFailed)
    }

    /// Somebody waits for so many units.
    pub(super) fn count_awaited(&self, units: u64) {
        self.head().awaited.fetch_add(units, Relaxed);
    }

    /// So many units came from the disk.
    pub(super) fn count_loaded(&self, units: u64) {
        self.head().loaded.fetch_add(units, Relaxed);
    }

    /// How many units of a range are not there.
    pub(super) fn missing(&self, range: &Range<u64>) -> u64 {
        let absent = |unit: &u64| !self.present.has(*unit);
        range.clone().filter(absent).count() as u64
    }

    /// Loads units of one region.
    pub(super) fn load_part(&self, part: Range<u64>, wanted: &Range<u64>) -> io::Result<()> {
        self.hold_sums(&part);
        let _coming = self.region(part.start).lock();
        let missing = self.missing(&part);
        if missing == 0 {
            return Ok(());
        }
        self.make_room(missing);
        let needed = part.start.max(wanted.start)..part.end.min(wanted.end);
        // What was not asked for may be out of reach.
        let all = self.load_units(part, |_| false);
        all.or_else(|_| self.load_units(needed, |unit| self.bring_right(unit)))
    }

    /// The lock of the region of a unit.
    pub(super) fn region(&self, unit: u64) -> &SharedMutex {
        &self.head().regions[region_lock(unit)]
    }

    /// The units to load for who waits for some.
    fn with_ahead(&self, wanted: &Range<u64>) -> Range<u64> {
        let start = wanted.start * UNIT_SIZE;
        let len = wanted.end * UNIT_SIZE - start;
        let most = (self.room() / AHEAD_SHARE).saturating_mul(UNIT_SIZE);
        let ahead = self.streams.ahead(start, len, most);
        let end = (start + ahead).min(self.window.end.max(start + len));
        wanted.start..end.div_ceil(UNIT_SIZE)
    }

    /// Loads the units of a range that are not there. Those that are not as they were given to the
    /// disk stay away, if `repair` does not make them right: an error.
    fn load_units(&self, range: Range<u64>, repair: impl Fn(u64) -> bool) -> io::Result<()> {
        let mut are_right = true;
        self.each_absent(range, |units| {
            self.bring(&(units.start * UNIT_SIZE..units.end * UNIT_SIZE))?;
            self.count_loaded(units.end - units.start);
            are_right &= self.came_right(units, &repair);
            Ok(())
        })?;
        are_right.then_some(()).ok_or(Errno::IO.into())
    }

    fn came_right(&self, units: Range<u64>, repair: impl Fn(u64) -> bool) -> bool {
        let is_wrong = |unit: &u64| !self.is_as_given(*unit) && !repair(*unit);
        let (mut from, mut are_right) = (units.start, true);
        while let Some(wrong) = (from..units.end).find(is_wrong) {
            self.came(from..wrong);
            (from, are_right) = (wrong + 1, false);
        }
        self.came(from..units.end);
        are_right
    }

    /// Neighbours of a range that are not there, together.
    fn each_absent(
        &self,
        range: Range<u64>,
        mut visit: impl FnMut(Range<u64>) -> io::Result<()>,
    ) -> io::Result<()> {
        let absent = |unit: &u64| !self.present.has(*unit);
        let mut at = range.start;
        while let Some(first) = (at..range.end).find(absent) {
            let behind = (first..range.end).find(|unit| !absent(unit));
            at = behind.unwrap_or(range.end);
            visit(first..at)?;
        }
        Ok(())
    }

    pub(super) fn came(&self, units: Range<u64>) {
        // They are not the first to go, before they are read.
        self.used.set_all(units.clone());
        let new = self.present.set_all(units);
        self.head().present.fetch_add(new, Relaxed);
    }

    /// As `allocate`, and maps it, which costs less for all at once than page by page.
    fn populate(&self, range: &Range<u64>) -> io::Result<()> {
        let (at, len) = (
            self.address(range.start),
            (range.end - range.start) as usize,
        );
        // SAFETY: the range is mapped, and its bytes stay as they are.
        let done = unsafe { libc::madvise(at.cast::<c_void>(), len, libc::MADV_POPULATE_WRITE) };
        match done {
            0 => Ok(()),
            // An old kernel, or no memory.
            _ => self.allocate(range),
        }
    }

    /// Takes the memory of a range, so that nobody is killed who touches it.
    fn allocate(&self, range: &Range<u64>) -> io::Result<()> {
        let len = range.end - range.start;
        loop {
            match fallocate(&self.file, FallocateFlags::KEEP_SIZE, range.start, len) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::NOSPC | Errno::NOMEM) if self.drop_others(len / UNIT_SIZE) > 0 => {}
                Err(Errno::NOSPC | Errno::NOMEM) => wait_for_room(),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Reads a range of the disk to its place, which takes memory as it goes. Where there is none
    /// the kernel says so to who reads; nobody is killed.
    fn bring(&self, range: &Range<u64>) -> io::Result<()> {
        if let Some(mapped) = &self.mapped {
            return self.copy_from(&**mapped, range);
        }
        match &self.legs {
            Some(legs) => legs.read(range.start, &mut |disk| self.bring_from(disk, range)),
            None => {
                self.bring_from(self.disk_fds(), range)?;
                self.disk.check_len()
            }
        }
    }

    /// Whether none of the disks was cut or written over.
    pub(super) fn are_disks_whole(&self) -> bool {
        match &self.legs {
            Some(legs) => legs.are_whole(),
            None => !self.disk.is_cut(),
        }
    }

    pub(super) fn disk_fds(&self) -> DiskFds<'_> {
        DiskFds {
            plain: self.disk.fd(),
            direct: self.direct.as_deref().map(AsFd::as_fd),
            back: 0,
        }
    }

    pub(super) fn bring_from(&self, disk: DiskFds<'_>, range: &Range<u64>) -> io::Result<()> {
        if self.fetch_by_buffer(disk, range).is_ok() {
            return Ok(());
        }
        match self.fetch(disk, range) {
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                self.allocate(range)?;
                self.fetch(disk, range)
            }
            done => done,
        }
    }

    /// As `bring`, of a device that is memory: a copy finds no memory only when it is too late.
    fn copy_from(&self, mapped: &dyn Mapped, range: &Range<u64>) -> io::Result<()> {
        self.allocate(range)?;
        let (at, len) = (DeviceOffset(range.start), range.end - range.start);
        // SAFETY: the place is mapped, and nobody uses it before the bits of its units are set.
        let done = unsafe { mapped.fetch(at, len, self.address(range.start)) };
        done.map_err(|_| io::Error::from(Errno::IO))
    }

    /// Reads a range of the disk to its place, past the page cache if that can be.
    fn fetch(&self, disk: DiskFds<'_>, range: &Range<u64>) -> io::Result<()> {
        if let Some(direct) = disk.direct
            && self
                .fetch_by((direct.as_raw_fd(), disk.back), range)
                .is_ok()
        {
            return Ok(());
        }
        self.fetch_by((disk.plain.as_raw_fd(), disk.back), range)
    }

    fn fetch_by(&self, (disk, back): (RawFd, u64), range: &Range<u64>) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let (to, len) = (self.address(at), (range.end - at) as usize);
            // SAFETY: the place is mapped, and nobody uses it before the bits of its units are set.
            let read = unsafe {
                libc::pread64(disk, to.cast::<c_void>(), len, at.wrapping_sub(back) as i64)
            };
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
        self.refuse_lost(whole.start)?;
        by_region(whole).try_for_each(|part| self.claim_part(part))
    }

    /// Stores whole units of one chunk that are all absent. They need not come from the disk, and
    /// the kernel need not clear their memory. `false`: nothing has happened.
    pub(crate) fn put_absent(&self, at: DeviceOffset, from: *const u8, len: usize) -> bool {
        let range = units(at.get()..at.get() + len as u64);
        let whole = at.get().is_multiple_of(UNIT_SIZE) && (len as u64).is_multiple_of(UNIT_SIZE);
        if !whole || self.present.has_any(range.clone()) || is_beyond_limit(at.get() + len as u64) {
            return false;
        }
        self.slow_down();
        self.hold_sums(&range);
        let _coming = self.region(range.start).lock();
        if self.present.has_any(range.clone()) || self.refuse_lost(range.start).is_err() {
            return false;
        }
        self.make_room(range.end - range.start);
        // SAFETY: the call reads memory of the program, and fails where there is none.
        let put = unsafe {
            libc::pwrite64(
                self.file.as_raw_fd(),
                from.cast::<c_void>(),
                len,
                at.get() as i64,
            )
        };
        if put != len as isize {
            return false;
        }
        let _entered = self.enter_gate();
        // Whoever dies between the two leaves what the next version may have or not.
        self.note(at.get(), len as u64);
        self.came(range);
        true
    }

    /// What is stored to a place on a disk that is lost would be lost, too.
    fn refuse_lost(&self, unit: u64) -> Result<(), MediaFailed> {
        match &self.legs {
            Some(legs) if !legs.has_place(unit * UNIT_SIZE) => Err(MediaFailed),
            _ => Ok(()),
        }
    }

    fn claim_part(&self, part: Range<u64>) -> Result<(), MediaFailed> {
        self.hold_sums(&part);
        let _coming = self.region(part.start).lock();
        self.make_room(self.missing(&part));
        let all = self.each_absent(part, |units| {
            self.populate(&(units.start * UNIT_SIZE..units.end * UNIT_SIZE))?;
            self.came(units);
            Ok(())
        });
        all.map_err(|_| MediaFailed)
    }
}

/// Which of the locks of regions is that of a unit.
pub(super) fn region_lock(unit: u64) -> usize {
    (unit / (REGION / UNIT_SIZE)) as usize % REGION_LOCKS
}

/// A range of units, cut where regions begin.
fn by_region(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    const UNITS: u64 = REGION / UNIT_SIZE;
    let regions = range.start / UNITS..range.end.div_ceil(UNITS);
    regions
        .map(move |region| (region * UNITS).max(range.start)..((region + 1) * UNITS).min(range.end))
}

#[cfg(test)]
mod tests {
    use super::by_region;

    #[test]
    fn a_range_is_cut_where_regions_begin() {
        let parts: Vec<_> = by_region(250..770).collect();
        assert_eq!(parts, [250..256, 256..512, 512..768, 768..770]);
        assert!(by_region(256..256).next().is_none());
    }
}
