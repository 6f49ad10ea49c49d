//! Names that another user of the machine took first, of every kind: the folder is found all the
//! same.
//!
//! Root alone can give names to another user; without that right the tests say so and pass.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use nacre_runtime::{Folder, PoolKey, RuntimeError, Trust, one_user, sweep, use_base};
use nacre_types::Uuid;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;

const STRANGER: u32 = 60_001;
const OWNER: u32 = 60_002;
const TRUST: Trust = Trust {
    uid: OWNER,
    gid: OWNER,
    mode: 0o600,
};

/// What a stranger may make.
const SQUATS: [fn(&Path, u32); 4] = [file, folder, link, fifo];

fn file(path: &Path, mode: u32) {
    fs::write(path, "x").unwrap();
    set_mode(path, mode);
}

fn folder(path: &Path, mode: u32) {
    fs::create_dir(path).unwrap();
    set_mode(path, mode);
}

/// Leads to a folder that would be accepted.
fn link(path: &Path, _mode: u32) {
    let target = path.with_file_name(format!("target-{}", Uuid::random()));
    fs::create_dir(&target).unwrap();
    chown(&target, Some(OWNER), Some(OWNER)).unwrap();
    symlink(&target, path).unwrap();
}

fn fifo(path: &Path, mode: u32) {
    mknodat(CWD, path, FileType::Fifo, Mode::empty(), 0).unwrap();
    set_mode(path, mode);
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

static BASE: Mutex<Option<PathBuf>> = Mutex::new(None);

/// The one base of this process, for one test at a time; gone when that ends.
struct Base(MutexGuard<'static, Option<PathBuf>>);

impl Drop for Base {
    fn drop(&mut self) {
        if let Some(path) = &*self.0 {
            let _gone = fs::remove_dir_all(path);
        }
    }
}

/// The base, empty; `None` without the right to play two users.
fn stage() -> Option<(Base, PathBuf)> {
    if !geteuid().is_root() {
        eprintln!("skipped: only root can play two users");
        return None;
    }
    let mut base = BASE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let path = base.get_or_insert_with(|| {
        let path = std::env::temp_dir().join(format!("nacre-base-{}", Uuid::random()));
        use_base(Some(path.clone()));
        path
    });
    let path = path.clone();
    folder(&path, 0o1777);
    Some((Base(base), path))
}

fn key() -> PoolKey {
    PoolKey {
        uuid: Uuid::random(),
        device: (42, 7),
    }
}

#[test]
fn whatever_stands_under_the_name_all_processes_of_a_pool_meet() {
    let Some((_guard, base)) = stage() else {
        return;
    };
    for squat in SQUATS {
        for mode in [0, 0o777] {
            let key = key();
            let path = base.join(key.to_string());
            squat(&path, mode);
            lchown(&path, Some(STRANGER), Some(STRANGER)).unwrap();
            assert!(Folder::of_pool(key, TRUST).unwrap().is_none());
            let made = Folder::make_of_pool(key, TRUST).unwrap();
            assert_ne!(made.path(), path);
            for found in [
                Folder::of_pool(key, TRUST),
                Folder::make_of_pool(key, TRUST).map(Some),
            ] {
                assert_eq!(found.unwrap().unwrap().path(), made.path());
            }
            // The stranger takes his name away, and further ones of the other kind: nothing
            // changes.
            let _gone = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
            for end in ["", "0", "zz"] {
                let other = base.join(format!("{key}~{end}"));
                squat(&other, mode);
                lchown(&other, Some(STRANGER), Some(STRANGER)).unwrap();
            }
            assert_eq!(
                Folder::make_of_pool(key, TRUST).unwrap().path(),
                made.path()
            );
        }
    }
}

#[test]
fn what_a_stranger_puts_into_a_pools_folder_is_refused() {
    let Some((_guard, _)) = stage() else {
        return;
    };
    let made = Folder::make_of_pool(key(), TRUST).unwrap();
    for squat in SQUATS {
        for mode in [0, 0o600, 0o777] {
            let path = made.path().join("session");
            squat(&path, mode);
            lchown(&path, Some(STRANGER), Some(STRANGER)).unwrap();
            let opened = made.open_file("session", OFlags::RDWR);
            assert!(
                matches!(opened, Err(RuntimeError::Foreign(_))),
                "{opened:?}"
            );
            let inner = made.folder("session", true);
            assert!(matches!(inner, Err(RuntimeError::Foreign(_))), "{inner:?}");
            made.clear();
            assert!(made.names().is_empty(), "{:?}", made.names());
        }
    }
}

#[test]
fn a_file_that_more_may_write_than_the_pool_is_refused() {
    let Some((_guard, _)) = stage() else {
        return;
    };
    let shared = |mode| Trust { mode, ..TRUST };
    let table = [
        (0o600, OWNER, OWNER, 0o600, true),
        (0o600, 0, 0, 0o600, true),
        (0o600, OWNER, OWNER, 0o660, false),
        (0o600, OWNER, OWNER, 0o602, false),
        (0o600, STRANGER, OWNER, 0o600, false),
        (0o640, STRANGER, OWNER, 0o640, false),
        (0o660, OWNER, OWNER, 0o660, true),
        (0o660, OWNER, STRANGER, 0o660, false),
        (0o660, STRANGER, OWNER, 0o660, true),
        (0o660, STRANGER, STRANGER, 0o600, false),
        (0o660, OWNER, OWNER, 0o666, false),
        (0o666, STRANGER, STRANGER, 0o666, true),
    ];
    for (pool, uid, gid, mode, accepted) in table {
        let made = Folder::make_of_pool(key(), shared(pool)).unwrap();
        drop(made.make_file("session").unwrap());
        let path = made.path().join("session");
        chown(&path, Some(uid), Some(gid)).unwrap();
        set_mode(&path, mode);
        let found = made.open_file("session", OFlags::RDWR);
        assert_eq!(found.is_ok(), accepted, "{pool:o} {uid} {gid} {mode:o}");
    }
}

#[test]
fn names_with_slashes_lead_nowhere() {
    let Some((_guard, _)) = stage() else {
        return;
    };
    let made = Folder::make_of_pool(key(), TRUST).unwrap();
    for name in ["", ".", "..", "../x", "a/b", "/etc/passwd"] {
        assert!(made.open_file(name, OFlags::RDONLY).is_err());
        assert!(made.make_file(name).is_err() && made.remove(name).is_err());
        assert!(made.folder(name, true).is_err() && made.rename(name, "x").is_err());
    }
}

#[test]
fn of_many_who_make_a_users_folder_at_once_all_meet() {
    let Some((_guard, base)) = stage() else {
        return;
    };
    let made: BTreeSet<PathBuf> = std::thread::scope(|scope| {
        let makers: Vec<_> = (0..16)
            .map(|_| scope.spawn(|| Folder::make_of_user().unwrap().path().to_owned()))
            .collect();
        makers
            .into_iter()
            .map(|maker| maker.join().unwrap())
            .collect()
    });
    assert_eq!(made, BTreeSet::from([base.join("nacre-0")]));
}

#[test]
fn folders_of_pools_that_are_gone_are_found() {
    let Some((_guard, base)) = stage() else {
        return;
    };
    let pool = base.join("my.pool");
    drop(File::create(&pool).unwrap());
    let found = rustix::fs::stat(&pool).unwrap();
    let key = PoolKey {
        device: (found.st_dev, found.st_ino),
        ..key()
    };
    let own = Trust {
        uid: 0,
        gid: 0,
        mode: 0o600,
    };
    let made = Folder::make_of_pool(key, own).unwrap();
    made.note_origin(&pool);
    assert!(sweep().unwrap().is_empty());
    fs::rename(&pool, base.join("moved")).unwrap();
    let gone = sweep().unwrap();
    assert_eq!(gone.len(), 1);
    assert_eq!(gone[0].key, key);
    gone[0].folder.clear();
    gone[0].folder.leave();
    assert!(sweep().unwrap().is_empty() && !made.path().exists());
}

/// A pool with copies keeps the name that its first device gave it, also when that is lost.
#[test]
fn a_folder_stays_while_what_is_left_of_its_pool_stands() {
    let Some((_guard, base)) = stage() else {
        return;
    };
    let [first, second] = ["first.pool", "second.pool"].map(|name| base.join(name));
    let identity = |path: &Path| {
        drop(File::create(path).unwrap());
        let found = rustix::fs::stat(path).unwrap();
        (found.st_dev, found.st_ino)
    };
    let device = identity(&first);
    identity(&second);
    let key = PoolKey { device, ..key() };
    let own = Trust {
        uid: 0,
        gid: 0,
        mode: 0o600,
    };
    let made = Folder::make_of_pool(key, own).unwrap();
    made.note_origin(&first);
    fs::remove_file(&first).unwrap();
    made.note_origin(&second);
    assert!(sweep().unwrap().is_empty(), "the second device stands");
    fs::rename(&second, base.join("away")).unwrap();
    identity(&second);
    assert_eq!(sweep().unwrap().len(), 1, "another file has its name");
}

/// Real, effective, saved and file-system ids.
type Ids = [u32; 4];

/// Runs something in a thread with these ids; those of the other threads stay.
fn with_ids<T: Send + 'static>(ids: Ids, run: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        let [real, effective, saved, file_system] = ids;
        let [real, effective, saved] = [real, effective, saved].map(Uid::from_raw);
        set_thread_res_uid(real, effective, saved).unwrap();
        nix::unistd::setfsuid(nix::unistd::Uid::from_raw(file_system));
        run()
    });
    thread.join().unwrap()
}

