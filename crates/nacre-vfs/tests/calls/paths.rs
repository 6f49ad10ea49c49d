//! Which path leads where.

use crate::world::{
    AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW, Harness, MockKernel, O_CREAT, O_DIRECTORY,
    O_PATH, O_RDONLY, O_WRONLY, memory_fs, passed, value,
};
use nacre_vfs::{ErrorKind, MountSpec, PathOwner, Vfs};

const DIRECTORY: u32 = 0o040000;

fn tree() -> Harness {
    let harness = Harness::new();
    harness.mkdir("/nacre/d").unwrap();
    harness.mkdir("/nacre/d/e").unwrap();
    harness.file("/nacre/d/f", "in d");
    harness.file("/nacre/top", "at top");
    harness.file("/mnt/two/other", "second pool");
    harness
}

#[test]
fn the_same_file_by_many_spellings() {
    let harness = tree();
    let spellings = [
        "/nacre/d/f",
        "//nacre/d/f",
        "/nacre//d///f",
        "/nacre/./d/./f",
        "/nacre/d/e/../f",
        "/nacre/../nacre/d/f",
        "/./nacre/d/f",
        "/tmp/../nacre/d/f",
        "/nacre/d/../../nacre/d/f",
        "../nacre/d/f",
        "./../nacre/d/f",
    ];
    for path in spellings {
        assert_eq!(harness.contents(path).as_deref(), Ok("in d"), "{path}");
    }
}

#[test]
fn what_is_the_hosts() {
    let harness = tree();
    let as_given = [
        "/",
        "/nacrex",
        "/nacr",
        "nacre",
        "a/b",
        "../home",
        "/tmp/a",
        "/tmp/../home",
        "./x",
        "",
        "/mnt/twox",
    ];
    for path in as_given {
        assert_eq!(
            passed(harness.vfs.fstatat(AT_FDCWD, path.as_bytes(), 0)),
            None,
            "{path}"
        );
    }
    let rewritten = [
        ("/nacre/..", "/"),
        ("/nacre/../home/me", "/home/me"),
        ("/nacre/d/../../tmp/x", "/tmp/x"),
        ("/mnt/two/..", "/mnt"),
        ("/mnt/two/../x", "/mnt/x"),
    ];
    for (path, host) in rewritten {
        assert_eq!(
            passed(harness.vfs.fstatat(AT_FDCWD, path.as_bytes(), 0)).as_deref(),
            Some(host),
            "{path}"
        );
    }
}

#[test]
fn the_mount_point() {
    let harness = tree();
    for path in ["/nacre", "/nacre/", "/nacre/.", "/nacre/d/.."] {
        let stat = harness.stat(path).unwrap();
        assert_eq!((stat.mode & 0o170000, stat.ino), (DIRECTORY, 1), "{path}");
        assert!(stat.mount_root);
    }
    assert_ne!(
        harness.stat("/nacre").unwrap().dev(),
        harness.stat("/mnt/two").unwrap().dev()
    );
    assert_eq!(harness.mkdir("/nacre"), Err(ErrorKind::Exists));
    assert_eq!(harness.rmdir("/nacre"), Err(ErrorKind::Busy));
    assert_eq!(harness.rename("/nacre", "/nacre/d/x"), Err(ErrorKind::Busy));
}

#[test]
fn errors_on_the_way() {
    let harness = tree();
    let long = format!("/nacre/{}", "n".repeat(256));
    let deep = format!("/nacre/{}", "d/".repeat(2100));
    let cases = [
        ("/nacre/none", ErrorKind::NotFound),
        ("/nacre/none/x", ErrorKind::NotFound),
        ("/nacre/top/x", ErrorKind::NotDirectory),
        ("/nacre/top/", ErrorKind::NotDirectory),
        ("/nacre/top/.", ErrorKind::NotDirectory),
        ("/nacre/top/..", ErrorKind::NotDirectory),
        (long.as_str(), ErrorKind::NameTooLong),
        (deep.as_str(), ErrorKind::NameTooLong),
    ];
    for (path, kind) in cases {
        assert_eq!(harness.stat(path).err(), Some(kind), "{path}");
    }
}

