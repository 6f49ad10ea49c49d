//! First region of the session file: what the file is, its state, and the words that all processes
//! share.

use std::mem::offset_of;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::liveness::gate::Gate;
use crate::liveness::group::CommitGroup;
use crate::liveness::lock::OwnedLock;
use crate::mapping::SharedWords;
use crate::memory::geometry::Geometry;

/// "NACRESES" when read as bytes.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"NACRESES");
/// Grows with every change of any region.
pub(crate) const VERSION: u32 = 25;

/// One counter or hint, alone in its cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Counter(AtomicU64);

impl Deref for Counter {
    type Target = AtomicU64;

    #[inline]
    fn deref(&self) -> &AtomicU64 {
        &self.0
    }
}

/// A lock of parts of objects, alone in its cache line.
#[repr(C, align(64))]
pub(crate) struct RangeLock(pub(crate) OwnedLock);

/// So many processes take object numbers without disturbing each other.
pub const NUMBER_SHARDS: usize = 8;

/// Locks of parts of objects.
pub(crate) const RANGE_LOCKS: usize = 32;

/// The most devices over which data is spread.
pub const SPREAD_DEVICES: usize = 16;

/// What who spreads data knows of one device, alone in its cache line.
#[repr(C, align(64))]
pub struct DeviceSpace {
    /// Units of the device whose bit is clear: a statistic.
    pub free_units: AtomicU64,
    /// Where to look for free units.
    pub unit_hint: AtomicU64,
    /// Where to look for stripes of which nothing is used.
    pub stripe_hint: AtomicU64,
    /// How often it could have had its turn, weighted.
    pub turns: AtomicU64,
}

/// Where to look for free units.
#[derive(Debug, Default)]
#[repr(C)]
pub struct UnitHints {
    /// Where the last search for less than a group ended.
    pub next: Counter,
    /// Where the last search for groups ended. It is another one, so that small runs between large
    /// ones lie together: else each would break a group, and no whole block would be left.
    pub group: Counter,
    /// The metadata or log block that was taken last.
    pub block: Counter,
}

/// Counters, hints and locks of the whole pool. All start at zero or free.
///
/// A counter follows the bits it counts: it is lowered before bits are set and raised after they
/// are cleared, so that a death in between makes it too low.
#[repr(C, align(64))]
pub struct Shared {
    /// Units whose bit is clear.
    pub free_units: Counter,
    /// Where to look for free units.
    pub unit_hints: UnitHints,
    /// Where object numbers are taken.
    pub object_round: Counter,
    /// Where to look for free object numbers in each shard.
    pub object_hints: [Counter; NUMBER_SHARDS],
    /// How many places processes have taken for new names in the cache of names.
    pub dentry_round: Counter,
    /// Metadata blocks of the pool.
    pub metadata_blocks: Counter,
    /// Log blocks of the pool.
    pub log_blocks: Counter,
    /// Held by a rename of a directory into another one, before any object is locked.
    pub rename_lock: OwnedLock,
    /// Held while the pool gets a further metadata or log block.
    pub meta_lock: OwnedLock,
    /// Held while a version of a disk is taken and written.
    pub commit_lock: OwnedLock,
    /// The waiters for that.
    pub(crate) commit_group: CommitGroup,
    /// Held while zeros are shown or hidden.
    pub(crate) zeros_lock: OwnedLock,
    /// Which zeros stand for holes of mapped files.
    pub(crate) zeros: Counter,
    /// While a version is taken: by whom; else 0.
    pub(crate) gate: Gate,
    pub(crate) range_locks: [RangeLock; RANGE_LOCKS],
    /// Which device has the next turn, of what has no neighbour.
    pub device_round: Counter,
    /// Of each device, if data is spread.
    pub devices: [DeviceSpace; SPREAD_DEVICES],
    /// Of the devices behind the others, if there are any.
    pub behind: DeviceSpace,
    /// Held while what is cold moves to them.
    pub behind_lock: OwnedLock,
    /// The first unit of a device that leaves, of which nobody gets any.
    pub leaving_from: Counter,
    /// The unit behind its last one; 0: none leaves.
    pub leaving_to: Counter,
    /// Changes whenever pages of objects got second units; all ones: no page has one.
    pub second_units: AtomicU64,
}

