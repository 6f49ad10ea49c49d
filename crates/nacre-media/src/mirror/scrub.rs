//! Comparing legs, and making them agree where one holds other bytes than the others.
//!
//! A span that nobody has stored to since it was sealed is read while others store elsewhere. If
//! that does not settle it, it is read under the lock of bits: its seal tells which leg is right,
//! and it gets one if the legs agree. A span that was stored to is made quiet for the moment: its
//! bits are taken back, so the next store waits for the lock of bits. Where programs store through
//! mappings, or a leg lacks something, each unit is compared under its lock.

use std::ops::Range;

use nacre_types::{DeviceOffset, StoreKind, UNIT_SIZE, crc32c};

use super::shared::Count;
use super::states::{LegState, States};
use super::sum::Sum;
use super::{Leg, Mirror};
use crate::compare::{Copies, Copy, Finding, Rules, Scrubbed};
use crate::error::MediaFailed;

use crate::token::Unfenced;

const UNIT: usize = UNIT_SIZE as usize;

impl Mirror {
    /// Compares the legs that are current, in one span of [`Mirror::spans`], and makes them agree
    /// where something tells which one is right.
    pub fn scrub(&self, span: u64, rules: &mut Rules<'_>) -> Result<Scrubbed, MediaFailed> {
        if let Some(scrubbed) = self.as_sealed(span) {
            return Ok(scrubbed);
        }
        let mut scrubbed = Scrubbed::default();
        if !self.scrub_quiet(span, rules, &mut scrubbed) {
            for region in self.regions_of(span) {
                self.scrub_busy(region, rules, &mut scrubbed);
            }
        }
        self.count_repaired(span, &scrubbed.found);
        self.fence()?;
        Ok(scrubbed)
    }

    /// What is said of a span of which all legs hold what was sealed. A store that comes meanwhile
    /// makes them differ from that, or comes behind what was read: then it notes itself.
    fn as_sealed(&self, span: u64) -> Option<Scrubbed> {
        let (seal, bytes) = (self.seal_that_counts(span)?, self.spans.bytes(span));
        let sealed = bytes.end - bytes.start;
        (self.agreed(bytes) == Some(seal)).then(|| {
            self.shared().clear_suspect(span);
            Scrubbed {
                sealed,
                ..Scrubbed::default()
            }
        })
    }

    /// What a span was when all legs were sealed, if nobody has stored to it since.
    fn seal_that_counts(&self, span: u64) -> Option<u32> {
        let _changing = self.shared().lock_bits();
        let seal = self.seal_of(span, self.current_legs())?;
        let has_it = |leg| self.seal_of(span, std::iter::once(leg)) == Some(seal);
        (self.is_quiet(span) && self.current_legs().all(has_it)).then_some(seal)
    }

    /// Compares a span with its seal, if it has one that counts, and repairs legs that hold
    /// something else. Nothing is sealed and nothing else is judged. A finding without evidence:
    /// no leg has what was sealed.
    pub fn verify(&self, span: u64) -> Result<Scrubbed, MediaFailed> {
        self.verify_with(span, None)
    }

    /// As [`Mirror::verify`]. Where no leg that is current has what was sealed, a `further` one
    /// may: one that is about to be rebuilt.
    pub(super) fn verify_with(
        &self,
        span: u64,
        further: Option<&Leg>,
    ) -> Result<Scrubbed, MediaFailed> {
        let mut verified = Scrubbed::default();
        self.verify_quiet(span, further, &mut verified);
        self.count_repaired(span, &verified.found);
        self.fence()?;
        Ok(verified)
    }

    fn count_repaired(&self, span: u64, found: &[Finding]) {
        let repaired = found.iter().filter(|one| one.evidence.is_some()).count();
        let shared = self.shared();
        shared.count(Count::Repaired, repaired as u64);
        shared.clear_suspect(span);
        if repaired > 0 {
            shared.move_seal_epoch();
        }
    }

