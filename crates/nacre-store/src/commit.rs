//! Commits: the disk behind an image gets what memory held at one moment.
//!
//! One commit serves all who wait, of all processes: who finds another one under way waits for it
//! and then looks whether a version that was begun after the call is durable.

use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, Weak};

use nacre_session::{DeadOwner, SlotRef, StoreGate};
use nacre_volume::{Access, Committer, MediaFailed};

use crate::error::{Result, StoreError};
use crate::store::{Attachment, Store};

/// What media asks for.
struct Commits {
    gate: StoreGate,
    /// The slot of this process.
    slot: AtomicU16,
    attachment: OnceLock<Weak<Attachment>>,
}

impl Committer for Commits {
    fn enter(&self) {
        while !self.gate.enter(self.slot.load(Relaxed)) {
            if let Some(attachment) = self.attachment() {
                attachment.session.wait_at_gate();
            }
        }
    }

    fn leave(&self) {
        self.gate.leave(self.slot.load(Relaxed));
    }

    fn commit(&self) -> std::result::Result<(), MediaFailed> {
        let Some((attachment, me)) = self.user() else {
            return Ok(());
        };
        attachment.commit(me).map_err(|_| MediaFailed)
    }

    fn set_share(&self, number: u64) {
        self.slot.store(number as u16, Relaxed);
    }

    fn while_nobody_stores(&self, work: &mut dyn FnMut()) {
        if let Some((attachment, me)) = self.user() {
            let session = &attachment.session;
            attachment.with_commit_lock(me, || session.while_nobody_stores(me, work));
        }
    }

    fn bring_home(&self) -> std::result::Result<(), MediaFailed> {
        let Some((attachment, me)) = self.user() else {
            return Ok(());
        };
        let wanted = attachment.volume.next_version();
        let done = attachment.with_commit_lock(me, || {
            attachment.commit_locked(me, wanted)?;
            Ok::<_, StoreError>(attachment.volume.checkpoint()?)
        });
        done.map_err(|_| MediaFailed)
    }
}

impl Commits {
    fn attachment(&self) -> Option<Arc<Attachment>> {
        self.attachment.get()?.upgrade()
    }

    /// This process, while it is attached.
    fn user(&self) -> Option<(Arc<Attachment>, SlotRef)> {
        let attachment = self.attachment()?;
        let me = attachment.session.user_of(self.slot.load(Relaxed));
        Some((attachment, me))
    }
}

impl Attachment {
    /// Media keeps stores and versions apart from now on.
    pub(crate) fn keep_versions_apart(self: &Arc<Attachment>, me: SlotRef) {
        if self.volume.has_image() {
            let commits = Commits {
                gate: self.session.store_gate(),
                slot: AtomicU16::new(me.slot),
                attachment: OnceLock::from(Arc::downgrade(self)),
            };
            self.volume.set_committer(Arc::new(commits));
        }
    }

    /// The disk has all that was stored before, on return.
    fn commit(&self, me: SlotRef) -> Result<()> {
        if !self.volume.has_image() || self.volume.access() != Access::ReadWrite {
            return Ok(());
        }
        let wanted = self.volume.next_version();
        self.with_commit_lock(me, || self.commit_locked(me, wanted))
    }

    fn with_commit_lock<T>(&self, me: SlotRef, work: impl FnOnce() -> T) -> T {
        let lock = &self.session.shared().commit_lock;
        // Of a version that a dead process began the next one holds everything.
        while let Err(DeadOwner(dead)) = lock.lock(&self.session, me) {
            if lock.steal(dead, me) {
                break;
            }
        }
        let done = work();
        lock.unlock(me);
        done
    }

    fn commit_locked(&self, me: SlotRef, wanted: u64) -> Result<()> {
        if self.volume.durable_version() >= wanted {
            return Ok(());
        }
        let take = || self.volume.take_version();
        match self.session.while_nobody_stores(me, take) {
            Some(version) => Ok(self.volume.write_version(&version)?),
            None => Ok(()),
        }
    }
}

impl Store {
    /// Where the pool is a disk behind an image: the disk has all that was stored before, on
    /// return. Elsewhere it has already.
    #[inline]
    pub fn commit(&self) -> Result<()> {
        match self.volume().has_image() {
            true => self.commit_image(),
            false => Ok(()),
        }
    }

    #[cold]
    fn commit_image(&self) -> Result<()> {
        self.attachment().commit(self.slot())
    }
}
