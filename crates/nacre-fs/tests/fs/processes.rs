//! Several processes in one pool, one of which is killed again and again.
//!
//! The workers are this test program started once more, with the pool in the environment.

use crate::pools::{assert_sound, names, root};
use nacre_fs::{Fs, FsError, InodeRef, RenameFlags, WriteAt};
use nacre_session::{OfdId, OfdInit};
use nacre_testkit::pool::{self, PoolFiles};
use nacre_volume::Access;
use std::path::Path;
use std::process::{Child, Command};

const POOL: &str = "NACRE_TEST_POOL";
const NAME: &str = "NACRE_TEST_NAME";
const COUNT: &str = "NACRE_TEST_COUNT";
const ROUNDS: usize = 6;
const SURVIVOR_FILES: usize = 1500;

fn attach(path: &Path) -> Fs {
    Fs::new(pool::attach(path, Access::ReadWrite).expect("attach"))
}

/// This program once more, running one of its bodies.
fn again(body: &str, pool: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("own program"));
    command
        .args(["--exact", body, "--nocapture"])
        .env(POOL, pool);
    command.stdout(std::process::Stdio::null());
    command
}

fn start(pool: &Path, name: &str, count: usize) -> Child {
    let mut command = again("processes::worker", pool);
    command.env(NAME, name).env(COUNT, count.to_string());
    command.spawn().expect("start")
}

/// Not a test by itself: the body of the started programs.
#[test]
fn worker() {
    let (Some(pool), Ok(name)) = (std::env::var_os(POOL), std::env::var(NAME)) else {
        return;
    };
    let count = std::env::var(COUNT)
        .expect("count")
        .parse()
        .expect("number");
    let fs = attach(Path::new(&pool));
    let dir = fs
        .lookup(&root(), fs.root(), b"shared")
        .expect("directory")
        .node;
    let held = hold_open(&fs, dir, &name);
    for i in 0..count {
        work(&fs, dir, &name, i);
    }
    let node = unlink_held(&fs, dir, &name);
    fs.let_go(held, fs.slot()).expect("release");
    assert_eq!(fs.getattr(node), Err(FsError::Stale));
    fs.into_store().detach().expect("detach");
}

/// Opens a file for as long as the program lives.
fn hold_open(fs: &Fs, dir: InodeRef, name: &str) -> OfdId {
    let name = format!("{name}-held");
    let node = fs
        .create(&root(), dir, name.as_bytes(), 0o600)
        .expect("create");
    fs.write(&root(), node, WriteAt::Append, name.as_bytes().into())
        .expect("write");
    let init = OfdInit {
        ino: node.ino,
        ino_generation: node.generation,
        flags: 0,
        mode: 0o600,
        parent: dir.ino,
        name: name.as_bytes(),
    };
    fs.store()
        .session()
        .ofd_alloc(fs.store().slot(), &init)
        .expect("description")
}

/// Makes a file with its own name as contents; some are replaced, some are removed while open.
fn work(fs: &Fs, dir: InodeRef, name: &str, i: usize) {
    let cred = root();
    let wanted = format!("{name}-{i}");
    let temporary = format!("{name}-temporary");
    let node = fs
        .create(&cred, dir, temporary.as_bytes(), 0o644)
        .expect("create");
    fs.write(&cred, node, WriteAt::Append, wanted.as_bytes().into())
        .expect("write");
    let flags = RenameFlags::empty();
    fs.rename(
        &cred,
        dir,
        temporary.as_bytes(),
        dir,
        wanted.as_bytes(),
        flags,
    )
    .expect("rename");
    fs.unpin(node.ino).expect("unpin");
    if i.is_multiple_of(3) {
        let open = fs
            .create(&cred, dir, temporary.as_bytes(), 0o644)
            .expect("create");
        fs.unlink(&cred, dir, temporary.as_bytes()).expect("unlink");
        fs.write(&cred, open, WriteAt::Append, b"nameless"[..].into())
            .expect("write");
        fs.unpin(open.ino).expect("unpin");
    }
}

