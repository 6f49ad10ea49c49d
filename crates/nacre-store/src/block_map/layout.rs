//! Words of a block map as they lie on the medium.
//!
//! A node is a 4 KiB unit of 512 words. A word (little-endian, stored atomically): bits 0..40 unit,
//! 40..43 height (in the root word only), 43 unwritten, 44 shared, 45..48 zero, 48..64 check. The
//! check's salt is the object and the word's place in the map, so that a node put in the wrong
//! place is noticed.
//!
//! In the map of parts an entry of a page names a second unit, and bits 44..48 tell the parts of
//! the page that lie there.

use nacre_types::{CheckedWord, ObjectId, UNIT_SIZE, UnitNo};

use crate::layout::is_of_parts;

/// Words of a node.
pub(crate) const FANOUT: u64 = 512;
/// `FANOUT == 1 << FANOUT_SHIFT`.
pub(crate) const FANOUT_SHIFT: u32 = 9;
/// Bytes of a word.
pub(crate) const WORD_SIZE: u64 = 8;
/// Levels of nodes that a map can have.
pub(crate) const MAX_HEIGHT: u32 = 4;

/// What the place of a page in a lowest node has in the salt besides its number.
const LOWEST: u64 = 1 << 56;

const UNIT_MASK: u64 = (1 << 40) - 1;
const HEIGHT_SHIFT: u32 = 40;
const HEIGHT_MASK: u64 = 0b111 << HEIGHT_SHIFT;
const UNWRITTEN: u64 = 1 << 43;
const SHARED: u64 = 1 << 44;
const RESERVED: u64 = 0b111 << 45;
const PARTS_SHIFT: u32 = 44;
const PARTS: u64 = SHARED | RESERVED;
/// Parts of a page that may lie in one of two units each.
pub(crate) const PARTS_OF_PAGE: usize = 4;
/// Bytes of a part.
pub(crate) const PART: usize = UNIT_SIZE as usize / PARTS_OF_PAGE;
/// All parts of a page.
pub(crate) const ALL_PARTS: u8 = (1 << PARTS_OF_PAGE) - 1;

const _: () = assert!(FANOUT * WORD_SIZE == UNIT_SIZE && 1 << FANOUT_SHIFT == FANOUT);

/// What a word of a map says: nothing (a hole), or a unit and how its bytes count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MapWord(u64);

impl MapWord {
    /// Nothing is mapped here.
    pub(crate) const HOLE: Self = Self(0);

    /// A unit whose bytes are the object's.
    #[inline]
    pub(crate) fn written(unit: UnitNo) -> Self {
        Self(unit.0 & UNIT_MASK)
    }

    /// A reserved unit that reads as zeros.
    pub(crate) fn unwritten(unit: UnitNo) -> Self {
        Self(unit.0 & UNIT_MASK | UNWRITTEN)
    }

    /// As [`MapWord::unwritten`], of a unit that nobody stores to, as it lies behind.
    pub(crate) fn unwritten_behind(unit: UnitNo) -> Self {
        Self(unit.0 & UNIT_MASK | UNWRITTEN | SHARED)
    }

    /// A unit that other objects may map too; the session's count decides.
    pub(crate) fn shared(unit: UnitNo) -> Self {
        Self(unit.0 & UNIT_MASK | SHARED)
    }

    /// A second unit, in which these parts of a page lie.
    pub(crate) fn parts(unit: UnitNo, parts: u8) -> Self {
        Self(unit.0 & UNIT_MASK | u64::from(parts) << PARTS_SHIFT)
    }

    /// Which parts of a page lie in the second unit, a bit for each.
    pub(crate) fn parts_there(self) -> u8 {
        ((self.0 & PARTS) >> PARTS_SHIFT) as u8
    }

    #[inline]
    pub(crate) fn is_hole(self) -> bool {
        self.0 == 0
    }

    /// Whether bytes of the unit are the object's bytes.
    #[inline]
    pub(crate) fn is_written(self) -> bool {
        !self.is_hole() && self.0 & UNWRITTEN == 0
    }

    #[inline]
    pub(crate) fn is_unwritten(self) -> bool {
        self.0 & UNWRITTEN != 0
    }

    #[inline]
    pub(crate) fn may_be_shared(self) -> bool {
        self.0 & SHARED != 0
    }

    /// Whether no flag is set, as it must be in a pointer to a node.
    #[inline]
    pub(crate) fn is_plain(self) -> bool {
        self.0 & !UNIT_MASK == 0
    }

