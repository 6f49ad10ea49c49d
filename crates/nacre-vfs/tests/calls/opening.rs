//! What open allows, refuses and makes.

use crate::world::{
    AT_FDCWD, AT_SYMLINK_FOLLOW, Harness, MockKernel, O_APPEND, O_CREAT, O_DIRECTORY, O_EXCL,
    O_NOFOLLOW, O_PATH, O_RDONLY, O_RDWR, O_TMPFILE, O_TRUNC, O_WRONLY, memory_fs, passed, value,
};
use nacre_vfs::{ErrorKind, FileStat, MountSpec, Vfs};
use nacre_volume::UserBytesMut;

const O_NOATIME: i32 = 0o1000000;
const S_IFIFO: u32 = 0o010000;
const S_IFSOCK: u32 = 0o140000;

#[test]
fn the_matrix_of_flags_and_types() {
    let harness = Harness::new();
    harness.mkdir("/nacre/d").unwrap();
    harness.file("/nacre/f", "abc");
    harness.symlink("f", "/nacre/l").unwrap();
    harness.symlink("none", "/nacre/dangling").unwrap();
    value(
        harness
            .vfs
            .mknodat(AT_FDCWD, b"/nacre/s", S_IFSOCK | 0o666, 0),
    )
    .unwrap();
    let new = "/nacre/new";
    let cases = [
        ("/nacre/f", O_RDONLY, None),
        ("/nacre/f", O_RDWR | O_CREAT, None),
        (
            "/nacre/f",
            O_RDWR | O_CREAT | O_EXCL,
            Some(ErrorKind::Exists),
        ),
        ("/nacre/f", O_DIRECTORY, Some(ErrorKind::NotDirectory)),
        ("/nacre/f", O_CREAT | O_DIRECTORY, Some(ErrorKind::Invalid)),
        ("/nacre/f/", O_CREAT, Some(ErrorKind::NotDirectory)),
        ("/nacre/d", O_RDONLY, None),
        ("/nacre/d", O_RDONLY | O_DIRECTORY, None),
        ("/nacre/d", O_WRONLY, Some(ErrorKind::IsDirectory)),
        ("/nacre/d", O_RDWR, Some(ErrorKind::IsDirectory)),
        ("/nacre/d", O_RDONLY | O_TRUNC, Some(ErrorKind::IsDirectory)),
        ("/nacre/d", O_RDONLY | O_CREAT, Some(ErrorKind::IsDirectory)),
        ("/nacre/d", O_CREAT | O_EXCL, Some(ErrorKind::Exists)),
        ("/nacre/l", O_RDONLY, None),
        ("/nacre/l", O_RDONLY | O_NOFOLLOW, Some(ErrorKind::Loop)),
        ("/nacre/l", O_PATH | O_NOFOLLOW, None),
        ("/nacre/l", O_CREAT | O_EXCL, Some(ErrorKind::Exists)),
        ("/nacre/dangling", O_RDONLY, Some(ErrorKind::NotFound)),
        ("/nacre/dangling", O_CREAT | O_EXCL, Some(ErrorKind::Exists)),
        ("/nacre/s", O_RDONLY, Some(ErrorKind::NoDevice)),
        ("/nacre/s", O_PATH, None),
        (new, O_RDONLY, Some(ErrorKind::NotFound)),
        (new, O_TRUNC, Some(ErrorKind::NotFound)),
        ("/nacre/new/", O_CREAT, Some(ErrorKind::IsDirectory)),
        ("/nacre/none/new", O_CREAT, Some(ErrorKind::NotFound)),
        ("/nacre", O_TMPFILE | O_RDONLY, Some(ErrorKind::Invalid)),
        (
            "/nacre/f",
            O_TMPFILE | O_RDWR,
            Some(ErrorKind::NotDirectory),
        ),
        ("/nacre", O_TMPFILE | O_RDWR, None),
        (new, O_CREAT | O_EXCL, None),
    ];
    for (path, flags, error) in cases {
        let opened = harness.open(path, flags);
        assert_eq!(opened.err(), error, "{path} {flags:o}");
    }
}

