//! The slots of processes: across fork, vfork and exec, and when a process ends.

use crate::Fs;
use nacre_session::{Liveness, LockOwner, OfdId, SlotError, SlotRef};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

impl Fs {
    /// This process's slot among those that use the pool.
    #[inline]
    pub fn slot(&self) -> SlotRef {
        self.store.slot()
    }

    /// The processes that use the pool, by their numbers in the session's namespace. Some may have
    /// ended.
    pub fn processes(&self) -> impl Iterator<Item = u32> + '_ {
        let session = self.store.session();
        let slots = session.current_slots();
        slots.filter_map(|slot| session.pid_of(slot))
    }

    /// Before a fork: a slot for the child.
    pub fn reserve_child_slot(&self) -> Result<SlotRef, SlotError> {
        self.store.session().reserve_child_slot(self.store.slot())
    }

    /// In the parent after a fork: the slot is that child's.
    pub fn child_forked(&self, slot: SlotRef, pid: u32) {
        self.store.session().child_forked(slot, pid);
    }

    /// In the child: takes the slot over that was reserved for it.
    pub fn adopt_slot(&self, slot: SlotRef) -> Result<(), SlotError> {
        self.store.session().adopt_slot(slot)?;
        self.store.set_slot(slot);
        Ok(())
    }

    /// In a child that cannot take over what was reserved for it.
    pub fn renounce_slot(&self, slot: SlotRef) {
        self.store.session().renounce_slot(slot);
    }

    /// On the state of a child that ran in this process's memory: it is gone.
    pub fn child_is_gone(&self) {
        self.store.child_is_gone();
    }

    /// Lets go of all that `slot` holds, and of the slot. Nobody uses it then.
    pub fn end_process(&self, slot: SlotRef) {
        let session = self.store.session();
        session.advisory_clear_owner(self.store.slot(), LockOwner::Process(slot));
        for id in self.held_by(slot) {
            // Nobody is left who could be told; `check` finds what a failing device keeps pinned.
            let _ = self.let_go(id, slot);
        }
        self.store.volume().end_windows_of(slot.slot.into());
        session.release_slot(slot);
    }

    /// Gives the slot of a process that holds nothing back, until [`Fs::claim_slot`].
    pub fn leave_slot(&self) {
        self.store.session().release_slot(self.store.slot());
    }

    /// This process looks after programs, and changes nothing that others see.
    pub fn only_looks(&self) {
        self.store.session().only_looks(self.slot());
    }

    /// Takes a slot again.
    pub fn claim_slot(&self) -> Result<(), SlotError> {
        self.store.set_slot(self.store.session().claim_slot()?);
        Ok(())
    }

    /// The kernel may keep what this process tells it of the pool: who attaches from now on waits
    /// until [`Fs::end_kernel_cache`]. `false`: others may change it.
    pub fn begin_kernel_cache(&self) -> bool {
        self.store.session().begin_kernel_cache(self.slot())
    }

    /// Waits until somebody attaches, at most so long. True: somebody does.
    pub fn wait_for_kernel_cache_end(&self, at_most: Duration) -> bool {
        let session = self.store.session();
        session.wait_for_kernel_cache_end(self.slot(), at_most)
    }

    /// The kernel is forgetting: who waits goes on waiting.
    pub fn show_kernel_cache_end(&self) {
        self.store.session().show_kernel_cache_end();
    }

    /// The kernel has forgotten everything.
    pub fn end_kernel_cache(&self) {
        self.store.session().end_kernel_cache();
    }

    /// As if somebody attached, without waiting.
    pub fn want_kernel_cache_end(&self) {
        self.store.session().want_kernel_cache_end();
    }

    /// Before exec: where nobody else uses a pool on a disk, nobody is left who gives the disk what
    /// was stored, as the next program may never use the pool.
    pub fn commit_if_alone(&self) {
        let (store, session) = (&self.store, self.store.session());
        if !store.volume().has_image() || store.volume().is_clean() {
            return;
        }
        let mut others = session.current_slots().filter(|&slot| slot != store.slot());
        if !others.any(|slot| session.liveness(slot) != Liveness::Dead) {
            // What the disk does not take stays noted; who syncs is told.
            let _ = self.store.commit_now();
        }
    }

    /// Before exec, in a process with other threads, which die of it: the word that the kernel is
    /// to mark when they have.
    pub fn begin_exec(&self) -> &AtomicU32 {
        self.store.session().begin_exec(self.store.slot())
    }

    /// Notes the description of the current directory, if it lies in the pool, for the next program
    /// of this process.
    pub fn remember_directory(&self, id: Option<OfdId>) {
        let word = id.map_or(0, |id| id.identity() + 1);
        let slot = self.store.session().slot(self.store.slot());
        slot.cwd.store(word, Ordering::Release);
    }

    /// What the last program of this process has noted so.
    pub fn remembered_directory(&self) -> Option<OfdId> {
        let slot = self.store.session().slot(self.store.slot());
        let word = slot.cwd.load(Ordering::Acquire);
        word.checked_sub(1).and_then(OfdId::from_identity)
    }

    /// Device and inode of the session's file; `None` for a session in memory.
    pub fn session_file(&self) -> Option<(u64, u64)> {
        self.store.session().file_id()
    }

    /// The paths of the pool's devices.
    pub fn device_paths(&self) -> Vec<PathBuf> {
        let devices = self.store.volume().devices();
        devices.into_iter().map(|device| device.path).collect()
    }
}
