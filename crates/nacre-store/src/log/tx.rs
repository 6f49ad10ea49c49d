//! Transactions: changes gathered in DRAM copies, made durable all at once.
//!
//! Nothing is visible to others before [`Tx::commit`]. The caller holds the lock of every object
//! that it changes; objects that the transaction creates are locked by itself until it ends.

use std::cell::Cell;
use std::mem::offset_of;
use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;

use nacre_session::{DentryBucket, DentryKey};
use nacre_types::{CheckedWord, ObjectId, StoreKind, UnitNo, VolumeOffset};
use nacre_volume::Unfenced;
use smallvec::SmallVec;
use zerocopy::{FromZeros, IntoBytes};

use crate::alloc::Run;
use crate::data::Staged;
use crate::error::{Result, StoreError};
use crate::layout::{
    INLINE_MAX, ONODE_GENERATION_AT, ONODE_MODE_AT, ONODE_SIZE, RawOnode, Tree, size_salt,
    split_entry_key, tree_salt,
};
use crate::log::places::Places;
use crate::log::record::Record;
use crate::object::lock::ObjectGuard;
use crate::object::onode::{Attrs, NewObject, open_root, root_field};
use crate::store::Store;
use crate::tree::{DirtyWords, LeafPatch, NodeBytes, NodeImage};

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
    pub(crate) writes: Vec<(VolumeOffset, Vec<u8>, StoreKind)>,
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
    /// The existing object that was looked for last, and its onode.
    found: Cell<Option<(ObjectId, VolumeOffset)>>,
    pages: Vec<Box<NodeBytes>>,
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

/// Changes a field of an onode's image if need be.
macro_rules! put {
    ($onode:expr, $field:ident, $value:expr) => {
        put_at(
            &mut $onode.dirty,
            offset_of!(RawOnode, $field),
            &mut $onode.raw.$field,
            $value,
        )
    };
}

impl OnodeImage {
    /// Takes over what may be changed of the attributes.
    fn set_attrs(&mut self, attrs: &Attrs) {
        let size = CheckedWord::seal(attrs.size, size_salt(self.id)).0;
        let raw = &self.raw;
        let before = (raw.mode.get(), raw.uid.get(), raw.gid.get());
        self.attribute_epoch |= before != (attrs.mode, attrs.uid, attrs.gid);
        put!(self, mode, attrs.mode);
        put!(self, uid, attrs.uid);
        put!(self, gid, attrs.gid);
        put!(self, nlink, attrs.nlink);
        put!(self, rdev, attrs.rdev);
        put!(self, flags, attrs.flags);
        put!(self, parent, attrs.parent);
        put!(self, parent_key, attrs.parent_key);
        put!(self, atime, attrs.atime);
        put!(self, mtime, attrs.mtime);
        put!(self, ctime, attrs.ctime);
        put!(self, size, size);
    }
}

/// The bit of the word of an onode that holds the field at `at`.
pub(crate) const fn word_bit(at: usize) -> u64 {
    1 << (at / 8)
}

/// Changes the field at `at` of an onode if need be.
#[inline]
fn put_at<T: PartialEq>(dirty: &mut u64, at: usize, field: &mut T, value: impl Into<T>) {
    let value = value.into();
    if *field != value {
        *field = value;
        *dirty |= word_bit(at);
    }
}

/// What a change of a tree needs to know of its object.
pub(crate) struct TreeOwner {
    pub(crate) root: Option<UnitNo>,
    pub(crate) generation: u32,
}

/// What a removed object still owns until the commit is durable.
pub(crate) struct Removed {
    pub(crate) id: ObjectId,
    pub(crate) map_root: u64,
    pub(crate) trees: [Option<u64>; 2],
}

impl Removed {
    /// `word` gives the word of the onode at `at` that begins at an offset in it.
    fn new(id: ObjectId, at: VolumeOffset, word: impl Fn(usize) -> u64) -> Result<Removed> {
        let root = |tree| open_root(word(root_field(tree)), id, at);
        Ok(Removed {
            id,
            map_root: word(offset_of!(RawOnode, root)),
            trees: [root(Tree::Entries)?, root(Tree::Xattrs)?],
        })
    }
}

