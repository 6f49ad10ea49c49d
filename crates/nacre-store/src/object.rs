//! Object numbers: the session's bitmap of numbers in use and the metadata blocks behind it.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use nacre_types::{BLOCK_SIZE, CheckedWord, ObjectId, StoreKind, UnitNo, VolumeOffset};
use nacre_volume::Volume;

use crate::error::{Result, StoreError};
use crate::layout::{BLOCK_LIST_AT, MAX_BLOCKS, ONODES_PER_BLOCK, word_salt};
use crate::lock::ObjectGuard;
use crate::store::Store;

const WORD_BITS: u64 = 64;

impl Store {
    /// Takes a free object number and its lock. Neither is visible to others before a commit.
    pub(crate) fn take_object(&self) -> Result<ObjectGuard<'_>> {
        loop {
            let blocks = self.block_count();
            if let Some(guard) = self.take_object_below(blocks * ONODES_PER_BLOCK)? {
                return Ok(guard);
            }
            self.add_block(blocks)?;
        }
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

    fn take_object_below(&self, limit: u64) -> Result<Option<ObjectGuard<'_>>> {
        let words = limit / WORD_BITS;
        let hint = self.object_hint.load(Relaxed) % words.max(1);
        for word in (hint..words).chain(0..hint) {
            if let Some(guard) = self.take_object_in(word)? {
                self.object_hint.store(word, Relaxed);
                return Ok(Some(guard));
            }
        }
        Ok(None)
    }

    fn take_object_in(&self, index: u64) -> Result<Option<ObjectGuard<'_>>> {
        let word = &self.session.object_bits()[index as usize];
        let mut tried = word.load(Relaxed);
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
