//! Slots: one per attached process.
//!
//! The word of a slot holds `generation (32) | pid (28) | state (4)` and is the only thing that
//! changes hands; every other field is written while the word says `Claiming` (nobody looks) or by
//! the slot's own process. A slot goes `Free -> Claiming -> Live` or `Free -> Claiming -> Reserved
//! -> Live`, each with one store, and back to `Free` with the last one of its release. Death in
//! `Claiming` or `Reserved` leaves a slot that belongs to a dead pid, which is found like any
//! other.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::sched_yield;

use crate::error::SlotError;
use crate::liveness::lock::OwnedLock;
use crate::liveness::process::{self, Process};
use crate::liveness::wait_record::{WAITS_PER_SLOT, WaitRecord};
use crate::mapping::SharedWords;
use crate::slot_ref::{Liveness, SlotRef};
use crate::step::Fault;
use crate::{MAX_SLOTS, SPARE_SLOTS, Session, step};

const FREE: u64 = 0;
const CLAIMING: u64 = 1;
/// Made by a parent for its child.
const RESERVED: u64 = 2;
const LIVE: u64 = 3;
/// A reservation that is being reaped, or that its child has renounced, and can no longer be
/// adopted.
const DOOMED: u64 = 4;

/// How long a parent in another pid namespace waits for its child to adopt its slot or renounce it.
const ADOPTION: Duration = Duration::from_secs(1);

/// Set before the process takes its first record lock.
const USES_LOCKS: u32 = 1;
/// Set while the process commits for all who use the pool, every few seconds.
const COMMITS: u32 = 2;
/// Set while the process changes nothing that others see.
const ONLY_LOOKS: u32 = 4;

/// What a process shares with the others about itself.
#[repr(C, align(64))]
pub struct Slot {
    word: AtomicU64,
    /// Start time of the process; while reserved, of nobody.
    start: AtomicU64,
    /// Start time of the process that reserved the slot.
    parent_start: AtomicU64,
    /// Generation (32) and process (32) that will adopt the slot, 0 until its parent knows.
    child: AtomicU64,
    /// [`USES_LOCKS`], [`COMMITS`] and [`ONLY_LOOKS`].
    marks: AtomicU32,
    /// The process's number before it executes a program, a mark after it has; see `executed.rs`.
    pub(crate) exec: AtomicU32,
    /// The generation that `exec` is about.
    pub(crate) exec_generation: AtomicU32,
    /// Held while somebody recovers the dead slot.
    pub(crate) recovery: OwnedLock,
    /// Where the slot's next open file description is looked for.
    pub(crate) ofd_hint: AtomicU32,
    /// File mode creation mask, kept here across exec.
    pub umask: AtomicU32,
    /// Identity of the working directory's open file description, kept here across exec; 0 for
    /// none.
    pub cwd: AtomicU64,
    pub(crate) waits: [WaitRecord; WAITS_PER_SLOT],
    /// How many of the process's threads are storing to the image of a disk.
    pub(crate) storing: AtomicU64,
}

// SAFETY: atomics only.
unsafe impl SharedWords for Slot {}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) generation: u32,
    pub(crate) pid: u32,
    state: u64,
}

impl Word {
    fn pack(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.pid & 0x0fff_ffff) << 4 | self.state
    }

    fn unpack(word: u64) -> Word {
        Word {
            generation: (word >> 32) as u32,
            pid: (word as u32) >> 4,
            state: word & 15,
        }
    }
}

fn child_word(generation: u32, pid: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(pid)
}

impl Slot {
    pub(crate) fn load(&self) -> Word {
        Word::unpack(self.word.load(Ordering::SeqCst))
    }

    fn change(&self, from: Word, to: Word) -> bool {
        step::exchange(&self.word, (from.pack(), to.pack()), Fault::TornSlot)
    }

    /// Clears what the last user left; only while claiming.
    fn reset(&self, generation: u32) {
        self.start.store(0, Ordering::Relaxed);
        self.parent_start.store(0, Ordering::Relaxed);
        self.child
            .store(child_word(generation, 0), Ordering::SeqCst);
        self.marks.store(0, Ordering::Relaxed);
        self.exec.store(0, Ordering::Relaxed);
        self.ofd_hint.store(0, Ordering::Relaxed);
        self.umask.store(0, Ordering::Relaxed);
        self.cwd.store(0, Ordering::Relaxed);
        self.storing.store(0, Ordering::SeqCst);
        self.clear_waits();
    }

    fn clear_waits(&self) {
        for wait in &self.waits {
            wait.clear();
        }
    }

    pub(crate) fn mark_locks(&self) {
        if !self.uses_locks() {
            self.marks.fetch_or(USES_LOCKS, Ordering::SeqCst);
        }
    }

