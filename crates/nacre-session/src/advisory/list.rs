//! Buckets of lock entries.
//!
//! An entry goes `Free -> Claimed -> Linked -> Removing -> Free`; only `Linked` ones count. It is
//! put into its bucket's list while `Claimed` and taken out while `Removing`, each by one store of
//! an index. So a death leaves an entry that does not count, perhaps still in the list: the next
//! walk under the bucket's lock takes it out and frees it; one outside of every list is freed when
//! the slot that it names is reaped. The bucket lock of a dead owner is therefore taken over at
//! once.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nacre_types::Ino;

use crate::Session;
use crate::error::Full;
use crate::liveness::lock::{DeadOwner, OwnedLock, wake};
use crate::mapping::SharedWords;
use crate::slot_ref::SlotRef;
use crate::step::{self, Fault};

use super::{LockKind, LockOwner, LockRange};

pub(crate) const BUCKETS: usize = 256;
pub(crate) const ENTRIES: usize = 32768;

/// One list of entries; all locks of an inode are in the same one.
#[repr(C, align(64))]
pub(crate) struct Bucket {
    lock: OwnedLock,
    /// Index + 1 of the first entry.
    head: AtomicU32,
    /// Moves whenever a lock goes or shrinks; waiters sleep on it.
    pub(super) changes: AtomicU32,
    /// Never too low; a dead waiter leaves it too high, which costs a needless wake.
    pub(super) waiters: AtomicU32,
}

/// Which locks can exclude each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Space {
    Record,
    Flock,
}

/// One lock, at most; kind, space and inode never change while it is linked.
#[repr(C, align(64))]
pub(crate) struct LockEntry {
    /// `generation (32) | slot (16)` of who claims or removes it, `| state (8)`.
    word: AtomicU64,
    ino: AtomicU64,
    owner: AtomicU64,
    first: AtomicU64,
    last: AtomicU64,
    /// Bit 0: exclusive, bit 1: flock.
    class: AtomicU32,
    /// Index + 1 of the next entry in the bucket.
    next: AtomicU32,
}

// SAFETY: atomics only.
unsafe impl SharedWords for Bucket {}
// SAFETY: atomics only.
unsafe impl SharedWords for LockEntry {}

const FREE: u64 = 0;
const CLAIMED: u64 = 1;
const LINKED: u64 = 2;
const REMOVING: u64 = 3;

fn word_of(actor: SlotRef, state: u64) -> u64 {
    u64::from(actor.generation) << 32 | u64::from(actor.slot) << 8 | state
}

/// What an entry says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) ino: Ino,
    pub(super) space: Space,
    pub(super) owner: LockOwner,
    pub(super) range: LockRange,
    pub(super) kind: LockKind,
}

impl Held {
    /// Whether the two locks cannot be held at once.
    pub(super) fn excludes(&self, other: &Held) -> bool {
        self.is_same_file(other)
            && self.owner != other.owner
            && (self.kind == LockKind::Exclusive || other.kind == LockKind::Exclusive)
            && self.range.overlaps(other.range)
    }

    pub(super) fn is_same_file(&self, other: &Held) -> bool {
        self.ino == other.ino && self.space == other.space
    }
}

impl LockEntry {
    fn is_linked(&self) -> bool {
        self.word.load(Ordering::Acquire) & 0xff == LINKED
    }

    fn set_word(&self, word: u64) {
        step::point();
        self.word.store(word, Ordering::Release);
        step::point();
    }

    fn fill(&self, held: &Held) {
        let exclusive = u32::from(held.kind == LockKind::Exclusive);
        let flock = u32::from(held.space == Space::Flock);
        self.ino.store(held.ino.get(), Ordering::Relaxed);
        self.owner.store(held.owner.pack(), Ordering::Relaxed);
        self.first.store(held.range.first, Ordering::Relaxed);
        self.last.store(held.range.last, Ordering::Relaxed);
        self.class.store(exclusive | flock << 1, Ordering::Relaxed);
    }

    fn held(&self) -> Held {
        let class = self.class.load(Ordering::Relaxed);
        Held {
            ino: Ino(self.ino.load(Ordering::Relaxed)),
            space: if class & 2 != 0 {
                Space::Flock
            } else {
                Space::Record
            },
            owner: LockOwner::unpack(self.owner.load(Ordering::Relaxed)),
            range: LockRange {
                first: self.first.load(Ordering::Relaxed),
                last: self.last.load(Ordering::Relaxed),
            },
            kind: if class & 1 != 0 {
                LockKind::Exclusive
            } else {
                LockKind::Shared
            },
        }
    }
}

