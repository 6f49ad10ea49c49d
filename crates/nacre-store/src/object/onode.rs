//! Onodes: finding, verifying and reading them.

use std::mem::offset_of;
use std::sync::atomic::Ordering::Relaxed;

use nacre_media::crc32c_append;
use nacre_types::{
    CheckedWord, LINE_SIZE, ObjectId, StoreKind, UNIT_SIZE, UnitNo, VolumeOffset, site,
};
use nacre_volume::CheckedRange;
use zerocopy::{IntoBytes, transmute};

use crate::error::{Result, StoreError};
use crate::layout::{
    INLINE_MAX, ListedBlock, ONODE_ATIME_AT, ONODE_GENERATION_AT, ONODE_MODE_AT, ONODE_NLINK_AT,
    ONODE_SIZE, ONODE_SIZE_AT, RawOnode, Tree, onode_address, onode_index, size_salt, tree_salt,
};
use crate::object::blocks::KnownBlock;
use crate::object::lock::ObjectGuard;
use crate::store::Store;

/// The attributes of an object. Times are ns since the epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attrs {
    /// Type and permissions as in `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Links.
    pub nlink: u32,
    /// Size in bytes.
    pub size: u64,
    /// Mapped units (may lag).
    pub units: u64,
    /// Time of last read.
    pub atime: i64,
    /// Time of last change of the contents.
    pub mtime: i64,
    /// Time of last change of the onode.
    pub ctime: i64,
    /// Time of birth.
    pub btime: i64,
    /// Device number of device nodes.
    pub rdev: u64,
    /// Counts the generations of the object number.
    pub generation: u32,
    /// `FLAG_*` bits.
    pub flags: u32,
    /// Directories: object number of the parent.
    pub parent: u64,
    /// Directories: hash of the own entry in the parent.
    pub parent_key: u64,
    /// Whether [`Tree::Entries`] has keys.
    pub has_entries: bool,
    /// Keys in [`Tree::Xattrs`].
    pub xattrs: u64,
}

/// What a new object shall be. Times are ns since the epoch.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewObject {
    /// Type and permissions as in `st_mode`; not 0.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of device nodes.
    pub rdev: u64,
    /// Links.
    pub nlink: u32,
    /// `FLAG_*` bits.
    pub flags: u32,
    /// Directories: object number of the parent.
    pub parent: u64,
    /// Directories: hash of the own entry in the parent.
    pub parent_key: u64,
    /// Birth and all other times.
    pub time: i64,
    /// Of a copy: the times of access and modification.
    pub past: Option<[i64; 2]>,
    /// Size in bytes (symbolic links; 0 for all others).
    pub size: u64,
}

/// The checksum of lines 1 to 3. An inline length that is too large makes it wrong, not more.
pub(crate) fn onode_crc(raw: &RawOnode) -> u32 {
    const CRC_AT: usize = std::mem::offset_of!(RawOnode, crc);
    let inline_len = raw.inline_len.get();
    let crc = crc32c_append(inline_len, &raw.as_bytes()[LINE_SIZE as usize..CRC_AT]);
    match raw.inline.get(..inline_len as usize) {
        Some([]) => crc,
        Some(inline) => crc32c_append(crc, inline),
        None => !crc,
    }
}

impl Attrs {
    /// Decodes an onode; only the size word can be damaged.
    #[inline]
    pub(crate) fn decode(raw: &RawOnode, id: ObjectId, at: VolumeOffset) -> Result<Attrs> {
        let size = CheckedWord(raw.size.get()).open(size_salt(id));
        let size = size.ok_or_else(|| StoreError::corrupt(Some(id), "size word", at))?;
        Ok(Attrs {
            mode: raw.mode.get(),
            uid: raw.uid.get(),
            gid: raw.gid.get(),
            nlink: raw.nlink.get(),
            size,
            units: raw.mapped.get(),
            atime: raw.atime.get(),
            mtime: raw.mtime.get(),
            ctime: raw.ctime.get(),
            btime: raw.btime.get(),
            rdev: raw.rdev.get(),
            generation: raw.generation.get(),
            flags: raw.flags.get(),
            parent: raw.parent.get(),
            parent_key: raw.parent_key.get(),
            has_entries: raw.entries_root.get() != 0,
            xattrs: raw.xattrs.get(),
        })
    }
}

