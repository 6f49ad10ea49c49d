//! Onodes, block maps, and who keeps a unit that two use.

use std::collections::HashSet;

use nacre_types::{CheckedWord, ObjectId, UNIT_SIZE, UNITS_PER_BLOCK, UnitNo, VolumeOffset};
use zerocopy::IntoBytes;

use super::{Outcome, Patches, bit_flip};
use crate::block_map::layout::{FANOUT, FANOUT_SHIFT, MapWord, Root, WORD_SIZE, entry_salt};
use crate::check::{KINDS, kind_of};
use crate::data::map::{Map, Met};
use crate::keyed::layout::Kind;
use crate::layout::{
    HEADER_UNITS, INLINE_MAX, ONODE_PARTS_AT, ONODE_ROOT_AT, ONODE_SIZE_AT, RawOnode, Tree,
    is_of_parts, owner_of_map, parts_id, root_salt, size_salt, tree_salt,
};
use crate::node::{NodeBytes, verify};
use crate::object::onode::onode_crc;
use crate::recovery::scan::{for_each_object, listed_blocks};
use crate::store::Store;

const DIRECTORY: u8 = 4;
const REGULAR: u8 = 8;
const LINK: u8 = 10;

/// Looks at every structure and says what has to be changed.
pub(super) fn examine(store: &Store, outcome: &mut Outcome) -> Patches {
    let mut examination = Examination {
        store,
        outcome,
        patches: Patches::default(),
        claims: Claims::new(store),
        changed: HashSet::new(),
    };
    examination.root_directory();
    for_each_object(store, &mut |id, onode| examination.object(id, onode));
    for_each_object(store, &mut |id, onode| examination.pages(id, onode));
    examination.patches
}

/// Which units are in use, and which of them by one who does not share.
struct Claims {
    used: Vec<u64>,
    sole: Vec<u64>,
}

impl Claims {
    fn new(store: &Store) -> Claims {
        let words = store.units.div_ceil(64) as usize;
        let mut claims = Claims {
            used: vec![0; words],
            sole: vec![0; words],
        };
        (0..HEADER_UNITS).for_each(|unit| claims.set(UnitNo(unit)));
        let closed = store.volume().closed_units().iter().cloned().flatten();
        closed.for_each(|unit| claims.set(UnitNo(unit)));
        for block in listed_blocks(store).filter_map(|(_, block)| block.ok()) {
            (0..UNITS_PER_BLOCK).for_each(|step| claims.set(block.add(step)));
        }
        claims
    }

    fn set(&mut self, unit: UnitNo) {
        let (word, bit) = ((unit.0 / 64) as usize, 1 << (unit.0 % 64));
        self.used[word] |= bit;
        self.sole[word] |= bit;
    }

    fn is_used(&self, unit: UnitNo) -> bool {
        self.used[(unit.0 / 64) as usize] & 1 << (unit.0 % 64) != 0
    }

    /// Takes a unit for one owner alone; `false` when it is in use.
    fn take(&mut self, unit: UnitNo) -> bool {
        let free = !self.is_used(unit);
        if free {
            self.set(unit);
        }
        free
    }

    /// Takes a unit for an owner that shares; `false` when somebody uses it who does not.
    fn take_shared(&mut self, unit: UnitNo) -> bool {
        let (word, bit) = ((unit.0 / 64) as usize, 1 << (unit.0 % 64));
        self.used[word] |= bit;
        self.sole[word] & bit == 0
    }
}

/// One round.
pub(super) struct Examination<'e> {
    pub(super) store: &'e Store,
    pub(super) outcome: &'e mut Outcome,
    pub(super) patches: Patches,
    claims: Claims,
    /// Objects that this round changes: their pages are looked at in the next one.
    changed: HashSet<ObjectId>,
}

