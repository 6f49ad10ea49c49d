//! Pools on a disk whose image may hold only a part of them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nacre_fs::{Fs, InodeRef};
use nacre_store::Store;
use nacre_testkit::pool::{PRIVATE, PoolChoice, PoolFiles};
use nacre_types::{DeviceOffset, FileOffset, StoreKind};
use nacre_volume::{
    Access, CacheInfo, Caching, DeviceKind, FlushMethod, Observer, UserBytes, UserBytesMut, Volume,
};
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};

use crate::pools::{assert_sound, file, read, root, write};

const ROOM: u64 = 4 << 20;
const PIECE: usize = 12 << 10;
const MEMORY: &str = "/dev/shm";

struct Disk(PoolFiles);

impl Disk {
    fn new(bytes: u64) -> Self {
        Self::at(env!("CARGO_TARGET_TMPDIR"), bytes, Caching::Always)
    }

    /// A device that is memory and is used as a disk (D62).
    fn of_memory(bytes: u64) -> Self {
        Self::at(MEMORY, bytes, Caching::Always)
    }

    fn at(base: &str, bytes: u64, caching: Caching) -> Self {
        Self(PoolFiles::make(&PoolChoice {
            base: Path::new(base),
            bytes,
            caching,
            ..PoolChoice::default()
        }))
    }

    fn open(&self) -> Fs {
        Self::open_at(&self.0.path())
    }

    fn open_at(path: &Path) -> Fs {
        let volume = Volume::open(path, Access::ReadWrite).expect("open");
        let fs = Fs::new(Store::attach(volume, &PRIVATE).expect("attach"));
        volume_of(&fs).set_room(ROOM);
        fs
    }
}

/// What reaches a device, by kind.
#[derive(Default)]
struct Reached([AtomicU64; 3]);

impl Reached {
    fn of(fs: &Fs) -> Arc<Reached> {
        let reached = Arc::new(Reached::default());
        let observer: Arc<dyn Observer> = reached.clone();
        volume_of(fs).set_observer(&observer);
        reached
    }

    fn bytes(&self) -> [u64; 3] {
        self.0.each_ref().map(|bytes| bytes.load(Ordering::Relaxed))
    }
}

impl Observer for Reached {
    fn store(&self, _: u16, _: DeviceOffset, _: &[u8], _: StoreKind, _: bool) {}

    fn flush(&self, _: u16, _: DeviceOffset, _: u64) {}

    fn fence(&self, _: u16) {}

    fn wants_stores(&self) -> bool {
        false
    }

    fn persisted(&self, _: u16, _: DeviceOffset, len: u64, kind: StoreKind) {
        self.0[kind.index()].fetch_add(len, Ordering::Relaxed);
    }
}

fn volume_of(fs: &Fs) -> &Volume {
    fs.store().volume()
}

fn info(fs: &Fs) -> CacheInfo {
    volume_of(fs).cache_info().expect("a cache")
}

fn random(seed: u8) -> TestRng {
    TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32])
}

