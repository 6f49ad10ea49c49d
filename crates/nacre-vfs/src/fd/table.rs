//! The fd table: a cache of what stands behind each fd number of the process.
//!
//! The truth is the kernel fd (its file and, for placeholders, its file offset). An entry is filled
//! when a file is opened or received here or, lazily, by asking the kernel once. Numbers beyond the
//! table are asked for each time, and so is what looks like a pool's to one of several threads:
//! another one may be closing it.

use crate::fd::word::update;
use crate::untouched::zeros;
use nacre_session::OfdId;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

const CHUNK: usize = 1024;
const CHUNKS: usize = 64;
/// Fd numbers that are cached.
pub const TABLE_LEN: i32 = (CHUNK * CHUNKS) as i32;

const INDEX_BITS: u32 = 24;
const GENERATION_BITS: u32 = 32;
const POOL_SHIFT: u32 = INDEX_BITS + GENERATION_BITS;
const STATE_SHIFT: u32 = 62;
const STATE_HOST: u64 = 1;
const STATE_POOL: u64 = 2;
const STATE_CACHED: u64 = 3;
/// Pools that one process can have mounted.
pub(crate) const POOLS_MAX: usize = 1 << (STATE_SHIFT - POOL_SHIFT);

/// An open file description of a pool, named within this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FileId {
    pub(crate) pool: usize,
    pub(crate) ofd: OfdId,
}

/// What is known of an fd number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FdEntry {
    /// Nothing. Closed numbers are unknown, or still the host's.
    Unknown,
    /// Not a file of a pool.
    Host,
    /// A file of a pool.
    Pool(FileId),
    /// Closed for the program; a placeholder is kept for the next open, or is about to be.
    Cached,
}

impl FdEntry {
    #[inline]
    pub(crate) fn pack(self) -> u64 {
        match self {
            FdEntry::Unknown => 0,
            FdEntry::Host => STATE_HOST << STATE_SHIFT,
            FdEntry::Cached => STATE_CACHED << STATE_SHIFT,
            FdEntry::Pool(FileId { pool, ofd }) => {
                debug_assert!(pool < POOLS_MAX && ofd.index < 1 << INDEX_BITS);
                STATE_POOL << STATE_SHIFT
                    | (pool as u64) << POOL_SHIFT
                    | u64::from(ofd.index) << GENERATION_BITS
                    | u64::from(ofd.generation)
            }
        }
    }

    #[inline]
    pub(crate) fn unpack(word: u64) -> FdEntry {
        match word >> STATE_SHIFT {
            STATE_HOST => FdEntry::Host,
            STATE_CACHED => FdEntry::Cached,
            STATE_POOL => FdEntry::Pool(FileId {
                pool: (word >> POOL_SHIFT) as usize & (POOLS_MAX - 1),
                ofd: OfdId {
                    index: (word >> GENERATION_BITS) as u32 & ((1 << INDEX_BITS) - 1),
                    generation: word as u32,
                },
            }),
            _ => FdEntry::Unknown,
        }
    }
}

type Chunk = Box<[AtomicU64]>;

/// Entries by fd number, in chunks that are made when first needed.
pub(crate) struct FdTable {
    first: Chunk,
    others: OnceLock<Box<[OnceLock<Chunk>]>>,
    /// One more than the highest number that ever held a pool's file.
    end: AtomicI32,
}

impl FdTable {
    pub(crate) fn new() -> FdTable {
        FdTable {
            first: zeros(CHUNK),
            others: OnceLock::new(),
            end: AtomicI32::new(0),
        }
    }

    /// The entry of `fd`; `None` for numbers that are not cached.
    #[inline]
    pub(crate) fn get(&self, fd: i32) -> Option<FdEntry> {
        let fd = usize::try_from(fd).ok()?;
        let word = match self.first.get(fd) {
            Some(word) => word,
            None if fd >= CHUNK * CHUNKS => return None,
            None => match self.other(fd).and_then(OnceLock::get) {
                Some(chunk) => &chunk[fd % CHUNK],
                None => return Some(FdEntry::Unknown),
            },
        };
        Some(FdEntry::unpack(word.load(Ordering::Acquire)))
    }

    /// The entry of `fd` if it is a pool's file with a low number.
    #[inline(always)]
    pub(crate) fn low_file(&self, fd: i32) -> Option<FileId> {
        let word = self.first.get(fd as u32 as usize)?;
        match FdEntry::unpack(word.load(Ordering::Acquire)) {
            FdEntry::Pool(id) => Some(id),
            _ => None,
        }
    }

    /// Replaces an entry and gives the former one. A new chunk may be made: the caller keeps forks
    /// away if `needs_chunk` says so.
    #[inline]
    pub(crate) fn set(&self, fd: i32, entry: FdEntry, alone: bool) -> FdEntry {
        if let FdEntry::Pool(_) = entry {
            self.raise_end(fd);
        }
        match self.word(fd) {
            Some(word) => match update(word, alone, |_| Some(entry.pack())) {
                Ok(before) | Err(before) => FdEntry::unpack(before),
            },
            None => FdEntry::Unknown,
        }
    }

