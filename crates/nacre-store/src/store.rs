//! The attached pool: what every other room of this crate hangs on.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nacre_session::{Session, SlotRef};
use nacre_types::{ObjectId, UnitNo, Uuid, VolumeOffset};
use nacre_volume::Volume;

use crate::alloc::Allocator;
use crate::attach::AttachReport;
use crate::error::{Result, StoreError};
use crate::superblock::Superblock;
use crate::tx::BufferPool;

/// How file writes behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    /// Durable when the call returns.
    Direct,
    /// Durable when the call returns, and all-or-nothing.
    Atomic,
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
    /// Metadata blocks in use.
    pub metadata_blocks: u64,
}

/// One attached pool.
pub struct Store {
    pub(crate) volume: Volume,
    pub(crate) session: Session,
    pub(crate) superblock: Superblock,
    pub(crate) units: u64,
    pub(crate) writable: bool,
    pub(crate) slot: AtomicU64,
    pub(crate) mode: AtomicU32,
    pub(crate) object_hint: AtomicU64,
    pub(crate) lane_hint: AtomicU32,
    pub(crate) buffers: BufferPool,
    pub(crate) report: AttachReport,
}

impl Store {
    /// The volume.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }
    /// Default write mode of this attachment.
    pub fn mode(&self) -> WriteMode {
        match self.mode.load(Ordering::Relaxed) {
            0 => WriteMode::Direct,
            _ => WriteMode::Atomic,
        }
    }
    /// Own slot.
    pub fn slot(&self) -> SlotRef {
        unreachable!()
    }
    /// After fork.
    pub fn set_slot(&self, _slot: SlotRef) {
        unreachable!()
    }
    /// Seed of directory hashes.
    pub fn dir_seed(&self) -> u64 {
        unreachable!()
    }
    pub(crate) fn allocator(&self) -> Allocator<'_> {
        unreachable!()
    }
}
