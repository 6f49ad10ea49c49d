//! Lanes: which log block a transaction writes to, what is retired there, replay.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use nacre_session::{DeadOwner, Liveness, SlotRef, pause};
use nacre_types::{
    BLOCK_SIZE, CheckedWord, LINE_SIZE, StoreKind, UNIT_SIZE, UNITS_PER_BLOCK, UnitNo,
    VolumeOffset, site,
};
use nacre_volume::{Unfenced, Volume};
use smallvec::SmallVec;

use crate::error::{Result, StoreError};
use crate::layout::{
    LANE_LIST_AT, LogTail, MAX_LANES, MAX_RECORD, RING_AT, TAIL_STRIDE, TAIL_UNITS, TAIL_WORDS,
    word_salt,
};
use crate::log::record::Record;
use crate::object::blocks::ROOM_TO_MOVE;
use crate::object::lock::OwnedGuard;
use crate::placed_word::placed_word;
use crate::store::Store;

/// Set in the session's copy of a log tail word to tell it from "not read yet".
const KNOWN: u64 = 1 << 63;
/// How often who may not store looks whether others have replayed a dead process's record: for 3 s.
const RECOVERY_PATIENCE: usize = 300;
/// Records that may wait in a lane: one whose log tail lags, and the one behind it.
const MOST_WAITING: u32 = 2;
/// Pool size that one log block more is worth.
const BYTES_PER_LANE: u64 = 16 * BLOCK_SIZE;

/// Log tails that were flushed, and where all records so far stand.
#[derive(Default)]
pub(crate) struct LaggingTails {
    lagging: SmallVec<[(u32, u64); 4]>,
    newest: u32,
}

impl LaggingTails {
    /// Where a record stands that follows all so far.
    pub(crate) fn next_stamp(&self) -> u32 {
        // 0 is for records that need no order.
        self.newest.wrapping_add(1).max(1)
    }

    /// The tails are durable now.
    pub(crate) fn settled(&self, store: &Store) {
        for &(index, tail) in &self.lagging {
            let lagging = &store.session.lane(index).lagging;
            // One that came since lags itself.
            let _newer = lagging.compare_exchange(tail, 0, Release, Relaxed);
        }
    }
}

/// Whether a stamp is older than another one.
fn is_before(stamp: u32, other: u32) -> bool {
    (other.wrapping_sub(stamp) as i32) > 0
}

/// A lane held for one transaction.
pub(crate) struct Lane<'s> {
    store: &'s Store,
    _guard: Option<OwnedGuard<'s>>,
    index: u32,
    block: UnitNo,
    retired: LogTail,
}

