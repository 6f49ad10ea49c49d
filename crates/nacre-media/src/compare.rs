//! Comparing what several devices hold of the same bytes, and what tells which one is right.

use std::borrow::Cow;
use std::ops::Range;

use nacre_types::{UNIT_SIZE, crc32c};

use crate::spare::Spare;

const UNIT: usize = UNIT_SIZE as usize;
/// So many ways to put a span together from its copies are tried at most.
const MOST_WAYS: usize = 1 << 10;

/// What tells which copy of a unit is right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evidence {
    /// The seal of its span.
    Seal,
    /// Checksums of the unit, or in what it holds.
    Contents,
    /// More copies hold it than anything else.
    Majority,
    /// Units beside it, in which the same copies differ: what is written over is seldom one unit.
    Neighbours,
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
    /// Whether what more than half of the copies hold is right.
    pub by_number: bool,
    /// The device whose contents are taken where nothing tells; if it is not there, what programs
    /// read are. `None`: all copies stay.
    pub trusted: Option<[u8; 16]>,
}

/// Gives a unit the right contents on all devices.
pub type Make<'m> = dyn FnMut(u64, &[u8]) + 'm;

impl Rules<'_> {
    /// The copy that is taken where nothing tells.
    fn taken(&self, copies: &Copies) -> Option<usize> {
        let id = self.trusted?;
        let named = copies.all.iter().position(|copy| copy.id == id);
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

/// One device and what it holds.
pub struct Copy {
    /// Its identity.
    pub id: [u8; 16],
    /// What it holds.
    pub bytes: Vec<u8>,
}

/// Copies of one range, the one that programs read first.
pub struct Copies {
    /// Where it is, in whole units.
    pub range: Range<u64>,
    /// What the devices hold there.
    pub all: Vec<Copy>,
}

impl Spare<Vec<u8>> {
    /// So many bytes, whatever is in them.
    pub fn bytes(&self, len: usize) -> Vec<u8> {
        let kept = self.take().filter(|bytes| bytes.len() == len);
        kept.unwrap_or_else(|| vec![0; len])
    }

    /// What copies were compared in is for the next ones.
    pub fn put_all(&self, copies: Copies) {
        copies.all.into_iter().for_each(|copy| self.put(copy.bytes));
    }
}

impl Copies {
    /// Its units.
    pub fn units(&self) -> impl Iterator<Item = u64> + use<> {
        self.range.clone().step_by(UNIT)
    }

    /// The bytes of a unit among those of the whole range.
    pub fn unit_of<'b>(&self, bytes: &'b [u8], at: u64) -> &'b [u8] {
        let skip = (at - self.range.start) as usize;
        &bytes[skip..skip + UNIT]
    }

    /// What each copy has of a unit.
    pub fn of_unit(&self, at: u64) -> Vec<&[u8]> {
        let units = self.all.iter().map(|copy| self.unit_of(&copy.bytes, at));
        units.collect()
    }

    /// Whether copies of a unit differ.
    pub fn differ_in(&self, at: u64) -> bool {
        let units = self.of_unit(at);
        units.windows(2).any(|pair| pair[0] != pair[1])
    }

    /// Whether no copies differ.
    pub fn agree(&self) -> bool {
        let mut pairs = self.all.windows(2);
        pairs.all(|pair| pair[0].bytes == pair[1].bytes)
    }

    /// Takes a unit for alike, whatever it holds.
    pub fn pass_over(&mut self, at: u64) {
        let skip = (at - self.range.start) as usize;
        if let Some((first, others)) = self.all.split_first_mut() {
            let unit = &first.bytes[skip..skip + UNIT];
            for other in others {
                other.bytes[skip..skip + UNIT].copy_from_slice(unit);
            }
        }
    }

    /// What was sealed is on no device.
    pub fn lost(&self, evidence: Option<Evidence>) -> Finding {
        Finding {
            range: self.range.clone(),
            evidence,
            wrong: self.all.iter().map(|copy| copy.id).collect(),
        }
    }

    /// What all hold now in a range that nobody stores to. `None`: they do not agree, or have lost
    /// what was sealed.
    pub fn settled(
        &self,
        seal: Option<u32>,
        rules: &mut Rules<'_>,
        make: &mut Make<'_>,
        scrubbed: &mut Scrubbed,
    ) -> Option<Cow<'_, [u8]>> {
        let first = &self.all.first()?.bytes;
        let sealed = seal.and_then(|seal| self.as_sealed(seal, make, &mut scrubbed.found));
        if sealed.is_some() {
            return sealed;
        }
        if self.agree() {
            if seal.is_none() {
                return Some(first.into());
            }
            let taken = rules.taken(self);
            let evidence = taken.map(|_| Evidence::Asked);
            scrubbed.found.push(self.lost(evidence));
            return taken.map(|_| first.into());
        }
        let verdicts: Vec<Verdict> = self.units().map(|at| self.verdict(at, rules)).collect();
        let verdicts = by_neighbours(verdicts);
        let mut whole = Vec::with_capacity(first.len());
        for (at, verdict) in self.units().zip(verdicts) {
            let unit = self.settle_unit(at, verdict, rules, make, scrubbed);
            whole.extend_from_slice(unit.unwrap_or(&[]));
        }
        (whole.len() == first.len()).then_some(whole.into())
    }

    /// What a range held when it was sealed; all hold it now. `None`: no device has it.
    pub fn as_sealed(
        &self,
        seal: u32,
        make: &mut Make<'_>,
        found: &mut Vec<Finding>,
    ) -> Option<Cow<'_, [u8]>> {
        let right = self.put_together(seal)?;
        for at in self.units() {
            found.extend(self.made(at, self.unit_of(&right, at), Evidence::Seal, make));
        }
        Some(right)
    }

    /// As [`Copies::as_sealed`], with the help of a copy that does not count yet: of it nothing is
    /// told. Gives it back, and whether what was sealed is known.
    pub fn as_sealed_by(
        &mut self,
        further: Copy,
        seal: u32,
        make: &mut Make<'_>,
        found: &mut Vec<Finding>,
    ) -> (bool, Copy) {
        self.all.push(further);
        let mut made = Vec::new();
        let is_known = self.as_sealed(seal, make, &mut made).is_some();
        let further = self.all.remove(self.all.len() - 1);
        for one in &mut made {
            one.wrong.retain(|id| *id != further.id);
        }
        found.extend(made.into_iter().filter(|one| !one.wrong.is_empty()));
        (is_known, further)
    }

    /// The right contents of a unit, which all hold now. `None`: nothing tells.
    pub fn judged<'c>(
        &'c self,
        at: u64,
        rules: &mut Rules<'_>,
        make: &mut Make<'_>,
        scrubbed: &mut Scrubbed,
    ) -> Option<&'c [u8]> {
        let verdict = self.verdict(at, rules);
        self.settle_unit(at, verdict, rules, make, scrubbed)
    }

    /// What a unit tells for itself.
    fn verdict(&self, at: u64, rules: &mut Rules<'_>) -> Verdict {
        if !self.differ_in(at) {
            return Verdict::Alike;
        }
        let units = self.of_unit(at);
        let by_contents = (rules.judge)(at, &units).map(|right| (right, Evidence::Contents));
        let voted = || majority(&units).filter(|_| rules.by_number);
        let by_number = || voted().map(|right| (right, Evidence::Majority));
        let right = by_contents.or_else(by_number);
        right.map_or(Verdict::Unknown, |(right, why)| Verdict::Right(right, why))
    }

    /// Does with a unit what is known of it.
    fn settle_unit<'c>(
        &'c self,
        at: u64,
        verdict: Verdict,
        rules: &Rules<'_>,
        make: &mut Make<'_>,
        scrubbed: &mut Scrubbed,
    ) -> Option<&'c [u8]> {
        let asked = || Some((rules.taken(self)?, Evidence::Asked));
        let right = match verdict {
            Verdict::Alike => return Some(self.unit_of(&self.all.first()?.bytes, at)),
            Verdict::Right(right, evidence) => Some((right, evidence)),
            Verdict::Unknown => asked(),
        };
        let Some((right, evidence)) = right else {
            scrubbed.found.push(Finding {
                range: at..at + UNIT_SIZE,
                evidence: None,
                wrong: Vec::new(),
            });
            return None;
        };
        let right = self.unit_of(&self.all.get(right)?.bytes, at);
        let found = self.made(at, right, evidence, make);
        scrubbed.found.extend(found);
        Some(right)
    }

    /// Gives a unit the right contents everywhere; says where it had others.
    fn made(
        &self,
        at: u64,
        right: &[u8],
        evidence: Evidence,
        make: &mut Make<'_>,
    ) -> Option<Finding> {
        let wrong: Vec<[u8; 16]> = self
            .all
            .iter()
            .filter(|copy| self.unit_of(&copy.bytes, at) != right)
            .map(|copy| copy.id)
            .collect();
        if wrong.is_empty() {
            return None;
        }
        make(at, right);
        Some(Finding {
            range: at..at + UNIT_SIZE,
            evidence: Some(evidence),
            wrong,
        })
    }

    /// What was sealed, out of what the copies hold: of each unit in which they differ one of them
    /// has it, if not too many differ.
    fn put_together(&self, seal: u32) -> Option<Cow<'_, [u8]>> {
        let fits = |bytes: &[u8]| crc32c(bytes) == seal;
        if let Some(copy) = self.all.iter().find(|copy| fits(&copy.bytes)) {
            return Some(copy.bytes.as_slice().into());
        }
        let differing: Vec<u64> = self.units().filter(|at| self.differ_in(*at)).collect();
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
            fits(&bytes).then(|| bytes.clone().into())
        })
    }
}

