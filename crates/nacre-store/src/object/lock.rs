//! Object locks, version counters and stable reads (docs/locking.md).

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use nacre_session::{DeadOwner, ICore, OwnedLock, step};
use nacre_types::ObjectId;
use smallvec::SmallVec;

use crate::error::{Result, StoreError};
use crate::store::Store;

/// Optimistic tries before a reader takes the lock.
const READ_TRIES: usize = 64;

/// In [`ICore::ranged`]: writers that leave written data where it lies hold locks of parts of the
/// object.
const RANGED: u64 = 1;
/// They no longer begin; some may still be at it.
const DRAINING: u64 = 2;
/// Bytes of an object that such a lock guards.
pub(crate) const PART: u64 = 1 << 20;

/// The exclusive lock of one object; released on drop.
pub struct ObjectGuard<'s> {
    store: &'s Store,
    icore: &'s ICore,
    id: ObjectId,
}

/// A lock of the session that belongs to no object; released on drop.
pub struct OwnedGuard<'s> {
    store: &'s Store,
    lock: &'s OwnedLock,
}

/// While it lives, the object's version is odd and optimistic readers wait. Marks nest.
pub struct ChangeMark<'s> {
    icore: Option<&'s ICore>,
}

impl<'s> ObjectGuard<'s> {
    /// The locked object.
    #[inline]
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// The object's shared in-core part.
    #[inline]
    pub fn icore(&self) -> &'s ICore {
        self.icore
    }

    /// From now on, until somebody locks the object again, writers that leave written data where it
    /// lies exclude each other by parts of the object only.
    pub(crate) fn range_lock(&self) {
        step::point();
        self.icore.ranged.store(RANGED, SeqCst);
        step::point();
    }

    /// Makes the version odd until the mark drops, for a change of any kind.
    #[inline]
    pub fn begin_change(&self) -> ChangeMark<'s> {
        ChangeMark::new(self.icore)
    }

    /// As [`ObjectGuard::begin_change`], for a change that leaves written data where it lies.
    #[inline]
    pub(crate) fn begin_store(&self) -> ChangeMark<'s> {
        ChangeMark::odd(self.icore)
    }
}

impl<'s> ChangeMark<'s> {
    /// The caller holds the object's lock, so nobody else changes the version.
    #[inline]
    pub(crate) fn new(icore: &'s ICore) -> ChangeMark<'s> {
        let mark = ChangeMark::odd(icore);
        move_mapping_epoch(icore);
        mark
    }

    #[inline]
    fn odd(icore: &'s ICore) -> ChangeMark<'s> {
        ChangeMark {
            icore: icore.version.begin().then_some(icore),
        }
    }
}

impl Drop for ChangeMark<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(icore) = self.icore {
            icore.version.end();
        }
    }
}

impl Drop for ObjectGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.icore.lock.unlock(self.store.slot());
    }
}

impl Drop for OwnedGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lock.unlock(self.store.slot());
    }
}

