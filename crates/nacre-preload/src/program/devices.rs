//! Devices of the kernel that requests are sent to when all that is wanted is their completion.

use core::sync::atomic::{AtomicI32, Ordering::AcqRel, Ordering::Acquire};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use nacre_media::lifted;

use crate::program::descriptors;
use crate::runtime::kernel::{call, checked};
use crate::runtime::tls::thread;

static NULL: AtomicI32 = AtomicI32::new(-1);
static FULL: AtomicI32 = AtomicI32::new(-1);

/// Takes any number of bytes; a descriptor that the program cannot close.
pub fn null() -> Result<i32, i32> {
    get(&NULL, c"/dev/null")
}

/// Has room for none.
pub fn full() -> Result<i32, i32> {
    get(&FULL, c"/dev/full")
}

fn get(kept: &AtomicI32, path: &core::ffi::CStr) -> Result<i32, i32> {
    if thread().origin.view().is_some() {
        // A child in its parent's memory has descriptors of its own.
        return Err(libc::EAGAIN);
    }
    let seen = kept.load(Acquire);
    if seen >= 0 {
        return Ok(seen);
    }
    let fd = open(path)?;
    match kept.compare_exchange(seen, fd, AcqRel, Acquire) {
        Ok(_) => {
            descriptors::keep_internal(fd);
            Ok(fd)
        }
        Err(other) => {
            close(fd);
            Ok(other)
        }
    }
}

fn open(path: &core::ffi::CStr) -> Result<i32, i32> {
    let flags = (libc::O_WRONLY | libc::O_CLOEXEC) as usize;
    let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags];
    let low = checked(libc::SYS_openat, &args)? as i32;
    // SAFETY: the kernel has just made it, and nobody else knows it.
    Ok(lifted(unsafe { OwnedFd::from_raw_fd(low) }).into_raw_fd())
}

fn close(fd: i32) {
    call(libc::SYS_close, &[fd as usize]);
}
