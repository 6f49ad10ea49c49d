//! Threads and processes on one pool: what is read is always what some transaction left.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nacre_emulator::{CounterPlace, Emulation, FILE_NAME, Profile, Settings};
use nacre_objects::{Error, OpenOptions, Pool, Transaction};
use nacre_store::check::check;
use nacre_store::runtime;
use nacre_testkit::pool::PoolFiles;
use nacre_volume::{Access, Volume};

const SIZE: u64 = 64 << 20;
/// Set for a process that works until it is killed.
const WORKER: &str = "NACRE_OBJECTS_WORKER";

/// One step of a worker: all objects get the same mark in bytes, attribute, omap and a long value.
fn mark(pool: &Pool, worker: u8, round: u64) {
    let value = [&round.to_be_bytes()[..], &[worker]].concat();
    let mut t = Transaction::new();
    for number in 0..3u8 {
        let o = [worker, number];
        t.write(b"c", &o, 0, vec![round as u8; 6000])
            .write(b"c", &o, 100, value.clone())
            .set_attribute(b"c", &o, b"mark", value.clone())
            .set_omap(b"c", &o, b"mark", value.clone())
            .set_omap(b"c", &o, b"long", value.repeat(4000));
    }
    // A name that comes and goes, and moves.
    match round % 3 {
        0 => t.touch(b"c", &[worker, 9]),
        1 => t.rename((b"c", &[worker, 9]), (b"d", &[worker, 9])),
        _ => t.remove(b"d", &[worker, 9]),
    };
    pool.commit(&t).unwrap();
}

/// The marks of an object, in the order in which they are read.
fn marks(pool: &Pool, o: &[u8]) -> [Vec<u8>; 4] {
    let mut bytes = vec![0; 9];
    pool.read(b"c", o, 100, &mut bytes).unwrap();
    let long = pool.omap(b"c", o, b"long").unwrap().unwrap();
    let whole = long == long[..9].repeat(4000);
    assert!(whole, "a value of two transactions");
    [
        bytes,
        long[..9].to_vec(),
        pool.attribute(b"c", o, b"mark").unwrap(),
        pool.omap(b"c", o, b"mark").unwrap().unwrap(),
    ]
}

fn prepare(pool: &Pool) {
    let mut t = Transaction::new();
    t.create_collection(b"c").create_collection(b"d");
    pool.commit(&t).unwrap();
}

fn sound(pool: &Pool) {
    let report = check(pool.store(), &mut |_| {});
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

#[test]
fn readers_see_whole_transactions() {
    let files = PoolFiles::new(SIZE);
    let pool = Pool::of(files.attach(Access::ReadWrite).unwrap());
    prepare(&pool);
    (0..2).for_each(|worker| mark(&pool, worker, 0));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|worker| {
                let pool = &pool;
                scope.spawn(move || (1..150).for_each(|round| mark(pool, worker, round)))
            })
            .collect();
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    for worker in 0..2 {
                        // Each answer is later than the one before, or the same.
                        let seen = marks(&pool, &[worker, 1]);
                        assert!(seen.is_sorted(), "{seen:?}");
                        let there = pool.objects(b"c", &[worker], 3).unwrap();
                        assert_eq!(there.len(), 3);
                    }
                }
            });
        }
        writers
            .into_iter()
            .for_each(|writer| writer.join().unwrap());
        over.store(true, Ordering::Relaxed);
    });
    sound(&pool);
    pool.close().unwrap();
}

/// Not a test: what a process does that is killed.
#[test]
fn worker() {
    let Some(arguments) = std::env::var_os(WORKER) else {
        return;
    };
    let arguments = arguments.into_string().unwrap();
    let (path, worker) = arguments.rsplit_once(' ').unwrap();
    let pool = Pool::open(path, OpenOptions::default()).unwrap();
    let worker: u8 = worker.parse().unwrap();
    let before = pool.objects(b"d", &[worker], 1).unwrap();
    let mut round = match before.first() {
        Some(name) if name[0] == worker => 2,
        _ if pool.exists(b"c", &[worker, 9]).unwrap() => 1,
        _ => 0,
    };
    // Should nobody be there any more to kill it.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(60) {
        mark(&pool, worker, round);
        round += 1;
    }
}

#[test]
fn a_collection_that_others_removed_and_made_again_is_the_new_one() {
    let files = PoolFiles::new(SIZE);
    let pool = Pool::of(files.attach(Access::ReadWrite).unwrap());
    let other = Pool::of(files.attach(Access::ReadWrite).unwrap());
    prepare(&pool);
    let mut t = Transaction::new();
    t.touch(b"c", b"old");
    pool.commit(&t).unwrap();
    assert!(pool.exists(b"c", b"old").unwrap() && pool.has_collection(b"d").unwrap());
    let mut t = Transaction::new();
    t.remove(b"c", b"old").remove_collection(b"c");
    t.remove_collection(b"d")
        .create_collection(b"c")
        .touch(b"c", b"new");
    other.commit(&t).unwrap();
    assert!(!pool.has_collection(b"d").unwrap());
    assert!(pool.objects(b"d", b"", 0).is_err());
    assert_eq!(pool.objects(b"c", b"", 9).unwrap(), [b"new".to_vec()]);
    assert!(!pool.exists(b"c", b"old").unwrap());
    let mut t = Transaction::new();
    t.set_attribute(b"c", b"new", b"a", vec![1]);
    pool.commit(&t).unwrap();
    assert_eq!(other.attribute(b"c", b"new", b"a").unwrap(), [1]);
    let mut t = Transaction::new();
    t.touch(b"d", b"x");
    assert!(pool.commit(&t).is_err());
    sound(&pool);
}

