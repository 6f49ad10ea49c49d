//! Fds, the descriptions behind them, and how they travel through fork and exec.

use crate::world::{
    Harness, O_APPEND, O_CLOEXEC, O_CREAT, O_EXCL, O_PATH, O_RDONLY, O_RDWR, O_WRONLY, SEEK_SET,
    passed, value,
};
use nacre_vfs::{ErrorKind, Kernel, Reply};

const F_DUPFD: i32 = 0;
const F_GETFL: i32 = 3;
const F_SETFL: i32 = 4;
const F_DUPFD_CLOEXEC: i32 = 1030;

#[test]
fn duplicates_share_their_position_and_opens_do_not() {
    let harness = Harness::new();
    harness.file("/nacre/f", "0123456789");
    let one = harness.open("/nacre/f", O_RDONLY).unwrap();
    let two = value(harness.vfs.dup(one)).unwrap() as i32;
    let three = value(harness.vfs.fcntl(one, F_DUPFD, 100)).unwrap() as i32;
    assert_eq!(three, 100);
    let apart = harness.open("/nacre/f", O_RDONLY).unwrap();
    assert_eq!(harness.read(one, 3).as_deref(), Ok("012"));
    assert_eq!(harness.read(two, 3).as_deref(), Ok("345"));
    harness.close(one).unwrap();
    harness.close(two).unwrap();
    assert_eq!(harness.read(three, 9).as_deref(), Ok("6789"));
    assert_eq!(harness.read(apart, 2).as_deref(), Ok("01"));
    assert_eq!(
        passed(harness.vfs.read(one, (&mut [0u8; 1][..]).into())),
        None
    );
}

#[test]
fn closed_numbers_are_the_kernels() {
    let harness = Harness::new();
    harness.file("/nacre/f", "x");
    let fd = harness.open("/nacre/f", O_RDONLY).unwrap();
    assert!(harness.vfs.ours(fd));
    harness.close(fd).unwrap();
    assert!(!harness.vfs.ours(fd));
    harness.vfs.make_room();
    let host = harness.kernel.host_open("/tmp");
    assert_eq!(host, fd);
    harness.vfs.host_fd(host);
    assert!(!harness.vfs.ours(host));
    assert_eq!(passed(harness.vfs.close(host)), None);
    assert!(!harness.vfs.ours(-1));
    assert_eq!(passed(harness.vfs.close(-1)), None);
}

#[test]
fn dup2_between_the_worlds() {
    let harness = Harness::new();
    harness.file("/nacre/f", "abc");
    let ours = harness.open("/nacre/f", O_RDONLY).unwrap();
    let host = harness.kernel.host_open("/tmp");
    let other = harness.kernel.host_open("/home");
    assert_eq!(passed(harness.vfs.dup2(host, other)), None);
    assert_eq!(value(harness.vfs.dup2(ours, ours)), Ok(ours.into()));
    assert_eq!(
        value(harness.vfs.dup3(ours, ours, 0)),
        Err(ErrorKind::Invalid)
    );
    assert_eq!(value(harness.vfs.dup2(ours, other)), Ok(other.into()));
    assert!(harness.vfs.ours(other));
    assert_eq!(harness.read(other, 2).as_deref(), Ok("ab"));
    assert_eq!(value(harness.vfs.dup2(host, other)), Ok(other.into()));
    assert!(!harness.vfs.ours(other));
    assert_eq!(harness.read(ours, 2).as_deref(), Ok("c"));
    assert_eq!(
        value(harness.vfs.dup2(999, ours)),
        Err(ErrorKind::Kernel(9))
    );
    assert!(harness.vfs.ours(ours));
}

