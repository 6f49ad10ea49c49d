//! Clones within a transaction: whole units are shared where the offsets allow it.

use nacre_types::{ObjectId, UNIT_SIZE};

use super::{page_start, pages_of, range_end};
use crate::alloc::Run;
use crate::error::Result;
use crate::thread::staged::Page;
use crate::tx::Tx;

/// Bytes copied at once where units cannot be shared.
const COPY: u64 = 1 << 20;

impl Tx<'_> {
    /// Copies up to `len` bytes of an object to another one or to another place of it; whole units
    /// are shared where the offsets allow it. Returns how many there were.
    pub fn data_clone(
        &mut self,
        from: (ObjectId, u64),
        len: u64,
        to: (ObjectId, u64),
    ) -> Result<u64> {
        let source = self.stage(from.0)?;
        let target = self.stage(to.0)?;
        let len = len.min(self.scratch.staged[source].size.saturating_sub(from.1));
        let end = range_end(to.1, len)?;
        let overlap = from.0 == to.0 && from.1 < end && to.1 < from.1 + len;
        match overlap || from.1 % UNIT_SIZE != to.1 % UNIT_SIZE {
            true => self.copy_range((source, from), len, to)?,
            false => self.share_range((source, from), len, (target, to))?,
        }
        let size = &mut self.scratch.staged[target].size;
        if len > 0 {
            *size = (*size).max(end);
        }
        Ok(len)
    }

    /// Shares the whole units of a range, at an offset that allows it, and copies the rest.
    fn share_range(
        &mut self,
        (source, from): (usize, (ObjectId, u64)),
        len: u64,
        (target, to): (usize, (ObjectId, u64)),
    ) -> Result<()> {
        let mut done = 0;
        while done < len {
            let (at, there) = (from.1 + done, to.1 + done);
            let (page, to_page) = (at / UNIT_SIZE, there / UNIT_SIZE);
            let whole = (len - done) / UNIT_SIZE;
            if !at.is_multiple_of(UNIT_SIZE) || whole == 0 {
                let part = (len - done).min(UNIT_SIZE - at % UNIT_SIZE);
                self.copy_range((source, (from.0, at)), part, (to.0, there))?;
                done += part;
                continue;
            }
            let holes = self.hole_end(source, page, page + whole)? - page;
            match holes {
                0 => self.share_page((source, page), (target, to_page))?,
                _ => self.data_zero(to.0, there, holes * UNIT_SIZE)?,
            }
            done += holes.max(1) * UNIT_SIZE;
        }
        Ok(())
    }

    /// Copies bytes of a range, from its end on where the source would be overwritten else.
    fn copy_range(
        &mut self,
        (source, from): (usize, (ObjectId, u64)),
        len: u64,
        to: (ObjectId, u64),
    ) -> Result<()> {
        let mut pieces = self.pieces_of(source, from.1, len)?;
        if from.0 == to.0 && to.1 > from.1 {
            pieces.reverse();
        }
        let mut bytes = Vec::new();
        for (skip, len, is_hole) in pieces {
            if is_hole {
                self.data_zero(to.0, to.1 + skip, len)?;
                continue;
            }
            bytes.resize(len as usize, 0);
            self.data_read(from.0, from.1 + skip, &mut bytes)?;
            self.data_write(to.0, to.1 + skip, &bytes)?;
        }
        Ok(())
    }

    /// A range as pieces to copy at once and holes of any length: where each begins in it, its
    /// length, and whether it is a hole.
    fn pieces_of(&self, staged: usize, from: u64, len: u64) -> Result<Vec<(u64, u64, bool)>> {
        let (mut at, end) = (from, from + len);
        let mut pieces = Vec::new();
        while at < end {
            let page = at / UNIT_SIZE;
            let behind = self.hole_end(staged, page, pages_of(end))?;
            let next = match behind > page {
                true => page_start(behind).min(end),
                false => end.min(at + COPY),
            };
            pieces.push((at - from, next - at, behind > page));
            at = next;
        }
        Ok(pieces)
    }

    /// Gives a whole page of the source to the target, too.
    fn share_page(&mut self, source: (usize, u64), target: (usize, u64)) -> Result<()> {
        let state = self.scratch.staged[source.0].pages.get(source.1);
        let inside = page_start(source.1 + 1) <= self.scratch.staged[source.0].kept;
        let (unit, after) = match state {
            Some(Page::Hole) => (None, None),
            Some(Page::Own(unit) | Page::Shared(unit)) => (Some(unit), Some(Page::Shared(unit))),
            Some(Page::Kept(unit)) if inside => (Some(unit), Some(Page::Kept(unit))),
            Some(_) => return self.copy_page(source, target),
            None => match self.old_entry(source.0, source.1)? {
                entry if entry.is_hole() => (None, None),
                _ if !inside => return self.copy_page(source, target),
                entry if self.gather_to_share(source)? => {
                    (Some(entry.unit()), Some(Page::Kept(entry.unit())))
                }
                entry if entry.may_be_shared() => (Some(entry.unit()), None),
                entry => (Some(entry.unit()), Some(Page::Kept(entry.unit()))),
            },
        };
        let Some(unit) = unit else {
            if !self.is_hole(target.0, target.1)? {
                self.set_page(target.0, target.1, Page::Hole);
            }
            return Ok(());
        };
        if !self.store.allocator().share(unit, 1) {
            return self.copy_page(source, target);
        }
        self.adopt(Run {
            start: unit,
            count: 1,
        });
        if let Some(after) = after {
            let pages = &mut self.scratch.staged[source.0].pages;
            pages.insert(source.1, after);
        }
        self.set_page(target.0, target.1, Page::Shared(unit));
        Ok(())
    }

    fn copy_page(&mut self, source: (usize, u64), target: (usize, u64)) -> Result<()> {
        let bytes = self.page_bytes(source.0, source.1)?;
        self.write_pages(target.0, target.1, &bytes[..])
    }
}
