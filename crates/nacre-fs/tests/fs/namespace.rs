use crate::pools::{assert_sound, dir, file, fs, names, read, root, user, write};
use nacre_fs::{FileType, Fs, FsError, InodeRef, RenameFlags};

fn rename(fs: &Fs, from: InodeRef, a: &str, to: InodeRef, b: &str) -> Result<(), FsError> {
    fs.rename(
        &root(),
        from,
        a.as_bytes(),
        to,
        b.as_bytes(),
        RenameFlags::empty(),
    )
}

fn nlink(fs: &Fs, node: InodeRef) -> u32 {
    fs.getattr(node).expect("getattr").nlink
}

fn find(fs: &Fs, dir: InodeRef, name: &str) -> Result<InodeRef, FsError> {
    fs.lookup(&root(), dir, name.as_bytes())
        .map(|found| found.node)
}

#[test]
fn created_names_are_found() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    let found = fs.lookup(&root(), fs.root(), b"a").expect("lookup");
    assert_eq!((found.node, found.file_type), (node, FileType::Regular));
    assert_eq!(find(&fs, fs.root(), "b"), Err(FsError::NotFound));
    assert_eq!(
        fs.create(&root(), fs.root(), b"a", 0o600),
        Err(FsError::Exists)
    );
    assert_sound(&fs);
}

#[test]
fn names_have_limits() {
    let fs = fs();
    let longest = "n".repeat(255);
    let too_long = "n".repeat(256);
    assert_eq!(find(&fs, fs.root(), &longest), Err(FsError::NotFound));
    let node = file(&fs, fs.root(), &longest);
    assert_eq!(find(&fs, fs.root(), &longest), Ok(node));
    assert_eq!(find(&fs, fs.root(), &too_long), Err(FsError::NameTooLong));
    assert_eq!(
        fs.mkdir(&root(), fs.root(), too_long.as_bytes(), 0),
        Err(FsError::NameTooLong)
    );
    assert_eq!(
        fs.mkdir(&root(), fs.root(), b"a/b", 0),
        Err(FsError::Invalid)
    );
    assert_eq!(fs.mkdir(&root(), fs.root(), b"", 0), Err(FsError::NotFound));
    assert_eq!(fs.mkdir(&root(), fs.root(), b"..", 0), Err(FsError::Exists));
}

#[test]
fn dots_are_the_directory_and_its_parent() {
    let fs = fs();
    let a = dir(&fs, fs.root(), "a");
    let b = dir(&fs, a, "b");
    assert_eq!(find(&fs, b, "."), Ok(b));
    assert_eq!(find(&fs, b, ".."), Ok(a));
    assert_eq!(find(&fs, fs.root(), ".."), Ok(fs.root()));
    rename(&fs, a, "b", fs.root(), "c").expect("rename");
    assert_eq!(find(&fs, b, ".."), Ok(fs.root()));
}

#[test]
fn files_are_no_directories() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    assert_eq!(find(&fs, node, "b"), Err(FsError::NotDirectory));
    assert_eq!(find(&fs, node, "."), Err(FsError::NotDirectory));
    assert_eq!(
        fs.mkdir(&root(), node, b"b", 0o755),
        Err(FsError::NotDirectory)
    );
    assert_eq!(
        fs.rmdir(&root(), fs.root(), b"a"),
        Err(FsError::NotDirectory)
    );
    assert_eq!(
        fs.readdir(node, 0, &mut |_| true),
        Err(FsError::NotDirectory)
    );
}

#[test]
fn directories_count_their_subdirectories() {
    let fs = fs();
    let before = nlink(&fs, fs.root());
    let a = dir(&fs, fs.root(), "a");
    let b = dir(&fs, fs.root(), "b");
    assert_eq!((nlink(&fs, a), nlink(&fs, fs.root())), (2, before + 2));
    dir(&fs, a, "c");
    rename(&fs, a, "c", b, "c").expect("move");
    assert_eq!((nlink(&fs, a), nlink(&fs, b)), (2, 3));
    dir(&fs, a, "d");
    rename(&fs, a, "d", b, "c").expect("replace");
    assert_eq!((nlink(&fs, a), nlink(&fs, b)), (2, 3));
    fs.rmdir(&root(), b, b"c").expect("rmdir");
    assert_eq!(nlink(&fs, b), 2);
    assert_sound(&fs);
}

