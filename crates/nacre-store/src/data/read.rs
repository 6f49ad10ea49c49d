//! Reading: optimistic, straight from the medium into the program's memory.

use nacre_types::{FileOffset, ObjectId, UNIT_SIZE};
use nacre_volume::{CopyError, UserBytesMut};

use super::{File, FileHead, copy_error, pages_from};
use crate::block_map::PageRun;
use crate::block_map::layout::PART;
use crate::data::map::PartsMap;
use crate::error::{Result, StoreError};
use crate::store::Store;

const PART_SIZE: u64 = PART as u64;

impl Store {
    /// Reads bytes from `offset` on, as many as fit and lie below EOF; holes are zeros. Returns how
    /// many.
    ///
    /// When the program's memory faults after some bytes, their number is returned.
    pub fn read(&self, id: ObjectId, offset: FileOffset, to: UserBytesMut<'_>) -> Result<usize> {
        self.read_checked(id, offset, to, |_| Ok(()))
            .map(|(_, len)| len)
    }

    /// As [`Store::read`], but `check` sees the object's head first and may refuse. Also gives the
    /// head.
    #[inline]
    pub fn read_checked<E: From<StoreError>>(
        &self,
        id: ObjectId,
        offset: FileOffset,
        to: UserBytesMut<'_>,
        check: impl Fn(&FileHead) -> std::result::Result<(), E>,
    ) -> std::result::Result<(FileHead, usize), E> {
        self.read_with::<false, E>(id, offset, to, check)
    }

    /// As [`Store::read_checked`], of an object parts of whose pages may have places of their own.
    pub fn read_parts_checked<E: From<StoreError>>(
        &self,
        id: ObjectId,
        offset: FileOffset,
        to: UserBytesMut<'_>,
        check: impl Fn(&FileHead) -> std::result::Result<(), E>,
    ) -> std::result::Result<(FileHead, usize), E> {
        self.read_with::<true, E>(id, offset, to, check)
    }

    #[inline(always)]
    fn read_with<const PARTS: bool, E: From<StoreError>>(
        &self,
        id: ObjectId,
        offset: FileOffset,
        mut to: UserBytesMut<'_>,
        check: impl Fn(&FileHead) -> std::result::Result<(), E>,
    ) -> std::result::Result<(FileHead, usize), E> {
        self.read_stable_in(self.icore(id)?, id, |mapping_epoch| {
            let pages = pages_from(offset, to.len());
            let first = File::translate(self, id, mapping_epoch, pages)?;
            let file = File::at(self, id, first.onode);
            let head = file.head_of(first.mode, first.generation)?;
            check(&head)?;
            let below_end = head.size.saturating_sub(offset.0);
            let len = (to.len() as u64).min(below_end) as usize;
            let done = file.copy_out(mapping_epoch, first.run(), offset, to.slice(0..len))?;
            if PARTS {
                file.copy_parts(offset, to.slice(0..done))?;
            }
            Ok((head, done))
        })
    }
}

impl File<'_> {
    /// Copies bytes from `offset` on; `run` holds the first page.
    #[inline(always)]
    fn copy_out(
        &self,
        mapping_epoch: u64,
        mut run: PageRun,
        offset: FileOffset,
        mut to: UserBytesMut<'_>,
    ) -> Result<usize> {
        let mut done = 0;
        while done < to.len() {
            let at = offset.add(done as u64);
            if at.page() >= run.end() {
                let pages = pages_from(at, to.len() - done);
                run = File::translate(self.store, self.id, mapping_epoch, pages)?.run();
            }
            let skip = at.page() - run.page;
            let room = (run.count - skip) * UNIT_SIZE - at.in_page();
            let len = room.min((to.len() - done) as u64) as usize;
            let part = to.slice(done..done + len);
            let copied = if run.entry.is_written() {
                let unit = run.entry.advance(skip).unit();
                let from = unit.offset().add(at.in_page());
                self.store.volume().read_user(from, part)
            } else {
                zero(part)
            };
            match copied.map_err(copy_error) {
                Ok(()) => done += len,
                Err(StoreError::UserFault) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Replaces those parts of pages that lie in second units.
    fn copy_parts(&self, offset: FileOffset, mut to: UserBytesMut<'_>) -> Result<()> {
        let map = PartsMap::of_parts(self.store, self.id, self.onode);
        if to.is_empty() || map.known_root()?.entry.is_hole() {
            return Ok(());
        }
        let end = offset.0 + to.len() as u64;
        let mut at = offset.0;
        while at < end {
            let next = (at / PART_SIZE + 1) * PART_SIZE;
            let entry = map.entry(at / UNIT_SIZE)?;
            let part = at % UNIT_SIZE / PART_SIZE;
            if entry.parts_there() >> part & 1 != 0 {
                let from = entry.unit().offset().add(at % UNIT_SIZE);
                let start = (at - offset.0) as usize;
                let there = to.slice(start..(next.min(end) - offset.0) as usize);
                self.store
                    .volume()
                    .read_user(from, there)
                    .map_err(copy_error)?;
            }
            at = next;
        }
        Ok(())
    }
}

fn zero(mut part: UserBytesMut<'_>) -> std::result::Result<(), CopyError> {
    part.fill_zero().map_err(CopyError::from)
}