impl Lane<'_> {
    /// Writes the record behind the last one; the caller's fence commits it (I3).
    pub(crate) fn append(&self, record: &mut Record) -> Unfenced {
        let seed = self.store.lane_seeds[self.index as usize];
        let bytes = record.seal(seed, self.retired.seq.wrapping_add(1));
        let at = VolumeOffset(self.block.offset().0 + self.record_start());
        self.store.volume.write(at, bytes, StoreKind::Log)
    }

    /// Declares the newest record, of `len` bytes, applied; durable on return (I4).
    #[cfg_attr(feature = "explore", track_caller)]
    pub(crate) fn retire(&mut self, len: u64) -> Result<()> {
        self.retired = tail_after(self.retired, len);
        let at = tail_at(self.block, u64::from(self.retired.seq) % TAIL_WORDS);
        let word = CheckedWord::seal(self.retired.payload(), word_salt(at));
        let volume = &self.store.volume;
        let retired = volume.fence(volume.store_u64(at, word.0, StoreKind::Log));
        self.remember();
        Ok(retired?)
    }

    /// As [`Lane::retire`], but the log tail becomes durable with the next record of anybody that
    /// shares fences, in this lane or another ([`Store::lagging_tails`]). All that the record
    /// changed is durable already.
    #[cfg_attr(feature = "explore", track_caller)]
    fn retire_later(&mut self, len: u64) {
        self.retired = tail_after(self.retired, len);
        let at = tail_at(self.block, u64::from(self.retired.seq) % TAIL_WORDS);
        let word = CheckedWord::seal(self.retired.payload(), word_salt(at));
        let volume = &self.store.volume;
        volume.store_u64_lazy(at, word.0, StoreKind::Log);
        let shared = self.store.session.lane(self.index);
        shared
            .lagging
            .store(self.retired.payload() | KNOWN, Release);
        self.remember();
    }

    /// As [`Lane::finish`], with a log tail that may lag.
    pub(crate) fn finish_later(&mut self, len: u64) -> Result<()> {
        match self.moves_after(self.retired.seq.wrapping_add(1)) {
            true => self.finish(len),
            false => {
                self.retire_later(len);
                Ok(())
            }
        }
    }

    /// Whether the lane has been written enough once this record is retired.
    fn moves_after(&self, seq: u32) -> bool {
        seq.is_multiple_of(self.store.levelling.load(Relaxed).max(1))
    }

    /// Where the last record stands among those of all lanes.
    pub(crate) fn set_stamp(&self, stamp: u32) {
        let shared = self.store.session.lane(self.index);
        shared.stamp.store(u64::from(stamp), Release);
    }

    /// As [`Lane::retire`]; then, each time that enough was written here, the lane moves to another
    /// block, so that logs wear the whole device and not a few places. Best effort: without room it
    /// stays.
    pub(crate) fn finish(&mut self, len: u64) -> Result<()> {
        self.retire(len)?;
        if self.moves_after(self.retired.seq)
            && self.store.allocator().free_units() >= ROOM_TO_MOVE
            && let Some(block) = self.store.allocator().take_block()
        {
            self.move_to(block)?;
        }
        Ok(())
    }

    /// No record waits: what counts is the newest log tail word, which is durable in the new block
    /// before the list names that (I13).
    #[cold]
    fn move_to(&mut self, block: UnitNo) -> Result<()> {
        let volume = &self.store.volume;
        let zeros = zero_block(volume, block);
        let retired = LogTail {
            next: LogTail::START.next,
            ..self.retired
        };
        let at = tail_at(block, u64::from(retired.seq) % TAIL_WORDS);
        let word = CheckedWord::seal(retired.payload(), word_salt(at));
        volume.fence(zeros.and(volume.store_u64(at, word.0, StoreKind::Log)))?;
        let list = lane_list_at(self.index);
        let word = CheckedWord::seal(block.0, word_salt(list));
        let listed = volume.fence(volume.store_u64(list, word.0, StoreKind::Metadata));
        let old = std::mem::replace(&mut self.block, block);
        self.retired = retired;
        self.remember();
        listed?;
        // Repair tells log blocks by their words.
        volume.fence(volume.zero(old.offset(), RING_AT, StoreKind::Log))?;
        self.store.allocator().free_block(old);
        Ok(())
    }

    fn remember(&self) {
        let shared = self.store.session.lane(self.index);
        shared.block.store(self.block.0, Release);
        shared.tail.store(self.retired.payload() | KNOWN, Release);
    }

    fn record_start(&self) -> u64 {
        u64::from(self.retired.next) * LINE_SIZE
    }
}

impl Store {
    /// Moves lanes whose blocks are to be left. No transaction is under way, and all log tails are
    /// durable.
    pub(crate) fn move_lanes_off(&self, leaves: &dyn Fn(UnitNo) -> bool) -> Result<()> {
        for index in 0..self.lane_count() {
            if leaves(self.lane_block(index)?) {
                let guard = self.lock_owned(&self.session.lane(index).lock)?;
                let block = self.allocator().take_block().ok_or(StoreError::NoSpace)?;
                self.open_lane(index, Some(guard))?.move_to(block)?;
            }
        }
        Ok(())
    }

