//! Disks that hold a part together come, go and are replaced (D95).

use std::collections::HashMap;
use std::fs;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::FileExt;
use std::path::Path;

use nacre_fs::{Fs, FsError, InodeRef};
use nacre_testkit::pool::{assert_sound, assert_sound_without_leaks};
use nacre_types::{ObjectId, Uuid};
use nacre_volume::{LegState, Volume, VolumeError};

use crate::kept::{
    Pool, close, fill, filled, find, get, go_on, len_of, pattern, set, told, unreadable,
};
use crate::pools::{file, read, root, write};

const MIB: u64 = 1 << 20;

type Lost = HashMap<ObjectId, Vec<Range<u64>>>;

fn uuid_of(pool: &Pool, by: &str, name: &str) -> Uuid {
    let label = Volume::inspect(&pool.0.file(by)).unwrap();
    let path = pool.0.file(name);
    let entry = label.devices.iter().find(|entry| entry.path == path);
    entry.unwrap().uuid
}

/// Named by another one.
fn join(pool: &Pool, by: &str, new: &str, instead: Option<&str>) -> Result<Uuid, VolumeError> {
    let instead = instead.map(|old| uuid_of(pool, by, old));
    Volume::join_disk(&pool.0.file(by), (&pool.0.file(new), None, false), instead)
}

/// What all hold is on all of them.
fn rebuild(fs: &Fs) {
    let volume = fs.store().volume();
    let rebuilt = fs.store().rebuild_copies(1, |_| ControlFlow::Continue(()));
    assert_eq!(rebuilt.unwrap().0, 1);
    let copies = volume.copies().unwrap();
    assert!(copies.iter().all(|it| it.state == LegState::Current));
}

/// A disk leaves, whose contents have moved as far as they can; answers what is lost.
fn leave(pool: &Pool, by: &str, name: &str) -> u64 {
    let disk = uuid_of(pool, by, name);
    let fs = pool.open(by);
    let units = fs.store().volume().own_units(disk);
    let store = fs.into_store();
    let (_, left) = store.remove_own(&pool.0.file(by), (disk, &units)).unwrap();
    assert_eq!(left.metadata, 0);
    left.contents
}

/// All that was filled is there but what is said to be lost, and that alone is told.
fn is_there_but(fs: &Fs, lost: &Lost) {
    assert_eq!(told(fs), *lost);
    let [plain, precious] = ["plain", "precious"].map(|name| find(fs, fs.root(), name));
    for (dir, numbers) in [(plain, 0..20), (precious, 20..28)] {
        for number in numbers {
            let node = find(fs, dir, &format!("f{number}"));
            let known = lost.get(&ObjectId(node.ino.0)).cloned();
            let found = unreadable(fs, node, &pattern(number, len_of(number)));
            assert_eq!(found, known.unwrap_or_default(), "{number}");
        }
    }
}

/// New contents come and go, and are there by any of the disks.
fn go_on_by(pool: &Pool, names: &[&str], lost: &Lost) {
    for (round, name) in (0..).zip(names) {
        let fs = pool.open(name);
        // A pool with holes remembers what is free.
        assert!(round == 0 || !fs.store().report().rebuilt);
        is_there_but(&fs, lost);
        let node = file(&fs, fs.root(), &format!("new{round} {}", names.len()));
        let bytes = pattern(round + 70, 5 * MIB);
        write(&fs, node, 0, &bytes);
        fs.store().commit_now().unwrap();
        assert!(read(&fs, node, 0, bytes.len()) == bytes);
        assert_sound(fs.store());
        close(fs);
    }
}

