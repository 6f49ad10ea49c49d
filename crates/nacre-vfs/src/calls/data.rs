//! Reading and writing.

use crate::abi::{
    O_APPEND, O_NOATIME, O_PATH, RWF_APPEND, RWF_KNOWN, RWF_NOAPPEND, RWF_NOWAIT, RWF_SYNCED,
};
use crate::calls::later::Wish;
use crate::calls::open::{readable, writable};
use crate::error::{ErrorKind, VfsError};
use crate::reply::{Answer, Reply, done};
use crate::state::{FdSnapshot, OpenFile, Vfs};
use nacre_fs::{Events, WriteAt, Written};
use nacre_media::{UserBytes, UserBytesMut};
use nacre_session::{OFD_SYNCED, OFD_WATCHED};
use nacre_types::FileOffset;
use std::sync::atomic::Ordering;

/// Most bytes that one call transfers, as in the kernel.
const TRANSFER_MAX: usize = 0x7fff_f000;
/// Offset that means "the file position" in `preadv2` and `pwritev2`.
const AT_POSITION: i64 = -1;

impl Vfs {
    /// `read`.
    #[inline(always)]
    pub fn read(&self, fd: i32, mut buffer: UserBytesMut<'_>) -> Answer {
        if let Some(file) = self.snapshot_alone(fd)
            && let Some(len) = file.try_read_next_fast(&mut buffer)
        {
            return done(len as i64);
        }
        self.read_slow(fd, buffer)
    }

    #[inline(never)]
    fn read_slow(&self, fd: i32, mut buffer: UserBytesMut<'_>) -> Answer {
        let Some(file) = self.file_to_read(fd)? else {
            return Ok(Reply::Kernel);
        };
        let position = file.lock_position()?;
        if position.is_some()
            && let Some(len) = file.snapshot().try_read_next_fast(&mut buffer)
        {
            return done(len as i64);
        }
        let at = file.position();
        let len = file.read_at(at, &mut buffer)?;
        file.set_position(at + len as u64);
        done(len as i64)
    }

    /// As `pread`, if that is done at once and changes nothing, so that a handler may interrupt it
    /// and never come back. Returns `None` if the fast path does not apply.
    #[inline(always)]
    pub fn try_pread_fast(
        &self,
        fd: i32,
        mut buffer: UserBytesMut<'_>,
        offset: i64,
    ) -> Option<usize> {
        let file = self.snapshot(fd)?;
        let at = u64::try_from(offset).ok()?;
        file.is_plainly_readable().then(|| {
            file.fs
                .try_read_only_fast(file.node, FileOffset(at), &mut buffer)
        })?
    }

    /// `pread64`.
    #[inline(always)]
    pub fn pread(&self, fd: i32, mut buffer: UserBytesMut<'_>, offset: i64) -> Answer {
        if let Some(file) = self.snapshot(fd)
            && let Ok(at) = u64::try_from(offset)
            && let Some(len) = file.try_read_fast(at, &mut buffer)
        {
            return done(len as i64);
        }
        self.pread_slow(fd, buffer, offset)
    }

    #[inline(never)]
    fn pread_slow(&self, fd: i32, mut buffer: UserBytesMut<'_>, offset: i64) -> Answer {
        let Some(file) = self.file_to_read(fd)? else {
            return Ok(Reply::Kernel);
        };
        done(file.read_at(offset_of(offset)?, &mut buffer)? as i64)
    }