#[test]
fn rmdir_takes_only_empty_directories() {
    let fs = fs();
    let a = dir(&fs, fs.root(), "a");
    file(&fs, a, "f");
    assert_eq!(fs.rmdir(&root(), fs.root(), b"a"), Err(FsError::NotEmpty));
    assert_eq!(
        fs.unlink(&root(), fs.root(), b"a"),
        Err(FsError::IsDirectory)
    );
    assert_eq!(fs.rmdir(&root(), a, b"."), Err(FsError::Invalid));
    assert_eq!(fs.rmdir(&root(), a, b".."), Err(FsError::NotEmpty));
    fs.unlink(&root(), a, b"f").expect("unlink");
    fs.rmdir(&root(), fs.root(), b"a").expect("rmdir");
    assert_eq!(fs.rmdir(&root(), fs.root(), b"a"), Err(FsError::NotFound));
    assert_sound(&fs);
}

#[test]
fn hard_links_share_the_inode() {
    let fs = fs();
    let a = dir(&fs, fs.root(), "a");
    let node = file(&fs, fs.root(), "f");
    write(&fs, node, 0, b"shared");
    fs.link(&root(), node, a, b"g").expect("link");
    assert_eq!(find(&fs, a, "g"), Ok(node));
    assert_eq!(nlink(&fs, node), 2);
    assert_eq!(fs.link(&root(), node, a, b"g"), Err(FsError::Exists));
    assert_eq!(
        fs.link(&root(), a, fs.root(), b"d"),
        Err(FsError::NotPermitted)
    );
    fs.unlink(&root(), fs.root(), b"f").expect("unlink");
    assert_eq!(nlink(&fs, node), 1);
    assert_eq!(read(&fs, node, 0, 10), b"shared");
    fs.unlink(&root(), a, b"g").expect("unlink");
    assert_eq!(fs.getattr(node), Err(FsError::Stale));
    assert_sound(&fs);
}

#[test]
fn symbolic_links_of_all_lengths() {
    let fs = fs();
    for len in [1, 63, 64, 65, 4095] {
        let target = vec![b't'; len];
        let name = format!("link{len}");
        let node = fs
            .symlink(&root(), fs.root(), name.as_bytes(), &target)
            .expect("symlink");
        let mut read = vec![0; 4096];
        let got = fs.readlink(node, &mut read).expect("readlink");
        assert_eq!(&read[..got], &target[..]);
        let mut short = [0; 1];
        assert_eq!(fs.readlink(node, &mut short), Ok(1));
        let stat = fs.getattr(node).expect("getattr");
        assert_eq!(
            (stat.size, stat.nlink, stat.mode),
            (len as u64, 1, 0o120777)
        );
    }
    assert_eq!(
        fs.symlink(&root(), fs.root(), b"x", b""),
        Err(FsError::NotFound)
    );
    assert_eq!(
        fs.symlink(&root(), fs.root(), b"x", &[b't'; 4096]),
        Err(FsError::NameTooLong)
    );
    assert_eq!(
        fs.symlink(&root(), fs.root(), b"link65", &[b't'; 100]),
        Err(FsError::Exists)
    );
    assert_eq!(names(&fs, fs.root()).len(), 5);
    let plain = file(&fs, fs.root(), "plain");
    assert_eq!(fs.readlink(plain, &mut [0; 8]), Err(FsError::Invalid));
    assert_sound(&fs);
}

#[test]
fn special_files_keep_type_and_device() {
    let fs = fs();
    let make = |name: &str, mode, rdev| fs.mknod(&root(), fs.root(), name.as_bytes(), mode, rdev);
    let fifo = make("fifo", 0o010644, 7).expect("fifo");
    let tty = make("tty", 0o020620, 0x501).expect("device");
    let stat = fs.getattr(fifo).expect("getattr");
    assert_eq!((stat.mode, stat.rdev), (0o010644, 0));
    assert_eq!(fs.getattr(tty).expect("getattr").rdev, 0x501);
    assert_eq!(
        fs.lookup(&root(), fs.root(), b"tty")
            .expect("lookup")
            .file_type,
        FileType::CharDevice
    );
    assert_eq!(make("d", 0o040755, 0), Err(FsError::NotPermitted));
    assert_eq!(make("l", 0o120777, 0), Err(FsError::Invalid));
    assert_eq!(
        fs.read(fifo, nacre_types::FileOffset(0), (&mut [0u8; 1][..]).into()),
        Err(FsError::Invalid)
    );
    assert_sound(&fs);
}

