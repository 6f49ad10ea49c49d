//! Comparing the copies of a pool.

mod alone;
pub(crate) mod disks;
mod doubted;
mod reader;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nacre_media::{
    Evidence, Finding, Image, LegFacts, LegState, MediaFailed, Rules, Scrubbed, SharedLegs, Spans,
};
use nacre_types::VolumeOffset;
use rustix::time::{ClockId, clock_gettime};

use crate::disk::Leg;
use crate::error::VolumeError;
use crate::layout::DATA_START;
pub use crate::scrub::disks::Usage;
pub(crate) use crate::scrub::doubted::{settle_doubted, settle_doubted_in};
use crate::volume::Volume;

/// Bytes of which copies differed, or which no copy has as they were.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// Where in the volume.
    pub range: Range<VolumeOffset>,
    /// What told which copy is right; they are equal now. `None`: nothing did.
    pub evidence: Option<Evidence>,
    /// Devices that held something else.
    pub wrong: Vec<PathBuf>,
}

/// Answers which of several copies of the unit at a place has the right contents, if it can tell.
pub type Judge<'j> = dyn FnMut(VolumeOffset, &[&[u8]]) -> Option<usize> + 'j;

/// How differences are judged.
pub struct ScrubRules<'r> {
    /// Looks at the contents.
    pub judge: &'r mut Judge<'r>,
    /// Tells what is known of a unit. On disks, what nobody uses may differ.
    pub usage: &'r dyn Fn(VolumeOffset) -> Usage,
    /// Whether it is known what was never written: where that differs on disks, what most of them
    /// hold tells nothing.
    pub knows_written: bool,
    /// The device whose contents are taken where nothing tells.
    pub trusted: Option<&'r Path>,
}

/// What came of a part of the volume.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScrubbedSpan {
    /// Where copies differed.
    pub found: Vec<Difference>,
    /// Bytes whose checksum was right, or that got one.
    pub sealed: u64,
    /// Bytes that differ because programs store to mappings of them.
    pub mapped: u64,
}

impl Volume {
    fn division(&self) -> Option<&Spans> {
        match self.mirror() {
            Some(mirror) => Some(mirror.division()),
            None => self.legs().map(|legs| legs.spans()),
        }
    }

    /// How many spans the copies are compared in, and the bytes of one; none without copies.
    pub fn spans(&self) -> Range<u64> {
        self.division().map_or(0..0, Spans::all)
    }

    /// The span that a place of the volume lies in.
    pub fn span_of(&self, at: VolumeOffset) -> u64 {
        self.division()
            .map_or(0, |spans| spans.of(at.0 + DATA_START))
    }

    /// Devices that hold the same, with their paths. Of memory, the one that programs read is the
    /// first.
    fn named_copies(&self) -> Vec<([u8; 16], LegState, PathBuf)> {
        let Some(mirror) = self.mirror() else {
            let legs = self.legs().map(|legs| legs.devices());
            let named = |(state, leg): (LegState, Arc<Leg>)| {
                (leg.uuid.0, state, leg.device.path().to_owned())
            };
            return legs.into_iter().flatten().map(named).collect();
        };
        let mut facts = mirror.facts();
        facts.sort_by_key(|fact| fact.slot != mirror.states().read_slot());
        let named = |fact: &LegFacts| (fact.id, fact.state, path_of(fact));
        facts.iter().map(named).collect()
    }

    /// The devices whose copies are current, the one that programs read first.
    pub fn current_copies(&self) -> Vec<PathBuf> {
        let copies = self.named_copies().into_iter();
        let current = copies.filter(|(_, state, _)| *state == LegState::Current);
        current.map(|(_, _, path)| path).collect()
    }

    /// Sees to it that as much as possible can be compared: disks get what was stored before.
    pub fn prepare_scrub(&self) -> Result<(), VolumeError> {
        let is_compared = self.legs().is_some() || self.has_checksums();
        let image = self.head.media.image().filter(|_| is_compared);
        let done = image.map_or(Ok(()), Image::bring_home);
        done.map_err(|MediaFailed| VolumeError::WriteFailed(self.path().to_owned()))
    }

