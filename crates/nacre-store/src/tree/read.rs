//! Looking up and scanning, without the object's lock.

use std::ops::{ControlFlow, Range};

use nacre_types::{CheckedWord, LINE_SIZE, ObjectId, UNIT_SIZE, UnitNo};

use super::long_value::LongValue;
use crate::error::{Result, StoreError};
use crate::layout::{KEY_MAX, RawOverflow, Tree, VALUE_MAX, tree_salt};
use crate::node::{
    Damaged, MediaPage, NODE_BYTES, NodeBytes, SearchKey, Slot, View, head_of, index_at, verify,
};
use crate::store::Store;

const LINE: usize = LINE_SIZE as usize;

/// Is given a key, its value and, if it is at hand, the next key; says whether to go on.
pub type Visit<'v> = dyn FnMut(&[u8], &[u8], Option<&[u8]>) -> ControlFlow<()> + 'v;

/// A tree of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeId {
    pub(crate) object: ObjectId,
    pub(crate) tree: Tree,
}

/// A copy of one leaf, and the key that the next one starts with.
pub(super) struct Leaf {
    pub(super) bytes: Box<NodeBytes>,
    pub(super) unit: UnitNo,
    pub(super) filled: bool,
    pub(super) next: Option<Vec<u8>>,
}

impl Leaf {
    pub(super) fn new() -> Leaf {
        Leaf {
            bytes: Box::new([0; NODE_BYTES]),
            unit: UnitNo(0),
            filled: false,
            next: None,
        }
    }
}

impl Store {
    /// Reads a key's value into `value`; false when the key is not there.
    pub fn tree_get(
        &self,
        id: ObjectId,
        tree: Tree,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool> {
        check_key(key)?;
        let (key, which) = (SearchKey::new(key), TreeId { object: id, tree });
        let found = self.read_stable(id, || {
            self.find_now(which, &key, |at, view, slot| {
                self.value_now(which, at, view, slot, value)
            })
        })?;
        Ok(found.is_some())
    }

    /// As [`Store::tree_get`] without allocating for short values: copies as much as fits into
    /// `value`; returns the whole length.
    pub fn tree_get_into(
        &self,
        id: ObjectId,
        tree: Tree,
        key: &[u8],
        value: &mut [u8],
    ) -> Result<Option<usize>> {
        check_key(key)?;
        let (key, which) = (SearchKey::new(key), TreeId { object: id, tree });
        self.read_stable(id, || {
            self.find_now(which, &key, |at, view, slot| {
                if !slot.overflow {
                    return Ok(view.value_prefix(slot, value));
                }
                let mut whole = Vec::new();
                self.value_now(which, at, view, slot, &mut whole)?;
                let len = whole.len().min(value.len());
                value[..len].copy_from_slice(&whole[..len]);
                Ok(whole.len())
            })
        })
    }

    /// Visits all keys from `from` on in order, each once. Changes made meanwhile may or may not be
    /// seen; keys that stay are seen.
    pub fn tree_scan(
        &self,
        id: ObjectId,
        tree: Tree,
        from: &[u8],
        visit: &mut Visit<'_>,
    ) -> Result<()> {
        check_key(from)?;
        let which = TreeId { object: id, tree };
        let mut leaf = Leaf::new();
        let mut from = from.to_vec();
        loop {
            let mut copy = || self.copy_leaf(which, &from, &mut leaf);
            if let Err(error) = self.read_stable(id, &mut copy) {
                self.once_more(error, || self.read_stable(id, copy))?;
            }
            if leaf.filled && self.visit_leaf(which, &leaf, &from, visit)?.is_break() {
                return Ok(());
            }
            let Some(next) = leaf.next.take() else {
                return Ok(());
            };
            if next <= from {
                return Err(self.damaged(which, leaf.unit));
            }
            from = next;
        }
    }

    /// Looks a key up and takes from its entry what `take` wants; `None` when it is not there.
    fn find_now<T>(
        &self,
        which: TreeId,
        key: &SearchKey<'_>,
        take: impl FnOnce(UnitNo, &View<MediaPage<'_>>, &Slot) -> Result<T>,
    ) -> Result<Option<T>> {
        let Some(root) = self.root_of(which)? else {
            return Ok(None);
        };
        let (mut at, mut view) = self.leaf_of(which, root, key)?;
        let found = match view.find(key) {
            Ok(found) => found,
            Err(Damaged) => {
                self.repair_node_copies(which, at);
                (at, view) = self.leaf_of(which, root, key)?;
                view.find(key).map_err(|Damaged| self.damaged(which, at))?
            }
        };
        let Ok(index) = found else {
            return Ok(None);
        };
        let slot = view.slot(index).map_err(|_| self.damaged(which, at))?;
        take(at, &view, &slot).map(Some)
    }

    /// The leaf that covers a key.
    pub(super) fn leaf_of(
        &self,
        which: TreeId,
        root: UnitNo,
        key: &SearchKey<'_>,
    ) -> Result<(UnitNo, View<MediaPage<'_>>)> {
        match self.leaf_of_once(which, root, key) {
            Ok(found) => Ok(found),
            Err(error) => self.once_more(error, || self.leaf_of_once(which, root, key)),
        }
    }

    #[inline(always)]
    fn leaf_of_once(
        &self,
        which: TreeId,
        root: UnitNo,
        key: &SearchKey<'_>,
    ) -> Result<(UnitNo, View<MediaPage<'_>>)> {
        let mut unit = root;
        let mut view = self.node(which, root, None)?;
        while !view.is_leaf() {
            let below = view
                .find_child(key)
                .and_then(|index| view.child(index, which.object));
            let above = Some(view.level());
            unit = below.map_err(|Damaged| self.damaged(which, unit))?;
            view = self.node(which, unit, above)?;
        }
        Ok((unit, view))
    }

    pub(super) fn root_of(&self, which: TreeId) -> Result<Option<UnitNo>> {
        let onode = self.onode_live(which.object)?;
        let root = self.tree_root(which.object, onode, which.tree)?;
        Ok(root.map(UnitNo))
    }

    /// A node on the medium, verified on first touch. `above` is the level of the node that points
    /// to it: levels must fall, which bounds every descent.
    #[inline]
    pub(super) fn node(
        &self,
        which: TreeId,
        unit: UnitNo,
        above: Option<u8>,
    ) -> Result<View<MediaPage<'_>>> {
        if !self.is_unit(unit.0) {
            return Err(self.damaged(which, unit));
        }
        if !self.is_verified(unit) {
            self.verify_node(which, unit)?;
        }
        match self.open_node(which, unit, above) {
            Some(view) => Ok(view),
            None => self.node_once_more(which, unit, above),
        }
    }

    #[inline(always)]
    fn open_node(
        &self,
        which: TreeId,
        unit: UnitNo,
        above: Option<u8>,
    ) -> Option<View<MediaPage<'_>>> {
        let page = MediaPage::new(&self.volume, unit);
        let view = View::open(page, which.object, which.tree).ok()?;
        let fits = above.is_none_or(|above| view.level() + 1 == above);
        fits.then_some(view)
    }

