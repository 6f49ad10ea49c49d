//! The block map of an object: a radix tree whose 8-byte words check themselves and commit by
//! themselves.
//!
//! Readers may walk a map while a writer changes it: whatever they meet is checked word by word,
//! and the object's version tells them afterwards whether it may be believed.

use nacre_types::{ObjectId, StoreKind, UNIT_SIZE, UnitNo, VolumeOffset};
use nacre_volume::{CheckedRange, Unfenced};

use crate::alloc::{Allocator, Run};
use crate::block_map::layout::{
    FANOUT, FANOUT_SHIFT, MAX_HEIGHT, MapWord, Root, WORD_SIZE, entry_salt,
};
use crate::block_map::{Leaf, PageRun};
use crate::error::{Result, StoreError};
use crate::layout::{
    HEADER_UNITS, ONODE_PARTS_AT, ONODE_ROOT_AT, is_of_parts, owner_of_map, parts_id, root_salt,
};
use crate::store::Store;

/// How many words of a node are detached before one fence.
const DETACH_WORDS: usize = 64;

/// What [`Map::walk`] meets.
pub(crate) enum Met {
    /// A node of the map.
    Node(UnitNo),
    /// A page and what it maps (never a hole).
    Page(u64, MapWord),
    /// A word that fails its check.
    Damaged(VolumeOffset),
}

enum MapSlot {
    Leaf(Leaf),
    /// Nothing is mapped up to (not including) this page.
    Hole(u64),
}

/// The block map of one object, or with `PARTS` its map of parts: `id` is what [`parts_id`] gives.
#[derive(Clone, Copy)]
pub(crate) struct Map<'s, const PARTS: bool = false> {
    pub(super) store: &'s Store,
    pub(super) id: ObjectId,
    pub(super) root_at: VolumeOffset,
}

/// The map of second units of pages.
pub(crate) type PartsMap<'s> = Map<'s, true>;

impl<'s> Map<'s> {
    /// The map of the object whose onode lies at `onode`.
    #[inline]
    pub(crate) fn new(store: &'s Store, id: ObjectId, onode: VolumeOffset) -> Self {
        Self {
            store,
            id,
            root_at: onode.add(ONODE_ROOT_AT),
        }
    }
}

impl<'s> PartsMap<'s> {
    /// The map of parts of the object whose onode lies at `onode`.
    pub(crate) fn of_parts(store: &'s Store, id: ObjectId, onode: VolumeOffset) -> Self {
        Self {
            store,
            id: parts_id(id),
            root_at: onode.add(ONODE_PARTS_AT),
        }
    }

    /// The leaf of a page, made if it is missing, and whether it was.
    pub(crate) fn make_parts_leaf(&self, page: u64, linked: &mut Unfenced) -> Result<(Leaf, bool)> {
        if let Some(leaf) = self.known_leaf(page)? {
            return Ok((leaf, false));
        }
        // A root word that is an entry has no room for parts.
        self.grow_to(page.max(1), linked)?;
        Ok((self.make_leaf(page, linked)?, true))
    }
}

impl<'s, const PARTS: bool> Map<'s, PARTS> {
    /// The node whose words map a page, if there is one.
    pub(crate) fn known_leaf(&self, page: u64) -> Result<Option<Leaf>> {
        let root = self.root()?;
        Ok(match self.locate(root, page)? {
            MapSlot::Leaf(leaf) if !root.entry.is_hole() => Some(leaf),
            _ => None,
        })
    }

    /// What the map says of a page.
    pub(crate) fn entry(&self, page: u64) -> Result<MapWord> {
        Ok(self.run_at(page, page + 1)?.entry)
    }

    /// The run that begins at `page`, up to `end` at most and within one leaf. `page < end`.
    #[inline]
    pub(crate) fn run_at(&self, page: u64, end: u64) -> Result<PageRun> {
        self.run_below(self.root()?, page, end)
    }

    /// As `run_at`, for a reader that has loaded the root already.
    #[inline]
    pub(crate) fn run_below(&self, root: Root, page: u64, end: u64) -> Result<PageRun> {
        match self.locate(root, page)? {
            MapSlot::Leaf(leaf) if leaf.is_root => Ok(PageRun {
                page,
                count: 1,
                entry: root.entry,
            }),
            MapSlot::Leaf(leaf) => self.run_in(leaf, page, end),
            MapSlot::Hole(until) => Ok(PageRun {
                page,
                count: until.min(end) - page,
                entry: MapWord::HOLE,
            }),
        }
    }

