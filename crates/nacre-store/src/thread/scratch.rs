//! What a transaction gathers before its commit.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;

use nacre_session::DentryBucket;
use nacre_types::{ObjectId, UnitNo, VolumeOffset};

use super::places::Places;
use super::staged::Staged;
use super::writes::Writes;
use crate::alloc::Run;
use crate::layout::{RawOnode, Tree};
use crate::log::record::{FreshBytes, Record};
use crate::node::{DirtyWords, LeafPatch, NodeBytes, NodeImage};

/// The memory that a transaction uses.
pub(crate) enum Lent<'s> {
    /// From a per-thread cache.
    Spare(MutexGuard<'s, Scratch>),
    /// Its own, if all per-thread caches are in use.
    Own(Box<Scratch>),
}

/// The DRAM side of a transaction.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) record: Record,
    pub(crate) nodes: Vec<NodeImage>,
    pub(crate) patches: Vec<LeafPatch>,
    /// Entries that patches bring.
    pub(crate) entries: Vec<u8>,
    pub(crate) onodes: Vec<OnodeImage>,
    pub(crate) times: Vec<LazyTimes>,
    pub(crate) words: Vec<(VolumeOffset, u64)>,
    /// New bytes that may become durable together with the record; meaningless but for a
    /// transaction that places entries.
    pub(crate) fresh: FreshBytes,
    pub(crate) writes: Writes,
    pub(crate) touched: Vec<ObjectId>,
    /// Of the names that change.
    pub(crate) names: Vec<DentryBucket>,
    pub(crate) adopted: Vec<Run>,
    pub(crate) frees: Vec<Run>,
    pub(crate) removed: Vec<Removed>,
    /// What is done to the bytes of objects.
    pub(crate) staged: Vec<Staged>,
    /// Root words of maps that nothing leads to after the commit.
    pub(crate) maps: Vec<(ObjectId, u64)>,
    /// Roots of trees that nothing leads to after the commit.
    pub(crate) trees: Vec<(ObjectId, Tree, UnitNo)>,
    /// The existing object that was looked for last, and its onode.
    pub(crate) found: Cell<Option<(ObjectId, VolumeOffset)>>,
    pages: Vec<Box<NodeBytes>>,
    /// The node that was looked for last: several steps in a row change the same one.
    last_node: Cell<usize>,
    node_places: Places<UnitNo>,
    onode_places: Places<ObjectId>,
    touched_places: Places<ObjectId>,
    removed_places: Places<ObjectId>,
    pub(crate) staged_places: Places<ObjectId>,
}

/// A copy of one onode.
pub(crate) struct OnodeImage {
    pub(crate) id: ObjectId,
    pub(crate) at: VolumeOffset,
    pub(crate) raw: RawOnode,
    /// The object does not exist before the commit.
    pub(crate) fresh: bool,
    /// One bit for each word that differs from the medium.
    pub(crate) dirty: u64,
    /// Mode, owner or group change: not to be told from `dirty`, as a word holds group and links.
    pub(crate) attribute_epoch: bool,
}

/// What a removed object still owns until the commit is durable.
pub(crate) struct Removed {
    pub(crate) id: ObjectId,
    pub(crate) map_root: u64,
    pub(crate) parts_root: u64,
    pub(crate) trees: [Option<u64>; 2],
}

/// Times to be stored with the commit.
pub(crate) struct LazyTimes {
    /// Of the onode.
    pub(crate) at: VolumeOffset,
    pub(crate) mtime: Option<i64>,
    pub(crate) ctime: i64,
}

impl Deref for Lent<'_> {
    type Target = Scratch;

    #[inline]
    fn deref(&self) -> &Scratch {
        match self {
            Lent::Spare(scratch) => scratch,
            Lent::Own(scratch) => scratch,
        }
    }
}

impl DerefMut for Lent<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Scratch {
        match self {
            Lent::Spare(scratch) => scratch,
            Lent::Own(scratch) => scratch,
        }
    }
}

impl Scratch {
    /// Most node buffers kept for later.
    const PAGES_KEPT: usize = 64;
    /// Lists of more changes, and records of more bytes, are not kept: few transactions are so
    /// large, and each thread has memory of its own.
    const CHANGES_KEPT: usize = 4096;
    const RECORD_KEPT: usize = 1 << 20;

    /// Empties it. Memory is kept for the next transaction unless it is much.
    pub(crate) fn clear(&mut self) {
        if self.is_large() {
            *self = Scratch::default();
            return;
        }
        if !self.nodes.is_empty() {
            let pages = self.nodes.drain(..).map(|node| node.bytes);
            self.pages.extend(pages);
            self.pages.truncate(Scratch::PAGES_KEPT);
        }
        self.patches.clear();
        self.entries.clear();
        self.found.set(None);
        self.onodes.clear();
        self.times.clear();
        self.words.clear();
        self.writes.clear();
        self.touched.clear();
        self.names.clear();
        self.adopted.clear();
        self.frees.clear();
        self.removed.clear();
        self.staged.clear();
        self.maps.clear();
        self.trees.clear();
        self.node_places.clear();
        self.onode_places.clear();
        self.touched_places.clear();
        self.removed_places.clear();
        self.staged_places.clear();
    }

