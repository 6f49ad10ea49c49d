//! Disks that hold a part together and the rest each alone, behind one image.

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nacre_testkit::pool::{
    CAREFUL, Devices, commit_image as commit, memory_file, states_of_copies,
};
use nacre_types::{BLOCK_SIZE, StoreKind, VolumeOffset};
use nacre_volume::{
    Access, Caching, Common, CreateOptions, DeviceSpec, LegState, Stripe, Volume, VolumeError,
};

const MIB: u64 = 1 << 20;
const DATA: u64 = 2 * MIB;
const COMMON: u64 = 24 * MIB;
const JOURNAL: u64 = 8 * MIB;

/// A pool on the disks `a`, `b` and `c`, which are files in memory. `b` is larger.
struct Pool(Devices);

impl Pool {
    fn new() -> Self {
        let pool = Self(Devices::below(Path::new("/dev/shm")));
        let volume = pool.make(options()).unwrap();
        assert!(volume.is_cached() && volume.has_copies());
        assert_eq!(volume.common_units() * 4096, COMMON);
        assert_eq!(volume.stripe(), Stripe::USUAL);
        pool
    }

    fn make(&self, options: CreateOptions) -> Result<Volume, VolumeError> {
        let sizes = [("a", 64), ("b", 80), ("c", 64)];
        let spec = |(name, size): (&str, u64)| self.0.spec(name, size * MIB);
        let specs: Vec<DeviceSpec> = sizes.into_iter().map(spec).collect();
        Volume::create(&specs, options)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.file(name)
    }

    /// With a new image, as after a power cut.
    fn open(&self, name: &str) -> Volume {
        self.0.imaged(name)
    }

    fn states(&self, name: &str) -> Vec<LegState> {
        states_of_copies(&self.path(name))
    }

    fn take_away(&self, name: &str) {
        fs::rename(self.path(name), self.path("away")).unwrap();
    }

    fn put_back(&self, name: &str) {
        fs::rename(self.path("away"), self.path(name)).unwrap();
    }

    fn on(&self, name: &str, at: u64, len: usize) -> Vec<u8> {
        let bytes = fs::read(self.path(name)).unwrap();
        bytes[at as usize..][..len].to_vec()
    }
}

fn options() -> CreateOptions {
    CreateOptions {
        copies: 3,
        common: Some(Common::Usual),
        caching: Caching::Always,
        ..CAREFUL
    }
}

fn store(volume: &Volume, at: VolumeOffset, bytes: &[u8]) {
    let stored = volume.write_user(at, bytes.into(), StoreKind::Data);
    volume.fence(stored.unwrap()).unwrap();
}

/// Stores in pieces that a record has room for, and commits each.
fn store_much(volume: &Volume, at: VolumeOffset, bytes: &[u8]) {
    for (number, piece) in (0..).zip(bytes.chunks(1 << 20)) {
        store(volume, at.add(number << 20), piece);
        commit(volume);
    }
}

fn read(volume: &Volume, at: VolumeOffset, len: usize) -> Option<Vec<u8>> {
    let mut found = vec![0; len];
    let done = volume.read_user(at, found[..].as_mut().into());
    done.is_ok().then_some(found)
}

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    let byte = |at: usize| (at * 7 + at / 251 + salt) as u8;
    (0..len).map(byte).collect()
}

/// Where what a disk alone holds begins.
fn own(volume: &Volume, index: usize) -> VolumeOffset {
    volume.devices()[index].range.start
}

