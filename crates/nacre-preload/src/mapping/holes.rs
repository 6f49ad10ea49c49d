//! Holes of files in shared mappings ([D45]).
//!
//! A hole has addresses without access. The first store fills it. The first load maps zeros, which
//! all processes lose when anybody fills a hole; whoever touches them then asks again what the file
//! holds. System calls do not raise signals: `buffers` prepares what they are given.
//!
//! [D45]: ../../../../docs/decisions/0045-a-mapped-hole-is-filled-by-the-first-store.md

use core::ops::Range;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use std::os::fd::AsRawFd;

use libc::{
    MAP_FIXED, MAP_NORESERVE, MAP_SHARED, PROT_EXEC, PROT_NONE, PROT_READ, PROT_WRITE, SYS_mmap,
    SYS_mprotect,
};
use nacre_session::{ZEROS_LEN, Zeros};
use nacre_vfs::{Holes, MapPiece, MapRange, ShownPage, Staying, Vfs, VfsError};

use super::ranges::Ranges;
use super::windows::Windows;
use super::{Fault, PAGE, REGIONS, Region, anonymous, parts_in, place_of, private};
use crate::arch::x86_64::path_filter;
use crate::entry::call::Call;
use crate::entry::errno::Stop;
use crate::entry::{dispatch, symbols, table, user};
use crate::program::process;
use crate::runtime::kernel::checked;
use crate::runtime::spin::{Guard, SpinLock};
use crate::runtime::tls::thread;

/// Most pages that one store fills.
const MOST_FILLED: usize = 512;
/// Scattered stores that are filled page by page; as many more fill two pages each, and so on: a
/// process can have 65530 mappings.
const SCATTERED: usize = 2048;
/// Most windows of zeros that are mapped at once.
const MOST_ZEROS: usize = 4096;

/// What is mapped of the regions that have holes.
pub struct Pages {
    /// Units of their files, and copies.
    pub(super) mapped: Ranges,
    /// Zeros, which may have gone.
    zeros: Ranges,
    /// How many zeros were mapped.
    zeroed: usize,
    /// What is mapped for a while.
    pub(super) windows: Windows,
    /// What was copied of regions that come as copies, and may go again.
    pub(super) copies: Windows,
    /// What was copied of them and may not.
    pub(super) kept: Windows,
    /// Stores that did not go on where the one before had filled.
    scattered: usize,
    /// Where that was, and how many pages it had filled.
    pub(super) next: (usize, usize),
}

/// Held by whoever changes what stands behind a region.
static PAGES: SpinLock<Pages> = SpinLock::new(Pages {
    mapped: Ranges::new(),
    zeros: Ranges::new(),
    zeroed: 0,
    windows: Windows::new(),
    copies: Windows::new(),
    kept: Windows::new(),
    scattered: 0,
    next: (0, 0),
});

/// Whether some region has holes.
static EXIST: AtomicBool = AtomicBool::new(false);

/// Whether some region has holes, so that system calls may be given addresses of them.
#[inline]
pub fn exist() -> bool {
    EXIST.load(Relaxed)
}

/// Nobody else changes what stands behind a region.
pub fn lock() -> Guard<'static, Pages> {
    PAGES.lock()
}

/// Windows are their process's alone: a child begins with none.
pub fn lock_for_fork(vfs: &Vfs) {
    let mut pages = PAGES.lock();
    pages.close_all(vfs, &(0..usize::MAX));
    core::mem::forget(pages);
}

pub fn unlock_after_fork() {
    PAGES.release_after_fork();
}

/// What a thread wanted to do where it met a fault.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    pub write: bool,
    pub execute: bool,
}

impl Access {
    fn is_allowed(self, protection: i32) -> bool {
        match self {
            Access { write: true, .. } => protection & PROT_WRITE != 0,
            Access { execute: true, .. } => protection & PROT_EXEC != 0,
            _ => protection != PROT_NONE,
        }
    }
}

/// A call that maps a page at an address of ours.
pub(super) fn map_over(
    place: Range<usize>,
    protection: i32,
    fd: i32,
    offset: u64,
) -> Result<(), i32> {
    let flags = (MAP_SHARED | MAP_FIXED) as usize;
    let (start, len) = (place.start, place.len());
    let args = [
        start,
        len,
        protection as usize,
        flags,
        fd as usize,
        offset as usize,
    ];
    checked(SYS_mmap, &args).map(drop)
}

impl Pages {
    /// Maps a range that begins at byte `base` of a region of any kind.
    pub(super) fn fill_any(
        &mut self,
        vfs: &Vfs,
        region: &mut Region,
        base: usize,
        range: &MapRange,
    ) -> Result<(), i32> {
        if region.comes_as_copies() {
            begin();
            region.sparse = true;
            let shown = (range.shown as usize).next_multiple_of(PAGE);
            region.filled = region.filled.max((base + shown).min(region.len));
            return Ok(());
        }
        if region.private {
            return private::fill(vfs, region, base, range);
        }
        match region.is_chunked() {
            true => super::fill_chunks(region, base, &range.pieces),
            false => self.fill(region, base, range),
        }
    }

