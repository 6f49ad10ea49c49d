//! Shared mappings: a program stores into the units itself.

use nacre_session::{ZEROS_LEN, Zeros};
use nacre_types::{LINE_SIZE, ObjectId, StoreKind, UNIT_SIZE, UnitNo};
use nacre_volume::Unfenced;

use super::{Change, File, page_start, pages_of, settle};
use crate::alloc::Run;
use crate::block_map::layout::{FANOUT, MapWord};
use crate::block_map::{Leaf, PageRun};
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

/// What becomes of the holes of a range that is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holes {
    /// They get zeroed units: somebody stores there.
    Fill,
    /// They are left out: they cost nothing until somebody stores there.
    Leave,
}

/// A range of a mapped object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedRange {
    /// Where its pages are.
    pub runs: Vec<MappedRun>,
    /// The page behind the last one of the range that lies before EOF.
    pub end: u64,
}

/// A range of an object that a process maps without changing it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadedRange {
    /// Where the pages are that belong to this object alone.
    pub runs: Vec<MappedRun>,
    /// First page and count of what has bytes to copy: other objects may own the unit too, or what
    /// is behind EOF is not zero. All else is a hole.
    pub copies: Vec<(u64, u64)>,
    /// The page behind the last one of the range that lies before EOF.
    pub end: u64,
}

/// What a mapped page shows.
#[derive(Debug)]
pub enum ShownPage {
    /// A unit: it is not, or no longer, in a hole.
    Unit,
    /// As many pages of a hole, for which there are zeros.
    Zeros(Zeros, u64),
    /// A hole for which there are no zeros.
    Hole,
    /// Nothing: it lies behind EOF.
    BehindEnd,
}

impl Store {
    /// Prepares pages for a shared mapping and tells which units they are; pages beyond EOF are
    /// left out.
    ///
    /// Units of other objects are copied, the rest of EOF's page is zeroed. To be called after the
    /// object's count of mappings was raised, so that nobody replaces a unit that was told.
    pub fn map_for_sharing(
        &self,
        guard: &ObjectGuard<'_>,
        first_page: u64,
        pages: u64,
        holes: Holes,
    ) -> Result<MappedRange> {
        let (change, end) = self.begin_sharing(guard, first_page, pages)?;
        let mut runs = Vec::new();
        if first_page >= end {
            return Ok(MappedRange { runs, end });
        }
        match holes {
            Holes::Fill => change.map_all(first_page, end, &mut runs)?,
            Holes::Leave => change.map_written(first_page, end, &mut runs)?,
        }
        Ok(MappedRange { runs, end })
    }

    /// Where the pages that are to be mapped end; if there are any, what is behind EOF is zeroed.
    fn begin_sharing<'s>(
        &'s self,
        guard: &'s ObjectGuard<'_>,
        first_page: u64,
        pages: u64,
    ) -> Result<(Change<'s>, u64)> {
        let change = Change::begin(self, guard)?;
        let size = change.file.size()?;
        let end = first_page.saturating_add(pages).min(pages_of(size));
        if first_page < end {
            change.zero_behind(size, end)?;
        }
        Ok((change, end))
    }

    /// Tells the units of pages for a mapping that stores nothing, as far as they cannot come to
    /// hold another object's bytes. Nothing is changed. The count of mappings was raised before.
    pub fn map_for_loading(
        &self,
        guard: &ObjectGuard<'_>,
        first_page: u64,
        pages: u64,
    ) -> Result<LoadedRange> {
        let file = File::open(self, guard.id())?;
        let size = file.size()?;
        let end = first_page.saturating_add(pages).min(pages_of(size));
        let (mut range, mut page) = (
            LoadedRange {
                end,
                ..LoadedRange::default()
            },
            first_page,
        );
        while page < end {
            // The page that EOF lies in is looked at alone.
            let whole = size / UNIT_SIZE;
            let run = file
                .map
                .run_at(page, if page < whole { end.min(whole) } else { end })?;
            match run.entry {
                entry if !entry.is_written() => {}
                entry if entry.may_be_shared() || page >= whole => {
                    range.copies.push((run.page, run.count));
                }
                _ => push(&mut range.runs, run),
            }
            page = run.end();
        }
        Ok(range)
    }

    /// What a page of a mapped object shows; zeros are for at most `pages` pages from there on.
    pub fn show_page(&self, guard: &ObjectGuard<'_>, page: u64, pages: u64) -> Result<ShownPage> {
        let file = File::open(self, guard.id())?;
        let end = page.saturating_add(pages).min(pages_of(file.size()?));
        if page >= end {
            return Ok(ShownPage::BehindEnd);
        }
        let run = file.map.run_at(page, end)?;
        if run.entry.is_written() {
            return Ok(ShownPage::Unit);
        }
        Ok(match self.session().show_zeros(self.slot()) {
            Some(zeros) => ShownPage::Zeros(zeros, run.count.min(ZEROS_LEN / UNIT_SIZE)),
            None => ShownPage::Hole,
        })
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
    ) -> Result<MappedRange> {
        if !first_page.is_multiple_of(CHUNK_PAGES) {
            return Err(StoreError::Invalid("a chunk begins at a multiple of 2 MiB"));
        }
        let (change, end) = self.begin_sharing(guard, first_page, pages)?;
        let mut runs = Vec::new();
        if first_page >= end {
            return Ok(MappedRange { runs, end });
        }
        for page in (first_page..end).step_by(CHUNK_PAGES as usize) {
            push(&mut runs, change.aligned_chunk(page)?);
        }
        Ok(MappedRange { runs, end })
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

    /// Tells the units of all pages, after holes got some.
    fn map_all(&self, first: u64, end: u64, runs: &mut Vec<MappedRun>) -> Result<()> {
        let mut linked = Unfenced::nothing();
        self.file.map.grow_to(end - 1, &mut linked)?;
        let mut page = first;
        while page < end {
            let run = self.mappable_run(page, end, &mut linked)?;
            push(runs, run);
            page = run.end();
        }
        Ok(())
    }

    /// Tells the units of written pages.
    fn map_written(&self, first: u64, end: u64, runs: &mut Vec<MappedRun>) -> Result<()> {
        let mut page = first;
        while page < end {
            let mut run = self.file.map.run_at(page, end)?;
            if run.entry.is_written() {
                run = self.own_run(page, run.end())?;
                push(runs, run);
            }
            page = run.end();
        }
        Ok(())
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
            return self.write_reserved(leaf, run, linked);
        }
        self.own_run(page, run.end())
    }

    /// The first pages of a reserved run get zeros: in their units, unless they lie behind.
    fn write_reserved(&self, leaf: Leaf, run: PageRun, linked: &mut Unfenced) -> Result<PageRun> {
        let (run, lies_behind) = self.split_shared(run);
        if !lies_behind {
            return self.publish_zeros(leaf, run, run.entry.unit(), linked);
        }
        let Run { start, count } = self.take(run.count)?;
        let run = PageRun { count, ..run };
        let shown = self.publish_zeros(leaf, run, start, linked)?;
        self.free(Run {
            start: run.entry.unit(),
            count,
        });
        Ok(shown)
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
        self.hide_zeros()?;
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
        Some(last) if last.unit.add(last.count) == unit && last.page + last.count == run.page => {
            last.count += run.count;
        }
        _ => runs.push(MappedRun {
            page: run.page,
            unit,
            count: run.count,
        }),
    }
}