    /// The unit; meaningless for a hole.
    #[inline]
    pub(crate) fn unit(self) -> UnitNo {
        UnitNo(self.0 & UNIT_MASK)
    }

    /// The entry of a page `pages` further on in a contiguous run; a hole stays a hole.
    #[inline]
    pub(crate) fn advance(self, pages: u64) -> Self {
        if self.is_hole() {
            self
        } else {
            Self(self.0 + pages)
        }
    }

    /// The same word, of contents that lie in another unit now.
    pub(crate) fn moved_to(self, unit: UnitNo) -> Self {
        Self(self.0 & !UNIT_MASK | unit.0 & UNIT_MASK)
    }

    /// Unit and flags, to be remembered.
    #[inline]
    pub(crate) fn payload(self) -> u64 {
        self.0
    }

    /// What `payload` gave.
    #[inline]
    pub(crate) fn from_payload(payload: u64) -> Self {
        Self(payload)
    }

    #[inline]
    pub(crate) fn encode(self, salt: u64) -> u64 {
        CheckedWord::seal(self.0, salt).0
    }

    /// Tells `put` the words that map `count` pages from `page` on in lowest nodes of an object's
    /// map, a run that begins here, each with its number. Much done for each word is done once.
    #[inline(always)]
    pub(crate) fn encode_run(
        self,
        (id, page): (ObjectId, u64),
        count: usize,
        mut put: impl FnMut(usize, u64),
    ) {
        if self.is_hole() {
            return (0..count).for_each(|step| put(step, 0));
        }
        assert!(self.0 + count as u64 <= CheckedWord::MAX);
        let owner = salt_of_owner(id);
        let mut place = (page | LOWEST).wrapping_mul(PLACE_SALT);
        for (step, payload) in (0..count).zip(self.0..) {
            put(step, CheckedWord::seal_some(payload, owner ^ place).0);
            place = place.wrapping_add(PLACE_SALT);
        }
    }

    /// How many of some words of neighbouring pages map a run with the first one, by their
    /// payloads: their checks may be wrong.
    #[inline]
    pub(crate) fn claimed_run(words: &[u64]) -> usize {
        let payload = |word: u64| CheckedWord(word).opened_before();
        let first = words.first().map_or(0, |&word| payload(word));
        let step = u64::from(first != 0);
        let (mut expected, mut count) = (first, 0);
        for &word in words {
            if payload(word) != expected {
                break;
            }
            expected += step;
            count += 1;
        }
        count
    }

    /// `None` when the word is damaged, or names a unit outside of a volume of `units` units.
    #[inline]
    pub(crate) fn decode(word: u64, salt: u64, units: u64) -> Option<Self> {
        let payload = CheckedWord(word).open(salt)?;
        let sound = payload & (HEIGHT_MASK | RESERVED) == 0 && in_range(payload, units);
        sound.then_some(Self(payload))
    }

    /// As [`MapWord::decode`], of a word of the map of parts.
    pub(crate) fn decode_parts(word: u64, salt: u64, units: u64) -> Option<Self> {
        let payload = CheckedWord(word).open(salt)?;
        let sound = payload & (HEIGHT_MASK | UNWRITTEN) == 0 && in_range(payload, units);
        sound.then_some(Self(payload))
    }

    /// As [`MapWord::decode`], in the map that `id` stands for.
    pub(crate) fn decode_in(id: ObjectId, word: u64, salt: u64, units: u64) -> Option<Self> {
        match is_of_parts(id) {
            true => Self::decode_parts(word, salt, units),
            false => Self::decode(word, salt, units),
        }
    }
}

/// The root word of a map: at height 0 the entry of page 0, else the topmost node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Root {
    pub(crate) height: u32,
    pub(crate) entry: MapWord,
}

impl Root {
    #[inline]
    pub(crate) fn encode(self, salt: u64) -> u64 {
        let height = u64::from(self.height) << HEIGHT_SHIFT;
        CheckedWord::seal(self.entry.0 | height, salt).0
    }

    #[inline]
    pub(crate) fn decode(word: u64, salt: u64, units: u64) -> Option<Self> {
        let payload = CheckedWord(word).open(salt)?;
        let height = ((payload & HEIGHT_MASK) >> HEIGHT_SHIFT) as u32;
        let entry = MapWord(payload & !HEIGHT_MASK);
        let plain = entry.is_plain() && !entry.is_hole();
        let sound = payload & RESERVED == 0
            && in_range(payload, units)
            && height <= MAX_HEIGHT
            && (height == 0 || plain);
        sound.then_some(Self { height, entry })
    }
}

