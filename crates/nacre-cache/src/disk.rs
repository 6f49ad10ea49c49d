//! What can be done with a disk.

use std::ops::Range;

use crate::layout::BLOCK;

/// The disk refused a call; its text says why.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct DiskFailed(pub String);

/// A disk with a volatile cache. Between two syncs writes reach it in any order, whole or in part.
pub trait Disk {
    /// Fills `to` with the bytes from `at` on.
    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), DiskFailed>;

    /// Writes; durable after the next sync.
    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), DiskFailed>;

    /// Writes; these bytes are durable on return. Earlier writes may be or not.
    fn write_through(&self, at: u64, bytes: &[u8]) -> Result<(), DiskFailed>;

    /// As `write_through` of several pieces, at the same time as far as that is possible. Some may
    /// be durable if it fails.
    fn write_all_through(&self, pieces: &[(u64, &[u8])]) -> Result<(), DiskFailed> {
        let mut each = pieces.iter();
        each.try_for_each(|&(at, bytes)| self.write_through(at, bytes))
    }

    /// How many pieces it takes at the same time.
    fn at_once(&self) -> usize {
        1
    }

    /// All that was written before is durable on return.
    fn sync(&self) -> Result<(), DiskFailed>;

    /// What was written to these ranges is durable on return. Other writes may be or not.
    fn settle(&self, _ranges: &[Range<u64>]) -> Result<(), DiskFailed> {
        self.sync()
    }

    /// Whether writes gather in memory until a sync, so that to write a place often costs the disk
    /// little. Then records go home as soon as there are so many bytes of them.
    fn gathers(&self) -> Option<u64> {
        None
    }

    /// A part of a range will be written soon. The disk may look what is there.
    fn prepare_write(&self, _range: Range<u64>) {}

    /// Begins to write what has gathered of a range, and does not wait for it.
    fn begin_writing(&self, _range: Range<u64>) {}

    /// It is written in multiples of so many bytes: a power of two, a block at most. No more than
    /// the last of them is filled up with zeros.
    fn grain(&self) -> u64 {
        BLOCK
    }

    /// Where home places may lie: a record that names another one does not count.
    fn homes(&self) -> Range<u64> {
        0..u64::MAX
    }

    /// A range is not read again before it is written. The disk may give memory back.
    fn forget(&self, _at: u64, _len: u64) {}
}