#[test]
fn what_all_hold_is_on_each_and_the_rest_on_one() {
    let pool = Pool::new();
    let volume = pool.open("b");
    let borders: Vec<u64> = volume
        .devices()
        .iter()
        .map(|it| it.range.end.get())
        .collect();
    assert_eq!(own(&volume, 0).get(), COMMON);
    assert_eq!(
        borders,
        [COMMON + 28 * MIB, COMMON + 72 * MIB, COMMON + 100 * MIB]
    );
    // Over all borders.
    let start = VolumeOffset(COMMON - MIB);
    let len = (volume.len() - start.get()) as usize;
    let wanted = pattern(len, 3);
    store_much(&volume, start, &wanted);
    drop(volume);
    let volume = pool.open("c");
    assert!(read(&volume, start, len).unwrap() == wanted);
    volume.checkpoint().unwrap();
    let alone = DATA + COMMON + JOURNAL;
    for name in ["a", "b", "c"] {
        let common = pool.on(name, DATA + COMMON - MIB, MIB as usize);
        assert!(common == wanted[..MIB as usize], "{name}");
    }
    for (name, start, len) in [
        ("a", MIB, 28 * MIB),
        ("b", 29 * MIB, 44 * MIB),
        ("c", 73 * MIB, 28 * MIB),
    ] {
        let part = pool.on(name, alone, len as usize);
        assert!(part == wanted[start as usize..][..len as usize], "{name}");
    }
}

#[test]
fn who_is_missing_takes_only_what_it_alone_held() {
    let pool = Pool::new();
    let volume = pool.open("a");
    let places = [
        VolumeOffset(3 * MIB),
        own(&volume, 0),
        own(&volume, 1),
        own(&volume, 2),
    ];
    for at in places {
        store(&volume, at, &pattern(9000, at.get() as usize));
    }
    commit(&volume);
    volume.checkpoint().unwrap();
    drop(volume);
    for (index, name) in ["a", "b", "c"].into_iter().enumerate() {
        pool.take_away(name);
        let other = if name == "a" { "b" } else { "a" };
        let volume = pool.open(other);
        assert_eq!(pool.states(other)[index], LegState::Missing);
        let lost = volume.lost_units();
        assert_eq!(lost.len(), 1);
        assert_eq!(lost[0].start * 4096, own_of(index));
        assert!(volume.closing_units() == lost && volume.leaving().is_none());
        for (number, at) in (0..).zip(places) {
            let found = read(&volume, at, 9000);
            match number == index + 1 {
                true => assert!(found.is_none() && refuses_stores(&volume, at), "{name}"),
                false => assert!(found.unwrap() == pattern(9000, at.get() as usize), "{name}"),
            }
        }
        // What is stored elsewhere meanwhile goes on.
        let byte = [index as u8; 100];
        store(&volume, VolumeOffset(4 * MIB), &byte);
        commit(&volume);
        volume.checkpoint().unwrap();
        pool.put_back(name);
        come_back(&pool, &volume, index);
        assert!(volume.lost_units().is_empty());
        let own = read(&volume, places[index + 1], 9000).unwrap();
        assert!(own == pattern(9000, places[index + 1].get() as usize));
        drop(volume);
        assert_eq!(pool.on(name, DATA + 4 * MIB, 100), byte);
    }
}

fn own_of(index: usize) -> u64 {
    COMMON + [0, 28, 72][index] * MIB
}

/// Whole units and parts of them.
fn refuses_stores(volume: &Volume, at: VolumeOffset) -> bool {
    [8192, 100].iter().all(|&len| {
        let bytes = vec![1; len];
        let plain = volume.write_user(at, bytes[..].into(), StoreKind::Data);
        let fresh = volume.write_user_fresh(at, bytes[..].into(), StoreKind::Data);
        plain.is_err() && fresh.is_err()
    })
}

fn come_back(pool: &Pool, volume: &Volume, index: usize) {
    let lost = volume.copies().unwrap()[index].uuid;
    assert!(volume.return_copy(lost).unwrap());
    let whole = volume.rebuild_copies(|_| ControlFlow::Continue(()));
    assert_eq!(whole.unwrap(), 1);
    assert_eq!(pool.states("a"), [LegState::Current; 3]);
}

#[test]
fn who_lacks_what_was_in_the_journal_does_not_come_back() {
    let pool = Pool::new();
    let volume = pool.open("a");
    let place = own(&volume, 1);
    store(&volume, place, b"old");
    commit(&volume);
    volume.checkpoint().unwrap();
    store(&volume, place, b"new");
    commit(&volume);
    drop(volume);
    pool.take_away("b");
    let volume = pool.open("c");
    assert_eq!(pool.states("c")[1], LegState::Failed);
    assert_eq!(pool.states("a")[1], LegState::Failed);
    pool.put_back("b");
    let lost = volume.copies().unwrap()[1].uuid;
    assert!(!volume.return_copy(lost).unwrap());
    let replaced = volume.replace_copy(lost, &pool.path("d"), false);
    assert!(matches!(replaced, Err(VolumeError::Copies { .. })));
    drop(volume);
    // Nor by itself.
    let volume = pool.open("b");
    assert!(read(&volume, place, 3).is_none());
}

