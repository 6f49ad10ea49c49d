//! Clones of folders and snapshots.

use crate::pools::{assert_sound, dir, file, file_by, fs, names, read, root, user, write};
use nacre_fs::{
    Access, Caps, Cred, FileType, Found, Fs, FsError, Holes, InodeRef, MapAccess, RenameFlags,
    SetTime, WriteAt, XattrFlags,
};
use nacre_types::{FileOffset, Timestamp};

const UNIT: u64 = 4096;

fn folder(node: InodeRef) -> Found {
    Found {
        node,
        file_type: FileType::Directory,
    }
}

fn find(fs: &Fs, path: &str) -> InodeRef {
    let names = path.split('/').filter(|name| !name.is_empty());
    names.fold(fs.root(), |dir, name| {
        let found = fs.lookup(&root(), dir, name.as_bytes());
        found.unwrap_or_else(|e| panic!("{name}: {e}")).node
    })
}

fn free(fs: &Fs) -> u64 {
    fs.statfs().expect("statfs").free_units
}

fn clone(fs: &Fs, cred: &Cred, from: &str, to: &str) -> Result<nacre_fs::Planted, FsError> {
    let from = folder(find(fs, from));
    fs.clone_tree(cred, from, fs.root(), to.as_bytes())
}

/// A folder `/golden` with something of each kind.
fn golden(fs: &Fs) -> InodeRef {
    let top = dir(fs, fs.root(), "golden");
    let inner = dir(fs, top, "inner");
    let data = file(fs, top, "data");
    write(fs, data, 0, &[7; 3 * UNIT as usize + 100]);
    write(fs, data, 3 << 20, b"far away");
    write(fs, file(fs, inner, "short"), 0, b"short");
    file(fs, inner, "empty");
    fs.link(&root(), data, inner, b"hard").expect("link");
    fs.symlink(&root(), top, b"soft", b"inner/short")
        .expect("symlink");
    fs.symlink(&root(), top, b"long", &[b'x'; 500])
        .expect("symlink");
    fs.mknod(&root(), inner, b"pipe", 0o010_600, 0)
        .expect("fifo");
    fs.set_xattr(&root(), data, b"user.a", b"one", XattrFlags::empty())
        .expect("xattr");
    fs.set_xattr(&root(), inner, b"user.b", &[9; 9000], XattrFlags::empty())
        .expect("xattr");
    let time = SetTime::At(Timestamp(1_000_000_007));
    fs.utimens(&root(), inner, time, time).expect("utimens");
    top
}

#[test]
fn a_clone_of_a_folder_is_like_it_and_takes_no_room_for_its_bytes() {
    let fs = fs();
    golden(&fs);
    let before = free(&fs);
    let planted = clone(&fs, &root(), "golden", "test").expect("clone");
    assert_eq!((planted.folders, planted.files), (2, 6));
    // Nodes of two maps, of two trees of names and one of attributes, a long value.
    assert!(before - free(&fs) <= 10, "{}", before - free(&fs));
    assert_eq!(
        names(&fs, find(&fs, "test")),
        names(&fs, find(&fs, "golden"))
    );
    assert_eq!(
        names(&fs, find(&fs, "test/inner")),
        ["empty", "hard", "pipe", "short"]
    );
    for path in ["data", "inner/short", "inner/empty", "inner/hard"] {
        let (old, new) = (format!("golden/{path}"), format!("test/{path}"));
        let (old, new) = (find(&fs, &old), find(&fs, &new));
        assert_ne!(old.ino, new.ino);
        assert_eq!(read(&fs, new, 0, 4 << 20), read(&fs, old, 0, 4 << 20));
        let (old, new) = (
            fs.getattr(old).expect("stat"),
            fs.getattr(new).expect("stat"),
        );
        assert_eq!(
            (new.mode, new.nlink, new.size, new.blocks, new.mtime),
            (old.mode, old.nlink, old.size, old.blocks, old.mtime)
        );
    }
    let data = find(&fs, "test/data");
    assert_eq!(data, find(&fs, "test/inner/hard"));
    assert_eq!(fs.getattr(data).expect("stat").nlink, 2);
    let inner = fs.getattr(find(&fs, "test/inner")).expect("stat");
    assert_eq!(inner.mtime, Timestamp(1_000_000_007));
    for (path, name, len) in [("data", &b"user.a"[..], 3), ("inner", b"user.b", 9000)] {
        let mut value = vec![0; 10_000];
        let node = find(&fs, &format!("test/{path}"));
        assert_eq!(fs.get_xattr(&root(), node, name, &mut value), Ok(len));
    }
    let mut target = [0; 600];
    assert_eq!(fs.readlink(find(&fs, "test/soft"), &mut target), Ok(11));
    assert_eq!(&target[..11], b"inner/short");
    assert_eq!(fs.readlink(find(&fs, "test/long"), &mut target), Ok(500));
    assert_sound(&fs);
}

