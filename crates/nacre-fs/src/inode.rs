//! What an inode is called and what it looks like from outside.

use crate::error::FsError;
use nacre_store::Attrs;
use nacre_types::{Ino, ObjectId, Timestamp, UNIT_SIZE};

/// The root directory.
pub(crate) const ROOT: ObjectId = ObjectId(1);
const FORMAT_MASK: u32 = 0o170000;
/// All bits that `chmod` may set.
pub(crate) const PERMISSION_MASK: u32 = 0o7777;
/// Bytes of one `Stat::blocks` block.
const STAT_BLOCK: u64 = 512;

/// One incarnation of an inode. The number alone is reused after deletion.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct InodeRef {
    /// Inode number.
    pub ino: Ino,
    /// Distinguishes the objects that have had this number.
    pub generation: u32,
}

impl InodeRef {
    #[inline]
    pub(crate) fn object(self) -> ObjectId {
        self.ino.object()
    }
}

/// The seven types of POSIX files.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum FileType {
    /// Named pipe.
    Fifo = 1,
    /// Character device node.
    CharDevice = 2,
    /// Directory.
    Directory = 4,
    /// Block device node.
    BlockDevice = 6,
    /// Regular file.
    Regular = 8,
    /// Symbolic link.
    Symlink = 10,
    /// Socket.
    Socket = 12,
}

impl FileType {
    /// From the `S_IFMT` part of a mode.
    #[inline]
    pub fn from_mode(mode: u32) -> Option<FileType> {
        FileType::from_dirent((mode >> 12 & 0xf) as u8)
    }

    /// From a `DT_*` value.
    #[inline]
    pub fn from_dirent(value: u8) -> Option<FileType> {
        match value {
            1 => Some(FileType::Fifo),
            2 => Some(FileType::CharDevice),
            4 => Some(FileType::Directory),
            6 => Some(FileType::BlockDevice),
            8 => Some(FileType::Regular),
            10 => Some(FileType::Symlink),
            12 => Some(FileType::Socket),
            _ => None,
        }
    }

    /// The `S_IF*` value.
    pub fn mode_bits(self) -> u32 {
        (self as u32) << 12
    }

    /// The `DT_*` value.
    pub fn dirent_type(self) -> u8 {
        self as u8
    }
}

pub(crate) fn file_type(id: ObjectId, attrs: &Attrs) -> Result<FileType, FsError> {
    FileType::from_mode(attrs.mode & FORMAT_MASK).ok_or_else(|| {
        let what = format!(
            "the inode has the unknown file type of mode {:o}",
            attrs.mode
        );
        FsError::corrupt(id, &what)
    })
}

#[inline]
pub(crate) fn is_directory(attrs: &Attrs) -> bool {
    FileType::from_mode(attrs.mode) == Some(FileType::Directory)
}

pub(crate) fn is_regular(attrs: &Attrs) -> bool {
    FileType::from_mode(attrs.mode) == Some(FileType::Regular)
}

/// Result of a successful lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The inode behind the name.
    pub node: InodeRef,
    /// Its type.
    pub file_type: FileType,
}

/// All that `statx` tells about an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Inode number.
    pub ino: Ino,
    /// Incarnation of the number.
    pub generation: u32,
    /// Type and permission bits.
    pub mode: u32,
    /// Number of names; directories: 2 + subdirectories.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of device nodes.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// Allocated space in 512-byte blocks.
    pub blocks: u64,
    /// Preferred I/O size in bytes.
    pub block_size: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Birth.
    pub btime: Timestamp,
}

impl Stat {
    #[inline(always)]
    pub(crate) fn new(ino: Ino, attrs: &Attrs) -> Stat {
        Stat {
            ino,
            generation: attrs.generation,
            mode: attrs.mode,
            nlink: attrs.nlink,
            uid: attrs.uid,
            gid: attrs.gid,
            rdev: attrs.rdev,
            size: if is_directory(attrs) {
                UNIT_SIZE
            } else {
                attrs.size
            },
            // A hint that no checksum covers: any number may stand there.
            blocks: attrs.units.saturating_mul(UNIT_SIZE / STAT_BLOCK),
            block_size: UNIT_SIZE as u32,
            atime: Timestamp(attrs.atime),
            mtime: Timestamp(attrs.mtime),
            ctime: Timestamp(attrs.ctime),
            btime: Timestamp(attrs.btime),
        }
    }

    /// The type part of the mode.
    pub fn file_type(&self) -> Option<FileType> {
        FileType::from_mode(self.mode)
    }

    /// The inode that was asked about.
    pub fn node(&self) -> InodeRef {
        InodeRef {
            ino: self.ino,
            generation: self.generation,
        }
    }
}