    /// The run that begins at `page` of `leaf`.
    #[inline]
    pub(crate) fn run_in(&self, leaf: Leaf, page: u64, end: u64) -> Result<PageRun> {
        if leaf.is_root {
            let entry = self.root()?.entry;
            return Ok(PageRun {
                page,
                count: 1,
                entry,
            });
        }
        let node = self.node(leaf.words);
        let word = |page: u64| node.word((page % FANOUT) as usize);
        let entry = match self.decode(word(page), 1, page) {
            Some(entry) => entry,
            None => self.entry_once_more(leaf.word_at(page), 1, page)?,
        };
        let mut most = end.min(leaf.end()) - page;
        if !entry.is_hole() {
            most = most.min(self.store.units - entry.unit().0);
        }
        let mut count = 1;
        while count < most && word(page + count) == self.encode(entry.advance(count), page + count)
        {
            count += 1;
        }
        Ok(PageRun { page, count, entry })
    }

    /// Loads the first words of a lowest node.
    pub(crate) fn load_words(&self, leaf: Leaf, words: &mut [u64]) {
        let node = self.node(leaf.words);
        for (index, word) in words.iter_mut().enumerate() {
            *word = node.word(index);
        }
    }

    /// The run that begins at `page`, by the words of it and of pages behind it. None: one of them
    /// is damaged; then [`Map::run_in`] repairs it, or tells.
    #[inline]
    pub(crate) fn run_of(&self, page: u64, words: &[u64]) -> Option<PageRun> {
        let count = MapWord::claimed_run(words);
        let entry = self.decode(*words.first()?, 1, page)?;
        let run = PageRun {
            page,
            count: count as u64,
            entry,
        };
        let (words, mut wrong) = (&words[..count], 0);
        entry.encode_run((self.id, page), count, |step, word| {
            wrong |= word ^ words[step]
        });
        let inside = entry.is_hole() || entry.unit().0 + run.count <= self.store.units;
        (wrong == 0 && inside).then_some(run)
    }

