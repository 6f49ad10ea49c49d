//! Words that only one process changes.

use std::sync::atomic::{AtomicU64, Ordering};

/// Changes a word as `fetch_update` does. Without a locked instruction if the caller is `alone`: no
/// other thread runs that could change it meanwhile.
#[inline(always)]
pub(crate) fn update(
    word: &AtomicU64,
    alone: bool,
    change: impl Fn(u64) -> Option<u64>,
) -> Result<u64, u64> {
    if !alone {
        return word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
    }
    let before = word.load(Ordering::Relaxed);
    let after = change(before).ok_or(before)?;
    word.store(after, Ordering::Release);
    Ok(before)
}

#[cfg(test)]
mod tests {
    use super::update;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn both_ways_change_alike() {
        for alone in [true, false] {
            let word = AtomicU64::new(5);
            assert_eq!(update(&word, alone, |now| Some(now + 1)), Ok(5));
            assert_eq!(update(&word, alone, |_| None), Err(6));
            assert_eq!(word.load(Ordering::Relaxed), 6);
        }
    }
}
