//! Object numbers: the session's bitmap of numbers in use and the metadata blocks behind it.
//!
//! The numbers are taken from several shards, by each thread from one as long as there are any: so
//! two of them share neither lines of the bitmap nor what would move with every object.

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use nacre_session::{NUMBER_SHARDS, SlotRef};
use nacre_types::{
    BLOCK_SIZE, CheckedWord, ObjectId, StoreKind, UNIT_SIZE, UNITS_PER_BLOCK, UnitNo, VolumeOffset,
};
use nacre_volume::{Unfenced, Volume};

use crate::error::{Result, StoreError};
use crate::layout::{
    BLOCK_LIST_AT, MAX_BLOCKS, ONODE_GENERATION_AT, ONODE_SIZE, ONODES_PER_BLOCK, word_salt,
};
use crate::log::lane::ROOM_TO_MOVE;
use crate::object::lock::ObjectGuard;
use crate::store::Store;

const WORD_BITS: u64 = 64;
/// The hint of a shard of which no number was taken in this round.
const UNBEGUN: u64 = 0;
/// Which numbers of a word are taken while a block has its round: an onode is written about fifty
/// times in a short life, and sixteen lie in a unit.
const FIRST: u64 = 0x003f_003f_003f_003f;
/// The share of the pool that may become metadata blocks only so that wear is spread, and the most
/// of these blocks: they never become data again, and a scan reads them all. From three blocks on
/// they move.
const SPREAD_SHARE: u64 = 32;
const SPREAD_MOST: u64 = 32;

/// Where object numbers are taken, in one word.
#[derive(Clone, Copy)]
struct Round {
    block: u64,
    /// All had their round, and whatever is free in any block is used again.
    again: bool,
}

impl Round {
    fn from_word(word: u64) -> Round {
        Round {
            block: word >> 1,
            again: word & 1 == 1,
        }
    }

    fn word(self) -> u64 {
        self.block << 1 | u64::from(self.again)
    }

    /// The numbers of a shard, of `all`.
    fn shard(self, index: usize, all: u64) -> Range<u64> {
        let (start, len) = match self.again {
            true => (0, all),
            false => (self.block * ONODES_PER_BLOCK, ONODES_PER_BLOCK),
        };
        let len = len / NUMBER_SHARDS as u64;
        let start = start + len * index as u64;
        start..start + len
    }
}

/// Which shard a thread takes object numbers from, and in which round it began to, in one word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct OwnShard(u64);

impl OwnShard {
    fn new(round: Round, index: usize) -> OwnShard {
        OwnShard(round.word() * NUMBER_SHARDS as u64 + index as u64)
    }

    /// For a process that has taken none yet: each looks at another shard first.
    pub(crate) fn first(slot: SlotRef) -> u64 {
        let round = Round {
            block: MAX_BLOCKS,
            again: false,
        };
        OwnShard::new(round, usize::from(slot.slot) % NUMBER_SHARDS).0
    }

    fn index(self) -> usize {
        (self.0 % NUMBER_SHARDS as u64) as usize
    }

    fn is_of(self, round: Round) -> bool {
        self.0 / NUMBER_SHARDS as u64 == round.word()
    }
}

/// A metadata block all of whose numbers are taken and locked by who moves it.
struct HeldBlock<'s> {
    store: &'s Store,
    index: u64,
    guards: Vec<ObjectGuard<'s>>,
}

impl Drop for HeldBlock<'_> {
    fn drop(&mut self) {
        self.guards.clear();
        let words = self.store.object_words(self.index);
        words.iter().for_each(|word| word.store(0, Release));
    }
}

