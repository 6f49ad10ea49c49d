//! Whether the kernel keeps what it has read of a file (D109).
//!
//! How a file is opened cannot be changed later, and the kernel does not hold writes past its cache
//! and reads into it apart. So who opens a file to write it goes past the cache, and as long as he
//! has it open everybody does. Only who comes while others read through the cache writes through
//! it, too. No file is open in both ways, unless others have used the pool meanwhile.

/// How a file is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Through the kernel's cache.
    Cached {
        /// What it holds of the file is right.
        goes_on: bool,
    },
    /// Each call is a request.
    Direct,
}

/// One file's contents in the kernel.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// Open files by their numbers: those that go through the cache, and past it to write and to
    /// read.
    cached: Vec<u64>,
    writers: Vec<u64>,
    readers: Vec<u64>,
    /// The time without others in which the cache was filled; 0 if it may hold anything.
    filled_in: u64,
}

impl Contents {
    /// Opens the file as number `handle`. `alone` is the time without others that it is now.
    pub(crate) fn open(&mut self, handle: u64, writes: bool, alone: Option<u64>) -> Way {
        let joins = !self.cached.is_empty();
        let begins = !writes && self.writers.is_empty();
        if let Some(now) = alone.filter(|_| joins || begins) {
            let goes_on = self.filled_in == now;
            self.filled_in = now;
            self.cached.push(handle);
            return Way::Cached { goes_on };
        }
        if writes {
            self.writers.push(handle);
            self.filled_in = 0;
        } else {
            self.readers.push(handle);
        }
        Way::Direct
    }

    pub(crate) fn close(&mut self, handle: u64) {
        for open in [&mut self.cached, &mut self.writers, &mut self.readers] {
            open.retain(|&open| open != handle);
        }
    }

    /// Somebody has it open.
    pub(crate) fn is_open(&self) -> bool {
        let mut all = [&self.cached, &self.writers, &self.readers].into_iter();
        all.any(|open| !open.is_empty())
    }

    /// The kernel may hold some of it, as of that time without others.
    pub(crate) fn are_kept(&self, now: u64) -> bool {
        self.filled_in == now || self.is_cached()
    }

    /// Somebody reads it through the cache.
    pub(crate) fn is_cached(&self) -> bool {
        !self.cached.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::{Contents, Way};

    const FRESH: Way = Way::Cached { goes_on: false };
    const GOES_ON: Way = Way::Cached { goes_on: true };

    #[test]
    fn what_was_read_stays_until_somebody_writes() {
        let mut file = Contents::default();
        assert_eq!(file.open(1, false, Some(1)), FRESH);
        file.close(1);
        assert_eq!(file.open(2, false, Some(1)), GOES_ON);
        file.close(2);
        assert_eq!(file.open(3, true, Some(1)), Way::Direct);
        assert_eq!(file.open(4, false, Some(1)), Way::Direct);
        file.close(3);
        assert_eq!(file.open(5, false, Some(1)), FRESH);
        assert_eq!(file.open(6, true, Some(1)), GOES_ON, "who joins readers");
    }

    #[test]
    fn with_others_nothing_is_kept() {
        let mut file = Contents::default();
        assert_eq!(file.open(1, false, Some(1)), FRESH);
        assert_eq!(file.open(2, false, None), Way::Direct);
        assert!(file.is_cached() && file.are_kept(1) && file.are_kept(2));
        file.close(1);
        assert!(!file.is_cached() && !file.are_kept(2) && file.is_open());
        file.close(2);
        assert!(!file.is_open());
        assert_eq!(file.open(3, false, Some(2)), FRESH);
    }
}
