//! Sharing units between objects.

use nacre_types::UNIT_SIZE;
use nacre_volume::Unfenced;

use super::{Change, pages_of, range_end};
use crate::block_map::layout::MapWord;
use crate::block_map::{Leaf, PageRun};
use crate::error::{Result, StoreError};
use crate::object::lock::ObjectGuard;
use crate::store::Store;

impl Store {
    /// Lets `to_offset..` of `to` share the units of `len` bytes at `from_offset` of `from`; copied
    /// when written later.
    ///
    /// Offsets are multiples of 4096, and so is `len` unless it ends at the source's EOF and
    /// nothing follows in the target. One guard may be given twice when the ranges do not overlap.
    /// Returns how many bytes are shared, and `Busy` when units may not be shared (a mapped object,
    /// too many owners): copy instead. After a crash in the middle, pages of the target hold their
    /// old bytes, zeros or the new bytes.
    pub fn clone_range(
        &self,
        from: &ObjectGuard<'_>,
        from_offset: u64,
        to: &ObjectGuard<'_>,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        let source = Change::begin(self, from)?;
        let target = Change::begin(self, to)?;
        if source.is_mapped() || target.is_mapped() {
            return Err(StoreError::Busy);
        }
        let sizes = (source.file.size()?, target.file.size()?);
        let len = len.min(sizes.0.saturating_sub(from_offset));
        let end = range_end(to_offset, len)?;
        check_range(from_offset, to_offset, len, sizes)?;
        if from.id() == to.id() && from_offset < end && to_offset < from_offset + len {
            return Err(StoreError::Invalid("the ranges overlap"));
        }
        if len == 0 {
            return Ok(0);
        }
        let old_size = sizes.1;
        target.clear_gap(old_size, to_offset)?;
        let first = to_offset / UNIT_SIZE;
        target.clear(first, pages_of(end))?;
        let mut linked = Unfenced::nothing();
        target.file.map.grow_to(pages_of(end) - 1, &mut linked)?;
        share_pages(
            &source,
            from_offset / UNIT_SIZE,
            &target,
            (first, pages_of(end)),
            &mut linked,
        )?;
        target.stamp();
        target.commit_size(old_size, old_size.max(end))?;
        Ok(len)
    }
}

/// Refuses ranges that cannot be shared unit by unit. `sizes` are the sizes of source and target.
fn check_range(from: u64, to: u64, len: u64, sizes: (u64, u64)) -> Result<()> {
    if !from.is_multiple_of(UNIT_SIZE) || !to.is_multiple_of(UNIT_SIZE) {
        return Err(StoreError::Invalid("only whole units can be shared"));
    }
    let whole = len.is_multiple_of(UNIT_SIZE);
    if !whole && (from + len != sizes.0 || to + len < sizes.1) {
        return Err(StoreError::Invalid(
            "a partial unit can be shared only at the end of both files",
        ));
    }
    Ok(())
}

/// Shares the source's pages from `first` on as the target's empty pages `pages.0..pages.1`.
fn share_pages(
    source: &Change<'_>,
    first: u64,
    target: &Change<'_>,
    pages: (u64, u64),
    linked: &mut Unfenced,
) -> Result<()> {
    let mut page = pages.0;
    while page < pages.1 {
        let from = first + (page - pages.0);
        let found = source.file.map.run_at(from, from + (pages.1 - page))?;
        if !found.entry.is_written() {
            page += found.count;
            continue;
        }
        let leaf = target.file.map.make_leaf(page, linked)?;
        let count = found.count.min(leaf.end() - page);
        let shown = share_run(source, PageRun { count, ..found }, target, (leaf, page))?;
        target.settle(linked.take().and(shown))?;
        page += count;
    }
    Ok(())
}

/// Marks the source's words first, durably: a unit with two owners always says so in both. Those of
/// the target are flushed.
fn share_run(
    source: &Change<'_>,
    run: PageRun,
    target: &Change<'_>,
    to: (Leaf, u64),
) -> Result<Unfenced> {
    let alloc = target.file.store.allocator();
    let unit = run.entry.unit();
    let shared = MapWord::shared(unit);
    if run.entry != shared {
        let mut linked = Unfenced::nothing();
        let leaf = source.file.map.make_leaf(run.page, &mut linked)?;
        let marked = PageRun {
            entry: shared,
            ..run
        };
        source.settle(linked.and(source.file.map.set_run(leaf, marked)))?;
    }
    if !alloc.share(unit, run.count) {
        return Err(StoreError::Busy);
    }
    let copy = PageRun {
        page: to.1,
        count: run.count,
        entry: shared,
    };
    target.count(run.count, 0);
    Ok(target.file.map.set_run(to.0, copy))
}
