//! Making, removing, linking and listing names, in one pool and between two.

use crate::world::{
    AT_FDCWD, Harness, O_CREAT, O_DIRECTORY, O_RDONLY, O_RDWR, O_WRONLY, SEEK_SET, passed, value,
};
use nacre_vfs::{ErrorKind, Reply};
use std::sync::atomic::{AtomicBool, Ordering};

const NOREPLACE: u32 = 1;
const EXCHANGE: u32 = 2;
const WHITEOUT: u32 = 4;

fn rename2(harness: &Harness, from: &str, to: &str, flags: u32) -> Result<i64, ErrorKind> {
    value(
        harness
            .vfs
            .renameat2(AT_FDCWD, from.as_bytes(), AT_FDCWD, to.as_bytes(), flags),
    )
}

#[test]
fn rename_in_one_pool() {
    let harness = Harness::new();
    harness.file("/nacre/a", "A");
    harness.file("/nacre/b", "B");
    harness.mkdir("/nacre/d").unwrap();
    assert_eq!(
        rename2(&harness, "/nacre/a", "/nacre/b", NOREPLACE),
        Err(ErrorKind::Exists)
    );
    assert_eq!(rename2(&harness, "/nacre/a", "/nacre/b", EXCHANGE), Ok(0));
    assert_eq!(harness.contents("/nacre/a").as_deref(), Ok("B"));
    assert_eq!(harness.rename("/nacre/a", "/nacre/b"), Ok(0));
    assert_eq!(harness.contents("/nacre/b").as_deref(), Ok("B"));
    assert_eq!(
        harness.rename("/nacre/none", "/nacre/b"),
        Err(ErrorKind::NotFound)
    );
    assert_eq!(
        harness.rename("/nacre/b", "/nacre/d"),
        Err(ErrorKind::IsDirectory)
    );
    assert_eq!(
        harness.rename("/nacre/d", "/nacre/b"),
        Err(ErrorKind::NotDirectory)
    );
    assert_eq!(
        harness.rename("/nacre/b", "/nacre/c/"),
        Err(ErrorKind::NotDirectory)
    );
    assert_eq!(
        harness.rename("/nacre/d", "/nacre/d/x"),
        Err(ErrorKind::Invalid)
    );
    assert_eq!(harness.rename("/nacre/d/", "/nacre/e/"), Ok(0));
    assert_eq!(
        harness.rename("/nacre/e/.", "/nacre/d"),
        Err(ErrorKind::Busy)
    );
    assert_eq!(
        rename2(&harness, "/nacre/b", "/nacre/z", NOREPLACE | EXCHANGE),
        Err(ErrorKind::Invalid)
    );
    assert_eq!(
        rename2(&harness, "/nacre/b", "/nacre/z", WHITEOUT | EXCHANGE),
        Err(ErrorKind::Invalid)
    );
    assert_eq!(
        rename2(&harness, "/nacre/b", "/nacre/z", 8),
        Err(ErrorKind::Invalid)
    );
    assert_eq!(
        rename2(&harness, "/nacre/b", "/nacre/z", EXCHANGE),
        Err(ErrorKind::NotFound)
    );
    assert_eq!(rename2(&harness, "/nacre/b", "/nacre/z", WHITEOUT), Ok(0));
    assert_eq!(harness.contents("/nacre/z").as_deref(), Ok("B"));
    assert_eq!(
        rename2(&harness, "/nacre/z", "/nacre/b", NOREPLACE),
        Err(ErrorKind::Exists)
    );
}

#[test]
fn nothing_moves_between_file_systems() {
    let harness = Harness::new();
    harness.file("/nacre/f", "1");
    harness.symlink("/tmp/x", "/nacre/out").unwrap();
    let pairs = [
        ("/nacre/f", "/mnt/two/f"),
        ("/nacre/f", "/tmp/f"),
        ("/home/me", "/nacre/g"),
        ("/nacre/f", "/nacre/.."),
    ];
    for (from, to) in pairs {
        assert_eq!(
            harness.rename(from, to),
            Err(ErrorKind::CrossDevice),
            "{from} {to}"
        );
        assert_eq!(
            harness.link(from, to),
            Err(ErrorKind::CrossDevice),
            "{from} {to}"
        );
    }
    let missing = [
        ("/nacre/none", "/tmp/f"),
        ("/tmp/none", "/nacre/f"),
        ("/nacre/f", "/none/f"),
        ("/nacre/f", ""),
    ];
    for (from, to) in missing {
        let gone = [ErrorKind::NotFound, ErrorKind::Kernel(2)];
        let (renamed, linked) = (harness.rename(from, to), harness.link(from, to));
        assert!(gone.contains(&renamed.unwrap_err()), "{from} {to}");
        assert!(gone.contains(&linked.unwrap_err()), "{from} {to}");
    }
    assert_eq!(
        passed(
            harness
                .vfs
                .renameat2(AT_FDCWD, b"/tmp/a", AT_FDCWD, b"/tmp/b", 0)
        ),
        None
    );
    let half = harness
        .vfs
        .renameat2(AT_FDCWD, b"/nacre/../tmp/a", AT_FDCWD, b"b", 0)
        .unwrap();
    assert_eq!(half, Reply::KernelPaths(Some(b"/tmp/a".to_vec()), None));
}

