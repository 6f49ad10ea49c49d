//! Linux numbers that arrive in calls. Those that differ between processors come from rustix.

use rustix::fs::OFlags;

pub(crate) const AT_FDCWD: i32 = -100;
pub(crate) const AT_SYMLINK_NOFOLLOW: i32 = 0x100;
pub(crate) const AT_REMOVEDIR: i32 = 0x200;
pub(crate) const AT_EACCESS: i32 = 0x200;
pub(crate) const AT_SYMLINK_FOLLOW: i32 = 0x400;
pub(crate) const AT_EMPTY_PATH: i32 = 0x1000;

pub(crate) const O_ACCMODE: u32 = 3;
pub(crate) const O_RDONLY: u32 = 0;
pub(crate) const O_WRONLY: u32 = 1;
pub(crate) const O_RDWR: u32 = 2;
pub(crate) const O_CREAT: u32 = OFlags::CREATE.bits();
pub(crate) const O_EXCL: u32 = OFlags::EXCL.bits();
pub(crate) const O_NOCTTY: u32 = OFlags::NOCTTY.bits();
pub(crate) const O_TRUNC: u32 = OFlags::TRUNC.bits();
pub(crate) const O_APPEND: u32 = OFlags::APPEND.bits();
pub(crate) const O_NONBLOCK: u32 = OFlags::NONBLOCK.bits();
/// What rustix 1.1 calls so is `O_SYNC`.
pub(crate) const O_DSYNC: u32 = 0o10_000;
pub(crate) const O_SYNC: u32 = OFlags::SYNC.bits();
pub(crate) const O_ASYNC: u32 = 0x2000;
pub(crate) const O_DIRECT: u32 = OFlags::DIRECT.bits();
/// What `F_GETFL` shows on every file opened by a 64-bit program.
pub(crate) const O_LARGEFILE: u32 = if cfg!(target_arch = "aarch64") {
    0x2_0000
} else {
    0x8000
};
pub(crate) const O_DIRECTORY: u32 = OFlags::DIRECTORY.bits();
pub(crate) const O_NOFOLLOW: u32 = OFlags::NOFOLLOW.bits();
pub(crate) const O_NOATIME: u32 = OFlags::NOATIME.bits();
pub(crate) const O_CLOEXEC: u32 = OFlags::CLOEXEC.bits();
pub(crate) const O_PATH: u32 = OFlags::PATH.bits();
/// The bit of `O_TMPFILE` beside `O_DIRECTORY`.
pub(crate) const O_TMPFILE_BIT: u32 = 0x40_0000;

pub(crate) const F_DUPFD: i32 = 0;
pub(crate) const F_GETFD: i32 = 1;
pub(crate) const F_SETFD: i32 = 2;
pub(crate) const F_GETFL: i32 = 3;
pub(crate) const F_SETFL: i32 = 4;
pub(crate) const F_GETLK: i32 = 5;
pub(crate) const F_SETLK: i32 = 6;
pub(crate) const F_SETLKW: i32 = 7;
pub(crate) const F_SETOWN: i32 = 8;
pub(crate) const F_GETOWN: i32 = 9;
pub(crate) const F_SETSIG: i32 = 10;
pub(crate) const F_GETSIG: i32 = 11;
pub(crate) const F_SETOWN_EX: i32 = 15;
pub(crate) const F_GETOWN_EX: i32 = 16;
pub(crate) const F_OFD_GETLK: i32 = 36;
pub(crate) const F_OFD_SETLK: i32 = 37;
pub(crate) const F_OFD_SETLKW: i32 = 38;
pub(crate) const F_GETLEASE: i32 = 1025;
pub(crate) const F_SETPIPE_SZ: i32 = 1031;
pub(crate) const F_GETPIPE_SZ: i32 = 1032;
pub(crate) const F_DUPFD_QUERY: i32 = 1027;
pub(crate) const F_DUPFD_CLOEXEC: i32 = 1030;
pub(crate) const F_RDLCK: i16 = 0;
pub(crate) const F_WRLCK: i16 = 1;
pub(crate) const F_UNLCK: i16 = 2;

pub(crate) const LOCK_SH: i32 = 1;
pub(crate) const LOCK_EX: i32 = 2;
pub(crate) const LOCK_NB: i32 = 4;
pub(crate) const LOCK_MAND: i32 = 32;
pub(crate) const LOCK_UN: i32 = 8;

pub(crate) const SEEK_SET: i32 = 0;
pub(crate) const SEEK_CUR: i32 = 1;
pub(crate) const SEEK_END: i32 = 2;
pub(crate) const SEEK_DATA: i32 = 3;
pub(crate) const SEEK_HOLE: i32 = 4;

pub(crate) const RWF_KNOWN: u32 = 0x1f;
/// `RWF_DSYNC` and `RWF_SYNC`.
pub(crate) const RWF_SYNCED: u32 = 0x6;
/// To read only what is there at once.
pub(crate) const RWF_NOWAIT: u32 = 0x8;
pub(crate) const RWF_NOAPPEND: u32 = 0x20;
pub(crate) const RWF_APPEND: u32 = 0x10;

pub(crate) const CLOSE_RANGE_CLOEXEC: u32 = 4;

pub(crate) const FICLONE: u32 = 0x4004_9409;
pub(crate) const FIONREAD: u32 = 0x541b;
pub(crate) const FIONBIO: u32 = 0x5421;
pub(crate) const FIOCLEX: u32 = 0x5451;
pub(crate) const FIONCLEX: u32 = 0x5450;
pub(crate) const FIOQSIZE: u32 = 0x5460;
pub(crate) const FIGETBSZ: u32 = 2;
pub(crate) const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
pub(crate) const FS_IOC_GETVERSION: u32 = 0x8008_7601;
pub(crate) const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
pub(crate) const FS_IOC_FIEMAP: u32 = 0xc020_660b;

pub(crate) const S_IFMT: u32 = 0o170_000;
pub(crate) const S_IFDIR: u32 = 0o040_000;
pub(crate) const S_IFREG: u32 = 0o100_000;
pub(crate) const S_IFSOCK: u32 = 0o140_000;

/// Longest path in bytes including its NUL.
pub(crate) const PATH_MAX: usize = 4096;
/// Symbolic links followed in one lookup.
pub(crate) const LINKS_MAX: u32 = 40;

pub(crate) const ENOENT: i32 = 2;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const EMFILE: i32 = 24;
