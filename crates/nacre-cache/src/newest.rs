//! Which bytes of a journal are the newest of their home places.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint ranges of the disk, each with the place in the journal that has its newest bytes.
#[derive(Debug, Default)]
pub(crate) struct Newest(BTreeMap<u64, (u64, u64)>);

/// A range and where its bytes are.
pub(crate) type Part = (Range<u64>, u64);

impl Newest {
    /// Bytes of a range are at `place`; those that were known before are older.
    pub fn put(&mut self, range: Range<u64>, place: u64) {
        if range.is_empty() {
            return;
        }
        while let Some((old, at)) = self.last_touching(&range) {
            self.0.remove(&old.start);
            if old.end > range.end {
                let behind = at + (range.end - old.start);
                self.0.insert(range.end, (old.end, behind));
            }
            if old.start < range.start {
                self.0.insert(old.start, (range.start, at));
            }
        }
        self.0.insert(range.start, (range.end, place));
    }

    fn last_touching(&self, range: &Range<u64>) -> Option<Part> {
        let (&start, &(end, place)) = self.0.range(..range.end).next_back()?;
        (end > range.start).then_some((start..end, place))
    }

    /// Calls `found` with ranges that do not touch, in order, and their parts. None is longer than
    /// `most`, unless it has one part alone.
    pub fn each_run<E>(
        &self,
        most: u64,
        mut found: impl FnMut(Range<u64>, &[Part]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut parts: Vec<Part> = Vec::new();
        let whole = |parts: &[Part]| match parts {
            [first, .., last] => first.0.start..last.0.end,
            [only] => only.0.clone(),
            [] => 0..0,
        };
        for (&start, &(end, place)) in &self.0 {
            let run = whole(&parts);
            if !parts.is_empty() && (run.end != start || end - run.start > most) {
                found(run, &parts)?;
                parts.clear();
            }
            parts.push((start..end, place));
        }
        match parts.is_empty() {
            true => Ok(()),
            false => found(whole(&parts), &parts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Newest;

    /// What a disk of bytes holds, each the place where it came from.
    fn disk(newest: &Newest, most: u64) -> Vec<u64> {
        let mut bytes = vec![0; 64];
        let mut last = None;
        newest
            .each_run(most, |run, parts| {
                assert!(run.end - run.start <= most || parts.len() == 1);
                assert!(last < Some(run.start));
                last = Some(run.end - 1);
                for (home, place) in parts {
                    for byte in home.clone() {
                        bytes[byte as usize] = place + (byte - home.start);
                    }
                }
                Ok::<_, ()>(())
            })
            .unwrap();
        bytes
    }

    #[test]
    fn the_newest_bytes_of_each_place_are_found() {
        let mut state = 1u64;
        let mut next = move |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..300 {
            let (mut newest, mut model, mut place) = (Newest::default(), vec![0; 64], 100);
            for _ in 0..next(12) {
                let start = next(60);
                let end = (start + next(20)).min(64);
                newest.put(start..end, place);
                for byte in start..end {
                    model[byte as usize] = place + (byte - start);
                }
                place += 1000;
            }
            assert_eq!(disk(&newest, 1 + next(70)), model);
        }
    }
}
