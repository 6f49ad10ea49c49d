//! How often this process uses each open file description: once per fd, per mapping, for the
//! current directory, and per call in flight while other threads could close the fd.
//!
//! The session knows only whether a process holds a description; these counts say when it no
//! longer does.

use crate::fd::table::FileId;
use crate::fd::word::update;
use crate::untouched::zeros;
use nacre_session::{MAX_OFDS, OfdId};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

const CHUNK: usize = 1024;
const COUNT_BITS: u32 = 32;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// Generation of the description in the upper half, count in the lower.
type Chunk = Box<[AtomicU64]>;

/// Counts of one pool's descriptions, by their index.
#[derive(Default)]
struct PoolUses {
    /// Made when first needed, as each of the chunks.
    chunks: OnceLock<Box<[OnceLock<Chunk>]>>,
}

impl PoolUses {
    #[inline]
    fn word(&self, index: u32) -> &AtomicU64 {
        let index = index as usize;
        let chunks = self.chunks.get_or_init(no_chunks);
        let chunk = chunks[index / CHUNK].get_or_init(|| zeros(CHUNK));
        &chunk[index % CHUNK]
    }

    /// Whether there is a chunk for this index.
    #[inline]
    fn has(&self, index: u32) -> bool {
        let chunks = self.chunks.get();
        let chunk = chunks.and_then(|chunks| chunks[index as usize / CHUNK].get());
        chunk.is_some()
    }

    /// The chunks that there are, with their numbers.
    fn chunks(&self) -> impl Iterator<Item = (usize, &Chunk)> + '_ {
        let chunks = self.chunks.get().into_iter();
        let chunks = chunks.flat_map(|chunks| chunks.iter()).enumerate();
        chunks.filter_map(|(at, chunk)| Some((at, chunk.get()?)))
    }

    fn made(&self) -> impl Iterator<Item = (usize, &AtomicU64)> + '_ {
        self.chunks().flat_map(|(at, chunk)| {
            let words = chunk.iter().enumerate();
            words.map(move |(i, word)| (at * CHUNK + i, word))
        })
    }
}

fn no_chunks() -> Box<[OnceLock<Chunk>]> {
    let chunks = 0..MAX_OFDS as usize / CHUNK;
    chunks.map(|_| OnceLock::new()).collect()
}

/// Counts of all pools.
pub(crate) struct Uses {
    pools: Vec<PoolUses>,
}

impl Uses {
    pub(crate) fn new(pools: usize) -> Uses {
        Uses {
            pools: (0..pools).map(|_| PoolUses::default()).collect(),
        }
    }

    /// One more use by somebody who knows that this process holds the description.
    #[inline]
    pub(crate) fn add(&self, id: FileId, alone: bool) {
        let one_more = |word: u64| match word & COUNT_MASK {
            0 => Some(u64::from(id.ofd.generation) << COUNT_BITS | 1),
            _ => Some(word + 1),
        };
        // The closure always gives a value, so the update cannot fail.
        let _ = update(self.word(id), alone, one_more);
    }

    /// One more use unless there is none left.
    pub(crate) fn add_if_used(&self, id: FileId) -> bool {
        let more = |word: u64| is_use_of(word, id.ofd.generation).then_some(word + 1);
        self.word(id)
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .is_ok()
    }

    /// One use less; true for the last.
    #[inline]
    pub(crate) fn remove(&self, id: FileId, alone: bool) -> bool {
        let less = |word: u64| is_use_of(word, id.ofd.generation).then(|| word - 1);
        let before = update(self.word(id), alone, less);
        debug_assert!(before.is_ok(), "more uses removed than added");
        before.is_ok_and(|word| word & COUNT_MASK == 1)
    }

    pub(crate) fn is_used(&self, id: FileId) -> bool {
        is_use_of(self.word(id).load(Ordering::Acquire), id.ofd.generation)
    }

    /// All descriptions of a pool that are in use.
    pub(crate) fn used(&self, pool: usize) -> impl Iterator<Item = OfdId> + '_ {
        self.pools[pool].made().filter_map(|(index, word)| {
            let word = word.load(Ordering::Acquire);
            let id = OfdId {
                index: index as u32,
                generation: (word >> COUNT_BITS) as u32,
            };
            (word & COUNT_MASK > 0).then_some(id)
        })
    }

    /// Forgets everything; only a fresh child process does so. What is zero is not written: its
    /// page would be copied.
    pub(crate) fn clear(&self) {
        const TOGETHER: usize = 8;
        let chunks = self.pools.iter().flat_map(PoolUses::chunks);
        for words in chunks.flat_map(|(_, chunk)| chunk.chunks(TOGETHER)) {
            let all = words.iter().map(|word| word.load(Ordering::Relaxed));
            if all.fold(0, |all, word| all | word) != 0 {
                words
                    .iter()
                    .for_each(|word| word.store(0, Ordering::Relaxed));
            }
        }
    }

    /// Whether `add` of this description would allocate.
    #[inline]
    pub(crate) fn needs_chunk(&self, id: FileId) -> bool {
        !self.pools[id.pool].has(id.ofd.index)
    }

    #[inline]
    fn word(&self, id: FileId) -> &AtomicU64 {
        self.pools[id.pool].word(id.ofd.index)
    }
}

fn is_use_of(word: u64, generation: u32) -> bool {
    word & COUNT_MASK > 0 && (word >> COUNT_BITS) as u32 == generation
}

#[cfg(test)]
mod tests {
    use super::Uses;
    use crate::fd::table::FileId;
    use nacre_session::OfdId;

    #[test]
    fn the_last_use_is_told_and_not_revived() {
        let uses = Uses::new(2);
        let id = FileId {
            pool: 1,
            ofd: OfdId {
                index: 5000,
                generation: 1,
            },
        };
        assert!(!uses.add_if_used(id));
        uses.add(id, false);
        assert!(uses.add_if_used(id));
        assert!(!uses.remove(id, true));
        assert!(uses.remove(id, true));
        assert!(!uses.add_if_used(id));
    }

    #[test]
    fn counts_are_made_by_their_first_use() {
        let uses = Uses::new(1);
        let of = |index| FileId {
            pool: 0,
            ofd: OfdId {
                index,
                generation: 1,
            },
        };
        assert!(uses.needs_chunk(of(0)) && uses.needs_chunk(of(5000)));
        assert_eq!(uses.used(0).count(), 0);
        uses.clear();
        assert!(uses.needs_chunk(of(0)));
        uses.add(of(5000), true);
        assert!(!uses.needs_chunk(of(5001)) && uses.needs_chunk(of(0)));
    }

    #[test]
    fn a_recycled_description_is_another_one() {
        let uses = Uses::new(1);
        let old = FileId {
            pool: 0,
            ofd: OfdId {
                index: 3,
                generation: 1,
            },
        };
        let new = FileId {
            pool: 0,
            ofd: OfdId {
                index: 3,
                generation: 2,
            },
        };
        uses.add(old, true);
        assert!(uses.remove(old, false));
        uses.add(new, false);
        assert!(!uses.add_if_used(old));
        assert!(!uses.is_used(old) && uses.is_used(new));
        assert_eq!(uses.used(0).collect::<Vec<_>>(), [new.ofd]);
        uses.clear();
        assert_eq!(uses.used(0).count(), 0);
    }
}