#[test]
fn a_clone_and_its_source_go_their_own_ways() {
    let fs = fs();
    let top = golden(&fs);
    clone(&fs, &root(), "golden", "test").expect("clone");
    let (old, new) = (find(&fs, "golden/data"), find(&fs, "test/data"));
    write(&fs, new, 10, b"new");
    write(&fs, old, UNIT, b"old");
    assert_eq!(read(&fs, old, 8, 6), [7; 6]);
    assert_eq!(read(&fs, new, 8, 6), b"\x07\x07new\x07");
    assert_eq!(read(&fs, new, UNIT, 3), [7; 3]);
    assert_eq!(read(&fs, old, UNIT, 3), b"old");
    fs.unlink(&root(), top, b"data").expect("unlink");
    assert_eq!(read(&fs, new, 3 << 20, 8), b"far away");
    file(&fs, find(&fs, "test/inner"), "more");
    assert_eq!(names(&fs, find(&fs, "golden/inner")).len(), 4);
    assert_sound(&fs);
}

#[test]
fn everything_comes_back_when_a_clone_is_removed() {
    let fs = fs();
    golden(&fs);
    let before = free(&fs);
    clone(&fs, &root(), "golden", "test").expect("clone");
    for path in ["inner/short", "inner/empty", "inner/hard", "inner/pipe"] {
        let dir = find(&fs, "test/inner");
        let name = path.rsplit('/').next().unwrap_or_default();
        fs.unlink(&root(), dir, name.as_bytes()).expect("unlink");
    }
    for name in ["data", "soft", "long"] {
        let dir = find(&fs, "test");
        fs.unlink(&root(), dir, name.as_bytes()).expect("unlink");
    }
    fs.rmdir(&root(), find(&fs, "test"), b"inner")
        .expect("rmdir");
    fs.rmdir(&root(), fs.root(), b"test").expect("rmdir");
    assert_eq!(free(&fs), before);
    assert_sound(&fs);
}

#[test]
fn a_clone_into_the_folder_itself_does_not_hold_itself() {
    let fs = fs();
    let top = golden(&fs);
    fs.clone_tree(&root(), folder(top), top, b"self")
        .expect("clone");
    assert_eq!(
        names(&fs, find(&fs, "golden/self")),
        ["data", "inner", "long", "soft"]
    );
    assert_eq!(fs.getattr(top).expect("stat").nlink, 4);
    assert_sound(&fs);
}

#[test]
fn a_name_that_is_taken_and_a_folder_that_may_not_be_written_are_refused() {
    let fs = fs();
    golden(&fs);
    let before = free(&fs);
    assert_eq!(
        clone(&fs, &root(), "golden", "golden"),
        Err(FsError::Exists)
    );
    assert_eq!(
        clone(&fs, &user(7), "golden", "x"),
        Err(FsError::PermissionDenied)
    );
    assert_eq!(free(&fs), before);
    assert_eq!(names(&fs, fs.root()), ["golden"]);
    assert_sound(&fs);
}

