//! How much copies of a unit tell for themselves, by the checksums in them; and the pool's header,
//! which must be right on all copies before anybody reads it.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap};

use nacre_types::{
    CheckedWord, ObjectId, UNIT_SIZE, UNITS_PER_BLOCK, UnitNo, VolumeOffset, crc32c, site,
};
use nacre_volume::{Access, Volume};
use zerocopy::FromBytes;

use crate::block_map::layout::WORD_SIZE;
use crate::error::Result;
use crate::lane::{lane_list_at, read_tail};
use crate::layout::{
    BLOCK_LIST_AT, HEADER_UNITS, LANE_LIST_AT, ListedBlock, MAX_BLOCKS, MAX_LANES, ONODE_SIZE,
    ONODES_PER_BLOCK, RING_AT, RawNode, RawOnode, RawState, STATE_AT, STATE_MAGIC, SUPERBLOCK_AT,
    SUPERBLOCK_MAGIC, TAIL_STRIDE, Tree, parts_id, root_salt, size_salt, tree_salt, word_salt,
};
use crate::node::{NodeBytes, head_of, index_at, verify};
use crate::object::blocks::block_list_at;
use crate::object::onode::onode_crc;

/// Onodes in a unit of a metadata block.
pub(crate) const ONODES_PER_UNIT: u64 = UNIT_SIZE / ONODE_SIZE as u64;

/// Makes the header agree on all copies of a pool wherever its checksums tell which one is right.
/// Else damage of the copy that is read would keep everybody out, a scrub too. Of disks nobody may
/// use the image yet.
pub(crate) fn repair_header(volume: &Volume) -> Result<()> {
    if volume.has_copies() && volume.access() == Access::ReadWrite {
        volume.scrub_first(VolumeOffset(0), HEADER_UNITS * UNIT_SIZE, &mut best_header)?;
    }
    Ok(())
}

/// The best copy of a unit of the header; none of others, as nothing of the pool is known yet.
fn best_header(at: VolumeOffset, copies: &[&[u8]]) -> Option<usize> {
    let is_header = at.0 < HEADER_UNITS * UNIT_SIZE;
    best_of(copies, is_better, |copy| {
        is_header.then(|| header(at, copy))?
    })
}

/// As [`repair_header`], of log tails: damage of one would keep everybody out, too.
pub(crate) fn repair_tails(volume: &Volume) -> Result<()> {
    let is_writable = volume.access() == Access::ReadWrite;
    let logs = listed(volume, (0..MAX_LANES as u32).map(lane_list_at));
    let blocks = logs.map(|(_, unit)| UnitNo(unit));
    let is_block = |block: &UnitNo| {
        block.0.is_multiple_of(UNITS_PER_BLOCK) && block.0 + UNITS_PER_BLOCK <= volume.units()
    };
    for block in blocks.filter(|block| is_writable && is_block(block)) {
        if read_tail(volume, block).is_err() {
            volume.scrub_first(block.offset(), RING_AT, &mut |at, copies| {
                let is_tail = at.0 < block.offset().0 + RING_AT;
                best_of(copies, is_better, |copy| is_tail.then(|| tails(at, copy)))
            })?;
        }
    }
    Ok(())
}

/// Makes copies agree after a crash. Where one is wrong by its own checksums, and another one is
/// not, it is not what the others get, though it may be the one that is read.
pub(crate) fn recover_copies(volume: &Volume) {
    let blocks = OnceCell::new();
    volume.recover_copies(&mut |at, copies| {
        let blocks = blocks.get_or_init(|| metadata_blocks(volume));
        best_of(copies, is_no_worse, |copy| parts_of(blocks, at, copy))
    });
}

/// Before it is found out what is free. A disk that was written over while nobody used the pool may
/// say of objects that they are not there, and nothing in that tells: what they hold would be taken
/// for free. So what all disks hold of metadata blocks is compared.
pub(crate) fn compare_onodes(volume: &Volume) -> Result<()> {
    if !volume.has_copies() || volume.mirror().is_some() {
        return Ok(());
    }
    let blocks = metadata_blocks(volume);
    let of_block = |block: &UnitNo| {
        let end = VolumeOffset(block.add(UNITS_PER_BLOCK).offset().0 - 1);
        volume.span_of(block.offset())..=volume.span_of(end)
    };
    let spans: BTreeSet<u64> = blocks.keys().flat_map(of_block).collect();
    for span in spans {
        volume.scrub_alone(span, &mut |at, copies| {
            best_of(copies, is_better, |copy| {
                onodes_at(&blocks, UnitNo(at.0 / UNIT_SIZE), copy)
            })
        })?;
    }
    Ok(())
}