fn made_by(fs: &Fs, dir: InodeRef, name: &str) -> Vec<String> {
    let prefix = format!("{name}-");
    let all = names(fs, dir).into_iter();
    all.filter(|n| n.starts_with(&prefix) && !n.ends_with("temporary") && !n.ends_with("held"))
        .collect()
}

fn assert_contents(fs: &Fs, dir: InodeRef, name: &str) {
    let node = fs
        .lookup(&root(), dir, name.as_bytes())
        .expect("lookup")
        .node;
    let contents = crate::pools::read(fs, node, 0, 100);
    assert_eq!(contents, name.as_bytes(), "{name}");
}

/// Takes the name from the file that a worker holds open; the inode stays.
fn unlink_held(fs: &Fs, dir: InodeRef, name: &str) -> InodeRef {
    let held = format!("{name}-held");
    let node = fs
        .lookup(&root(), dir, held.as_bytes())
        .expect("lookup")
        .node;
    fs.unlink(&root(), dir, held.as_bytes()).expect("unlink");
    assert_eq!(fs.getattr(node).expect("getattr").nlink, 0);
    node
}

#[test]
fn the_others_go_on_when_one_is_killed() {
    let files = PoolFiles::new(256 << 20);
    let (folder, pool) = (files.folder(), files.path());
    let mut director = again("processes::director", &pool);
    director.env("NACRE_SESSION_DIR", folder);
    assert!(director.status().expect("start").success());
    let left = std::fs::read_dir(folder).expect("folder").count();
    assert_eq!(left, 1, "the last to detach removes the session");
}

/// Not a test by itself: starts workers and kills them.
#[test]
fn director() {
    let (Some(pool), Err(_)) = (std::env::var_os(POOL), std::env::var(NAME)) else {
        return;
    };
    let pool = Path::new(&pool);
    let fs = attach(pool);
    let dir = fs
        .mkdir(&root(), fs.root(), b"shared", 0o777)
        .expect("mkdir");
    let mut survivor = start(pool, "survivor", SURVIVOR_FILES);
    for round in 0..ROUNDS {
        let name = format!("victim{round}");
        let mut victim = start(pool, &name, usize::MAX);
        while made_by(&fs, dir, &name).len() < 20 + 10 * round {
            assert!(
                victim.try_wait().expect("wait").is_none(),
                "the victim ended by itself"
            );
        }
        let held = unlink_held(&fs, dir, &name);
        victim.kill().expect("kill");
        victim.wait().expect("wait");
        // What the victim had committed but not applied appears now at the latest.
        assert!(fs.reap_dead().expect("reap") <= 1);
        assert_eq!(fs.getattr(held), Err(FsError::Stale));
        let temporary = format!("{name}-temporary");
        match fs.unlink(&root(), dir, temporary.as_bytes()) {
            Ok(()) | Err(FsError::NotFound) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert!(survivor.wait().expect("wait").success());
    assert_eq!(made_by(&fs, dir, "survivor").len(), SURVIVOR_FILES);
    names(&fs, dir)
        .iter()
        .for_each(|name| assert_contents(&fs, dir, name));
    assert_sound(&fs);
    fs.into_store().detach().expect("detach");
    let fs = attach(pool);
    assert_eq!(made_by(&fs, dir, "survivor").len(), SURVIVOR_FILES);
    assert_sound(&fs);
    fs.into_store().detach().expect("detach");
}

#[test]
fn who_attaches_recovers_the_dead_when_they_have_all_slots() {
    let files = PoolFiles::new(256 << 20);
    let path = files.path();
    let first = attach(&path);
    let mut process = Command::new("true").spawn().expect("start");
    let dead = process.id();
    process.wait().expect("end");
    while let Ok(slot) = first.reserve_child_slot() {
        first.child_forked(slot, dead);
    }
    let second = attach(&path);
    second.take_over().expect("the dead are recovered");
    assert_eq!(first.store().dead_slots().count(), 0);
    assert!(first.reserve_child_slot().is_ok());
    second.into_store().detach().expect("detach");
    assert_sound(&first);
}
