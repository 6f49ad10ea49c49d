//! What brings legs to agree again: after a crash, when a leg is added or comes back, at the end.

use std::ops::{ControlFlow, Range};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use nacre_types::{DeviceOffset, UNIT_SIZE, site};

use super::layout::REGION;
use super::shared::{Count, regions};
use super::states::{LegState, States};
use super::{Leg, Mirror, Spans};
use crate::compare::{Finding, Judge};
use crate::device::Device;
use crate::error::{MediaError, MediaFailed};
use crate::image::Words;
use crate::map;
use crate::parallel::each;
use crate::token::Unfenced;

/// How far a rebuild has got, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RebuildProgress {
    /// Done so far.
    pub done: u64,
    /// To do, all in all.
    pub total: u64,
    /// Of what is done, all that counts: it was looked at.
    pub looked: u64,
}

impl Mirror {
    fn bitmap_words(&self) -> usize {
        words_of(&self.window)
    }

    /// The bytes of a region that are data.
    pub(super) fn bytes_of(&self, region: u64) -> Range<u64> {
        (region * REGION).max(self.window.start)..((region + 1) * REGION).min(self.window.end)
    }

    /// Regions of which a word of some leg's bitmap has a bit, among legs in such a state.
    fn noted(&self, states: States, is: impl Fn(LegState) -> bool) -> Vec<u64> {
        let mut words = vec![0; self.bitmap_words()];
        for slot in states.slots_that(is) {
            if let Some(leg) = self.leg(slot) {
                for (index, word) in words.iter_mut().enumerate() {
                    *word |= leg.bits(index);
                }
            }
        }
        let most = regions(self.window.clone()).end;
        let bits = words.iter().enumerate().flat_map(|(index, &word)| {
            let set = (0..64).filter(move |bit| word >> bit & 1 != 0);
            set.map(move |bit| index as u64 * 64 + bit)
        });
        bits.filter(|&region| region < most).collect()
    }

    /// What a crash left: regions in which legs that are current may differ. All get what the one
    /// holds that is read, or the one that `judge` says is right. Nobody else is there. (M12)
    pub fn recover(&self, judge: &mut Judge<'_>) {
        self.check_labels();
        let states = self.states();
        let noted = self.noted(states, |state| state == LegState::Current);
        for &region in &noted {
            if site::step() && self.level_judged(self.bytes_of(region), judge).is_err() {
                // The next fence tells; the bits stay.
                return;
            }
        }
        for slot in states.slots_that(|state| state == LegState::Rebuilding) {
            if let Some(leg) = self.leg(slot) {
                for &region in &noted {
                    // The leg is told apart by the next fence.
                    let _ = leg.set_bits(region..region + 1, true);
                }
            }
        }
        self.forget(states, &noted);
    }

    fn level_judged(&self, range: Range<u64>, judge: &mut Judge<'_>) -> Result<(), MediaFailed> {
        for at in range.step_by(UNIT_SIZE as usize) {
            if self.current_legs().nth(1).is_some() && self.agreed(at..at + UNIT_SIZE).is_none() {
                self.make_judged(at, judge);
            }
            self.level_alone(at..at + UNIT_SIZE)?;
        }
        Ok(())
    }

    fn make_judged(&self, at: u64, judge: &mut Judge<'_>) {
        let copies = self.held(at..at + UNIT_SIZE);
        let right = judge(at, &copies.of_unit(at));
        if let Some(right) = right.filter(|&right| right > 0 && site::step()) {
            self.make(at, &copies.all[right].bytes);
            self.shared().count(Count::Repaired, 1);
        }
        self.spare.put_all(copies);
    }

    fn level_alone(&self, range: Range<u64>) -> Result<(), MediaFailed> {
        for at in range.step_by(UNIT_SIZE as usize) {
            let differed = self.level(at, UNIT_SIZE, self.states())?;
            self.shared().count(Count::Repaired, differed);
        }
        Ok(())
    }

    /// Clears the bits of regions in which legs agree, unless some leg lacks what they name. Their
    /// seals go first. (M6) Answers whether all are cleared; a bit too many does no harm.
    pub(super) fn forget(&self, states: States, noted: &[u64]) -> bool {
        if states.is_degraded() {
            return false;
        }
        let mut all_cleared = true;
        for slot in states.stored_to() {
            if let Some(leg) = self.leg(slot) {
                let durable = leg.data.fence(Unfenced::nothing());
                let noted_spans = if site::step() { noted } else { &[] };
                let durable = durable.and_then(|()| self.break_seals(leg, noted_spans));
                for &region in noted {
                    let cleared = durable.and_then(|()| leg.set_bits(region..region + 1, false));
                    all_cleared &= cleared.is_ok();
                }
            }
        }
        all_cleared
    }

