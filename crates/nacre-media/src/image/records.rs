//! The newest records of the journal, remembered until they went home.
//!
//! They are kept going round in memory that processes share, so it is used again. Nothing depends
//! on it: what cannot be kept, or was kept before its writer died, is read from the disk, as
//! checksums tell.

use std::ptr::copy_nonoverlapping;

use super::Image;

/// Bytes that are remembered: more than goes home at once.
pub(super) const KEPT: u64 = 1 << 20;

impl Image {
    /// Remembers what was just written to a place of the journal. Nobody else commits meanwhile.
    pub fn keep_record(&self, place: u64, record: &[u8]) {
        // What is larger goes home at once.
        if record.len() as u64 > KEPT / 2 {
            return;
        }
        for (from, skip, len) in rounds(place, record.len()) {
            let piece = &record[from..from + len];
            // SAFETY: the piece lies in the ring, and only who commits uses that.
            unsafe { copy_nonoverlapping(piece.as_ptr(), self.records.add(skip).as_ptr(), len) };
        }
    }

    /// Fills `to` with what is remembered of a place of the journal, which may be of another one.
    /// `false`: there is not so much. Nobody else commits meanwhile.
    pub fn recall_records(&self, place: u64, to: &mut [u8]) -> bool {
        if to.len() as u64 > KEPT {
            return false;
        }
        for (from, skip, len) in rounds(place, to.len()) {
            let piece = &mut to[from..from + len];
            // SAFETY: as in `keep_record`.
            unsafe { copy_nonoverlapping(self.records.add(skip).as_ptr(), piece.as_mut_ptr(), len) }
        }
        true
    }
}

/// Parts of the bytes of a place of the journal: where each begins among them and in the ring, and
/// how long it is.
fn rounds(place: u64, len: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let skip = ((place + from as u64) % KEPT) as usize;
        let part = (len - from).min(KEPT as usize - skip);
        let now = (from, skip, part);
        from += part;
        (part > 0).then_some(now)
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::stage;
    use super::KEPT;

    #[test]
    fn what_is_kept_is_there_until_as_much_came_behind_it() {
        let stage = stage();
        let image = &stage.image;
        let record = |number: u64| vec![(number % 250) as u8 + 1; 12_288];
        let place = |number: u64| 8192 + number * 12_288;
        let count = 3 * KEPT / 12_288;
        for number in 0..count {
            image.keep_record(place(number), &record(number));
            let mut both = vec![0; 24_576];
            if let Some(before) = number.checked_sub(1) {
                assert!(image.recall_records(place(before), &mut both));
                assert_eq!(both, [record(before), record(number)].concat());
            }
        }
        let mut oldest = vec![0; 12_288];
        assert!(image.recall_records(place(0), &mut oldest));
        assert_ne!(oldest, record(0), "its place was used again");
    }

    #[test]
    fn what_is_too_large_leaves_the_others_as_they_are() {
        let stage = stage();
        let image = &stage.image;
        image.keep_record(4096, &[7; 4096]);
        image.keep_record(8192, &vec![9; KEPT as usize]);
        let mut kept = [0; 4096];
        assert!(image.recall_records(4096, &mut kept) && kept == [7; 4096]);
        assert!(!image.recall_records(0, &mut vec![0; KEPT as usize + 1]));
    }
}
