//! How windows of large mappings come and end ([D59]).
//!
//! What is touched of such a mapping is mapped, and later made inaccessible again, the oldest
//! first.
//!
//! [D59]: ../../../../docs/decisions/0059-a-large-mapping-of-a-disk-comes-by-windows.md

use core::ops::Range;

use libc::{MAP_FIXED, MAP_NORESERVE, PROT_NONE, PROT_WRITE};
use nacre_vfs::{Holes, MapHold, MapPiece, MapRange, Staying, Vfs};

use super::holes::{Pages, map_over, region_of};
use super::windows::Window;
use super::{PAGE, Region, anonymous, place_of, robust};

/// So much is mapped at once, at most.
const WINDOW: usize = 64 << 10;
/// So much is mapped for a load that does not go on where the one before ended.
const SMALL: usize = 16 << 10;
/// A process has so many windows at most, as it can have 65530 mappings.
const MOST: usize = 16_384;
/// No mutex is larger.
const MUTEX: usize = 64;

impl Pages {
    /// Maps what there is around a page of a region that comes by windows. `None`: the page is in a
    /// hole, or cannot be had.
    pub(super) fn show_window(
        &mut self,
        vfs: &Vfs,
        region: &Region,
        page: usize,
        write: bool,
    ) -> Option<()> {
        let size = match page == self.windows.loaded {
            true => WINDOW,
            false => SMALL,
        };
        let gap = self.gap_around(region, page, size)?;
        let part = match write {
            true => page..(page + self.run_of_stores(page) * PAGE).min(gap.end),
            false => gap,
        };
        let base = part.start - region.start;
        let wanted = (region.offset + base as u64, part.len() as u64);
        let found = vfs.map_range(region.hold, wanted, Holes::Leave, Staying::Window);
        let MapRange { pieces, .. } = found.ok()?;
        let shows = |piece: &MapPiece| place_of(region, base, piece).contains(&page);
        if !pieces.iter().any(shows) {
            return None;
        }
        self.open(vfs, region, base, &pieces, write)?;
        match write {
            true => self.next = (part.end, part.len() / PAGE),
            false => self.windows.loaded = part.end,
        }
        Some(())
    }

    /// How many pages a store prepares for others: more each time where stores go on one behind the
    /// other, as all of them are noted when the window ends.
    pub(super) fn run_of_stores(&self, page: usize) -> usize {
        match self.next {
            (next, count) if next == page => (2 * count).min(WINDOW / PAGE),
            _ => 1,
        }
    }

    /// The part of a size, a power of two, around a page that shows nothing.
    pub(super) fn gap_around(
        &self,
        region: &Region,
        page: usize,
        size: usize,
    ) -> Option<Range<usize>> {
        let start = (page & !(size - 1)).max(region.start);
        let end = ((page & !(size - 1)) + size).min(region.start + region.filled);
        self.gaps(start..end)
            .into_iter()
            .find(|gap| gap.contains(&page))
    }

    /// Maps pieces of a range that begins at byte `base` of a region for a while.
    pub(super) fn open(
        &mut self,
        vfs: &Vfs,
        region: &Region,
        base: usize,
        pieces: &[MapPiece],
        write: bool,
    ) -> Option<()> {
        for piece in pieces {
            let place = place_of(region, base, piece);
            let window = Window {
                start: place.start,
                len: place.len(),
                hold: region.hold,
                device_fd: piece.device_fd,
                device_offset: piece.device_offset,
                stored: write,
                age: 0,
            };
            let begun = vfs.begin_window(region.hold, window.behind(&place), write);
            let begun = begun.ok()?;
            // What stays for good needs no look at stores.
            let protection = match write || !begun {
                true => region.protection,
                false => region.protection & !PROT_WRITE,
            };
            let offset = piece.device_offset;
            if map_over(place.clone(), protection, piece.device_fd, offset).is_err() {
                if begun {
                    // Nobody has stored there.
                    let _ = vfs.end_window(region.hold, window.behind(&place), false);
                }
                return None;
            }
            self.note(region, base, std::slice::from_ref(piece));
            if begun {
                self.windows.insert(window);
            }
        }
        self.close_some(vfs, region.hold);
        Some(())
    }