    /// A node that was damaged after it was verified.
    #[cold]
    #[inline(never)]
    fn node_once_more(
        &self,
        which: TreeId,
        unit: UnitNo,
        above: Option<u8>,
    ) -> Result<View<MediaPage<'_>>> {
        let error = self.damaged(which, unit);
        self.open_node(which, unit, above).ok_or(error)
    }

    #[cold]
    fn verify_node(&self, which: TreeId, unit: UnitNo) -> Result<()> {
        let is_sound = || {
            let mut node = [0; NODE_BYTES];
            self.read_used(unit, &mut node);
            verify(&node, unit, which.object, which.tree)
        };
        if is_sound().is_err() {
            let error = self.damaged(which, unit);
            is_sound().map_err(|_| error)?;
        }
        self.set_verified(unit);
        Ok(())
    }

    /// Copies a node without the room between index and heap, which says nothing: most nodes of
    /// objects have a few entries, and whoever opens a pool reads all of them.
    fn read_used(&self, unit: UnitNo, node: &mut NodeBytes) {
        let mut read = |part: Range<usize>| {
            let at = unit.offset().add(part.start as u64);
            self.volume.read(at, &mut node[part]);
            head_of(node)
        };
        let head = read(0..LINE);
        let index_end = index_at(usize::from(head.count.get()));
        let heap = usize::from(head.heap.get()) / LINE * LINE;
        if index_end > LINE {
            read(LINE..index_end.min(NODE_BYTES));
        }
        read(heap.clamp(LINE, NODE_BYTES)..NODE_BYTES);
    }

    /// The error of a node that says what cannot be. Who looks once more finds another copy of it,
    /// if that is right.
    #[cold]
    pub(super) fn damaged(&self, which: TreeId, unit: UnitNo) -> StoreError {
        self.repair_node_copies(which, unit);
        StoreError::corrupt(Some(which.object), "tree node", unit.offset())
    }

    /// Copies an entry's value, from the node or from out of line.
    pub(super) fn value_now<P: crate::node::Page>(
        &self,
        which: TreeId,
        unit: UnitNo,
        view: &View<P>,
        slot: &Slot,
        value: &mut Vec<u8>,
    ) -> Result<()> {
        if !slot.overflow {
            view.value_into(slot, value);
            return Ok(());
        }
        let raw = view.overflow(slot).map_err(|_| self.damaged(which, unit))?;
        let long = self.long_value(which, unit, &raw)?;
        value.clear();
        value.resize(long.len, 0);
        let mut read = || {
            self.volume.read(long.start.offset(), value);
            long.is_in(value)
        };
        let is_right = read() || {
            self.repair_value_copies(long);
            read()
        };
        match is_right {
            true => Ok(()),
            false => Err(StoreError::corrupt(
                Some(which.object),
                "out-of-line value",
                long.start.offset(),
            )),
        }
    }

    /// An out-of-line value that `node` refers to, checked to lie in the pool.
    pub(super) fn long_value(
        &self,
        which: TreeId,
        node: UnitNo,
        raw: &RawOverflow,
    ) -> Result<LongValue> {
        let unit = CheckedWord(raw.unit.get())
            .open(tree_salt(which.object))
            .unwrap_or(0);
        let len = raw.len.get() as usize;
        let last = unit + (len as u64).div_ceil(UNIT_SIZE).max(1) - 1;
        match self.is_unit(unit) && self.is_unit(last) && len <= VALUE_MAX {
            true => Ok(LongValue::new(UnitNo(unit), len, raw.crc.get())),
            false => Err(self.damaged(which, node)),
        }
    }

    /// Copies the leaf that covers `from`, and finds where the next leaf starts.
    fn copy_leaf(&self, which: TreeId, from: &[u8], leaf: &mut Leaf) -> Result<()> {
        let key = SearchKey::new(from);
        self.copy_leaf_by(which, leaf, |view| {
            let index = view.find_child(&key)?;
            let next = Some(index + 1).filter(|next| *next < view.count());
            Ok((index, next))
        })
    }

    /// Copies the leaf that `choose` leads to: of each node above it says which child is next, and
    /// which entry, if any, has the key that [`Leaf::next`] is from now on.
    #[inline]
    pub(super) fn copy_leaf_by<'s>(
        &'s self,
        which: TreeId,
        leaf: &mut Leaf,
        choose: impl Fn(&View<MediaPage<'s>>) -> std::result::Result<(usize, Option<usize>), Damaged>,
    ) -> Result<()> {
        leaf.filled = false;
        leaf.next = None;
        let mut above = None;
        let mut unit = self.root_of(which)?;
        while let Some(at) = unit {
            let view = self.node(which, at, above)?;
            let damaged = |_| self.damaged(which, at);
            if view.is_leaf() {
                self.volume.read(at.offset(), &mut leaf.bytes[..]);
                leaf.filled = true;
                leaf.unit = at;
                return Ok(());
            }
            above = Some(view.level());
            let (index, next) = choose(&view).map_err(damaged)?;
            if let Some(next) = next {
                let mut key = leaf.next.take().unwrap_or_default();
                view.key_into(&view.slot(next).map_err(damaged)?, &mut key);
                leaf.next = Some(key);
            }
            unit = Some(view.child(index, which.object).map_err(damaged)?);
        }
        Ok(())
    }

    fn visit_leaf(
        &self,
        which: TreeId,
        leaf: &Leaf,
        from: &[u8],
        visit: &mut Visit<'_>,
    ) -> Result<ControlFlow<()>> {
        let damaged = |Damaged| self.damaged(which, leaf.unit);
        let view = View::open(&*leaf.bytes, which.object, which.tree).map_err(damaged)?;
        let (Ok(first) | Err(first)) = view.find(&SearchKey::new(from)).map_err(damaged)?;
        let entry = |index: usize| match index < view.count() {
            true => view.slot(index).map(Some).map_err(damaged),
            false => Ok(None),
        };
        let mut long = Vec::new();
        let mut next = entry(first)?;
        for index in first + 1.. {
            let Some(slot) = next else { break };
            next = entry(index)?;
            let key = view.key(&slot);
            let mut value = view.value(&slot);
            if slot.overflow {
                if !self.tree_get(which.object, which.tree, key, &mut long)? {
                    continue;
                }
                value = &long;
            }
            if visit(key, value, next.map(|slot| view.key(&slot))).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Refuses keys that the tree cannot hold.
pub(super) fn check_key(key: &[u8]) -> Result<()> {
    match key.len() <= KEY_MAX {
        true => Ok(()),
        false => Err(StoreError::Invalid("key longer than 1024 bytes")),
    }
}
