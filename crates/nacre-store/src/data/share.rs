//! New objects that share all units of an old one.

use nacre_types::{CheckedWord, ObjectId, StoreKind, UNIT_SIZE, UnitNo};
use nacre_volume::Unfenced;
use smallvec::SmallVec;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use super::{Change, page_start, pages_of};
use crate::alloc::Run;
use crate::block_map::layout::{FANOUT, MapWord, Root, entry_salt};
use crate::block_map::{Leaf, PageRun};
use crate::data::map::Map;
use crate::error::{Result, StoreError};
use crate::layout::{root_salt, size_salt};
use crate::object::lock::ObjectGuard;
use crate::tx::Tx;

/// Bytes copied at once where units cannot be shared.
const PIECE: u64 = 1 << 20;

/// Most files are few runs.
type Runs = SmallVec<[Run; 4]>;

/// The making of a map whose words name the units of another one.
struct Sharing<'t, 'c, 's> {
    tx: &'t mut Tx<'s>,
    source: Map<'c>,
    target: ObjectId,
    /// Pages of the source from here on are left out.
    end: u64,
    /// Pages that the target maps.
    mapped: u64,
    /// What the target owns a part of.
    shared: Runs,
    /// Units of nodes.
    nodes: Runs,
    /// Words of the source that are marked as shared.
    marked: Unfenced,
}

impl Tx<'_> {
    /// Gives an object that the transaction creates the bytes of an object whose lock is held; both
    /// share the units, copied when written later. What a process has mapped, and what has too many
    /// owners, is copied at once. Nothing else may be done to the bytes of the new object.
    pub fn data_share(&mut self, from: &ObjectGuard<'_>, to: ObjectId) -> Result<()> {
        let source = Change::begin(self.store, from)?;
        let size = source.file.size()?;
        let word = CheckedWord::seal(size, size_salt(to)).0;
        self.set_fresh_size(to, word);
        if source.is_mapped() {
            return self.data_copy(&source, to, size);
        }
        match self.share_map(&source, to, pages_of(size))? {
            true => Ok(()),
            false => self.data_copy(&source, to, size),
        }
    }

    /// False: some unit has too many owners, and nothing was done.
    fn share_map(&mut self, source: &Change<'_>, to: ObjectId, end: u64) -> Result<bool> {
        let root = source.file.map.known_root()?;
        if root.entry.is_hole() {
            return Ok(true);
        }
        let mut sharing = Sharing {
            tx: self,
            source: source.file.map,
            target: to,
            end,
            mapped: 0,
            shared: Runs::new(),
            nodes: Runs::new(),
            marked: Unfenced::nothing(),
        };
        let made = match root.height {
            0 => sharing.lone_page(root),
            height => sharing.node(root.entry.unit(), height, 0),
        };
        let (mapped, marked) = (sharing.mapped, sharing.marked.take());
        let (shared, nodes) = (sharing.shared, sharing.nodes);
        // The source says so durably before anybody finds the second owner.
        self.fresh(marked);
        let runs = shared.iter().chain(&nodes);
        match made {
            Ok(entry) => {
                runs.for_each(|&run| self.adopt(run));
                let height = if entry.is_hole() { 0 } else { root.height };
                let word = Root { height, entry }.encode(root_salt(to));
                self.set_fresh_map(to, if entry.is_hole() { 0 } else { word }, mapped);
                Ok(true)
            }
            Err(error) => {
                let alloc = self.store.allocator();
                runs.for_each(|run| alloc.free(run.start, run.count));
                match error {
                    StoreError::Busy => Ok(false),
                    error => Err(error),
                }
            }
        }
    }

    /// Bytes instead of units; holes stay holes.
    fn data_copy(&mut self, source: &Change<'_>, to: ObjectId, size: u64) -> Result<()> {
        let (mut page, end) = (0, pages_of(size));
        let mut bytes = Vec::new();
        while page < end {
            let run = source
                .file
                .map
                .run_at(page, end.min(page + PIECE / UNIT_SIZE))?;
            if run.entry.is_written() {
                let start = page_start(page);
                bytes.resize((run.count * UNIT_SIZE).min(size - start) as usize, 0);
                let from = run.entry.unit().offset();
                self.store.read_contents(from, &mut bytes)?;
                self.data_write(to, start, &bytes)?;
            }
            page = run.end();
        }
        self.data_truncate(to, size)
    }
}

