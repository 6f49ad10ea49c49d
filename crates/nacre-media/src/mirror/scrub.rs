//! Comparing legs, and making them agree where one holds other bytes than the others.
//!
//! A span that nobody has stored to is read at once, under the lock of bits: its seal tells which
//! leg is right, and it gets one if the legs agree. A span that was stored to is made quiet for the
//! moment: its bits are taken back, so the next store waits for the lock of bits. Where programs
//! store through mappings, or a leg lacks something, each unit is compared under its lock.

use std::ops::Range;

use nacre_types::{DeviceOffset, StoreKind, UNIT_SIZE, crc32c};

use super::shared::Count;
use super::states::{LegState, States};
use super::{Leg, Mirror};
use crate::error::MediaFailed;
use crate::token::Unfenced;

const UNIT: usize = UNIT_SIZE as usize;
/// So many ways to put a span together from its legs are tried at most.
const MOST_WAYS: usize = 1 << 10;

/// What tells which copy of a unit is right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evidence {
    /// The seal of its span.
    Seal,
    /// Checksums in what the unit holds.
    Contents,
    /// More copies hold it than anything else.
    Majority,
    /// Nothing does, but the caller wants the copy of some leg.
    Asked,
}

/// Bytes of which copies differed, or which no copy has as they were.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Where on the devices.
    pub range: Range<u64>,
    /// What told which copy is right; they are equal now. `None`: nothing did.
    pub evidence: Option<Evidence>,
    /// Identities of the legs that held something else.
    pub wrong: Vec<[u8; 16]>,
}

/// Answers which of several copies of the unit at a place has the right contents, if it can tell.
pub type Judge<'r> = dyn FnMut(u64, &[&[u8]]) -> Option<usize> + 'r;

/// How differences are judged.
pub struct Rules<'r> {
    /// Looks at the contents.
    pub judge: &'r mut Judge<'r>,
    /// The leg whose contents are taken where nothing tells; if it is not there, what programs read
    /// are. `None`: all copies stay.
    pub trusted: Option<[u8; 16]>,
}

impl Rules<'_> {
    /// The copy that is taken where nothing tells.
    fn taken(&self, copies: &Copies<'_>) -> Option<usize> {
        let id = self.trusted?;
        let named = copies.all.iter().position(|copy| copy.leg.id == id);
        Some(named.unwrap_or(0))
    }
}

/// What came of a span.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scrubbed {
    /// Where copies differed.
    pub found: Vec<Finding>,
    /// Bytes whose seal holds, or that got one.
    pub sealed: u64,
    /// Bytes that differ because programs store to mappings of them; they come to all copies with
    /// the next msync or end.
    pub mapped: u64,
}

/// One leg and what it holds.
struct Copy<'m> {
    slot: usize,
    leg: &'m Leg,
    bytes: Vec<u8>,
}

/// Copies of one range, the one that programs read first.
struct Copies<'m> {
    range: Range<u64>,
    all: Vec<Copy<'m>>,
}

