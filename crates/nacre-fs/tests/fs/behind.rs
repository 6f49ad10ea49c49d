//! Pools with a device behind the others, where what is cold goes.

use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, Ordering};

use nacre_fs::{Fs, FsError, InodeRef, MapAccess, WriteAt};
use nacre_store::{Drained, FormatOptions, Holes, Store, WriteMode};
use nacre_testkit::pool::{
    PRIVATE, PoolChoice, PoolFiles, assert_sound_without_leaks, device_spec,
};
use nacre_types::FileOffset;
use nacre_volume::{Access, Arrangement, CreateOptions, Volume};
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};

use crate::pools::{assert_sound, file, open, pattern, read, root, write};

const MIB: u64 = 1 << 20;
const FRONT: u64 = 32 * MIB;
const BEHIND: u64 = 128 * MIB;
const ALL: u64 = u64::MAX;

fn pool(mode: WriteMode) -> Fs {
    pool_of(mode, &[FRONT, BEHIND])
}

/// A pool of devices of so many bytes, of which only the first one is in front.
fn pool_of(mode: WriteMode, lens: &[u64]) -> Fs {
    let arrangement = Arrangement {
        behind: lens.len() - 1,
        ..Arrangement::default()
    };
    let volume = Volume::memories(lens, arrangement).expect("volume");
    let options = FormatOptions {
        mode,
        ..FormatOptions::default()
    };
    Store::format(&volume, &options).expect("format");
    Fs::new(Store::attach(volume, &PRIVATE).expect("attach"))
}

/// Leaves the pool and comes back to it, as after all processes have ended.
fn again(fs: Fs) -> Fs {
    let volume = fs.into_store().close().expect("close");
    Fs::new(Store::attach(volume, &PRIVATE).expect("attach"))
}

/// As [`again`], but nobody has left in order: the pool is recovered.
fn after_a_crash(fs: Fs) -> Fs {
    let volume = fs.into_store().abandon();
    Fs::new(Store::attach(volume, &PRIVATE).expect("attach"))
}

/// How many bytes of a file lie in front, and how many behind.
fn places(fs: &Fs, node: InodeRef) -> (u64, u64) {
    let front = fs.store().volume().front_units();
    let (mut before, mut behind) = (0, 0);
    fs.extents(node, &mut |extent| {
        match extent.unit.0 < front {
            true => before += extent.len,
            false => behind += extent.len,
        }
        ControlFlow::Continue(())
    })
    .expect("extents");
    (before, behind)
}

/// A file whose contents lie behind.
fn cold(fs: &Fs, name: &str, len: usize) -> (InodeRef, Vec<u8>) {
    let (node, bytes) = (file(fs, fs.root(), name), pattern(len, 7));
    write(fs, node, 0, &bytes);
    assert!(fs.store().move_cold(ALL).expect("move") > 0);
    assert_eq!(places(fs, node), (0, len.next_multiple_of(4096) as u64));
    (node, bytes)
}

fn assert_same(fs: &Fs, node: InodeRef, model: &[u8]) {
    assert!(read(fs, node, 0, model.len() + 1) == model);
}

/// Writes and reads files of its own at random, and compares them with what they should hold.
fn work(fs: &Fs, nodes: &[InodeRef], models: &mut [Vec<u8>], seed: u8) {
    let mut random = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    for step in 0..400 {
        let of = random.next_u64() as usize % nodes.len();
        let (node, model) = (nodes[of], &mut models[of]);
        let at = random.next_u64() as usize % (model.len() - 40_000);
        let len = 1 + random.next_u64() as usize % 40_000;
        if random.next_u32().is_multiple_of(3) {
            assert!(read(fs, node, at as u64, len) == model[at..at + len]);
        } else {
            let bytes = pattern(len, step << 8 | u64::from(seed));
            write(fs, node, at as u64, &bytes);
            model[at..at + len].copy_from_slice(&bytes);
        }
    }
}

/// Threads that each [`work`] on files of their own, while something else is done all the time.
fn all_work(
    fs: &Fs,
    nodes: &[Vec<InodeRef>],
    models: &mut [Vec<Vec<u8>>],
    meanwhile: impl Fn() + Sync,
) {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                meanwhile();
            }
        });
        let workers = nodes.iter().zip(models).zip(1..);
        let workers: Vec<_> = workers
            .map(|((nodes, models), seed)| scope.spawn(move || work(fs, nodes, models, seed)))
            .collect();
        for worker in workers {
            worker.join().expect("a worker");
        }
        ended.store(true, Ordering::Relaxed);
    });
}

