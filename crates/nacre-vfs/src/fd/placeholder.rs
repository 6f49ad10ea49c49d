//! Placeholders: the kernel fds behind open files.
//!
//! A system call costs more than all the rest of an open. So a placeholder that the program closes
//! stays open in the kernel, *cached*, and the next open takes it without asking the kernel. What
//! the kernel would show of a placeholder (its identity) is written only when somebody can see it.
//!
//! The program must not notice. A cached number is free for it: using one gives EBADF, an open
//! gives the lowest number that is cached or free in the kernel, and before the kernel itself hands
//! out a number, looks at numbers or copies them, the cached ones in its way are closed for good.
//! - `floor`: every number below it is in use in the kernel, so a cached number below it is the
//!   lowest one that is free. The kernel's answers raise it, every close lowers it.
//! - `Note`: a placeholder can be cached only while no other process and no other number has the
//!   same kernel file, as its identity is that file's. A note is valid for one `epoch`, which every
//!   fork ends; while somebody forks none is made or valid. Whoever parks or takes a placeholder
//!   looks at the epoch after the step before, so that what a forking process copies is never used
//!   for another file.

use crate::fd::word::update;
use crate::untouched::zeros;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers that can be cached lie below.
pub(crate) const NUMBERS: usize = 256;
/// The standard streams are never cached.
pub(crate) const FIRST: i32 = 3;
const BITS: usize = 64;
const CLOSES_SHIFT: u32 = 32;

/// A placeholder whose kernel file nobody else has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Note {
    pub(crate) epoch: u64,
    pub(crate) pool: usize,
    pub(crate) cloexec: bool,
}

impl Note {
    const VALID: u64 = 1;
    const CLOEXEC: u64 = 2;
    const POOL_SHIFT: u32 = 8;
    const EPOCH_SHIFT: u32 = 16;

    fn pack(self) -> u64 {
        let cloexec = if self.cloexec { Note::CLOEXEC } else { 0 };
        self.epoch << Note::EPOCH_SHIFT
            | (self.pool as u64) << Note::POOL_SHIFT
            | cloexec
            | Note::VALID
    }

    fn unpack(word: u64) -> Option<Note> {
        (word & Note::VALID != 0).then_some(Note {
            epoch: word >> Note::EPOCH_SHIFT,
            pool: (word >> Note::POOL_SHIFT) as u8 as usize,
            cloexec: word & Note::CLOEXEC != 0,
        })
    }
}

/// What one process knows of its placeholders.
pub(crate) struct Placeholders {
    notes: Box<[AtomicU64]>,
    cached: [AtomicU64; NUMBERS / BITS],
    /// How many fds were closed in the kernel (upper half), and the floor.
    pub(crate) floor: AtomicU64,
    /// How many forks have been (36 bits), and how many are being made (12 bits).
    epoch: AtomicU64,
}

/// One fork that begins, in the epoch.
const FORK_BEGINS: u64 = 1;
/// One that ends.
const FORK_ENDS: u64 = (1 << FORKS_BITS) - 1;
pub(crate) const FORKS_BITS: u32 = 12;

