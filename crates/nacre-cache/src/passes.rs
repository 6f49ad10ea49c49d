//! When the disk begins to write which home places.
//!
//! While the first half of the journal fills, none: what is overwritten again and again gathers.
//! Then the disk is gone over in passes, from its beginning to its end. Each pass takes three
//! quarters of the journal that is left. So what a checkpoint waits for is a small part, and a
//! place that is always dirty is written once for each pass.

use std::ops::Range;

/// Slices of the disk end at multiples of this.
const STEP: u64 = 1 << 20;
/// Passes end when less of the journal than this is left.
const LEAST: u64 = 4 << 20;

/// Which parts of a disk of `disk` bytes are to be written when the bytes of records grow in this
/// way, of `room`.
pub(crate) fn begun(
    (before, now): (u64, u64),
    room: u64,
    disk: u64,
) -> impl Iterator<Item = Range<u64>> {
    passes(room).filter_map(move |pass| {
        let reached = |filled: u64| {
            let done = filled.clamp(pass.start, pass.end) - pass.start;
            let part = u128::from(disk) * u128::from(done) / u128::from(pass.end - pass.start);
            match filled >= pass.end {
                true => disk,
                false => part as u64 / STEP * STEP,
            }
        };
        let slice = reached(before)..reached(now);
        (!slice.is_empty()).then_some(slice)
    })
}

/// The parts of the journal in which the disk is gone over.
fn passes(room: u64) -> impl Iterator<Item = Range<u64>> {
    let mut start = room / 2;
    std::iter::from_fn(move || {
        let left = room - start;
        let pass = start..start + left / 4 * 3;
        start = pass.end;
        (left >= LEAST).then_some(pass)
    })
}

#[cfg(test)]
mod tests {
    use super::{begun, passes};

    const MIB: u64 = 1 << 20;

    /// Slices in their order, for records of `len` bytes.
    fn slices(room: u64, disk: u64, len: u64) -> Vec<(u64, u64)> {
        let steps = (0..room / len).map(|step| (step * len, (step + 1) * len));
        let all = steps.flat_map(|filled| begun(filled, room, disk));
        all.map(|slice| (slice.start, slice.end)).collect()
    }

    #[test]
    fn each_pass_goes_over_the_whole_disk() {
        for (room, disk, len) in [
            (256 * MIB, 1000 * MIB + 4096, 8192),
            (64 * MIB, 300 * MIB, MIB),
            (255 * MIB + 4096, 5 * MIB / 2, 4096),
            (16 * MIB, 64 * MIB, 5 * MIB),
        ] {
            let slices = slices(room, disk, len);
            assert_eq!(slices.first().map(|first| first.0), Some(0));
            let mut ends = 0;
            for pair in slices.windows(2) {
                let (last, next) = (pair[0], pair[1]);
                assert!(last.0 < last.1);
                match last.1 == disk {
                    true => ends += 1,
                    false => assert!(next.0 == last.1 && last.1 % MIB == 0, "{pair:?}"),
                }
                let begins_again = last.1 == disk;
                assert_eq!(next.0 == 0, begins_again, "{pair:?}");
            }
            let wanted = passes(room).count();
            assert!((wanted - 1..=wanted).contains(&ends), "{ends} of {wanted}");
        }
    }

    #[test]
    fn nothing_is_written_while_half_of_the_journal_is_free() {
        assert_eq!(begun((0, 128 * MIB), 256 * MIB, 512 * MIB).count(), 0);
        let passes: Vec<_> = passes(256 * MIB).collect();
        let known = [128, 224, 248, 254].map(|mib| mib * MIB);
        assert_eq!(passes.len(), 3);
        for (pass, ends) in passes.iter().zip(known.windows(2)) {
            assert_eq!(*pass, ends[0]..ends[1]);
        }
    }

    #[test]
    fn a_small_journal_has_no_passes() {
        assert_eq!(begun((0, 2 * MIB), 2 * MIB, 512 * MIB).count(), 0);
        assert_eq!(passes(0).count(), 0);
    }
}
