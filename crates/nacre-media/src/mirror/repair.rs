//! What a reader finds damaged on the leg that is read comes from another one (D113).

use std::ops::Range;

use nacre_types::{DeviceOffset, UNIT_SIZE, site};

use super::shared::Count;
use super::{Leg, Mirror};
use crate::compare::{Copies, Evidence, Finding, Judge};
use crate::shared_mutex::Held;

impl Mirror {
    /// Makes all legs hold the same in a range, at most a run of units long, if they differ there
    /// and `judge` says which one is right. Answers whether it did. The caller knows what lies
    /// there; `judge` is asked under locks, so it may load and nothing else. (M13)
    pub fn repair(&self, range: Range<u64>, judge: &mut Judge<'_>) -> bool {
        let is_usable = self.writable && self.is_up() && site::step();
        // Most who ask have met a change that was under way.
        if !is_usable || self.agreed(range.clone()).is_some() {
            return false;
        }
        let done = self.repair_locked(range, judge);
        // Who cannot make it durable has it right all the same, for now.
        done && self.fence().is_ok()
    }

    fn repair_locked(&self, range: Range<u64>, judge: &mut Judge<'_>) -> bool {
        let _changing = self.shared().lock_bits();
        let _stores = self.hold_units(&range);
        let copies = self.held(range);
        let bytes: Vec<&[u8]> = copies.all.iter().map(|copy| &copy.bytes[..]).collect();
        if copies.agree() {
            return false;
        }
        let right = judge(copies.range.start, &bytes).and_then(|right| bytes.get(right).copied());
        right.is_some_and(|right| self.put_right(&copies, right))
    }

    /// Nobody stores to the units of a range. They count as not stored to: what a death leaves is
    /// to be judged, and not to come from the leg that is read. (M3)
    fn hold_units(&self, range: &Range<u64>) -> Vec<Held<'_>> {
        let first = range.start / UNIT_SIZE * UNIT_SIZE;
        let units = (first..range.end).step_by(UNIT_SIZE as usize);
        units.map(|at| self.lock(at, 0)).collect()
    }

    /// Gives legs that hold something else the right contents. `false`: they do not keep it.
    fn put_right(&self, copies: &Copies, right: &[u8]) -> bool {
        let at = copies.range.start;
        // Those that are being rebuilt get it, too: they may have got what was wrong.
        for leg in self.states().stored_to().filter_map(|slot| self.leg(slot)) {
            leg.make_equal(at, right);
        }
        crate::arch::order_stores();
        let mut legs = self.current_legs();
        if !legs.all(|leg: &Leg| leg.data.has(DeviceOffset(at), right)) {
            return false;
        }
        let is_wrong = |id: &[u8; 16]| {
            let mut all = copies.all.iter();
            all.any(|copy| copy.id == *id && copy.bytes != right)
        };
        let shared = self.shared();
        let slots = self.states().stored_to();
        let wrong = slots.filter(|&slot| is_wrong(&shared.leg(slot)));
        shared.tell_repaired(
            at / UNIT_SIZE,
            wrong.fold(0, |slots, slot| slots | 1 << slot),
        );
        shared.count(Count::Repaired, 1);
        shared.move_seal_epoch();
        // Where one place is damaged there may be more.
        shared.suspect(self.spans.of(at));
        true
    }

    /// A unit that a reader repaired, told once.
    pub fn take_repaired(&self) -> Option<Finding> {
        let shared = self.shared.get().filter(|_| self.writable)?;
        let (unit, slots) = shared.take_repaired()?;
        let wrong = (0..super::SLOTS).filter(|slot| slots >> slot & 1 != 0);
        Some(Finding {
            range: unit * UNIT_SIZE..(unit + 1) * UNIT_SIZE,
            evidence: Some(Evidence::Contents),
            wrong: wrong.map(|slot| shared.leg(slot)).collect(),
        })
    }
}
