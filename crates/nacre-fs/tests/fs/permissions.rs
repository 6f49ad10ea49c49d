use crate::pools::{dir, file, file_by, fs, root, user};
use nacre_fs::{Access, Caps, Cred, Fs, FsError, InodeRef, RenameFlags};

fn open_dir(fs: &Fs, name: &str, mode: u32) -> InodeRef {
    let node = dir(fs, fs.root(), name);
    fs.chmod(&root(), node, mode).expect("chmod");
    node
}

#[test]
fn each_class_has_its_bits() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    fs.chown(&root(), node, Some(10), Some(20)).expect("chown");
    fs.chmod(&root(), node, 0o421).expect("chmod");
    let group = Cred::user(11, 20, vec![]);
    let supplementary = Cred::user(11, 11, vec![5, 20]);
    for (cred, allowed) in [
        (user(10), Access::READ),
        (group, Access::WRITE),
        (supplementary, Access::WRITE),
        (user(12), Access::EXEC),
    ] {
        for want in [Access::READ, Access::WRITE, Access::EXEC] {
            let expected = if want == allowed {
                Ok(())
            } else {
                Err(FsError::PermissionDenied)
            };
            assert_eq!(fs.access(&cred, node, want), expected, "{cred:?} {want:?}");
        }
        assert_eq!(fs.access(&cred, node, Access::empty()), Ok(()));
    }
}

#[test]
fn root_needs_one_x_bit_to_execute() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    fs.chmod(&root(), node, 0).expect("chmod");
    assert_eq!(
        fs.access(&root(), node, Access::READ | Access::WRITE),
        Ok(())
    );
    assert_eq!(
        fs.access(&root(), node, Access::EXEC),
        Err(FsError::PermissionDenied)
    );
    fs.chmod(&root(), node, 0o001).expect("chmod");
    assert_eq!(fs.access(&root(), node, Access::EXEC), Ok(()));
    let d = open_dir(&fs, "d", 0);
    assert_eq!(fs.access(&root(), d, Access::all()), Ok(()));
}

#[test]
fn single_capabilities() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    fs.chmod(&root(), node, 0).expect("chmod");
    let d = open_dir(&fs, "d", 0);
    let searcher = Cred {
        caps: Caps::DAC_READ_SEARCH,
        ..user(5)
    };
    assert_eq!(fs.access(&searcher, node, Access::READ), Ok(()));
    assert_eq!(
        fs.access(&searcher, node, Access::WRITE),
        Err(FsError::PermissionDenied)
    );
    assert_eq!(fs.access(&searcher, d, Access::READ | Access::EXEC), Ok(()));
    assert_eq!(
        fs.access(&searcher, d, Access::WRITE),
        Err(FsError::PermissionDenied)
    );
    let owner_like = Cred {
        caps: Caps::FOWNER,
        ..user(5)
    };
    fs.chmod(&owner_like, node, 0o600).expect("chmod");
    let maker = Cred {
        caps: Caps::MKNOD | Caps::DAC_OVERRIDE,
        ..user(5)
    };
    fs.mknod(&maker, fs.root(), b"null", 0o020666, 0x103)
        .expect("mknod");
    assert_eq!(
        fs.mknod(&user(5), fs.root(), b"n", 0o020666, 0x103),
        Err(FsError::NotPermitted)
    );
    let open = open_dir(&fs, "open", 0o777);
    fs.mknod(&user(5), open, b"whiteout", 0o020000, 0)
        .expect("a whiteout");
    assert_eq!(
        fs.mknod(&user(5), open, b"block", 0o060000, 0),
        Err(FsError::NotPermitted)
    );
}

#[test]
fn searching_and_changing_directories() {
    let fs = fs();
    let d = open_dir(&fs, "d", 0o755);
    file(&fs, d, "a");
    let stranger = user(5);
    fs.lookup(&stranger, d, b"a").expect("lookup");
    assert_eq!(
        fs.create(&stranger, d, b"b", 0o644),
        Err(FsError::PermissionDenied)
    );
    assert_eq!(fs.create(&stranger, d, b"a", 0o644), Err(FsError::Exists));
    assert_eq!(
        fs.unlink(&stranger, d, b"a"),
        Err(FsError::PermissionDenied)
    );
    assert_eq!(
        fs.tmpfile(&stranger, d, 0o600, true),
        Err(FsError::PermissionDenied)
    );
    fs.chmod(&root(), d, 0o776).expect("chmod");
    assert_eq!(
        fs.lookup(&stranger, d, b"a"),
        Err(FsError::PermissionDenied)
    );
    assert_eq!(
        fs.create(&stranger, d, b"b", 0o644),
        Err(FsError::PermissionDenied)
    );
    fs.chmod(&root(), d, 0o773).expect("chmod");
    file_by(&fs, &stranger, d, "b", 0o644).expect("create");
    fs.unlink(&stranger, d, b"a").expect("unlink");
}

