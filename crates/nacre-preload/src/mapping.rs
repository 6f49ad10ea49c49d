//! Files of pools in the program's memory.
//!
//! A private mapping is anonymous memory filled when it is made. A shared mapping is a reserved
//! range over which pieces of the pool's devices are mapped; pages beyond the end of the file stay
//! without access until somebody touches them after the file has grown.

use libc::{
    MAP_ANONYMOUS, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED,
    MAP_SHARED_VALIDATE, MAP_TYPE, PROT_EXEC, PROT_NONE, PROT_READ, PROT_WRITE, SYS_mmap,
    SYS_mprotect, SYS_munmap,
};
use nacre_vfs::{MapHold, MapPiece, MapPlan, MapRequest, Reply, Vfs};

use crate::call::{Call, Verdict, sink};
use crate::errno::Stop;
use crate::kernel::checked;
use crate::process;
use crate::spin::SpinLock;
use crate::stack::{self, on_own_stack};
use crate::tls::Inside;

const PAGE: usize = 4096;

/// A shared mapping, or what is left of one.
#[derive(Clone, Copy, Debug)]
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
}

impl Region {
    fn end(&self) -> usize {
        self.start + self.len
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

/// All shared mappings, in no order.
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
pub fn lock_for_fork() {
    stack::lock_for_fork();
    REGIONS.hold_for_fork();
}

/// Undoes [`lock_for_fork`].
pub fn unlock_after_fork() {
    REGIONS.release_after_fork();
    stack::unlock_after_fork();
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
    let (flags, fd) = (c.int(3), c.int(4));
    if flags & MAP_ANONYMOUS != 0 || !c.vfs().ours(fd) {
        if flags & MAP_FIXED == 0 || parts_in(c.arg(0), c.arg(1)).is_empty() {
            return Err(Stop::Native);
        }
        return replace_natively(c);
    }
    let request = request(c)?;
    let Reply::Done(plan) = c.vfs().mmap_plan(fd, request)? else {
        return Err(Stop::Native);
    };
    let made = if request.shared {
        map_shared(c, &plan)
    } else {
        map_private(c, &plan)
    };
    if made.is_err() || !request.shared {
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

fn map_private(c: &mut Call<'_>, plan: &MapPlan) -> Verdict {
    let (len, protection) = (c.arg(1).next_multiple_of(PAGE), c.int(2));
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

fn map_shared(c: &mut Call<'_>, plan: &MapPlan) -> Verdict {
    let len = c.arg(1).next_multiple_of(PAGE);
    let at = anonymous(c.arg(0), len, PROT_NONE, placement(c) | MAP_NORESERVE)?;
    forget(c.vfs(), at, len);
    let mut region = Region {
        start: at,
        len,
        offset: c.arg(5) as u64,
        hold: plan.hold,
        protection: c.int(2),
        may_write: plan.may_write,
        filled: 0,
    };
    if let Err(errno) = fill(&mut region, 0, &plan.pieces) {
        let _ = checked(SYS_munmap, &[at, len]);
        return Err(Stop::Errno(errno));
    }
    REGIONS.lock().push(region);
    Ok(at as isize)
}

/// Maps pieces (relative to `base` in the region) over the reservation.
fn fill(region: &mut Region, base: usize, pieces: &[MapPiece]) -> Result<(), i32> {
    for piece in pieces {
        let at = base + piece.at as usize;
        let len = (piece.len as usize).min(region.len.saturating_sub(at));
        let flags = (MAP_SHARED | MAP_FIXED) as usize;
        let (fd, offset) = (piece.device_fd as usize, piece.device_offset as usize);
        let args = [
            region.start + at,
            len,
            region.protection as usize,
            flags,
            fd,
            offset,
        ];
        checked(SYS_mmap, &args)?;
        region.filled = region.filled.max(at + len);
    }
    Ok(())
}

/// The kernel puts something over parts of shared mappings.
fn replace_natively(c: &mut Call<'_>) -> Verdict {
    let result = c.native();
    if result >= 0 {
        forget(c.vfs(), result as usize, c.arg(1));
    }
    Ok(result)
}

/// Takes a range out of the registry.
fn forget(vfs: &Vfs, start: usize, len: usize) {
    let end = start.saturating_add(len.next_multiple_of(PAGE));
    let mut gone = Vec::new();
    let mut regions = REGIONS.lock();
    let touched = |region: &Region| region.cut(start, end).is_some();
    while let Some(i) = regions.iter().position(touched) {
        let region = regions.swap_remove(i);
        let rest = [region.cut(0, start), region.cut(end, usize::MAX)];
        match rest {
            [None, None] => gone.push(region.hold),
            [Some(_), Some(_)] => vfs.mapping_added(region.hold),
            _ => {}
        }
        regions.extend(rest.into_iter().flatten());
    }
    drop(regions);
    gone.into_iter().for_each(|hold| vfs.mapping_removed(hold));
}

/// munmap
pub fn munmap(c: &mut Call<'_>) -> Verdict {
    let (start, len) = (c.arg(0), c.arg(1));
    if !start.is_multiple_of(PAGE) || parts_in(start, len).is_empty() {
        return Err(Stop::Native);
    }
    // Forgotten first: the addresses may be reused as soon as they are free.
    forget(c.vfs(), start, len);
    Err(Stop::Native)
}

/// mprotect
pub fn mprotect(c: &mut Call<'_>) -> Verdict {
    let (start, len, protection) = (c.arg(0), c.arg(1), c.int(2));
    let parts = parts_in(start, len);
    if parts.is_empty() {
        return Err(Stop::Native);
    }
    if protection & PROT_WRITE != 0 && parts.iter().any(|part| !part.may_write) {
        return Err(Stop::Errno(libc::EACCES));
    }
    let result = c.native();
    if result < 0 {
        return Ok(result);
    }
    for part in &parts {
        let empty = [
            part.start + part.filled,
            part.len - part.filled,
            PROT_NONE as usize,
        ];
        if part.filled < part.len {
            checked(SYS_mprotect, &empty).map_err(Stop::Errno)?;
        }
    }
    let end = start + len.next_multiple_of(PAGE);
    split(c.vfs(), start);
    split(c.vfs(), end);
    let mut regions = REGIONS.lock();
    let inside = regions
        .iter_mut()
        .filter(|region| region.cut(start, end).is_some());
    inside.for_each(|region| region.protection = protection);
    Ok(result)
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

/// msync: what is ours becomes durable, the kernel checks the rest.
pub fn msync(c: &mut Call<'_>) -> Verdict {
    const ALL: i32 = libc::MS_ASYNC | libc::MS_INVALIDATE | libc::MS_SYNC;
    let (start, len, flags) = (c.arg(0), c.arg(1), c.int(2));
    if start.is_multiple_of(PAGE) && flags & !ALL == 0 {
        for part in parts_in(start, len) {
            c.vfs()
                .sync_mapping(part.hold, part.offset, part.filled as u64)?;
        }
    }
    Err(Stop::Native)
}

/// madvise: nothing may punch holes into the pool's devices.
pub fn madvise(c: &mut Call<'_>) -> Verdict {
    let ours = c.int(2) == libc::MADV_REMOVE && !parts_in(c.arg(0), c.arg(1)).is_empty();
    Err(if ours {
        Stop::Errno(libc::EOPNOTSUPP)
    } else {
        Stop::Native
    })
}

/// mremap: a shared mapping shrinks in place and grows by being made anew.
pub fn mremap(c: &mut Call<'_>) -> Verdict {
    let (start, old_len, new_len) = (c.arg(0), c.arg(1), c.arg(2).next_multiple_of(PAGE));
    let flags = c.int(3);
    let old_len = old_len.next_multiple_of(PAGE);
    let parts = parts_in(start, old_len);
    let Some(part) = parts.first().copied() else {
        let onto = flags & libc::MREMAP_FIXED != 0 && !parts_in(c.arg(4), new_len).is_empty();
        return if onto {
            replace_natively_at(c, new_len)
        } else {
            Err(Stop::Native)
        };
    };
    if parts.len() != 1 || part.start != start || part.len != old_len || new_len == 0 {
        return Err(Stop::Errno(libc::EFAULT));
    }
    if flags & libc::MREMAP_FIXED == 0 && new_len <= old_len {
        unmap(c.vfs(), start + new_len, old_len - new_len)?;
        return Ok(start as isize);
    }
    let moved = move_region(c, &part, new_len)?;
    unmap(c.vfs(), start, old_len)?;
    Ok(moved as isize)
}

fn replace_natively_at(c: &mut Call<'_>, len: usize) -> Verdict {
    let result = c.native();
    if result >= 0 {
        forget(c.vfs(), result as usize, len);
    }
    Ok(result)
}

fn unmap(vfs: &Vfs, start: usize, len: usize) -> Result<(), Stop> {
    if len > 0 {
        forget(vfs, start, len);
        checked(SYS_munmap, &[start, len]).map_err(Stop::Errno)?;
    }
    Ok(())
}

/// Makes a mapping of the same file part, `len` bytes long, elsewhere.
fn move_region(c: &mut Call<'_>, part: &Region, len: usize) -> Result<usize, Stop> {
    let flags = c.int(3);
    if flags & libc::MREMAP_MAYMOVE == 0 {
        return Err(Stop::Errno(libc::ENOMEM));
    }
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let (hint, fixed) = if fixed { (c.arg(4), MAP_FIXED) } else { (0, 0) };
    let start = anonymous(hint, len, PROT_NONE, fixed | MAP_NORESERVE)?;
    forget(c.vfs(), start, len);
    let mut region = Region {
        start,
        len,
        filled: 0,
        ..*part
    };
    let pieces = c.vfs().map_pieces(part.hold, part.offset, len as u64)?;
    if let Err(errno) = fill(&mut region, 0, &pieces) {
        let _ = checked(SYS_munmap, &[start, len]);
        return Err(Stop::Errno(errno));
    }
    c.vfs().mapping_added(part.hold);
    REGIONS.lock().push(region);
    Ok(start)
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

/// A thread touched an address without access: a page that the file has grown over meanwhile?
/// `inside`: the thread is in the middle of a call of ours, which may hold locks.
pub fn fault(address: usize, inside: bool) -> Fault {
    if inside {
        return Fault::NotOurs;
    }
    let _inside = Inside::enter();
    let Some(part) = parts_in(address & !(PAGE - 1), PAGE).first().copied() else {
        return Fault::NotOurs;
    };
    if part.filled > 0 {
        return Fault::NotOurs;
    }
    on_own_stack(|| grow(address)).unwrap_or(Fault::NotOurs)
}

/// Maps what the file has got since the region of `address` was filled.
fn grow(address: usize) -> Fault {
    let found = REGIONS
        .lock()
        .iter()
        .find(|region| region.cut(address, address + 1).is_some())
        .copied();
    let (Some(mut region), Some(vfs)) = (found, process::vfs()) else {
        return Fault::NotOurs;
    };
    let base = region.filled;
    let len = (region.len - base) as u64;
    let Ok(pieces) = vfs.map_pieces(region.hold, region.offset + base as u64, len) else {
        return Fault::BeyondEnd;
    };
    if fill(&mut region, base, &pieces).is_err() {
        return Fault::BeyondEnd;
    }
    for known in REGIONS
        .lock()
        .iter_mut()
        .filter(|known| known.start == region.start)
    {
        known.filled = region.filled.min(known.len);
    }
    if address - region.start < region.filled {
        Fault::Mapped
    } else {
        Fault::BeyondEnd
    }
}
