//! Completions that come later than the call that handed a request in: they are sent to the ring as
//! messages, from a ring of our own.

use std::sync::{Arc, Weak};

use nacre_media::high_fd;
use rustix::io::Errno;

use super::own_ring::OwnRing;
use crate::program::descriptors;
use crate::runtime::kernel::{call, checked, nap};
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
        if self.silent && result >= 0 {
            return;
        }
        for _ in 0..TRIES {
            match send(self.file.0, self.user_data, result) {
                // Nobody waits at a ring that is gone.
                Ok(()) | Err(Errno::BADF | Errno::BADFD) => return,
                // No memory for it now.
                Err(_) => nap(),
            }
        }
    }
}

/// The ring by which this process sends messages to others.
static SENDER: SpinLock<Option<OwnRing>> = SpinLock::new(None);

/// Sends a completion to a ring.
fn send(ring: i32, user_data: u64, result: i32) -> Result<(), Errno> {
    const MESSAGE: u64 = 40;
    let what = MESSAGE | u64::from(ring as u32) << 32;
    let request = [what, user_data, 0, u64::from(result as u32), 0, 0, 0, 0];
    let mut sender = SENDER.lock();
    let Some(sender) = sender.as_mut() else {
        return Err(Errno::BADF);
    };
    match sender.ask(request)? {
        0.. => Ok(()),
        failed => Err(Errno::from_raw_os_error(-failed)),
    }
}

/// Whether messages can be sent.
fn can_send() -> bool {
    let mut sender = SENDER.lock();
    if sender.is_none() {
        *sender = OwnRing::make().filter(|ring| descriptors::keep_internal(ring.fd()));
    }
    sender.is_some()
}

/// The ring is the parent's.
pub fn after_fork_child() {
    SENDER.release_after_fork();
    drop(SENDER.lock().take());
}
