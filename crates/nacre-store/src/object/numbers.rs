//! Object numbers: the session's bitmap of numbers in use.
//!
//! The numbers are taken from several shards, by each thread from one as long as there are any: so
//! two of them share neither lines of the bitmap nor what would move with every object.

use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use nacre_session::NUMBER_SHARDS;
use nacre_types::ObjectId;

use crate::error::Result;
use crate::layout::ONODES_PER_BLOCK;
use crate::object::lock::ObjectGuard;
use crate::store::Store;
use crate::thread::shard::{OwnShard, Round};

pub(crate) const WORD_BITS: u64 = 64;
/// The hint of a shard of which no number was taken in this round.
const UNBEGUN: u64 = 0;
/// Which numbers of a word are taken while a block has its round: an onode is written about fifty
/// times in a short life, and sixteen lie in a unit.
const FIRST: u64 = 0x003f_003f_003f_003f;

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
            self.add_block_for(again, blocks)?;
        }
    }

    /// One more block, unless somebody else has begun a round or added one meanwhile.
    #[cold]
    fn add_block_for(&self, last: Round, blocks: u64) -> Result<()> {
        let shared = self.session.shared();
        let _growing = self.lock_owned(&shared.meta_lock)?;
        if shared.object_round.load(Relaxed) == last.word() && self.block_count() == blocks {
            let index = self.add_block()?;
            self.begin_round_of(index);
        }
        Ok(())
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
        let added = match self.may_spread() {
            true => self.add_block().ok(),
            false => None,
        };
        if let Some(index) = added {
            self.begin_round_of(index);
        }
        Ok(added.is_some())
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
}