/// What is known of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// All copies hold the same.
    Alike,
    /// Something tells that this copy is right.
    Right(usize, Evidence),
    /// They differ, and nothing tells.
    Unknown,
}

/// Damage comes in runs: something was written over a copy, or a part of it was not written. In a
/// run of units that all differ, what tells of some of them tells of the others, unless it
/// contradicts itself.
fn by_neighbours(mut units: Vec<Verdict>) -> Vec<Verdict> {
    for run in units.split_mut(|unit| *unit == Verdict::Alike) {
        let mut told = run.iter().filter_map(|unit| match unit {
            Verdict::Right(right, _) => Some(*right),
            _ => None,
        });
        let Some(right) = told
            .next()
            .filter(|right| told.all(|other| other == *right))
        else {
            continue;
        };
        let unknown = run.iter_mut().filter(|unit| **unit == Verdict::Unknown);
        unknown.for_each(|unit| *unit = Verdict::Right(right, Evidence::Neighbours));
    }
    units
}

/// The contents that more than half of the copies have.
fn majority(units: &[&[u8]]) -> Option<usize> {
    let alike = |one: &&[u8]| units.iter().filter(|other| *other == one).count();
    units.iter().position(|unit| alike(unit) * 2 > units.len())
}

#[cfg(test)]
mod tests {
    use super::Verdict::{Alike, Right, Unknown};
    use super::{Evidence, by_neighbours};

    #[test]
    fn evidence_in_a_run_tells_of_all_of_it() {
        let known = |right| Right(right, Evidence::Contents);
        let told = |right| Right(right, Evidence::Neighbours);
        let units = vec![Unknown, Alike, Unknown, known(1), Unknown, Alike, known(0)];
        let judged = by_neighbours(units);
        let expected = [Unknown, Alike, told(1), known(1), told(1), Alike, known(0)];
        assert_eq!(judged, expected);
    }

    #[test]
    fn evidence_that_contradicts_itself_tells_of_itself_alone() {
        let known = |right| Right(right, Evidence::Contents);
        let units = vec![known(1), Unknown, known(0), Unknown];
        assert_eq!(by_neighbours(units.clone()), units);
    }
}
