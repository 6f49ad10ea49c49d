//! Attach, detach, sharing, and what is left of a process that died in the middle.

use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nacre_media::Observer;
use nacre_store::{AttachOptions, FormatOptions, Store, StoreError};
use nacre_testkit::names::{create, find, remove};
use nacre_testkit::pool::{PRIVATE, PoolFiles, assert_sound, assert_sound_without_leaks, attach};
use nacre_types::{DeviceOffset, StoreKind, VolumeOffset};
use nacre_volume::{Access, Volume};

const POOL: u64 = 32 << 20;
const CHILD_POOL: &str = "NACRE_TEST_CHILD_POOL";
const CHILD_DIES_AT: &str = "NACRE_TEST_CHILD_DIES_AT";
/// Set: the child makes its files in another order than it should.
const CHILD_LIES: &str = "NACRE_TEST_CHILD_LIES";

#[test]
fn a_clean_detach_saves_the_scan() {
    let pool = PoolFiles::new(POOL);
    let store = pool.attach(Access::ReadWrite).unwrap();
    assert!(store.report().rebuilt);
    let id = create(&store, "kept").unwrap();
    create(&store, "gone").unwrap();
    remove(&store, "gone");
    let before = store.statfs();
    store.detach().unwrap();
    let store = pool.attach(Access::ReadWrite).unwrap();
    assert!(!store.report().rebuilt && !store.report().joined);
    assert_eq!(find(&store, "kept"), Some(id));
    assert_eq!(find(&store, "gone"), None);
    assert_eq!(store.statfs().free_units, before.free_units);
    assert_eq!(store.statfs().free_objects, before.free_objects);
    assert_sound(&store);
    create(&store, "more").unwrap();
    store.detach().unwrap();
}

#[test]
fn two_attachments_share_one_session() {
    let pool = PoolFiles::new(POOL);
    let one = pool.attach(Access::ReadWrite).unwrap();
    let two = pool.attach(Access::ReadWrite).unwrap();
    assert!(two.report().joined);
    let id = create(&one, "a").unwrap();
    assert_eq!(find(&two, "a"), Some(id));
    let guard = one.lock(id).unwrap();
    assert!(two.try_lock(id).unwrap().is_none());
    drop(guard);
    assert!(two.try_lock(id).unwrap().is_some());
    one.detach().unwrap();
    create(&two, "b").unwrap();
    two.detach().unwrap();
    let again = pool.attach(Access::ReadWrite).unwrap();
    assert!(!again.report().rebuilt);
    assert!(find(&again, "a").is_some() && find(&again, "b").is_some());
    again.detach().unwrap();
}

#[test]
fn a_private_session_is_refused_while_others_work() {
    let pool = PoolFiles::new(POOL);
    let store = pool.attach(Access::ReadWrite).unwrap();
    let volume = Volume::open(&pool.path(), Access::ReadWrite).unwrap();
    let refused = Store::attach(volume, &PRIVATE).err().unwrap();
    assert!(matches!(refused, StoreError::InUse));
    store.detach().unwrap();
    let volume = Volume::open(&pool.path(), Access::ReadWrite).unwrap();
    Store::attach(volume, &PRIVATE).unwrap().detach().unwrap();
}

#[test]
fn a_read_only_attachment_reads_and_refuses_to_write() {
    let pool = PoolFiles::new(POOL);
    let store = pool.attach(Access::ReadWrite).unwrap();
    create(&store, "a").unwrap();
    store.detach().unwrap();
    let store = pool.attach(Access::ReadOnly).unwrap();
    assert!(find(&store, "a").is_some());
    assert!(matches!(create(&store, "b"), Err(StoreError::ReadOnly)));
    assert_sound(&store);
    store.detach().unwrap();
    let store = pool.attach(Access::ReadWrite).unwrap();
    assert!(!store.report().rebuilt, "reading left the pool clean");
    store.detach().unwrap();
}

