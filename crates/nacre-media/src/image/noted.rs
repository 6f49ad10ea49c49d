//! What the next version has to bring: granules that were stored to. And which units are new, freed
//! or spent in the version that the disk has (C1, C2, C11).

use std::iter;
use std::ops::Range;
use std::sync::atomic::Ordering;

use nacre_types::UNIT_SIZE;

use super::bits::{BitSet, masks};
use super::{GRANULE, Image, granules_of, units};

impl Image {
    /// Takes what was stored since the last version was durable: calls `found` with ranges of the
    /// device, in order, and with whether all of a range is new: in units that mean nothing in the
    /// version that the disk has, nor in its journal. Stores go on in the other set. Nobody stores
    /// meanwhile, and nobody else takes a version before [`Image::written`] or
    /// [`Image::not_written`].
    pub fn take(&self, mut found: impl FnMut(Range<u64>, bool)) {
        let head = self.head();
        let current = head.current.load(Ordering::SeqCst) & 1;
        let (taken, other) = (current as usize, 1 - current as usize);
        self.settle();
        // 0 until the disk has this version, whatever happens.
        head.settled.store(0, Ordering::SeqCst);
        // Left by who died or failed before the disk had it.
        self.sets[other].each_range(|range| {
            self.sets[taken].insert(range);
        });
        self.sets[other].clear();
        self.sum_taken(&self.sets[taken]);
        self.freed[other].clear();
        head.current.store(1 - current, Ordering::SeqCst);
        head.dirty.store(0, Ordering::SeqCst);
        head.old.store(0, Ordering::SeqCst);
        let each = |found: &mut dyn FnMut(Range<u64>)| {
            let bytes = |range: Range<u64>| range.start * GRANULE..range.end * GRANULE;
            self.sets[taken].each_range(|range| found(bytes(range)));
        };
        each(&mut |range| self.split(range, &mut found));
        each(&mut |range| _ = self.new.clear_all(units(range)));
        self.end_newness_ahead();
    }

    /// Parts a range where units that are new begin or end.
    fn split(&self, range: Range<u64>, found: &mut impl FnMut(Range<u64>, bool)) {
        let is_new = |unit: u64| self.is_new(unit..unit + 1);
        let mut at = range.start;
        while at < range.end {
            let first = at / UNIT_SIZE;
            let end = units(at..range.end).end;
            let kind = is_new(first);
            let other = (first + 1..end).find(|&unit| is_new(unit) != kind);
            let behind = other.map_or(range.end, |unit| unit * UNIT_SIZE);
            found(at..behind, kind);
            at = behind;
        }
    }

