//! Contents of one object move to other units: to a device behind (D68), or to another one of those
//! over which data is spread (D63).
//!
//! A move is no transaction: both places hold the same bytes, so any mixture of old and new words
//! is right after a crash. The new units are written and durable before a word names them. Nobody
//! stores to those behind: their words say *shared*, and what lies behind must be left.

use std::sync::atomic::Ordering::Relaxed;

use nacre_session::step;
use nacre_types::{ObjectId, StoreKind, UNIT_SIZE, UnitNo, VolumeOffset};
use nacre_volume::Unfenced;

use super::{Change, File, copy_error, pages_of};
use crate::alloc::Run;
use crate::block_map::PageRun;
use crate::block_map::layout::MapWord;
use crate::data::map::PartsMap;
use crate::error::{Result, StoreError};
use crate::object::lock::ObjectGuard;
use crate::store::Store;

/// Units copied at once.
const PIECE: u64 = 64;

/// Contents of an object that were copied to other units, which nothing names yet. Nobody else
/// changes the object meanwhile.
///
/// If it is dropped the contents stay where they are. Who gets the units next writes all of them
/// again, so it does not matter what the device has there.
pub(crate) struct Leaving<'s> {
    store: &'s Store,
    guard: ObjectGuard<'s>,
    runs: Vec<(PageRun, Run)>,
    /// What was stored to the new units.
    pub(crate) stored: Unfenced,
}

/// What becomes of contents that can move.
pub(crate) enum Fate {
    /// So many of the first pages stay.
    Stays(u64),
    /// The first pages go to these units, which nobody else has.
    Goes(Run),
    /// Nothing from here on is moved now.
    Ends,
}

/// What was copied of an object.
pub(crate) struct Copied<'s> {
    /// `None`: nothing.
    pub(crate) leaving: Option<Leaving<'s>>,
    /// The page from which on the rest can move. `None`: there is none.
    pub(crate) next: Option<u64>,
}

impl Leaving<'_> {
    /// How many units.
    pub(crate) fn units(&self) -> u64 {
        self.runs.iter().map(|(_, to)| to.count).sum()
    }

    /// Whether any of it goes behind, or to the front.
    pub(crate) fn goes(&self, behind: bool) -> bool {
        let alloc = self.store.allocator();
        let mut goals = self.runs.iter().map(|(_, to)| to.start);
        goals.any(|to| alloc.is_behind(to) == behind)
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        for (_, to) in &self.runs {
            self.store.allocator().free(to.start, to.count);
        }
    }
}

impl Store {
    /// Copies bytes where a unit's contents lie; a device that fails there fails this alone.
    pub(crate) fn read_contents(&self, at: VolumeOffset, to: &mut [u8]) -> Result<()> {
        if !self.allocator().fails_alone(at.unit()) {
            self.volume().read(at, to);
            return Ok(());
        }
        self.volume().read_user(at, to.into()).map_err(copy_error)
    }

    /// Fails if contents are to be changed in place that were on a disk which is lost.
    pub(super) fn refuse_lost(&self, unit: UnitNo) -> Result<()> {
        match self.allocator().is_lost(unit) {
            true => Err(StoreError::MediaFault),
            false => Ok(()),
        }
    }

