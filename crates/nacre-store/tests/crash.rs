//! Crashes at every fence, and what the lines that were not fenced may have become.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

use nacre_media::Observer;
use nacre_store::check::check;
use nacre_store::layout::{BLOCK_LIST_AT, EntryValue, ONODES_PER_BLOCK, entry_hash, entry_key};
use nacre_store::{
    AttachOptions, FormatOptions, INLINE_MAX, NewObject, SessionChoice, Store, Tree, Tx,
};
use nacre_types::{DeviceOffset, ObjectId, StoreKind, UNITS_PER_BLOCK, VolumeOffset};
use nacre_volume::Volume;

const ROOT: ObjectId = ObjectId::ROOT;
const POOL: u64 = 32 << 20;
const LINE: u64 = 64;
const UNIT: usize = 4096;
const S_IFREG: u32 = 0o100_000;
const S_IFDIR: u32 = 0o040_000;
const MEMORY: AttachOptions = AttachOptions {
    session: SessionChoice::Memory,
    mode: None,
    granularity: None,
    resume: false,
    parallel: false,
};

/// What a program can see of a pool, without times.
type Seen = BTreeMap<u64, String>;
/// Nonzero units of a pool.
type Image = BTreeMap<u64, Box<[u8; UNIT]>>;

#[derive(Clone, Debug)]
enum Event {
    Store {
        at: u64,
        bytes: Vec<u8>,
        kind: StoreKind,
    },
    Flush {
        at: u64,
        len: u64,
        kind: Option<StoreKind>,
    },
    Fence,
    StepDone,
}

#[derive(Default)]
struct Recorder(Mutex<Vec<Event>>);

impl Recorder {
    fn push(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }
}

impl Observer for Recorder {
    fn store(&self, _: u16, at: DeviceOffset, bytes: &[u8], kind: StoreKind, _: bool) {
        self.push(Event::Store {
            at: at.0,
            bytes: bytes.to_vec(),
            kind,
        });
    }

    fn flush(&self, _: u16, at: DeviceOffset, len: u64) {
        let last = match self.0.lock().unwrap().last() {
            Some(Event::Store { kind, .. }) => Some(*kind),
            _ => None,
        };
        self.push(Event::Flush {
            at: at.0,
            len,
            kind: last,
        });
    }

    fn fence(&self, _: u16) {
        self.push(Event::Fence);
    }
}

/// One line's stores that are not durable yet, as 8-byte pieces in store order.
#[derive(Default)]
struct Pending {
    pieces: Vec<(u64, Vec<u8>)>,
    flushed: usize,
}

/// The medium between two fences.
struct Medium {
    durable: Image,
    pending: BTreeMap<u64, Pending>,
}

impl Medium {
    fn apply(&mut self, event: &Event) {
        match event {
            Event::Store { at, bytes, .. } => self.store(*at, bytes),
            Event::Flush { at, len, .. } => {
                for line in at / LINE..(at + len).div_ceil(LINE) {
                    if let Some(pending) = self.pending.get_mut(&line) {
                        pending.flushed = pending.pieces.len();
                    }
                }
            }
            Event::Fence => self.fence(),
            Event::StepDone => {}
        }
    }

    fn store(&mut self, at: u64, bytes: &[u8]) {
        let mut start = 0;
        while start < bytes.len() {
            let here = at + start as u64;
            let len = (8 - here % 8).min((bytes.len() - start) as u64) as usize;
            let piece = (here, bytes[start..start + len].to_vec());
            self.pending
                .entry(here / LINE)
                .or_default()
                .pieces
                .push(piece);
            start += len;
        }
    }

    fn fence(&mut self) {
        for pending in self.pending.values_mut() {
            for (at, bytes) in pending.pieces.drain(..pending.flushed) {
                put(&mut self.durable, at, &bytes);
            }
            pending.flushed = 0;
        }
        self.pending.retain(|_, pending| !pending.pieces.is_empty());
    }

