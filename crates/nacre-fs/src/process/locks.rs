//! Advisory locks: of records by processes or descriptions, of files by descriptions.

use crate::Fs;
use nacre_session::{AdvisoryError, Conflict, LockKind, LockOwner, LockRange, LockRequest, OfdId};
use nacre_types::Ino;

/// Whether a wait is to end, asked every 10 ms.
pub type Interrupted<'a> = &'a dyn Fn() -> bool;

impl Fs {
    /// The record lock that would stand in the way of `request`, if any.
    pub fn record_lock_test(&self, request: &LockRequest) -> Option<Conflict> {
        let session = self.store.session();
        session.record_lock_test(self.store.slot(), request)
    }

    /// Takes a record lock in place of what the owner held on these bytes. Without `wait` it fails
    /// with `WouldBlock` where it would have to.
    pub fn record_lock(
        &self,
        request: &LockRequest,
        wait: Option<Interrupted<'_>>,
    ) -> Result<(), AdvisoryError> {
        let (session, me) = (self.store.session(), self.store.slot());
        match wait {
            Some(interrupted) => session.record_lock_wait(me, request, interrupted),
            None => session.record_lock_set(me, request),
        }
    }

    /// Gives back some bytes of the owner's record locks on a file.
    pub fn record_unlock(
        &self,
        ino: Ino,
        owner: LockOwner,
        range: LockRange,
    ) -> Result<(), AdvisoryError> {
        let session = self.store.session();
        session.record_unlock(self.store.slot(), ino, owner, range)
    }

    /// Gives back all record locks of this process on a file.
    pub fn record_lock_clear(&self, ino: Ino) {
        let me = self.store.slot();
        let session = self.store.session();
        session.record_lock_clear(me, ino, LockOwner::Process(me));
    }

    /// Takes a lock of a whole file for a description; as [`Fs::record_lock`].
    pub fn flock(
        &self,
        ino: Ino,
        ofd: OfdId,
        kind: LockKind,
        wait: Option<Interrupted<'_>>,
    ) -> Result<(), AdvisoryError> {
        let (session, me) = (self.store.session(), self.store.slot());
        match wait {
            Some(interrupted) => session.flock_wait(me, ino, ofd, kind, interrupted),
            None => session.flock_set(me, ino, ofd, kind),
        }
    }

    /// Gives back a lock of a whole file.
    pub fn flock_unlock(&self, ino: Ino, ofd: OfdId) {
        let session = self.store.session();
        session.flock_unlock(self.store.slot(), ino, ofd);
    }
}
