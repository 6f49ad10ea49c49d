//! Transactions: changes gathered in DRAM copies, made durable all at once.
//!
//! Nothing is visible to others before [`Tx::commit`]. The caller holds the lock of every object
//! that it changes; objects that the transaction creates are locked by itself until it ends.

mod spill;
#[cfg(test)]
pub(crate) mod tests;

use std::mem::offset_of;

use nacre_session::DentryKey;
use nacre_types::{CheckedWord, ObjectId, StoreKind, UnitNo, VolumeOffset};
use nacre_volume::Unfenced;
use smallvec::SmallVec;
use zerocopy::{FromZeros, IntoBytes};

use crate::alloc::Run;
use crate::error::{Result, StoreError};
use crate::layout::{
    INLINE_MAX, ONODE_GENERATION_AT, ONODE_MODE_AT, ONODE_SIZE, RECORDS_NAME_NEW_BYTES, RawOnode,
    Tree, size_salt, split_entry_key, tree_salt,
};
use crate::node::NodeImage;
use crate::object::lock::ObjectGuard;
use crate::object::onode::{Attrs, NewObject, open_root, root_field};
use crate::store::Store;
use crate::thread::scratch::{LazyTimes, Lent, OnodeImage, Removed};

/// Most new bytes that a record names: more take longer to sum up than a fence does.
pub(crate) const NAMED_MAX: usize = 12 << 10;

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
        self.attribute_epoch |=
            before != (attrs.mode, attrs.uid, attrs.gid) || raw.flags.get() != attrs.flags;
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
    /// The transaction creates the object.
    pub(crate) fresh: bool,
}

impl Removed {
    /// `word` gives the word of the onode at `at` that begins at an offset in it.
    fn new(id: ObjectId, at: VolumeOffset, word: impl Fn(usize) -> u64) -> Result<Removed> {
        let root = |tree| open_root(word(root_field(tree)), id, at);
        Ok(Removed {
            id,
            map_root: word(offset_of!(RawOnode, root)),
            parts_root: word(offset_of!(RawOnode, parts_root)),
            trees: [root(Tree::Entries)?, root(Tree::Xattrs)?],
        })
    }
}