#[test]
fn symbolic_links_in_a_pool() {
    let harness = tree();
    for (target, path) in [
        ("d", "/nacre/rel"),
        ("/nacre/d", "/nacre/abs"),
        ("../top", "/nacre/d/up"),
        ("/mnt/two/other", "/nacre/cross"),
        ("loop2", "/nacre/loop1"),
        ("loop1", "/nacre/loop2"),
        ("none", "/nacre/dangling"),
        ("/etc/hosts", "/nacre/host"),
        ("../../etc", "/nacre/d/hostdir"),
    ] {
        harness.symlink(target, path).unwrap();
    }
    assert_eq!(harness.contents("/nacre/rel/f").as_deref(), Ok("in d"));
    assert_eq!(harness.contents("/nacre/abs/f").as_deref(), Ok("in d"));
    assert_eq!(harness.contents("/nacre/abs/up").as_deref(), Ok("at top"));
    assert_eq!(
        harness.contents("/nacre/cross").as_deref(),
        Ok("second pool")
    );
    assert_eq!(harness.stat("/nacre/loop1").err(), Some(ErrorKind::Loop));
    assert_eq!(harness.stat("/nacre/loop1/x").err(), Some(ErrorKind::Loop));
    assert_eq!(
        harness.stat("/nacre/dangling").err(),
        Some(ErrorKind::NotFound)
    );
    assert!(harness.lstat("/nacre/dangling").is_ok());
    assert_eq!(
        harness.lstat("/nacre/rel/").unwrap().mode & 0o170000,
        DIRECTORY
    );
    assert_eq!(harness.readlink("/nacre/host").as_deref(), Ok("/etc/hosts"));
    assert_eq!(
        passed(harness.vfs.fstatat(AT_FDCWD, b"/nacre/host", 0)).as_deref(),
        Some("/etc/hosts")
    );
    assert!(harness.lstat("/nacre/host").is_ok());
    let through = harness
        .vfs
        .fstatat(AT_FDCWD, b"/nacre/d/hostdir/passwd", AT_SYMLINK_NOFOLLOW);
    assert_eq!(passed(through).as_deref(), Some("/etc/passwd"));
    harness.file("/nacre/dangling", "made through the link");
    assert_eq!(
        harness.contents("/nacre/none").as_deref(),
        Ok("made through the link")
    );
}

#[test]
fn names_to_make_or_remove_are_not_followed() {
    let harness = tree();
    harness.symlink("d/e", "/nacre/link").unwrap();
    assert_eq!(harness.rmdir("/nacre/link/"), Err(ErrorKind::NotDirectory));
    assert_eq!(harness.mkdir("/nacre/link/"), Err(ErrorKind::Exists));
    assert_eq!(harness.unlink("/nacre/link"), Ok(0));
    assert!(harness.stat("/nacre/d/e").is_ok());
    assert_eq!(harness.rmdir("/nacre/d/."), Err(ErrorKind::Invalid));
    assert_eq!(harness.rmdir("/nacre/d/e/.."), Err(ErrorKind::NotEmpty));
    assert_eq!(harness.unlink("/nacre/d"), Err(ErrorKind::IsDirectory));
    assert_eq!(harness.unlink("/nacre/top/"), Err(ErrorKind::NotDirectory));
    assert_eq!(harness.mkdir("/nacre/new/"), Ok(0));
    assert_eq!(harness.rmdir("/nacre/new/"), Ok(0));
}

