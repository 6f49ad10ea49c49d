//! Which of several copies of a unit is right, by the checksums in it.

use std::collections::HashMap;

use nacre_types::{
    CheckedWord, ObjectId, UNIT_SIZE, UNITS_PER_BLOCK, UnitNo, VolumeOffset, crc32c, site,
};
use nacre_volume::{ScrubbedSpan, VolumeError};
use zerocopy::FromBytes;

use super::owners::{Owner, Owners};
use crate::block_map::layout::{MapWord, WORD_SIZE, entry_salt};
use crate::layout::{
    BLOCK_LIST_AT, HEADER_UNITS, LANE_LIST_AT, ListedBlock, ONODE_SIZE, ONODES_PER_BLOCK, RawNode,
    RawOnode, RawState, STATE_AT, STATE_MAGIC, SUPERBLOCK_AT, SUPERBLOCK_MAGIC, Tree, root_salt,
    size_salt, tree_salt, word_salt,
};
use crate::node::{NodeBytes, verify};
use crate::object::onode::onode_crc;
use crate::store::Store;

const ONODES_PER_UNIT: u64 = UNIT_SIZE / ONODE_SIZE as u64;

/// Knows what lies where.
pub(super) struct Judge<'s> {
    store: &'s Store,
    owners: Option<&'s Owners>,
    /// Where metadata blocks lie: the first unit of each, and its number in the list.
    blocks: HashMap<UnitNo, u64>,
}

impl<'s> Judge<'s> {
    pub(super) fn new(store: &'s Store, owners: Option<&'s Owners>) -> Self {
        let listed = |index| match store.metadata_block(index) {
            Ok(ListedBlock::At(block)) => Some((block, index)),
            _ => None,
        };
        Self {
            store,
            owners,
            blocks: (0..store.block_count()).filter_map(listed).collect(),
        }
    }

    /// As `Volume::scrub_span`.
    pub(super) fn scrub(
        &mut self,
        span: u64,
        take_read: bool,
    ) -> Result<ScrubbedSpan, VolumeError> {
        let volume = self.store.volume();
        let mut judge = |at, copies: &[&[u8]]| self.best(at, copies);
        volume.scrub_span(span, &mut judge, take_read)
    }

    /// The copy that is better than each other one wherever they differ.
    fn best(&self, at: VolumeOffset, copies: &[&[u8]]) -> Option<usize> {
        let ranks: Vec<Vec<Part>> = copies
            .iter()
            .map(|copy| self.parts(at, copy))
            .collect::<Option<_>>()?;
        let beats = |one: usize, other: usize| {
            copies[one] == copies[other] || is_better(&ranks[one], &ranks[other])
        };
        (0..copies.len()).find(|&one| (0..copies.len()).all(|other| beats(one, other)))
    }

    /// The parts of a unit that have a checksum. `None`: there are none.
    fn parts<'c>(&self, at: VolumeOffset, copy: &'c [u8]) -> Option<Vec<Part<'c>>> {
        let unit = UnitNo(at.0 / UNIT_SIZE);
        if unit.0 < HEADER_UNITS {
            return header(at, copy);
        }
        let skip = unit.0 % UNITS_PER_BLOCK;
        if let Some(block) = self.blocks.get(&UnitNo(unit.0 - skip)) {
            let first = block * ONODES_PER_BLOCK + skip * ONODES_PER_UNIT;
            return Some(onodes(first, copy));
        }
        let owners = self.owners.map_or(&[][..], |owners| owners.of_unit(unit));
        match owners.first() {
            Some(&(id, Owner::Map(level, first))) => {
                let opens = |index, word| {
                    let salt = entry_salt(id, level, first + index);
                    MapWord::decode(word, salt, self.store.units).is_some()
                };
                Some(words(copy, opens))
            }
            Some((_, Owner::Data(_))) => None,
            Some((_, Owner::Tree)) | None => Some(vec![node(unit, copy)?]),
        }
    }
}

/// How much a part of a unit tells for itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    /// Its checksum is wrong.
    Broken,
    /// It says that there is nothing, as what was overwritten by zeros also does.
    Empty,
    /// Its checksum is right.
    Sound,
}

struct Part<'c> {
    worth: Worth,
    bytes: &'c [u8],
}

impl<'c> Part<'c> {
    fn of(bytes: &'c [u8], is_empty: bool, is_sound: bool) -> Self {
        let worth = match (is_empty, site::check(is_sound)) {
            (true, _) => Worth::Empty,
            (false, true) => Worth::Sound,
            (false, false) => Worth::Broken,
        };
        Self { worth, bytes }
    }
}

/// Whether each part in which two copies of a unit differ is better in the first, and there is one.
fn is_better(one: &[Part<'_>], other: &[Part<'_>]) -> bool {
    let pairs = one.iter().zip(other);
    let mut differing = pairs
        .filter(|(one, other)| one.bytes != other.bytes)
        .peekable();
    differing.peek().is_some() && differing.all(|(one, other)| one.worth > other.worth)
}

