//! Files of pools in the program's memory.
//!
//! A short private mapping is anonymous memory filled when it is made; for others see `private`. A
//! shared mapping is a reserved
//! range over which pieces of the pool's devices are mapped; pages beyond the end of the file stay
//! without access until somebody touches them after the file has grown, and so do holes (`holes`).
//!
//! Some devices map pages of 2 MiB only. The kernel then has whole ones of these, aligned in memory
//! as in the file, and splits them nowhere: the program sees a part, and what it does to less than
//! a page is rounded or refused.

pub mod around;
pub mod buffers;
pub mod holes;
mod large;
mod own;
mod private;
mod ranges;
pub mod remap;
mod robust;
mod touched;
mod windows;

use core::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::{
    MAP_ANONYMOUS, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED,
    MAP_SHARED_VALIDATE, MAP_TYPE, PROT_EXEC, PROT_NONE, PROT_READ, PROT_WRITE, SYS_mmap,
    SYS_mprotect, SYS_munmap,
};
use nacre_vfs::{MapHold, MapPiece, MapPlan, MapRange, MapRequest, Reply, Showing, Staying, Vfs};

use self::holes::{Access, Pages};

use crate::calls::rings::ring::Ring;
use crate::entry::call::{Call, Verdict, sink};
use crate::entry::errno::Stop;
use crate::rewrite::patching;
use crate::runtime::PAGE;
use crate::runtime::kernel::checked;
use crate::runtime::log;
use crate::runtime::signals;
use crate::runtime::spin::SpinLock;
use crate::runtime::stack::{self, on_own_stack};
use crate::runtime::tls::Inside;

/// A mapping that shows units, or what is left of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Region {
    start: usize,
    len: usize,
    /// Byte of the file at `start`.
    offset: u64,
    hold: MapHold,
    /// Protection of present and future pages.
    protection: i32,
    /// Whether write access may be added.
    may_write: bool,
    /// Bytes from `start` on that show the file; the rest has no access.
    filled: usize,
    /// There may be holes in what shows the file.
    sparse: bool,
    /// The kernel has mapped whole granules of this size, at addresses that are congruent to the
    /// file's bytes: also what lies around the region in its first and last one.
    granule: usize,
    /// What the process stores concerns itself alone.
    private: bool,
    /// Units are mapped for a while, or bytes are copied when they are touched.
    windowed: bool,
}

impl Region {
    fn end(&self) -> usize {
        self.start + self.len
    }

    fn staying(&self) -> Staying {
        match self.windowed {
            true => Staying::Window,
            false => Staying::Always,
        }
    }

    /// Whether what is touched of it is copied.
    fn comes_as_copies(&self) -> bool {
        self.private && self.windowed
    }

    fn is_chunked(&self) -> bool {
        self.granule > PAGE
    }

    /// The addresses of the granules that bytes `from..to` of the region touch.
    fn granules(&self, from: usize, to: usize) -> Range<usize> {
        let start = (self.start + from) & !(self.granule - 1);
        start..(self.start + to).next_multiple_of(self.granule)
    }

    /// Whether the next region shows what this one would if it were longer.
    fn goes_on_in(&self, next: &Region) -> bool {
        let whole = Region {
            start: next.start,
            len: next.len,
            offset: self.offset + self.len as u64,
            filled: next.filled,
            ..*self
        };
        let filled = self.filled == self.len || next.filled == 0;
        self.end() == next.start && filled && whole == *next
    }

    /// Both together.
    fn with(&self, next: &Region) -> Region {
        Region {
            len: self.len + next.len,
            filled: self.filled + next.filled,
            ..*self
        }
    }

    /// The part of the region in `start..end`, if any.
    fn cut(&self, start: usize, end: usize) -> Option<Region> {
        let (first, last) = (start.max(self.start), end.min(self.end()));
        (first < last).then(|| Region {
            start: first,
            len: last - first,
            offset: self.offset + (first - self.start) as u64,
            filled: self
                .filled
                .saturating_sub(first - self.start)
                .min(last - first),
            ..*self
        })
    }
}

/// All mappings that show units, in no order.
static REGIONS: SpinLock<Vec<Region>> = SpinLock::new(Vec::new());

fn parts_in(start: usize, len: usize) -> Vec<Region> {
    let end = start.saturating_add(len.next_multiple_of(PAGE));
    REGIONS
        .lock()
        .iter()
        .filter_map(|region| region.cut(start, end))
        .collect()
}

