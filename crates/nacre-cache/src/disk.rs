//! What can be done with a disk.

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

    /// All that was written before is durable on return.
    fn sync(&self) -> Result<(), DiskFailed>;

    /// A range is not read again before it is written. The disk may give memory back.
    fn forget(&self, _at: u64, _len: u64) {}
}