    pub(crate) fn uses_locks(&self) -> bool {
        self.marks.load(Ordering::SeqCst) & USES_LOCKS != 0
    }

    fn is_running(&self, word: Word) -> bool {
        match word.state {
            LIVE => Process {
                pid: word.pid,
                start: self.start.load(Ordering::Relaxed),
            }
            .is_running(),
            RESERVED => self.is_reservation_running(word),
            CLAIMING => process::is_number_running(word.pid),
            _ => false,
        }
    }

    /// Once the child's number is known, the child alone decides. A parent that ended after it had
    /// told the number is no sign either.
    fn is_reservation_running(&self, word: Word) -> bool {
        let parent = Process {
            pid: word.pid,
            start: self.parent_start.load(Ordering::Relaxed),
        };
        let told = || Some(self.child.load(Ordering::SeqCst) as u32).filter(|&child| child != 0);
        match told() {
            Some(child) => process::is_number_running(child),
            None => parent.is_running() || told().is_some_and(process::is_number_running),
        }
    }

    /// Tells the number of the child for which this generation is reserved. The slot may have other
    /// users by then, if the child was faster.
    fn tell_child(&self, generation: u32, pid: u32) {
        let words = (child_word(generation, 0), child_word(generation, pid));
        let (seq, relaxed) = (Ordering::SeqCst, Ordering::Relaxed);
        let _ = self.child.compare_exchange(words.0, words.1, seq, relaxed);
    }
}

impl Session {
    /// Takes a slot for the calling process.
    pub fn claim_slot(&self) -> Result<SlotRef, SlotError> {
        let me = self.take_slot(0)?;
        self.await_kernel_cache_end(me);
        Ok(me)
    }

    /// Takes a slot for the calling process, which changes nothing that others see. Until
    /// [`Session::will_change`].
    pub fn claim_slot_to_look(&self) -> Result<SlotRef, SlotError> {
        self.take_slot(ONLY_LOOKS)
    }

    /// From now on this process, a supervisor, changes nothing that others see.
    pub fn only_looks(&self, me: SlotRef) {
        self.slot(me).marks.fetch_or(ONLY_LOOKS, Ordering::SeqCst);
    }

    /// From now on this process changes what others see, as all do that have not said otherwise.
    pub fn will_change(&self, me: SlotRef) {
        let before = self.slot(me).marks.fetch_and(!ONLY_LOOKS, Ordering::SeqCst);
        if before & ONLY_LOOKS != 0 {
            self.await_kernel_cache_end(me);
        }
    }

    /// Whether a process may change what others see.
    pub(crate) fn may_change(&self, slot: SlotRef) -> bool {
        self.slot(slot).marks.load(Ordering::SeqCst) & ONLY_LOOKS == 0
    }

    fn take_slot(&self, marks: u32) -> Result<SlotRef, SlotError> {
        let process = self.current_process()?;
        let found = self.take_free_slot(process.pid, MAX_SLOTS);
        let (me, claiming) = found.ok_or(SlotError::Full)?;
        let slot = self.slot(me);
        slot.start.store(process.start, Ordering::Relaxed);
        slot.marks.store(marks, Ordering::SeqCst);
        slot.change(
            claiming,
            Word {
                state: LIVE,
                ..claiming
            },
        );
        Ok(me)
    }

    /// The slot that the calling process had before exec.
    pub fn find_own_slot(&self) -> Option<SlotRef> {
        self.find_own_slot_but(None)
    }

    /// As [`Session::find_own_slot`], for who has another slot as well.
    pub fn find_own_slot_but(&self, other: Option<SlotRef>) -> Option<SlotRef> {
        self.slot_of(self.current_process().ok()?, other)
    }

    fn slot_of(&self, process: Process, other: Option<SlotRef>) -> Option<SlotRef> {
        self.words().find_map(|(me, word)| {
            let start = self.slot(me).start.load(Ordering::Relaxed);
            let own = word.state == LIVE && word.pid == process.pid && start == process.start;
            (own && Some(me) != other).then_some(me)
        })
    }

    /// Before fork: a slot for the child, which dies with `me` until the child is known or has
    /// adopted it.
    pub fn reserve_child_slot(&self, me: SlotRef) -> Result<SlotRef, SlotError> {
        let parent = self.slot(me);
        if parent.load().state == RESERVED {
            // It had no descriptor to ask for its start time when it was made.
            let process = self.current_process().map_err(|_| SlotError::Full)?;
            parent.start.store(process.start, Ordering::Relaxed);
        }
        let (child, claiming) = self
            .take_free_slot(parent.load().pid, MAX_SLOTS - SPARE_SLOTS)
            .ok_or(SlotError::Full)?;
        let slot = self.slot(child);
        slot.parent_start
            .store(parent.start.load(Ordering::Relaxed), Ordering::Relaxed);
        slot.umask
            .store(parent.umask.load(Ordering::Relaxed), Ordering::Relaxed);
        slot.cwd
            .store(parent.cwd.load(Ordering::Relaxed), Ordering::Relaxed);
        slot.change(
            claiming,
            Word {
                state: RESERVED,
                ..claiming
            },
        );
        Ok(child)
    }