fn files_of(fs: &Fs, worker: u8) -> Vec<InodeRef> {
    let name = |number| format!("{worker}-{number}");
    let files = (0..8).map(|number| file(fs, fs.root(), &name(number)));
    files.collect()
}

fn everything_is_kept(mode: WriteMode) {
    let fs = pool(mode);
    let mut models: Vec<Vec<Vec<u8>>> = vec![vec![vec![0; 3 << 20]; 8]; 4];
    let nodes: Vec<Vec<InodeRef>> = (0..4).map(|worker| files_of(&fs, worker)).collect();
    for (nodes, models) in nodes.iter().zip(&models) {
        for (&node, model) in nodes.iter().zip(models) {
            write(&fs, node, 0, model);
        }
    }
    all_work(&fs, &nodes, &mut models, || {
        fs.store().keep_room().expect("room");
    });
    let all = |fs: &Fs| {
        let nodes = nodes.iter().flatten();
        for (&node, model) in nodes.zip(models.iter().flatten()) {
            assert_same(fs, node, model);
        }
        assert_sound(fs);
    };
    all(&fs);
    let fs = again(fs);
    all(&fs);
    all(&after_a_crash(fs));
}

#[test]
fn a_pool_of_three_times_its_front_keeps_everything() {
    everything_is_kept(WriteMode::Direct);
}

#[test]
fn a_pool_of_three_times_its_front_keeps_everything_that_is_written_atomically() {
    everything_is_kept(WriteMode::Atomic);
}