/// Where metadata blocks lie, by a header that is right: the first unit of each, and its number.
fn metadata_blocks(volume: &Volume) -> HashMap<UnitNo, u64> {
    let places = listed(volume, (0..MAX_BLOCKS).map(block_list_at)).filter_map(|(index, word)| {
        match ListedBlock::from_payload(word) {
            ListedBlock::At(block) => Some((block, index)),
            ListedBlock::GivenBack { .. } => None,
        }
    });
    places.collect()
}

/// What the words of a list say whose checksums are right, and their numbers.
fn listed(
    volume: &Volume,
    places: impl Iterator<Item = VolumeOffset>,
) -> impl Iterator<Item = (u64, u64)> {
    let words = places.map(|at| (at, volume.load_u64(at)));
    let words = words.take_while(|(_, word)| *word != 0);
    (0..)
        .zip(words)
        .filter_map(|(index, (at, word))| Some((index, CheckedWord(word).open(word_salt(at))?)))
}

/// The parts that have a checksum of a unit whose users nobody knows.
fn parts_of<'c>(
    blocks: &HashMap<UnitNo, u64>,
    at: VolumeOffset,
    copy: &'c [u8],
) -> Option<Vec<Part<'c>>> {
    let unit = UnitNo(at.0 / UNIT_SIZE);
    match unit.0 < HEADER_UNITS {
        true => header(at, copy),
        false => onodes_at(blocks, unit, copy).or_else(|| Some(vec![node(unit, copy)?])),
    }
}

/// The parts of a unit of a metadata block; `None` if it is none.
fn onodes_at<'c>(
    blocks: &HashMap<UnitNo, u64>,
    unit: UnitNo,
    copy: &'c [u8],
) -> Option<Vec<Part<'c>>> {
    let skip = unit.0 % UNITS_PER_BLOCK;
    let block = blocks.get(&UnitNo(unit.0 - skip))?;
    let first = block * ONODES_PER_BLOCK + skip * ONODES_PER_UNIT;
    Some(onodes(first, copy))
}

/// A unit of log tail words.
pub(crate) fn tails(at: VolumeOffset, copy: &[u8]) -> Vec<Part<'_>> {
    let places = (0..UNIT_SIZE).step_by(TAIL_STRIDE as usize);
    places
        .map(|skip| {
            let bytes = &copy[skip as usize..][..WORD_SIZE as usize];
            let word = u64::read_from_bytes(bytes).unwrap_or_default();
            let opens = CheckedWord(word).open(word_salt(at.add(skip))).is_some();
            Part::of(bytes, word == 0, opens)
        })
        .collect()
}