    /// An image in which each line got as far as `choose(pieces)` says.
    fn image(&self, choose: &mut dyn FnMut(usize) -> usize) -> Image {
        let mut image = self.durable.clone();
        for pending in self.pending.values() {
            for (at, bytes) in &pending.pieces[..choose(pending.pieces.len())] {
                put(&mut image, *at, bytes);
            }
        }
        image
    }
}

fn put(image: &mut Image, at: u64, bytes: &[u8]) {
    let unit = image
        .entry(at / UNIT as u64)
        .or_insert_with(|| Box::new([0; UNIT]));
    let start = at as usize % UNIT;
    unit[start..start + bytes.len()].copy_from_slice(bytes);
}

fn image_of(volume: &Volume) -> Image {
    let mut image = Image::new();
    for unit in 0..volume.units() {
        let bytes: [u8; UNIT] = volume.read_array(VolumeOffset(unit * UNIT as u64));
        if bytes != [0; UNIT] {
            image.insert(unit, Box::new(bytes));
        }
    }
    image
}

fn volume_of(image: &Image) -> Volume {
    let volume = Volume::memory(POOL).unwrap();
    for (unit, bytes) in image {
        let at = VolumeOffset(unit * UNIT as u64);
        volume
            .fence(volume.write(at, &bytes[..], StoreKind::Data))
            .unwrap();
    }
    volume
}

/// xorshift: the same samples on every run.
struct Samples(u64);

impl Samples {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below as u64) as usize
    }
}

fn tree(store: &Store, id: ObjectId, tree: Tree) -> Vec<(Vec<u8>, usize, u8)> {
    let mut all = Vec::new();
    let mut visit = |key: &[u8], value: &[u8], _: Option<&[u8]>| {
        all.push((
            key.to_vec(),
            value.len(),
            value.iter().fold(0, |a, b| a ^ b),
        ));
        ControlFlow::Continue(())
    };
    store.tree_scan(id, tree, &[], &mut visit).unwrap();
    all
}

fn see(store: &Store) -> Seen {
    let mut seen = Seen::new();
    for number in (1..64).chain(ONODES_PER_BLOCK..ONODES_PER_BLOCK + 16) {
        let id = ObjectId(number);
        let Ok(a) = store.attrs(id) else { continue };
        let mut inline = [0; INLINE_MAX];
        let len = store.inline(id, &mut inline).unwrap();
        let what = (
            a.mode,
            a.uid,
            a.nlink,
            a.size,
            a.generation,
            a.has_entries,
            a.xattrs,
        );
        let trees = (
            tree(store, id, Tree::Entries),
            tree(store, id, Tree::Xattrs),
        );
        seen.insert(number, format!("{what:?} {trees:?} {:?}", &inline[..len]));
    }
    seen
}

fn link(tx: &mut Tx<'_>, store: &Store, dir: ObjectId, name: &str, object: ObjectId, kind: u8) {
    let mut key = Vec::new();
    entry_key(
        entry_hash(store.dir_seed(), name.as_bytes()),
        name.as_bytes(),
        &mut key,
    );
    let value = EntryValue { object, kind }.encode();
    tx.tree_insert(dir, Tree::Entries, &key, &value).unwrap();
}

fn unlink(tx: &mut Tx<'_>, store: &Store, dir: ObjectId, name: &str) {
    let mut key = Vec::new();
    entry_key(
        entry_hash(store.dir_seed(), name.as_bytes()),
        name.as_bytes(),
        &mut key,
    );
    assert!(tx.tree_remove(dir, Tree::Entries, &key).unwrap());
}

fn find(store: &Store, name: &str) -> ObjectId {
    let (mut key, mut value) = (Vec::new(), Vec::new());
    entry_key(
        entry_hash(store.dir_seed(), name.as_bytes()),
        name.as_bytes(),
        &mut key,
    );
    assert!(
        store
            .tree_get(ROOT, Tree::Entries, &key, &mut value)
            .unwrap()
    );
    EntryValue::decode(&value).unwrap().object
}

