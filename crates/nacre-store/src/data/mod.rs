//! File data: what the bytes of an object are and where they lie.
//!
//! Rules (docs/durability.md): bytes of mapped units beyond EOF are undefined, whoever moves EOF up
//! makes the gap read as zeros first; entries are published after the bytes that they expose are
//! durable; units are freed after the words that named them are durably gone; units of a mapped
//! object are neither freed nor replaced.

mod advice;
mod atomic;
mod chunk;
mod clone;
mod direct;
mod gap;
pub(crate) mod gather;
mod head;
mod holes;
mod in_place;
pub(crate) mod map;
mod mapping;
pub(crate) mod moving;
mod read;
pub(crate) mod relocate;
mod seek;
mod share;
mod shares;
mod staged;
mod staged_clone;
mod truncate;
mod write;

use std::sync::atomic::Ordering::Relaxed;

use nacre_session::{ICore, STORING};
use nacre_types::{
    CheckedWord, FileOffset, LINE_SIZE, ObjectId, StoreKind, Timestamp, UNIT_SIZE, UNITS_PER_BLOCK,
    UnitNo, VolumeOffset,
};
use nacre_volume::{CheckedRange, CopyError, Unfenced};

pub use atomic::{ATOMIC_LIMIT, ATOMIC_MAPPED_LIMIT};
pub use head::FileHead;
pub use holes::EndOfFile;
pub use in_place::CacheUpdates;
pub use mapping::{CHUNK_PAGES, Holes, LoadedRange, MappedRange, MappedRun, ShownPage};
pub use seek::Extent;
pub use shares::{Shares, SharesSum};
pub use write::{WritePosition, WriteTicket};

use crate::alloc::Run;
use crate::block_map::{Leaf, PageRun, Translation};
use crate::data::map::Map;
use crate::error::{Result, StoreError};
use crate::layout::{
    FLAG_KEPT, ONODE_CTIME_AT, ONODE_FLAGS_AT, ONODE_MAPPED_AT, ONODE_MODE_AT, ONODE_MTIME_AT,
    ONODE_SIZE_AT, size_salt,
};
use crate::object::lock::{ChangeMark, ObjectGuard, move_mapping_epoch};
use crate::store::Store;

/// The largest size of a file in bytes.
pub const MAX_FILE_SIZE: u64 = CheckedWord::MAX;

/// The type bits of a mode, and those of a symbolic link.
const TYPE_MASK: u32 = 0o170_000;
const LINK: u32 = 0o120_000;

/// How full a pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statfs {
    /// Units of the pool.
    pub units: u64,
    /// Free units.
    pub free_units: u64,
    /// Of these, those for contents that are on one disk of several that hold a common part.
    pub free_alone: u64,
    /// Object numbers of the pool.
    pub objects: u64,
    /// Free object numbers.
    pub free_objects: u64,
}

/// The lines of an onode that the data path looks at.
const HOT_SIZE: usize = 2 * LINE_SIZE as usize;

/// Number of the word of an onode that lies `field` bytes behind its start.
const fn word_of(field: u64) -> usize {
    assert!(field.is_multiple_of(8) && field < HOT_SIZE as u64);
    (field / 8) as usize
}

const SIZE_WORD: usize = word_of(ONODE_SIZE_AT);
const MTIME_WORD: usize = word_of(ONODE_MTIME_AT);
const CTIME_WORD: usize = word_of(ONODE_CTIME_AT);
const MAPPED_WORD: usize = word_of(ONODE_MAPPED_AT);

/// The data side of one object.
#[derive(Clone, Copy)]
struct File<'s> {
    store: &'s Store,
    id: ObjectId,
    onode: VolumeOffset,
    hot: CheckedRange<'s, HOT_SIZE>,
    map: Map<'s>,
}

/// The data side of an object whose lock is held; readers wait while it lives.
struct Change<'g> {
    file: File<'g>,
    icore: &'g ICore,
    _mark: ChangeMark<'g>,
}

impl<'s> File<'s> {
    #[inline(always)]
    fn open(store: &'s Store, id: ObjectId) -> Result<Self> {
        let onode = store.onode_at(id)?;
        let file = Self::at(store, id, onode);
        if file.mode() == 0 || !store.is_verified(onode.unit()) {
            store.onode_live(id)?;
        }
        Ok(file)
    }

    /// The file whose onode, found sound before, lies there.
    #[inline(always)]
    fn at(store: &'s Store, id: ObjectId, onode: VolumeOffset) -> Self {
        Self {
            store,
            id,
            onode,
            hot: store.volume().checked_range(onode),
            map: Map::new(store, id, onode),
        }
    }

    /// The translation of page `first`; pages up to (not including) `end` are wanted next. The
    /// caller knows that no change is under way, or finds out afterwards.
    #[inline(always)]
    fn translate(
        store: &Store,
        id: ObjectId,
        mapping_epoch: u64,
        (first, end): (u64, u64),
    ) -> Result<Translation> {
        match store
            .extent_cache
            .get(id, mapping_epoch, FileOffset::of_page(first))
        {
            Some(known) => Ok(known),
            None => Self::look_up(store, id, mapping_epoch, (first, end)),
        }
    }

