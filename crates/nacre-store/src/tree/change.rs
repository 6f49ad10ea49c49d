//! Inserting and removing through a transaction: nodes are copied on first change.

use std::ops::Range;

use nacre_types::{CheckedWord, ObjectId, StoreKind, UNIT_SIZE, UnitNo, VolumeOffset, crc32c};
use smallvec::SmallVec;
use zerocopy::IntoBytes;

use super::read::{TreeId, check_key};
use crate::alloc::Run;
use crate::error::{Result, StoreError};
use crate::layout::{
    INLINE_ENTRY_MAX, MAX_DEPTH, NODE_INDEX_AT, RawNode, RawOverflow, Tree, VALUE_MAX, tree_salt,
};
use crate::node::{
    Damaged, GRAIN, INDEX_BYTES, MediaPage, NODE_BYTES, NodeBytes, Page, SearchKey, Slot, View,
    entry_len, index_at,
};
use crate::node::{NodeImage, Payload};
use crate::tx::Tx;

/// A node emptier than this looks for a sibling to merge with.
pub(super) const SPARSE: usize = (NODE_BYTES - NODE_INDEX_AT) / 4;
/// Bytes between two changes of a node that the log takes along, at most.
const LOG_GAP: usize = 16;

/// A node as the transaction sees it.
pub(super) enum TxPage<'t> {
    Media(MediaPage<'t>),
    Image(ImagePage<'t>),
}

/// A copy of a node, and the node for what is not in the copy.
#[derive(Clone, Copy)]
pub(super) struct ImagePage<'t> {
    image: &'t NodeImage,
    media: MediaPage<'t>,
}

impl ImagePage<'_> {
    fn is_here(&self, at: usize) -> bool {
        at < self.image.loaded
    }

    fn bytes(&self) -> &NodeBytes {
        &self.image.bytes
    }
}

impl Page for ImagePage<'_> {
    fn head(&self) -> RawNode {
        self.bytes().head()
    }
    fn u16(&self, at: usize) -> u16 {
        self.bytes().u16(at)
    }
    fn u64(&self, at: usize) -> u64 {
        match self.is_here(at) {
            true => self.bytes().u64(at),
            false => self.media.u64(at),
        }
    }
    /// What is here may end within an entry.
    fn copy(&self, at: usize, to: &mut [u8]) {
        let here = self.image.loaded.saturating_sub(at).min(to.len());
        let (to, rest) = to.split_at_mut(here);
        if !to.is_empty() {
            self.bytes().copy(at, to);
        }
        if !rest.is_empty() {
            self.media.copy(at + here, rest);
        }
    }
}

impl Page for TxPage<'_> {
    #[inline]
    fn head(&self) -> RawNode {
        match self {
            TxPage::Media(page) => page.head(),
            TxPage::Image(page) => page.head(),
        }
    }
    #[inline]
    fn u16(&self, at: usize) -> u16 {
        match self {
            TxPage::Media(page) => page.u16(at),
            TxPage::Image(page) => page.u16(at),
        }
    }
    #[inline]
    fn u64(&self, at: usize) -> u64 {
        match self {
            TxPage::Media(page) => page.u64(at),
            TxPage::Image(page) => page.u64(at),
        }
    }
    fn copy(&self, at: usize, to: &mut [u8]) {
        match self {
            TxPage::Media(page) => page.copy(at, to),
            TxPage::Image(page) => page.copy(at, to),
        }
    }
}

/// An inner node on the way down and the child that was taken.
#[derive(Clone, Copy)]
pub(super) struct PathNode {
    pub(super) unit: UnitNo,
    pub(super) index: usize,
}

/// Where a node says that a key is.
enum Pass {
    /// In this leaf, at this index, or would be inserted there.
    Here(std::result::Result<usize, usize>),
    /// Below: index and unit of the child, level of this node.
    Below(usize, UnitNo, u8),
}

/// The way from the root to the leaf that covers a key.
pub(super) struct Path {
    pub(super) steps: SmallVec<[PathNode; 3]>,
    pub(super) leaf: UnitNo,
    pub(super) found: std::result::Result<usize, usize>,
}

/// An entry's payload, ready to be put into a node.
pub(super) enum Stored<'v> {
    Inline(&'v [u8]),
    Overflow(RawOverflow),
}