impl Mirror {
    /// Compares the legs that are current, in one span of [`Mirror::spans`], and makes them agree
    /// where something tells which one is right.
    pub fn scrub(&self, span: u64, rules: &mut Rules<'_>) -> Result<Scrubbed, MediaFailed> {
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

    /// Compares a span with its seal, if it has one that counts, and repairs legs that hold
    /// something else. Nothing is sealed and nothing else is judged. A finding without evidence:
    /// no leg has what was sealed.
    pub fn verify(&self, span: u64) -> Result<Scrubbed, MediaFailed> {
        let mut verified = Scrubbed::default();
        self.verify_quiet(span, &mut verified);
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

    fn verify_quiet(&self, span: u64, verified: &mut Scrubbed) {
        let _changing = self.shared().lock_bits();
        if !self.is_quiet(span) {
            return;
        }
        let copies = self.copies(self.bytes_of_span(span));
        let legs = copies.all.iter().map(|copy| copy.leg);
        let Some(seal) = self.seal_of(span, legs) else {
            return;
        };
        match self.as_sealed(seal, &copies, &mut verified.found) {
            Some(whole) => verified.sealed = whole.len() as u64,
            None => verified.found.push(copies.lost(None)),
        }
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
        slots.filter_map(|slot| Some((slot, self.legs[slot].get()?)))
    }

    /// What the legs that are current hold. One that fails meanwhile is left out, and dropped.
    fn copies(&self, range: Range<u64>) -> Copies<'_> {
        let states = self.states();
        let mut all = Vec::new();
        for (slot, leg) in self.current(states) {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            leg.data.copy_out(DeviceOffset(range.start), &mut bytes);
            match leg.data.watched.is_lost() || leg.data.health().is_err() {
                true => self.lose(slot, LegState::Failed),
                false => all.push(Copy { slot, leg, bytes }),
            }
        }
        all.sort_by_key(|copy| copy.slot != states.read_slot());
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
        let copies = self.copies(self.bytes_of_span(span));
        let legs = || copies.all.iter().map(|copy| copy.leg);
        let seal = was_quiet.then(|| self.seal_of(span, legs())).flatten();
        if let Some(whole) = self.settled(&copies, seal, rules, scrubbed) {
            let durable = match was_quiet {
                true => legs().all(|leg| leg.data.fence(Unfenced::nothing()).is_ok()),
                false => self.forget_span(span, &copies),
            };
            // A leg that fails is noticed by the fence of who scrubs.
            if durable && self.set_seal((span, crc32c(&whole)), legs()).is_ok() {
                scrubbed.sealed += whole.len() as u64;
            }
        }
        true
    }

    /// Makes durable what the legs of a span agree on and clears its bits, if no leg was left out.
    fn forget_span(&self, span: u64, copies: &Copies<'_>) -> bool {
        let states = self.states();
        let regions: Vec<u64> = self.regions_of(span).collect();
        copies.all.len() == states.stored_to().count() && self.forget(states, &regions)
    }

    /// What all legs hold now in a range that nobody stores to. `None`: they do not agree, or have
    /// lost what was sealed.
    fn settled(
        &self,
        copies: &Copies<'_>,
        seal: Option<u32>,
        rules: &mut Rules<'_>,
        scrubbed: &mut Scrubbed,
    ) -> Option<Vec<u8>> {
        let first = &copies.all.first()?.bytes;
        let sealed = seal.and_then(|seal| self.as_sealed(seal, copies, &mut scrubbed.found));
        if sealed.is_some() {
            return sealed;
        }
        if seal.is_some() && copies.agree() {
            let taken = rules.taken(copies);
            let evidence = taken.map(|_| Evidence::Asked);
            scrubbed.found.push(copies.lost(evidence));
            return taken.map(|_| first.clone());
        }
        let mut whole = Vec::with_capacity(first.len());
        for at in copies.units() {
            whole.extend_from_slice(self.judged(at, copies, rules, scrubbed).unwrap_or(&[]));
        }
        (whole.len() == first.len()).then_some(whole)
    }

    /// What a range held when it was sealed; all legs hold it now. `None`: no leg has it.
    fn as_sealed(
        &self,
        seal: u32,
        copies: &Copies<'_>,
        found: &mut Vec<Finding>,
    ) -> Option<Vec<u8>> {
        let right = copies.put_together(seal)?;
        for at in copies.units() {
            let unit = copies.unit_of(&right, at);
            found.extend(self.make(at, (copies, unit), Evidence::Seal));
        }
        Some(right)
    }

    /// Each unit of a region under its lock.
    fn scrub_busy(&self, region: u64, rules: &mut Rules<'_>, scrubbed: &mut Scrubbed) {
        for at in self.bytes_of(region).step_by(UNIT) {
            let _held = self.lock(at, UNIT_SIZE);
            let copies = self.copies(at..at + UNIT_SIZE);
            match self.shared().mapped.has(region) && !copies.agree() {
                true => scrubbed.mapped += UNIT_SIZE,
                false => {
                    self.judged(at, &copies, rules, scrubbed);
                }
            }
        }
    }

    /// The right contents of a unit, which all legs hold now. `None`: nothing tells.
    fn judged<'c>(
        &self,
        at: u64,
        copies: &'c Copies<'_>,
        rules: &mut Rules<'_>,
        scrubbed: &mut Scrubbed,
    ) -> Option<&'c [u8]> {
        let units = copies.of_unit(at);
        let read = *units.first()?;
        if units.iter().all(|unit| *unit == read) {
            return Some(read);
        }
        let by_contents = (rules.judge)(at, &units).map(|right| (right, Evidence::Contents));
        let by_number = || majority(&units).map(|right| (right, Evidence::Majority));
        let asked = rules.taken(copies).map(|taken| (taken, Evidence::Asked));
        let Some((right, evidence)) = by_contents.or_else(by_number).or(asked) else {
            scrubbed.found.push(Finding {
                range: at..at + UNIT_SIZE,
                evidence: None,
                wrong: Vec::new(),
            });
            return None;
        };
        let right = units[right];
        let found = self.make(at, (copies, right), evidence);
        scrubbed.found.extend(found);
        Some(right)
    }

    /// Gives a unit the right contents on all legs; says where it had others.
    fn make(
        &self,
        at: u64,
        (copies, right): (&Copies<'_>, &[u8]),
        evidence: Evidence,
    ) -> Option<Finding> {
        let wrong: Vec<[u8; 16]> = copies
            .all
            .iter()
            .filter(|copy| copies.unit_of(&copy.bytes, at) != right)
            .map(|copy| copy.leg.id)
            .collect();
        if wrong.is_empty() {
            return None;
        }
        // Those that are being rebuilt get it, too: they may have got what was wrong.
        for leg in self
            .states()
            .stored_to()
            .filter_map(|slot| self.legs[slot].get())
        {
            let mut stored = leg.data.write(DeviceOffset(at), right, StoreKind::Data);
            stored.join(Unfenced::nothing());
        }
        crate::arch::order_stores();
        Some(Finding {
            range: at..at + UNIT_SIZE,
            evidence: Some(evidence),
            wrong,
        })
    }
}

