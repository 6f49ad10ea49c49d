//! Reads for programs, from all legs where all hold the same for certain (D72).
//!
//! A span whose seal counts is summed up on each leg once a process has read as much of it as that
//! costs. From then on its threads read it from all legs that were right. What was found out holds
//! as long as the *seal epoch*: whoever takes bits back, seals, or drops a leg moves it first. So
//! who finds the epoch unmoved and the bits clear *behind* its copy has read what was sealed: no
//! store to the span has begun since it was summed up. All else is read from the leg that all
//! processes read.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, fence};

use nacre_types::{DeviceOffset, PAGE_SIZE};

use super::layout::REGION;
use super::shared::Shared;
use super::states::{LegState, SLOTS, States};
use super::sum::Sum;
use super::{Leg, Mirror};
use crate::address_range::AddressRange;
use crate::arch;
use crate::error::{CopyError, MediaError};
use crate::map;
use crate::media::Media;

use crate::user::UserBytesMut;

/// Threads that are told apart; a prime number, as control blocks lie at equal distances.
const THREADS: usize = 61;
/// Of a word: the slots of legs.
const SLOT_BITS: u64 = (1 << SLOTS) - 1;

/// What a process knows of a span. All zeros: nothing.
#[repr(C, align(32))]
struct Known {
    /// What [`claim`] makes.
    claim: AtomicU64,
    /// What [`sums`] makes.
    summed: AtomicU64,
    /// Bytes that were read since.
    read: AtomicU64,
}

/// Which legs a process reads.
pub(super) struct Reads {
    /// One [`Known`] for each span, in memory that forked children share.
    table: AddressRange,
    spans: usize,
    /// Regions of a span, as a power of two.
    shift: u32,
    /// What tells processes apart.
    share: AtomicU32,
    /// Numbers of threads from 1 on, in the order in which they came.
    numbers: [AtomicU8; THREADS],
    next: AtomicU8,
}

/// A leg from which bytes of a span may be read.
pub(super) struct Choice<'m> {
    pub leg: &'m Media,
    /// The epoch that must still be there behind the copy.
    epoch: u64,
}

/// A seal epoch above the slots of the legs that hold what was sealed in it. Never 0.
fn claim(epoch: u64, slots: u64) -> u64 {
    (epoch + 1) << SLOTS | slots
}

/// Whether a claim is of that epoch.
#[inline]
fn is_of(claimed: u64, epoch: u64) -> bool {
    claimed >> SLOTS == epoch + 1
}

impl Reads {
    pub fn new(spans: u64, regions_of_span: u64) -> Result<Self, MediaError> {
        let len = (spans * size_of::<Known>() as u64).next_multiple_of(PAGE_SIZE);
        let table = AddressRange::reserve(len)?;
        map::map_memory(len, &table)?;
        Ok(Self {
            table,
            spans: spans as usize,
            shift: regions_of_span.trailing_zeros(),
            share: AtomicU32::new(0),
            numbers: [const { AtomicU8::new(0) }; THREADS],
            next: AtomicU8::new(0),
        })
    }

    #[inline]
    fn known(&self, span: u64) -> &Known {
        let place = (span as usize).min(self.spans - 1) * size_of::<Known>();
        let address = self.table.start() + place;
        // SAFETY: the mapping holds so many, aligned to 32 bytes; it begins as zeros, is made of
        // atomics, and lives as long as `self`.
        unsafe { &*std::ptr::with_exposed_provenance(address) }
    }

    /// Number of the calling thread among those of all processes that read, more or less.
    #[inline]
    fn reader(&self) -> u32 {
        // Control blocks lie at the same place of a page.
        let place = &self.numbers[(arch::thread_address() >> 12) % THREADS];
        let number = match place.load(Relaxed) {
            0 => self.new_number(place),
            number => number,
        };
        self.share.load(Relaxed).wrapping_add(u32::from(number))
    }

    #[cold]
    fn new_number(&self, place: &AtomicU8) -> u8 {
        let number = (self.next.fetch_add(1, Relaxed) % u8::MAX) + 1;
        place.store(number, Relaxed);
        number
    }

    /// One of some slots, another one for each of as many threads.
    #[inline]
    fn one_of(&self, mut slots: u64) -> usize {
        for _ in 0..self.reader() % slots.count_ones().max(1) {
            slots &= slots - 1;
        }
        slots.trailing_zeros() as usize % SLOTS
    }
}