    /// In the parent, right after fork: from now on the reservation lives and dies with the child,
    /// not with the parent.
    pub fn child_forked(&self, reserved: SlotRef, child_pid: u32) {
        let slot = self.slot(reserved);
        if !process::is_far() {
            return slot.tell_child(reserved.generation, child_pid);
        }
        // The number is not the session's: the child is given time to say its own.
        let begun = Instant::now();
        while self.is_reserved(reserved) && begun.elapsed() < ADOPTION {
            sched_yield();
        }
    }

    fn is_reserved(&self, slot: SlotRef) -> bool {
        let word = self.slot(slot).load();
        word.generation == slot.generation && word.state == RESERVED
    }

    /// In a child that cannot adopt its slot: the parent waits for it no longer, and whoever looks
    /// for dead processes frees the slot with what was held for the child.
    pub fn renounce_slot(&self, reserved: SlotRef) {
        let slot = self.slot(reserved);
        let word = slot.load();
        if word.generation == reserved.generation && word.state == RESERVED {
            let doomed = Word {
                state: DOOMED,
                ..word
            };
            slot.change(word, doomed);
        }
    }

    /// As [`Session::find_own_slot`], for a process of another pid namespace that sees this
    /// session's in /proc. From then on it is looked at from there.
    pub(crate) fn find_slot_from_afar(&self) -> Option<SlotRef> {
        let mut found = None;
        process::look_from_afar(|own| {
            found = self.slot_of(own, None);
            found.is_some()
        });
        found
    }

    /// In the child: makes the reserved slot its own, under the same reference.
    pub fn adopt_slot(&self, reserved: SlotRef) -> Result<(), SlotError> {
        let slot = self.slot(reserved);
        let word = slot.load();
        let process = if let Some(process) = Process::forked_there() {
            process
        } else if process::namespaces() == Some(self.namespaces) {
            match Process::current() {
                Some(process) => process,
                None => return self.stay_reserved(reserved, word),
            }
        } else {
            let parent = Process {
                pid: word.pid,
                start: slot.parent_start.load(Ordering::Relaxed),
            };
            process::look_from_afar(|_| process::is_shown(parent)).ok_or(SlotError::Namespace)?
        };
        if word.generation != reserved.generation || word.state != RESERVED {
            return Err(SlotError::Lost);
        }
        slot.start.store(process.start, Ordering::Relaxed);
        let adopted = slot.change(
            word,
            Word {
                state: LIVE,
                pid: process.pid,
                ..word
            },
        );
        if adopted {
            Ok(())
        } else {
            Err(SlotError::Lost)
        }
    }

    /// For a child that cannot ask for its start time, as no descriptor is free: its number alone
    /// says whether it lives.
    fn stay_reserved(&self, reserved: SlotRef, word: Word) -> Result<(), SlotError> {
        let (slot, pid) = (self.slot(reserved), process::own_number());
        slot.tell_child(reserved.generation, pid);
        let reserved_still = word.generation == reserved.generation && word.state == RESERVED;
        // Nobody who took the parent for the one that decides dooms it any more.
        match reserved_still && slot.change(word, Word { pid, ..word }) {
            true => Ok(()),
            false => Err(SlotError::Lost),
        }
    }

    /// Gives a slot back, after everything it held. All lock words of this generation count as free
    /// from now on.
    pub fn release_slot(&self, me: SlotRef) {
        let slot = self.slot(me);
        let word = slot.load();
        if word.generation == me.generation && word.state != FREE {
            slot.change(
                word,
                Word {
                    state: FREE,
                    pid: 0,
                    ..word
                },
            );
        }
    }

    /// A slot's shared fields; they belong to `slot` only while it is current.
    #[inline]
    pub fn slot(&self, slot: SlotRef) -> &Slot {
        &self.memory.slots.all()[usize::from(slot.slot)]
    }

    /// The process number in a slot, if `slot` is current.
    pub fn pid_of(&self, slot: SlotRef) -> Option<u32> {
        let word = self.slot(slot).load();
        (word.generation == slot.generation && word.state != FREE).then_some(word.pid)
    }

    /// Whether the slot still belongs to this user, alive or dead.
    pub fn is_current(&self, slot: SlotRef) -> bool {
        let Some(entry) = self.memory.slots.get(usize::from(slot.slot)) else {
            return false;
        };
        let word = entry.load();
        word.generation == slot.generation && word.state != FREE
    }