#[test]
fn rename_replaces_only_the_like() {
    let fs = fs();
    let (d, e) = (dir(&fs, fs.root(), "d"), dir(&fs, fs.root(), "e"));
    let f = file(&fs, fs.root(), "f");
    let g = file(&fs, fs.root(), "g");
    file(&fs, e, "inside");
    assert_eq!(
        rename(&fs, fs.root(), "f", fs.root(), "d"),
        Err(FsError::IsDirectory)
    );
    assert_eq!(
        rename(&fs, fs.root(), "d", fs.root(), "f"),
        Err(FsError::NotDirectory)
    );
    assert_eq!(
        rename(&fs, fs.root(), "d", fs.root(), "e"),
        Err(FsError::NotEmpty)
    );
    rename(&fs, fs.root(), "e", fs.root(), "d").expect("over an empty directory");
    assert_eq!(fs.getattr(d), Err(FsError::Stale));
    rename(&fs, fs.root(), "f", fs.root(), "g").expect("over a file");
    assert_eq!(find(&fs, fs.root(), "g"), Ok(f));
    assert_eq!(fs.getattr(g), Err(FsError::Stale));
    assert_eq!(names(&fs, fs.root()), ["d", "g"]);
    assert_eq!(
        rename(&fs, fs.root(), "none", fs.root(), "g"),
        Err(FsError::NotFound)
    );
    assert_sound(&fs);
}

#[test]
fn rename_of_one_inode_onto_itself_does_nothing() {
    let fs = fs();
    let f = file(&fs, fs.root(), "f");
    fs.link(&root(), f, fs.root(), b"g").expect("link");
    rename(&fs, fs.root(), "f", fs.root(), "f").expect("same name");
    rename(&fs, fs.root(), "f", fs.root(), "g").expect("other name");
    assert_eq!(names(&fs, fs.root()), ["f", "g"]);
    assert_eq!(nlink(&fs, f), 2);
}

#[test]
fn rename_never_makes_a_loop() {
    let fs = fs();
    let a = dir(&fs, fs.root(), "a");
    let b = dir(&fs, a, "b");
    let c = dir(&fs, b, "c");
    assert_eq!(rename(&fs, fs.root(), "a", a, "x"), Err(FsError::Invalid));
    assert_eq!(rename(&fs, fs.root(), "a", c, "x"), Err(FsError::Invalid));
    assert_eq!(rename(&fs, b, "c", fs.root(), "a"), Err(FsError::NotEmpty));
    let exchange =
        |from, x: &[u8], to, y: &[u8]| fs.rename(&root(), from, x, to, y, RenameFlags::EXCHANGE);
    assert_eq!(exchange(fs.root(), b"a", b, b"c"), Err(FsError::Invalid));
    assert_eq!(exchange(b, b"c", fs.root(), b"a"), Err(FsError::Invalid));
    assert_eq!(
        rename(&fs, fs.root(), ".", fs.root(), "x"),
        Err(FsError::Busy)
    );
    assert_eq!(
        rename(&fs, fs.root(), "a", fs.root(), ".."),
        Err(FsError::Busy)
    );
    assert_sound(&fs);
}

#[test]
fn rename_flags() {
    let fs = fs();
    let a = dir(&fs, fs.root(), "a");
    let b = dir(&fs, fs.root(), "b");
    let f = file(&fs, a, "f");
    let d = dir(&fs, b, "d");
    let with = |flags, x: &[u8], y: &[u8]| fs.rename(&root(), a, x, b, y, flags);
    assert_eq!(
        with(RenameFlags::NOREPLACE, b"f", b"d"),
        Err(FsError::Exists)
    );
    assert_eq!(
        with(RenameFlags::EXCHANGE, b"f", b"none"),
        Err(FsError::NotFound)
    );
    assert_eq!(with(RenameFlags::all(), b"f", b"d"), Err(FsError::Invalid));
    let contrary = RenameFlags::EXCHANGE | RenameFlags::WHITEOUT;
    assert_eq!(with(contrary, b"f", b"d"), Err(FsError::Invalid));
    with(RenameFlags::EXCHANGE, b"f", b"d").expect("exchange");
    assert_eq!((find(&fs, a, "f"), find(&fs, b, "d")), (Ok(d), Ok(f)));
    assert_eq!(find(&fs, d, ".."), Ok(a));
    assert_eq!((nlink(&fs, a), nlink(&fs, b)), (3, 2));
    with(RenameFlags::NOREPLACE, b"f", b"moved").expect("free name");
    assert_eq!(find(&fs, d, ".."), Ok(b));
    assert_sound(&fs);
}