impl Examination<'_> {
    pub(super) fn note(&mut self, id: ObjectId, at: VolumeOffset, what: impl Into<String>) {
        self.changed.insert(id);
        self.outcome.note(Some(id), Some(at), what.into());
    }

    pub(super) fn take(&mut self, unit: UnitNo) -> bool {
        self.claims.take(unit)
    }

    fn put_onode(&mut self, at: VolumeOffset, raw: &mut RawOnode) {
        raw.crc = onode_crc(raw).into();
        let lines = raw.as_bytes()[64..].to_vec();
        self.patches.bytes.insert(at.add(64), lines);
    }

    /// A pool has a root directory.
    fn root_directory(&mut self) {
        let id = ObjectId::ROOT;
        let Ok(at) = self.store.onode_at(id) else {
            return;
        };
        let Ok(mut raw) = self.store.raw_onode(at) else {
            return;
        };
        let sound = raw.crc.get() == onode_crc(&raw);
        if raw.mode.get() != 0 && (!sound || kind_of(raw.mode.get()) == DIRECTORY) {
            return;
        }
        self.note(id, at, "root directory rebuilt");
        let times = raw.btime;
        self.rebuild(id, &mut raw, DIRECTORY);
        raw.btime = times;
        raw.mode = 0o040_755.into();
        raw.nlink = 2.into();
        self.put_onode(at, &mut raw);
    }

    fn object(&mut self, id: ObjectId, at: VolumeOffset) {
        let Ok(mut raw) = self.store.raw_onode(at) else {
            return;
        };
        let kind = kind_of(raw.mode.get());
        let sealed = raw.crc.get() == onode_crc(&raw);
        if !sealed || !KINDS.contains(&kind) {
            self.bad_onode(id, at, &mut raw, sealed);
            return;
        }
        let mut changed = false;
        if raw.inline_len.get() as usize > INLINE_MAX {
            self.note(id, at, "inline bytes dropped, their count was impossible");
            raw.inline_len = 0.into();
            changed = true;
        }
        for tree in [Tree::Entries, Tree::Xattrs] {
            changed |= self.tree(id, at, &mut raw, tree);
        }
        if changed {
            self.put_onode(at, &mut raw);
        }
        for (id, at, word) in maps(id, at, &raw) {
            self.map(id, at, word);
        }
        self.size(id, at, &raw);
    }

    /// An onode whose checksum is wrong or whose type is none.
    fn bad_onode(&mut self, id: ObjectId, at: VolumeOffset, raw: &mut RawOnode, sealed: bool) {
        let repaired = if sealed { None } else { bit_flip::onode(raw) };
        if let Some(mut repaired) = repaired {
            self.note(id, at, "onode: one bit turned back");
            self.put_onode(at, &mut repaired);
            return;
        }
        let size = CheckedWord(raw.size.get()).open(size_salt(id));
        let root = Root::decode(raw.root.get(), root_salt(id), self.store.units);
        let has_data = size.is_some_and(|size| size > 0)
            || root.is_some_and(|root| !root.entry.is_hole())
            || self.good_root(id, raw.entries_root.get(), Tree::Entries);
        let kind = kind_of(raw.mode.get());
        let plausible = KINDS.contains(&kind)
            && raw.reserved1.get() == 0
            && raw.reserved2 == [0; 24]
            && size.is_some()
            && root.is_some();
        if !has_data && !plausible && id != ObjectId::ROOT {
            self.note(id, at, "onode freed: nothing in it could be read");
            raw.mode = 0.into();
        } else {
            self.note(
                id,
                at,
                "onode rebuilt, for its owner alone: its attributes were damaged",
            );
            let kind = match () {
                () if id == ObjectId::ROOT => DIRECTORY,
                () if plausible && Kind::from_number(kind).is_some() => kind,
                () if self.good_root(id, raw.entries_root.get(), Tree::Entries) => DIRECTORY,
                () if plausible => kind,
                () => REGULAR,
            };
            self.rebuild(id, raw, kind);
        }
        self.put_onode(at, raw);
    }

    /// Gives an onode attributes that do no harm and keeps what is sound.
    fn rebuild(&mut self, id: ObjectId, raw: &mut RawOnode, kind: u8) {
        let directory = kind == DIRECTORY;
        raw.mode = (u32::from(kind) << 12 | if directory { 0o700 } else { 0o600 }).into();
        (raw.uid, raw.gid, raw.rdev) = (0.into(), 0.into(), 0.into());
        raw.nlink = if directory { 2 } else { 1 }.into();
        raw.flags = 0.into();
        (raw.parent, raw.parent_key) = (if directory { 1 } else { 0 }.into(), 0.into());
        (raw.reserved1, raw.reserved2) = (0.into(), [0; 24]);
        let may_have = directory || Kind::from_number(kind).is_some();
        if !may_have || !self.good_root(id, raw.entries_root.get(), Tree::Entries) {
            raw.entries_root = 0.into();
        }
        if !self.good_root(id, raw.xattrs_root.get(), Tree::Xattrs) {
            (raw.xattrs_root, raw.xattrs) = (0.into(), 0.into());
        }
        if kind != LINK || raw.inline_len.get() as usize > INLINE_MAX {
            (raw.inline_len, raw.inline) = (0.into(), [0; INLINE_MAX]);
        }
    }

    /// Whether a root word opens and leads to a sound node of this tree.
    pub(super) fn good_root(&self, id: ObjectId, word: u64, tree: Tree) -> bool {
        let unit = CheckedWord(word).open(tree_salt(id));
        unit.is_some_and(|unit| self.is_node(id, unit, tree))
    }

    pub(super) fn is_node(&self, id: ObjectId, unit: u64, tree: Tree) -> bool {
        self.store.is_unit(unit) && {
            let bytes: NodeBytes = self.store.volume.read_array(UnitNo(unit).offset());
            verify(&bytes, UnitNo(unit), id, tree).is_ok()
        }
    }

    fn size(&mut self, id: ObjectId, at: VolumeOffset, raw: &RawOnode) {
        let word = raw.size.get();
        if CheckedWord(word).open(size_salt(id)).is_some() {
            return;
        }
        let place = at.add(ONODE_SIZE_AT);
        if let Some(repaired) = bit_flip::word(word, size_salt(id), &mut |_| true) {
            self.note(id, place, "size: one bit turned back");
            self.patches.words.insert(place, repaired.0);
            return;
        }
        let mut pages = 0;
        Map::new(self.store, id, at).walk(&mut |met| match met {
            Met::Page(page, _) => {
                pages = pages.max(page + 1);
                false
            }
            Met::Node(_) => true,
            Met::Damaged(_) => false,
        });
        let inline = u64::from(raw.inline_len.get());
        let size = match kind_of(raw.mode.get()) {
            DIRECTORY => 0,
            LINK if inline > 0 => inline,
            _ => pages * UNIT_SIZE,
        };
        self.note(
            id,
            place,
            format!("size set to {size}, the end of what is mapped"),
        );
        let sealed = CheckedWord::seal(size.min(CheckedWord::MAX), size_salt(id));
        self.patches.words.insert(place, sealed.0);
    }

    /// The nodes of a map; words that do not open are repaired or cut.
    fn map(&mut self, id: ObjectId, at: VolumeOffset, word: u64) {
        let (salt, units) = (root_salt(id), self.store.units);
        let usable = |root: Root| {
            if is_of_parts(id) && root.height == 0 && !root.entry.is_hole() {
                return false;
            }
            let sound = root.entry.is_hole() || root.entry.unit().0 >= HEADER_UNITS;
            let top = Words {
                id,
                unit: root.entry.unit(),
                level: root.height,
                first: 0,
            };
            sound && (root.height == 0 || root.entry.is_hole() || top.are_credible(self.store))
        };
        let root = Root::decode(word, salt, units).filter(|root| usable(*root));
        let Some(root) = root else {
            let fits = |payload| {
                let word = CheckedWord::seal(payload, salt).0;
                Root::decode(word, salt, units).is_some_and(usable)
            };
            let repaired = bit_flip::word(word, salt, &mut |payload| fits(payload));
            self.put_word(id, at, repaired, "root of the block map");
            return;
        };
        if root.height > 0 && !root.entry.is_hole() {
            let top = Words {
                id,
                unit: root.entry.unit(),
                level: root.height,
                first: 0,
            };
            if !self.map_node(top) {
                self.put_word(id, at, None, "root of the block map");
            }
        }
    }

    fn put_word(
        &mut self,
        id: ObjectId,
        at: VolumeOffset,
        repaired: Option<CheckedWord>,
        what: &str,
    ) {
        let done = match repaired {
            Some(_) => "one bit turned back",
            None if is_of_parts(id) => "cut, what lay below reads as it did before",
            None => "cut, what lay below reads as zeros",
        };
        let id = owner_of_map(id);
        self.note(id, at, format!("{what}: {done}"));
        self.patches
            .words
            .insert(at, repaired.map_or(0, |word| word.0));
    }

    /// Claims a map node and what lies below it; false when somebody else has it.
    fn map_node(&mut self, words: Words) -> bool {
        if !self.claims.take(words.unit) {
            return false;
        }
        for step in 0..FANOUT {
            let at = words.at(step);
            let word = self.store.volume.load_u64(at);
            match words.entry(self.store, word, step) {
                Some(entry) if entry.is_hole() || words.level == 1 => {}
                Some(entry) => {
                    let below = words.below(entry, step);
                    if !below.are_credible(self.store) || !self.map_node(below) {
                        self.put_word(words.id, at, None, "block map word");
                    }
                }
                None => {
                    let repaired = bit_flip::word(word, words.salt(step), &mut |payload| {
                        let word = CheckedWord::seal(payload, words.salt(step)).0;
                        words.entry(self.store, word, step).is_some_and(|entry| {
                            let below = words.below(entry, step);
                            words.level == 1 || below.are_credible(self.store)
                        })
                    });
                    self.put_word(words.id, at, repaired, "block map word");
                }
            }
        }
        true
    }

    /// The units that an object maps: whoever comes first keeps them.
    fn pages(&mut self, id: ObjectId, onode: VolumeOffset) {
        if self.changed.contains(&id) {
            return;
        }
        let Ok(raw) = self.store.raw_onode(onode) else {
            return;
        };
        for (id, at, word) in maps(id, onode, &raw) {
            let root = Root::decode(word, root_salt(id), self.store.units);
            match root.filter(|root| !root.entry.is_hole()) {
                None => {}
                Some(root) if root.height == 0 => self.page(id, at, root.entry),
                Some(root) => self.pages_below(Words {
                    id,
                    unit: root.entry.unit(),
                    level: root.height,
                    first: 0,
                }),
            }
        }
    }

    fn pages_below(&mut self, words: Words) {
        for step in 0..FANOUT {
            let word = self.store.volume.load_u64(words.at(step));
            match words.entry(self.store, word, step) {
                Some(entry) if entry.is_hole() => {}
                Some(_) if words.level == 1 && self.has_no_first(words, step) => {
                    let what = "second unit of a page without a first";
                    self.put_word(words.id, words.at(step), None, what);
                }
                Some(entry) if words.level == 1 => self.page(words.id, words.at(step), entry),
                Some(entry) => self.pages_below(words.below(entry, step)),
                None => {}
            }
        }
    }

    /// Whether a word of a map of parts is one of a page that the block map does not have.
    fn has_no_first(&self, words: Words, step: u64) -> bool {
        let id = owner_of_map(words.id);
        let page = words.first + step;
        is_of_parts(words.id)
            && self.store.onode_at(id).is_ok_and(|onode| {
                let first = Map::new(self.store, id, onode).entry(page);
                first.is_ok_and(MapWord::is_hole)
            })
    }

    fn page(&mut self, id: ObjectId, at: VolumeOffset, entry: MapWord) {
        let free = match entry.may_be_shared() && !is_of_parts(id) {
            true => self.claims.take_shared(entry.unit()),
            false => self.claims.take(entry.unit()),
        };
        if !free {
            let what = format!("unit {} belongs to somebody else: page", entry.unit().0);
            self.put_word(id, at, None, &what);
        }
    }
}