/// So much of a disk is written over, from its start.
fn write_over(pool: &Pool, name: &str, len: u64) {
    let file = fs::File::options().write(true).open(pool.path(name));
    let bytes = vec![7; len as usize];
    file.unwrap().write_all_at(&bytes, 0).unwrap();
}

#[test]
fn a_disk_that_was_written_over_while_nobody_used_it_gives_none_of_its_bytes() {
    for len in [4096, DATA + COMMON + JOURNAL + MIB] {
        let pool = Pool::new();
        let volume = pool.open("a");
        let places = [0, 1, 2].map(|index| own(&volume, index));
        places.iter().for_each(|at| store(&volume, *at, b"its own"));
        commit(&volume);
        volume.checkpoint().unwrap();
        drop(volume);
        let before = fs::read(pool.path("b")).unwrap();
        write_over(&pool, "b", len);
        // By any of them, the one that was written over too.
        for name in ["a", "b", "c"] {
            let volume = pool.open(name);
            assert_eq!(pool.states("a")[1], LegState::Missing, "{len}");
            let read = places.map(|at| read(&volume, at, 7));
            let is_its = |it: &Option<Vec<u8>>| it.as_deref() == Some(&b"its own"[..]);
            assert!(is_its(&read[0]) && read[1].is_none() && is_its(&read[2]));
            assert!(refuses_stores(&volume, places[1]));
            let lost = volume.copies().unwrap()[1].uuid;
            assert!(!volume.return_copy(lost).unwrap());
        }
        // What was there is put back.
        let volume = pool.open("a");
        fs::write(pool.path("b"), before).unwrap();
        come_back(&pool, &volume, 1);
        assert_eq!(read(&volume, places[1], 7).unwrap(), b"its own");
    }
}

#[test]
fn a_disk_that_was_written_over_while_it_was_away_does_not_come_back() {
    let pool = Pool::new();
    let volume = pool.open("a");
    let place = own(&volume, 1);
    store(&volume, place, b"its own");
    commit(&volume);
    volume.checkpoint().unwrap();
    drop(volume);
    pool.take_away("b");
    let volume = pool.open("a");
    assert_eq!(pool.states("a")[1], LegState::Missing);
    pool.put_back("b");
    write_over(&pool, "b", DATA + COMMON + JOURNAL + MIB);
    let lost = volume.copies().unwrap()[1].uuid;
    assert!(!volume.return_copy(lost).unwrap());
    assert!(read(&volume, place, 7).is_none());
}

#[test]
fn two_may_be_missing_and_the_last_goes_on() {
    let pool = Pool::new();
    let volume = pool.open("a");
    let (first, last) = (own(&volume, 0), own(&volume, 2));
    store(&volume, VolumeOffset(5 * MIB), b"all");
    store(&volume, first, b"first");
    store(&volume, last, b"last");
    commit(&volume);
    volume.checkpoint().unwrap();
    drop(volume);
    fs::remove_file(pool.path("a")).unwrap();
    fs::remove_file(pool.path("b")).unwrap();
    let volume = pool.open("c");
    assert_eq!(read(&volume, VolumeOffset(5 * MIB), 3).unwrap(), b"all");
    assert_eq!(read(&volume, last, 4).unwrap(), b"last");
    assert!(read(&volume, first, 5).is_none());
    store(&volume, last, b"more");
    commit(&volume);
    drop(volume);
    assert_eq!(read(&pool.open("c"), last, 4).unwrap(), b"more");
}