#[test]
fn close_range_lets_go() {
    let harness = Harness::new();
    let fds: Vec<i32> = (0..4)
        .map(|n| {
            harness
                .open(&format!("/nacre/{n}"), O_RDWR | O_CREAT)
                .unwrap()
        })
        .collect();
    let answer = harness.vfs.close_range(fds[1] as u32, fds[2] as u32, 0);
    assert!(matches!(answer, Ok(Reply::Kernel)));
    fds[1..=2]
        .iter()
        .for_each(|&fd| harness.kernel.close(fd).unwrap());
    assert_eq!(
        fds.iter()
            .map(|&fd| harness.vfs.ours(fd))
            .collect::<Vec<_>>(),
        [true, false, false, true]
    );
    let kept = harness.vfs.close_range(fds[0] as u32, u32::MAX, 4);
    assert!(matches!(kept, Ok(Reply::Kernel)));
    assert!(harness.vfs.ours(fds[0]) && harness.vfs.ours(fds[3]));
}

#[test]
fn flags_are_those_of_the_description() {
    let harness = Harness::new();
    let fd = harness
        .open("/nacre/f", O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC)
        .unwrap();
    let flags = |fd| value(harness.vfs.fcntl(fd, F_GETFL, 0)).unwrap() as i32 & 0o7777;
    assert_eq!(flags(fd), O_RDWR | O_APPEND);
    let twin = value(harness.vfs.fcntl(fd, F_DUPFD_CLOEXEC, 0)).unwrap() as i32;
    assert_eq!(
        value(
            harness
                .vfs
                .fcntl(twin, F_SETFL, (O_WRONLY | O_CREAT).into())
        ),
        Ok(0)
    );
    assert_eq!(flags(fd), O_RDWR);
    assert_eq!(harness.write(fd, "abc"), Ok(3));
    value(harness.vfs.lseek(fd, 0, SEEK_SET)).unwrap();
    assert_eq!(harness.write(fd, "X"), Ok(1));
    assert_eq!(harness.contents("/nacre/f").as_deref(), Ok("Xbc"));
}

#[test]
fn a_path_fd_gives_no_access() {
    let harness = Harness::new();
    harness.file("/nacre/f", "abc");
    let fd = harness.open("/nacre/f", O_PATH).unwrap();
    assert_eq!(harness.read(fd, 1), Err(ErrorKind::BadFd));
    assert_eq!(harness.write(fd, "x"), Err(ErrorKind::BadFd));
    assert_eq!(value(harness.vfs.fchmod(fd, 0o600)), Err(ErrorKind::BadFd));
    assert_eq!(value(harness.vfs.fsync(fd)), Err(ErrorKind::BadFd));
    assert_eq!(value(harness.vfs.fstat(fd)).unwrap().size, 3);
    let again = harness
        .open(&format!("/proc/self/fd/{fd}"), O_RDONLY)
        .unwrap();
    assert_eq!(harness.read(again, 9).as_deref(), Ok("abc"));
}

#[test]
fn unlinked_files_live_until_the_last_close() {
    let harness = Harness::new();
    harness.file("/nacre/f", "kept");
    let before = harness.free_files();
    let fd = harness.open("/nacre/f", O_RDWR).unwrap();
    let twin = value(harness.vfs.dup(fd)).unwrap() as i32;
    harness.unlink("/nacre/f").unwrap();
    assert_eq!(harness.open("/nacre/f", O_RDONLY), Err(ErrorKind::NotFound));
    harness.close(fd).unwrap();
    assert_eq!(harness.read(twin, 9).as_deref(), Ok("kept"));
    assert_eq!(value(harness.vfs.fstat(twin)).unwrap().nlink, 0);
    assert_eq!(harness.free_files(), before);
    harness.close(twin).unwrap();
    assert_eq!(harness.free_files(), before + 1);
}

#[test]
fn many_fds() {
    let harness = Harness::new();
    harness.file("/nacre/f", "abc");
    let fds: Vec<i32> = (0..3000)
        .map(|_| harness.open("/nacre/f", O_RDONLY).unwrap())
        .collect();
    let far = value(harness.vfs.fcntl(fds[0], F_DUPFD, 100_000)).unwrap() as i32;
    assert!(harness.vfs.ours(far));
    assert_eq!(harness.read(fds[2999], 3).as_deref(), Ok("abc"));
    assert_eq!(harness.read(far, 3).as_deref(), Ok("abc"));
    for fd in fds {
        harness.close(fd).unwrap();
    }
    assert_eq!(value(harness.vfs.fstat(far)).unwrap().size, 3);
    harness.close(far).unwrap();
    assert!(!harness.vfs.ours(far));
}