    /// The words of the node that begins at `at`.
    #[inline]
    fn node(&self, at: VolumeOffset) -> CheckedRange<'s, { UNIT_SIZE as usize }> {
        self.store.volume().checked_range(at)
    }

    /// The word of a page in a lowest node.
    #[inline]
    fn encode(&self, entry: MapWord, page: u64) -> u64 {
        entry.encode(entry_salt(self.id, 1, page))
    }

    /// The leaf of `page`, with all nodes above it, made if they are missing. Their links are
    /// flushed but not fenced: what the caller puts below them is fenced together with `linked`.
    #[inline]
    pub(crate) fn make_leaf(&self, page: u64, linked: &mut Unfenced) -> Result<Leaf> {
        let root = self.tall_root(page, linked)?;
        if root.height == 0 {
            return Ok(self.root_leaf());
        }
        let mut node = root.entry.unit();
        for level in (2..=root.height).rev() {
            let index = page >> shift_of(level);
            let at = word_address(node, index);
            let entry = self.node_entry(at, level, index)?;
            node = if entry.is_hole() {
                let fresh = self.fresh_node(None)?;
                let word = MapWord::written(fresh).encode(entry_salt(self.id, level, index));
                linked.join(self.link(at, word));
                fresh
            } else {
                entry.unit()
            };
        }
        Ok(lowest(node, page))
    }

    /// Stores the words of a run in `leaf`; they are flushed but not fenced.
    #[inline]
    #[cfg_attr(feature = "explore", track_caller)]
    pub(crate) fn set_run(&self, leaf: Leaf, run: PageRun) -> Unfenced {
        let volume = self.store.volume();
        if run.count == 1 {
            let word = self.word_in(leaf, run.entry, run.page);
            return volume.store_u64(leaf.word_at(run.page), word, StoreKind::Metadata);
        }
        let node = self.node(leaf.words);
        let first = (run.page % FANOUT) as usize;
        let place = (self.id, run.page);
        run.entry
            .encode_run(place, run.count as usize, |step, word| {
                node.store_word_lazy(first + step, word, StoreKind::Metadata);
            });
        volume.flush(leaf.word_at(run.page), run.count * WORD_SIZE)
    }

    /// The words that map `run` in `leaf`.
    #[inline]
    pub(crate) fn encode_run(&self, leaf: Leaf, run: PageRun) -> impl Iterator<Item = u64> + '_ {
        (0..run.count).map(move |step| self.word_in(leaf, run.entry.advance(step), run.page + step))
    }

    /// The word that maps a page in `leaf`.
    #[inline]
    fn word_in(&self, leaf: Leaf, entry: MapWord, page: u64) -> u64 {
        match leaf.is_root {
            true => Root { height: 0, entry }.encode(root_salt(self.id)),
            false => self.encode(entry, page),
        }
    }

    /// Unmaps whole pages `from..to`, durably, frees what they used and returns how many pages were
    /// mapped.
    pub(crate) fn clear(&self, from: u64, to: u64) -> Result<u64> {
        let root = self.root()?;
        if root.entry.is_hole() || from >= to {
            return Ok(0);
        }
        if from == 0 && to >= pages_below(root.height) {
            let volume = self.store.volume();
            volume.fence(volume.store_u64(self.root_at, 0, StoreKind::Metadata))?;
            let mut release = Release::new(self.store.allocator());
            self.release_below(root.entry, root.height, 0, &mut release);
            return Ok(release.finish());
        }
        if root.height == 0 {
            return Ok(0);
        }
        self.clear_in(root.entry.unit(), root.height, 0, (from, to))
    }

    /// Tells `visit` about each node, mapped page and damaged word; it answers whether to go below
    /// a node. A caller that answers no for nodes it has seen ends on any graph.
    pub(crate) fn walk(&self, visit: &mut dyn FnMut(Met) -> bool) {
        match self.root() {
            Ok(root) if root.entry.is_hole() => {}
            Ok(root) => self.walk_below(root.entry, root.height, 0, visit),
            Err(_) => {
                visit(Met::Damaged(self.root_at));
            }
        }
    }

    /// Makes the tree high enough for `page`; as [`Map::make_leaf`].
    #[inline]
    pub(crate) fn grow_to(&self, page: u64, linked: &mut Unfenced) -> Result<()> {
        self.tall_root(page, linked).map(|_| ())
    }

    /// How many pages the map can hold without growing.
    pub(crate) fn reach(&self) -> Result<u64> {
        self.root().map(|root| pages_below(root.height))
    }

    /// The root, decoded.
    pub(crate) fn known_root(&self) -> Result<Root> {
        self.root()
    }

    /// What word `index` of a `level` says, which lies in `node`.
    pub(crate) fn child(&self, node: UnitNo, level: u32, index: u64) -> Result<MapWord> {
        self.node_entry(word_address(node, index), level, index)
    }

    #[inline]
    fn root(&self) -> Result<Root> {
        self.open_root(self.store.volume().load_u64(self.root_at))
    }

    /// Decodes a root word that was loaded before.
    #[inline]
    pub(crate) fn open_root(&self, word: u64) -> Result<Root> {
        match self.decode_root(word) {
            Some(root) => Ok(root),
            None => self.root_once_more(),
        }
    }

    #[cold]
    #[inline(never)]
    fn root_once_more(&self) -> Result<Root> {
        self.store.repair_onode_copies(self.id, self.root_at);
        let root = self.decode_root(self.store.volume().load_u64(self.root_at));
        root.ok_or_else(|| self.damaged("block map root", self.root_at))
    }

    #[inline]
    fn decode_root(&self, word: u64) -> Option<Root> {
        Root::decode(word, root_salt(self.id), self.store.units)
            .filter(|root| sound(root.entry) && (!PARTS || root.height > 0 || root.entry.is_hole()))
    }

    /// The root word of a map of one page.
    #[inline]
    pub(crate) fn root_leaf(&self) -> Leaf {
        Leaf::root(self.root_at)
    }

    #[inline(always)]
    fn locate(&self, root: Root, page: u64) -> Result<MapSlot> {
        if page >= pages_below(root.height) {
            return Ok(MapSlot::Hole(u64::MAX));
        }
        if root.height == 0 {
            return Ok(MapSlot::Leaf(self.root_leaf()));
        }
        let mut node = root.entry.unit();
        for level in (2..=root.height).rev() {
            let index = page >> shift_of(level);
            let entry = self.node_entry(word_address(node, index), level, index)?;
            if entry.is_hole() {
                return Ok(MapSlot::Hole((index + 1) << shift_of(level)));
            }
            node = entry.unit();
        }
        Ok(MapSlot::Leaf(lowest(node, page)))
    }

    #[inline(always)]
    fn node_entry(&self, at: VolumeOffset, level: u32, index: u64) -> Result<MapWord> {
        match self.peek(at, level, index) {
            Some(entry) => Ok(entry),
            None => self.entry_once_more(at, level, index),
        }
    }

    /// The entry of a word that was wrong.
    #[cold]
    #[inline(never)]
    fn entry_once_more(&self, at: VolumeOffset, level: u32, index: u64) -> Result<MapWord> {
        let node = at.unit();
        for index in (index & !(FANOUT - 1)..).take(FANOUT as usize) {
            let at = word_address(node, index);
            // A hole looks like what was overwritten by zeros, and like what was never written: it
            // counts where a map is, and no file that got the unit of one.
            self.store.repair_map_copies(at, &|word| {
                self.decode(word, level, index).is_some() && self.leads_to(at, level, index)
            });
        }
        let entry = self.peek(at, level, index);
        entry.ok_or_else(|| self.damaged("block map entry", at))
    }

    /// Whether the word for an index of a level lies there now. Who frees a map has all of it.
    fn leads_to(&self, at: VolumeOffset, level: u32, index: u64) -> bool {
        let page = index << shift_of(level);
        let root = self.decode_root(self.store.volume().load_u64(self.root_at));
        let below = |node: UnitNo, above: u32| {
            let index = page >> shift_of(above);
            let entry = self.peek(word_address(node, index), above, index)?;
            (!entry.is_hole()).then(|| entry.unit())
        };
        let root = root.filter(|root| !root.entry.is_hole() && root.height >= level);
        let node = root.and_then(|root| {
            let mut levels = (level + 1..=root.height).rev();
            levels.try_fold(root.entry.unit(), below)
        });
        self.is_released() || node.is_some_and(|node| word_address(node, index) == at)
    }

    /// Whether the object is gone whose map it was.
    fn is_released(&self) -> bool {
        self.root_at == VolumeOffset(0)
    }

    #[inline(always)]
    fn peek(&self, at: VolumeOffset, level: u32, index: u64) -> Option<MapWord> {
        self.decode(self.store.volume().load_u64(at), level, index)
    }

    #[inline(always)]
    fn decode(&self, word: u64, level: u32, index: u64) -> Option<MapWord> {
        let salt = entry_salt(self.id, level, index);
        let decoded = match PARTS {
            true => MapWord::decode_parts(word, salt, self.store.units),
            false => MapWord::decode(word, salt, self.store.units),
        };
        decoded.filter(|&entry| sound(entry) && (level == 1 || entry.is_plain()))
    }

    #[cold]
    fn damaged(&self, what: &'static str, at: VolumeOffset) -> StoreError {
        StoreError::corrupt(Some(owner_of_map(self.id)), what, at)
    }

    /// The root, after the tree has grown high enough for `page`.
    #[inline]
    fn tall_root(&self, page: u64, linked: &mut Unfenced) -> Result<Root> {
        let mut root = self.root()?;
        if root.entry.is_hole() && page > 0 {
            let node = self.fresh_node(None)?;
            let height = (1..=MAX_HEIGHT)
                .find(|&height| page < pages_below(height))
                .ok_or(StoreError::FileTooBig)?;
            return Ok(self.set_root(height, node, linked));
        }
        while page >= pages_below(root.height) {
            if root.height == MAX_HEIGHT {
                return Err(StoreError::FileTooBig);
            }
            let level = root.height + 1;
            let first = root.entry.encode(entry_salt(self.id, level, 0));
            let node = self.fresh_node(Some(first))?;
            root = self.set_root(level, node, linked);
        }
        Ok(root)
    }

    fn set_root(&self, height: u32, node: UnitNo, linked: &mut Unfenced) -> Root {
        let root = Root {
            height,
            entry: MapWord::written(node),
        };
        linked.join(self.link(self.root_at, root.encode(root_salt(self.id))));
        root
    }

    /// Links a node that is durable.
    #[cfg_attr(feature = "explore", track_caller)]
    fn link(&self, at: VolumeOffset, word: u64) -> Unfenced {
        self.store.volume().store_u64(at, word, StoreKind::Metadata)
    }

    /// A durable node without entries, but for its first word.
    fn fresh_node(&self, first: Option<u64>) -> Result<UnitNo> {
        let unit = self.store.take_space(|alloc| alloc.take_one(None))?;
        let volume = self.store.volume();
        volume.expect_stores(unit.offset(), UNIT_SIZE);
        let mut unfenced = volume.zero(unit.offset(), UNIT_SIZE, StoreKind::Metadata);
        if let Some(word) = first {
            unfenced = unfenced.and(volume.store_u64(unit.offset(), word, StoreKind::Metadata));
        }
        volume.order(unfenced)?;
        Ok(unit)
    }

    fn clear_in(&self, node: UnitNo, level: u32, base: u64, range: (u64, u64)) -> Result<u64> {
        let span = 1 << shift_of(level);
        let first = range.0.saturating_sub(base) / span;
        let last = (range.1 - base).div_ceil(span).min(FANOUT);
        let mut freed = 0;
        let mut index = first;
        while index < last {
            let chunk = (last - index).min(DETACH_WORDS as u64);
            let words = Words {
                node,
                level,
                base,
                first: index,
                count: chunk,
            };
            freed += self.clear_words(words, range)?;
            index += chunk;
        }
        Ok(freed)
    }

    /// Detaches what lies wholly in `range`, fences once, frees; goes down where a word is only
    /// cut.
    fn clear_words(&self, words: Words, range: (u64, u64)) -> Result<u64> {
        let volume = self.store.volume();
        let mut detached = [MapWord::HOLE; DETACH_WORDS];
        let mut freed = 0;
        for step in 0..words.count {
            let (at, index, start, end) = words.place(step);
            let entry = self.node_entry(at, words.level, index)?;
            if entry.is_hole() {
                continue;
            }
            if range.0 <= start && end <= range.1 {
                volume.store_u64_lazy(at, 0, StoreKind::Metadata);
                detached[step as usize] = entry;
            } else {
                freed += self.clear_in(entry.unit(), words.level - 1, start, range)?;
            }
        }
        if detached.iter().all(|entry| entry.is_hole()) {
            return Ok(freed);
        }
        let (at, ..) = words.place(0);
        volume.fence(volume.flush(at, words.count * WORD_SIZE))?;
        let mut release = Release::new(self.store.allocator());
        for step in 0..words.count {
            let (_, _, start, _) = words.place(step);
            self.release_below(
                detached[step as usize],
                words.level - 1,
                start,
                &mut release,
            );
        }
        Ok(freed + release.finish())
    }

    /// Frees what `entry` leads to: a node of `level`, or a data unit at level 0. Damaged words are
    /// left alone.
    fn release_below(&self, entry: MapWord, level: u32, page: u64, release: &mut Release<'_>) {
        if entry.is_hole() {
            return;
        }
        if level == 0 {
            release.data(entry.unit());
            return;
        }
        for (index, word) in self.words_in_use(entry.unit(), level, page) {
            if let Some(below) = self.decode_in_use(word, entry.unit(), level, index) {
                self.release_below(below, level - 1, index << shift_of(level), release);
            }
        }
        release.node(entry.unit());
    }

    fn walk_below(
        &self,
        entry: MapWord,
        level: u32,
        page: u64,
        visit: &mut dyn FnMut(Met) -> bool,
    ) {
        if level == 0 {
            let entry = match PARTS {
                true => MapWord::written(entry.unit()),
                false => entry,
            };
            visit(Met::Page(page, entry));
            return;
        }
        if !visit(Met::Node(entry.unit())) {
            return;
        }
        for (index, word) in self.words_in_use(entry.unit(), level, page) {
            match self.decode_in_use(word, entry.unit(), level, index) {
                Some(below) => self.walk_below(below, level - 1, index << shift_of(level), visit),
                None => {
                    visit(Met::Damaged(word_address(entry.unit(), index)));
                }
            }
        }
    }

    /// What a word of a node says that was loaded before.
    #[inline]
    fn decode_in_use(&self, word: u64, node: UnitNo, level: u32, index: u64) -> Option<MapWord> {
        let known = self.decode(word, level, index);
        known.or_else(|| {
            let at = word_address(node, index);
            self.entry_once_more(at, level, index).ok()
        })
    }

    /// The words of a node that are not zero, each with its index in the level: of small objects
    /// few are used, and holes say nothing.
    fn words_in_use(
        &self,
        node: UnitNo,
        level: u32,
        page: u64,
    ) -> impl Iterator<Item = (u64, u64)> + use<PARTS> {
        const WORDS: usize = FANOUT as usize;
        let words = self.store.volume().load_words::<WORDS>(node.offset());
        let first = page >> shift_of(level);
        (first..).zip(words).filter(|&(_, word)| word != 0)
    }
}

