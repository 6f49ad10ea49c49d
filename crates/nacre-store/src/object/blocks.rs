//! Metadata blocks: where they lie, and how they come, move and go.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use nacre_session::step::{self, Fault};
use nacre_types::{
    BLOCK_SIZE, CheckedWord, ObjectId, StoreKind, UNIT_SIZE, UNITS_PER_BLOCK, UnitNo, VolumeOffset,
};
use nacre_volume::{Unfenced, Volume};

use crate::alloc::Allocator;
use crate::error::{Result, StoreError};
use crate::layout::{
    BLOCK_LIST_AT, ListedBlock, MAX_BLOCKS, ONODE_GENERATION_AT, ONODE_SIZE, ONODES_PER_BLOCK,
    word_salt,
};
use crate::object::lock::ObjectGuard;
use crate::object::numbers::WORD_BITS;
use crate::store::Store;

/// Free units below which blocks stay where they are.
pub(crate) const ROOM_TO_MOVE: u64 = UNITS_PER_BLOCK + UNITS_PER_BLOCK / 2;

/// The share of the pool that may become metadata blocks only so that wear is spread, and the most
/// of these blocks, as a scan reads them all. From three blocks on they move.
const SPREAD_SHARE: u64 = 32;
const SPREAD_MOST: u64 = 32;
/// What the session knows of a block that was given back.
const GIVEN_BACK: u64 = u64::MAX;

/// The place of a metadata block as the session knows it.
pub(crate) enum KnownBlock {
    At(UnitNo),
    GivenBack,
    /// Nobody has asked the pool's list yet.
    Unknown,
}

impl KnownBlock {
    #[inline(always)]
    pub(crate) fn of(word: u64) -> KnownBlock {
        match word.cast_signed() {
            1.. => KnownBlock::At(UnitNo(word)),
            0 => KnownBlock::Unknown,
            _ => KnownBlock::GivenBack,
        }
    }
}

/// A metadata block all of whose numbers are taken and locked by who moves it.
struct HeldBlock<'s> {
    store: &'s Store,
    index: u64,
    guards: Vec<ObjectGuard<'s>>,
    /// Its numbers stay taken: it was given back.
    is_gone: bool,
}

impl HeldBlock<'_> {
    /// The session knows the new place, or that there is none; now whoever knew the old one looks
    /// again.
    fn leave_place(&self) {
        if step::has(Fault::GoneInSilence) {
            return;
        }
        for guard in &self.guards {
            drop(guard.begin_change());
        }
    }
}

impl Drop for HeldBlock<'_> {
    fn drop(&mut self) {
        self.guards.clear();
        if !self.is_gone {
            self.store.set_numbers(self.index, 0);
        }
    }
}

impl Store {
    /// Metadata blocks that the pool's list has words for; some may be given back.
    #[inline]
    pub(crate) fn block_count(&self) -> u64 {
        self.session.shared().metadata_blocks.load(Acquire)
    }

    /// How many words the pool's list of metadata blocks has.
    pub(crate) fn count_blocks(&self) -> u64 {
        let named = |index: &u64| self.volume.load_u64(block_list_at(*index)) != 0;
        (0..MAX_BLOCKS).take_while(named).count() as u64
    }

    /// What the pool's list says of a metadata block.
    pub(crate) fn metadata_block(&self, index: u64) -> Result<ListedBlock> {
        let (at, what) = (block_list_at(index), "metadata block list");
        match ListedBlock::from_payload(self.listed_payload(at, what)?) {
            // The root directory is never gone.
            gone @ ListedBlock::GivenBack { .. } if index != 0 => Ok(gone),
            _ => self.listed_block(at, what).map(ListedBlock::At),
        }
    }

    pub(crate) fn is_given_back(&self, index: u64) -> bool {
        matches!(
            self.metadata_block(index),
            Ok(ListedBlock::GivenBack { .. })
        )
    }

    /// Metadata blocks that nothing is in, and those that were given back.
    pub(crate) fn count_empty_and_gone(&self) -> (u64, u64) {
        let blocks = 0..self.block_count();
        let gone = |&index: &u64| self.is_full(index) && self.is_given_back(index);
        let empty = blocks.clone().filter(|&index| self.is_empty(index)).count();
        (empty as u64, blocks.filter(gone).count() as u64)
    }

    fn is_empty(&self, index: u64) -> bool {
        self.object_words(index)
            .iter()
            .all(|word| word.load(Relaxed) == 0)
    }

    fn is_full(&self, index: u64) -> bool {
        self.object_words(index)
            .iter()
            .all(|word| word.load(Relaxed) == u64::MAX)
    }

    /// How many object numbers are in use.
    pub(crate) fn count_objects(&self) -> u64 {
        let here = |&index: &u64| !(self.is_full(index) && self.is_given_back(index));
        let words = (0..self.block_count()).filter(here);
        words
            .flat_map(|index| self.object_words(index))
            .map(|word| u64::from(word.load(Relaxed).count_ones()))
            .sum()
    }