impl Attrs {
    /// As [`Attrs::decode`], word by word from the medium; may be torn.
    #[inline(always)]
    fn load(
        store: &Store,
        onode: &CheckedRange<'_, ONODE_SIZE>,
        id: ObjectId,
        at: VolumeOffset,
    ) -> Result<Attrs> {
        let word = |place: usize| onode.word(place / 8);
        let size = match CheckedWord(word(offset_of!(RawOnode, size))).open(size_salt(id)) {
            Some(size) => size,
            None => store.size_once_more(id, at)?,
        };
        Ok(Attrs {
            mode: onode.u32(offset_of!(RawOnode, mode)),
            uid: onode.u32(offset_of!(RawOnode, uid)),
            gid: onode.u32(offset_of!(RawOnode, gid)),
            nlink: onode.u32(offset_of!(RawOnode, nlink)),
            size,
            units: word(offset_of!(RawOnode, mapped)),
            atime: word(offset_of!(RawOnode, atime)) as i64,
            mtime: word(offset_of!(RawOnode, mtime)) as i64,
            ctime: word(offset_of!(RawOnode, ctime)) as i64,
            btime: word(offset_of!(RawOnode, btime)) as i64,
            rdev: word(offset_of!(RawOnode, rdev)),
            generation: onode.u32(offset_of!(RawOnode, generation)),
            flags: onode.u32(offset_of!(RawOnode, flags)),
            parent: word(offset_of!(RawOnode, parent)),
            parent_key: word(offset_of!(RawOnode, parent_key)),
            has_entries: word(offset_of!(RawOnode, entries_root)) != 0,
            xattrs: word(offset_of!(RawOnode, xattrs)),
        })
    }
}

impl Store {
    /// The attributes of an object, one consistent snapshot.
    #[inline]
    pub fn attrs(&self, id: ObjectId) -> Result<Attrs> {
        self.read_stable(id, || self.attrs_now(id))
    }

    /// What `take` makes of the attributes of an object, one consistent snapshot; the attributes
    /// are not copied about.
    #[inline(always)]
    pub fn attrs_as<T>(&self, id: ObjectId, take: impl Fn(&Attrs) -> T) -> Result<T> {
        self.read_stable(id, || Ok(take(&self.attrs_now(id)?)))
    }

    /// The attributes of an object that the caller has locked.
    #[inline]
    pub fn attrs_locked(&self, guard: &ObjectGuard<'_>) -> Result<Attrs> {
        self.attrs_now(guard.id())
    }

    /// As [`Store::attrs_locked`], for who holds the lock among others.
    #[inline]
    pub fn attrs_held(&self, id: ObjectId) -> Result<Attrs> {
        debug_assert!(
            self.icore(id)
                .is_ok_and(|icore| icore.lock.is_held_by(self.slot())),
            "the caller holds the lock"
        );
        self.attrs_now(id)
    }

    /// The generation of an object that exists: one load, without lock or version.
    pub fn generation(&self, id: ObjectId) -> Result<u32> {
        let at = self.onode_live(id)?;
        Ok(self
            .volume
            .load_u32(VolumeOffset(at.0 + ONODE_GENERATION_AT)))
    }

    /// Whether an object that somebody has open has no links; waits for a change in progress. Who
    /// acts on it looks again under the lock.
    #[inline]
    pub fn is_nameless(&self, id: ObjectId) -> Result<bool> {
        self.read_stable(id, || {
            let at = self.onode_at(id)?;
            Ok(self.volume.load_u32(VolumeOffset(at.0 + ONODE_NLINK_AT)) == 0)
        })
    }