impl Stored<'_> {
    pub(super) fn payload(&self) -> Payload<'_> {
        match self {
            Stored::Inline(bytes) => Payload {
                bytes,
                overflow: false,
            },
            Stored::Overflow(raw) => Payload {
                bytes: raw.as_bytes(),
                overflow: true,
            },
        }
    }
}

impl Tx<'_> {
    /// Inserts a key or replaces its value. True: the key is new.
    pub fn tree_insert(
        &mut self,
        id: ObjectId,
        tree: Tree,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool> {
        let before = self.put_key(TreeId { object: id, tree }, key, value, &mut [])?;
        Ok(before.is_none())
    }

    /// As [`Tx::tree_insert`]; copies a value that was there to `before` if it fits, and returns
    /// its length, as [`Tx::tree_take`].
    pub fn tree_put(
        &mut self,
        id: ObjectId,
        tree: Tree,
        key: &[u8],
        value: &[u8],
        before: &mut [u8],
    ) -> Result<Option<usize>> {
        self.put_key(TreeId { object: id, tree }, key, value, before)
    }

    #[inline]
    fn put_key(
        &mut self,
        which: TreeId,
        key: &[u8],
        value: &[u8],
        before: &mut [u8],
    ) -> Result<Option<usize>> {
        check_key(key)?;
        let (id, tree) = (which.object, which.tree);
        let owner = self.tree_owner(id, tree)?;
        // Of a directory that there is not yet nobody knows a name.
        if !owner.fresh {
            self.change_name(id, owner.generation, tree, key);
        }
        let stored = self.store_value(which, key, value)?;
        let key = SearchKey::new(key);
        let Some(root) = owner.root else {
            self.plant(which, &key, stored.payload())?;
            self.count_keys(id, tree, 1)?;
            return Ok(None);
        };
        if let Stored::Inline(value) = stored
            && self.patch_insert(which, root, &key, value)?
        {
            self.count_keys(id, tree, 1)?;
            return Ok(None);
        }
        self.settle()?;
        let mut path = self.descend(which, root, &key)?;
        self.level(which, &mut path)?;
        match path.found {
            Ok(index) => {
                let slot = self.leave_value(which, path.leaf, index, before)?;
                let len = if slot.overflow { 0 } else { slot.value_len };
                self.replace(which, &mut path, index, &key, stored.payload())?;
                Ok(Some(len))
            }
            Err(index) => {
                self.insert_entry(which, &mut path, index, &key, stored.payload())?;
                self.count_keys(id, tree, 1)?;
                Ok(None)
            }
        }
    }

    /// Removes a key. False: it was not there.
    pub fn tree_remove(&mut self, id: ObjectId, tree: Tree, key: &[u8]) -> Result<bool> {
        Ok(self.tree_take(id, tree, key, &mut [])?.is_some())
    }

    /// Removes a key, and copies its value to `value` if it fits; returns the value's length, 0 for
    /// one that lies out of line. `None`: it was not there.
    pub fn tree_take(
        &mut self,
        id: ObjectId,
        tree: Tree,
        key: &[u8],
        value: &mut [u8],
    ) -> Result<Option<usize>> {
        check_key(key)?;
        let which = TreeId { object: id, tree };
        let owner = self.tree_owner(id, tree)?;
        let Some(root) = owner.root else {
            return Ok(None);
        };
        self.change_name(id, owner.generation, tree, key);
        let search = SearchKey::new(key);
        if let Some(len) = self.patch_remove(which, root, &search, value)? {
            self.count_keys(id, tree, -1)?;
            return Ok(Some(len));
        }
        self.settle()?;
        let mut path = self.descend(which, root, &search)?;
        let Ok(index) = path.found else {
            return Ok(None);
        };
        self.level(which, &mut path)?;
        let slot = self.leave_value(which, path.leaf, index, value)?;
        let len = if slot.overflow { 0 } else { slot.value_len };
        self.edit(which, path.leaf, |leaf| leaf.remove_slot(index, &slot))?;
        self.count_keys(id, tree, -1)?;
        self.shrink(which, &path)?;
        Ok(Some(len))
    }

    /// Reads a key's value into `value` as the transaction sees it; false when it is not there.
    pub fn tree_get(
        &mut self,
        id: ObjectId,
        tree: Tree,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool> {
        check_key(key)?;
        self.settle()?;
        let which = TreeId { object: id, tree };
        let Some(root) = self.tree_owner(id, tree)?.root else {
            return Ok(false);
        };
        let path = self.descend(which, root, &SearchKey::new(key))?;
        let Ok(index) = path.found else {
            return Ok(false);
        };
        let view = self.page(which, path.leaf, None)?;
        let damaged = |Damaged| self.store.damaged(which, path.leaf);
        let slot = view.slot(index).map_err(damaged)?;
        let read = self.store.value_now(which, path.leaf, &view, &slot, value);
        read.map(|()| true)
    }

    pub(super) fn descend(&self, which: TreeId, root: UnitNo, key: &SearchKey<'_>) -> Result<Path> {
        let descend = || self.descend_once(which, root, key);
        descend().or_else(|error| self.store.once_more(error, descend))
    }

    #[inline(always)]
    fn descend_once(&self, which: TreeId, root: UnitNo, key: &SearchKey<'_>) -> Result<Path> {
        let mut steps = SmallVec::new();
        let (mut unit, mut above) = (root, None);
        for _ in 0..MAX_DEPTH {
            let pass = match self.node_image(unit) {
                Some(image) => self
                    .image_view(which, image)
                    .and_then(|view| pass(&view, which, key)),
                None => pass(&self.store.node(which, unit, above)?, which, key),
            };
            match pass.map_err(|Damaged| self.store.damaged(which, unit))? {
                Pass::Here(found) => {
                    return Ok(Path {
                        steps,
                        leaf: unit,
                        found,
                    });
                }
                Pass::Below(index, child, level) => {
                    steps.push(PathNode { unit, index });
                    (unit, above) = (child, Some(level));
                }
            }
        }
        Err(self.store.damaged(which, root))
    }

    /// A node as the transaction sees it.
    pub(super) fn page(
        &self,
        which: TreeId,
        unit: UnitNo,
        above: Option<u8>,
    ) -> Result<View<TxPage<'_>>> {
        let Some(image) = self.node_image(unit) else {
            let view = self.store.node(which, unit, above)?;
            return Ok(view.map(TxPage::Media));
        };
        let view = self.image_view(which, image);
        let view = view.map_err(|_| self.store.damaged(which, unit))?;
        Ok(view.map(TxPage::Image))
    }

    fn image_view<'t>(
        &'t self,
        which: TreeId,
        image: &'t NodeImage,
    ) -> std::result::Result<View<ImagePage<'t>>, Damaged> {
        let media = MediaPage::new(&self.store.volume, image.unit);
        View::open(ImagePage { image, media }, which.object, which.tree)
    }

    /// Changes the copy of a node, of head, index and new entries only, making the copy first if
    /// need be.
    pub(super) fn edit<T>(
        &mut self,
        which: TreeId,
        unit: UnitNo,
        change: impl FnOnce(&mut NodeImage) -> std::result::Result<T, Damaged>,
    ) -> Result<T> {
        let index = self.load(which, unit)?;
        let store = self.store;
        change(&mut self.scratch.nodes[index]).map_err(|Damaged| store.damaged(which, unit))
    }

    /// As [`Tx::edit`], of the whole node.
    pub(super) fn edit_whole<T>(
        &mut self,
        which: TreeId,
        unit: UnitNo,
        change: impl FnOnce(&mut NodeImage) -> std::result::Result<T, Damaged>,
    ) -> Result<T> {
        self.load_whole(which, unit)?;
        self.edit(which, unit, change)
    }

    /// Index of the copy of a node, of which head and index have been copied at least.
    #[inline]
    pub(super) fn load(&mut self, which: TreeId, unit: UnitNo) -> Result<usize> {
        match self.scratch.node_index(unit) {
            Some(index) => Ok(index),
            None => self.load_first(which, unit),
        }
    }

    #[inline(never)]
    fn load_first(&mut self, which: TreeId, unit: UnitNo) -> Result<usize> {
        let view = self.store.node(which, unit, None)?;
        // Some words more: the log takes short gaps between changes along.
        let len = (index_at(view.count()).next_multiple_of(GRAIN) + LOG_GAP).min(NODE_BYTES);
        let volume = &self.store.volume;
        let copy = |bytes: &mut [u8]| volume.read(unit.offset(), &mut bytes[..len]);
        let index = self
            .scratch
            .add_image(which.object, which.tree, unit, false, copy);
        self.scratch.nodes[index].begin(len);
        if self.places_entries {
            self.scratch.nodes[index].add_room();
        }
        Ok(index)
    }

    /// Index of the whole copy of a node.
    pub(super) fn load_whole(&mut self, which: TreeId, unit: UnitNo) -> Result<usize> {
        let index = self.load(which, unit)?;
        let node = &mut self.scratch.nodes[index];
        if !node.is_whole() {
            let rest = VolumeOffset(unit.offset().0 + node.loaded as u64);
            self.store.volume.read(rest, &mut node.bytes[node.loaded..]);
            node.loaded = NODE_BYTES;
        }
        Ok(index)
    }

    pub(super) fn new_node(&mut self, which: TreeId, level: u8) -> Result<usize> {
        let unit = self.take_unit()?;
        let index = self
            .scratch
            .add_image(which.object, which.tree, unit, true, |_| {});
        self.scratch.nodes[index].reset(level);
        Ok(index)
    }

    pub(super) fn free_node(&mut self, unit: UnitNo) {
        if let Some(index) = self.scratch.node_index(unit) {
            self.scratch.nodes[index].freed = true;
        }
        self.free_after_commit(Run {
            start: unit,
            count: 1,
        });
    }

    /// The first leaf of an empty tree.
    pub(super) fn plant(
        &mut self,
        which: TreeId,
        key: &SearchKey<'_>,
        payload: Payload<'_>,
    ) -> Result<()> {
        let index = self.new_node(which, 0)?;
        let leaf = &mut self.scratch.nodes[index];
        let unit = leaf.unit;
        let fits = leaf.insert(0, key, payload);
        self.must_fit(which, unit, fits)?;
        self.set_root_unit(which.object, which.tree, Some(unit))
    }

    fn replace(
        &mut self,
        which: TreeId,
        path: &mut Path,
        index: usize,
        key: &SearchKey<'_>,
        payload: Payload<'_>,
    ) -> Result<()> {
        let is_done = match self.places_entries {
            true => self.replace_placed(which, path.leaf, index, key, payload)?,
            false => self.edit_whole(which, path.leaf, |leaf| leaf.overwrite(index, payload))?,
        };
        if is_done {
            return Ok(());
        }
        self.edit_whole(which, path.leaf, |leaf| leaf.remove(index))?;
        self.insert_entry(which, path, index, key, payload)
    }

    /// Inserts at `index` of the leaf, splitting upwards as far as needed.
    pub(super) fn insert_entry(
        &mut self,
        which: TreeId,
        path: &mut Path,
        index: usize,
        key: &SearchKey<'_>,
        payload: Payload<'_>,
    ) -> Result<()> {
        if self.edit(which, path.leaf, |leaf| leaf.insert(index, key, payload))? {
            return Ok(());
        }
        if self.places_entries {
            self.make_way(which, path, index, (key, payload))?;
        }
        if self.edit_whole(which, path.leaf, |leaf| leaf.insert(index, key, payload))? {
            return Ok(());
        }
        let (right, separator) = self.split(which, path.leaf, index, key, payload)?;
        self.link_right(which, path, right, separator)
    }

    /// Makes the nodes above lead to `right`, the new neighbour of the leaf, whose keys are from
    /// `separator` on; splits upwards as far as needed.
    #[inline]
    pub(super) fn link_right(
        &mut self,
        which: TreeId,
        path: &Path,
        mut right: UnitNo,
        mut separator: Vec<u8>,
    ) -> Result<()> {
        for step in path.steps.iter().rev() {
            let word = child_word(which, right);
            let child = Payload {
                bytes: &word,
                overflow: false,
            };
            let key = SearchKey::new(&separator);
            if self.put(which, step.unit, step.index + 1, &key, child)? {
                return Ok(());
            }
            (right, separator) = self.split(which, step.unit, step.index + 1, &key, child)?;
        }
        self.grow_root(which, path, right, &separator)
    }

    /// Inserts an entry into one node; false if that is full.
    fn put(
        &mut self,
        which: TreeId,
        unit: UnitNo,
        index: usize,
        key: &SearchKey<'_>,
        payload: Payload<'_>,
    ) -> Result<bool> {
        Ok(
            self.edit(which, unit, |node| node.insert(index, key, payload))?
                || self.edit_whole(which, unit, |node| node.insert(index, key, payload))?,
        )
    }

    fn grow_root(
        &mut self,
        which: TreeId,
        path: &Path,
        right: UnitNo,
        separator: &[u8],
    ) -> Result<()> {
        if path.steps.len() + 2 > MAX_DEPTH {
            return Err(StoreError::NoSpace);
        }
        let left = path.steps.first().map_or(path.leaf, |step| step.unit);
        let root = self.new_node(which, path.steps.len() as u8 + 1)?;
        let image = &mut self.scratch.nodes[root];
        let unit = image.unit;
        for (index, (key, child)) in [(&[][..], left), (separator, right)]
            .into_iter()
            .enumerate()
        {
            let word = child_word(which, child);
            let payload = Payload {
                bytes: &word,
                overflow: false,
            };
            let fits = self.scratch.nodes[root].insert(index, &SearchKey::new(key), payload);
            self.must_fit(which, unit, fits)?;
        }
        self.set_root_unit(which.object, which.tree, Some(unit))
    }

    /// Splits a full node while inserting an entry at `index`; returns the new right node and the
    /// lowest key that goes there.
    fn split(
        &mut self,
        which: TreeId,
        unit: UnitNo,
        index: usize,
        key: &SearchKey<'_>,
        payload: Payload<'_>,
    ) -> Result<(UnitNo, Vec<u8>)> {
        let left = self.load_whole(which, unit)?;
        let level = self.scratch.nodes[left].level();
        let right = self.new_node(which, level)?;
        let nodes = self.scratch.nodes.get_disjoint_mut([left, right]);
        let done = nodes.map_err(|_| Damaged).and_then(|[left, right]| {
            let separator = divide(left, right, index, key, payload)?;
            Ok((right.unit, separator))
        });
        done.map_err(|Damaged| self.store.damaged(which, unit))
    }

    /// Writes a long value out of line; short ones stay as they are.
    pub(super) fn store_value<'v>(
        &mut self,
        which: TreeId,
        key: &[u8],
        value: &'v [u8],
    ) -> Result<Stored<'v>> {
        if value.len() > VALUE_MAX {
            return Err(StoreError::Invalid("value longer than 64 KiB"));
        }
        if key.len() + value.len() <= INLINE_ENTRY_MAX {
            return Ok(Stored::Inline(value));
        }
        let count = (value.len() as u64).div_ceil(UNIT_SIZE);
        let run = self.store.take_space(|alloc| alloc.take_exact(count))?;
        self.adopt(run);
        let stores = self
            .store
            .volume
            .write(run.start.offset(), value, StoreKind::Metadata);
        self.fresh(stores);
        Ok(Stored::Overflow(RawOverflow {
            unit: CheckedWord::seal(run.start.0, tree_salt(which.object))
                .0
                .into(),
            len: (value.len() as u32).into(),
            crc: crc32c(value).into(),
        }))
    }

    /// The value of an entry is about to go: copies it to `value` if it fits, or frees it if it is
    /// out of line. Returns the entry.
    fn leave_value(
        &mut self,
        which: TreeId,
        leaf: UnitNo,
        index: usize,
        value: &mut [u8],
    ) -> Result<Slot> {
        let view = self.page(which, leaf, None)?;
        let damaged = |Damaged| self.store.damaged(which, leaf);
        let slot = view.slot(index).map_err(damaged)?;
        if slot.overflow {
            let raw = view.overflow(&slot).map_err(damaged)?;
            self.free_after_commit(self.store.long_value(which, leaf, &raw)?.run());
        } else if slot.value_len <= value.len() {
            view.value_prefix(&slot, value);
        }
        Ok(slot)
    }

    pub(super) fn must_fit(
        &self,
        which: TreeId,
        unit: UnitNo,
        fits: std::result::Result<bool, Damaged>,
    ) -> Result<()> {
        match fits {
            Ok(true) => Ok(()),
            _ => Err(self.store.damaged(which, unit)),
        }
    }
}