/// Bytes that tell where they belong and who wrote them.
fn pattern(at: u64, len: usize, salt: u64) -> Vec<u8> {
    let word = |place: u64| (place / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt;
    (at..at + len as u64)
        .map(|place| word(place).to_le_bytes()[(place % 8) as usize])
        .collect()
}

/// Writes and reads a file of its own at random, and compares it with what it should hold.
fn work(fs: &Fs, node: InodeRef, model: &mut [u8], seed: u8) {
    let mut random = random(seed);
    for step in 0..300u64 {
        let at = random.next_u64() as usize % (model.len() - PIECE);
        let len = 1 + random.next_u64() as usize % PIECE;
        if random.next_u32().is_multiple_of(2) {
            let bytes = pattern(at as u64, len, step << 8 | u64::from(seed));
            write(fs, node, at as u64, &bytes);
            model[at..at + len].copy_from_slice(&bytes);
        } else {
            assert!(read(fs, node, at as u64, len) == model[at..at + len]);
        }
        if random.next_u32().is_multiple_of(64) {
            fs.commit().expect("commit");
        }
    }
}

fn assert_same(fs: &Fs, node: InodeRef, model: &[u8]) {
    for (at, bytes) in (0..).step_by(1 << 20).zip(model.chunks(1 << 20)) {
        assert!(read(fs, node, at, bytes.len()) == bytes, "at {at}");
    }
}

#[test]
fn a_pool_of_twenty_times_its_cache_keeps_everything() {
    keeps_everything(&Disk::new(128 << 20));
}

#[test]
fn so_does_one_that_is_memory() {
    keeps_everything(&Disk::of_memory(128 << 20));
}

fn keeps_everything(disk: &Disk) {
    let fs = disk.open();
    let mut models: Vec<Vec<u8>> = (0..4).map(|_| vec![0; 20 << 20]).collect();
    let files: Vec<InodeRef> = ["a", "b", "c", "d"]
        .map(|name| file(&fs, fs.root(), name))
        .to_vec();
    for (node, model) in files.iter().zip(&models) {
        for (at, bytes) in (0..).step_by(1 << 20).zip(model.chunks(1 << 20)) {
            write(&fs, *node, at, bytes);
        }
    }
    std::thread::scope(|scope| {
        for ((node, model), seed) in files.iter().zip(&mut models).zip(1..) {
            let fs = &fs;
            scope.spawn(move || work(fs, *node, model, seed));
        }
    });
    for (node, model) in files.iter().zip(&models) {
        assert_same(&fs, *node, model);
    }
    let seen = info(&fs);
    assert!(seen.dropped_bytes > 20 * ROOM && seen.missed_bytes > 0);
    assert!(seen.present_bytes <= 3 * ROOM, "{seen:?}");
    fs.into_store().close().expect("close");
    let fs = disk.open();
    for (name, model) in ["a", "b", "c", "d"].iter().zip(&models) {
        let found = fs.lookup(&root(), fs.root(), name.as_bytes());
        assert_same(&fs, found.expect("lookup").node, model);
    }
    assert_sound(&fs);
    fs.into_store().close().expect("close");
}

#[test]
fn what_is_not_home_stays_in_memory() {
    for disk in [Disk::new(64 << 20), Disk::of_memory(64 << 20)] {
        stays_in_memory(&disk);
    }
}

fn stays_in_memory(disk: &Disk) {
    let fs = disk.open();
    let node = file(&fs, fs.root(), "f");
    for salt in 0..20 {
        let bytes = pattern(0, 1 << 20, salt);
        write(&fs, node, 0, &bytes);
        match salt % 4 {
            0 => {}
            1 => fs.commit().expect("commit"),
            2 => volume_of(&fs).checkpoint().expect("checkpoint"),
            _ => write(&fs, node, 4096, &bytes[4096..5000]),
        }
        let dropped = volume_of(&fs).drop_memory();
        assert!(dropped > 0, "{dropped} in round {salt}: {:?}", info(&fs));
        assert!(read(&fs, node, 0, 1 << 20) == bytes, "round {salt}");
    }
    fs.into_store().close().expect("close");
}

#[test]
fn large_new_contents_are_written_once() {
    let disk = Disk::new(128 << 20);
    let fs = disk.open();
    fs.commit().expect("commit");
    let before = info(&fs);
    let node = file(&fs, fs.root(), "f");
    let bytes = pattern(0, 1 << 20, 7);
    for round in 0..8u64 {
        write(&fs, node, round << 20, &bytes);
        fs.commit().expect("commit");
    }
    let after = info(&fs);
    let journal = after.committed_bytes - before.committed_bytes;
    let home = after.home_bytes - before.home_bytes;
    assert!(journal < 1 << 20, "{journal} bytes of the journal");
    assert!((8 << 20..9 << 20).contains(&home), "{home} bytes at home");
    // In place they are journaled, and a copy of the disk has either all or nothing of them.
    volume_of(&fs).set_room(64 << 20);
    write_in_parts(&fs, node, &pattern(0, 1 << 20, 8), 16 << 10);
    fs.commit().expect("commit");
    assert!(info(&fs).committed_bytes - after.committed_bytes >= 1 << 20);
    fs.into_store().close().expect("close");
}

fn write_in_parts(fs: &Fs, node: InodeRef, bytes: &[u8], part: usize) {
    for (at, bytes) in (0..).step_by(part).zip(bytes.chunks(part)) {
        write(fs, node, at, bytes);
    }
}

/// A file whose contents are replaced again and again, be it by large calls where they are, or
/// behind a cut to nothing.
#[test]
fn large_contents_that_replace_others_are_written_once_and_use_memory_again() {
    const LEN: usize = 1 << 20;
    const PART: usize = 64 << 10;
    let disk = Disk::new(128 << 20);
    let fs = disk.open();
    volume_of(&fs).set_room(64 << 20);
    let node = file(&fs, fs.root(), "f");
    let replace = |round: u64, cut: bool| {
        if cut {
            fs.set_size(&root(), node, 0).expect("cut");
        }
        let bytes = pattern(0, LEN, round);
        write_in_parts(&fs, node, &bytes, PART);
        fs.commit().expect("commit");
        bytes
    };
    for cut in [false, true] {
        (0..3).for_each(|round| _ = replace(round, cut));
        let before = info(&fs);
        for round in 3..11 {
            let bytes = replace(round, cut);
            assert!(read(&fs, node, 0, LEN) == bytes);
        }
        let after = info(&fs);
        let journal = after.committed_bytes - before.committed_bytes;
        let home = after.home_bytes - before.home_bytes;
        let memory = after.present_bytes - before.present_bytes;
        assert!(journal < 1 << 20, "{journal} bytes of the journal");
        // Less than 64 KiB that are left over when a round ends go with its record.
        let written = home + journal;
        assert!((8 << 20..9 << 20).contains(&written), "{written} bytes");
        assert!(
            memory < 2 << 20,
            "{memory} bytes of memory more, cut: {cut}"
        );
    }
    assert!(copy_has(&disk, "f", &pattern(0, LEN, 10)));
    assert_sound(&fs);
    fs.into_store().close().expect("close");
}

/// What is new goes home from memory that others store to meanwhile (D121).
#[test]
fn contents_that_are_stored_to_while_they_go_home_come_to_the_disk() {
    const LEN: usize = 4 << 20;
    let disk = Disk::new(128 << 20);
    let fs = disk.open();
    volume_of(&fs).set_room(64 << 20);
    let node = file(&fs, fs.root(), "f");
    let home = || info(&fs).home_bytes;
    for round in 0..4 {
        fs.set_size(&root(), node, 0).expect("cut");
        let (first, last) = (pattern(0, LEN, round), pattern(0, LEN, round + 100));
        let before = home();
        std::thread::scope(|scope| {
            let stores = scope.spawn(|| {
                write_in_parts(&fs, node, &first, 64 << 10);
                write_in_parts(&fs, node, &last, 4 << 10);
            });
            while !stores.is_finished() {
                fs.commit().expect("commit");
            }
        });
        fs.commit().expect("commit");
        assert!(home() - before >= 1 << 20, "nothing went home ahead");
        assert!(copy_has(&disk, "f", &last), "round {round}");
    }
    fs.into_store().close().expect("close");
}

#[test]
fn much_that_is_overwritten_is_written_once() {
    const PAGES: u64 = 2048;
    let disk = Disk::new(128 << 20);
    let fs = disk.open();
    volume_of(&fs).set_room(64 << 20);
    let node = file(&fs, fs.root(), "f");
    write(&fs, node, 0, &pattern(0, PAGES as usize * 4096, 1));
    fs.commit().expect("commit");
    let before = info(&fs);
    let all = (0..PAGES).map(|n| n * 1021 % PAGES * 4096);
    // The second half of each page of some, so that pages are left where they are, too.
    let each = |at: u64| match at % (64 << 10) {
        0 => at + 2048..at + 4096,
        _ => at..at + 4096,
    };
    let mut model = pattern(0, PAGES as usize * 4096, 1);
    for range in all.map(each) {
        let bytes = pattern(range.start, (range.end - range.start) as usize, 2);
        write(&fs, node, range.start, &bytes);
        model[range.start as usize..range.end as usize].copy_from_slice(&bytes);
    }
    assert_eq!(info(&fs).commits, before.commits, "nobody waited");
    fs.commit().expect("commit");
    let journal = info(&fs).committed_bytes - before.committed_bytes;
    assert!(
        (1 << 20..3 << 20).contains(&journal),
        "{journal} bytes of the journal"
    );
    assert!(read(&fs, node, 0, model.len()) == model);
    assert_sound(&fs);
    fs.into_store().close().expect("close");
    let fs = disk.open();
    let node = fs.lookup(&root(), fs.root(), b"f").expect("lookup").node;
    assert!(read(&fs, node, 0, model.len()) == model);
    fs.into_store().close().expect("close");
}

/// A log whose last page is written again with each entry, as databases do.
#[test]
fn of_what_is_overwritten_only_what_changes_is_written() {
    const ROUNDS: usize = 60;
    let disk = Disk::new(64 << 20);
    let fs = disk.open();
    let node = file(&fs, fs.root(), "f");
    let mut page = vec![0; 16 << 10];
    write(&fs, node, 0, &page);
    fs.commit().expect("commit");
    let before = info(&fs);
    for round in 0..ROUNDS {
        let entry = round * 256..(round + 1) * 256;
        page[entry].copy_from_slice(&pattern(0, 256, round as u64));
        write(&fs, node, 0, &page);
        fs.commit().expect("commit");
    }
    let after = info(&fs);
    let journal = (after.committed_bytes - before.committed_bytes) as usize;
    assert_eq!(after.commits - before.commits, ROUNDS as u64);
    assert!(journal <= ROUNDS * 4096, "{journal} bytes of the journal");
    assert!(copy_has(&disk, "f", &page));
    volume_of(&fs).checkpoint().expect("checkpoint");
    volume_of(&fs).drop_memory();
    assert!(read(&fs, node, 0, page.len()) == page);
    fs.into_store().close().expect("close");
}

#[test]
fn what_is_overwritten_again_and_again_goes_home_once() {
    const PAGES: u64 = 16;
    const ROUNDS: u64 = 200;
    let disk = Disk::new(64 << 20);
    let fs = disk.open();
    let node = file(&fs, fs.root(), "f");
    write(&fs, node, 0, &pattern(0, PAGES as usize * 4096, 1));
    fs.commit().expect("commit");
    volume_of(&fs).checkpoint().expect("checkpoint");
    let before = info(&fs);
    for round in 0..ROUNDS {
        let at = round * 7 % PAGES * 4096;
        write(&fs, node, at, &pattern(at, 4096, round));
        fs.commit().expect("commit");
    }
    volume_of(&fs).checkpoint().expect("checkpoint");
    let after = info(&fs);
    let journal = after.committed_bytes - before.committed_bytes;
    let home = after.home_bytes - before.home_bytes;
    assert!(journal <= ROUNDS * 8192, "{journal} bytes of the journal");
    assert!(home < PAGES * 4096 + (16 << 10), "{home} bytes at home");
    // The disk alone has the newest of each.
    volume_of(&fs).drop_memory();
    for page in 0..PAGES {
        let last = (0..ROUNDS).rev().find(|round| round * 7 % PAGES == page);
        let at = page * 4096;
        let expected = pattern(at, 4096, last.expect("a round"));
        assert!(read(&fs, node, at, 4096) == expected, "page {page}");
    }
    fs.into_store().close().expect("close");
}

#[test]
fn what_is_advised_comes_to_memory_or_goes() {
    const LEN: u64 = 256 << 10;
    let disk = Disk::new(64 << 20);
    let fs = disk.open();
    let node = file(&fs, fs.root(), "f");
    let bytes = pattern(0, LEN as usize, 3);
    write(&fs, node, 0, &bytes);
    fs.commit().expect("commit");
    volume_of(&fs).checkpoint().expect("checkpoint");
    volume_of(&fs).drop_memory();
    let start = info(&fs);
    fs.will_need(node, 0, u64::MAX).expect("advice");
    let there = info(&fs);
    assert!(there.loaded_bytes - start.loaded_bytes >= LEN);
    assert!(read(&fs, node, 0, LEN as usize) == bytes);
    assert_eq!(info(&fs).missed_bytes, there.missed_bytes);
    // What the disk does not have stays.
    let new = pattern(0, 4096, 4);
    write(&fs, node, 8192, &new);
    fs.will_not_need(node, 1, LEN / 2).expect("advice");
    let gone = info(&fs);
    assert_eq!(gone.dropped_bytes - there.dropped_bytes, LEN / 2 - 2 * 4096);
    assert!(read(&fs, node, 8192, 4096) == new);
    assert!(read(&fs, node, LEN / 2, LEN as usize / 2) == bytes[LEN as usize / 2..]);
    assert_eq!(info(&fs).missed_bytes, gone.missed_bytes);
    assert!(read(&fs, node, 0, 8192) == bytes[..8192]);
    assert!(info(&fs).missed_bytes > gone.missed_bytes);
    fs.into_store().close().expect("close");
}

#[test]
fn what_is_in_memory_takes_the_fast_path() {
    let disk = Disk::new(64 << 20);
    let fs = disk.open();
    let node = file(&fs, fs.root(), "f");
    let mut model = pattern(0, 64 << 10, 5);
    write(&fs, node, 0, &model);
    // Remembered from now on.
    read(&fs, node, 0, model.len());
    let new = pattern(0, 5000, 6);
    let bytes = || UserBytes::from(&new[..]);
    let written = fs.try_overwrite_fast(node, FileOffset(300), bytes());
    assert_eq!(written, Some(Ok(new.len())));
    model[300..300 + new.len()].copy_from_slice(&new);
    let appended = fs.try_append_fast(node, FileOffset(model.len() as u64), bytes());
    assert_eq!(appended, Some(Ok(new.len())));
    model.extend_from_slice(&new);
    let read_fast = || {
        let mut found = vec![0; 20_000];
        let mut to = UserBytesMut::from(&mut found[..]);
        let len = fs.try_read_fast(node, FileOffset(1), &mut to)?;
        Some(found[..len].to_vec())
    };
    assert!(read_fast().as_deref() == Some(&model[1..20_001]));
    // What is not there is for the long way, which brings it.
    fs.commit().expect("commit");
    volume_of(&fs).checkpoint().expect("checkpoint");
    while volume_of(&fs).drop_memory() > 0 {}
    assert!(read_fast().is_none());
    assert!(read(&fs, node, 0, model.len()) == model);
    assert!(read_fast().as_deref() == Some(&model[1..20_001]));
    assert_sound(&fs);
    fs.into_store().close().expect("close");
}

#[test]
fn readers_and_writers_never_see_what_goes() {
    let disk = Disk::new(64 << 20);
    let fs = disk.open();
    let node = file(&fs, fs.root(), "f");
    let bytes = pattern(0, 2 << 20, 0);
    write(&fs, node, 0, &bytes);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let dropping = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                volume_of(&fs).drop_memory();
            }
        });
        let reading = |seed| {
            let (fs, bytes) = (&fs, &bytes);
            scope.spawn(move || {
                let mut random = random(seed);
                for _ in 0..1000 {
                    let at = random.next_u64() as usize % (bytes.len() - PIECE);
                    let there = read(fs, node, at as u64, PIECE);
                    assert!(there == bytes[at..at + PIECE], "at {at}");
                    if random.next_u32().is_multiple_of(16) {
                        // The same bytes: all that is seen stays.
                        write(fs, node, at as u64, &bytes[at..at + 100]);
                    }
                }
            })
        };
        let readers: Vec<_> = (1..4).map(reading).collect();
        let ended: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        done.store(true, Ordering::Relaxed);
        dropping.join().expect("dropping");
        assert!(ended.iter().all(Result::is_ok));
    });
    assert!(info(&fs).dropped_bytes > 4 << 20);
    fs.into_store().close().expect("close");
}