impl Mirror {
    /// Names the calling process among those that share the legs.
    pub(crate) fn set_share(&self, number: u64) {
        self.reads.share.store(number as u32, Relaxed);
    }

    /// Copies bytes to the program, as [`Media::read_user`].
    pub(crate) fn read_user(
        &self,
        at: DeviceOffset,
        to: UserBytesMut<'_>,
    ) -> Result<(), CopyError> {
        let span_len = REGION << self.reads.shift;
        match to.len() as u64 <= span_len - (at.get() & (span_len - 1)) {
            true => self.read_in_span(at, to),
            false => self.read_spans(at, to),
        }
    }

    #[cold]
    fn read_spans(&self, at: DeviceOffset, mut to: UserBytesMut<'_>) -> Result<(), CopyError> {
        let span_len = REGION << self.reads.shift;
        let mut done = 0;
        loop {
            let from = at.add(done as u64);
            let room = span_len - from.get() % span_len;
            let end = to.len().min(done + room as usize);
            self.read_in_span(from, to.slice(done..end))?;
            done = end;
            if done == to.len() {
                return Ok(());
            }
        }
    }

    #[inline]
    fn read_in_span(&self, at: DeviceOffset, mut to: UserBytesMut<'_>) -> Result<(), CopyError> {
        let len = to.len() as u64;
        if let Some(choice) = self.choose(at.get(), len) {
            match choice.leg.read_user(at, to.slice(0..to.len())) {
                Ok(()) if self.holds(&choice, at.get(), len) => return Ok(()),
                Err(CopyError::UserFault) => return Err(CopyError::UserFault),
                // A store has begun meanwhile, or the leg has failed.
                _ => {}
            }
        }
        self.reader().read_user(at, to)
    }

    /// Whether no store to a range can have begun since its span was summed up. What was copied
    /// before is what was sealed then.
    #[inline]
    pub(super) fn holds(&self, choice: &Choice<'_>, at: u64, len: u64) -> bool {
        // Behind the copy.
        fence(Acquire);
        let shared = self.shared();
        // The epoch last: it moves before bits are taken back.
        is_clear(shared, at, len) && shared.seal_epoch() == choice.epoch
    }