    /// Copies contents of an object from a page on to where `choose` says. `None`: somebody uses
    /// the object, or has it mapped. Fails if a device behind does.
    pub(crate) fn copy_out(
        &self,
        id: ObjectId,
        from: u64,
        choose: &mut dyn FnMut(PageRun) -> Fate,
    ) -> Result<Option<Copied<'_>>> {
        let icore = self.icore(id)?;
        let Some(guard) = self.try_lock_fast(icore, id) else {
            return Ok(None);
        };
        if icore.mapped.load(Relaxed) > 0 {
            return Ok(None);
        }
        let mut leaving = Leaving {
            store: self,
            guard,
            runs: Vec::new(),
            stored: Unfenced::nothing(),
        };
        let (mut page, mut next) = (from, None);
        while let Some(run) = self.next_movable(id, page) {
            page = match choose(run) {
                Fate::Stays(pages) => run.page + pages.max(1),
                Fate::Goes(to) => match self.copy_run(run, to, &mut leaving.stored)? {
                    // What cannot be read stays.
                    0 => run.page + 1,
                    count => {
                        let to = Run { count, ..to };
                        leaving.runs.push((PageRun { count, ..run }, to));
                        run.page + count
                    }
                },
                Fate::Ends => {
                    next = Some(run.page);
                    break;
                }
            };
        }
        let leaving = Some(leaving).filter(|leaving| !leaving.runs.is_empty());
        Ok(Some(Copied { leaving, next }))
    }

    /// Units of an object that can move, as far as they are found while others may change it.
    pub(crate) fn for_each_movable(
        &self,
        id: ObjectId,
        visit: &mut dyn FnMut(PageRun),
    ) -> Result<()> {
        let mut page = 0;
        while let Some(run) = self.read_stable(id, || Ok(self.next_movable(id, page)))? {
            page = run.end();
            visit(run);
        }
        Ok(())
    }

    /// The next contents from a page on that can move. What is damaged stays.
    fn next_movable(&self, id: ObjectId, from: u64) -> Option<PageRun> {
        let file = File::open(self, id).ok()?;
        let (mut page, end) = (from, pages_of(file.size().ok()?));
        while page < end {
            let run = file.map.run_at(page, end.min(page + PIECE)).ok()?;
            match file.movable(run) {
                Some(run) => return Some(run),
                None => page = run.end().max(page + 1),
            }
        }
        None
    }

    /// How many of the first pages of a run were copied to units; the others are free again. Where
    /// not all can be read it is one, or none.
    fn copy_run(&self, run: PageRun, to: Run, stored: &mut Unfenced) -> Result<u64> {
        let mut copied = Ok(0);
        for count in [to.count, 1] {
            let first = Run { count, ..to };
            match self.copy_units(run.entry.unit(), first) {
                Ok(None) => continue,
                Ok(Some(done)) => {
                    stored.join(done);
                    copied = Ok(count);
                }
                Err(error) => copied = Err(error),
            }
            break;
        }
        let kept = copied.as_ref().copied().unwrap_or(0);
        self.allocator().free(to.start.add(kept), to.count - kept);
        copied
    }

    /// What was copied to the front, or behind, is durable on return.
    pub(crate) fn settle_copied(
        &self,
        mut stored: Unfenced,
        (in_front, behind): (bool, bool),
    ) -> Result<()> {
        if behind {
            self.volume().settle_behind(stored.take())?;
        }
        match in_front {
            true => Ok(self.volume().fence(stored)?),
            false => Ok(()),
        }
    }

    /// Stores what units hold to others, of which nothing means anything yet.
    pub(crate) fn store_copy(&self, to: UnitNo, bytes: &[u8], kind: StoreKind) -> Result<Unfenced> {
        Ok(match self.allocator().is_behind(to) {
            true => self.volume().write_behind(to.offset(), bytes)?,
            false => self.volume().write(to.offset(), bytes, kind),
        })
    }

    /// `None`: they cannot be read.
    fn copy_units(&self, from: UnitNo, to: Run) -> Result<Option<Unfenced>> {
        let mut bytes = vec![0; (to.count * UNIT_SIZE) as usize];
        let read = self
            .volume()
            .read_user(from.offset(), bytes[..].as_mut().into());
        if read.is_err() {
            return Ok(None);
        }
        self.store_copy(to.start, &bytes, StoreKind::Data).map(Some)
    }

    fn new_word(&self, unit: UnitNo) -> MapWord {
        match self.allocator().is_behind(unit) {
            true => MapWord::shared(unit),
            false => MapWord::written(unit),
        }
    }

    /// From now on the contents lie where they were copied to and are settled; what was `flushed`
    /// before is durable before units come free. Answers how many do.
    pub(crate) fn leave(&self, mut leaving: Leaving<'_>, flushed: Unfenced) -> Result<u64> {
        let runs = std::mem::take(&mut leaving.runs);
        let change = Change::begin(self, &leaving.guard)?;
        let mut named = flushed;
        for (run, to) in &runs {
            let leaf = change.file.map.make_leaf(run.page, &mut named)?;
            let entry = self.new_word(to.start);
            named.join(change.file.map.set_run(leaf, PageRun { entry, ..*run }));
        }
        step::point();
        change.settle(named)?;
        for (run, _) in &runs {
            change.free(Run {
                start: run.entry.unit(),
                count: run.count,
            });
        }
        Ok(runs.iter().map(|(run, _)| run.count).sum())
    }
}

impl File<'_> {
    /// The first pages of a run that only this object owns, each in one unit that is not lost, and
    /// that all lie in front or all behind.
    fn movable(&self, run: PageRun) -> Option<PageRun> {
        let alloc = self.store.allocator();
        let parts = PartsMap::of_parts(self.store, self.id, self.onode);
        let is_own = |step: &u64| {
            let entry = run.entry.advance(*step);
            let has_one_unit = parts.entry(run.page + step).is_ok_and(MapWord::is_hole);
            let is_sole = !entry.may_be_shared() || alloc.extra(entry.unit()) == 0;
            has_one_unit && is_sole && !alloc.is_lost(entry.unit())
        };
        let steps = if run.entry.is_written() { run.count } else { 0 };
        let first = (0..steps).find(is_own)?;
        let side = |step: u64| alloc.is_behind(run.entry.advance(step).unit());
        let is_alike = |step: &u64| is_own(step) && side(*step) == side(first);
        Some(PageRun {
            page: run.page + first,
            count: (first..steps).take_while(is_alike).count() as u64,
            entry: run.entry.advance(first),
        })
    }
}
