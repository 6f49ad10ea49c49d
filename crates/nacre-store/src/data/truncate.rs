//! Moving EOF.

use nacre_types::UNIT_SIZE;
use nacre_volume::Unfenced;

use super::{Change, MAX_FILE_SIZE, page_start, pages_of};
use crate::error::{Result, StoreError};
use crate::object::lock::ObjectGuard;
use crate::store::Store;

impl Store {
    /// Sets the size in bytes. New bytes are zeros; what lay beyond a smaller size is freed.
    ///
    /// All-or-nothing in every mode: the size word commits it.
    pub fn truncate(&self, guard: &ObjectGuard<'_>, size: u64) -> Result<()> {
        if size > MAX_FILE_SIZE {
            return Err(StoreError::FileTooBig);
        }
        let change = Change::begin(self, guard)?;
        let old = change.file.size()?;
        change.clear_gap(old, size)?;
        change.stamp();
        change.commit_size(old, size)?;
        if size > old {
            Ok(())
        } else {
            change.drop_beyond(size)
        }
    }

    /// To be called when the last mapping of an object is gone: drops the units that were kept
    /// beyond EOF.
    pub fn after_unmap(&self, guard: &ObjectGuard<'_>) -> Result<()> {
        let change = Change::begin(self, guard)?;
        if change.is_mapped() {
            return Ok(());
        }
        let mut page = pages_of(change.file.size()?);
        let end = change.file.map.reach()?;
        while page < end {
            let run = change.file.map.run_at(page, end)?;
            if run.entry.is_written() {
                change.clear(run.page, run.end())?;
            }
            page = run.end();
        }
        Ok(())
    }
}

impl Change<'_> {
    /// Moves EOF durably.
    pub(super) fn commit_size(&self, old: u64, size: u64) -> Result<()> {
        if size == old {
            return Ok(());
        }
        let stored: Unfenced = self.store_size(size);
        self.settle(stored)
    }

    /// Frees what lies wholly beyond EOF. While the object is mapped, units stay and mappers see
    /// zeros in the last page.
    fn drop_beyond(&self, size: u64) -> Result<()> {
        if self.is_mapped() {
            let last = pages_of(size);
            return if size.is_multiple_of(UNIT_SIZE) {
                Ok(())
            } else {
                self.zero_in_page(size, page_start(last))
            };
        }
        self.clear(pages_of(size), u64::MAX)
    }
}
