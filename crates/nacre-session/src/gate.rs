//! The gate that keeps stores to the image of a disk and the taking of its versions apart.
//!
//! Each process counts its threads that are storing in its slot. Whoever takes a version shuts the
//! gate and waits until all counts are 0; a store raises its count first and looks at the gate
//! then, so of the two at least one sees the other. Counts of the dead count for nothing. A gate
//! that a dead process left shut is opened by whoever waits at it. So is one whose owner has not
//! begun to take the version for long: a debugger may have stopped the owner or who is storing, and
//! may be what waits.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use rustix::thread::sched_yield;

use crate::Session;
use crate::liveness::slot::Slot;
use crate::mapping::{Mapping, Region};
use crate::memory::header::Header;
use crate::round::{pause, pause_briefly};
use crate::slot_ref::{Liveness, SlotRef};

const SPINS: u32 = 200;
/// How often who wants to store gives way before it sleeps until the gate is open: a small version
/// is taken sooner.
const YIELDS: u32 = 100;
/// How often who has shut the gate gives way to who is storing.
const YIELDS_TO_STORES: u32 = 2000;

/// The gate as a process sees it, usable beyond the session's life.
pub struct StoreGate {
    slots: Region<Slot>,
    header: Region<Header>,
    _mapping: Arc<Mapping>,
}

impl StoreGate {
    /// A thread of the process in slot number `slot` begins to store. `false`: a version is being
    /// taken; wait and try again.
    #[inline]
    pub fn enter(&self, slot: u16) -> bool {
        let storing = &self.slots.all()[usize::from(slot)].storing;
        storing.fetch_add(1, SeqCst);
        if !self.header.all()[0].shared.gate.is_shut() {
            return true;
        }
        storing.fetch_sub(1, SeqCst);
        false
    }

    /// The thread is done.
    #[inline]
    pub fn leave(&self, slot: u16) {
        self.slots.all()[usize::from(slot)]
            .storing
            .fetch_sub(1, SeqCst);
    }
}

/// After so many rounds of waiting, 2 s, the gate is opened for a living owner. On a busy machine
/// who is in the middle of a store may get no processor for some of them, and a gate that is opened
/// too early is never shut for all.
const LONG: u32 = 200;
/// The owner waits until nobody stores, and begins again if somebody opens the gate.
const WAITS: u64 = 1 << 31;

fn word_of(slot: SlotRef) -> u64 {
    u64::from(slot.generation) << 32 | (u64::from(slot.slot) + 1)
}

fn owner_of(word: u64) -> SlotRef {
    SlotRef {
        slot: ((word & !WAITS) as u32).wrapping_sub(1) as u16,
        generation: (word >> 32) as u32,
    }
}

impl Session {
    /// The gate for stores.
    pub fn store_gate(&self) -> StoreGate {
        let memory = &self.memory;
        StoreGate {
            slots: memory.view_slots(),
            header: memory.view_header(),
            _mapping: Arc::clone(&memory.mapping),
        }
    }

    /// Runs `work` while nobody stores. The caller holds the commit lock.
    pub fn while_nobody_stores<T>(&self, me: SlotRef, work: impl FnOnce() -> T) -> T {
        let gate = &self.shared().gate;
        while !self.try_to_shut(me) {
            pause();
        }
        let done = work();
        gate.open(word_of(me));
        done
    }

    /// Shuts the gate and waits until nobody stores. `false`: somebody has opened it meanwhile.
    fn try_to_shut(&self, me: SlotRef) -> bool {
        let (gate, word) = (&self.shared().gate.word, word_of(me));
        gate.store(word | WAITS, SeqCst);
        let is_shut = || gate.load(SeqCst) == word | WAITS;
        for slot in self.current_slots() {
            self.wait_for_stores(slot, is_shut);
        }
        let shut = gate.compare_exchange(word | WAITS, word, SeqCst, SeqCst);
        shut.is_ok()
    }

    fn wait_for_stores(&self, slot: SlotRef, is_shut: impl Fn() -> bool) {
        let is_storing = || self.slot(slot).storing.load(SeqCst) != 0 && is_shut();
        while !is_soon_over(is_storing, YIELDS_TO_STORES) {
            if self.liveness(slot) != Liveness::Alive {
                return;
            }
            pause_briefly();
        }
    }

    /// Waits until the gate is open.
    pub fn wait_at_gate(&self) {
        let gate = &self.shared().gate;
        let mut rounds = 0;
        while !is_soon_over(|| gate.is_shut(), YIELDS) {
            let seen = gate.word.load(SeqCst);
            if seen == 0 || gate.wait(seen) {
                continue;
            }
            rounds += 1;
            let waits_long = rounds >= LONG && seen & WAITS != 0;
            if waits_long || self.liveness(owner_of(seen)) != Liveness::Alive {
                gate.open(seen);
            }
        }
    }

    /// The present user of a slot.
    pub fn user_of(&self, slot: u16) -> SlotRef {
        let word = self.memory.slots.all()[usize::from(slot)].load();
        SlotRef {
            slot,
            generation: word.generation,
        }
    }
}

/// Waits for a short time while something is so. Answers whether it is over.
fn is_soon_over(is_so: impl Fn() -> bool, yields: u32) -> bool {
    for _ in 0..SPINS {
        if !is_so() {
            return true;
        }
        spin_loop();
    }
    for _ in 0..yields {
        if !is_so() {
            return true;
        }
        sched_yield();
    }
    !is_so()
}
