//! How others learn that a process has executed another program.
//!
//! exec kills the other threads of a process wherever they are, inside of an operation on the pool
//! too, and leaves its number and start time as they were. So a process with threads says before
//! exec that it may be about to go ([`Session::begin_exec`]) and lets the kernel say when it has:
//! the kernel marks the robust futexes of a thread that executes a program, once all other threads
//! are gone and before the new program runs. The slot then goes to the new program under its next
//! generation, after a recovery like that of a dead process ([`Session::reap`]), by whoever comes
//! first: the new program, or somebody who meets a lock. A new program that is not under Nacre
//! never recovers anything; others do.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;

use crate::liveness::process;
use crate::liveness::slot::{Slot, Word};
use crate::slot_ref::SlotRef;
use crate::{Session, step};

/// The kernel has marked the word (`FUTEX_OWNER_DIED`).
const MARKED: u32 = 0x4000_0000;
/// Somebody has seen that the process goes on: it was not its end that marked the word.
const CONFIRMED: u32 = 1;

impl Slot {
    /// Whether the process of a live slot has executed another program since
    /// [`Session::begin_exec`]. The word is marked, too, when the thread ends that wanted to, while
    /// others still run.
    pub(crate) fn has_executed(&self, word: Word) -> bool {
        let seen = self.exec.load(Ordering::SeqCst);
        if seen & MARKED == 0 || self.exec_generation.load(Ordering::SeqCst) != word.generation {
            return false;
        }
        if seen & CONFIRMED == 0 {
            if !process::goes_on(word.pid) {
                return false;
            }
            // Whoever else stores here stores the same.
            self.exec.store(MARKED | CONFIRMED, Ordering::SeqCst);
        }
        true
    }
}

impl Session {
    /// Before the calling process, which has several threads, executes a program. The word is for
    /// the robust list of the thread that does. Nothing is to be undone if that fails.
    pub fn begin_exec(&self, me: SlotRef) -> &AtomicU32 {
        let slot = self.slot(me);
        slot.exec_generation.store(me.generation, Ordering::SeqCst);
        step::point();
        slot.exec.store(slot.load().pid, Ordering::SeqCst);
        step::point();
        &slot.exec
    }

    /// In a new program: whether the one before, whose slot was `own`, had threads when it executed
    /// this one. Then nobody takes them for alive any more.
    pub fn end_exec(&self, own: SlotRef) -> bool {
        let slot = self.slot(own);
        let begun = slot.exec.load(Ordering::SeqCst) != 0
            && slot.exec_generation.load(Ordering::SeqCst) == own.generation;
        if begun {
            slot.exec.store(MARKED | CONFIRMED, Ordering::SeqCst);
        }
        begun
    }
}