    /// Takes a free lane, adds one while the pool can afford it, or waits.
    pub(crate) fn take_lane(&self) -> Result<Lane<'_>> {
        let lanes = self.lane_count().max(1);
        let last = &self.thread_caches.own().lane;
        let hint = last.load(Relaxed) % lanes;
        for index in (hint..lanes).chain(0..hint) {
            if let Some(guard) = self.try_lock_owned(&self.session.lane(index).lock) {
                last.store(index, Relaxed);
                return self.open_lane(index, Some(guard));
            }
        }
        if lanes < self.max_lanes() && self.add_lane()? {
            return self.take_lane();
        }
        let guard = self.lock_owned(&self.session.lane(hint).lock)?;
        self.open_lane(hint, Some(guard))
    }

    /// Replays what waits in any lane whose owner is dead, marks the session tainted. Locks that
    /// the dead process holds may be stolen afterwards.
    pub fn recover_slot(&self, dead: SlotRef) -> Result<()> {
        if !self.writable {
            return self.await_recovery();
        }
        debug_assert!(self.session.liveness(dead) != Liveness::Alive);
        self.session.set_tainted();
        // It may have died before it said so.
        self.note_second_units();
        self.volume.end_windows_of(u64::from(dead.slot));
        let _turn = self.recovery_round();
        let me = self.slot();
        for index in 0..self.lane_count() {
            let lock = &self.session.lane(index).lock;
            let Some(owner) = lock.owner() else { continue };
            if self.session.liveness(owner) != Liveness::Alive && lock.steal(owner, me) {
                let replayed = self.replay_lane(index);
                lock.unlock(me);
                replayed?;
            }
        }
        Ok(())
    }

    /// Whoever may not store waits until others have replayed what dead processes left.
    fn await_recovery(&self) -> Result<()> {
        for _ in 0..RECOVERY_PATIENCE {
            if !self.dead_record_waits()? {
                return Ok(());
            }
            pause();
        }
        Err(StoreError::NeedsRecovery)
    }

    fn dead_record_waits(&self) -> Result<bool> {
        for index in 0..self.lane_count() {
            let owner = self.session.lane(index).lock.owner();
            let dead = owner.is_some_and(|owner| self.session.liveness(owner) != Liveness::Alive);
            if dead && self.lane_is_pending(index)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Replays the committed but not retired record of a lane that nobody else uses, or drops an
    /// incomplete one. Returns whether there was one to replay.
    pub(crate) fn replay_lane(&self, index: u32) -> Result<bool> {
        let shared = self.session.lane(index);
        shared.tail.store(0, Release);
        // The dead one may have moved it.
        shared.block.store(0, Release);
        let mut lane = self.open_lane(index, None)?;
        let seed = self.lane_seeds[index as usize];
        let pending = Record::read(&self.volume, lane.block, seed, lane.retired);
        let Some(record) = pending else {
            return Ok(false);
        };
        record.validate(&self.volume, lane.block.offset().add(lane.record_start()))?;
        if !record.has_its_bytes(&self.volume) {
            // It must never count, whatever comes to those places later.
            if site::step() {
                lane.retire(record.len())?;
            }
            return Ok(false);
        }
        let applied = self.volume.fence(record.apply(&self.volume));
        if site::step() {
            lane.retire(record.len())?;
        }
        applied?;
        Ok(true)
    }

    /// Whether a committed record waits in the lane.
    pub(crate) fn lane_is_pending(&self, index: u32) -> Result<bool> {
        let record = self.waiting_record(index)?;
        Ok(record.is_some_and(|record| record.has_its_bytes(&self.volume)))
    }

    fn waiting_record(&self, index: u32) -> Result<Option<Record>> {
        let block = self.listed_block(lane_list_at(index), "log block list")?;
        let retired = read_tail(&self.volume, block)?;
        let seed = self.lane_seeds[index as usize];
        let record = Record::read(&self.volume, block, seed, retired);
        if let Some(record) = &record {
            record.validate(&self.volume, block.offset())?;
        }
        Ok(record)
    }

    /// Replays what waits in all lanes, which nobody uses: the records of one in their order, those
    /// of several by their stamps. Returns how many there were.
    pub(crate) fn replay_lanes(&self) -> Result<usize> {
        // Who reads a tail in memory need not find it after the next crash.
        if !self.volume.is_untouched() {
            self.settle_tails()?;
        }
        let mut replayed = 0;
        for _ in 0..MOST_WAITING * self.lane_count() {
            let Some(index) = self.first_to_replay()? else {
                break;
            };
            replayed += usize::from(self.replay_lane(index)?);
        }
        Ok(replayed)
    }

    /// The lane whose waiting record is the oldest.
    fn first_to_replay(&self) -> Result<Option<u32>> {
        let mut first: Option<(u32, u32)> = None;
        for index in 0..self.lane_count() {
            let Some(record) = self.waiting_record(index)? else {
                continue;
            };
            let is_first = |(stamp, _)| site::check(is_before(record.stamp(), stamp));
            if first.is_none_or(is_first) {
                first = Some((record.stamp(), index));
            }
        }
        Ok(first.map(|(_, index)| index))
    }

    /// Makes all log tails durable: programs that died may have left some that are not.
    pub(crate) fn settle_tails(&self) -> Result<()> {
        self.settle_tails_with(Unfenced::nothing())
    }

    /// As [`Store::settle_tails`], with something else that was flushed.
    pub(crate) fn settle_tails_with(&self, mut flushed: Unfenced) -> Result<()> {
        for index in 0..self.lane_count() {
            let block = self.lane_block(index)?;
            let retired = read_tail(&self.volume, block)?;
            flushed.join(self.flush_tail(block, retired));
        }
        Ok(self.volume.fence(flushed)?)
    }

    #[cfg_attr(feature = "explore", track_caller)]
    fn flush_tail(&self, block: UnitNo, tail: LogTail) -> Unfenced {
        let at = tail_at(block, u64::from(tail.seq) % TAIL_WORDS);
        self.volume.flush_as(at, 8, StoreKind::Log)
    }

    /// Flushes the log tails that may lag: their records must not be replayed over what is about to
    /// be recorded. They are durable with the caller's fence, who then calls
    /// [`LaggingTails::settled`].
    pub(crate) fn lagging_tails(&self) -> Result<(LaggingTails, Unfenced)> {
        let (mut tails, mut flushed) = (LaggingTails::default(), Unfenced::nothing());
        for index in 0..self.lane_count() {
            let shared = self.session.lane(index);
            let stamp = shared.stamp.load(Acquire) as u32;
            if is_before(tails.newest, stamp) {
                tails.newest = stamp;
            }
            let tail = shared.lagging.load(Acquire);
            if tail != 0 {
                let block = self.lane_block(index)?;
                flushed.join(self.flush_tail(block, LogTail::from_payload(tail & !KNOWN)));
                tails.lagging.push((index, tail));
            }
        }
        Ok((tails, flushed))
    }

    /// How many log blocks the pool's list names.
    pub(crate) fn count_lanes(&self) -> u32 {
        let named = |index: &u32| self.volume.load_u64(lane_list_at(*index)) != 0;
        (0..MAX_LANES as u32).take_while(named).count() as u32
    }

    /// How many records were retired since the pool was made, of each lane modulo 2^32. What came
    /// between two looks are changes of names and attributes, and other transactions.
    pub fn records(&self) -> u64 {
        let records = |index: u32| {
            let tail = self
                .known_tail(index)
                .map_or_else(|| self.durable_tail(index), Ok);
            tail.map_or(0, |tail| u64::from(tail.seq))
        };
        (0..self.lane_count()).map(records).sum()
    }

    /// The log tail of a lane, if somebody has asked for it in this session.
    #[inline(always)]
    fn known_tail(&self, index: u32) -> Option<LogTail> {
        let tail = self.session.lane(index).tail.load(Acquire);
        (tail & KNOWN != 0).then(|| LogTail::from_payload(tail & !KNOWN))
    }

    fn durable_tail(&self, index: u32) -> Result<LogTail> {
        read_tail(&self.volume, self.lane_block(index)?)
    }

    /// Log blocks in use.
    pub(crate) fn lane_count(&self) -> u32 {
        self.session.shared().log_blocks.load(Acquire) as u32
    }

    /// The log block of a lane that is held.
    pub(crate) fn lane_block(&self, index: u32) -> Result<UnitNo> {
        match self.session.lane(index).block.load(Acquire) {
            0 => self.listed_block(lane_list_at(index), "log block list"),
            block => Ok(UnitNo(block)),
        }
    }

    /// A block named by a list word, checked to lie in the volume.
    #[inline]
    pub(crate) fn listed_block(&self, at: VolumeOffset, what: &'static str) -> Result<UnitNo> {
        let unit = self.listed_payload(at, what)?;
        let is_aligned = unit != 0 && unit % UNITS_PER_BLOCK == 0;
        match is_aligned && unit + UNITS_PER_BLOCK <= self.units {
            true => Ok(UnitNo(unit)),
            false => Err(StoreError::corrupt(None, what, at)),
        }
    }

    /// What a list word says.
    #[inline]
    pub(crate) fn listed_payload(&self, at: VolumeOffset, what: &'static str) -> Result<u64> {
        let word = placed_word(&self.volume, at);
        word.ok_or_else(|| StoreError::corrupt(None, what, at))
    }

    fn open_lane<'s>(&'s self, index: u32, guard: Option<OwnedGuard<'s>>) -> Result<Lane<'s>> {
        let block = self.lane_block(index)?;
        let known = self.known_tail(index);
        let retired = match known {
            Some(tail) => tail,
            None => read_tail(&self.volume, block)?,
        };
        let lane = Lane {
            store: self,
            _guard: guard,
            index,
            block,
            retired,
        };
        if known.is_none() {
            lane.remember();
        }
        Ok(lane)
    }

    fn max_lanes(&self) -> u32 {
        (self.volume.front_len() / BYTES_PER_LANE).clamp(1, MAX_LANES as u64) as u32
    }

    /// Adds a log block; false when there is no room for it.
    fn add_lane(&self) -> Result<bool> {
        let counter = &self.session.shared().log_blocks;
        let _growing = self.lock_owned(&self.session.shared().meta_lock)?;
        let index = counter.load(Acquire);
        if index >= u64::from(self.max_lanes()) {
            return Ok(true);
        }
        let at = lane_list_at(index as u32);
        if self.volume.load_u64(at) == 0 {
            let Some(block) = self.allocator().take_block() else {
                return Ok(false);
            };
            self.volume.fence(zero_block(&self.volume, block))?;
            publish_lane(&self.volume, at, block)?;
        }
        counter.store(index + 1, Release);
        Ok(true)
    }

    /// The meta lock, taken without recovering its dead owner: that is what the holder is about to
    /// do.
    fn recovery_round(&self) -> OwnedGuard<'_> {
        let lock = &self.session.shared().meta_lock;
        let me = self.slot();
        while let Err(DeadOwner(dead)) = lock.lock(&self.session, me) {
            if lock.steal(dead, me) {
                break;
            }
        }
        self.held(lock)
    }
}