    #[inline(never)]
    fn look_up(
        store: &Store,
        id: ObjectId,
        mapping_epoch: u64,
        (first, end): (u64, u64),
    ) -> Result<Translation> {
        let file = File::open(store, id)?;
        let root = file.root()?;
        let reach = store.extent_cache.reach(id, first, end - first);
        let start = first & !(reach - 1);
        let mut run = file.map.run_below(root, start, start + reach)?;
        if run.end() <= first {
            run = file.map.run_below(root, first, start + reach)?;
        }
        let found = file.translation(run);
        store.extent_cache.put(id, mapping_epoch, &found);
        Ok(found)
    }

    fn translation(&self, run: PageRun) -> Translation {
        Translation {
            onode: self.onode,
            mode: self.mode(),
            generation: self.generation(),
            start: FileOffset::of_page(run.page),
            pages: run.count,
            entry: run.entry,
            size_word: self.sound_size_word(),
        }
    }

    /// Whether its contents are to be on all disks, where others are on one (D80). A target of a
    /// link is as good as metadata.
    #[cold]
    fn is_kept(&self) -> bool {
        let word = |field| self.store.volume().load_u32(self.onode.add(field));
        let is_link = word(ONODE_MODE_AT) & TYPE_MASK == LINK;
        is_link || word(ONODE_FLAGS_AT) & FLAG_KEPT != 0
    }

    /// The size word, or 0 if it is damaged.
    fn sound_size_word(&self) -> u64 {
        let word = self.hot.word(SIZE_WORD);
        self.open_size(word).map_or(0, |_| word)
    }

    #[inline]
    fn size(&self) -> Result<u64> {
        self.open_size(self.hot.word(SIZE_WORD))
    }

    #[inline]
    fn open_size(&self, word: u64) -> Result<u64> {
        match CheckedWord(word).open(size_salt(self.id)) {
            Some(size) => Ok(size),
            None => self.store.size_once_more(self.id, self.onode),
        }
    }
}

impl<'g> Change<'g> {
    #[inline]
    fn begin(store: &'g Store, guard: &'g ObjectGuard<'_>) -> Result<Self> {
        if !store.is_writable() {
            return Err(StoreError::ReadOnly);
        }
        Ok(Self {
            file: File::open(store, guard.id())?,
            icore: guard.icore(),
            _mark: guard.begin_change(),
        })
    }

    /// The mapping epoch under which the object's translations are good.
    #[inline]
    fn mapping_epoch(&self) -> u64 {
        self.icore.mapping_epoch.load(Relaxed)
    }

    /// To be called before written pages get other units, become holes or get other owners, in a
    /// change that began with the promise to leave them alone.
    #[inline]
    fn move_mapping_epoch(&self) {
        move_mapping_epoch(self.icore);
    }

    /// Whether some process maps the object's units.
    #[inline]
    fn is_mapped(&self) -> bool {
        self.icore.mapped.load(Relaxed) > 0
    }

    /// To be called before a hole, or units that read as one, are filled: processes that map the
    /// object look at it again.
    #[inline(always)]
    fn hide_zeros(&self) -> Result<()> {
        if !self.is_mapped() {
            return Ok(());
        }
        let store = self.file.store;
        Ok(store.session().hide_zeros(store.slot())?)
    }

    #[inline]
    #[cfg_attr(feature = "explore", track_caller)]
    fn settle(&self, unfenced: Unfenced) -> Result<()> {
        settle(self.file.store, unfenced)
    }

    /// Stores the size word, flushed but not fenced.
    #[inline]
    #[cfg_attr(feature = "explore", track_caller)]
    fn store_size(&self, size: u64) -> Unfenced {
        let word = CheckedWord::seal(size, size_salt(self.file.id)).0;
        self.file
            .hot
            .store_word(SIZE_WORD, word, StoreKind::Metadata)
    }

    /// Sets the times of a change of the contents; they become durable with the next flush of the
    /// line.
    #[inline]
    fn stamp(&self) {
        stamp(&self.file.hot, self.file.store.now());
    }

    /// Corrects the lazy count of mapped units.
    #[inline]
    fn count(&self, added: u64, removed: u64) {
        if added != removed {
            let count = self.file.hot.word(MAPPED_WORD);
            let count = count.wrapping_add(added).saturating_sub(removed);
            self.file
                .hot
                .store_word_lazy(MAPPED_WORD, count, StoreKind::Metadata);
        }
    }

    /// Unmaps and frees whole pages, durably.
    fn clear(&self, from: u64, to: u64) -> Result<()> {
        let removed = self.file.map.clear(from, to)?;
        self.count(0, removed);
        Ok(())
    }

    /// Takes units for `want` pages behind what the object took last.
    fn take(&self, want: u64) -> Result<Run> {
        let goal = Some(self.icore.alloc_hint.load(Relaxed)).filter(|&hint| hint != 0);
        let store = self.file.store;
        let goal = goal.map(UnitNo);
        let run = store.take_space(|alloc| alloc.take_for(goal, want, || self.file.is_kept()))?;
        self.icore.alloc_hint.store(run.end().0, Relaxed);
        let volume = self.file.store.volume();
        volume.expect_stores(run.start.offset(), run.count * UNIT_SIZE);
        Ok(run)
    }