#[test]
fn sticky_directories_protect_their_entries() {
    let fs = fs();
    let tmp = open_dir(&fs, "tmp", 0o1777);
    let mine = user(5);
    let other = user(6);
    file_by(&fs, &mine, tmp, "mine", 0o666).expect("create");
    file_by(&fs, &other, tmp, "other", 0o666).expect("create");
    let rename = |cred, from: &[u8], to: &[u8], flags| fs.rename(cred, tmp, from, tmp, to, flags);
    assert_eq!(fs.unlink(&other, tmp, b"mine"), Err(FsError::NotPermitted));
    let plain = RenameFlags::empty();
    assert_eq!(
        rename(&other, b"mine", b"x", plain),
        Err(FsError::NotPermitted)
    );
    assert_eq!(
        rename(&other, b"other", b"mine", plain),
        Err(FsError::NotPermitted)
    );
    assert_eq!(
        rename(&other, b"other", b"mine", RenameFlags::EXCHANGE),
        Err(FsError::NotPermitted)
    );
    rename(&mine, b"mine", b"x", plain).expect("own file");
    fs.chown(&root(), tmp, Some(6), None).expect("chown");
    fs.unlink(&other, tmp, b"x").expect("own directory");
}

#[test]
fn moving_a_directory_needs_write_permission_on_it() {
    let fs = fs();
    let a = open_dir(&fs, "a", 0o777);
    let b = open_dir(&fs, "b", 0o777);
    dir(&fs, a, "d");
    let moved = |name: &[u8], to| fs.rename(&user(5), a, b"d", to, name, RenameFlags::empty());
    assert_eq!(moved(b"d", b), Err(FsError::PermissionDenied));
    moved(b"d", a).expect("same name");
    let d = fs.lookup(&root(), a, b"d").expect("lookup").node;
    fs.chmod(&root(), d, 0o777).expect("chmod");
    moved(b"d", b).expect("moved");
}

#[test]
fn set_group_id_directories_hand_on_their_group() {
    let fs = fs();
    let d = open_dir(&fs, "d", 0o777);
    fs.chown(&root(), d, None, Some(77)).expect("chown");
    fs.chmod(&root(), d, 0o2777).expect("chmod");
    let cred = user(5);
    let f = file_by(&fs, &cred, d, "f", 0o2775).expect("create");
    let stat = fs.getattr(f).expect("getattr");
    assert_eq!((stat.gid, stat.mode), (77, 0o100775));
    let sub = fs.mkdir(&cred, d, b"sub", 0o755).expect("mkdir");
    let stat = fs.getattr(sub).expect("getattr");
    assert_eq!((stat.gid, stat.mode), (77, 0o042755));
    let member = Cred::user(5, 5, vec![77]);
    let g = file_by(&fs, &member, d, "g", 0o2775).expect("create");
    assert_eq!(fs.getattr(g).expect("getattr").mode, 0o102775);
    let plain = open_dir(&fs, "plain", 0o777);
    let h = file_by(&fs, &cred, plain, "h", 0o2775).expect("create");
    let stat = fs.getattr(h).expect("getattr");
    assert_eq!((stat.gid, stat.mode), (5, 0o102775));
}

#[test]
fn truncating_by_name_needs_write_permission() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    assert_eq!(
        fs.truncate(&user(5), node, 0),
        Err(FsError::PermissionDenied)
    );
    assert_eq!(
        fs.truncate(&root(), fs.root(), 0),
        Err(FsError::IsDirectory)
    );
    fs.truncate(&root(), node, 10).expect("truncate");
    assert_eq!(fs.size(node), Ok(10));
}

#[test]
fn a_remembered_name_is_for_those_who_may_search() {
    let fs = fs();
    let d = open_dir(&fs, "d", 0o711);
    let node = file(&fs, d, "a");
    let look = |name: &[u8]| fs.lookup(&user(7), d, name).map(|found| found.node);
    for _ in 0..2 {
        assert_eq!(look(b"a"), Ok(node));
        assert_eq!(look(b"none"), Err(FsError::NotFound));
    }
    fs.chmod(&root(), d, 0o700).expect("chmod");
    assert!(fs.lookup(&root(), d, b"a").is_ok());
    for _ in 0..2 {
        assert_eq!(look(b"a"), Err(FsError::PermissionDenied));
        assert_eq!(look(b"none"), Err(FsError::PermissionDenied));
    }
    fs.chown(&root(), d, Some(7), None).expect("chown");
    assert_eq!(look(b"a"), Ok(node));
}
