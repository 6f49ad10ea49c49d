//! Windows: units that programs have mapped for a while. Whoever maps a large file maps some of it
//! at a time, so that what it does not use may go (D59).
//!
//! Each process that has windows keeps two sets of its own in the image: units that it shows, and
//! among them those that the program may store to. Nobody is told when they change, and those of a
//! process that died are found here.

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use nacre_types::{DeviceOffset, UNIT_SIZE};

use super::bits::masks;
use super::evict::LEAST;
use super::{BitSet, CHUNK, Image, units};
use crate::error::MediaFailed;

/// So many processes may have windows at once; others pin what they map.
pub(super) const HOLDERS: usize = 64;
/// All windows of all processes together may take this part of the room.
const SHARE: u64 = 4;
/// From this part of the room on, what is mapped comes by windows.
const PINNED_SHARE: u64 = 4;
/// The same for small files.
const SMALL_SHARE: u64 = 2;
/// So large is a small file at most: 256 KiB.
const SMALL: u64 = (256 << 10) / UNIT_SIZE;

/// A process that has windows.
#[repr(C)]
pub(super) struct Holder {
    /// Its number, and 1; 0: nobody.
    owner: AtomicU64,
    /// Units that it shows.
    held: AtomicU64,
}

/// The units of one holder.
pub(super) struct Sets {
    pub shown: BitSet,
    /// Those of them that the program may store to: they may hold what nobody has noted.
    pub stored: BitSet,
}

impl Sets {
    pub fn new([shown, stored]: [BitSet; 2]) -> Self {
        Self { shown, stored }
    }
}

impl Image {
    /// Whether a mapping of so many bytes is to come by windows.
    pub fn wants_windows(&self, len: u64) -> bool {
        let head = self.head();
        let wanted = len.div_ceil(UNIT_SIZE);
        let share = match wanted > SMALL {
            true => PINNED_SHARE,
            false => SMALL_SHARE,
        };
        let pinned = head.pinned.load(Relaxed);
        self.drops
            && self.committer.get().is_some()
            && pinned.saturating_add(wanted) > head.room.load(Relaxed) / share
    }

    /// Whether so many bytes more may stay in memory for as long as somebody maps them. If what
    /// stays filled the file system of the image, nobody could load anything any more.
    pub fn may_stay(&self, len: u64) -> bool {
        let head = self.head();
        let stays = head.pinned.load(Relaxed) + self.in_windows() + len.div_ceil(UNIT_SIZE);
        !self.drops || stays <= head.room.load(Relaxed) || stays + LEAST <= self.fits()
    }

    /// How many bytes of windows this process should have at most.
    pub fn window_share(&self) -> u64 {
        let head = self.head();
        let users = u64::from(head.claimed.load(Relaxed).count_ones()).max(1);
        (head.room.load(Relaxed) / SHARE / users).max(LEAST) * UNIT_SIZE
    }

    /// Units that are in windows.
    pub(super) fn in_windows(&self) -> u64 {
        let holders = self.claimed_holders();
        holders.map(|(holder, _)| holder.held.load(Relaxed)).sum()
    }

    /// Which units of a word are in a window of anybody.
    pub(super) fn windows_of(&self, word: usize) -> u64 {
        let shown = self
            .claimed_holders()
            .map(|(_, sets)| sets.shown.word(word));
        shown.fold(0, |all, some| all | some)
    }

    /// Which units of a word programs may have stored to behind our back.
    pub(super) fn may_be_stored_to(&self, word: usize) -> u64 {
        let stored = self.claimed_holders();
        let stored = stored.map(|(_, sets)| sets.stored.word(word));
        stored.fold(self.pinned.word(word), |all, some| all | some)
    }

    /// Whether programs may have stored to units of a range behind our back.
    pub(super) fn may_hold_unnoted(&self, range: Range<u64>) -> bool {
        masks(range).any(|(word, mask)| self.may_be_stored_to(word) & mask != 0)
    }

    fn claimed_holders(&self) -> impl Iterator<Item = (&Holder, &Sets)> {
        let claimed = self.head().claimed.load(SeqCst);
        let all = self.head().holders.iter().zip(&self.windows);
        (0..)
            .zip(all)
            .filter(move |(i, _)| claimed & 1 << i != 0)
            .map(|(_, both)| both)
    }