/// The registry is locked from here to [`unlock_after_fork`], in the parent and in the child.
pub fn lock_for_fork(vfs: &Vfs) {
    holes::lock_for_fork(vfs);
    stack::lock_for_fork();
    REGIONS.hold_for_fork();
}

/// Undoes [`lock_for_fork`].
pub fn unlock_after_fork() {
    REGIONS.release_after_fork();
    stack::unlock_after_fork();
    holes::unlock_after_fork();
}

/// A child has inherited every mapping.
pub fn after_fork_child(vfs: &Vfs) {
    REGIONS
        .lock()
        .iter()
        .for_each(|region| vfs.mapping_inherited(region.hold));
}

/// mmap
pub fn mmap(c: &mut Call<'_>) -> Verdict {
    if !patching::loads_code(c) {
        return map(c);
    }
    let made = match map(c) {
        Err(Stop::Native) => c.native(),
        made => made?,
    };
    if made >= 0 {
        // The mapping stands, whatever comes of this.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            patching::patch_mapped(c, made as usize);
        }));
    }
    Ok(made)
}

fn map(c: &mut Call<'_>) -> Verdict {
    let (flags, fd) = (c.int(3), c.int(4));
    if flags & MAP_ANONYMOUS != 0 || !c.vfs().ours(fd) {
        if Ring::may_be_mapped(c) {
            let made = c.native();
            if made >= 0 {
                Ring::mapped(c, made as usize);
            }
            return Ok(made);
        }
        if flags & MAP_FIXED == 0 || parts_in(c.arg(0), c.arg(1)).is_empty() {
            return Err(Stop::Native);
        }
        return replace_natively(c);
    }
    let request = request(c)?;
    let Reply::Done(plan) = c.vfs().mmap_plan(fd, request)? else {
        return Err(Stop::Native);
    };
    let made = match plan.showing {
        Showing::Copy => map_copy(c, &plan),
        Showing::Shared | Showing::Private | Showing::Touched => map_units(c, &plan),
    };
    if made.is_err() || plan.showing == Showing::Copy {
        c.vfs().mapping_removed(plan.hold);
    }
    made
}

fn request(c: &Call<'_>) -> Result<MapRequest, Stop> {
    let shared = match c.int(3) & MAP_TYPE {
        MAP_PRIVATE => false,
        MAP_SHARED | MAP_SHARED_VALIDATE => true,
        _ => return Err(Stop::Errno(libc::EINVAL)),
    };
    let (write, exec) = (c.int(2) & PROT_WRITE != 0, c.int(2) & PROT_EXEC != 0);
    let len = (c.arg(1) as u64).checked_next_multiple_of(PAGE as u64);
    let len = len.ok_or(Stop::Errno(libc::ENOMEM))?;
    Ok(MapRequest {
        write,
        exec,
        shared,
        offset: c.arg(5) as u64,
        len,
    })
}

/// Placement flags of a call that a reservation takes over.
fn placement(c: &Call<'_>) -> i32 {
    c.int(3) & (MAP_FIXED | MAP_FIXED_NOREPLACE | libc::MAP_32BIT | MAP_NORESERVE)
}

fn anonymous(at: usize, len: usize, protection: i32, flags: i32) -> Result<usize, Stop> {
    let flags = (flags | MAP_PRIVATE | MAP_ANONYMOUS) as usize;
    let args = [at, len, protection as usize, flags, usize::MAX, 0];
    checked(SYS_mmap, &args).map_err(Stop::Errno)
}

fn map_copy(c: &mut Call<'_>, plan: &MapPlan) -> Verdict {
    let (len, protection) = (c.arg(1).next_multiple_of(PAGE), c.int(2));
    make_way(c, c.arg(0), len);
    let at = anonymous(c.arg(0), len, PROT_READ | PROT_WRITE, placement(c))?;
    forget(c.vfs(), at, len);
    let bytes = (plan.file_bytes as usize).min(len);
    let mut done = 0;
    while done < bytes {
        let offset = c.arg(5) as u64 + done as u64;
        match c
            .vfs()
            .fill_private(plan.hold, offset, sink(at + done, bytes - done)?)
        {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) => {
                let _ = checked(SYS_munmap, &[at, len]);
                return Err(error.into());
            }
        }
    }
    if protection != PROT_READ | PROT_WRITE {
        checked(SYS_mprotect, &[at, len, protection as usize]).map_err(Stop::Errno)?;
    }
    Ok(at as isize)
}

