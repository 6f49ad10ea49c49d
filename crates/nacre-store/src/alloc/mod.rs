//! The unit allocator: lock-free over the session's bitmap, one bit per unit, 1 = used.
//!
//! Every step is one atomic word operation that leaves the bitmap valid. A process that dies
//! between taking units and publishing them leaks the bits until the next rebuild; nothing is ever
//! handed out twice.

mod behind;
mod kept;
mod spread;
mod word;

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use nacre_session::{COUNTS_OF_WORD, Session, Shared, UnitHints};
use nacre_types::{UNIT_SIZE, UNITS_PER_BLOCK, UnitNo};
use nacre_volume::Volume;

use spread::Spread;
use word::{FULL, ONES, WORD, count_of, mask, ones};

/// Words of a 2 MiB-aligned group: 512 units, one cache line of bitmap.
const GROUP_WORDS: usize = 8;
/// Units of a group.
pub(crate) const GROUP_UNITS: u64 = 512;
/// Words of a metadata or log block.
const BLOCK_WORDS: usize = UNITS_PER_BLOCK as usize / 64;
/// How many groups a large request looks at before it takes smaller pieces.
const GROUP_SEARCH: usize = 4096;
/// How many words a request for several units looks at before it takes a single free bit.
const ROOMY_SEARCH: usize = 256;
/// From how many units on a freed run is the next to be taken. The explorer has small files.
const REUSE_MIN: u64 = if cfg!(feature = "explore") { 1 } else { 16 };

/// A run of contiguous units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The first unit.
    pub(crate) start: UnitNo,
    /// How many units.
    pub(crate) count: u64,
}

impl Run {
    /// The unit behind the run's last one.
    pub(crate) fn end(self) -> UnitNo {
        UnitNo(self.start.0 + self.count)
    }
}

/// A view of the session's allocation state.
#[derive(Clone, Copy)]
pub(crate) struct Allocator<'a> {
    /// Of the units that are handed out: not of those behind.
    bits: &'a [AtomicU64],
    /// Units whose contents were checked in this session; a freed unit loses its bit.
    verified: &'a [AtomicU64],
    /// Extra references, those of [`COUNTS_OF_WORD`] units in a word.
    shares: &'a [AtomicU64],
    /// How many units are free: a statistic, exact only while nobody dies.
    free: &'a AtomicU64,
    hints: &'a UnitHints,
    /// Another rule that has a say in it, if there is one.
    special: Option<Special<'a>>,
}

/// What a disk, or a pool whose data is spread over devices or that has some behind, needs.
#[derive(Clone, Copy)]
struct Special<'a> {
    volume: &'a Volume,
    shared: &'a Shared,
    /// Of all units.
    all_bits: &'a [AtomicU64],
}

impl<'a> Special<'a> {
    /// A disk learns what is taken.
    fn note_taken(self, run: Run) {
        if self.volume.has_image() {
            let len = run.count * UNIT_SIZE;
            self.volume.note_taken(run.start.offset(), len);
        }
    }

    /// A disk learns what is about to be freed.
    fn note_freed(self, start: u64, end: u64) {
        if self.volume.has_image() {
            let len = (end - start) * UNIT_SIZE;
            self.volume.note_freed(UnitNo(start).offset(), len);
        }
    }

    /// Whether what is stored to free units need not go through the journal of a disk.
    fn is_fresh(self, start: u64, count: u64) -> bool {
        let len = count * UNIT_SIZE;
        !self.volume.is_spent(UnitNo(start).offset(), len)
    }

    /// Of a word of units those for which that is not so.
    fn spent_of(self, first: u64) -> u64 {
        self.volume.spent_of(UnitNo(first))
    }

    fn bits_in_front(self) -> &'a [AtomicU64] {
        &self.all_bits[..self
            .all_bits
            .len()
            .min((self.volume.front_units() / WORD) as usize)]
    }

    fn spread(self) -> Option<Spread<'a>> {
        Spread::of(self.volume.placement()?, self.shared)
    }
}