#[test]
fn relative_to_open_directories() {
    let harness = tree();
    let dir = harness.open("/nacre/d", O_RDONLY | O_DIRECTORY).unwrap();
    let file = harness.open("/nacre/top", O_RDONLY).unwrap();
    let path_only = harness.open("/nacre/d", O_PATH).unwrap();
    let stat = |fd, path: &str, flags| {
        value(harness.vfs.fstatat(fd, path.as_bytes(), flags)).map(|stat| stat.size)
    };
    assert_eq!(stat(dir, "f", 0), Ok(4));
    assert_eq!(stat(path_only, "f", 0), Ok(4));
    assert_eq!(stat(dir, "../top", 0), Ok(6));
    assert_eq!(stat(dir, "/mnt/two/other", 0), Ok(11));
    assert_eq!(stat(file, "f", 0), Err(ErrorKind::NotDirectory));
    assert_eq!(stat(file, "", AT_EMPTY_PATH), Ok(6));
    assert_eq!(
        passed(harness.vfs.fstatat(dir, b"../../tmp", 0)).as_deref(),
        Some("/tmp")
    );
    let root = harness.kernel.host_open("/");
    assert_eq!(stat(root, "nacre/top", 0), Ok(6));
    assert_eq!(stat(root, "mnt/two/other", 0), Ok(11));
    assert_eq!(passed(harness.vfs.fstatat(root, b"mnt/three", 0)), None);
    let home = harness.kernel.host_open("/home/me");
    assert_eq!(stat(home, "../../nacre/top", 0), Ok(6));
    assert_eq!(passed(harness.vfs.fstatat(home, b"nacre/top", 0)), None);
}

#[test]
fn the_current_directory() {
    let harness = tree();
    assert_eq!(harness.chdir("/nacre/d"), Ok(0));
    assert_eq!(harness.kernel.cwd(), "/proc/tty/ldisc");
    assert_eq!(harness.getcwd().as_deref(), Ok("/nacre/d"));
    assert_eq!(harness.contents("f").as_deref(), Ok("in d"));
    assert_eq!(harness.contents("/proc/self/cwd/f").as_deref(), Ok("in d"));
    assert_eq!(
        harness.readlink("/proc/self/cwd").as_deref(),
        Ok("/nacre/d")
    );
    assert_eq!(harness.chdir("e"), Ok(0));
    assert_eq!(harness.getcwd().as_deref(), Ok("/nacre/d/e"));
    harness.rename("/nacre/d", "/nacre/moved").unwrap();
    assert_eq!(harness.getcwd().as_deref(), Ok("/nacre/moved/e"));
    assert_eq!(harness.chdir("/nacre/top"), Err(ErrorKind::NotDirectory));
    assert_eq!(
        passed(harness.vfs.fstatat(AT_FDCWD, b"../../../tmp", 0)).as_deref(),
        Some("/tmp")
    );
    let mut small = [0; 5];
    assert_eq!(
        value(harness.vfs.getcwd((&mut small[..]).into())),
        Err(ErrorKind::RangeTooSmall)
    );
    harness.rmdir("/nacre/moved/e").unwrap();
    assert_eq!(harness.getcwd(), Err(ErrorKind::NotFound));
    assert_eq!(
        harness.open("x", O_WRONLY | O_CREAT),
        Err(ErrorKind::NotFound)
    );
    let dir = harness.open("/mnt/two", O_RDONLY | O_DIRECTORY).unwrap();
    assert_eq!(value(harness.vfs.fchdir(dir)), Ok(0));
    harness.close(dir).unwrap();
    assert_eq!(harness.contents("other").as_deref(), Ok("second pool"));
    assert_eq!(passed(harness.vfs.chdir(b"/tmp")), None);
    harness.vfs.host_chdir_done();
    assert_eq!(passed(harness.vfs.fstatat(AT_FDCWD, b"other", 0)), None);
}

#[test]
fn a_current_directory_with_a_path_that_no_buffer_holds_has_a_name_too_long() {
    let harness = tree();
    assert_eq!(harness.chdir("/nacre/d"), Ok(0));
    let name = "x".repeat(200);
    for _ in 0..21 {
        assert_eq!(harness.mkdir(&name), Ok(0));
        assert_eq!(harness.chdir(&name), Ok(0));
    }
    // As the kernel says it; after ERANGE the C library would ask for ever, or abort.
    for len in [10, 4096, 9000] {
        let mut buffer = vec![0; len];
        assert_eq!(
            value(harness.vfs.getcwd(buffer.as_mut_slice().into())),
            Err(ErrorKind::NameTooLong)
        );
    }
}