/// The copy that wins over each other one that differs.
pub(crate) fn best_of<'c>(
    copies: &[&'c [u8]],
    wins: impl Fn(&[Part<'_>], &[Part<'_>]) -> bool,
    parts: impl Fn(&'c [u8]) -> Option<Vec<Part<'c>>>,
) -> Option<usize> {
    let ranks: Vec<Vec<Part>> = copies
        .iter()
        .map(|copy| parts(copy))
        .collect::<Option<_>>()?;
    let beats =
        |one: usize, other: usize| copies[one] == copies[other] || wins(&ranks[one], &ranks[other]);
    (0..copies.len()).find(|&one| (0..copies.len()).all(|other| beats(one, other)))
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

/// A part of a copy of a unit.
pub(crate) struct Part<'c> {
    worth: Worth,
    /// What counts in it, in one or two pieces.
    bytes: [&'c [u8]; 2],
}

impl<'c> Part<'c> {
    pub(crate) fn of(bytes: &'c [u8], is_empty: bool, is_sound: bool) -> Self {
        let worth = match (is_empty, site::check(is_sound)) {
            (true, _) => Worth::Empty,
            (false, true) => Worth::Sound,
            (false, false) => Worth::Broken,
        };
        Self {
            worth,
            bytes: [bytes, &[]],
        }
    }
}

/// Whether each part in which two copies of a unit differ is better in the first, and there is one.
pub(crate) fn is_better(one: &[Part<'_>], other: &[Part<'_>]) -> bool {
    differing(one, other).next().is_some() && is_better_or_same(one, other)
}

/// As [`is_better`], or they differ in nothing that counts.
pub(crate) fn is_better_or_same(one: &[Part<'_>], other: &[Part<'_>]) -> bool {
    differing(one, other).all(|(one, other)| one > other)
}

/// Whether some part in which two copies of a unit differ is better in the first, and none worse.
fn is_no_worse(one: &[Part<'_>], other: &[Part<'_>]) -> bool {
    let mut is_better = false;
    differing(one, other).all(|(one, other)| {
        is_better |= one > other;
        one >= other
    }) && is_better
}

fn differing<'p>(
    one: &'p [Part<'_>],
    other: &'p [Part<'_>],
) -> impl Iterator<Item = (Worth, Worth)> + 'p {
    let pairs = one.iter().zip(other);
    let differing = pairs.filter(|(one, other)| one.bytes != other.bytes);
    differing.map(|(one, other)| (one.worth, other.worth))
}

/// The parts of a unit of the pool's header; `None` if it holds nothing.
pub(crate) fn header(at: VolumeOffset, copy: &[u8]) -> Option<Vec<Part<'_>>> {
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

/// The parts of a unit of words, each with its checksum; `opens` gets the number of one and itself.
pub(crate) fn words(copy: &[u8], opens: impl Fn(u64, u64) -> bool) -> Vec<Part<'_>> {
    let all = (0..).zip(copy.as_chunks::<8>().0);
    all.map(|(index, bytes)| {
        let word = u64::from_le_bytes(*bytes);
        Part::of(bytes, word == 0, opens(index, word))
    })
    .collect()
}

/// A node names the unit that it lies in, and has a checksum: what looks like one here is one.
pub(crate) fn node(unit: UnitNo, copy: &[u8]) -> Option<Part<'_>> {
    let bytes: &NodeBytes = copy.try_into().ok()?;
    let owner = ObjectId(RawNode::read_from_prefix(copy).ok()?.0.owner.get());
    let mut trees = [Tree::Entries, Tree::Xattrs].into_iter();
    let is_sound = trees.any(|tree| verify(bytes, unit, owner, tree).is_ok());
    Some(Part::of(copy, false, is_sound))
}

/// As [`node`], of a unit that is known to be one: the room between index and heap does not count.
pub(crate) fn used_node(unit: UnitNo, copy: &[u8]) -> Option<Part<'_>> {
    let part = node(unit, copy)?;
    let says = match part.worth {
        Worth::Sound => what_counts(copy.try_into().ok()?),
        _ => part.bytes,
    };
    Some(Part {
        bytes: says,
        ..part
    })
}

/// The two pieces of a sound node in which something is said.
fn what_counts(node: &NodeBytes) -> [&[u8]; 2] {
    let head = head_of(node);
    let index_end = index_at(usize::from(head.count.get()));
    [&node[..index_end], &node[usize::from(head.heap.get())..]]
}

/// A unit of onodes, of which the first has the number `first`.
pub(crate) fn onodes(first: u64, copy: &[u8]) -> Vec<Part<'_>> {
    let onodes = (first..).zip(copy.as_chunks::<ONODE_SIZE>().0);
    onodes
        .map(|(id, bytes)| {
            let raw: RawOnode = zerocopy::transmute!(*bytes);
            Part::of(bytes, raw.mode.get() == 0, is_sound(ObjectId(id), &raw))
        })
        .collect()
}

pub(crate) fn is_sound(id: ObjectId, raw: &RawOnode) -> bool {
    let words = [
        (raw.size.get(), size_salt(id)),
        (raw.root.get(), root_salt(id)),
        (raw.parts_root.get(), root_salt(parts_id(id))),
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