/// Makes `block` an empty log block and names it in the list at `at`, durably (I8).
pub(crate) fn publish_lane(volume: &Volume, at: VolumeOffset, block: UnitNo) -> Result<()> {
    volume.fence(volume.zero(block.offset(), RING_AT, StoreKind::Log))?;
    let word = CheckedWord::seal(block.0, word_salt(at));
    Ok(volume.fence(volume.store_u64(at, word.0, StoreKind::Metadata))?)
}

/// Zeros what counts of a new log block. Disks that hold the same may differ in all of it.
fn zero_block(volume: &Volume, block: UnitNo) -> Unfenced {
    let len = match volume.has_alike_disks() {
        true => BLOCK_SIZE,
        false => RING_AT,
    };
    volume.zero(block.offset(), len, StoreKind::Log)
}

/// Where the list names the log block of a lane.
pub(crate) fn lane_list_at(index: u32) -> VolumeOffset {
    VolumeOffset(LANE_LIST_AT.0 + u64::from(index) * 8)
}

/// What is said when the record of `len` bytes that follows is retired, too.
pub(crate) fn tail_after(retired: LogTail, len: u64) -> LogTail {
    let start = u64::from(retired.next) * LINE_SIZE;
    let end = (start + len).next_multiple_of(LINE_SIZE);
    let fits = end + MAX_RECORD as u64 <= BLOCK_SIZE;
    LogTail {
        seq: retired.seq.wrapping_add(1),
        next: (if fits { end } else { RING_AT } / LINE_SIZE) as u16,
    }
}

/// Where a log tail word lies: each in another unit than the one before.
pub(crate) fn tail_at(block: UnitNo, round: u64) -> VolumeOffset {
    let (unit, place) = (round % TAIL_UNITS, round / TAIL_UNITS);
    VolumeOffset(block.offset().0 + unit * UNIT_SIZE + place * TAIL_STRIDE)
}

/// The newest log tail word of a log block; an empty block starts at the ring's start.
pub(crate) fn read_tail(volume: &Volume, block: UnitNo) -> Result<LogTail> {
    let mut newest: Option<LogTail> = None;
    for round in 0..TAIL_WORDS {
        let at = tail_at(block, round);
        let payload = placed_word(volume, at);
        let payload = payload.ok_or_else(|| StoreError::corrupt(None, "lane head", at))?;
        if payload == 0 {
            continue;
        }
        let retired = LogTail::from_payload(payload);
        if !retired.is_in_ring() {
            return Err(StoreError::corrupt(None, "lane head", at));
        }
        if newest.is_none_or(|n| (retired.seq.wrapping_sub(n.seq) as i32) > 0) {
            newest = Some(retired);
        }
    }
    Ok(newest.unwrap_or(LogTail::START))
}