#[test]
fn a_stale_identity_is_a_bad_fd() {
    let harness = Harness::new();
    let placeholder = harness.kernel.open_placeholder(0, false).unwrap();
    harness.kernel.set_identity(placeholder, 12345).unwrap();
    assert_eq!(harness.read(placeholder, 1), Err(ErrorKind::BadFd));
    assert_eq!(
        value(harness.vfs.fstat(placeholder)).err(),
        Some(ErrorKind::BadFd)
    );
}

#[test]
fn received_fds_are_recognised() {
    let harness = Harness::new();
    harness.file("/nacre/f", "abc");
    let fd = harness.open("/nacre/f", O_RDONLY).unwrap();
    harness.vfs.passing_fd(fd);
    let received = harness.kernel.dup(fd, 50, false).unwrap();
    harness.vfs.received_fd(received);
    assert!(harness.vfs.ours(received));
    harness.close(fd).unwrap();
    assert_eq!(harness.read(received, 3).as_deref(), Ok("abc"));
}

#[test]
fn threads_close_under_each_other() {
    let harness = Harness::new();
    harness.file("/nacre/f", "abc");
    harness.vfs.now_threaded();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    if let Ok(fd) = harness.open("/nacre/f", O_RDONLY) {
                        let got = harness.read(fd, 3);
                        assert!(matches!(got.as_deref(), Ok("abc")), "{got:?}");
                        let _ = harness.close(fd);
                    }
                }
            });
        }
    });
    harness.unlink("/nacre/f").unwrap();
    assert_eq!(harness.contents("/nacre/f"), Err(ErrorKind::NotFound));
}

const FD_CLOEXEC: i64 = 1;
const F_SETFD: i32 = 2;

/// A process whose standard streams are open and whose pool has two files.
fn ordinary() -> Harness {
    let harness = Harness::new();
    harness.file("/nacre/f", "first");
    harness.file("/nacre/g", "second");
    harness.vfs.unpark_all();
    harness
}

fn host_close(harness: &Harness, fd: i32) {
    assert_eq!(passed(harness.vfs.close(fd)), None);
    harness.kernel.close(fd).unwrap();
    harness.vfs.closed_in_kernel(fd);
}

#[test]
fn a_placeholder_is_kept_for_the_next_open_and_its_number_is_free() {
    let harness = ordinary();
    let fd = harness.open("/nacre/f", O_RDONLY).unwrap();
    assert_eq!(fd, 3);
    harness.close(fd).unwrap();
    assert!(harness.kernel.is_open(fd));
    assert_eq!(harness.read(fd, 1), Err(ErrorKind::BadFd));
    assert_eq!(harness.close(fd), Err(ErrorKind::BadFd));
    assert_eq!(
        harness.vfs.dup(fd).err().map(|e| e.kind()),
        Some(ErrorKind::BadFd)
    );
    let other = harness.open("/nacre/g", O_RDONLY).unwrap();
    assert_eq!(other, fd);
    assert_eq!(harness.read(other, 9).as_deref(), Ok("second"));
    let next = harness.open("/nacre/f", O_RDONLY).unwrap();
    assert_eq!((next, harness.read(next, 9).as_deref()), (4, Ok("first")));
    harness.close(next).unwrap();
    assert!(harness.kernel.is_open(next) && !harness.vfs.ours(next));
    assert!(!harness.kernel.is_open(next), "the kernel finds no file");
}

#[test]
fn opens_give_the_lowest_number_that_is_free_for_the_program() {
    let harness = ordinary();
    let host = harness.kernel.host_open("/tmp");
    let fds: Vec<i32> = (0..4)
        .map(|_| harness.open("/nacre/f", O_RDONLY).unwrap())
        .collect();
    assert_eq!((host, fds.as_slice()), (3, &[4, 5, 6, 7][..]));
    harness.close(6).unwrap();
    harness.close(4).unwrap();
    host_close(&harness, host);
    for expected in [3, 4, 6, 8] {
        assert_eq!(harness.open("/nacre/f", O_RDONLY), Ok(expected));
    }
    harness.close(5).unwrap();
    harness.close(3).unwrap();
    harness.vfs.make_room();
    assert_eq!(harness.kernel.host_open("/tmp"), 3);
    assert_eq!(harness.open("/nacre/f", O_RDONLY), Ok(5));
    harness.close(4).unwrap();
    harness.close(5).unwrap();
    harness.vfs.unpark_all();
    assert!(!harness.kernel.is_open(4) && !harness.kernel.is_open(5));
}