impl Store {
    /// Takes a free object number and its lock. Neither is visible to others before a commit.
    pub(crate) fn take_object(&self) -> Result<ObjectGuard<'_>> {
        loop {
            let round = Round::from_word(self.session.shared().object_round.load(Relaxed));
            let blocks = self.block_count();
            if let Some(guard) = self.take_object_from(round, blocks)? {
                return Ok(guard);
            }
            if self.give_next_round(round)? {
                continue;
            }
            let again = Round {
                again: true,
                ..round
            };
            self.begin_round(again);
            if let Some(guard) = self.take_object_from(again, blocks)? {
                return Ok(guard);
            }
            let _growing = self.lock_owned(&self.session.shared().meta_lock)?;
            self.add_block(blocks)?;
            self.begin_round_of(blocks);
        }
    }

    /// Rather than wear the onodes of a block again, go on in one that nothing is in, at a new
    /// place, or in one more, as long as there is much room. False if neither is to be had.
    #[cold]
    fn give_next_round(&self, last: Round) -> Result<bool> {
        let shared = self.session.shared();
        let _growing = self.lock_owned(&shared.meta_lock)?;
        if shared.object_round.load(Relaxed) != last.word() {
            return Ok(true);
        }
        let blocks = self.block_count();
        for step in 1..=blocks {
            let index = (last.block + step) % blocks;
            if self.move_block(index)? {
                self.begin_round_of(index);
                return Ok(true);
            }
        }
        let added = self.may_spread(blocks) && self.add_block(blocks).is_ok();
        if added {
            self.begin_round_of(blocks);
        }
        Ok(added)
    }

    fn may_spread(&self, blocks: u64) -> bool {
        let most = (self.units / UNITS_PER_BLOCK / SPREAD_SHARE).min(SPREAD_MOST);
        blocks < most && self.allocator().free_units() > self.units / 4
    }

    /// Moves a metadata block to another place, so that onodes wear the whole device, if no object
    /// is in it and there is room. The caller holds the meta lock.
    ///
    /// Whoever holds a lock of one of its objects, or has begun to read one, knew the old place: so
    /// all are locked before, and their versions move before the old place becomes anything else.
    fn move_block(&self, index: u64) -> Result<bool> {
        if self.allocator().free_units() < ROOM_TO_MOVE {
            return Ok(false);
        }
        let Some(held) = self.hold_block(index)? else {
            return Ok(false);
        };
        let old = self.onode_at(ObjectId(index * ONODES_PER_BLOCK))?.unit();
        let Some(place) = self.allocator().take_block() else {
            return Ok(false);
        };
        let stores = (0..UNITS_PER_BLOCK)
            .map(|unit| self.copy_generations(old.add(unit), place.add(unit)))
            .reduce(Unfenced::and);
        self.volume.fence(stores.unwrap_or(Unfenced::nothing()))?;
        let named = name_block(&self.volume, index, place);
        self.session.metadata_blocks()[index as usize].store(place.0, Release);
        for guard in &held.guards {
            drop(guard.begin_change());
        }
        drop(held);
        named?;
        self.allocator().free_block(old);
        Ok(true)
    }

    /// Takes and locks all numbers of a block; `None` if one is in use.
    fn hold_block(&self, index: u64) -> Result<Option<HeldBlock<'_>>> {
        let words = self.object_words(index);
        let take = |word: &AtomicU64| word.compare_exchange(0, u64::MAX, AcqRel, Relaxed).is_ok();
        let taken = words.iter().take_while(|word| take(word)).count();
        if taken < words.len() {
            words[..taken]
                .iter()
                .for_each(|word| word.store(0, Release));
            return Ok(None);
        }
        let mut held = HeldBlock {
            store: self,
            index,
            guards: Vec::with_capacity(ONODES_PER_BLOCK as usize),
        };
        for number in index * ONODES_PER_BLOCK..(index + 1) * ONODES_PER_BLOCK {
            match self.try_lock(ObjectId(number))? {
                Some(guard) => held.guards.push(guard),
                None => return Ok(None),
            }
        }
        Ok(Some(held))
    }

    /// Writes the free onodes of a unit to another unit: nothing but their generation count.
    fn copy_generations(&self, from: UnitNo, to: UnitNo) -> Unfenced {
        let mut unit = [0; UNIT_SIZE as usize];
        for onode in (0..UNIT_SIZE as usize).step_by(ONODE_SIZE) {
            let at = onode + ONODE_GENERATION_AT as usize;
            let generation = self.volume.load_u32(from.offset().add(at as u64));
            unit[at..at + 4].copy_from_slice(&generation.to_le_bytes());
        }
        self.volume.write(to.offset(), &unit, StoreKind::Metadata)
    }

    fn object_words(&self, block: u64) -> &[AtomicU64] {
        const WORDS: usize = (ONODES_PER_BLOCK / WORD_BITS) as usize;
        &self.session.object_bits()[block as usize * WORDS..][..WORDS]
    }

    fn begin_round_of(&self, block: u64) {
        self.begin_round(Round {
            block,
            again: false,
        });
    }

    fn begin_round(&self, round: Round) {
        let shared = self.session.shared();
        for hint in &shared.object_hints {
            hint.store(UNBEGUN, Relaxed);
        }
        shared.object_round.store(round.word(), Relaxed);
    }

    /// Gives an object number back.
    pub(crate) fn free_object(&self, id: ObjectId) {
        let word = &self.session.object_bits()[(id.0 / WORD_BITS) as usize];
        word.fetch_and(!(1 << (id.0 % WORD_BITS)), AcqRel);
    }

    /// How many numbers of the pool's metadata blocks are free.
    pub(crate) fn count_free_objects(&self) -> u64 {
        let words = (0..self.block_count()).flat_map(|block| self.object_words(block));
        words
            .map(|word| u64::from(word.load(Relaxed).count_zeros()))
            .sum()
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

    /// Takes a number from the shard that the thread took the last one from, else from one that
    /// nobody has begun in this round, else from any.
    fn take_object_from(&self, round: Round, blocks: u64) -> Result<Option<ObjectGuard<'_>>> {
        let shard_of_thread = &self.thread_caches.own().shard;
        let known = OwnShard(shard_of_thread.load(Relaxed));
        let all = || (0..NUMBER_SHARDS).map(|step| (known.index() + step) % NUMBER_SHARDS);
        let numbers = |shard| round.shard(shard, blocks * ONODES_PER_BLOCK);
        let own = all().take(usize::from(known.is_of(round)));
        let unbegun = all().filter(|&shard| self.begin_shard(shard, numbers(shard)));
        for shard in own.chain(unbegun).chain(all()) {
            if let Some(guard) = self.take_object_of(round, shard, numbers(shard))? {
                let now = OwnShard::new(round, shard);
                if now != known {
                    shard_of_thread.store(now.0, Relaxed);
                }
                return Ok(Some(guard));
            }
        }
        Ok(None)
    }

    /// Whether nobody has taken numbers of a shard in this round; then the caller is the first.
    fn begin_shard(&self, shard: usize, numbers: Range<u64>) -> bool {
        let hint = &self.session.shared().object_hints[shard];
        hint.compare_exchange(UNBEGUN, numbers.start, Relaxed, Relaxed)
            .is_ok()
    }

    /// Numbers just freed are passed over, too: who makes and removes one file after the other
    /// shall not wear one onode.
    fn take_object_of(
        &self,
        round: Round,
        shard: usize,
        numbers: Range<u64>,
    ) -> Result<Option<ObjectGuard<'_>>> {
        let hint = &self.session.shared().object_hints[shard];
        let known = hint.load(Relaxed);
        let next = match (numbers.start..=numbers.end).contains(&known) {
            true => known,
            false => numbers.start,
        };
        let wanted = if round.again { u64::MAX } else { FIRST };
        let mut bits = wanted & (u64::MAX << (next % WORD_BITS));
        for word in next / WORD_BITS..numbers.end / WORD_BITS {
            if let Some(guard) = self.take_object_in(word, bits)? {
                hint.store(guard.id().0 + 1, Relaxed);
                return Ok(Some(guard));
            }
            bits = wanted;
        }
        hint.store(numbers.end, Relaxed);
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
            // A holder of a number that was freed meanwhile may still have the lock for a moment.
            match self.try_lock(id)? {
                Some(guard) => return Ok(Some(guard)),
                None => self.free_object(id),
            }
        }
        Ok(None)
    }

    /// Adds metadata block number `index` unless somebody else just did. The caller holds the meta
    /// lock.
    fn add_block(&self, index: u64) -> Result<()> {
        let shared = self.session.shared();
        if shared.metadata_blocks.load(Acquire) != index {
            return Ok(());
        }
        if (index + 1) * ONODES_PER_BLOCK > self.max_objects || index >= MAX_BLOCKS {
            return Err(StoreError::NoObjects);
        }
        if self.volume.load_u64(block_list_at(index)) == 0 {
            let block = self.allocator().take_block().ok_or(StoreError::NoSpace)?;
            publish_block(&self.volume, index, block)?;
        }
        shared.metadata_blocks.store(index + 1, Release);
        Ok(())
    }
}

/// Makes `block` a metadata block of free onodes and names it in the list, durably (I8).
pub(crate) fn publish_block(volume: &Volume, index: u64, block: UnitNo) -> Result<()> {
    volume.fence(volume.zero(block.offset(), BLOCK_SIZE, StoreKind::Metadata))?;
    name_block(volume, index, block)
}

/// Names a block of free onodes, which is durable, as metadata block `index`, durably.
fn name_block(volume: &Volume, index: u64, block: UnitNo) -> Result<()> {
    let at = block_list_at(index);
    let word = CheckedWord::seal(block.0, word_salt(at));
    Ok(volume.fence(volume.store_u64(at, word.0, StoreKind::Metadata))?)
}

/// Where the list names metadata block `index`.
pub(crate) fn block_list_at(index: u64) -> VolumeOffset {
    VolumeOffset(BLOCK_LIST_AT.0 + index * 8)
}
