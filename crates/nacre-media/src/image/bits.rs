//! Bits in shared memory: one for each unit that is there, and sets of several levels, in which
//! what is set is found without a look at what is not.

use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

const BITS: u64 = u64::BITS as u64;

/// Words of a mapping that outlives this view.
pub(crate) struct Words {
    start: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: a view of atomics.
unsafe impl Send for Words {}
// SAFETY: atomics, which threads may share.
unsafe impl Sync for Words {}

impl Words {
    /// # Safety
    /// `count` aligned words are mapped at `start` for as long as the view lives, and everybody
    /// accesses them atomically.
    pub unsafe fn new(start: NonNull<AtomicU64>, count: usize) -> Self {
        Self { start, count }
    }

    #[inline]
    fn all(&self) -> &[AtomicU64] {
        // SAFETY: promised to `new`.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }

    /// Words that hold so many bits.
    pub const fn needed(bits: u64) -> u64 {
        bits.div_ceil(BITS)
    }

    /// Whether all bits of a range are set.
    #[inline]
    pub fn has_all(&self, range: Range<u64>) -> bool {
        if let Some((word, mask)) = one_mask(&range) {
            return self.all()[word].load(Acquire) & mask == mask;
        }
        let mut masks = masks(range);
        masks.all(|(word, mask)| self.all()[word].load(Acquire) & mask == mask)
    }

    #[inline]
    pub fn has(&self, bit: u64) -> bool {
        let word = self.all()[(bit / BITS) as usize].load(Acquire);
        word >> (bit % BITS) & 1 != 0
    }

    /// Whether any bit of a range is set.
    pub fn has_any(&self, range: Range<u64>) -> bool {
        let mut masks = masks(range);
        masks.any(|(word, mask)| self.all()[word].load(SeqCst) & mask != 0)
    }

    /// Clears all bits of a range; answers how many were set.
    pub fn clear_all(&self, range: Range<u64>) -> u64 {
        let clear = |(word, mask): (usize, u64)| self.clear(word, mask);
        masks(range)
            .map(|masks| u64::from(clear(masks).count_ones()))
            .sum()
    }

    /// Clears the bits of a mask in a word; answers which were set.
    pub fn clear(&self, word: usize, mask: u64) -> u64 {
        match self.all()[word].load(Relaxed) & mask {
            0 => 0,
            _ => self.all()[word].fetch_and(!mask, SeqCst) & mask,
        }
    }

    /// Sets the bits of a mask in a word.
    pub fn set(&self, word: usize, mask: u64) {
        self.all()[word].fetch_or(mask, SeqCst);
    }

    /// A whole word.
    pub fn word(&self, word: usize) -> u64 {
        self.all()[word].load(SeqCst)
    }

    /// How many words there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// How many bits are set.
    pub fn ones(&self) -> u64 {
        let ones = |word: &AtomicU64| u64::from(word.load(Relaxed).count_ones());
        self.all().iter().map(ones).sum()
    }

    /// Sets all bits of a range; answers how many were clear.
    #[inline]
    pub fn set_all(&self, range: Range<u64>) -> u64 {
        if let Some((word, mask)) = one_mask(&range) {
            return set(&self.all()[word], mask);
        }
        let set = |(word, mask)| set(&self.all()[word], mask);
        masks(range).map(set).sum()
    }
}

#[inline]
fn set(word: &AtomicU64, mask: u64) -> u64 {
    if word.load(Relaxed) & mask == mask {
        return 0;
    }
    u64::from((mask & !word.fetch_or(mask, SeqCst)).count_ones())
}

/// The word of a range that touches no other, and a mask of its bits.
#[inline]
fn one_mask(range: &Range<u64>) -> Option<(usize, u64)> {
    let (word, count) = (range.start / BITS, range.end.wrapping_sub(range.start));
    let is_one = range.start < range.end && (range.end - 1) / BITS == word;
    is_one.then(|| {
        let mask = (u64::MAX >> (BITS - count)) << (range.start % BITS);
        (word as usize, mask)
    })
}

/// The words that a range of bits touches, each with a mask of its bits.
pub(crate) fn masks(range: Range<u64>) -> impl Iterator<Item = (usize, u64)> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        if at >= range.end {
            return None;
        }
        let first = at % BITS;
        let count = (BITS - first).min(range.end - at);
        let word = (at / BITS) as usize;
        at += count;
        Some((word, (u64::MAX >> (BITS - count)) << first))
    })
}