impl Store {
    /// Locks an object; waits for its owner, recovers a dead one.
    #[inline]
    pub fn lock(&self, id: ObjectId) -> Result<ObjectGuard<'_>> {
        let icore = self.icore(id)?;
        self.acquire(&icore.lock)?;
        self.take_over(icore, id)
    }

    /// As [`Store::lock`], for who has the object's shared part already; also whether somebody else
    /// held the lock.
    #[inline]
    pub(crate) fn lock_and_tell<'s>(
        &'s self,
        icore: &'s ICore,
        id: ObjectId,
    ) -> Result<(ObjectGuard<'s>, bool)> {
        let at_once = icore.lock.try_lock(&self.session, self.slot());
        if !at_once {
            self.acquire_slowly(&icore.lock)?;
        }
        Ok((self.take_over(icore, id)?, !at_once))
    }

    /// Locks an object that nobody holds, and no part of which anybody may hold. None: it is not
    /// so.
    #[inline(always)]
    pub(crate) fn try_lock_fast<'s>(
        &'s self,
        icore: &'s ICore,
        id: ObjectId,
    ) -> Option<ObjectGuard<'s>> {
        let free = icore.ranged.load(Relaxed) == 0 && icore.lock.try_lock_free(self.slot());
        if !free {
            return None;
        }
        let (guard, has_parts) = self.own(icore, id);
        (!has_parts).then_some(guard)
    }

    /// What is to be done by whoever has just got an object's lock.
    #[inline(always)]
    fn take_over<'s>(&'s self, icore: &'s ICore, id: ObjectId) -> Result<ObjectGuard<'s>> {
        let (guard, has_parts) = self.own(icore, id);
        if has_parts {
            self.drain(icore)?;
        }
        Ok(guard)
    }

    /// The guard of a lock that was just got, and whether somebody may still write to parts of the
    /// object.
    #[inline(always)]
    fn own<'s>(&'s self, icore: &'s ICore, id: ObjectId) -> (ObjectGuard<'s>, bool) {
        let guard = ObjectGuard {
            store: self,
            icore,
            id,
        };
        icore.version.recover();
        (guard, icore.ranged.load(Relaxed) != 0)
    }

    /// Waits until nobody writes to parts of the object any more. A death in between leaves the
    /// word, and so the next owner of the lock waits again.
    #[cold]
    fn drain(&self, icore: &ICore) -> Result<()> {
        step::point();
        icore.ranged.store(DRAINING, SeqCst);
        step::point();
        for range_lock in self
            .session
            .range_locks()
            .filter(|range_lock| !range_lock.is_free())
        {
            drop(self.lock_owned(range_lock)?);
        }
        icore.ranged.store(0, Release);
        step::point();
        Ok(())
    }

    /// Locks part number `part` of an object, to overwrite bytes in it that stay where they lie.
    /// None: the object itself is to be locked.
    #[inline]
    pub(crate) fn lock_part(
        &self,
        icore: &ICore,
        id: ObjectId,
        part: u64,
    ) -> Result<Option<OwnedGuard<'_>>> {
        if icore.ranged.load(Relaxed) != RANGED {
            return Ok(None);
        }
        let guard = self.lock_owned(self.session.range_lock(id.0, part))?;
        // Whoever drains has stored its word before it looks at the lock, or finds it taken.
        Ok((icore.ranged.load(SeqCst) == RANGED).then_some(guard))
    }

    /// Locks an object if nobody holds it.
    pub fn try_lock(&self, id: ObjectId) -> Result<Option<ObjectGuard<'_>>> {
        let icore = self.icore(id)?;
        if !icore.lock.try_lock(&self.session, self.slot()) {
            return Ok(None);
        }
        self.take_over(icore, id).map(Some)
    }

    /// Locks several objects in ascending order, each once; the guards come in that order.
    pub fn lock_many(&self, ids: &[ObjectId]) -> Result<SmallVec<[ObjectGuard<'_>; 4]>> {
        let mut order: SmallVec<[ObjectId; 4]> = SmallVec::from_slice(ids);
        order.sort_unstable();
        order.dedup();
        let mut guards = SmallVec::new();
        for id in order {
            guards.push(self.lock(id)?);
        }
        Ok(guards)
    }

    /// Locks two objects in ascending order; the guards come in the order of the arguments, the
    /// second is `None` when both are the same object.
    pub fn lock_pair(
        &self,
        a: ObjectId,
        b: ObjectId,
    ) -> Result<(ObjectGuard<'_>, Option<ObjectGuard<'_>>)> {
        if a == b {
            return Ok((self.lock(a)?, None));
        }
        let low = self.lock(a.min(b))?;
        let high = self.lock(a.max(b))?;
        Ok(if a < b {
            (low, Some(high))
        } else {
            (high, Some(low))
        })
    }

    /// Takes the lock that moves of directories between directories need, before any object lock.
    pub fn lock_rename(&self) -> Result<OwnedGuard<'_>> {
        self.lock_owned(&self.session.shared().rename_lock)
    }

    /// Takes any lock of the session; waits for its owner, recovers a dead one.
    #[inline]
    pub fn lock_owned<'s>(&'s self, lock: &'s OwnedLock) -> Result<OwnedGuard<'s>> {
        self.acquire(lock)?;
        Ok(OwnedGuard { store: self, lock })
    }

    /// Takes a lock of the session if nobody holds it.
    pub(crate) fn try_lock_owned<'s>(&'s self, lock: &'s OwnedLock) -> Option<OwnedGuard<'s>> {
        let held = lock.try_lock(&self.session, self.slot());
        // Not `then_some`: a guard made in vain would give back the lock of another thread of this
        // process.
        held.then(|| OwnedGuard { store: self, lock })
    }

    /// The guard of a lock of the session that this thread has just got.
    pub(crate) fn held<'s>(&'s self, lock: &'s OwnedLock) -> OwnedGuard<'s> {
        OwnedGuard { store: self, lock }
    }

    /// Runs `read` without the lock and repeats it until no writer came between; after some tries
    /// under the lock. What a disturbed try returned, an error too, is thrown away.
    ///
    /// The caller must not hold the object's lock with a change begun.
    #[inline]
    pub fn read_stable<T>(&self, id: ObjectId, mut read: impl FnMut() -> Result<T>) -> Result<T> {
        self.read_stable_in(self.icore(id)?, id, |_| read())
    }

    /// As [`Store::read_stable`]; `read` is told the object's mapping epoch. It is loaded before
    /// the version: who sees a mapping epoch sees that the change which made it is not over, or all
    /// of that change.
    #[inline(always)]
    pub(crate) fn read_stable_in<T, E: From<StoreError>>(
        &self,
        icore: &ICore,
        id: ObjectId,
        mut read: impl FnMut(u64) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let mut guard = None;
        let mut tries = 0;
        loop {
            let mapping_epoch = icore.mapping_epoch.load(Acquire);
            if let Some(version) = icore.version.look() {
                let result = read(mapping_epoch);
                if icore.version.is_still(version) {
                    return result;
                }
            }
            std::hint::spin_loop();
            tries += 1;
            if tries >= READ_TRIES && guard.is_none() {
                guard = Some(self.lock(id)?);
            }
        }
    }

    /// The shared in-core part of an object number.
    #[inline]
    pub fn icore(&self, id: ObjectId) -> Result<&ICore> {
        if id.0 == 0 || id.0 >= self.max_objects {
            return Err(StoreError::NoSuchObject(id));
        }
        Ok(self.session.icore(id.0))
    }

    #[inline(never)]
    fn acquire_slowly(&self, lock: &OwnedLock) -> Result<()> {
        let me = self.slot();
        while let Err(DeadOwner(dead)) = lock.lock(&self.session, me) {
            self.recover_slot(dead)?;
            if lock.steal(dead, me) {
                break;
            }
        }
        Ok(())
    }

    #[inline]
    fn acquire(&self, lock: &OwnedLock) -> Result<()> {
        if lock.try_lock(&self.session, self.slot()) {
            return Ok(());
        }
        self.acquire_slowly(lock)
    }
}

/// What processes remember of where the object's data lies is no longer good. The caller has made
/// the version odd.
#[inline]
pub(crate) fn move_mapping_epoch(icore: &ICore) {
    let mapping_epoch = icore.mapping_epoch.load(Relaxed);
    icore.mapping_epoch.store(mapping_epoch + 1, Release);
}

/// What processes remember of a directory's names is no longer good. The caller has made the
/// version odd.
#[inline]
pub(crate) fn move_attribute_epoch(icore: &ICore) {
    let attribute_epoch = icore.attribute_epoch.load(Relaxed);
    icore.attribute_epoch.store(attribute_epoch + 1, Release);
}

#[cfg(test)]
mod tests {
    use crate::tx::tests::memory_pool;

    #[test]
    fn a_failed_try_does_not_take_a_lane_away_from_another_thread() {
        let store = memory_pool(64 << 20);
        let lock = &store.session().lane(0).lock;
        let held = store.try_lock_owned(lock).unwrap();
        for _ in 0..3 {
            assert!(store.try_lock_owned(lock).is_none());
        }
        drop(held);
        assert!(store.try_lock_owned(lock).is_some());
    }
}