#[test]
fn hard_links() {
    let harness = Harness::new();
    harness.file("/nacre/a", "A");
    harness.mkdir("/nacre/d").unwrap();
    harness.symlink("a", "/nacre/l").unwrap();
    assert_eq!(harness.link("/nacre/a", "/nacre/d/b"), Ok(0));
    assert_eq!(harness.stat("/nacre/a").unwrap().nlink, 2);
    assert_eq!(
        harness.stat("/nacre/a").unwrap().ino,
        harness.stat("/nacre/d/b").unwrap().ino
    );
    assert_eq!(
        harness.link("/nacre/a", "/nacre/d/b"),
        Err(ErrorKind::Exists)
    );
    assert_eq!(
        harness.link("/nacre/a", "/nacre/x/"),
        Err(ErrorKind::NotFound)
    );
    assert_eq!(
        harness.link("/nacre/d", "/nacre/e"),
        Err(ErrorKind::NotPermitted)
    );
    assert_eq!(
        harness.link("/nacre/none", "/nacre/e"),
        Err(ErrorKind::NotFound)
    );
    assert_eq!(harness.link("/nacre/l", "/nacre/l2"), Ok(0));
    assert_eq!(harness.readlink("/nacre/l2").as_deref(), Ok("a"));
    let fd = harness.open("/nacre/a", O_RDONLY).unwrap();
    assert_eq!(
        value(
            harness
                .vfs
                .linkat(fd, b"", AT_FDCWD, b"/nacre/c", crate::world::AT_EMPTY_PATH)
        ),
        Ok(0)
    );
    assert_eq!(harness.contents("/nacre/c").as_deref(), Ok("A"));
}

/// Names and types of a `getdents64` buffer.
fn parse(bytes: &[u8]) -> Vec<(String, u8)> {
    let mut entries = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let len = u16::from_ne_bytes(bytes[at + 16..at + 18].try_into().unwrap()) as usize;
        let name = bytes[at + 19..at + len]
            .split(|&byte| byte == 0)
            .next()
            .unwrap();
        entries.push((String::from_utf8(name.to_vec()).unwrap(), bytes[at + 18]));
        at += len;
    }
    entries
}

#[test]
fn listing_in_small_pieces() {
    let harness = Harness::new();
    harness.mkdir("/nacre/d").unwrap();
    for n in 0..300 {
        harness.file(&format!("/nacre/d/file-{n}"), "");
    }
    harness.mkdir("/nacre/d/dir").unwrap();
    let fd = harness.open("/nacre/d", O_RDONLY | O_DIRECTORY).unwrap();
    let list = || {
        let mut all = Vec::new();
        let mut buffer = [0; 200];
        loop {
            let len = value(harness.vfs.getdents64(fd, (&mut buffer[..]).into())).unwrap() as usize;
            if len == 0 {
                return all;
            }
            all.extend(parse(&buffer[..len]));
        }
    };
    let mut first = list();
    assert_eq!(&first[..2], [(".".into(), 4), ("..".into(), 4)]);
    first.sort();
    first.dedup();
    assert_eq!(first.len(), 303);
    assert!(first.contains(&("dir".into(), 4)) && first.contains(&("file-299".into(), 8)));
    assert_eq!(value(harness.vfs.lseek(fd, 0, SEEK_SET)), Ok(0));
    assert_eq!(list().len(), 303);
    value(harness.vfs.lseek(fd, 0, SEEK_SET)).unwrap();
    assert_eq!(
        value(harness.vfs.getdents64(fd, (&mut [0u8; 8][..]).into())),
        Err(ErrorKind::Invalid)
    );
    assert_eq!(harness.read(fd, 1), Err(ErrorKind::IsDirectory));
    let file = harness.open("/nacre/d/file-1", O_RDONLY).unwrap();
    assert_eq!(
        value(harness.vfs.getdents64(file, (&mut [0u8; 8][..]).into())),
        Err(ErrorKind::NotDirectory)
    );
}

