//! Object numbers: the session's bitmap of numbers in use and the metadata blocks behind it.

use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use nacre_types::{
    BLOCK_SIZE, CheckedWord, ObjectId, StoreKind, UNITS_PER_BLOCK, UnitNo, VolumeOffset,
};
use nacre_volume::Volume;

use crate::error::{Result, StoreError};
use crate::layout::{BLOCK_LIST_AT, MAX_BLOCKS, ONODES_PER_BLOCK, word_salt};
use crate::lock::ObjectGuard;
use crate::store::Store;

const WORD_BITS: u64 = 64;
/// Which numbers of a word are taken first, and which when blocks are not to be had any more: an onode is written about
/// fifty times in a short life, and sixteen lie in a unit.
const TURNS: [u64; 2] = [0x7777_7777_7777_7777, 0x8888_8888_8888_8888];
/// The share of the pool that may become metadata blocks only so that wear is spread, and the most of these blocks:
/// they never become data again, and a scan reads them all.
const SPREAD_SHARE: u64 = 32;
const SPREAD_MOST: u64 = 32;

impl Store {
    /// Takes a free object number and its lock. Neither is visible to others before a commit.
    pub(crate) fn take_object(&self) -> Result<ObjectGuard<'_>> {
        loop {
            let blocks = self.block_count();
            let all = blocks * ONODES_PER_BLOCK;
            let hint = self.session.shared().object_hint.load(Relaxed);
            let (turn, next) = (hint & 1, hint >> 1);
            if let Some(guard) = self.take_object_from(turn, next..all)? {
                return Ok(guard);
            }
            // These numbers had their turn: rather than wear their onodes again, take a block more, as long as there
            // is much room.
            if !(self.may_spread(blocks) && self.add_block(blocks).is_ok()) {
                for turn in [1 - turn, turn] {
                    if let Some(guard) = self.take_object_from(turn, 0..all)? {
                        return Ok(guard);
                    }
                }
                self.add_block(blocks)?;
            }
            self.session.shared().object_hint.store(all << 1, Relaxed);
        }
    }

    fn may_spread(&self, blocks: u64) -> bool {
        let most = (self.units / UNITS_PER_BLOCK / SPREAD_SHARE).min(SPREAD_MOST);
        blocks < most && self.allocator().free_units() > self.units / 4
    }

    /// Gives an object number back.
    pub(crate) fn free_object(&self, id: ObjectId) {
        let word = &self.session.object_bits()[(id.0 / WORD_BITS) as usize];
        let bit = 1 << (id.0 % WORD_BITS);
        if word.fetch_and(!bit, AcqRel) & bit != 0 {
            self.session.shared().free_objects.fetch_add(1, Relaxed);
        }
    }

    /// Metadata blocks in use.
    #[inline]
    pub(crate) fn block_count(&self) -> u64 {
        self.session.shared().metadata_blocks.load(Acquire)
    }

    /// How many metadata blocks the pool's list names.
    pub(crate) fn count_blocks(&self) -> u64 {
        let named = |index: &u64| self.volume.load_u64(block_list_at(*index)) != 0;
        (0..MAX_BLOCKS).take_while(named).count() as u64
    }

    /// Numbers just freed are passed over, too: who makes and removes one file after the other shall not wear one onode.
    fn take_object_from(&self, turn: u64, ids: Range<u64>) -> Result<Option<ObjectGuard<'_>>> {
        let mut numbers = TURNS[turn as usize] & (u64::MAX << (ids.start % WORD_BITS));
        for word in ids.start / WORD_BITS..ids.end / WORD_BITS {
            if let Some(guard) = self.take_object_in(word, numbers)? {
                let next = guard.id().0 + 1;
                let hint = &self.session.shared().object_hint;
                hint.store(next << 1 | turn, Relaxed);
                return Ok(Some(guard));
            }
            numbers = TURNS[turn as usize];
        }
        Ok(None)
    }

    fn take_object_in(&self, index: u64, numbers: u64) -> Result<Option<ObjectGuard<'_>>> {
        let word = &self.session.object_bits()[index as usize];
        let mut tried = word.load(Relaxed) | !numbers;
        while tried != u64::MAX {
            let bit = 1 << tried.trailing_ones();
            let before = word.fetch_or(bit, AcqRel);
            let id = ObjectId(index * WORD_BITS + u64::from(tried.trailing_ones()));
            tried |= before | bit;
            if before & bit != 0 {
                continue;
            }
            self.session.shared().free_objects.fetch_sub(1, Relaxed);
            // A holder of a number that was freed meanwhile may still have the lock for a moment.
            match self.try_lock(id)? {
                Some(guard) => return Ok(Some(guard)),
                None => self.free_object(id),
            }
        }
        Ok(None)
    }

    /// Adds metadata block number `index` unless somebody else just did.
    fn add_block(&self, index: u64) -> Result<()> {
        let shared = self.session.shared();
        let _growing = self.lock_owned(&shared.meta_lock)?;
        if shared.metadata_blocks.load(Acquire) != index {
            return Ok(());
        }
        if (index + 1) * ONODES_PER_BLOCK > self.max_objects || index >= MAX_BLOCKS {
            return Err(StoreError::NoObjects);
        }
        if self.volume.load_u64(block_list_at(index)) == 0 {
            let block = self.allocator().take_block().ok_or(StoreError::NoSpace)?;
            publish_block(&self.volume, index, block);
        }
        shared.free_objects.fetch_add(ONODES_PER_BLOCK, Relaxed);
        shared.metadata_blocks.store(index + 1, Release);
        Ok(())
    }
}

/// Makes `block` a metadata block of free onodes and names it in the list, durably (I8).
pub(crate) fn publish_block(volume: &Volume, index: u64, block: UnitNo) {
    volume.fence(volume.zero(block.offset(), BLOCK_SIZE, StoreKind::Metadata));
    let at = block_list_at(index);
    let word = CheckedWord::seal(block.0, word_salt(at));
    volume.fence(volume.store_u64(at, word.0, StoreKind::Metadata));
}

/// Where the list names metadata block `index`.
pub(crate) fn block_list_at(index: u64) -> VolumeOffset {
    VolumeOffset(BLOCK_LIST_AT.0 + index * 8)
}