#[test]
fn who_may_not_give_files_away_owns_what_they_clone_and_reads_all_of_it() {
    let fs = fs();
    let top = golden(&fs);
    fs.chmod(&root(), find(&fs, "golden/data"), 0o4755)
        .expect("chmod");
    let home = dir(&fs, fs.root(), "home");
    fs.chown(&root(), home, Some(7), Some(7)).expect("chown");
    fs.clone_tree(&user(7), folder(top), home, b"mine")
        .expect("clone");
    let stat = fs.getattr(find(&fs, "home/mine/data")).expect("stat");
    assert_eq!((stat.uid, stat.gid, stat.mode & 0o7777), (7, 7, 0o755));
    fs.mknod(&root(), top, b"whiteout", 0o020_000, 0)
        .expect("mknod");
    fs.clone_tree(&user(7), folder(top), home, b"with a whiteout")
        .expect("clone");
    file_by(&fs, &root(), top, "secret", 0o600).expect("create");
    let refused = fs.clone_tree(&user(7), folder(top), home, b"again");
    assert_eq!(refused, Err(FsError::PermissionDenied));
    let reader = Cred {
        caps: Caps::DAC_READ_SEARCH,
        ..user(7)
    };
    fs.clone_tree(&reader, folder(top), home, b"again")
        .expect("clone");
    assert_sound(&fs);
}

#[test]
fn mapped_and_open_files_are_cloned() {
    let fs = fs();
    golden(&fs);
    let old = find(&fs, "golden/data");
    fs.pin(old).expect("pin");
    fs.map_begin(old, MapAccess::Store).expect("map");
    let runs = fs.map_pages(old, 0, 4, Holes::Fill).expect("map");
    clone(&fs, &root(), "golden", "test").expect("clone");
    let new = find(&fs, "test/data");
    let volume = fs.store().volume();
    let word = u64::from_le_bytes(*b"mapping!");
    volume.store_u64_lazy(
        runs.runs[0].unit.offset(),
        word,
        nacre_types::StoreKind::Data,
    );
    assert_eq!(read(&fs, old, 0, 8), b"mapping!");
    assert_eq!(read(&fs, new, 0, 8), [7; 8]);
    assert_eq!(read(&fs, new, 3 << 20, 100), b"far away");
    let (old_stat, new_stat) = (fs.getattr(old).expect("stat"), fs.getattr(new));
    let new_stat = new_stat.expect("stat");
    assert_eq!(new_stat.size, old_stat.size);
    assert!(new_stat.blocks <= old_stat.blocks);
    fs.map_end(old.ino, MapAccess::Store).expect("unmap");
    fs.unpin(old.ino).expect("unpin");
    assert_sound(&fs);
}

#[test]
fn a_mapped_file_is_cloned_by_copying_its_bytes() {
    let fs = fs();
    let (from, to) = (file(&fs, fs.root(), "from"), file(&fs, fs.root(), "to"));
    write(&fs, from, 0, &[5; 10_000]);
    write(&fs, to, 0, &[6; 3 * UNIT as usize]);
    for mapped in [from, to] {
        fs.map_begin(mapped, MapAccess::Store).expect("map");
        let units = fs.map_pages(mapped, 0, 3, Holes::Fill).expect("map");
        write(&fs, from, 0, b"fresh");
        fs.clone_range(&root(), (from, 0), (to, 0), UNIT)
            .expect("clone");
        assert_eq!(read(&fs, to, 0, 7), b"fresh\x05\x05");
        assert_eq!(fs.map_pages(mapped, 0, 3, Holes::Fill), Ok(units));
        fs.map_end(mapped.ino, MapAccess::Store).expect("unmap");
        write(&fs, from, 0, &[5; 5]);
        write(&fs, to, 0, &[6; UNIT as usize]);
    }
    assert_sound(&fs);
}

#[test]
fn a_unit_that_has_all_the_owners_it_can_is_copied() {
    let fs = fs();
    golden(&fs);
    let counts = fs.store().session().share_counts();
    // As if every unit had them.
    let before: Vec<u64> = counts
        .iter()
        .map(|count| count.swap(u64::MAX, std::sync::atomic::Ordering::Relaxed))
        .collect();
    clone(&fs, &root(), "golden", "test").expect("clone");
    for (count, before) in counts.iter().zip(before) {
        count.store(before, std::sync::atomic::Ordering::Relaxed);
    }
    assert_eq!(read(&fs, find(&fs, "test/data"), 0, 2), [7, 7]);
    assert_sound(&fs);
}

