//! Comparing the copies of a pool.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nacre_media::{Evidence, Finding, LegFacts, LegState, MediaFailed, Mirror, Rules, Scrubbed};
use nacre_types::VolumeOffset;
use rustix::time::{ClockId, clock_gettime};

use crate::error::VolumeError;
use crate::layout::DATA_START;
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
    /// How many spans the copies are compared in, and the bytes of one; none without copies.
    pub fn spans(&self) -> Range<u64> {
        self.mirror().map_or(0..0, Mirror::spans)
    }

    /// The span that a place of the volume lies in.
    pub fn span_of(&self, at: VolumeOffset) -> u64 {
        let mirror = self.mirror();
        mirror.map_or(0, |mirror| mirror.span_of(at.0 + DATA_START))
    }

    /// The devices whose copies are current, the one that programs read first.
    pub fn current_copies(&self) -> Vec<PathBuf> {
        let Some(mirror) = self.mirror() else {
            return Vec::new();
        };
        let mut facts = mirror.facts();
        facts.retain(|fact| fact.state == LegState::Current);
        facts.sort_by_key(|fact| fact.slot != mirror.states().read_slot());
        facts.iter().map(path_of).collect()
    }

    /// Compares the copies in one span while others use the pool, and makes them agree where
    /// something tells which one is right, or take what the device `trusted` holds.
    pub fn scrub_span(
        &self,
        span: u64,
        judge: &mut Judge<'_>,
        trusted: Option<&Path>,
    ) -> Result<ScrubbedSpan, VolumeError> {
        let Some(mirror) = self.mirror() else {
            return Ok(ScrubbedSpan::default());
        };
        let mut judge = |at: u64, copies: &[&[u8]]| judge(in_volume(at), copies);
        let mut rules = Rules {
            judge: &mut judge,
            trusted: trusted.map(|device| id_of(mirror, device)),
        };
        self.scrubbed(mirror, mirror.scrub(span, &mut rules))
    }

    /// Compares one span with its checksum, if it has one and nobody has stored to it since, and
    /// makes copies agree that hold something else. A difference without evidence: no copy has what
    /// was there.
    pub fn verify_span(&self, span: u64) -> Result<ScrubbedSpan, VolumeError> {
        match self.mirror() {
            Some(mirror) => self.scrubbed(mirror, mirror.verify(span)),
            None => Ok(ScrubbedSpan::default()),
        }
    }

    fn scrubbed(
        &self,
        mirror: &Mirror,
        scrubbed: Result<Scrubbed, MediaFailed>,
    ) -> Result<ScrubbedSpan, VolumeError> {
        let scrubbed = scrubbed.map_err(|_| VolumeError::WriteFailed(self.path().to_owned()))?;
        let found = scrubbed.found.into_iter();
        Ok(ScrubbedSpan {
            found: found.map(|one| difference(mirror, one)).collect(),
            sealed: scrubbed.sealed,
            mapped: scrubbed.mapped,
        })
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
        let mirror = self.mirror();
        mirror.is_some_and(|mirror| mirror.take_scrub(now(), after(pause)))
    }

    /// A span of which who read it found a copy that is not as it was sealed. It is told to one who
    /// asks, to be scrubbed.
    pub fn take_suspect(&self) -> Option<u64> {
        self.mirror()?.take_suspect()
    }

    /// Whoever scrubs says so every now and then: the pause begins again.
    pub fn keep_scrub(&self, pause: Duration) {
        if let Some(mirror) = self.mirror() {
            mirror.keep_scrub(after(pause));
        }
    }

    /// Scrubs the span that the volume begins with, before anybody uses it, and remembers which
    /// devices were repaired.
    pub fn scrub_first(&self, judge: &mut Judge<'_>) -> Result<(), VolumeError> {
        let first = self.span_of(VolumeOffset(0));
        let found = self.scrub_span(first, judge, None)?.found;
        let repaired = found.iter().filter(|one| one.evidence.is_some());
        let mut wrong: Vec<&PathBuf> = repaired.flat_map(|one| &one.wrong).collect();
        wrong.sort_unstable();
        wrong.dedup();
        if let Some(mirror) = self.mirror().filter(|_| !wrong.is_empty()) {
            mirror.note_repaired(wrong.into_iter().cloned().collect());
        }
        Ok(())
    }
}

fn in_volume(at: u64) -> VolumeOffset {
    VolumeOffset(at.saturating_sub(DATA_START))
}

fn path_of(fact: &LegFacts) -> PathBuf {
    let device = fact.device.as_ref();
    device.map_or_else(PathBuf::new, |device| device.path().to_owned())
}

/// The identity of the leg on a device; no leg has zeros.
fn id_of(mirror: &Mirror, device: &Path) -> [u8; 16] {
    let facts = mirror.facts();
    let named = facts.iter().find(|fact| path_of(fact) == device);
    named.map_or([0; 16], |fact| fact.id)
}

fn difference(mirror: &Mirror, found: Finding) -> Difference {
    let facts = mirror.facts();
    let path = |id: [u8; 16]| {
        let fact = facts.iter().find(|fact| fact.id == id);
        fact.map_or_else(PathBuf::new, path_of)
    };
    Difference {
        range: in_volume(found.range.start)..in_volume(found.range.end),
        evidence: found.evidence,
        wrong: found.wrong.into_iter().map(path).collect(),
    }
}
