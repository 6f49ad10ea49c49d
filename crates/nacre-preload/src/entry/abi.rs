//! Structs of the kernel's x86-64 interface, and how our answers fill them.

use nacre_types::Timestamp;
use nacre_vfs::{FileStat, FsStat, SetTime};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const NANOS: i64 = 1_000_000_000;

/// `struct timespec`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Timespec {
    seconds: i64,
    nanos: i64,
}

impl From<Timestamp> for Timespec {
    #[inline(always)]
    fn from(time: Timestamp) -> Self {
        let seconds = time.0.div_euclid(NANOS);
        Timespec {
            seconds,
            nanos: time.0 - seconds * NANOS,
        }
    }
}

impl Timespec {
    /// As `utimensat` reads it; None if it is not a time.
    pub fn to_set(self) -> Option<SetTime> {
        match self.nanos {
            libc::UTIME_NOW => Some(SetTime::Now),
            libc::UTIME_OMIT => Some(SetTime::Omit),
            0..NANOS => {
                let whole = self.seconds.saturating_mul(NANOS);
                Some(SetTime::At(Timestamp(whole.saturating_add(self.nanos))))
            }
            _ => None,
        }
    }
}

/// `struct timeval`.
#[derive(Clone, Copy, FromBytes)]
#[repr(C)]
pub struct Timeval {
    seconds: i64,
    micros: i64,
}

impl Timeval {
    /// As `utimes` reads it; None if it is not a time.
    pub fn to_set(self) -> Option<SetTime> {
        let valid = (0..1_000_000).contains(&self.micros);
        let time = Timespec {
            seconds: self.seconds,
            nanos: self.micros.wrapping_mul(1000),
        };
        valid.then(|| time.to_set()).flatten()
    }
}

/// `struct utimbuf`.
#[derive(Clone, Copy, FromBytes)]
#[repr(C)]
pub struct Utimbuf {
    /// Access time in seconds.
    pub access: i64,
    /// Modification time in seconds.
    pub modification: i64,
}

/// Whole seconds as a time to set.
pub fn seconds(seconds: i64) -> SetTime {
    SetTime::At(Timestamp(seconds.saturating_mul(NANOS)))
}

/// `struct stat`.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct Stat {
    device: u64,
    ino: u64,
    nlink: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    padding: u32,
    rdev: u64,
    size: i64,
    block_size: i64,
    blocks: i64,
    accessed: Timespec,
    modified: Timespec,
    changed: Timespec,
    unused: [i64; 3],
}

const _: () = assert!(size_of::<Stat>() == 144);

impl From<&FileStat> for Stat {
    #[inline(always)]
    fn from(stat: &FileStat) -> Self {
        Stat {
            device: stat.dev(),
            ino: stat.ino,
            nlink: u64::from(stat.nlink),
            mode: stat.mode,
            uid: stat.uid,
            gid: stat.gid,
            padding: 0,
            rdev: stat.rdev,
            size: stat.size as i64,
            block_size: i64::from(stat.blksize),
            blocks: stat.blocks as i64,
            accessed: stat.atime.into(),
            modified: stat.mtime.into(),
            changed: stat.ctime.into(),
            unused: [0; 3],
        }
    }
}

#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
struct StatxTime {
    seconds: i64,
    nanos: u32,
    padding: u32,
}

impl From<Timestamp> for StatxTime {
    #[inline(always)]
    fn from(time: Timestamp) -> Self {
        let time = Timespec::from(time);
        StatxTime {
            seconds: time.seconds,
            nanos: time.nanos as u32,
            padding: 0,
        }
    }
}

/// Bit of a `statx` mask that the kernel refuses.
pub const STATX_RESERVED: u32 = 1 << 31;

/// `struct statx`.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct Statx {
    mask: u32,
    block_size: u32,
    attributes: u64,
    nlink: u32,
    uid: u32,
    gid: u32,
    mode: u16,
    padding: u16,
    ino: u64,
    size: u64,
    blocks: u64,
    attributes_mask: u64,
    accessed: StatxTime,
    born: StatxTime,
    changed: StatxTime,
    modified: StatxTime,
    rdev_major: u32,
    rdev_minor: u32,
    device_major: u32,
    device_minor: u32,
    unused: [u64; 14],
}

const _: () = assert!(size_of::<Statx>() == 256);

