//! Crashes at every fence, and what the lines that were not fenced may have become.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::SeqCst;

use nacre_store::check::check;
use nacre_store::layout::{BLOCK_LIST_AT, ONODES_PER_BLOCK, entry_hash};
use nacre_store::{INLINE_MAX, NewObject, Store, Tree};
use nacre_testkit::image::Image;
use nacre_testkit::medium::{Depth, MANY_LINES, Medium};
use nacre_testkit::names::{FILE, NEW_FILE, find, link, remove, unlink};
use nacre_testkit::pool::{PRIVATE, memory_pool};
use nacre_testkit::random::Random;
use nacre_testkit::recorder::{Event, Recorder, What};
use nacre_types::{ObjectId, StoreKind, UNITS_PER_BLOCK, VolumeOffset};
use nacre_volume::Volume;

const ROOT: ObjectId = ObjectId::ROOT;
const POOL: u64 = 32 << 20;
const UNIT: usize = 4096;
const S_IFREG: u32 = 0o100_000;
const S_IFDIR: u32 = 0o040_000;
/// What a program can see of a pool, without times.
type Seen = BTreeMap<u64, String>;
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

fn create(store: &Store, name: &str) {
    let _root = store.lock(ROOT).unwrap();
    let mut tx = store.begin().unwrap();
    let id = tx.create(&NEW_FILE).unwrap();
    link(&mut tx, store, name, id, FILE).unwrap();
    tx.set_attrs(ROOT, |a| a.mtime += 1).unwrap();
    tx.commit().unwrap();
}

fn found(store: &Store, name: &str) -> ObjectId {
    find(store, name).unwrap()
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
    link(&mut tx, store, name, id, 4).unwrap();
    tx.set_attrs(ROOT, |a| a.nlink += 1).unwrap();
    tx.commit().unwrap();
}

fn rename_over(store: &Store, from: &str, to: &str) {
    let (moved, gone) = (found(store, from), found(store, to));
    let _guards = store.lock_many(&[ROOT, moved, gone]).unwrap();
    let mut tx = store.begin().unwrap();
    unlink(&mut tx, store, from);
    link(&mut tx, store, to, moved, FILE).unwrap();
    tx.remove(gone).unwrap();
    tx.set_attrs(moved, |a| a.ctime += 7).unwrap();
    tx.commit().unwrap();
}

fn set_xattr(store: &Store, name: &str, key: &[u8], len: usize) {
    let id = found(store, name);
    let _guard = store.lock(id).unwrap();
    let mut tx = store.begin().unwrap();
    tx.tree_insert(id, Tree::Xattrs, key, &vec![len as u8; len])
        .unwrap();
    tx.commit().unwrap();
}

fn remove_xattr(store: &Store, name: &str, key: &[u8]) {
    let id = found(store, name);
    let _guard = store.lock(id).unwrap();
    let mut tx = store.begin().unwrap();
    assert!(tx.tree_remove(id, Tree::Xattrs, key).unwrap());
    tx.commit().unwrap();
}

fn change_owner(store: &Store, name: &str) {
    let id = found(store, name);
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
    link(&mut tx, store, "never", id, FILE).unwrap();
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
    link(&mut tx, store, name, id, 10).unwrap();
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
    let store = memory_pool(POOL);
    store.set_levelling(levelling);
    prepare(&store);
    let base = Image::of(store.volume());
    let recorder = Recorder::of(store.volume());
    let mut seen = vec![see(&store)];
    for op in ops {
        op(&store);
        recorder.mark_done();
        seen.push(see(&store));
    }
    let events = recorder.stop();
    Run { base, events, seen }
}

/// Recovers what a volume holds; what is wrong with it, or what is seen.
fn recover(volume: Volume) -> Result<Seen, String> {
    let store = Store::attach(volume, &PRIVATE).map_err(|e| format!("attach: {e}"))?;
    let report = check(&store, &mut |_| {});
    match report.problems.first() {
        Some(problem) => Err(format!("check: {problem}")),
        None if store.report().problems > 0 => Err("the scan met problems".into()),
        None => Ok(see(&store)),
    }
}

