//! Reading: optimistic, straight from the medium into the program's memory.

use nacre_types::{FileOffset, ObjectId, UNIT_SIZE};
use nacre_volume::{CopyError, UserBytesMut};

use super::{File, FileHead, copy_error, pages_from};
use crate::block_map::PageRun;
use crate::error::{Result, StoreError};
use crate::store::Store;

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
}

fn zero(mut part: UserBytesMut<'_>) -> std::result::Result<(), CopyError> {
    part.fill_zero().map_err(CopyError::from)
}