fn create(store: &Store, name: &str) {
    let _root = store.lock(ROOT).unwrap();
    let mut tx = store.begin().unwrap();
    let new = NewObject {
        mode: S_IFREG | 0o644,
        nlink: 1,
        time: 5,
        ..NewObject::default()
    };
    let id = tx.create(&new).unwrap();
    link(&mut tx, store, ROOT, name, id, 8);
    tx.set_attrs(ROOT, |a| a.mtime += 1).unwrap();
    tx.commit().unwrap();
}

fn remove(store: &Store, name: &str) {
    let id = find(store, name);
    let _guards = store.lock_many(&[ROOT, id]).unwrap();
    let mut tx = store.begin().unwrap();
    unlink(&mut tx, store, ROOT, name);
    tx.remove(id).unwrap();
    tx.commit().unwrap();
}

fn make_dir(store: &Store, name: &str) {
    let _root = store.lock(ROOT).unwrap();
    let mut tx = store.begin().unwrap();
    let hash = entry_hash(store.dir_seed(), name.as_bytes());
    let id = tx
        .create(&NewObject {
            mode: S_IFDIR | 0o755,
            nlink: 2,
            parent: ROOT.0,
            parent_key: hash,
            ..NewObject::default()
        })
        .unwrap();
    link(&mut tx, store, ROOT, name, id, 4);
    tx.set_attrs(ROOT, |a| a.nlink += 1).unwrap();
    tx.commit().unwrap();
}

fn rename_over(store: &Store, from: &str, to: &str) {
    let (moved, gone) = (find(store, from), find(store, to));
    let _guards = store.lock_many(&[ROOT, moved, gone]).unwrap();
    let mut tx = store.begin().unwrap();
    unlink(&mut tx, store, ROOT, from);
    link(&mut tx, store, ROOT, to, moved, 8);
    tx.remove(gone).unwrap();
    tx.set_attrs(moved, |a| a.ctime += 7).unwrap();
    tx.commit().unwrap();
}

fn set_xattr(store: &Store, name: &str, key: &[u8], len: usize) {
    let id = find(store, name);
    let _guard = store.lock(id).unwrap();
    let mut tx = store.begin().unwrap();
    tx.tree_insert(id, Tree::Xattrs, key, &vec![len as u8; len])
        .unwrap();
    tx.commit().unwrap();
}

fn remove_xattr(store: &Store, name: &str, key: &[u8]) {
    let id = find(store, name);
    let _guard = store.lock(id).unwrap();
    let mut tx = store.begin().unwrap();
    assert!(tx.tree_remove(id, Tree::Xattrs, key).unwrap());
    tx.commit().unwrap();
}

fn change_owner(store: &Store, name: &str) {
    let id = find(store, name);
    let _guard = store.lock(id).unwrap();
    let mut tx = store.begin().unwrap();
    tx.set_attrs(id, |a| a.uid += 1000).unwrap();
    tx.commit().unwrap();
}

fn give_up(store: &Store) {
    let _root = store.lock(ROOT).unwrap();
    let mut tx = store.begin().unwrap();
    let id = tx
        .create(&NewObject {
            mode: S_IFREG,
            nlink: 1,
            ..NewObject::default()
        })
        .unwrap();
    link(&mut tx, store, ROOT, "never", id, 8);
    drop(tx);
}

fn symlink(store: &Store, name: &str) {
    let _root = store.lock(ROOT).unwrap();
    let mut tx = store.begin().unwrap();
    let new = NewObject {
        mode: 0o120_777,
        nlink: 1,
        size: 6,
        ..NewObject::default()
    };
    let id = tx.create(&new).unwrap();
    tx.set_inline(id, b"target").unwrap();
    link(&mut tx, store, ROOT, name, id, 10);
    tx.commit().unwrap();
}

type Op = Box<dyn Fn(&Store)>;