#[test]
fn a_lost_disk_is_replaced_and_what_it_alone_had_goes_on_to_fail() {
    for (away, other) in [("a", "b"), ("b", "a")] {
        let pool = Pool::new();
        close(filled(&pool).0);
        pool.take_away(away);
        let fs = pool.open(other);
        let lost = told(&fs);
        assert!(!lost.is_empty());
        close(fs);
        join(&pool, other, "c", Some(away)).unwrap();
        let fs = pool.open(other);
        is_there_but(&fs, &lost);
        go_on(
            &fs,
            find(&fs, fs.root(), "plain"),
            find(&fs, fs.root(), "precious"),
        );
        rebuild(&fs);
        close(fs);
        go_on_by(&pool, &[other, "c"], &lost);
        // The one that was away is none of the pool's any more.
        pool.put_back(away);
        let refused = Volume::open(&pool.0.file(away), nacre_volume::Access::ReadWrite);
        assert!(matches!(refused, Err(VolumeError::NotAMember { .. })));
        fs::remove_file(pool.0.file(away)).unwrap();
        what_is_lost_can_be_written_again(&pool, "c", &lost);
        counts_its_disks(&pool);
        is_precious_by_the_new_one(&pool, other);
    }
}

/// Files that lost something are written again, or removed; then nothing is told.
fn what_is_lost_can_be_written_again(pool: &Pool, name: &str, lost: &Lost) {
    let fs = pool.open(name);
    let plain = find(&fs, fs.root(), "plain");
    let mut left = lost.len();
    for number in 0..20 {
        let name = format!("f{number}");
        let node = find(&fs, plain, &name);
        if !lost.contains_key(&ObjectId(node.ino.0)) {
            continue;
        }
        // Of a part of a unit the rest would be needed.
        refuses_a_byte(&fs, node, lost);
        fs.unlink(&root(), plain, name.as_bytes()).unwrap();
        write(
            &fs,
            file(&fs, plain, &name),
            0,
            &pattern(number, len_of(number)),
        );
        left -= 1;
        assert_eq!(told(&fs).len(), left);
    }
    assert_sound(fs.store());
    close(fs);
    let fs = pool.open(name);
    is_there_but(&fs, &Lost::new());
    assert_sound_without_leaks(fs.store());
    close(fs);
}

fn counts_its_disks(pool: &Pool) {
    let fs = pool.open("c");
    let precious = find(&fs, fs.root(), "precious");
    assert_eq!(get(&fs, precious).unwrap(), b"2");
    assert!(matches!(set(&fs, precious, b"3"), Err(FsError::Invalid)));
    close(fs);
}

fn refuses_a_byte(fs: &Fs, node: InodeRef, lost: &Lost) {
    let first = lost[&ObjectId(node.ino.0)][0].start;
    let at = nacre_fs::WriteAt::Offset(nacre_types::FileOffset(first + 7));
    let done = fs.write(&root(), node, at, [1; 10][..].into());
    assert!(matches!(done, Err(FsError::Io)));
}

fn is_precious_by_the_new_one(pool: &Pool, old: &str) {
    pool.take_away(old);
    let fs = pool.open("c");
    let precious = find(&fs, fs.root(), "precious");
    for number in 20..28 {
        let node = find(&fs, precious, &format!("f{number}"));
        assert!(unreadable(&fs, node, &pattern(number, len_of(number))).is_empty());
    }
    close(fs);
}

#[test]
fn a_healthy_disk_is_replaced_and_nothing_is_lost() {
    for (old, other) in [("a", "b"), ("b", "a")] {
        let pool = Pool::new();
        close(filled(&pool).0);
        join(&pool, other, "c", Some(old)).unwrap();
        let again = join(&pool, other, "d", Some(other));
        assert!(matches!(again, Err(VolumeError::Copies { .. })));
        let fs = pool.open(other);
        rebuild(&fs);
        let (_, units) = fs.store().volume().replaced().unwrap();
        let mapped = file(&fs, fs.root(), "new");
        write(&fs, mapped, 0, &pattern(60, MIB));
        let drained = fs
            .store()
            .drain_device(&units, &mut |_| ControlFlow::Continue(()));
        let drained = drained.unwrap();
        assert!(drained.moved > MIB && !drained.is_full && drained.in_use == 0);
        is_there_but(&fs, &Lost::new());
        close(fs);
        assert_eq!(leave(&pool, other, old), 0);
        assert!(Volume::inspect(&pool.0.file(old)).is_err());
        fs::remove_file(pool.0.file(old)).unwrap();
        go_on_by(&pool, &[other, "c"], &Lost::new());
        let fs = pool.open("c");
        assert_sound_without_leaks(fs.store());
        close(fs);
    }
}

