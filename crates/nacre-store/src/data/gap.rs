//! Making bytes read as zeros: before EOF moves over them, and at the edges of punched ranges.

use nacre_types::{StoreKind, UNIT_SIZE, site};
use nacre_volume::Unfenced;

use super::{Change, page_start, pages_of};
use crate::alloc::Run;
use crate::block_map::layout::MapWord;
use crate::block_map::{Leaf, PageRun};
use crate::error::Result;

impl Change<'_> {
    /// Makes `size..to` read as zeros once EOF, now at `size`, has moved past it. Durable on
    /// return.
    pub(super) fn clear_gap(&self, size: u64, to: u64) -> Result<()> {
        if size >= to {
            return Ok(());
        }
        let first_whole = pages_of(size);
        if !size.is_multiple_of(UNIT_SIZE) {
            self.zero_in_page(size, to.min(page_start(first_whole)))?;
        }
        self.zero_written(first_whole, pages_of(to))
    }

    /// Makes whole pages `from..to` read as zeros, if they are written.
    pub(super) fn zero_written(&self, from: u64, to: u64) -> Result<()> {
        let mut page = from;
        while page < to {
            let run = self.file.map.run_at(page, to)?;
            if run.entry.is_written() {
                self.drop_or_zero(run)?;
            }
            page = run.end();
        }
        Ok(())
    }

    /// Makes the written units of whole pages read as zeros: unmapped if nobody maps the object,
    /// else in place.
    fn drop_or_zero(&self, run: PageRun) -> Result<()> {
        if self.is_mapped() {
            self.zero_in_place(run)
        } else {
            self.clear(run.page, run.end())
        }
    }

    /// Zeroes whole written pages, after giving the object its own copy of shared ones.
    fn zero_in_place(&self, run: PageRun) -> Result<()> {
        let mut page = run.page;
        while page < run.end() {
            let own = self.own_run(page, run.end())?;
            let volume = self.file.store.volume();
            let at = own.entry.unit().offset();
            self.file.store.refuse_lost(own.entry.unit())?;
            self.settle(volume.zero(at, own.count * UNIT_SIZE, StoreKind::Data))?;
            page = own.end();
        }
        Ok(())
    }

    /// Zeroes bytes `from..to`, which lie in one page, if they are written; durable on return.
    pub(super) fn zero_in_page(&self, from: u64, to: u64) -> Result<()> {
        let page = from / UNIT_SIZE;
        let found = self.file.map.run_at(page, page + 1)?;
        if from == to || !found.entry.is_written() {
            return Ok(());
        }
        let own = self.own_run(page, page + 1)?;
        self.file.store.refuse_lost(own.entry.unit())?;
        let at = own.entry.unit().offset().add(from % UNIT_SIZE);
        // The last byte is a step of its own: stale bytes of a test must reach it.
        let len = to - from - u64::from(!site::step());
        self.settle(self.file.store.volume().zero(at, len, StoreKind::Data))
    }

    /// Gives the object its own copy of a written page.
    pub(super) fn own_page(&self, page: u64) -> Result<()> {
        let found = self.file.map.run_at(page, page + 1)?;
        if found.entry.is_written() {
            self.own_run(page, page + 1)?;
        }
        Ok(())
    }

    /// The run of written pages from `page` on, copied to units of its own if other objects map it.
    pub(super) fn own_run(&self, page: u64, end: u64) -> Result<PageRun> {
        let mut linked = Unfenced::nothing();
        let (leaf, found) = self.leaf_run(page, end, &mut linked)?;
        let (run, others) = self.split_shared(found);
        if others {
            self.copy_to_own(leaf, run, linked)
        } else {
            Ok(run)
        }
    }

    fn copy_to_own(&self, leaf: Leaf, run: PageRun, linked: Unfenced) -> Result<PageRun> {
        let fresh = self.take(run.count)?;
        let volume = self.file.store.volume();
        let mut buffer = [0; UNIT_SIZE as usize];
        let mut unfenced = linked;
        for step in 0..fresh.count {
            let from = run.entry.unit().add(step).offset();
            self.file.store.read_contents(from, &mut buffer)?;
            let to = fresh.start.add(step).offset();
            unfenced = unfenced.and(volume.write(to, &buffer, StoreKind::Data));
        }
        self.settle(unfenced)?;
        let own = PageRun {
            page: run.page,
            count: fresh.count,
            entry: MapWord::written(fresh.start),
        };
        self.settle(self.file.map.set_run(leaf, own))?;
        self.free(Run {
            start: run.entry.unit(),
            count: fresh.count,
        });
        Ok(own)
    }

    /// Gives units back whose words are durably gone.
    pub(super) fn free(&self, run: Run) {
        self.file.store.allocator().free(run.start, run.count);
    }
}
