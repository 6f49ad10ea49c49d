//! Legs that come and go.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nacre_types::site;

use super::shared::{Count, Shared};
use super::states::{LegState, SLOTS, States};
use super::{Leg, Mirror};
use crate::device::Device;
use crate::error::{MediaError, MediaFailed};
use crate::fault::Watched;
use crate::media::Media;

impl Mirror {
    /// Opens what others have added, and tells the fault handler where the bytes of each leg stand
    /// a second time.
    #[cold]
    pub(super) fn adapt(&self, states: States) {
        let is_lost = |slot: &usize| self.leg(*slot).is_none() && !self.open(*slot);
        let lost: Vec<usize> = states.stored_to().filter(is_lost).collect();
        let current = states.slots_that(|state| state == LegState::Current);
        let current: Vec<(usize, &Media)> = current
            .filter_map(|slot| Some((slot, &self.leg(slot)?.data)))
            .collect();
        // Who has none that is current fails, and takes none from others.
        for slot in lost.into_iter().filter(|_| !current.is_empty()) {
            self.lose(slot, self.why_not_there(slot));
        }
        for slot in 0..SLOTS {
            let other = current.iter().find(|(other, _)| *other != slot);
            if let Some(leg) = self.leg(slot) {
                let spare = other.map_or(0, |(_, media)| media.base_addr());
                leg.data.watched.set_spare(spare);
            }
        }
        self.seen.store(states.0, Ordering::Release);
    }

    fn why_not_there(&self, slot: usize) -> LegState {
        let is_damaged = |shared: &Shared| self.damaged.contains(&shared.leg(slot));
        match self.shared.get().is_some_and(is_damaged) {
            true => LegState::Failed,
            false => LegState::Missing,
        }
    }

    fn open(&self, slot: usize) -> bool {
        let Some(shared) = self.shared.get() else {
            return false;
        };
        let id = shared.leg(slot);
        let opened = self.registry.get().and_then(|registry| registry.open(id));
        match opened.map(|device| self.map(&device, id)) {
            Some(Ok(leg)) => {
                // Another thread may have been quicker.
                let _ = self.legs[slot].set(Arc::new(leg));
                true
            }
            _ => false,
        }
    }

    /// Maps a device as a leg.
    pub(super) fn map(&self, device: &Arc<Device>, id: [u8; 16]) -> Result<Leg, MediaError> {
        let leg = Leg::new(device, &self.window, id)?;
        if let Some(registry) = self.registry.get() {
            leg.tell(registry.as_ref());
        }
        Ok(leg)
    }

    /// The leg to read, or another current one that this process has.
    #[cold]
    #[inline(never)]
    pub(super) fn any_reader(&self) -> &Media {
        // The fence of who stores tells; here the other leg has the bytes.
        let _ = self.notice();
        let states = self.states();
        let current = states.slots_that(|state| state == LegState::Current);
        let first = std::iter::once(states.read_slot());
        let mut slots = first.chain(current);
        match slots.find_map(|slot| self.leg(slot)) {
            Some(leg) => &leg.data,
            None => self.left_over(),
        }
    }

    /// Where this process has no leg that is current any more nothing that it reads counts.
    fn left_over(&self) -> &Media {
        match (0..SLOTS).find_map(|slot| self.leg(slot)) {
            Some(leg) => {
                leg.data.watched.fail();
                &leg.data
            }
            None => panic!("a mirror without a leg"),
        }
    }

    /// Drops legs that have failed; fails if none is left.
    pub(super) fn notice(&self) -> Result<(), MediaFailed> {
        let is_bad = |watched: &Watched| watched.is_lost() || watched.health().is_err();
        for slot in self.states().stored_to() {
            if self.leg(slot).is_some_and(|leg| is_bad(&leg.data.watched)) {
                self.lose(slot, LegState::Failed);
            }
        }
        let states = self.states();
        if states.0 != self.seen.load(Ordering::Acquire) {
            self.adapt(states);
        }
        let reader = self.leg(states.read_slot());
        match reader.is_none_or(|leg| leg.data.watched.health().is_err()) {
            true => Err(MediaFailed),
            false => self.settle_labels(),
        }
    }

    /// Drops legs over which something else was written: none gets its bytes from them. (M9)
    pub fn check_labels(&self) {
        let Some(registry) = self.registry.get() else {
            return;
        };
        let is_strange = |slot: &usize| {
            let leg = self.leg(*slot);
            let known = leg.and_then(|leg| Some((leg.id, leg.data.device()?)));
            known.is_some_and(|(id, device)| !registry.is_still(id, device))
        };
        let seen: Vec<usize> = self.states().stored_to().filter(is_strange).collect();
        if seen.is_empty() {
            return;
        }
        // Whoever wrote labels at that moment is done: what is half written passes for strange.
        let _changing = self.shared.get().map(Shared::lock_labels);
        for slot in seen.into_iter().filter(is_strange) {
            self.lose(slot, LegState::Failed);
        }
    }

    /// A leg is not used any more, unless it is the last.
    pub fn lose(&self, slot: usize, why: LegState) {
        let Some(shared) = self.shared.get().filter(|_| self.writable) else {
            return;
        };
        let lost = shared.change(|states| match states.of(slot) {
            Some(state) if state.is_stored_to() => states.losing(slot, why),
            _ => None,
        });
        if lost {
            shared.move_seal_epoch();
            shared.count(Count::Lost, 1);
        }
    }

    /// A leg goes for which another one has come that is current. The one that is read stays unless
    /// nobody else uses the mirror: programs may have it mapped, and whoever looks at nothing for a
    /// while knows it at least. `false`: it stays.
    pub fn let_go(&self, slot: usize, new: usize, is_alone: bool) -> bool {
        let Some(shared) = self.shared.get().filter(|_| self.writable) else {
            return false;
        };
        let gone = shared.change(|states| {
            let has_come = states.of(new) == Some(LegState::Current);
            let may_go = is_alone || states.read_slot() != slot;
            let stays = !has_come || !may_go || !states.of(slot)?.is_stored_to();
            (!stays).then(|| states.losing(slot, LegState::Failed))?
        });
        if gone {
            shared.move_seal_epoch();
        }
        gone
    }

    /// Drops legs that have failed, and tells the labels.
    pub fn settle(&self) -> Result<(), MediaFailed> {
        self.notice()
    }

    /// The labels say what the states are, on return. (M4)
    pub(super) fn settle_labels(&self) -> Result<(), MediaFailed> {
        let Some(shared) = self.shared.get().filter(|_| self.writable) else {
            return Ok(());
        };
        while shared.labelled() != shared.states() {
            let _changing = shared.lock_labels();
            let states = shared.states();
            if shared.labelled() == states {
                break;
            }
            if let Some(registry) = self.registry.get().filter(|_| site::step()) {
                registry.record(&self.facts())?;
            }
            shared.set_labelled(states);
        }
        Ok(())
    }
}
