//! Taking, testing and giving back advisory locks without waiting.

use nacre_types::Ino;

use crate::Session;
use crate::error::Full;
use crate::slot_ref::SlotRef;
use crate::tables::ofd::OfdId;

use super::list::{Fate, Held, LockedBucket, Space};
use super::{AdvisoryError, Conflict, LockKind, LockOwner, LockRange, LockRequest, change};

impl From<Full> for AdvisoryError {
    fn from(_: Full) -> AdvisoryError {
        AdvisoryError::NoLocks
    }
}

impl LockRequest {
    pub(super) fn wanted(&self) -> Held {
        Held {
            ino: self.ino,
            space: Space::Record,
            owner: self.owner,
            range: self.range,
            kind: self.kind,
        }
    }
}

pub(super) fn flock(ino: Ino, ofd: OfdId, kind: LockKind) -> Held {
    Held {
        ino,
        space: Space::Flock,
        owner: LockOwner::Description(ofd),
        range: LockRange::ALL,
        kind,
    }
}

impl Session {
    /// The record lock that would stand in the way of `request`, if any; the one with the lowest
    /// first byte.
    pub fn record_lock_test(&self, me: SlotRef, request: &LockRequest) -> Option<Conflict> {
        let bucket = self.bucket_of(request.ino);
        if self.is_bucket_empty(bucket) {
            return None;
        }
        let locked = self.lock_bucket(me, bucket);
        let held = self.find_conflict(me, &locked, &request.wanted())?;
        let pid = match held.owner {
            LockOwner::Process(slot) => self.pid_of(slot),
            LockOwner::Description(_) => None,
        };
        Some(Conflict {
            kind: held.kind,
            range: held.range,
            owner: held.owner,
            pid,
        })
    }

    /// Takes a record lock in place of what the owner held on these bytes, or fails with
    /// `WouldBlock`.
    pub fn record_lock_set(&self, me: SlotRef, request: &LockRequest) -> Result<(), AdvisoryError> {
        self.mark_lock_owner(request.owner);
        let locked = self.lock_bucket(me, self.bucket_of(request.ino));
        self.try_acquire(me, &locked, &request.wanted())
    }

    /// Gives back the bytes `range` of the owner's record locks on a file. Fails only when a lock
    /// must be split and the table is full.
    pub fn record_unlock(
        &self,
        me: SlotRef,
        ino: Ino,
        owner: LockOwner,
        range: LockRange,
    ) -> Result<(), AdvisoryError> {
        let kind = LockKind::Shared;
        self.release(
            me,
            &Held {
                ino,
                space: Space::Record,
                owner,
                range,
                kind,
            },
        )
    }

    /// Gives back all record locks of the owner on a file: what a process loses when it closes any
    /// descriptor of the file.
    pub fn record_lock_clear(&self, me: SlotRef, ino: Ino, owner: LockOwner) {
        if self.has_locks(owner) {
            // Whole ranges are never split, so the table cannot be too full for it.
            let _ = self.record_unlock(
                me,
                ino,
                owner,
                LockRange {
                    first: 0,
                    last: u64::MAX,
                },
            );
        }
    }

    /// Gives back every advisory lock of an owner that ends.
    pub fn advisory_clear_owner(&self, me: SlotRef, owner: LockOwner) {
        if !self.has_locks(owner) {
            return;
        }
        for bucket in self
            .buckets()
            .iter()
            .filter(|bucket| !self.is_bucket_empty(bucket))
        {
            remove_owner(&self.lock_bucket(me, bucket), owner);
        }
    }

    /// A process's record locks go to the next user of its slot.
    pub(crate) fn advisory_change_owner(&self, me: SlotRef, from: SlotRef, to: SlotRef) {
        let (from, to) = (LockOwner::Process(from), LockOwner::Process(to));
        if self.has_locks(from) {
            let buckets = self.buckets().iter();
            buckets
                .filter(|bucket| !self.is_bucket_empty(bucket))
                .for_each(|bucket| self.lock_bucket(me, bucket).change_owner(from, to));
        }
    }

    /// Takes a flock lock or fails with `WouldBlock`; an older lock of the description of the other
    /// kind is lost either way.
    pub fn flock_set(
        &self,
        me: SlotRef,
        ino: Ino,
        ofd: OfdId,
        kind: LockKind,
    ) -> Result<(), AdvisoryError> {
        let wanted = flock(ino, ofd, kind);
        self.mark_lock_owner(wanted.owner);
        let locked = self.lock_bucket(me, self.bucket_of(ino));
        self.try_flock(me, &locked, &wanted)
    }

    /// Gives a flock lock back.
    pub fn flock_unlock(&self, me: SlotRef, ino: Ino, ofd: OfdId) {
        let unwanted = flock(ino, ofd, LockKind::Shared);
        if self.has_locks(unwanted.owner) {
            // A flock lock is never split.
            let _ = self.release(me, &unwanted);
        }
    }

    /// As [`Session::try_acquire`], but gives up a lock of the other kind first: that is how flock
    /// converts.
    pub(super) fn try_flock(
        &self,
        me: SlotRef,
        locked: &LockedBucket<'_>,
        wanted: &Held,
    ) -> Result<(), AdvisoryError> {
        let gone = locked.sweep(|held| {
            let converts =
                held.is_same_file(wanted) && held.owner == wanted.owner && held.kind != wanted.kind;
            if converts { Fate::Remove } else { Fate::Keep }
        });
        if gone {
            locked.announce();
        }
        self.try_acquire(me, locked, wanted)
    }

    pub(super) fn try_acquire(
        &self,
        me: SlotRef,
        locked: &LockedBucket<'_>,
        wanted: &Held,
    ) -> Result<(), AdvisoryError> {
        if self.find_conflict(me, locked, wanted).is_some() {
            return Err(AdvisoryError::WouldBlock);
        }
        if change::acquire(self, me, locked, wanted)? {
            locked.announce();
        }
        Ok(())
    }

    /// A lock of a living owner that excludes `wanted`. Locks of owners that are gone are removed
    /// on the way.
    fn find_conflict(&self, me: SlotRef, locked: &LockedBucket<'_>, wanted: &Held) -> Option<Held> {
        loop {
            let mut found: Option<Held> = None;
            locked.visit(|held| {
                if held.excludes(wanted)
                    && found.is_none_or(|best| held.range.first < best.range.first)
                {
                    found = Some(*held);
                }
            });
            let held = found?;
            if !self.is_owner_gone(me, held.owner) {
                return Some(held);
            }
            remove_owner(locked, held.owner);
        }
    }

    fn release(&self, me: SlotRef, unwanted: &Held) -> Result<(), AdvisoryError> {
        let bucket = self.bucket_of(unwanted.ino);
        if self.is_bucket_empty(bucket) {
            return Ok(());
        }
        let locked = self.lock_bucket(me, bucket);
        if change::release(self, me, &locked, unwanted)? {
            locked.announce();
        }
        Ok(())
    }
}

fn remove_owner(locked: &LockedBucket<'_>, owner: LockOwner) {
    if locked.sweep(|held| {
        if held.owner == owner {
            Fate::Remove
        } else {
            Fate::Keep
        }
    }) {
        locked.announce();
    }
}
