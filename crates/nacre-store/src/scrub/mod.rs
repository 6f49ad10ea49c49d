//! Comparing the copies of a pool, and making them agree where something tells which one is right.
//!
//! Other processes may work on the pool meanwhile.

mod gathered;
mod judge;
mod owners;
mod verify;

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use nacre_types::{ObjectId, UNIT_SIZE, UnitNo, VolumeOffset};
use nacre_volume::{Difference, Evidence, ScrubbedSpan, VolumeError, each};

use crate::store::Store;
pub use crate::tree::LongValue;
use gathered::gathered;
use judge::Judge;
pub use owners::Owner;
use owners::Owners;
pub use verify::Verified;

/// Most places that a scrub tells.
const MOST_TOLD: usize = 1000;
/// Most units that differed of which it remembers more than their number.
const MOST_KEPT: usize = 1 << 18;

/// How far a scrub has come, in spans of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Done so far.
    pub done: u64,
    /// To do, all in all.
    pub total: u64,
}

/// A place where copies differed, and whose it is.
#[derive(Clone, Debug)]
pub struct Damage {
    /// Where, and what came of it.
    pub difference: Difference,
    /// Its users.
    pub owners: Vec<(ObjectId, Owner)>,
}

/// What a scrub found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Places where copies differed.
    pub damages: Vec<Damage>,
    /// Such places that found no room in the list.
    pub more: u64,
    /// Bytes that differed and are equal now.
    pub repaired: u64,
    /// Bytes of which nothing tells what they should be.
    pub left: u64,
    /// Bytes whose checksum was right, or that got one.
    pub sealed: u64,
    /// Bytes that differ because programs store to mappings of them.
    pub mapped: u64,
    /// If anything differed: the device that was wrong least often.
    pub trusted: Option<PathBuf>,
}

/// What is done where nothing tells which copy is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doubtful {
    /// Nothing.
    Told,
    /// The copy is taken of a device that was wrong nowhere else; if that leaves a choice, the one
    /// that programs read.
    Repaired,
    /// What this device holds is taken.
    TakenFrom(PathBuf),
}