/// Tells `step` the words that count references of some units, each with the set of their counts,
/// until it answers no. Returns the first unit of that word, or `end`.
#[inline(always)]
fn each_word(start: u64, end: u64, mut step: impl FnMut(u64, u64) -> bool) -> u64 {
    let mut at = start;
    while at < end {
        let (word, first) = (at / COUNTS_OF_WORD, at % COUNTS_OF_WORD);
        let len = (end - at).min(COUNTS_OF_WORD - first);
        let set = match len {
            COUNTS_OF_WORD => ONES,
            len => ones(first, len),
        };
        if !step(word, set) {
            return at;
        }
        at += len;
    }
    end
}

impl<'a> Allocator<'a> {
    /// The allocator of a session.
    #[inline]
    pub(crate) fn new(session: &'a Session, volume: &'a Volume) -> Self {
        let (shared, all_bits) = (session.shared(), session.unit_bits());
        let special = volume.is_special().then_some(Special {
            volume,
            shared,
            all_bits,
        });
        Self {
            bits: special.map_or(all_bits, Special::bits_in_front),
            verified: session.verified_bits(),
            shares: session.share_counts(),
            free: &shared.free_units,
            hints: &shared.unit_hints,
            special,
        }
    }

    /// Takes `1..=want` contiguous units, at `goal` if that unit is free. `None` means that no unit
    /// is free.
    #[inline]
    pub(crate) fn take(&self, goal: Option<UnitNo>, want: u64) -> Option<Run> {
        self.take_for(goal, want, || false)
    }

    /// As [`Allocator::take`]; what `is_kept` is on all disks, if each has others alone.
    #[inline]
    pub(crate) fn take_for(
        &self,
        goal: Option<UnitNo>,
        want: u64,
        is_kept: impl FnOnce() -> bool,
    ) -> Option<Run> {
        let want = want.max(1);
        if let Some(special) = self.special {
            return match special.common() > 0 && is_kept() {
                true => self.take_common(goal, want),
                false => self.take_specially(special, goal, want),
            };
        }
        self.take_anywhere(goal, want)
    }

    #[inline(always)]
    fn take_anywhere(&self, goal: Option<UnitNo>, want: u64) -> Option<Run> {
        let run = match goal.and_then(|goal| self.take_at(goal.0, want)) {
            Some(run) => run,
            None => self.search(goal, want)?,
        };
        self.taken(run);
        Some(run)
    }

    #[inline(never)]
    fn take_specially(&self, special: Special<'_>, goal: Option<UnitNo>, want: u64) -> Option<Run> {
        let run = match special.spread() {
            Some(spread) => self.take_spread(spread, goal, want)?,
            None => self.take_anywhere(goal.filter(|goal| special.is_fresh(goal.0, 1)), want)?,
        };
        special.note_taken(run);
        Some(run)
    }

    #[inline(never)]
    fn search(&self, goal: Option<UnitNo>, want: u64) -> Option<Run> {
        self.take_grouped(want)
            .or_else(|| self.take_roomy(goal, want))
            .or_else(|| self.take_any(want))
    }

    /// Takes one unit of metadata.
    pub(crate) fn take_one(&self, goal: Option<UnitNo>) -> Option<UnitNo> {
        self.take_for_metadata(goal, 1).map(|run| run.start)
    }

    /// Takes the 1024 units of the next free 4 MiB-aligned block below the one that was taken so
    /// last: blocks that move go round the device, and no place is worn by one thing right after
    /// the other.
    pub(crate) fn take_block(&self) -> Option<UnitNo> {
        let blocks = self.for_metadata().bits.len() / BLOCK_WORDS;
        let last = (self.hints.block.load(Relaxed) as usize).min(blocks);
        let mut turns = (0..last).rev().chain((last..blocks).rev());
        let index = turns.find(|&block| self.claim_words(block * BLOCK_WORDS, BLOCK_WORDS))?;
        let start = UnitNo(index as u64 * UNITS_PER_BLOCK);
        self.free.fetch_sub(UNITS_PER_BLOCK, Relaxed);
        let run = Run {
            start,
            count: UNITS_PER_BLOCK,
        };
        self.count_used(run);
        self.note_taken(run);
        self.start_rounds_at(start);
        Some(start)
    }