    fn object_words(&self, index: u64) -> &[AtomicU64] {
        const WORDS: usize = (ONODES_PER_BLOCK / WORD_BITS) as usize;
        &self.session.object_bits()[index as usize * WORDS..][..WORDS]
    }

    fn set_numbers(&self, index: u64, word: u64) {
        for numbers in self.object_words(index) {
            numbers.store(word, Release);
        }
    }

    /// Nobody takes a number of a block that was given back.
    pub(crate) fn take_numbers_of_gone_blocks(&self) {
        let gone = (0..self.block_count()).filter(|&index| self.is_given_back(index));
        gone.for_each(|index| self.set_numbers(index, u64::MAX));
    }

    /// Whether there may be one more block only so that wear is spread.
    pub(super) fn may_spread(&self) -> bool {
        let most = (self.units / UNITS_PER_BLOCK / SPREAD_SHARE).min(SPREAD_MOST);
        let (_, gone) = self.count_empty_and_gone();
        let alloc = self.allocator();
        let has_room = alloc.free_units() > self.units / 4 && alloc.common() == 0;
        self.block_count() - gone < most && has_room
    }

    /// Moves a metadata block to another place, so that onodes wear the whole device, if no object
    /// is in it and there is room. The caller holds the meta lock.
    ///
    /// Whoever holds a lock of one of its objects, or has begun to read one, knew the old place: so
    /// all are locked before, and their versions move before the old place becomes anything else.
    pub(super) fn move_block(&self, index: u64) -> Result<bool> {
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
        let listed = list_block(&self.volume, index, ListedBlock::At(place));
        self.session.metadata_blocks()[index as usize].store(place.0, Release);
        held.leave_place();
        drop(held);
        listed?;
        self.allocator().free_block(old);
        Ok(true)
    }

    /// Moves metadata blocks that are to be left, with the objects in them. Nobody else has the
    /// pool attached, and no record waits.
    pub(crate) fn move_blocks_off(&self, leaves: &dyn Fn(UnitNo) -> bool) -> Result<()> {
        for index in 0..self.block_count() {
            let ListedBlock::At(old) = self.metadata_block(index)? else {
                continue;
            };
            if !leaves(old) {
                continue;
            }
            let place = self.allocator().take_block().ok_or(StoreError::NoSpace)?;
            let mut bytes = vec![0; BLOCK_SIZE as usize];
            self.volume.read(old.offset(), &mut bytes);
            let copied = self
                .volume
                .write(place.offset(), &bytes, StoreKind::Metadata);
            self.volume.fence(copied)?;
            list_block(&self.volume, index, ListedBlock::At(place))?;
            self.session.metadata_blocks()[index as usize].store(place.0, Release);
            self.allocator().free_block(old);
        }
        Ok(())
    }

