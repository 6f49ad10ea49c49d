//! What moves behind, and when: what nobody has used for longest, when the front gets full (D68).

use std::sync::atomic::Ordering::Relaxed;

use nacre_types::{ObjectId, UnitNo};

use crate::alloc::Allocator;
use crate::block_map::PageRun;
use crate::data::moving::Fate;
use crate::error::Result;
use crate::layout::{ONODE_ATIME_AT, ONODE_CTIME_AT, ONODE_MAPPED_AT};
use crate::moving::{BATCH_UNITS, Moving, Taken};
use crate::recovery::scan::for_each_object;
use crate::store::Store;

/// Of so many units in front one is to be free.
const FREE_SHARE: u64 = 8;
/// How often room is made for a block, which needs neighbours.
const TRIES: usize = 8;

/// An object by the time of its last use, as far as it is noted.
type Used = (u64, ObjectId);

impl Store {
    /// As long as the front is fuller than it should be, moves what is cold behind: a batch for
    /// each call. Answers how many units came free. Somebody beside the programs calls it now and
    /// then.
    pub fn keep_room(&self) -> Result<u64> {
        match self.wanted_in_front() {
            0 => Ok(0),
            wanted => match self.gather_parts(wanted.min(BATCH_UNITS))? {
                0 => self.move_cold(wanted.min(BATCH_UNITS)),
                gathered => Ok(gathered),
            },
        }
    }

    /// Whether the front is fuller than it should be, and there is a device behind.
    pub fn is_front_full(&self) -> bool {
        self.wanted_in_front() > 0
    }

    fn wanted_in_front(&self) -> u64 {
        let free = self.volume.front_units() / FREE_SHARE;
        match self.volume.has_behind() {
            true => free.saturating_sub(self.allocator().free_units()),
            false => 0,
        }
    }

    /// Room is made in front for who has found none and holds no lock; whether anything moved.
    #[cold]
    pub fn make_room(&self) -> Result<bool> {
        Ok(self.gather_parts(BATCH_UNITS)? > 0
            || self.volume.has_behind() && self.move_cold(BATCH_UNITS)? > 0)
    }

    /// What `take` takes, after room was made for it; for who has found none.
    pub(crate) fn take_moving<T>(
        &self,
        take: impl Fn(Allocator<'_>) -> Option<T>,
    ) -> Result<Option<T>> {
        if !self.volume.has_behind() {
            return Ok(None);
        }
        loop {
            let moved = self.move_cold(BATCH_UNITS)?;
            let taken = take(self.allocator());
            if taken.is_some() || moved == 0 {
                return Ok(taken);
            }
        }
    }

    /// A block, for which things move behind if there is none.
    pub(crate) fn take_block_moving(&self) -> Result<Option<UnitNo>> {
        let take = || self.allocator().take_block();
        let mut taken = take();
        for _ in 0..TRIES {
            let needs_room = taken.is_none() && self.volume.has_behind();
            if !needs_room || self.move_cold(BATCH_UNITS)? == 0 {
                break;
            }
            taken = take();
        }
        Ok(taken)
    }

    /// Moves what was not used for longest until so many units came free, or nothing else can
    /// move. Objects that somebody uses or maps stay. The caller may hold locks of objects.
    pub fn move_cold(&self, wanted: u64) -> Result<u64> {
        if self.allocator().free_behind() == 0 {
            return Ok(0);
        }
        let _alone = self.lock_owned(&self.session.shared().behind_lock)?;
        let horizon = &self.session.shared().behind.stripe_hint;
        let before = horizon.load(Relaxed);
        let moved = self.move_used_since(before, wanted)?;
        if moved > 0 || before == 0 {
            return Ok(moved);
        }
        // Some may have been passed over while they were in use.
        self.move_used_since(0, wanted)
    }

    fn move_used_since(&self, since: u64, wanted: u64) -> Result<u64> {
        let mut moving = Moving::new(self);
        for (used, id) in self.in_order_of_use(since) {
            if moving.units() >= wanted || self.allocator().free_behind() == 0 {
                break;
            }
            if self.move_behind(&mut moving, id, wanted)? {
                let horizon = &self.session.shared().behind.stripe_hint;
                horizon.store(used, Relaxed);
            }
        }
        moving.settle()?;
        Ok(moving.moved)
    }

    /// Moves as much of an object as is wanted; whether any can.
    fn move_behind(&self, moving: &mut Moving<'_>, id: ObjectId, wanted: u64) -> Result<bool> {
        let (mut any, mut from) = (false, 0);
        while moving.units() < wanted {
            let mut room = moving.room();
            let mut behind = |run: PageRun| {
                if self.allocator().is_behind(run.entry.unit()) {
                    return Fate::Stays(run.count);
                }
                let want = run.count.min(room);
                let taken = (want > 0).then(|| self.allocator().take_behind(want));
                let Some(to) = taken.flatten() else {
                    return Fate::Ends;
                };
                room -= to.count;
                Fate::Goes(to)
            };
            let before = moving.units();
            let taken = moving.take(id, from, &mut behind)?;
            let copied = moving.units() > before;
            any |= copied;
            match taken {
                Taken::Some(Some(next)) if copied => from = next,
                _ => break,
            }
        }
        Ok(any)
    }

    /// Objects that have contents and were used since then, those first that were not for longest.
    fn in_order_of_use(&self, since: u64) -> Vec<Used> {
        let mut found = Vec::new();
        for_each_object(self, &mut |id, onode| {
            let word = |at: u64| self.volume.load_u64(onode.add(at));
            let used = word(ONODE_CTIME_AT).max(word(ONODE_ATIME_AT));
            if word(ONODE_MAPPED_AT) > 0 && used >= since {
                found.push((used, id));
            }
        });
        found.sort_unstable();
        found
    }
}
