//! Words that threads of one process read without a lock while one of them may fill them.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use zerocopy::FromZeros;

/// Odd when a place can be read; even while somebody fills it, and 0 before the first time.
#[derive(Debug, Default, FromZeros)]
pub struct Sequence(AtomicU64);

impl Sequence {
    /// Before the place is read, by relaxed loads. `None` if there is nothing to read now.
    #[inline(always)]
    pub fn look(&self) -> Option<u64> {
        let now = self.0.load(Acquire);
        (now % 2 == 1).then_some(now)
    }

    /// Whether all that was read since the look belongs together.
    #[inline(always)]
    pub fn is_still(&self, seen: u64) -> bool {
        fence(Acquire);
        self.0.load(Relaxed) == seen
    }

    /// Fills the place by relaxed stores, unless somebody else does so just now.
    pub fn fill(&self, store: impl FnOnce()) {
        let now = self.0.load(Relaxed);
        let filling = (now | 1) + 1;
        let claimed = (now == 0 || now % 2 == 1)
            && self
                .0
                .compare_exchange(now, filling, Acquire, Relaxed)
                .is_ok();
        if claimed {
            // The even number must be seen before any store that follows it.
            fence(Release);
            store();
            self.0.store(filling + 1, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Sequence;

    #[test]
    fn what_is_read_beside_a_filling_does_not_count() {
        let sequence = Sequence::default();
        assert_eq!(sequence.look(), None);
        sequence.fill(|| {
            assert_eq!(sequence.look(), None);
            sequence.fill(|| panic!("two fill at once"));
        });
        let seen = sequence.look().unwrap();
        assert!(sequence.is_still(seen));
        sequence.fill(|| assert!(!sequence.is_still(seen)));
        assert!(!sequence.is_still(seen));
    }
}
