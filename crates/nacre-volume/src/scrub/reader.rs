//! What a reader finds damaged in memory that came from a disk (D127).

use std::iter;
use std::ops::Range;

use nacre_media::{Copy, Image};
use nacre_types::{UNIT_SIZE, VolumeOffset};

use super::Judge;
use crate::disk::LegsDisk;
use crate::layout::DATA_START;
use crate::volume::Volume;

const UNIT: usize = UNIT_SIZE as usize;
/// So often it is read again, as versions are made meanwhile.
const TRIES: usize = 3;

/// Units of which a part was found damaged, in memory and on the disks.
struct Met {
    /// Where they are on the disks.
    units: Range<u64>,
    /// The part, in bytes of the units.
    part: Range<usize>,
    memory: Vec<u8>,
    copies: Vec<Copy>,
}

impl Met {
    /// `None`: memory may be newer than what the disks hold, or changes while it is read.
    fn read(volume: &Volume, range: &Range<VolumeOffset>) -> Option<Self> {
        let (legs, image) = (volume.legs()?, volume.head.media.image()?);
        let first = range.start.0 / UNIT_SIZE * UNIT_SIZE;
        let end = range.end.0.next_multiple_of(UNIT_SIZE);
        let units = first + DATA_START..end + DATA_START;
        let version = volume.durable_version();
        let is_home = || image.has_rest_home(units.clone());
        if !is_home() {
            return None;
        }
        let mut memory = vec![0; (end - first) as usize];
        volume.read(VolumeOffset(first), &mut memory);
        let copies = read_all(legs, &units);
        (is_home() && volume.durable_version() == version).then_some(Self {
            part: (range.start.0 - first) as usize..(range.end.0 - first) as usize,
            units,
            memory,
            copies,
        })
    }

    fn part_of<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        &bytes[self.part.clone()]
    }

    /// The copy that memory came from, and the one whose part a judge says to be right, if they are
    /// not the same.
    fn judged(&self, at: VolumeOffset, judge: &mut Judge<'_>) -> Option<(&Copy, &Copy)> {
        let copies = self.copies.iter().map(|copy| &copy.bytes);
        let all = iter::once(&self.memory).chain(copies);
        let parts: Vec<&[u8]> = all.map(|bytes| self.part_of(bytes)).collect();
        let right = self.copies.get(judge(at, &parts)?.checked_sub(1)?)?;
        let source = self.copies.iter().find(|copy| {
            let part = self.part_of(&copy.bytes);
            part == parts[0] && part != self.part_of(&right.bytes)
        })?;
        Some((source, right))
    }

    /// Disks that hold something else.
    fn wrong(&self, right: &Copy) -> Vec<[u8; 16]> {
        let is_wrong = |copy: &&Copy| self.part_of(&copy.bytes) != self.part_of(&right.bytes);
        let wrong = self.copies.iter().filter(is_wrong);
        wrong.map(|copy| copy.id).collect()
    }

    /// What is in memory and not from that disk was stored since, and stays.
    fn correct(&self, image: &Image, source: &Copy, right: &Copy) {
        for at in (0..self.memory.len()).step_by(UNIT) {
            let unit = at..at + UNIT;
            let part = self.part.start.max(unit.start)..self.part.end.min(unit.end);
            image.correct_beside_stores(
                self.units.start + at as u64,
                part.start - at..part.end - at,
                &source.bytes[unit.clone()],
                &right.bytes[unit],
            );
        }
    }
}

/// What the disks hold that are current. One that cannot be read is left to who reads it next.
pub(super) fn read_all(legs: &LegsDisk, units: &Range<u64>) -> Vec<Copy> {
    let current = legs.current_in_turn(units.start).unwrap_or_default();
    let copies = current.into_iter();
    copies
        .filter_map(|leg| legs.copy_on(leg, units.clone()))
        .collect()
}

impl Volume {
    /// As [`Volume::repair`], of disks. The reader may be in the middle of anything, so no disk is
    /// written: what was wrong is read last from now on, and scrubbed.
    #[cold]
    pub(super) fn repair_memory(&self, range: Range<VolumeOffset>, judge: &mut Judge<'_>) -> bool {
        let (Some(legs), Some(image)) = (self.legs(), self.head.media.image()) else {
            return false;
        };
        let met = (0..TRIES).find_map(|_| Met::read(self, &range));
        let Some(met) = met.filter(|_| self.is_common(&range)) else {
            return false;
        };
        let Some((source, right)) = met.judged(range.start, judge) else {
            return false;
        };
        legs.doubt(&met.wrong(right));
        met.correct(image, source, right);
        if let Some(shared) = legs.shared() {
            shared.suspect(legs.spans().of(met.units.start));
        }
        let mut now = vec![0; met.part.len()];
        self.read(range.start, &mut now);
        now == met.part_of(&right.bytes)
    }

    /// Whether all of a range has copies.
    fn is_common(&self, range: &Range<VolumeOffset>) -> bool {
        let common = self.spans();
        let last = VolumeOffset(range.end.0.saturating_sub(1));
        common.contains(&self.span_of(range.start)) && common.contains(&self.span_of(last))
    }
}
