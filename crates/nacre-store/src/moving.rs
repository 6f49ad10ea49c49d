//! Contents of several objects move: what was copied becomes durable together.

use nacre_types::{ObjectId, UNIT_SIZE};
use nacre_volume::Unfenced;

use crate::block_map::PageRun;
use crate::data::moving::{Fate, Leaving};
use crate::error::Result;
use crate::store::Store;

/// Units that are settled together.
pub(crate) const BATCH_UNITS: u64 = (16 << 20) / UNIT_SIZE;
/// Objects that are locked together.
const BATCH_OBJECTS: usize = 64;

/// Objects whose contents move, with what was copied of them and what has moved.
pub(crate) struct Moving<'s> {
    store: &'s Store,
    batch: Vec<Leaving<'s>>,
    /// Units that were copied and are not named yet.
    waiting: u64,
    /// Units whose contents have moved.
    pub(crate) moved: u64,
}

/// What came of an object.
pub(crate) enum Taken {
    /// Somebody uses it or has it mapped.
    Busy,
    /// None of its contents were copied, and there is no rest.
    Nothing,
    /// Something was copied, or could not be now; the rest, from that page on, may go next.
    Some(Option<u64>),
}

impl<'s> Moving<'s> {
    pub(crate) fn new(store: &'s Store) -> Self {
        Self {
            store,
            batch: Vec::new(),
            waiting: 0,
            moved: 0,
        }
    }

    /// Units that were copied or have moved.
    pub(crate) fn units(&self) -> u64 {
        self.moved + self.waiting
    }

    /// As many units may still be copied before all of them are settled; at least one.
    pub(crate) fn room(&self) -> u64 {
        BATCH_UNITS - self.waiting
    }

    /// Copies contents of an object from a page on to where `choose` says.
    pub(crate) fn take(
        &mut self,
        id: ObjectId,
        from: u64,
        choose: &mut dyn FnMut(PageRun) -> Fate,
    ) -> Result<Taken> {
        let Some(copied) = self.store.copy_out(id, from, choose)? else {
            return Ok(Taken::Busy);
        };
        let any = copied.leaving.is_some();
        if let Some(leaving) = copied.leaving {
            self.waiting += leaving.units();
            self.batch.push(leaving);
        }
        let is_full = self.waiting >= BATCH_UNITS || self.batch.len() >= BATCH_OBJECTS;
        if is_full || copied.next.is_some() {
            self.settle()?;
        }
        Ok(match any || copied.next.is_some() {
            true => Taken::Some(copied.next),
            false => Taken::Nothing,
        })
    }

    /// What was copied is durable, and is where it was copied to from now on.
    pub(crate) fn settle(&mut self) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let stores = self.batch.iter_mut().map(|one| one.stored.take());
        let stores = stores.reduce(Unfenced::and).unwrap_or(Unfenced::nothing());
        let goes = |behind| self.batch.iter().any(|one| one.goes(behind));
        self.store
            .settle_copied(stores, (goes(false), goes(true)))?;
        self.waiting = 0;
        // No record on what is locked may be replayed once its units are free (D71).
        let (tails, mut flushed) = self.store.lagging_tails()?;
        for leaving in self.batch.drain(..) {
            self.moved += self.store.leave(leaving, flushed.take())?;
        }
        tails.settled(self.store);
        Ok(())
    }
}