    /// Sets the access time of an object by a lazy store, if it still exists: where the onode of
    /// one that does not was, there may be anything by now. Nobody is waited for; who changes it at
    /// the moment keeps this from being done.
    pub fn set_atime_lazy(&self, id: ObjectId, time: i64) -> Result<()> {
        if !self.writable {
            return Err(StoreError::ReadOnly);
        }
        let Some(_guard) = self.try_lock(id)? else {
            return Ok(());
        };
        let at = match self.onode_at(id) {
            Err(StoreError::NoSuchObject(_)) => return Ok(()),
            at => at?,
        };
        if self.volume.load_u32(at.add(ONODE_MODE_AT)) != 0 {
            let at = at.add(ONODE_ATIME_AT);
            self.volume
                .store_u64_lazy(at, time as u64, StoreKind::Metadata);
        }
        Ok(())
    }

    /// Copies an object's inline bytes (the target of a short symbolic link); returns how many.
    pub fn inline(&self, id: ObjectId, bytes: &mut [u8; INLINE_MAX]) -> Result<usize> {
        self.read_stable(id, || {
            let at = self.onode_live(id)?;
            let mut raw = self.raw_onode(at)?;
            if raw.inline_len.get() as usize > INLINE_MAX {
                self.repair_onode_copies(id, at);
                raw = self.raw_onode(at)?;
            }
            let len = raw.inline_len.get() as usize;
            if len > INLINE_MAX {
                return Err(StoreError::corrupt(Some(id), "inline length", at));
            }
            *bytes = raw.inline;
            Ok(len)
        })
    }

    /// Address of an onode, free or not. The number must be in the range that metadata blocks
    /// cover.
    #[inline]
    pub(crate) fn onode_at(&self, id: ObjectId) -> Result<VolumeOffset> {
        let (list, index) = onode_index(id);
        let known = self.session.metadata_blocks().get(list as usize);
        let known = known.map_or(0, |block| block.load(Relaxed));
        let block = match KnownBlock::of(known) {
            KnownBlock::At(block) if id.0 != 0 => block,
            _ => self.find_block(id, list)?,
        };
        Ok(onode_address(block, index))
    }

    /// Looks a metadata block up in the pool's list and remembers it, unless it moves meanwhile.
    /// One that was given back is not remembered, as it may come back.
    #[cold]
    fn find_block(&self, id: ObjectId, list: u64) -> Result<UnitNo> {
        if id.0 == 0 || list >= self.block_count() {
            return Err(StoreError::NoSuchObject(id));
        }
        let ListedBlock::At(block) = self.metadata_block(list)? else {
            return Err(StoreError::NoSuchObject(id));
        };
        let Some(known) = self.session.metadata_blocks().get(list as usize) else {
            return Ok(block);
        };
        // Whoever moves the block or gives it back asks first, so that nothing older than its
        // answer is remembered after it.
        match known.compare_exchange(0, block.0, Relaxed, Relaxed) {
            Ok(_) => Ok(block),
            Err(known) => match KnownBlock::of(known) {
                KnownBlock::At(moved) => Ok(moved),
                _ => Err(StoreError::NoSuchObject(id)),
            },
        }
    }

    /// Address of the onode of an object that exists, verified on first touch.
    #[inline]
    pub(crate) fn onode_live(&self, id: ObjectId) -> Result<VolumeOffset> {
        let at = self.onode_at(id)?;
        if self.volume.load_u32(VolumeOffset(at.0 + ONODE_MODE_AT)) == 0 {
            self.onode_once_more(id, at)?;
        }
        if !self.is_verified(at.unit()) {
            self.verify_onode(id, at)?;
        }
        Ok(at)
    }

    /// Copies an onode.
    #[inline]
    pub(crate) fn raw_onode(&self, at: VolumeOffset) -> Result<RawOnode> {
        Ok(transmute!(self.volume.read_array::<ONODE_SIZE>(at)))
    }

    /// The root node of a tree; `None` for an empty tree.
    pub(crate) fn tree_root(
        &self,
        id: ObjectId,
        at: VolumeOffset,
        tree: Tree,
    ) -> Result<Option<u64>> {
        let word = self.volume.load_u64(root_word_at(at, tree));
        open_root(word, id, at).or_else(|_| self.root_once_more(id, at, tree))
    }