    /// As [`Allocator::take_block`], among some units.
    pub(crate) fn take_block_among(&self, among: Range<u64>) -> Option<UnitNo> {
        let mut blocks = among.start / UNITS_PER_BLOCK..among.end / UNITS_PER_BLOCK;
        let claim = |&block: &u64| self.claim_words(block as usize * BLOCK_WORDS, BLOCK_WORDS);
        let start = UnitNo(blocks.find(claim)? * UNITS_PER_BLOCK);
        let count = UNITS_PER_BLOCK;
        self.free.fetch_sub(count, Relaxed);
        self.count_used(Run { start, count });
        Some(start)
    }

    /// Where blocks were taken so last.
    pub(crate) fn start_rounds_at(&self, block: UnitNo) {
        self.hints.block.store(block.0 / UNITS_PER_BLOCK, Relaxed);
    }

    /// Gives a block back that has worn enough: others are taken before it.
    pub(crate) fn free_block(&self, start: UnitNo) {
        let freed = self.clear(start.0, start.0 + UNITS_PER_BLOCK);
        self.free.fetch_add(freed, Relaxed);
    }

    /// Holds free units from `from` on, which are not used for anything: `least` or more that lie
    /// together.
    pub(crate) fn hold(&self, from: UnitNo, least: u64, most: u64) -> Option<Run> {
        let mut at = from.0;
        while let Some(start) = self.next_clear(at) {
            let Some(run) = self.take_at(start, most) else {
                at = start + 1;
                continue;
            };
            self.free.fetch_sub(run.count, Relaxed);
            self.count_used(run);
            if run.count >= least {
                return Some(run);
            }
            self.let_go(run);
            at = run.end().0;
        }
        None
    }

    /// Units that were held are free again, as if nothing had been.
    pub(crate) fn let_go(&self, run: Run) {
        let (start, end) = (run.start.0, run.end().0);
        let freed = match self.special {
            None => self.clear_bits(self.bits, start, end),
            Some(special) if self.is_behind(run.start) => {
                return self.clear_behind(special, start, end);
            }
            Some(special) => self.clear_in_front(special, start, end),
        };
        self.free.fetch_add(freed, Relaxed);
    }

    /// Takes the 512 units of a 2 MiB-aligned group, wherever one is free.
    pub(crate) fn take_group(&self) -> Option<Run> {
        if let Some(spread) = self.special.and_then(Special::spread) {
            return self.take_spread_group(spread);
        }
        let hint = self.hints.group.load(Relaxed);
        let start = self.claim_group(0..self.bits.len() as u64 * WORD, hint)?;
        self.free.fetch_sub(GROUP_UNITS, Relaxed);
        let run = Run {
            start: UnitNo(start),
            count: GROUP_UNITS,
        };
        self.note_taken(run);
        Some(run)
    }

    /// A disk learns what is taken.
    fn note_taken(&self, run: Run) {
        if let Some(special) = self.special {
            special.note_taken(run);
        }
    }

    /// Takes a free group among some units, from a hint on and once around.
    fn claim_group(&self, among: Range<u64>, hint: u64) -> Option<u64> {
        let (first, end) = (among.start / GROUP_UNITS, among.end / GROUP_UNITS);
        let hint = (hint / GROUP_UNITS).clamp(first, end);
        let claim = |group: &u64| {
            let word = *group as usize * GROUP_WORDS;
            self.claim_words(word, GROUP_WORDS)
        };
        let group = (hint..end).chain(first..hint).find(claim)?;
        Some(group * GROUP_UNITS)
    }

    /// Counts units for their devices, if data is spread.
    fn count_used(&self, run: Run) {
        if let Some(spread) = self.special.and_then(Special::spread) {
            spread.count_used(run);
        }
    }

    /// Takes exactly `count` contiguous units of metadata, wherever they are.
    pub(crate) fn take_exact(&self, count: u64) -> Option<Run> {
        let run = self.for_metadata().take_exactly(count)?;
        self.note_taken(run);
        Some(run)
    }

    fn take_exactly(&self, count: u64) -> Option<Run> {
        let mut at = 0;
        while let Some(start) = self.next_clear(at) {
            match self.take_at(start, count) {
                Some(run) if run.count == count => {
                    self.free.fetch_sub(count, Relaxed);
                    self.count_used(run);
                    return Some(run);
                }
                Some(run) => {
                    self.count_used(run);
                    self.clear(run.start.0, run.end().0);
                    at = start + run.count;
                }
                None => at = start + 1,
            }
        }
        None
    }