/// Compares all copies of an attached pool on so many threads, and makes them agree where something
/// tells which one is right, or as `wanted` says. `told` hears how far it is, and may break off.
pub fn scrub(
    store: &Store,
    threads: usize,
    wanted: &Doubtful,
    told: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Report, VolumeError> {
    scrub_on((store, threads), store.volume().spans(), wanted, told)
}

/// Compares what a disk holds that is alone with the checksums of units, on so many threads. What
/// is wrong is told, as nothing has what was there.
pub fn scrub_alone(
    store: &Store,
    threads: usize,
    told: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Report, VolumeError> {
    let volume = store.volume();
    volume.prepare_scrub()?;
    let found = Mutex::new(Vec::new());
    let total = volume.checked_spans();
    let one = |span| {
        let wrong = volume.wrong_in(span)?;
        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
        found.extend(wrong);
        Ok(ControlFlow::Continue(()))
    };
    each::<VolumeError>(0..total, threads, &one, &mut |done| {
        told(Progress { done, total })
    })?;
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_unstable();
    // What is free means nothing.
    found.retain(|at| !store.allocator().is_untaken(UnitNo(at.0 / UNIT_SIZE)));
    let difference = |at: VolumeOffset| Difference {
        range: at..VolumeOffset(at.0 + UNIT_SIZE),
        evidence: None,
        wrong: vec![volume.path().to_owned()],
    };
    Ok(Report::of(
        store,
        found.into_iter().map(difference).collect(),
    ))
}

/// As [`scrub`] on this thread, of some spans of the volume.
pub fn scrub_spans(
    store: &Store,
    spans: Range<u64>,
    wanted: &Doubtful,
    told: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Report, VolumeError> {
    scrub_on((store, 1), spans, wanted, told)
}

/// What was damaged on the copy that is read and repaired by who met it, since this was last asked.
pub fn repaired_by_readers(store: &Store) -> Report {
    let told = std::iter::from_fn(|| store.volume().take_repaired());
    Report::of(store, told.collect())
}

/// What spans were found to be, of which not all is known yet.
#[derive(Default)]
struct Compared {
    report: Report,
    found: Vec<Difference>,
    doubtful: BTreeSet<u64>,
}

impl Compared {
    /// Of doubtful spans, what was not repaired is told when it is known whose it is.
    fn keep(&mut self, span: u64, scrubbed: ScrubbedSpan) {
        self.report.sealed += scrubbed.sealed;
        self.report.mapped += scrubbed.mapped;
        if scrubbed.found.iter().any(|one| one.evidence.is_none()) {
            self.doubtful.insert(span);
        }
        let repaired = scrubbed.found.into_iter();
        let repaired = repaired.filter(|one| one.evidence.is_some());
        self.report.keep(&mut self.found, repaired);
    }

    /// Judges by who owns what, and again while that repairs anything: what is right now may lead
    /// to what nobody knew. Answers the owners.
    fn judged(&mut self, store: &Store) -> Result<Owners, VolumeError> {
        loop {
            let owners = Owners::of(store, &self.found, &self.doubtful);
            let before = self.report.repaired;
            for span in std::mem::take(&mut self.doubtful) {
                let mut scrubbed = Judge::new(store, Some(&owners)).scrub(span, None)?;
                // Counted already.
                scrubbed.mapped = 0;
                self.keep(span, scrubbed);
            }
            if self.report.repaired == before {
                return Ok(owners);
            }
        }
    }
}

/// Answers, too, whether it came to the end.
fn compare(
    (store, threads): (&Store, usize),
    spans: Range<u64>,
    told: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<(Compared, bool), VolumeError> {
    let compared = Mutex::new(Compared::default());
    let total = spans.end - spans.start;
    let one = |span| {
        let scrubbed = Judge::new(store, None).scrub(span, None)?;
        let mut compared = compared.lock().unwrap_or_else(PoisonError::into_inner);
        compared.keep(span, scrubbed);
        Ok(ControlFlow::Continue(()))
    };
    let is_all = each::<VolumeError>(spans, threads, &one, &mut |done| {
        told(Progress { done, total })
    })?;
    let compared = compared.into_inner();
    let mut compared = compared.unwrap_or_else(PoisonError::into_inner);
    compared.found.sort_by_key(|one| one.range.start);
    Ok((compared, is_all))
}

fn scrub_on(
    threads: (&Store, usize),
    spans: Range<u64>,
    wanted: &Doubtful,
    told: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Report, VolumeError> {
    let (store, _) = threads;
    store.volume().prepare_scrub()?;
    let (compared, is_all) = compare(threads, spans.clone(), told)?;
    let report = settle(store, compared, wanted)?;
    if is_all && spans == store.volume().spans() && report.left == 0 {
        store.volume().trust_copies();
    }
    Ok(report)
}

/// What is done where spans did not tell for themselves which copy is right.
fn settle(store: &Store, mut compared: Compared, wanted: &Doubtful) -> Result<Report, VolumeError> {
    if compared.found.is_empty() && compared.doubtful.is_empty() {
        return Ok(compared.report);
    }
    let owners = compared.judged(store)?;
    let Compared {
        mut report,
        mut found,
        doubtful,
    } = compared;
    let current = store.volume().current_copies();
    let taken = match wanted {
        Doubtful::Told => None,
        Doubtful::Repaired => most_trusted(&found, &current),
        Doubtful::TakenFrom(device) => Some(device),
    };
    for span in doubtful {
        let scrubbed = Judge::new(store, Some(&owners)).scrub(span, taken.map(PathBuf::as_path))?;
        report.sealed += scrubbed.sealed;
        report.keep(&mut found, scrubbed.found);
    }
    report.trusted = most_trusted(&found, &current).cloned();
    report.damages = gathered(found.into_iter().map(|one| owners.damage(one)));
    report.more += report.damages.len().saturating_sub(MOST_TOLD) as u64;
    report.damages.truncate(MOST_TOLD);
    Ok(report)
}

/// The device that something told to be wrong least often, the one that programs read first.
fn most_trusted<'d>(found: &[Difference], current: &'d [PathBuf]) -> Option<&'d PathBuf> {
    let is_told = |one: &&Difference| !matches!(one.evidence, None | Some(Evidence::Asked));
    let is_wrong = |one: &Difference, device| one.wrong.contains(device);
    current.iter().min_by_key(|&device| {
        let told = found.iter().filter(is_told);
        told.filter(|one| is_wrong(one, device)).count()
    })
}

impl Report {
    /// With what somebody found who compared spans with their checksums.
    pub(crate) fn of(store: &Store, found: Vec<Difference>) -> Self {
        let (mut report, mut kept) = (Self::default(), Vec::new());
        report.keep(&mut kept, found);
        if !kept.is_empty() {
            let owners = Owners::of(store, &kept, &BTreeSet::new());
            report.damages = gathered(kept.into_iter().map(|one| owners.damage(one)));
        }
        report
    }

    fn keep(&mut self, found: &mut Vec<Difference>, more: impl IntoIterator<Item = Difference>) {
        for one in more {
            let bytes = one.range.end.0 - one.range.start.0;
            match one.evidence {
                Some(_) => self.repaired += bytes,
                None => self.left += bytes,
            }
            match found.len() < MOST_KEPT {
                true => found.push(one),
                false => self.more += 1,
            }
        }
    }
}

/// The units of a difference.
fn units_of(difference: &Difference) -> impl Iterator<Item = UnitNo> + use<> {
    let (start, end) = (difference.range.start.0, difference.range.end.0);
    (start / UNIT_SIZE..end / UNIT_SIZE).map(UnitNo)
}
