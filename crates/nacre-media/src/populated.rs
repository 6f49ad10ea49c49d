//! Which windows of a mapping were populated.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use zerocopy::FromZeros;

/// A bit for each window. To forget one, as a short table would, costs more than a few faults: the
/// kernel looks at all pages of a window that is populated again.
#[derive(Default)]
pub(crate) struct Populated(Box<[AtomicU64]>);

impl Populated {
    /// Of so many windows, none of which is populated.
    pub(crate) fn of(windows: u64) -> Populated {
        let words = windows.div_ceil(64) as usize;
        // Without memory for it, pages come by faults.
        Populated(<[AtomicU64]>::new_box_zeroed_with_elems(words).unwrap_or_default())
    }

    /// Whether this is the first time that a window is asked for.
    #[inline]
    pub(crate) fn is_first(&self, window: u64) -> bool {
        let bit = 1 << (window % 64);
        let word = self.0.get((window / 64) as usize);
        word.is_some_and(|word| word.load(Relaxed) & bit == 0 && note(word, bit))
    }
}

#[cold]
fn note(word: &AtomicU64, bit: u64) -> bool {
    word.fetch_or(bit, Relaxed) & bit == 0
}

#[cfg(test)]
mod tests {
    use super::Populated;

    #[test]
    fn each_window_is_new_once_however_many_there_are() {
        let populated = Populated::of(5000);
        assert!((0..5000).rev().all(|window| populated.is_first(window)));
        assert!(!(0..5000).any(|window| populated.is_first(window)));
        assert!(!populated.is_first(1 << 40) && !Populated::default().is_first(0));
    }
}
