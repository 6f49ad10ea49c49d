//! Units that all disks hold, where each holds others alone (D80): the first ones of the volume.
//!
//! They are for metadata, and for contents that are to be on all disks. They are taken as units of
//! a volume of their own; nobody else gets them.

use nacre_types::{UNIT_SIZE, UnitNo};

use super::word::WORD;
use super::{Allocator, Run, Special};

impl Special<'_> {
    pub(super) fn common(self) -> u64 {
        let placement = self.volume.placement();
        placement.map_or(0, |placement| placement.common())
    }
}

impl Allocator<'_> {
    /// How many units all disks hold; 0: none, or all.
    pub(crate) fn common(&self) -> u64 {
        self.special.map_or(0, Special::common)
    }

    /// The units for what a pool needs for itself.
    pub(super) fn for_metadata(&self) -> Self {
        match self.common() {
            0 => *self,
            _ => self.of_common(),
        }
    }

    /// The units that all disks hold.
    fn of_common(&self) -> Self {
        Self {
            bits: &self.bits[..(self.common() / WORD) as usize],
            special: None,
            ..*self
        }
    }

    /// As [`Allocator::take`], of what all disks hold.
    #[cold]
    #[inline(never)]
    pub(super) fn take_common(&self, goal: Option<UnitNo>, want: u64) -> Option<Run> {
        let among = |goal: &UnitNo| goal.0 < self.common();
        let run = self.of_common().take_anywhere(goal.filter(among), want)?;
        self.note_taken(run);
        Some(run)
    }

    /// As [`Allocator::take`], for what a pool needs for itself.
    #[inline]
    pub(crate) fn take_for_metadata(&self, goal: Option<UnitNo>, want: u64) -> Option<Run> {
        self.take_for(goal, want, || true)
    }

    /// Whether a unit was on a disk that is lost, and nowhere else.
    pub(crate) fn is_lost(&self, unit: UnitNo) -> bool {
        let is_lost = |special: Special<'_>| {
            unit.0 >= special.common() && special.volume.is_lost(unit.offset())
        };
        self.common() > 0 && self.special.is_some_and(is_lost)
    }

    /// Whether a device that fails where contents lie fails only who asks for these.
    pub(crate) fn fails_alone(&self, unit: UnitNo) -> bool {
        let alone = |special: Special<'_>| special.common() > 0;
        self.is_behind(unit) || self.special.is_some_and(alone)
    }

    /// Free units for contents that are to be on all disks, or for others.
    pub(crate) fn count_free_for(&self, kept: bool) -> u64 {
        let all = self.bits.len() as u64 * WORD;
        self.count_free_among(match kept {
            true => 0..self.common(),
            false => self.common()..all,
        })
    }

    /// Whether a unit is where contents of this kind should be, and how many of those behind it
    /// are as it is.
    pub(crate) fn suits(&self, unit: UnitNo, kept: bool) -> (bool, u64) {
        match unit.0 < self.common() {
            true => (kept, self.common() - unit.0),
            false => (!kept, u64::MAX),
        }
    }
}

const _: () = assert!(UNIT_SIZE * WORD <= nacre_types::BLOCK_SIZE);
