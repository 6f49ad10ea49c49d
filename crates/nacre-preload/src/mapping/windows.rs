//! The windows of mappings that are larger than memory should hold of their file ([D59]).
//!
//! What is touched of such a mapping is mapped, and later made inaccessible again, the oldest first.
//!
//! [D59]: ../../../../docs/decisions/0059-a-large-mapping-of-a-disk-comes-by-windows.md

use core::ops::Range;
use std::collections::BTreeMap;

use libc::{MAP_FIXED, MAP_NORESERVE, PROT_NONE, PROT_WRITE};
use nacre_vfs::{Holes, MapHold, MapPiece, MapRange, Staying, Vfs};

use super::holes::{Pages, map_over};
use super::{PAGE, Region, anonymous, place_of};

/// So much is mapped at once, at most.
const WINDOW: usize = 64 << 10;
/// A process has so many windows at most, as it can have 65530 mappings.
const MOST: usize = 16_384;

/// A part of a mapping that shows one piece of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    start: usize,
    len: usize,
    hold: MapHold,
    device_fd: i32,
    device_offset: u64,
    /// The program may store there.
    stored: bool,
    age: u64,
}

impl Window {
    fn end(&self) -> usize {
        self.start + self.len
    }

    /// The range of the device behind a part of it.
    fn behind(&self, part: &Range<usize>) -> Range<u64> {
        let start = self.device_offset + (part.start - self.start) as u64;
        start..start + part.len() as u64
    }

    fn part(&self, part: Range<usize>) -> Window {
        Window {
            start: part.start,
            len: part.len(),
            device_offset: self.behind(&part).start,
            ..*self
        }
    }
}

/// Windows, by address and by age.
#[derive(Debug, Default)]
pub(super) struct Windows {
    by_start: BTreeMap<usize, Window>,
    by_age: BTreeMap<u64, usize>,
    bytes: usize,
    born: u64,
}

impl Windows {
    pub const fn new() -> Self {
        Windows {
            by_start: BTreeMap::new(),
            by_age: BTreeMap::new(),
            bytes: 0,
            born: 0,
        }
    }

    fn insert(&mut self, window: Window) {
        self.born += 1;
        let (start, age) = (window.start, self.born);
        self.bytes += window.len;
        self.by_age.insert(age, start);
        self.by_start.insert(start, Window { age, ..window });
    }

    fn remove(&mut self, start: usize) -> Option<Window> {
        let window = self.by_start.remove(&start)?;
        self.by_age.remove(&window.age);
        self.bytes -= window.len;
        Some(window)
    }

    /// The window that shows an address.
    fn at(&self, address: usize) -> Option<Window> {
        let before = self.by_start.range(..=address).next_back();
        before
            .map(|(_, window)| *window)
            .filter(|window| address < window.end())
    }

    /// Windows that a range touches.
    fn touching(&self, range: &Range<usize>) -> Vec<Window> {
        let first = self.at(range.start);
        let rest = self.by_start.range(range.clone()).map(|(_, window)| *window);
        let rest = rest.filter(|window| window.start > range.start || first.is_none());
        first.into_iter().chain(rest).collect()
    }

    fn oldest(&self) -> Option<Window> {
        let (_, start) = self.by_age.first_key_value()?;
        self.by_start.get(start).copied()
    }

    /// How often windows have come.
    pub fn born(&self) -> u64 {
        self.born
    }

    /// Whether the program may load, but not store, at an address.
    pub fn is_for_loads(&self, address: usize) -> bool {
        self.at(address).is_some_and(|window| !window.stored)
    }
}

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
        let gap = self.gap_around(region, page)?;
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
        if write {
            self.next = (part.end, part.len() / PAGE);
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

    /// The part of a window's size around a page that shows nothing.
    fn gap_around(&self, region: &Region, page: usize) -> Option<Range<usize>> {
        let start = (page & !(WINDOW - 1)).max(region.start);
        let end = ((page & !(WINDOW - 1)) + WINDOW).min(region.start + region.filled);
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
        while self.windows.bytes as u64 > share || self.windows.by_start.len() > MOST {
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
        for part in [all.start..inside.start, inside.end.max(inside.start)..all.end] {
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
        for window in self.windows.touching(range) {
            self.close(vfs, &window, 0..0);
        }
    }

    /// A page that could only be loaded from, and some behind it, can be stored to.
    pub(super) fn allow_stores(&mut self, vfs: &Vfs, region: &Region, page: usize) -> Option<()> {
        let window = self.windows.at(page)?;
        let end = (page + self.run_of_stores(page) * PAGE).min(window.end());
        let part = page..end.min(region.end());
        let behind = window.behind(&part);
        vfs.store_through_window(window.hold, behind.clone()).ok()?;
        map_over(part.clone(), region.protection, window.device_fd, behind.start).ok()?;
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
                // It belongs to two regions: what is needed of it comes anew.
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