impl Placeholders {
    pub(crate) fn new() -> Placeholders {
        Placeholders {
            notes: zeros(NUMBERS),
            cached: [const { AtomicU64::new(0) }; NUMBERS / BITS],
            floor: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(crate) fn note_word(&self, fd: i32) -> Option<&AtomicU64> {
        self.notes.get(usize::try_from(fd).ok()?)
    }

    /// The note of a placeholder that may be cached or taken now.
    #[inline]
    pub(crate) fn valid_note(&self, fd: i32) -> Option<Note> {
        let note = Note::unpack(self.note_word(fd)?.load(Ordering::Acquire))?;
        // None is made while somebody forks, so those of an epoch are all of one in which nobody
        // does.
        (note.epoch == self.epoch()).then_some(note)
    }

    #[inline]
    pub(crate) fn set_note(&self, fd: i32, note: Option<Note>) {
        if let Some(word) = self.note_word(fd) {
            word.store(note.map_or(0, Note::pack), Ordering::Release);
        }
    }

    pub(crate) fn has_note(&self, fd: i32) -> bool {
        self.note_word(fd)
            .is_some_and(|word| word.load(Ordering::Acquire) != 0)
    }

    /// Other numbers or processes have the placeholder's kernel file from now on, or what is known
    /// of it changes behind our back.
    pub(crate) fn share(&self, fd: i32) {
        self.set_note(fd, None);
    }

    /// The program sets the placeholder's close-on-exec flag in the kernel.
    pub(crate) fn set_cloexec(&self, fd: i32, cloexec: bool) {
        let known = self
            .note_word(fd)
            .and_then(|word| Note::unpack(word.load(Ordering::Acquire)));
        if let Some(note) = known {
            self.set_note(fd, Some(Note { cloexec, ..note }));
        }
    }

    #[inline]
    pub(crate) fn lowest_cached(&self) -> Option<i32> {
        let words = self.cached.iter().enumerate();
        words
            .map(|(index, word)| (index, word.load(Ordering::Acquire)))
            .find(|&(_, word)| word != 0)
            .map(|(index, word)| (index * BITS) as i32 + word.trailing_zeros() as i32)
    }

    #[inline]
    pub(crate) fn park(&self, fd: i32, alone: bool) {
        let (index, bit) = place(fd);
        // The closure always gives a value, so the update cannot fail.
        let _ = update(&self.cached[index], alone, |word| Some(word | bit));
    }

    /// True for the one caller who gets the cached placeholder.
    #[inline]
    pub(crate) fn claim(&self, fd: i32, alone: bool) -> bool {
        let (index, bit) = place(fd);
        let uncached = |word| (word & bit != 0).then_some(word & !bit);
        let word = self.cached.get(index);
        word.is_some_and(|word| update(word, alone, uncached).is_ok())
    }

    #[inline]
    pub(crate) fn is_floor_above(&self, fd: i32) -> bool {
        self.floor.load(Ordering::SeqCst) as u32 > fd as u32
    }

    /// The kernel has chosen `fd` as its lowest free number, after `before` was read.
    pub(crate) fn opened(&self, before: u64, fd: i32) {
        let raised = u64::from((before as u32).max(fd as u32 + 1));
        let after = before >> CLOSES_SHIFT << CLOSES_SHIFT | raised;
        // If anything was closed meanwhile, the old floor stays.
        let _ = self
            .floor
            .compare_exchange(before, after, Ordering::SeqCst, Ordering::SeqCst);
    }

    pub(crate) fn closed(&self, fd: i32) {
        let lowered = |word: u64| {
            let closes = (word >> CLOSES_SHIFT) as u32;
            let floor = (word as u32).min(fd.max(0) as u32);
            Some(u64::from(closes.wrapping_add(1)) << CLOSES_SHIFT | u64::from(floor))
        };
        // The closure always gives a value, so the update cannot fail.
        let _ = self
            .floor
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, lowered);
    }

    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Somebody is about to copy all numbers: until [`Placeholders::end_fork`], what is opened has
    /// its identity at once, and what is closed is closed.
    pub(crate) fn begin_fork(&self) {
        self.epoch.fetch_add(FORK_BEGINS, Ordering::SeqCst);
    }

    /// They are copied, or will not be.
    pub(crate) fn end_fork(&self) {
        self.epoch.fetch_add(FORK_ENDS, Ordering::SeqCst);
    }

    /// In a child: what other threads of the parent had begun does not end here.
    pub(crate) fn end_all_forks(&self) {
        let number = self.epoch() >> FORKS_BITS;
        self.epoch
            .store((number + 1) << FORKS_BITS, Ordering::SeqCst);
    }
}

#[inline]
fn place(fd: i32) -> (usize, u64) {
    (fd as usize / BITS, 1 << (fd as usize % BITS))
}

#[cfg(test)]
mod tests {
    use super::{FORKS_BITS, Note, Placeholders};

    #[test]
    fn notes_survive_packing_and_end_with_their_epoch() {
        let note = Note {
            epoch: 0,
            pool: 63,
            cloexec: true,
        };
        assert_eq!(Note::unpack(note.pack()), Some(note));
        assert_eq!(Note::unpack(0), None);
        let placeholders = Placeholders::new();
        placeholders.set_note(5, Some(note));
        assert_eq!(placeholders.valid_note(5), Some(note));
        placeholders.begin_fork();
        placeholders.begin_fork();
        assert_eq!(placeholders.valid_note(5), None);
        placeholders.end_fork();
        placeholders.end_fork();
        assert_eq!(placeholders.valid_note(5), None);
        let epoch = placeholders.epoch();
        assert_eq!(epoch, 2 << FORKS_BITS);
        placeholders.set_note(5, Some(Note { epoch, ..note }));
        assert!(placeholders.valid_note(5).is_some());
        placeholders.begin_fork();
        placeholders.end_all_forks();
        assert_eq!(placeholders.valid_note(5), None);
        assert_eq!(placeholders.valid_note(-1), None);
        assert_eq!(placeholders.valid_note(100_000), None);
    }

    #[test]
    fn the_floor_rises_by_answers_and_falls_by_closes() {
        let placeholders = Placeholders::new();
        let word = || placeholders.floor.load(std::sync::atomic::Ordering::SeqCst);
        placeholders.opened(word(), 7);
        assert!(placeholders.is_floor_above(7) && !placeholders.is_floor_above(8));
        let before = word();
        placeholders.closed(4);
        placeholders.opened(before, 9);
        assert!(placeholders.is_floor_above(3) && !placeholders.is_floor_above(4));
    }

    #[test]
    fn a_cached_number_is_claimed_once() {
        let placeholders = Placeholders::new();
        assert_eq!(placeholders.lowest_cached(), None);
        placeholders.park(200, true);
        placeholders.park(70, false);
        assert_eq!(placeholders.lowest_cached(), Some(70));
        assert!(
            placeholders.claim(70, true)
                && !placeholders.claim(70, false)
                && !placeholders.claim(5_000, true)
        );
        assert_eq!(placeholders.lowest_cached(), Some(200));
    }
}
