//! Trees: nodes that are not sound are repaired or cut from their parents.

use nacre_types::{CheckedWord, ObjectId, UNIT_SIZE, UnitNo, VolumeOffset, crc32c};

use super::bit_flip;
use super::objects::Examination;
use crate::layout::{RawOnode, Tree, VALUE_MAX, tree_salt};
use crate::node::{DirtyWords, NodeBytes, NodeImage, Payload, SearchKey, View, salvage, verify};

/// A node on the way down: what its parent expects of it.
struct Expected<'k> {
    id: ObjectId,
    tree: Tree,
    unit: u64,
    above: Option<u8>,
    /// Keys that it may hold: from the first on, up to the second.
    keys: (Option<&'k [u8]>, Option<&'k [u8]>),
}

impl Examination<'_> {
    /// Looks at a tree; true when its root in the onode was changed.
    pub(super) fn tree(
        &mut self,
        id: ObjectId,
        at: VolumeOffset,
        raw: &mut RawOnode,
        tree: Tree,
    ) -> bool {
        let word = match tree {
            Tree::Entries => &mut raw.entries_root,
            Tree::Xattrs => &mut raw.xattrs_root,
        };
        if word.get() == 0 {
            return false;
        }
        let unit = CheckedWord(word.get()).open(tree_salt(id));
        let root = |unit| Expected {
            id,
            tree,
            unit,
            above: None,
            keys: (None, None),
        };
        if unit.is_some_and(|unit| self.tree_node(&root(unit))) {
            return false;
        }
        let repaired = bit_flip::word(word.get(), tree_salt(id), &mut |unit| {
            self.is_node(id, unit, tree)
        });
        let done = match repaired {
            Some(_) => "one bit turned back",
            None => "cut, what it held is gone",
        };
        self.note(id, at, format!("root of the {tree:?} tree: {done}"));
        *word = repaired.map_or(0, |word| word.0).into();
        if repaired.is_none() && tree == Tree::Xattrs {
            raw.xattrs = 0.into();
        }
        true
    }

    /// Claims a node and what lies below it; false when it has to be cut.
    fn tree_node(&mut self, node: &Expected<'_>) -> bool {
        if !self.store.is_unit(node.unit) {
            return false;
        }
        let unit = UnitNo(node.unit);
        let mut bytes: NodeBytes = self.store.volume.read_array(unit.offset());
        if verify(&bytes, unit, node.id, node.tree).is_err() {
            let Some(sound) = self.repaired(node, &bytes) else {
                return false;
            };
            bytes = *sound;
        }
        let Ok(view) = View::open(&bytes, node.id, node.tree) else {
            return false;
        };
        let fits = node.above.is_none_or(|above| view.level() + 1 == above);
        if !fits || view.count() == 0 || !self.take(unit) {
            return false;
        }
        let bad = self.bad_slots(node, &view);
        match bad.len() {
            0 => true,
            all if all == view.count() => false,
            _ => self.cut(node, &bytes, &bad),
        }
    }

    /// The node with one bit turned back, or made of those of its entries that are sound.
    fn repaired(&mut self, node: &Expected<'_>, bytes: &NodeBytes) -> Option<Box<NodeBytes>> {
        let unit = UnitNo(node.unit);
        let (sound, what) = match bit_flip::node(bytes, unit, node.id, node.tree) {
            Some(sound) => (sound, "tree node: one bit turned back"),
            None => {
                let level = View::open(bytes, node.id, node.tree).ok()?.level();
                let right = node.above.is_none_or(|above| level + 1 == above);
                let entries = in_order(salvage(bytes).collect(), level, node.keys);
                let fresh = fresh(node, level, &entries).filter(|_| right && !entries.is_empty());
                (fresh?, "tree node rebuilt of its readable entries")
            }
        };
        self.note(node.id, unit.offset(), what);
        self.patches.bytes.insert(unit.offset(), sound.to_vec());
        Some(sound)
    }

    /// Entries that lie outside of what the node may hold, or whose child or value is not sound.
    fn bad_slots(&mut self, node: &Expected<'_>, view: &View<&NodeBytes>) -> Vec<usize> {
        let keys: Vec<&[u8]> = (0..view.count())
            .map(|index| view.slot(index).map_or(&[][..], |slot| view.key(&slot)))
            .collect();
        let (low, high) = node.keys;
        let mut bad = Vec::new();
        for (index, &key) in keys.iter().enumerate() {
            // The first key of an inner node counts as lowest, whatever it is.
            let first = index == 0 && view.level() > 0;
            let inside = low.is_none_or(|low| low <= key) && high.is_none_or(|high| key < high);
            let from = if first { low } else { Some(key) };
            let next = keys.get(index + 1).copied().or(high);
            if !(first || inside) || !self.entry(node, view, index, (from, next)) {
                bad.push(index);
            }
        }
        bad
    }

    fn entry(
        &mut self,
        node: &Expected<'_>,
        view: &View<&NodeBytes>,
        index: usize,
        keys: (Option<&[u8]>, Option<&[u8]>),
    ) -> bool {
        if view.level() == 0 {
            return self.value(node, view, index);
        }
        let Ok(child) = view.child(index, node.id) else {
            return false;
        };
        self.tree_node(&Expected {
            unit: child.0,
            above: Some(view.level()),
            keys,
            ..*node
        })
    }

    /// Claims a long value; false when it is not sound. Short ones are.
    fn value(&mut self, node: &Expected<'_>, view: &View<&NodeBytes>, index: usize) -> bool {
        let Ok(slot) = view.slot(index) else {
            return false;
        };
        if !slot.overflow {
            return true;
        }
        let Ok(raw) = view.overflow(&slot) else {
            return false;
        };
        let unit = CheckedWord(raw.unit.get()).open(tree_salt(node.id));
        let (unit, len) = (unit.unwrap_or(0), raw.len.get() as usize);
        let units = (len as u64).div_ceil(UNIT_SIZE).max(1);
        if len > VALUE_MAX || !self.store.is_unit(unit) || !self.store.is_unit(unit + units - 1) {
            return false;
        }
        let mut value = vec![0; len];
        self.store.volume.read(UnitNo(unit).offset(), &mut value);
        crc32c(&value) == raw.crc.get() && (0..units).all(|step| self.take(UnitNo(unit + step)))
    }

    /// Takes entries out of a node.
    fn cut(&mut self, node: &Expected<'_>, bytes: &NodeBytes, bad: &[usize]) -> bool {
        let level = View::open(bytes, node.id, node.tree).map_or(0, |view| view.level());
        let all: Vec<NodeEntry<'_>> = salvage(bytes).collect();
        let kept = all.into_iter().enumerate();
        let kept = kept.filter(|(index, _)| !bad.contains(index));
        let kept: Vec<NodeEntry<'_>> = kept.map(|(_, entry)| entry).collect();
        let Some(fresh) = fresh(node, level, &kept) else {
            return false;
        };
        let at = UnitNo(node.unit).offset();
        let what = format!(
            "tree node: {} entries cut that could not be read",
            bad.len()
        );
        self.note(node.id, at, what);
        self.patches.bytes.insert(at, fresh.to_vec());
        true
    }
}