    /// The part of a run whose first pages have other owners, or else the part that has none; and
    /// which it is.
    #[inline]
    fn split_shared(&self, run: PageRun) -> (PageRun, bool) {
        if !run.entry.may_be_shared() {
            return (run, false);
        }
        let alloc = self.file.store.allocator();
        let others = |page: u64| alloc.must_be_left(run.entry.advance(page).unit());
        let first = others(0);
        let count = (1..run.count)
            .find(|&page| others(page) != first)
            .unwrap_or(run.count);
        (PageRun { count, ..run }, first)
    }

    /// The leaf of a page and the run there; `linked` covers the nodes that are made on the way.
    #[inline]
    fn leaf_run(&self, page: u64, end: u64, linked: &mut Unfenced) -> Result<(Leaf, PageRun)> {
        let leaf = self.file.map.make_leaf(page, linked)?;
        Ok((leaf, self.file.map.run_in(leaf, page, end)?))
    }
}

impl Store {
    /// Makes durable what is written lazily (times) of an object, if it still has that generation;
    /// answers whether it has. File data is durable when its call returned, and here what was
    /// stored through mappings.
    #[inline]
    pub fn persist(&self, id: ObjectId, generation: u32) -> Result<bool> {
        let file = File::open(self, id)?;
        if file.generation() != generation {
            return Ok(false);
        }
        if self.is_stored_to(id)? && self.volume().has_to_flush() {
            self.sync_all(id)?;
        } else if self.is_writable() && !self.volume().is_cached() {
            settle(self, self.volume().flush(file.onode, LINE_SIZE))?;
        }
        Ok(true)
    }

    /// Whether some mapping of the object may be stored to, so that the processor's cache may hold
    /// data of it.
    #[inline(always)]
    fn is_stored_to(&self, id: ObjectId) -> Result<bool> {
        Ok(self.icore(id)?.mapped.load(Relaxed) >= STORING)
    }

    /// As [`Store::persist`] of an object that somebody has open, if that is done at once. It
    /// changes and holds nothing, so that it may end at any instruction. Returns `None` if the fast
    /// path does not apply.
    #[inline(always)]
    pub fn persist_now(&self, id: ObjectId) -> Option<()> {
        if !self.is_writable() || self.is_stored_to(id).ok()? {
            return None;
        }
        let onode = self.onode_at(id).ok()?;
        self.volume().persist_now(onode, LINE_SIZE)
    }

    /// How full the pool is.
    pub fn statfs(&self) -> Statfs {
        let (empty, _) = self.count_empty_and_gone();
        let alloc = self.allocator();
        let free = alloc.free_units() + alloc.free_behind() + empty * UNITS_PER_BLOCK;
        let free_alone = match alloc.common() {
            0 => free,
            _ => alloc.count_free_for(false),
        };
        Statfs {
            free_alone: free_alone.min(self.units),
            units: self.volume().present_units().min(self.units),
            free_units: free.min(self.units),
            objects: self.max_objects,
            free_objects: self.max_objects.saturating_sub(self.count_objects()),
        }
    }
}

/// Sets the times of a change of the contents in the hot lines of an onode.
#[inline(always)]
fn stamp(hot: &CheckedRange<'_, HOT_SIZE>, now: Timestamp) {
    let now = now.0 as u64;
    for field in [MTIME_WORD, CTIME_WORD] {
        // Most writes fall into the same tick of the clock as the one before.
        if hot.word(field) != now {
            hot.store_word_lazy(field, now, StoreKind::Metadata);
        }
    }
}

#[inline]
#[cfg_attr(feature = "explore", track_caller)]
fn settle(store: &Store, unfenced: Unfenced) -> Result<()> {
    Ok(store.volume().fence(unfenced)?)
}

#[cold]
fn copy_error(error: CopyError) -> StoreError {
    match error {
        CopyError::UserFault => StoreError::UserFault,
        CopyError::MediaFault => StoreError::MediaFault,
    }
}

/// The page behind the last one that holds bytes below `size`.
#[inline]
fn pages_of(size: u64) -> u64 {
    size.div_ceil(UNIT_SIZE)
}

/// The first page of `len` bytes at `offset`, and the page behind the last one (of no bytes: behind
/// the first one).
#[inline]
fn pages_from(offset: FileOffset, len: usize) -> (u64, u64) {
    let last = offset.0.saturating_add((len as u64).max(1) - 1);
    (offset.page(), FileOffset(last).page() + 1)
}

/// First byte of a page.
#[inline]
fn page_start(page: u64) -> u64 {
    FileOffset::of_page(page).0
}

/// The end of a byte range, which must not lie past the largest size.
fn range_end(offset: u64, len: u64) -> Result<u64> {
    offset
        .checked_add(len)
        .filter(|&end| end <= MAX_FILE_SIZE)
        .ok_or(StoreError::FileTooBig)
}
