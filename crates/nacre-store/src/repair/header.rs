//! What the whole pool hangs on: superblock copies, state record, lists of blocks, log blocks.

use nacre_types::{
    CheckedWord, StoreKind, UNIT_SIZE, UNITS_PER_BLOCK, UnitNo, VolumeOffset, crc32c,
};
use nacre_volume::{Unfenced, Volume};
use zerocopy::FromBytes;

use super::{Outcome, bit_flip};
use crate::error::{Result, StoreError};
use crate::lane::{lane_list_at, read_tail, tail_after, tail_at};
use crate::layout::{
    BLOCK_LIST_AT, FORMAT_VERSION, ListedBlock, LogTail, MAX_BLOCKS, MAX_LANES, OLDEST_VERSION,
    ONODE_SIZE, ONODES_PER_BLOCK, RawOnode, RawSuperblock, SUPERBLOCK_AT, SUPERBLOCK_MAGIC,
    TAIL_WORDS, onode_address, size_salt, word_salt,
};
use crate::log::record::Record;
use crate::object::blocks::block_list_at;
use crate::object::onode::onode_crc;
use crate::recovery::format::random_u64;
use crate::superblock::lane_seed;
use crate::superblock::{PoolState, Superblock};

type Unit = [u8; UNIT_SIZE as usize];

/// Makes both superblock copies alike, from the one that is sound or that one turned bit makes
/// sound.
pub(super) fn superblocks(volume: &Volume, dry_run: bool, outcome: &mut Outcome) -> Result<()> {
    if volume.len() < crate::layout::MIN_POOL_BYTES {
        return Err(StoreError::NotAPool);
    }
    let copies: [Unit; 2] = SUPERBLOCK_AT.map(|at| volume.read_array(at));
    let whole = copies.iter().find(|copy| is_whole(copy)).copied();
    let Some(whole) = whole.or_else(|| copies.iter().find_map(turned_back)) else {
        return Ok(());
    };
    let mut stored = None;
    for (at, copy) in SUPERBLOCK_AT.into_iter().zip(copies) {
        let both_whole = is_whole(&copy) && is_whole(&whole);
        if copy == whole || both_whole {
            continue;
        }
        outcome.note(None, Some(at), "superblock copy rewritten".into());
        if !dry_run {
            stored = Some(volume.write(at, &whole, StoreKind::Metadata));
        }
    }
    fence_any(volume, stored)
}

fn fence_any(volume: &Volume, stored: Option<Unfenced>) -> Result<()> {
    match stored {
        Some(stored) => Ok(volume.fence(stored)?),
        None => Ok(()),
    }
}

fn is_whole(copy: &Unit) -> bool {
    RawSuperblock::read_from_bytes(copy).is_ok_and(|raw| {
        raw.magic.get() == SUPERBLOCK_MAGIC
            && (OLDEST_VERSION..=FORMAT_VERSION).contains(&raw.version.get())
            && raw.crc.get() == crc32c(&copy[12..])
    })
}

/// Whether the payload of a word of the list of metadata blocks says that there is no block.
fn is_gone(payload: u64) -> bool {
    matches!(
        ListedBlock::from_payload(payload),
        ListedBlock::GivenBack { .. }
    )
}

fn turned_back(copy: &Unit) -> Option<Unit> {
    let mut copy = *copy;
    let bit = (0..copy.len() * 8).find(|bit| {
        copy[bit / 8] ^= 1 << (bit % 8);
        let whole = is_whole(&copy);
        copy[bit / 8] ^= 1 << (bit % 8);
        whole
    })?;
    copy[bit / 8] ^= 1 << (bit % 8);
    Some(copy)
}

/// State record, lists and log blocks. What cannot be restored is left for attaching to refuse.
pub(super) fn lists(
    volume: &Volume,
    superblock: &Superblock,
    dry_run: bool,
    outcome: &mut Outcome,
) -> Result<()> {
    let mut header = PoolHeader {
        volume,
        superblock,
        dry_run,
        outcome,
        stored: None,
    };
    header.state();
    header.block_list();
    header.lane_list();
    header.log_blocks();
    fence_any(volume, header.stored)
}

struct PoolHeader<'f> {
    volume: &'f Volume,
    superblock: &'f Superblock,
    dry_run: bool,
    outcome: &'f mut Outcome,
    stored: Option<Unfenced>,
}

