//! Life of open file descriptions: allocate, hold, let go, free.
//!
//! The truth is the holders' bits; there is no count that could disagree with them. A description
//! goes `Free -> Allocating -> Used -> Deciding -> Closing -> Free`.
//! - Death while `Allocating`: the entry was never seen; a reaper frees it.
//! - Death after the last bit was cleared, or while `Deciding`: a reaper finds a description
//!   without holders and closes it.
//! - Death while `Closing`: a reaper frees the entry, but cannot know which pins were undone, so
//!   what is pinned stays pinned.
//!
//! Exactly one caller gets to close: whoever moves `Used -> Deciding` looks at the bits again and
//! goes on to `Closing` only when there is still none. A holder sets its bit first and then looks
//! at the word, so either it sees `Used`, and the decider sees the bit, or it sees `Deciding` and
//! waits for the decision. Its maker closes a description without a look at the bits as long as
//! there is no mark, which precedes the bit, that somebody else has held it.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::thread::sched_yield;

use crate::error::Full;
use crate::slot_ref::{Liveness, SlotRef};
use crate::step::Fault;
use crate::tables::ofd::{self, MoreHolders, Ofd, OfdId, OfdInit, OfdState, OfdWord};
use crate::{FIRST_SLOTS, MAX_OFDS, Session, step};

const SPINS: u32 = 64;
const YIELDS_PER_CHECK: u32 = 64;

/// Room for one description that its process has taken. Nobody else sees it; if the process dies it
/// is free again.
#[must_use]
#[derive(Debug)]
pub struct ReservedOfd {
    id: OfdId,
    word: OfdWord,
}

impl Session {
    /// A new description, held by `me`.
    #[inline]
    pub fn ofd_alloc(&self, me: SlotRef, init: &OfdInit<'_>) -> Result<OfdId, Full> {
        let taken = self.ofd_reserve(me)?;
        Ok(self.ofd_fill(taken, me, init))
    }

    /// Room for a description, which `me` fills or gives back.
    #[inline]
    pub fn ofd_reserve(&self, me: SlotRef) -> Result<ReservedOfd, Full> {
        let (id, word) = self
            .take_free_ofd(me)
            .ok_or(Full("open file descriptions"))?;
        Ok(ReservedOfd { id, word })
    }

    /// Makes a description, held by `me`, where room was reserved.
    #[inline]
    pub fn ofd_fill(&self, taken: ReservedOfd, me: SlotRef, init: &OfdInit<'_>) -> OfdId {
        let ReservedOfd { id, word } = taken;
        let ofd = self.entry(id.index);
        ofd.fill(init);
        ofd::set_first_holder(self.holders_word(ofd, id.index, me), id.generation, me);
        ofd.set(OfdWord {
            state: OfdState::Used,
            ..word
        });
        id
    }

    /// Gives room back in which no description was made.
    pub fn ofd_unreserve(&self, taken: ReservedOfd) {
        let ReservedOfd { id, word } = taken;
        self.hint_free(word.slot, id.index);
        self.entry(id.index).set(OfdWord {
            state: OfdState::Free,
            slot: 0,
            ..word
        });
    }

    /// A description that is in use; `None` when the identity is out of date.
    #[inline(always)]
    pub fn ofd(&self, id: OfdId) -> Option<&Ofd> {
        let ofd = self.memory.ofds.get(id.index as usize)?;
        ofd.is_of(id.generation).then_some(ofd)
    }

    /// The entry of the table with this index. Whoever reads it asks afterwards whether it
    /// [`Ofd::is_of`] the wanted generation.
    #[inline(always)]
    pub fn ofd_at(&self, index: u32) -> Option<&Ofd> {
        self.memory.ofds.get(index as usize)
    }