#[test]
fn a_pool_without_room_refuses_a_clone_and_nothing_changes() {
    let fs = fs();
    golden(&fs);
    let hog = file(&fs, fs.root(), "hog");
    let mut at = 0;
    while fs
        .write(
            &root(),
            hog,
            WriteAt::Offset(FileOffset(at)),
            (&[1; UNIT as usize][..]).into(),
        )
        .is_ok()
    {
        at += UNIT;
    }
    for room in 0..20 {
        let before = free(&fs);
        match clone(&fs, &root(), "golden", "test") {
            Err(error) => {
                assert_eq!(error, FsError::NoSpace, "with {room} units");
                assert_eq!(free(&fs), before);
                assert_eq!(names(&fs, fs.root()), ["golden", "hog"]);
            }
            Ok(_) => {
                assert!(room > 0);
                assert_sound(&fs);
                return;
            }
        }
        at -= UNIT;
        fs.truncate(&root(), hog, at).expect("truncate");
    }
    panic!("there was room for all of it");
}

#[test]
fn nothing_in_a_snapshot_changes() {
    let fs = fs();
    let top = golden(&fs);
    fs.snapshot(&root(), top, b"monday").expect("snapshot");
    let monday = find(&fs, "golden/.snapshots/monday");
    let (data, inner) = (
        find(&fs, "golden/.snapshots/monday/data"),
        find(&fs, "golden/.snapshots/monday/inner"),
    );
    let (cred, frozen) = (&root(), Err(FsError::ReadOnly));
    assert_eq!(fs.access(cred, data, Access::WRITE), frozen);
    assert_eq!(fs.access(cred, data, Access::READ), Ok(()));
    assert_eq!(fs.create(cred, inner, b"n", 0o600).map(drop), frozen);
    assert_eq!(fs.mkdir(cred, inner, b"n", 0o700).map(drop), frozen);
    assert_eq!(fs.unlink(cred, inner, b"short"), frozen);
    assert_eq!(fs.truncate(cred, data, 0), frozen);
    assert_eq!(fs.chmod(cred, data, 0o777), frozen);
    assert_eq!(fs.chown(cred, data, Some(1), None), frozen);
    assert_eq!(fs.utimens(cred, data, SetTime::Now, SetTime::Now), frozen);
    assert_eq!(
        fs.set_xattr(cred, data, b"trusted.a", b"b", XattrFlags::empty()),
        frozen
    );
    assert_eq!(fs.remove_xattr(cred, data, b"user.a"), frozen);
    assert_eq!(fs.link(cred, data, fs.root(), b"n"), frozen);
    let flags = RenameFlags::empty();
    assert_eq!(
        fs.rename(cred, monday, b"data", fs.root(), b"n", flags),
        frozen
    );
    let shelf = find(&fs, "golden/.snapshots");
    assert_eq!(
        fs.rename(cred, shelf, b"monday", shelf, b"n", flags),
        frozen
    );
    assert_eq!(fs.rmdir(cred, shelf, b"monday"), frozen);
    write(&fs, find(&fs, "golden/data"), 0, b"changed");
    assert_eq!(read(&fs, data, 0, 3), [7; 3]);
    // A clone of a snapshot is as any other folder.
    clone(&fs, cred, "golden/.snapshots/monday", "test").expect("clone");
    write(&fs, find(&fs, "test/data"), 0, b"changed");
    assert_sound(&fs);
}

