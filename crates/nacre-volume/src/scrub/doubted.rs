//! What becomes of sealed spans while a disk is in doubt (D127).
//!
//! Who writes home removes the seals of what it writes to (T4). Where all of a span is contents,
//! nothing else tells which disk is right. So before that all disks get what was sealed.

use std::collections::BTreeSet;
use std::ops::Range;

use nacre_cache::DiskFailed;
use nacre_media::{Copies, Image};

use super::reader::read_all;
use crate::disk::LegsDisk;

/// To be called before anything goes home. Nobody else commits.
pub(crate) fn settle_doubted(legs: &LegsDisk, image: &Image) -> Result<(), DiskFailed> {
    if !legs.is_in_doubt() {
        return Ok(());
    }
    let mut ranges = Vec::new();
    image.each_to_come_home(|range| ranges.push(range));
    settle_spans((legs, image), ranges.into_iter())
}

/// As [`settle_doubted`], before a range is given up.
pub(crate) fn settle_doubted_in(
    (legs, image): (&LegsDisk, &Image),
    range: Range<u64>,
) -> Result<(), DiskFailed> {
    match legs.is_in_doubt() {
        true => settle_spans((legs, image), std::iter::once(range)),
        false => Ok(()),
    }
}

fn settle_spans(
    disks: (&LegsDisk, &Image),
    ranges: impl Iterator<Item = Range<u64>>,
) -> Result<(), DiskFailed> {
    let touched = ranges.flat_map(|range| disks.0.spans().touched_by(range));
    let spans: BTreeSet<u64> = touched.collect();
    spans
        .into_iter()
        .try_for_each(|span| settle_span(disks, span))
}

/// Gives all disks what was sealed of a span, which needs no seal any more: something of it is on
/// its way. Others may store, so of memory what is noted stays as it is.
fn settle_span((legs, image): (&LegsDisk, &Image), span: u64) -> Result<(), DiskFailed> {
    let Some(seal) = legs.seal_of(span) else {
        return Ok(());
    };
    let range = legs.spans().bytes(span);
    let all = read_all(legs, &range);
    let copies = Copies { range, all };
    let (mut made, mut found) = (Vec::new(), Vec::new());
    let mut make = |at, right: &[u8]| made.push((at, right.to_vec()));
    copies.as_sealed(seal, &mut make, &mut found);
    let wrong: Vec<[u8; 16]> = found.into_iter().flat_map(|one| one.wrong).collect();
    legs.doubt(&wrong);
    // Memory first: as long as the disks differ, whoever scrubs makes it right, too.
    for (at, right) in &made {
        let units = copies.of_unit(*at);
        for wrong in units.into_iter().filter(|unit| unit != right) {
            image.correct_beside_stores(*at, 0..0, wrong, right);
        }
    }
    legs.repair(&made)?;
    legs.remove_seals(copies.range)
}