fn map_units(c: &mut Call<'_>, plan: &MapPlan) -> Verdict {
    let len = c.arg(1).next_multiple_of(PAGE);
    let mut region = Region {
        start: 0,
        len,
        offset: c.arg(5) as u64,
        hold: plan.hold,
        protection: c.int(2),
        may_write: plan.may_write,
        filled: 0,
        sparse: false,
        granule: plan.granule as usize,
        private: plan.showing != Showing::Shared,
        windowed: plan.windows,
    };
    make_way(c, c.arg(0), len);
    region.start = reserve(&region, c.arg(0), placement(c) | MAP_NORESERVE)?;
    forget(c.vfs(), region.start, len);
    match show(c.vfs(), &mut region, &plan.range) {
        Ok(()) => Ok(region.start as isize),
        Err(errno) => Err(Stop::Errno(errno)),
    }
}

/// Maps what a new region shows, and registers it. One that cannot be shown is unmapped.
fn show(vfs: &Vfs, region: &mut Region, range: &MapRange) -> Result<(), i32> {
    let mut pages = holes::lock();
    let filled = pages.fill_any(vfs, region, 0, range);
    match filled {
        Ok(()) => REGIONS.lock().push(*region),
        Err(_) => {
            discard(region);
            pages.forget(vfs, region.start..region.end());
        }
    }
    filled
}

/// Addresses without access for a region.
fn reserve(region: &Region, at: usize, flags: i32) -> Result<usize, Stop> {
    let (len, granule) = (region.len, region.granule);
    if !region.is_chunked() {
        return anonymous(at, len, PROT_NONE, flags);
    }
    let lead = (region.offset % granule as u64) as usize;
    if flags & (MAP_FIXED | MAP_FIXED_NOREPLACE) != 0 {
        if lead != 0 || !at.is_multiple_of(granule) || !len.is_multiple_of(granule) {
            return Err(refused("mmap with MAP_FIXED", granule));
        }
        return anonymous(at, len, PROT_NONE, flags);
    }
    let whole = (lead + len).next_multiple_of(granule);
    let found = anonymous(0, whole + granule, PROT_NONE, flags)?;
    let start = found.next_multiple_of(granule);
    for (from, to) in [(found, start), (start + whole, found + whole + granule)] {
        if from < to {
            checked(SYS_munmap, &[from, to - from]).map_err(Stop::Errno)?;
        }
    }
    Ok(start + lead)
}

/// The device maps large pages only, and the program wants something else.
fn refused(what: &str, granule: usize) -> Stop {
    log::warn(&format!(
        "{what}: a device of this pool maps pages of {granule} bytes only; addresses, offsets and lengths must be multiples"
    ));
    Stop::Errno(libc::EINVAL)
}

/// Unmaps a region that is not registered.
fn discard(region: &Region) {
    let all = region.granules(0, region.len);
    let _ = checked(SYS_munmap, &[all.start, all.len()]);
}

/// Maps pieces, which count from the granule that byte `base` of the region lies in, over the
/// reservation.
fn fill_chunks(region: &mut Region, base: usize, pieces: &[MapPiece]) -> Result<(), i32> {
    let place = region.granules(base, region.len);
    for piece in pieces {
        let at = place.start + piece.at as usize;
        let len = (piece.len as usize).min(place.end.saturating_sub(at));
        let flags = (MAP_SHARED | MAP_FIXED) as usize;
        let (fd, offset) = (piece.device_fd as usize, piece.device_offset as usize);
        let args = [at, len, region.protection as usize, flags, fd, offset];
        checked(SYS_mmap, &args)?;
        let filled = (at + len).min(region.end()) - region.start;
        region.filled = region.filled.max(filled);
    }
    Ok(())
}

/// Where a piece goes of a range that begins at byte `base` of a region.
fn place_of(region: &Region, base: usize, piece: &MapPiece) -> Range<usize> {
    let start = region.start + base + piece.at as usize;
    start..(start + piece.len as usize).min(region.end())
}

/// The kernel puts something over parts of shared mappings.
fn replace_natively(c: &mut Call<'_>) -> Verdict {
    let (start, len) = (c.arg(0), c.arg(1));
    if parts_in(start, len).iter().any(Region::is_chunked) {
        unmap(c.vfs(), start, len.next_multiple_of(PAGE))?;
    }
    make_way(c, start, len);
    let result = c.native();
    if result >= 0 {
        forget(c.vfs(), result as usize, c.arg(1));
    }
    Ok(result)
}

