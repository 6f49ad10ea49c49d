//! Locks, limits, positions and vectors.

use crate::world::{
    AT_FDCWD, Harness, O_APPEND, O_CREAT, O_RDONLY, O_RDWR, O_WRONLY, SEEK_CUR, SEEK_END, SEEK_SET,
    value,
};
use nacre_vfs::{ErrorKind, FileLock, MapRequest};
use std::sync::atomic::Ordering;

const F_GETLK: i32 = 5;
const F_SETLK: i32 = 6;
const F_SETLKW: i32 = 7;
const F_OFD_GETLK: i32 = 36;
const F_OFD_SETLK: i32 = 37;
const F_RDLCK: i16 = 0;
const F_WRLCK: i16 = 1;
const F_UNLCK: i16 = 2;
const LOCK_SH: i32 = 1;
const LOCK_EX: i32 = 2;
const LOCK_NB: i32 = 4;
const LOCK_UN: i32 = 8;

fn lock(kind: i16, start: i64, len: i64) -> FileLock {
    FileLock {
        kind,
        start,
        len,
        ..FileLock::default()
    }
}

#[test]
fn description_locks_conflict_within_a_process() {
    let harness = Harness::new();
    let one = harness.open("/nacre/f", O_RDWR | O_CREAT).unwrap();
    let two = harness.open("/nacre/f", O_RDWR).unwrap();
    let twin = value(harness.vfs.dup(one)).unwrap() as i32;
    let set = |fd, kind| {
        value(
            harness
                .vfs
                .fcntl_lock(fd, F_OFD_SETLK, &mut lock(kind, 10, 10)),
        )
    };
    assert_eq!(set(one, F_WRLCK), Ok(0));
    assert_eq!(set(two, F_RDLCK), Err(ErrorKind::WouldBlock));
    assert_eq!(set(twin, F_RDLCK), Ok(0));
    assert_eq!(set(two, F_RDLCK), Ok(0));
    assert_eq!(set(two, F_UNLCK), Ok(0));
    assert_eq!(set(one, F_WRLCK), Ok(0));
    let mut asked = lock(F_WRLCK, 0, 0);
    assert_eq!(
        value(harness.vfs.fcntl_lock(two, F_OFD_GETLK, &mut asked)),
        Ok(0)
    );
    assert_eq!(
        asked,
        FileLock {
            kind: F_WRLCK,
            whence: 0,
            start: 10,
            len: 10,
            pid: -1
        }
    );
    harness.close(one).unwrap();
    assert_eq!(set(two, F_WRLCK), Err(ErrorKind::WouldBlock));
    harness.close(twin).unwrap();
    assert_eq!(set(two, F_WRLCK), Ok(0));
    let mut wrong = FileLock {
        pid: 1,
        ..lock(F_RDLCK, 0, 0)
    };
    assert_eq!(
        value(harness.vfs.fcntl_lock(two, F_OFD_SETLK, &mut wrong)),
        Err(ErrorKind::Invalid)
    );
}

#[test]
fn process_locks_conflict_between_processes_and_any_close_drops_them() {
    let harness = Harness::new();
    let fd = harness.open("/nacre/f", O_RDWR | O_CREAT).unwrap();
    let other = harness.open("/nacre/f", O_RDONLY).unwrap();
    let child = harness.vfs.vfork_view().unwrap();
    harness.kernel.fork(2);
    child.adopt().unwrap();
    let mine = |kind| value(harness.vfs.fcntl_lock(fd, F_SETLK, &mut lock(kind, 0, 0)));
    let childs = |kind| value(child.fcntl_lock(fd, F_SETLK, &mut lock(kind, 5, 1)));
    assert_eq!(mine(F_WRLCK), Ok(0));
    assert_eq!(mine(F_WRLCK), Ok(0));
    assert_eq!(childs(F_RDLCK), Err(ErrorKind::WouldBlock));
    let mut asked = lock(F_RDLCK, 5, 1);
    assert_eq!(value(child.fcntl_lock(fd, F_GETLK, &mut asked)), Ok(0));
    assert_eq!((asked.kind, asked.start, asked.len), (F_WRLCK, 0, 0));
    assert!(asked.pid > 0);
    harness.close(other).unwrap();
    assert_eq!(childs(F_WRLCK), Ok(0));
    harness.kernel.interrupt.store(true, Ordering::Relaxed);
    let waited = value(
        harness
            .vfs
            .fcntl_lock(fd, F_SETLKW, &mut lock(F_RDLCK, 0, 0)),
    );
    assert_eq!(waited, Err(ErrorKind::Interrupted));
    harness.kernel.switch(2);
    child.exit();
    assert_eq!(mine(F_RDLCK), Ok(0));
}