fn judge(volume: Volume, allowed: &[&Seen]) -> Result<(), String> {
    let seen = recover(volume)?;
    match allowed.contains(&&seen) {
        true => Ok(()),
        false => Err(format!("seen {seen:#?}\nallowed {allowed:#?}")),
    }
}

/// Explores a recorded run; returns images tried and the first violation.
fn explore(run: &Run, samples: u64) -> (usize, Result<(), String>) {
    let (mut medium, floor) = (Medium::default(), |line| run.base.line(line));
    let mut random = Random::new(1, 1);
    let (mut step, mut images) = (0, 0);
    for (number, event) in run.events.iter().enumerate() {
        let done = matches!(event.what, What::Done);
        let after = &run.seen[(step + 1).min(run.seen.len() - 1)];
        let both = [&run.seen[step], after];
        if done || matches!(event.what, What::Fence) {
            let allowed = &both[usize::from(done)..];
            let choices = medium.choices(&floor);
            let depth = Depth {
                all_up_to: samples,
                // As many where a whole block is under way.
                samples: samples * (1 + choices.len() as u64 / MANY_LINES),
                aimed: false,
            };
            let judged = medium.images(&choices, depth, &mut random, |image| {
                images += 1;
                judge(run.base.clone().with(image).volume(), allowed)
            });
            if let Err(why) = judged {
                return (images, Err(format!("event {number}, step {step}: {why}")));
            }
        }
        medium.apply(event, &floor);
        step += usize::from(done);
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
        let inside = |event: &&Event| matches!(event.what, What::Store { at, .. } if (from..to).contains(&at));
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
    assert_eq!(found(store, "first life").0, ONODES_PER_BLOCK);
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
    let moved =
        |event: &Event| matches!(event.what, What::Store { at, .. } if at == block_word_at());
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
    let listed =
        |event: &Event| matches!(event.what, What::Store { at, .. } if at == block_word_at());
    assert_eq!(run.events.iter().filter(|event| listed(event)).count(), 2);
    let (images, result) = explore(&run, 12);
    result.unwrap();
    assert!(images > 50, "only {images} images");
}

#[test]
fn canary_a_metadata_block_that_is_named_too_early_is_found() {
    let mut run = record_from(&moving_blocks(), u32::MAX, &prepare_second_block);
    let word =
        |event: &Event| matches!(event.what, What::Store { at, .. } if at == block_word_at());
    let named = run.events.iter().position(word).unwrap();
    let mut before = run.events[..named].iter();
    let fence = before
        .rposition(|event| matches!(event.what, What::Fence))
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
    run.events.retain(|event| match &event.what {
        What::Store {
            bytes,
            kind: StoreKind::Log,
            ..
        } if bytes.len() > UNIT => {
            moving = true;
            true
        }
        What::Store {
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

fn recorded_recovery(base: Image) -> Run {
    let volume = base.volume();
    let recorder = Recorder::of(&volume);
    let seen = vec![recover(volume).unwrap()];
    let events = recorder.stop();
    Run { base, events, seen }
}

#[test]
fn a_crash_of_the_recovery_changes_nothing() {
    let run = record(&workload());
    let (mut medium, floor) = (Medium::default(), |line| run.base.line(line));
    let mut fences = 0;
    let mut distinct = BTreeSet::new();
    for event in &run.events {
        if let What::Fence = event.what {
            fences += 1;
            if fences % 5 == 0 {
                let again = recorded_recovery(run.base.clone().with(&medium.stored(&floor)));
                distinct.insert(again.events.len());
                explore(&again, 4).1.unwrap();
            }
        }
        medium.apply(event, &floor);
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
            .retain(|event| !matches!(event.what, What::Flush { kind: Some(k), .. } if k == kind));
        let (_, result) = explore(&run, 10);
        assert!(result.is_err(), "nobody misses the flushes of {kind:?}");
    }
}

#[test]
fn canary_a_forgotten_fence_is_found() {
    let mut run = record(&workload());
    let mut fences = 0;
    run.events.retain(|event| {
        fences += usize::from(matches!(event.what, What::Fence));
        !matches!(event.what, What::Fence) || fences % 3 != 0
    });
    assert!(explore(&run, 30).1.is_err());
}