    /// Compares the copies in one span while others use the pool, and makes them agree where
    /// something tells which one is right, or take what the device `trusted` holds.
    pub fn scrub_span(
        &self,
        span: u64,
        rules: &mut ScrubRules<'_>,
    ) -> Result<ScrubbedSpan, VolumeError> {
        let named = |device: &Path| {
            let mut copies = self.named_copies().into_iter();
            // No device has zeros.
            let known = copies.find(|(_, _, path)| path == device);
            known.map_or([0; 16], |(id, _, _)| id)
        };
        let trusted = rules.trusted.map(named);
        let (judge, usage) = (&mut *rules.judge, rules.usage);
        let by_sums = self.judge_by_sums(span);
        let mut judge = |at: u64, copies: &[&[u8]]| {
            by_sums(at, copies).or_else(|| judge(in_volume(at), copies))
        };
        let mut rules = Rules {
            judge: &mut judge,
            by_number: rules.knows_written || self.mirror().is_some(),
            trusted,
        };
        let scrubbed = match (self.mirror(), self.legs()) {
            (Some(mirror), _) => self.of_mirror(mirror.scrub(span, &mut rules))?,
            (None, Some(legs)) => {
                self.scrub_disks(legs, span, (&mut rules, &|at| usage(in_volume(at))))?
            }
            (None, None) => Scrubbed::default(),
        };
        Ok(self.told(scrubbed))
    }

    /// Compares what disks that hold the same have in one span, of a pool that nobody else uses,
    /// and makes them agree where a seal or `judge` says which one is right.
    pub fn scrub_alone(&self, span: u64, judge: &mut Judge<'_>) -> Result<(), VolumeError> {
        let Some(legs) = self.legs() else {
            return Ok(());
        };
        let by_sums = self.judge_by_sums(span);
        let mut rules = Rules {
            judge: &mut |at, copies| by_sums(at, copies).or_else(|| judge(in_volume(at), copies)),
            by_number: true,
            trusted: None,
        };
        let usage = &|_| Usage::Used;
        self.scrub_disks_alone(legs, span, (&mut rules, usage))
            .map(drop)
    }

    /// What each device whose copy is current holds of a range, in no order. For who knows that
    /// nobody stores there; on disks, that all of it is at home.
    pub fn copies_of(&self, range: Range<VolumeOffset>) -> Vec<Vec<u8>> {
        let on_devices = range.start.0 + DATA_START..range.end.0 + DATA_START;
        let copies = match (self.mirror(), self.legs()) {
            (Some(mirror), _) => Some(mirror.held(on_devices)),
            // Who compares there is told of a disk that fails.
            (None, Some(legs)) => legs.copies(on_devices).ok(),
            (None, None) => None,
        };
        let all = copies.into_iter().flat_map(|copies| copies.all);
        all.map(|copy| copy.bytes).collect()
    }

    /// Compares one span with its checksum, if it has one and nobody has stored to it since, and
    /// makes copies agree that hold something else. A difference without evidence: no copy has what
    /// was there.
    pub fn verify_span(&self, span: u64) -> Result<ScrubbedSpan, VolumeError> {
        // What one disk alone holds has no copy to compare with.
        let has_copies = self.spans().contains(&span);
        let verified = match (self.mirror(), self.legs().filter(|_| has_copies)) {
            (Some(mirror), _) => self.of_mirror(mirror.verify(span))?,
            (None, Some(legs)) => self.verify_disks(legs, span, None)?,
            (None, None) => Scrubbed::default(),
        };
        Ok(self.told(verified))
    }

    fn of_mirror(&self, scrubbed: Result<Scrubbed, MediaFailed>) -> Result<Scrubbed, VolumeError> {
        scrubbed.map_err(|MediaFailed| VolumeError::WriteFailed(self.path().to_owned()))
    }

    fn told(&self, scrubbed: Scrubbed) -> ScrubbedSpan {
        ScrubbedSpan {
            found: self.with_paths(scrubbed.found),
            sealed: scrubbed.sealed,
            mapped: scrubbed.mapped,
        }
    }

    /// With the paths of the devices that were wrong.
    pub(crate) fn with_paths(&self, found: Vec<Finding>) -> Vec<Difference> {
        let named = match found.is_empty() {
            true => Vec::new(),
            false => self.named_copies(),
        };
        let path = |id: [u8; 16]| {
            let known = named.iter().find(|(known, _, _)| *known == id);
            known.map_or_else(PathBuf::new, |(_, _, path)| path.clone())
        };
        let told = |one: Finding| Difference {
            range: in_volume(one.range.start)..in_volume(one.range.end),
            evidence: one.evidence,
            wrong: one.wrong.into_iter().map(path).collect(),
        };
        found.into_iter().map(told).collect()
    }
}

