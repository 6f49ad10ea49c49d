//! The attached pool: what every other module of this crate works on.

use std::ops::Deref;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};

use nacre_session::{Session, SlotRef};
use nacre_types::{Clock, Timestamp, UNIT_SIZE, UnitNo, Uuid};
use nacre_volume::{Access, Volume};

use crate::alloc::Allocator;
use crate::block_map::ExtentCache;
use crate::layout::{HEADER_UNITS, MAX_LANES};
use crate::superblock::{Superblock, lane_seed};
use crate::thread::ThreadCaches;
use crate::write_mode::WriteMode;

/// What attaching had to do.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttachReport {
    /// A session of other processes was joined; all else is zero then.
    pub joined: bool,
    /// The allocation state was rebuilt by a scan.
    pub rebuilt: bool,
    /// Log records replayed.
    pub replayed: usize,
    /// Objects without a name removed.
    pub orphans: usize,
    /// Inconsistencies that the scan met. If there are any, the attachment is read-only.
    pub problems: usize,
}

/// What a pool is, for people.
#[derive(Clone, Debug)]
pub struct PoolInfo {
    /// Uuid of the pool.
    pub uuid: Uuid,
    /// Format version.
    pub version: u32,
    /// Units of the volume.
    pub units: u64,
    /// Mode chosen at format.
    pub mode: WriteMode,
    /// Time of format, ns since the epoch.
    pub created: i64,
    /// Log blocks in use.
    pub lanes: usize,
    /// Metadata blocks that the pool's list has words for.
    pub metadata_blocks: u64,
    /// How many of them nothing is in: they come back when space runs short.
    pub empty_blocks: u64,
    /// How many of them were given back.
    pub gone_blocks: u64,
}

/// So that a unit of log tail words is written 256 times before its lane moves, a tree node 64
/// times before it does.
const LEVELLING: u32 = 16384;

fn pack(slot: SlotRef) -> u64 {
    u64::from(slot.generation) << 32 | u64::from(slot.slot)
}

/// What processes that run in one memory share of an attached pool.
pub struct Attachment {
    pub(crate) volume: Volume,
    pub(crate) session: Session,
    pub(crate) superblock: Superblock,
    pub(crate) units: u64,
    pub(crate) max_objects: u64,
    pub(crate) extent_cache: ExtentCache,
    /// What the checksums of each lane's records start from.
    pub(crate) lane_seeds: [u32; MAX_LANES],
}

/// One attached pool, as one process uses it.
pub struct Store {
    attachment: Arc<Attachment>,
    pub(crate) writable: bool,
    pub(crate) report: AttachReport,
    pub(crate) former: Option<SlotRef>,
    /// Beside the rest, which would be copied with each move of a store.
    pub(crate) thread_caches: Box<ThreadCaches>,
    /// Records after which a lane moves.
    pub(crate) levelling: AtomicU32,
    /// The object whose pages are gathered next, and the count of second units at which all that
    /// were left belonged to objects in use. Who holds that looks for some.
    pub(crate) gathers_next: AtomicU64,
    pub(crate) gathered_in_vain: Mutex<Option<u64>>,
    slot: AtomicU64,
    mode: AtomicU32,
    pub(crate) clock: Clock,
}

impl Deref for Store {
    type Target = Attachment;

    #[inline(always)]
    fn deref(&self) -> &Attachment {
        &self.attachment
    }
}

impl Store {
    pub(crate) fn new(
        volume: Volume,
        session: Session,
        superblock: Superblock,
        slot: SlotRef,
        mode: WriteMode,
    ) -> Store {
        let writable = volume.access() == Access::ReadWrite;
        let attachment = Attachment {
            units: volume.units().min(session.geometry().units),
            max_objects: session.geometry().max_objects,
            extent_cache: ExtentCache::new(),
            lane_seeds: std::array::from_fn(|lane| lane_seed(superblock.log_salt, lane as u32)),
            volume,
            session,
            superblock,
        };
        let store = Store::of(Arc::new(attachment), writable, slot);
        store.attachment.keep_versions_apart(slot);
        store.set_slot(slot);
        store.set_mode(mode);
        store
    }

    fn of(attachment: Arc<Attachment>, writable: bool, slot: SlotRef) -> Store {
        let store = Store {
            attachment,
            writable,
            report: AttachReport::default(),
            former: None,
            thread_caches: Box::default(),
            levelling: AtomicU32::new(LEVELLING),
            gathers_next: AtomicU64::new(0),
            gathered_in_vain: Mutex::new(None),
            slot: AtomicU64::new(pack(slot)),
            mode: AtomicU32::new(0),
            clock: Clock::Real,
        };
        store.thread_caches.begin(slot);
        store
    }