#[test]
fn a_rename_leaves_a_whiteout() {
    let fs = fs();
    let a = dir(&fs, fs.root(), "a");
    fs.chmod(&root(), a, 0o777).expect("chmod");
    let (f, d) = (file(&fs, a, "f"), dir(&fs, a, "d"));
    let left = |name: &str| {
        let found = fs.lookup(&root(), a, name.as_bytes()).expect("lookup");
        let stat = fs.getattr(found.node).expect("getattr");
        (stat.mode, stat.rdev, stat.nlink, stat.uid)
    };
    let whiteout = RenameFlags::WHITEOUT;
    let rename = |uid, x: &[u8], y: &[u8], flags| {
        let cred = if uid == 0 { root() } else { user(uid) };
        fs.rename(&cred, a, x, a, y, flags)
    };
    rename(5, b"f", b"g", whiteout).expect("a file");
    rename(0, b"d", b"e", whiteout).expect("a folder");
    assert_eq!((find(&fs, a, "g"), find(&fs, a, "e")), (Ok(f), Ok(d)));
    let made_by = |uid| (0o020000, 0, 1, uid);
    assert_eq!((left("f"), left("d")), (made_by(5), made_by(0)));
    let kept = RenameFlags::NOREPLACE | whiteout;
    assert_eq!(rename(0, b"g", b"f", kept), Err(FsError::Exists));
    rename(0, b"g", b"f", whiteout).expect("over a whiteout");
    assert_eq!((find(&fs, a, "f"), nlink(&fs, a)), (Ok(f), 3));
    fs.unlink(&root(), a, b"g").expect("unlink");
    assert_sound(&fs);
}

#[test]
fn removed_directories_take_nothing() {
    let fs = fs();
    let a = dir(&fs, fs.root(), "a");
    fs.pin(a).expect("pin");
    fs.rmdir(&root(), fs.root(), b"a").expect("rmdir");
    assert_eq!(fs.mkdir(&root(), a, b"b", 0o755), Err(FsError::NotFound));
    assert_eq!(fs.readdir(a, 0, &mut |_| true), Err(FsError::NotFound));
    assert_eq!(find(&fs, a, ".."), Err(FsError::NotFound));
    assert_eq!(nlink(&fs, a), 0);
    let f = file(&fs, fs.root(), "f");
    assert_eq!(rename(&fs, fs.root(), "f", a, "f"), Err(FsError::NotFound));
    assert_eq!(fs.link(&root(), f, a, b"f"), Err(FsError::NotFound));
    fs.unpin(a.ino).expect("unpin");
    assert_eq!(fs.getattr(a), Err(FsError::Stale));
    assert_sound(&fs);
}

#[test]
fn directories_know_their_path() {
    let fs = fs();
    let a = dir(&fs, fs.root(), "a");
    let b = dir(&fs, a, "b");
    assert_eq!(fs.path_of(fs.root().ino), Ok(b"/".to_vec()));
    assert_eq!(fs.path_of(b.ino), Ok(b"/a/b".to_vec()));
    rename(&fs, a, "b", fs.root(), "moved").expect("rename");
    assert_eq!(fs.path_of(b.ino), Ok(b"/moved".to_vec()));
    rename(&fs, fs.root(), "moved", fs.root(), "again").expect("rename");
    assert_eq!(fs.path_of(b.ino), Ok(b"/again".to_vec()));
    let f = file(&fs, b, "f");
    assert_eq!(fs.path_of(f.ino), Err(FsError::NotDirectory));
    fs.pin(b).expect("pin");
    fs.unlink(&root(), b, b"f").expect("unlink");
    fs.rmdir(&root(), fs.root(), b"again").expect("rmdir");
    assert_eq!(fs.path_of(b.ino), Err(FsError::NotFound));
}

#[test]
fn a_reused_number_is_another_inode() {
    let fs = fs();
    let old = file(&fs, fs.root(), "a");
    fs.unlink(&root(), fs.root(), b"a").expect("unlink");
    let many: Vec<InodeRef> = (0..300)
        .map(|i| file(&fs, fs.root(), &format!("f{i}")))
        .collect();
    assert!(many.iter().all(|node| *node != old));
    assert_eq!(fs.getattr(old), Err(FsError::Stale));
    assert_eq!(fs.pin(old), Err(FsError::Stale));
    assert_eq!(names(&fs, fs.root()).len(), 300);
    assert_sound(&fs);
}

