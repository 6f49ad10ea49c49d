//! Which object numbers a thread takes.

use std::ops::Range;

use nacre_session::{NUMBER_SHARDS, SlotRef};

use crate::layout::{MAX_BLOCKS, ONODES_PER_BLOCK};

/// Where object numbers are taken, in one word.
#[derive(Clone, Copy)]
pub(crate) struct Round {
    pub(crate) block: u64,
    /// All had their round, and whatever is free in any block is used again.
    pub(crate) again: bool,
}

impl Round {
    pub(crate) fn from_word(word: u64) -> Round {
        Round {
            block: word >> 1,
            again: word & 1 == 1,
        }
    }

    pub(crate) fn word(self) -> u64 {
        self.block << 1 | u64::from(self.again)
    }

    /// The numbers of a shard, of `all`.
    pub(crate) fn shard(self, index: usize, all: u64) -> Range<u64> {
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
pub(crate) struct OwnShard(pub(crate) u64);

impl OwnShard {
    pub(crate) fn new(round: Round, index: usize) -> OwnShard {
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

    pub(crate) fn index(self) -> usize {
        (self.0 % NUMBER_SHARDS as u64) as usize
    }

    pub(crate) fn is_of(self, round: Round) -> bool {
        self.0 / NUMBER_SHARDS as u64 == round.word()
    }
}
