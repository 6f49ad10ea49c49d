//! Sets of addresses.

use core::ops::Range;
use std::collections::BTreeMap;

/// Addresses, as ranges that neither touch nor overlap.
#[derive(Debug, Default)]
pub struct Ranges(BTreeMap<usize, usize>);

impl Ranges {
    /// No address.
    pub const fn new() -> Self {
        Ranges(BTreeMap::new())
    }

    /// Adds a range, which is joined to what it touches.
    pub fn insert(&mut self, range: Range<usize>) {
        let mut joined = range;
        if let Some((&start, &end)) = self.0.range(..joined.start).next_back()
            && end >= joined.start
        {
            joined = start..end.max(joined.end);
        }
        while let Some((&start, &end)) = self.0.range(joined.start..=joined.end).next() {
            self.0.remove(&start);
            joined.end = joined.end.max(end);
        }
        if !joined.is_empty() {
            self.0.insert(joined.start, joined.end);
        }
    }

    /// Takes a range away.
    pub fn remove(&mut self, range: Range<usize>) {
        for part in self.within(range.clone()) {
            let (start, end) = self.around(part.start);
            self.0.remove(&start);
            if start < range.start {
                self.0.insert(start, range.start);
            }
            if range.end < end {
                self.0.insert(range.end, end);
            }
        }
    }

    /// Whether an address is among them.
    pub fn contains(&self, address: usize) -> bool {
        self.0
            .range(..=address)
            .next_back()
            .is_some_and(|(_, &end)| address < end)
    }

    /// The parts of a range that are in the set.
    pub fn within(&self, range: Range<usize>) -> Vec<Range<usize>> {
        if range.is_empty() {
            return Vec::new();
        }
        let first = self.0.range(..=range.start).next_back();
        let from = first.map_or(range.start, |(&start, _)| start);
        let cut = |(&start, &end): (&usize, &usize)| start.max(range.start)..end.min(range.end);
        self.0
            .range(from..range.end)
            .map(cut)
            .filter(|part| !part.is_empty())
            .collect()
    }

    /// The parts of a range that are not in the set.
    pub fn missing(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let (mut at, mut gaps) = (range.start, Vec::new());
        for part in self.within(range.clone()) {
            gaps.push(at..part.start);
            at = part.end;
        }
        gaps.push(at..range.end);
        gaps.retain(|gap| !gap.is_empty());
        gaps
    }

    /// The whole range that holds an address, which must be in the set.
    fn around(&self, address: usize) -> (usize, usize) {
        let found = self.0.range(..=address).next_back();
        found.map_or((address, address), |(&start, &end)| (start, end))
    }
}

#[cfg(test)]
mod tests {
    use super::Ranges;

    fn all(set: &Ranges) -> Vec<(usize, usize)> {
        set.0.iter().map(|(&start, &end)| (start, end)).collect()
    }

    #[test]
    fn ranges_that_touch_are_one() {
        let mut set = Ranges::new();
        set.insert(10..20);
        set.insert(30..40);
        set.insert(20..30);
        assert_eq!(all(&set), [(10, 40)]);
        set.insert(5..50);
        set.insert(12..14);
        set.insert(60..60);
        assert_eq!(all(&set), [(5, 50)]);
    }

    #[test]
    fn what_is_removed_may_lie_in_the_middle_or_over_several() {
        let mut set = Ranges::new();
        set.insert(0..100);
        set.remove(40..50);
        assert_eq!(all(&set), [(0, 40), (50, 100)]);
        set.remove(30..60);
        assert_eq!(all(&set), [(0, 30), (60, 100)]);
        set.remove(200..300);
        set.remove(0..1000);
        assert_eq!(all(&set), []);
    }

    /// Against a plain list of addresses.
    #[test]
    fn a_set_is_what_a_list_of_its_addresses_is() {
        let mut seed = 7u32;
        let mut random = |below: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((seed >> 8) % below) as usize
        };
        let (mut set, mut list) = (Ranges::new(), [false; 64]);
        for _ in 0..5000 {
            let start = random(64);
            let range = start..start + random(65 - start as u32);
            let is_in = random(2) == 0;
            match is_in {
                true => set.insert(range.clone()),
                false => set.remove(range.clone()),
            }
            list[range].fill(is_in);
            let looked = random(32)..32 + random(33);
            let inside: usize = set
                .within(looked.clone())
                .iter()
                .map(|part| part.len())
                .sum();
            let outside: usize = set
                .missing(looked.clone())
                .iter()
                .map(|part| part.len())
                .sum();
            let counted = list[looked.clone()].iter().filter(|&&is_in| is_in).count();
            assert_eq!((inside, outside), (counted, looked.len() - counted));
            assert!((0..64).all(|address| set.contains(address) == list[address]));
        }
    }
}
