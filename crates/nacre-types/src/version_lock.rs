//! A word that lets readers look without a lock while one writer at a time changes what it guards.
//!
//! A reader loads the version, reads by relaxed loads, and looks again: if the version has not
//! moved and was even, all that was read belongs together. The version is odd while somebody
//! writes. A writer that dies leaves it odd until somebody calls [`VersionLock::recover`].

#[cfg(test)]
use shuttle::sync::atomic::{AtomicU64, fence};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
#[cfg(not(test))]
use std::sync::atomic::{AtomicU64, fence};

#[cfg(not(test))]
use zerocopy::FromZeros;

/// Even when what it guards can be read, odd while somebody writes it. Zero is a valid first state.
#[derive(Debug, Default)]
#[cfg_attr(not(test), derive(FromZeros))]
#[repr(transparent)]
pub struct VersionLock(AtomicU64);

impl VersionLock {
    /// Before the guarded words are read. Returns `None` while somebody writes them.
    #[inline(always)]
    pub fn look(&self) -> Option<u64> {
        let now = self.0.load(Acquire);
        now.is_multiple_of(2).then_some(now)
    }

    /// Whether all that was read since the look belongs together.
    #[inline(always)]
    pub fn is_still(&self, seen: u64) -> bool {
        fence(Acquire);
        self.0.load(Relaxed) == seen
    }

    /// Begins a change. The caller holds a lock, so nobody else writes. Returns false if a change
    /// is under way already: then it goes on, and whoever began it ends it.
    #[inline(always)]
    pub fn begin(&self) -> bool {
        let now = self.0.load(Relaxed);
        if !now.is_multiple_of(2) {
            return false;
        }
        self.0.store(now.wrapping_add(1), Relaxed);
        // The odd number must be seen before any store that follows it.
        fence(Release);
        true
    }

    /// Begins a change without any other lock. Returns false if somebody else writes, or died doing
    /// so.
    #[inline]
    pub fn try_begin(&self) -> bool {
        let now = self.0.load(Relaxed);
        let odd = now.wrapping_add(1);
        let claimed =
            now.is_multiple_of(2) && self.0.compare_exchange(now, odd, Acquire, Relaxed).is_ok();
        if claimed {
            fence(Release);
        }
        claimed
    }

    /// Ends a change that the caller has begun.
    #[inline(always)]
    pub fn end(&self) {
        let now = self.0.load(Relaxed);
        self.0.store(now.wrapping_add(1), Release);
    }

    /// Writes by relaxed stores, unless somebody else does so just now. Returns whether it did.
    #[inline]
    pub fn fill(&self, store: impl FnOnce()) -> bool {
        let claimed = self.try_begin();
        if claimed {
            store();
            self.end();
        }
        claimed
    }

    /// Lets readers go on after a writer that died, whose change is finished or undone. The caller
    /// holds the lock that the dead one held.
    #[inline]
    pub fn recover(&self) {
        if !self.0.load(Relaxed).is_multiple_of(2) {
            self.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AtomicU64, Relaxed, VersionLock};
    use shuttle::sync::Arc;
    use shuttle::thread;

    /// Two words that are equal whenever nobody writes.
    #[derive(Default)]
    struct Pair {
        lock: VersionLock,
        words: [AtomicU64; 2],
    }

    impl Pair {
        fn write(&self, value: u64) -> bool {
            self.lock.fill(|| {
                for word in &self.words {
                    word.store(value, Relaxed);
                }
            })
        }

        fn read(&self, sees: impl Fn(&VersionLock, u64) -> bool) -> Option<[u64; 2]> {
            let seen = self.lock.look()?;
            let found = [0, 1].map(|at: usize| self.words[at].load(Relaxed));
            sees(&self.lock, seen).then_some(found)
        }
    }

    /// Two writers and two readers; panics if a reader accepts words that do not belong together.
    fn play(sees: fn(&VersionLock, u64) -> bool) {
        let pair = Arc::new(Pair::default());
        let writers = [1, 2].map(|value| {
            let pair = Arc::clone(&pair);
            thread::spawn(move || pair.write(value))
        });
        let readers = [(), ()].map(|()| {
            let pair = Arc::clone(&pair);
            thread::spawn(move || {
                if let Some([one, two]) = pair.read(sees) {
                    assert_eq!(one, two, "torn");
                }
            })
        });
        let wrote = writers.map(|writer| writer.join().unwrap());
        assert!(wrote.contains(&true));
        for reader in readers {
            reader.join().unwrap();
        }
    }

    #[test]
    fn what_is_read_beside_a_change_does_not_count() {
        shuttle::check_random(|| play(VersionLock::is_still), 2000);
    }

    #[test]
    fn canary_a_reader_that_does_not_look_again_is_noticed() {
        let careless = || shuttle::check_random(|| play(|_, _| true), 2000);
        assert!(std::panic::catch_unwind(careless).is_err());
    }

    #[test]
    fn a_change_is_begun_once_and_a_dead_writer_is_recovered_from() {
        shuttle::check_random(
            || {
                let lock = VersionLock::default();
                let seen = lock.look().unwrap();
                assert!(lock.begin());
                assert!(!lock.begin() && !lock.try_begin() && lock.look().is_none());
                lock.recover();
                assert!(lock.look().is_some() && !lock.is_still(seen));
                lock.recover();
                assert!(lock.fill(|| assert!(lock.look().is_none())));
            },
            1,
        );
    }
}
