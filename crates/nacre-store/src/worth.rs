//! How much copies of a unit tell for themselves, by the checksums in them; and the pool's header,
//! which must be right on all copies before anybody reads it.

use nacre_types::{CheckedWord, UNIT_SIZE, VolumeOffset, crc32c, site};
use nacre_volume::{Access, Volume};

use crate::block_map::layout::WORD_SIZE;
use crate::error::Result;
use crate::layout::{
    BLOCK_LIST_AT, HEADER_UNITS, LANE_LIST_AT, RawState, STATE_AT, STATE_MAGIC, SUPERBLOCK_AT,
    SUPERBLOCK_MAGIC, word_salt,
};

/// Makes the header agree on all copies of a pool wherever its checksums tell which one is right.
/// Else damage of the copy that is read would keep everybody out, a scrub too. Of disks nobody may
/// use the image yet.
pub(crate) fn repair_header(volume: &Volume) -> Result<()> {
    if volume.has_copies() && volume.access() == Access::ReadWrite {
        volume.scrub_first(HEADER_UNITS * UNIT_SIZE, &mut best_header)?;
    }
    Ok(())
}

/// The best copy of a unit of the header; none of others, as nothing of the pool is known yet.
fn best_header(at: VolumeOffset, copies: &[&[u8]]) -> Option<usize> {
    let is_header = at.0 < HEADER_UNITS * UNIT_SIZE;
    best_of(copies, |copy| is_header.then(|| header(at, copy))?)
}

/// The copy that is better than each other one wherever they differ.
pub(crate) fn best_of<'c>(
    copies: &[&'c [u8]],
    parts: impl Fn(&'c [u8]) -> Option<Vec<Part<'c>>>,
) -> Option<usize> {
    let ranks: Vec<Vec<Part>> = copies
        .iter()
        .map(|copy| parts(copy))
        .collect::<Option<_>>()?;
    let beats = |one: usize, other: usize| {
        copies[one] == copies[other] || is_better(&ranks[one], &ranks[other])
    };
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
    bytes: &'c [u8],
}

impl<'c> Part<'c> {
    pub(crate) fn of(bytes: &'c [u8], is_empty: bool, is_sound: bool) -> Self {
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
