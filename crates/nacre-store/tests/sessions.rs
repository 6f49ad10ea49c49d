//! Two sessions on one pool: refused while anybody of the other one lives, however the sessions
//! came apart.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nacre_store::{AttachOptions, SessionChoice, Store, StoreError};
use nacre_testkit::pool::{FORCE, PoolChoice, PoolFiles, device_spec};
use nacre_volume::{Access, Caching, DeviceSpec, Presence, Volume};

const POOL: &str = "NACRE_TEST_SESSIONS_POOL";
/// Bytes of each device.
const SIZE: u64 = 32 << 20;
const READS: &str = "NACRE_TEST_SESSIONS_READS";

/// As long as it lives no process is started: until it executes its program, one holds what was
/// open here.
fn nobody_starts() -> MutexGuard<'static, ()> {
    static STARTING: Mutex<()> = Mutex::new(());
    STARTING.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Room(PoolFiles);

impl Room {
    /// A pool of two devices.
    fn new() -> Room {
        Room::of(PoolChoice::default())
    }

    fn of(choice: PoolChoice<'_>) -> Room {
        Room(PoolFiles::make(&PoolChoice {
            devices: &["one", "two"],
            bytes: SIZE,
            ..choice
        }))
    }

    fn device(&self, name: &str) -> DeviceSpec {
        device_spec(&self.path(name), SIZE)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.file(name)
    }

    /// A process that attaches the pool in a session folder of its own and stays.
    fn stranger(&self, access: Access) -> Child {
        let folder = self.path("sessions");
        std::fs::create_dir_all(&folder).unwrap();
        let starting = nobody_starts();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "stranger", "--nocapture", "--test-threads=1"])
            .env("NACRE_SESSION_DIR", folder)
            .env(POOL, self.path("one"))
            .env(READS, if access == Access::ReadOnly { "1" } else { "" })
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        drop(starting);
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("attached") {
            line.clear();
            assert!(output.read_line(&mut line).unwrap() > 0, "it must attach");
        }
        // Kept open, so that what the child says in the end has somewhere to go.
        child.stdout = Some(output.into_inner());
        child
    }

    fn attach(&self, device: &str, access: Access) -> Result<Store, StoreError> {
        attach(&self.path(device), access, SessionChoice::Shared)
    }

    fn assert_refused(&self, device: &str, access: Access, session: SessionChoice) {
        let error = attach(&self.path(device), access, session).err().unwrap();
        assert!(matches!(error, StoreError::InUse), "{error}");
        assert!(error.to_string().contains("NACRE_SESSION_DIR"));
    }
}

fn attach(path: &Path, access: Access, session: SessionChoice) -> Result<Store, StoreError> {
    let options = AttachOptions {
        session,
        ..AttachOptions::default()
    };
    Store::attach(Volume::open(path, access).unwrap(), &options)
}

