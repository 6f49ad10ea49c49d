//! Holds on a device: locks that live as long as somebody has the device open or mapped.
//!
//! They are the kernel's locks of open file descriptions (`F_OFD_SETLK`). A mapping keeps the
//! description it was made from, so a hold is shared with forked children, needs no descriptor kept
//! open, and ends with the last process that maps the device, however that one ends.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::io::Errno;

use crate::device::{Device, refused};
use crate::error::{MediaError, last_errno};

/// What a hold allows others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hold {
    /// Others may have a shared hold too.
    Shared,
    /// Nobody else has a hold. Needs a device that is open for writing.
    Exclusive,
}

impl Device {
    /// Takes a hold on `subject`, any number that its users agree on, or changes the one that this
    /// device has. `false`: the hold of somebody else forbids it, and this device has none any
    /// more.
    pub fn hold(&self, subject: u32, hold: Hold) -> Result<bool, MediaError> {
        let kind = match hold {
            Hold::Shared => libc::F_RDLCK,
            Hold::Exclusive => libc::F_WRLCK,
        };
        for fd in self.held() {
            match lock_call(fd, libc::F_OFD_SETLK, &mut lock(subject, kind)) {
                Ok(()) => {}
                Err(Errno::AGAIN | Errno::ACCESS) => {
                    self.release(subject)?;
                    return Ok(false);
                }
                Err(errno) => return Err(refused(self.path(), "lock it", errno)),
            }
        }
        Ok(true)
    }

    /// Gives up the hold on `subject`, for whoever shares it too.
    pub fn release(&self, subject: u32) -> Result<(), MediaError> {
        let give_up = |fd| lock_call(fd, libc::F_OFD_SETLK, &mut lock(subject, libc::F_UNLCK));
        self.held()
            .try_for_each(give_up)
            .map_err(|errno| refused(self.path(), "unlock it", errno))
    }

    /// Whether somebody else has a hold on `subject`.
    pub fn is_held_by_others(&self, subject: u32) -> Result<bool, MediaError> {
        for fd in self.held() {
            let is_held = is_locked_by_others(fd, subject.into());
            if is_held.map_err(|errno| refused(self.path(), "examine its locks", errno))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What is held: the device, and the file of a loop device.
    fn held(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let beneath = self.beneath().map(AsFd::as_fd);
        std::iter::once(self.fd()).chain(beneath)
    }
}

/// Takes a lock on `subject` that nobody else has, for an open file description.
pub(crate) fn lock_alone(description: impl AsFd, subject: u64) -> Result<(), Errno> {
    let mut alone = lock(subject, libc::F_WRLCK);
    lock_call(description.as_fd(), libc::F_OFD_SETLK, &mut alone)
}

/// Whether another open file description of a file has a lock on `subject`.
pub(crate) fn is_locked_by_others(file: BorrowedFd<'_>, subject: u64) -> Result<bool, Errno> {
    let mut found = lock(subject, libc::F_WRLCK);
    lock_call(file, libc::F_OFD_GETLK, &mut found)?;
    Ok(c_int::from(found.l_type) != libc::F_UNLCK)
}

fn lock_call(fd: BorrowedFd<'_>, command: c_int, lock: &mut libc::flock) -> Result<(), Errno> {
    // SAFETY: the kernel reads and writes one `flock`, which is borrowed for the call.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw mut *lock) };
    if result < 0 {
        return Err(last_errno());
    }
    Ok(())
}

fn lock(subject: impl Into<u64>, kind: c_int) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: subject.into() as i64,
        l_len: 1,
        l_pid: 0,
    }
}