/// Something is about to be mapped over a range: no window there ends after that.
fn make_way(c: &Call<'_>, start: usize, len: usize) {
    if holes::exist() {
        let end = start.saturating_add(len.next_multiple_of(PAGE));
        let mut pages = holes::lock();
        pages.close_all(c.vfs(), &(start..end));
        pages.keep_copies(&(start..end));
    }
}

/// Takes a range out of the registry, over which something else was mapped.
fn forget(vfs: &Vfs, start: usize, len: usize) {
    let taken = take_out(vfs, start, len);
    if !taken.is_empty() {
        let end = start.saturating_add(len.next_multiple_of(PAGE));
        holes::lock().forget(vfs, start..end);
        give_up(vfs, &taken);
    }
}

/// Takes a range out of the registry; its parts, which keep their holds until [`give_up`] or
/// [`put_back`].
fn take_out(vfs: &Vfs, start: usize, len: usize) -> Vec<Region> {
    let end = start.saturating_add(len.next_multiple_of(PAGE));
    let mut taken = Vec::new();
    let mut regions = REGIONS.lock();
    let touched = |region: &Region| region.cut(start, end).is_some();
    while let Some(i) = regions.iter().position(touched) {
        let region = regions.swap_remove(i);
        let rest = [region.cut(0, start), region.cut(end, usize::MAX)];
        for part in rest.into_iter().flatten() {
            vfs.mapping_added(region.hold);
            regions.push(part);
        }
        taken.extend(region.cut(start, end));
    }
    taken
}

/// The parts are mapped no more.
fn give_up(vfs: &Vfs, parts: &[Region]) {
    parts.iter().for_each(|part| vfs.mapping_removed(part.hold));
    holes::end_if_none(vfs);
}

/// The kernel did not unmap the parts: their units are still in use.
fn put_back(parts: Vec<Region>) {
    REGIONS.lock().extend(parts);
}

/// munmap
pub fn munmap(c: &mut Call<'_>) -> Verdict {
    let (start, len) = (c.arg(0), c.arg(1));
    if !start.is_multiple_of(PAGE) {
        return Err(Stop::Native);
    }
    signals::memory_changes(start, len, false);
    if parts_in(start, len).is_empty() {
        return Err(Stop::Native);
    }
    unmap(c.vfs(), start, len.next_multiple_of(PAGE))?;
    Ok(0)
}

/// mprotect and pkey_mprotect
pub fn mprotect(c: &mut Call<'_>) -> Verdict {
    let (start, len, protection) = (c.arg(0), c.arg(1), c.int(2));
    signals::memory_changes(start, len, protection & PROT_WRITE != 0);
    let parts = parts_in(start, len);
    if parts.is_empty() {
        return Err(Stop::Native);
    }
    if protection & PROT_WRITE != 0 && parts.iter().any(|part| !part.may_write) {
        return Err(Stop::Errno(libc::EACCES));
    }
    let end = start.saturating_add(len.next_multiple_of(PAGE));
    let mut pages = holes::lock();
    if protection & PROT_WRITE != 0 {
        for part in parts.iter().filter(|part| !part.private) {
            c.vfs().mapping_stores(part.hold)?;
        }
    }
    if protection & PROT_EXEC != 0 && private::must_be_copied(&parts) {
        own::part_with(c.vfs(), &mut pages, &parts)?;
        drop(pages);
        return mprotect(c);
    }
    if parts.iter().any(Region::is_chunked) {
        protect_chunks(&parts, start..end, protection)?;
    } else if parts.iter().any(|part| part.sparse) {
        protect_sparse(c, &mut pages, &parts, start..end)?;
    } else {
        let result = c.native();
        if result < 0 {
            return Ok(result);
        }
        keep_empty_ends(&parts)?;
    }
    note_protection(c.vfs(), start..end, protection);
    Ok(0)
}

/// Behind the end of its file a mapping stays without access.
fn keep_empty_ends(parts: &[Region]) -> Result<(), Stop> {
    for part in parts.iter().filter(|part| part.filled < part.len) {
        let (at, len) = (part.start + part.filled, part.len - part.filled);
        let empty = [at, len, PROT_NONE as usize];
        checked(SYS_mprotect, &empty).map_err(Stop::Errno)?;
    }
    Ok(())
}