#[test]
fn the_snapshot_of_a_later_detach_is_not_that_of_the_state() {
    let pool = PoolFiles::new(POOL);
    let detached = |name: &str| {
        let store = pool.attach(Access::ReadWrite).unwrap();
        create(&store, name).unwrap();
        store.detach().unwrap();
        std::fs::read(pool.path()).unwrap()
    };
    let (mut bytes, later) = (detached("a"), detached("b"));
    let is_snapshot = |at: &usize| {
        let magic = nacre_store::layout::SNAPSHOT_MAGIC.to_le_bytes();
        later[*at..].starts_with(&magic) && bytes[*at..].starts_with(&magic)
    };
    let at = (0..bytes.len()).step_by(4096).find(is_snapshot);
    let at = at.expect("both are at one place");
    bytes[at..at + 4096].copy_from_slice(&later[at..at + 4096]);
    // As after a power cut, on a disk that has got what goes ahead of a version.
    std::fs::write(pool.path(), &bytes).unwrap();
    let store = pool.attach(Access::ReadWrite).unwrap();
    assert!(store.report().rebuilt);
    assert!(find(&store, "a").is_some() && find(&store, "b").is_none());
    assert_sound_without_leaks(&store);
    store.detach().unwrap();
}

#[test]
fn a_damaged_snapshot_only_costs_a_scan() {
    let pool = PoolFiles::new(POOL);
    let store = pool.attach(Access::ReadWrite).unwrap();
    create(&store, "a").unwrap();
    store.detach().unwrap();
    let volume = Volume::open(&pool.path(), Access::ReadWrite).unwrap();
    for unit in 64..1024 {
        let at = VolumeOffset(unit * 4096);
        if volume.load_u32(at) == nacre_store::layout::SNAPSHOT_MAGIC {
            let at = VolumeOffset(at.0 + 72);
            let word = volume.load_u64(at) ^ 1;
            volume
                .fence(volume.store_u64(at, word, StoreKind::Metadata))
                .unwrap();
        }
    }
    drop(volume);
    let store = pool.attach(Access::ReadWrite).unwrap();
    assert!(store.report().rebuilt);
    assert!(find(&store, "a").is_some());
    assert_sound(&store);
    store.detach().unwrap();
}

#[test]
fn something_else_is_no_pool() {
    let volume = Volume::memory(16 << 20).unwrap();
    let error = Store::attach(volume, &AttachOptions::default())
        .err()
        .unwrap();
    assert!(matches!(error, StoreError::NotAPool));
    let small = Volume::memory(4 << 20).unwrap();
    let error = Store::format(&small, &FormatOptions::default()).unwrap_err();
    assert!(matches!(error, StoreError::PoolTooSmall { .. }));
}

/// Ends the process, as `kill -9` would, at the n-th thing that happens to the medium.
struct Reaper {
    left: AtomicUsize,
}

impl Reaper {
    fn step(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            let me = std::process::id().to_string();
            let _ = Command::new("kill").args(["-9", &me]).status();
        }
    }
}

impl Observer for Reaper {
    fn store(&self, _: u16, _: DeviceOffset, _: &[u8], _: StoreKind, _: bool) {
        self.step();
    }
    fn flush(&self, _: u16, _: DeviceOffset, _: u64) {}
    fn fence(&self, _: u16) {
        self.step();
    }
}

/// Not a test by itself: what the killed process does.
#[test]
fn child_process() {
    let (Ok(path), Ok(steps)) = (std::env::var(CHILD_POOL), std::env::var(CHILD_DIES_AT)) else {
        return;
    };
    let store = attach(Path::new(&path), Access::ReadWrite).unwrap();
    let observer: Arc<dyn Observer> = Arc::new(Reaper {
        left: AtomicUsize::new(steps.parse().unwrap()),
    });
    store.volume().set_observer(&observer);
    let backwards = std::env::var(CHILD_LIES).is_ok();
    for round in 0..3 {
        let round = if backwards { 2 - round } else { round };
        create(&store, &format!("child-{round}")).unwrap();
    }
    remove(&store, "child-1");
    store.detach().unwrap();
}

fn run_child(path: &Path, dies_at: usize) -> ExitStatus {
    child(path, dies_at).status().unwrap()
}

