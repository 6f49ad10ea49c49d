//! Private mappings of files in pools (D55): units of the pool's devices, mapped privately. The
//! kernel gives the process pages of its own where it stores.
//!
//! The file keeps its units meanwhile, as for shared mappings. What other objects may own too, and
//! the page that the file ends in, is a copy; holes are zeros. A private mapping that is to move or
//! grow becomes memory like any other first.

use core::ops::Range;

use libc::{
    MAP_FIXED, MAP_PRIVATE, MREMAP_FIXED, MREMAP_MAYMOVE, PROT_EXEC, PROT_READ, PROT_WRITE,
    SYS_mmap, SYS_mprotect, SYS_mremap, SYS_munmap,
};
use nacre_vfs::{MapRange, Vfs};

use super::ranges::Ranges;
use super::{PAGE, Region, anonymous, place_of};
use crate::entry::call::sink;
use crate::entry::errno::Stop;
use crate::entry::user;
use crate::runtime::kernel::checked;

const BOTH: i32 = PROT_READ | PROT_WRITE;

/// Memory that takes the place of something mapped once it has its contents.
pub(super) struct Fresh(Range<usize>);

impl Fresh {
    fn new(len: usize) -> Result<Fresh, i32> {
        match anonymous(0, len, BOTH, 0) {
            Ok(start) => Ok(Fresh(start..start + len)),
            Err(Stop::Errno(errno)) => Err(errno),
            Err(Stop::Native) => Err(libc::ENOMEM),
        }
    }

    /// Gives back what lies behind its first bytes, whole pages.
    pub(super) fn cut(&mut self, len: usize) {
        let (end, rest) = (self.0.start + len, self.0.len() - len);
        if rest > 0 && checked(SYS_munmap, &[end, rest]).is_ok() {
            self.0.end = end;
        }
    }

    /// Other threads see what was there or what is here.
    pub(super) fn put(self, at: usize, protection: i32) -> Result<(), i32> {
        let (start, len) = (self.0.start, self.0.len());
        checked(SYS_mprotect, &[start, len, protection as usize])?;
        let flags = (MREMAP_MAYMOVE | MREMAP_FIXED) as usize;
        checked(SYS_mremap, &[start, len, len, flags, at])?;
        core::mem::forget(self);
        Ok(())
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        let _ = checked(SYS_munmap, &[self.0.start, self.0.len()]);
    }
}

/// Shows a range that begins at byte `base` of a region.
pub fn fill(vfs: &Vfs, region: &mut Region, base: usize, range: &MapRange) -> Result<(), i32> {
    let shown = (range.shown as usize).next_multiple_of(PAGE);
    let shown = shown.min(region.len - base);
    let parts = || {
        range
            .pieces
            .iter()
            .map(|piece| piece.len)
            .chain(range.copies.iter().map(|copy| copy.1))
    };
    if parts().sum::<u64>() < shown as u64 {
        let holes = [region.start + base, shown, region.protection as usize];
        checked(SYS_mprotect, &holes)?;
    }
    for piece in &range.pieces {
        let place = place_of(region, base, piece);
        let flags = (MAP_PRIVATE | MAP_FIXED) as usize;
        let (fd, offset) = (piece.device_fd as usize, piece.device_offset as usize);
        let (start, len, protection) = (place.start, place.len(), region.protection as usize);
        if checked(SYS_mmap, &[start, len, protection, flags, fd, offset]).is_err() {
            // A device that cannot be mapped privately, or a file system without programs.
            copy(vfs, region, place)?;
        }
    }
    for &(at, len) in &range.copies {
        let start = region.start + base + at as usize;
        copy(vfs, region, start..(start + len as usize).min(region.end()))?;
    }
    region.filled = region.filled.max(base + shown);
    Ok(())
}

/// Bytes of the file instead of its units.
fn copy(vfs: &Vfs, region: &Region, place: Range<usize>) -> Result<(), i32> {
    let (fresh, _) = copied(vfs, region, place.clone())?;
    fresh.put(place.start, region.protection)
}

/// Memory with bytes of the file, and how many it has.
pub(super) fn copied(
    vfs: &Vfs,
    region: &Region,
    place: Range<usize>,
) -> Result<(Fresh, usize), i32> {
    let fresh = Fresh::new(place.len())?;
    let offset = region.offset + (place.start - region.start) as u64;
    let mut done = 0;
    while done < place.len() {
        let room = sink(fresh.0.start + done, place.len() - done).map_err(|_| libc::EFAULT)?;
        match vfs.fill_private(region.hold, offset + done as u64, room) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(_) => return Err(libc::EIO),
        }
    }
    Ok((fresh, done))
}

/// Whether what is mapped there cannot be run as it is: it comes as copies, whose code nobody has
/// looked at, or lies on a file system without programs.
pub fn must_be_copied(parts: &[Region]) -> bool {
    let refused = |part: &Region| {
        if part.comes_as_copies() {
            return true;
        }
        let shown = [
            part.start,
            part.filled,
            (part.protection | PROT_EXEC) as usize,
        ];
        let tried = match part.protection & PROT_EXEC {
            0 if part.private && part.filled > 0 => checked(SYS_mprotect, &shown),
            _ => return false,
        };
        tried == Err(libc::EACCES)
    };
    parts.iter().any(refused)
}

/// Memory like any other takes the place of what a part shows.
pub(super) fn become_memory(part: &Region) -> Result<(), i32> {
    let fresh = Fresh::new(part.len)?;
    let shown = |protection: i32| {
        let args = [part.start, part.filled, protection as usize];
        checked(SYS_mprotect, &args).map(drop)
    };
    if part.filled > 0 {
        if part.protection & PROT_READ == 0 {
            shown(part.protection | PROT_READ)?;
        }
        user::copy_within(fresh.0.start, part.start, part.filled).map_err(|_| libc::EFAULT)?;
    }
    fresh.put(part.start, part.protection)
}

/// The addresses of what is neither a piece nor a copy.
pub(super) fn holes_of(part: &Region, range: &MapRange) -> Vec<Range<usize>> {
    let pieces = range.pieces.iter().map(|piece| (piece.at, piece.len));
    let mut taken = Ranges::new();
    for (at, len) in pieces.chain(range.copies.iter().copied()) {
        let start = part.start + at as usize;
        taken.insert(start..start + len as usize);
    }
    taken.missing(part.start..part.start + part.filled)
}