/// A node names the unit that it lies in, and has a checksum: what looks like one here is one.
fn node(unit: UnitNo, copy: &[u8]) -> Option<Part<'_>> {
    let bytes: &NodeBytes = copy.try_into().ok()?;
    let owner = ObjectId(RawNode::read_from_prefix(copy).ok()?.0.owner.get());
    let mut trees = [Tree::Entries, Tree::Xattrs].into_iter();
    let is_sound = trees.any(|tree| verify(bytes, unit, owner, tree).is_ok());
    Some(Part::of(copy, false, is_sound))
}

/// The pool's header.
fn header(at: VolumeOffset, copy: &[u8]) -> Option<Vec<Part<'_>>> {
    if SUPERBLOCK_AT.contains(&at) {
        let is_sound = copy[..8] == SUPERBLOCK_MAGIC.to_le_bytes() && covers(copy, 8, 12);
        return Some(vec![Part::of(copy, false, is_sound)]);
    }
    if at.0 == STATE_AT[0].0 {
        return Some(STATE_AT.map(|place| state(at, place, copy)).into());
    }
    let is_list = at == LANE_LIST_AT || at >= BLOCK_LIST_AT;
    is_list.then(|| {
        let opens = |index, word| {
            let salt = word_salt(at.add(index * WORD_SIZE));
            CheckedWord(word).open(salt).is_some()
        };
        words(copy, opens)
    })
}

fn state(at: VolumeOffset, place: VolumeOffset, copy: &[u8]) -> Part<'_> {
    let skip = (place.0 - at.0) as usize;
    let record = &copy[skip..skip + size_of::<RawState>()];
    let is_sound = record[..4] == STATE_MAGIC.to_le_bytes() && covers(record, 4, 8);
    Part::of(record, record.iter().all(|byte| *byte == 0), is_sound)
}

/// Whether the checksum at `crc_at` is that of all bytes from `from` on.
fn covers(bytes: &[u8], crc_at: usize, from: usize) -> bool {
    bytes[crc_at..from] == crc32c(&bytes[from..]).to_le_bytes()
}

fn words(copy: &[u8], opens: impl Fn(u64, u64) -> bool) -> Vec<Part<'_>> {
    let all = (0..).zip(copy.as_chunks::<8>().0);
    all.map(|(index, bytes)| {
        let word = u64::from_le_bytes(*bytes);
        Part::of(bytes, word == 0, opens(index, word))
    })
    .collect()
}

/// A unit of onodes, of which the first has the number `first`.
fn onodes(first: u64, copy: &[u8]) -> Vec<Part<'_>> {
    let onodes = (first..).zip(copy.as_chunks::<ONODE_SIZE>().0);
    onodes
        .map(|(id, bytes)| {
            let raw: RawOnode = zerocopy::transmute!(*bytes);
            Part::of(bytes, raw.mode.get() == 0, is_sound(ObjectId(id), &raw))
        })
        .collect()
}

fn is_sound(id: ObjectId, raw: &RawOnode) -> bool {
    let words = [
        (raw.size.get(), size_salt(id)),
        (raw.root.get(), root_salt(id)),
        (raw.entries_root.get(), tree_salt(id)),
        (raw.xattrs_root.get(), tree_salt(id)),
    ];
    let opens = |(word, salt): &(u64, u64)| CheckedWord(*word).open(*salt).is_some();
    words.iter().all(opens) && raw.crc.get() == onode_crc(raw)
}

#[cfg(test)]
mod tests {
    use nacre_types::CheckedWord;

    use super::{is_better, words};

    fn unit(payloads: [u64; 3]) -> Vec<u8> {
        let sealed = payloads.map(|payload| CheckedWord::seal(payload, 7).0.to_le_bytes());
        sealed.concat()
    }

    fn wins(one: &[u8], other: &[u8]) -> bool {
        let opens = |_, word| CheckedWord(word).open(7).is_some();
        is_better(&words(one, opens), &words(other, opens))
    }

    #[test]
    fn what_was_overwritten_by_zeros_never_wins() {
        let (sound, zeros) = (unit([5, 0, 9]), vec![0; 24]);
        assert!(wins(&sound, &zeros) && !wins(&zeros, &sound));
    }

    #[test]
    fn a_broken_word_loses_also_to_an_empty_one() {
        let sound = unit([5, 0, 9]);
        let mut broken = sound.clone();
        broken[9] ^= 4;
        assert!(wins(&sound, &broken) && !wins(&broken, &sound));
    }

    #[test]
    fn two_sound_words_that_differ_tell_nothing() {
        let (one, other) = (unit([5, 0, 9]), unit([5, 0, 10]));
        assert!(!wins(&one, &other) && !wins(&other, &one));
        // Each has lost a word of its own.
        let (one, other) = (unit([5, 0, 0]), unit([0, 0, 9]));
        assert!(!wins(&one, &other) && !wins(&other, &one));
    }
}
