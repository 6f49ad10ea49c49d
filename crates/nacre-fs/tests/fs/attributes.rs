use crate::pools::{dir, file, file_by, fs, read, root, user, write};
use nacre_fs::{Cred, Fs, FsError, InodeRef, SetTime, Stat};
use nacre_types::Timestamp;

const LONG_AGO: SetTime = SetTime::At(Timestamp(1_000_000_000));

fn stat(fs: &Fs, node: InodeRef) -> Stat {
    fs.getattr(node).expect("getattr")
}

/// All times far in the past, except the change time, which cannot be set: it is before the present
/// tick.
fn age(fs: &Fs, node: InodeRef) -> Stat {
    fs.utimens(&root(), node, LONG_AGO, LONG_AGO)
        .expect("utimens");
    let now = Timestamp::now();
    while Timestamp::now() == now {
        std::thread::yield_now();
    }
    stat(fs, node)
}

#[test]
fn new_inodes_have_all_attributes() {
    let fs = fs();
    let cred = Cred::user(0, 0, vec![]);
    let before = Timestamp::now();
    let node = file_by(&fs, &cred, fs.root(), "a", 0o6751).expect("create");
    let stat = stat(&fs, node);
    assert_eq!(
        (stat.mode, stat.nlink, stat.uid, stat.gid),
        (0o106751, 1, 0, 0)
    );
    assert_eq!(
        (stat.size, stat.blocks, stat.block_size, stat.rdev),
        (0, 0, 4096, 0)
    );
    assert_eq!((stat.ino, stat.generation), (node.ino, node.generation));
    assert!(stat.btime >= before && stat.btime <= Timestamp::now());
    assert_eq!(
        (stat.atime, stat.mtime, stat.ctime),
        (stat.btime, stat.btime, stat.btime)
    );
}

#[test]
fn blocks_count_what_is_allocated() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    write(&fs, node, 1 << 20, b"x");
    let stat = stat(&fs, node);
    assert_eq!((stat.size, stat.blocks), ((1 << 20) + 1, 8));
}

#[test]
fn chmod_rules() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    fs.chown(&root(), node, Some(10), Some(20)).expect("chown");
    assert_eq!(fs.chmod(&user(11), node, 0o777), Err(FsError::NotPermitted));
    fs.chmod(&Cred::user(10, 20, vec![]), node, 0o2755)
        .expect("own group");
    assert_eq!(stat(&fs, node).mode, 0o102755);
    fs.chmod(&user(10), node, 0o2755).expect("another group");
    assert_eq!(stat(&fs, node).mode, 0o100755);
    fs.chmod(&Cred::user(10, 1, vec![20]), node, 0o2755)
        .expect("supplementary group");
    assert_eq!(stat(&fs, node).mode, 0o102755);
    fs.chmod(&root(), node, 0o177777).expect("root");
    assert_eq!(stat(&fs, node).mode, 0o107777);
}

#[test]
fn chown_rules() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    fs.chown(&root(), node, Some(10), Some(20)).expect("chown");
    let owner = Cred::user(10, 20, vec![30]);
    assert_eq!(
        fs.chown(&owner, node, Some(11), None),
        Err(FsError::NotPermitted)
    );
    assert_eq!(
        fs.chown(&owner, node, None, Some(31)),
        Err(FsError::NotPermitted)
    );
    assert_eq!(
        fs.chown(&user(30), node, None, Some(30)),
        Err(FsError::NotPermitted)
    );
    fs.chown(&owner, node, Some(10), Some(30))
        .expect("into own group");
    let now = stat(&fs, node);
    assert_eq!((now.uid, now.gid), (10, 30));
}

#[test]
fn chown_takes_set_id_bits_of_files_only() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    fs.chmod(&root(), node, 0o6755).expect("chmod");
    fs.chown(&root(), node, Some(1), Some(1)).expect("chown");
    assert_eq!(stat(&fs, node).mode, 0o100755);
    fs.chmod(&root(), node, 0o2644)
        .expect("mandatory locking style");
    fs.chown(&root(), node, Some(2), None).expect("chown");
    assert_eq!(stat(&fs, node).mode, 0o102644);
    let d = dir(&fs, fs.root(), "d");
    fs.chmod(&root(), d, 0o6755).expect("chmod");
    fs.chown(&root(), d, Some(1), Some(1)).expect("chown");
    assert_eq!(stat(&fs, d).mode, 0o046755);
}

#[test]
fn writing_takes_set_id_bits_from_the_unprivileged() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    let at = nacre_fs::WriteAt::Append;
    fs.chmod(&root(), node, 0o6777).expect("chmod");
    fs.write(&root(), node, at, b"x"[..].into()).expect("write");
    assert_eq!(stat(&fs, node).mode, 0o106777);
    fs.write(&user(9), node, at, b"x"[..].into())
        .expect("write");
    assert_eq!(stat(&fs, node).mode, 0o100777);
    fs.chmod(&root(), node, 0o6777).expect("chmod");
    fs.truncate(&user(9), node, 0).expect("truncate");
    assert_eq!(stat(&fs, node).mode, 0o100777);
}

