//! A lock that can be held across a fork. Only taken inside Nacre, where no signal handler runs.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicI32, Ordering};

use nacre_session::is_number_running;

use crate::program::sharing;
use crate::runtime::tls::shares_memory;

const FREE: i32 = 0;
const HELD: i32 = 1;
const SPINS_TO_YIELD: u32 = 64;
/// How often the holder's life is asked for.
const SPINS_TO_LOOK: u32 = 4096;

/// A value behind a lock.
pub struct SpinLock<T> {
    /// `FREE`, `HELD`, or the holder's pid where a child shares its parent's memory.
    holder: AtomicI32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached by the holder of the lock.
unsafe impl<T: Send> Sync for SpinLock<T> {}

/// The right to use the value.
pub struct Guard<'a, T>(&'a SpinLock<T>);

impl<T> SpinLock<T> {
    /// An open lock.
    pub const fn new(value: T) -> Self {
        SpinLock {
            holder: AtomicI32::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock. Whoever holds it is between two instructions of ours, so it is short.
    pub fn lock(&self) -> Guard<'_, T> {
        self.hold_for_fork();
        Guard(self)
    }

    /// Locks without a guard.
    pub fn hold_for_fork(&self) {
        let me = match shares_memory() {
            false => HELD,
            true => sharing::pid(),
        };
        let take = || {
            self.holder
                .compare_exchange_weak(FREE, me, Ordering::Acquire, Ordering::Relaxed)
        };
        while take().is_err() {
            self.wait();
        }
    }

    /// Until the lock may be free. A child that died with it in our memory loses it: holders change
    /// the value so that each step leaves it usable.
    #[cold]
    fn wait(&self) {
        for spins in 1u32.. {
            let holder = self.holder.load(Ordering::Relaxed);
            if holder == FREE {
                return;
            }
            if spins.is_multiple_of(SPINS_TO_YIELD) {
                rustix::thread::sched_yield();
            }
            if spins.is_multiple_of(SPINS_TO_LOOK) && holder != HELD && !runs(holder) {
                let _other =
                    self.holder
                        .compare_exchange(holder, FREE, Ordering::AcqRel, Ordering::Relaxed);
            }
            core::hint::spin_loop();
        }
    }

    /// Undoes [`SpinLock::hold_for_fork`], in the parent and in the child.
    pub fn release_after_fork(&self) {
        self.holder.store(FREE, Ordering::Release);
    }
}

fn runs(pid: i32) -> bool {
    u32::try_from(pid).is_ok_and(is_number_running)
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.0.release_after_fork();
    }
}
