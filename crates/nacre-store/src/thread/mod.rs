//! What each thread of a process keeps at hand: shared by all, its lines would go to and fro
//! between processors.

pub(crate) mod pages;
mod places;
pub(crate) mod scratch;
pub(crate) mod shard;
pub(crate) mod staged;
pub(crate) mod writes;

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

/// Several threads may share one: all in it are hints.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct ThreadCache {
    /// The lane that was taken last.
    pub(crate) lane: AtomicU32,
    /// An [`OwnShard`].
    pub(crate) shard: AtomicU64,
}

/// Memory of finished transactions, for the next ones. Never waited for: a forked child may find it
/// locked by a thread that does not exist there.
#[derive(Default)]
#[repr(align(64))]
struct Spare(Mutex<Scratch>);

/// The per-thread caches of one process. Each forked child writes the hints: they share a page.
pub(crate) struct ThreadCaches {
    hints: [ThreadCache; THREAD_CACHES],
    spares: Box<[Spare]>,
}

impl Default for ThreadCaches {
    fn default() -> ThreadCaches {
        ThreadCaches {
            hints: Default::default(),
            spares: (0..THREAD_CACHES).map(|_| Spare::default()).collect(),
        }
    }
}

impl ThreadCaches {
    /// That of the calling thread.
    #[inline]
    pub(crate) fn own(&self) -> &ThreadCache {
        &self.hints[number()]
    }

    /// Where to look first: each process elsewhere. Its threads part when they meet.
    pub(crate) fn begin(&self, slot: SlotRef) {
        for thread_cache in &self.hints {
            thread_cache.lane.store(u32::from(slot.slot), Relaxed);
            thread_cache.shard.store(OwnShard::first(slot), Relaxed);
        }
    }

    /// Memory for a transaction.
    #[inline]
    pub(crate) fn lend(&self) -> Lent<'_> {
        let own = number();
        let (before, from) = self.spares.split_at(own);
        let mut spares = from.iter().chain(before);
        match spares.find_map(|spare| spare.0.try_lock().ok()) {
            Some(spare) => Lent::Spare(spare),
            None => Lent::Own(Box::default()),
        }
    }
}

#[inline]
fn number() -> usize {
    (thread_address() >> PAGE_SHIFT) % THREAD_CACHES
}