impl Sharing<'_, '_, '_> {
    /// The map of a source of one page is its root word.
    fn lone_page(&mut self, root: Root) -> Result<MapWord> {
        let run = PageRun {
            page: 0,
            count: 1,
            entry: root.entry,
        };
        if !self.counts(run) {
            return Ok(MapWord::HOLE);
        }
        let leaf = self.source.root_leaf();
        self.share(leaf, run)
    }

    fn counts(&self, run: PageRun) -> bool {
        run.page < self.end && run.entry.is_written()
    }

    /// Writes what stands for a node of the source: the word that leads there, or a hole.
    fn node(&mut self, node: UnitNo, level: u32, first: u64) -> Result<MapWord> {
        let mut words = [U64::ZERO; FANOUT as usize];
        match level {
            1 => self.lowest(node, first, &mut words)?,
            _ => self.inner(node, level, first, &mut words)?,
        }
        if words.iter().all(|&word| word == U64::ZERO) {
            return Ok(MapWord::HOLE);
        }
        let unit = self.tx.store.take_space(|alloc| alloc.take_one(None))?;
        self.nodes.push(Run {
            start: unit,
            count: 1,
        });
        let volume = &self.tx.store.volume;
        volume.expect_stores(unit.offset(), UNIT_SIZE);
        let stored = volume.write(unit.offset(), words.as_bytes(), StoreKind::Metadata);
        self.tx.fresh(stored);
        Ok(MapWord::written(unit))
    }

    fn inner(&mut self, node: UnitNo, level: u32, first: u64, words: &mut [U64]) -> Result<()> {
        for (index, word) in (first..).zip(words) {
            let below = self.source.child(node, level, index)?;
            if below.is_hole() {
                continue;
            }
            let made = self.node(below.unit(), level - 1, index * FANOUT)?;
            if !made.is_hole() {
                *word = made.encode(entry_salt(self.target, level, index)).into();
            }
        }
        Ok(())
    }

    fn lowest(&mut self, node: UnitNo, first: u64, words: &mut [U64]) -> Result<()> {
        let leaf = Leaf::node(node.offset(), first);
        let end = leaf.end().min(self.end);
        let mut room = [0; FANOUT as usize];
        let known = &mut room[..end.saturating_sub(first) as usize];
        self.source.load_words(leaf, known);
        let mut page = first;
        while page < end {
            let at = (page - first) as usize;
            let run = match self.source.run_of(page, &known[at..]) {
                Some(run) => run,
                None => self.source.run_in(leaf, page, end)?,
            };
            if self.counts(run) {
                let entry = self.share(leaf, run)?;
                let count = run.count as usize;
                let places = &mut words[at..at + count];
                let place = (self.target, page);
                entry.encode_run(place, count, |step, word| places[step] = word.into());
            }
            page = run.end();
        }
        Ok(())
    }

    /// Marks the words of the source and counts the new owner.
    fn share(&mut self, leaf: Leaf, run: PageRun) -> Result<MapWord> {
        let start = run.entry.unit();
        let entry = MapWord::shared(start);
        if !self.tx.store.allocator().share(start, run.count) {
            return Err(StoreError::Busy);
        }
        self.shared.push(Run {
            start,
            count: run.count,
        });
        self.mapped += run.count;
        if run.entry != entry {
            let marked = self.source.set_run(leaf, PageRun { entry, ..run });
            self.marked.join(marked);
        }
        Ok(entry)
    }
}