#[test]
fn utimens_sets_what_it_is_told() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    let at = |ns| SetTime::At(Timestamp(ns));
    fs.utimens(&root(), node, at(1_123_456_789), at(-5))
        .expect("utimens");
    let first = stat(&fs, node);
    assert_eq!((first.atime.0, first.mtime.0), (1_123_456_789, -5));
    fs.utimens(&root(), node, SetTime::Omit, SetTime::Now)
        .expect("utimens");
    let second = stat(&fs, node);
    assert_eq!(second.atime.0, 1_123_456_789);
    assert!(second.mtime >= first.ctime);
}

#[test]
fn utimens_permissions() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    let (now, omit) = (SetTime::Now, SetTime::Omit);
    assert_eq!(
        fs.utimens(&user(5), node, now, now),
        Err(FsError::PermissionDenied)
    );
    assert_eq!(
        fs.utimens(&user(5), node, LONG_AGO, now),
        Err(FsError::NotPermitted)
    );
    assert_eq!(
        fs.utimens(&user(5), node, now, omit),
        Err(FsError::NotPermitted)
    );
    fs.utimens(&user(5), node, omit, omit)
        .expect("nothing asked");
    fs.chmod(&root(), node, 0o666).expect("chmod");
    fs.utimens(&user(5), node, now, now).expect("writers may");
    assert_eq!(
        fs.utimens(&user(5), node, LONG_AGO, LONG_AGO),
        Err(FsError::NotPermitted)
    );
}

#[test]
fn changing_names_touches_directories_and_inodes() {
    let fs = fs();
    let d = dir(&fs, fs.root(), "d");
    let touched = |what: &dyn Fn()| {
        let before = age(&fs, d);
        what();
        let after = stat(&fs, d);
        assert!(after.mtime > before.mtime && after.ctime >= before.ctime);
        assert_eq!(after.mtime, after.ctime);
    };
    touched(&|| {
        file(&fs, d, "a");
    });
    let node = fs.lookup(&root(), d, b"a").expect("lookup").node;
    let before = stat(&fs, node);
    touched(&|| fs.link(&root(), node, d, b"b").expect("link"));
    assert!(stat(&fs, node).ctime > before.ctime);
    let flags = nacre_fs::RenameFlags::empty();
    let before = stat(&fs, node);
    touched(&|| fs.rename(&root(), d, b"b", d, b"c", flags).expect("rename"));
    assert!(stat(&fs, node).ctime > before.ctime);
    touched(&|| fs.unlink(&root(), d, b"c").expect("unlink"));
    touched(&|| {
        dir(&fs, d, "e");
    });
    touched(&|| fs.rmdir(&root(), d, b"e").expect("rmdir"));
    touched(&|| {
        fs.symlink(&root(), d, b"s", b"t").expect("symlink");
    });
}

#[test]
fn writing_moves_mtime_and_ctime() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    let before = age(&fs, node);
    write(&fs, node, 0, b"x");
    let after = stat(&fs, node);
    assert!(after.mtime > before.mtime && after.ctime > before.ctime);
    assert_eq!(after.atime, before.atime);
    let before = age(&fs, node);
    fs.set_size(&root(), node, 0).expect("truncate");
    let after = stat(&fs, node);
    assert!(after.mtime > before.mtime && after.ctime > before.ctime);
}

#[test]
fn reading_moves_an_old_atime_only() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    write(&fs, node, 0, b"x");
    let before = age(&fs, node);
    let mut byte = [0; 1];
    fs.read_noatime(node, nacre_types::FileOffset(0), (&mut byte[..]).into())
        .expect("read");
    assert_eq!(stat(&fs, node).atime, before.atime);
    read(&fs, node, 0, 1);
    let first = stat(&fs, node);
    assert!(first.atime > before.atime);
    assert_eq!((first.mtime, first.ctime), (before.mtime, before.ctime));
    read(&fs, node, 0, 1);
    assert_eq!(stat(&fs, node).atime, first.atime);
}

#[test]
fn statfs_tells_the_space() {
    let fs = fs();
    let before = fs.statfs().expect("statfs");
    assert!(before.free_units > 0 && before.free_units < before.units);
    assert_eq!(
        (before.unit_size, before.name_max, before.read_only),
        (4096, 255, false)
    );
    let node = file(&fs, fs.root(), "a");
    write(&fs, node, 0, &[1; 64 * 4096]);
    let after = fs.statfs().expect("statfs");
    assert!(after.free_units <= before.free_units - 64);
    assert!(after.free_objects < before.free_objects);
}