fn child(path: &Path, dies_at: usize) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child_process", "--test-threads=1", "-q"])
        .env(CHILD_POOL, path)
        .env(CHILD_DIES_AT, dies_at.to_string())
        .stdout(std::process::Stdio::null());
    command
}

/// Operations became visible in the order in which the child made them.
fn in_order(store: &Store) -> bool {
    find(store, "child-0").is_some() || find(store, "child-2").is_none()
}

#[test]
fn canary_operations_in_another_order_are_noticed() {
    let noticed = (3..60).step_by(3).any(|dies_at| {
        let pool = PoolFiles::new(POOL);
        let store = pool.attach(Access::ReadWrite).unwrap();
        let status = child(&pool.path(), dies_at).env(CHILD_LIES, "1").status();
        assert!(!status.unwrap().success());
        store.reap(&mut |_| Ok(())).unwrap();
        let noticed = !in_order(&store);
        store.detach().unwrap();
        noticed
    });
    assert!(noticed);
}

#[test]
fn a_survivor_goes_on_wherever_a_process_died() {
    let mut died = 0;
    for dies_at in 1..200 {
        let pool = PoolFiles::new(POOL);
        let store = pool.attach(Access::ReadWrite).unwrap();
        let finished = run_child(&pool.path(), dies_at).success();
        died += usize::from(!finished);
        create(&store, "survivor").unwrap();
        store.reap(&mut |_| Ok(())).unwrap();
        assert_eq!(store.dead_slots().count(), 0);
        assert_sound(&store);
        assert!(in_order(&store), "died at {dies_at}");
        store.detach().unwrap();
        let store = pool.attach(Access::ReadWrite).unwrap();
        assert_eq!(store.report().rebuilt, !finished, "died at {dies_at}");
        assert_eq!(store.report().problems, 0);
        assert!(find(&store, "survivor").is_some());
        assert_sound(&store);
        store.detach().unwrap();
        if finished {
            break;
        }
    }
    assert!(died > 10, "only {died} places to die at");
}

/// Whether something was flushed and not fenced since.
#[derive(Default)]
struct Unfenced {
    now: AtomicBool,
    fences: AtomicUsize,
}

impl Observer for Unfenced {
    fn store(&self, _: u16, _: DeviceOffset, _: &[u8], _: StoreKind, _: bool) {}
    fn flush(&self, _: u16, _: DeviceOffset, _: u64) {
        self.now.store(true, Ordering::Relaxed);
    }
    fn fence(&self, _: u16) {
        self.now.store(false, Ordering::Relaxed);
        self.fences.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whoever takes the lane next may be another thread, whose fences do nothing for this one.
#[test]
fn what_a_survivor_replays_is_retired_durably_before_the_lane_is_free() {
    let mut replayed = 0;
    for dies_at in 1..14 {
        let pool = PoolFiles::new(POOL);
        let store = pool.attach(Access::ReadWrite).unwrap();
        run_child(&pool.path(), dies_at);
        let unfenced = Arc::new(Unfenced::default());
        let observer: Arc<dyn Observer> = Arc::clone(&unfenced) as Arc<dyn Observer>;
        store.volume().set_observer(&observer);
        for dead in store.dead_slots().collect::<Vec<_>>() {
            store.recover_slot(dead).unwrap();
            assert!(!unfenced.now.load(Ordering::Relaxed), "died at {dies_at}");
        }
        // Of what is replayed, and of the log tail word.
        replayed += usize::from(unfenced.fences.load(Ordering::Relaxed) >= 2);
        store.detach().unwrap();
    }
    assert!(replayed > 0, "no record waited");
}

#[test]
fn a_pool_whose_only_process_died_recovers() {
    for dies_at in [3, 9, 17, 25] {
        let pool = PoolFiles::new(POOL);
        assert!(!run_child(&pool.path(), dies_at).success());
        let store = pool.attach(Access::ReadWrite).unwrap();
        assert!(store.report().rebuilt && !store.report().joined);
        assert_sound(&store);
        create(&store, "later").unwrap();
        store.detach().unwrap();
    }
}