/// A bucket whose lock the caller holds; given back on drop.
pub(super) struct LockedBucket<'a> {
    session: &'a Session,
    bucket: &'a Bucket,
    me: SlotRef,
}

impl Drop for LockedBucket<'_> {
    fn drop(&mut self) {
        self.bucket.lock.unlock(self.me);
    }
}

/// What a walk does with an entry.
pub(super) enum Fate {
    Keep,
    Remove,
    /// Shrinks to these bytes, which lie inside the old ones and share an end with them.
    Trim(LockRange),
}

impl LockedBucket<'_> {
    /// The bucket's change counter; moves only under the lock.
    pub(super) fn changes(&self) -> u32 {
        self.bucket.changes.load(Ordering::Relaxed)
    }

    /// Decides about every lock of the bucket in turn. True if any was removed or trimmed.
    pub(super) fn sweep(&self, mut fate: impl FnMut(&Held) -> Fate) -> bool {
        let mut changed = false;
        let mut link = &self.bucket.head;
        for _ in 0..ENTRIES {
            let Some(entry) = self.entry_at(link) else {
                break;
            };
            let verdict = if entry.is_linked() {
                fate(&entry.held())
            } else {
                Fate::Remove
            };
            match verdict {
                Fate::Keep => link = &entry.next,
                Fate::Trim(range) => {
                    trim(entry, range);
                    changed = true;
                    link = &entry.next;
                }
                Fate::Remove => {
                    self.remove(link, entry);
                    changed = true;
                }
            }
        }
        changed
    }

    /// All locks of `from` are those of `to` from now on.
    pub(super) fn change_owner(&self, from: LockOwner, to: LockOwner) {
        let mut link = &self.bucket.head;
        for _ in 0..ENTRIES {
            let Some(entry) = self.entry_at(link) else {
                break;
            };
            if entry.is_linked() && entry.held().owner == from {
                step::point();
                entry.owner.store(to.pack(), Ordering::Release);
            }
            link = &entry.next;
        }
    }

    /// Calls `visit` for every lock of the bucket.
    pub(super) fn visit(&self, mut visit: impl FnMut(&Held)) {
        let mut link = &self.bucket.head;
        for _ in 0..ENTRIES {
            let Some(entry) = self.entry_at(link) else {
                break;
            };
            if entry.is_linked() {
                visit(&entry.held());
            }
            link = &entry.next;
        }
    }

    /// Publishes a claimed entry as the lock `held`.
    pub(super) fn link(&self, claimed: Claim, held: &Held) {
        let entry = &self.session.memory.entries.all()[claimed.0 as usize];
        entry.fill(held);
        entry
            .next
            .store(self.bucket.head.load(Ordering::Relaxed), Ordering::Relaxed);
        step::point();
        self.bucket.head.store(claimed.0 + 1, Ordering::Release);
        entry.set_word(LINKED);
    }

    /// Tells the waiters that a lock has gone or shrunk.
    pub(super) fn announce(&self) {
        step::point();
        self.bucket.changes.fetch_add(1, Ordering::SeqCst);
        if self.bucket.waiters.load(Ordering::SeqCst) != 0 {
            wake(&self.bucket.changes, i32::MAX as u32);
        }
    }

    /// Takes out what a dead process left in the list.
    fn tidy(&self) {
        self.sweep(|_| Fate::Keep);
    }

    fn entry_at(&self, link: &AtomicU32) -> Option<&LockEntry> {
        let index = link.load(Ordering::Acquire).checked_sub(1)?;
        self.session.memory.entries.get(index as usize)
    }

    fn remove(&self, link: &AtomicU32, entry: &LockEntry) {
        entry.set_word(word_of(self.me, REMOVING));
        link.store(entry.next.load(Ordering::Relaxed), Ordering::Release);
        step::point();
        entry.set_word(FREE);
    }
}

fn trim(entry: &LockEntry, range: LockRange) {
    step::point();
    if entry.first.load(Ordering::Relaxed) != range.first {
        entry.first.store(range.first, Ordering::Relaxed);
    } else {
        entry.last.store(range.last, Ordering::Relaxed);
    }
    step::point();
}

/// A claimed entry: its index.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim(u32);

impl Session {
    pub(super) fn bucket_of(&self, ino: Ino) -> &Bucket {
        let mixed = ino.get().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
        &self.memory.buckets.all()[mixed as usize % BUCKETS]
    }