    fn is_large(&self) -> bool {
        let changes = self.nodes.len() + self.onodes.len() + self.frees.len() + self.patches.len();
        changes > Scratch::CHANGES_KEPT || self.record.memory() > Scratch::RECORD_KEPT
    }

    #[inline]
    pub(crate) fn onode_index(&self, id: ObjectId) -> Option<usize> {
        if self.onodes.is_empty() {
            return None;
        }
        self.onode_places.find(&self.onodes, id, |onode| onode.id)
    }

    #[inline]
    pub(crate) fn onode(&self, id: ObjectId) -> Option<&OnodeImage> {
        self.onode_index(id).map(|index| &self.onodes[index])
    }

    pub(crate) fn onode_mut(&mut self, id: ObjectId) -> Option<&mut OnodeImage> {
        self.onode_index(id).map(|index| &mut self.onodes[index])
    }

    pub(crate) fn add_onode(&mut self, onode: OnodeImage) {
        self.onodes.push(onode);
        self.onode_places.pushed(&self.onodes, |onode| onode.id);
    }

    /// Takes the memory of onodes that will be added.
    pub(crate) fn expect_onodes(&mut self, count: usize) {
        self.onodes.reserve(count);
        self.onode_places.expect(self.onodes.len() + count);
    }

    #[inline]
    pub(crate) fn is_removed(&self, id: ObjectId) -> bool {
        if self.removed.is_empty() {
            return false;
        }
        let found = self
            .removed_places
            .find(&self.removed, id, |removed| removed.id);
        found.is_some()
    }

    pub(crate) fn add_removed(&mut self, removed: Removed) {
        self.removed.push(removed);
        self.removed_places
            .pushed(&self.removed, |removed| removed.id);
    }

    /// The copy of a node, if the transaction has not freed it since.
    #[inline]
    pub(crate) fn node_index(&self, unit: UnitNo) -> Option<usize> {
        let is_it = |node: &NodeImage| node.unit == unit && !node.freed;
        if self.nodes.get(self.last_node.get()).is_some_and(is_it) {
            return Some(self.last_node.get());
        }
        self.find_node(unit)
    }

    fn find_node(&self, unit: UnitNo) -> Option<usize> {
        // A unit that was freed may have been taken again: the last image counts.
        let found = self.node_places.find(&self.nodes, unit, |node| node.unit);
        let found =
            found.filter(|&index| !self.nodes[index].freed && self.nodes[index].unit == unit);
        found.inspect(|&index| self.last_node.set(index))
    }

    /// Turns a copy of a node into that of one at another place.
    pub(crate) fn place_image(&mut self, index: usize, place: UnitNo) {
        self.nodes[index].place_at(place);
        self.node_places.moved(&self.nodes, index, |node| node.unit);
    }

    /// Adds a copy of a node, filled by `fill`; returns its index.
    pub(crate) fn add_image(
        &mut self,
        owner: ObjectId,
        tree: Tree,
        unit: UnitNo,
        fresh: bool,
        fill: impl FnOnce(&mut [u8]),
    ) -> usize {
        let spare = self.pages.pop();
        let mut bytes = spare.unwrap_or_else(|| Box::new([0; size_of::<NodeBytes>()]));
        fill(&mut bytes[..]);
        let image = NodeImage {
            unit,
            owner,
            tree,
            fresh,
            freed: false,
            dirty: DirtyWords::default(),
            spare: DirtyWords::default(),
            entries_crc: 0,
            loaded: size_of::<NodeBytes>(),
            bytes,
        };
        self.nodes.push(image);
        self.node_places.pushed(&self.nodes, |node| node.unit);
        self.nodes.len() - 1
    }

    /// Whether nodes of a tree are new or changed.
    pub(crate) fn has_nodes(&self, id: ObjectId, tree: Tree) -> bool {
        let mut nodes = self.nodes.iter();
        nodes.any(|node| node.owner == id && node.tree == tree && !node.freed)
    }

    /// Remembers that an object changes that was there before.
    pub(crate) fn touch(&mut self, id: ObjectId) {
        let known = self.touched_places.find(&self.touched, id, |&id| id);
        if known.is_none() {
            self.touched.push(id);
            self.touched_places.pushed(&self.touched, |&id| id);
        }
    }

    pub(crate) fn staged_index(&self, id: ObjectId) -> Option<usize> {
        self.staged_places.find(&self.staged, id, |s| s.id)
    }

    pub(crate) fn add_staged(&mut self, staged: Staged) -> usize {
        self.staged.push(staged);
        self.staged_places.pushed(&self.staged, |s| s.id);
        self.staged.len() - 1
    }
}
