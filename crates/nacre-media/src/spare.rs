//! Memory that was used, for the next use: fresh memory costs a page fault for each page.

use std::sync::Mutex;

/// Keeps some of it.
#[derive(Debug)]
pub struct Spare<T> {
    kept: Mutex<Vec<T>>,
    most: usize,
}

impl<T> Spare<T> {
    /// Keeps so many.
    pub const fn new(most: usize) -> Self {
        Self {
            kept: Mutex::new(Vec::new()),
            most,
        }
    }

    /// One that was put back, if there is one.
    pub fn take(&self) -> Option<T> {
        // Not waited for: it may have been held when this process was forked.
        self.kept.try_lock().ok()?.pop()
    }

    /// The next one who takes may have it.
    pub fn put(&self, used: T) {
        if let Ok(mut kept) = self.kept.try_lock()
            && kept.len() < self.most
        {
            kept.push(used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Spare;

    #[test]
    fn what_was_put_back_is_taken_again_and_no_more_than_so_many_are_kept() {
        let spare = Spare::new(2);
        assert_eq!(spare.take(), None);
        (1..4).for_each(|number| spare.put(number));
        let mut taken = [spare.take(), spare.take()];
        taken.sort_unstable();
        assert_eq!((taken, spare.take()), ([Some(1), Some(2)], None));
    }
}