/// Key, value, and whether the value lies out of line.
type NodeEntry<'n> = (&'n [u8], &'n [u8], bool);

/// Of entries that should ascend, those that do, inside of the bounds of their node. The first key
/// of an inner node is free.
fn in_order<'n>(
    entries: Vec<NodeEntry<'n>>,
    level: u8,
    (low, high): (Option<&[u8]>, Option<&[u8]>),
) -> Vec<NodeEntry<'n>> {
    let mut kept: Vec<NodeEntry<'n>> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let key = entry.0;
        let next = entries.get(index + 1).map(|next| next.0);
        let last = kept.last().map(|last| last.0);
        let first = level > 0 && index == 0;
        let inside = low.is_none_or(|low| low <= key)
            && high.is_none_or(|high| key < high)
            && last.is_none_or(|last| last < key);
        // One that is above its follower, which fits behind its predecessor, is the one that is
        // wrong.
        let outlier = next.is_some_and(|next| key >= next && last.is_none_or(|last| last < next));
        if first {
            kept.push((&[], entry.1, entry.2));
        } else if inside && !outlier {
            kept.push(*entry);
        }
    }
    kept
}

/// A node that holds these entries.
fn fresh(node: &Expected<'_>, level: u8, entries: &[NodeEntry<'_>]) -> Option<Box<NodeBytes>> {
    let mut image = NodeImage {
        unit: UnitNo(node.unit),
        owner: node.id,
        tree: node.tree,
        fresh: true,
        freed: false,
        dirty: DirtyWords::default(),
        spare: DirtyWords::default(),
        entries_crc: 0,
        loaded: UNIT_SIZE as usize,
        bytes: Box::new([0; UNIT_SIZE as usize]),
    };
    image.reset(level);
    for (index, (key, value, overflow)) in entries.iter().enumerate() {
        let payload = Payload {
            bytes: value,
            overflow: *overflow,
        };
        let inserted = image.insert(index, &SearchKey::new(key), payload);
        if inserted != Ok(true) {
            return None;
        }
    }
    image.seal();
    let sound = verify(&image.bytes, image.unit, node.id, node.tree).is_ok();
    sound.then_some(image.bytes)
}