    /// Maps pieces of a range that begins at byte `base` of a region, and notes what the region
    /// shows now.
    fn fill(&mut self, region: &mut Region, base: usize, range: &MapRange) -> Result<(), i32> {
        self.map(region, base, &range.pieces)?;
        let shown = (range.shown as usize).next_multiple_of(PAGE);
        let covered: u64 = range.pieces.iter().map(|piece| piece.len).sum();
        let filled = (base + shown).min(region.len);
        if (covered as usize) < shown && !region.sparse {
            begin();
            region.sparse = true;
            self.mapped.insert(region.start..region.start + base);
            self.note(region, base, &range.pieces);
        }
        region.filled = region.filled.max(filled);
        Ok(())
    }

    fn map(&mut self, region: &Region, base: usize, pieces: &[MapPiece]) -> Result<(), i32> {
        for piece in pieces {
            let place = place_of(region, base, piece);
            map_over(
                place,
                region.protection,
                piece.device_fd,
                piece.device_offset,
            )?;
        }
        if region.sparse {
            self.note(region, base, pieces);
        }
        Ok(())
    }

    pub(super) fn note(&mut self, region: &Region, base: usize, pieces: &[MapPiece]) {
        for piece in pieces {
            let place = place_of(region, base, piece);
            self.zeros.remove(place.clone());
            self.mapped.insert(place);
        }
    }

    /// Nothing of ours is mapped there any more.
    pub fn forget(&mut self, vfs: &Vfs, range: Range<usize>) {
        if exist() {
            self.close_gone(vfs, &range);
            self.forget_copies(&range);
            self.mapped.remove(range.clone());
            self.zeros.remove(range);
        }
    }

    /// Nothing can be accessed there any more.
    pub(super) fn hide(&mut self, range: Range<usize>) {
        self.mapped.remove(range);
    }

    /// The parts of a range that are not mapped.
    pub(super) fn gaps(&self, range: Range<usize>) -> Vec<Range<usize>> {
        self.mapped.missing(range)
    }

    /// Changes the protection of what is mapped of a region.
    pub(super) fn protect(
        &mut self,
        c: &Call<'_>,
        region: &Region,
        protection: i32,
    ) -> Result<(), Stop> {
        let all = region.start..region.end();
        self.close_all(c.vfs(), &all);
        if protection & PROT_WRITE != 0 {
            self.keep_copies(&all);
        }
        for part in self.mapped.within(all.clone()) {
            protect(c, part, protection)?;
        }
        if protection == PROT_NONE {
            for part in self.zeros.within(all) {
                self.take_zeros(part)?;
            }
        }
        Ok(())
    }

    fn take_zeros(&mut self, part: Range<usize>) -> Result<(), Stop> {
        anonymous(part.start, part.len(), PROT_NONE, MAP_FIXED | MAP_NORESERVE)?;
        self.zeros.remove(part);
        Ok(())
    }

    /// Supplies a page of a region, if it is one that the region lacks.
    fn supply(&mut self, vfs: &Vfs, region: &mut Region, address: usize, access: Access) -> Fault {
        let page = address & !(PAGE - 1);
        if page - region.start >= region.filled {
            if self.grow(vfs, region).is_none() || page - region.start >= region.filled {
                return Fault::BeyondEnd;
            }
            if !region.sparse {
                return Fault::Mapped;
            }
        }
        if !region.sparse {
            // Another thread was quicker.
            return Fault::Mapped;
        }
        if !access.is_allowed(region.protection) {
            return Fault::NotOurs;
        }
        let for_loads = self.windows.is_for_loads(page);
        if self.mapped.contains(page) && !(access.write && for_loads) {
            return self.again(page);
        }
        thread().retried.store(0, Relaxed);
        come_for_a_while(vfs, region);
        let staying = region.staying();
        let supplied = match access.write {
            _ if region.comes_as_copies() => self.copy_around(vfs, region, page),
            true if for_loads => self.allow_stores(vfs, region, page),
            write if region.windowed && self.show_window(vfs, region, page, write).is_some() => {
                Some(())
            }
            true => self.fill_hole(vfs, region, page, staying),
            false => self.show(vfs, region, page, staying).map(drop),
        };
        supplied.map_or(Fault::BeyondEnd, |()| Fault::Mapped)
    }