    /// Lets `who` hold the description too. False: it is gone.
    pub fn hold(&self, id: OfdId, who: SlotRef) -> bool {
        let Some(ofd) = self.ofd(id) else {
            return false;
        };
        let word = self.holders_word(ofd, id.index, who);
        if step::has(Fault::HoldAfterLook) {
            return self.await_decision(ofd, id.generation)
                && ofd.set_holder(word, id.generation, who);
        }
        if !matches!(ofd.load().state, OfdState::Used | OfdState::Deciding)
            || !ofd.set_holder(word, id.generation, who)
        {
            return false;
        }
        // If it is gone, the bit stays behind under a generation that never comes back.
        self.await_decision(ofd, id.generation)
    }

    /// Lets go of the description for `who`. True for exactly one caller, when nobody holds it any
    /// more: that caller undoes what the description pinned and then calls [`Session::ofd_free`].
    #[inline]
    pub fn unhold(&self, id: OfdId, who: SlotRef) -> bool {
        let Some(ofd) = self.ofd(id) else {
            return false;
        };
        self.close_private(ofd, id, who)
            || self.clear_holder(ofd, id, who) && self.close_if_unheld(ofd, id, who)
    }

    /// As [`Session::unhold`] for the dead `who`; the reaper `me` decides, so whoever decides is
    /// alive or gets its own reaper.
    pub(crate) fn unhold_for(&self, me: SlotRef, id: OfdId, who: SlotRef) -> bool {
        let Some(ofd) = self.ofd(id) else {
            return false;
        };
        self.clear_holder(ofd, id, who) && self.close_if_unheld(ofd, id, me)
    }

    /// Ends a description whose last holder is gone.
    #[inline]
    pub fn ofd_free(&self, id: OfdId) {
        let Some(ofd) = self.ofd(id) else { return };
        let word = ofd.load();
        if word.generation == id.generation && word.state == OfdState::Closing {
            self.hint_free(word.slot, id.index);
            ofd.set(OfdWord {
                state: OfdState::Free,
                slot: 0,
                ..word
            });
        }
    }

    /// The slot looks there first for room.
    #[inline]
    fn hint_free(&self, slot: u16, index: u32) {
        let hint = &self.memory.slots.all()[usize::from(slot)].ofd_hint;
        hint.store(hint.load(Ordering::Relaxed).min(index), Ordering::Relaxed);
    }

    /// Whether `who` holds the description.
    pub fn is_held_by(&self, id: OfdId, who: SlotRef) -> bool {
        self.ofd(id).is_some_and(|ofd| self.is_holder(ofd, id, who))
    }