#[test]
fn kernel_calls_on_kept_numbers_find_them_closed() {
    let harness = ordinary();
    let fd = harness.open("/nacre/f", O_RDONLY).unwrap();
    let keep = harness.open("/nacre/g", O_RDONLY).unwrap();
    harness.close(fd).unwrap();
    assert_eq!(value(harness.vfs.fcntl(keep, F_DUPFD, 0)), Ok(3));
    harness.close(3).unwrap();
    assert!(
        !harness.kernel.is_open(3),
        "a duplicate's placeholder is shared"
    );
    let fd = harness.open("/nacre/f", O_RDONLY).unwrap();
    harness.close(fd).unwrap();
    assert_eq!(value(harness.vfs.dup2(keep, fd)), Ok(i64::from(fd)));
    assert_eq!(harness.read(fd, 9).as_deref(), Ok("second"));
    let last = harness.open("/nacre/f", O_RDONLY).unwrap();
    harness.close(last).unwrap();
    passed(harness.vfs.close_range(3, u32::MAX, 0));
    assert!(!harness.kernel.is_open(last));
}

#[test]
fn a_kept_placeholder_closes_on_exec_as_the_new_file_wants() {
    let harness = ordinary();
    for flags in [O_CLOEXEC, 0, O_CLOEXEC, O_CLOEXEC] {
        let fd = harness.open("/nacre/f", O_RDONLY | flags).unwrap();
        assert_eq!(fd, 3);
        assert_eq!(harness.kernel.is_cloexec(fd), Ok(flags != 0));
        harness.close(fd).unwrap();
    }
    let fd = harness.open("/nacre/f", O_RDONLY | O_CLOEXEC).unwrap();
    assert_eq!(passed(harness.vfs.fcntl(fd, F_SETFD, 0)), None);
    harness.kernel.set_cloexec(fd, false).unwrap();
    harness.close(fd).unwrap();
    let fd = harness.open("/nacre/f", O_RDONLY | O_CLOEXEC).unwrap();
    assert_eq!(harness.kernel.is_cloexec(fd), Ok(true));
    assert_eq!(passed(harness.vfs.fcntl(fd, F_SETFD, FD_CLOEXEC)), None);
}

#[test]
fn what_a_child_inherits_is_never_used_for_another_file() {
    let harness = ordinary();
    let fd = harness.open("/nacre/f", O_RDONLY).unwrap();
    let kept = harness.open("/nacre/g", O_RDONLY).unwrap();
    harness.close(kept).unwrap();
    let child = harness.vfs.vfork_view().unwrap();
    assert!(
        !harness.kernel.is_open(kept),
        "the child must not inherit it"
    );
    harness.kernel.fork(2);
    harness.close(fd).unwrap();
    assert!(
        !harness.kernel.is_open(fd),
        "the child has the same placeholder"
    );
    assert_eq!(harness.open("/nacre/g", O_RDONLY), Ok(fd));
    harness.kernel.switch(2);
    child.adopt().unwrap();
    child.before_exec(false).unwrap();
    harness.kernel.switch(1);
    harness.vfs.before_exec(false).unwrap();
    harness.kernel.switch(2);
    let mut buffer = [0; 5];
    assert_eq!(value(child.read(fd, (&mut buffer[..]).into())), Ok(5));
    assert_eq!(&buffer, b"first");
    let identity = harness.kernel.identity(fd).unwrap();
    harness.kernel.switch(1);
    assert_ne!(harness.kernel.identity(fd).unwrap(), identity);
    harness.kernel.switch(2);
    child.exit();
}
