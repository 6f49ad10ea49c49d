//! What a version changes on the disk.

use std::ops::Range;

/// Bytes and the place on the disk where they belong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece<'a> {
    /// The first byte of the place. It lies outside of the journal.
    pub home: u64,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl Piece<'_> {
    /// Its place.
    pub fn range(&self) -> Range<u64> {
        self.home..self.home.saturating_add(self.bytes.len() as u64)
    }
}
