//! Overwrites of what is there already: only what changes is a store (D116).

use std::ops::Range;

use nacre_types::DeviceOffset;

use super::{Entered, GRANULE, Image, units};
use crate::error::CopyError;

impl Image {
    /// As [`Image::begin`], of contents that programs could read before. Answers which of `len`
    /// bytes are to be stored, and notes only these. `is_there` tells whether bytes, counted from
    /// `at` on, are there already.
    pub(crate) fn begin_changes(
        &self,
        at: DeviceOffset,
        len: u64,
        is_there: impl Fn(Range<u64>) -> Result<bool, CopyError>,
    ) -> Result<(Entered<'_>, Range<u64>), CopyError> {
        let entered = self.enter_present(at, len)?;
        let mut range = changes(len, is_there)?;
        // C15: asked behind the comparison.
        if self.may_hold_unnoted(units(at.get()..at.get() + len)) {
            range = 0..len;
        }
        if !range.is_empty() {
            self.note(at.get() + range.start, range.end - range.start);
        }
        Ok((entered, range))
    }
}

/// Which of `len` bytes remain when granules that are there are left out at either end.
fn changes(
    len: u64,
    is_there: impl Fn(Range<u64>) -> Result<bool, CopyError>,
) -> Result<Range<u64>, CopyError> {
    let (mut start, mut end) = (0, len);
    while start + GRANULE <= end && is_there(start..start + GRANULE)? {
        start += GRANULE;
    }
    while start + GRANULE <= end && is_there(end - GRANULE..end)? {
        end -= GRANULE;
    }
    Ok(start..end)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use nacre_types::{DeviceOffset, UNIT_SIZE};

    use super::super::tests::{byte_of, stage, version};
    use super::super::{GRANULE, Image};
    use super::changes;
    use crate::error::CopyError;

    const AT: DeviceOffset = DeviceOffset(5 * UNIT_SIZE);

    /// What a write of a whole unit stores that changes these bytes of it, and how much is noted.
    fn overwrite(image: &Image, changed: Range<u64>) -> (Range<u64>, u64) {
        version(image, true);
        let old = byte_of(5);
        let is_there = |part: Range<u64>| {
            let from = image.address(AT.get() + part.start);
            // SAFETY: the unit is there, and no thread stores to it.
            let there =
                unsafe { std::slice::from_raw_parts(from, (part.end - part.start) as usize) };
            let new = part.map(|at| old + u8::from(changed.contains(&at)));
            Ok(new.eq(there.iter().copied()))
        };
        let (entered, range) = image.begin_changes(AT, UNIT_SIZE, is_there).expect("begin");
        drop(entered);
        (range, image.dirty_bytes())
    }

    #[test]
    fn what_is_there_at_either_end_is_no_store() {
        let stage = stage();
        let image = &stage.image;
        assert_eq!(overwrite(image, 0..0), (UNIT_SIZE..UNIT_SIZE, 0));
        assert_eq!(overwrite(image, 0..UNIT_SIZE), (0..UNIT_SIZE, UNIT_SIZE));
        let one = |at: u64| (at..at + GRANULE, GRANULE);
        assert_eq!(overwrite(image, 0..1), one(0));
        assert_eq!(overwrite(image, 1000..1001), one(3 * GRANULE));
        assert_eq!(overwrite(image, 4095..4096), one(UNIT_SIZE - GRANULE));
        assert_eq!(overwrite(image, 255..257), (0..2 * GRANULE, 2 * GRANULE));
    }

    #[test]
    fn what_a_program_may_have_stored_by_itself_is_noted_whatever_it_is() {
        let stage = stage();
        let image = &stage.image;
        let range = AT.get()..AT.get() + UNIT_SIZE;
        assert_eq!(image.begin_window(range.clone(), true), Ok(true));
        assert_eq!(overwrite(image, 0..0), (0..UNIT_SIZE, UNIT_SIZE));
        assert_eq!(image.end_window(range.clone()), Ok(()));
        assert_eq!(overwrite(image, 0..0).1, 0);
        assert_eq!(image.begin_window(range.clone(), false), Ok(true));
        assert_eq!(overwrite(image, 0..0).1, 0, "it is only read");
        assert_eq!(image.end_window(range), Ok(()));
        image.pin(AT, 1).expect("pin");
        assert_eq!(overwrite(image, 7..8), (0..UNIT_SIZE, UNIT_SIZE));
    }

    /// A program maps the unit and stores to it while it is compared.
    #[test]
    fn what_is_mapped_during_the_comparison_is_noted() {
        let stage = stage();
        let image = &stage.image;
        let is_there = |_: Range<u64>| {
            image.pin(AT, 1).expect("pin");
            Ok(true)
        };
        let (_entered, range) = image.begin_changes(AT, UNIT_SIZE, is_there).expect("begin");
        assert_eq!((range, image.dirty_bytes()), (0..UNIT_SIZE, UNIT_SIZE));
    }

    #[test]
    fn nothing_is_noted_where_the_program_has_no_memory() {
        let stage = stage();
        let fault = |_: Range<u64>| Err(CopyError::UserFault);
        let begun = stage.image.begin_changes(AT, UNIT_SIZE, fault);
        assert!(matches!(begun, Err(CopyError::UserFault)));
        assert!(stage.image.is_clean());
    }

    #[test]
    fn all_changes_remain_and_no_whole_granule_at_an_end_that_is_there() {
        for len in [1, 255, 256, 257, 700, 1024, 1100] {
            for from in (0..len).step_by(37) {
                for to in (from + 1..=len).step_by(41) {
                    let is_there = |part: Range<u64>| Ok(part.end <= from || part.start >= to);
                    let left = changes(len, is_there).unwrap();
                    assert!(left.start <= from && to <= left.end && left.end <= len);
                    assert!(from - left.start < GRANULE && left.end - to < GRANULE);
                }
            }
        }
    }
}