/// Times to be stored with the commit.
pub(crate) struct LazyTimes {
    /// Of the onode.
    pub(crate) at: VolumeOffset,
    pub(crate) mtime: Option<i64>,
    pub(crate) ctime: i64,
}

/// A transaction; dropped without [`Tx::commit`] it leaves no trace.
pub struct Tx<'s> {
    pub(crate) store: &'s Store,
    pub(crate) scratch: Lent<'s>,
    pub(crate) created: SmallVec<[ObjectGuard<'s>; 1]>,
    pub(crate) published: Option<Unfenced>,
    pub(crate) committed: bool,
    /// A record may be longer than a lane holds.
    pub(crate) any_size: bool,
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

    fn clear(&mut self) {
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
        self.node_places.clear();
        self.onode_places.clear();
        self.touched_places.clear();
        self.removed_places.clear();
        self.staged_places.clear();
    }

    fn onode_index(&self, id: ObjectId) -> Option<usize> {
        self.onode_places.find(&self.onodes, id, |onode| onode.id)
    }

    fn onode(&self, id: ObjectId) -> Option<&OnodeImage> {
        self.onode_index(id).map(|index| &self.onodes[index])
    }

    fn onode_mut(&mut self, id: ObjectId) -> Option<&mut OnodeImage> {
        self.onode_index(id).map(|index| &mut self.onodes[index])
    }

    fn add_onode(&mut self, onode: OnodeImage) {
        self.onodes.push(onode);
        self.onode_places.pushed(&self.onodes, |onode| onode.id);
    }

    fn is_removed(&self, id: ObjectId) -> bool {
        let found = self
            .removed_places
            .find(&self.removed, id, |removed| removed.id);
        found.is_some()
    }

    fn add_removed(&mut self, removed: Removed) {
        self.removed.push(removed);
        self.removed_places
            .pushed(&self.removed, |removed| removed.id);
    }
}

impl Store {
    /// Begins a transaction.
    pub fn begin(&self) -> Result<Tx<'_>> {
        if !self.writable {
            return Err(StoreError::ReadOnly);
        }
        Ok(Tx {
            store: self,
            scratch: self.thread_caches.lend(),
            created: SmallVec::new(),
            published: None,
            committed: false,
            any_size: false,
        })
    }
}

impl<'s> Tx<'s> {
    /// Creates an object. It is locked by the transaction until that ends: do not lock it before.
    pub fn create(&mut self, new: &NewObject) -> Result<ObjectId> {
        if new.mode == 0 {
            return Err(StoreError::Invalid("mode 0"));
        }
        let guard = self.store.take_object()?;
        let id = guard.id();
        self.created.push(guard);
        let at = self.store.onode_at(id)?;
        let last_life = self.store.volume.checked_range::<ONODE_SIZE>(at);
        if last_life.u32(ONODE_MODE_AT as usize) != 0 {
            // The number stays taken: trying it again would fail again.
            self.created.pop();
            return Err(StoreError::corrupt(Some(id), "object bitmap", at));
        }
        if !self.store.is_verified(at.unit()) {
            // As soon as possible: an onode that was made in this session need not be checked.
            self.store.verify_onode(id, at)?;
        }
        let generation = last_life.u32(ONODE_GENERATION_AT as usize).wrapping_add(1);
        let raw = fresh_onode(new, id, generation);
        self.scratch.add_onode(OnodeImage {
            id,
            at,
            raw,
            fresh: true,
            dirty: 0,
            attribute_epoch: false,
        });
        self.touch_id(id);
        Ok(id)
    }

    /// The attributes of an object as the transaction sees them.
    pub fn attrs(&self, id: ObjectId) -> Result<Attrs> {
        if self.scratch.is_removed(id) {
            return Err(StoreError::NoSuchObject(id));
        }
        match self.scratch.onode(id) {
            Some(onode) => Attrs::decode(&onode.raw, id, onode.at),
            None => self.store.attrs_now(id),
        }
    }

    /// The generation of an object that the transaction creates or changes.
    pub fn generation(&self, id: ObjectId) -> Result<u32> {
        let onode = self.scratch.onode(id);
        onode
            .map(|onode| onode.raw.generation.get())
            .ok_or(StoreError::NoSuchObject(id))
    }

