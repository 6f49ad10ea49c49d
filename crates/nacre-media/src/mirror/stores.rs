//! Stores to all legs.

use nacre_types::{DeviceOffset, StoreKind, UNIT_SIZE, site};

use super::layout::{BITMAP_AT, REGION};
use super::shared::{Count, HeldRun, RUN, regions};
use super::states::{LegState, SLOTS, States};
use super::{Leg, Mirror};
use crate::arch;
use crate::error::{CopyError, MediaFailed};
use crate::media::Media;
use crate::shared_mutex::Held;
use crate::token::Unfenced;

const UNIT: usize = UNIT_SIZE as usize;

impl Mirror {
    /// Legs that are stored to, the one that is read last. (M2)
    #[inline]
    fn in_order(&self, states: States) -> impl Iterator<Item = (usize, &Leg)> {
        let last = states.read_slot();
        let others = states.stored_to().filter(move |&slot| slot != last);
        let slots = others.chain(std::iter::once(last));
        slots.filter_map(|slot| Some((slot, self.leg(slot)?)))
    }

    /// Locks a range of one region for a store, by `lock`. Its bit is looked at under the lock: a
    /// scrub that takes bits back waits for all locks after that.
    #[inline]
    fn begin<H>(&self, at: u64, len: u64, lock: impl Fn() -> H) -> (H, States) {
        loop {
            let held = lock();
            if self.shared().intents.has(at / REGION) {
                return (held, self.states_now());
            }
            drop(held);
            self.intend(at, len, false);
        }
    }

