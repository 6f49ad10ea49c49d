//! Recovering what a dead process held.

use std::sync::atomic::Ordering;

use crate::Session;
use crate::advisory::LockOwner;
use crate::liveness::lock::{DeadOwner, OwnedLock};
use crate::slot_ref::{Liveness, SlotRef};
use crate::step::{self, Fault};
use crate::tables::ofd::OfdId;

struct RecoveryGuard<'a>(&'a OwnedLock, SlotRef);

impl Drop for RecoveryGuard<'_> {
    fn drop(&mut self) {
        self.0.unlock(self.1);
    }
}

impl Session {
    /// Recovers a dead slot, once among all survivors, and releases it. Nothing happens if it lives
    /// or was released already.
    ///
    /// Marks the session tainted, waits for another reaper of the slot (a dead reaper is reaped
    /// first), calls `recover` (lanes, open file descriptions), drops the slot's advisory locks and
    /// frees the slot; the slot of a process that runs another program it leaves to that, with the
    /// locks. `recover` must stand being called again for the same slot, as a reaper may die half
    /// way. Locks that it finds held by the dead slot itself it takes with [`OwnedLock::steal`].
    pub fn reap<E>(
        &self,
        me: SlotRef,
        dead: SlotRef,
        recover: &mut dyn FnMut(SlotRef) -> Result<(), E>,
    ) -> Result<(), E> {
        let _guard = self.lock_recovery(me, dead, recover)?;
        let found = self.doom(dead);
        if found == Liveness::Alive {
            return Ok(());
        }
        self.memory.header().tainted.store(1, Ordering::SeqCst);
        recover(dead)?;
        self.forget_traffic();
        if found == Liveness::Executed {
            self.advisory_change_owner(me, dead, dead.successor());
            self.free_unfinished_entries(me, dead);
            self.renew_slot(dead);
            return Ok(());
        }
        self.advisory_clear_owner(me, LockOwner::Process(dead));
        self.free_unfinished_entries(me, dead);
        self.release_slot(dead);
        Ok(())
    }

    /// For the closure of [`Session::reap`]: ends every open file description that only `dead`
    /// held; what a process holds that runs another program, that goes on to hold. `close` undoes
    /// what the description pinned and is called at most once for each; not at all for one that
    /// `dead` was closing already, as nobody knows how far it got.
    pub fn release_ofds_of(&self, me: SlotRef, dead: SlotRef, close: &mut dyn FnMut(OfdId)) {
        self.ofds_closing_by(dead).for_each(|id| self.ofd_free(id));
        let process_is_gone = self.liveness(dead) == Liveness::Dead;
        let held = process_is_gone.then(|| self.ofds_held_by(dead));
        for id in held.into_iter().flatten() {
            if self.unhold_for(me, id, dead) {
                self.end_ofd(me, id, close);
            }
        }
        for id in self.ofds_orphaned_by(me, dead) {
            self.end_ofd(me, id, close);
        }
    }

    fn end_ofd(&self, me: SlotRef, id: OfdId, close: &mut dyn FnMut(OfdId)) {
        close(id);
        self.advisory_clear_owner(me, LockOwner::Description(id));
        self.ofd_free(id);
    }

    /// The recursion ends: a reaper died after the one it reaped, so no two wait for each other.
    fn lock_recovery<E>(
        &self,
        me: SlotRef,
        dead: SlotRef,
        recover: &mut dyn FnMut(SlotRef) -> Result<(), E>,
    ) -> Result<RecoveryGuard<'_>, E> {
        let lock = &self.slot(dead).recovery;
        while !step::has(Fault::NoRecoveryLock)
            && let Err(DeadOwner(reaper)) = lock.lock(self, me)
        {
            self.reap(me, reaper, recover)?;
        }
        Ok(RecoveryGuard(lock, me))
    }
}
