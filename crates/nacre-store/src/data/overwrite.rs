//! Overwriting in place: the path of most writes of databases, and of appends within the last page.

use nacre_types::{FileOffset, StoreKind, UNIT_SIZE};
use nacre_volume::{Unfenced, UserBytes};

use super::{Change, File, copy_error, pages_from};
use crate::error::{Result, StoreError};
use crate::map::PageRun;

impl Change<'_> {
    /// Stores bytes where written units of the object's own are mapped, from `offset` on and as far as they reach; `run`
    /// holds the first page.
    ///
    /// No word of the map changes. The bytes are flushed but not fenced. Fewer than `from` has also when the program's
    /// memory faults after some; then the next bytes fault again.
    #[inline]
    pub(super) fn overwrite(
        &self,
        mut run: PageRun,
        offset: FileOffset,
        from: UserBytes<'_>,
    ) -> Result<(usize, Unfenced)> {
        let (store, id) = (self.file.store, self.file.id);
        let mut unfenced = Unfenced::nothing();
        let mut done = 0;
        while done < from.len() {
            let at = offset.add(done as u64);
            if at.page() >= run.end() {
                let pages = pages_from(at, from.len() - done);
                run = File::translate(store, id, self.layout(), pages)?.run;
            }
            let (own, others) = self.split_shared(run.from(at.page()));
            if !own.entry.is_written() || others {
                break;
            }
            let room = own.count * UNIT_SIZE - at.in_page();
            let len = room.min((from.len() - done) as u64) as usize;
            let to = own.entry.unit().offset().add(at.in_page());
            let bytes = from.slice(done..done + len);
            let stored = store.volume().write_user(to, bytes, StoreKind::Data);
            match stored.map_err(copy_error) {
                Ok(stored) => unfenced.join(stored),
                Err(StoreError::UserFault) if done > 0 => break,
                Err(error) => return Err(error),
            }
            done += len;
        }
        Ok((done, unfenced))
    }
}