    /// Locks a part of a unit, for who stores there or makes legs agree.
    #[inline]
    pub(super) fn lock(&self, at: u64, len: u64) -> Held<'_> {
        let shared = self.shared();
        shared.lock_unit(at, len, |at, len| self.finish(at, len))
    }

    fn lock_run(&self, at: u64, len: u64) -> HeldRun<'_> {
        let shared = self.shared();
        shared.lock_run(at, len, |at, len| self.finish(at, len))
    }

    /// The states, with all legs there to which stores go.
    #[inline]
    pub(super) fn states_now(&self) -> States {
        let states = self.states();
        if states.0 != self.seen.load(std::sync::atomic::Ordering::Acquire) {
            self.adapt(states);
        }
        self.states()
    }

    /// Makes the legs agree where a process died that stored there. (M3)
    #[cold]
    pub(super) fn finish(&self, at: u64, len: u64) {
        let inside = at >= self.window.start && at.saturating_add(len) <= self.window.end;
        if inside && len <= UNIT_SIZE {
            // A leg that fails meanwhile is noticed by the next fence.
            let _ = self.level(at, len, self.states());
        }
    }

    /// Copies what differs of a range, whose units are locked, from the leg that is read to the
    /// others. Answers how many units that were.
    pub(super) fn level(&self, at: u64, len: u64, states: States) -> Result<u64, MediaFailed> {
        self.level_some(at, len, states, |_| true)
    }

    /// As [`Mirror::level`], to some of the others.
    fn level_some(
        &self,
        at: u64,
        len: u64,
        states: States,
        is_one: impl Fn(usize) -> bool,
    ) -> Result<u64, MediaFailed> {
        let read = states.read_slot();
        let source = self.leg(read).ok_or(MediaFailed)?;
        let others = || {
            let slots = states.stored_to().filter(|&slot| slot != read);
            slots
                .filter(|&slot| is_one(slot))
                .filter_map(|slot| self.leg(slot))
        };
        if others().next().is_none() {
            return Ok(0);
        }
        let (mut at, end, mut wanted, mut differed) = (at, at + len, [0; UNIT], 0);
        while at < end {
            let wanted = &mut wanted[..in_unit(at, end)];
            source.data.copy_out(DeviceOffset(at), wanted);
            source.data.health()?;
            let changed = others().filter(|leg| leg.make_equal(at, wanted)).count();
            differed += u64::from(changed > 0);
            at += wanted.len() as u64;
        }
        arch::order_stores();
        Ok(differed)
    }

    /// As [`Mirror::level`], of whole regions, under the locks of their units.
    pub(super) fn level_locked(&self, at: u64, end: u64) -> Result<(), MediaFailed> {
        self.level_some_locked(at, end, |_| true)
    }

    /// As [`Mirror::level_some`], of whole regions, under the locks of their units.
    pub(super) fn level_some_locked(
        &self,
        mut at: u64,
        end: u64,
        is_one: impl Fn(usize) -> bool,
    ) -> Result<(), MediaFailed> {
        while at < end {
            at += match whole_units(DeviceOffset(at), (end - at) as usize) as u64 {
                0 => {
                    let part = in_unit(at, end) as u64;
                    let _held = self.lock(at, part);
                    self.level_counted(at, part, &is_one)?
                }
                whole => {
                    let _held = self.lock_run(at, whole);
                    self.level_counted(at, whole, &is_one)?
                }
            };
        }
        Ok(())
    }

    fn level_counted(
        &self,
        at: u64,
        len: u64,
        is_one: impl Fn(usize) -> bool,
    ) -> Result<u64, MediaFailed> {
        let differed = self.level_some(at, len, self.states_now(), is_one)?;
        self.shared().count(Count::Repaired, differed);
        Ok(len)
    }

    /// Makes bits durable on all legs (M1), for stores or for mappings.
    #[cold]
    #[inline(never)]
    fn intend(&self, at: u64, len: u64, mapped: bool) {
        let shared = self.shared();
        let all = regions(at..at + len);
        let _changing = shared.lock_bits();
        for slot in self.states().stored_to().filter(|_| site::step()) {
            if let Some(leg) = self.leg(slot)
                && leg.set_bits(all.clone(), true).is_err()
            {
                self.lose(slot, LegState::Failed);
            }
        }
        shared.intents.set_all(all.clone());
        if mapped {
            shared.mapped.set_all(all);
        }
    }

    /// Programs may store to a range through mappings of their own from now on.
    pub(crate) fn expect_mapped(&self, at: u64, len: u64) {
        let range = regions(at..at + len);
        if self.writable && len > 0 && !self.shared().mapped.has_all(range) {
            self.intend(at, len, true);
        }
    }

    /// As [`Media::expect_stores`], on all legs.
    pub(crate) fn expect_stores(&self, at: DeviceOffset) {
        let legs = self.in_order(self.states());
        legs.for_each(|(_, leg)| leg.data.expect_stores(at));
    }

    #[cfg_attr(feature = "explore", track_caller)]
    pub(crate) fn store_u64(&self, at: DeviceOffset, value: u64, kind: StoreKind) {
        let (_held, states) = self.begin(at.get(), 8, || self.lock(at.get(), 8));
        for (_, leg) in self.in_order(states) {
            let mut stored = leg.data.store_u64(at, value, kind);
            stored.join(Unfenced::nothing());
        }
    }

    /// Stores bytes that may be the program's; an error may leave a part stored, on all legs.
    #[cfg_attr(feature = "explore", track_caller)]
    pub(crate) fn put(
        &self,
        (at, kind): (DeviceOffset, StoreKind),
        from: *const u8,
        len: usize,
    ) -> Result<(), CopyError> {
        let past_cache = len >= self.reader().stream_min;
        let mut done = 0;
        while done < len {
            let at = at.add(done as u64);
            let from = from.wrapping_add(done);
            let whole = if past_cache {
                whole_units(at, len - done)
            } else {
                0
            };
            done += match whole {
                0 => self.put_piece((at, kind), from, len - done)?,
                whole => self.put_run((at, kind), from, whole)?,
            };
        }
        Ok(())
    }

    /// Stores what lies in one unit; answers how much that is.
    #[cfg_attr(feature = "explore", track_caller)]
    fn put_piece(
        &self,
        (at, kind): (DeviceOffset, StoreKind),
        from: *const u8,
        left: usize,
    ) -> Result<usize, CopyError> {
        let at = at.get();
        let len = left.min(UNIT - at as usize % UNIT);
        let (_held, states) = self.begin(at, len as u64, || self.lock(at, len as u64));
        self.expect_bytes(states, DeviceOffset(at), len);
        self.put_in_order(states, (DeviceOffset(at), kind), from, len, false)?;
        Ok(len)
    }

    /// The lines of all legs are asked for at once.
    #[inline]
    fn expect_bytes(&self, states: States, at: DeviceOffset, len: usize) {
        for (_, leg) in self.in_order(states) {
            let first = leg.data.store_address(at, len as u64);
            leg.data.prefetch(first, len);
        }
    }

    /// Stores whole units of one run past the cache, and waits for them once.
    #[cfg_attr(feature = "explore", track_caller)]
    fn put_run(
        &self,
        place: (DeviceOffset, StoreKind),
        from: *const u8,
        len: usize,
    ) -> Result<usize, CopyError> {
        let at = place.0.get();
        let (_held, states) = self.begin(at, len as u64, || self.lock_run(at, len as u64));
        match self.spread(states, place, from, len) {
            true => arch::order_stores(),
            false => self.put_in_order(states, place, from, len, true)?,
        }
        Ok(len)
    }

    /// Stores each line on all legs before the next, past the cache. `false`: some of it is
    /// missing, or it is to be cut.
    #[cfg_attr(feature = "explore", track_caller)]
    fn spread(
        &self,
        states: States,
        (at, kind): (DeviceOffset, StoreKind),
        from: *const u8,
        len: usize,
    ) -> bool {
        let (mut places, mut count) = ([std::ptr::null_mut(); SLOTS], 0);
        for (_, leg) in self.in_order(states) {
            if leg.data.is_counted(kind, len) {
                return false;
            }
            places[count] = leg.data.store_address(at, len as u64);
            count += 1;
        }
        // SAFETY: the addresses were just checked and are whole units, and no reference covers
        // them; faults on the program's memory are caught.
        let done = unsafe { arch::copier().spread(&places[..count], from, len) };
        for (_, leg) in self.in_order(states) {
            leg.data.tell_of_bytes((at, kind), len);
        }
        done.is_ok()
    }

    /// Stores on one leg after the other; on the last one past the cache if `stream`.
    #[cfg_attr(feature = "explore", track_caller)]
    fn put_in_order(
        &self,
        states: States,
        place: (DeviceOffset, StoreKind),
        from: *const u8,
        len: usize,
        stream: bool,
    ) -> Result<(), CopyError> {
        let mut source = from;
        let last = states.read_slot();
        for (slot, leg) in self.in_order(states) {
            // The program may change its bytes meanwhile: all legs get what the first one got.
            match leg
                .data
                .put_anything(place, source, len, stream && slot == last)
            {
                Ok(()) => source = leg.data.address(place.0, len as u64),
                Err(CopyError::MediaFault) if slot != last => self.lose(slot, LegState::Failed),
                Err(error) => {
                    self.finish_units(place.0.get(), len as u64);
                    return Err(error);
                }
            }
        }
        arch::order_stores();
        Ok(())
    }

    /// As [`Mirror::finish`], of a part of a unit or of whole ones.
    #[cold]
    fn finish_units(&self, at: u64, len: u64) {
        for skip in (0..len).step_by(UNIT) {
            self.finish(at + skip, (len - skip).min(UNIT_SIZE));
        }
    }

    /// Lines that were stored to are flushed already. What programs stored through mappings of the
    /// leg that is read comes to the others.
    #[cfg_attr(feature = "explore", track_caller)]
    pub(crate) fn flush(&self, at: DeviceOffset, len: u64, kind: StoreKind) -> Unfenced {
        let mut flushed = Unfenced::nothing();
        if kind == StoreKind::Data && self.writable {
            flushed.join(self.reader().flush_as(at, len, kind));
            // Whoever fences is told of a leg that failed.
            let _ = self.level_locked(at.get(), at.get() + len);
        }
        flushed
    }

    /// All legs have what this thread stored, and labels tell of those that have not.
    #[cfg_attr(feature = "explore", track_caller)]
    pub(crate) fn fence(&self) -> Result<(), MediaFailed> {
        let Some(shared) = self.shared.get() else {
            return Ok(());
        };
        let states = shared.states();
        for slot in states.stored_to() {
            let leg = self.leg(slot);
            let is_done = |leg: &Leg| {
                leg.data.fence(Unfenced::nothing()).is_ok() && !leg.data.watched.is_lost()
            };
            if !leg.is_some_and(is_done) {
                return self.notice();
            }
        }
        match shared.labelled() == shared.states() {
            true => Ok(()),
            false => self.notice(),
        }
    }
}

