//! The newest records of the journal, remembered until they went home.
//!
//! The image is as long as the disk, so the journal's place is a hole in it. Records are kept
//! there, going round, so that their memory is used again. Nothing depends on it: what cannot be
//! kept, or was kept before its writer died, is read from the disk, as checksums tell.

use std::ops::Range;

use rustix::io::{pread, pwrite};

use super::Image;
use crate::own_writes::is_beyond_limit;

/// Bytes that are remembered: more than goes home at once.
const KEPT: u64 = 4 << 20;

impl Image {
    /// Remembers what was just written to a place of the journal, if there is room for it.
    pub fn keep_record(&self, journal: Range<u64>, place: u64, mut record: &[u8]) {
        if is_beyond_limit(journal.end) {
            return;
        }
        for (at, len) in rounds(&journal, place, record.len()) {
            let (piece, rest) = record.split_at(len);
            let _ = pwrite(&self.file, piece, at);
            record = rest;
        }
    }

    /// Fills `to` with what is remembered of a place of the journal, which may be of another one.
    pub fn recall_records(&self, journal: Range<u64>, place: u64, mut to: &mut [u8]) -> bool {
        rounds(&journal, place, to.len()).all(|(at, len)| {
            let (piece, rest) = std::mem::take(&mut to).split_at_mut(len);
            to = rest;
            pread(&self.file, piece, at) == Ok(len)
        })
    }
}

/// Where in the file some bytes of a place of the journal are kept.
fn rounds(journal: &Range<u64>, place: u64, len: usize) -> impl Iterator<Item = (u64, usize)> {
    let (start, kept) = (journal.start, KEPT.min(journal.end - journal.start));
    let (mut at, mut left) = (place, len as u64);
    std::iter::from_fn(move || {
        let skip = at % kept;
        let len = left.min(kept - skip);
        (at, left) = (at + len, left - len);
        (len > 0).then_some((start + skip, len as usize))
    })
}
