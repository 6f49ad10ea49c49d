//! Writing in direct mode: in place where units are mapped, into fresh units where none are. Two
//! fences at most in the usual cases: one behind the bytes, one behind the words that show them;
//! none between words, as a call that has not returned promises no more than sound metadata and no
//! stale bytes.

use std::sync::atomic::Ordering::Relaxed;

use nacre_types::{FileOffset, StoreKind, UNIT_SIZE, UnitNo};
use nacre_volume::{Unfenced, UserBytes};

use super::{Change, File, copy_error, page_start, pages_from, pages_of};
use crate::alloc::Run;
use crate::block_map::ExtentCache;
use crate::block_map::layout::MapWord;
use crate::block_map::{Leaf, PageRun};
use crate::error::{Result, StoreError};

/// While no more than this part of the units is free, what is overwritten stays where it is.
const SPARE_SHARE: u64 = 8;

/// What a write has stored and not fenced yet.
struct Waiting {
    /// Bytes where the object had units before, if there are any.
    bytes: Option<Unfenced>,
    /// Words of the map.
    words: Unfenced,
}

impl Waiting {
    const NOTHING: Waiting = Waiting {
        bytes: None,
        words: Unfenced::nothing(),
    };
}

impl Change<'_> {
    /// Writes bytes at `offset`, up to which the file reads as it should; EOF is at `size`.
    #[inline]
    pub(super) fn write_direct(
        &self,
        size: u64,
        offset: FileOffset,
        from: UserBytes<'_>,
    ) -> Result<usize> {
        let (mut done, mut waiting) = (0, Waiting::NOTHING);
        if offset.page() < pages_of(size) {
            // Nothing is written behind the last page of what was written.
            let room = page_start(pages_of(size)) - offset.0;
            let within = from.slice(0..room.min(from.len() as u64) as usize);
            let (len, bytes) = self.overwrite(size, offset, within)?;
            if len == from.len() && offset.0 + len as u64 <= size {
                self.stamp();
                self.settle(bytes)?;
                return Ok(len);
            }
            (done, waiting.bytes) = (len, (len > 0).then_some(bytes));
        }
        if done < from.len() {
            done = self.write_runs(size, offset, from, done, &mut waiting)?;
        }
        self.show(size.max(offset.0 + done as u64), size, waiting)?;
        Ok(done)
    }

    /// Stores bytes where written units of the object's own are mapped, from `offset` on and as far
    /// as they reach.
    ///
    /// No word of the map changes. Short if the program's memory faults after some; a retry faults
    /// there.
    #[inline]
    fn overwrite(
        &self,
        size: u64,
        offset: FileOffset,
        from: UserBytes<'_>,
    ) -> Result<(usize, Unfenced)> {
        let (store, id, mapping_epoch) = (self.file.store, self.file.id, self.mapping_epoch());
        let pages = pages_from(offset, from.len());
        let mut run = File::translate(store, id, mapping_epoch, pages)?.run();
        let (mut done, mut stored) = (0, Unfenced::nothing());
        while done < from.len() {
            let at = offset.add(done as u64);
            if at.page() >= run.end() {
                let pages = pages_from(at, from.len() - done);
                run = File::translate(store, id, mapping_epoch, pages)?.run();
            }
            let (own, others) = self.split_shared(run.from(at.page()));
            if !own.entry.is_written() || others {
                break;
            }
            let (own, moves) = self.split_moving(own, at, from.len() - done);
            if moves {
                break;
            }
            let room = own.count * UNIT_SIZE - at.in_page();
            let len = room.min((from.len() - done) as u64) as usize;
            let bytes = from.slice(done..done + len);
            match self.store_bytes(size, own.entry.unit(), at, bytes) {
                Ok(bytes) => stored.join(bytes),
                Err(StoreError::UserFault) if done > 0 => break,
                Err(error) => return Err(error),
            }
            done += len;
        }
        Ok((done, stored))
    }

    /// Bytes of the program go to the medium; `unit` is that of the page of `at`.
    #[inline]
    fn store_bytes(
        &self,
        size: u64,
        unit: UnitNo,
        at: FileOffset,
        bytes: UserBytes<'_>,
    ) -> Result<Unfenced> {
        let to = unit.offset().add(at.in_page());
        let volume = self.file.store.volume();
        let stored = match at.0 + bytes.len() as u64 <= size {
            true => volume.overwrite_user(to, bytes),
            false => volume.write_user(to, bytes, StoreKind::Data),
        };
        stored.map_err(copy_error)
    }

    /// Writes what is left from `done` on, run after run. An error after some bytes makes the write
    /// short.
    fn write_runs(
        &self,
        size: u64,
        offset: FileOffset,
        from: UserBytes<'_>,
        mut done: usize,
        waiting: &mut Waiting,
    ) -> Result<usize> {
        self.forget_place(size);
        let room = match self.room_for(offset, from.len() as u64, &mut waiting.words) {
            Ok(room) => room as usize,
            Err(_) if done > 0 => done,
            Err(error) => return Err(error),
        };
        while done < room {
            let at = offset.add(done as u64);
            match self.write_run(size, at, from.slice(done..room), waiting) {
                Ok(len) => done += len,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Writes the run that begins at `at`; returns its length.
    fn write_run(
        &self,
        size: u64,
        at: FileOffset,
        from: UserBytes<'_>,
        waiting: &mut Waiting,
    ) -> Result<usize> {
        let (page, end) = pages_from(at, from.len());
        let leaf = self.known_leaf(page, &mut waiting.words)?;
        let found = self.file.map.run_in(leaf, page, end)?;
        let (mut old, others) = self.split_shared(found);
        let fits = |count: u64| {
            let room = count * UNIT_SIZE - at.in_page();
            from.slice(0..room.min(from.len() as u64) as usize)
        };
        if old.entry.is_written() && !others {
            let (own, moves) = self.split_moving(old, at, from.len());
            if !moves {
                let bytes = fits(own.count);
                let stored = self.store_bytes(size, own.entry.unit(), at, bytes)?;
                let before = waiting.bytes.get_or_insert(Unfenced::nothing());
                before.join(stored);
                return Ok(bytes.len());
            }
            self.move_behind(leaf, page)?;
            old = own;
        }
        let reserved = old.entry.is_unwritten() && !others;
        let units = if reserved {
            Run {
                start: old.entry.unit(),
                count: old.count,
            }
        } else {
            self.take(old.count)?
        };
        let old = PageRun {
            count: units.count,
            ..old
        };
        let bytes = fits(old.count);
        if let Err(error) = self.fill(size, at, bytes, old, units) {
            if !reserved {
                // No word names the units yet.
                self.free(units);
            }
            return Err(error);
        }
        // Ordering these orders what this thread stored before them.
        waiting.bytes = None;
        self.map_filled(leaf, old, units, &mut waiting.words)?;
        if at.add(bytes.len() as u64).in_page() != 0 {
            self.remember_end(PageRun {
                entry: MapWord::written(units.start),
                ..old
            });
        }
        Ok(bytes.len())
    }

    /// The first pages of a written run that are treated alike by a write of `len` bytes at `at`,
    /// and whether they had better get other units than be overwritten (D75).
    #[inline]
    fn split_moving(&self, run: PageRun, at: FileOffset, len: usize) -> (PageRun, bool) {
        match self.file.store.volume().is_special() {
            true => self.split_moving_on_disk(run, at, len),
            false => (run, false),
        }
    }

    #[cold]
    #[inline(never)]
    fn split_moving_on_disk(&self, run: PageRun, at: FileOffset, len: usize) -> (PageRun, bool) {
        let (store, whole) = (self.file.store, len as u64 / UNIT_SIZE);
        let is_for_it = at.in_page() == 0 && whole > 0 && store.volume().had_better_move(len);
        if !is_for_it || self.is_mapped() || !self.has_spare_units() {
            return (run, false);
        }
        let count = run.count.min(whole);
        let (count, moves) = store.volume().first_alike(run.entry.unit().offset(), count);
        (PageRun { count, ..run }, moves)
    }

    /// What moves goes behind the page before it if it can, else to where units are used again
    /// first: what is overwritten again and again stays where memory is.
    fn move_behind(&self, leaf: Leaf, page: u64) -> Result<()> {
        let goal = match leaf.holds(page.wrapping_sub(1)) {
            true => self.file.map.run_in(leaf, page - 1, page)?.entry,
            false => MapWord::HOLE,
        };
        let behind = goal.is_written().then(|| goal.unit().0 + 1);
        self.icore.alloc_hint.store(behind.unwrap_or(0), Relaxed);
        Ok(())
    }

    fn has_spare_units(&self) -> bool {
        let store = self.file.store;
        store.allocator().free_units() > store.units / SPARE_SHARE
    }

    /// Where a write ended within the last page of a run, the next one may go on.
    #[inline(never)]
    fn remember_end(&self, run: PageRun) {
        let (store, id, mapping_epoch) = (self.file.store, self.file.id, self.mapping_epoch());
        let mapped = self.file.translation(ExtentCache::end_of(run));
        store.extent_cache.put_behind(id, mapping_epoch, &mapped);
    }

    /// The leaf of a page, remembered for the next write.
    #[inline]
    fn known_leaf(&self, page: u64, linked: &mut Unfenced) -> Result<Leaf> {
        let (id, mapping_epoch) = (self.file.id, self.mapping_epoch());
        let extent_cache = &self.file.store.extent_cache;
        if let Some(known) = extent_cache.leaf(id, mapping_epoch, page) {
            return Ok(known);
        }
        let leaf = self.file.map.make_leaf(page, linked)?;
        extent_cache.put_leaf(id, mapping_epoch, leaf);
        Ok(leaf)
    }

    /// Writes into units that hold nothing of the object yet, ordered before what follows.
    fn fill(
        &self,
        size: u64,
        at: FileOffset,
        from: UserBytes<'_>,
        old: PageRun,
        units: Run,
    ) -> Result<()> {
        let end = at.0 + from.len() as u64;
        let mut stored = self.fill_edge(old, units, (page_start(old.page), at.0))?;
        if end < size || self.may_differ_behind(old) {
            stored.join(self.fill_edge(old, units, (end, page_start(old.end())))?);
        }
        let to = units.start.offset().add(at.in_page());
        let volume = self.file.store.volume();
        let written = volume.write_user_fresh(to, from, StoreKind::Data);
        stored.join(written.map_err(copy_error)?);
        Ok(volume.order(stored)?)
    }

    /// Maps units whose bytes are durable where `old` was. After an error the words may name them
    /// or the old ones, so neither are given back.
    fn map_filled(&self, leaf: Leaf, old: PageRun, units: Run, words: &mut Unfenced) -> Result<()> {
        let run = PageRun {
            entry: MapWord::written(units.start),
            ..old
        };
        let is_left = !old.entry.is_hole() && old.entry.unit() != units.start;
        match old.entry.is_written() {
            true => self.move_mapping_epoch(),
            false => self.hide_zeros()?,
        }
        if is_left {
            self.settle(self.file.map.set_run(leaf, run))?;
            self.free(Run {
                start: old.entry.unit(),
                count: old.count,
            });
            return Ok(());
        }
        words.join(self.file.map.set_run(leaf, run));
        if old.entry.is_hole() {
            self.count(run.count, 0);
        }
        Ok(())
    }

    /// Ends a write: sets the times, moves EOF from `old` to `size` if that is higher, and fences.
    #[inline]
    fn show(&self, size: u64, old: u64, waiting: Waiting) -> Result<()> {
        self.stamp();
        let Waiting { bytes, mut words } = waiting;
        if size > old {
            if let Some(bytes) = bytes {
                // Bytes must be durable before the size that shows them.
                self.file.store.volume().order(bytes)?;
            }
            words.join(self.store_size(size));
        } else if let Some(bytes) = bytes {
            words.join(bytes);
        }
        self.settle(words)
    }
}