    /// Replaces `old` by `new` unless somebody was faster.
    #[inline]
    pub(crate) fn exchange(&self, fd: i32, old: FdEntry, new: FdEntry, alone: bool) -> bool {
        let Some(word) = self.word(fd) else {
            return false;
        };
        if let FdEntry::Pool(_) = new {
            self.raise_end(fd);
        }
        let old = old.pack();
        update(word, alone, |now| (now == old).then_some(new.pack())).is_ok()
    }

    #[inline]
    fn raise_end(&self, fd: i32) {
        if self.end.load(Ordering::Relaxed) <= fd {
            self.end.fetch_max(fd.saturating_add(1), Ordering::Relaxed);
        }
    }

    /// Whether `set` of this number would make a chunk.
    #[inline]
    pub(crate) fn needs_chunk(&self, fd: i32) -> bool {
        (CHUNK as i32..TABLE_LEN).contains(&fd)
            && self.other(fd as usize).and_then(OnceLock::get).is_none()
    }

    #[inline]
    fn word(&self, fd: i32) -> Option<&AtomicU64> {
        let fd = usize::try_from(fd).ok().filter(|&fd| fd < CHUNK * CHUNKS)?;
        Some(match self.first.get(fd) {
            Some(word) => word,
            None => {
                let others = self.others.get_or_init(no_others);
                &others[fd / CHUNK - 1].get_or_init(|| zeros(CHUNK))[fd % CHUNK]
            }
        })
    }

    /// Where the chunk of a number behind the first one is, once there is any.
    fn other(&self, fd: usize) -> Option<&OnceLock<Chunk>> {
        self.others.get()?.get(fd / CHUNK - 1)
    }

    /// All fds that are known to be files of pools.
    pub(crate) fn files(&self) -> impl Iterator<Item = (i32, FileId)> + '_ {
        (0..self.end.load(Ordering::Relaxed)).filter_map(|fd| match self.get(fd) {
            Some(FdEntry::Pool(id)) => Some((fd, id)),
            _ => None,
        })
    }
}

fn no_others() -> Box<[OnceLock<Chunk>]> {
    (1..CHUNKS).map(|_| OnceLock::new()).collect()
}

#[cfg(test)]
mod tests {
    use super::{FdEntry, FdTable, FileId, POOLS_MAX, TABLE_LEN};
    use nacre_session::OfdId;

    fn entry(pool: usize, index: u32, generation: u32) -> FdEntry {
        FdEntry::Pool(FileId {
            pool,
            ofd: OfdId { index, generation },
        })
    }

    #[test]
    fn entries_survive_packing() {
        let extreme = entry(POOLS_MAX - 1, (1 << 24) - 1, u32::MAX);
        for one in [
            FdEntry::Unknown,
            FdEntry::Host,
            FdEntry::Cached,
            entry(0, 0, 0),
            entry(3, 77, 9),
            extreme,
        ] {
            assert_eq!(FdEntry::unpack(one.pack()), one);
        }
    }

    #[test]
    fn numbers_in_far_chunks_work_and_beyond_the_table_do_not() {
        let table = FdTable::new();
        assert_eq!(table.get(TABLE_LEN - 1), Some(FdEntry::Unknown));
        assert_eq!(
            table.set(TABLE_LEN - 1, entry(1, 2, 3), true),
            FdEntry::Unknown
        );
        assert_eq!(table.get(TABLE_LEN - 1), Some(entry(1, 2, 3)));
        assert_eq!(table.get(TABLE_LEN), None);
        assert_eq!(table.get(-1), None);
        table.set(TABLE_LEN, FdEntry::Host, true);
        assert_eq!(table.get(TABLE_LEN), None);
    }

    #[test]
    fn a_chunk_is_made_by_its_first_entry() {
        let table = FdTable::new();
        assert_eq!(table.get(5000), Some(FdEntry::Unknown));
        assert!(!table.needs_chunk(3) && table.needs_chunk(5000));
        table.set(5000, entry(0, 2, 1), true);
        assert!(!table.needs_chunk(5001) && table.needs_chunk(2000));
        assert_eq!(table.get(2000), Some(FdEntry::Unknown));
    }

    #[test]
    fn files_lists_only_pool_files() {
        let table = FdTable::new();
        table.set(3, entry(0, 1, 1), true);
        table.set(4, FdEntry::Host, true);
        table.set(2000, entry(0, 2, 1), true);
        let fds: Vec<i32> = table.files().map(|(fd, _)| fd).collect();
        assert_eq!(fds, [3, 2000]);
        assert!(!table.exchange(3, FdEntry::Host, FdEntry::Unknown, true));
        assert!(table.exchange(3, entry(0, 1, 1), FdEntry::Unknown, true));
        assert_eq!(table.files().count(), 1);
    }
}
