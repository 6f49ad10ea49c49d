//! A device leaves the pool (D70): first contents move while others use the pool, then, alone, all
//! the rest.

use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::atomic::Ordering::{Relaxed, Release};

use nacre_types::{
    BLOCK_SIZE, ObjectId, StoreKind, UNIT_SIZE, UNITS_PER_BLOCK, UnitNo, Uuid, VolumeOffset,
};
use nacre_volume::{Room, Volume};

use crate::balance::RebalanceProgress;
use crate::block_map::PageRun;
use crate::data::map::{Map, Met, PartsMap};
use crate::data::moving::Fate;
use crate::data::relocate::Relocation;
use crate::error::{Result, StoreError};
use crate::layout::Tree;
use crate::moving::{Moving, Taken};
use crate::recovery::image::give_all_to_disk;
use crate::recovery::scan::{for_each_object, listed_blocks, walk_tree};
use crate::store::Store;
use crate::tree::leave::keys_that_lead;

/// How often it is looked again for what somebody used at the moment.
const ROUNDS: usize = 4;

/// What came of moving contents away.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Drained {
    /// Bytes that lie on other devices now.
    pub moved: u64,
    /// Files that programs use all the time, or have mapped.
    pub in_use: u64,
    /// Whether the other devices are full.
    pub is_full: bool,
}

/// What lies on some units, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LeftThere {
    /// Of contents of files and objects.
    pub contents: u64,
    /// Of what the pool keeps for itself.
    pub metadata: u64,
}

impl LeftThere {
    /// Whether it is nothing.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    fn and(self, other: Self) -> Self {
        Self {
            contents: self.contents + other.contents,
            metadata: self.metadata + other.metadata,
        }
    }
}

/// Decides about contents, run by run.
struct Chooser<'c> {
    store: &'c Store,
    among: &'c Range<u64>,
    room: u64,
    goal: Option<UnitNo>,
    is_full: bool,
}

impl Chooser<'_> {
    fn choose(&mut self, run: PageRun) -> Fate {
        let first = run.entry.unit().0;
        if !self.among.contains(&first) {
            let before = self.among.start.saturating_sub(first);
            let stays = if before > 0 {
                run.count.min(before)
            } else {
                run.count
            };
            return Fate::Stays(stays);
        }
        let want = run.count.min(self.among.end - first).min(self.room);
        if want == 0 {
            return Fate::Ends;
        }
        let alloc = self.store.allocator();
        let like = || alloc.take_like(UnitNo(first), self.goal, want);
        let taken = match self.store.is_front_full() {
            true => alloc.take_behind(want).or_else(like),
            false => like(),
        };
        let Some(taken) = taken else {
            self.is_full = true;
            return Fate::Ends;
        };
        if self.among.contains(&taken.start.0) {
            // Somebody freed it the moment before: it stays taken.
            return Fate::Ends;
        }
        self.goal = Some(taken.end()).filter(|goal| !alloc.is_behind(*goal));
        self.room -= taken.count;
        Fate::Goes(taken)
    }
}

impl Store {
    /// From now on nobody of those who use the pool gets units of a device that leaves.
    pub fn close_device(&self, units: Range<u64>) {
        let shared = self.session.shared();
        let all = self.closing_with(&units);
        shared.leaving_from.store(all.start, Release);
        shared.leaving_to.store(all.end, Release);
        self.volume.now_closes();
        self.close_units(&units);
        self.allocator().recount();
    }

    /// From the first to the last unit of devices that are leaving or lost. What becomes free
    /// between them stays taken, too, as long as the session lasts.
    fn closing_with(&self, units: &Range<u64>) -> Range<u64> {
        let known = Some(self.leaving_units()).filter(|known| !known.is_empty());
        known.map_or(units.clone(), |known| {
            known.start.min(units.start)..known.end.max(units.end)
        })
    }

    /// Nobody gets units that are marked so.
    pub(crate) fn close_units(&self, units: &Range<u64>) {
        let end = units.end.min(self.units);
        self.allocator()
            .mark_used(UnitNo(units.start), end.saturating_sub(units.start));
    }

    /// Units of a device that is leaving.
    pub(crate) fn leaving_units(&self) -> Range<u64> {
        let shared = self.session.shared();
        shared.leaving_from.load(Relaxed)..shared.leaving_to.load(Relaxed)
    }

    /// Whether a device is leaving: its units are marked, so no saved bitmap may tell of them.
    pub(crate) fn is_leaving(&self) -> bool {
        self.session.shared().leaving_to.load(Relaxed) != 0
    }

