//! ioctl, and copies from file to file.

use crate::abi::{
    FICLONE, FIGETBSZ, FIOCLEX, FIONBIO, FIONCLEX, FIONREAD, FIOQSIZE, FS_IOC_FIEMAP,
    FS_IOC_FSGETXATTR, FS_IOC_GETFLAGS, FS_IOC_GETVERSION, O_APPEND, S_IFDIR, S_IFREG,
};
use crate::calls::data::offset_of;
use crate::calls::open::{readable, writable};
use crate::error::{ErrorKind, VfsError};
use crate::reply::{Answer, Reply, done, success};
use crate::resolve::subject::follows;
use crate::state::{OpenFile, Vfs};
use nacre_fs::{Caps, Events};

/// Bytes of `struct fsxattr`.
const FSXATTR_LEN: usize = 28;

/// What is to be stored at the argument of an ioctl.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoctlReply {
    /// Nothing.
    Nothing,
    /// An `int`.
    Int(i32),
    /// So many zero bytes.
    Zeros(usize),
}

impl Vfs {
    /// `ioctl(FS_IOC_SETFLAGS)`, and `FS_IOC_FSSETXATTR` with all its words in one: a pool keeps
    /// none of these attributes (`chattr`), so only their absence can be asked for.
    pub fn set_attributes(&self, fd: i32, attributes: u32) -> Answer<IoctlReply> {
        let Some(file) = self.io_file(fd)? else {
            return Ok(Reply::Kernel);
        };
        if !matches!(file.format(), S_IFREG | S_IFDIR) {
            return Err(ErrorKind::NotTty.into());
        }
        file.mount.check_writable()?;
        let owner = file.mount.fs.getattr(file.node())?.uid;
        if owner != self.cred().uid && !self.cred().has(Caps::FOWNER) {
            return Err(ErrorKind::NotPermitted.into());
        }
        match attributes {
            0 => done(IoctlReply::Nothing),
            _ => Err(ErrorKind::Unsupported.into()),
        }
    }

    /// `file_getattr` and `file_setattr`, which tell as much as `FS_IOC_FSGETXATTR`. `flags`: AT_*.
    pub fn file_attributes(&self, dir: i32, path: &[u8], flags: i32) -> Answer {
        self.on_path(dir, path, follows(flags), flags, |_| {
            Err(ErrorKind::Unsupported.into())
        })
    }

    /// The same of an open file.
    pub fn ffile_attributes(&self, fd: i32) -> Answer {
        self.on_fd(fd, |_| Err(ErrorKind::Unsupported.into()))
    }

    /// `ioctl`. For `FICLONE` the argument is the source fd; `FICLONERANGE` is `clone_range`.
    pub fn ioctl(&self, fd: i32, request: u32, arg: u64) -> Answer<IoctlReply> {
        let Some(file) = self.io_file(fd)? else {
            return Ok(Reply::Kernel);
        };
        match request {
            FIOCLEX | FIONCLEX => {
                self.placeholders.set_cloexec(fd, request == FIOCLEX);
                Ok(Reply::Kernel)
            }
            FICLONE => self
                .clone_range(fd, arg as i32, 0, 0, 0)
                .map(|_| Reply::Done(IoctlReply::Nothing)),
            FIONREAD if file.format() == S_IFREG => {
                let left = file
                    .mount
                    .fs
                    .size(file.node())?
                    .saturating_sub(file.position());
                done(IoctlReply::Int(i32::try_from(left).unwrap_or(i32::MAX)))
            }
            FIONBIO => done(IoctlReply::Nothing),
            FIGETBSZ => done(IoctlReply::Int(
                file.mount.fs.getattr(file.node())?.block_size as i32,
            )),
            FS_IOC_GETFLAGS => done(IoctlReply::Int(0)),
            FS_IOC_FSGETXATTR => done(IoctlReply::Zeros(FSXATTR_LEN)),
            FS_IOC_GETVERSION => done(IoctlReply::Int(file.ofd.ino_generation() as i32)),
            FIOQSIZE | FS_IOC_FIEMAP => Err(ErrorKind::Unsupported.into()),
            _ => Err(ErrorKind::NotTty.into()),
        }
    }