/// What a thread that may be a stranger in some respect trusts of the stranger's.
fn trusted_of_the_stranger(ids: Ids, key: PoolKey, shared: Trust) -> [bool; 5] {
    with_ids(ids, move || {
        [
            one_user().is_some(),
            Trust::user().is_ok(),
            matches!(Folder::of_user(), Ok(Some(_))),
            Folder::make_of_user().is_ok(),
            matches!(Folder::of_pool(key, shared), Ok(Some(_))),
        ]
    })
}

#[test]
fn who_is_two_users_at_once_trusts_nothing_of_either() {
    let Some((_guard, base)) = stage() else {
        return;
    };
    let shared = Trust {
        mode: 0o660,
        ..TRUST
    };
    let key = key();
    for name in [format!("nacre-{STRANGER}"), key.to_string()] {
        folder(&base.join(&name), 0o700);
        chown(base.join(name), Some(STRANGER), Some(STRANGER)).unwrap();
    }
    let one = trusted_of_the_stranger([STRANGER; 4], key, shared);
    assert_eq!(one, [true; 5], "the stranger's own");
    // Nobody gets from the stranger's ids back to root's.
    for who in (1..15u32).filter(|who| *who != 0b0111) {
        let ids = [0, 1, 2, 3].map(|i| if who >> i & 1 == 1 { STRANGER } else { 0 });
        let trusted = trusted_of_the_stranger(ids, key, shared);
        assert_eq!(trusted, [false; 5], "{ids:?}");
    }
    assert_eq!(with_ids([0; 4], one_user), Some(0));
}

#[test]
fn who_is_two_users_at_once_works_in_no_base_of_either() {
    let Some((_guard, base)) = stage() else {
        return;
    };
    let key = key();
    let finds = |ids| with_ids(ids, move || Folder::of_pool(key, TRUST).map(drop));
    chown(&base, Some(STRANGER), Some(STRANGER)).unwrap();
    let own = finds([STRANGER; 4]);
    let mixed = [[0, STRANGER, STRANGER], [STRANGER, STRANGER, 0]];
    let mixed = mixed.map(|[real, effective, saved]| finds([real, effective, saved, STRANGER]));
    chown(&base, Some(0), Some(0)).unwrap();
    assert!(own.is_ok(), "{own:?}");
    for found in mixed {
        assert!(matches!(found, Err(RuntimeError::OpenBase(_))), "{found:?}");
    }
}