    /// Bytes that are in use on a device, and that are free on all others.
    pub fn room_to_leave(&self, units: &Range<u64>) -> (u64, u64) {
        let alloc = self.allocator();
        let free_there = alloc.count_free_among(units.clone());
        let used = (units.end - units.start).saturating_sub(free_there);
        let free = match alloc.common() {
            0 => alloc.count_free_among(0..self.units),
            _ => alloc.count_free_for(false),
        };
        let free = free.saturating_sub(free_there);
        (used * UNIT_SIZE, free * UNIT_SIZE)
    }

    /// As many bytes must be free elsewhere beside what is in use on a device, as blocks need
    /// neighbours.
    pub fn blocks_to_leave(&self, units: &Range<u64>) -> u64 {
        let blocks = listed_blocks(self).filter_map(|(_, block)| block.ok());
        let there = blocks.filter(|block| units.contains(&block.0)).count() as u64;
        let header = u64::from(units.start == 0 || there > 0);
        (header * UNITS_PER_BLOCK + self.volume.journal_on(units)) * UNIT_SIZE
    }

    /// Moves contents off some units while others use the pool. What is mapped, shared or not
    /// written stays. `told` hears how far it is, and may break off.
    pub fn drain_device(
        &self,
        units: &Range<u64>,
        told: &mut dyn FnMut(RebalanceProgress) -> ControlFlow<()>,
    ) -> Result<Drained> {
        let total = self.left_on(units).contents;
        let mut done = Drained::default();
        for _ in 0..ROUNDS {
            self.close_device(units.clone());
            let before = done.moved;
            let went_on = self.drain_once(units, &mut done, &mut |moved| {
                let done = before + moved * UNIT_SIZE;
                told(RebalanceProgress { done, total })
            })?;
            let is_done = done.in_use == 0 || done.moved == before;
            if went_on.is_break() || is_done || done.is_full {
                break;
            }
        }
        Ok(done)
    }

    fn drain_once(
        &self,
        units: &Range<u64>,
        done: &mut Drained,
        told: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let mut moving = Moving::new(self);
        done.in_use = 0;
        for id in self.objects_with_contents() {
            let drained = self.drain_object(&mut moving, id, (units, done), told)?;
            if drained.is_break() || done.is_full {
                done.moved += moving.moved * UNIT_SIZE;
                return Ok(ControlFlow::Break(()));
            }
        }
        moving.settle()?;
        done.moved += moving.moved * UNIT_SIZE;
        Ok(told(moving.moved))
    }

