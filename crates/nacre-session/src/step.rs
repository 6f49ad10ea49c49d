//! Points at which a test may kill or stop the process, or let another one go first, around each
//! change of shared memory that another process could see.
//!
//! Without the feature `kill-steps` a point is nothing.

#[cfg(feature = "kill-steps")]
mod counting {
    use rustix::process::{Signal, getpid, kill_process};
    use std::cell::Cell;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use crate::slot::SlotRef;

    /// Plays several processes in one thread, each with its slot, and decides who goes next.
    pub trait Stage: Sync {
        /// Another process may go first, or the calling one may die here.
        fn point(&self);
        /// Whether the process in this slot is dead.
        fn is_dead(&self, slot: SlotRef) -> bool;
        /// Sleeps until woken or until a round of waiting is over; whether it was.
        fn sleep(&self) -> bool;
        /// Wakes who sleeps.
        fn wake(&self);
    }

    thread_local! {
        static STAGE: Cell<Option<&'static dyn Stage>> = const { Cell::new(None) };
    }

    /// From now on the calling thread plays processes on `stage`.
    pub fn play(stage: Option<&'static dyn Stage>) {
        STAGE.set(stage);
    }

    /// The stage of the calling thread.
    pub fn stage() -> Option<&'static dyn Stage> {
        STAGE.get()
    }

    static PASSED: AtomicU64 = AtomicU64::new(0);
    static CHOSEN: AtomicU64 = AtomicU64::new(u64::MAX);
    static STOPS: AtomicBool = AtomicBool::new(false);

    /// Lets the process die at its `n`-th point from now on, counted from 1.
    pub fn arm(n: u64) {
        PASSED.store(0, Ordering::Relaxed);
        STOPS.store(false, Ordering::Relaxed);
        CHOSEN.store(n, Ordering::Relaxed);
    }

    /// Lets the process stop (SIGSTOP) at its `n`-th point from now on, counted from 1.
    pub fn arm_stop(n: u64) {
        arm(n);
        STOPS.store(true, Ordering::Relaxed);
    }

    /// Points passed since the process was armed.
    pub fn passed() -> u64 {
        PASSED.load(Ordering::Relaxed)
    }

    /// One shared-memory step.
    pub fn point() {
        if let Some(stage) = stage() {
            return stage.point();
        }
        if PASSED.fetch_add(1, Ordering::Relaxed) + 1 == CHOSEN.load(Ordering::Relaxed) {
            let stops = STOPS.load(Ordering::Relaxed);
            let signal = if stops { Signal::STOP } else { Signal::KILL };
            let _ = kill_process(getpid(), signal);
        }
    }
}

#[cfg(feature = "kill-steps")]
pub use counting::{Stage, arm, arm_stop, passed, play, point, stage};

/// One shared-memory step.
#[cfg(not(feature = "kill-steps"))]
#[inline(always)]
pub fn point() {}