    /// Asks the system whether the slot's process runs. Some microseconds.
    pub fn liveness(&self, slot: SlotRef) -> Liveness {
        let entry = self.slot(slot);
        let word = entry.load();
        let same_user = word.generation == slot.generation;
        #[cfg(feature = "kill-steps")]
        if step::stage().is_some_and(|stage| stage.is_dead(slot)) {
            return Liveness::Dead;
        }
        // The start time is only good together with the word that it was read under.
        if !same_user || (!entry.is_running(word) && entry.load() == word) {
            Liveness::Dead
        } else if word.state == LIVE && entry.has_executed(word) {
            Liveness::Executed
        } else {
            Liveness::Alive
        }
    }

    /// The users of slots who are to be recovered: their process is gone, or runs another program.
    pub fn dead_slots(&self) -> impl Iterator<Item = SlotRef> + '_ {
        self.current_slots()
            .filter(|&slot| self.liveness(slot) != Liveness::Alive && self.is_current(slot))
    }

    /// The users of all slots that are not free.
    pub fn current_slots(&self) -> impl Iterator<Item = SlotRef> + '_ {
        self.words()
            .filter(|(_, word)| word.state != FREE)
            .map(|(slot, _)| slot)
    }

    /// Whether the calling process commits for all who use the pool from now on, every few seconds.
    pub fn set_commits_for_all(&self, me: SlotRef, commits: bool) {
        let marks = &self.slot(me).marks;
        match commits {
            true => marks.fetch_or(COMMITS, Ordering::SeqCst),
            false => marks.fetch_and(!COMMITS, Ordering::SeqCst),
        };
    }

    /// Whether this process commits for all.
    pub fn commits_for_all(&self, slot: SlotRef) -> bool {
        self.slot(slot).marks.load(Ordering::SeqCst) & COMMITS != 0
    }

    /// The process that has the slot with this index.
    pub(crate) fn current_slot_at(&self, index: u16) -> Option<SlotRef> {
        let word = self.memory.slots.get(usize::from(index))?.load();
        (word.state != FREE).then_some(SlotRef {
            slot: index,
            generation: word.generation,
        })
    }

    /// Makes sure that a dead slot cannot come to life while it is recovered. `Alive` if there is
    /// nothing to recover.
    pub(crate) fn doom(&self, dead: SlotRef) -> Liveness {
        let slot = self.slot(dead);
        let word = slot.load();
        let found = self.liveness(dead);
        // What was found is about this word: a child may have adopted it, or others have the slot.
        let stands = slot.load() == word && word.generation == dead.generation;
        if !stands || word.state == FREE {
            return Liveness::Alive;
        }
        let doomed = Word {
            state: DOOMED,
            ..word
        };
        match found {
            Liveness::Dead if word.state == RESERVED && !slot.change(word, doomed) => {
                Liveness::Alive
            }
            found => found,
        }
    }

    /// Gives the slot of a process that runs another program to that program, under its next
    /// reference. All lock words of the old one count as free from now on.
    pub(crate) fn renew_slot(&self, executed: SlotRef) {
        let slot = self.slot(executed);
        let word = slot.load();
        if word.generation == executed.generation && word.state == LIVE {
            slot.clear_waits();
            // Of threads that the new program does not have.
            slot.storing.store(0, Ordering::SeqCst);
            let generation = executed.successor().generation;
            slot.change(word, Word { generation, ..word });
        }
    }

    fn words(&self) -> impl Iterator<Item = (SlotRef, Word)> + '_ {
        let high = self.memory.header().slot_high.load(Ordering::SeqCst) as usize;
        self.memory
            .slots
            .all()
            .iter()
            .take(high)
            .enumerate()
            .map(|(index, slot)| {
                let word = slot.load();
                (
                    SlotRef {
                        slot: index as u16,
                        generation: word.generation,
                    },
                    word,
                )
            })
    }

    fn current_process(&self) -> Result<Process, SlotError> {
        if process::namespaces() == Some(self.namespaces) || process::is_far() {
            return Process::current().ok_or(SlotError::NoProc);
        }
        Err(SlotError::Namespace)
    }

    /// The high-water mark rises first: a death in between only makes scans longer.
    fn take_free_slot(&self, pid: u32, slots: usize) -> Option<(SlotRef, Word)> {
        (0..slots).find_map(|index| {
            let slot = self.memory.slots.get(index)?;
            let free = slot.load();
            if free.state != FREE {
                return None;
            }
            self.memory
                .header()
                .slot_high
                .fetch_max(index as u32 + 1, Ordering::SeqCst);
            let claiming = Word {
                generation: free.generation.wrapping_add(1).max(1),
                pid,
                state: CLAIMING,
            };
            slot.change(free, claiming).then(|| {
                slot.reset(claiming.generation);
                (
                    SlotRef {
                        slot: index as u16,
                        generation: claiming.generation,
                    },
                    claiming,
                )
            })
        })
    }
}
