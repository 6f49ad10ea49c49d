//! Reserving space and making holes.

use nacre_types::UNIT_SIZE;
use nacre_volume::Unfenced;

use super::{Change, page_start, pages_of, range_end};
use crate::alloc::{Allocator, Run};
use crate::block_map::PageRun;
use crate::block_map::layout::MapWord;
use crate::error::{Result, StoreError};
use crate::object::lock::ObjectGuard;
use crate::store::Store;

/// Where units are reserved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReservePlace {
    Front,
    /// On devices behind, where nobody stores: who writes there gets units in front.
    Behind,
}

/// What becomes of EOF where a range is reserved that reaches behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndOfFile {
    /// It moves to the end of the range.
    Moves,
    /// It stays: what is reserved behind it is for later.
    Stays,
}

impl EndOfFile {
    /// Where it was, if it moves.
    fn moved_from(self, size: u64) -> Option<u64> {
        (self == EndOfFile::Moves).then_some(size)
    }
}

impl Store {
    /// Makes `len` bytes from `offset` on read as zeros and frees the whole units among them. EOF
    /// stays.
    ///
    /// Durable on return. After a crash in the middle each unit holds either its old bytes or
    /// zeros.
    pub fn punch(&self, guard: &ObjectGuard<'_>, offset: u64, len: u64) -> Result<()> {
        let end = range_end(offset, len)?;
        let change = Change::begin(self, guard)?;
        let size = change.file.size()?;
        change.punch(offset, end, size)?;
        change.stamp();
        Ok(())
    }

    /// Like [`Store::punch`], but the range stays reserved.
    pub fn zero_range(
        &self,
        guard: &ObjectGuard<'_>,
        offset: u64,
        len: u64,
        eof: EndOfFile,
    ) -> Result<()> {
        let end = range_end(offset, len)?;
        let change = Change::begin(self, guard)?;
        let size = change.file.size()?;
        change.expect_room(offset / UNIT_SIZE, pages_of(end))?;
        change.punch(offset, end, size)?;
        change.reserve(offset, end, eof.moved_from(size))?;
        change.stamp();
        Ok(())
    }

    /// Reserves units for the range; holes in it become unwritten units.
    pub fn preallocate(
        &self,
        guard: &ObjectGuard<'_>,
        offset: u64,
        len: u64,
        eof: EndOfFile,
    ) -> Result<()> {
        let end = range_end(offset, len)?;
        let change = Change::begin(self, guard)?;
        let size = change.file.size()?;
        change.reserve(offset, end, eof.moved_from(size))?;
        change.stamp();
        Ok(())
    }
}

impl Change<'_> {
    fn punch(&self, offset: u64, end: u64, size: u64) -> Result<()> {
        if offset >= end {
            return Ok(());
        }
        // Beyond EOF bytes are undefined, so the page of EOF counts as whole when the range covers
        // its bytes.
        let whole_end = if end >= size {
            pages_of(end)
        } else {
            end / UNIT_SIZE
        };
        let whole_start = pages_of(offset);
        if whole_start > whole_end {
            return self.zero_in_page(offset, end);
        }
        // What may need a unit comes first, so that a refusal leaves all bytes as they were.
        if end > page_start(whole_end) {
            self.own_page(whole_end)?;
        }
        self.zero_in_page(offset, page_start(whole_start))?;
        if end > page_start(whole_end) {
            self.zero_in_page(page_start(whole_end), end)?;
        }
        if self.is_mapped() {
            return self.zero_written(whole_start, whole_end);
        }
        self.clear(whole_start, whole_end)
    }

    /// Fills holes with unwritten units; `size`, if given, is the EOF that moves up to `end`.
    fn reserve(&self, offset: u64, end: u64, size: Option<u64>) -> Result<()> {
        if offset >= end {
            return Ok(());
        }
        let (first, last) = (offset / UNIT_SIZE, pages_of(end));
        let place = self.expect_room(first, last)?;
        if let Some(size) = size {
            self.clear_gap(size, end)?;
        }
        let mut unfenced = Unfenced::nothing();
        self.file.map.grow_to(last - 1, &mut unfenced)?;
        let mut page = first;
        while page < last {
            let (leaf, run) = self.leaf_run(page, last, &mut unfenced)?;
            page = run.end();
            if run.entry.is_hole() {
                let (units, entry) = self.take_reserved(place, run.count)?;
                let filled = PageRun {
                    page: run.page,
                    count: units.count,
                    entry,
                };
                unfenced = unfenced.and(self.file.map.set_run(leaf, filled));
                self.count(units.count, 0);
                page = filled.end();
            }
        }
        self.settle(unfenced)?;
        match size {
            Some(size) if end > size => self.commit_size(size, end),
            _ => Ok(()),
        }
    }

    fn take_reserved(&self, place: ReservePlace, want: u64) -> Result<(Run, MapWord)> {
        if place == ReservePlace::Front {
            let units = self.take(want)?;
            return Ok((units, MapWord::unwritten(units.start)));
        }
        let units = self.file.store.allocator().take_behind(want);
        let units = units.ok_or(StoreError::NoSpace)?;
        Ok((units, MapWord::unwritten_behind(units.start)))
    }

    /// Refuses a reservation that cannot succeed before it takes what is left.
    fn expect_room(&self, first: u64, last: u64) -> Result<ReservePlace> {
        let alloc = self.file.store.allocator();
        let mut page = first;
        let mut wanted = 0;
        while page < last {
            let run = self.file.map.run_at(page, last)?;
            wanted += if run.entry.is_hole() { run.count } else { 0 };
            page = run.end();
        }
        if alloc.common() > 0 {
            let free = alloc.count_free_for(self.file.is_kept());
            let has_room = (wanted <= free).then_some(ReservePlace::Front);
            return has_room.ok_or(StoreError::NoSpace);
        }
        if wanted <= alloc.free_units() || wanted <= alloc.count_free() {
            return Ok(ReservePlace::Front);
        }
        if wanted <= self.file.store.volume().front_units() && self.make_front(wanted)? {
            return Ok(ReservePlace::Front);
        }
        match wanted <= alloc.free_behind() {
            true => Ok(ReservePlace::Behind),
            false => Err(StoreError::NoSpace),
        }
    }

    /// Whether so many units are free in front, after room was made for them.
    fn make_front(&self, wanted: u64) -> Result<bool> {
        let store = self.file.store;
        store.give_blocks_back()?;
        let has_room = |alloc: Allocator<'_>| (wanted <= alloc.count_free()).then_some(());
        Ok(has_room(store.allocator()).is_some() || store.take_moving(has_room)?.is_some())
    }
}