    /// Ends the oldest windows where there are too many.
    fn close_some(&mut self, vfs: &Vfs, hold: MapHold) {
        let share = vfs.window_share(hold).unwrap_or(u64::MAX);
        if self.windows.bytes as u64 <= share && self.windows.count() <= MOST {
            return;
        }
        self.keep_mutexes(vfs);
        // More than one at a time, as looking for mutexes costs something.
        let (bytes, count) = (share - share / 8, MOST - MOST / 8);
        while self.windows.bytes as u64 > bytes || self.windows.count() > count {
            match self.windows.oldest() {
                Some(oldest) if self.close(vfs, &oldest, 0..0) => {}
                _ => return,
            }
        }
    }

    /// Ends a window; what lies in `gone` is not mapped any more. `false`: it stays.
    fn close(&mut self, vfs: &Vfs, window: &Window, gone: Range<usize>) -> bool {
        let all = window.start..window.end();
        let inside = gone.start.clamp(all.start, all.end)..gone.end.clamp(all.start, all.end);
        for part in [
            all.start..inside.start,
            inside.end.max(inside.start)..all.end,
        ] {
            let flags = MAP_FIXED | MAP_NORESERVE;
            if !part.is_empty() && anonymous(part.start, part.len(), PROT_NONE, flags).is_err() {
                if !inside.is_empty() {
                    // The rest stays mapped, and in memory until this process ends.
                    self.windows.remove(window.start);
                }
                return false;
            }
        }
        self.windows.remove(window.start);
        self.hide(all.clone());
        // What cannot be noted stays in memory.
        let _ = vfs.end_window(window.hold, window.behind(&all), false);
        true
    }

    /// Ends all windows that a range touches, in which nothing is mapped any more.
    pub(super) fn close_gone(&mut self, vfs: &Vfs, range: &Range<usize>) {
        for window in self.windows.touching(range) {
            self.close(vfs, &window, range.clone());
        }
    }

    /// Ends all windows that a range touches.
    pub(super) fn close_all(&mut self, vfs: &Vfs, range: &Range<usize>) {
        let touched = self.windows.touching(range);
        if !touched.is_empty() {
            self.keep_mutexes(vfs);
        }
        for window in self.windows.touching(range) {
            self.close(vfs, &window, 0..0);
        }
    }

    /// Windows in which threads hold robust mutexes stay mapped for good.
    fn keep_mutexes(&mut self, vfs: &Vfs) {
        for at in robust::nodes() {
            // A mutex lies around its place in the list.
            let start = at.saturating_sub(MUTEX) & !(PAGE - 1);
            let range = start..at.saturating_add(MUTEX).next_multiple_of(PAGE);
            if !self.windows.touching(&range).is_empty()
                && let Some(region) = region_of(at)
            {
                // What cannot be kept is closed.
                let _ = self.keep(vfs, &region, &range);
            }
        }
    }

    /// A page that could only be loaded from, and some behind it, can be stored to.
    pub(super) fn allow_stores(&mut self, vfs: &Vfs, region: &Region, page: usize) -> Option<()> {
        let window = self.windows.at(page)?;
        let end = (page + self.run_of_stores(page) * PAGE).min(window.end());
        let part = page..end.min(region.end());
        let behind = window.behind(&part);
        vfs.store_through_window(window.hold, behind.clone()).ok()?;
        map_over(
            part.clone(),
            region.protection,
            window.device_fd,
            behind.start,
        )
        .ok()?;
        self.next = (part.end, part.len() / PAGE);
        self.windows.remove(window.start);
        let rest = [window.start..part.start, part.end..window.end()];
        for rest in rest.into_iter().filter(|rest| !rest.is_empty()) {
            self.windows.insert(window.part(rest));
        }
        self.windows.insert(Window {
            stored: true,
            ..window.part(part)
        });
        Some(())
    }

    /// What the kernel is given of a region stays mapped for good: it raises no signals.
    pub(super) fn keep(&mut self, vfs: &Vfs, region: &Region, range: &Range<usize>) -> Option<()> {
        for window in self.windows.touching(range) {
            let all = window.start.max(region.start)..window.end().min(region.end());
            if all != (window.start..window.end()) {
                // It belongs to two regions: what is needed of it comes again.
                self.close(vfs, &window, 0..0);
                continue;
            }
            let behind = window.behind(&all);
            vfs.end_window(window.hold, behind.clone(), true).ok()?;
            self.windows.remove(window.start);
            map_over(all, region.protection, window.device_fd, behind.start).ok()?;
        }
        Some(())
    }
}