impl Copies<'_> {
    fn units(&self) -> impl Iterator<Item = u64> + use<> {
        self.range.clone().step_by(UNIT)
    }

    /// The bytes of a unit among those of the whole range.
    fn unit_of<'b>(&self, bytes: &'b [u8], at: u64) -> &'b [u8] {
        let skip = (at - self.range.start) as usize;
        &bytes[skip..skip + UNIT]
    }

    fn of_unit(&self, at: u64) -> Vec<&[u8]> {
        let units = self.all.iter().map(|copy| self.unit_of(&copy.bytes, at));
        units.collect()
    }

    /// What was sealed is on no leg.
    fn lost(&self, evidence: Option<Evidence>) -> Finding {
        Finding {
            range: self.range.clone(),
            evidence,
            wrong: self.all.iter().map(|copy| copy.leg.id).collect(),
        }
    }

    fn agree(&self) -> bool {
        let mut pairs = self.all.windows(2);
        pairs.all(|pair| pair[0].bytes == pair[1].bytes)
    }

    /// What was sealed, out of what the copies hold: of each unit in which they differ one of them
    /// has it, if not too many differ.
    fn put_together(&self, seal: u32) -> Option<Vec<u8>> {
        let fits = |bytes: &[u8]| crc32c(bytes) == seal;
        if let Some(copy) = self.all.iter().find(|copy| fits(&copy.bytes)) {
            return Some(copy.bytes.clone());
        }
        let differ = |at: &u64| {
            let units = self.of_unit(*at);
            units.windows(2).any(|pair| pair[0] != pair[1])
        };
        let differing: Vec<u64> = self.units().filter(differ).collect();
        let copies = self.all.len();
        let ways = copies.checked_pow(differing.len() as u32)?;
        if ways > MOST_WAYS {
            return None;
        }
        let mut bytes = self.all.first()?.bytes.clone();
        (1..ways).find_map(|way| {
            let mut way = way;
            for at in &differing {
                let unit = self.unit_of(&self.all[way % copies].bytes, *at);
                let skip = (at - self.range.start) as usize;
                bytes[skip..skip + UNIT].copy_from_slice(unit);
                way /= copies;
            }
            fits(&bytes).then(|| bytes.clone())
        })
    }
}

/// The contents that more than half of the copies have.
fn majority(units: &[&[u8]]) -> Option<usize> {
    let alike = |one: &&[u8]| units.iter().filter(|other| *other == one).count();
    units.iter().position(|unit| alike(unit) * 2 > units.len())
}