/// Frees everything that a block map used. To be called when the removal of its object is durable
/// and its number is not yet free; `root_word` is the onode's root word from before, `id` what
/// stands for the object in the salts of the map.
pub(crate) fn release(store: &Store, id: ObjectId, root_word: u64) {
    match is_of_parts(id) {
        true => release_map::<true>(store, id, root_word),
        false => release_map::<false>(store, id, root_word),
    }
}

fn release_map<const PARTS: bool>(store: &Store, id: ObjectId, root_word: u64) {
    let map = Map::<PARTS> {
        store,
        id,
        root_at: VolumeOffset(0),
    };
    if let Some(root) = map.decode_root(root_word) {
        let mut release = Release::new(store.allocator());
        map.release_below(root.entry, root.height, 0, &mut release);
        release.finish();
    }
}

/// Some neighbouring words of a node.
#[derive(Clone, Copy)]
struct Words {
    node: UnitNo,
    level: u32,
    /// First page that the node maps.
    base: u64,
    first: u64,
    count: u64,
}

impl Words {
    /// Address, index within the level, and first and last-plus-one page of a word.
    fn place(&self, step: u64) -> (VolumeOffset, u64, u64, u64) {
        let shift = shift_of(self.level);
        let index = (self.base >> shift) + self.first + step;
        (
            word_address(self.node, index),
            index,
            index << shift,
            (index + 1) << shift,
        )
    }
}

