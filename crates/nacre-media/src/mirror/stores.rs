//! Stores to all legs.

use nacre_types::{DeviceOffset, StoreKind, UNIT_SIZE, site};

use super::layout::{BITMAP_AT, REGION};
use super::shared::{Count, regions};
use super::states::{LegState, SLOTS, States};
use super::{Leg, Mirror};
use crate::arch;
use crate::error::{CopyError, MediaFailed};
use crate::media::Media;
use crate::shared_mutex::Held;
use crate::token::Unfenced;

const UNIT: usize = UNIT_SIZE as usize;
/// From so many bytes on a store goes past the cache on the leg that is stored to last.
const STREAMED: usize = 32 << 10;

impl Mirror {
    /// Legs that are stored to, the one that is read last. (M2)
    fn in_order(&self, states: States) -> impl Iterator<Item = (usize, &Leg)> {
        let last = states.read_slot();
        let others = states.stored_to().filter(move |&slot| slot != last);
        let slots = others.chain(std::iter::once(last));
        slots.filter_map(|slot| Some((slot, self.legs[slot].get()?)))
    }

    /// Locks a part of a unit for a store. Its bit is looked at under the lock: a scrub that takes
    /// bits back waits for all locks after that.
    #[inline]
    fn begin(&self, at: u64, len: u64) -> (Held<'_>, States) {
        loop {
            let held = self.lock(at, len);
            if self.shared().intents.has(at / REGION) {
                return held;
            }
            drop(held);
            self.intend(at, len, false);
        }
    }

    /// As `begin`, for who changes nothing but what differs.
    #[inline]
    pub(super) fn lock(&self, at: u64, len: u64) -> (Held<'_>, States) {
        let shared = self.shared();
        let held = shared.lock_unit(at, len, |at, len| self.finish(at, len));
        let states = shared.states();
        if states.0 != self.seen.load(std::sync::atomic::Ordering::Acquire) {
            self.adapt(states);
        }
        (held, self.states())
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

    /// Copies what differs, of a part of a unit, from the leg that is read to the others.
    pub(super) fn level(&self, at: u64, len: u64, states: States) -> Result<bool, MediaFailed> {
        let source = self.legs[states.read_slot()].get().ok_or(MediaFailed)?;
        let (mut wanted, mut found) = ([0; UNIT], [0; UNIT]);
        let (wanted, found) = (&mut wanted[..len as usize], &mut found[..len as usize]);
        source.data.copy_out(DeviceOffset(at), wanted);
        source.data.health()?;
        let mut differed = false;
        for slot in states
            .stored_to()
            .filter(|&slot| slot != states.read_slot())
        {
            let Some(leg) = self.legs[slot].get() else {
                continue;
            };
            leg.data.copy_out(DeviceOffset(at), found);
            if wanted != found {
                differed = true;
                let mut stored = leg.data.write(DeviceOffset(at), wanted, StoreKind::Data);
                stored.join(Unfenced::nothing());
            }
        }
        arch::order_stores();
        Ok(differed)
    }

    /// As [`Mirror::level`], of whole regions, under the locks of their units.
    pub(super) fn level_locked(&self, at: u64, end: u64) -> Result<(), MediaFailed> {
        let mut at = at;
        while at < end {
            let len = (UNIT_SIZE - at % UNIT_SIZE).min(end - at);
            let (_held, states) = self.lock(at, len);
            if self.level(at, len, states)? {
                self.shared().count(Count::Repaired, 1);
            }
            at += len;
        }
        Ok(())
    }

    /// Makes bits durable on all legs (M1), for stores or for mappings.
    #[cold]
    #[inline(never)]
    fn intend(&self, at: u64, len: u64, mapped: bool) {
        let shared = self.shared();
        let all = regions(at..at + len);
        let _changing = shared.lock_bits();
        for slot in self.states().stored_to().filter(|_| site::step()) {
            if let Some(leg) = self.legs[slot].get()
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

    #[cfg_attr(feature = "explore", track_caller)]
    pub(crate) fn store_u64(&self, at: DeviceOffset, value: u64, kind: StoreKind) {
        let (_held, states) = self.begin(at.get(), 8);
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
        let mut done = 0;
        while done < len {
            let at = at.add(done as u64);
            let part = (UNIT - at.get() as usize % UNIT).min(len - done);
            let from = from.wrapping_add(done);
            self.put_piece((at, kind), from, part, len >= STREAMED)?;
            done += part;
        }
        Ok(())
    }

    #[cfg_attr(feature = "explore", track_caller)]
    fn put_piece(
        &self,
        place: (DeviceOffset, StoreKind),
        from: *const u8,
        len: usize,
        stream: bool,
    ) -> Result<(), CopyError> {
        let (_held, states) = self.begin(place.0.get(), len as u64);
        let mut source = from;
        let last = states.read_slot();
        for (slot, leg) in self.in_order(states) {
            // The program may change its bytes meanwhile: all legs get what the first one got.
            let stream = stream && slot == last && len == UNIT;
            match leg.data.put_anything(place, source, len, stream) {
                Ok(()) => source = leg.data.address(place.0, len as u64),
                Err(CopyError::MediaFault) if slot != last => self.lose(slot, LegState::Failed),
                Err(error) => {
                    self.finish(place.0.get(), len as u64);
                    return Err(error);
                }
            }
        }
        arch::order_stores();
        Ok(())
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
        for slot in 0..SLOTS {
            let Some(leg) = self.legs[slot].get() else {
                continue;
            };
            let stored_to = states.of(slot).is_some_and(LegState::is_stored_to);
            if stored_to
                && (leg.data.fence(Unfenced::nothing()).is_err() || leg.data.watched.is_lost())
            {
                return self.notice();
            }
        }
        match shared.labelled() == shared.states() {
            true => Ok(()),
            false => self.notice(),
        }
    }
}

impl Leg {
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