    /// Of a page that is there: another thread was quicker, or it cannot be accessed for a reason
    /// of its own.
    fn again(&self, page: usize) -> Fault {
        let born = self.windows.born() + self.copies.born();
        let changes = self.scattered + born as usize;
        let mark = page | (2 * changes) & (PAGE - 1) | 1;
        match thread().retried.swap(mark, Relaxed) == mark {
            true => Fault::NotOurs,
            false => Fault::Mapped,
        }
    }

    /// Maps what the file has got since the region was filled.
    fn grow(&mut self, vfs: &Vfs, region: &mut Region) -> Option<()> {
        let base = region.filled;
        let (offset, len) = (region.offset + base as u64, (region.len - base) as u64);
        let range = range_of(vfs, region, offset, len).ok()?;
        self.fill_any(vfs, region, base, &range).ok()?;
        let mut regions = REGIONS.lock();
        for known in regions
            .iter_mut()
            .filter(|known| known.start == region.start)
        {
            known.filled = region.filled.min(known.len);
            known.sparse = region.sparse;
        }
        Some(())
    }

    /// The first part of a range that is not mapped.
    fn gap(&self, range: Range<usize>) -> Option<Range<usize>> {
        self.mapped.missing(range).first().cloned()
    }

    /// Fills the hole at a page: more of it the longer stores go on one behind the other.
    fn fill_hole(
        &mut self,
        vfs: &Vfs,
        region: &Region,
        page: usize,
        staying: Staying,
    ) -> Option<()> {
        let count = match region.windowed {
            true => self.run_of_stores(page),
            false => self.count_to_fill(page),
        };
        let end = (page + count * PAGE).min(region.start + region.filled);
        let gap = self.gap(page..end)?;
        let first = page..page + PAGE;
        self.map_part(vfs, region, gap, Holes::Fill, staying)
            .or_else(|| self.map_part(vfs, region, first, Holes::Fill, staying))?;
        self.next = (end, count);
        // Nothing is mapped where the file was cut.
        self.mapped.contains(page).then_some(())
    }

    fn count_to_fill(&mut self, page: usize) -> usize {
        let count = match self.next {
            (next, count) if next == page => 2 * count,
            _ => {
                self.scattered += 1;
                1 << (self.scattered / SCATTERED).min(9)
            }
        };
        count.min(MOST_FILLED)
    }

    fn map_part(
        &mut self,
        vfs: &Vfs,
        region: &Region,
        part: Range<usize>,
        holes: Holes,
        staying: Staying,
    ) -> Option<()> {
        let base = part.start - region.start;
        let wanted = (region.offset + base as u64, part.len() as u64);
        let range = vfs.map_range(region.hold, wanted, holes, staying).ok()?;
        match staying {
            Staying::Always => self.map(region, base, &range.pieces).ok(),
            Staying::Window => self.open(vfs, region, base, &range.pieces, holes == Holes::Fill),
        }
    }

    /// Shows what is at a page, for loads; the end of what is shown.
    fn show(&mut self, vfs: &Vfs, region: &Region, page: usize, staying: Staying) -> Option<usize> {
        let end = (page + ZEROS_LEN as usize).min(region.start + region.filled);
        let gap = self.gap(page..end)?;
        let offset = region.offset + (page - region.start) as u64;
        match vfs
            .show_mapped(region.hold, offset, gap.len() as u64)
            .ok()?
        {
            ShownPage::Unit => {
                self.map_part(vfs, region, gap, Holes::Leave, staying)?;
                Some(page + PAGE)
            }
            ShownPage::Zeros(zeros, count) => {
                let end = page + count as usize * PAGE;
                self.map_zeros(region, page..end, &zeros)?;
                Some(end)
            }
            ShownPage::Hole if region.protection & PROT_WRITE != 0 => {
                self.fill_hole(vfs, region, page, staying)?;
                Some(page + PAGE)
            }
            ShownPage::Hole | ShownPage::BehindEnd => None,
        }
    }

    fn map_zeros(&mut self, region: &Region, place: Range<usize>, zeros: &Zeros) -> Option<()> {
        if self.zeroed == MOST_ZEROS {
            for part in self.zeros.within(0..usize::MAX) {
                self.take_zeros(part).ok()?;
            }
            self.zeroed = 0;
        }
        let protection = PROT_READ | region.protection & PROT_EXEC;
        map_over(
            place.clone(),
            protection,
            zeros.fd.as_raw_fd(),
            zeros.offset,
        )
        .ok()?;
        self.zeros.insert(place);
        self.zeroed += 1;
        Some(())
    }