    fn drain_object(
        &self,
        moving: &mut Moving<'_>,
        id: ObjectId,
        (units, done): (&Range<u64>, &mut Drained),
        told: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let mut chooser = Chooser {
            store: self,
            among: units,
            room: 0,
            goal: None,
            is_full: false,
        };
        let mut from = 0;
        loop {
            chooser.room = moving.room();
            let room = chooser.room;
            let taken = moving.take(id, from, &mut |run| chooser.choose(run))?;
            done.is_full |= chooser.is_full;
            if told(moving.moved).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            match taken {
                // What cannot be read stays.
                Taken::Some(Some(next)) if !chooser.is_full => {
                    from = next + u64::from(chooser.room == room);
                }
                Taken::Busy => {
                    done.in_use += 1;
                    break;
                }
                _ => break,
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// What lies on some units, as far as it is found while others change it.
    pub fn left_on(&self, units: &Range<u64>) -> LeftThere {
        let mut left = LeftThere::default();
        let among = |unit: UnitNo| u64::from(units.contains(&unit.0)) * UNIT_SIZE;
        for (_, block) in listed_blocks(self) {
            left.metadata += block.map_or(0, |block| among(block) * UNITS_PER_BLOCK);
        }
        for_each_object(self, &mut |id, onode| {
            let mut see = |met| {
                match met {
                    Met::Node(unit) => left.metadata += among(unit),
                    Met::Page(_, entry) => left.contents += among(entry.unit()),
                    Met::Damaged(_) => {}
                }
                true
            };
            Map::new(self, id, onode).walk(&mut see);
            PartsMap::of_parts(self, id, onode).walk(&mut see);
            for tree in [Tree::Entries, Tree::Xattrs] {
                walk_tree(self, id, onode, tree, &mut |met| {
                    let run = met.ok();
                    for step in 0..run.map_or(0, |run| run.count) {
                        left.metadata += run.map_or(0, |run| among(run.start.add(step)));
                    }
                    run.is_some()
                });
            }
        });
        left
    }

    /// Moves all that lies on some units elsewhere, metadata too. Nobody else has the pool
    /// attached. A crash leaves everything where it was or where it goes.
    pub fn evacuate(&self, units: &Range<u64>) -> Result<u64> {
        let mut moving = Relocation::new(self, units.clone());
        self.close_device(units.clone());
        self.give_blocks_back()?;
        // No record may be replayed at a place that something has left.
        self.settle_tails()?;
        self.move_lanes_off(&|unit| units.contains(&unit.0))?;
        self.move_blocks_off(&|unit| units.contains(&unit.0))?;
        let mut objects = Vec::new();
        for_each_object(self, &mut |id, onode| objects.push((id, onode)));
        for (id, onode) in objects {
            self.evacuate_object(id, onode, &mut moving)?;
        }
        // The fence also tells whether a device has failed meanwhile.
        self.settle_tails_with(moving.named.take())?;
        Ok(moving.moved * UNIT_SIZE)
    }

    fn evacuate_object(
        &self,
        id: ObjectId,
        onode: VolumeOffset,
        moving: &mut Relocation<'_>,
    ) -> Result<()> {
        let guard = self.lock(id)?;
        {
            let _changing = guard.begin_change();
            Map::new(self, id, onode).relocate(moving)?;
            PartsMap::of_parts(self, id, onode).relocate(moving)?;
        }
        for tree in [Tree::Entries, Tree::Xattrs] {
            let Some(root) = self.tree_root(id, onode, tree)? else {
                continue;
            };
            let leaves = |unit| moving.leaves(unit);
            for key in keys_that_lead(self, (id, tree), UnitNo(root), &leaves)? {
                let mut tx = self.begin()?;
                tx.leave_places((id, tree), &key, &leaves)?;
                tx.commit()?;
            }
        }
        Ok(())
    }

    /// Moves all the rest off the device that leaves and takes it out of the pool of the device at
    /// `member`. Nobody else uses the pool. Answers how much moved, and what could not.
    pub fn remove_device(self, member: &Path) -> Result<(u64, LeftThere)> {
        let Some(units) = self.volume.leaving() else {
            return Ok((0, LeftThere::default()));
        };
        let journal = self.room_for_journal(&units)?;
        let mut moved = 0;
        // Last the device, whose units nobody may get again.
        for units in journal.iter().chain([&units]) {
            moved += self.evacuate(units)?;
        }
        let room = Room {
            header: self.move_header()?,
            journal: journal.as_ref().map(|to| UnitNo(to.start).offset()),
        };
        let there = journal.iter().chain([&units]);
        let left = there.map(|units| self.left_on(units));
        let left = left.fold(LeftThere::default(), LeftThere::and);
        if left.is_nothing() {
            self.commit_now()?;
            // The volume keeps others out until the labels are written.
            let alone = self.abandon();
            give_all_to_disk(&alone)?;
            // No record may name a place of the device.
            if !alone.is_clean() {
                return Err(StoreError::InUse);
            }
            Volume::remove_leaving(member, room)?;
        }
        Ok((moved, left))
    }

    /// As [`Store::remove_device`], of one of several disks that hold a part together, which has
    /// these units alone. What cannot be read of it is lost, and told as left.
    pub fn remove_own(
        self,
        member: &Path,
        (disk, units): (Uuid, &Range<u64>),
    ) -> Result<(u64, LeftThere)> {
        let moved = self.evacuate(units)?;
        let left = self.left_on(units);
        self.commit_now()?;
        let alone = self.abandon();
        give_all_to_disk(&alone)?;
        if !alone.is_clean() {
            return Err(StoreError::InUse);
        }
        Volume::let_disk_leave(member, disk)?;
        Ok((moved, left))
    }

    /// Units of another device that are to be free for the journal, if the one that leaves has it.
    fn room_for_journal(&self, leaving: &Range<u64>) -> Result<Option<Range<u64>>> {
        let units = self.volume.journal_on(leaving);
        if units == 0 {
            return Ok(None);
        }
        let room = self.volume.room_for_journal(units);
        room.ok_or(StoreError::NoSpace).map(Some)
    }

    /// Copies the pool's header to a block of a device that stays, if it lies on the one that
    /// leaves. It changes no more.
    fn move_header(&self) -> Result<Option<VolumeOffset>> {
        let Some(among) = self.volume.header_goes_to() else {
            return Ok(None);
        };
        let block = self.allocator().take_block_among(among);
        let to = block.ok_or(StoreError::NoSpace)?.offset();
        let mut bytes = vec![0; BLOCK_SIZE as usize];
        self.volume.read(VolumeOffset(0), &mut bytes);
        let stored = self.volume.write(to, &bytes, StoreKind::Metadata);
        self.volume.fence(stored)?;
        Ok(Some(to))
    }
}
