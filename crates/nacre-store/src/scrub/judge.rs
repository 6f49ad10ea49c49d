//! Which of several copies of a unit is right, by the checksums in it.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::path::Path;

use nacre_types::{ObjectId, UNIT_SIZE, UNITS_PER_BLOCK, UnitNo, VolumeOffset};
use nacre_volume::{ScrubRules, ScrubbedSpan, Usage, VolumeError};

use super::owners::{Owner, Owners};
use crate::block_map::layout::{MapWord, entry_salt};
use crate::lane::lane_list_at;
use crate::layout::{HEADER_UNITS, ListedBlock, ONODES_PER_BLOCK, RING_AT, parts_id};
use crate::store::Store;
use crate::tree::LongValue;
use crate::worth::{
    ONODES_PER_UNIT, Part, best_of, header, is_better, is_better_or_same, node, onodes, tails,
    used_node, words,
};

/// Knows what lies where.
pub(super) struct Judge<'s> {
    store: &'s Store,
    owners: Option<&'s Owners>,
    /// Where metadata blocks lie: the first unit of each, and its number in the list. Most spans
    /// are compared without it.
    blocks: OnceCell<HashMap<UnitNo, u64>>,
    /// The first units of log blocks, and the numbers of their lanes.
    logs: OnceCell<HashMap<UnitNo, u32>>,
}

impl<'s> Judge<'s> {
    pub(super) fn new(store: &'s Store, owners: Option<&'s Owners>) -> Self {
        Self {
            store,
            owners,
            blocks: OnceCell::new(),
            logs: OnceCell::new(),
        }
    }

    fn blocks(&self) -> &HashMap<UnitNo, u64> {
        let listed = |index| match self.store.metadata_block(index) {
            Ok(ListedBlock::At(block)) => Some((block, index)),
            _ => None,
        };
        let all = || (0..self.store.block_count()).filter_map(listed).collect();
        self.blocks.get_or_init(all)
    }

    /// The lane whose log block a unit is in, and how many units it lies behind the first.
    fn lane_of(&self, unit: UnitNo) -> Option<(u32, u64)> {
        let listed = |lane| {
            let block = lane_list_at(lane);
            let block = self.store.listed_block(block, "log block list");
            Some((block.ok()?, lane))
        };
        let all = || (0..self.store.lane_count()).filter_map(listed).collect();
        let skip = unit.0 % UNITS_PER_BLOCK;
        let lane = self.logs.get_or_init(all).get(&UnitNo(unit.0 - skip))?;
        Some((*lane, skip))
    }

    fn has_tails(&self, unit: UnitNo) -> bool {
        let lane = self.lane_of(unit);
        lane.is_some_and(|(_, skip)| skip * UNIT_SIZE < RING_AT)
    }

    /// Whether a unit has records that are applied, and nothing else. Nobody stores.
    fn is_past(&self, unit: UnitNo) -> bool {
        let lane = self.lane_of(unit);
        let lane = lane.filter(|(_, skip)| skip * UNIT_SIZE >= RING_AT);
        lane.is_some_and(|(lane, _)| self.store.lane_is_pending(lane).is_ok_and(|waits| !waits))
    }

    /// As `Volume::scrub_span`.
    pub(super) fn scrub(
        &self,
        span: u64,
        trusted: Option<&Path>,
    ) -> Result<ScrubbedSpan, VolumeError> {
        let volume = self.store.volume();
        let mut judge = |at, copies: &[&[u8]]| self.best(at, copies);
        let mut rules = ScrubRules {
            judge: &mut judge,
            usage: &|at| self.usage(at),
            knows_written: self.owners.is_some(),
            trusted,
        };
        volume.scrub_span(span, &mut rules)
    }

    /// Whether anything counts in a unit.
    fn usage(&self, at: VolumeOffset) -> Usage {
        let unit = UnitNo(at.0 / UNIT_SIZE);
        let owners = self.owners(at);
        let is_unwritten = |(_, owner): &(ObjectId, Owner)| matches!(owner, Owner::Unwritten(_));
        match owners.is_empty() {
            true if self.store.is_known_free(unit) => Usage::Free,
            true if self.is_past(unit) => Usage::Unwritten,
            false if owners.iter().all(is_unwritten) => Usage::Unwritten,
            _ => Usage::Used,
        }
    }

    /// The copy that is better than each other one wherever they differ.
    fn best(&self, at: VolumeOffset, copies: &[&[u8]]) -> Option<usize> {
        match self.owners(at).first() {
            Some((_, Owner::Value(value))) => self.best_of_value(*value, at, copies),
            Some((_, Owner::Tree)) => best_of(copies, is_better_or_same, |copy| {
                Some(vec![used_node(at.unit(), copy)?])
            }),
            _ => best_of(copies, is_better, |copy| self.parts(at, copy)),
        }
    }

    /// The copy of a unit of a long value of which the whole value is right: its checksum is that
    /// of all of it. Nobody changes it as long as it is one.
    fn best_of_value(&self, value: LongValue, at: VolumeOffset, copies: &[&[u8]]) -> Option<usize> {
        let skip = (at.0 - value.range().start.0) as usize;
        let all = self.store.volume().copies_of(value.range());
        let right = all.iter().find(|bytes| value.is_in(bytes))?;
        let unit = right.get(skip..skip + UNIT_SIZE as usize)?;
        copies.iter().position(|copy| *copy == unit)
    }

    fn owners(&self, at: VolumeOffset) -> &[(ObjectId, Owner)] {
        let unit = UnitNo(at.0 / UNIT_SIZE);
        self.owners.map_or(&[][..], |owners| owners.of_unit(unit))
    }

    /// The parts of a unit that have a checksum. `None`: there are none.
    fn parts<'c>(&self, at: VolumeOffset, copy: &'c [u8]) -> Option<Vec<Part<'c>>> {
        let unit = UnitNo(at.0 / UNIT_SIZE);
        if unit.0 < HEADER_UNITS {
            return header(at, copy);
        }
        let skip = unit.0 % UNITS_PER_BLOCK;
        if let Some(block) = self.blocks().get(&UnitNo(unit.0 - skip)) {
            let first = block * ONODES_PER_BLOCK + skip * ONODES_PER_UNIT;
            return Some(onodes(first, copy));
        }
        if self.has_tails(unit) {
            return Some(tails(at, copy));
        }
        match self.owners(at).first() {
            Some(&(id, Owner::Map(level, first))) => Some(self.map(id, level, first, copy)),
            Some(&(id, Owner::PartsMap(level, first))) => {
                Some(self.map(parts_id(id), level, first, copy))
            }
            Some(_) => None,
            None => Some(vec![node(unit, copy)?]),
        }
    }

    /// The words of a node of a map.
    fn map<'c>(&self, id: ObjectId, level: u32, first: u64, copy: &'c [u8]) -> Vec<Part<'c>> {
        words(copy, |index, word| {
            let salt = entry_salt(id, level, first + index);
            MapWord::decode_in(id, word, salt, self.store.units).is_some()
        })
    }
}