/// Both maps of an object: what stands for it in the salts, where the root word lies, and the word.
fn maps(id: ObjectId, onode: VolumeOffset, raw: &RawOnode) -> [(ObjectId, VolumeOffset, u64); 2] {
    let parts = (onode.add(ONODE_PARTS_AT), raw.parts_root.get());
    [
        (id, onode.add(ONODE_ROOT_AT), raw.root.get()),
        (parts_id(id), parts.0, parts.1),
    ]
}

/// The words of one map node.
#[derive(Clone, Copy)]
struct Words {
    id: ObjectId,
    unit: UnitNo,
    level: u32,
    /// Index in the level of the first word.
    first: u64,
}

impl Words {
    fn at(&self, step: u64) -> VolumeOffset {
        self.unit.offset().add(step * WORD_SIZE)
    }

    fn salt(&self, step: u64) -> u64 {
        entry_salt(self.id, self.level, self.first + step)
    }

    fn entry(&self, store: &Store, word: u64, step: u64) -> Option<MapWord> {
        MapWord::decode_in(self.id, word, self.salt(step), store.units).filter(|entry| {
            let inside = entry.is_hole() || entry.unit().0 >= HEADER_UNITS;
            inside && (self.level == 1 || entry.is_plain())
        })
    }

    fn below(&self, entry: MapWord, step: u64) -> Words {
        Words {
            id: self.id,
            unit: entry.unit(),
            level: self.level - 1,
            first: (self.first + step) << FANOUT_SHIFT,
        }
    }

    /// Whether the unit is this node: most of its words open. Damage of a few words is not a reason
    /// to give up the others, but the words of another structure must never be taken for damaged
    /// ones.
    fn are_credible(&self, store: &Store) -> bool {
        if self.level == 0 || !store.is_unit(self.unit.0) {
            return self.level == 0;
        }
        let (mut sound, mut bad) = (0, 0);
        for step in 0..FANOUT {
            let word = store.volume.load_u64(self.at(step));
            match self.entry(store, word, step) {
                Some(entry) if entry.is_hole() => {}
                Some(_) => sound += 1,
                None => bad += 1,
            }
        }
        bad <= sound
    }
}