#[test]
fn what_is_memory_says_what_it_survives() {
    let fs = Disk::of_memory(64 << 20).open();
    let device = volume_of(&fs).devices().remove(0);
    assert_eq!(device.kind, DeviceKind::MemoryFile);
    assert_eq!(device.flush, FlushMethod::Commit);
    assert!(volume_of(&fs).survives().process_death && !volume_of(&fs).survives().power_loss);
    fs.into_store().close().expect("close");
}

/// Whether a copy of the device, of which memory holds nothing, has a file with this content.
fn copy_has(disk: &Disk, name: &str, content: &[u8]) -> bool {
    let copy = disk.0.file("copy");
    std::fs::copy(disk.0.path(), &copy).expect("copy");
    let fs = Disk::open_at(&copy);
    assert_sound(&fs);
    let found = fs.lookup(&root(), fs.root(), name.as_bytes());
    let has = found.is_ok_and(|found| read(&fs, found.node, 0, content.len()) == content);
    fs.into_store().close().expect("close");
    has
}

#[test]
fn memory_gets_what_was_committed_and_nothing_before() {
    let disk = Disk::of_memory(64 << 20);
    let fs = disk.open();
    fs.commit().expect("commit");
    let reached = Reached::of(&fs);
    let node = file(&fs, fs.root(), "f");
    let bytes = pattern(0, 5000, 1);
    write(&fs, node, 0, &bytes);
    assert_eq!(reached.bytes(), [0; 3]);
    assert!(!copy_has(&disk, "f", &bytes));
    fs.commit().expect("commit");
    let [new, _, log] = reached.bytes();
    assert!(log > 0 && new >= 5000, "{new} and {log} bytes");
    assert!(copy_has(&disk, "f", &bytes));
    write(&fs, node, 0, b"over");
    fs.commit().expect("commit");
    assert_eq!(reached.bytes()[0], new, "in place it is journaled");
    volume_of(&fs).checkpoint().expect("checkpoint");
    assert!(reached.bytes()[0] > new);
    fs.into_store().close().expect("close");
    assert!(copy_has(&disk, "f", &[b"over", &bytes[4..]].concat()));
}

/// Bytes that reach a device of memory by small overwrites and appends, synced now and then.
fn worn(caching: Caching) -> u64 {
    let disk = Disk::at(MEMORY, 64 << 20, caching);
    let volume = Volume::open(&disk.0.path(), Access::ReadWrite).expect("open");
    let fs = Fs::new(Store::attach(volume, &PRIVATE).expect("attach"));
    let table = file(&fs, fs.root(), "table");
    let log = file(&fs, fs.root(), "log");
    write(&fs, table, 0, &pattern(0, 64 << 10, 1));
    fs.commit().expect("commit");
    let reached = Reached::of(&fs);
    for round in 0..4000 {
        write(&fs, table, round * 7 % 64 * 512, &pattern(0, 128, round));
        write(&fs, log, round * 16, &pattern(0, 16, round));
        if round % 1000 == 999 {
            fs.commit().expect("commit");
        }
    }
    fs.into_store().close().expect("close");
    reached.bytes().iter().sum()
}

#[test]
fn what_is_memory_is_worn_less_than_in_mode_direct() {
    let (direct, cached) = (worn(Caching::Never), worn(Caching::Always));
    assert!(
        2 * cached < direct,
        "{cached} bytes cached, {direct} direct"
    );
}
