//! Shared mappings: a program stores into the units itself.

use nacre_types::{LINE_SIZE, ObjectId, StoreKind, UNIT_SIZE, UnitNo};
use nacre_volume::Unfenced;

use super::{Change, File, page_start, pages_of, settle};
use crate::data::layout::{FANOUT, MapWord};
use crate::data::map::{Leaf, PageRun};
use crate::error::{Result, StoreError};
use crate::object::lock::ObjectGuard;
use crate::store::Store;

/// Pages of a chunk: 2 MiB.
pub const CHUNK_PAGES: u64 = FANOUT;

/// Contiguous units behind contiguous pages of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedRun {
    /// First page, in units of 4 KiB from the object's start.
    pub page: u64,
    /// Its unit.
    pub unit: UnitNo,
    /// How many.
    pub count: u64,
}

impl Store {
    /// Prepares pages for a shared mapping and tells which units they are; pages beyond EOF are
    /// left out.
    ///
    /// Holes get zeroed units, units of other objects are copied, the rest of EOF's page is zeroed.
    /// To be called after the object's count of mappings was raised, so that nobody replaces a unit
    /// that was told.
    pub fn map_for_sharing(
        &self,
        guard: &ObjectGuard<'_>,
        first_page: u64,
        pages: u64,
    ) -> Result<Vec<MappedRun>> {
        let change = Change::begin(self, guard)?;
        let size = change.file.size()?;
        let end = first_page.saturating_add(pages).min(pages_of(size));
        let mut runs = Vec::new();
        if first_page >= end {
            return Ok(runs);
        }
        change.zero_behind(size, end)?;
        let mut linked = Unfenced::nothing();
        change.file.map.grow_to(end - 1, &mut linked)?;
        let mut page = first_page;
        while page < end {
            let run = change.mappable_run(page, end, &mut linked)?;
            push(&mut runs, run);
            page = run.end();
        }
        Ok(runs)
    }

    /// As [`Store::map_for_sharing`] for devices that map 2 MiB pages only: `first_page` is a
    /// multiple of 512, and whole chunks of 512 pages are told, each of them 2 MiB-aligned units.
    /// Units behind EOF in the last one are zeros.
    ///
    /// Contents move to such units where they do not lie so already; nobody may have other mappings
    /// of the object.
    pub fn map_chunks_for_sharing(
        &self,
        guard: &ObjectGuard<'_>,
        first_page: u64,
        pages: u64,
    ) -> Result<Vec<MappedRun>> {
        if !first_page.is_multiple_of(CHUNK_PAGES) {
            return Err(StoreError::Invalid("a chunk begins at a multiple of 2 MiB"));
        }
        let change = Change::begin(self, guard)?;
        let size = change.file.size()?;
        let end = first_page.saturating_add(pages).min(pages_of(size));
        let mut runs = Vec::new();
        if first_page >= end {
            return Ok(runs);
        }
        change.zero_behind(size, end)?;
        for page in (first_page..end).step_by(CHUNK_PAGES as usize) {
            push(&mut runs, change.aligned_chunk(page)?);
        }
        Ok(runs)
    }

    /// As [`Store::sync_range`] of the whole object.
    pub fn sync_all(&self, id: ObjectId) -> Result<()> {
        if !self.volume().has_to_flush() {
            return Ok(());
        }
        let size = self.read_stable(id, || File::open(self, id)?.size())?;
        self.sync_range(id, 0, size)
    }

    /// Makes durable what programs stored through shared mappings into bytes
    /// `offset .. offset + len`, and the times.
    pub fn sync_range(&self, id: ObjectId, offset: u64, len: u64) -> Result<()> {
        if !self.is_writable() {
            return Ok(());
        }
        let end = pages_of(offset.saturating_add(len));
        let mut page = offset / UNIT_SIZE;
        let mut unfenced = Unfenced::nothing();
        while page < end {
            let run = self.read_stable(id, || File::open(self, id)?.map.run_at(page, end))?;
            if run.entry.is_written() {
                let at = run.entry.unit().offset();
                let len = run.count * UNIT_SIZE;
                unfenced = unfenced.and(self.volume().flush_as(at, len, StoreKind::Data));
            }
            page = run.end();
        }
        let times = self.volume().flush(self.onode_at(id)?, LINE_SIZE);
        settle(self, unfenced.and(times))
    }
}

impl Change<'_> {
    /// Zeroes the rest of EOF's page if it is among the pages before `end`: mappers would see it.
    fn zero_behind(&self, size: u64, end: u64) -> Result<()> {
        if size.is_multiple_of(UNIT_SIZE) || end != pages_of(size) {
            return Ok(());
        }
        self.zero_in_page(size, page_start(end))
    }

    /// The run from `page` on, after it got written units of its own.
    fn mappable_run(&self, page: u64, end: u64, linked: &mut Unfenced) -> Result<PageRun> {
        let (leaf, run) = self.leaf_run(page, end, linked)?;
        if run.entry.is_hole() {
            let units = self.take(run.count)?;
            self.count(units.count, 0);
            return self.publish_zeros(
                leaf,
                PageRun {
                    count: units.count,
                    ..run
                },
                units.start,
                linked,
            );
        }
        if run.entry.is_unwritten() {
            return self.publish_zeros(leaf, run, run.entry.unit(), linked);
        }
        self.own_run(page, run.end())
    }

    fn publish_zeros(
        &self,
        leaf: Leaf,
        run: PageRun,
        unit: UnitNo,
        linked: &mut Unfenced,
    ) -> Result<PageRun> {
        let volume = self.file.store.volume();
        self.settle(volume.zero(unit.offset(), run.count * UNIT_SIZE, StoreKind::Data))?;
        let run = PageRun {
            entry: MapWord::written(unit),
            ..run
        };
        self.settle(linked.take().and(self.file.map.set_run(leaf, run)))?;
        Ok(run)
    }
}

fn push(runs: &mut Vec<MappedRun>, run: PageRun) {
    let unit = run.entry.unit();
    match runs.last_mut() {
        Some(last) if last.unit.add(last.count) == unit => last.count += run.count,
        _ => runs.push(MappedRun {
            page: run.page,
            unit,
            count: run.count,
        }),
    }
}
