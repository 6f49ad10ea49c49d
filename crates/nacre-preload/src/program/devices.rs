//! Devices of the kernel that requests are sent to when all that is wanted is their completion.

use core::sync::atomic::{AtomicI32, Ordering::AcqRel, Ordering::Acquire};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use nacre_media::lifted;

use crate::program::descriptors;
use crate::runtime::kernel::{call, checked};
use crate::runtime::tls::thread;

static NULL: AtomicI32 = AtomicI32::new(-1);
static FULL: AtomicI32 = AtomicI32::new(-1);
static FAILING: AtomicI32 = AtomicI32::new(-1);

/// Takes any number of bytes; a descriptor that the program cannot close.
pub fn null() -> Result<i32, i32> {
    get(&NULL, || open(c"/dev/null"))
}

/// Has room for none.
pub fn full() -> Result<i32, i32> {
    get(&FULL, || open(c"/dev/full"))
}

/// Fails with EIO: a terminal that was hung up.
pub fn failing() -> Result<i32, i32> {
    get(&FAILING, hung_up)
}

fn hung_up() -> Result<i32, i32> {
    const UNLOCK: usize = libc::TIOCSPTLCK as usize;
    const OTHER_SIDE: usize = libc::TIOCGPTPEER as usize;
    let flags = (libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC) as usize;
    let path = c"/dev/ptmx".as_ptr() as usize;
    let near = checked(libc::SYS_openat, &[libc::AT_FDCWD as usize, path, flags])?;
    let unlocked = 0i32;
    call(
        libc::SYS_ioctl,
        &[near, UNLOCK, &raw const unlocked as usize],
    );
    let far = checked(libc::SYS_ioctl, &[near, OTHER_SIDE, flags]);
    close(near as i32);
    Ok(lift(far? as i32))
}

fn get(kept: &AtomicI32, make: impl FnOnce() -> Result<i32, i32>) -> Result<i32, i32> {
    if thread().origin.view().is_some() {
        // A child in its parent's memory has descriptors of its own.
        return Err(libc::EAGAIN);
    }
    let seen = kept.load(Acquire);
    if seen >= 0 {
        return Ok(seen);
    }
    let fd = make()?;
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
    Ok(lift(checked(libc::SYS_openat, &args)? as i32))
}

/// The descriptor that the kernel has just made, where programs have none.
fn lift(low: i32) -> i32 {
    // SAFETY: nobody else knows it.
    lifted(unsafe { OwnedFd::from_raw_fd(low) }).into_raw_fd()
}

fn close(fd: i32) {
    call(libc::SYS_close, &[fd as usize]);
}