    /// `readv`.
    pub fn readv(&self, fd: i32, buffers: &mut [UserBytesMut<'_>]) -> Answer {
        self.preadv2(fd, buffers, AT_POSITION, 0)
    }

    /// `preadv`.
    pub fn preadv(&self, fd: i32, buffers: &mut [UserBytesMut<'_>], offset: i64) -> Answer {
        if offset < 0 {
            return Err(ErrorKind::Invalid.into());
        }
        self.preadv2(fd, buffers, offset, 0)
    }

    /// `preadv2`; offset -1 is the file position.
    pub fn preadv2(
        &self,
        fd: i32,
        buffers: &mut [UserBytesMut<'_>],
        offset: i64,
        flags: u32,
    ) -> Answer {
        match self.file_to_read(fd)? {
            Some(file) => file.preadv2(buffers, offset, flags),
            None => Ok(Reply::Kernel),
        }
    }

    /// `write`.
    #[inline(always)]
    pub fn write(&self, fd: i32, bytes: UserBytes<'_>) -> Answer {
        if let Some(file) = self.snapshot_alone(fd)
            && let Some(len) = self.try_write_next_fast(&file, bytes)
        {
            return done(len? as i64);
        }
        self.write_slow(fd, bytes)
    }

    /// Writes at the position, which nobody else moves meanwhile, and moves it, if that is done at
    /// once. Returns `None` if the fast path does not apply.
    #[inline(always)]
    fn try_write_next_fast(
        &self,
        file: &FdSnapshot<'_>,
        bytes: UserBytes<'_>,
    ) -> Option<Result<usize, VfsError>> {
        let at = file.ofd.pos.load(Ordering::Relaxed);
        if at != 0 && at == file.ofd.grown_to.load(Ordering::Relaxed) {
            return self.try_append_fast(file, at, bytes);
        }
        let written = self.try_overwrite_fast(file, at, bytes)?;
        if let Ok(len) = written {
            file.ofd.pos.store(at + len as u64, Ordering::Relaxed);
        }
        Some(written)
    }

    /// As [`Vfs::try_write_next_fast`] at a position up to which the description has made its file
    /// longer before.
    #[inline(never)]
    fn try_append_fast(
        &self,
        file: &FdSnapshot<'_>,
        at: u64,
        bytes: UserBytes<'_>,
    ) -> Option<Result<usize, VfsError>> {
        if !self.is_plainly_writable(file) {
            return None;
        }
        let written = file.fs.try_append_fast(file.node, FileOffset(at), bytes)?;
        if let Ok(len) = written {
            let end = at + len as u64;
            file.ofd.pos.store(end, Ordering::Relaxed);
            file.ofd.grown_to.store(end, Ordering::Relaxed);
        }
        Some(written.map_err(VfsError::from))
    }

    #[inline(never)]
    fn write_slow(&self, fd: i32, bytes: UserBytes<'_>) -> Answer {
        let Some(file) = self.file_to_write(fd)? else {
            return Ok(Reply::Kernel);
        };
        let position = file.lock_position()?;
        if position.is_some()
            && let Some(len) = self.try_write_next_fast(&file.snapshot(), bytes)
        {
            return done(len? as i64);
        }
        let append = file.flags() & O_APPEND != 0;
        self.write_at_position(&file, &[bytes], append)
    }

    /// `pwrite64`. As on Linux, a file in append mode is appended to whatever the offset.
    #[inline(always)]
    pub fn pwrite(&self, fd: i32, bytes: UserBytes<'_>, offset: i64) -> Answer {
        if let Some(file) = self.snapshot(fd)
            && let Ok(at) = u64::try_from(offset)
            && let Some(len) = self.try_overwrite_fast(&file, at, bytes)
        {
            return done(len? as i64);
        }
        self.pwrite_slow(fd, bytes, offset)
    }

    #[inline(never)]
    fn pwrite_slow(&self, fd: i32, bytes: UserBytes<'_>, offset: i64) -> Answer {
        let Some(file) = self.file_to_write(fd)? else {
            return Ok(Reply::Kernel);
        };
        let offset = offset_of(offset)?;
        let append = file.flags() & O_APPEND != 0;
        done(
            self.write_parts(&file, where_to(append, offset), &[bytes])?
                .len as i64,
        )
    }

    /// `writev`.
    pub fn writev(&self, fd: i32, parts: &[UserBytes<'_>]) -> Answer {
        self.pwritev2(fd, parts, AT_POSITION, 0)
    }

    /// `pwritev`.
    pub fn pwritev(&self, fd: i32, parts: &[UserBytes<'_>], offset: i64) -> Answer {
        if offset < 0 {
            return Err(ErrorKind::Invalid.into());
        }
        self.pwritev2(fd, parts, offset, 0)
    }

    /// `pwritev2`; offset -1 is the file position.
    pub fn pwritev2(&self, fd: i32, parts: &[UserBytes<'_>], offset: i64, flags: u32) -> Answer {
        match self.file_to_write(fd)? {
            Some(file) => file.pwritev2(parts, offset, flags),
            None => Ok(Reply::Kernel),
        }
    }

    #[inline(always)]
    fn try_overwrite_fast(
        &self,
        file: &FdSnapshot<'_>,
        at: u64,
        bytes: UserBytes<'_>,
    ) -> Option<Result<usize, VfsError>> {
        if file.flags & O_APPEND != 0 || !self.is_plainly_writable(file) {
            return None;
        }
        let at = FileOffset(at);
        let written = file.fs.try_overwrite_fast(file.node, at, bytes)?;
        Some(written.map_err(VfsError::from))
    }

    #[inline(always)]
    fn is_plainly_writable(&self, file: &FdSnapshot<'_>) -> bool {
        writable(file.flags)
            && file.flags & (O_PATH | OFD_SYNCED | OFD_WATCHED) == 0
            && self.file_size_limit.load(Ordering::Relaxed) == u64::MAX
    }

    /// The caller has locked the position.
    #[inline]
    fn write_at_position(
        &self,
        file: &OpenFile<'_>,
        parts: &[UserBytes<'_>],
        append: bool,
    ) -> Answer {
        let written = self.write_parts(file, where_to(append, file.position()), parts)?;
        if written.len > 0 {
            file.set_position(written.end.0);
        }
        if written.grown {
            file.ofd.grown_to.store(written.end.0, Ordering::Relaxed);
        }
        done(written.len as i64)
    }

    #[inline]
    fn write_parts(
        &self,
        file: &OpenFile<'_>,
        at: WriteAt,
        parts: &[UserBytes<'_>],
    ) -> Result<Written, VfsError> {
        let total = parts
            .iter()
            .fold(0, |sum: usize, part| sum.saturating_add(part.len()));
        if let WriteAt::Offset(start) = at {
            check_end(start.0, total)?;
        }
        let allowed = self.allowed_by_limit(file, &at, total.min(TRANSFER_MAX))?;
        if total == 0 {
            return Ok(Written {
                len: 0,
                end: FileOffset(file.position()),
                grown: false,
            });
        }
        let (fs, cred, node) = (&file.mount.fs, self.cred(), file.node());
        let written = match parts {
            _ if allowed < total => {
                fs.write_vectored(cred, node, at, &shortened(parts, allowed))?
            }
            [one] => fs.write(cred, node, at, *one)?,
            _ => fs.write_vectored(cred, node, at, parts)?,
        };
        if file.flags() & (OFD_SYNCED | OFD_WATCHED) != 0 {
            file.after_write(&written)?;
        }
        Ok(written)
    }

    /// How much of a write `RLIMIT_FSIZE` leaves; at the limit the program also gets its signal.
    #[inline]
    fn allowed_by_limit(
        &self,
        file: &OpenFile<'_>,
        at: &WriteAt,
        len: usize,
    ) -> Result<usize, VfsError> {
        let limit = self.file_size_limit.load(Ordering::Relaxed);
        if limit == u64::MAX || len == 0 {
            return Ok(len);
        }
        let start = match at {
            WriteAt::Offset(offset) => offset.0,
            WriteAt::Append => file.mount.fs.size(file.node())?,
        };
        if start >= limit {
            self.kernel().raise_file_size_signal();
            return Err(ErrorKind::FileTooBig.into());
        }
        Ok(len.min(usize::try_from(limit - start).unwrap_or(usize::MAX)))
    }

    /// Refuses to make a file longer than `RLIMIT_FSIZE`.
    pub(crate) fn check_size_limit(&self, size: u64) -> Result<(), VfsError> {
        if size > self.file_size_limit.load(Ordering::Relaxed) {
            self.kernel().raise_file_size_signal();
            return Err(ErrorKind::FileTooBig.into());
        }
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn file_to_read(&self, fd: i32) -> Result<Option<OpenFile<'_>>, VfsError> {
        match self.io_file(fd)? {
            Some(file) if !readable(file.flags()) => Err(ErrorKind::BadFd.into()),
            Some(file) if file.is_directory() => Err(ErrorKind::IsDirectory.into()),
            other => Ok(other),
        }
    }

    #[inline(always)]
    pub(crate) fn file_to_write(&self, fd: i32) -> Result<Option<OpenFile<'_>>, VfsError> {
        match self.io_file(fd)? {
            Some(file) if !writable(file.flags()) => Err(ErrorKind::BadFd.into()),
            other => Ok(other),
        }
    }
}

impl FdSnapshot<'_> {
    #[inline(always)]
    fn is_plainly_readable(&self) -> bool {
        readable(self.flags) && self.flags & (O_PATH | O_NOATIME | OFD_WATCHED) == 0
    }

    #[inline(always)]
    fn try_read_fast(&self, at: u64, buffer: &mut UserBytesMut<'_>) -> Option<usize> {
        if !self.is_plainly_readable() {
            return None;
        }
        self.fs.try_read_fast(self.node, FileOffset(at), buffer)
    }

    /// Reads at the position, which nobody else moves meanwhile, and moves it, if that is done at
    /// once. Returns `None` if the fast path does not apply.
    #[inline(always)]
    fn try_read_next_fast(&self, buffer: &mut UserBytesMut<'_>) -> Option<usize> {
        let at = self.ofd.pos.load(Ordering::Relaxed);
        let len = self.try_read_fast(at, buffer)?;
        self.ofd.pos.store(at + len as u64, Ordering::Relaxed);
        Some(len)
    }
}

impl OpenFile<'_> {
    pub(crate) fn preadv2(
        &self,
        buffers: &mut [UserBytesMut<'_>],
        offset: i64,
        flags: u32,
    ) -> Answer {
        check_flags(flags)?;
        if flags & RWF_NOWAIT != 0 {
            self.refuse_to_wait(offset, buffers)?;
        }
        if offset != AT_POSITION {
            return done(self.read_parts(offset_of(offset)?, buffers)? as i64);
        }
        let _position = self.lock_position()?;
        let at = self.position();
        let len = self.read_parts(at, buffers)?;
        self.set_position(at + len as u64);
        done(len as i64)
    }

    #[cold]
    fn refuse_to_wait(&self, offset: i64, buffers: &[UserBytesMut<'_>]) -> Result<(), VfsError> {
        let offset = match offset {
            AT_POSITION => self.position(),
            given => offset_of(given)?,
        };
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        match self.would_wait(Wish::Read { offset, len }) {
            true => Err(ErrorKind::WouldBlock.into()),
            false => Ok(()),
        }
    }

    pub(crate) fn pwritev2(&self, parts: &[UserBytes<'_>], offset: i64, flags: u32) -> Answer {
        check_flags(flags)?;
        let done_with = |answer: Answer| {
            if flags & RWF_SYNCED != 0 {
                self.mount.fs.fsync(self.node())?;
            }
            answer
        };
        let append =
            (self.flags() & O_APPEND != 0 && flags & RWF_NOAPPEND == 0) || flags & RWF_APPEND != 0;
        if offset == AT_POSITION {
            let _position = self.lock_position()?;
            return done_with(self.vfs.write_at_position(self, parts, append));
        }
        let offset = offset_of(offset)?;
        let written = self
            .vfs
            .write_parts(self, where_to(append, offset), parts)?;
        done_with(done(written.len as i64))
    }

    #[inline]
    fn read_at(&self, at: u64, buffer: &mut UserBytesMut<'_>) -> Result<usize, VfsError> {
        check_end(at, buffer.len())?;
        let len = buffer.len().min(TRANSFER_MAX);
        let into = buffer.slice(0..len);
        let read = if self.flags() & O_NOATIME != 0 {
            self.mount
                .fs
                .read_noatime(self.node(), FileOffset(at), into)
        } else {
            self.mount.fs.read(self.node(), FileOffset(at), into)
        };
        let read = read?;
        if read > 0 {
            self.tell(Events::ACCESS);
        }
        Ok(read)
    }

    /// What a write of a file with a mark takes beyond itself.
    #[cold]
    #[inline(never)]
    fn after_write(&self, written: &Written) -> Result<(), VfsError> {
        if self.flags() & OFD_SYNCED != 0 {
            self.mount.fs.fsync(self.node())?;
        }
        if written.len > 0 {
            self.tell(Events::MODIFY);
        }
        Ok(())
    }

    /// Fills the buffers in turn until one stays short.
    fn read_parts(&self, at: u64, buffers: &mut [UserBytesMut<'_>]) -> Result<usize, VfsError> {
        let mut total = 0;
        for buffer in buffers {
            let wanted = buffer.len().min(TRANSFER_MAX - total);
            let read = self.read_at(at + total as u64, &mut buffer.slice(0..wanted));
            match read {
                Ok(len) => total += len,
                Err(error) if total == 0 => return Err(error),
                Err(_) => break,
            }
            if read.is_ok_and(|len| len < buffer.len()) {
                break;
            }
        }
        Ok(total)
    }
}

#[inline]
fn where_to(append: bool, offset: u64) -> WriteAt {
    if append {
        WriteAt::Append
    } else {
        WriteAt::Offset(FileOffset(offset))
    }
}

fn shortened<'a>(parts: &[UserBytes<'a>], mut allowed: usize) -> Vec<UserBytes<'a>> {
    let mut out = Vec::with_capacity(parts.len());
    for part in parts {
        let len = part.len().min(allowed);
        out.push(part.slice(0..len));
        allowed -= len;
    }
    out
}

/// An offset given by a program.
#[inline]
pub(crate) fn offset_of(offset: i64) -> Result<u64, VfsError> {
    u64::try_from(offset).map_err(|_| ErrorKind::Invalid.into())
}

/// A transfer may not end where no offset can name it.
#[inline]
fn check_end(start: u64, len: usize) -> Result<(), VfsError> {
    match start.checked_add(len as u64) {
        Some(end) if i64::try_from(end).is_ok() => Ok(()),
        _ => Err(ErrorKind::Invalid.into()),
    }
}

fn check_flags(flags: u32) -> Result<(), VfsError> {
    if flags & !(RWF_KNOWN | RWF_NOAPPEND) != 0 {
        return Err(ErrorKind::Unsupported.into());
    }
    Ok(())
}
