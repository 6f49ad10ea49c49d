//! Where each region of the session file lies.

use std::mem::size_of;
use std::sync::atomic::AtomicU64;

use nacre_media::Traffic;

use crate::advisory::{BUCKETS, Bucket, ENTRIES, LockEntry};
use crate::liveness::slot::Slot;
use crate::mapping::ByteRange;
use crate::memory::geometry::Geometry;
use crate::memory::header::Header;
use crate::tables::dentry::{self, CacheSlot, NameBucket};
use crate::tables::icore::ICore;
use crate::tables::lane::LaneState;
use crate::tables::ofd::{MoreHolders, Ofd};
use crate::watch::{WATCHES, WatchEntry};
use crate::{COUNTS_OF_WORD, FIRST_SLOTS, MAX_METADATA_BLOCKS, MAX_OFDS, MAX_SLOTS};

const PAGE: u64 = 4096;

/// All regions, each beginning on a page of its own, and the length of the file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SessionPlan {
    pub(crate) header: ByteRange,
    pub(crate) lanes: ByteRange,
    pub(crate) slots: ByteRange,
    pub(crate) buckets: ByteRange,
    pub(crate) entries: ByteRange,
    pub(crate) ofds: ByteRange,
    pub(crate) more_holders: ByteRange,
    pub(crate) icores: ByteRange,
    pub(crate) name_buckets: ByteRange,
    pub(crate) dentries: ByteRange,
    pub(crate) unit_bits: ByteRange,
    pub(crate) verified_bits: ByteRange,
    pub(crate) object_bits: ByteRange,
    pub(crate) share_counts: ByteRange,
    pub(crate) traffic: ByteRange,
    pub(crate) metadata_blocks: ByteRange,
    pub(crate) watches: ByteRange,
    pub(crate) len: u64,
}

struct Planner {
    end: u64,
}

impl Planner {
    fn place<T>(&mut self, count: u64) -> ByteRange {
        let offset = self.end;
        let bytes = count * size_of::<T>() as u64;
        self.end = (offset + bytes).next_multiple_of(PAGE);
        ByteRange { offset, count }
    }
}

impl Geometry {
    /// Bytes of addresses that each process of such a session maps.
    pub fn session_bytes(&self) -> u64 {
        self.plan().map_or(0, |plan| plan.len)
    }

    pub(crate) fn plan(&self) -> Result<SessionPlan, &'static str> {
        self.validate()?;
        let mut planner = Planner { end: 0 };
        let unit_words = self.units.div_ceil(64);
        let object_words = self.max_objects.div_ceil(64);
        Ok(SessionPlan {
            header: planner.place::<Header>(1),
            lanes: planner.place::<LaneState>(u64::from(self.lanes)),
            slots: planner.place::<Slot>(MAX_SLOTS as u64),
            buckets: planner.place::<Bucket>(BUCKETS as u64),
            entries: planner.place::<LockEntry>(ENTRIES as u64),
            ofds: planner.place::<Ofd>(u64::from(MAX_OFDS)),
            more_holders: planner.place::<MoreHolders>(u64::from(MAX_OFDS)),
            icores: planner.place::<ICore>(self.max_objects),
            name_buckets: planner.place::<NameBucket>(dentry::buckets(self.max_objects)),
            dentries: planner.place::<CacheSlot>(dentry::places(self.max_objects)),
            unit_bits: planner.place::<AtomicU64>(unit_words),
            verified_bits: planner.place::<AtomicU64>(unit_words),
            object_bits: planner.place::<AtomicU64>(object_words),
            share_counts: planner.place::<AtomicU64>(self.units.div_ceil(COUNTS_OF_WORD)),
            traffic: planner.place::<Traffic>(crate::TRAFFIC_DEVICES),
            metadata_blocks: planner.place::<AtomicU64>(MAX_METADATA_BLOCKS),
            watches: planner.place::<WatchEntry>(WATCHES),
            len: planner.end,
        })
    }
}

impl SessionPlan {
    /// The end of what every session touches at its front.
    pub(crate) fn first_end(&self) -> u64 {
        self.slots.offset + (FIRST_SLOTS * size_of::<Slot>()) as u64
    }

    /// What it may take as long as it needs no more than the first slots.
    pub(crate) fn len_for_first_slots(&self) -> u64 {
        let more_slots = self.buckets.offset - self.first_end();
        let more_holders = self.icores.offset - self.more_holders.offset;
        self.len - more_slots - more_holders
    }
}

#[cfg(test)]
mod tests {
    use super::PAGE;
    use crate::memory::geometry::{Geometry, MAX_OBJECTS, MAX_UNITS};

    #[test]
    fn regions_follow_each_other_without_overlap() {
        let plan = Geometry {
            units: 1000,
            max_objects: 65,
            lanes: 3,
        }
        .plan()
        .unwrap();
        assert_eq!(plan.unit_bits.count, 16);
        assert_eq!(plan.object_bits.count, 2);
        assert_eq!(plan.verified_bits.offset, plan.unit_bits.offset + PAGE);
        assert_eq!(plan.share_counts.offset + PAGE, plan.traffic.offset);
        assert!(plan.traffic.count == 16 && plan.traffic.offset < plan.len);
        assert!(plan.icores.offset > plan.ofds.offset && plan.ofds.offset > plan.slots.offset);
    }

    #[test]
    fn the_largest_geometry_fits_in_memory_addresses() {
        let plan = Geometry {
            units: MAX_UNITS,
            max_objects: MAX_OBJECTS,
            lanes: 32,
        }
        .plan()
        .unwrap();
        assert!(plan.len < 1 << 46);
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for (units, max_objects, lanes) in [
            (0, 1, 1),
            (1, 0, 1),
            (1, 1, 0),
            (1, 1, 33),
            (MAX_UNITS + 1, 1, 1),
            (1, MAX_OBJECTS + 1, 1),
        ] {
            assert!(
                Geometry {
                    units,
                    max_objects,
                    lanes
                }
                .plan()
                .is_err()
            );
        }
    }
}