#[test]
fn creation_applies_the_mask_and_grants_access() {
    let harness = Harness::new();
    harness.kernel.set_user(1000);
    let root_owned = harness
        .vfs
        .openat(AT_FDCWD, b"/nacre/no", O_WRONLY | O_CREAT, 0o666);
    harness.vfs.credentials_changed();
    assert!(root_owned.is_ok());
    assert_eq!(
        harness.open("/nacre/x", O_CREAT | O_WRONLY),
        Err(ErrorKind::Denied)
    );
    harness.kernel.set_user(0);
    harness.vfs.credentials_changed();
    value(harness.vfs.fchmodat(AT_FDCWD, b"/nacre", 0o777, 0)).unwrap();
    harness.kernel.set_user(1000);
    harness.vfs.credentials_changed();
    let fd = value(
        harness
            .vfs
            .openat(AT_FDCWD, b"/nacre/x", O_RDWR | O_CREAT, 0o462),
    )
    .unwrap() as i32;
    assert_eq!(harness.write(fd, "despite the mode"), Ok(16));
    let stat = harness.stat("/nacre/x").unwrap();
    assert_eq!(
        (stat.mode & 0o7777, stat.uid, stat.gid),
        (0o440, 1000, 1000)
    );
    assert_eq!(harness.open("/nacre/x", O_WRONLY), Err(ErrorKind::Denied));
    assert_eq!(
        harness.open("/nacre/x", O_RDONLY | O_TRUNC),
        Err(ErrorKind::Denied)
    );
    assert_eq!(
        harness.open("/nacre/no", O_RDONLY | O_NOATIME),
        Err(ErrorKind::NotPermitted)
    );
    assert!(harness.open("/nacre/x", O_RDONLY | O_NOATIME).is_ok());
    let _ = harness.vfs.umask(0o777);
    harness.mkdir("/nacre/shut").unwrap();
    assert_eq!(harness.stat("/nacre/shut").unwrap().mode & 0o7777, 0);
    assert_eq!(
        harness.open("/nacre/shut/x", O_CREAT),
        Err(ErrorKind::Denied)
    );
}

#[test]
fn truncation_and_append() {
    let harness = Harness::new();
    harness.file("/nacre/f", "0123456789");
    let append = harness.open("/nacre/f", O_WRONLY | O_APPEND).unwrap();
    let other = harness.open("/nacre/f", O_WRONLY | O_APPEND).unwrap();
    harness.write(append, "a").unwrap();
    harness.write(other, "b").unwrap();
    harness.write(append, "c").unwrap();
    assert_eq!(value(harness.vfs.pwrite(append, b"d"[..].into(), 0)), Ok(1));
    assert_eq!(
        harness.contents("/nacre/f").as_deref(),
        Ok("0123456789abcd")
    );
    harness.open("/nacre/f", O_WRONLY | O_TRUNC).unwrap();
    assert_eq!(harness.contents("/nacre/f").as_deref(), Ok(""));
    harness.write(append, "new").unwrap();
    assert_eq!(harness.contents("/nacre/f").as_deref(), Ok("new"));
    assert_eq!(
        value(harness.vfs.truncate(b"/nacre/f", -1)),
        Err(ErrorKind::Invalid)
    );
    assert_eq!(
        value(harness.vfs.truncate(b"/nacre", 0)),
        Err(ErrorKind::IsDirectory)
    );
    assert_eq!(value(harness.vfs.truncate(b"/nacre/f", 1)), Ok(0));
    assert_eq!(harness.contents("/nacre/f").as_deref(), Ok("n"));
}

#[test]
fn unnamed_files_can_get_a_name() {
    let harness = Harness::new();
    let fd = harness.open("/nacre", O_TMPFILE | O_RDWR).unwrap();
    harness.write(fd, "later").unwrap();
    let name = format!("/proc/self/fd/{fd}");
    let linked = harness.vfs.linkat(
        AT_FDCWD,
        name.as_bytes(),
        AT_FDCWD,
        b"/nacre/named",
        AT_SYMLINK_FOLLOW,
    );
    assert_eq!(value(linked), Ok(0));
    assert_eq!(harness.contents("/nacre/named").as_deref(), Ok("later"));
    let sealed = harness.open("/nacre", O_TMPFILE | O_RDWR | O_EXCL).unwrap();
    let name = format!("/proc/self/fd/{sealed}");
    let refused = harness.vfs.linkat(
        AT_FDCWD,
        name.as_bytes(),
        AT_FDCWD,
        b"/nacre/other",
        AT_SYMLINK_FOLLOW,
    );
    assert_eq!(value(refused), Err(ErrorKind::NotFound));
}

#[test]
fn fifos_and_sockets_have_shadows_on_the_host() {
    let harness = Harness::new();
    value(
        harness
            .vfs
            .mknodat(AT_FDCWD, b"/nacre/fifo", S_IFIFO | 0o600, 0),
    )
    .unwrap();
    let shadow = passed(harness.vfs.openat(AT_FDCWD, b"/nacre/fifo", O_RDONLY, 0)).unwrap();
    assert_eq!(harness.kernel.shadows(), std::slice::from_ref(&shadow));
    assert_eq!(
        passed(harness.vfs.openat(AT_FDCWD, b"/nacre/fifo", O_WRONLY, 0)),
        Some(shadow)
    );
    harness.unlink("/nacre/fifo").unwrap();
    assert!(harness.kernel.shadows().is_empty());
    let socket = value(harness.vfs.socket_bind(b"/nacre/sock", 0o777)).unwrap();
    assert_eq!(
        value(harness.vfs.socket_bind(b"/nacre/sock", 0o777)).err(),
        Some(ErrorKind::AddressInUse)
    );
    assert_eq!(harness.stat("/nacre/sock").unwrap().mode, S_IFSOCK | 0o755);
    let to = passed(harness.vfs.socket_connect(b"/nacre/sock")).unwrap();
    assert_eq!(to.as_bytes(), socket.shadow);
    assert_eq!(
        harness.vfs.socket_name(&socket.shadow).as_deref(),
        Some(&b"/nacre/sock"[..])
    );
    harness.file("/nacre/f", "");
    assert_eq!(
        value(harness.vfs.socket_connect(b"/nacre/f")),
        Err(ErrorKind::ConnectionRefused)
    );
    harness.vfs.socket_bind_failed(socket);
    assert_eq!(harness.stat("/nacre/sock").err(), Some(ErrorKind::NotFound));
    assert_eq!(passed(harness.vfs.socket_connect(b"/run/host")), None);
}