#[test]
fn from_the_root_directory_of_the_host() {
    let harness = tree();
    nacre_vfs::Kernel::chdir(&*harness.kernel, b"/").unwrap();
    harness.vfs.host_chdir_done();
    assert_eq!(harness.contents("nacre/d/f").as_deref(), Ok("in d"));
    assert_eq!(harness.contents("./nacre/d/f").as_deref(), Ok("in d"));
    assert_eq!(passed(harness.vfs.fstatat(AT_FDCWD, b"tmp/nacre", 0)), None);
}

#[test]
fn links_of_the_host_into_a_pool() {
    let harness = tree();
    harness.kernel.host_link("/tmp/in", "/nacre/d");
    harness.kernel.host_link("/tmp/file", "in/f");
    harness.kernel.host_link("/home/me/up", "../../nacre");
    harness.kernel.host_link("/tmp/away", "/home/none");
    harness.kernel.host_link("/tmp/circle", "/tmp/circle");
    let retry = |path: &str| {
        let found = harness
            .vfs
            .retry_after_enoent(AT_FDCWD, path.as_bytes(), true);
        found.map(|path| String::from_utf8(path).unwrap())
    };
    assert_eq!(retry("/tmp/in/f").as_deref(), Some("/nacre/d/f"));
    assert_eq!(retry("/tmp/in").as_deref(), Some("/nacre/d"));
    assert_eq!(retry("in/f").as_deref(), Some("/nacre/d/f"));
    assert_eq!(retry("/tmp/file").as_deref(), Some("/nacre/d/f"));
    assert_eq!(retry("/home/me/up/top").as_deref(), Some("/nacre/top"));
    assert_eq!(retry("/tmp/in/../top").as_deref(), Some("/nacre/d/../top"));
    assert_eq!(retry("/tmp/none"), None);
    assert_eq!(retry("/tmp/none/x"), None);
    assert_eq!(retry("/tmp/away"), None);
    assert_eq!(retry("/tmp/circle/x"), None);
    assert_eq!(
        harness.vfs.retry_after_enoent(AT_FDCWD, b"/tmp/in", false),
        None
    );
    assert_eq!(
        harness.contents("/tmp/in/../../nacre/d/f").as_deref(),
        Ok("in d")
    );
}

#[test]
fn what_is_plainly_the_hosts() {
    let harness = tree();
    let fd = harness.open("/nacre/d/f", O_RDONLY).unwrap();
    let ours = format!("/proc/self/fd/{fd}");
    let ours_dir = harness.open("/nacre/d", O_RDONLY).unwrap();
    let plainly = |path: &str| harness.vfs.is_plainly_hosts(AT_FDCWD, path.as_bytes());
    for path in [
        "/etc/passwd",
        "/",
        "/nacrex",
        "/tmp/../etc",
        "/proc/self/fd/999",
        "other",
        "a/b/c",
    ] {
        assert!(plainly(path), "{path}");
    }
    for path in [
        "/nacre",
        "/nacre/d/f",
        "/tmp/../nacre/d",
        "//nacre",
        &ours,
        "",
    ] {
        assert!(!plainly(path), "{path}");
    }
    assert!(!harness.vfs.is_plainly_hosts(ours_dir, b"f"));
    let side = |dir, first: &[u8; 2]| harness.vfs.owner_of(dir, *first);
    for (first, expected) in [
        (b"/e", PathOwner::Host),
        (b"/\0", PathOwner::Host),
        (b"ab", PathOwner::Host),
        (b"a\0", PathOwner::Host),
        (b"/p", PathOwner::Text),
        (b"/d", PathOwner::Text),
        (b"./", PathOwner::Text),
        (b"na", PathOwner::Text),
        (b"/n", PathOwner::Unknown),
        (b"\0x", PathOwner::Unknown),
    ] {
        assert_eq!(side(AT_FDCWD, first), expected, "{first:?}");
    }
    assert_eq!(side(ours_dir, b"ab"), PathOwner::Unknown);
    assert_eq!(side(ours_dir, b"/e"), PathOwner::Host);
    let reads = |path: &str| harness.vfs.reads_as_hosts(path.as_bytes());
    for path in [
        "/etc/passwd",
        "/proc",
        "/dev/null",
        "a/b.c",
        "/",
        ".",
        ".git/x",
        "..a",
        "nacrex/d",
    ] {
        assert!(reads(path), "{path}");
    }
    for path in [
        "/etc/../nacre",
        "//nacre",
        "/proc/self/fd/3",
        "/dev/stdin",
        "/dev/fd/3",
        "nacre/d",
        "a/../b",
        "./nacre",
        "..",
        "../nacre",
        ".a/../b",
    ] {
        assert!(!reads(path), "{path}");
    }
    harness.vfs.chdir(b"/nacre/d").unwrap();
    assert_eq!(side(AT_FDCWD, b"ab"), PathOwner::Unknown);
    assert_eq!(side(AT_FDCWD, b"/e"), PathOwner::Host);
    assert!(!plainly("f") && !plainly("../../etc") && plainly("/etc"));
}