    /// Sets times of an object by stores that may lag (I7): change, and modification if told.
    /// [`Tx::attrs`] does not see them.
    pub fn touch_times(&mut self, id: ObjectId, mtime: Option<i64>, ctime: i64) -> Result<()> {
        let at = self.onode_to_change(id)?;
        self.scratch.times.push(LazyTimes { at, mtime, ctime });
        self.touch_id(id);
        Ok(())
    }

    /// Changes attributes. `size` may be changed for objects without file data only; `units`,
    /// `btime`, `generation`, `has_entries` and `xattrs` are not taken over.
    pub fn set_attrs(&mut self, id: ObjectId, change: impl FnOnce(&mut Attrs)) -> Result<()> {
        let onode = self.onode_mut(id)?;
        let mut attrs = Attrs::decode(&onode.raw, id, onode.at)?;
        change(&mut attrs);
        if attrs.mode == 0 || attrs.size > CheckedWord::MAX {
            return Err(StoreError::Invalid("mode or size"));
        }
        onode.set_attrs(&attrs);
        Ok(())
    }

    /// Sets the inline bytes (the target of a short symbolic link).
    pub fn set_inline(&mut self, id: ObjectId, bytes: &[u8]) -> Result<()> {
        if bytes.len() > INLINE_MAX {
            return Err(StoreError::Invalid("more bytes than an onode holds"));
        }
        let onode = self.onode_mut(id)?;
        onode.raw.inline = [0; INLINE_MAX];
        onode.raw.inline[..bytes.len()].copy_from_slice(bytes);
        let words = (1 << (INLINE_MAX / 8)) - 1;
        onode.dirty |= words << (offset_of!(RawOnode, inline) / 8);
        put!(onode, inline_len, bytes.len() as u32);
        Ok(())
    }

    /// Removes an object with its trees and file data, whose units are free after the commit.
    /// Nothing else may be changed of it behind that.
    pub fn remove(&mut self, id: ObjectId) -> Result<()> {
        let at = self.onode_to_change(id)?;
        self.unstage(id);
        if let Some(onode) = self.scratch.onode_mut(id) {
            let removed = Removed::new(id, at, |field| word_of(&onode.raw, field))?;
            // All else means nothing in a free onode.
            put!(onode, mode, 0);
            self.scratch.add_removed(removed);
            return Ok(());
        }
        let onode = self.store.volume.checked_range::<ONODE_SIZE>(at);
        let removed = Removed::new(id, at, |field| onode.word(field / 8))?;
        const { assert!(offset_of!(RawOnode, mode) + 4 == offset_of!(RawOnode, uid)) };
        let mode = offset_of!(RawOnode, mode);
        let word = onode.word(mode / 8) & !u64::from(u32::MAX);
        self.scratch.add_removed(removed);
        self.put_word(VolumeOffset(at.0 + mode as u64), word);
        self.touch_id(id);
        Ok(())
    }

    /// Lets the transaction change more than one log record holds: the rest of the record then lies
    /// in free units.
    pub fn allow_any_size(&mut self) {
        self.any_size = true;
    }

    /// Where the onode of an object lies whose bytes the transaction changes.
    pub(crate) fn change_data_of(&mut self, id: ObjectId) -> Result<VolumeOffset> {
        let at = self.onode_to_change(id)?;
        self.touch_id(id);
        Ok(at)
    }

    /// Whether the transaction creates an object.
    pub fn is_created(&self, id: ObjectId) -> bool {
        self.scratch.onode(id).is_some_and(|onode| onode.fresh)
    }

    /// The block map of an object that the transaction creates.
    pub(crate) fn set_fresh_map(&mut self, id: ObjectId, root: u64, mapped: u64) {
        if let Some(onode) = self.scratch.onode_mut(id) {
            onode.raw.root = root.into();
            onode.raw.mapped = mapped.into();
        }
    }

    /// The size word of an object that the transaction creates.
    pub(crate) fn set_fresh_size(&mut self, id: ObjectId, word: u64) {
        if let Some(onode) = self.scratch.onode_mut(id) {
            onode.raw.size = word.into();
        }
    }

