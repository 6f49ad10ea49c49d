//! Completions that come later than the call that handed a request in: another thread sends them to
//! the ring (Linux 6.13).

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use nacre_media::high_fd;
use rustix::time::Timespec;

use crate::runtime::kernel::{call, checked};
use crate::runtime::spin::SpinLock;

/// The file of a ring, which stays open as long as a completion is to come.
struct RingFile(i32);

impl Drop for RingFile {
    fn drop(&mut self) {
        call(libc::SYS_close, &[self.0 as usize]);
    }
}

/// The file of a ring, if completions are to come.
pub struct Later(SpinLock<Weak<RingFile>>);

impl Default for Later {
    fn default() -> Self {
        Later(SpinLock::new(Weak::new()))
    }
}

impl Later {
    /// The file of the ring at a descriptor.
    pub fn ticket(&self, fd: i32, user_data: u64, silent: bool) -> Option<Ticket> {
        if !can_send() {
            return None;
        }
        let mut known = self.0.lock();
        let file = match known.upgrade() {
            Some(file) => file,
            None => {
                let number = libc::F_DUPFD_CLOEXEC as usize;
                let args = [fd as usize, number, high_fd() as usize];
                let file = Arc::new(RingFile(checked(libc::SYS_fcntl, &args).ok()? as i32));
                *known = Arc::downgrade(&file);
                file
            }
        };
        Some(Ticket {
            file,
            user_data,
            silent,
        })
    }

    /// Another ring begins, or this process has just been forked.
    pub fn forget(&self) {
        self.0.release_after_fork();
        core::mem::forget(core::mem::take(&mut *self.0.lock()));
    }
}

/// The right to complete a request of a ring.
pub struct Ticket {
    file: Arc<RingFile>,
    user_data: u64,
    silent: bool,
}

impl Ticket {
    /// The request is done.
    pub fn complete(self, result: i32) {
        const TRIES: u32 = 1000;
        const PAUSE: Timespec = Timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        if self.silent && result >= 0 {
            return;
        }
        for _ in 0..TRIES {
            match send(self.file.0, self.user_data, result) {
                // Nobody waits at a ring that is gone.
                Ok(()) | Err(libc::EBADF | libc::EBADFD) => return,
                // No memory for it now.
                Err(_) => {
                    let _woken = rustix::thread::nanosleep(&PAUSE);
                }
            }
        }
    }
}

/// Sends a completion to a ring.
fn send(ring: i32, user_data: u64, result: i32) -> Result<(), i32> {
    const SEND_MESSAGE: usize = 31;
    const MESSAGE: u64 = 40;
    let no_ring = usize::MAX;
    let what = MESSAGE | (ring as u32 as u64) << 32;
    let request = [what, user_data, 0, u64::from(result as u32), 0, 0, 0, 0];
    let args = [no_ring, SEND_MESSAGE, &raw const request as usize, 1];
    checked(libc::SYS_io_uring_register, &args).map(|_| ())
}

/// Whether this kernel can.
fn can_send() -> bool {
    const UNKNOWN: u8 = 0;
    const YES: u8 = 1;
    const NO: u8 = 2;
    static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
    if KNOWN.load(Relaxed) == UNKNOWN {
        // A kernel that knows the call looks for the ring.
        let can = send(-1, 0, 0) == Err(libc::EBADF);
        KNOWN.store(if can { YES } else { NO }, Relaxed);
    }
    KNOWN.load(Relaxed) == YES
}