    /// The descriptions that `who` holds.
    pub fn ofds_held_by(&self, who: SlotRef) -> impl Iterator<Item = OfdId> + '_ {
        self.ofds()
            .filter(move |&id| self.is_holder(self.entry(id.index), id, who))
    }

    /// The descriptions that the dead `who` was closing: what they pinned may or may not be undone.
    /// They only need [`Session::ofd_free`].
    pub fn ofds_closing_by(&self, who: SlotRef) -> impl Iterator<Item = OfdId> + '_ {
        self.ofd_words()
            .filter(move |(_, word)| word.state == OfdState::Closing && word.slot == who.slot)
            .map(|(id, _)| id)
    }

    /// All descriptions in use.
    pub fn ofds(&self) -> impl Iterator<Item = OfdId> + '_ {
        self.ofd_words()
            .filter(|(_, word)| matches!(word.state, OfdState::Used | OfdState::Deciding))
            .map(|(id, _)| id)
    }

    /// For the reaper of `dead`: frees what `dead` was allocating, and closes for `me` what nobody
    /// holds any more because a holder died while letting go. Each one delivered is to be treated
    /// as if [`Session::unhold`] had returned true.
    pub fn ofds_orphaned_by(&self, me: SlotRef, dead: SlotRef) -> impl Iterator<Item = OfdId> + '_ {
        self.ofd_words().filter_map(move |(id, word)| {
            let ofd = self.entry(id.index);
            if word.state == OfdState::Allocating && word.slot == dead.slot {
                ofd.change(
                    word,
                    OfdWord {
                        state: OfdState::Free,
                        slot: 0,
                        ..word
                    },
                );
                return None;
            }
            // Nobody but its reaper can tell that it is dead once the slot has a new user.
            if word.state == OfdState::Deciding && word.slot == dead.slot {
                self.undecide(ofd, word);
            }
            let in_use = matches!(word.state, OfdState::Used | OfdState::Deciding);
            (in_use && self.close_if_unheld(ofd, id, me)).then_some(id)
        })
    }

    #[inline]
    fn entry(&self, index: u32) -> &Ofd {
        &self.memory.ofds.all()[index as usize]
    }

    fn ofd_words(&self) -> impl Iterator<Item = (OfdId, OfdWord)> + '_ {
        let high = self
            .memory
            .header()
            .ofd_high
            .load(Ordering::SeqCst)
            .min(MAX_OFDS);
        (0..high).map(|index| {
            let word = self.entry(index).load();
            (
                OfdId {
                    index,
                    generation: word.generation,
                },
                word,
            )
        })
    }

    /// Nothing that this slot freed lies below its hint; what others freed there is found when the
    /// table has grown to its end.
    #[inline]
    fn take_free_ofd(&self, me: SlotRef) -> Option<(OfdId, OfdWord)> {
        let hint = &self.slot(me).ofd_hint;
        let start = hint.load(Ordering::Relaxed).min(MAX_OFDS);
        let taken = match self.try_take_ofd(start % MAX_OFDS, me) {
            Some(taken) => taken,
            None => self.find_free_ofd(start, me)?,
        };
        hint.store(taken.0.index + 1, Ordering::Relaxed);
        Some(taken)
    }

    #[cold]
    fn find_free_ofd(&self, start: u32, me: SlotRef) -> Option<(OfdId, OfdWord)> {
        let mut order = (start..MAX_OFDS).chain(0..start);
        order.find_map(|index| self.try_take_ofd(index, me))
    }

    /// The high-water mark rises first: a death in between only makes scans longer.
    #[inline]
    fn try_take_ofd(&self, index: u32, me: SlotRef) -> Option<(OfdId, OfdWord)> {
        let ofd = self.entry(index);
        let free = ofd.load();
        if free.state != OfdState::Free {
            return None;
        }
        if self.memory.header().ofd_high.load(Ordering::Relaxed) <= index {
            self.memory
                .header()
                .ofd_high
                .fetch_max(index + 1, Ordering::SeqCst);
        }
        let generation = free.generation.wrapping_add(1).max(1);
        let allocating = OfdWord {
            generation,
            slot: me.slot,
            state: OfdState::Allocating,
        };
        ofd.change(free, allocating)
            .then_some((OfdId { index, generation }, allocating))
    }

    /// The word of the description's holders that has the bit of `who`.
    #[inline]
    fn holders_word<'a>(&'a self, ofd: &'a Ofd, index: u32, who: SlotRef) -> &'a AtomicU64 {
        match ofd.first_holders(who) {
            Some(word) => word,
            None => self.more_holders(index).word(who),
        }
    }

    #[cold]
    fn more_holders(&self, index: u32) -> &MoreHolders {
        &self.memory.more_holders.all()[index as usize]
    }

    #[inline]
    fn clear_holder(&self, ofd: &Ofd, id: OfdId, who: SlotRef) -> bool {
        let word = self.holders_word(ofd, id.index, who);
        ofd::clear_holder(word, id.generation, who)
    }

    #[inline]
    fn is_holder(&self, ofd: &Ofd, id: OfdId, who: SlotRef) -> bool {
        let word = self.holders_word(ofd, id.index, who);
        ofd::is_holder(word, id.generation, who)
    }

    #[inline]
    fn has_holder(&self, ofd: &Ofd, id: OfdId) -> bool {
        let high = self.slot_high();
        ofd::any_holder(ofd.first_words(high), id.generation)
            || high > FIRST_SLOTS as u32
                && ofd::any_holder(self.more_holders(id.index).words(high), id.generation)
    }

    /// The slots that hold the description.
    pub(crate) fn holders_of<'a>(
        &'a self,
        ofd: &'a Ofd,
        id: OfdId,
    ) -> impl Iterator<Item = u16> + 'a {
        let high = self.slot_high();
        let more = (high > FIRST_SLOTS as u32).then(|| self.more_holders(id.index).words(high));
        let words = ofd
            .first_words(high)
            .iter()
            .chain(more.into_iter().flatten());
        words.enumerate().flat_map(move |(index, word)| {
            let bits = ofd::held_bits(word, id.generation);
            (0..32u16)
                .filter(move |&bit| bits >> bit & 1 != 0)
                .map(move |bit| index as u16 * 32 + bit)
        })
    }

    #[inline]
    fn slot_high(&self) -> u32 {
        self.memory.header().slot_high.load(Ordering::SeqCst)
    }

    /// Closes a description that nobody but `who`, the caller, has ever held. The bit stays behind,
    /// under a generation that ends.
    #[inline]
    fn close_private(&self, ofd: &Ofd, id: OfdId, who: SlotRef) -> bool {
        let used = ofd.load();
        let is_theirs = used.generation == id.generation
            && used.state == OfdState::Used
            && self.is_holder(ofd, id, who);
        let deciding = OfdWord {
            slot: who.slot,
            state: OfdState::Deciding,
            ..used
        };
        if !is_theirs || !ofd.is_private() || !ofd.change(used, deciding) {
            return false;
        }
        if !ofd.is_private() && !step::has(Fault::NoSecondLook) {
            self.undecide(ofd, deciding);
            return false;
        }
        ofd.set(OfdWord {
            state: OfdState::Closing,
            ..deciding
        });
        true
    }

    /// True when the caller, acting for `who`, is the one who closes the description.
    #[inline]
    fn close_if_unheld(&self, ofd: &Ofd, id: OfdId, who: SlotRef) -> bool {
        loop {
            if ofd.is_passed() || self.has_holder(ofd, id) {
                return false;
            }
            let word = ofd.load();
            if word.generation != id.generation {
                return false;
            }
            match word.state {
                OfdState::Used if self.decide(ofd, id.index, word, who) => return true,
                OfdState::Used => {}
                OfdState::Deciding if self.is_slot_dead(word.slot) => self.undecide(ofd, word),
                _ => return false,
            }
        }
    }

    /// One attempt at `Used -> Deciding -> Closing`; goes back to `Used` if a holder has come.
    #[inline]
    fn decide(&self, ofd: &Ofd, index: u32, used: OfdWord, who: SlotRef) -> bool {
        let generation = used.generation;
        let deciding = OfdWord {
            slot: who.slot,
            state: OfdState::Deciding,
            ..used
        };
        if !ofd.change(used, deciding) {
            return false;
        }
        let held = ofd.is_passed() || self.has_holder(ofd, OfdId { index, generation });
        if held && !step::has(Fault::NoSecondLook) {
            self.undecide(ofd, deciding);
            return false;
        }
        ofd.change(
            deciding,
            OfdWord {
                state: OfdState::Closing,
                ..deciding
            },
        )
    }

    fn undecide(&self, ofd: &Ofd, deciding: OfdWord) {
        ofd.change(
            deciding,
            OfdWord {
                slot: 0,
                state: OfdState::Used,
                ..deciding
            },
        );
    }

    /// Waits while somebody decides whether the description is closed; true if it is in use.
    fn await_decision(&self, ofd: &Ofd, generation: u32) -> bool {
        let mut rounds = 0;
        loop {
            let word = ofd.load();
            if word.generation != generation
                || !matches!(word.state, OfdState::Used | OfdState::Deciding)
            {
                return false;
            }
            if word.state == OfdState::Used || step::has(Fault::NoWaitForDecision) {
                return true;
            }
            rounds += 1;
            step::point();
            if rounds < SPINS {
                spin_loop();
            } else if rounds % YIELDS_PER_CHECK == 0 && self.is_slot_dead(word.slot) {
                self.undecide(ofd, word);
            } else {
                sched_yield();
            }
        }
    }

    /// Whether whoever has the slot now is dead, or nobody has it.
    fn is_slot_dead(&self, slot: u16) -> bool {
        match self.current_slot_at(slot) {
            Some(user) => self.liveness(user) != Liveness::Alive,
            None => true,
        }
    }
}