/// The next step of a descent.
fn pass<P: Page>(
    view: &View<P>,
    which: TreeId,
    key: &SearchKey<'_>,
) -> std::result::Result<Pass, Damaged> {
    if view.is_leaf() {
        return Ok(Pass::Here(view.find(key)?));
    }
    let index = view.find_child(key)?;
    let child = view.child(index, which.object)?;
    Ok(Pass::Below(index, child, view.level()))
}

pub(super) fn child_word(which: TreeId, child: UnitNo) -> [u8; 8] {
    CheckedWord::seal(child.0, tree_salt(which.object))
        .0
        .to_le_bytes()
}

/// Moves the entries of a leaf from `index` on, before which `key` will come, to the empty `right`;
/// returns the shortest key that tells both apart.
pub(super) fn cut(
    left: &mut NodeImage,
    right: &mut NodeImage,
    index: usize,
    key: &[u8],
) -> std::result::Result<Vec<u8>, Damaged> {
    let view = left.view()?;
    let mut separator = view.key(&view.slot(index)?).to_vec();
    append(right, &view, index..view.count())?;
    left.truncate(index)?;
    shorten_above(key, &mut separator);
    Ok(separator)
}

/// Moves the upper part of `left` and perhaps the new entry to the empty `right`; returns the
/// lowest key of `right`, which in an inner node is stored as the empty key.
fn divide(
    left: &mut NodeImage,
    right: &mut NodeImage,
    index: usize,
    key: &SearchKey<'_>,
    payload: Payload<'_>,
) -> std::result::Result<Vec<u8>, Damaged> {
    let need = INDEX_BYTES + entry_len(key.bytes.len(), payload.bytes.len());
    let (middle, goes_right) = split_point(left, index, need)?;
    let inner = left.level() > 0;
    let view = left.view()?;
    let new = (key.bytes, payload);
    let mut rest = middle..view.count();
    let (lowest, first) = if goes_right && index == middle {
        new
    } else {
        let slot = view.slot(middle)?;
        rest.start += 1;
        (view.key(&slot), payload_of(&view, &slot))
    };
    let mut separator = lowest.to_vec();
    push(right, if inner { &[] } else { lowest }, first)?;
    if goes_right && index > middle {
        append(right, &view, rest.start..index)?;
        push(right, new.0, new.1)?;
        rest.start = index;
    }
    append(right, &view, rest)?;
    left.truncate(middle)?;
    if !goes_right && !left.insert(index, key, payload)? {
        return Err(Damaged);
    }
    if !inner {
        shorten(left, &mut separator)?;
    }
    Ok(separator)
}

