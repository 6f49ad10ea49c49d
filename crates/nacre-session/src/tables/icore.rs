//! In-core state of objects.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

use nacre_types::VersionLock;

use crate::MAX_OFDS;
use crate::liveness::lock::OwnedLock;
use crate::mapping::SharedWords;

/// What the attached processes share about one object. All zero when nobody uses it; one cache
/// line.
///
/// `opens` and `mapped` are raised before and lowered after the table that explains them (open file
/// descriptions), so that a death in between leaves them too high: an object is kept too long,
/// never given away too early.
#[repr(C, align(64))]
pub struct ICore {
    /// Writers hold it.
    pub lock: OwnedLock,
    /// Odd while the holder of the lock changes the object; optimistic readers retry when it was
    /// odd or has moved.
    pub version: VersionLock,
    /// Open file descriptions and other pins of the object.
    pub opens: AtomicU32,
    /// Shared mappings of the object's data; in the upper half ([`STORING`]) those of them that can
    /// be stored to.
    pub mapped: AtomicU32,
    /// Where the object's next units are looked for.
    pub alloc_hint: AtomicU64,
    /// Counts the changes of mode, owner and group; what is remembered of a directory's names is
    /// good for one value. Moves only while `version` is odd.
    pub attribute_epoch: AtomicU64,
    /// Counts the changes of where written data lies and of who may use it; what a process
    /// remembers of that is good for one value. Moves only while `version` is odd.
    pub mapping_epoch: AtomicU64,
    /// Whether writers that leave written data where it lies lock parts of the object instead of
    /// all of it (docs/locking.md). Not 0: who takes `lock` has to see to it that they are gone.
    pub ranged: AtomicU64,
    /// Access time that is not in the onode yet, ns since the epoch; 0 for none.
    pub atime: AtomicI64,
}

/// One mapping in the upper half of [`ICore::mapped`].
pub const STORING: u32 = 1 << 16;

const _: () = assert!(size_of::<ICore>() == 64);
// Each mapping has an open file description.
const _: () = assert!(MAX_OFDS <= STORING);

// SAFETY: atomics only.
unsafe impl SharedWords for ICore {}