#[test]
fn of_a_disk_that_fails_while_it_is_replaced_the_rest_is_lost() {
    let pool = Pool::new();
    close(filled(&pool).0);
    join(&pool, "b", "c", Some("a")).unwrap();
    let fs = pool.open("b");
    rebuild(&fs);
    close(fs);
    pool.take_away("a");
    let fs = pool.open("c");
    let lost = told(&fs);
    let (_, units) = fs.store().volume().replaced().unwrap();
    let drained = fs
        .store()
        .drain_device(&units, &mut |_| ControlFlow::Continue(()));
    assert_eq!(drained.unwrap().moved, 0);
    close(fs);
    let bytes = lost.values().flatten().map(|it| it.end - it.start);
    assert_eq!(leave(&pool, "b", "a"), bytes.sum::<u64>());
    go_on_by(&pool, &["b", "c"], &lost);
    what_is_lost_can_be_written_again(&pool, "b", &lost);
}

#[test]
fn disks_come_and_leave_and_snapshots_keep_what_they_have() {
    let pool = Pool::new();
    let (fs, plain, _) = filled(&pool);
    let from = fs.lookup(&root(), fs.root(), b"plain").unwrap();
    fs.clone_tree(&root(), from, fs.root(), b"copy").unwrap();
    let free = fs.store().statfs().free_alone;
    let _ = plain;
    close(fs);
    join(&pool, "a", "c", None).unwrap();
    let fs = pool.open("c");
    assert!(fs.store().statfs().free_alone > free);
    rebuild(&fs);
    let plain = find(&fs, fs.root(), "plain");
    fill(&fs, plain, 50..60);
    close(fs);
    for (name, by) in [("b", "c"), ("a", "c")] {
        assert_eq!(leave(&pool, by, name), 0);
        fs::remove_file(pool.0.file(name)).unwrap();
        let fs = pool.open(by);
        is_there_but(&fs, &Lost::new());
        let copy = find(&fs, fs.root(), "copy");
        for (dir, numbers) in [(copy, 0..20), (find(&fs, fs.root(), "plain"), 50..60)] {
            for number in numbers {
                let node = find(&fs, dir, &format!("f{number}"));
                assert!(unreadable(&fs, node, &pattern(number, len_of(number))).is_empty());
            }
        }
        assert_sound_without_leaks(fs.store());
        close(fs);
    }
    let last = Volume::let_disk_leave(&pool.0.file("c"), uuid_of(&pool, "c", "c"));
    assert!(matches!(last, Err(VolumeError::Copies { .. })));
}

#[test]
fn a_replacement_that_is_called_off_leaves_a_disk_more() {
    let pool = Pool::new();
    close(filled(&pool).0);
    let stays = |by| Volume::end_leaving(&pool.0.file(by)).unwrap();
    assert_eq!(stays("a"), None);
    join(&pool, "a", "c", Some("b")).unwrap();
    let fs = pool.open("a");
    rebuild(&fs);
    let (_, units) = fs.store().volume().replaced().unwrap();
    let drained = fs
        .store()
        .drain_device(&units, &mut |_| ControlFlow::Continue(()));
    assert!(drained.unwrap().moved > MIB);
    let closed = fs.store().statfs().free_alone;
    close(fs);
    assert_eq!(stays("c"), Some(pool.0.file("b")));
    let fs = pool.open("a");
    assert!(fs.store().volume().replaced().is_none());
    assert!(fs.store().statfs().free_alone > closed + 1000);
    close(fs);
    go_on_by(&pool, &["b", "c"], &Lost::new());
    assert_eq!(leave(&pool, "a", "c"), 0);
    go_on_by(&pool, &["a"], &Lost::new());
}

