//! Which units are in use, by the structures and by the session's bitmap.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use nacre_types::{ObjectId, UnitNo};

use super::Check;
use crate::alloc::Run;
use crate::block_map::layout::MapWord;
use crate::layout::HEADER_UNITS;
use crate::recovery::scan::{MAX_PROBLEMS, double_use, owners_of};

/// Units by their owners.
pub(super) struct Units {
    used: Vec<u64>,
    /// Used by somebody who does not share.
    sole: Vec<u64>,
    /// Owners beyond the first.
    extra: HashMap<UnitNo, u64>,
    double: HashSet<UnitNo>,
}

impl Units {
    pub(super) fn new(units: u64, closed: &[Range<u64>]) -> Self {
        let words = units.div_ceil(64) as usize;
        let mut all = Self {
            used: vec![0; words],
            sole: vec![0; words],
            extra: HashMap::new(),
            double: HashSet::new(),
        };
        for unit in closed.iter().cloned().flatten() {
            set(&mut all.used, UnitNo(unit));
            set(&mut all.sole, UnitNo(unit));
        }
        (0..HEADER_UNITS)
            .filter(|&unit| !is_set(&all.used, UnitNo(unit)))
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|unit| {
                all.claim_sole(UnitNo(unit));
            });
        (units..words as u64 * 64).for_each(|unit| {
            all.claim_sole(UnitNo(unit));
        });
        all
    }

    /// Takes units that nobody else may use; `false` when one is in use already.
    pub(super) fn claim_run(&mut self, run: Run) -> bool {
        let mut free = true;
        for step in 0..run.count {
            free &= self.claim_sole(run.start.add(step));
        }
        free
    }

    /// Takes a unit for an object.
    pub(super) fn claim(&mut self, entry: MapWord) {
        let unit = entry.unit();
        if !entry.may_be_shared() {
            self.claim_sole(unit);
        } else if set(&mut self.used, unit) {
            *self.extra.entry(unit).or_default() += 1;
            if is_set(&self.sole, unit) {
                self.note_double(unit);
            }
        }
    }

    /// Takes a unit that nobody else may use; `false` when somebody does.
    pub(super) fn claim_sole(&mut self, unit: UnitNo) -> bool {
        let taken = set(&mut self.used, unit);
        set(&mut self.sole, unit);
        if taken {
            self.note_double(unit);
        }
        !taken
    }

    fn note_double(&mut self, unit: UnitNo) {
        if self.double.len() < MAX_PROBLEMS {
            self.double.insert(unit);
        }
    }
}

/// Sets a bit; returns whether it was set before.
fn set(bits: &mut [u64], unit: UnitNo) -> bool {
    let word = &mut bits[(unit.0 / 64) as usize];
    let before = *word;
    *word |= 1 << (unit.0 % 64);
    before == *word
}

fn is_set(bits: &[u64], unit: UnitNo) -> bool {
    bits[(unit.0 / 64) as usize] & 1 << (unit.0 % 64) != 0
}

impl Check<'_> {
    /// Units in use twice, and the session's bitmap and share counts against what was found.
    pub(super) fn check_units(&mut self) {
        for (unit, owners) in owners_of(self.store, &self.units.double) {
            let first = owners.first().copied().unwrap_or(ObjectId(0));
            self.problem(first, unit.offset(), double_use(&owners));
        }
        self.report.counts.shared = self.units.extra.values().sum();
        self.compare_bitmap();
        self.compare_shares();
    }

    fn compare_bitmap(&mut self) {
        let damaged = !self.report.problems.is_empty();
        let mut closed = self.store.volume().holes().to_vec();
        closed.push(self.store.leaving_units());
        for (index, word) in self.store.session().unit_bits().iter().enumerate() {
            let marked = word.load(std::sync::atomic::Ordering::Acquire);
            let used = self.units.used.get(index).copied().unwrap_or(u64::MAX);
            // All units of a device that leaves or has left are marked.
            let leaves = closed.iter().any(|it| it.contains(&(index as u64 * 64)));
            let leaked = if leaves { 0 } else { marked & !used };
            self.report.counts.leaked_units += u64::from(leaked.count_ones());
            let unmarked = used & !marked;
            if unmarked != 0 {
                let unit = UnitNo(index as u64 * 64 + u64::from(unmarked.trailing_zeros()));
                let what = "unit is in use but marked as free";
                self.report.problem(None, Some(unit.offset()), what);
            }
        }
        // A process that died leaves marked units behind, which is no damage.
        let leaked = self.report.counts.leaked_units;
        if leaked > 0 && !damaged && !self.store.session().is_tainted() {
            let what = format!("{leaked} units are marked as used and nothing uses them");
            self.report.problem(None, None, what);
        }
    }

    fn compare_shares(&mut self) {
        let alloc = self.store.allocator();
        let wrong: Vec<_> = self
            .units
            .extra
            .iter()
            .filter(|&(&unit, &extra)| u64::from(alloc.extra(unit)) < extra)
            .map(|(&unit, &extra)| (unit, extra))
            .take(MAX_PROBLEMS)
            .collect();
        for (unit, extra) in wrong {
            let counted = alloc.extra(unit);
            let what = format!("unit has {extra} extra owners, but {counted} are counted");
            self.report.problem(None, Some(unit.offset()), what);
        }
    }
}