/// A transaction; dropped without [`Tx::commit`] it leaves no trace.
pub struct Tx<'s> {
    pub(crate) store: &'s Store,
    pub(crate) scratch: Lent<'s>,
    pub(crate) created: SmallVec<[ObjectGuard<'s>; 1]>,
    pub(crate) published: Option<Unfenced>,
    /// Stores to bytes that the record names, so that they may share its fence.
    pub(crate) named: Unfenced,
    pub(crate) committed: bool,
    /// A record may be longer than a lane holds.
    pub(crate) any_size: bool,
    /// Entries of trees are written where they will be, before the record.
    pub(crate) places_entries: bool,
    /// Pages get second units.
    pub(crate) takes_second: bool,
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
            named: Unfenced::nothing(),
            committed: false,
            any_size: false,
            places_entries: false,
            takes_second: false,
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
        self.scratch.touch(id);
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
        let removed = || Removed::new(id, at, |field| onode.word(field / 8));
        let removed = removed().or_else(|error| {
            self.store.repair_onode_copies(id, at);
            self.store.once_more(error, removed)
        })?;
        const { assert!(offset_of!(RawOnode, mode) + 4 == offset_of!(RawOnode, uid)) };
        let mode = offset_of!(RawOnode, mode);
        let word = onode.word(mode / 8) & !u64::from(u32::MAX);
        self.scratch.add_removed(removed);
        self.put_word(VolumeOffset(at.0 + mode as u64), word);
        self.scratch.touch(id);
        Ok(())
    }

    /// Says that so many objects will be created; their memory is then taken at once.
    pub fn expect_objects(&mut self, count: usize) {
        self.created.reserve(count);
        self.scratch.expect_onodes(count);
    }

    /// Lets the transaction change more than one log record holds: the rest of the record then lies
    /// in free units.
    pub fn allow_any_size(&mut self) {
        self.any_size = true;
    }

    /// Lets the transaction write entries of trees once, to bytes that nobody reads, before the
    /// record that leads to them, and share fences (D71). Worth it for long entries: it takes time.
    /// For objects that are no directories: nobody is told that a name changes.
    pub fn place_entries(&mut self) {
        self.scratch.fresh.clear();
        self.places_entries = true;
    }

    /// Where the onode of an object lies whose bytes the transaction changes.
    pub(crate) fn change_data_of(&mut self, id: ObjectId) -> Result<VolumeOffset> {
        let at = self.onode_to_change(id)?;
        self.scratch.touch(id);
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
        self.scratch.writes.push(at, bytes, kind);
    }

    /// Stores already made to units that nobody reaches before the commit.
    pub(crate) fn fresh(&mut self, stores: Unfenced) {
        self.published = Some(match self.published.take() {
            Some(before) => before.and(stores),
            None => stores,
        });
    }

    /// As [`Tx::fresh`], of bytes that stay as they are: they may share the record's fence.
    pub(crate) fn fresh_bytes(&mut self, at: VolumeOffset, bytes: &[u8], stores: Unfenced) {
        let is_short = self.scratch.fresh.len() + bytes.len() <= NAMED_MAX;
        match self.shares_fences() && is_short {
            true => {
                self.scratch.fresh.add(at, bytes);
                self.named.join(stores);
            }
            false => self.fresh(stores),
        }
    }

    /// Whether new bytes may become durable with the record, and log tails later.
    pub(crate) fn shares_fences(&self) -> bool {
        self.places_entries && self.store.superblock.version >= RECORDS_NAME_NEW_BYTES
    }

    /// Units that are free again if the transaction does not commit.
    pub(crate) fn adopt(&mut self, run: Run) {
        self.scratch.adopted.push(run);
    }

    /// Units that are free once the commit is durable.
    pub(crate) fn free_after_commit(&mut self, run: Run) {
        match self.scratch.frees.last_mut() {
            Some(last) if last.end() == run.start => last.count += run.count,
            _ => self.scratch.frees.push(run),
        }
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
        let (root, generation, fresh) = match self.scratch.onode(id) {
            Some(onode) => (
                word_of(&onode.raw, root_field(tree)),
                onode.raw.generation.get(),
                onode.fresh,
            ),
            None => {
                let onode = self.store.volume.checked_range::<ONODE_SIZE>(at);
                let root = onode.word(root_field(tree) / 8);
                (root, onode.u32(ONODE_GENERATION_AT as usize), false)
            }
        };
        let root = open_root(root, id, at).or_else(|_| self.store.root_once_more(id, at, tree));
        let root = root?.map(UnitNo);
        Ok(TreeOwner {
            root,
            generation,
            fresh,
        })
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

    pub(crate) fn node_image(&self, unit: UnitNo) -> Option<&NodeImage> {
        let scratch = &self.scratch;
        scratch.node_index(unit).map(|index| &scratch.nodes[index])
    }

    /// What a key of an object stands for changes with the commit: if it is a name of a directory,
    /// all processes forget it.
    pub(crate) fn change_name(&mut self, id: ObjectId, generation: u32, tree: Tree, key: &[u8]) {
        self.scratch.touch(id);
        // Who places entries changes objects of the library, which are no directories.
        if !self.places_entries
            && let (Tree::Entries, Some((_, name))) = (tree, split_entry_key(key))
            && let Some(key) = DentryKey::new(id.0, generation, name)
        {
            let bucket = self.store.session.dentry_bucket(&key);
            self.scratch.names.push(bucket);
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
                self.scratch.touch(id);
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
    let [atime, mtime] = new.past.unwrap_or([new.time; 2]);
    raw.mtime = mtime.into();
    raw.ctime = new.time.into();
    raw.atime = atime.into();
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