#[test]
fn a_mount_point_whose_name_begins_with_a_dot() {
    let mount = MountSpec {
        prefix: b"/home/me/.pool".to_vec(),
        fs: Some(memory_fs()),
        read_only: false,
    };
    let vfs = Vfs::start(vec![mount], MockKernel::new()).unwrap();
    assert_eq!(vfs.owner_of(AT_FDCWD, *b".p"), PathOwner::Text);
    for (path, hosts) in [
        (&b".pool"[..], false),
        (b".pool/x", false),
        (b"./.pool/x", false),
        (b"me/.pool/x", false),
        (b".pools/x", true),
        (b".git", true),
    ] {
        assert_eq!(vfs.reads_as_hosts(path), hosts, "{path:?}");
    }
}

#[test]
fn open_files_through_proc() {
    let harness = tree();
    let fd = harness.open("/nacre/d/f", O_RDONLY).unwrap();
    let name = format!("/proc/self/fd/{fd}");
    assert_eq!(harness.readlink(&name).as_deref(), Ok("/nacre/d/f"));
    assert_eq!(
        harness.readlink(&format!("/proc/1/fd/{fd}")).as_deref(),
        Ok("/nacre/d/f")
    );
    assert_eq!(harness.contents(&name).as_deref(), Ok("in d"));
    assert_eq!(
        harness.contents(&format!("/dev/fd/{fd}")).as_deref(),
        Ok("in d")
    );
    assert_eq!(harness.stat(&name).unwrap().size, 4);
    assert_eq!(
        passed(
            harness
                .vfs
                .fstatat(AT_FDCWD, name.as_bytes(), AT_SYMLINK_NOFOLLOW)
        ),
        None
    );
    let folder = harness.kernel.host_open("/proc/1/fd");
    let mut buffer = [0; 64];
    let relative =
        harness
            .vfs
            .readlinkat(folder, fd.to_string().as_bytes(), (&mut buffer[..]).into());
    assert_eq!(&buffer[..value(relative).unwrap() as usize], b"/nacre/d/f");
    harness.rename("/nacre/d/f", "/nacre/d/g").unwrap();
    assert_eq!(harness.readlink(&name).as_deref(), Ok("/nacre/d/g"));
    harness.rename("/nacre/d/g", "/nacre/far").unwrap();
    assert_eq!(harness.readlink(&name).as_deref(), Ok("/nacre/d/f"));
    harness.unlink("/nacre/far").unwrap();
    assert_eq!(
        harness.readlink(&name).as_deref(),
        Ok("/nacre/d/f (deleted)")
    );
    assert_eq!(harness.contents(&name).as_deref(), Ok("in d"));
    let dir = harness.open("/nacre/d", O_RDONLY).unwrap();
    assert_eq!(
        harness.readlink(&format!("/proc/self/fd/{dir}")).as_deref(),
        Ok("/nacre/d")
    );
    assert!(harness.stat(&format!("/proc/self/fd/{dir}/e")).is_ok());
    let host = harness.kernel.host_open("/tmp");
    let link = format!("/proc/self/fd/{host}");
    assert_eq!(
        passed(harness.vfs.fstatat(AT_FDCWD, link.as_bytes(), 0)),
        None
    );
}

