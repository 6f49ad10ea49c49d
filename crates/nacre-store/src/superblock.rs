//! The superblock (two copies, written once) and the state record (two places, written in turn).

use nacre_types::{StoreKind, UNIT_SIZE, Uuid, VolumeOffset, crc32c, crc32c_append, site};
use nacre_volume::{Unfenced, Volume};
use zerocopy::{FromBytes, IntoBytes};

use crate::error::{Result, StoreError};
use crate::layout::{
    FORMAT_VERSION, KNOWN_INCOMPAT, MIN_POOL_BYTES, OLDEST_VERSION, RawState, RawSuperblock,
    SNAPSHOT_IS_TOLD, STATE_AT, STATE_CLEAN, STATE_MAGIC, SUPERBLOCK_AT, SUPERBLOCK_MAGIC,
};
use crate::write_mode::WriteMode;

/// What the superblock says, validated.
#[derive(Clone, Debug)]
pub(crate) struct Superblock {
    pub(crate) uuid: Uuid,
    pub(crate) version: u32,
    pub(crate) units: u64,
    pub(crate) dir_seed: u64,
    pub(crate) log_salt: u64,
    pub(crate) created: i64,
    pub(crate) mode: WriteMode,
}

/// What the newest state record says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolState {
    pub(crate) seq: u64,
    pub(crate) stamp: u64,
    pub(crate) clean: bool,
    pub(crate) units: u64,
    pub(crate) snapshot_unit: u64,
    pub(crate) snapshot_bytes: u64,
    /// Which snapshot it is.
    pub(crate) snapshot_crc: Option<u32>,
}

impl Superblock {
    /// Reads the first valid copy. A newer version or an unknown feature is an error even if the
    /// other copy would do: both are written together.
    pub(crate) fn read(volume: &Volume) -> Result<Superblock> {
        if volume.len() < MIN_POOL_BYTES {
            return Err(StoreError::NotAPool);
        }
        let mut seen_magic = None;
        let mut versions = [0; SUPERBLOCK_AT.len()];
        for (at, version) in SUPERBLOCK_AT.into_iter().zip(&mut versions) {
            let bytes: [u8; UNIT_SIZE as usize] = volume.read_array(at);
            let raw = raw_superblock(&bytes, at)?;
            if raw.magic.get() != SUPERBLOCK_MAGIC {
                continue;
            }
            seen_magic = Some(at);
            *version = raw.version.get();
            if site::check(raw.crc.get() == crc32c(&bytes[12..])) {
                return Superblock::validate(&raw, at);
            }
        }
        // A newer format may have its checksum elsewhere; a turned bit changes only one copy.
        let [first, second] = versions;
        Err(match seen_magic {
            Some(_) if first == second && first > FORMAT_VERSION => StoreError::NewerFormat {
                version: first,
                known: FORMAT_VERSION,
            },
            Some(at) => StoreError::corrupt(None, "superblock", at),
            None => StoreError::NotAPool,
        })
    }

    fn validate(raw: &RawSuperblock, at: VolumeOffset) -> Result<Superblock> {
        let version = raw.version.get();
        if version > FORMAT_VERSION {
            return Err(StoreError::NewerFormat {
                version,
                known: FORMAT_VERSION,
            });
        }
        if version < OLDEST_VERSION {
            return Err(StoreError::OlderFormat {
                version,
                known: FORMAT_VERSION,
            });
        }
        let unknown = raw.incompat.get() & !KNOWN_INCOMPAT;
        if unknown != 0 {
            return Err(StoreError::UnknownFeatures(unknown));
        }
        let mode = WriteMode::of_number(raw.mode.get());
        let mode = mode.ok_or_else(|| StoreError::corrupt(None, "superblock", at))?;
        if version == 0 || u64::from(raw.unit_size.get()) != UNIT_SIZE {
            return Err(StoreError::corrupt(None, "superblock", at));
        }
        Ok(Superblock {
            uuid: Uuid(raw.uuid),
            version,
            units: raw.units.get(),
            dir_seed: raw.dir_seed.get(),
            log_salt: raw.log_salt.get(),
            created: raw.created.get(),
            mode,
        })
    }

