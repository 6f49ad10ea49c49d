//! Waiters for a commit, so that one record serves as many as can be.
//!
//! Whoever needs one asks first. Whoever makes it waits for a moment until all have asked that
//! asked last time: they come back at about the same time, when the record is written that they
//! waited for. Counts are guesses: a death makes a commit wait once, for a part of what it takes.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::sched_yield;

use crate::Session;
use crate::liveness::lock::{wait, wait_for, wake};

/// The longest wait for others, in microseconds.
const LONGEST: u64 = 2000;

/// What is known of those who ask for commits; alone in its cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct CommitGroup {
    /// Have asked since the last version was taken.
    asking: AtomicU32,
    /// Had asked before the last version was taken.
    served: AtomicU32,
    /// May ask before the next one is.
    expected: AtomicU32,
    /// How long the last record took, in microseconds.
    took: AtomicU32,
    /// Changes when a commit is over.
    over: AtomicU32,
    /// How many wait for that, those included that were killed meanwhile.
    waiting: AtomicU32,
    /// How often who rests was woken.
    wakings: AtomicU32,
}

impl CommitGroup {
    /// The caller needs a commit. It looks afterwards whether one is needed still.
    pub fn ask(&self) -> u32 {
        self.asking.fetch_add(1, Relaxed);
        self.over.load(SeqCst)
    }

    /// For [`CommitGroup::wait`], before one looks whether a commit is needed.
    pub fn seen(&self) -> u32 {
        self.over.load(SeqCst)
    }

    /// Whether somebody needs a commit for which no version was taken yet.
    pub fn is_asked(&self) -> bool {
        self.asking.load(Relaxed) > 0
    }

    /// Waits until a commit is over that was not when `seen` was. `false`: that takes long, and who
    /// makes it may be dead.
    pub fn wait(&self, seen: u32) -> bool {
        self.waiting.fetch_add(1, SeqCst);
        let waited = wait(&self.over, seen);
        self.waiting.fetch_sub(1, Relaxed);
        waited != Err(Errno::TIMEDOUT)
    }

    /// Before a version is taken: waits for who is expected, but not for long.
    pub fn gather(&self) {
        let expected = self.expected.load(Relaxed);
        let longest = u64::from(self.took.load(Relaxed)) / 2;
        let longest = Duration::from_micros(longest.min(LONGEST));
        let begin = Instant::now();
        while self.asking.load(Relaxed) < expected && begin.elapsed() < longest {
            sched_yield();
        }
    }

    /// A version is taken.
    pub fn taken(&self) {
        self.served.store(self.asking.swap(0, Relaxed), Relaxed);
    }

    /// It is written.
    pub fn written(&self, begin: Instant) {
        let took = begin.elapsed().as_micros().try_into();
        self.took.store(took.unwrap_or(u32::MAX), Relaxed);
        // Whoever asked meanwhile waits already, and who was served will be back.
        let expected = self.served.load(Relaxed) + self.asking.load(Relaxed);
        self.expected.store(expected, Relaxed);
    }

    /// For [`CommitGroup::rest`], before one looks whether there is anything to do.
    pub fn wakings(&self) -> u32 {
        self.wakings.load(SeqCst)
    }

    /// Rests until somebody wakes who had not when `seen` was, or the time is over.
    pub fn rest(&self, seen: u32, time: Duration) {
        wait_for(&self.wakings, seen, time);
    }

    /// Wakes who rests.
    pub fn wake(&self) {
        self.wakings.fetch_add(1, SeqCst);
        wake(&self.wakings, i32::MAX as u32);
    }

    /// Wakes who waits.
    pub fn over(&self) {
        self.over.fetch_add(1, SeqCst);
        // Whoever comes later sees the new value, and does not sleep.
        if self.waiting.load(SeqCst) > 0 {
            wake(&self.over, i32::MAX as u32);
        }
    }
}

impl Session {
    /// The waiters for commits.
    pub fn commit_group(&self) -> &CommitGroup {
        &self.shared().commit_group
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::CommitGroup;

    fn commit(group: &CommitGroup) {
        let begin = Instant::now();
        group.taken();
        group.written(begin);
        group.over();
    }

    #[test]
    fn who_is_alone_waits_for_nobody() {
        let group = CommitGroup::default();
        for _ in 0..3 {
            group.ask();
            assert!(group.asking.load(super::Relaxed) >= group.expected.load(super::Relaxed));
            commit(&group);
        }
    }

    #[test]
    fn who_was_served_and_who_waits_are_expected() {
        let group = CommitGroup::default();
        let expected = || group.expected.load(super::Relaxed);
        (0..5).for_each(|_| _ = group.ask());
        let begin = Instant::now();
        group.taken();
        (0..3).for_each(|_| _ = group.ask());
        group.written(begin);
        assert_eq!(expected(), 8);
        // Nobody else comes: it waits once, and knows better.
        group.gather();
        commit(&group);
        assert_eq!(expected(), 3);
    }

    #[test]
    fn a_commit_that_is_over_before_one_waits_is_seen() {
        let group = CommitGroup::default();
        let seen = group.ask();
        commit(&group);
        assert!(group.wait(seen));
        assert!(!group.wait(group.seen()), "nobody makes one");
    }
}
