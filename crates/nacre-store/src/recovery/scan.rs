//! Rebuilding the session's allocation state from the medium: which units and object numbers are in
//! use.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::Builder;

use nacre_types::{
    CheckedWord, LINE_SIZE, ObjectId, StoreKind, UNIT_SIZE, UNITS_PER_BLOCK, UnitNo, VolumeOffset,
    site,
};

use crate::alloc::{Allocator, Run};
use crate::block_map::layout::MapWord;
use crate::data::map::{Map, Met, PartsMap};
use crate::error::{Result, StoreError};
use crate::lane::lane_list_at;
use crate::layout::{
    HEADER_UNITS, ListedBlock, ONODE_MAPPED_AT, ONODE_MODE_AT, ONODE_SIZE, ONODES_PER_BLOCK,
    RawOnode, Tree, onode_address, size_salt,
};
use crate::object::blocks::block_list_at;
use crate::object::onode::root_word_at;
use crate::problem::Problem;
use crate::store::Store;
use crate::tree::{self, TreePart};

/// Most problems that one run reports.
pub(crate) const MAX_PROBLEMS: usize = 1000;
/// Most threads of a parallel scan.
const MAX_THREADS: usize = 16;
/// Bytes at the end of a node that are asked for before it is looked at.
const EXPECTED: u64 = 6 * LINE_SIZE;

/// What a rebuild found.
#[derive(Default)]
pub(crate) struct ScanOutcome {
    /// Objects without a link; their removal was cut off.
    pub(crate) orphans: Vec<ObjectId>,
    /// What is damaged. Units below a damaged word are not known to be used: nothing may be
    /// allocated.
    pub(crate) problems: Vec<Problem>,
}

/// Fills unit bitmap, share counts and object bitmap of an exclusively owned session in which they
/// are zero.
///
/// With `parallel` it starts threads, which it must not do inside of a program that knows nothing
/// of Nacre.
pub(crate) fn rebuild(store: &Store, parallel: bool) -> Result<ScanOutcome> {
    let mut found = Found::default();
    mark_fixed(store, &mut found);
    let next = AtomicU64::new(0);
    match parallel {
        true => scan_in_parallel(store, &next, &mut found),
        false => found.merge(scan_blocks(store, &next)),
    }
    found.name_owners(store);
    if found.problems.is_empty() && store.is_writable() && site::step() {
        trim(store, &found.beyond_eof)?;
    }
    Ok(ScanOutcome {
        orphans: found.orphans,
        problems: found.problems,
    })
}

