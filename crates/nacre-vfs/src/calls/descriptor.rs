//! close, dup and their relatives, and fcntl on numbers and flags.

use crate::abi::{
    CLOSE_RANGE_CLOEXEC, F_DUPFD, F_DUPFD_CLOEXEC, F_DUPFD_QUERY, F_GETFD, F_GETFL, F_GETLEASE,
    F_GETOWN, F_GETOWN_EX, F_GETPIPE_SZ, F_GETSIG, F_SETFD, F_SETFL, F_SETOWN, F_SETOWN_EX,
    F_SETPIPE_SZ, F_SETSIG, O_APPEND, O_ASYNC, O_CLOEXEC, O_DIRECT, O_NOATIME, O_NONBLOCK, O_PATH,
};
use crate::error::{ErrorKind, VfsError};
use crate::fd::table::{FdEntry, FileId, TABLE_LEN};
use crate::reply::{Answer, Reply, done, success};
use crate::state::{OpenFile, Vfs};
use nacre_fs::Caps;
use nacre_session::{OFD_SYNCED, OFD_WATCHED};
use std::sync::atomic::Ordering;

/// Flags that `F_SETFL` may change.
const SETTABLE: u32 = O_APPEND | O_ASYNC | O_DIRECT | O_NOATIME | O_NONBLOCK;
const F_UNLCK_RESULT: i64 = 2;
const FD_CLOEXEC: i64 = 1;

impl Vfs {
    /// As `close`, for a file of a pool that is known by a low number. Returns `None` if the fast
    /// path does not apply.
    #[inline]
    pub fn try_close_fast(&self, fd: i32) -> Option<Result<(), VfsError>> {
        let id = self.table.low_file(fd)?;
        Some(self.close_file(fd, id))
    }

    /// `close`. The kernel closes fds that are not ours; `closed_in_kernel` must follow.
    pub fn close(&self, fd: i32) -> Answer {
        let id = match self.table.get(fd) {
            Some(FdEntry::Pool(id)) => id,
            Some(FdEntry::Cached) => return Err(ErrorKind::BadFd.into()),
            // What the kernel opens there next is the host's too, or is told by whoever receives
            // it.
            Some(FdEntry::Host) => return Ok(Reply::Kernel),
            Some(FdEntry::Unknown) if !self.alone() => return self.close_unentered(fd),
            _ => match self.file(fd)? {
                Some(file) => file.id,
                None => {
                    self.forget(fd);
                    return Ok(Reply::Kernel);
                }
            },
        };
        self.close_file(fd, id)?;
        success()
    }

    /// Closes a number that is not entered. What is a pool's there is being opened or closed by
    /// another thread.
    #[cold]
    fn close_unentered(&self, fd: i32) -> Answer {
        match self.unentered_file(fd)? {
            Some(_) => Err(ErrorKind::BadFd.into()),
            None => Ok(Reply::Kernel),
        }
    }

    #[inline]
    fn close_file(&self, fd: i32, id: FileId) -> Result<(), VfsError> {
        if self.has_record_locks.load(Ordering::Relaxed)
            && let Some(file) = self.file(fd)?
        {
            self.drop_record_locks(&file);
        }
        if fd < TABLE_LEN {
            return self.let_placeholder_go(fd, id);
        }
        self.release(id);
        self.close_placeholder(fd)
    }

    /// Ends this process's use of a file through one of its fds; the kernel fd stays.
    fn let_go(&self, fd: i32) -> Result<(), VfsError> {
        if let Some(file) = self.file(fd)? {
            self.drop_record_locks(&file);
        }
        self.placeholders.share(fd);
        self.forget(fd);
        Ok(())
    }

    /// Empties an entry.
    pub(crate) fn forget(&self, fd: i32) {
        if !self.table.needs_chunk(fd)
            && let FdEntry::Pool(id) = self.table.set(fd, FdEntry::Unknown, self.alone())
        {
            self.release(id);
        }
    }

    /// `close_range`. Lets go of the files of pools; the kernel then closes all the numbers, and
    /// `closed_in_kernel` must follow.
    pub fn close_range(&self, first: u32, last: u32, flags: u32) -> Answer {
        if first > last {
            return Ok(Reply::Kernel);
        }
        self.unpark_all();
        let last = last.min(TABLE_LEN as u32 - 1);
        for fd in first as i32..=last as i32 {
            match self.table.get(fd) {
                Some(FdEntry::Pool(id)) if flags & CLOSE_RANGE_CLOEXEC != 0 => {
                    self.show_placeholder(fd, id)?
                }
                Some(FdEntry::Pool(_)) => self.let_go(fd)?,
                Some(FdEntry::Host) => self.forget(fd),
                _ => {}
            }
        }
        Ok(Reply::Kernel)
    }

