//! Private mappings that become memory like any other, or show their file again.

use libc::SYS_madvise;
use nacre_vfs::Vfs;

use super::holes::Pages;
use super::private::{become_memory, fill, holes_of};
use super::{PAGE, Region, outside, take_out};
use crate::entry::call::{Call, Verdict};
use crate::entry::errno::Stop;
use crate::runtime::kernel::checked;

/// Makes memory like any other of the private ones of some parts, with what they show.
pub fn part_with(vfs: &Vfs, pages: &mut Pages, parts: &[Region]) -> Result<(), Stop> {
    for part in parts.iter().filter(|part| part.private) {
        if part.comes_as_copies() {
            pages.copy_all(vfs, part);
        }
        become_memory(part).map_err(Stop::Errno)?;
        let taken = take_out(vfs, part.start, part.len);
        taken.iter().for_each(|part| vfs.mapping_removed(part.hold));
        pages.forget(vfs, part.start..part.end());
    }
    Ok(())
}

/// madvise with `MADV_DONTNEED`: what the process has stored is dropped, and the file shows again.
pub fn reload(c: &Call<'_>, pages: &mut Pages, parts: &[Region]) -> Verdict {
    let (start, len) = (c.arg(0), c.arg(1).next_multiple_of(PAGE));
    if !start.is_multiple_of(PAGE) {
        return Err(Stop::Native);
    }
    let private: Vec<Region> = parts.iter().filter(|part| part.private).copied().collect();
    for (start, len) in outside(&private, start..start.saturating_add(len)) {
        checked(SYS_madvise, &[start, len, c.arg(2)]).map_err(Stop::Errno)?;
    }
    for mut part in private {
        if part.comes_as_copies() {
            pages.drop_copies(&(part.start..part.end()))?;
            continue;
        }
        let range = c
            .vfs()
            .private_range(part.hold, part.offset, part.filled as u64)?;
        for hole in holes_of(&part, &range) {
            let args = [hole.start, hole.len(), libc::MADV_DONTNEED as usize];
            checked(SYS_madvise, &args).map_err(Stop::Errno)?;
        }
        fill(c.vfs(), &mut part, 0, &range).map_err(Stop::Errno)?;
    }
    Ok(0)
}