    /// One 8-byte store, all or nothing with the rest. `at` is 8-aligned.
    pub(crate) fn put_word(&mut self, at: VolumeOffset, word: u64) {
        debug_assert!(at.is_aligned(8));
        self.scratch.words.push((at, word));
    }

    /// Bytes that go to `at`, all or nothing with the rest.
    pub(crate) fn put_bytes(&mut self, at: VolumeOffset, bytes: &[u8], kind: StoreKind) {
        self.scratch.writes.push((at, bytes.to_vec(), kind));
    }

    /// Stores already made to units that nobody reaches before the commit.
    pub(crate) fn fresh(&mut self, stores: Unfenced) {
        self.published = Some(match self.published.take() {
            Some(before) => before.and(stores),
            None => stores,
        });
    }

    /// Units that are free again if the transaction does not commit.
    pub(crate) fn adopt(&mut self, run: Run) {
        self.scratch.adopted.push(run);
    }

    /// Units that are free once the commit is durable.
    pub(crate) fn free_after_commit(&mut self, run: Run) {
        self.scratch.frees.push(run);
    }

    /// Takes one unit that an abort gives back.
    pub(crate) fn take_unit(&mut self) -> Result<UnitNo> {
        let unit = self.store.take_space(|alloc| alloc.take_one(None))?;
        self.adopt(Run {
            start: unit,
            count: 1,
        });
        Ok(unit)
    }

    /// Root and generation of an object whose tree is to be changed.
    pub(crate) fn tree_owner(&self, id: ObjectId, tree: Tree) -> Result<TreeOwner> {
        let at = self.onode_to_change(id)?;
        let (root, generation) = match self.scratch.onode(id) {
            Some(onode) => (
                word_of(&onode.raw, root_field(tree)),
                onode.raw.generation.get(),
            ),
            None => {
                let onode = self.store.volume.checked_range::<ONODE_SIZE>(at);
                let root = onode.word(root_field(tree) / 8);
                (root, onode.u32(ONODE_GENERATION_AT as usize))
            }
        };
        let root = open_root(root, id, at)?.map(UnitNo);
        Ok(TreeOwner { root, generation })
    }

    pub(crate) fn set_root_unit(
        &mut self,
        id: ObjectId,
        tree: Tree,
        root: Option<UnitNo>,
    ) -> Result<()> {
        let word = root.map_or(0, |unit| CheckedWord::seal(unit.0, tree_salt(id)).0);
        let onode = self.onode_mut(id)?;
        match tree {
            Tree::Entries => put!(onode, entries_root, word),
            Tree::Xattrs => put!(onode, xattrs_root, word),
        }
        Ok(())
    }

    /// Adds to an object's count of attributes. Entries are not counted: each change would write
    /// the onode, too.
    pub(crate) fn count_keys(&mut self, id: ObjectId, tree: Tree, by: i64) -> Result<()> {
        if tree == Tree::Xattrs {
            let onode = self.onode_mut(id)?;
            let sum = onode.raw.xattrs.get().saturating_add_signed(by);
            put!(onode, xattrs, sum);
        }
        Ok(())
    }

    pub(crate) fn node_index(&self, unit: UnitNo) -> Option<usize> {
        // A unit that was freed may have been taken again: the last image counts.
        let scratch = &self.scratch;
        let found = scratch
            .node_places
            .find(&scratch.nodes, unit, |node| node.unit);
        found.filter(|&index| !scratch.nodes[index].freed && scratch.nodes[index].unit == unit)
    }

    pub(crate) fn node_image(&self, unit: UnitNo) -> Option<&NodeImage> {
        self.node_index(unit)
            .map(|index| &self.scratch.nodes[index])
    }

    /// Turns a copy of a node into that of one at another place.
    pub(crate) fn place_image(&mut self, index: usize, place: UnitNo) {
        let scratch = &mut *self.scratch;
        scratch.nodes[index].place_at(place);
        scratch
            .node_places
            .moved(&scratch.nodes, index, |node| node.unit);
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
        let spare = self.scratch.pages.pop();
        let mut bytes = spare.unwrap_or_else(|| Box::new([0; size_of::<NodeBytes>()]));
        fill(&mut bytes[..]);
        let image = NodeImage {
            unit,
            owner,
            tree,
            fresh,
            freed: false,
            dirty: DirtyWords::default(),
            entries_crc: 0,
            loaded: size_of::<NodeBytes>(),
            bytes,
        };
        let scratch = &mut *self.scratch;
        scratch.nodes.push(image);
        scratch.node_places.pushed(&scratch.nodes, |node| node.unit);
        scratch.nodes.len() - 1
    }

