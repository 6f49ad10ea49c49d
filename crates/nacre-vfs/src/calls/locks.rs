//! Advisory locks: POSIX record locks, open-file-description locks, flock.

use crate::abi::{
    F_GETLK, F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW, F_RDLCK, F_SETLK, F_SETLKW, F_UNLCK, F_WRLCK,
    LOCK_EX, LOCK_MAND, LOCK_NB, LOCK_SH, LOCK_UN, SEEK_CUR, SEEK_END, SEEK_SET,
};
use crate::calls::open::{readable, writable};
use crate::error::{ErrorKind, VfsError};
use crate::reply::{Answer, Reply, success};
use crate::state::{OpenFile, Vfs};
use nacre_session::{AdvisoryError, Conflict, LockKind, LockOwner, LockRange, LockRequest};
use std::sync::atomic::Ordering;

/// The last byte a lock can cover.
const LAST: u64 = i64::MAX as u64;
/// What `l_pid` shows for locks of open file descriptions.
const NO_PID: i32 = -1;

/// `struct flock`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileLock {
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: i16,
    /// What `start` is relative to: `SEEK_SET`, `SEEK_CUR` or `SEEK_END`.
    pub whence: i16,
    /// First byte.
    pub start: i64,
    /// Bytes; 0 up to any end of the file, negative before `start`.
    pub len: i64,
    /// Holder of a conflicting lock.
    pub pid: i32,
}

impl From<AdvisoryError> for VfsError {
    fn from(error: AdvisoryError) -> VfsError {
        VfsError::Refused(match error {
            AdvisoryError::WouldBlock => ErrorKind::WouldBlock,
            AdvisoryError::NoLocks => ErrorKind::NoLocks,
            AdvisoryError::Deadlock => ErrorKind::Deadlock,
            AdvisoryError::Interrupted => ErrorKind::Interrupted,
        })
    }
}

impl Vfs {
    /// `fcntl` with a lock command. `F_GETLK` and `F_OFD_GETLK` change `lock`.
    pub fn fcntl_lock(&self, fd: i32, cmd: i32, lock: &mut FileLock) -> Answer {
        let Some(file) = self.io_file(fd)? else {
            return Ok(Reply::Kernel);
        };
        let by_description = matches!(cmd, F_OFD_GETLK | F_OFD_SETLK | F_OFD_SETLKW);
        if by_description && lock.pid != 0 {
            return Err(ErrorKind::Invalid.into());
        }
        let owner = match by_description {
            true => LockOwner::Description(file.id.ofd),
            false => LockOwner::Process(self.holder(file.id.pool)),
        };
        let range = file.lock_range(lock)?;
        match cmd {
            F_GETLK | F_OFD_GETLK => file.test_lock(lock, owner, range),
            F_SETLK | F_OFD_SETLK => self.set_lock(&file, lock.kind, owner, range, false),
            F_SETLKW | F_OFD_SETLKW => self.set_lock(&file, lock.kind, owner, range, true),
            _ => Err(ErrorKind::Invalid.into()),
        }
    }

    fn set_lock(
        &self,
        file: &OpenFile<'_>,
        kind: i16,
        owner: LockOwner,
        range: LockRange,
        wait: bool,
    ) -> Answer {
        let (fs, ino) = (&file.mount.fs, file.ofd.ino());
        if kind == F_UNLCK {
            fs.record_unlock(ino, owner, range)?;
            return success();
        }
        let kind = lock_kind(kind)?;
        let allowed = match kind {
            LockKind::Shared => readable(file.flags()),
            LockKind::Exclusive => writable(file.flags()),
        };
        if !allowed {
            return Err(ErrorKind::BadFd.into());
        }
        self.has_record_locks.store(true, Ordering::Relaxed);
        let request = LockRequest {
            ino,
            owner,
            range,
            kind,
        };
        let interrupted = || self.kernel().interrupted();
        fs.record_lock(&request, wait.then_some(&interrupted))?;
        success()
    }