    pub(super) fn buckets(&self) -> &[Bucket] {
        self.memory.buckets.all()
    }

    pub(super) fn lock_bucket<'a>(&'a self, me: SlotRef, bucket: &'a Bucket) -> LockedBucket<'a> {
        let mut inherited = false;
        while !step::has(Fault::NoListLock)
            && let Err(DeadOwner(dead)) = bucket.lock.lock(self, me)
        {
            if bucket.lock.steal(dead, me) {
                inherited = true;
                break;
            }
        }
        let locked = LockedBucket {
            session: self,
            bucket,
            me,
        };
        if inherited {
            locked.tidy();
        }
        locked
    }

    pub(super) fn is_bucket_empty(&self, bucket: &Bucket) -> bool {
        bucket.head.load(Ordering::Acquire) == 0
    }

    /// Takes a free entry, which belongs to nobody until it is linked.
    pub(super) fn claim_entry(&self, me: SlotRef) -> Result<Claim, Full> {
        let header = self.memory.header();
        let start = header.entry_hint.load(Ordering::Relaxed) % ENTRIES as u32;
        let mut order = (start..ENTRIES as u32).chain(0..start);
        let index = order
            .find(|&index| self.try_claim(index, me))
            .ok_or(Full("advisory locks"))?;
        header.entry_hint.store(index + 1, Ordering::Relaxed);
        Ok(Claim(index))
    }

    /// Gives an entry back that was not linked.
    pub(super) fn unclaim(&self, claimed: Claim) {
        self.memory.entries.all()[claimed.0 as usize].set_word(FREE);
        self.memory
            .header()
            .entry_hint
            .store(claimed.0, Ordering::Relaxed);
    }

    /// The high-water mark rises first: a death in between only makes scans longer.
    fn try_claim(&self, index: u32, me: SlotRef) -> bool {
        let entry = &self.memory.entries.all()[index as usize];
        if entry.word.load(Ordering::Relaxed) & 0xff != FREE {
            return false;
        }
        let high = &self.memory.header().entry_high;
        if high.load(Ordering::Relaxed) <= index {
            high.fetch_max(index + 1, Ordering::SeqCst);
        }
        step::point();
        let free = entry.word.load(Ordering::Relaxed);
        free & 0xff == FREE
            && entry
                .word
                .compare_exchange(
                    free,
                    word_of(me, CLAIMED),
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                )
                .is_ok()
    }

    /// For the reaper of `dead`: frees the entries that `dead` was claiming or removing.
    pub(crate) fn free_unfinished_entries(&self, me: SlotRef, dead: SlotRef) {
        let high = self.memory.header().entry_high.load(Ordering::SeqCst) as usize;
        for entry in self.memory.entries.all().iter().take(high) {
            let word = entry.word.load(Ordering::Acquire);
            if word == word_of(dead, CLAIMED) || word == word_of(dead, REMOVING) {
                let bucket = self.bucket_of(Ino(entry.ino.load(Ordering::Relaxed)));
                self.lock_bucket(me, bucket).tidy();
                // Outside of every list now; if the walk freed it, the word has changed.
                let _ =
                    entry
                        .word
                        .compare_exchange(word, FREE, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(feature = "kill-steps")]
impl Session {
    /// For tests, while nobody else changes locks: every entry is free and in no list, or linked
    /// once, in the list of its own bucket.
    pub fn check_advisory_lists(&self) -> Result<(), &'static str> {
        let entries = self.memory.entries.all();
        let mut seen = vec![false; entries.len()];
        for bucket in self.buckets() {
            let mut next = bucket.head.load(Ordering::Acquire);
            while let Some(index) = next.checked_sub(1) {
                let entry = &entries[index as usize];
                if std::mem::replace(&mut seen[index as usize], true) {
                    return Err("an entry is in two places");
                }
                if !entry.is_linked() || !std::ptr::eq(self.bucket_of(entry.held().ino), bucket) {
                    return Err("an entry is in a list it does not belong to");
                }
                next = entry.next.load(Ordering::Acquire);
            }
        }
        let lost = |(entry, seen): (&LockEntry, &bool)| {
            !seen && entry.word.load(Ordering::Acquire) & 0xff != FREE
        };
        let any_lost = entries.iter().zip(&seen).any(lost);
        if any_lost {
            Err("an entry is lost")
        } else {
            Ok(())
        }
    }
}
