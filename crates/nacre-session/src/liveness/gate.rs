//! The word that shuts the gate for stores, and who sleeps until it is open.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::io::Errno;

use crate::liveness::lock::{low_half, wait, wake};

/// By whom the gate is shut, in shared memory.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Gate {
    /// Open: 0.
    pub(crate) word: AtomicU64,
    /// How many sleep until it is open, those included that were killed meanwhile.
    waiting: AtomicU32,
}

impl Gate {
    pub(crate) fn is_shut(&self) -> bool {
        self.word.load(SeqCst) != 0
    }

    /// Opens it, if it is shut by this word.
    pub(crate) fn open(&self, seen: u64) {
        if self.word.compare_exchange(seen, 0, SeqCst, SeqCst).is_err() {
            return;
        }
        // Whoever comes later sees that it is open, and does not sleep.
        if self.waiting.load(SeqCst) > 0 {
            wake(low_half(&self.word), i32::MAX as u32);
        }
    }

    /// Sleeps until it is open, if it is shut by this word. `false`: that takes long.
    pub(crate) fn wait(&self, seen: u64) -> bool {
        self.waiting.fetch_add(1, SeqCst);
        let waited = wait(low_half(&self.word), seen as u32);
        self.waiting.fetch_sub(1, Relaxed);
        waited != Err(Errno::TIMEDOUT)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;
    use std::thread;
    use std::time::Duration;

    use super::Gate;

    #[test]
    fn who_sleeps_at_the_gate_is_woken_when_it_opens() {
        let gate = Gate::default();
        let is_woken = || {
            gate.word.store(7, SeqCst);
            thread::scope(|scope| {
                let sleeper = scope.spawn(|| gate.wait(7));
                // Less than the round after which it looks by itself.
                thread::sleep(Duration::from_millis(3));
                gate.open(7);
                sleeper.join().unwrap()
            })
        };
        // A busy machine is late sometimes.
        assert!((0..50).any(|_| is_woken()));
        assert!(!gate.is_shut());
        assert_eq!(gate.waiting.load(SeqCst), 0);
    }

    #[test]
    fn nobody_opens_what_another_one_shut() {
        let gate = Gate::default();
        gate.word.store(7, SeqCst);
        gate.open(8);
        assert!(gate.is_shut());
        assert!(!gate.wait(7), "nobody opens it");
        gate.open(7);
        assert!(!gate.is_shut());
    }
}