#[test]
fn openat2_stays_where_it_is_told() {
    let harness = tree();
    harness.symlink("/nacre/top", "/nacre/d/abs").unwrap();
    harness.symlink("f", "/nacre/d/rel").unwrap();
    let dir = harness.open("/nacre/d", O_RDONLY | O_DIRECTORY).unwrap();
    let open = |path: &str, resolve: u64| {
        value(harness.vfs.openat2(dir, path.as_bytes(), 0, 0, resolve)).err()
    };
    let (no_links, beneath, in_root) = (4, 8, 16);
    assert_eq!(open("f", beneath), None);
    assert_eq!(open("e/../f", beneath), None);
    assert_eq!(open("../top", beneath), Some(ErrorKind::CrossDevice));
    assert_eq!(open("abs", beneath), Some(ErrorKind::CrossDevice));
    assert_eq!(open("/nacre/top", beneath), Some(ErrorKind::CrossDevice));
    assert_eq!(open("../f", in_root), None);
    assert_eq!(open("rel", no_links), Some(ErrorKind::Loop));
    assert_eq!(open("rel", 0), None);
    assert_eq!(open("f", 1 << 40), Some(ErrorKind::Invalid));
}

/// Ways that were walked before lead where they would lead now.
#[test]
fn a_known_way_follows_every_change_of_a_name_on_it() {
    let harness = tree();
    harness.mkdir("/nacre/d/e/g").unwrap();
    harness.file("/nacre/d/e/g/f", "old");
    let path = "/nacre/d/e/g/f";
    let read = || harness.contents(path);
    let walk_often = |expected: Result<&str, ErrorKind>| {
        for _ in 0..4 {
            assert_eq!(read().as_deref().map_err(|error| *error), expected);
        }
    };
    walk_often(Ok("old"));
    harness.rename("/nacre/d/e", "/nacre/d/h").unwrap();
    walk_often(Err(ErrorKind::NotFound));
    harness.mkdir("/nacre/d/e").unwrap();
    harness.mkdir("/nacre/d/e/g").unwrap();
    harness.file(path, "new");
    walk_often(Ok("new"));
    harness.rename("/nacre/d", "/nacre/q").unwrap();
    walk_often(Err(ErrorKind::NotFound));
    harness.symlink("q", "/nacre/d").unwrap();
    walk_often(Ok("new"));
    harness.unlink("/nacre/d").unwrap();
    harness.rename("/nacre/q", "/nacre/d").unwrap();
    walk_often(Ok("new"));
    harness.unlink(path).unwrap();
    harness.rmdir("/nacre/d/e/g").unwrap();
    walk_often(Err(ErrorKind::NotFound));
    harness.rename("/nacre/d/h", "/nacre/d/e/h").unwrap();
    harness.rename("/nacre/d/e/h/g", "/nacre/d/e/g").unwrap();
    walk_often(Ok("old"));
}

#[test]
fn a_known_way_is_known_for_one_identity_and_as_long_as_it_may_be_walked() {
    let harness = tree();
    harness.mkdir("/nacre/d/e/g").unwrap();
    harness.file("/nacre/d/e/g/f", "text");
    let chmod = |path: &str, mode: u32| {
        value(harness.vfs.fchmodat(AT_FDCWD, path.as_bytes(), mode, 0)).unwrap();
    };
    let is_there = || {
        (0..4)
            .map(|_| harness.stat("/nacre/d/e/g/f").is_ok())
            .collect::<Vec<_>>()
    };
    let become_user = |uid: u32| {
        harness.kernel.set_user(uid);
        harness.vfs.credentials_changed();
    };
    let (yes, no) = (vec![true; 4], vec![false; 4]);
    chmod("/nacre/d/e", 0o755);
    assert_eq!(is_there(), yes);
    become_user(7);
    assert_eq!(is_there(), yes);
    become_user(0);
    chmod("/nacre/d/e", 0o700);
    assert_eq!(is_there(), yes);
    become_user(7);
    assert_eq!(is_there(), no);
    become_user(0);
    assert_eq!(is_there(), yes);
    chmod("/nacre/d/e", 0o711);
    become_user(7);
    assert_eq!(is_there(), yes);
}