fn note_protection(vfs: &Vfs, range: Range<usize>, protection: i32) {
    split(vfs, range.start);
    split(vfs, range.end);
    let mut regions = REGIONS.lock();
    let inside = regions
        .iter_mut()
        .filter(|region| region.cut(range.start, range.end).is_some());
    inside.for_each(|region| region.protection = protection);
    drop(regions);
    join(vfs, range);
}

/// Changes what is there: the rest gets its protection when it comes.
fn protect_sparse(
    c: &Call<'_>,
    pages: &mut Pages,
    parts: &[Region],
    range: Range<usize>,
) -> Result<(), Stop> {
    let protection = c.int(2);
    for (start, len) in outside(parts, range) {
        holes::protect(c, start..start + len, protection)?;
    }
    for part in parts {
        match part.sparse {
            true => pages.protect(c, part, protection)?,
            false => holes::protect(c, part.start..part.start + part.filled, protection)?,
        }
    }
    Ok(())
}

/// Access is granted to whole granules, and taken away from those that show nothing outside of
/// `range`.
fn protect_chunks(parts: &[Region], range: Range<usize>, protection: i32) -> Result<(), Stop> {
    for part in parts {
        let whole = part.granules(0, part.len);
        let takes_away = part.protection & !protection != 0;
        if takes_away && (is_used(whole.start, range.start) || is_used(range.end, whole.end)) {
            return Err(refused("mprotect of a part", part.granule));
        }
    }
    for part in parts.iter().filter(|part| part.filled > 0) {
        let shown = part.granules(0, part.filled);
        let args = [shown.start, shown.len(), protection as usize];
        checked(SYS_mprotect, &args).map_err(Stop::Errno)?;
    }
    for (start, len) in outside(parts, range) {
        checked(SYS_mprotect, &[start, len, protection as usize]).map_err(Stop::Errno)?;
    }
    Ok(())
}

/// Whether any region shows something in an address range.
fn is_used(start: usize, end: usize) -> bool {
    let mut regions = REGIONS.lock();
    regions
        .iter_mut()
        .any(|region| region.cut(start, end).is_some())
}

/// What of an address range lies in no granule of `parts`: pieces of start and length.
fn outside(parts: &[Region], range: Range<usize>) -> Vec<(usize, usize)> {
    let mut taken: Vec<_> = parts
        .iter()
        .map(|part| part.granules(0, part.len))
        .collect();
    taken.sort_unstable_by_key(|range| range.start);
    let mut at = range.start;
    let mut pieces = Vec::new();
    for inside in taken {
        if at < inside.start {
            pieces.push((at, inside.start - at));
        }
        at = at.max(inside.end);
    }
    if at < range.end {
        pieces.push((at, range.end - at));
    }
    pieces
}

/// Makes two regions of the one that goes on over an address.
fn split(vfs: &Vfs, address: usize) {
    let mut regions = REGIONS.lock();
    let over = |region: &Region| region.start < address && address < region.end();
    let Some(i) = regions.iter().position(over) else {
        return;
    };
    let whole = regions.swap_remove(i);
    vfs.mapping_added(whole.hold);
    regions.extend(
        [whole.cut(0, address), whole.cut(address, usize::MAX)]
            .into_iter()
            .flatten(),
    );
}

/// Makes one region of those in and beside a range that go on in each other, as the kernel does: a
/// program that protects page after page has no more of them in the end, and may move all at once.
fn join(vfs: &Vfs, range: Range<usize>) {
    let mut regions = REGIONS.lock();
    let near = |region: &mut Region| region.start <= range.end && range.start <= region.end();
    let mut parts: Vec<Region> = regions.extract_if(.., near).collect();
    parts.sort_unstable_by_key(|part| part.start);
    let mut joined = Vec::new();
    for part in parts {
        match regions.pop_if(|last| last.goes_on_in(&part)) {
            Some(last) => {
                joined.push(part.hold);
                regions.push(last.with(&part));
            }
            None => regions.push(part),
        }
    }
    drop(regions);
    joined
        .into_iter()
        .for_each(|hold| vfs.mapping_removed(hold));
}

