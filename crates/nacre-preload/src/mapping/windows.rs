//! The windows of a process: what it has mapped for a while of mappings that are larger than memory
//! should hold (D59).

use core::ops::Range;
use std::collections::BTreeMap;

use nacre_vfs::MapHold;

/// A part of a mapping that shows one piece of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub start: usize,
    pub len: usize,
    pub hold: MapHold,
    pub device_fd: i32,
    pub device_offset: u64,
    /// The program may store there.
    pub stored: bool,
    pub age: u64,
}

impl Window {
    /// A copy, which shows no device.
    pub fn of_copy(place: Range<usize>, hold: MapHold) -> Window {
        Window {
            start: place.start,
            len: place.len(),
            hold,
            device_fd: -1,
            device_offset: 0,
            stored: false,
            age: 0,
        }
    }

    pub fn end(&self) -> usize {
        self.start + self.len
    }

    /// The range of the device behind a part of it.
    pub fn behind(&self, part: &Range<usize>) -> Range<u64> {
        let start = self.device_offset + (part.start - self.start) as u64;
        start..start + part.len() as u64
    }

    pub fn part(&self, part: Range<usize>) -> Window {
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
    /// Of all of them.
    pub bytes: usize,
    born: u64,
    /// Where the last window for loads ended.
    pub loaded: usize,
}

impl Windows {
    pub const fn new() -> Self {
        Windows {
            by_start: BTreeMap::new(),
            by_age: BTreeMap::new(),
            bytes: 0,
            born: 0,
            loaded: 0,
        }
    }

    pub fn insert(&mut self, window: Window) {
        self.born += 1;
        let (start, age) = (window.start, self.born);
        self.bytes += window.len;
        self.by_age.insert(age, start);
        self.by_start.insert(start, Window { age, ..window });
    }

    pub fn remove(&mut self, start: usize) -> Option<Window> {
        let window = self.by_start.remove(&start)?;
        self.by_age.remove(&window.age);
        self.bytes -= window.len;
        Some(window)
    }

    /// The window that shows an address.
    pub fn at(&self, address: usize) -> Option<Window> {
        let before = self.by_start.range(..=address).next_back();
        before
            .map(|(_, window)| *window)
            .filter(|window| address < window.end())
    }

    /// Windows that a range touches.
    pub fn touching(&self, range: &Range<usize>) -> Vec<Window> {
        let first = self.at(range.start);
        let rest = self
            .by_start
            .range(range.clone())
            .map(|(_, window)| *window);
        let rest = rest.filter(|window| window.start > range.start || first.is_none());
        first.into_iter().chain(rest).collect()
    }

    pub fn count(&self) -> usize {
        self.by_start.len()
    }

    pub fn oldest(&self) -> Option<Window> {
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
