//! A ring of our own, for one request at a time.

use core::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nacre_media::lifted;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::layout::{Parameters, REQUESTS_AT, RING_AT};
use crate::runtime::kernel::checked;

/// All of a ring for one request, and all of its requests.
const LEN: usize = 4096;

/// The ring. It is made only where one mapping has requests' and completions' places.
pub struct OwnRing {
    fd: OwnedFd,
    parameters: Parameters,
    ring: usize,
    requests: usize,
}

impl OwnRing {
    /// Makes it.
    pub fn make() -> Option<Self> {
        const SINGLE_MAPPING: u32 = 1;
        let mut parameters: Parameters = [0; 30];
        let at = parameters.as_mut_ptr() as usize;
        let fd = checked(libc::SYS_io_uring_setup, &[1, at]).ok()?;
        // SAFETY: the kernel has just made it, and nobody else knows it.
        let fd = lifted(unsafe { OwnedFd::from_raw_fd(fd as i32) });
        if parameters[5] & SINGLE_MAPPING == 0 {
            return None;
        }
        let [ring, requests] = [RING_AT, REQUESTS_AT].map(|offset| map(&fd, offset as u64));
        let made = OwnRing {
            fd,
            parameters,
            ring: ring.unwrap_or(0),
            requests: requests.unwrap_or(0),
        };
        (made.ring != 0 && made.requests != 0).then_some(made)
    }

    /// Its descriptor.
    pub fn fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: within the page of the ring, as the kernel says; it is mapped as long as `self`.
        unsafe { &*((self.ring + offset as usize) as *const AtomicU32) }
    }

    /// Hands in a request; what it completes with.
    pub fn ask(&mut self, request: [u64; 8]) -> Result<i32, Errno> {
        const WAIT: usize = 1;
        let [head, tail, mask, list] = [20, 11, 22, 25].map(|i| self.parameters[i]);
        for (i, word) in request.into_iter().enumerate() {
            // SAFETY: there is one request of 64 bytes at the start of the page that is mapped.
            let place = unsafe { &*((self.requests + i * 8) as *const AtomicU64) };
            place.store(word, Relaxed);
        }
        self.word(tail).fetch_add(1, Release);
        let args = [self.fd.as_raw_fd() as usize, 1, 1, WAIT, 0, 0];
        checked(libc::SYS_io_uring_enter, &args).map_err(Errno::from_raw_os_error)?;
        let done = self.word(head).load(Acquire) & self.word(mask).load(Relaxed);
        // A completion: 64 bits of ours, the result, flags.
        let result = self.word(list + done * 16 + 8).load(Acquire);
        self.word(head).fetch_add(1, Release);
        Ok(result as i32)
    }
}

fn map(fd: &OwnedFd, offset: u64) -> Option<usize> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    let at = unsafe {
        mmap(
            core::ptr::null_mut(),
            LEN,
            access,
            MapFlags::SHARED,
            fd,
            offset,
        )
    };
    at.ok().map(|at| at as usize)
}

impl Drop for OwnRing {
    fn drop(&mut self) {
        for at in [self.ring, self.requests].into_iter().filter(|&at| at != 0) {
            // SAFETY: mapped by `make`, and nobody uses it any more.
            let _ = unsafe { munmap(at as *mut core::ffi::c_void, LEN) };
        }
    }
}
