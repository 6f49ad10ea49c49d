//! A lock in shared memory that the death of its holder gives back: a robust mutex of the C
//! library. For who is not in a session yet, and for what lies below sessions.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use libc::pthread_mutex_t;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

/// After so many seconds of waiting somebody is told.
const LONG: i64 = 2;
/// In the first word of a robust mutex: the thread that holds it.
const HOLDER: u32 = 0x3fff_ffff;

static REPORT: OnceLock<fn(u32)> = OnceLock::new();

/// Says whom to tell that a lock has been waited for so long, with the number of the thread that
/// holds it. `report` must not use the pool.
pub fn report_long_waits(report: fn(u32)) {
    REPORT.get_or_init(|| report);
}

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
        if self.wait() == libc::EOWNERDEAD {
            finish();
            // SAFETY: this thread holds it.
            unsafe { libc::pthread_mutex_consistent(self.0.get()) };
        }
        Held(self)
    }

    fn wait(&self) -> i32 {
        // SAFETY: the mutex was made before its file got its name.
        match unsafe { libc::pthread_mutex_trylock(self.0.get()) } {
            libc::EBUSY => self.wait_and_tell(),
            taken => taken,
        }
    }

    #[cold]
    fn wait_and_tell(&self) -> i32 {
        let now = clock_gettime(ClockId::Realtime);
        let then = libc::timespec {
            tv_sec: now.tv_sec + LONG,
            tv_nsec: now.tv_nsec,
        };
        // SAFETY: the mutex was made before its file got its name.
        match unsafe { libc::pthread_mutex_timedlock(self.0.get(), &raw const then) } {
            libc::ETIMEDOUT => {
                REPORT.get().inspect(|report| report(self.holder()));
                // SAFETY: the mutex was made before its file got its name.
                unsafe { libc::pthread_mutex_lock(self.0.get()) }
            }
            waited => waited,
        }
    }

    /// The thread that holds it, 0 for none.
    fn holder(&self) -> u32 {
        // SAFETY: the word is the one that the C library and the kernel agree on, and change as
        // an atomic one.
        let word = unsafe { AtomicU32::from_ptr(self.0.get().cast()) };
        word.load(Relaxed) & HOLDER
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    use std::thread::{scope, sleep};
    use std::time::Duration;

    use super::{SharedMutex, report_long_waits};

    static TOLD: AtomicU32 = AtomicU32::new(0);

    struct Between(SharedMutex);

    // SAFETY: it is a lock between threads.
    unsafe impl Sync for Between {}

    #[test]
    fn who_waits_long_for_a_lock_is_told_who_holds_it_and_gets_it_afterwards() {
        // SAFETY: zeros are a mutex that is not made yet.
        let mutex = Between(unsafe { std::mem::zeroed() });
        // SAFETY: nobody else knows it.
        unsafe { mutex.0.init().unwrap() };
        report_long_waits(|holder| TOLD.store(holder, SeqCst));
        let shared = &mutex;
        // SAFETY: changes nothing.
        let me = unsafe { libc::gettid() } as u32;
        scope(|scope| {
            let held = shared.0.lock();
            let waiter = scope.spawn(move || drop(shared.0.lock()));
            while TOLD.load(SeqCst) != me {
                sleep(Duration::from_millis(10));
            }
            drop(held);
            waiter.join().unwrap();
        });
        assert!(mutex.0.try_lock().is_some());
    }
}