    fn verify_quiet(&self, span: u64, further: Option<&Leg>, verified: &mut Scrubbed) {
        let _changing = self.shared().lock_bits();
        if !self.is_quiet(span) {
            return;
        }
        let bytes = self.spans.bytes(span);
        let Some(seal) = self.seal_of(span, self.current_legs()) else {
            return;
        };
        if self.agreed(bytes.clone()) == Some(seal) {
            verified.sealed = bytes.end - bytes.start;
            return;
        }
        let len = bytes.end - bytes.start;
        let mut copies = self.held(bytes);
        let mut make = |at: u64, right: &[u8]| self.make(at, right);
        let known = copies.as_sealed(seal, &mut make, &mut verified.found);
        if known.is_some() || self.has_it(further, seal, &mut copies, &mut verified.found) {
            verified.sealed = len;
        } else {
            verified.found.push(copies.lost(None));
        }
        self.spare.put_all(copies);
    }

    /// Whether a leg that is about to be rebuilt has what was sealed; all have it then.
    fn has_it(
        &self,
        leg: Option<&Leg>,
        seal: u32,
        copies: &mut Copies,
        found: &mut Vec<Finding>,
    ) -> bool {
        let Some(leg) = leg else {
            return false;
        };
        let range = copies.range.clone();
        let mut bytes = self.spare.bytes((range.end - range.start) as usize);
        leg.data.copy_out(DeviceOffset(range.start), &mut bytes);
        let mut make = |at: u64, right: &[u8]| self.make(at, right);
        let further = Copy { id: leg.id, bytes };
        let (has_it, further) = copies.as_sealed_by(further, seal, &mut make, found);
        self.spare.put(further.bytes);
        has_it
    }

    /// Whether nobody has stored to a span since its legs were last known to agree. Who holds the
    /// lock of bits knows that nobody begins to.
    pub(super) fn is_quiet(&self, span: u64) -> bool {
        let regions = self.regions_of(span);
        let is_noted = |(_, leg): (usize, &Leg)| {
            let mut masks = crate::image::masks(regions.clone());
            masks.any(|(word, mask)| leg.bits(word) & mask != 0)
        };
        !self.shared().intents.has_any(regions.clone())
            && !self.current(self.states()).any(is_noted)
    }

    pub(super) fn current(&self, states: States) -> impl Iterator<Item = (usize, &Leg)> {
        let slots = states.slots_that(|state| state == LegState::Current);
        slots.filter_map(|slot| Some((slot, self.leg(slot)?)))
    }

    /// What the legs that are current hold. One that fails meanwhile is left out, and dropped.
    pub fn held(&self, range: Range<u64>) -> Copies {
        let states = self.states_now();
        let mut current: Vec<(usize, &Leg)> = self.current(states).collect();
        current.sort_by_key(|(slot, _)| *slot != states.read_slot());
        let mut all = Vec::new();
        for (slot, leg) in current {
            let mut bytes = self.spare.bytes((range.end - range.start) as usize);
            leg.data.copy_out(DeviceOffset(range.start), &mut bytes);
            if leg.data.watched.is_lost() || leg.data.health().is_err() {
                self.lose(slot, LegState::Failed);
                continue;
            }
            all.push(Copy { id: leg.id, bytes });
        }
        Copies { range, all }
    }

    /// Takes the bits of a span back, so that nobody stores there before the caller gives the lock
    /// of bits away. `false`: programs may store through mappings, or some leg lacks something.
    fn hold_off_stores(&self, span: u64) -> bool {
        let (shared, regions) = (self.shared(), self.regions_of(span));
        if shared.mapped.has_any(regions.clone()) || self.states().is_degraded() {
            return false;
        }
        // (M8)
        shared.move_seal_epoch();
        shared.intents.clear_all(regions);
        // Whoever saw a bit has stored by now.
        shared.wait_for_stores(|at, len| self.finish(at, len));
        !self.states().is_degraded()
    }