/// Time since the machine started, in milliseconds.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

fn after(pause: Duration) -> u64 {
    now().saturating_add(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX))
}

impl Volume {
    /// Whether the caller is to scrub now: one process at a time, and not before `pause` is over
    /// since the last one did, or since the first one asked. Never without copies.
    pub fn take_scrub(&self, pause: Duration) -> bool {
        match (self.mirror(), self.shared_legs()) {
            (Some(mirror), _) => mirror.take_scrub(now(), after(pause)),
            (None, Some(shared)) => shared.take_scrub(now(), after(pause)),
            (None, None) => false,
        }
    }

    fn shared_legs(&self) -> Option<&SharedLegs> {
        self.legs()?.shared()
    }

    /// A span of which who read it found a copy that is not as it was sealed. It is told to one who
    /// asks, to be scrubbed.
    pub fn take_suspect(&self) -> Option<u64> {
        match self.mirror() {
            Some(mirror) => mirror.take_suspect(),
            None => self.shared_legs()?.take_suspect(),
        }
    }

    /// Makes copies agree in a range of metadata if they differ there and `judge` says which one is
    /// right; the first is the one that programs read. Answers whether it did (D113). On disks what
    /// is in memory is made right, and the others by the next scrub (D127).
    pub fn repair(&self, range: Range<VolumeOffset>, judge: &mut Judge<'_>) -> bool {
        let Some(mirror) = self.mirror() else {
            return self.repair_memory(range, judge);
        };
        let on_devices = range.start.0 + DATA_START..range.end.0 + DATA_START;
        mirror.repair(on_devices, &mut |at, copies| judge(in_volume(at), copies))
    }

    /// All copies were scrubbed, and agree.
    pub fn trust_copies(&self) {
        if let Some(legs) = self.legs() {
            legs.trust();
        }
    }

    /// A unit that somebody who read it repaired. It is told to one who asks.
    pub fn take_repaired(&self) -> Option<Difference> {
        let found = self.mirror()?.take_repaired()?;
        self.with_paths(vec![found]).pop()
    }

    /// Whoever scrubs says so every now and then: the pause begins again.
    pub fn keep_scrub(&self, pause: Duration) {
        match (self.mirror(), self.shared_legs()) {
            (Some(mirror), _) => mirror.keep_scrub(after(pause)),
            (None, Some(shared)) => shared.keep_scrub(after(pause)),
            (None, None) => {}
        }
    }

    /// Scrubs the span that so many bytes of metadata begin, before anybody uses the volume, and
    /// remembers which devices had them wrong. What else differs may be free (D82).
    pub fn scrub_first(
        &self,
        at: VolumeOffset,
        len: u64,
        judge: &mut Judge<'_>,
    ) -> Result<(), VolumeError> {
        let mut rules = ScrubRules {
            judge,
            usage: &|_| Usage::Used,
            knows_written: true,
            trusted: None,
        };
        let found = self.scrub_span(self.span_of(at), &mut rules)?.found;
        let metadata = at.0..at.0 + len;
        let is_repaired =
            |one: &&Difference| one.evidence.is_some() && metadata.contains(&one.range.start.0);
        let repaired = found.iter().filter(is_repaired);
        let mut wrong: Vec<&PathBuf> = repaired.flat_map(|one| &one.wrong).collect();
        wrong.sort_unstable();
        wrong.dedup();
        if !wrong.is_empty() {
            // A second time is refused: the first counts.
            let _ = self.repaired.set(wrong.into_iter().cloned().collect());
        }
        Ok(())
    }

    /// The devices that this process has repaired before it used them.
    pub fn repaired_first(&self) -> &[PathBuf] {
        self.repaired.get().map_or(&[], Vec::as_slice)
    }
}

pub(crate) fn in_volume(at: u64) -> VolumeOffset {
    VolumeOffset(at.saturating_sub(DATA_START))
}

fn path_of(fact: &LegFacts) -> PathBuf {
    let device = fact.device.as_ref();
    device.map_or_else(PathBuf::new, |device| device.path().to_owned())
}
