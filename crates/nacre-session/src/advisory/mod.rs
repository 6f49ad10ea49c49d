//! Advisory locks: POSIX record locks (owned by a process), open-file-description locks and flock
//! locks (owned by a description).
//!
//! Record locks of both kinds exclude each other; flock locks live in a space of their own. All
//! locks of an inode are in the list of one bucket and change under that bucket's lock. Every
//! change first adds what is new and then takes away what is old, one word at a time: a process
//! that dies half way leaves its locks too large, and they go with their owner.

mod change;
mod deadlock;
mod list;
mod owner;
mod request;
mod wait;

pub(crate) use list::{BUCKETS, Bucket, ENTRIES, LockEntry};

use nacre_types::Ino;

use crate::slot_ref::SlotRef;
use crate::tables::ofd::OfdId;

/// The owner of an advisory lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockOwner {
    /// A process: POSIX record locks.
    Process(SlotRef),
    /// An open file description: OFD record locks and flock locks.
    Description(OfdId),
}

/// What a lock excludes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// Exclusive locks of others.
    Shared,
    /// All locks of others.
    Exclusive,
}

/// The bytes `first..=last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRange {
    /// First byte.
    pub first: u64,
    /// Last byte; `i64::MAX` reaches to any end of file. Not below `first`.
    pub last: u64,
}

/// What one record-lock call asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRequest {
    /// The file.
    pub ino: Ino,
    /// The asker.
    pub owner: LockOwner,
    /// Which bytes.
    pub range: LockRange,
    /// Which kind of lock.
    pub kind: LockKind,
}

/// A lock that stands in the way of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conflict {
    /// Its kind.
    pub kind: LockKind,
    /// Its bytes.
    pub range: LockRange,
    /// Its owner.
    pub owner: LockOwner,
    /// Process number of the owner; `None` for a description.
    pub pid: Option<u32>,
}

/// Why an advisory lock was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AdvisoryError {
    /// Somebody else holds a lock that excludes this one.
    #[error("the range is locked by another owner")]
    WouldBlock,
    /// The session's table of advisory locks is full.
    #[error("the session's table of advisory locks is full")]
    NoLocks,
    /// The owner of the lock in the way waits, directly or through others, for a lock of this
    /// process.
    #[error("waiting for the lock would deadlock")]
    Deadlock,
    /// The caller was interrupted while it waited.
    #[error("interrupted while waiting for a lock")]
    Interrupted,
}

impl LockRange {
    /// A whole file.
    pub const ALL: LockRange = LockRange {
        first: 0,
        last: i64::MAX as u64,
    };

    fn overlaps(self, other: LockRange) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Overlaps, or follows without a gap.
    fn touches(self, other: LockRange) -> bool {
        self.first <= other.last.saturating_add(1) && other.first <= self.last.saturating_add(1)
    }

    fn contains(self, other: LockRange) -> bool {
        self.first <= other.first && other.last <= self.last
    }

    /// Contains with bytes left over on both sides.
    fn surrounds(self, other: LockRange) -> bool {
        self.first < other.first && other.last < self.last
    }

    fn union(self, other: LockRange) -> LockRange {
        LockRange {
            first: self.first.min(other.first),
            last: self.last.max(other.last),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LockRange;

    fn range(first: u64, last: u64) -> LockRange {
        LockRange { first, last }
    }

    #[test]
    fn ranges_include_their_last_byte() {
        assert!(range(0, 9).overlaps(range(9, 12)) && !range(0, 9).overlaps(range(10, 12)));
        assert!(range(0, 9).touches(range(10, 12)) && !range(0, 9).touches(range(11, 12)));
        assert!(range(10, 12).touches(range(0, 9)));
    }

    #[test]
    fn only_an_inner_range_is_surrounded() {
        assert!(range(0, 9).surrounds(range(1, 8)));
        assert!(!range(0, 9).surrounds(range(0, 8)) && range(0, 9).contains(range(0, 8)));
        assert_eq!(range(5, 6).union(range(1, 2)), range(1, 6));
    }
}