    /// Writes both copies; the caller fences.
    pub(crate) fn write(&self, volume: &Volume) -> Unfenced {
        let mut raw = RawSuperblock {
            magic: SUPERBLOCK_MAGIC.into(),
            crc: 0.into(),
            version: self.version.into(),
            compat: 0.into(),
            incompat: 0.into(),
            uuid: self.uuid.0,
            units: self.units.into(),
            dir_seed: self.dir_seed.into(),
            log_salt: self.log_salt.into(),
            created: self.created.into(),
            mode: self.mode.number().into(),
            unit_size: (UNIT_SIZE as u32).into(),
            reserved: [0; 4008],
        };
        raw.crc = crc32c(&raw.as_bytes()[12..]).into();
        let first = volume.write(SUPERBLOCK_AT[0], raw.as_bytes(), StoreKind::Metadata);
        first.and(volume.write(SUPERBLOCK_AT[1], raw.as_bytes(), StoreKind::Metadata))
    }
}

fn raw_superblock(bytes: &[u8], at: VolumeOffset) -> Result<RawSuperblock> {
    RawSuperblock::read_from_bytes(bytes).map_err(|_| StoreError::corrupt(None, "superblock", at))
}

impl PoolState {
    /// The newest valid record. A pool always has one, so none is damage.
    pub(crate) fn read(volume: &Volume) -> Result<PoolState> {
        STATE_AT
            .iter()
            .filter_map(|&at| PoolState::decode(&volume.read_array(at)))
            .reduce(|a, b| if b.is_newer(&a) { b } else { a })
            .ok_or(StoreError::corrupt(None, "state record", STATE_AT[0]))
    }

    pub(crate) fn forget_snapshot(&mut self) {
        (self.snapshot_unit, self.snapshot_bytes, self.snapshot_crc) = (0, 0, None);
    }

    /// Numbers go round: there is none that no other follows.
    fn is_newer(&self, than: &PoolState) -> bool {
        self.seq.wrapping_sub(than.seq) as i64 > 0
    }

    fn decode(bytes: &[u8; 64]) -> Option<PoolState> {
        let raw = RawState::read_from_bytes(bytes).ok()?;
        let whole = site::check(raw.crc.get() == crc32c(&bytes[8..]));
        if raw.magic.get() != STATE_MAGIC || !whole {
            return None;
        }
        Some(PoolState {
            seq: raw.seq.get(),
            stamp: raw.stamp.get(),
            clean: raw.flags.get() & STATE_CLEAN != 0,
            units: raw.units.get(),
            snapshot_unit: raw.snapshot_unit.get(),
            snapshot_bytes: raw.snapshot_bytes.get(),
            snapshot_crc: Some(raw.snapshot_crc.get())
                .filter(|crc| crc & SNAPSHOT_IS_TOLD != 0)
                .map(|crc| crc as u32),
        })
    }

    /// Writes this state as the successor of record `self.seq`, durably. The record it replaces is
    /// the older one, so a torn write loses nothing (I9).
    #[cfg_attr(feature = "explore", track_caller)]
    pub(crate) fn write_next(&mut self, volume: &Volume) -> Result<()> {
        Ok(volume.fence(self.store_next(volume))?)
    }

    /// As [`PoolState::write_next`], flushed but not fenced.
    #[cfg_attr(feature = "explore", track_caller)]
    pub(crate) fn store_next(&mut self, volume: &Volume) -> Unfenced {
        self.seq = self.seq.wrapping_add(1);
        let mut raw = RawState {
            magic: STATE_MAGIC.into(),
            crc: 0.into(),
            seq: self.seq.into(),
            stamp: self.stamp.into(),
            flags: if self.clean { STATE_CLEAN } else { 0 }.into(),
            units: self.units.into(),
            snapshot_unit: self.snapshot_unit.into(),
            snapshot_bytes: self.snapshot_bytes.into(),
            snapshot_crc: self
                .snapshot_crc
                .map_or(0, |crc| SNAPSHOT_IS_TOLD | u64::from(crc))
                .into(),
        };
        raw.crc = crc32c(&raw.as_bytes()[8..]).into();
        let at = STATE_AT[(self.seq % 2) as usize];
        volume.write(at, raw.as_bytes(), StoreKind::Metadata)
    }
}

/// What the checksum of a lane's records starts from: that of the pool's secret and the lane's
/// number.
pub(crate) fn lane_seed(salt: u64, lane: u32) -> u32 {
    crc32c_append(crc32c(&salt.to_le_bytes()), &u64::from(lane).to_le_bytes())
}