/// The header region; the file's identity is written before the file gets its name and never
/// changes.
#[repr(C, align(4096))]
pub(crate) struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    lanes: AtomicU32,
    units: AtomicU64,
    max_objects: AtomicU64,
    stamp: AtomicU64,
    devices: AtomicU64,
    mark: [AtomicU64; 2],
    namespaces: [AtomicU64; 2],
    boot: [AtomicU64; 2],
    pub(crate) state: AtomicU32,
    pub(crate) tainted: AtomicU32,
    /// Slots from here on were never used.
    pub(crate) slot_high: AtomicU32,
    /// Open file descriptions from here on were never used.
    pub(crate) ofd_high: AtomicU32,
    /// Advisory-lock entries from here on were never used.
    pub(crate) entry_high: AtomicU32,
    pub(crate) entry_hint: AtomicU32,
    /// Watches in the table; after a death too many.
    pub(crate) watches: AtomicU32,
    /// Entries for watches from here on were never used.
    pub(crate) watch_high: AtomicU32,
    pub(crate) watch_serial: AtomicU64,
    /// Whose kernel keeps what it was told: see `kernel_cache.rs`.
    pub(crate) kernel_cache: AtomicU32,
    /// Guards the wait records of all slots.
    pub(crate) waits_lock: OwnedLock,
    pub(crate) shared: Shared,
}

// SAFETY: atomics only.
unsafe impl SharedWords for Header {}

/// What makes a session file this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) magic: u64,
    pub(crate) version: u32,
    pub(crate) geometry: Geometry,
    pub(crate) stamp: u64,
    /// Which devices it is for.
    pub(crate) devices: u64,
    /// Random words that only who may open the file knows.
    pub(crate) mark: [u64; 2],
    pub(crate) namespaces: (u64, u64),
    pub(crate) boot: [u64; 2],
}

/// Bytes of the header that hold the identity.
pub(crate) const IDENTITY_LEN: usize = offset_of!(Header, state);

fn u64_at(bytes: &[u8; IDENTITY_LEN], offset: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(word)
}

fn u32_at(bytes: &[u8; IDENTITY_LEN], offset: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(word)
}

impl Identity {
    pub(crate) fn decode(bytes: &[u8; IDENTITY_LEN]) -> Identity {
        let namespace = offset_of!(Header, namespaces);
        let boot = offset_of!(Header, boot);
        let mark = offset_of!(Header, mark);
        Identity {
            magic: u64_at(bytes, offset_of!(Header, magic)),
            version: u32_at(bytes, offset_of!(Header, version)),
            geometry: Geometry {
                units: u64_at(bytes, offset_of!(Header, units)),
                max_objects: u64_at(bytes, offset_of!(Header, max_objects)),
                lanes: u32_at(bytes, offset_of!(Header, lanes)),
            },
            stamp: u64_at(bytes, offset_of!(Header, stamp)),
            devices: u64_at(bytes, offset_of!(Header, devices)),
            mark: [u64_at(bytes, mark), u64_at(bytes, mark + 8)],
            namespaces: (u64_at(bytes, namespace), u64_at(bytes, namespace + 8)),
            boot: [u64_at(bytes, boot), u64_at(bytes, boot + 8)],
        }
    }
}

impl Header {
    /// Only for memory that nobody else has seen yet.
    pub(crate) fn write_identity(&self, identity: &Identity) {
        let set = |word: &AtomicU64, value| word.store(value, Ordering::Relaxed);
        self.version.store(identity.version, Ordering::Relaxed);
        self.lanes.store(identity.geometry.lanes, Ordering::Relaxed);
        set(&self.units, identity.geometry.units);
        set(&self.max_objects, identity.geometry.max_objects);
        set(&self.stamp, identity.stamp);
        set(&self.devices, identity.devices);
        set(&self.mark[0], identity.mark[0]);
        set(&self.mark[1], identity.mark[1]);
        set(&self.namespaces[0], identity.namespaces.0);
        set(&self.namespaces[1], identity.namespaces.1);
        set(&self.boot[0], identity.boot[0]);
        set(&self.boot[1], identity.boot[1]);
        self.magic.store(identity.magic, Ordering::Release);
    }
}