#[test]
fn what_is_free_on_a_third_disk_is_no_wrong_header() {
    let pool = Pool::new();
    close(filled(&pool).0);
    fs::write(pool.0.file("c"), vec![0x5a; 64 << 20]).unwrap();
    let new = (&*pool.0.file("c"), None, true);
    Volume::join_disk(&pool.0.file("a"), new, None).unwrap();
    let fs = pool.open("a");
    rebuild(&fs);
    close(fs);
    for name in ["b", "c"] {
        let fs = pool.open(name);
        let wrong = fs.store().volume().repaired_first();
        assert!(wrong.is_empty(), "{wrong:?}");
        is_there_but(&fs, &Lost::new());
        close(fs);
    }
}

/// The bytes of both copies of a label.
fn labels(path: &Path) -> [(u64, Vec<u8>); 2] {
    let bytes = fs::read(path).unwrap();
    let end = bytes.len() - 4096;
    [
        (0, bytes[..4096].to_vec()),
        (end as u64, bytes[end..].to_vec()),
    ]
}

fn put_labels(path: &Path, labels: &[(u64, Vec<u8>)]) {
    let file = fs::File::options().write(true).open(path).unwrap();
    for (at, bytes) in labels {
        file.write_all_at(bytes, *at).unwrap();
    }
}

#[test]
fn who_dies_while_a_disk_comes_leaves_the_pool_as_it_was_or_with_it() {
    for written in 0..3 {
        let pool = Pool::new();
        close(filled(&pool).0);
        let before = ["a", "b"].map(|name| labels(&pool.0.file(name)));
        join(&pool, "a", "c", Some("b")).unwrap();
        // The labels of the first ones were written.
        for (name, labels) in ["a", "b"].iter().zip(&before).skip(written) {
            put_labels(&pool.0.file(name), labels);
        }
        if written == 0 {
            is_there_but(&pool.open("b"), &Lost::new());
            join(&pool, "a", "c", Some("b")).unwrap();
        }
        let fs = pool.open("a");
        assert!(fs.store().volume().replaced().is_some());
        rebuild(&fs);
        close(fs);
        assert_eq!(leave(&pool, "a", "b"), 0);
        go_on_by(&pool, &["a", "c"], &Lost::new());
    }
}

#[test]
fn who_dies_while_a_disk_leaves_leaves_it_or_a_pool_without_it() {
    for written in 0..2 {
        let pool = Pool::new();
        close(filled(&pool).0);
        join(&pool, "a", "c", None).unwrap();
        let fs = pool.open("a");
        rebuild(&fs);
        close(fs);
        let before = ["a", "c", "b"].map(|name| labels(&pool.0.file(name)));
        assert_eq!(leave(&pool, "a", "b"), 0);
        for (name, labels) in ["a", "c", "b"].iter().zip(&before).skip(written) {
            put_labels(&pool.0.file(name), labels);
        }
        if written == 0 {
            assert_eq!(leave(&pool, "a", "b"), 0);
        } else {
            let forgotten = Volume::forget_removed(&pool.0.file("a"), &pool.0.file("b"));
            assert_eq!(forgotten.unwrap(), Some(pool.0.file("b")));
        }
        assert!(Volume::inspect(&pool.0.file("b")).is_err());
        go_on_by(&pool, &["a", "c"], &Lost::new());
    }
}

#[test]
fn what_is_lost_does_not_move_and_nobody_waits_for_it() {
    let pool = Pool::new();
    close(filled(&pool).0);
    pool.take_away("b");
    let fs = pool.open("a");
    let lost = told(&fs);
    let plain = find(&fs, fs.root(), "plain");
    for number in 1..20 {
        let node = find(&fs, plain, &format!("f{number}"));
        let is_whole = !lost.contains_key(&ObjectId(node.ino.0));
        assert_eq!(set(&fs, node, b"2").is_ok(), is_whole, "{number}");
    }
    is_there_but(&fs, &lost);
    close(fs);
}
