//! Points at which a test may kill the process, one before each change of shared memory that
//! another process could see.
//!
//! Without the feature `kill-steps` a point is nothing.

#[cfg(feature = "kill-steps")]
mod counting {
    use rustix::process::{Signal, getpid, kill_process};
    use std::sync::atomic::{AtomicU64, Ordering};

    static PASSED: AtomicU64 = AtomicU64::new(0);
    static FATAL: AtomicU64 = AtomicU64::new(u64::MAX);

    /// Lets the process die at its `n`-th point from now on, counted from 1.
    pub fn arm(n: u64) {
        PASSED.store(0, Ordering::Relaxed);
        FATAL.store(n, Ordering::Relaxed);
    }

    /// Points passed since the last `arm`.
    pub fn passed() -> u64 {
        PASSED.load(Ordering::Relaxed)
    }

    /// One shared-memory step.
    pub fn point() {
        if PASSED.fetch_add(1, Ordering::Relaxed) + 1 == FATAL.load(Ordering::Relaxed) {
            let _ = kill_process(getpid(), Signal::KILL);
        }
    }
}

#[cfg(feature = "kill-steps")]
pub use counting::{arm, passed, point};

/// One shared-memory step.
#[cfg(not(feature = "kill-steps"))]
#[inline(always)]
pub fn point() {}