#[test]
fn what_was_not_used_for_longest_moves_first_and_what_is_written_comes_back() {
    let fs = pool(WriteMode::Direct);
    let name = |number| format!("f{number}");
    let nodes: Vec<InodeRef> = (0..5).map(|n| file(&fs, fs.root(), &name(n))).collect();
    for node in &nodes {
        write(&fs, *node, 0, &pattern(4 << 20, 1));
        // The clock of the kernel has ticks.
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    write(&fs, nodes[0], 0, b"again");
    assert!(fs.store().is_front_full());
    while fs.store().keep_room().expect("room") > 0 {}
    assert!(!fs.store().is_front_full());
    let behind: Vec<u64> = nodes.iter().map(|node| places(&fs, *node).1).collect();
    assert!(behind[1] > 0 && behind[1] >= behind[2], "{behind:?}");
    assert_eq!((behind[0], behind[4]), (0, 0), "{behind:?}");
    write(&fs, nodes[1], 100, b"hot");
    assert_eq!(places(&fs, nodes[1]).1, behind[1] - 4096);
    assert_sound(&fs);
}

#[test]
fn nothing_is_lost_when_both_are_full() {
    let fs = pool(WriteMode::Direct);
    let (mut files, piece) = (Vec::new(), pattern(MIB as usize, 3));
    let full = loop {
        let node = file(&fs, fs.root(), &format!("f{}", files.len()));
        let written = fs.write(&root(), node, WriteAt::Append, piece[..].into());
        match written {
            Ok(written) if written.len == piece.len() => files.push(node),
            other => break other,
        }
    };
    assert!(full.is_ok_and(|written| written.len < piece.len()) || files.len() > 140);
    assert!(
        files.len() as u64 * MIB > FRONT + BEHIND - 24 * MIB,
        "{}",
        files.len()
    );
    let one = fs.write(&root(), files[0], WriteAt::Append, piece[..].into());
    assert!(matches!(one, Err(FsError::NoSpace)), "{one:?}");
    files
        .iter()
        .for_each(|node| assert_same(&fs, *node, &piece));
    // What is given up behind is used again.
    for number in 0..8 {
        let name = format!("f{number}");
        fs.unlink(&root(), fs.root(), name.as_bytes())
            .expect("unlink");
    }
    let node = file(&fs, fs.root(), "last");
    for number in 0..4 {
        write(&fs, node, number * MIB, &piece);
    }
    assert_sound(&fs);
    assert_sound(&after_a_crash(fs));
}

#[test]
fn every_way_to_change_what_lies_behind_leaves_it_there() {
    let fs = pool(WriteMode::Direct);
    let (node, mut model) = cold(&fs, "f", 100_000);
    write(&fs, node, 5000, &[1; 10]);
    model[5000..5010].fill(1);
    fs.set_size(&root(), node, 90_000).expect("truncate");
    model.truncate(90_000);
    assert_same(&fs, node, &model);
    fs.set_size(&root(), node, 100_000).expect("truncate");
    model.resize(100_000, 0);
    assert_same(&fs, node, &model);
    let copy = file(&fs, fs.root(), "copy");
    fs.clone_range(&root(), (node, 0), (copy, 0), 0)
        .expect("clone");
    write(&fs, copy, 40_000, &[2; 5000]);
    assert_same(&fs, node, &model);
    let mut changed = model.clone();
    changed[40_000..45_000].fill(2);
    assert_same(&fs, copy, &changed);
    assert!(fs.store().move_cold(ALL).expect("move") > 0);
    fs.unlink(&root(), fs.root(), b"f").expect("unlink");
    assert_same(&fs, copy, &changed);
    assert_sound(&fs);
    assert_same(&after_a_crash(fs), copy, &changed);
}

#[test]
fn who_stores_through_a_mapping_gets_units_in_front_and_they_stay() {
    let fs = pool(WriteMode::Direct);
    let (node, model) = cold(&fs, "f", 3 * 4096);
    fs.map_begin(node, MapAccess::Store).expect("map");
    let front = fs.store().volume().front_units();
    let told = fs.map_pages(node, 0, 3, Holes::Fill).expect("pages");
    assert!(told.runs.iter().all(|run| run.unit.0 < front), "{told:?}");
    assert_eq!(places(&fs, node), (3 * 4096, 0));
    assert_eq!(fs.store().move_cold(ALL).expect("move"), 0);
    fs.map_end(node.ino, MapAccess::Store).expect("unmap");
    assert!(fs.store().move_cold(ALL).expect("move") > 0);
    assert_same(&fs, node, &model);
    assert_sound(&fs);
}

#[test]
fn who_only_looks_is_not_told_units_that_lie_behind() {
    let fs = pool(WriteMode::Direct);
    let (node, model) = cold(&fs, "f", 3 * 4096);
    fs.map_begin(node, MapAccess::Load).expect("map");
    let guard = fs
        .store()
        .lock(nacre_types::ObjectId(node.ino.0))
        .expect("lock");
    let told = fs.store().map_for_loading(&guard, 0, 3).expect("pages");
    assert!(told.runs.is_empty() && told.copies == [(0, 3)], "{told:?}");
    drop(guard);
    fs.map_end(node.ino, MapAccess::Load).expect("unmap");
    assert_same(&fs, node, &model);
}

#[test]
fn reserved_space_takes_the_place_of_what_is_cold() {
    let fs = pool(WriteMode::Direct);
    let cold = file(&fs, fs.root(), "cold");
    write(&fs, cold, 0, &pattern(20 << 20, 5));
    let node = file(&fs, fs.root(), "reserved");
    let mode = nacre_fs::AllocateMode::Extend;
    fs.allocate(&root(), node, mode, 0, 20 * MIB).expect("room");
    assert!(places(&fs, cold).1 > 0);
    assert_same(&fs, cold, &pattern(20 << 20, 5));
    assert_eq!(read(&fs, node, 19 * MIB, 9), [0; 9]);
    let before = places(&fs, cold);
    let refused = fs.allocate(&root(), node, mode, 0, 164 * MIB);
    assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
    assert_eq!(places(&fs, cold), before);
    assert_sound(&fs);
}

/// Reserves more than the front has, and writes it in many ways.
fn reserved_behind(mode: WriteMode) {
    const LEN: u64 = 100 * MIB;
    let fs = pool(mode);
    let free = fs.store().statfs().free_units;
    let node = file(&fs, fs.root(), "reserved");
    let extend = nacre_fs::AllocateMode::Extend;
    fs.allocate(&root(), node, extend, 0, LEN).expect("room");
    assert_eq!(places(&fs, node), (0, LEN));
    let mut model = vec![0; LEN as usize];
    assert_same(&fs, node, &model);
    for (step, len) in [5, 4096, 9000, 3 << 20]
        .into_iter()
        .cycle()
        .take(60)
        .enumerate()
    {
        let at = step * 1_600_007;
        let bytes = pattern(len, step as u64);
        write(&fs, node, at as u64, &bytes);
        model[at..at + len].copy_from_slice(&bytes);
    }
    let mapped = 90 * MIB / 4096;
    fs.pin(node).expect("pin");
    fs.map_begin(node, MapAccess::Store).expect("map");
    let told = fs.map_pages(node, mapped, 8, Holes::Fill).expect("pages");
    let front = fs.store().volume().front_units();
    assert!(told.runs.iter().all(|run| run.unit.0 < front), "{told:?}");
    fs.map_end(node.ino, MapAccess::Store).expect("unmap");
    fs.unpin(node.ino).expect("unpin");
    assert_same(&fs, node, &model);
    assert_sound(&fs);
    // What was reserved and is written needs no more than it did.
    assert!(free - fs.store().statfs().free_units < (LEN + MIB) / 4096);
    let fs = after_a_crash(fs);
    let node = fs.lookup(&root(), fs.root(), b"reserved").expect("it").node;
    assert_same(&fs, node, &model);
    // All of it, though the front has a third of that.
    model = pattern(LEN as usize, 77);
    write(&fs, node, 0, &model);
    assert_same(&fs, node, &model);
    fs.set_size(&root(), node, 0).expect("truncate");
    assert!(free - fs.store().statfs().free_units < MIB / 4096);
    assert_sound(&fs);
}

#[test]
fn more_may_be_reserved_than_the_front_has() {
    reserved_behind(WriteMode::Direct);
}

#[test]
fn more_may_be_reserved_than_the_front_has_and_be_written_atomically() {
    reserved_behind(WriteMode::Atomic);
}

fn one_file(mode: WriteMode) {
    let fs = pool(mode);
    let (node, model) = (file(&fs, fs.root(), "f"), pattern(80 << 20, 9));
    let mut done = 0;
    for (number, len) in [1 << 20, 8192, 300_000].into_iter().cycle().enumerate() {
        let piece = &model[done..(done + len).min(model.len())];
        let (first, second) = piece.split_at(piece.len() / 3);
        let at = WriteAt::Offset(FileOffset(done as u64));
        let written = match number % 3 {
            0 => fs.write(&root(), node, WriteAt::Append, piece.into()),
            1 => fs.write(&root(), node, at, piece.into()),
            _ => fs.write_vectored(&root(), node, at, &[first.into(), second.into()]),
        };
        assert_eq!(written.expect("room").len, piece.len(), "at {done}");
        done += piece.len();
        if done == model.len() {
            break;
        }
    }
    let appended = fs.try_append_fast(node, FileOffset(done as u64), model[..4096].into());
    assert!(appended.is_none_or(|appended| appended == Ok(4096)));
    fs.set_size(&root(), node, done as u64).expect("truncate");
    assert_same(&fs, node, &model);
    assert!(places(&fs, node).1 > 50 << 20);
    assert_sound(&fs);
    assert_same(&after_a_crash(fs), node, &model);
}

#[test]
fn one_file_may_be_larger_than_the_front() {
    one_file(WriteMode::Direct);
}

#[test]
fn one_file_that_is_written_atomically_may_be_larger_than_the_front() {
    one_file(WriteMode::Atomic);
}

fn units(fs: &Fs, device: usize) -> Range<u64> {
    let range = &fs.store().volume().devices()[device].range;
    range.start.unit().0..range.end.unit().0
}

fn drain(fs: &Fs, units: &Range<u64>) -> Drained {
    let told = &mut |_| ControlFlow::Continue(());
    fs.store().drain_device(units, told).expect("drain")
}

/// As [`cold`], of many files.
fn cold_files(fs: &Fs, count: usize) -> (Vec<InodeRef>, Vec<Vec<u8>>) {
    let made = (0..count).map(|number| cold(fs, &format!("cold {number}"), 3 << 20));
    made.unzip()
}

#[test]
fn what_lies_behind_goes_to_another_device_behind_while_programs_write() {
    let fs = pool_of(WriteMode::Direct, &[FRONT, BEHIND, BEHIND]);
    let made: Vec<Vec<InodeRef>> = (0..4).map(|worker| files_of(&fs, worker)).collect();
    for node in made.iter().flatten() {
        write(&fs, *node, 0, &vec![0; 3 << 20]);
    }
    while fs.store().move_cold(ALL).expect("move") > 0 {}
    let mut models: Vec<Vec<Vec<u8>>> = vec![vec![vec![0; 3 << 20]; 8]; 4];
    let leaves = units(&fs, 1);
    assert!(fs.store().left_on(&leaves).contents > 64 * MIB);
    all_work(&fs, &made, &mut models, || {
        drain(&fs, &leaves);
        fs.store().keep_room().expect("room");
    });
    let drained = drain(&fs, &leaves);
    assert_eq!((drained.in_use, drained.is_full), (0, false));
    assert!(fs.store().left_on(&leaves).is_nothing());
    assert!(fs.store().left_on(&units(&fs, 2)).contents > 32 * MIB);
    for (&node, model) in made.iter().flatten().zip(models.iter().flatten()) {
        assert_same(&fs, node, model);
    }
    // Nothing goes there again.
    let (_, model) = cold(&fs, "later", 9 << 20);
    assert!(fs.store().left_on(&leaves).is_nothing());
    assert_sound(&fs);
    let fs = after_a_crash(fs);
    assert_same(&fs, open(&fs, "later"), &model);
}

#[test]
fn what_lies_behind_goes_to_the_front_if_nothing_else_is_behind() {
    let fs = pool(WriteMode::Direct);
    let (nodes, models) = cold_files(&fs, 5);
    let leaves = units(&fs, 1);
    let drained = drain(&fs, &leaves);
    assert_eq!((drained.moved, drained.is_full), (15 * MIB, false));
    assert!(fs.store().left_on(&leaves).is_nothing());
    for (node, model) in nodes.into_iter().zip(&models) {
        assert_eq!(places(&fs, node), (3 * MIB, 0));
        assert_same(&fs, node, model);
    }
    // It lies in front like anything else.
    write(&fs, file(&fs, fs.root(), "other"), 0, b"more");
    assert_eq!(fs.store().move_cold(ALL).expect("move"), 0);
    assert_sound(&fs);
}

#[test]
fn what_has_no_room_in_front_stays_behind() {
    let fs = pool(WriteMode::Direct);
    let (nodes, models) = cold_files(&fs, 14);
    let leaves = units(&fs, 1);
    let (used, free) = fs.store().room_to_leave(&leaves);
    assert!(used == 42 * MIB && free < FRONT, "{used} of {free}");
    assert!(drain(&fs, &leaves).is_full);
    for (node, model) in nodes.into_iter().zip(&models) {
        assert_same(&fs, node, model);
    }
    assert_sound(&fs);
    assert_sound(&after_a_crash(fs));
}

#[test]
fn what_is_shared_or_reserved_behind_leaves_when_nobody_uses_the_pool() {
    for (devices, mode) in [(3, WriteMode::Direct), (2, WriteMode::Atomic)] {
        let fs = pool_of(mode, &[FRONT, BEHIND, BEHIND][..devices]);
        let (node, model) = cold(&fs, "f", 100_000);
        let clone = file(&fs, fs.root(), "clone");
        fs.clone_range(&root(), (node, 0), (clone, 0), 0)
            .expect("clone");
        let reserved = file(&fs, fs.root(), "reserved");
        let extend = nacre_fs::AllocateMode::Extend;
        let len = if devices == 3 { 100 * MIB } else { 22 * MIB };
        // Behind, as the front has no room for it.
        let pinned = file(&fs, fs.root(), "pinned");
        write(&fs, pinned, 0, &vec![1; 9 << 20]);
        fs.map_begin(pinned, MapAccess::Store).expect("map");
        fs.allocate(&root(), reserved, extend, 0, len)
            .expect("room");
        assert_eq!(places(&fs, reserved), (0, len));
        fs.map_end(pinned.ino, MapAccess::Store).expect("unmap");
        fs.unlink(&root(), fs.root(), b"pinned").expect("unlink");
        let leaves = units(&fs, 1);
        drain(&fs, &leaves);
        assert!(fs.store().left_on(&leaves).contents >= len + 100_000);
        fs.store().evacuate(&leaves).expect("evacuate");
        assert!(fs.store().left_on(&leaves).is_nothing());
        let side = if devices == 3 { (0, len) } else { (len, 0) };
        assert_eq!(places(&fs, reserved), side);
        let fs = after_a_crash(fs);
        let [node, clone, reserved] = ["f", "clone", "reserved"].map(|name| open(&fs, name));
        let mut changed = model.clone();
        changed[5000..5010].fill(1);
        write(&fs, clone, 5000, &[1; 10]);
        assert_same(&fs, node, &model);
        assert_same(&fs, clone, &changed);
        let mut model = vec![0; len as usize];
        assert_same(&fs, reserved, &model);
        write(&fs, reserved, 70_000, &[9; 300_000]);
        model[70_000..370_000].fill(9);
        assert_same(&fs, reserved, &model);
        assert_sound(&fs);
    }
}

fn attach(files: &PoolFiles, device: &str) -> Fs {
    let volume = Volume::open(&files.file(device), Access::ReadWrite).expect("open");
    Fs::new(Store::attach(volume, &PRIVATE).expect("attach"))
}

fn behind_of(fs: &Fs) -> u64 {
    let devices = fs.store().volume().devices();
    let behind = devices.iter().filter(|it| it.is_behind);
    behind.map(|it| it.range.end.0 - it.range.start.0).sum()
}

#[test]
fn what_leaves_the_front_goes_behind_before_the_rest_of_it_is_full() {
    let arrangement = Arrangement {
        behind: 1,
        ..Arrangement::default()
    };
    let volume = Volume::memories(&[FRONT, FRONT, BEHIND], arrangement).expect("volume");
    Store::format(&volume, &FormatOptions::default()).expect("format");
    let fs = Fs::new(Store::attach(volume, &PRIVATE).expect("attach"));
    let (made, bytes) = (0..10)
        .map(|salt| {
            let node = file(&fs, fs.root(), &format!("f{salt}"));
            let bytes = pattern(4 << 20, salt);
            write(&fs, node, 0, &bytes);
            (node, bytes)
        })
        .unzip::<_, _, Vec<_>, Vec<_>>();
    assert!(made.iter().all(|node| places(&fs, *node).1 == 0));
    let units = units(&fs, 0);
    assert!(!drain(&fs, &units).is_full);
    assert_eq!(fs.store().left_on(&units).contents, 0);
    let sides = made.iter().map(|node| places(&fs, *node));
    let (front, behind) = sides.fold((0, 0), |all, it| (all.0 + it.0, all.1 + it.1));
    assert!(front > 8 * MIB && behind > 8 * MIB, "{front} and {behind}");
    for (node, bytes) in made.iter().zip(&bytes) {
        assert_same(&fs, *node, bytes);
    }
    assert_sound(&fs);
}

/// Data of a file of 40 MiB.
const FRONT_OF_FILES: u64 = 36 * MIB;

#[test]
fn devices_behind_come_grow_and_leave() {
    let files = PoolFiles::make(&PoolChoice {
        devices: &["a", "b"],
        bytes: 40 * MIB,
        behind: 1,
        ..PoolChoice::default()
    });
    let fs = attach(&files, "a");
    let (_, model) = cold(&fs, "f", 20 << 20);
    fs.into_store().detach().expect("detach");
    let put_behind = CreateOptions {
        behind: 1,
        ..CreateOptions::default()
    };
    let more = device_spec(&files.file("c"), 40 * MIB);
    drop(Volume::grow(&[&files.file("b")], &more, put_behind).expect("grow"));
    let fs = attach(&files, "a");
    let before = (behind_of(&fs), fs.store().statfs().free_units);
    fs.into_store().detach().expect("detach");
    Volume::grow_last(&files.file("a"), Some(80 * MIB)).expect("grow");
    let fs = attach(&files, "c");
    assert_eq!(behind_of(&fs), before.0 + 40 * MIB);
    assert_eq!(fs.store().statfs().free_units, before.1 + 40 * MIB / 4096);
    let (_, second) = cold(&fs, "second", 24 << 20);
    fs.into_store().detach().expect("detach");
    let remove = |name: &str| {
        Volume::begin_leaving(&files.file("a"), &files.file(name)).expect("it may");
        let store = attach(&files, "a").into_store();
        let (_, left) = store.remove_device(&files.file("a")).expect("remove");
        assert!(left.is_nothing(), "{left:?}");
        std::fs::remove_file(files.file(name)).expect("its file");
        let fs = attach(&files, "a");
        assert_sound_without_leaks(fs.store());
        fs
    };
    let fs = remove("b");
    assert_same(&fs, open(&fs, "f"), &model);
    assert_same(&fs, open(&fs, "second"), &second);
    assert_eq!(places(&fs, open(&fs, "second")).0, 0);
    fs.unlink(&root(), fs.root(), b"second").expect("unlink");
    fs.into_store().detach().expect("detach");
    let fs = remove("c");
    assert_eq!(
        (behind_of(&fs), fs.store().volume().has_behind()),
        (0, false)
    );
    assert_same(&fs, open(&fs, "f"), &model);
    // Nothing is left but the front.
    assert_eq!(fs.store().move_cold(ALL).expect("move"), 0);
    assert_eq!(fs.store().statfs().units, FRONT_OF_FILES / 4096);
    fs.into_store().detach().expect("detach");
}