fn long_name(n: usize) -> String {
    format!("{n}-{}", "x".repeat(200))
}

fn workload() -> Vec<Op> {
    let mut ops: Vec<Op> = vec![
        Box::new(|s| create(s, "a")),
        Box::new(|s| create(s, "b")),
        Box::new(|s| set_xattr(s, "a", b"user.small", 20)),
        Box::new(|s| set_xattr(s, "a", b"user.big", 9000)),
        Box::new(|s| change_owner(s, "b")),
        Box::new(|s| rename_over(s, "b", "a")),
        Box::new(|s| make_dir(s, "d")),
        Box::new(give_up),
        Box::new(|s| symlink(s, "l")),
        Box::new(|s| set_xattr(s, "a", b"user.big", 9000)),
        Box::new(|s| set_xattr(s, "a", b"user.big", 50)),
        Box::new(|s| remove_xattr(s, "a", b"user.big")),
        Box::new(|s| remove(s, "a")),
    ];
    for n in 0..20 {
        ops.push(Box::new(move |s| create(s, &long_name(n))));
    }
    for n in 0..20 {
        ops.push(Box::new(move |s| remove(s, &long_name(n))));
    }
    ops
}

/// A recorded run: the image before it, what happened, and what was seen after each step.
struct Run {
    base: Image,
    events: Vec<Event>,
    seen: Vec<Seen>,
}

fn record(ops: &[Op]) -> Run {
    record_levelled(ops, u32::MAX)
}

/// With lanes that move after so many records, and tree nodes as the store derives it.
fn record_levelled(ops: &[Op], levelling: u32) -> Run {
    record_from(ops, levelling, &|_| {})
}

fn record_from(ops: &[Op], levelling: u32, prepare: &dyn Fn(&Store)) -> Run {
    let volume = Volume::memory(POOL).unwrap();
    Store::format(&volume, &FormatOptions::default()).unwrap();
    let store = Store::attach(volume, &MEMORY).unwrap();
    store.set_levelling(levelling);
    prepare(&store);
    let base = image_of(store.volume());
    let recorder = Arc::new(Recorder::default());
    let observer: Arc<dyn Observer> = recorder.clone();
    store.volume().set_observer(&observer);
    let mut seen = vec![see(&store)];
    for op in ops {
        op(&store);
        recorder.push(Event::StepDone);
        seen.push(see(&store));
    }
    let events = recorder.0.lock().unwrap().clone();
    Run { base, events, seen }
}

/// Recovers an image; what is wrong with it, or what is seen.
fn recover(image: &Image, watch: Option<Arc<Recorder>>) -> Result<Seen, String> {
    let volume = volume_of(image);
    if let Some(recorder) = watch {
        let observer: Arc<dyn Observer> = recorder;
        volume.set_observer(&observer);
    }
    let store = Store::attach(volume, &MEMORY).map_err(|e| format!("attach: {e}"))?;
    let report = check(&store, &mut |_| {});
    match report.problems.first() {
        Some(problem) => Err(format!("check: {problem}")),
        None if store.report().problems > 0 => Err("the scan met problems".into()),
        None => Ok(see(&store)),
    }
}

fn judge(image: &Image, allowed: &[&Seen]) -> Result<(), String> {
    let seen = recover(image, None)?;
    match allowed.contains(&&seen) {
        true => Ok(()),
        false => Err(format!("seen {seen:#?}\nallowed {allowed:#?}")),
    }
}

