//! Words whose place seals them, and their repair from another copy (D113).

use nacre_types::{CheckedWord, VolumeOffset};
use nacre_volume::Volume;
use zerocopy::FromBytes;

use crate::layout::word_salt;

/// Makes the copies agree in a range if the one that is read is not `is_right` and another one is.
#[cold]
pub(crate) fn repair(
    volume: &Volume,
    at: VolumeOffset,
    len: u64,
    is_right: &dyn Fn(&[u8]) -> bool,
) -> bool {
    volume.repair(at..at.add(len), &mut |_, copies| {
        let right = copies.iter().position(|copy| is_right(copy));
        // Else the reader has met a change.
        right.filter(|&right| right > 0)
    })
}

/// What a word of a list or a log tail says: its place seals it.
#[inline]
pub(crate) fn placed_word(volume: &Volume, at: VolumeOffset) -> Option<u64> {
    let open = |word| CheckedWord(word).open(word_salt(at));
    open(volume.load_u64(at)).or_else(|| {
        repair(volume, at, size_of::<u64>() as u64, &|copy| {
            u64::read_from_bytes(copy).is_ok_and(|word| open(u64::from_le(word)).is_some())
        });
        open(volume.load_u64(at))
    })
}