/// Not a test by itself: the process of another session.
#[test]
fn stranger() {
    let Ok(path) = std::env::var(POOL) else {
        return;
    };
    let access = match std::env::var(READS).as_deref() {
        Ok("1") => Access::ReadOnly,
        _ => Access::ReadWrite,
    };
    let store = attach(Path::new(&path), access, SessionChoice::Shared).unwrap();
    // So that a disk has something to bring home.
    store.commit().unwrap();
    println!("attached");
    // Until the other end closes it.
    let _ = std::io::stdin().read_line(&mut String::new());
    store.detach().unwrap();
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_second_session_is_refused_until_the_first_is_dead_and_then_recovers() {
    let room = Room::new();
    let stranger = room.stranger(Access::ReadWrite);
    for device in ["one", "two"] {
        room.assert_refused(device, Access::ReadWrite, SessionChoice::Shared);
    }
    room.assert_refused("one", Access::ReadOnly, SessionChoice::Shared);
    room.assert_refused("one", Access::ReadWrite, SessionChoice::Memory);
    kill(stranger);
    let store = room.attach("one", Access::ReadWrite).unwrap();
    assert!(store.report().rebuilt && !store.report().joined);
    store.detach().unwrap();
}

#[test]
fn a_second_session_gets_in_after_the_first_has_left() {
    let room = Room::new();
    let mut stranger = room.stranger(Access::ReadWrite);
    drop(stranger.stdin.take());
    assert!(stranger.wait().unwrap().success());
    let store = room.attach("one", Access::ReadWrite).unwrap();
    assert!(!store.report().rebuilt);
    store.detach().unwrap();
}

#[test]
fn readers_of_an_idle_pool_share_it_and_keep_writers_off() {
    let room = Room::new();
    room.attach("one", Access::ReadWrite)
        .unwrap()
        .detach()
        .unwrap();
    let stranger = room.stranger(Access::ReadOnly);
    let reader = room.attach("two", Access::ReadOnly).unwrap();
    reader.detach().unwrap();
    room.assert_refused("one", Access::ReadWrite, SessionChoice::Shared);
    kill(stranger);
    room.attach("one", Access::ReadWrite)
        .unwrap()
        .detach()
        .unwrap();
}

#[test]
fn a_session_whose_file_was_removed_still_keeps_others_off() {
    let room = Room::new();
    let stranger = room.stranger(Access::ReadWrite);
    std::fs::remove_dir_all(room.path("sessions")).unwrap();
    room.assert_refused("one", Access::ReadWrite, SessionChoice::Shared);
    kill(stranger);
}

/// Memory alone says where their journal is, and which copy is ahead.
#[test]
fn who_is_refused_changes_nothing_on_disks_nor_on_copies() {
    for (caching, copies) in [
        (Caching::Always, 0),
        (Caching::Always, 2),
        (Caching::Never, 2),
    ] {
        let room = Room::of(PoolChoice {
            caching,
            copies,
            ..PoolChoice::default()
        });
        let stranger = room.stranger(Access::ReadWrite);
        let devices = || ["one", "two"].map(|name| std::fs::read(room.path(name)).unwrap());
        let before = devices();
        room.assert_refused("one", Access::ReadWrite, SessionChoice::Shared);
        assert!(before == devices(), "{caching:?}, {copies} copies");
        kill(stranger);
    }
}

#[test]
fn a_device_in_use_is_not_made_a_pool_by_force() {
    let room = Room::new();
    let stranger = room.stranger(Access::ReadWrite);
    let error = Volume::create(&[room.device("two")], FORCE).unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");
    kill(stranger);
    Volume::create(&[room.device("two")], FORCE).unwrap();
}

#[test]
fn whoever_is_alone_lets_members_in_by_becoming_one() {
    let _quiet = nobody_starts();
    let room = Room::new();
    let open = || Volume::open(&room.path("one"), Access::ReadWrite).unwrap();
    let (first, second) = (open(), open());
    assert!(first.enter(Presence::Alone).unwrap());
    for presence in [Presence::Alone, Presence::Member, Presence::Reader] {
        assert!(!second.enter(presence).unwrap(), "{presence:?}");
    }
    assert!(first.enter(Presence::Member).unwrap());
    assert!(second.enter(Presence::Member).unwrap());
    assert!(!open().enter(Presence::Alone).unwrap());
    first.leave().unwrap();
    drop(second);
    assert!(open().enter(Presence::Alone).unwrap());
}

/// Objects by number, made and kept, tell whose changes a pool has.
fn work_on(path: &Path) -> Store {
    let volume = Volume::open(path, Access::ReadWrite).unwrap();
    Store::attach(volume, &AttachOptions::default()).unwrap()
}

fn assert_sound(store: Store) {
    let report = nacre_store::check::check(&store, &mut |_| {});
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    store.detach().unwrap();
}

/// A pool of one device and a copy of it, made while the pool is in use or not.
#[test]
fn a_copy_of_a_pool_has_a_session_of_its_own() {
    for in_use in [true, false] {
        let pool = PoolFiles::new(32 << 20);
        let [original, copy] = ["pool", "copy"].map(|name| pool.file(name));
        let before = in_use.then(|| work_on(&original));
        std::fs::copy(&original, &copy).unwrap();
        let of_copy = work_on(&copy);
        let first = before.unwrap_or_else(|| work_on(&original));
        let second = work_on(&original);
        assert!(second.report().joined && !first.report().joined && !of_copy.report().joined);
        let place = |store: &Store| store.session().path().unwrap().to_owned();
        assert_eq!(place(&first), place(&second));
        assert_ne!(place(&first), place(&of_copy));
        assert!(place(&first).exists() && place(&of_copy).exists());
        second.detach().unwrap();
        let left = [place(&first), place(&of_copy)];
        assert_sound(of_copy);
        assert_sound(first);
        for session in left {
            assert!(!session.parent().unwrap().exists(), "{session:?} is left");
        }
    }
}
