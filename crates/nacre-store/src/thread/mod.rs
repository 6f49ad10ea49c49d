//! What each thread of a process keeps at hand: shared by all, its lines would go to and fro
//! between processors.

pub(crate) mod pages;
mod places;
pub(crate) mod scratch;
pub(crate) mod shard;
pub(crate) mod staged;

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use nacre_media::thread_address;
use nacre_session::SlotRef;

use scratch::{Lent, Scratch};
use shard::OwnShard;

/// About so many threads are told apart. A prime number, as the addresses of threads lie at equal
/// distances.
const THREAD_CACHES: usize = 13;
/// Control blocks of threads lie at the same place of a page.
const PAGE_SHIFT: u32 = 12;

/// Several threads may share one: all in it are hints, or locked.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct ThreadCache {
    /// The lane that was taken last.
    pub(crate) lane: AtomicU32,
    /// An [`OwnShard`].
    pub(crate) shard: AtomicU64,
    /// Memory of finished transactions, for the next ones. Never waited for: a forked child may
    /// find it locked by a thread that does not exist there.
    spare: Mutex<Scratch>,
}

/// The per-thread caches of one process.
#[derive(Default)]
pub(crate) struct ThreadCaches([ThreadCache; THREAD_CACHES]);

impl ThreadCaches {
    /// That of the calling thread.
    #[inline]
    pub(crate) fn own(&self) -> &ThreadCache {
        &self.0[number()]
    }

    /// Where to look first: each process elsewhere. Its threads part when they meet.
    pub(crate) fn begin(&self, slot: SlotRef) {
        for thread_cache in &self.0 {
            thread_cache.lane.store(u32::from(slot.slot), Relaxed);
            thread_cache.shard.store(OwnShard::first(slot), Relaxed);
        }
    }

    /// Memory for a transaction.
    #[inline]
    pub(crate) fn lend(&self) -> Lent<'_> {
        let own = number();
        let (before, from) = self.0.split_at(own);
        let mut thread_caches = from.iter().chain(before);
        match thread_caches.find_map(|thread_cache| thread_cache.spare.try_lock().ok()) {
            Some(spare) => Lent::Spare(spare),
            None => Lent::Own(Box::default()),
        }
    }
}

#[inline]
fn number() -> usize {
    (thread_address() >> PAGE_SHIFT) % THREAD_CACHES
}
