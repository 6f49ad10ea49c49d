//! Where data and holes lie.

use std::ops::ControlFlow;

use nacre_types::{ObjectId, UNIT_SIZE, UnitNo};

use super::{File, page_start, pages_of};
use crate::block_map::PageRun;
use crate::error::Result;
use crate::store::Store;

/// Contiguous units of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte in the object.
    pub offset: u64,
    /// Bytes, whole units.
    pub len: u64,
    /// First unit.
    pub unit: UnitNo,
    /// Reserved, reads as zeros.
    pub unwritten: bool,
    /// Other objects map some of these units too.
    pub shared: bool,
}

impl Store {
    /// The first byte of data at or behind `offset`; `None` when there is none below EOF.
    pub fn seek_data(&self, id: ObjectId, offset: u64) -> Result<Option<u64>> {
        self.seek(id, offset, true)
    }

    /// The first byte of a hole at or behind `offset` (EOF counts as one); `None` at or behind EOF.
    pub fn seek_hole(&self, id: ObjectId, offset: u64) -> Result<Option<u64>> {
        self.seek(id, offset, false)
    }

    fn seek(&self, id: ObjectId, offset: u64, data: bool) -> Result<Option<u64>> {
        self.read_stable(id, || {
            let file = File::open(self, id)?;
            let size = file.size()?;
            if offset >= size {
                return Ok(None);
            }
            let found = file.find(offset / UNIT_SIZE, pages_of(size), data)?;
            let at = found.map(|page| page_start(page).max(offset));
            Ok(if data {
                at
            } else {
                Some(at.unwrap_or(size).min(size))
            })
        })
    }

    /// Tells `visit` about the mapped extents that touch bytes `from..to`, in order, until it
    /// breaks off.
    pub fn extents(
        &self,
        id: ObjectId,
        from: u64,
        to: u64,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut page = from / UNIT_SIZE;
        while page < pages_of(to) {
            let (run, shared) = self.read_stable(id, || {
                let file = File::open(self, id)?;
                let run = file.map.run_at(page, pages_of(to))?;
                Ok((run, file.has_other_owners(run)))
            })?;
            page = run.end();
            if !run.entry.is_hole() && visit(extent(run, shared)).is_break() {
                break;
            }
        }
        Ok(())
    }
}

impl File<'_> {
    fn find(&self, first: u64, end: u64, written: bool) -> Result<Option<u64>> {
        let mut page = first;
        while page < end {
            let run = self.map.run_at(page, end)?;
            if run.entry.is_written() == written {
                return Ok(Some(page));
            }
            page = run.end();
        }
        Ok(None)
    }

    fn has_other_owners(&self, run: PageRun) -> bool {
        let alloc = self.store.allocator();
        run.entry.may_be_shared()
            && (0..run.count).any(|page| alloc.extra(run.entry.advance(page).unit()) > 0)
    }
}

fn extent(run: PageRun, shared: bool) -> Extent {
    Extent {
        offset: page_start(run.page),
        len: run.count * UNIT_SIZE,
        unit: run.entry.unit(),
        unwritten: run.entry.is_unwritten(),
        shared,
    }
}