    /// Gives units back; a shared unit only loses one of its extra references.
    pub(crate) fn free(&self, start: UnitNo, count: u64) {
        let end = start.0 + count;
        let mut run_start = start.0;
        each_word(start.0, end, |word, set| {
            let mut kept = word::take_references(&self.shares[word as usize], set);
            while kept != 0 {
                let unit = word * COUNTS_OF_WORD + word::first_of(kept);
                self.release(run_start, unit);
                run_start = unit + 1;
                kept &= kept - 1;
            }
            true
        });
        self.release(run_start, end);
    }

    /// Adds one reference to each unit. `false`: some count is at its limit and nothing changed.
    pub(crate) fn share(&self, start: UnitNo, count: u64) -> bool {
        let end = start.0 + count;
        let added = each_word(start.0, end, |word, set| {
            word::add_references(&self.shares[word as usize], set)
        });
        if added < end {
            each_word(start.0, added, |word, set| {
                word::take_references(&self.shares[word as usize], set);
                true
            });
        }
        added == end
    }

    /// Whether what is stored to a unit that may be shared has to go to a fresh one.
    #[inline]
    pub(crate) fn must_be_left(&self, unit: UnitNo) -> bool {
        self.extra(unit) > 0 || self.is_behind(unit)
    }

    /// Whether nobody has taken a unit.
    pub(crate) fn is_untaken(&self, unit: UnitNo) -> bool {
        let word = self.bits.get((unit.0 / WORD) as usize);
        word.is_some_and(|word| word.load(Acquire) & mask(unit.0 % WORD, 1) == 0)
    }

    /// How many references beyond the first a unit has.
    pub(crate) fn extra(&self, unit: UnitNo) -> u16 {
        let word = &self.shares[(unit.0 / COUNTS_OF_WORD) as usize];
        count_of(word.load(Acquire), unit.0 % COUNTS_OF_WORD)
    }

    /// Sets how many references beyond the first a unit has; nobody else changes it.
    pub(crate) fn set_extra(&self, unit: UnitNo, count: u16) {
        let word = &self.shares[(unit.0 / COUNTS_OF_WORD) as usize];
        let one = ones(unit.0 % COUNTS_OF_WORD, 1);
        let others = word.load(Relaxed) & !(one * u64::from(u16::MAX));
        word.store(others | (one * u64::from(count)), Relaxed);
    }

    /// Sets the bits of a run; returns the first unit that was already set, after setting all.
    pub(crate) fn mark_used(&self, start: UnitNo, count: u64) -> Option<UnitNo> {
        let bits = self.all_bits();
        let mut first = None;
        let mut at = start.0;
        let end = start.0 + count;
        while at < end {
            let len = (end - at).min(WORD - at % WORD);
            let mask = mask(at % WORD, len);
            let both = bits[(at / WORD) as usize].fetch_or(mask, AcqRel) & mask;
            if both != 0 && first.is_none() {
                first = Some(UnitNo(at / WORD * WORD + u64::from(both.trailing_zeros())));
            }
            at += len;
        }
        first
    }

    /// Counts the free units exactly and corrects the statistic.
    pub(crate) fn recount(&self) -> u64 {
        let free = self.count_free();
        self.free.store(free, Relaxed);
        if let Some(spread) = self.special.and_then(Special::spread) {
            spread.recount(self.bits);
        }
        self.recount_behind();
        free
    }

    /// Counts the free units among some.
    pub(crate) fn count_free_among(&self, among: Range<u64>) -> u64 {
        spread::count_free(self.all_bits(), among)
    }

    /// Counts the free units exactly, without those behind.
    pub(crate) fn count_free(&self) -> u64 {
        self.bits
            .iter()
            .map(|word| u64::from(word.load(Relaxed).count_zeros()))
            .sum()
    }

    /// The number of free units, without those behind, as a statistic.
    pub(crate) fn free_units(&self) -> u64 {
        let counted = self.free.load(Relaxed);
        if counted > self.bits.len() as u64 * WORD {
            0
        } else {
            counted
        }
    }

