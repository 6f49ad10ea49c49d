//! How often this process uses each open file description: once per fd, per mapping, for the
//! current directory, and per call in flight while other threads could close the fd.
//!
//! The session knows only whether a process holds a description; these counts say when it no
//! longer does.

use crate::table::FileId;
use nacre_session::MAX_OFDS;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

const CHUNK: usize = 1024;

type Chunk = Box<[AtomicU32]>;

/// Counts of one pool's descriptions, by their index.
struct PoolUses {
    chunks: Box<[OnceLock<Chunk>]>,
}

impl PoolUses {
    fn new() -> PoolUses {
        PoolUses { chunks: (0..MAX_OFDS as usize / CHUNK).map(|_| OnceLock::new()).collect() }
    }

    fn count(&self, index: u32) -> &AtomicU32 {
        let index = index as usize;
        let chunk = self.chunks[index / CHUNK].get_or_init(|| (0..CHUNK).map(|_| AtomicU32::new(0)).collect());
        &chunk[index % CHUNK]
    }

    fn clear(&self) {
        for chunk in self.chunks.iter().filter_map(OnceLock::get) {
            chunk.iter().for_each(|count| count.store(0, Ordering::Relaxed));
        }
    }
}

/// Counts of all pools.
pub(crate) struct Uses {
    pools: Vec<PoolUses>,
}

impl Uses {
    pub(crate) fn new(pools: usize) -> Uses {
        Uses { pools: (0..pools).map(|_| PoolUses::new()).collect() }
    }

    /// One more use by somebody who knows that there is one already, or that the session's hold is
    /// there. Returns the former count.
    pub(crate) fn add(&self, id: FileId) -> u32 {
        self.count(id).fetch_add(1, Ordering::AcqRel)
    }

    /// One more use unless there is none left.
    pub(crate) fn add_if_used(&self, id: FileId) -> bool {
        let more = |count: u32| (count > 0).then_some(count + 1);
        self.count(id).fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// One use less; true for the last.
    pub(crate) fn remove(&self, id: FileId) -> bool {
        let before = self.count(id).fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "more uses removed than added");
        before == 1
    }

    /// Forgets everything; only a fresh child process does so.
    pub(crate) fn clear(&self) {
        self.pools.iter().for_each(PoolUses::clear);
    }

    /// Whether `add` of this description would allocate.
    pub(crate) fn needs_chunk(&self, id: FileId) -> bool {
        self.pools[id.pool].chunks[id.ofd.index as usize / CHUNK].get().is_none()
    }

    fn count(&self, id: FileId) -> &AtomicU32 {
        self.pools[id.pool].count(id.ofd.index)
    }
}

#[cfg(test)]
mod tests {
    use super::Uses;
    use crate::table::FileId;
    use nacre_session::OfdId;

    #[test]
    fn the_last_use_is_told_and_not_revived() {
        let uses = Uses::new(2);
        let id = FileId { pool: 1, ofd: OfdId { index: 5000, generation: 1 } };
        assert!(!uses.add_if_used(id));
        uses.add(id);
        assert!(uses.add_if_used(id));
        assert!(!uses.remove(id));
        assert!(uses.remove(id));
        assert!(!uses.add_if_used(id));
    }
}
