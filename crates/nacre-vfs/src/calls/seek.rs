//! lseek.

use crate::abi::{SEEK_CUR, SEEK_DATA, SEEK_END, SEEK_HOLE, SEEK_SET};
use crate::error::{ErrorKind, VfsError};
use crate::reply::{Answer, Reply, done};
use crate::state::{OpenFile, Vfs};
use nacre_fs::Seek;

impl Vfs {
    /// `lseek`. Positions of directories are the cookies of `getdents`.
    pub fn lseek(&self, fd: i32, offset: i64, whence: i32) -> Answer {
        let Some(file) = self.io_file(fd)? else {
            return Ok(Reply::Kernel);
        };
        let _position = file.lock_position()?;
        let position = file.seek_target(offset, whence)?;
        file.set_position(position);
        done(position as i64)
    }
}

impl OpenFile<'_> {
    fn seek_target(&self, offset: i64, whence: i32) -> Result<u64, VfsError> {
        let base = match whence {
            SEEK_SET => 0,
            SEEK_CUR => self.position(),
            SEEK_END if self.is_directory() => self.mount.fs.getattr(self.node())?.size,
            SEEK_END => self.mount.fs.size(self.node())?,
            SEEK_DATA | SEEK_HOLE => return self.seek_content(offset, whence),
            _ => return Err(ErrorKind::Invalid.into()),
        };
        let sum = i64::try_from(base)
            .ok()
            .and_then(|base| base.checked_add(offset));
        let target = sum.ok_or(ErrorKind::Overflow)?;
        u64::try_from(target).map_err(|_| ErrorKind::Invalid.into())
    }

    fn seek_content(&self, offset: i64, whence: i32) -> Result<u64, VfsError> {
        if self.is_directory() {
            return Err(ErrorKind::Invalid.into());
        }
        let from = u64::try_from(offset).map_err(|_| ErrorKind::NoDevice)?;
        let what = if whence == SEEK_DATA {
            Seek::Data
        } else {
            Seek::Hole
        };
        Ok(self.mount.fs.seek(self.node(), what, from)?)
    }
}