#[test]
fn the_folder_of_snapshots_stays_where_they_are_looked_for() {
    let fs = fs();
    let (cred, top) = (&root(), golden(&fs));
    fs.snapshot(cred, top, b"monday").expect("snapshot");
    for (to, flags) in [
        ((top, "x"), RenameFlags::empty()),
        ((fs.root(), ".snapshots"), RenameFlags::empty()),
        ((top, "inner"), RenameFlags::EXCHANGE),
    ] {
        let moved = fs.rename(cred, top, b".snapshots", to.0, to.1.as_bytes(), flags);
        assert_eq!(moved, Err(FsError::Busy), "to {}", to.1);
    }
    let exchange = RenameFlags::EXCHANGE;
    let swapped = fs.rename(cred, top, b"inner", top, b".snapshots", exchange);
    assert_eq!(swapped, Err(FsError::Busy));
    // Together with their folder they may go anywhere.
    let flags = RenameFlags::empty();
    fs.rename(cred, fs.root(), b"golden", fs.root(), b"moved", flags)
        .expect("rename");
    let moved = find(&fs, "moved");
    assert_eq!(fs.snapshots(cred, moved).expect("list").len(), 1);
    fs.delete_snapshot(cred, moved, b"monday").expect("delete");
    fs.rmdir(cred, moved, b".snapshots").expect("rmdir");
    assert_sound(&fs);
}

#[test]
fn snapshots_are_listed_with_what_only_they_hold() {
    let fs = fs();
    let top = golden(&fs);
    assert_eq!(fs.snapshots(&root(), top), Ok(Vec::new()));
    for name in ["tuesday", "monday"] {
        fs.snapshot(&root(), top, name.as_bytes())
            .expect("snapshot");
    }
    let refused = fs.snapshot(&root(), top, b"monday");
    assert_eq!(refused, Err(FsError::Exists));
    let list = fs.snapshots(&root(), top).expect("list");
    let names: Vec<&[u8]> = list.iter().map(|one| &one.name[..]).collect();
    assert_eq!(names, [b"monday", &b"tuesday"[..]]);
    let nodes = list[0].space.exclusive;
    assert!(nodes <= 3 * UNIT && list[0].space.used >= nodes + 5 * UNIT);
    write(&fs, find(&fs, "golden/data"), 0, &[8; UNIT as usize]);
    fs.delete_snapshot(&root(), top, b"tuesday")
        .expect("delete");
    let list = fs.snapshots(&root(), top).expect("list");
    assert_eq!(list.len(), 1);
    assert_eq!(list[0].space.exclusive, nodes + UNIT);
    assert_sound(&fs);
}

#[test]
fn a_deleted_snapshot_gives_its_room_back_but_for_what_is_open() {
    let fs = fs();
    let top = golden(&fs);
    fs.snapshot(&root(), top, b"first").expect("snapshot");
    let before = free(&fs);
    fs.snapshot(&root(), top, b"monday").expect("snapshot");
    let data = find(&fs, "golden/.snapshots/monday/data");
    let inner = find(&fs, "golden/.snapshots/monday/inner");
    fs.pin(data).expect("pin");
    fs.pin(inner).expect("pin");
    fs.delete_snapshot(&root(), top, b"monday").expect("delete");
    assert_eq!(read(&fs, data, 0, 2), [7, 7]);
    assert_eq!(fs.getattr(inner).expect("stat").nlink, 0);
    let gone = fs.lookup(&root(), inner, b"short");
    assert_eq!(gone.map(drop), Err(FsError::NotFound));
    fs.unpin(data.ino).expect("unpin");
    fs.unpin(inner.ino).expect("unpin");
    assert_eq!(free(&fs), before);
    let gone = fs.delete_snapshot(&root(), top, b"monday");
    assert_eq!(gone, Err(FsError::NotFound));
    assert_sound(&fs);
}