#[test]
fn a_read_only_mount_changes_nothing() {
    let kernel = MockKernel::new();
    let mounts = vec![MountSpec {
        prefix: b"/ro".to_vec(),
        fs: Some(memory_fs()),
        read_only: true,
    }];
    let harness = Harness {
        vfs: Vfs::start(mounts, kernel.clone()).unwrap(),
        kernel,
    };
    assert_eq!(
        harness.open("/ro/f", O_CREAT | O_WRONLY),
        Err(ErrorKind::ReadOnly)
    );
    assert_eq!(
        harness.open("/ro", O_TMPFILE | O_RDWR),
        Err(ErrorKind::ReadOnly)
    );
    assert_eq!(harness.mkdir("/ro/d"), Err(ErrorKind::ReadOnly));
    assert_eq!(harness.mkdir("/ro"), Err(ErrorKind::Exists));
    assert_eq!(harness.unlink("/ro/none"), Err(ErrorKind::NotFound));
    assert_eq!(
        value(harness.vfs.fchmodat(AT_FDCWD, b"/ro", 0o700, 0)),
        Err(ErrorKind::ReadOnly)
    );
    assert_eq!(
        value(harness.vfs.faccessat(AT_FDCWD, b"/ro", 2, 0)),
        Err(ErrorKind::ReadOnly)
    );
    assert_eq!(value(harness.vfs.faccessat(AT_FDCWD, b"/ro", 4, 0)), Ok(0));
    assert!(value(harness.vfs.statfs(b"/ro")).unwrap().read_only);
}

/// What is to be seen of a pool: names, and how full it is.
fn state(harness: &Harness) -> (Vec<String>, Vec<Result<i64, ErrorKind>>, u64) {
    let sizes = ["/nacre/d", "/nacre/d/f", "/nacre/fifo", "/nacre/d/new"];
    let sizes = sizes.map(|path| harness.lstat(path).map(|stat| stat.size as i64));
    (harness.kernel.shadows(), sizes.into(), harness.free_files())
}

#[test]
fn fast_paths_on_names_that_do_not_apply_have_done_nothing() {
    let harness = Harness::new();
    let vfs = &harness.vfs;
    harness.mkdir("/nacre/d").unwrap();
    harness.file("/nacre/d/f", "abc");
    let fifo = vfs.mknodat(AT_FDCWD, b"/nacre/fifo", S_IFIFO | 0o600, 0);
    value(fifo).unwrap();
    let before = state(&harness);

    for path in [
        &b"/nacre/d/../d/new"[..],
        b"/nacre/d/new/",
        b"/tmp/new",
        b"new",
        b"/nacre/x/new",
    ] {
        let made = O_RDWR | O_CREAT;
        assert!(vfs.try_open_fast(AT_FDCWD, path, made, 0o600).is_none());
        assert!(vfs.try_mkdir_fast(AT_FDCWD, path, 0o700).is_none());
        let renamed = vfs.try_rename_fast(AT_FDCWD, b"/nacre/d/f", AT_FDCWD, path, 0);
        assert!(renamed.is_none(), "{}", path.escape_ascii());
    }
    for path in [
        &b"/nacre/d/../d/f"[..],
        b"/nacre/d/f/",
        b"/tmp/f",
        b"f",
        b"/nacre/fifo",
    ] {
        assert!(vfs.try_unlink_fast(AT_FDCWD, path, 0).is_none());
    }
    for path in [&b"/nacre/d/../d/f"[..], b"/nacre/d/f/", b"/tmp/f", b"f"] {
        let told = |_: &FileStat| panic!("told of {}", path.escape_ascii());
        assert!(vfs.try_stat_fast(AT_FDCWD, path, true, told).is_none());
    }
    // The kernel opens it, by a name of its own that nobody has asked for yet.
    assert!(
        vfs.try_open_fast(AT_FDCWD, b"/nacre/fifo", O_RDWR, 0)
            .is_none()
    );
    assert!(vfs.try_close_fast(77).is_none());
    assert!(vfs.try_fsync_fast(77).is_none());
    let mut bytes = [0; 3];
    let buffer = UserBytesMut::from(&mut bytes[..]);
    assert!(vfs.try_pread_fast(77, buffer, 0).is_none());
    assert_eq!(state(&harness), before);

    let made = vfs.try_mkdir_fast(AT_FDCWD, b"/nacre/d/new", 0o700);
    assert!(matches!(made, Some(Ok(()))));
    assert_ne!(state(&harness), before, "nothing is to be seen");
}
