//! Files in shared memory that all users of a device map, and who uses one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};

/// Maps `len` bytes of the file at `at`. The caller unmaps them.
pub(crate) fn map(file: &OwnedFd, at: u64, len: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    let start = unsafe {
        mmap(
            std::ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | MapFlags::NORESERVE,
            file,
            at,
        )?
    };
    Ok(NonNull::new(start.cast()).ok_or(Errno::NOMEM)?)
}

/// Becomes one of the file's users; alone if nobody else is one. `false`: somebody is. It lasts as
/// long as any process has the file mapped that had it through this one.
pub(crate) fn enter(file: impl AsFd, alone: bool) -> io::Result<bool> {
    let operation = match alone {
        true => FlockOperation::NonBlockingLockExclusive,
        false => FlockOperation::NonBlockingLockShared,
    };
    loop {
        match flock(&file, operation) {
            Ok(()) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        }
    }
}
