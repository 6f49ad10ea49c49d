//! Pins keep inodes alive without a name; what dead processes pinned is let go.
//!
//! A pin is a count in the session. Whoever pins counts first and looks at the inode afterwards;
//! whoever frees begins a change of the inode first and looks at the count afterwards. So one of
//! the two always notices the other.

use crate::Fs;
use crate::error::Result;
use crate::inode::InodeRef;
use crate::permission::{Access, Cred};
use nacre_session::SlotRef;
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

    /// As `pin`, for a caller who wants to access the inode so.
    #[inline]
    pub fn pin_for(&self, cred: &Cred, node: InodeRef, want: Access) -> Result<()> {
        self.add_pin(node.object())?;
        let Err(error) = self.access(cred, node, want) else {
            return Ok(());
        };
        self.unpin(node.ino)?;
        Err(error)
    }

    /// Gives a pin back. The last one of an inode without a name frees it.
    #[inline]
    pub fn unpin(&self, ino: Ino) -> Result<()> {
        let object = ino.object();
        if self.drop_pin(object)? {
            self.free_if_unused(object)?;
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn add_pin(&self, object: ObjectId) -> Result<()> {
        self.store
            .icore(object)?
            .opens
            .fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// True when it was the last pin.
    #[inline]
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
        // Waits for whoever is just removing the last name: he may have seen the pin.
        let nameless = self.store.is_nameless(object)?;
        if !nameless || !self.store.is_writable() {
            return Ok(());
        }
        let freed = self.free_nameless(object)?;
        if let Some(node) = freed
            && self.is_watched()
        {
            self.tell_if_gone(node);
        }
        Ok(())
    }

    /// Frees an inode if it has neither a name nor a pin.
    fn free_nameless(&self, object: ObjectId) -> Result<Option<InodeRef>> {
        let guard = self.store.lock(object)?;
        let _unseen = guard.begin_change();
        let Ok(attrs) = self.store.attrs_locked(&guard) else {
            return Ok(None);
        };
        if attrs.nlink != 0 || self.is_pinned(object)? {
            return Ok(None);
        }
        let mut tx = self.store.begin()?;
        tx.remove(object)?;
        tx.commit()?;
        Ok(Some(InodeRef {
            ino: object.ino(),
            generation: attrs.generation,
        }))
    }

    /// Finishes what dead processes left: their transactions, open file descriptions, locks and
    /// slots. Returns how many processes were found dead.
    pub fn reap_dead(&self) -> Result<usize> {
        let session = self.store.session();
        let me = self.store.slot();
        let dead: Vec<SlotRef> = session.dead_slots().collect();
        for &slot in &dead {
            session.reap(me, slot, &mut |slot| self.recover(slot))?;
        }
        if !dead.is_empty() {
            self.sweep_watches_of_the_dead();
        }
        Ok(dead.len())
    }

    /// First of all in a process that attached. If it goes on where a former program of it stopped,
    /// finishes what that one's threads left, who died when it executed this program. If the dead
    /// had all slots, finishes them, so that the next one gets in.
    pub fn take_over(&self) -> Result<()> {
        if self.store.slot().is_spare() {
            self.reap_dead()?;
        }
        if let Some(former) = self.store.former_slot() {
            let session = self.store.session();
            session.reap(self.store.slot(), former, &mut |slot| self.recover(slot))?;
            self.store.take_former_slot()?;
        }
        Ok(())
    }

    /// May run again for the same slot when a reaper dies half way. A pin that cannot be given back
    /// only keeps a nameless inode until the next attach.
    fn recover(&self, dead: SlotRef) -> Result<()> {
        self.store.recover_slot(dead)?;
        let mut outcome = Ok(());
        let me = self.store.slot();
        self.store.session().release_ofds_of(me, dead, &mut |id| {
            let released = self.release_pins(id);
            if outcome.is_ok() {
                outcome = released;
            }
        });
        outcome
    }
}