    /// What `take` takes; if there is nothing, metadata blocks that nothing is in come back first,
    /// and what is cold moves behind.
    #[inline]
    pub(crate) fn take_space<T>(&self, take: impl Fn(Allocator<'_>) -> Option<T>) -> Result<T> {
        match take(self.allocator()) {
            Some(taken) => Ok(taken),
            None => self.take_given_back(take),
        }
    }

    #[cold]
    #[inline(never)]
    fn take_given_back<T>(&self, take: impl Fn(Allocator<'_>) -> Option<T>) -> Result<T> {
        self.give_blocks_back()?;
        match take(self.allocator()) {
            Some(taken) => Ok(taken),
            None => self.take_moving(take)?.ok_or(StoreError::NoSpace),
        }
    }

    /// Makes the units of metadata blocks that nothing is in free for anything. Whoever allocates
    /// does it before it runs out of space (D41).
    pub fn give_blocks_back(&self) -> Result<()> {
        let knows_how = self.superblock.version >= crate::layout::BLOCKS_COME_BACK;
        let blocks = || 1..self.block_count();
        if !self.writable || !knows_how || !blocks().any(|index| self.is_empty(index)) {
            return Ok(());
        }
        let _growing = self.lock_owned(&self.session.shared().meta_lock)?;
        blocks().try_for_each(|index| self.give_block_back(index))
    }

    /// As [`Store::move_block`], to nowhere. What its numbers must not have again is their
    /// generations: the list keeps the highest.
    fn give_block_back(&self, index: u64) -> Result<()> {
        let Some(mut held) = self.hold_block(index)? else {
            return Ok(());
        };
        let old = self.onode_at(ObjectId(index * ONODES_PER_BLOCK))?.unit();
        let generation = (0..ONODES_PER_BLOCK)
            .map(|onode| self.generation_at(old.offset().add(onode * ONODE_SIZE as u64)))
            .max();
        let generation = generation.unwrap_or_default();
        let early = step::has(Fault::FreedBeforeGone);
        if early {
            self.allocator().free_block(old);
        }
        step::point();
        let listed = list_block(&self.volume, index, ListedBlock::GivenBack { generation });
        held.is_gone = true;
        self.session.metadata_blocks()[index as usize].store(GIVEN_BACK, Release);
        held.leave_place();
        drop(held);
        listed?;
        step::point();
        if !early {
            self.allocator().free_block(old);
        }
        Ok(())
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
            is_gone: false,
        };
        for number in index * ONODES_PER_BLOCK..(index + 1) * ONODES_PER_BLOCK {
            match self.try_lock(ObjectId(number))? {
                Some(guard) => held.guards.push(guard),
                None if step::has(Fault::GoneWhileLocked) => {}
                None => return Ok(None),
            }
        }
        Ok(Some(held))
    }

    fn generation_at(&self, onode: VolumeOffset) -> u32 {
        self.volume.load_u32(onode.add(ONODE_GENERATION_AT))
    }

    /// Writes the free onodes of a unit to another unit: nothing but their generation count.
    fn copy_generations(&self, from: UnitNo, to: UnitNo) -> Unfenced {
        let generation = |onode: usize| self.generation_at(from.offset().add(onode as u64));
        write_free_onodes(&self.volume, to, generation)
    }

    /// Adds a metadata block, one that was given back or a further one, and says which. The caller
    /// holds the meta lock.
    pub(super) fn add_block(&self) -> Result<u64> {
        let blocks = self.block_count();
        let gone = (0..blocks).find(|&index| self.is_given_back(index));
        let index = gone.unwrap_or(blocks);
        if (index + 1) * ONODES_PER_BLOCK > self.max_objects || index >= MAX_BLOCKS {
            return Err(StoreError::NoObjects);
        }
        match gone {
            Some(_) => self.bring_back(index)?,
            None => self.append_block(index)?,
        }
        Ok(index)
    }

    fn append_block(&self, index: u64) -> Result<()> {
        if self.volume.load_u64(block_list_at(index)) == 0 {
            let block = self.take_block_moving()?.ok_or(StoreError::NoSpace)?;
            publish_block(&self.volume, index, block, 0)?;
        }
        let shared = self.session.shared();
        shared.metadata_blocks.store(index + 1, Release);
        Ok(())
    }

    /// Whoever gave it back may have died before the session knew: its place there is not asked.
    fn bring_back(&self, index: u64) -> Result<()> {
        let ListedBlock::GivenBack { generation } = self.metadata_block(index)? else {
            return Ok(());
        };
        let block = self.take_block_moving()?.ok_or(StoreError::NoSpace)?;
        let known = !step::has(Fault::GenerationsForgotten);
        publish_block(&self.volume, index, block, generation * u32::from(known))?;
        self.session.metadata_blocks()[index as usize].store(block.0, Release);
        self.set_numbers(index, 0);
        Ok(())
    }
}

/// Makes `block` a metadata block of free onodes, all of one generation, and names it in the list,
/// durably (I8).
pub(crate) fn publish_block(
    volume: &Volume,
    index: u64,
    block: UnitNo,
    generation: u32,
) -> Result<()> {
    let stores = match generation {
        0 => volume.zero(block.offset(), BLOCK_SIZE, StoreKind::Metadata),
        _ => (0..UNITS_PER_BLOCK)
            .map(|unit| write_free_onodes(volume, block.add(unit), |_| generation))
            .reduce(Unfenced::and)
            .unwrap_or(Unfenced::nothing()),
    };
    volume.fence(stores)?;
    list_block(volume, index, ListedBlock::At(block))
}

/// Writes a unit of free onodes, which are nothing but generation counts: of the onode at so many
/// bytes.
fn write_free_onodes(volume: &Volume, to: UnitNo, generation: impl Fn(usize) -> u32) -> Unfenced {
    let mut unit = [0; UNIT_SIZE as usize];
    for onode in (0..UNIT_SIZE as usize).step_by(ONODE_SIZE) {
        let at = onode + ONODE_GENERATION_AT as usize;
        unit[at..at + 4].copy_from_slice(&generation(onode).to_le_bytes());
    }
    volume.write(to.offset(), &unit, StoreKind::Metadata)
}

/// Stores what the list says of a metadata block, durably. What it names is durable.
#[cfg_attr(feature = "explore", track_caller)]
fn list_block(volume: &Volume, index: u64, block: ListedBlock) -> Result<()> {
    let at = block_list_at(index);
    let word = CheckedWord::seal(block.payload(), word_salt(at));
    Ok(volume.fence(volume.store_u64(at, word.0, StoreKind::Metadata))?)
}

/// Where the list names metadata block `index`.
pub(crate) fn block_list_at(index: u64) -> VolumeOffset {
    VolumeOffset(BLOCK_LIST_AT.0 + index * 8)
}