/// Bytes of the unit of `at` that lie before `end`.
fn in_unit(at: u64, end: u64) -> usize {
    (UNIT_SIZE - at % UNIT_SIZE).min(end - at) as usize
}

/// Bytes of the whole units that follow in the run of `at`, at most `left`; 0 within a unit.
fn whole_units(at: DeviceOffset, left: usize) -> usize {
    match at.get() % UNIT_SIZE {
        0 => ((RUN - at.get() % RUN) as usize).min(left - left % UNIT),
        _ => 0,
    }
}

impl Leg {
    /// Stores bytes unless they are there already; answers whether it did.
    pub(super) fn make_equal(&self, at: u64, wanted: &[u8]) -> bool {
        let at = DeviceOffset(at);
        let differs = !self.data.has(at, wanted);
        if differs {
            let mut stored = self.data.write_fresh(at, wanted, StoreKind::Data);
            stored.join(Unfenced::nothing());
        }
        differs
    }

    fn word(&self, index: usize) -> DeviceOffset {
        DeviceOffset(BITMAP_AT + index as u64 * 8)
    }

    /// Sets or clears the bits of some regions, durably. The caller holds the lock of bits.
    pub(super) fn set_bits(
        &self,
        range: std::ops::Range<u64>,
        on: bool,
    ) -> Result<(), MediaFailed> {
        let mut stored = Unfenced::nothing();
        for (word, mask) in crate::image::masks(range) {
            let before = self.front.load_u64(self.word(word));
            let after = match on {
                true => before | mask,
                false => before & !mask,
            };
            if before != after {
                stored.join(
                    self.front
                        .store_u64(self.word(word), after, StoreKind::Metadata),
                );
            }
        }
        self.front.fence(stored)
    }

    /// Makes the bitmap these words, durably; each from what it was to what it is, in one step.
    pub(super) fn set_words(&self, words: &[u64]) -> Result<(), MediaFailed> {
        let mut stored = Unfenced::nothing();
        for (index, &word) in words.iter().enumerate() {
            if self.bits(index) != word {
                let at = self.word(index);
                stored.join(self.front.store_u64(at, word, StoreKind::Metadata));
            }
        }
        self.front.fence(stored)
    }

    /// A word of the bitmap.
    pub(super) fn bits(&self, word: usize) -> u64 {
        self.front.load_u64(self.word(word))
    }
}

impl Media {
    /// As `put`, past the cache only if the caller says so.
    #[cfg_attr(feature = "explore", track_caller)]
    fn put_anything(
        &self,
        (at, kind): (DeviceOffset, StoreKind),
        from: *const u8,
        len: usize,
        stream: bool,
    ) -> Result<(), CopyError> {
        let to = self.store_address(at, len as u64);
        // SAFETY: the address was just checked.
        unsafe { self.put_to(to, (at, kind), from, len, stream) }
    }
}