/// Collects neighbouring units so that they are freed together.
struct Release<'a> {
    alloc: Allocator<'a>,
    run: Run,
    data: u64,
}

impl<'a> Release<'a> {
    #[inline]
    fn new(alloc: Allocator<'a>) -> Self {
        Self {
            alloc,
            run: Run {
                start: UnitNo(0),
                count: 0,
            },
            data: 0,
        }
    }

    fn data(&mut self, unit: UnitNo) {
        self.data += 1;
        self.node(unit);
    }

    fn node(&mut self, unit: UnitNo) {
        if self.run.count > 0 && self.run.end() == unit {
            self.run.count += 1;
        } else {
            self.alloc.free(self.run.start, self.run.count);
            self.run = Run {
                start: unit,
                count: 1,
            };
        }
    }

    fn finish(self) -> u64 {
        self.alloc.free(self.run.start, self.run.count);
        self.data
    }
}

/// Pages below one word of a node of `level`, as a shift.
#[inline]
fn shift_of(level: u32) -> u32 {
    FANOUT_SHIFT * (level - 1)
}

/// Pages that a map of `height` reaches.
#[inline]
pub(crate) fn pages_below(height: u32) -> u64 {
    1 << (FANOUT_SHIFT * height)
}

#[inline]
fn word_address(node: UnitNo, index: u64) -> VolumeOffset {
    node.offset().add(index % FANOUT * WORD_SIZE)
}

#[inline]
fn lowest(node: UnitNo, page: u64) -> Leaf {
    Leaf::node(node.offset(), page & !(FANOUT - 1))
}

#[inline]
fn sound(entry: MapWord) -> bool {
    entry.is_hole() || entry.unit().0 >= HEADER_UNITS
}