/// What others change meanwhile would seem to be damage.
#[test]
fn a_pool_that_somebody_uses_is_not_checked() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("pool");
    let pool = Pool::create(&path, SIZE).unwrap();
    let refused = Pool::check(&path).unwrap_err();
    assert!(matches!(refused, Error::InUse), "{refused}");
    prepare(&pool);
    pool.close().unwrap();
    assert_eq!(Pool::check(&path).unwrap(), [""; 0]);
    // It left the pool as it came.
    let pool = Pool::open(&path, OpenOptions::default()).unwrap();
    assert!(pool.has_collection(b"d").unwrap());
    pool.close().unwrap();
}

#[test]
fn killed_processes_leave_whole_transactions() {
    let files = PoolFiles::new(SIZE);
    let path = files.path();
    let pool = Pool::of(files.attach(Access::ReadWrite).unwrap());
    prepare(&pool);
    (0..2).for_each(|worker| mark(&pool, worker, 0));
    for round in 0..6u64 {
        let workers = (0..2).map(|worker| {
            Command::new(std::env::current_exe().unwrap())
                .args(["worker", "--exact"])
                .env(WORKER, format!("{} {worker}", path.display()))
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        });
        let mut workers: Vec<_> = workers.collect();
        let before = [marks(&pool, &[0, 0]), marks(&pool, &[1, 0])];
        // They have begun.
        while before[0] == marks(&pool, &[0, 0]) || before[1] == marks(&pool, &[1, 0]) {
            let ended = workers.iter_mut().any(|w| w.try_wait().unwrap().is_some());
            assert!(!ended, "a worker ended by itself");
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(round * 3));
        for worker in &mut workers {
            worker.kill().unwrap();
            worker.wait().unwrap();
        }
        for worker in 0..2 {
            let first = marks(&pool, &[worker, 0]);
            for number in 0..3 {
                let seen = marks(&pool, &[worker, number]);
                assert!(seen.iter().all(|mark| *mark == first[0]), "{seen:?}");
            }
        }
        // What waits for replay is replayed by whoever needs the locks.
        let mut t = Transaction::new();
        t.touch(b"c", b"after").touch(b"d", b"after");
        pool.commit(&t).unwrap();
        sound(&pool);
    }
    pool.close().unwrap();
    let pool = Pool::open(&path, OpenOptions::default()).unwrap();
    sound(&pool);
}

#[test]
fn what_is_stored_is_counted_as_that_of_programs_is() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("pool");
    Pool::create(&path, SIZE).unwrap().close().unwrap();
    let volume = Volume::open(&path, Access::ReadOnly).unwrap();
    let place = CounterPlace::below(runtime::make_folder(&volume).unwrap(), FILE_NAME);
    let settings = Settings {
        profile: &Profile::plain(),
        delays: false,
        wear: Some(4096),
    };
    let known = nacre_emulator::Pool {
        uuid: volume.uuid(),
        devices: vec![SIZE],
        owner: volume.owner(),
    };
    let emulation = Emulation::create(place, &settings, &known).unwrap();
    let pool = Pool::open(&path, OpenOptions::default()).unwrap();
    let data = || emulation.wear().unwrap().totals.bytes[0];
    let before = data();
    prepare(&pool);
    let mut t = Transaction::new();
    t.write(b"c", b"o", 0, vec![7; 8192]);
    pool.commit(&t).unwrap();
    assert!(data() - before >= 8192, "{} bytes", data() - before);
    pool.close().unwrap();
}

/// Each of these names has a layer of its own, which comes and goes with it.
fn long_name(number: u32) -> Vec<u8> {
    [&number.to_be_bytes()[..], &[b'n'; 1100]].concat()
}

#[test]
fn long_names_are_listed_while_others_come_and_go() {
    const NAMES: u32 = 400;
    let files = PoolFiles::new(SIZE);
    let pool = Pool::open(files.path(), OpenOptions::default()).unwrap();
    prepare(&pool);
    let change = |number: u32, is_there: bool| {
        let mut t = Transaction::new();
        match is_there {
            true => t.touch(b"c", &long_name(number)),
            false => t.remove(b"c", &long_name(number)).if_exists(),
        };
        pool.commit(&t).unwrap();
    };
    (0..NAMES).for_each(|number| change(number, true));
    let over = AtomicBool::new(false);
    let over = &over;
    std::thread::scope(|scope| {
        for first in [1, 3] {
            scope.spawn(move || {
                let numbers = (first..NAMES).step_by(4).cycle();
                for number in numbers.take_while(|_| !over.load(Ordering::Relaxed)) {
                    change(number, false);
                    change(number, true);
                }
            });
        }
        let listed: Vec<_> = (0..200)
            .map(|_| pool.objects(b"c", b"", usize::MAX))
            .collect();
        over.store(true, Ordering::Relaxed);
        for names in listed {
            let names = names.unwrap();
            assert!(names.is_sorted_by(|a, b| a < b));
            let stay = (0..NAMES).step_by(2).map(long_name);
            assert!(stay.clone().all(|name| names.binary_search(&name).is_ok()));
        }
    });
    let some = pool.objects(b"c", &long_name(7), 3).unwrap();
    assert_eq!(some, [7, 8, 9].map(long_name));
    assert_eq!(pool.objects(b"c", b"", 0).unwrap(), Vec::<Vec<u8>>::new());
    pool.close().unwrap();
}