    /// The leg from which the calling thread reads a range of one span. `None`: the one that all
    /// read.
    #[inline]
    pub(super) fn choose(&self, at: u64, len: u64) -> Option<Choice<'_>> {
        let shared = self.shared.get()?;
        if len == 0 || !is_clear(shared, at, len) {
            return None;
        }
        let epoch = shared.seal_epoch();
        let (span, known) = self.known(at);
        let mut claimed = known.claim.load(Acquire);
        if !is_of(claimed, epoch) {
            claimed = self.look(shared, (span, known), epoch, len)?;
        }
        self.one_of_right(claimed, epoch, self.states())
    }

    /// What this process knows of the span of a place.
    #[inline]
    fn known(&self, at: u64) -> (u64, &Known) {
        let span = (at / REGION) >> self.reads.shift;
        (span, self.reads.known(span))
    }

    /// The calling thread's leg among those that hold what was sealed. `None`: none does, or it
    /// fails; then a fence drops it, or whoever looks next.
    #[inline]
    fn one_of_right(&self, claimed: u64, epoch: u64, states: States) -> Option<Choice<'_>> {
        let slots = claimed & SLOT_BITS;
        if slots == 0 {
            return None;
        }
        let slot = self.reads.one_of(slots);
        let leg = &self.leg(slot)?.data;
        let is_current = states.of(slot) == Some(LegState::Current);
        (is_current && !leg.watched.is_lost()).then_some(Choice { leg, epoch })
    }

    /// As [`Mirror::read_user`], if all is known that has to be and nothing goes wrong. It holds
    /// nothing, and changes nothing but `to`.
    pub(crate) fn try_read_user(&self, at: DeviceOffset, mut to: UserBytesMut<'_>) -> Option<()> {
        let shared = self.shared.get()?;
        let states = shared.states();
        let len = to.len() as u64;
        let span_len = REGION << self.reads.shift;
        let room = span_len - (at.get() & (span_len - 1));
        if states.0 != self.seen.load(Acquire) || len == 0 || len > room {
            return None;
        }
        if is_clear(shared, at.get(), len) {
            let epoch = shared.seal_epoch();
            let claimed = self.known(at.get()).1.claim.load(Acquire);
            if !is_of(claimed, epoch) {
                return None;
            }
            if let Some(choice) = self.one_of_right(claimed, epoch, states) {
                choice.leg.read_user(at, to.slice(0..to.len())).ok()?;
                return self.holds(&choice, at.get(), len).then_some(());
            }
        }
        let leg = &self.leg(states.read_slot())?.data;
        match leg.watched.is_lost() {
            true => None,
            false => leg.read_user(at, to).ok(),
        }
    }

    /// Finds out which legs hold what was sealed, or that nothing is, if it is worth it by now.
    #[cold]
    #[inline(never)]
    fn look(
        &self,
        shared: &Shared,
        (span, known): (u64, &Known),
        epoch: u64,
        len: u64,
    ) -> Option<u64> {
        let summed = known.summed.load(Relaxed);
        if summed == 0 && !self.is_worth_it(known, len) {
            return None;
        }
        let current = self.slots_there(self.states());
        let seal = self
            .seal_if_quiet(span)
            .filter(|_| current.count_ones() > 1);
        let Some(seal) = seal else {
            known.summed.store(0, Relaxed);
            known.claim.store(claim(epoch, 0), Release);
            return None;
        };
        let right = match summed {
            0 => self.sum_up(span, seal, current)?,
            same if same == sums(seal, current, current) => current,
            // Another seal, another leg, or one that was wrong and may have been repaired.
            _ => {
                known.summed.store(0, Relaxed);
                return None;
            }
        };
        fence(Acquire);
        if self.seal_if_quiet(span) != Some(seal) || shared.seal_epoch() != epoch {
            return None;
        }
        if right != current {
            shared.suspect(span);
        }
        let claimed = claim(epoch, right);
        known.summed.store(sums(seal, current, right), Relaxed);
        known.claim.store(claimed, Release);
        Some(claimed)
    }

    /// Counts what is read of a span. Whether it was as much, again, as it costs to sum it up on
    /// two legs: answered to one thread.
    fn is_worth_it(&self, known: &Known, len: u64) -> bool {
        let enough = (2 * REGION) << self.reads.shift;
        // Some that others count at the same moment may be missing.
        let before = known.read.load(Relaxed);
        known.read.store(before + len, Relaxed);
        before / enough != (before + len) / enough
    }

    /// Slots of the legs that are current and that this process has.
    fn slots_there(&self, states: States) -> u64 {
        let current = states.slots_that(|state| state == LegState::Current);
        let there = current.filter(|&slot| {
            let leg = self.leg(slot);
            leg.is_some_and(|leg| !leg.data.watched.is_lost())
        });
        there.fold(0, |slots, slot| slots | 1 << slot)
    }

    /// The checksum in the seal of a span, if it counts now. Bits are looked at before it: whoever
    /// clears them has removed the seal that they broke. (M6)
    pub(super) fn seal_if_quiet(&self, span: u64) -> Option<u32> {
        if !self.is_quiet(span) {
            return None;
        }
        fence(Acquire);
        self.seal_of(span, self.current(self.states()).map(|(_, leg)| leg))
    }

    /// The slots among some whose legs hold what was sealed. `None`: a leg has failed.
    fn sum_up(&self, span: u64, seal: u32, slots: u64) -> Option<u64> {
        let mut right = 0;
        for slot in (0..SLOTS).filter(|slot| slots >> slot & 1 != 0) {
            let leg = self.leg(slot)?;
            right |= u64::from(self.sum_of(leg, span)? == seal) << slot;
        }
        Some(right)
    }

    pub(super) fn sum_of(&self, leg: &Leg, span: u64) -> Option<u32> {
        let bytes = self.spans.bytes(span);
        let (at, len) = (DeviceOffset(bytes.start), bytes.end - bytes.start);
        let mut sum = Sum::of(len);
        leg.data.tell_read(at, len);
        let is_read = sum.add(at, len, [&leg.data; 2]);
        let is_well = is_read && !leg.data.watched.is_lost() && leg.data.health().is_ok();
        is_well.then(|| sum.value())
    }
}

/// Whether nobody has stored to any region of a range, which is not empty, for all that is known.
#[inline]
fn is_clear(shared: &Shared, at: u64, len: u64) -> bool {
    let (first, last) = (at / REGION, (at + len - 1) / REGION);
    match first == last {
        true => !shared.intents.has(first),
        false => !shared.intents.has_any(first..last + 1),
    }
}

/// The checksum in a seal, the slots of the legs that were compared with it, and of those that were
/// right.
fn sums(seal: u32, compared: u64, right: u64) -> u64 {
    u64::from(seal) << 32 | compared << SLOTS | right
}
