//! Private mappings of which no units can be shown, as those of pools on disks: what the process
//! touches is copied ([D107]).
//!
//! Copies that the process could not store to may go again, the oldest first: the file has them.
//!
//! [D107]: ../../../../docs/decisions/0107-a-large-private-mapping-is-copied-as-it-is-touched.md

use core::ops::Range;

use libc::{MAP_FIXED, MAP_NORESERVE, PROT_NONE, PROT_WRITE};
use nacre_vfs::Vfs;

use super::holes::Pages;
use super::windows::{Window, Windows};
use super::{PAGE, Region, anonymous, private};
use crate::entry::errno::Stop;

/// So much is copied for an access that does not go on where the one before ended.
const SMALL: usize = 16 << 10;
/// So much for one that does.
const LARGE: usize = 256 << 10;
/// So much at once, at most.
const LARGEST: usize = 16 << 20;
/// As many more pieces that stay are twice as large, and so on: a process can have 65530 mappings.
const STEP: usize = 2048;
/// Most pieces that may go.
const MOST: usize = 8192;

impl Pages {
    /// Copies what there is around a page of a region. `None`: the file has ended before, or there
    /// is no memory.
    pub(super) fn copy_around(&mut self, vfs: &Vfs, region: &Region, page: usize) -> Option<()> {
        let size = match page == self.copies.loaded {
            true => LARGE,
            false => SMALL,
        };
        let size = (size << (self.kept.count() / STEP).min(10)).min(LARGEST);
        let gap = self.gap_around(region, page, size)?;
        self.copies.loaded = gap.end;
        self.copy(vfs, region, gap)?;
        self.drop_oldest(vfs, region);
        self.mapped.contains(page).then_some(())
    }

    /// Copies a part of a region that shows nothing, as far as the file goes.
    fn copy(&mut self, vfs: &Vfs, region: &Region, part: Range<usize>) -> Option<()> {
        let (mut fresh, bytes) = private::copied(vfs, region, part.clone()).ok()?;
        let len = bytes.next_multiple_of(PAGE);
        if len == 0 {
            return None;
        }
        fresh.cut(len);
        fresh.put(part.start, region.protection).ok()?;
        let place = part.start..part.start + len;
        self.mapped.insert(place.clone());
        let copy = Window::of_copy(place, region.hold);
        match region.protection & PROT_WRITE {
            0 => self.copies.insert(copy),
            _ => self.kept.insert(copy),
        }
        Some(())
    }

    fn drop_oldest(&mut self, vfs: &Vfs, region: &Region) {
        let share = vfs.window_share(region.hold).unwrap_or(u64::MAX);
        let too_many = |copies: &Windows| copies.bytes as u64 > share || copies.count() > MOST;
        while self.copies.count() > 1 && too_many(&self.copies) {
            match self.copies.oldest() {
                Some(oldest) if self.drop_copies(&(oldest.start..oldest.end())).is_ok() => {}
                _ => return,
            }
        }
    }

    /// What was copied of a range goes; the file shows again.
    pub(super) fn drop_copies(&mut self, range: &Range<usize>) -> Result<(), Stop> {
        self.forget_copies(range);
        for part in self.mapped.within(range.clone()) {
            let flags = MAP_FIXED | MAP_NORESERVE;
            anonymous(part.start, part.len(), PROT_NONE, flags)?;
            self.hide(part);
        }
        Ok(())
    }

    /// What was copied of a range does not go by itself any more.
    pub(super) fn keep_copies(&mut self, range: &Range<usize>) {
        for copy in self.copies.touching(range) {
            self.copies.remove(copy.start);
            self.kept.insert(copy);
        }
    }

    /// Copies that lie in a range, in part at least, are not counted any more, nor do they go by
    /// themselves.
    pub(super) fn forget_copies(&mut self, range: &Range<usize>) {
        for copies in [&mut self.copies, &mut self.kept] {
            for copy in copies.touching(range) {
                copies.remove(copy.start);
            }
        }
    }

    /// What the kernel is given of a region stays: it raises no signals.
    pub(super) fn copy_for_kernel(&mut self, vfs: &Vfs, region: &Region, range: Range<usize>) {
        for gap in self.gaps(range.clone()) {
            if self.copy(vfs, region, gap).is_none() {
                break;
            }
        }
        self.keep_copies(&range);
    }

    /// Copies all that a region lacks, as far as the file goes.
    pub(super) fn copy_all(&mut self, vfs: &Vfs, region: &Region) {
        self.copy_for_kernel(vfs, region, region.start..region.start + region.filled);
    }
}
