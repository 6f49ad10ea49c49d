//! Chunks for shared mappings on devices that map 2 MiB pages only.
//!
//! A chunk is what one lowest node of the map holds: 512 pages from a multiple of 512 on. It is
//! aligned when its units are 512 neighbours from a multiple of 512 on, which nobody else owns.
//! Once it is, it stays so while the object is mapped, as units of mapped objects are not replaced.

use nacre_types::{StoreKind, UNIT_SIZE};
use nacre_volume::Unfenced;

use super::{Change, pages_of};
use crate::alloc::{GROUP_UNITS, Run};
use crate::block_map::layout::{FANOUT, MapWord};
use crate::block_map::{Leaf, PageRun};
use crate::error::Result;

const _: () = assert!(GROUP_UNITS == FANOUT);

impl Change<'_> {
    /// The chunk that begins at `page`, a multiple of 512, after it was moved to aligned units if
    /// it was not there.
    ///
    /// Every page of it then has a written unit, zeroed where the object had nothing. A crash in
    /// the middle leaves each page at its old unit or at the new one, which hold the same bytes.
    pub(super) fn aligned_chunk(&self, page: u64) -> Result<PageRun> {
        let mut linked = Unfenced::nothing();
        self.file.map.grow_to(page + FANOUT - 1, &mut linked)?;
        let (leaf, run) = self.leaf_run(page, page + FANOUT, &mut linked)?;
        if run.count == FANOUT && self.is_aligned(run) {
            return Ok(run);
        }
        let fresh = self.file.store.take_space(|alloc| alloc.take_group())?;
        let old = self.runs_of(leaf, page)?;
        let copied = self.fill_chunk(&old, fresh);
        if copied.is_err() {
            self.free(fresh);
        }
        copied?;
        self.show_chunk(leaf, &old, fresh, linked)
    }

    fn is_aligned(&self, run: PageRun) -> bool {
        run.entry.is_written()
            && run.entry.unit().0.is_multiple_of(FANOUT)
            && self.split_shared(run) == (run, false)
    }

    /// Gives units that nobody reaches yet what the pages of a chunk hold, durably.
    fn fill_chunk(&self, old: &[PageRun], fresh: Run) -> Result<()> {
        let last = pages_of(self.file.size()?);
        let mut unfenced = Unfenced::nothing();
        let mut to = fresh.start;
        for run in old {
            let kept = if run.entry.is_written() {
                last.saturating_sub(run.page).min(run.count)
            } else {
                0
            };
            unfenced = unfenced.and(self.copy_pages(*run, kept, to)?);
            to = to.add(run.count);
        }
        self.settle(unfenced)
    }

    /// Maps the units that were filled, and frees those that hold the same.
    fn show_chunk(
        &self,
        leaf: Leaf,
        old: &[PageRun],
        fresh: Run,
        linked: Unfenced,
    ) -> Result<PageRun> {
        let moved = PageRun {
            page: leaf.first_page(),
            count: FANOUT,
            entry: MapWord::written(fresh.start),
        };
        self.hide_zeros()?;
        self.settle(linked.and(self.file.map.set_run(leaf, moved)))?;
        for run in old.iter().filter(|run| !run.entry.is_hole()) {
            self.free(Run {
                start: run.entry.unit(),
                count: run.count,
            });
        }
        let holes = old.iter().filter(|run| run.entry.is_hole());
        self.count(holes.map(|run| run.count).sum(), 0);
        Ok(moved)
    }

    fn runs_of(&self, leaf: Leaf, page: u64) -> Result<Vec<PageRun>> {
        let mut runs = Vec::new();
        let mut at = page;
        while at < page + FANOUT {
            let run = self.file.map.run_in(leaf, at, page + FANOUT)?;
            at = run.end();
            runs.push(run);
        }
        Ok(runs)
    }

    /// Copies the first `kept` pages of a run to units from `to` on and zeroes those for the rest
    /// of it.
    fn copy_pages(&self, run: PageRun, kept: u64, to: nacre_types::UnitNo) -> Result<Unfenced> {
        let volume = self.file.store.volume();
        let mut buffer = [0; UNIT_SIZE as usize];
        let rest = (run.count - kept) * UNIT_SIZE;
        let mut unfenced = volume.zero(to.add(kept).offset(), rest, StoreKind::Data);
        for step in 0..kept {
            let from = run.entry.unit().add(step).offset();
            self.file.store.read_contents(from, &mut buffer)?;
            let copied = volume.write(to.add(step).offset(), &buffer, StoreKind::Data);
            unfenced = unfenced.and(copied);
        }
        Ok(unfenced)
    }
}