#[inline]
fn in_range(payload: u64, units: u64) -> bool {
    let unit = payload & UNIT_MASK;
    payload == 0 || (unit != 0 && unit < units)
}

/// Salt of the word that stands for pages `index * 512^(level - 1) ..` in a node of `level` (1 =
/// the lowest).
#[inline]
pub(crate) fn entry_salt(id: ObjectId, level: u32, index: u64) -> u64 {
    let place = index | u64::from(level) << 56;
    salt_of_owner(id) ^ place.wrapping_mul(PLACE_SALT)
}

const PLACE_SALT: u64 = 0xc4ce_b9fe_1a85_ec53;

#[inline]
fn salt_of_owner(id: ObjectId) -> u64 {
    (id.0 ^ 0x006d_6170).wrapping_mul(0xff51_afd7_ed55_8ccd)
}

#[cfg(test)]
mod tests {
    use nacre_types::{ObjectId, UnitNo};

    use super::{MapWord, Root, entry_salt};

    #[test]
    fn entries_come_back_and_keep_their_flags() {
        let salt = entry_salt(ObjectId(7), 1, 99);
        for entry in [
            MapWord::HOLE,
            MapWord::written(UnitNo(12)),
            MapWord::unwritten(UnitNo(13)),
            MapWord::shared(UnitNo(14)),
            MapWord::unwritten_behind(UnitNo(15)),
        ] {
            assert_eq!(MapWord::decode(entry.encode(salt), salt, 100), Some(entry));
        }
        assert!(
            MapWord::unwritten(UnitNo(1)).is_unwritten()
                && !MapWord::unwritten(UnitNo(1)).is_written()
        );
        assert_eq!(
            MapWord::shared(UnitNo(4)).advance(3),
            MapWord::shared(UnitNo(7))
        );
    }

    #[test]
    fn words_of_a_run_are_those_of_its_pages() {
        let id = ObjectId(77);
        for first in [0, 1, 511, 1 << 35] {
            for entry in [MapWord::HOLE, MapWord::shared(UnitNo(99))] {
                let mut words = Vec::new();
                entry.encode_run((id, first), 1000, |step, word| {
                    assert_eq!(step, words.len());
                    words.push(word);
                });
                let salts = (first..first + 1000).map(|page| entry_salt(id, 1, page));
                let expected = (0..)
                    .zip(salts)
                    .map(|(step, salt)| entry.advance(step).encode(salt));
                assert!(expected.eq(words.iter().copied()));
                assert_eq!(MapWord::claimed_run(&words), 1000);
                words[999] ^= 1;
                assert_eq!(MapWord::claimed_run(&words), 999);
                assert_eq!(MapWord::claimed_run(&words[..1]), 1);
            }
        }
    }

    #[test]
    fn a_word_in_the_wrong_place_is_refused() {
        let word = MapWord::written(UnitNo(12)).encode(entry_salt(ObjectId(7), 1, 99));
        for (id, level, index) in [(7, 1, 98), (8, 1, 99), (7, 2, 99)] {
            assert_eq!(
                MapWord::decode(word, entry_salt(ObjectId(id), level, index), 100),
                None
            );
        }
    }

    #[test]
    fn units_outside_of_the_volume_are_refused() {
        let salt = entry_salt(ObjectId(1), 1, 0);
        let word = MapWord::written(UnitNo(100)).encode(salt);
        assert_eq!(MapWord::decode(word, salt, 100), None);
        assert!(MapWord::decode(word, salt, 101).is_some());
    }

    #[test]
    fn roots_carry_a_height_and_entries_do_not() {
        let root = Root {
            height: 3,
            entry: MapWord::written(UnitNo(5)),
        };
        let word = root.encode(1);
        assert_eq!(Root::decode(word, 1, 10), Some(root));
        assert_eq!(MapWord::decode(word, 1, 10), None);
        assert_eq!(
            Root::decode(0, 1, 10),
            Some(Root {
                height: 0,
                entry: MapWord::HOLE
            })
        );
        let flagged = Root {
            height: 1,
            entry: MapWord::shared(UnitNo(5)),
        };
        assert_eq!(Root::decode(flagged.encode(1), 1, 10), None);
    }
}
