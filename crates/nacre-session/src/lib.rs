//! The memory that all processes attached to a pool share: slots, locks, lanes, in-core objects,
//! open file descriptions, bitmaps.
//!
//! Any process may be killed at any instruction. So every structure changes by single-word stores
//! that leave it valid at each step, ordered such that a death in between leaks something (a set
//! bit, a count too high) and never gives anything out twice. What a dead process held is found
//! through its slot: see [`Session::reap`].
//!
//! All references handed out lead to atomics: other processes may change everything at any time.

mod advisory;
mod error;
mod executed;
mod gate;
mod kernel_cache;
mod liveness;
mod mapping;
mod memory;
mod reap;
mod round;
mod session;
mod slot_ref;
pub mod step;
mod tables;
mod watch;
mod zeros;

pub use advisory::{AdvisoryError, Conflict, LockKind, LockOwner, LockRange, LockRequest};
pub use error::{Full, SessionError, SlotError};
pub use gate::StoreGate;
pub use liveness::group::CommitGroup;
pub use liveness::lock::{DeadOwner, OwnedLock, report_stalls, stall_text};
pub use liveness::process::{
    LookOnce, has_moved, is_number_running, keep_proc, look_once, namespaces_may_differ,
};
pub use liveness::slot::Slot;
pub use memory::geometry::Geometry;
pub use memory::header::{Counter, DeviceSpace, NUMBER_SHARDS, SPREAD_DEVICES, Shared, UnitHints};
pub use round::pause;
pub use session::{NODES, Session, SessionPlace, State};
pub use slot_ref::{Liveness, SlotRef};
pub use tables::dentry::{
    Dentry, DentryBucket, DentryKey, DentryTarget, MAX_DENTRY_NAME, NameCounts, ValidityStamp,
};
pub use tables::icore::{ICore, STORING};
pub use tables::lane::LaneState;
pub use tables::ofd::{OFD_MAPPED, OFD_STORED, OFD_SYNCED, OFD_WATCHED, Ofd, OfdId, OfdInit};
pub use tables::ofd_table::ReservedOfd;
pub use watch::{Message, MessageKey, Watch, WatchId};
pub use zeros::{ZEROS_LEN, Zeros};

/// Most processes that can be attached at once.
pub const MAX_SLOTS: usize = 8192;
/// Slots that are no child's: who attaches finds one, and recovers the dead, when all others were
/// left by processes that were killed.
pub const SPARE_SLOTS: usize = 64;
/// Slots whose memory is reserved when a session is made, and whose bits in the holders of
/// descriptions lie beside the rest of a description. The others are for the few sessions that need
/// them.
const FIRST_SLOTS: usize = 1024;
/// Units whose references are counted in one word.
pub const COUNTS_OF_WORD: u64 = 4;
/// Most open file descriptions of one pool.
pub const MAX_OFDS: u32 = 65536;
/// Most metadata blocks of a pool.
pub const MAX_METADATA_BLOCKS: u64 = 8192;
/// Most lanes of one pool.
pub const MAX_LANES: u32 = 32;
/// Devices whose traffic is counted apart.
const TRAFFIC_DEVICES: u64 = 16;
/// Longest name kept in an open file description, in bytes.
pub const MAX_OFD_NAME: usize = 255;