    fn taken(&self, run: Run) {
        self.free.fetch_sub(run.count, Relaxed);
        let hint = match run.count < GROUP_UNITS {
            true => &self.hints.next,
            false => &self.hints.group,
        };
        hint.store(run.end().0, Relaxed);
    }

    /// A free run that begins exactly at `first`.
    #[inline]
    fn take_at(&self, first: u64, want: u64) -> Option<Run> {
        let count = word::claim_from(self.bits, first, want);
        (count > 0).then_some(Run {
            start: UnitNo(first),
            count,
        })
    }

    /// A run that begins with a whole free group, for requests of at least a group.
    fn take_grouped(&self, want: u64) -> Option<Run> {
        if want < GROUP_UNITS {
            return None;
        }
        let groups = self.bits.len() / GROUP_WORDS;
        let first = self.hints.group.load(Relaxed).div_ceil(GROUP_UNITS) as usize;
        for step in 0..groups.min(GROUP_SEARCH) {
            let group = (first + step) % groups;
            let start = group as u64 * GROUP_UNITS;
            if self.is_fresh(start, GROUP_UNITS)
                && self.claim_words(group * GROUP_WORDS, GROUP_WORDS)
            {
                let more = self.take_at(start + GROUP_UNITS, want - GROUP_UNITS);
                let count = GROUP_UNITS + more.map_or(0, |run| run.count);
                return Some(Run {
                    start: UnitNo(start),
                    count,
                });
            }
        }
        None
    }

    /// A run of several units in one word, near the goal or near the last search.
    fn take_roomy(&self, goal: Option<UnitNo>, want: u64) -> Option<Run> {
        let near_goal = goal.and_then(|goal| self.search_words(goal.0 / WORD, GROUP_WORDS, want));
        near_goal.or_else(|| {
            let hint = self.hints.next.load(Relaxed) / WORD;
            self.search_words(hint, ROOMY_SEARCH, want)
        })
    }

    fn search_words(&self, first: u64, steps: usize, want: u64) -> Option<Run> {
        let words = self.bits.len();
        let wanted = want.min(WORD) as u32;
        let first = first as usize % words;
        // Not modulo each time: a full pool has many words without room.
        for index in (first..words).chain(0..first).take(steps) {
            if let Some(shift) = room(self.used_or_spent(index), wanted) {
                let run = self.take_at(index as u64 * WORD + u64::from(shift), want);
                if run.is_some() {
                    return run;
                }
            }
        }
        None
    }

    /// Whatever is free, from the last search on and once around.
    fn take_any(&self, want: u64) -> Option<Run> {
        let from = self.hints.next.load(Relaxed);
        self.take_between(from, self.bits.len() as u64 * WORD, want)
            .or_else(|| self.take_between(0, self.bits.len() as u64 * WORD, want))
    }

    fn take_between(&self, from: u64, to: u64, want: u64) -> Option<Run> {
        let mut at = from;
        while let Some(start) = self.next_clear(at).filter(|&start| start < to) {
            let run = self.take_at(start, want);
            if run.is_some() {
                return run;
            }
            at = start + 1;
        }
        None
    }

    fn next_clear(&self, from: u64) -> Option<u64> {
        let first = (from / WORD) as usize;
        for (index, word) in self.bits.iter().enumerate().skip(first) {
            let below = if index == first {
                mask(0, from % WORD)
            } else {
                0
            };
            let value = word.load(Relaxed) | below;
            if value != FULL {
                return Some(index as u64 * WORD + u64::from(value.trailing_ones()));
            }
        }
        None
    }

    /// Takes `count` wholly free words, or nothing.
    fn claim_words(&self, first: usize, count: usize) -> bool {
        word::claim_all(&self.bits[first..first + count])
    }

    fn release(&self, start: u64, end: u64) {
        if start < end {
            let freed = self.clear(start, end);
            self.free.fetch_add(freed, Relaxed);
            if self.is_fresh(start, end - start) {
                self.use_first(start, end);
            }
        }
    }

    /// Free units are used again first, from the lowest on: they are in page tables already, and
    /// what lies above may never have been used.
    pub(crate) fn use_first(&self, start: u64, end: u64) {
        if end - start >= REUSE_MIN {
            self.lower_hints(start, end);
        }
        if let Some(spread) = self.special.and_then(Special::spread) {
            spread.use_first(start, end);
        }
    }

