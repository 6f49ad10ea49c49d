//! Points at which a test may kill or stop the process, or let another one go first, around each
//! change of shared memory that another process could see.
//!
//! Without the feature `kill-steps` a point is nothing.

use std::sync::atomic::{AtomicU64, Ordering};

/// Faults that a test may plant into the protocols, to see that it notices them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A lock is taken by load and store.
    TornLock,
    /// A lock is given back without a look at who has it.
    ForeignUnlock,
    /// A lock is taken over from who has it, as if its word were out of date.
    LivingIsStale,
    /// A slot changes hands by load and store.
    TornSlot,
    /// A description changes its state by load and store.
    TornDescription,
    /// A holder is added by load and store.
    TornHold,
    /// A holder is removed by load and store.
    TornLetGo,
    /// Whoever closes does not look at the holders again once it has decided.
    NoSecondLook,
    /// A new holder does not wait for who decides.
    NoWaitForDecision,
    /// A new holder looks whether the description is open before its bit is set.
    HoldAfterLook,
    /// A second holder does not mark the description as shared.
    NoSharedMark,
    /// Whoever reads a remembered name does not look again whether it was being written.
    NameReadOnce,
    /// Whoever finds a remembered name being written writes it, too.
    NameWrittenByTwo,
    /// Changes of names are counted by load and store.
    TornNameCount,
    /// Record locks change without the lock of their list.
    NoListLock,
    /// A dead slot is recovered without its lock.
    NoRecoveryLock,
    /// A metadata block is given back while an object of it is locked.
    GoneWhileLocked,
    /// A metadata block is given back, and readers under way are not told.
    GoneInSilence,
    /// The units of a metadata block that is given back are free before the list says so.
    FreedBeforeGone,
    /// A metadata block comes back and knows of no generations.
    GenerationsForgotten,
}

/// Stores `to` in the place of `from`, in one step unless `fault` is planted. False: another word
/// is there.
#[inline(always)]
pub(crate) fn exchange(word: &AtomicU64, (from, to): (u64, u64), fault: Fault) -> bool {
    point();
    if has(fault) {
        return torn(word, from, to).is_ok();
    }
    let changed = word.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
    point();
    changed.is_ok()
}

/// A compare-and-swap that is none: another process may go between load and store.
#[cold]
pub(crate) fn torn(word: &AtomicU64, from: u64, to: u64) -> Result<u64, u64> {
    let seen = word.load(Ordering::SeqCst);
    if seen != from {
        return Err(seen);
    }
    point();
    word.store(to, Ordering::SeqCst);
    Ok(seen)
}

#[cfg(feature = "kill-steps")]
mod counting {
    use rustix::process::{Signal, getpid, kill_process};
    use std::cell::Cell;
    use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

    use super::Fault;
    use crate::slot_ref::SlotRef;

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
        static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    /// A fault that stays in this thread's protocols until this is dropped.
    pub struct Planted(());

    impl Drop for Planted {
        fn drop(&mut self) {
            PLANTED.set(None);
        }
    }

    /// Plants a fault into all that this thread plays.
    pub fn plant(fault: Fault) -> Planted {
        PLANTED.set(Some(fault));
        Planted(())
    }

    /// Whether this fault is planted.
    pub fn has(fault: Fault) -> bool {
        PLANTED.get() == Some(fault)
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
    static FATE: AtomicU8 = AtomicU8::new(DIES);
    static HELD: AtomicBool = AtomicBool::new(false);

    /// What happens at the chosen point: the process dies, or it stops (SIGSTOP), or the thread
    /// stays there.
    const DIES: u8 = 0;
    const STOPS: u8 = 1;
    const STAYS: u8 = 2;

    /// Lets the process die at its `n`-th point from now on, counted from 1.
    pub fn arm(n: u64) {
        arm_for(DIES, n);
    }

    fn arm_for(fate: u8, n: u64) {
        PASSED.store(0, Ordering::Relaxed);
        FATE.store(fate, Ordering::Relaxed);
        CHOSEN.store(n, Ordering::Relaxed);
    }

    /// Lets the process stop (SIGSTOP) at its `n`-th point from now on, counted from 1.
    pub fn arm_stop(n: u64) {
        arm_for(STOPS, n);
    }

    /// Lets the thread that passes the `n`-th point from now on, counted from 1, stay there for
    /// ever.
    pub fn arm_hold(n: u64) {
        arm_for(STAYS, n);
    }

    /// Whether a thread stays at a point.
    pub fn is_held() -> bool {
        HELD.load(Ordering::Acquire)
    }

    /// Points passed since the process was armed.
    pub fn passed() -> u64 {
        PASSED.load(Ordering::Relaxed)
    }

    fn stay() -> ! {
        HELD.store(true, Ordering::Release);
        loop {
            crate::round::pause();
        }
    }

    /// One shared-memory step.
    pub fn point() {
        if let Some(stage) = stage() {
            return stage.point();
        }
        if PASSED.fetch_add(1, Ordering::Relaxed) + 1 == CHOSEN.load(Ordering::Relaxed) {
            match FATE.load(Ordering::Relaxed) {
                DIES => drop(kill_process(getpid(), Signal::KILL)),
                STOPS => drop(kill_process(getpid(), Signal::STOP)),
                _ => stay(),
            }
        }
    }
}

#[cfg(feature = "kill-steps")]
pub use counting::{
    Planted, Stage, arm, arm_hold, arm_stop, has, is_held, passed, plant, play, point, stage,
};

/// Whether this fault is planted: never.
#[cfg(not(feature = "kill-steps"))]
#[inline(always)]
pub const fn has(_: Fault) -> bool {
    false
}

/// One shared-memory step.
#[cfg(not(feature = "kill-steps"))]
#[inline(always)]
pub fn point() {}
