//! Maps and contents move off some units, whoever shares them, in a pool that nobody else uses
//! (D70).
//!
//! As with every move both places hold the same bytes, so any mixture of old and new words is right
//! after a crash. The old units stay as they are: nobody gets them any more.

use std::collections::HashMap;
use std::ops::Range;

use nacre_types::{StoreKind, UNIT_SIZE, UnitNo};
use nacre_volume::Unfenced;

use super::map::Map;
use crate::block_map::layout::{FANOUT, FANOUT_SHIFT, MapWord, Root, WORD_SIZE, entry_salt};
use crate::error::Result;
use crate::layout::root_salt;
use crate::store::Store;

/// Where what lies on some units goes.
pub(crate) struct Relocation<'s> {
    store: &'s Store,
    among: Range<u64>,
    /// Where units went that several objects own.
    shared: HashMap<UnitNo, UnitNo>,
    goal: Option<UnitNo>,
    /// What the words that are stored next leave.
    left: Vec<UnitNo>,
    /// Whether something was copied behind that is not settled.
    goes_behind: bool,
    /// Words that were stored and must be durable before the device goes.
    pub(crate) named: Unfenced,
    /// Units of contents that moved.
    pub(crate) moved: u64,
}

impl<'s> Relocation<'s> {
    pub(crate) fn new(store: &'s Store, among: Range<u64>) -> Self {
        Self {
            store,
            among,
            shared: HashMap::new(),
            goal: None,
            left: Vec::new(),
            goes_behind: false,
            named: Unfenced::nothing(),
            moved: 0,
        }
    }

    pub(crate) fn leaves(&self, unit: UnitNo) -> bool {
        self.among.contains(&unit.0)
    }

    fn take(&mut self) -> Result<UnitNo> {
        let goal = self.goal;
        let run = self.store.take_space(|alloc| alloc.take(goal, 1))?;
        self.goal = Some(run.end());
        Ok(run.start)
    }

    /// For contents: what lies behind stays behind, if there is room.
    fn take_for(&mut self, unit: UnitNo) -> Result<UnitNo> {
        let alloc = self.store.allocator();
        let behind = alloc.is_behind(unit).then(|| alloc.take_behind(1));
        match behind.flatten() {
            Some(run) => Ok(run.start),
            None => self.take(),
        }
    }

    /// Copies contents. `None`: they cannot be read.
    fn copy_contents(&mut self, from: UnitNo) -> Result<Option<(UnitNo, Unfenced)>> {
        let to = self.take_for(from)?;
        let mut bytes = [0; UNIT_SIZE as usize];
        if self.store.read_contents(from.offset(), &mut bytes).is_err() {
            self.store.allocator().free(to, 1);
            return Ok(None);
        }
        self.goes_behind |= self.store.allocator().is_behind(to);
        let stored = self.store.store_copy(to, &bytes, StoreKind::Data)?;
        Ok(Some((to, stored)))
    }

    /// What was copied is durable on return.
    fn settle(&mut self, stored: Unfenced) -> Result<()> {
        let behind = std::mem::take(&mut self.goes_behind);
        self.store.settle_copied(stored, (true, behind))
    }

    /// What a page's word says once its unit has moved; `None`: it stays.
    fn page<const PARTS: bool>(
        &mut self,
        entry: MapWord,
        stored: &mut Unfenced,
    ) -> Result<Option<MapWord>> {
        let unit = entry.unit();
        if entry.is_hole() || !self.leaves(unit) {
            return Ok(None);
        }
        let is_shared = !PARTS && entry.may_be_shared();
        if let Some(&known) = self.shared.get(&unit).filter(|_| is_shared)
            && self.store.allocator().share(known, 1)
        {
            self.left.push(unit);
            return Ok(Some(entry.moved_to(known)));
        }
        let to = match !PARTS && entry.is_unwritten() {
            true => self.take_for(unit)?,
            false => {
                let Some((to, copied)) = self.copy_contents(unit)? else {
                    return Ok(None);
                };
                stored.join(copied);
                to
            }
        };
        self.left.push(unit);
        if is_shared && self.store.allocator().extra(unit) > 0 {
            self.shared.insert(unit, to);
        }
        self.moved += 1;
        Ok(Some(entry.moved_to(to)))
    }

    /// Words name the new units: each old one has an owner less. Nobody gets it, so the words may
    /// become durable later.
    fn note(&mut self, named: Unfenced) {
        self.named.join(named);
        for unit in self.left.drain(..) {
            self.store.allocator().free(unit, 1);
        }
    }

    /// What leads to a copy of a node.
    fn node(&mut self, from: UnitNo, stored: &mut Unfenced) -> Result<MapWord> {
        let to = self.store.take_space(|alloc| alloc.take_one(None))?;
        let volume = self.store.volume();
        let mut bytes = [0; UNIT_SIZE as usize];
        volume.read(from.offset(), &mut bytes);
        stored.join(volume.write(to.offset(), &bytes, StoreKind::Metadata));
        Ok(MapWord::written(to))
    }
}

impl<const PARTS: bool> Map<'_, PARTS> {
    /// Moves the nodes and pages of the map that are to leave. The caller holds the object's lock.
    pub(crate) fn relocate(&self, moving: &mut Relocation<'_>) -> Result<()> {
        let root = self.known_root()?;
        let (height, node) = (root.height, root.entry.unit());
        let mut stored = Unfenced::nothing();
        let entry = match height {
            _ if root.entry.is_hole() => return Ok(()),
            0 => moving.page::<PARTS>(root.entry, &mut stored)?,
            _ => {
                self.relocate_below(node, height, 0, moving)?;
                let leaves = moving.leaves(node);
                leaves.then(|| moving.node(node, &mut stored)).transpose()?
            }
        };
        let Some(entry) = entry else { return Ok(()) };
        let volume = self.store.volume();
        moving.settle(stored)?;
        let word = Root { height, entry }.encode(root_salt(self.id));
        moving.note(volume.store_u64(self.root_at, word, StoreKind::Metadata));
        Ok(())
    }

    /// What a node of a `level` leads to, whose first word has this index.
    fn relocate_below(
        &self,
        node: UnitNo,
        level: u32,
        first: u64,
        moving: &mut Relocation<'_>,
    ) -> Result<()> {
        let volume = self.store.volume();
        let (mut stored, mut words) = (Unfenced::nothing(), Vec::new());
        for index in first..first + FANOUT {
            let entry = self.child(node, level, index)?;
            let moved = match level {
                _ if entry.is_hole() => None,
                1 => moving.page::<PARTS>(entry, &mut stored)?,
                _ => {
                    self.relocate_below(entry.unit(), level - 1, index << FANOUT_SHIFT, moving)?;
                    let leaves = moving.leaves(entry.unit());
                    leaves
                        .then(|| moving.node(entry.unit(), &mut stored))
                        .transpose()?
                }
            };
            words.extend(moved.map(|entry| (index, entry)));
        }
        if words.is_empty() {
            return Ok(());
        }
        moving.settle(stored)?;
        for (index, entry) in words {
            let at = node.offset().add(index % FANOUT * WORD_SIZE);
            let word = entry.encode(entry_salt(self.id, level, index));
            volume.store_u64_lazy(at, word, StoreKind::Metadata);
        }
        moving.note(volume.flush(node.offset(), UNIT_SIZE));
        Ok(())
    }
}
