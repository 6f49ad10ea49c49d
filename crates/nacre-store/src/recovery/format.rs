//! Making a pool on a volume.

use nacre_types::{
    Clock, ObjectId, StoreKind, UNIT_SIZE, UNITS_PER_BLOCK, UnitNo, Uuid, VolumeOffset,
};
use nacre_volume::{Access, Unfenced, Volume};
use zerocopy::IntoBytes;

use crate::error::{Result, StoreError};
use crate::lane::{lane_list_at, publish_lane};
use crate::layout::{FORMAT_VERSION, HEADER_UNITS, MIN_POOL_BYTES, onode_address};
use crate::object::blocks::publish_block;
use crate::object::onode::{NewObject, onode_crc};
use crate::recovery::image;
use crate::store::Store;
use crate::superblock::{PoolState, Superblock};
use crate::tx::fresh_onode;
use crate::write_mode::WriteMode;

const S_IFDIR: u32 = 0o040_000;
/// First metadata block and first log block: the first blocks behind the one that holds the front.
const METADATA_BLOCK: UnitNo = UnitNo(UNITS_PER_BLOCK);
const LOG_BLOCK: UnitNo = UnitNo(2 * UNITS_PER_BLOCK);

/// What a new pool shall be like.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// Write mode unless an attachment chooses another.
    pub mode: WriteMode,
    /// Permission bits of the root directory.
    pub root_mode: u32,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// What hashes and checks of the pool start from, for experiments that must repeat exactly.
    /// Others, who should not be able to guess them, get random ones.
    pub seed: Option<u64>,
    /// Where the times of what is made come from.
    pub clock: Clock,
}

impl Default for FormatOptions {
    fn default() -> FormatOptions {
        FormatOptions {
            mode: WriteMode::Direct,
            root_mode: 0o755,
            uid: 0,
            gid: 0,
            seed: None,
            clock: Clock::Real,
        }
    }
}

impl Store {
    /// Makes an empty pool with a root directory. What the volume held is lost. The superblock is
    /// written last: a format that was cut short leaves no pool.
    pub fn format(volume: &Volume, options: &FormatOptions) -> Result<()> {
        if volume.access() != Access::ReadWrite {
            return Err(StoreError::ReadOnly);
        }
        if volume.front_len() < MIN_POOL_BYTES {
            let have = volume.front_len();
            return Err(StoreError::PoolTooSmall {
                need: MIN_POOL_BYTES,
                have,
            });
        }
        image::bring_up(volume)?;
        let front = volume.zero(
            VolumeOffset(0),
            HEADER_UNITS * UNIT_SIZE,
            StoreKind::Metadata,
        );
        volume.fence(front)?;
        let now = options.clock.now().0;
        publish_block(volume, 0, METADATA_BLOCK, 0)?;
        publish_lane(volume, lane_list_at(0), LOG_BLOCK)?;
        let root = write_root(volume, options, now);
        let mut state = PoolState {
            stamp: random_u64(),
            units: volume.units(),
            ..PoolState::default()
        };
        volume.fence(root.and(state.store_next(volume)))?;
        let superblock = Superblock {
            uuid: volume.uuid(),
            version: FORMAT_VERSION,
            units: volume.units(),
            dir_seed: options.seed.unwrap_or_else(random_u64),
            log_salt: options.seed.unwrap_or_else(random_u64),
            created: now,
            mode: options.mode,
        };
        volume.fence(superblock.write(volume))?;
        if let Some(version) = volume.take_version() {
            volume.write_version(version)?;
        }
        image::retire(volume)
    }
}

fn write_root(volume: &Volume, options: &FormatOptions, now: i64) -> Unfenced {
    let root = NewObject {
        mode: S_IFDIR | options.root_mode & 0o7777,
        uid: options.uid,
        gid: options.gid,
        nlink: 2,
        parent: ObjectId::ROOT.0,
        time: now,
        ..NewObject::default()
    };
    let mut raw = fresh_onode(&root, ObjectId::ROOT, 1);
    raw.crc = onode_crc(&raw).into();
    let at = onode_address(METADATA_BLOCK, ObjectId::ROOT.0);
    volume.write(at, raw.as_bytes(), StoreKind::Metadata)
}

/// A random number other than 0.
pub(crate) fn random_u64() -> u64 {
    let uuid = Uuid::random();
    uuid.0
        .iter()
        .fold(0, |value: u64, &byte| {
            value.rotate_left(8) ^ u64::from(byte)
        })
        .max(1)
}