    /// `false`: the span cannot be made quiet, and nothing was done.
    fn scrub_quiet(&self, span: u64, rules: &mut Rules<'_>, scrubbed: &mut Scrubbed) -> bool {
        let _changing = self.shared().lock_bits();
        let was_quiet = self.is_quiet(span);
        if !was_quiet && !self.hold_off_stores(span) {
            return false;
        }
        let legs = || self.current_legs();
        let (count, bytes) = (legs().count(), self.spans.bytes(span));
        let seal = was_quiet.then(|| self.seal_of(span, legs())).flatten();
        let sum = self.agreed(bytes.clone());
        let right = sum.filter(|sum| seal.is_none_or(|seal| seal == *sum));
        if let Some(sum) = right.or_else(|| self.settled(bytes.clone(), seal, rules, scrubbed)) {
            let durable = match was_quiet {
                true => legs().all(|leg| leg.data.fence(Unfenced::nothing()).is_ok()),
                false => self.forget_span(span, count),
            };
            // A leg that fails is noticed by the fence of who scrubs.
            if durable && self.set_seal((span, sum), legs()).is_ok() {
                scrubbed.sealed += bytes.end - bytes.start;
            }
        }
        true
    }

    /// The checksum of what all hold now of a range that nobody stores to, if something tells what
    /// that is.
    fn settled(
        &self,
        range: Range<u64>,
        seal: Option<u32>,
        rules: &mut Rules<'_>,
        scrubbed: &mut Scrubbed,
    ) -> Option<u32> {
        let copies = self.held(range);
        let mut make = |at: u64, right: &[u8]| self.make(at, right);
        let whole = copies.settled(seal, rules, &mut make, scrubbed);
        let sum = whole.map(|whole| crc32c(&whole));
        self.spare.put_all(copies);
        sum
    }

    pub(super) fn current_legs(&self) -> impl Iterator<Item = &Leg> {
        self.current(self.states_now()).map(|(_, leg)| leg)
    }

    /// The checksum of what all current legs hold of a range. `None`: they differ, or one fails.
    pub(super) fn agreed(&self, range: Range<u64>) -> Option<u32> {
        let mut legs = self.current_legs().map(|leg| &leg.data);
        let (at, len) = (DeviceOffset(range.start), range.end - range.start);
        let (first, mut sum) = (legs.next()?, Sum::of(len));
        let second = legs.next().unwrap_or(first);
        let alike = sum.add(at, len, [first, second])
            && legs.all(|leg| Sum::of(len).add(at, len, [first, leg]));
        let is_well = |leg: &Leg| !leg.data.watched.is_lost() && leg.data.health().is_ok();
        (alike && self.current_legs().all(is_well)).then(|| sum.value())
    }

    /// Makes durable what the legs of a span agree on and clears its bits, if no leg was left out.
    fn forget_span(&self, span: u64, legs: usize) -> bool {
        let states = self.states();
        let regions: Vec<u64> = self.regions_of(span).collect();
        legs == states.stored_to().count() && self.forget(states, &regions)
    }

    /// Each unit of a region under its lock.
    fn scrub_busy(&self, region: u64, rules: &mut Rules<'_>, scrubbed: &mut Scrubbed) {
        for at in self.bytes_of(region).step_by(UNIT) {
            // What a death leaves is to be judged, and not to come from the leg that is read. (M3)
            let _held = self.lock(at, 0);
            let copies = self.held(at..at + UNIT_SIZE);
            match self.shared().mapped.has(region) && !copies.agree() {
                true => scrubbed.mapped += UNIT_SIZE,
                false => {
                    let mut make = |at: u64, right: &[u8]| self.make(at, right);
                    copies.judged(at, rules, &mut make, scrubbed);
                }
            }
            self.spare.put_all(copies);
        }
    }

    /// Gives a unit the right contents on all legs.
    pub(super) fn make(&self, at: u64, right: &[u8]) {
        // Those that are being rebuilt get it, too: they may have got what was wrong.
        for leg in self.states().stored_to().filter_map(|slot| self.leg(slot)) {
            let mut stored = leg.data.write(DeviceOffset(at), right, StoreKind::Data);
            stored.join(Unfenced::nothing());
        }
        crate::arch::order_stores();
    }
}
