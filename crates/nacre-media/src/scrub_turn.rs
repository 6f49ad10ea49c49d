//! Whose turn it is to scrub, of all processes that do so by themselves.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

/// When somebody may scrub by himself again; 0: nobody has asked yet. It lies in memory that
/// processes share. Moments are of any clock that all of them share.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct ScrubTurn(AtomicU64);

impl ScrubTurn {
    /// Whether it is the caller's turn: from the moment on that whoever had it last has set. It is
    /// nobody's again before `next`. The first to ask sets that and does not get it.
    pub(crate) fn take(&self, now: u64, next: u64) -> bool {
        let due = self.0.load(SeqCst);
        let is_due = due <= now && due != 0;
        let set =
            (due == 0 || is_due) && self.0.compare_exchange(due, next, SeqCst, SeqCst).is_ok();
        set && is_due
    }

    /// Whoever has taken the turn still scrubs: it is nobody's before `next`.
    pub(crate) fn keep(&self, next: u64) {
        self.0.store(next, SeqCst);
    }
}