#[test]
fn locks_need_matching_access() {
    let harness = Harness::new();
    harness.file("/nacre/f", "");
    let reader = harness.open("/nacre/f", O_RDONLY).unwrap();
    let writer = harness.open("/nacre/f", O_WRONLY).unwrap();
    let set = |fd, kind| value(harness.vfs.fcntl_lock(fd, F_SETLK, &mut lock(kind, 0, 1)));
    assert_eq!(set(reader, F_WRLCK), Err(ErrorKind::BadFd));
    assert_eq!(set(writer, F_RDLCK), Err(ErrorKind::BadFd));
    assert_eq!(set(reader, 7), Err(ErrorKind::Invalid));
    assert_eq!(set(reader, F_RDLCK), Ok(0));
}

#[test]
fn whole_file_locks() {
    let harness = Harness::new();
    harness.file("/nacre/f", "");
    let one = harness.open("/nacre/f", O_RDONLY).unwrap();
    let two = harness.open("/nacre/f", O_RDONLY).unwrap();
    let flock = |fd, operation| value(harness.vfs.flock(fd, operation | LOCK_NB));
    assert_eq!(flock(one, LOCK_SH), Ok(0));
    assert_eq!(flock(two, LOCK_SH), Ok(0));
    assert_eq!(flock(two, LOCK_EX), Err(ErrorKind::WouldBlock));
    assert_eq!(flock(one, LOCK_UN), Ok(0));
    assert_eq!(flock(two, LOCK_EX), Ok(0));
    assert_eq!(flock(one, LOCK_SH), Err(ErrorKind::WouldBlock));
    harness.close(two).unwrap();
    assert_eq!(flock(one, LOCK_EX), Ok(0));
    assert_eq!(flock(one, 0), Err(ErrorKind::Invalid));
}

#[test]
fn file_size_limit() {
    let harness = Harness::new();
    harness.kernel.size_limit.store(10, Ordering::Relaxed);
    harness.vfs.limits_changed();
    let fd = harness.open("/nacre/f", O_RDWR | O_CREAT).unwrap();
    assert_eq!(harness.write(fd, "0123456789abc"), Ok(10));
    assert!(!harness.kernel.signalled.load(Ordering::Relaxed));
    assert_eq!(harness.write(fd, "x"), Err(ErrorKind::FileTooBig));
    assert!(harness.kernel.signalled.load(Ordering::Relaxed));
    assert_eq!(
        value(harness.vfs.ftruncate(fd, 11)),
        Err(ErrorKind::FileTooBig)
    );
    assert_eq!(value(harness.vfs.ftruncate(fd, 10)), Ok(0));
    let append = harness.open("/nacre/f", O_WRONLY | O_APPEND).unwrap();
    assert_eq!(harness.write(append, "x"), Err(ErrorKind::FileTooBig));
}

#[test]
fn seeking() {
    let harness = Harness::new();
    harness.file("/nacre/f", "0123456789");
    let fd = harness.open("/nacre/f", O_RDWR).unwrap();
    let seek = |offset, whence| value(harness.vfs.lseek(fd, offset, whence));
    assert_eq!(seek(-3, SEEK_END), Ok(7));
    assert_eq!(seek(-1, SEEK_CUR), Ok(6));
    assert_eq!(harness.read(fd, 2).as_deref(), Ok("67"));
    assert_eq!(seek(-1, SEEK_SET), Err(ErrorKind::Invalid));
    assert_eq!(seek(i64::MAX, SEEK_CUR), Err(ErrorKind::Overflow));
    assert_eq!(seek(0, 9), Err(ErrorKind::Invalid));
    assert_eq!(seek(0, 3), Ok(0));
    assert_eq!(seek(0, 4), Ok(10));
    assert_eq!(seek(10, 3), Err(ErrorKind::NoDevice));
    assert_eq!(seek(100, SEEK_SET), Ok(100));
    assert_eq!(harness.read(fd, 1).as_deref(), Ok(""));
    assert_eq!(harness.write(fd, "x"), Ok(1));
    assert_eq!(value(harness.vfs.fstat(fd)).unwrap().size, 101);
}