    /// The disk has what was taken: these ranges in its journal, the rest at home.
    pub fn written<'r>(&self, journaled: impl Iterator<Item = &'r Range<u64>>) {
        // C7: before they are known to be clean.
        for range in journaled {
            self.away.insert(units(range.clone()));
        }
        self.taken().clear();
        self.head().blind.store(0, Ordering::SeqCst);
        self.head().settled.store(1, Ordering::SeqCst);
    }

    /// All that the journal has is home; answers how many bytes of whole units that is. Nobody
    /// writes a version meanwhile.
    pub fn came_home(&self) -> u64 {
        let mut units = 0;
        self.away
            .each_range(|range| units += range.end - range.start);
        self.away.clear();
        units * UNIT_SIZE
    }

    /// The disk does not have it; the next version will.
    pub fn not_written(&self) {
        let mut granules = 0;
        let count = |range: Range<u64>| granules += range.end - range.start;
        self.taken().each_range(count);
        self.head().dirty.fetch_add(granules, Ordering::SeqCst);
        self.head().old.fetch_add(granules, Ordering::SeqCst);
    }

    pub(super) fn taken(&self) -> &BitSet {
        let current = self.head().current.load(Ordering::SeqCst) & 1;
        &self.sets[1 - current as usize]
    }

    /// Notes that a range of the device is stored to.
    #[inline]
    pub(super) fn note(&self, at: u64, len: u64) {
        let head = self.head();
        let set = &self.sets[head.current.load(Ordering::SeqCst) as usize & 1];
        let new = set.insert(at / GRANULE..(at + len).div_ceil(GRANULE));
        if new > 0 {
            head.dirty.fetch_add(new, Ordering::Relaxed);
            if !self.is_new(units(at..at + len)) {
                head.old.fetch_add(new, Ordering::Relaxed);
                if head.taken_blindly.load(Ordering::Relaxed) != 0 {
                    self.note_whole(set, units(at..at + len));
                }
            }
        }
    }

    /// Of units that were taken blindly all goes into the record, once: disks may hold something
    /// else around what is stored.
    #[cold]
    fn note_whole(&self, set: &BitSet, units: Range<u64>) {
        let taken = units.filter(|&unit| self.blindly.clear_all(unit..unit + 1) > 0);
        let noted: u64 = taken.map(|unit| set.insert(granules_of(unit))).sum();
        self.head().dirty.fetch_add(noted, Ordering::Relaxed);
        self.head().old.fetch_add(noted, Ordering::Relaxed);
    }

    /// The version that was taken has all of some units, and so has the next one if it fails.
    /// Nobody stores.
    pub fn take_whole(&self, whole: Range<u64>) {
        units(whole).for_each(|unit| _ = self.taken().insert(granules_of(unit)));
    }

    /// The record of the version that was just taken has checksums of some units. Nobody stores.
    /// Until the disk has the next version they are not new again, though they may be free by now:
    /// what is freed before a version has it stays new (C16).
    pub fn note_beside(&self, whole: Range<u64>) {
        let current = self.head().current.load(Ordering::SeqCst) as usize & 1;
        self.freed[current].insert(units(whole));
    }

    /// Units that were free are being used for something new from now on. (C11)
    pub fn note_taken(&self, at: u64, len: u64) {
        let units = units(at..at + len);
        self.hold_sums(&units);
        let _entered = self.enter_gate();
        self.forget_sums(units.clone());
        if self.head().blind.load(Ordering::SeqCst) != 0 {
            return self.note_taken_blindly(units);
        }
        if !self.was_freed(units.clone()) {
            self.new.set_all(units);
            return;
        }
        for unit in units.filter(|&unit| !self.was_freed(unit..unit + 1)) {
            self.new.set_all(unit..unit + 1);
        }
    }

    #[cold]
    fn note_taken_blindly(&self, units: Range<u64>) {
        if self.legs.is_some() || self.has_sums() {
            self.blindly.set_all(units);
            self.head().taken_blindly.store(1, Ordering::Relaxed);
        }
    }

    /// Whether any of these units was freed since the version that the disk has for sure.
    pub(super) fn was_freed(&self, units: Range<u64>) -> bool {
        self.freed_since().any(|set| set.has_any(units.clone()))
    }

    /// What was freed since that version. One that is on its way may not get there: then the
    /// journal must have room for what these units hold.
    fn freed_since(&self) -> impl Iterator<Item = &BitSet> {
        let current = self.head().current.load(Ordering::SeqCst) as usize & 1;
        let is_settled = self.head().settled.load(Ordering::SeqCst) != 0;
        let before = (!is_settled).then_some(&self.freed[1 - current]);
        iter::once(&self.freed[current]).chain(before)
    }

    /// Units that nothing refers to any more are about to be free. (C11)
    pub fn note_freed(&self, at: u64, len: u64) {
        let _entered = self.enter_gate();
        let set = self.head().current.load(Ordering::SeqCst) as usize & 1;
        for (word, mask) in masks(units(at..at + len)) {
            // What means nothing yet may be used for something else at once.
            let new = self.new.word(word) & !self.away.word(word);
            if mask & !new != 0 {
                self.freed[set].insert_word(word, mask & !new);
            }
        }
    }

    /// Whether what is stored to free units has to go through the journal: the version that the
    /// disk has may need what they hold, or the journal has something of them.
    pub fn is_spent(&self, at: u64, len: u64) -> bool {
        let units = units(at..at + len);
        self.was_freed(units.clone()) || self.away.has_any(units)
    }

    /// As [`Image::is_spent`], of the 64 units from a place on, each a bit.
    pub fn spent_of(&self, at: u64) -> u64 {
        let word = (at / UNIT_SIZE / u64::from(u64::BITS)) as usize;
        let freed = self.freed_since().map(|set| set.word(word));
        freed.fold(self.away.word(word), |all, some| all | some)
    }

    /// Calls `found` with what was freed before the version that was written last was taken, and is
    /// spent no more. Nobody takes a version meanwhile.
    pub fn each_regained(&self, mut found: impl FnMut(Range<u64>)) {
        let current = self.head().current.load(Ordering::SeqCst) as usize & 1;
        self.freed[1 - current].each_range_outside(&self.away, |units| {
            found(units.start * UNIT_SIZE..units.end * UNIT_SIZE);
        });
    }

    /// What was taken and freed so far is not known: somebody has found out again what is free.
    /// That is what the disk has, if nothing has been stored since.
    pub fn unsettle(&self) {
        let blind = u64::from(!self.is_clean());
        self.head().blind.store(blind, Ordering::SeqCst);
    }
}
