//! The memory that all attached processes share: slots, locks, lanes, open file descriptions, bitmaps.
//! (API skeleton; bodies follow.)
#![allow(missing_docs, unused_variables, dead_code)]

use nacre_types::Ino;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU16, AtomicU32, AtomicU64};

/// Most processes that can be attached at once.
pub const MAX_SLOTS: usize = 1024;
/// Most open file descriptions of one pool.
pub const MAX_OFDS: u32 = 65536;
/// Most lanes of one pool.
pub const MAX_LANES: u32 = 32;
/// Longest name kept in an open file description.
pub const MAX_OFD_NAME: usize = 255;

#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("{op} {path}: {errno}")]
    Io { op: &'static str, path: PathBuf, errno: rustix::io::Errno },
    #[error("session file {0} does not exist")]
    Missing(PathBuf),
    #[error("{path} is no session file: {why}")]
    Foreign { path: PathBuf, why: &'static str },
    #[error("session file {path} has layout version {found}")]
    Version { path: PathBuf, found: u32 },
    #[error("session file {path} has {found} bytes, needs {needed}")]
    Truncated { path: PathBuf, found: u64, needed: u64 },
    /// From before the last reboot.
    #[error("session file {0} is left over from before the last start of the system")]
    Stale(PathBuf),
    #[error("session {0} belongs to another pid namespace")]
    PidNamespace(PathBuf),
    #[error("geometry: {0}")]
    Geometry(&'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the session's table of {0} is full")]
pub struct Full(pub &'static str);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the owner of the lock died: {0:?}")]
pub struct DeadOwner(pub SlotRef);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SlotError {
    #[error("all {MAX_SLOTS} process slots of the session are in use")]
    Full,
    #[error("the reserved slot was given up before it was adopted")]
    Lost,
    #[error("this process is in another pid namespace than the session")]
    PidNamespace,
    #[error("/proc/self/stat cannot be read")]
    NoProc,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry { pub units: u64, pub max_objects: u64, pub lanes: u32 }

/// Who owns the session file: of the pool's first device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner { pub uid: u32, pub gid: u32, pub mode: u32 }

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State { Building, Ready, Closing }

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness { Alive, Dead }

/// One attached process: a slot and its generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlotRef { pub slot: u16, pub generation: u32 }

#[repr(C, align(64))]
pub struct Slot { pub cwd: AtomicU64, pub umask: AtomicU32 }

/// 64-bit lock word, 0 = free; owner slot + generation + contended bit.
#[repr(transparent)]
pub struct OwnedLock(AtomicU64);
impl OwnedLock {
    /// Spins shortly, then waits in the kernel. `Err`: the owner is dead; reap it (`Session::reap`), then `steal`, or just lock again.
    pub fn lock(&self, session: &Session, me: SlotRef) -> Result<(), DeadOwner> { unreachable!() }
    pub fn try_lock(&self, session: &Session, me: SlotRef) -> bool { unreachable!() }
    pub fn unlock(&self, me: SlotRef) { unreachable!() }
    /// Takes the lock over from a recovered owner; false: somebody else was faster.
    pub fn steal(&self, dead: SlotRef, me: SlotRef) -> bool { unreachable!() }
    pub fn owner(&self) -> Option<SlotRef> { unreachable!() }
    pub fn is_held_by(&self, who: SlotRef) -> bool { unreachable!() }
}

/// In-core state of one object, 64 bytes.
#[repr(C, align(64))]
pub struct ICore {
    pub lock: OwnedLock,
    /// Odd while a writer changes the object (D4).
    pub version: AtomicU64,
    pub opens: AtomicU32,
    pub mapped: AtomicU32,
    pub alloc_hint: AtomicU64,
    pub flags: AtomicU32,
    pub reserved: AtomicU32,
    pub aux: [AtomicU64; 2],
    pub atime: AtomicI64,
}

#[repr(C, align(64))]
pub struct LaneState {
    pub lock: OwnedLock,
    /// Byte position in the log ring where the next record goes.
    pub tail: AtomicU64,
    pub lsn: AtomicU64,
    pub head: AtomicU64,
    pub aux: [AtomicU64; 4],
}

/// One counter or hint alone in its cache line.
#[repr(C, align(64))]
pub struct Counter(AtomicU64);
impl std::ops::Deref for Counter { type Target = AtomicU64; fn deref(&self) -> &AtomicU64 { &self.0 } }

/// Session-wide counters, locks; all start at zero.
#[repr(C, align(64))]
pub struct Shared {
    pub free_units: Counter,
    pub free_objects: Counter,
    pub unit_hint: Counter,
    pub object_hint: Counter,
    pub next_lsn: Counter,
    pub next_generation: Counter,
    pub metadata_blocks: Counter,
    pub log_blocks: Counter,
    pub rename_lock: OwnedLock,
    pub meta_lock: OwnedLock,
}

/// Flag in `Ofd::flags`: stands for one shared mapping, not for an open file.
pub const OFD_MAPPED: u32 = 1 << 31;

/// Identity of an open file description; its u64 form is positive as i64 and fits a kernel file offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OfdId { pub index: u32, pub generation: u32 }
impl OfdId {
    pub fn identity(self) -> u64 { unreachable!() }
    pub fn from_identity(identity: u64) -> Option<OfdId> { unreachable!() }
}

/// Everything an open file description is born with.
#[derive(Debug, Clone, Copy)]
pub struct OfdInit<'a> {
    pub ino: Ino,
    /// Generation of the inode.
    pub ino_generation: u32,
    /// O_* status flags and access mode, as the door gives them.
    pub flags: u32,
    /// File type and permission bits of the inode at open time.
    pub mode: u32,
    pub parent: Ino,
    pub name: &'a [u8],
}

#[repr(C, align(64))]
pub struct Ofd {
    pub pos: AtomicU64,
    pub pos_lock: OwnedLock,
    pub flags: AtomicU32,
    /// Mapping pins (ICore.mapped) that this description accounts for.
    pub mapped: AtomicU32,
    pub aux: AtomicU64,
}
impl Ofd {
    pub fn ino(&self) -> Ino { unreachable!() }
    pub fn ino_generation(&self) -> u32 { unreachable!() }
    pub fn mode(&self) -> u32 { unreachable!() }
    pub fn parent(&self) -> Ino { unreachable!() }
    /// Copies the name as opened, returns its length (at most 255).
    pub fn name(&self, into: &mut [u8; MAX_OFD_NAME]) -> usize { unreachable!() }
    /// Was sent over a socket: kept until nobody is attached.
    pub fn mark_passed(&self) { unreachable!() }
    pub fn is_passed(&self) -> bool { unreachable!() }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockOwner { Process(SlotRef), Description(OfdId) }
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind { Shared, Exclusive }
/// Bytes `first..=last`; last = i64::MAX means up to any EOF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRange { pub first: u64, pub last: u64 }
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conflict { pub kind: LockKind, pub range: LockRange, pub owner: LockOwner, /// pid of a process owner, None for a description
 pub pid: Option<u32> }
/// What one record-lock call asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRequest { pub ino: Ino, pub owner: LockOwner, pub range: LockRange, pub kind: LockKind }
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AdvisoryError {
    #[error("held by another")] WouldBlock,
    #[error("lock table full")] NoLocks,
    #[error("waiting would deadlock")] Deadlock,
    #[error("interrupted")] Interrupted,
}

pub struct Session(());
impl Session {
    // life
    /// `$NACRE_SESSION_DIR` or /dev/shm, then `nacre-<pool uuid>`.
    pub fn path_for(pool_uuid: impl std::fmt::Display) -> PathBuf { unreachable!() }
    /// Call under the volume's exclusive lock; replaces whatever file is there. State is Building until `set_ready`.
    pub fn create(path: &Path, geometry: Geometry, stamp: u64, owner: Owner) -> Result<Session, SessionError> { unreachable!() }
    pub fn open(path: &Path) -> Result<Session, SessionError> { unreachable!() }
    pub fn memory(geometry: Geometry) -> Result<Session, SessionError> { unreachable!() }
    pub fn unlink(&self) -> Result<(), SessionError> { unreachable!() }
    pub fn stamp(&self) -> u64 { unreachable!() }
    pub fn geometry(&self) -> Geometry { unreachable!() }
    pub fn state(&self) -> State { unreachable!() }
    pub fn set_ready(&self) { unreachable!() }
    /// Ready -> Closing if nobody but `me` is attached (call under the volume's exclusive lock).
    pub fn begin_closing(&self, me: SlotRef) -> bool { unreachable!() }
    pub fn is_tainted(&self) -> bool { unreachable!() }
    pub fn set_tainted(&self) { unreachable!() }
    pub fn path(&self) -> Option<&Path> { unreachable!() }
    /// (st_dev, st_ino) of the session file, for telling our anchors from other kernel fds.
    pub fn file_id(&self) -> Option<(u64, u64)> { unreachable!() }
    /// Address range of the mapping, for fault handlers.
    pub fn address_range(&self) -> std::ops::Range<usize> { unreachable!() }
    // slots
    pub fn claim_slot(&self) -> Result<SlotRef, SlotError> { unreachable!() }
    pub fn find_own_slot(&self) -> Option<SlotRef> { unreachable!() }
    pub fn reserve_child_slot(&self, me: SlotRef) -> Result<SlotRef, SlotError> { unreachable!() }
    /// The parent, right after fork: tells who will adopt, so that the child survives the parent's death.
    pub fn child_forked(&self, reserved: SlotRef, child_pid: u32) { unreachable!() }
    /// In the child; the SlotRef stays the same.
    pub fn adopt_slot(&self, reserved: SlotRef) -> Result<(), SlotError> { unreachable!() }
    pub fn release_slot(&self, slot: SlotRef) { unreachable!() }
    pub fn slot(&self, slot: SlotRef) -> &Slot { unreachable!() }
    /// The slot's pid if `slot` is still current.
    pub fn pid_of(&self, slot: SlotRef) -> Option<u32> { unreachable!() }
    pub fn is_current(&self, slot: SlotRef) -> bool { unreachable!() }
    pub fn liveness(&self, slot: SlotRef) -> Liveness { unreachable!() }
    pub fn dead_slots(&self) -> impl Iterator<Item = SlotRef> + '_ { std::iter::empty() }
    pub fn current_slots(&self) -> impl Iterator<Item = SlotRef> + '_ { std::iter::empty() }
    /// Recovers a dead slot exactly once among all survivors: marks the session tainted, takes the slot's recovery lock (reaping a dead
    /// reaper first), calls `recover(dead)` (lane, OFD holds: may be called again if a reaper died half way), drops advisory locks, releases the slot.
    pub fn reap<E>(&self, me: SlotRef, dead: SlotRef, recover: &mut dyn FnMut(SlotRef) -> Result<(), E>) -> Result<(), E> { unreachable!() }
    // objects, lanes, bitmaps
    /// Panics unless index < max_objects (callers validate object numbers first).
    pub fn icore(&self, index: u64) -> &ICore { unreachable!() }
    pub fn lane(&self, index: u32) -> &LaneState { unreachable!() }
    pub fn lane_count(&self) -> u32 { unreachable!() }
    pub fn lanes_held_by(&self, slot: SlotRef) -> impl Iterator<Item = u32> + '_ { std::iter::empty() }
    pub fn shared(&self) -> &Shared { unreachable!() }
    pub fn unit_bits(&self) -> &[AtomicU64] { unreachable!() }
    pub fn verified_bits(&self) -> &[AtomicU64] { unreachable!() }
    pub fn object_bits(&self) -> &[AtomicU64] { unreachable!() }
    pub fn share_counts(&self) -> &[AtomicU16] { unreachable!() }
    // open file descriptions
    /// Born held by `me`.
    pub fn ofd_alloc(&self, me: SlotRef, init: &OfdInit<'_>) -> Result<OfdId, Full> { unreachable!() }
    /// None: no such description (stale identity).
    pub fn ofd(&self, id: OfdId) -> Option<&Ofd> { unreachable!() }
    /// False: the description is gone.
    pub fn hold(&self, id: OfdId, who: SlotRef) -> bool { unreachable!() }
    /// True for exactly one caller: the last holder is gone, `id` is now Closing; undo what it pinned, then `ofd_free(id)`.
    pub fn unhold(&self, id: OfdId, who: SlotRef) -> bool { unreachable!() }
    pub fn ofd_free(&self, id: OfdId) { unreachable!() }
    pub fn is_held_by(&self, id: OfdId, who: SlotRef) -> bool { unreachable!() }
    pub fn ofds_held_by(&self, who: SlotRef) -> impl Iterator<Item = OfdId> + '_ { std::iter::empty() }
    /// Descriptions whose last holder's close was begun by (now dead) `who`: its pins may or may not be undone.
    pub fn ofds_closing_by(&self, who: SlotRef) -> impl Iterator<Item = OfdId> + '_ { std::iter::empty() }
    /// All live descriptions.
    pub fn ofds(&self) -> impl Iterator<Item = OfdId> + '_ { std::iter::empty() }
    // advisory locks
    pub fn record_lock_test(&self, me: SlotRef, request: &LockRequest) -> Option<Conflict> { unreachable!() }
    pub fn record_lock_set(&self, me: SlotRef, request: &LockRequest) -> Result<(), AdvisoryError> { unreachable!() }
    pub fn record_lock_wait(&self, me: SlotRef, request: &LockRequest, interrupted: &dyn Fn() -> bool) -> Result<(), AdvisoryError> { unreachable!() }
    pub fn record_unlock(&self, me: SlotRef, ino: Ino, owner: LockOwner, range: LockRange) -> Result<(), AdvisoryError> { unreachable!() }
    /// All record locks of `owner` on `ino` (a process closes any fd of the file).
    pub fn record_lock_clear(&self, me: SlotRef, ino: Ino, owner: LockOwner) { unreachable!() }
    /// All advisory locks of an owner everywhere (exit, last close).
    pub fn advisory_clear_owner(&self, me: SlotRef, owner: LockOwner) { unreachable!() }
    pub fn flock_set(&self, me: SlotRef, ino: Ino, ofd: OfdId, kind: LockKind) -> Result<(), AdvisoryError> { unreachable!() }
    pub fn flock_wait(&self, me: SlotRef, ino: Ino, ofd: OfdId, kind: LockKind, interrupted: &dyn Fn() -> bool) -> Result<(), AdvisoryError> { unreachable!() }
    pub fn flock_unlock(&self, me: SlotRef, ino: Ino, ofd: OfdId) { unreachable!() }
}