#[test]
fn a_restored_folder_is_as_it_was_and_keeps_its_snapshots() {
    let fs = fs();
    let top = golden(&fs);
    let links = fs.getattr(top).expect("stat").nlink;
    fs.set_xattr(&root(), top, b"user.then", b"yes", XattrFlags::empty())
        .expect("xattr");
    fs.snapshot(&root(), top, b"monday").expect("snapshot");
    let outside = file(&fs, fs.root(), "outside");
    fs.link(&root(), outside, top, b"linked").expect("link");
    let data = find(&fs, "golden/data");
    fs.pin(data).expect("pin");
    write(&fs, data, 0, b"spoilt");
    fs.unlink(&root(), find(&fs, "golden/inner"), b"short")
        .expect("unlink");
    dir(&fs, top, "new");
    fs.set_xattr(&root(), top, b"user.now", b"no", XattrFlags::empty())
        .expect("xattr");
    fs.chmod(&root(), top, 0o700).expect("chmod");
    fs.restore_snapshot(&root(), top, b"monday")
        .expect("restore");
    assert_eq!(
        names(&fs, top),
        [".snapshots", "data", "inner", "long", "soft"]
    );
    let stat = fs.getattr(top).expect("stat");
    assert_eq!((stat.nlink, stat.mode & 0o7777), (links + 1, 0o755));
    assert_eq!(read(&fs, find(&fs, "golden/data"), 0, 2), [7, 7]);
    assert_eq!(read(&fs, find(&fs, "golden/inner/short"), 0, 9), b"short");
    write(&fs, find(&fs, "golden/data"), 0, b"writable");
    let mut list = [0; 100];
    assert_eq!(fs.list_xattr(&root(), top, &mut list), Ok(10));
    assert_eq!(&list[..10], b"user.then\0");
    assert_eq!(fs.getattr(outside).expect("stat").nlink, 1);
    // What was open still is.
    assert_eq!(read(&fs, data, 0, 6), b"spoilt");
    assert_eq!(fs.getattr(data).expect("stat").nlink, 0);
    fs.unpin(data.ino).expect("unpin");
    assert_sound(&fs);
}

#[test]
fn a_folder_of_somebody_else_with_the_name_of_snapshots_is_no_place_for_them() {
    let fs = fs();
    let top = golden(&fs);
    dir(&fs, top, ".snapshots");
    let refused = fs.snapshot(&root(), top, b"monday");
    assert_eq!(refused, Err(FsError::Exists));
    clone(&fs, &root(), "golden", "test").expect("clone");
    find(&fs, "test/.snapshots");
    fs.rmdir(&root(), top, b".snapshots").expect("rmdir");
    fs.snapshot(&root(), top, b"monday").expect("snapshot");
    clone(&fs, &root(), "golden", "second").expect("clone");
    assert_eq!(names(&fs, find(&fs, "second")).len(), 4);
    assert_sound(&fs);
}

#[test]
fn a_clone_is_of_one_moment_while_others_write_and_rename() {
    let fs = fs();
    let top = dir(&fs, fs.root(), "golden");
    let (a, b) = (file(&fs, top, "a"), file(&fs, top, "b"));
    for node in [a, b] {
        write(&fs, node, 0, &0u64.to_le_bytes());
    }
    let stop = std::sync::atomic::AtomicBool::new(false);
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut count = 0u64;
            while !stop.load(relaxed) {
                count += 1;
                // The second file is never ahead of the first, and one behind at most.
                write(&fs, a, 0, &count.to_le_bytes());
                write(&fs, b, 0, &count.to_le_bytes());
            }
        });
        scope.spawn(|| {
            let mut here = 0u32;
            file(&fs, top, "moves-0");
            while !stop.load(relaxed) {
                let (from, to) = (format!("moves-{here}"), format!("moves-{}", 1 - here));
                let flags = RenameFlags::empty();
                fs.rename(&root(), top, from.as_bytes(), top, to.as_bytes(), flags)
                    .expect("rename");
                file(&fs, top, "comes");
                fs.unlink(&root(), top, b"comes").expect("unlink");
                here = 1 - here;
            }
        });
        for round in 0..40 {
            let name = format!("test-{round}");
            clone(&fs, &root(), "golden", &name).expect("clone");
            let number = |name: &str| {
                let bytes = read(&fs, find(&fs, name), 0, 8);
                u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
            };
            let (a, b) = (number(&format!("{name}/a")), number(&format!("{name}/b")));
            assert!(a == b || a == b + 1, "{a} and {b}");
            let moved = names(&fs, find(&fs, &name));
            let moved = moved.iter().filter(|name| name.starts_with("moves-"));
            assert!(moved.count() <= 1);
        }
        stop.store(true, relaxed);
    });
    assert_sound(&fs);
}
