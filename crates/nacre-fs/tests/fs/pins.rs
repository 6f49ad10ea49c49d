use crate::pools::{assert_sound, file, fs, names, read, root, write};
use nacre_fs::{FsError, RenameFlags};

#[test]
fn an_unlinked_file_lives_until_its_last_pin() {
    let fs = fs();
    let free = fs.statfs().expect("statfs").free_units;
    let node = file(&fs, fs.root(), "a");
    fs.pin(node).expect("pin");
    fs.pin(node).expect("pin");
    write(&fs, node, 0, &[7; 100_000]);
    fs.unlink(&root(), fs.root(), b"a").expect("unlink");
    assert_eq!(fs.getattr(node).expect("getattr").nlink, 0);
    write(&fs, node, 0, b"still here");
    fs.unpin(node.ino).expect("unpin");
    assert_eq!(read(&fs, node, 0, 10), b"still here");
    fs.unpin(node.ino).expect("unpin");
    assert_eq!(fs.getattr(node), Err(FsError::Stale));
    assert!(fs.statfs().expect("statfs").free_units >= free - 2);
    assert_sound(&fs);
}

#[test]
fn created_files_are_pinned() {
    let fs = fs();
    let node = fs.create(&root(), fs.root(), b"a", 0o600).expect("create");
    fs.unlink(&root(), fs.root(), b"a").expect("unlink");
    assert_eq!(fs.getattr(node).expect("getattr").nlink, 0);
    fs.unpin(node.ino).expect("unpin");
    assert_eq!(fs.getattr(node), Err(FsError::Stale));
}

#[test]
fn a_failed_create_leaves_no_pin() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    assert_eq!(
        fs.create(&root(), fs.root(), b"a", 0o600),
        Err(FsError::Exists)
    );
    fs.unlink(&root(), fs.root(), b"a").expect("unlink");
    assert_eq!(fs.getattr(node), Err(FsError::Stale));
}

#[test]
fn a_replaced_file_lives_until_its_last_pin() {
    let fs = fs();
    let old = file(&fs, fs.root(), "old");
    let new = file(&fs, fs.root(), "new");
    fs.pin(old).expect("pin");
    fs.rename(
        &root(),
        fs.root(),
        b"new",
        fs.root(),
        b"old",
        RenameFlags::empty(),
    )
    .expect("rename");
    assert_eq!(fs.getattr(old).expect("getattr").nlink, 0);
    fs.unpin(old.ino).expect("unpin");
    assert_eq!(fs.getattr(old), Err(FsError::Stale));
    assert_eq!(fs.getattr(new).expect("getattr").nlink, 1);
    assert_sound(&fs);
}

#[test]
fn a_nameless_file_may_get_one_name() {
    let fs = fs();
    let node = fs
        .tmpfile(&root(), fs.root(), 0o600, true)
        .expect("tmpfile");
    write(&fs, node, 0, b"content");
    assert_eq!(fs.getattr(node).expect("getattr").nlink, 0);
    assert_eq!(names(&fs, fs.root()), Vec::<String>::new());
    fs.link(&root(), node, fs.root(), b"named").expect("link");
    assert_eq!(fs.getattr(node).expect("getattr").nlink, 1);
    fs.unlink(&root(), fs.root(), b"named").expect("unlink");
    assert_eq!(
        fs.link(&root(), node, fs.root(), b"again"),
        Err(FsError::NotFound)
    );
    fs.unpin(node.ino).expect("unpin");
    assert_eq!(fs.getattr(node), Err(FsError::Stale));
    assert_sound(&fs);
}

#[test]
fn an_exclusive_nameless_file_never_gets_a_name() {
    let fs = fs();
    let node = fs
        .tmpfile(&root(), fs.root(), 0o600, false)
        .expect("tmpfile");
    assert_eq!(
        fs.link(&root(), node, fs.root(), b"named"),
        Err(FsError::NotFound)
    );
    fs.unpin(node.ino).expect("unpin");
    assert_eq!(fs.getattr(node), Err(FsError::Stale));
    assert_sound(&fs);
}

#[test]
fn an_unlinked_file_gets_no_new_name() {
    let fs = fs();
    let node = fs.create(&root(), fs.root(), b"a", 0o600).expect("create");
    fs.unlink(&root(), fs.root(), b"a").expect("unlink");
    assert_eq!(
        fs.link(&root(), node, fs.root(), b"b"),
        Err(FsError::NotFound)
    );
    fs.unpin(node.ino).expect("unpin");
}

#[test]
fn pinning_and_unlinking_at_once_frees_exactly_once() {
    let fs = fs();
    for round in 0..200 {
        let name = format!("f{round}");
        let node = file(&fs, fs.root(), &name);
        std::thread::scope(|scope| {
            let opener = scope.spawn(|| {
                if fs.pin(node).is_ok() {
                    assert!(fs.getattr(node).is_ok(), "a pinned inode is gone");
                    fs.unpin(node.ino).expect("unpin");
                }
            });
            fs.unlink(&root(), fs.root(), name.as_bytes())
                .expect("unlink");
            opener.join().expect("opener");
        });
        assert_eq!(fs.getattr(node), Err(FsError::Stale));
    }
    assert_sound(&fs);
}