    /// The same pool for a child that runs in this process's memory and will adopt `slot`: what one
    /// of them holds is not the other's.
    pub fn for_child(&self, slot: SlotRef) -> Store {
        let mut child = Store::of(self.attachment.clone(), self.writable, slot);
        child.clock = self.clock;
        child.set_levelling(self.levelling.load(Relaxed));
        child.set_mode(self.mode());
        child
    }

    /// Only children in this process's memory share its volume, and they end before it leaves the
    /// pool.
    pub(crate) fn into_volume(self) -> Volume {
        let attachment = Arc::into_inner(self.attachment);
        attachment.expect("no child uses the pool any more").volume
    }

    /// Moves what is written most to other places after so many log records of a lane, for this
    /// process; 16384 if not told.
    pub fn set_levelling(&self, records: u32) {
        self.levelling.store(records.max(1), Relaxed);
    }

    pub(crate) fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    /// The volume that the pool lies on.
    #[inline]
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// The memory that all processes attached to the pool share.
    #[inline]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// What the pool is.
    pub fn info(&self) -> PoolInfo {
        let (empty_blocks, gone_blocks) = self.count_empty_and_gone();
        PoolInfo {
            uuid: self.superblock.uuid,
            version: self.superblock.version,
            units: self.units,
            mode: self.superblock.mode,
            created: self.superblock.created,
            lanes: self.lane_count() as usize,
            metadata_blocks: self.block_count(),
            empty_blocks,
            gone_blocks,
        }
    }

    /// How many units of each device, in volume order, are in use.
    pub fn used_by_device(&self) -> Vec<u64> {
        let devices = self.volume.devices().into_iter();
        let used = devices.map(|device| {
            let units = device.range.start.unit().0..device.range.end.unit().0.min(self.units);
            if device.is_leaving {
                let left = self.left_on(&units);
                return (left.contents + left.metadata) / UNIT_SIZE;
            }
            let free = self.allocator().count_free_among(units.clone());
            (units.end - units.start).saturating_sub(free)
        });
        used.collect()
    }

    /// What attaching had to do.
    pub fn report(&self) -> AttachReport {
        self.report
    }

    /// Whether the pool may be changed.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Write mode of this attachment.
    #[inline]
    pub fn mode(&self) -> WriteMode {
        WriteMode::of_number(self.mode.load(Relaxed)).unwrap_or(WriteMode::Direct)
    }

    /// Changes the write mode of this attachment.
    pub fn set_mode(&self, mode: WriteMode) {
        let mode = match mode {
            WriteMode::Cached if !self.volume.is_cached() => WriteMode::Direct,
            mode => mode,
        };
        self.mode.store(mode.number(), Relaxed);
        self.volume.commit_fences(mode != WriteMode::Cached);
    }

    /// The session slot of this process.
    #[inline]
    pub fn slot(&self) -> SlotRef {
        let packed = self.slot.load(Relaxed);
        SlotRef {
            slot: packed as u16,
            generation: (packed >> 32) as u32,
        }
    }

    /// Tells the store its new slot, in a forked child.
    pub fn set_slot(&self, slot: SlotRef) {
        self.slot.store(pack(slot), Relaxed);
        self.thread_caches.begin(slot);
        self.volume.set_share(u64::from(slot.slot));
    }

    /// The child that had this state and ran in this process's memory is gone.
    pub fn child_is_gone(&self) {
        self.volume.end_share(u64::from(self.slot().slot));
    }

    /// The time that a change made now gets.
    #[inline]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Seed of directory entry hashes.
    #[inline]
    pub fn dir_seed(&self) -> u64 {
        self.superblock.dir_seed
    }

    #[inline]
    pub(crate) fn allocator(&self) -> Allocator<'_> {
        Allocator::new(&self.session, &self.volume)
    }

    /// Whether `unit` can be an allocatable unit of this pool.
    #[inline]
    pub(crate) fn is_unit(&self, unit: u64) -> bool {
        unit >= HEADER_UNITS && unit < self.units
    }

    /// Whether the metadata in a unit was found sound in this session.
    #[inline]
    pub(crate) fn is_verified(&self, unit: UnitNo) -> bool {
        let word = &self.session.verified_bits()[(unit.0 / 64) as usize];
        word.load(Relaxed) & (1 << (unit.0 % 64)) != 0
    }

    /// Remembers that the metadata in a unit is sound.
    pub(crate) fn set_verified(&self, unit: UnitNo) {
        let word = &self.session.verified_bits()[(unit.0 / 64) as usize];
        word.fetch_or(1 << (unit.0 % 64), Relaxed);
    }
}