    /// `ioctl(FICLONERANGE)`: `len` bytes (0: up to the end) of the source become part of the
    /// destination, sharing units.
    pub fn clone_range(
        &self,
        to_fd: i32,
        from_fd: i32,
        from_offset: u64,
        len: u64,
        to_offset: u64,
    ) -> Answer {
        let Some(to) = self.io_file(to_fd)? else {
            return Ok(Reply::Kernel);
        };
        let Some(from) = self.io_file(from_fd)? else {
            self.kernel().is_cloexec(from_fd)?;
            return Err(ErrorKind::CrossDevice.into());
        };
        check_copy(&from, &to)?;
        let ends = ((from.node(), from_offset), (to.node(), to_offset));
        to.mount.fs.clone_range(self.cred(), ends.0, ends.1, len)?;
        to.tell(Events::MODIFY);
        success()
    }

    /// `copy_file_range`; without an offset the file position is used and moved.
    pub fn copy_file_range(
        &self,
        from_fd: i32,
        from_offset: Option<i64>,
        to_fd: i32,
        to_offset: Option<i64>,
        len: usize,
        flags: u32,
    ) -> Answer {
        let (from, to) = match (self.io_file(from_fd)?, self.io_file(to_fd)?) {
            (None, None) => return Ok(Reply::Kernel),
            (Some(from), Some(to)) => (from, to),
            _ => return Err(ErrorKind::CrossDevice.into()),
        };
        if flags != 0 {
            return Err(ErrorKind::Invalid.into());
        }
        check_copy(&from, &to)?;
        let fits = |offset: i64| (offset as u64).checked_add(len as u64).is_some();
        if ![from_offset, to_offset].into_iter().flatten().all(fits) {
            return Err(ErrorKind::Overflow.into());
        }
        // Positions are locked in the order of descriptions, so that opposite copies cannot wait
        // for each other.
        let ends = (
            from_offset.is_none().then_some(&from),
            to_offset.is_none().then_some(&to),
        );
        let _locks = lock_positions(ends.0, ends.1)?;
        let read_at = from_offset.map_or(Ok(from.position()), offset_of)?;
        let write_at = to_offset.map_or(Ok(to.position()), offset_of)?;
        let fs = &from.mount.fs;
        let (source, target) = ((from.node(), read_at), (to.node(), write_at));
        let copied = fs.copy_range(self.cred(), source, target, len as u64)?;
        if copied > 0 {
            from.tell(Events::ACCESS);
            to.tell(Events::MODIFY);
        }
        if let Some(from) = ends.0 {
            from.set_position(read_at + copied);
        }
        if let Some(to) = ends.1 {
            to.set_position(write_at + copied);
        }
        done(copied as i64)
    }
}

fn check_copy(from: &OpenFile<'_>, to: &OpenFile<'_>) -> Result<(), VfsError> {
    if from.is_directory() || to.is_directory() {
        return Err(ErrorKind::IsDirectory.into());
    }
    if !readable(from.flags()) || !writable(to.flags()) || to.flags() & O_APPEND != 0 {
        return Err(ErrorKind::BadFd.into());
    }
    if from.mount.index != to.mount.index {
        return Err(ErrorKind::CrossDevice.into());
    }
    Ok(())
}

type PositionLocks<'v> = Vec<Option<nacre_fs::OwnedGuard<'v>>>;

fn lock_positions<'v>(
    one: Option<&OpenFile<'v>>,
    other: Option<&OpenFile<'v>>,
) -> Result<PositionLocks<'v>, VfsError> {
    let mut files: Vec<&OpenFile<'v>> = one.into_iter().chain(other).collect();
    files.sort_by_key(|file| file.id.ofd.index);
    files.dedup_by_key(|file| file.id);
    files.into_iter().map(OpenFile::lock_position).collect()
}
