//! What a process waits for, for others to see; circles are looked for in advisory/deadlock.rs.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Threads of one process whose waiting is seen. More may wait; a circle through them is not found.
pub(crate) const WAITS_PER_SLOT: usize = 8;

/// Nothing is waited for.
pub(crate) const UNUSED: u32 = 0;

/// One record lock that a process waits for.
#[repr(C)]
pub(crate) struct WaitRecord {
    pub(crate) ino: AtomicU64,
    pub(crate) first: AtomicU64,
    pub(crate) last: AtomicU64,
    pub(crate) kind: AtomicU32,
    reserved: AtomicU32,
}

impl WaitRecord {
    pub(crate) fn clear(&self) {
        self.kind.store(UNUSED, Ordering::Release);
    }
}
