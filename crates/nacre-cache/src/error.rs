//! Why a journal cannot be used.

use crate::disk::DiskFailed;

/// Why a journal cannot be made, opened or written.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JournalError {
    /// The disk refused a call.
    #[error("the disk failed: {0}")]
    Disk(#[from] DiskFailed),
    /// The journal's place is too small, or no multiple of 4096 bytes.
    #[error("a journal of {0} bytes is too small or no multiple of 4096; give it more room")]
    BadSize(u64),
    /// Neither header is whole and of this pool, or a record is gone that was there.
    #[error("the journal is damaged, or that of another pool; restore the device from a backup")]
    Damaged,
    /// The record does not fit, even into an empty journal.
    #[error("{needed} bytes changed at once, the journal holds {room}; use a larger pool")]
    TooLarge {
        /// Bytes of the record.
        needed: u64,
        /// Bytes for records.
        room: u64,
    },
    /// The record fits only after a checkpoint.
    #[error("the journal is full; bring it to its home places first")]
    Full,
    /// A write failed before, so that nobody knows what the disk holds.
    #[error("the journal failed before; open it again")]
    Failed,
}
