//! The owners of units in which copies differ.

use std::collections::{BTreeSet, HashMap, HashSet};

use nacre_types::{ObjectId, UnitNo, VolumeOffset};
use nacre_volume::Difference;

use super::{Damage, units_of};
use crate::block_map::layout::{FANOUT, FANOUT_SHIFT, MapWord, Root, WORD_SIZE, entry_salt};
use crate::layout::{Tree, is_of_parts, owner_of_map, parts_id, root_salt};
use crate::recovery::scan::for_each_object;
use crate::store::Store;
use crate::tree::{LongValue, TreePart, walk};

/// What a unit is to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Contents: which page.
    Data(u64),
    /// Room for contents that were never written: which page.
    Unwritten(u64),
    /// A node of its block map: the level, and the index in the level of the first word.
    Map(u32, u64),
    /// A node of its map of parts: as a node of its block map.
    PartsMap(u32, u64),
    /// A node of a tree.
    Tree,
    /// A long value of an attribute or of a key.
    Value(LongValue),
}

/// Units of interest, and whose they are.
#[derive(Default)]
pub(super) struct Owners {
    of: HashMap<UnitNo, Vec<(ObjectId, Owner)>>,
}

/// Which units are of interest.
struct Wanted<'w> {
    store: &'w Store,
    units: HashSet<UnitNo>,
    spans: &'w BTreeSet<u64>,
}

impl Wanted<'_> {
    fn has(&self, unit: UnitNo) -> bool {
        let span = || self.store.volume().span_of(unit.offset());
        self.units.contains(&unit) || self.spans.contains(&span())
    }
}

impl Owners {
    /// Those of the units that were found, and of all units of some spans.
    pub(super) fn of(store: &Store, found: &[Difference], spans: &BTreeSet<u64>) -> Self {
        let wanted = Wanted {
            store,
            units: found.iter().flat_map(units_of).collect(),
            spans,
        };
        let mut owners = Self::default();
        for_each_object(store, &mut |id, onode| {
            owners.walk(&wanted, id, onode);
        });
        owners
    }

    fn add(&mut self, wanted: &Wanted<'_>, unit: UnitNo, owner: (ObjectId, Owner)) {
        if wanted.has(unit) {
            self.of.entry(unit).or_default().push(owner);
        }
    }

    fn walk(&mut self, wanted: &Wanted<'_>, id: ObjectId, onode: VolumeOffset) {
        let Ok(raw) = wanted.store.raw_onode(onode) else {
            return;
        };
        for (id, root) in [(id, raw.root), (parts_id(id), raw.parts_root)] {
            let root = Root::decode(root.get(), root_salt(id), wanted.store.units);
            if let Some(root) = root.filter(|root| !root.entry.is_hole()) {
                match root.height {
                    0 => self.add_page(wanted, id, (root.entry, 0)),
                    height => self.walk_map(wanted, id, (root.entry.unit(), height, 0)),
                }
            }
        }
        for tree in [Tree::Entries, Tree::Xattrs] {
            let root = wanted.store.tree_root(id, onode, tree).ok().flatten();
            if let Some(root) = root {
                let mut visit = |part| {
                    self.add_tree_part(wanted, id, part);
                    true
                };
                walk(
                    wanted.store,
                    id,
                    tree,
                    UnitNo(root),
                    &mut visit,
                    &mut |_| (),
                );
            }
        }
    }

    fn add_tree_part(&mut self, wanted: &Wanted<'_>, id: ObjectId, part: TreePart) {
        match part {
            TreePart::Node(unit, _) => self.add(wanted, unit, (id, Owner::Tree)),
            TreePart::Value(value) => {
                let (run, owner) = (value.run(), (id, Owner::Value(value)));
                (0..run.count).for_each(|step| self.add(wanted, run.start.add(step), owner));
            }
        }
    }

    fn add_page(&mut self, wanted: &Wanted<'_>, id: ObjectId, (entry, page): (MapWord, u64)) {
        let owner = match entry.is_unwritten() {
            true => Owner::Unwritten(page),
            false => Owner::Data(page),
        };
        self.add(wanted, entry.unit(), (owner_of_map(id), owner));
    }

    fn walk_map(
        &mut self,
        wanted: &Wanted<'_>,
        id: ObjectId,
        (unit, level, index): (UnitNo, u32, u64),
    ) {
        let first = index << FANOUT_SHIFT;
        let node = match is_of_parts(id) {
            true => Owner::PartsMap(level, first),
            false => Owner::Map(level, first),
        };
        self.add(wanted, unit, (owner_of_map(id), node));
        for step in 0..FANOUT {
            let word = unit.offset().add(step * WORD_SIZE);
            let word = wanted.store.volume().load_u64(word);
            let salt = entry_salt(id, level, first + step);
            let below = MapWord::decode_in(id, word, salt, wanted.store.units);
            let Some(below) = below.filter(|below| !below.is_hole()) else {
                continue;
            };
            match level {
                1 => self.add_page(wanted, id, (below, first + step)),
                _ => self.walk_map(wanted, id, (below.unit(), level - 1, first + step)),
            }
        }
    }

    /// The users of a unit.
    pub(super) fn of_unit(&self, unit: UnitNo) -> &[(ObjectId, Owner)] {
        self.of.get(&unit).map_or(&[], Vec::as_slice)
    }

    pub(super) fn damage(&self, difference: Difference) -> Damage {
        let mut owners: Vec<(ObjectId, Owner)> = Vec::new();
        for owner in units_of(&difference).flat_map(|unit| self.of_unit(unit)) {
            if !owners.iter().any(|known| known.0 == owner.0) {
                owners.push(*owner);
            }
        }
        Damage { difference, owners }
    }
}