    /// `dup`.
    pub fn dup(&self, fd: i32) -> Answer {
        self.dup_at_least(fd, 0, false)
    }

    fn dup_at_least(&self, fd: i32, at_least: i32, cloexec: bool) -> Answer {
        let file = self.file(fd)?;
        self.unpark_all();
        let Some(file) = file else {
            return Ok(Reply::Kernel);
        };
        self.show_placeholder(fd, file.id)?;
        self.uses.add(file.id, self.alone());
        match self.kernel().dup(fd, at_least, cloexec) {
            Ok(new) => {
                self.enter(new, file.id);
                done(new.into())
            }
            Err(error) => {
                self.release(file.id);
                Err(error.into())
            }
        }
    }

    /// `dup2`.
    pub fn dup2(&self, old: i32, new: i32) -> Answer {
        if old == new {
            return match self.file(old)? {
                Some(_) => done(new.into()),
                None => Ok(Reply::Kernel),
            };
        }
        self.dup3(old, new, 0)
    }

    /// `dup3`.
    pub fn dup3(&self, old: i32, new: i32, flags: i32) -> Answer {
        self.unpark(new);
        let source = self.file(old)?;
        let replaced = self.file(new)?;
        if source.is_none() && replaced.is_none() {
            self.forget(new);
            return Ok(Reply::Kernel);
        }
        if old == new || flags & !(O_CLOEXEC as i32) != 0 {
            return Err(ErrorKind::Invalid.into());
        }
        match &replaced {
            Some(file) => self.show_placeholder(new, file.id)?,
            None => self.placeholders.share(new),
        }
        if let Some(file) = &source {
            self.show_placeholder(old, file.id)?;
            self.uses.add(file.id, self.alone());
        }
        if let Err(error) = self.kernel().dup_onto(old, new, flags) {
            if let Some(file) = &source {
                self.release(file.id);
            }
            return Err(error.into());
        }
        if let Some(file) = &replaced {
            self.drop_record_locks(file);
        }
        self.take_place(new, source.as_ref().map(|file| file.id), replaced);
        done(new.into())
    }

    /// Puts a description into the place of another one.
    fn take_place(&self, fd: i32, id: Option<FileId>, replaced: Option<OpenFile<'_>>) {
        if fd >= TABLE_LEN {
            if let Some(old) = replaced {
                self.release(old.id);
            }
            return;
        }
        match id {
            Some(id) => self.enter(fd, id),
            None => self.forget(fd),
        }
    }

    /// `fcntl`, without the lock commands.
    pub fn fcntl(&self, fd: i32, cmd: i32, arg: i64) -> Answer {
        let duplicates = matches!(cmd, F_DUPFD | F_DUPFD_CLOEXEC);
        let Some(file) = self.file(fd)? else {
            if duplicates {
                self.unpark_all();
            }
            return Ok(Reply::Kernel);
        };
        let path_only = file.flags() & O_PATH != 0;
        match cmd {
            _ if duplicates => self.dup_at_least(fd, arg as i32, cmd == F_DUPFD_CLOEXEC),
            F_GETFD => Ok(Reply::Kernel),
            F_SETFD => {
                self.placeholders.set_cloexec(fd, arg & FD_CLOEXEC != 0);
                Ok(Reply::Kernel)
            }
            F_GETFL => done((file.flags() & !(OFD_SYNCED | OFD_WATCHED)).into()),
            F_DUPFD_QUERY => done(
                self.file(arg as i32)?
                    .is_some_and(|other| other.id == file.id)
                    .into(),
            ),
            _ if path_only => Err(ErrorKind::BadFd.into()),
            F_SETFL => self.set_flags(&file, arg as u32),
            F_GETLEASE => done(F_UNLCK_RESULT),
            F_SETPIPE_SZ | F_GETPIPE_SZ => Err(ErrorKind::BadFd.into()),
            // The C library asks for the owner by the longer form.
            F_GETOWN | F_GETOWN_EX | F_GETSIG | F_SETOWN | F_SETOWN_EX | F_SETSIG => {
                Ok(Reply::Kernel)
            }
            _ => Err(ErrorKind::Invalid.into()),
        }
    }

    fn set_flags(&self, file: &OpenFile<'_>, flags: u32) -> Answer {
        if flags & !file.flags() & O_NOATIME != 0 && !self.cred().has(Caps::FOWNER) {
            let owner = file.mount.fs.getattr(file.node())?.uid;
            if owner != self.cred().uid {
                return Err(ErrorKind::NotPermitted.into());
            }
        }
        let change = |old: u32| Some(old & !SETTABLE | flags & SETTABLE);
        // The closure always gives a value, so the update cannot fail.
        let _ = file
            .ofd
            .flags
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
        success()
    }
}