    /// Makes a range of a region accessible for the kernel, as far as it can be.
    fn touch(&mut self, vfs: &Vfs, region: &mut Region, range: Range<usize>, write: bool) {
        if range.end - region.start > region.filled {
            // What cannot grow is not accessible.
            let _beyond_end = self.grow(vfs, region);
        }
        let end = range.end.min(region.start + region.filled);
        // What may not be stored to can still be read: a path, for one.
        let write = write && region.protection & PROT_WRITE != 0;
        if range.start >= end || !region.sparse || region.protection == PROT_NONE {
            return;
        }
        if region.comes_as_copies() {
            return self.copy_for_kernel(vfs, region, range.start..end);
        }
        if self.keep(vfs, region, &(range.start..end)).is_none() {
            return;
        }
        for gap in self.mapped.missing(range.start..end) {
            let done = match write {
                true => self.fill_for_kernel(vfs, region, gap),
                false => self.show_all(vfs, region, gap),
            };
            if done.is_none() {
                return;
            }
        }
    }

    /// The kernel does a part of a call if not all may stay in memory.
    fn fill_for_kernel(&mut self, vfs: &Vfs, region: &Region, gap: Range<usize>) -> Option<()> {
        let mut parts = gap.clone().step_by(MOST_FILLED * PAGE);
        parts.try_for_each(|start| {
            let part = start..(start + MOST_FILLED * PAGE).min(gap.end);
            self.map_part(vfs, region, part, Holes::Fill, Staying::Always)
        })
    }

    fn show_all(&mut self, vfs: &Vfs, region: &Region, gap: Range<usize>) -> Option<()> {
        let mut at = gap.start;
        while at < gap.end {
            let is_there = self.mapped.contains(at) || self.zeros.contains(at);
            at = match is_there && user::read::<u8>(at).is_ok() {
                true => at + PAGE,
                false => self.show(vfs, region, at, Staying::Always)?,
            };
        }
        Some(())
    }
}

/// What is missing of a region comes by windows from now on, if it would fill memory otherwise: a
/// hole took none when it was mapped.
fn come_for_a_while(vfs: &Vfs, region: &mut Region) {
    let may = !region.windowed && region.protection & PROT_EXEC == 0;
    if may && vfs.wants_windows(region.hold, region.len as u64) {
        region.windowed = true;
        let mut regions = REGIONS.lock();
        let known = regions.iter_mut();
        for known in known.filter(|known| known.start == region.start) {
            known.windowed = true;
        }
    }
}

/// What a region shows of its file.
pub(super) fn range_of(
    vfs: &Vfs,
    region: &Region,
    offset: u64,
    len: u64,
) -> Result<MapRange, VfsError> {
    match region.private {
        _ if region.windowed => vfs.window_range(region.hold, offset, len),
        true => vfs.private_range(region.hold, offset, len),
        false => vfs.map_range(region.hold, (offset, len), Holes::Leave, Staying::Always),
    }
}

/// mprotect or pkey_mprotect, whichever the program called, of a part.
pub fn protect(c: &Call<'_>, part: Range<usize>, protection: i32) -> Result<(), Stop> {
    let number = c.number() as libc::c_long;
    debug_assert!([SYS_mprotect, libc::SYS_pkey_mprotect].contains(&number));
    let args = [part.start, part.len(), protection as usize, c.arg(3)];
    checked(number, &args).map(drop).map_err(Stop::Errno)
}

/// From now on the kernel may be given addresses where it finds nothing: all calls come to the
/// table.
fn begin() {
    if !EXIST.swap(true, Relaxed) {
        path_filter::stop_serving();
        dispatch::look_at_buffers(true);
        table::unmark_all();
    }
}

/// Undoes [`begin`] when no region has holes any more.
pub fn end_if_none(vfs: &Vfs) {
    if !exist() {
        return;
    }
    // Whoever makes a region with holes has the lock until it is registered.
    let mut pages = lock();
    if !REGIONS.lock().iter().any(|region| region.sparse) {
        (pages.zeroed, pages.scattered) = (0, 0);
        EXIST.store(false, Relaxed);
        dispatch::look_at_buffers(false);
        symbols::serve_again(vfs);
    }
}

pub(super) fn region_of(address: usize) -> Option<Region> {
    let regions = REGIONS.lock();
    let holds = |region: &&Region| region.cut(address, address + 1).is_some();
    regions.iter().find(holds).copied()
}

/// Supplies the page of an address that a thread could not access.
pub fn supply(address: usize, access: Access) -> Fault {
    let mut pages = lock();
    let (Some(mut region), Some(vfs)) = (region_of(address), process::vfs()) else {
        return Fault::NotOurs;
    };
    pages.supply(vfs, &mut region, address, access)
}

/// Makes memory accessible for the kernel that lies in mappings with holes, as far as it can be.
/// `write`: for storing.
pub fn touch(vfs: &Vfs, start: usize, len: usize, write: bool) {
    let from = start & !(PAGE - 1);
    for part in parts_in(from, start.saturating_add(len).saturating_sub(from)) {
        let mut pages = lock();
        if let Some(mut region) = region_of(part.start) {
            let range = part.start..part.end().min(region.end());
            pages.touch(vfs, &mut region, range, write);
        }
    }
}
