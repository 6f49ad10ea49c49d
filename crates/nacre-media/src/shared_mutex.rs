//! A lock in shared memory that the death of its holder gives back: a robust mutex of the C
//! library. For who is not in a session yet, and for what lies below sessions.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;

use libc::pthread_mutex_t;
use rustix::io::Errno;

#[repr(C)]
pub(crate) struct SharedMutex(UnsafeCell<pthread_mutex_t>);

/// A held lock.
pub(crate) struct Held<'a>(&'a SharedMutex);

impl SharedMutex {
    /// Makes it a free lock.
    ///
    /// # Safety
    /// Nobody uses the memory yet.
    pub unsafe fn init(&self) -> Result<(), Errno> {
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: the attributes are made before they are used, and this thread's alone; the
        // mutex is nobody's, says the caller.
        let done = unsafe {
            [
                libc::pthread_mutexattr_init(attributes.as_mut_ptr()),
                libc::pthread_mutexattr_setpshared(
                    attributes.as_mut_ptr(),
                    libc::PTHREAD_PROCESS_SHARED,
                ),
                libc::pthread_mutexattr_setrobust(
                    attributes.as_mut_ptr(),
                    libc::PTHREAD_MUTEX_ROBUST,
                ),
                libc::pthread_mutex_init(self.0.get(), attributes.as_ptr()),
            ]
        };
        match done.into_iter().find(|&result| result != 0) {
            Some(errno) => Err(Errno::from_raw_os_error(errno)),
            None => Ok(()),
        }
    }

    /// Waits for the lock. What a dead holder left half done its next holder does again.
    pub fn lock(&self) -> Held<'_> {
        self.lock_after(|| {})
    }

    /// As [`SharedMutex::lock`]. Runs `finish` first if the holder before died. Whoever dies in it
    /// leaves it to the next one.
    #[inline]
    pub fn lock_after(&self, finish: impl FnOnce()) -> Held<'_> {
        // SAFETY: the mutex was made before its file got its name.
        if unsafe { libc::pthread_mutex_lock(self.0.get()) } == libc::EOWNERDEAD {
            finish();
            // SAFETY: this thread holds it.
            unsafe { libc::pthread_mutex_consistent(self.0.get()) };
        }
        Held(self)
    }

    /// As [`SharedMutex::lock`], without waiting. Returns `None` if somebody holds it, this thread
    /// included.
    pub fn try_lock(&self) -> Option<Held<'_>> {
        // SAFETY: the mutex was made before its file got its name.
        match unsafe { libc::pthread_mutex_trylock(self.0.get()) } {
            0 => {}
            // SAFETY: this thread holds it.
            libc::EOWNERDEAD => _ = unsafe { libc::pthread_mutex_consistent(self.0.get()) },
            _ => return None,
        }
        Some(Held(self))
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread took it.
        unsafe { libc::pthread_mutex_unlock(self.0.0.get()) };
    }
}