    #[cold]
    #[inline(never)]
    fn lower_hints(&self, start: u64, end: u64) {
        let lower = |hint: &AtomicU64| {
            if start < hint.load(Relaxed) {
                hint.store(start, Relaxed);
            }
        };
        lower(&self.hints.next);
        if end - start >= GROUP_UNITS {
            lower(&self.hints.group);
        }
    }

    /// The units of a word that are used, or had better be taken last.
    #[inline]
    fn used_or_spent(&self, index: usize) -> u64 {
        let used = self.bits[index].load(Relaxed);
        match self.special.filter(|_| used != FULL) {
            Some(special) => used | special.spent_of(index as u64 * WORD),
            None => used,
        }
    }

    /// Whether what is stored to free units goes to its place, without a way through a journal.
    fn is_fresh(&self, start: u64, count: u64) -> bool {
        let fresh = |special: Special<'_>| special.is_fresh(start, count);
        self.special.is_none_or(fresh)
    }

    /// Clears bits and returns how many were set; a damaged map may name a unit that is free
    /// already.
    fn clear(&self, start: u64, end: u64) -> u64 {
        match self.special {
            None => self.clear_bits(self.bits, start, end),
            Some(special) => self.clear_specially(special, start, end),
        }
    }

    /// What is freed on a device that leaves or has left stays taken; how many units that are.
    fn close_again(&self, special: Special<'_>, freed: Range<u64>) -> u64 {
        let shared = special.shared;
        let leaving = shared.leaving_from.load(Relaxed)..shared.leaving_to.load(Relaxed);
        let closed = std::iter::once(&leaving).chain(special.volume.holes());
        let close = |closed: &Range<u64>| {
            let (from, to) = (freed.start.max(closed.start), freed.end.min(closed.end));
            if from >= to {
                return 0;
            }
            self.mark_used(UnitNo(from), to - from);
            to - from
        };
        closed.map(close).sum()
    }

    /// Units behind are counted apart.
    #[inline(never)]
    fn clear_specially(&self, special: Special<'_>, start: u64, end: u64) -> u64 {
        special.note_freed(start, end);
        let front = end.min(special.volume.front_units());
        self.clear_behind(special, start.max(front), end);
        match start < front {
            true => self.clear_in_front(special, start, front),
            false => 0,
        }
    }

    fn clear_in_front(&self, special: Special<'_>, start: u64, end: u64) -> u64 {
        let mut cleared = self.clear_bits(self.bits, start, end);
        cleared -= self.close_again(special, start..end).min(cleared);
        if let Some(spread) = special.spread() {
            spread.count_freed((start, end), cleared);
        }
        cleared
    }

    fn clear_bits(&self, bits: &[AtomicU64], start: u64, end: u64) -> u64 {
        let mut at = start;
        let mut cleared = 0;
        while at < end {
            let len = (end - at).min(WORD - at % WORD);
            let mask = mask(at % WORD, len);
            word::clear(&self.verified[(at / WORD) as usize], mask);
            cleared += word::clear(&bits[(at / WORD) as usize], mask);
            at += len;
        }
        cleared
    }
}