    /// The last one leaves: all legs get what programs stored through mappings, and the bits go.
    /// Nobody stores any more.
    pub fn close(&self) -> Result<(), MediaFailed> {
        let Some(shared) = self.shared.get().filter(|_| self.writable) else {
            return Ok(());
        };
        self.check_labels();
        for region in (0..regions(self.window.clone()).end).filter(|&it| shared.mapped.has(it)) {
            self.level_alone(self.bytes_of(region))?;
        }
        self.fence()?;
        let states = self.states();
        let noted = self.noted(states, LegState::is_stored_to);
        self.forget(states, &noted);
        Ok(())
    }

    /// Regions that a leg that was missing lacks, or all, as words of a bitmap. The caller holds
    /// the lock of bits.
    fn lacking(&self, whole: bool) -> Vec<u64> {
        if whole {
            return all_words(&self.window);
        }
        let noted = self.noted(self.states(), |state| state == LegState::Current);
        bitmap_of(noted, self.bitmap_words())
    }

    /// Whether one more leg can come before all have gone who use it.
    pub fn has_room(&self) -> bool {
        self.states().free_slot().is_some()
    }

    /// A device is about to become a leg that is being rebuilt: until [`Mirror::add`] says what it
    /// lacks, that is everything, and nothing in it is sealed. To be called before any label says
    /// that it is one. (M7)
    pub fn prepare(&self, device: &Arc<Device>, id: [u8; 16]) -> Result<bool, MediaError> {
        if !site::step() {
            return Ok(true);
        }
        let leg = self.map(device, id)?;
        Ok(leg.forget_front(&self.window, &self.spans).is_ok())
    }

    /// What a device says in front of its data is not to be believed any more: from now on it says
    /// that legs may differ everywhere, or that it lacks everything, and that nothing is sealed.
    /// `false`: it failed. (M11)
    pub fn forget_front(
        pool: [u8; 16],
        window: Range<u64>,
        device: &Arc<Device>,
    ) -> Result<bool, MediaError> {
        let leg = Leg::new(device, &window, [0; 16])?;
        let spans = Spans::new(pool, window.clone());
        Ok(leg.forget_front(&window, &spans).is_ok())
    }

    /// Adds a leg in a slot of its own, which gets from now on what is stored. It lacks everything,
    /// or only what was stored since it went missing. It was prepared, and its label says already
    /// that it is being rebuilt. `None`: it failed, or too many came and went in this session.
    pub fn add(
        &self,
        device: &Arc<Device>,
        id: [u8; 16],
        whole: bool,
    ) -> Result<Option<usize>, MediaError> {
        let shared = self.shared();
        let leg = self.map(device, id)?;
        let _changing = shared.lock_bits();
        let failed = leg.set_words(&self.lacking(whole)).is_err()
            || leg.set_seals(self.spans.all(), 0).is_err();
        let Some(slot) = shared.states().free_slot().filter(|_| !failed) else {
            return Ok(None);
        };
        // The slot was free.
        let _ = self.legs[slot].set(Arc::new(leg));
        if let Some(registry) = self.registry.get() {
            registry.came(id, device);
        }
        shared.set_leg(slot, id);
        shared.change(|states| Some(states.with(slot, LegState::Rebuilding)));
        Ok(Some(slot))
    }

    /// A slot whose leg is out of the pool.
    pub fn forget_leg(&self, slot: usize) {
        let out = |states: States| match states.of(slot) {
            Some(state) if !state.is_stored_to() => Some(states.forgetting(slot)),
            _ => None,
        };
        self.shared().change(out);
    }

    /// Runs `work` while nobody else changes labels.
    pub fn changing_labels<T>(&self, work: impl FnOnce() -> T) -> T {
        let _changing = self.shared().lock_labels();
        work()
    }

    /// Copies to a leg what it lacks, while others store, on so many threads. It is current on
    /// return, if `told`, who hears how far it is, does not break off. What was not as it was
    /// sealed is `found`, as by [`Mirror::verify`].
    pub fn rebuild(
        &self,
        slot: usize,
        threads: usize,
        found: &mut Vec<Finding>,
        mut told: impl FnMut(RebuildProgress) -> ControlFlow<()>,
    ) -> Result<bool, MediaFailed> {
        let shared = self.shared();
        let leg = self.leg(slot).ok_or(MediaFailed)?;
        let fits = self.states().of(slot) == Some(LegState::Rebuilding);
        if !fits {
            return Ok(false);
        }
        // Whoever did not see the leg has stored by now.
        shared.wait_for_stores(|at, len| self.finish(at, len));
        loop {
            let before = self.states();
            if !self.copy_lacking((slot, leg), threads, found, &mut told)? {
                return Ok(false);
            }
            if site::step() {
                self.check_labels();
            }
            if before.are_still_current(self.states()) {
                break;
            }
            // What was copied may be of one that is lost. (M9)
            let _changing = shared.lock_bits();
            leg.set_words(&self.lacking(true))?;
        }
        // Regions that are stored to now have their bit on the other legs alone.
        let _changing = shared.lock_bits();
        for region in (0..regions(self.window.clone()).end).filter(|&it| shared.intents.has(it)) {
            if site::step() {
                leg.set_bits(region..region + 1, true)?;
            }
        }
        shared.change(|states| match states.of(slot) {
            Some(LegState::Rebuilding) => Some(states.with(slot, LegState::Current)),
            _ => None,
        });
        shared.move_seal_epoch();
        drop(_changing);
        self.settle_labels()?;
        Ok(self.states().of(slot) == Some(LegState::Current))
    }
}