    #[inline(always)]
    pub(crate) fn attrs_now(&self, id: ObjectId) -> Result<Attrs> {
        let at = self.onode_at(id)?;
        let onode = self.volume.checked_range(at);
        if onode.u32(offset_of!(RawOnode, mode)) == 0 {
            self.onode_once_more(id, at)?;
        }
        if !self.is_verified(at.unit()) {
            self.verify_onode(id, at)?;
        }
        Attrs::load(self, &onode, id, at)
    }

    /// Checks all onodes of the unit and remembers when all are sound; a damaged neighbour does not
    /// make a sound onode fail.
    #[cold]
    pub(crate) fn verify_onode(&self, id: ObjectId, at: VolumeOffset) -> Result<()> {
        let unit = at.unit();
        let onodes = self
            .volume
            .checked_range::<{ UNIT_SIZE as usize }>(unit.offset());
        let mut all_sound = true;
        for place in (0..UNIT_SIZE as usize).step_by(ONODE_SIZE) {
            let mode = onodes.u32(place + ONODE_MODE_AT as usize);
            let onode = VolumeOffset(unit.offset().0 + place as u64);
            let is_sound = || -> Result<bool> {
                let raw = self.raw_onode(onode)?;
                Ok(site::check(raw.crc.get() == onode_crc(&raw)))
            };
            let mut sound = mode == 0 || is_sound()?;
            if !sound && onode == at {
                self.repair_onode_copies(id, at);
                sound = is_sound()?;
            }
            if !sound && onode == at {
                return Err(StoreError::corrupt(Some(id), "onode", at));
            }
            all_sound &= sound;
        }
        if all_sound {
            self.set_verified(unit);
        }
        Ok(())
    }

    /// What the onode of an object is nothing in was perhaps overwritten.
    #[cold]
    #[inline(never)]
    fn onode_once_more(&self, id: ObjectId, at: VolumeOffset) -> Result<()> {
        self.repair_onode_copies(id, at);
        match self.volume.load_u32(at.add(ONODE_MODE_AT)) {
            0 => Err(StoreError::NoSuchObject(id)),
            _ => Ok(()),
        }
    }

    /// The size of an object whose size word was wrong.
    #[cold]
    #[inline(never)]
    pub(crate) fn size_once_more(&self, id: ObjectId, at: VolumeOffset) -> Result<u64> {
        self.repair_onode_copies(id, at);
        let word = self.volume.load_u64(at.add(ONODE_SIZE_AT));
        let size = CheckedWord(word).open(size_salt(id));
        size.ok_or_else(|| StoreError::corrupt(Some(id), "size word", at))
    }

    /// The root node of a tree whose word in the onode was wrong.
    #[cold]
    #[inline(never)]
    pub(crate) fn root_once_more(
        &self,
        id: ObjectId,
        at: VolumeOffset,
        tree: Tree,
    ) -> Result<Option<u64>> {
        self.repair_onode_copies(id, at);
        open_root(self.volume.load_u64(root_word_at(at, tree)), id, at)
    }
}

/// Where the root word of a tree lies in an onode.
pub(crate) const fn root_field(tree: Tree) -> usize {
    match tree {
        Tree::Entries => offset_of!(RawOnode, entries_root),
        Tree::Xattrs => offset_of!(RawOnode, xattrs_root),
    }
}

/// Address of a tree's root word in the onode at `onode`.
pub(crate) fn root_word_at(onode: VolumeOffset, tree: Tree) -> VolumeOffset {
    VolumeOffset(onode.0 + root_field(tree) as u64)
}

/// Opens a tree's root word; `None` for an empty tree.
pub(crate) fn open_root(word: u64, id: ObjectId, onode: VolumeOffset) -> Result<Option<u64>> {
    match CheckedWord(word).open(tree_salt(id)) {
        Some(0) => Ok(None),
        Some(unit) => Ok(Some(unit)),
        None => Err(StoreError::corrupt(Some(id), "tree root word", onode)),
    }
}
