//! Children that run in their parent's memory (vfork): what a process keeps once would be both's.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicPtr, AtomicU64};

/// Answers which child the caller is: 0 for the process itself, else an address of its own.
pub type Caller = fn() -> usize;

static CALLER: AtomicPtr<Caller> = AtomicPtr::new(std::ptr::null_mut());

/// From now on the process may have children in its memory, and is told who of them calls.
pub fn tell_callers_apart(by: &'static Caller) {
    CALLER.store(std::ptr::from_ref(by).cast_mut(), Relaxed);
}

/// Whether children may be in the process's memory, which is used still when the process is gone.
pub(crate) fn may_share_memory() -> bool {
    !CALLER.load(Relaxed).is_null()
}

/// The child that calls, or 0.
#[inline]
pub(crate) fn caller() -> usize {
    // SAFETY: null, or a reference that lives as long as the process.
    unsafe { CALLER.load(Relaxed).as_ref() }.map_or(0, |caller| caller())
}

/// Children that store at the same time; a further one waits for one of them to end.
const GUESTS: usize = 64;
const NUMBER_BITS: u32 = 16;

/// A number that a process has, and those of the children in its memory.
pub struct Numbers {
    own: AtomicU64,
    /// At least as many as there are entries: one of a child that was killed meanwhile stays.
    guests: AtomicU64,
    /// Caller and number; 0: free. A caller changes its own entry only.
    entries: [AtomicU64; GUESTS],
}

fn pack(caller: usize, number: u16) -> u64 {
    (caller as u64) << NUMBER_BITS | u64::from(number)
}

impl Numbers {
    /// The process has this number.
    pub fn new(own: u16) -> Numbers {
        Numbers {
            own: AtomicU64::new(u64::from(own)),
            guests: AtomicU64::new(0),
            entries: [const { AtomicU64::new(0) }; GUESTS],
        }
    }

    /// The caller's number; the process's for a child that has none.
    #[inline]
    pub fn get(&self) -> u16 {
        match self.guests.load(Relaxed) {
            0 => self.own.load(Relaxed) as u16,
            _ => self.of(caller()),
        }
    }

    /// The process's number, whoever calls.
    pub fn own(&self) -> u16 {
        self.own.load(Relaxed) as u16
    }

    #[cold]
    fn of(&self, caller: usize) -> u16 {
        let entry = self.entry_of(caller).map(|entry| entry.load(Relaxed));
        entry.unwrap_or_else(|| self.own.load(Relaxed)) as u16
    }

    fn entry_of(&self, caller: usize) -> Option<&AtomicU64> {
        let is_its = |entry: &&AtomicU64| entry.load(Relaxed) >> NUMBER_BITS == caller as u64;
        self.entries.iter().find(is_its).filter(|_| caller != 0)
    }

    /// Gives the caller a number.
    pub fn set(&self, number: u16) {
        let caller = caller();
        match self.entry_of(caller) {
            _ if caller == 0 => self.own.store(u64::from(number), Relaxed),
            Some(entry) => entry.store(pack(caller, number), Relaxed),
            None => self.add(pack(caller, number)),
        }
    }

    fn add(&self, word: u64) {
        self.guests.fetch_add(1, Relaxed);
        let take = |entry: &AtomicU64| entry.compare_exchange(0, word, Relaxed, Relaxed).is_ok();
        while !self.entries.iter().any(take) {
            rustix::thread::sched_yield();
        }
    }

    /// The child that had a number is gone.
    pub fn remove(&self, number: u16) {
        let is_its = |word: u64| word != 0 && word as u16 == number;
        for entry in &self.entries {
            let word = entry.load(Relaxed);
            if is_its(word) && entry.compare_exchange(word, 0, Relaxed, Relaxed).is_ok() {
                self.guests.fetch_sub(1, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Caller, GUESTS, Numbers, tell_callers_apart};
    use std::cell::Cell;

    thread_local! {
        static NAME: Cell<usize> = const { Cell::new(0) };
    }

    fn calling<T>(name: usize, work: impl FnOnce() -> T) -> T {
        static BY_NAME: Caller = || NAME.get();
        tell_callers_apart(&BY_NAME);
        let before = NAME.replace(name);
        let done = work();
        NAME.set(before);
        done
    }

    #[test]
    fn a_child_changes_its_own_number_only() {
        let numbers = Numbers::new(1);
        calling(0x1000, || {
            assert_eq!(numbers.get(), 1, "until it has one");
            numbers.set(2);
            numbers.set(3);
            assert_eq!(numbers.get(), 3);
            calling(0x2000, || numbers.set(4));
            assert_eq!(numbers.get(), 3);
        });
        assert_eq!(numbers.get(), 1);
        numbers.set(5);
        assert_eq!(calling(0x2000, || numbers.get()), 4);
        numbers.remove(3);
        assert_eq!(calling(0x1000, || numbers.get()), 5, "it is gone");
        assert_eq!(calling(0x2000, || numbers.get()), 4);
    }

    #[test]
    fn entries_are_used_again() {
        let numbers = Numbers::new(1);
        for child in 1..=3 * GUESTS {
            calling(child << 12, || numbers.set(7));
            numbers.remove(7);
        }
        assert_eq!(calling(1 << 12, || numbers.get()), 1);
    }
}