    /// `flock`.
    pub fn flock(&self, fd: i32, operation: i32) -> Answer {
        let Some(file) = self.io_file(fd)? else {
            return Ok(Reply::Kernel);
        };
        if operation & LOCK_MAND != 0 {
            // The kernel heeds these no more.
            return success();
        }
        let (fs, ino, ofd) = (&file.mount.fs, file.ofd.ino(), file.id.ofd);
        let kind = match operation & !LOCK_NB {
            LOCK_SH => LockKind::Shared,
            LOCK_EX => LockKind::Exclusive,
            LOCK_UN => {
                fs.flock_unlock(ino, ofd);
                return success();
            }
            _ => return Err(ErrorKind::Invalid.into()),
        };
        let (wait, interrupted) = (operation & LOCK_NB == 0, || self.kernel().interrupted());
        fs.flock(ino, ofd, kind, wait.then_some(&interrupted))?;
        success()
    }
}

impl OpenFile<'_> {
    fn test_lock(&self, lock: &mut FileLock, owner: LockOwner, range: LockRange) -> Answer {
        let request = LockRequest {
            ino: self.ofd.ino(),
            owner,
            range,
            kind: lock_kind(lock.kind)?,
        };
        match self.mount.fs.record_lock_test(&request) {
            Some(conflict) => *lock = describe(&conflict),
            None => lock.kind = F_UNLCK,
        }
        success()
    }

    fn lock_range(&self, lock: &FileLock) -> Result<LockRange, VfsError> {
        let base = match i32::from(lock.whence) {
            SEEK_SET => 0,
            SEEK_CUR => self.position(),
            SEEK_END => self.mount.fs.size(self.node())?,
            _ => return Err(ErrorKind::Invalid.into()),
        };
        let base = i64::try_from(base).map_err(|_| ErrorKind::Overflow)?;
        range(base, lock.start, lock.len)
    }
}

fn range(base: i64, start: i64, len: i64) -> Result<LockRange, VfsError> {
    let start = base.checked_add(start).ok_or(ErrorKind::Overflow)?;
    let (first, last) = match len {
        0 => (start, i64::MAX),
        1.. => (
            start,
            start.checked_add(len - 1).ok_or(ErrorKind::Overflow)?,
        ),
        _ => (
            start.checked_add(len).ok_or(ErrorKind::Invalid)?,
            start.checked_sub(1).ok_or(ErrorKind::Invalid)?,
        ),
    };
    let first = u64::try_from(first).map_err(|_| ErrorKind::Invalid)?;
    let last = u64::try_from(last).map_err(|_| ErrorKind::Invalid)?;
    Ok(LockRange { first, last })
}

fn lock_kind(kind: i16) -> Result<LockKind, VfsError> {
    match kind {
        F_RDLCK => Ok(LockKind::Shared),
        F_WRLCK => Ok(LockKind::Exclusive),
        _ => Err(ErrorKind::Invalid.into()),
    }
}

fn describe(conflict: &Conflict) -> FileLock {
    let LockRange { first, last } = conflict.range;
    FileLock {
        kind: match conflict.kind {
            LockKind::Shared => F_RDLCK,
            LockKind::Exclusive => F_WRLCK,
        },
        whence: SEEK_SET as i16,
        start: first as i64,
        len: if last >= LAST {
            0
        } else {
            (last - first + 1) as i64
        },
        pid: conflict.pid.map_or(NO_PID, |pid| pid as i32),
    }
}

#[cfg(test)]
mod tests {
    use super::{LAST, range};
    use nacre_session::LockRange;

    #[test]
    fn ranges_follow_posix() {
        assert_eq!(
            range(0, 10, 5).unwrap(),
            LockRange {
                first: 10,
                last: 14
            }
        );
        assert_eq!(
            range(100, -10, 0).unwrap(),
            LockRange {
                first: 90,
                last: LAST
            }
        );
        assert_eq!(range(0, 10, -4).unwrap(), LockRange { first: 6, last: 9 });
        assert!(range(0, 2, -4).is_err());
        assert!(range(0, -1, 1).is_err());
        assert!(range(i64::MAX, 1, 0).is_err());
        assert!(range(0, i64::MAX, 2).is_err());
    }
}