#[test]
fn a_remembered_name_follows_every_change() {
    let fs = fs();
    let top = dir(&fs, fs.root(), "top");
    let other = dir(&fs, fs.root(), "other");
    let ask_twice = |name: &str| {
        let first = find(&fs, top, name);
        assert_eq!(find(&fs, top, name), first);
        first
    };
    assert_eq!(ask_twice("a"), Err(FsError::NotFound));
    let a = file(&fs, top, "a");
    assert_eq!(ask_twice("a"), Ok(a));
    rename(&fs, top, "a", other, "b").expect("rename");
    assert_eq!(ask_twice("a"), Err(FsError::NotFound));
    let again = file(&fs, top, "a");
    assert_eq!(ask_twice("a"), Ok(again));
    fs.unlink(&root(), top, b"a").expect("unlink");
    assert_eq!(ask_twice("a"), Err(FsError::NotFound));
    let reused = file(&fs, top, "a");
    assert_eq!(ask_twice("a"), Ok(reused));
    fs.unlink(&root(), top, b"a").expect("unlink");
    fs.rmdir(&root(), fs.root(), b"top").expect("rmdir");
    assert_eq!(ask_twice("a"), Err(FsError::Stale));
    let successor = dir(&fs, fs.root(), "top");
    assert_eq!(find(&fs, successor, "a"), Err(FsError::NotFound));
}

#[test]
fn a_rename_meets_targets_that_nobody_remembers() {
    let fs = fs();
    // Too long to be remembered.
    let (taken, full) = ("t".repeat(200), "f".repeat(200));
    let moved = file(&fs, fs.root(), "a");
    file(&fs, fs.root(), &taken);
    let folder = dir(&fs, fs.root(), &full);
    file(&fs, folder, "inside");
    let flags = RenameFlags::NOREPLACE;
    let (from, to) = (fs.root(), fs.root());
    let refused = fs.rename(&root(), from, b"a", to, taken.as_bytes(), flags);
    assert_eq!(refused, Err(FsError::Exists));
    assert_eq!(rename(&fs, from, "a", to, &full), Err(FsError::IsDirectory));
    dir(&fs, fs.root(), "d");
    assert_eq!(rename(&fs, from, "d", to, &full), Err(FsError::NotEmpty));
    assert_eq!(rename(&fs, from, "a", to, &taken), Ok(()));
    assert_eq!(find(&fs, fs.root(), &taken), Ok(moved));
    assert_eq!(find(&fs, fs.root(), "a"), Err(FsError::NotFound));
    assert_eq!(rename(&fs, from, &taken, to, &taken), Ok(()));
    assert_eq!(find(&fs, fs.root(), &taken), Ok(moved));
    assert_sound(&fs);
}

#[test]
fn names_known_before_are_right_after_every_change() {
    let fs = fs();
    let folder = dir(&fs, fs.root(), "d");
    let (a, b) = (file(&fs, folder, "a"), file(&fs, folder, "b"));
    let seen = |name| find(&fs, folder, name);
    assert_eq!((seen("a"), seen("b")), (Ok(a), Ok(b)));
    assert_eq!(seen("c"), Err(FsError::NotFound));
    rename(&fs, folder, "a", folder, "c").expect("rename");
    assert_eq!((seen("c"), seen("b")), (Ok(a), Ok(b)));
    assert_eq!(seen("a"), Err(FsError::NotFound));
    fs.link(&root(), b, folder, b"a").expect("link");
    assert_eq!(seen("a"), Ok(b));
    rename(&fs, folder, "c", folder, "a").expect("rename");
    assert_eq!(seen("a"), Ok(a));
    fs.unlink(&root(), folder, b"b").expect("unlink");
    assert_eq!(seen("b"), Err(FsError::NotFound));
    let again = file(&fs, folder, "b");
    assert_eq!(seen("b"), Ok(again));
}

#[test]
fn a_directory_that_may_not_be_searched_any_more_gives_no_known_name_away() {
    let fs = fs();
    let folder = dir(&fs, fs.root(), "d");
    let node = file(&fs, folder, "a");
    let user = nacre_fs::Cred::user(7, 7, Vec::new());
    let seen = || fs.lookup(&user, folder, b"a").map(|found| found.node);
    assert_eq!(seen(), Ok(node));
    fs.chmod(&root(), folder, 0o700).expect("chmod");
    assert_eq!(seen(), Err(FsError::PermissionDenied));
    fs.chown(&root(), folder, Some(7), None).expect("chown");
    assert_eq!(seen(), Ok(node));
}