/// Explores a recorded run; returns images tried and the first violation.
fn explore(run: &Run, samples: usize) -> (usize, Result<(), String>) {
    let mut medium = Medium {
        durable: run.base.clone(),
        pending: BTreeMap::new(),
    };
    let mut random = Samples(0x1234_5678_9abc_def1);
    let (mut step, mut images) = (0, 0);
    for (number, event) in run.events.iter().enumerate() {
        let after = &run.seen[(step + 1).min(run.seen.len() - 1)];
        let both = [&run.seen[step], after];
        let point = matches!(event, Event::Fence | Event::StepDone);
        if point {
            let allowed = if let Event::StepDone = event {
                &both[1..]
            } else {
                &both[..]
            };
            let mut tries: Vec<Image> = vec![medium.image(&mut |_| 0), medium.image(&mut |n| n)];
            for _ in 0..samples.min(medium.pending.len() * 8) {
                tries.push(medium.image(&mut |n| match random.next(3) {
                    0 => 0,
                    1 => n,
                    _ => random.next(n + 1),
                }));
            }
            for image in tries {
                images += 1;
                if let Err(why) = judge(&image, allowed) {
                    return (images, Err(format!("event {number}, step {step}: {why}")));
                }
            }
        }
        medium.apply(event);
        step += usize::from(matches!(event, Event::StepDone));
    }
    (images, Ok(()))
}

#[test]
fn every_crash_leaves_the_state_before_or_after_the_operation() {
    let run = record(&workload());
    let (images, result) = explore(&run, 10);
    result.unwrap();
    assert!(images > 1000, "only {images} images");
}

#[test]
fn crashes_while_lanes_and_nodes_move_lose_nothing() {
    let run = record_levelled(&workload(), 8);
    let stores = |from: u64, to: u64| {
        let inside =
            |event: &&Event| matches!(event, Event::Store { at, .. } if (from..to).contains(at));
        run.events.iter().filter(inside).count()
    };
    // The list of log blocks, in the volume's third unit.
    assert!(stores(2 * 4096, 3 * 4096) >= 3, "lanes must move");
    let (images, result) = explore(&run, 6);
    result.unwrap();
    assert!(images > 1000, "only {images} images");
}

/// Gives the pool a second metadata block, in which one object has lived, and the place where it
/// goes next old contents.
fn prepare_second_block(store: &Store) {
    let words = &store.session().object_bits()[..(ONODES_PER_BLOCK / 64) as usize];
    let before: Vec<u64> = words.iter().map(|word| word.swap(!0, SeqCst)).collect();
    create(store, "first life");
    for (word, before) in words.iter().zip(before) {
        word.store(before, SeqCst);
    }
    assert_eq!(find(store, "first life").0, ONODES_PER_BLOCK);
    remove(store, "first life");
    let volume = store.volume();
    // Blocks are taken from the end on.
    let next = volume.units() / UNITS_PER_BLOCK - 2;
    for unit in 0..UNITS_PER_BLOCK {
        let at = VolumeOffset((next * UNITS_PER_BLOCK + unit) * UNIT as u64);
        volume
            .fence(volume.write(at, &[0xee; UNIT], StoreKind::Data))
            .unwrap();
    }
}

/// All numbers of the second block had their round.
fn end_round_of_second_block(store: &Store) {
    let shared = store.session().shared();
    shared.object_round.store(1 << 1, SeqCst);
    let len = ONODES_PER_BLOCK / shared.object_hints.len() as u64;
    let ends = (ONODES_PER_BLOCK..).step_by(len as usize).skip(1);
    for (hint, end) in shared.object_hints.iter().zip(ends) {
        hint.store(end, SeqCst);
    }
}

fn moving_blocks() -> Vec<Op> {
    vec![
        Box::new(|store| {
            end_round_of_second_block(store);
            create(store, "second life");
        }),
        Box::new(|store| remove(store, "second life")),
    ]
}

#[test]
fn crashes_while_a_metadata_block_moves_lose_nothing() {
    let run = record_from(&moving_blocks(), u32::MAX, &prepare_second_block);
    let moved = |event: &Event| matches!(event, Event::Store { at, .. } if *at == block_word_at());
    assert_eq!(run.events.iter().filter(|event| moved(event)).count(), 1);
    let (images, result) = explore(&run, 12);
    result.unwrap();
    assert!(images > 50, "only {images} images");
}

fn use_first_block(store: &Store) {
    let words = &store.session().object_bits()[..(ONODES_PER_BLOCK / 64) as usize];
    words.iter().for_each(|word| word.store(!0, SeqCst));
}