/// Levels of a set. So a word of the top is for 2^30 numbers, and a walk costs what is in the set,
/// however large the disk is.
pub(super) const LEVELS: usize = 5;

/// A set of numbers, in levels from the lowest to the top. A bit of a level says that the word of
/// that number in the level below may hold bits; it is set before them and cleared after them, so
/// that no death hides one.
pub(super) struct BitSet([Words; LEVELS]);

impl BitSet {
    /// Words of each level for numbers below `count`.
    pub fn plan(count: u64) -> [u64; LEVELS] {
        let mut bits = count;
        [(); LEVELS].map(|()| {
            bits = Words::needed(bits);
            bits
        })
    }

    pub fn new(levels: [Words; LEVELS]) -> Self {
        Self(levels)
    }

    fn lowest(&self) -> &Words {
        &self.0[0]
    }

    fn top(&self) -> &Words {
        &self.0[LEVELS - 1]
    }

    /// Adds a range; answers how many of it were new.
    #[inline]
    pub fn insert(&self, range: Range<u64>) -> u64 {
        if let Some((word, mask)) = one_mask(&range) {
            return self.insert_word(word, mask);
        }
        masks(range)
            .map(|(word, mask)| self.insert_word(word, mask))
            .sum()
    }

    /// Whether it may hold something.
    pub fn is_empty(&self) -> bool {
        self.top().all().iter().all(|word| word.load(SeqCst) == 0)
    }

    /// Whether it holds any number of a range.
    pub fn has_any(&self, range: Range<u64>) -> bool {
        self.lowest().has_any(range)
    }

    /// What it holds of the numbers of one word.
    pub fn word(&self, word: usize) -> u64 {
        match self.0[1].has(word as u64) {
            true => self.lowest().word(word),
            false => 0,
        }
    }

    /// Takes a range away; answers how many of it were there. The levels above may stay as they
    /// are.
    pub fn remove(&self, range: Range<u64>) -> u64 {
        self.lowest().clear_all(range)
    }

    /// Calls `found` with the numbers of the set, in order, as ranges that do not touch.
    pub fn each_range(&self, found: impl FnMut(Range<u64>)) {
        self.each_range_of(|_, bits| bits, found);
    }

    /// As [`BitSet::each_range`], without the numbers of another set.
    pub fn each_range_outside(&self, other: &Self, found: impl FnMut(Range<u64>)) {
        self.each_range_of(|word, bits| bits & !other.word(word as usize), found);
    }

    /// Calls `found` with ranges of what `of` leaves of each word.
    fn each_range_of(&self, of: impl Fn(u64, u64) -> u64, mut found: impl FnMut(Range<u64>)) {
        let mut open: Option<Range<u64>> = None;
        self.each_word_while(|word, bits| {
            let word = word as u64;
            let mut left = of(word, bits);
            while left != 0 {
                let first = u64::from(left.trailing_zeros());
                let count = u64::from((left >> first).trailing_ones());
                left &= !((u64::MAX >> (BITS - count)) << first);
                let start = word * BITS + first;
                match &mut open {
                    Some(range) if range.end == start => range.end += count,
                    _ => {
                        if let Some(whole) = open.replace(start..start + count) {
                            found(whole);
                        }
                    }
                }
            }
            true
        });
        if let Some(last) = open {
            found(last);
        }
    }

    /// Calls `found` with words of the set that may hold something, in order, as long as it says
    /// so.
    pub fn each_word_while(&self, mut found: impl FnMut(usize, u64) -> bool) {
        let top = 0..self.top().count() as u64;
        let _all = top.into_iter().all(|word| {
            self.walk(LEVELS - 1, word, &mut |lowest| {
                found(lowest as usize, self.lowest().word(lowest as usize))
            })
        });
    }

    /// Calls `found` with the numbers of lowest words below a word of a level that may hold
    /// something, as long as it says so. Answers whether it always did.
    fn walk(&self, level: usize, word: u64, found: &mut impl FnMut(u64) -> bool) -> bool {
        match level {
            0 => found(word),
            _ => bits(&self.0[level].all()[word as usize], word)
                .all(|below| self.walk(level - 1, below, found)),
        }
    }

