//! Finding circles of processes that wait for each other's record locks.
//!
//! A process that is about to sleep writes down what it wants (a wait record of its slot) and
//! follows, from the owners in its way, what those want. Both happen under one lock, so of the
//! processes that close a circle exactly one sees it. Every step is checked against the locks held
//! at that moment: a record of a process that is just waking up does not count. A record torn by a
//! death belongs to a dead process, which holds no locks for long.

use std::sync::atomic::Ordering;

use nacre_types::Ino;

use crate::liveness::lock::{DeadOwner, OwnedLock};
use crate::liveness::wait_record::{UNUSED, WaitRecord};
use crate::slot_ref::SlotRef;
use crate::{MAX_SLOTS, Session};

use super::list::{Held, Space};
use super::{AdvisoryError, LockKind, LockOwner, LockRange};

const SHARED: u32 = 1;
const EXCLUSIVE: u32 = 2;

impl WaitRecord {
    fn write(&self, wanted: &Held) {
        self.ino.store(wanted.ino.get(), Ordering::Relaxed);
        self.first.store(wanted.range.first, Ordering::Relaxed);
        self.last.store(wanted.range.last, Ordering::Relaxed);
        let kind = if wanted.kind == LockKind::Exclusive {
            EXCLUSIVE
        } else {
            SHARED
        };
        self.kind.store(kind, Ordering::Release);
    }

    fn read(&self, owner: SlotRef) -> Option<Held> {
        let kind = match self.kind.load(Ordering::Acquire) {
            UNUSED => return None,
            SHARED => LockKind::Shared,
            _ => LockKind::Exclusive,
        };
        let range = LockRange {
            first: self.first.load(Ordering::Relaxed),
            last: self.last.load(Ordering::Relaxed),
        };
        let ino = Ino(self.ino.load(Ordering::Relaxed));
        Some(Held {
            ino,
            space: Space::Record,
            owner: LockOwner::Process(owner),
            range,
            kind,
        })
    }
}

/// A written wait record; cleared on drop.
pub(super) struct Announced<'a>(&'a WaitRecord);

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        self.0.clear();
    }
}

/// A set of slots.
struct SlotSet([u64; MAX_SLOTS / 64]);

impl Default for SlotSet {
    fn default() -> SlotSet {
        SlotSet([0; MAX_SLOTS / 64])
    }
}

impl SlotSet {
    fn insert(&mut self, slot: u16) {
        self.0[usize::from(slot) / 64] |= 1 << (slot % 64);
    }

    fn contains(&self, slot: u16) -> bool {
        self.0[usize::from(slot) / 64] >> (slot % 64) & 1 != 0
    }

    fn first_not_in(&self, other: &SlotSet) -> Option<u16> {
        let words = self.0.iter().zip(&other.0).enumerate();
        words
            .map(|(index, (a, b))| (index, a & !b))
            .find(|&(_, left)| left != 0)
            .map(|(index, left)| (index * 64) as u16 + left.trailing_zeros() as u16)
    }
}

struct WaitsGuard<'a>(&'a OwnedLock, SlotRef);

impl Drop for WaitsGuard<'_> {
    fn drop(&mut self) {
        self.0.unlock(self.1);
    }
}

impl Session {
    /// Announces what `waiter` wants, once, and looks for a circle that leads back to it.
    pub(super) fn check_deadlock<'a>(
        &'a self,
        me: SlotRef,
        waiter: SlotRef,
        wanted: &Held,
        announced: &mut Option<Announced<'a>>,
    ) -> Result<(), AdvisoryError> {
        let _guard = self.lock_waits(me);
        if announced.is_none() {
            *announced = self.announce_wait(waiter, wanted);
        }
        if self.leads_back(me, waiter, wanted) {
            Err(AdvisoryError::Deadlock)
        } else {
            Ok(())
        }
    }

    fn announce_wait(&self, waiter: SlotRef, wanted: &Held) -> Option<Announced<'_>> {
        let unused = self
            .slot(waiter)
            .waits
            .iter()
            .find(|wait| wait.read(waiter).is_none())?;
        unused.write(wanted);
        Some(Announced(unused))
    }

    fn lock_waits(&self, me: SlotRef) -> WaitsGuard<'_> {
        let lock = &self.memory.header().waits_lock;
        while let Err(DeadOwner(dead)) = lock.lock(self, me) {
            if lock.steal(dead, me) {
                break;
            }
        }
        WaitsGuard(lock, me)
    }

    fn leads_back(&self, me: SlotRef, waiter: SlotRef, wanted: &Held) -> bool {
        let mut reached = SlotSet::default();
        let mut followed = SlotSet::default();
        self.add_owners_in_the_way(me, wanted, &mut reached);
        while let Some(slot) = reached.first_not_in(&followed) {
            followed.insert(slot);
            let Some(user) = self.current_slot_at(slot) else {
                continue;
            };
            for wait in self
                .slot(user)
                .waits
                .iter()
                .filter_map(|wait| wait.read(user))
            {
                self.add_owners_in_the_way(me, &wait, &mut reached);
            }
        }
        reached.contains(waiter.slot)
    }

    fn add_owners_in_the_way(&self, me: SlotRef, wanted: &Held, reached: &mut SlotSet) {
        self.lock_bucket(me, self.bucket_of(wanted.ino))
            .visit(|held| {
                if let LockOwner::Process(slot) = held.owner
                    && held.excludes(wanted)
                {
                    reached.insert(slot.slot);
                }
            });
    }
}