impl PoolHeader<'_> {
    fn state(&mut self) {
        let state = PoolState::read(self.volume);
        let units = self.volume.units();
        match state {
            Ok(state) if state.units <= units => {}
            // A pool that is really shorter than it was lacks what lay there.
            Ok(_) if units < self.superblock.units => {}
            _ => {
                self.outcome.note(None, None, "state record rebuilt".into());
                if !self.dry_run {
                    let seq = state.map_or(0, |state| state.seq);
                    let mut fresh = PoolState {
                        seq,
                        stamp: random_u64(),
                        units: units.max(self.superblock.units),
                        ..PoolState::default()
                    };
                    let stored = fresh.store_next(self.volume);
                    self.add(stored);
                }
            }
        }
    }

    fn put_word(&mut self, at: VolumeOffset, word: CheckedWord, kind: StoreKind, what: &str) {
        self.outcome.note(None, Some(at), what.to_owned());
        if !self.dry_run {
            let stored = self.volume.store_u64(at, word.0, kind);
            self.add(stored);
        }
    }

    fn add(&mut self, stored: Unfenced) {
        self.stored.get_or_insert(Unfenced::nothing()).join(stored);
    }

    fn is_block(&self, unit: u64) -> bool {
        unit != 0
            && unit.is_multiple_of(UNITS_PER_BLOCK)
            && unit + UNITS_PER_BLOCK <= self.volume.units()
    }

    /// The block that a list word names, if it is sound.
    fn listed(&self, at: VolumeOffset) -> Option<u64> {
        let word = CheckedWord(self.volume.load_u64(at));
        word.open(word_salt(at)).filter(|&unit| self.is_block(unit))
    }

    /// Blocks that sound words of both lists name.
    fn named_blocks(&self) -> Vec<u64> {
        let blocks = (0..MAX_BLOCKS).map(block_list_at);
        let lanes = (0..MAX_LANES as u32).map(lane_list_at);
        blocks
            .chain(lanes)
            .filter_map(|at| self.listed(at))
            .collect()
    }

    fn block_list(&mut self) {
        let count = self.list_len((0..MAX_BLOCKS).map(block_list_at));
        for index in 0..count as u64 {
            let at = block_list_at(index);
            if index != 0 && self.is_given_back(at) {
                continue;
            }
            let named = self.listed(at);
            let doubtful = named.is_none_or(|block| {
                let twice = self.named_blocks().iter().filter(|b| **b == block).count() > 1;
                // The first block holds the root directory; others may be empty.
                twice || index == 0 && self.onodes_in(block, index) == 0
            });
            if !doubtful {
                continue;
            }
            let taken = self.named_blocks();
            let free = |block: &u64| !taken.contains(block) || named == Some(*block);
            let candidates =
                (1..self.volume.front_units() / UNITS_PER_BLOCK).map(|n| n * UNITS_PER_BLOCK);
            let best = candidates
                .filter(free)
                .map(|block| (self.onodes_in(block, index), block))
                .max()
                .filter(|(onodes, _)| *onodes > 0)
                .map(|(_, block)| block)
                .or_else(|| self.turned_word(at));
            if let Some(block) = best.filter(|best| named != Some(*best)) {
                let word = CheckedWord::seal(block, word_salt(at));
                let what = "word of the metadata block list restored";
                self.put_word(at, word, StoreKind::Metadata, what);
            }
        }
    }

    fn lane_list(&mut self) {
        let count = self.list_len((0..MAX_LANES as u32).map(lane_list_at));
        for index in 0..count as u32 {
            let at = lane_list_at(index);
            let taken = self.named_blocks();
            let named = self.listed(at);
            let twice = |block| taken.iter().filter(|b| **b == block).count() > 1;
            if named.is_some_and(|block| !twice(block) && self.is_log_block(block) != Some(false)) {
                continue;
            }
            let mut candidates =
                (1..self.volume.front_units() / UNITS_PER_BLOCK).map(|n| n * UNITS_PER_BLOCK);
            let found = candidates
                .find(|block| !taken.contains(block) && self.is_log_block(*block) == Some(true))
                .or_else(|| self.turned_word(at));
            if let Some(block) = found {
                let word = CheckedWord::seal(block, word_salt(at));
                let what = "word of the log block list restored";
                self.put_word(at, word, StoreKind::Metadata, what);
            }
        }
    }

    /// Words of a list up to its end. A zero with sound words behind it is damage, too.
    fn list_len(&self, words: impl Iterator<Item = VolumeOffset>) -> usize {
        let mut len = 0;
        for (index, at) in words.enumerate() {
            let word = self.volume.load_u64(at);
            let sound = self.listed(at).is_some() || at > BLOCK_LIST_AT && self.is_given_back(at);
            if index == len && word != 0 || sound {
                len = index + 1;
            }
        }
        len.max(1)
    }

    fn turned_word(&self, at: VolumeOffset) -> Option<u64> {
        let damaged = self.volume.load_u64(at);
        let in_metadata_list = at > BLOCK_LIST_AT;
        let sound = &mut |payload| self.is_block(payload) || in_metadata_list && is_gone(payload);
        let word = bit_flip::word(damaged, word_salt(at), sound)?;
        word.open(word_salt(at))
    }

    /// Whether a word of the list of metadata blocks says that there is none.
    fn is_given_back(&self, at: VolumeOffset) -> bool {
        let word = CheckedWord(self.volume.load_u64(at));
        word.open(word_salt(at)).is_some_and(is_gone)
    }

    /// How many sound onodes with a size that only they can have lie in a block if it is number
    /// `index` of the list; 1 more for a block whose used onodes are all sound.
    fn onodes_in(&self, block: u64, index: u64) -> u64 {
        let mut found = 0;
        let mut sound = 0;
        for place in 0..ONODES_PER_BLOCK {
            let at = onode_address(UnitNo(block), place);
            let bytes = self.volume.read_array::<ONODE_SIZE>(at);
            let Ok(raw) = RawOnode::read_from_bytes(&bytes) else {
                continue;
            };
            if raw.mode.get() == 0 || raw.crc.get() != onode_crc(&raw) {
                continue;
            }
            let id = nacre_types::ObjectId(index * ONODES_PER_BLOCK + place);
            sound += 1;
            let size = CheckedWord(raw.size.get()).open(size_salt(id));
            found += u64::from(size.is_some_and(|size| size > 0));
        }
        // The root of a small pool may be all there is.
        found + u64::from(found == 0 && sound > 0 && index == 0)
    }

    /// Whether a block is a log block; `None` for one that was never used.
    fn is_log_block(&self, block: u64) -> Option<bool> {
        let mut any = false;
        for turn in 0..TAIL_WORDS {
            let at = tail_at(UnitNo(block), turn);
            let word = CheckedWord(self.volume.load_u64(at));
            match word.open(word_salt(at)) {
                Some(0) => {}
                Some(_) => any = true,
                None if any => {}
                None => return Some(false),
            }
        }
        any.then_some(true)
    }

    /// Log tail words that do not open, and records that cannot be replayed.
    fn log_blocks(&mut self) {
        let lanes =
            (0..MAX_LANES as u32).take_while(|&lane| self.volume.load_u64(lane_list_at(lane)) != 0);
        for lane in lanes.collect::<Vec<_>>() {
            let Some(block) = self.listed(lane_list_at(lane)).map(UnitNo) else {
                continue;
            };
            for turn in 0..TAIL_WORDS {
                self.tail_word(lane, block, turn);
            }
            self.drop_bad_record(lane, block);
            if self.dry_run {
                self.foresee_replay(lane, block);
            }
        }
    }

    /// A record that waits is applied by the attachment that a repair begins with.
    fn foresee_replay(&mut self, lane: u32, block: UnitNo) {
        let seed = lane_seed(self.superblock.log_salt, lane);
        let waits = read_tail(self.volume, block)
            .ok()
            .and_then(|retired| Record::read(self.volume, block, seed, retired));
        if waits.is_some() {
            let what = "log record applied; what else there is shows then";
            self.outcome.note(None, Some(block.offset()), what.into());
        }
    }

    fn tail_word(&mut self, lane: u32, block: UnitNo, turn: u64) {
        let at = tail_at(block, turn);
        let word = self.volume.load_u64(at);
        let plausible = |payload: u64| {
            let retired = LogTail::from_payload(payload);
            payload == 0 || (retired.is_in_ring() && u64::from(retired.seq) % TAIL_WORDS == turn)
        };
        if CheckedWord(word).open(word_salt(at)).is_some_and(plausible) {
            return;
        }
        let repaired = bit_flip::word(word, word_salt(at), &mut |payload| plausible(payload));
        let newest = self.newest_but(block, turn);
        let next = newest.seq.wrapping_add(1);
        let seed = lane_seed(self.superblock.log_salt, lane);
        let follows = u64::from(next) % TAIL_WORDS == turn;
        let record = Record::read(self.volume, block, seed, newest).filter(|_| follows);
        let applied = record.filter(|record| record.is_applied(self.volume));
        let fresh = match (repaired, applied) {
            (Some(word), _) => word,
            // It said that this record is applied, and it is.
            (None, Some(record)) => {
                let retired = tail_after(newest, record.len());
                CheckedWord::seal(retired.payload(), word_salt(at))
            }
            (None, None) => CheckedWord::ZERO,
        };
        self.put_word(
            at,
            fresh,
            StoreKind::Log,
            "log tail word of a lane restored",
        );
    }

    /// The newest log tail word, one of them left out.
    fn newest_but(&self, block: UnitNo, but: u64) -> LogTail {
        let words = (0..TAIL_WORDS)
            .filter(|turn| *turn != but)
            .filter_map(|turn| {
                let at = tail_at(block, turn);
                let payload = CheckedWord(self.volume.load_u64(at)).open(word_salt(at))?;
                let retired = LogTail::from_payload(payload);
                (payload != 0 && retired.is_in_ring()).then_some(retired)
            });
        words
            .reduce(|a, b| {
                if b.seq.wrapping_sub(a.seq) as i32 > 0 {
                    b
                } else {
                    a
                }
            })
            .unwrap_or(LogTail::START)
    }

    /// A record with a right checksum that names what no record may change was not written by us.
    fn drop_bad_record(&mut self, lane: u32, block: UnitNo) {
        let Ok(retired) = read_tail(self.volume, block) else {
            return;
        };
        let seed = lane_seed(self.superblock.log_salt, lane);
        let Some(record) = Record::read(self.volume, block, seed, retired) else {
            return;
        };
        if record.validate(self.volume, block.offset()).is_ok() {
            return;
        }
        let after = tail_after(retired, record.len());
        let at = tail_at(block, u64::from(after.seq) % TAIL_WORDS);
        let word = CheckedWord::seal(after.payload(), word_salt(at));
        self.put_word(at, word, StoreKind::Log, "impossible log record dropped");
    }
}
