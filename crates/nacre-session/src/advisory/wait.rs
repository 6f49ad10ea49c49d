//! Waiting for advisory locks.

use std::sync::atomic::Ordering;

use nacre_types::Ino;

use crate::Session;
use crate::liveness::lock;
use crate::slot_ref::SlotRef;
use crate::tables::ofd::OfdId;

use super::list::{Bucket, Held, LockedBucket};
use super::{AdvisoryError, LockKind, LockOwner, LockRequest, request};

/// Counts a waiter in while it lives; taken under the bucket's lock, so that no change is missed.
struct Waiting<'a>(&'a Bucket);

impl<'a> Waiting<'a> {
    fn at(bucket: &'a Bucket) -> Waiting<'a> {
        bucket.waiters.fetch_add(1, Ordering::SeqCst);
        Waiting(bucket)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Session {
    /// Takes a record lock, waiting for it if need be. `interrupted` is asked before each round of
    /// at most 10 ms.
    pub fn record_lock_wait(
        &self,
        me: SlotRef,
        request: &LockRequest,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<(), AdvisoryError> {
        let wanted = request.wanted();
        let mut announced = None;
        let attempt = |locked: &LockedBucket<'_>| self.try_acquire(me, locked, &wanted);
        self.wait_for(
            me,
            &wanted,
            interrupted,
            attempt,
            &mut || match request.owner {
                LockOwner::Process(slot) => self.check_deadlock(me, slot, &wanted, &mut announced),
                LockOwner::Description(_) => Ok(()),
            },
        )
    }

    /// Takes a flock lock, waiting for it if need be. `interrupted` is asked before each round of
    /// at most 10 ms.
    pub fn flock_wait(
        &self,
        me: SlotRef,
        ino: Ino,
        ofd: OfdId,
        kind: LockKind,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<(), AdvisoryError> {
        let wanted = request::flock(ino, ofd, kind);
        let attempt = |locked: &LockedBucket<'_>| self.try_flock(me, locked, &wanted);
        self.wait_for(me, &wanted, interrupted, attempt, &mut || Ok(()))
    }

    fn wait_for(
        &self,
        me: SlotRef,
        wanted: &Held,
        interrupted: &dyn Fn() -> bool,
        attempt: impl Fn(&LockedBucket<'_>) -> Result<(), AdvisoryError>,
        before_sleep: &mut dyn FnMut() -> Result<(), AdvisoryError>,
    ) -> Result<(), AdvisoryError> {
        self.mark_lock_owner(wanted.owner);
        let bucket = self.bucket_of(wanted.ino);
        let mut waiting = None;
        loop {
            let locked = self.lock_bucket(me, bucket);
            match attempt(&locked) {
                Err(AdvisoryError::WouldBlock) => {}
                decided => return decided,
            }
            waiting.get_or_insert_with(|| Waiting::at(bucket));
            let changes = locked.changes();
            drop(locked);
            before_sleep()?;
            if interrupted() {
                return Err(AdvisoryError::Interrupted);
            }
            let _ = lock::wait(&bucket.changes, changes);
        }
    }
}