impl Mirror {
    /// Copies to a leg all that it lacks.
    fn copy_lacking(
        &self,
        (slot, leg): (usize, &Leg),
        threads: usize,
        found: &mut Vec<Finding>,
        told: &mut impl FnMut(RebuildProgress) -> ControlFlow<()>,
    ) -> Result<bool, MediaFailed> {
        let only = States(0).with(slot, LegState::Rebuilding);
        let lacking = self.noted(only, |_| true);
        let span = |region: &u64| self.spans.of(region * REGION);
        let spans: Vec<&[u64]> = lacking.chunk_by(|a, b| span(a) == span(b)).collect();
        let (done, all_found) = (AtomicU64::new(0), Mutex::new(std::mem::take(found)));
        let one = |number: u64| {
            let regions = spans[number as usize];
            let copied = self.rebuild_span((slot, leg), regions, &all_found);
            done.fetch_add(regions.len() as u64, Relaxed);
            copied
        };
        let mut tell = |_: u64| {
            let done = done.load(Relaxed) * REGION;
            told(RebuildProgress {
                total: lacking.len() as u64 * REGION,
                done,
                looked: done,
            })
        };
        let whole = each(0..spans.len() as u64, threads, &one, &mut tell);
        *found = all_found
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        whole
    }

    /// Copies regions of one span to a leg that lacks them. `Break`: the leg is not rebuilt any
    /// more.
    fn rebuild_span(
        &self,
        (slot, leg): (usize, &Leg),
        regions: &[u64],
        found: &Mutex<Vec<Finding>>,
    ) -> Result<ControlFlow<()>, MediaFailed> {
        let span = self.spans.of(regions[0] * REGION);
        let seal = self.seal_if_quiet(span);
        if let Some(seal) = seal {
            self.compare_source(leg, (span, seal), found)?;
        }
        for range in regions.iter().map(|&region| self.bytes_of(region)) {
            leg.expect_all(range.clone());
            if site::step() {
                // Not others: what differs there a scrub judges.
                self.level_some_locked(range.start, range.end, |one| one == slot)?;
            }
        }
        leg.data.fence(Unfenced::nothing())?;
        self.now_there(leg, regions, seal.map(|seal| (span, seal)))?;
        if self.states().of(slot) != Some(LegState::Rebuilding) {
            return Ok(ControlFlow::Break(()));
        }
        let shared = self.shared();
        shared.count(Count::Rebuilt, regions.len() as u64 * REGION);
        Ok(ControlFlow::Continue(()))
    }

    /// What is about to be copied of a span is what was sealed, if any leg has that.
    fn compare_source(
        &self,
        leg: &Leg,
        (span, seal): (u64, u32),
        found: &Mutex<Vec<Finding>>,
    ) -> Result<(), MediaFailed> {
        let source = self.leg(self.states().read_slot());
        if source.is_some_and(|source| self.sum_of(source, span) == Some(seal)) {
            return Ok(());
        }
        let verified = self.verify_with(span, Some(leg))?;
        let mut all = found.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(verified.found);
        Ok(())
    }

    /// A leg has some regions of a span, and the seal that the span had before it was copied if
    /// nobody has stored there since. (M10)
    fn now_there(
        &self,
        leg: &Leg,
        regions: &[u64],
        seal: Option<(u64, u32)>,
    ) -> Result<(), MediaFailed> {
        let _changing = self.shared().lock_bits();
        if let Some((span, seal)) = seal
            && self.seal_if_quiet(span) == Some(seal)
        {
            let word = self.spans.seal(span, seal);
            leg.set_seals(std::iter::once(span), word)?;
        }
        for &region in regions {
            leg.set_bits(region..region + 1, false)?;
        }
        Ok(())
    }
}

/// Words of the bitmap of a device whose data lies in a window.
fn words_of(window: &Range<u64>) -> usize {
    Words::needed(regions(window.clone()).end) as usize
}

fn bitmap_of(regions: impl IntoIterator<Item = u64>, len: usize) -> Vec<u64> {
    let mut words = vec![0; len];
    for region in regions {
        words[region as usize / 64] |= 1 << (region % 64);
    }
    words
}

fn all_words(window: &Range<u64>) -> Vec<u64> {
    bitmap_of(regions(window.clone()), words_of(window))
}

impl Leg {
    fn forget_front(&self, window: &Range<u64>, spans: &Spans) -> Result<(), MediaFailed> {
        self.set_words(&all_words(window))?;
        self.set_seals(spans.all(), 0)
    }

    /// A range is stored to next, all of it.
    fn expect_all(&self, range: Range<u64>) {
        let windows = range.step_by(map::WINDOW as usize);
        windows.for_each(|at| self.data.expect_stores(DeviceOffset(at)));
    }
}
