//! stat, statx, access, statfs.

use crate::abi::{AT_EACCESS, AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW};
use crate::error::{ErrorKind, VfsError};
use crate::path::mount::Mount;
use crate::reply::{Answer, Reply, done, success};
use crate::resolve::subject::{Subject, follows};
use crate::resolve::walk::Lookup;
use crate::state::Vfs;
use nacre_fs::{Access, FileType, Stat};
use nacre_types::Timestamp;

/// What `statfs` shows as the file system's type.
pub const NACRE_MAGIC: u64 = 0x4e41_4352;

/// Everything that `stat` and `statx` tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileStat {
    /// Major number of the device; the same for all pools.
    pub dev_major: u32,
    /// Minor number of the device; by pool.
    pub dev_minor: u32,
    /// Inode number.
    pub ino: u64,
    /// Type and permissions.
    pub mode: u32,
    /// Names of the inode.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, in the kernel's 64-bit encoding.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// Preferred I/O size in bytes.
    pub blksize: u32,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last write.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// Whether this is the root of a mount.
    pub mount_root: bool,
}

impl FileStat {
    #[inline(always)]
    fn new(mount: &Mount, stat: &Stat) -> FileStat {
        FileStat {
            dev_major: mount.device().0,
            dev_minor: mount.device().1,
            ino: stat.ino.0,
            mode: stat.mode,
            nlink: stat.nlink,
            uid: stat.uid,
            gid: stat.gid,
            rdev: stat.rdev,
            size: stat.size,
            blksize: stat.block_size,
            blocks: stat.blocks,
            atime: stat.atime,
            mtime: stat.mtime,
            ctime: stat.ctime,
            btime: stat.btime,
            mount_root: stat.ino == mount.fs.root().ino,
        }
    }

    /// Device number in Linux's 64-bit encoding, as `st_dev` has it.
    pub fn dev(&self) -> u64 {
        let (major, minor) = (u64::from(self.dev_major), u64::from(self.dev_minor));
        (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12 | (major & !0xfff) << 32
    }
}

fn subject_stat(subject: &Subject<'_>) -> Answer<FileStat> {
    let stat = subject.mount.fs.getattr(subject.node)?;
    done(FileStat::new(subject.mount, &stat))
}

/// What `statfs` tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FsStat {
    /// Type of the file system.
    pub magic: u64,
    /// Bytes of a block.
    pub block_size: u64,
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Free blocks for ordinary users.
    pub available: u64,
    /// Inodes in all.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Identity of the file system.
    pub fsid: [u32; 2],
    /// Longest name in bytes.
    pub name_max: u64,
    /// Mounted for reading only.
    pub read_only: bool,
}

impl Vfs {
    /// `fstat`.
    #[inline]
    pub fn fstat(&self, fd: i32) -> Answer<FileStat> {
        match self.file(fd)? {
            Some(file) => done(FileStat::new(
                file.mount,
                &file.mount.fs.getattr(file.node())?,
            )),
            None => self.on_node(fd, |subject| subject_stat(&subject)),
        }
    }

    /// As `fstatat` with a path and no flags but whether a link is followed, if that is done at
    /// once: `tell` is told, or the name stands for nothing. Returns `None` if the fast path does
    /// not apply.
    #[inline(always)]
    pub fn try_stat_fast<T>(
        &self,
        dirfd: i32,
        path: &[u8],
        follow: bool,
        tell: impl FnOnce(&FileStat) -> T,
    ) -> Option<Result<T, VfsError>> {
        let spot = self.plain_spot(dirfd, path, Lookup::following(follow))?;
        let Some(found) = spot.found else {
            return Some(Err(ErrorKind::NotFound.into()));
        };
        let stat = spot.mount.fs.getattr(found.node).ok()?;
        Some(Ok(tell(&FileStat::new(spot.mount, &stat))))
    }

    /// `newfstatat` and `statx`; also `stat` and `lstat`.
    pub fn fstatat(&self, dirfd: i32, path: &[u8], flags: i32) -> Answer<FileStat> {
        self.on_path(dirfd, path, follows(flags), flags, |subject| {
            subject_stat(&subject)
        })
    }

    /// `faccessat2`; also `access` and `faccessat`.
    pub fn faccessat(&self, dirfd: i32, path: &[u8], mode: i32, flags: i32) -> Answer {
        let known = AT_SYMLINK_NOFOLLOW | AT_EACCESS | AT_EMPTY_PATH;
        let identity = self.identity();
        let cred = if flags & AT_EACCESS != 0 {
            &identity.effective
        } else {
            &identity.real
        };
        self.on_path(dirfd, path, follows(flags), flags, |subject| {
            let wanted = u32::try_from(mode).ok().and_then(Access::from_bits);
            let wanted = wanted.ok_or(ErrorKind::Invalid)?;
            if flags & !known != 0 {
                return Err(ErrorKind::Invalid.into());
            }
            subject.mount.fs.access(cred, subject.node, wanted)?;
            if wanted.contains(Access::WRITE) && subject.is_plain()? {
                subject.mount.check_writable()?;
            }
            success()
        })
    }

    /// `statfs`.
    pub fn statfs(&self, path: &[u8]) -> Answer<FsStat> {
        self.on_path(AT_FDCWD, path, true, 0, |subject| subject.mount.statfs())
    }

    /// `fstatfs`.
    pub fn fstatfs(&self, fd: i32) -> Answer<FsStat> {
        match self.file(fd)? {
            Some(file) => file.mount.statfs(),
            None => Ok(Reply::Kernel),
        }
    }
}

impl Subject<'_> {
    /// Whether writing would change the file system itself, not a device or a pipe.
    fn is_plain(&self) -> Result<bool, VfsError> {
        let file_type = self.mount.fs.getattr(self.node)?.file_type();
        Ok(matches!(
            file_type,
            Some(FileType::Regular | FileType::Directory | FileType::Symlink)
        ))
    }
}

impl Mount {
    fn statfs(&self) -> Answer<FsStat> {
        let stat = self.fs.statfs()?;
        done(FsStat {
            magic: NACRE_MAGIC,
            block_size: stat.unit_size.into(),
            blocks: stat.units,
            free: stat.free_units,
            available: stat.available_units,
            files: stat.objects,
            files_free: stat.free_objects,
            fsid: [stat.id as u32, (stat.id >> 32) as u32],
            name_max: stat.name_max.into(),
            read_only: self.read_only || stat.read_only,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::FileStat;
    use nacre_types::Timestamp;

    #[test]
    fn device_numbers_are_encoded_as_the_kernel_does() {
        let zero = Timestamp(0);
        let stat = FileStat {
            dev_major: 0x1_2345,
            dev_minor: 0xa_bcde,
            ino: 1,
            mode: 0,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blksize: 4096,
            blocks: 0,
            atime: zero,
            mtime: zero,
            ctime: zero,
            btime: zero,
            mount_root: false,
        };
        assert_eq!(stat.dev(), rustix::fs::makedev(0x1_2345, 0xa_bcde));
    }
}