/// Inserts an entry behind all others, for which there is room.
pub(super) fn push(
    node: &mut NodeImage,
    key: &[u8],
    payload: Payload<'_>,
) -> std::result::Result<(), Damaged> {
    match node.insert(node.count(), &SearchKey::new(key), payload)? {
        true => Ok(()),
        false => Err(Damaged),
    }
}

/// Appends entries of another node, for which there is room.
pub(super) fn append(
    node: &mut NodeImage,
    from: &View<&NodeBytes>,
    entries: Range<usize>,
) -> std::result::Result<(), Damaged> {
    match node.append(from, entries)? {
        true => Ok(()),
        false => Err(Damaged),
    }
}

pub(super) fn payload_of<'n>(view: &View<&'n NodeBytes>, slot: &Slot) -> Payload<'n> {
    Payload {
        bytes: view.value(slot),
        overflow: slot.overflow,
    }
}

/// Where to split so that both sides take about half: first entry of the right side, and whether
/// the new entry goes there too. Appending leaves the left side full: keys often come in order.
fn split_point(
    node: &NodeImage,
    index: usize,
    need: usize,
) -> std::result::Result<(usize, bool), Damaged> {
    let view = node.view()?;
    let count = view.count();
    if index == count {
        return Ok((count, true));
    }
    let half = (node.used() + need) / 2;
    let (mut sum, mut split) = (0, count);
    for virtual_index in 0..count {
        let size = match virtual_index.cmp(&index) {
            std::cmp::Ordering::Less => INDEX_BYTES + view.slot(virtual_index)?.len(),
            std::cmp::Ordering::Equal => need,
            std::cmp::Ordering::Greater => INDEX_BYTES + view.slot(virtual_index - 1)?.len(),
        };
        if virtual_index > 0 && sum + size / 2 >= half {
            split = virtual_index;
            break;
        }
        sum += size;
    }
    Ok(if index < split {
        (split - 1, false)
    } else {
        (split, true)
    })
}

/// Cuts a separator to the shortest key that is above everything in `left`.
fn shorten(left: &NodeImage, separator: &mut Vec<u8>) -> std::result::Result<(), Damaged> {
    let view = left.view()?;
    let last = view.count().checked_sub(1).ok_or(Damaged)?;
    let slot = view.slot(last)?;
    shorten_above(view.key(&slot), separator);
    Ok(())
}

/// Cuts a separator, which is above `key`, to the shortest key that is.
#[inline]
fn shorten_above(key: &[u8], separator: &mut Vec<u8>) {
    let common = key
        .iter()
        .zip(separator.iter())
        .take_while(|(a, b)| a == b)
        .count();
    separator.truncate(common + 1);
}