/// Where `wanted` (1..=64) clear bits stand side by side in a word.
fn room(word: u64, wanted: u32) -> Option<u32> {
    let mut free = !word;
    let mut have = 1;
    while have < wanted && free != 0 {
        let step = have.min(wanted - have);
        free &= free >> step;
        have += step;
    }
    (free != 0).then(|| free.trailing_zeros())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use nacre_session::{COUNTS_OF_WORD, UnitHints};
    use nacre_types::UnitNo;

    use super::{Allocator, GROUP_UNITS, Run, room};

    struct Space {
        bits: Vec<AtomicU64>,
        verified: Vec<AtomicU64>,
        shares: Vec<AtomicU64>,
        free: AtomicU64,
        hints: UnitHints,
    }

    impl Space {
        fn new(units: u64) -> Self {
            Self {
                bits: (0..units / 64).map(|_| AtomicU64::new(0)).collect(),
                verified: (0..units / 64).map(|_| AtomicU64::new(u64::MAX)).collect(),
                shares: (0..units.div_ceil(COUNTS_OF_WORD))
                    .map(|_| AtomicU64::new(0))
                    .collect(),
                free: AtomicU64::new(units),
                hints: UnitHints::default(),
            }
        }

        fn allocator(&self) -> Allocator<'_> {
            Allocator {
                bits: &self.bits,
                verified: &self.verified,
                shares: &self.shares,
                free: &self.free,
                hints: &self.hints,
                special: None,
            }
        }
    }

    #[test]
    fn every_unit_is_handed_out_exactly_once_then_none() {
        let space = Space::new(1024);
        let alloc = space.allocator();
        alloc.mark_used(UnitNo(5), 60);
        alloc.recount();
        let mut seen = vec![false; 1024];
        while let Some(unit) = alloc.take_one(None) {
            assert!(!std::mem::replace(&mut seen[unit.0 as usize], true));
        }
        assert_eq!(seen.iter().filter(|s| **s).count(), 1024 - 60);
        assert!(!seen[5] && !seen[64] && seen[65]);
        assert_eq!(alloc.free_units(), 0);
        alloc.free(UnitNo(700), 1);
        assert_eq!(alloc.take_one(None), Some(UnitNo(700)));
    }

    #[test]
    fn what_was_freed_is_taken_again_from_the_lowest_run_on() {
        let space = Space::new(1024);
        let alloc = space.allocator();
        while alloc.take(None, 64).is_some_and(|run| run.end().0 < 640) {}
        for start in [128, 320, 256] {
            alloc.free(UnitNo(start), 64);
        }
        let taken = || alloc.take(None, 64).map(|run| run.start.0);
        assert_eq!(
            [(); 5].map(|()| taken().unwrap()),
            [128, 256, 320, 640, 704]
        );
    }

    #[test]
    fn goal_extends_a_run_and_stops_at_used_units() {
        let space = Space::new(1024);
        let alloc = space.allocator();
        alloc.mark_used(UnitNo(200), 1);
        assert_eq!(
            alloc.take(Some(UnitNo(100)), 150),
            Some(Run {
                start: UnitNo(100),
                count: 100
            })
        );
        let run = alloc.take(Some(UnitNo(200)), 10).unwrap();
        assert_eq!(run.count, 10);
        assert_ne!(run.start, UnitNo(200));
    }

    #[test]
    fn large_requests_are_aligned_to_groups() {
        let space = Space::new(4096);
        let alloc = space.allocator();
        alloc.mark_used(UnitNo(0), 3);
        let run = alloc.take(None, 1000).unwrap();
        assert_eq!((run.start.0 % GROUP_UNITS, run.count), (0, 1000));
        let block = alloc.take_block().unwrap();
        assert_eq!(block.0 % 1024, 0);
        assert_eq!(alloc.mark_used(block, 1024), Some(block));
    }

    #[test]
    fn small_runs_between_large_ones_leave_whole_blocks() {
        const BLOCKS: u64 = 64;
        let space = Space::new(BLOCKS * 1024);
        let alloc = space.allocator();
        for _ in 0..BLOCKS * 2 * 3 / 4 {
            assert!(alloc.take_one(None).is_some());
            assert_eq!(alloc.take(None, GROUP_UNITS).unwrap().count, GROUP_UNITS);
        }
        let blocks = (0..BLOCKS).filter(|_| alloc.take_block().is_some());
        assert!(blocks.count() as u64 >= BLOCKS / 4 - 2);
    }

    #[test]
    fn groups_that_were_freed_are_taken_again_from_the_lowest_on() {
        let space = Space::new(8 * GROUP_UNITS);
        let alloc = space.allocator();
        let take = || {
            alloc
                .take(None, GROUP_UNITS)
                .map(|run| run.start.0 / GROUP_UNITS)
        };
        (0..6).for_each(|group| assert_eq!(take(), Some(group)));
        for group in [4, 1] {
            alloc.free(UnitNo(group * GROUP_UNITS), GROUP_UNITS);
        }
        assert_eq!([(); 3].map(|()| take()), [Some(1), Some(4), Some(6)]);
    }

    #[test]
    fn what_moves_takes_the_blocks_in_turn_once_around() {
        let space = Space::new(4 * 1024);
        let alloc = space.allocator();
        alloc.mark_used(UnitNo(5), 1);
        alloc.start_rounds_at(UnitNo(2 * 1024));
        let take = || {
            let block = alloc.take_block()?;
            alloc.free_block(block);
            Some(block.0 / 1024)
        };
        let blocks: Vec<_> = (0..5).map(|_| take()).collect();
        assert_eq!(blocks, [Some(1), Some(3), Some(2), Some(1), Some(3)]);
        alloc.mark_used(UnitNo(0), 4096);
        assert_eq!(alloc.take_block(), None);
    }

    #[test]
    fn exact_requests_find_the_only_hole_that_fits() {
        let space = Space::new(512);
        let alloc = space.allocator();
        alloc.mark_used(UnitNo(0), 512);
        for (start, count) in [(10, 5), (60, 9), (120, 7)] {
            alloc.free(UnitNo(start), count);
        }
        assert_eq!(
            alloc.take_exact(9),
            Some(Run {
                start: UnitNo(60),
                count: 9
            })
        );
        assert_eq!(alloc.take_exact(8), None);
        assert_eq!(
            alloc.take_exact(7),
            Some(Run {
                start: UnitNo(120),
                count: 7
            })
        );
    }

    #[test]
    fn a_shared_unit_survives_its_first_free() {
        let space = Space::new(128);
        let alloc = space.allocator();
        let run = alloc.take(None, 3).unwrap();
        assert!(alloc.share(UnitNo(run.start.0 + 1), 1));
        assert!(alloc.must_be_left(UnitNo(run.start.0 + 1)));
        alloc.free(run.start, 3);
        assert_eq!(alloc.mark_used(run.start, 1), None);
        alloc.free(run.start, 1);
        let shared = UnitNo(run.start.0 + 1);
        assert_eq!(alloc.mark_used(shared, 1), Some(shared));
        assert_eq!(alloc.recount(), 127);
        assert!(!alloc.must_be_left(shared));
        alloc.free(UnitNo(run.start.0 + 1), 1);
        assert_eq!(alloc.free_units(), 128);
        assert_eq!(space.verified[0].load(Relaxed), !(0b111 << run.start.0));
    }

    #[test]
    fn a_full_share_count_changes_nothing() {
        let space = Space::new(64);
        let alloc = space.allocator();
        for full in [2, 9] {
            alloc.set_extra(UnitNo(3), 7);
            alloc.set_extra(UnitNo(full), u16::MAX);
            assert!(!alloc.share(UnitNo(1), 11));
            let extras = (0..16).map(|unit| alloc.extra(UnitNo(unit)));
            let before =
                |unit| [0, 7, u16::MAX][usize::from(unit == 3) + 2 * usize::from(unit == full)];
            assert!(extras.eq((0..16).map(before)));
            alloc.set_extra(UnitNo(full), 0);
        }
    }

    #[test]
    fn room_finds_runs_of_any_length() {
        assert_eq!(room(0, 64), Some(0));
        assert_eq!(room(1, 64), None);
        assert_eq!(room(0b1000_1011, 3), Some(4));
        assert_eq!(room(!(0b1_1111 << 40), 5), Some(40));
        assert_eq!(room(!(0b1_1111 << 40), 6), None);
        assert_eq!(room(u64::MAX, 1), None);
    }

    #[test]
    fn threads_never_get_the_same_unit() {
        let space = Space::new(64 * 512);
        let runs: Vec<Vec<Run>> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|seed| {
                    let alloc = space.allocator();
                    scope.spawn(move || {
                        let sizes = [1, 3, 700, 64, 17];
                        std::iter::from_fn(|| Some(()))
                            .enumerate()
                            .map_while(|(i, ())| alloc.take(None, sizes[(i + seed) % sizes.len()]))
                            .collect()
                    })
                })
                .collect();
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap())
                .collect()
        });
        let mut seen = vec![false; 64 * 512];
        for run in runs.into_iter().flatten() {
            for unit in run.start.0..run.end().0 {
                assert!(!std::mem::replace(&mut seen[unit as usize], true));
            }
        }
        assert!(seen.into_iter().all(|used| used));
    }
}
