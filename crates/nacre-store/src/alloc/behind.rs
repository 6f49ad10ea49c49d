//! Units of devices behind the others. Nobody gets them but who moves something there (D68).

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use nacre_types::UnitNo;

use super::word::{WORD, claim_from};
use super::{Allocator, Run, Special, spread};

impl<'a> Allocator<'a> {
    /// The bits of all units.
    pub(super) fn all_bits(&self) -> &'a [AtomicU64] {
        self.special.map_or(self.bits, |special| special.all_bits)
    }

    /// Whether nobody stores to a unit, as it lies behind.
    pub(crate) fn is_behind(&self, unit: UnitNo) -> bool {
        let front = self.special.map(|special| special.volume.front_units());
        front.is_some_and(|front| unit.0 >= front)
    }

    /// Free units behind, as a statistic.
    pub(crate) fn free_behind(&self) -> u64 {
        let counted = |special: Special<'_>| special.shared.behind.free_units.load(Relaxed);
        let most = (self.all_bits().len() - self.bits.len()) as u64 * WORD;
        match self.special.map_or(0, counted) {
            counted if counted > most => 0,
            counted => counted,
        }
    }

    /// Takes `1..=want` contiguous units behind. `None`: there are none, or none is free.
    pub(crate) fn take_behind(&self, want: u64) -> Option<Run> {
        let special = self.special?;
        let (first, end) = (
            special.volume.front_units(),
            special.all_bits.len() as u64 * WORD,
        );
        let space = &special.shared.behind;
        let hint = space.unit_hint.load(Relaxed).clamp(first, end);
        let run = take_between(special.all_bits, hint, end, want)
            .or_else(|| take_between(special.all_bits, first, hint, want))?;
        space.free_units.fetch_sub(run.count, Relaxed);
        space.unit_hint.store(run.end().0, Relaxed);
        Some(run)
    }

    /// As [`Allocator::hold`], of units behind.
    pub(crate) fn hold_behind(&self, from: UnitNo, least: u64, most: u64) -> Option<Run> {
        let special = self.special?;
        let (mut at, end) = (from.0, special.all_bits.len() as u64 * WORD);
        while let Some(run) = take_between(special.all_bits, at, end, most) {
            special
                .shared
                .behind
                .free_units
                .fetch_sub(run.count, Relaxed);
            if run.count >= least {
                return Some(run);
            }
            self.let_go(run);
            at = run.end().0;
        }
        None
    }

    /// Takes `1..=want` contiguous units for contents that leave others: on the same side, if there
    /// are any.
    pub(crate) fn take_like(&self, left: UnitNo, goal: Option<UnitNo>, want: u64) -> Option<Run> {
        match self.is_behind(left) {
            true => self.take_behind(want).or_else(|| self.take(goal, want)),
            false => self.take(goal, want).or_else(|| self.take_behind(want)),
        }
    }

    pub(super) fn clear_behind(&self, special: Special<'_>, start: u64, end: u64) {
        if start < end {
            let mut freed = self.clear_bits(special.all_bits, start, end);
            freed -= self.close_again(special, start..end).min(freed);
            special.shared.behind.free_units.fetch_add(freed, Relaxed);
        }
    }

    pub(super) fn recount_behind(&self) {
        let Some(special) = self.special.filter(|special| special.volume.has_behind()) else {
            return;
        };
        let units = special.volume.front_units()..special.all_bits.len() as u64 * WORD;
        let free = spread::count_free(special.all_bits, units);
        special.shared.behind.free_units.store(free, Relaxed);
    }
}

/// Claims the first free run that begins in a range.
fn take_between(bits: &[AtomicU64], from: u64, to: u64, want: u64) -> Option<Run> {
    let mut at = from;
    while at < to {
        let value = bits[(at / WORD) as usize].load(Relaxed) >> (at % WORD);
        let used = u64::from(value.trailing_ones());
        if used > 0 {
            at += used.min(WORD - at % WORD);
            continue;
        }
        let count = claim_from(bits, at, want);
        if count > 0 {
            let start = UnitNo(at);
            return Some(Run { start, count });
        }
    }
    None
}