    /// What a key of an object stands for changes with the commit: if it is a name of a directory,
    /// all processes forget it.
    pub(crate) fn change_name(&mut self, id: ObjectId, generation: u32, tree: Tree, key: &[u8]) {
        self.touch_id(id);
        if let (Tree::Entries, Some((_, name))) = (tree, split_entry_key(key))
            && let Some(key) = DentryKey::new(id.0, generation, name)
        {
            let bucket = self.store.session.dentry_bucket(&key);
            self.scratch.names.push(bucket);
        }
    }

    fn touch_id(&mut self, id: ObjectId) {
        let scratch = &mut *self.scratch;
        let known = scratch.touched_places.find(&scratch.touched, id, |&id| id);
        if known.is_none() {
            scratch.touched.push(id);
            scratch.touched_places.pushed(&scratch.touched, |&id| id);
        }
    }

    /// Where the onode of an object lies that the transaction may change: one of its own, or one
    /// whose lock the caller holds.
    fn onode_to_change(&self, id: ObjectId) -> Result<VolumeOffset> {
        if self.scratch.is_removed(id) {
            return Err(StoreError::NoSuchObject(id));
        }
        if let Some((known, at)) = self.scratch.found.get()
            && known == id
        {
            return Ok(at);
        }
        if let Some(onode) = self.scratch.onode(id) {
            return Ok(onode.at);
        }
        debug_assert!(
            self.store
                .icore(id)
                .is_ok_and(|icore| icore.lock.is_held_by(self.store.slot())),
            "the caller holds the lock of every object that it changes"
        );
        let at = self.store.onode_live(id)?;
        self.scratch.found.set(Some((id, at)));
        Ok(at)
    }

    /// The copy of an existing object's onode, made on first change.
    fn onode_mut(&mut self, id: ObjectId) -> Result<&mut OnodeImage> {
        let at = self.onode_to_change(id)?;
        let index = match self.scratch.onode_index(id) {
            Some(index) => index,
            None => {
                let raw = self.store.raw_onode(at)?;
                self.scratch.add_onode(OnodeImage {
                    id,
                    at,
                    raw,
                    fresh: false,
                    dirty: 0,
                    attribute_epoch: false,
                });
                self.touch_id(id);
                self.scratch.onodes.len() - 1
            }
        };
        Ok(&mut self.scratch.onodes[index])
    }

    fn abort(&mut self) {
        for run in self.scratch.adopted.drain(..) {
            self.store.allocator().free(run.start, run.count);
        }
        for guard in &self.created {
            self.store.free_object(guard.id());
        }
    }
}

impl Drop for Tx<'_> {
    fn drop(&mut self) {
        if !self.committed {
            self.abort();
        }
        self.scratch.clear();
    }
}

/// The word of an onode that begins at `field`.
fn word_of(raw: &RawOnode, field: usize) -> u64 {
    let (words, _) = raw.as_bytes().as_chunks::<8>();
    u64::from_le_bytes(words[field / 8])
}

pub(crate) fn fresh_onode(new: &NewObject, id: ObjectId, generation: u32) -> RawOnode {
    let mut raw = RawOnode::new_zeroed();
    raw.size = CheckedWord::seal(new.size.min(CheckedWord::MAX), size_salt(id))
        .0
        .into();
    raw.mtime = new.time.into();
    raw.ctime = new.time.into();
    raw.atime = new.time.into();
    raw.btime = new.time.into();
    raw.mode = new.mode.into();
    raw.uid = new.uid.into();
    raw.gid = new.gid.into();
    raw.nlink = new.nlink.into();
    raw.rdev = new.rdev.into();
    raw.generation = generation.into();
    raw.flags = new.flags.into();
    raw.parent = new.parent.into();
    raw.parent_key = new.parent_key.into();
    raw
}