#[test]
fn vectors() {
    let harness = Harness::new();
    let fd = harness.open("/nacre/f", O_RDWR | O_CREAT).unwrap();
    let parts = [b"01"[..].into(), b""[..].into(), b"2345"[..].into()];
    assert_eq!(value(harness.vfs.writev(fd, &parts)), Ok(6));
    assert_eq!(value(harness.vfs.pwritev(fd, &parts, 3)), Ok(6));
    assert_eq!(
        value(harness.vfs.pwritev(fd, &parts, -1)),
        Err(ErrorKind::Invalid)
    );
    let (mut a, mut b, mut c) = ([0; 4], [0; 0], [0; 16]);
    let mut buffers = [
        (&mut a[..]).into(),
        (&mut b[..]).into(),
        (&mut c[..]).into(),
    ];
    assert_eq!(value(harness.vfs.preadv(fd, &mut buffers, 0)), Ok(9));
    assert_eq!((&a, &c[..5]), (b"0120", &b"12345"[..]));
    assert_eq!(value(harness.vfs.lseek(fd, 0, SEEK_CUR)), Ok(6));
    assert_eq!(
        value(harness.vfs.pwritev2(fd, &parts, 0, 1 << 20)),
        Err(ErrorKind::Unsupported)
    );
    let far = harness.vfs.pwrite(fd, b"x"[..].into(), i64::MAX);
    assert_eq!(value(far), Err(ErrorKind::Invalid));
    let far = harness.vfs.pread(fd, (&mut a[..]).into(), i64::MAX - 3);
    assert_eq!(value(far), Err(ErrorKind::Invalid));
    let append = 0x10;
    assert_eq!(
        value(harness.vfs.pwritev2(fd, &parts[..1], 0, append)),
        Ok(2)
    );
    assert_eq!(harness.contents("/nacre/f").as_deref(), Ok("01201234501"));
}

#[test]
fn private_mappings_and_refusals() {
    let harness = Harness::new();
    harness.file("/nacre/f", "mapped");
    let fd = harness.open("/nacre/f", O_RDONLY).unwrap();
    let wish = MapRequest {
        write: true,
        exec: false,
        shared: false,
        offset: 0,
        len: 8192,
    };
    let plan = value(harness.vfs.mmap_plan(fd, wish)).unwrap();
    assert_eq!(
        (plan.file_bytes, plan.range.pieces.len(), plan.may_write),
        (6, 0, true)
    );
    let mut buffer = [0; 8192];
    assert_eq!(
        harness
            .vfs
            .fill_private(plan.hold, 0, (&mut buffer[..]).into())
            .unwrap(),
        6
    );
    assert_eq!(&buffer[..7], b"mapped\0");
    harness.vfs.mapping_removed(plan.hold);
    let map = |request| value(harness.vfs.mmap_plan(fd, request)).err();
    assert_eq!(
        map(MapRequest {
            shared: true,
            ..wish
        }),
        Some(ErrorKind::Denied)
    );
    assert_eq!(
        map(MapRequest { offset: 1, ..wish }),
        Some(ErrorKind::Invalid)
    );
    assert_eq!(map(MapRequest { len: 0, ..wish }), Some(ErrorKind::Invalid));
    let dir = harness.open("/nacre", O_RDONLY).unwrap();
    assert_eq!(
        value(harness.vfs.mmap_plan(dir, wish)).err(),
        Some(ErrorKind::CannotMap)
    );
}

#[test]
fn programs_in_the_pool() {
    let harness = Harness::new();
    harness.file("/nacre/script", "#!/bin/sh\nexit 0\n");
    let image = || value(harness.vfs.exec_image(AT_FDCWD, b"/nacre/script", 0));
    assert_eq!(image().err(), Some(ErrorKind::Denied));
    value(harness.vfs.fchmodat(AT_FDCWD, b"/nacre/script", 0o755, 0)).unwrap();
    let found = image().unwrap();
    assert_eq!((found.size, &found.head[..10]), (17, &b"#!/bin/sh\n"[..]));
    let mut tail = [0; 7];
    assert_eq!(
        harness
            .vfs
            .read_image(&found, 10, (&mut tail[..]).into())
            .unwrap(),
        7
    );
    assert_eq!(&tail, b"exit 0\n");
    assert_eq!(
        value(harness.vfs.exec_image(AT_FDCWD, b"/nacre", 0)).err(),
        Some(ErrorKind::Denied)
    );
}

#[test]
fn allocation() {
    let harness = Harness::new();
    let fd = harness.open("/nacre/f", O_RDWR | O_CREAT).unwrap();
    let allocate = |mode, offset, len| value(harness.vfs.fallocate(fd, mode, offset, len));
    assert_eq!(allocate(0, 0, 8192), Ok(0));
    assert_eq!(value(harness.vfs.fstat(fd)).unwrap().size, 8192);
    assert_eq!(allocate(1, 0, 1 << 20), Ok(0));
    assert_eq!(value(harness.vfs.fstat(fd)).unwrap().size, 8192);
    assert_eq!(allocate(3, 0, 4096), Ok(0));
    assert_eq!(allocate(2, 0, 4096), Err(ErrorKind::Unsupported));
    assert_eq!(allocate(8, 0, 4096), Err(ErrorKind::Unsupported));
    assert_eq!(allocate(0, -1, 1), Err(ErrorKind::Invalid));
    assert_eq!(allocate(0, 0, 0), Err(ErrorKind::Invalid));
    assert_eq!(allocate(0, i64::MAX, 1), Err(ErrorKind::FileTooBig));
    assert_eq!(
        value(harness.vfs.fadvise(fd, 0, 0, 9)),
        Err(ErrorKind::Invalid)
    );
    assert_eq!(value(harness.vfs.fsync(fd)), Ok(0));
}