    /// This process among the holders.
    fn own_holder(&self) -> Option<(&Holder, &Sets)> {
        let owner = self.committer.get()?.owner() + 1;
        let holders = &self.head().holders;
        let known = holders
            .iter()
            .position(|one| one.owner.load(SeqCst) == owner);
        let free = |one: &Holder| one.owner.compare_exchange(0, owner, SeqCst, SeqCst).is_ok();
        let index = known.or_else(|| holders.iter().position(free))?;
        // Before anything is in its sets.
        self.head().claimed.fetch_or(1 << index, SeqCst);
        Some((&holders[index], &self.windows[index]))
    }

    /// A range is about to be mapped, and stays until [`Image::end_window`]. `stores`: the program
    /// may store there. `false`: it has to be pinned, as this process has a window there already,
    /// or too many have some.
    pub fn begin_window(&self, range: Range<u64>, stores: bool) -> Result<bool, MediaFailed> {
        let wanted = units(range.clone());
        let Some((holder, sets)) = self.own_holder() else {
            return Ok(false);
        };
        if sets.shown.has_any(wanted.clone()) {
            return Ok(false);
        }
        // C12: before one looks whether they are there, and before a store.
        let new = sets.shown.insert(wanted.clone());
        holder.held.fetch_add(new, Relaxed);
        if stores {
            sets.stored.insert(wanted.clone());
        }
        let came = self.ensure(DeviceOffset(range.start), range.end - range.start);
        if came.is_err() {
            sets.stored.remove(wanted.clone());
            holder.held.fetch_sub(sets.shown.remove(wanted), Relaxed);
        }
        came.map(|()| true)
    }

    /// The program may store to a window from now on.
    pub fn store_through_window(&self, range: Range<u64>) {
        if let Some((_, sets)) = self.own_holder() {
            sets.stored.insert(units(range));
        }
    }

    /// A range is mapped no more: what the program may have stored there is noted.
    pub fn end_window(&self, range: Range<u64>) -> Result<(), MediaFailed> {
        match self.own_holder() {
            Some(own) => self.end_units(own, units(range)),
            None => Ok(()),
        }
    }

    /// All windows of a process that is gone, or has none any more, end.
    pub fn end_windows_of(&self, number: u64) {
        let holders = self.head().holders.iter().zip(&self.windows);
        for (i, own) in holders.enumerate() {
            if own.0.owner.load(SeqCst) == number + 1 {
                self.end_holder(i, own);
            }
        }
    }

    /// As [`Image::end_windows_of`], of all. Nobody else uses the image.
    pub fn end_all_windows(&self) {
        let holders = self.head().holders.iter().zip(&self.windows);
        for (i, own) in holders.enumerate() {
            self.end_holder(i, own);
        }
    }

    fn end_holder(&self, index: usize, own: (&Holder, &Sets)) {
        let mut all = Vec::new();
        own.1.shown.each_range(|range| all.push(range));
        let ended = all
            .into_iter()
            .try_for_each(|range| self.end_units(own, range));
        // What cannot be noted stays.
        if ended.is_ok() {
            own.0.held.store(0, Relaxed);
            self.head().claimed.fetch_and(!(1 << index), SeqCst);
            own.0.owner.store(0, SeqCst);
        }
    }

    fn end_units(&self, own: (&Holder, &Sets), range: Range<u64>) -> Result<(), MediaFailed> {
        let (holder, sets) = own;
        for (word, mask) in masks(range.clone()) {
            // C12: before they may go.
            self.note_units(word, sets.stored.word(word) & mask)?;
        }
        sets.stored.remove(range.clone());
        holder.held.fetch_sub(sets.shown.remove(range), Relaxed);
        Ok(())
    }

    /// Notes units of a range that programs may have stored to behind our back: what is neither
    /// pinned nor in a window has not changed, and need not even be there.
    pub(crate) fn note_stored(&self, range: Range<u64>) -> Result<(), MediaFailed> {
        masks(units(range))
            .try_for_each(|(word, mask)| self.note_units(word, mask & self.may_be_stored_to(word)))
    }

    /// Notes units of a word as stored to.
    fn note_units(&self, word: usize, mut mask: u64) -> Result<(), MediaFailed> {
        let first = word as u64 * u64::from(u64::BITS);
        while mask != 0 {
            let start = mask.trailing_zeros();
            let most = (CHUNK / UNIT_SIZE) as u32;
            let count = (mask >> start).trailing_ones().min(most);
            mask &= !((u64::MAX >> (u64::BITS - count)) << start);
            let at = (first + u64::from(start)) * UNIT_SIZE;
            drop(self.begin(DeviceOffset(at), u64::from(count) * UNIT_SIZE)?);
        }
        Ok(())
    }
}