/// With as many threads as are of use and the system allows.
fn scan_in_parallel(store: &Store, next: &AtomicU64, found: &mut Found) {
    std::thread::scope(|scope| {
        let start = |_| Builder::new().spawn_scoped(scope, || scan_blocks(store, next));
        let others: Vec<_> = (1..threads()).map_while(|one| start(one).ok()).collect();
        found.merge(scan_blocks(store, next));
        for other in others {
            match other.join() {
                Ok(part) => found.merge(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
}

fn threads() -> usize {
    std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(MAX_THREADS)
}

/// Marks what belongs to no object: the front, what lies past the volume, metadata and log blocks.
fn mark_fixed(store: &Store, found: &mut Found) {
    let alloc = store.allocator();
    alloc.mark_used(UnitNo(0), HEADER_UNITS);
    store.session().object_bits()[0].fetch_or(1, Relaxed);
    let bits = store.session().unit_bits().len() as u64 * 64;
    alloc.mark_used(UnitNo(store.units), bits - store.units);
    for units in store.volume().closed_units() {
        alloc.mark_used(UnitNo(units.start), units.end - units.start);
    }
    for (at, block) in listed_blocks(store) {
        let used = block.map(|block| alloc.mark_used(block, UNITS_PER_BLOCK));
        let _noted = match used {
            Ok(None) => false,
            Ok(Some(unit)) => {
                found.problem(None, Some(unit.offset()), "unit of a block is used twice")
            }
            Err(error) => found.problem(None, Some(at), error),
        };
    }
}

/// The metadata and log blocks of the pool, each with the word that names it.
pub(crate) fn listed_blocks(
    store: &Store,
) -> impl Iterator<Item = (VolumeOffset, Result<UnitNo>)> + '_ {
    let lanes = (0..store.lane_count()).map(lane_list_at);
    let lanes = lanes.map(|at| (at, store.listed_block(at, "log block list")));
    let blocks = (0..store.block_count()).filter_map(|index| {
        let block = match store.metadata_block(index) {
            Ok(ListedBlock::GivenBack { .. }) => return None,
            Ok(ListedBlock::At(block)) => Ok(block),
            Err(error) => Err(error),
        };
        Some((block_list_at(index), block))
    });
    blocks.chain(lanes)
}

fn scan_blocks(store: &Store, next: &AtomicU64) -> Found {
    let mut found = Found::default();
    let mut foreseen = None;
    loop {
        let block = next.fetch_add(1, Relaxed);
        if block >= store.block_count() {
            return found;
        }
        for_each_object_of(store, block, &mut |id, onode| {
            if foreseen.replace(onode.unit()) != Some(onode.unit()) {
                expect_roots(store, onode.unit());
            }
            scan_object(store, id, onode, &mut found)
        });
    }
}

/// Says that the root nodes of all objects whose onodes lie in a unit will be loaded: most trees of
/// objects are one node, and most of the time of a scan is waiting for it.
///
/// Onodes that are not in use are left out: what they name may have left with a device, and a load
/// there fails the volume.
fn expect_roots(store: &Store, onodes: UnitNo) {
    let all = (0..UNIT_SIZE).step_by(ONODE_SIZE);
    let all = all.map(|place| onodes.offset().add(place));
    for onode in all.filter(|onode| is_in_use(store, *onode)) {
        for tree in [Tree::Entries, Tree::Xattrs] {
            let word = store.volume().load_u64(root_word_at(onode, tree));
            let root = word & CheckedWord::MAX;
            if store.is_unit(root) {
                expect_node(store, UnitNo(root));
            }
        }
    }
}

/// The head of a node and the first entries that came to it. Where no page is mapped yet only a
/// load is of use.
fn expect_node(store: &Store, unit: UnitNo) {
    std::hint::black_box(store.volume().load_u32(unit.offset()));
    let entries = unit.offset().add(UNIT_SIZE - EXPECTED);
    if let Some(entries) = store.volume().checked_slice(entries, EXPECTED as usize) {
        entries.expect_load();
    }
}

/// Visits the onodes that are in use.
pub(crate) fn for_each_object(store: &Store, visit: &mut dyn FnMut(ObjectId, VolumeOffset)) {
    for block in 0..store.block_count() {
        for_each_object_of(store, block, visit);
    }
}

/// As [`for_each_object`], of the `block`-th metadata block alone.
pub(crate) fn for_each_object_of(
    store: &Store,
    block: u64,
    visit: &mut dyn FnMut(ObjectId, VolumeOffset),
) {
    let Ok(ListedBlock::At(unit)) = store.metadata_block(block) else {
        return;
    };
    for index in 0..ONODES_PER_BLOCK {
        let id = ObjectId(block * ONODES_PER_BLOCK + index);
        let onode = onode_address(unit, index);
        if id.0 != 0 && is_in_use(store, onode) {
            visit(id, onode);
        }
    }
}

fn is_in_use(store: &Store, onode: VolumeOffset) -> bool {
    store.volume().load_u32(onode.add(ONODE_MODE_AT)) != 0
}

fn scan_object(store: &Store, id: ObjectId, onode: VolumeOffset, found: &mut Found) {
    let word = &store.session().object_bits()[(id.0 / 64) as usize];
    word.fetch_or(1 << (id.0 % 64), Relaxed);
    if let Err(error) = store.onode_live(id) {
        found.problem(Some(id), Some(onode), error);
    }
    let Ok(raw) = store.raw_onode(onode) else {
        return;
    };
    match raw.nlink.get() {
        // Removing it would take away the only way to what it holds.
        0 if id == ObjectId::ROOT || raw.entries_root.get() != 0 => {
            found.problem(Some(id), Some(onode), "directory with entries has no link");
        }
        0 if site::step() => found.orphans.push(id),
        _ => {}
    }
    scan_map(store, id, onode, &raw, found);
    if raw.parts_root.get() != 0 {
        scan_parts(store, id, onode, found);
    }
    for tree in [Tree::Entries, Tree::Xattrs] {
        scan_tree(store, id, onode, tree, found);
    }
}

fn scan_map(store: &Store, id: ObjectId, onode: VolumeOffset, raw: &RawOnode, found: &mut Found) {
    if raw.root.get() == 0 && raw.mapped.get() == 0 {
        return;
    }
    let alloc = store.allocator();
    let pages = pages_of_onode(raw, id);
    let (mut mapped, mut beyond) = (0, false);
    Map::new(store, id, onode).walk(&mut |met| match met {
        Met::Node(unit) => found.claim(alloc, id, MapWord::written(unit)),
        Met::Page(page, entry) => {
            mapped += 1;
            beyond |= page >= pages && entry.is_written();
            found.claim(alloc, id, entry)
        }
        Met::Damaged(at) => found.problem(Some(id), Some(at), "block map word is damaged"),
    });
    if beyond {
        found.beyond_eof.push(id);
    }
    if mapped != raw.mapped.get() && store.is_writable() {
        store
            .volume()
            .store_u64_lazy(onode.add(ONODE_MAPPED_AT), mapped, StoreKind::Metadata);
    }
}

fn scan_parts(store: &Store, id: ObjectId, onode: VolumeOffset, found: &mut Found) {
    let alloc = store.allocator();
    PartsMap::of_parts(store, id, onode).walk(&mut |met| match met {
        Met::Node(unit) => found.claim(alloc, id, MapWord::written(unit)),
        Met::Page(_, entry) => found.claim(alloc, id, entry),
        Met::Damaged(at) => {
            found.problem(Some(id), Some(at), "word of the map of parts is damaged")
        }
    });
}

/// Pages below EOF; all of them when the size word is damaged.
pub(crate) fn pages_of_onode(raw: &RawOnode, id: ObjectId) -> u64 {
    let size = CheckedWord(raw.size.get()).open(size_salt(id));
    size.map_or(u64::MAX, |size| size.div_ceil(UNIT_SIZE))
}

fn scan_tree(store: &Store, id: ObjectId, onode: VolumeOffset, tree: Tree, found: &mut Found) {
    let alloc = store.allocator();
    walk_tree(store, id, onode, tree, &mut |met| match met {
        Ok(run) => found.claim_run(alloc, id, run),
        Err(error) => found.problem(Some(id), None, error),
    });
}

/// Tells `visit` about the units of an object's tree and the damage in it; it answers whether to go
/// below a node.
pub(crate) fn walk_tree(
    store: &Store,
    id: ObjectId,
    onode: VolumeOffset,
    tree: Tree,
    visit: &mut dyn FnMut(Result<Run>) -> bool,
) {
    let root = match store.tree_root(id, onode, tree) {
        Ok(None) => return,
        Ok(Some(root)) if store.is_unit(root) => UnitNo(root),
        Ok(Some(_)) => {
            visit(Err(StoreError::corrupt(Some(id), "tree root word", onode)));
            return;
        }
        Err(error) => {
            visit(Err(error));
            return;
        }
    };
    let mut errors = Vec::new();
    let mut see = |part| match part {
        TreePart::Node(unit, _) => visit(Ok(Run {
            start: unit,
            count: 1,
        })),
        TreePart::Value(value) => visit(Ok(value.run())),
    };
    tree::walk(store, id, tree, root, &mut see, &mut |error| {
        if errors.len() < MAX_PROBLEMS {
            errors.push(error);
        }
    });
    for error in errors {
        visit(Err(error));
    }
}

/// What one thread found.
#[derive(Default)]
struct Found {
    orphans: Vec<ObjectId>,
    beyond_eof: Vec<ObjectId>,
    double: HashSet<UnitNo>,
    problems: Vec<Problem>,
}

impl Found {
    fn merge(&mut self, other: Found) {
        self.orphans.extend(other.orphans);
        self.beyond_eof.extend(other.beyond_eof);
        self.double.extend(other.double);
        self.problems.extend(other.problems);
        self.problems.truncate(MAX_PROBLEMS);
    }

    /// Notes a problem; there is nothing below it to visit.
    fn problem(
        &mut self,
        object: Option<ObjectId>,
        place: Option<VolumeOffset>,
        what: impl ToString,
    ) -> bool {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(Problem {
                object,
                place,
                what: what.to_string(),
            });
        }
        false
    }

    /// Takes a unit for an object, a shared one also a second time; whether it was free.
    fn claim(&mut self, alloc: Allocator<'_>, id: ObjectId, entry: MapWord) -> bool {
        let unit = entry.unit();
        if alloc.mark_used(unit, 1).is_none() {
            return true;
        }
        if !entry.may_be_shared() {
            self.double(unit);
        } else if !alloc.share(unit, 1) {
            self.problem(Some(id), Some(unit.offset()), "unit has too many owners");
        }
        false
    }

    fn claim_run(&mut self, alloc: Allocator<'_>, id: ObjectId, run: Run) -> bool {
        let mut free = true;
        for step in 0..run.count {
            free &= self.claim(alloc, id, MapWord::written(run.start.add(step)));
        }
        free
    }

    fn double(&mut self, unit: UnitNo) {
        if self.double.len() < MAX_PROBLEMS {
            self.double.insert(unit);
        }
    }

    /// Turns units that are used twice into problems that name who uses them.
    fn name_owners(&mut self, store: &Store) {
        for (unit, owners) in owners_of(store, &self.double) {
            self.problem(
                owners.first().copied(),
                Some(unit.offset()),
                double_use(&owners),
            );
        }
    }
}

/// Says who uses a unit that only one may use.
pub(crate) fn double_use(owners: &[ObjectId]) -> String {
    let names: Vec<String> = owners.iter().map(|id| format!("object {id}")).collect();
    match names.as_slice() {
        [one] => format!("unit is used twice, by {one} and by the pool's own structures or itself"),
        _ => format!("unit is used twice, by {}", names.join(" and ")),
    }
}

/// Which objects use these units.
pub(crate) fn owners_of(store: &Store, units: &HashSet<UnitNo>) -> Vec<(UnitNo, Vec<ObjectId>)> {
    let mut owners: HashMap<UnitNo, Vec<ObjectId>> = HashMap::new();
    if units.is_empty() {
        return Vec::new();
    }
    for_each_object(store, &mut |id, onode| {
        for_each_unit(store, id, onode, &mut |unit| {
            if units.contains(&unit) {
                let list = owners.entry(unit).or_default();
                if list.last() != Some(&id) && list.len() < MAX_PROBLEMS {
                    list.push(id);
                }
            }
        });
    });
    let mut sorted: Vec<_> = owners.into_iter().collect();
    sorted.sort();
    sorted
}

fn for_each_unit(store: &Store, id: ObjectId, onode: VolumeOffset, visit: &mut dyn FnMut(UnitNo)) {
    let mut nodes = HashSet::new();
    let mut see = |met| match met {
        Met::Node(unit) => {
            visit(unit);
            nodes.insert(unit)
        }
        Met::Page(_, entry) => {
            visit(entry.unit());
            false
        }
        Met::Damaged(_) => false,
    };
    Map::new(store, id, onode).walk(&mut see);
    PartsMap::of_parts(store, id, onode).walk(&mut see);
    for tree in [Tree::Entries, Tree::Xattrs] {
        walk_tree(store, id, onode, tree, &mut |met| {
            let Ok(run) = met else { return false };
            (0..run.count).for_each(|step| visit(run.start.add(step)));
            nodes.insert(run.start)
        });
    }
}

/// Finishes truncations that were cut off after their commit.
fn trim(store: &Store, objects: &[ObjectId]) -> Result<()> {
    for &id in objects {
        match store.lock(id) {
            Ok(guard) => store.after_unmap(&guard)?,
            Err(StoreError::NoSuchObject(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