#[test]
fn crashes_while_a_metadata_block_goes_and_comes_back_lose_nothing() {
    let ops: Vec<Op> = vec![
        Box::new(|store| store.give_blocks_back().unwrap()),
        Box::new(|store| create(store, "in the first block")),
        Box::new(|store| {
            use_first_block(store);
            create(store, "second life");
        }),
        Box::new(|store| remove(store, "second life")),
    ];
    let run = record_from(&ops, u32::MAX, &prepare_second_block);
    let listed = |event: &Event| matches!(event, Event::Store { at, .. } if *at == block_word_at());
    assert_eq!(run.events.iter().filter(|event| listed(event)).count(), 2);
    let (images, result) = explore(&run, 12);
    result.unwrap();
    assert!(images > 50, "only {images} images");
}

#[test]
fn canary_a_metadata_block_that_is_named_too_early_is_found() {
    let mut run = record_from(&moving_blocks(), u32::MAX, &prepare_second_block);
    let word = |event: &Event| matches!(event, Event::Store { at, .. } if *at == block_word_at());
    let named = run.events.iter().position(word).unwrap();
    let mut before = run.events[..named].iter();
    let fence = before
        .rposition(|event| matches!(event, Event::Fence))
        .unwrap();
    run.events.remove(fence);
    assert!(explore(&run, 12).1.is_err());
}

/// Where the list names the second metadata block.
fn block_word_at() -> u64 {
    BLOCK_LIST_AT.0 + 8
}

#[test]
fn canary_a_lane_that_forgets_its_words_is_found() {
    let mut run = record_levelled(&workload(), 8);
    // What a new block says before the list names it: the first word of a moved lane.
    let mut moving = false;
    run.events.retain(|event| match event {
        Event::Store {
            bytes,
            kind: StoreKind::Log,
            ..
        } if bytes.len() > UNIT => {
            moving = true;
            true
        }
        Event::Store {
            bytes,
            kind: StoreKind::Log,
            ..
        } if bytes.len() == 8 && moving => {
            moving = false;
            false
        }
        _ => true,
    });
    assert!(explore(&run, 6).1.is_err());
}

#[test]
fn a_crash_of_the_recovery_changes_nothing() {
    let run = record(&workload());
    let mut medium = Medium {
        durable: run.base.clone(),
        pending: BTreeMap::new(),
    };
    let mut fences = 0;
    let mut distinct = BTreeSet::new();
    for event in &run.events {
        if let Event::Fence = event {
            fences += 1;
            if fences % 5 == 0 {
                let base = medium.image(&mut |n| n);
                let recorder = Arc::new(Recorder::default());
                let seen = recover(&base, Some(recorder.clone())).unwrap();
                let events = recorder.0.lock().unwrap().clone();
                distinct.insert(events.len());
                let again = Run {
                    base,
                    events,
                    seen: vec![seen],
                };
                explore(&again, 4).1.unwrap();
            }
        }
        medium.apply(event);
    }
    assert!(
        distinct.len() > 1,
        "some images needed a replay, some did not"
    );
}

/// The harness must notice what it is made for.
#[test]
fn canary_a_forgotten_flush_is_found() {
    for kind in [StoreKind::Log, StoreKind::Metadata] {
        let mut run = record(&workload());
        run.events
            .retain(|event| !matches!(event, Event::Flush { kind: Some(k), .. } if *k == kind));
        let (_, result) = explore(&run, 10);
        assert!(result.is_err(), "nobody misses the flushes of {kind:?}");
    }
}

#[test]
fn canary_a_forgotten_fence_is_found() {
    let mut run = record(&workload());
    let mut fences = 0;
    run.events.retain(|event| {
        fences += usize::from(matches!(event, Event::Fence));
        !matches!(event, Event::Fence) || fences % 3 != 0
    });
    assert!(explore(&run, 30).1.is_err());
}
