//! Contents that are to be on all disks, where others are on one (D80): they move when that is
//! asked for.

use nacre_session::pause;
use nacre_types::{ObjectId, UnitNo};

use crate::alloc::Allocator;
use crate::block_map::PageRun;
use crate::data::map::{Map, Met};
use crate::data::moving::Fate;
use crate::error::{Result, StoreError};
use crate::moving::{Moving, Taken};
use crate::store::Store;

/// How often it is tried again what somebody uses at the moment: for a second.
const PATIENCE: usize = 100;

/// Decides about contents, run by run.
struct Chooser<'c> {
    alloc: Allocator<'c>,
    kept: bool,
    room: u64,
    goal: Option<UnitNo>,
    is_full: bool,
}

impl Chooser<'_> {
    fn choose(&mut self, run: PageRun) -> Fate {
        let (suits, alike) = self.alloc.suits(run.entry.unit(), self.kept);
        let count = run.count.min(alike);
        if suits {
            return Fate::Stays(count);
        }
        let want = count.min(self.room);
        if want == 0 {
            return Fate::Ends;
        }
        let Some(taken) = self.alloc.take_for(self.goal, want, || self.kept) else {
            self.is_full = true;
            return Fate::Ends;
        };
        self.goal = Some(taken.end());
        self.room -= taken.count;
        Fate::Goes(taken)
    }
}

impl Store {
    /// Whether contents can be on all disks, or on one.
    pub fn has_common(&self) -> bool {
        self.volume.common_units() > 0
    }

    /// Moves contents of an object to where all disks hold them (`kept`), or one does. Fails if
    /// they have no room there, or if some cannot move: somebody has them mapped, shares them, or
    /// they are reserved and not written.
    pub fn move_kept(&self, id: ObjectId, kept: bool) -> Result<()> {
        let mut moving = Moving::new(self);
        let mut chooser = Chooser {
            alloc: self.allocator(),
            kept,
            room: 0,
            goal: None,
            is_full: false,
        };
        let (mut from, mut patience) = (0, PATIENCE);
        loop {
            chooser.room = moving.room();
            let room = chooser.room;
            match moving.take(id, from, &mut |run| chooser.choose(run))? {
                _ if chooser.is_full => return Err(StoreError::NoSpace),
                // What cannot be read stays.
                Taken::Some(Some(next)) => from = next + u64::from(chooser.room == room),
                Taken::Busy if patience > 0 => {
                    patience -= 1;
                    pause();
                }
                Taken::Busy => return Err(StoreError::Busy),
                Taken::Some(None) | Taken::Nothing => break,
            }
        }
        moving.settle()?;
        match self.is_all(id, kept)? {
            true => Ok(()),
            false => Err(StoreError::Busy),
        }
    }

    /// Whether all contents of an object are there.
    fn is_all(&self, id: ObjectId, kept: bool) -> Result<bool> {
        let (alloc, onode) = (self.allocator(), self.onode_at(id)?);
        let _guard = self.lock(id)?;
        let mut all = true;
        Map::new(self, id, onode).walk(&mut |met| {
            if let Met::Page(_, entry) = met {
                all &= alloc.suits(entry.unit(), kept).0;
            }
            true
        });
        Ok(all)
    }
}