#[test]
fn a_disk_that_is_lost_while_it_is_used_takes_what_waited_for_it() {
    let pool = Pool::new();
    let volume = pool.open("a");
    let (kept, gone) = (own(&volume, 0), own(&volume, 1));
    for at in [kept, gone, VolumeOffset(5 * MIB)] {
        store(&volume, at, b"before");
    }
    commit(&volume);
    store(&volume, gone, b"waits");
    let file = fs::File::options().write(true).open(pool.path("b"));
    file.unwrap().write_all_at(&[0; 4096], 0).unwrap();
    volume.check_copies().unwrap();
    assert_eq!(pool.states("c")[1], LegState::Failed);
    store(&volume, kept, b"after!");
    commit(&volume);
    volume.checkpoint().unwrap();
    drop(volume);
    let volume = pool.open("a");
    assert!(read(&volume, gone, 5).is_none());
    assert_eq!(read(&volume, kept, 6).unwrap(), b"after!");
    assert_eq!(read(&volume, VolumeOffset(5 * MIB), 6).unwrap(), b"before");
}

#[test]
fn who_only_reads_changes_no_label() {
    let pool = Pool::new();
    let volume = pool.open("a");
    let place = own(&volume, 1);
    store(&volume, VolumeOffset(5 * MIB), b"all");
    store(&volume, place, b"own");
    commit(&volume);
    drop(volume);
    pool.take_away("b");
    let volume = Volume::open(&pool.path("a"), Access::ReadOnly).unwrap();
    volume.make_image(memory_file()).unwrap();
    assert_eq!(read(&volume, VolumeOffset(5 * MIB), 3).unwrap(), b"all");
    assert_eq!(pool.states("a"), [LegState::Current; 3]);
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_written() {
    let pool = Pool(Devices::below(Path::new("/dev/shm")));
    let direct = CreateOptions {
        caching: Caching::Never,
        ..options()
    };
    let much = CreateOptions {
        common: Some(Common::Bytes(60 * MIB)),
        ..options()
    };
    let none = CreateOptions {
        stripe: Some(Stripe::None),
        ..options()
    };
    for options in [direct, much, none] {
        let refused = pool.make(options);
        assert!(matches!(refused, Err(VolumeError::Copies { .. })));
        assert!(!pool.path("a").exists());
    }
    let rounded = CreateOptions {
        common: Some(Common::Bytes(25 * MIB)),
        ..options()
    };
    let volume = pool.make(rounded).unwrap();
    assert_eq!(volume.common_units() * 4096, 7 * BLOCK_SIZE);
    drop(volume);
    let named = pool.path("b");
    let leaves = Volume::remove_copy(&pool.path("a"), &named);
    assert!(matches!(leaves, Err(VolumeError::CannotLeave { .. })));
    let leaves = Volume::may_leave(&pool.path("a"), &named);
    assert!(matches!(leaves, Err(VolumeError::CannotLeave { .. })));
    let more = Volume::grow(&[&pool.path("a")], &pool.0.spec("d", 64 * MIB), CAREFUL);
    assert!(matches!(more, Err(VolumeError::Copies { .. })));
}

#[test]
fn a_disk_a_step_behind_is_brought_up_though_records_name_places_beside_its_journal() {
    let pool = Pool::new();
    let volume = pool.open("a");
    volume.checkpoint().unwrap();
    // On the logical disk it lies where each disk has its journal.
    let at = own(&volume, 0).add(10_000);
    store(&volume, at, &pattern(5000, 1));
    store(&volume, VolumeOffset(5 * MIB), &pattern(5000, 2));
    commit(&volume);
    let (headers, len) = (DATA + COMMON, 8192);
    let before = ["b", "c"].map(|name| pool.on(name, headers, len));
    // The power goes when one of them has the next header.
    volume.checkpoint().unwrap();
    drop(volume);
    for (name, bytes) in ["b", "c"].into_iter().zip(before) {
        let file = fs::File::options().write(true).open(pool.path(name));
        file.unwrap().write_all_at(&bytes, headers).unwrap();
    }
    let volume = pool.open("b");
    assert_eq!(read(&volume, at, 5000), Some(pattern(5000, 1)));
    let common = read(&volume, VolumeOffset(5 * MIB), 5000);
    assert_eq!(common, Some(pattern(5000, 2)));
    assert_eq!(pool.states("a"), [LegState::Current; 3]);
}
