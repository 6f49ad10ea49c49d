//! Mappings that move, grow, are doubled, or show other pages of their file.

use libc::{MAP_FIXED, MAP_NORESERVE, MREMAP_DONTUNMAP, MREMAP_FIXED, MREMAP_MAYMOVE};

use super::{PAGE, Region, forget, holes, make_way, own, parts_in, reserve, show, unmap};
use crate::entry::call::{Call, Verdict};
use crate::entry::errno::Stop;

const INVALID: Stop = Stop::Errno(libc::EINVAL);

/// mremap: a shared mapping shrinks in place and grows by being rebuilt. With an old length of 0 it
/// is doubled.
pub fn mremap(c: &mut Call<'_>) -> Verdict {
    let (start, new_len) = (c.arg(0), c.arg(2).next_multiple_of(PAGE));
    let old_len = c.arg(1).next_multiple_of(PAGE);
    let parts = parts_in(start, old_len.max(PAGE));
    let Some(part) = parts.first().copied() else {
        let onto = c.int(3) & MREMAP_FIXED != 0 && !parts_in(c.arg(4), new_len).is_empty();
        return if onto {
            replace_natively_at(c, new_len)
        } else {
            Err(Stop::Native)
        };
    };
    if parts.iter().any(|part| part.private) {
        // The kernel moves what the program has stored, too, once it is memory like any other.
        let cut = parts_in(start, old_len.max(PAGE));
        {
            let mut pages = holes::lock();
            own::part_with(c.vfs(), &mut pages, &cut)?;
        }
        return mremap(c);
    }
    check(c, old_len, new_len)?;
    let whole = parts.len() == 1 && part.start == start && part.len >= old_len;
    if !whole || part.len != old_len.max(PAGE) {
        return Err(Stop::Errno(libc::EFAULT));
    }
    let (fixed, stays) = (MREMAP_FIXED | MREMAP_DONTUNMAP, MREMAP_DONTUNMAP);
    if c.int(3) & fixed == 0 && new_len <= old_len {
        unmap(c.vfs(), start + new_len, old_len - new_len)?;
        return Ok(start as isize);
    }
    let moved = move_region(c, &part, new_len)?;
    if c.int(3) & stays == 0 && old_len > 0 {
        unmap(c.vfs(), start, old_len)?;
    }
    Ok(moved as isize)
}

/// What the kernel refuses whatever is mapped there.
fn check(c: &Call<'_>, old_len: usize, new_len: usize) -> Result<(), Stop> {
    let (start, flags, target) = (c.arg(0), c.int(3), c.arg(4));
    let known = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
    let may_move = flags & MREMAP_MAYMOVE != 0;
    let placed = flags & (MREMAP_FIXED | MREMAP_DONTUNMAP) != 0;
    let stays = flags & MREMAP_DONTUNMAP != 0;
    if flags & !known != 0 || placed && !may_move || stays && old_len != new_len {
        return Err(INVALID);
    }
    if !start.is_multiple_of(PAGE) || new_len == 0 {
        return Err(INVALID);
    }
    if flags & MREMAP_FIXED != 0 {
        let apart = target.checked_add(new_len).is_some_and(|end| end <= start)
            || start.saturating_add(old_len) <= target;
        if !target.is_multiple_of(PAGE) || !apart {
            return Err(INVALID);
        }
    }
    Ok(())
}

fn replace_natively_at(c: &mut Call<'_>, len: usize) -> Verdict {
    make_way(c, c.arg(4), len);
    let result = c.native();
    if result >= 0 {
        forget(c.vfs(), result as usize, len);
    }
    Ok(result)
}

/// Makes a mapping of the same file part, `len` bytes long, elsewhere.
fn move_region(c: &Call<'_>, part: &Region, len: usize) -> Result<usize, Stop> {
    let flags = c.int(3);
    if flags & MREMAP_MAYMOVE == 0 {
        return Err(Stop::Errno(libc::ENOMEM));
    }
    let place = match flags & MREMAP_FIXED != 0 {
        true => (c.arg(4), MAP_FIXED),
        false => (0, 0),
    };
    let region = Region {
        start: 0,
        len,
        filled: 0,
        sparse: false,
        ..*part
    };
    make_again(c, region, place)
}

/// Makes one more mapping of a region's file, at an address with flags.
fn make_again(c: &Call<'_>, mut region: Region, place: (usize, i32)) -> Result<usize, Stop> {
    let (vfs, len) = (c.vfs(), region.len);
    let range = holes::range_of(vfs, &region, region.offset, len as u64)?;
    make_way(c, place.0, len);
    region.start = reserve(&region, place.0, place.1 | MAP_NORESERVE)?;
    vfs.mapping_added(region.hold);
    forget(vfs, region.start, len);
    if let Err(errno) = show(vfs, &mut region, &range) {
        vfs.mapping_removed(region.hold);
        return Err(Stop::Errno(errno));
    }
    Ok(region.start)
}

/// remap_file_pages: as the kernel does it since 4.0, by a mapping of its own for the part. Of the
/// pool's device it would show whatever lies there.
pub fn remap_file_pages(c: &mut Call<'_>) -> Verdict {
    let (start, len) = (c.arg(0) & !(PAGE - 1), c.arg(1) & !(PAGE - 1));
    let parts = parts_in(start, len.max(PAGE));
    let Some(part) = parts.first().copied() else {
        return Err(Stop::Native);
    };
    let offset = (c.arg(3) as u64).checked_mul(PAGE as u64);
    let end = offset.and_then(|offset| offset.checked_add(len as u64));
    let whole = parts.len() == 1 && part.start == start && part.len == len && !part.private;
    if !whole || part.is_chunked() || c.arg(2) != 0 || end.is_none() {
        return Err(INVALID);
    }
    let region = Region {
        offset: offset.unwrap_or_default(),
        filled: 0,
        sparse: false,
        ..part
    };
    make_again(c, region, (start, MAP_FIXED))?;
    Ok(0)
}