    /// Adds the bits of a mask in a word; answers how many were new.
    #[inline]
    pub fn insert_word(&self, word: usize, mask: u64) -> u64 {
        // The levels above have what this one has.
        if self.lowest().all()[word].load(Relaxed) & mask == mask {
            return 0;
        }
        self.insert_new(word, mask)
    }

    fn insert_new(&self, word: usize, mask: u64) -> u64 {
        let mut place = word as u64;
        let above = [(); LEVELS - 1].map(|()| {
            let mask = 1 << (place % BITS);
            place /= BITS;
            (place as usize, mask)
        });
        for (level, (word, mask)) in self.0[1..].iter().zip(above).rev() {
            set(&level.all()[word], mask);
        }
        set(&self.lowest().all()[word], mask)
    }

    /// Takes the bits of a mask in a word away. The levels above stay as they are.
    pub fn remove_word(&self, word: usize, mask: u64) {
        self.lowest().clear(word, mask);
    }

    /// Empties the set. Nobody adds to it meanwhile.
    pub fn clear(&self) {
        (0..self.top().count() as u64).for_each(|word| self.clear_below(LEVELS - 1, word));
    }

    /// Clears a word of a level behind all that is below it.
    fn clear_below(&self, level: usize, word: u64) {
        let here = &self.0[level].all()[word as usize];
        if level > 0 {
            bits(here, word).for_each(|below| self.clear_below(level - 1, below));
        }
        here.store(0, SeqCst);
    }
}

/// The numbers of the bits that are set in word number `number`.
fn bits(word: &AtomicU64, number: u64) -> impl Iterator<Item = u64> {
    let mut left = word.load(SeqCst);
    std::iter::from_fn(move || {
        let first = u64::from(left.trailing_zeros());
        left &= left.wrapping_sub(1);
        (first < BITS).then_some(number * BITS + first)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ptr::NonNull;
    use std::sync::atomic::AtomicU64;

    use proptest::prelude::{ProptestConfig, prop_assert_eq, proptest};

    use super::{BitSet, Words};

    fn words(count: u64) -> Words {
        let memory: Vec<AtomicU64> = (0..count).map(|_| AtomicU64::new(0)).collect();
        let memory = Vec::leak(memory);
        // SAFETY: leaked, so mapped for good, and atomics.
        unsafe { Words::new(NonNull::from(&memory[0]), memory.len()) }
    }

    fn set(count: u64) -> BitSet {
        BitSet::new(BitSet::plan(count).map(words))
    }

    fn set_in(model: &BTreeSet<u64>, range: std::ops::Range<u64>) -> u64 {
        model.range(range).count() as u64
    }

    fn members(set: &BitSet) -> Vec<u64> {
        let mut found = Vec::new();
        set.each_range(|range| found.extend(range));
        found
    }

    proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_set_holds_what_was_added(ranges in proptest::collection::vec((0u64..300_000,
    1u64..300), 1..20)) { let set = set(300_300); let mut model = BTreeSet::new(); for (start,
    count) in ranges { let new = (start..start + count).filter(|&number|
    model.insert(number)).count(); prop_assert_eq!(set.insert(start..start + count), new as
    u64); } prop_assert_eq!(members(&set), model.iter().copied().collect::<Vec<_>>());
    prop_assert_eq!(set.remove(64..200), set_in(&model, 64..200)); prop_assert_eq!((set.word(1),
    set.has_any(64..200)), (0, false)); set.clear(); assert!(set.is_empty() &&
    members(&set).is_empty()); } }

    #[test]
    fn the_top_is_small_on_a_large_disk() {
        let granules = (16 << 40) / 256;
        assert_eq!(BitSet::plan(granules).last(), Some(&64));
        assert_eq!(BitSet::plan(1), [1; super::LEVELS]);
    }

    #[test]
    fn ranges_are_as_long_as_they_can_be() {
        let set = set(1000);
        set.insert(60..70);
        set.insert(70..128);
        set.insert(130..131);
        let mut found = Vec::new();
        set.each_range(|range| found.push(range));
        assert_eq!(found, [60..128, 130..131]);
    }

    #[test]
    fn bits_are_all_there_or_not() {
        let words = words(4);
        assert_eq!(words.set_all(60..130), 70);
        assert_eq!(words.set_all(0..64), 60);
        assert!(words.has_all(0..130) && !words.has_all(129..131) && !words.has(130));
    }
}
