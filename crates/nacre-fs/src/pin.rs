//! Pins keep inodes alive without a name; what dead processes pinned is let go.
//!
//! A pin is a count in the session. Whoever pins counts first and looks at the inode afterwards;
//! whoever frees begins a change of the inode first and looks at the count afterwards. So one of
//! the two always notices the other.

use crate::Fs;
use crate::error::{FsError, Result};
use crate::inode::{InodeRef, object_of};
use nacre_session::{LockOwner, OFD_MAPPED, OfdId, SlotRef};
use nacre_types::{Ino, ObjectId};
use std::sync::atomic::Ordering;

impl Fs {
    /// Keeps the inode alive until `unpin`, also without a name. `Stale` if it is gone already:
    /// look the name up again.
    pub fn pin(&self, node: InodeRef) -> Result<()> {
        self.add_pin(node.object())?;
        let Err(error) = self.attrs(node) else {
            return Ok(());
        };
        self.unpin(node.ino)?;
        Err(error)
    }

    /// Gives a pin back. The last one of an inode without a name frees it.
    pub fn unpin(&self, ino: Ino) -> Result<()> {
        let object = object_of(ino);
        if self.drop_pin(object)? {
            self.free_if_unused(object)?;
        }
        Ok(())
    }

    pub(crate) fn add_pin(&self, object: ObjectId) -> Result<()> {
        self.store
            .icore(object)?
            .opens
            .fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// True when it was the last pin.
    pub(crate) fn drop_pin(&self, object: ObjectId) -> Result<bool> {
        let opens = &self.store.icore(object)?.opens;
        let before = opens.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| {
            count.checked_sub(1)
        });
        Ok(before == Ok(1))
    }

    pub(crate) fn is_pinned(&self, object: ObjectId) -> Result<bool> {
        Ok(self.store.icore(object)?.opens.load(Ordering::SeqCst) != 0)
    }

    fn free_if_unused(&self, object: ObjectId) -> Result<()> {
        let nameless = self.store.attrs(object).is_ok_and(|attrs| attrs.nlink == 0);
        if !nameless || !self.store.is_writable() {
            return Ok(());
        }
        let guard = self.store.lock(object)?;
        let _unseen = guard.begin_change();
        let Ok(attrs) = self.store.attrs_locked(&guard) else {
            return Ok(());
        };
        if attrs.nlink != 0 || self.is_pinned(object)? {
            return Ok(());
        }
        let mut tx = self.store.begin()?;
        tx.remove(object)?;
        Ok(tx.commit()?)
    }

    /// Undoes what an open file description stands for, after its last holder let it go.
    pub fn release_ofd(&self, id: OfdId) -> Result<()> {
        let session = self.store.session();
        let Some(ofd) = session.ofd(id) else {
            return Ok(());
        };
        let ino = ofd.ino();
        let mapped = ofd.flags.load(Ordering::Relaxed) & OFD_MAPPED != 0;
        session.advisory_clear_owner(self.store.slot(), LockOwner::Description(id));
        let unmapped = if mapped { self.map_end(ino) } else { Ok(()) };
        let unpinned = self.unpin(ino);
        session.ofd_free(id);
        unmapped.and(unpinned)
    }

    /// Finishes what dead processes left: their transactions, open file descriptions, locks and
    /// slots. Returns how many processes were buried.
    pub fn reap_dead(&self) -> Result<usize> {
        let dead = self.store.dead_slots();
        for &slot in &dead {
            self.reap(slot)?;
        }
        Ok(dead.len())
    }

    /// A description whose last close the dead process had begun keeps its pin: whether it was
    /// undone cannot be known, and an inode kept too long is freed at the next attach.
    fn reap(&self, dead: SlotRef) -> Result<()> {
        self.store.recover_slot(dead)?;
        let session = self.store.session();
        let mut outcome = Ok(());
        for id in session.ofds_held_by(dead) {
            if session.unhold(id, dead) {
                outcome = outcome.and(self.release_ofd(id));
            }
        }
        session
            .ofds_closing_by(dead)
            .for_each(|id| session.ofd_free(id));
        session.advisory_clear_owner(self.store.slot(), LockOwner::Process(dead));
        self.store.finish_slot(dead);
        outcome
    }
}