impl From<&FileStat> for Statx {
    #[inline(always)]
    fn from(stat: &FileStat) -> Self {
        Statx {
            mask: libc::STATX_BASIC_STATS | libc::STATX_BTIME,
            block_size: stat.blksize,
            attributes: match stat.mount_root {
                true => libc::STATX_ATTR_MOUNT_ROOT as u64,
                false => 0,
            },
            nlink: stat.nlink,
            uid: stat.uid,
            gid: stat.gid,
            mode: stat.mode as u16,
            padding: 0,
            ino: stat.ino,
            size: stat.size,
            blocks: stat.blocks,
            attributes_mask: libc::STATX_ATTR_MOUNT_ROOT as u64,
            accessed: stat.atime.into(),
            born: stat.btime.into(),
            changed: stat.ctime.into(),
            modified: stat.mtime.into(),
            rdev_major: libc::major(stat.rdev),
            rdev_minor: libc::minor(stat.rdev),
            device_major: stat.dev_major,
            device_minor: stat.dev_minor,
            unused: [0; 14],
        }
    }
}

/// `struct statfs`.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct Statfs {
    kind: i64,
    block_size: i64,
    blocks: u64,
    free: u64,
    available: u64,
    files: u64,
    files_free: u64,
    fsid: [u32; 2],
    name_max: i64,
    fragment_size: i64,
    flags: i64,
    spare: [i64; 4],
}

const _: () = assert!(size_of::<Statfs>() == 120);

impl From<&FsStat> for Statfs {
    fn from(stat: &FsStat) -> Self {
        /// The flags are valid (internal to the kernel interface).
        const ST_VALID: i64 = 0x20;
        let read_only = if stat.read_only {
            libc::ST_RDONLY as i64
        } else {
            0
        };
        Statfs {
            kind: stat.magic as i64,
            block_size: stat.block_size as i64,
            blocks: stat.blocks,
            free: stat.free,
            available: stat.available,
            files: stat.files,
            files_free: stat.files_free,
            fsid: stat.fsid,
            name_max: stat.name_max as i64,
            fragment_size: stat.block_size as i64,
            flags: ST_VALID | read_only,
            spare: [0; 4],
        }
    }
}

/// `struct flock`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Flock {
    /// F_RDLCK, F_WRLCK or F_UNLCK.
    pub kind: i16,
    /// What `start` counts from.
    pub whence: i16,
    /// Padding.
    pub padding: u32,
    /// First byte.
    pub start: i64,
    /// Bytes; 0 to the end.
    pub len: i64,
    /// Holder, for F_GETLK.
    pub pid: i32,
    /// Padding.
    pub padding_end: u32,
}

/// `struct file_clone_range`.
#[derive(Clone, Copy, FromBytes)]
#[repr(C)]
pub struct CloneRange {
    /// Source fd.
    pub source: i64,
    /// First byte of the source.
    pub source_offset: u64,
    /// Bytes; 0 to the end.
    pub len: u64,
    /// First byte of the destination.
    pub target_offset: u64,
}

/// `struct xattr_args`.
#[derive(Clone, Copy, FromBytes)]
#[repr(C)]
pub struct XattrArgs {
    /// Address of the value.
    pub value: u64,
    /// Bytes of the value, or room for it.
    pub size: u32,
    /// XATTR_* flags.
    pub flags: u32,
}

impl XattrArgs {
    /// Where the value begins, and its length.
    pub fn room(&self) -> (usize, usize) {
        (self.value as usize, self.size as usize)
    }
}

/// `struct open_how`.
#[derive(Clone, Copy, FromBytes)]
#[repr(C)]
pub struct OpenHow {
    /// O_* flags.
    pub flags: u64,
    /// Mode of a new file.
    pub mode: u64,
    /// RESOLVE_* flags.
    pub resolve: u64,
}

/// `struct clone_args`, its first version.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct CloneArgs {
    /// CLONE_* flags.
    pub flags: u64,
    /// pidfd, child_tid, parent_tid, exit_signal.
    pub middle: [u64; 4],
    /// Lowest byte of the child's stack, or 0.
    pub stack: u64,
    /// Its size.
    pub stack_size: u64,
    /// Thread pointer.
    pub tls: u64,
}

/// `struct msghdr`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Message {
    /// Address of the peer's name.
    pub name: u64,
    /// Its length, and padding.
    pub name_len: u64,
    /// Address of the vector of buffers.
    pub vectors: u64,
    /// Its length.
    pub vector_count: u64,
    /// Address of the ancillary data.
    pub control: u64,
    /// Its length.
    pub control_len: u64,
    /// Flags and padding.
    pub flags: u64,
}

/// `struct mmsghdr`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct ManyMessage {
    /// The message.
    pub message: Message,
    /// Bytes transferred, and padding.
    pub transferred: u64,
}
