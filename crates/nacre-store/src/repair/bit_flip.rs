//! Turning single flipped bits back.

use nacre_types::{CheckedWord, ObjectId, UnitNo};
use zerocopy::{FromBytes, IntoBytes};

use crate::layout::{RawOnode, Tree};
use crate::node::{NodeBytes, verify};
use crate::object::onode::onode_crc;

/// The word with one bit turned so that it opens under `salt` and `accept` likes its payload, if
/// there is only one such word.
pub(super) fn word(
    damaged: u64,
    salt: u64,
    accept: &mut dyn FnMut(u64) -> bool,
) -> Option<CheckedWord> {
    let mut found = None;
    for bit in 0..64 {
        let candidate = CheckedWord(damaged ^ 1 << bit);
        let fits = candidate.open(salt).is_some_and(&mut *accept);
        if fits && found.replace(candidate).is_some() {
            return None;
        }
    }
    found
}

/// The onode with one bit of lines 1 to 3 turned so that its checksum is right.
pub(super) fn onode(damaged: &RawOnode) -> Option<RawOnode> {
    let mut bytes = [0; size_of::<RawOnode>()];
    bytes.copy_from_slice(damaged.as_bytes());
    (64 * 8..bytes.len() * 8).find_map(|bit| {
        bytes[bit / 8] ^= 1 << (bit % 8);
        let raw = RawOnode::read_from_bytes(&bytes).ok()?;
        bytes[bit / 8] ^= 1 << (bit % 8);
        (raw.crc.get() == onode_crc(&raw)).then_some(raw)
    })
}

/// The tree node with one bit turned so that it is sound.
pub(super) fn node(
    damaged: &NodeBytes,
    unit: UnitNo,
    owner: ObjectId,
    tree: Tree,
) -> Option<Box<NodeBytes>> {
    let mut bytes = Box::new(*damaged);
    let bit = (0..bytes.len() * 8).find(|bit| {
        bytes[bit / 8] ^= 1 << (bit % 8);
        let sound = verify(&bytes, unit, owner, tree).is_ok();
        bytes[bit / 8] ^= 1 << (bit % 8);
        sound
    })?;
    bytes[bit / 8] ^= 1 << (bit % 8);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use nacre_types::CheckedWord;

    use super::word;

    #[test]
    fn a_turned_bit_is_turned_back_and_two_are_not() {
        let sealed = CheckedWord::seal(0x1234, 77);
        for bit in 0..64 {
            let repaired = word(sealed.0 ^ 1 << bit, 77, &mut |payload| payload < 1 << 20);
            assert_eq!(repaired, Some(sealed), "bit {bit}");
        }
        assert_eq!(
            word(sealed.0 ^ 0b11, 77, &mut |payload| payload == 0x1234),
            None
        );
    }
}