#[test]
fn seeking_back_to_an_entry_finds_it_again() {
    let harness = Harness::new();
    for n in 0..20 {
        harness.file(&format!("/nacre/f{n}"), "");
    }
    let fd = harness.open("/nacre", O_RDONLY).unwrap();
    let mut buffer = [0; 64];
    let mut steps = Vec::new();
    loop {
        let cookie = value(harness.vfs.lseek(fd, 0, crate::world::SEEK_CUR)).unwrap();
        let len = value(harness.vfs.getdents64(fd, (&mut buffer[..]).into())).unwrap() as usize;
        if len == 0 {
            break;
        }
        steps.push((cookie, parse(&buffer[..len])));
    }
    harness.unlink("/nacre/f3").unwrap();
    for (cookie, entries) in steps
        .iter()
        .rev()
        .filter(|(_, entries)| entries.iter().all(|(name, _)| name != "f3"))
    {
        value(harness.vfs.lseek(fd, *cookie, SEEK_SET)).unwrap();
        let len = value(harness.vfs.getdents64(fd, (&mut buffer[..]).into())).unwrap() as usize;
        assert_eq!(parse(&buffer[..len])[0], entries[0]);
    }
}

#[test]
fn extended_attributes() {
    let harness = Harness::new();
    harness.file("/nacre/f", "");
    harness.symlink("f", "/nacre/l").unwrap();
    let fd = harness.open("/nacre/f", O_RDWR).unwrap();
    let set = |flags| {
        value(harness.vfs.setxattr(
            AT_FDCWD,
            b"/nacre/l",
            0,
            (b"user.a", b"value"[..].into(), flags),
        ))
    };
    assert_eq!(set(1), Ok(0));
    assert_eq!(set(1), Err(ErrorKind::Exists));
    assert_eq!(set(8), Err(ErrorKind::Invalid));
    let mut buffer = [0; 32];
    assert_eq!(
        value(
            harness
                .vfs
                .fgetxattr(fd, b"user.a", (&mut buffer[..0]).into())
        ),
        Ok(5)
    );
    assert_eq!(
        value(
            harness
                .vfs
                .fgetxattr(fd, b"user.a", (&mut buffer[..3]).into())
        ),
        Err(ErrorKind::RangeTooSmall)
    );
    assert_eq!(
        value(
            harness
                .vfs
                .fgetxattr(fd, b"user.a", (&mut buffer[..]).into())
        ),
        Ok(5)
    );
    assert_eq!(&buffer[..5], b"value");
    assert_eq!(
        value(harness.vfs.flistxattr(fd, (&mut buffer[..]).into())),
        Ok(7)
    );
    assert_eq!(&buffer[..7], b"user.a\0");
    assert_eq!(
        value(harness.vfs.removexattr(AT_FDCWD, b"/nacre/f", 0, b"user.a")),
        Ok(0)
    );
    assert_eq!(
        value(harness.vfs.fremovexattr(fd, b"user.a")),
        Err(ErrorKind::NoAttribute)
    );
    assert_eq!(
        passed(
            harness
                .vfs
                .getxattr(AT_FDCWD, b"/tmp/x", 0, b"user.a", (&mut buffer[..]).into())
        ),
        None
    );
}

#[test]
fn copies_between_files() {
    let harness = Harness::new();
    harness.file("/nacre/from", "0123456789");
    harness.file("/mnt/two/far", "");
    let from = harness.open("/nacre/from", O_RDONLY).unwrap();
    let to = harness.open("/nacre/to", O_RDWR | O_CREAT).unwrap();
    let far = harness.open("/mnt/two/far", O_WRONLY).unwrap();
    let host = harness.kernel.host_open("/tmp");
    let copy = |from, at, to, len| value(harness.vfs.copy_file_range(from, at, to, None, len, 0));
    assert_eq!(copy(from, None, to, 4), Ok(4));
    assert_eq!(copy(from, None, to, 2), Ok(2));
    assert_eq!(copy(from, Some(8), to, 100), Ok(2));
    assert_eq!(harness.contents("/nacre/to").as_deref(), Ok("01234589"));
    assert_eq!(copy(from, None, far, 1), Err(ErrorKind::CrossDevice));
    assert_eq!(copy(from, None, host, 1), Err(ErrorKind::CrossDevice));
    assert_eq!(copy(to, Some(0), from, 1), Err(ErrorKind::BadFd));
    assert_eq!(
        value(harness.vfs.ioctl(to, 0x4004_9409, from as u64)).map(|_| ()),
        Ok(())
    );
    assert_eq!(harness.contents("/nacre/to").as_deref(), Ok("0123456789"));
    assert_eq!(
        value(harness.vfs.ioctl(from, 0x5401, 0)).err(),
        Some(ErrorKind::NotTty)
    );
}

#[test]
fn a_name_that_is_replaced_never_vanishes() {
    let harness = Harness::new();
    harness.vfs.now_threaded();
    harness.file("/nacre/name", "0");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(harness.stat("/nacre/name").map(|stat| stat.size), Ok(1));
                    assert_eq!(
                        harness.contents("/nacre/name").map(|text| text.len()),
                        Ok(1)
                    );
                    let access = harness.vfs.faccessat(AT_FDCWD, b"/nacre/name", 4, 0);
                    assert_eq!(value(access), Ok(0));
                }
            });
        }
        for n in 0..8000 {
            harness.file("/nacre/new", &(n % 10).to_string());
            harness.rename("/nacre/new", "/nacre/name").unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}