/// msync: what is ours becomes durable, the kernel checks the rest. It knows no msync of devices.
pub fn msync(c: &mut Call<'_>) -> Verdict {
    const ALL: i32 = libc::MS_ASYNC | libc::MS_INVALIDATE | libc::MS_SYNC;
    let (start, len, flags) = (c.arg(0), c.arg(1), c.int(2));
    if !start.is_multiple_of(PAGE) || flags & !ALL != 0 {
        return Err(Stop::Native);
    }
    let parts = parts_in(start, len);
    for part in parts.iter().filter(|part| !part.private) {
        c.vfs()
            .sync_mapping(part.hold, part.offset, part.filled as u64)?;
    }
    natively_outside(c, libc::SYS_msync, &parts)
}

/// Makes a call of address, length and a third argument for what lies in no large page of ours.
fn natively_outside(c: &Call<'_>, number: libc::c_long, parts: &[Region]) -> Verdict {
    if !parts.iter().any(Region::is_chunked) {
        return Err(Stop::Native);
    }
    let (start, len) = (c.arg(0), c.arg(1).next_multiple_of(PAGE));
    for (start, len) in outside(parts, start..start.saturating_add(len)) {
        checked(number, &[start, len, c.arg(2)]).map_err(Stop::Errno)?;
    }
    Ok(0)
}

/// madvise: nothing may punch holes into the pool's devices, or poison them. Large pages take no
/// advice.
pub fn madvise(c: &mut Call<'_>) -> Verdict {
    let parts = parts_in(c.arg(0), c.arg(1));
    match c.int(2) {
        libc::MADV_REMOVE if parts.iter().all(|part| part.private) => Err(Stop::Native),
        libc::MADV_DONTNEED if parts.iter().any(|part| part.private) => {
            own::reload(c, &mut holes::lock(), &parts)
        }
        advice if around::is_refused(advice) && !parts.is_empty() => {
            Err(Stop::Errno(libc::EOPNOTSUPP))
        }
        advice @ (libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE) => {
            let write = advice == libc::MADV_POPULATE_WRITE;
            holes::touch(c.vfs(), c.arg(0), c.arg(1), write);
            natively_outside(c, libc::SYS_madvise, &parts)
        }
        libc::MADV_DONTFORK | libc::MADV_WIPEONFORK if parts.iter().any(Region::is_chunked) => {
            Err(Stop::Errno(libc::EINVAL))
        }
        _ => natively_outside(c, libc::SYS_madvise, &parts),
    }
}

/// Unmaps a range. Its parts are forgotten first, as the addresses may be used again as soon as
/// they are free; their units are given back once the kernel has done it.
fn unmap(vfs: &Vfs, start: usize, len: usize) -> Result<(), Stop> {
    if len == 0 {
        return Ok(());
    }
    let mut pages = holes::lock();
    let taken = take_out(vfs, start, len);
    if let Err(errno) = unmap_natively(&taken, start, len) {
        put_back(taken);
        return Err(Stop::Errno(errno));
    }
    pages.forget(vfs, start..start.saturating_add(len));
    drop(pages);
    give_up(vfs, &taken);
    Ok(())
}

fn unmap_natively(taken: &[Region], start: usize, len: usize) -> Result<(), i32> {
    let chunked = taken.iter().filter(|part| part.is_chunked());
    let parts: Vec<Region> = chunked.copied().collect();
    for (start, len) in outside(&parts, start..start.saturating_add(len)) {
        checked(SYS_munmap, &[start, len])?;
    }
    for part in &parts {
        let all = part.granules(0, part.len);
        let unused = all.step_by(part.granule);
        for at in unused.filter(|&at| !is_used(at, at + part.granule)) {
            checked(SYS_munmap, &[at, part.granule])?;
        }
    }
    Ok(())
}

/// What a fault at an address of the program is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The page is there now.
    Mapped,
    /// A page of a shared mapping behind the end of its file.
    BeyondEnd,
    /// Nothing of ours.
    NotOurs,
}

/// A thread could not access an address as it wanted: a hole, or a page that the file has grown
/// over meanwhile? `inside`: the thread is in the middle of a call of ours, which may hold locks.
pub fn fault(address: usize, access: Access, inside: bool) -> Fault {
    if inside {
        return Fault::NotOurs;
    }
    let _inside = Inside::enter();
    let Some(part) = parts_in(address & !(PAGE - 1), PAGE).first().copied() else {
        return Fault::NotOurs;
    };
    if part.filled > 0 && !part.sparse {
        return Fault::NotOurs;
    }
    on_own_stack(|| holes::supply(address, access)).unwrap_or(Fault::NotOurs)
}
