//! Shared state of the log lanes.

use std::sync::atomic::AtomicU64;

use crate::Session;
use crate::liveness::lock::OwnedLock;
use crate::mapping::SharedWords;

/// One lane: whoever holds the lock has its one transaction in flight. One cache line.
///
/// Everything but the lock can be read back from the lane's log, so a death leaves nothing to
/// repair here.
#[repr(C, align(64))]
pub struct LaneState {
    /// Held from before the record is written until it is retired.
    pub lock: OwnedLock,
    /// Byte position in the log ring where the next record goes.
    pub tail: AtomicU64,
    /// First unit of the log block, 0 until somebody has asked the pool's list. It changes under
    /// the lock.
    pub block: AtomicU64,
    /// The log tail, if it was stored but is not durable for sure; else 0.
    pub lagging: AtomicU64,
    /// Order of the lane's last record among those of all lanes.
    pub stamp: AtomicU64,
    /// For the store.
    pub aux: [AtomicU64; 3],
}

const _: () = assert!(size_of::<LaneState>() == 64);

// SAFETY: atomics only.
unsafe impl SharedWords for LaneState {}

impl Session {
    /// A lane; `index` must be below [`Session::lane_count`].
    #[inline]
    pub fn lane(&self, index: u32) -> &LaneState {
        &self.memory.lanes.all()[index as usize]
    }

    /// Number of lanes.
    #[inline]
    pub fn lane_count(&self) -> u32 {
        self.memory.lanes.all().len() as u32
    }
}
