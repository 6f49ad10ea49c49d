//! The table of watches.
//!
//! An entry is free while its id is 0. Whoever takes one claims it, fills it and publishes the id,
//! which is never used again: a reader that finds the same id before and after has read one watch.
//! A death in between leaves an entry claimed until the session ends.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use nacre_types::Ino;
use rustix::thread::{MembarrierCommand, membarrier};

use crate::Session;
use crate::error::Full;
use crate::mapping::SharedWords;
use crate::tables::ofd::OFD_WATCHED;

/// Most watches of one pool.
pub(crate) const WATCHES: u64 = 16384;

const FREE: u64 = 0;
const CLAIMED: u64 = 1;
const FIRST_ID: u64 = 2;

/// Names a watch, once for the session.
pub type WatchId = u64;

/// A watch in shared memory.
#[repr(C, align(64))]
pub struct WatchEntry {
    id: AtomicU64,
    ino: AtomicU64,
    instance: AtomicU64,
    shadow: AtomicU64,
    generation: AtomicU32,
    mask: AtomicU32,
    wd: AtomicU32,
    owner: AtomicU32,
}

// SAFETY: atomics only.
unsafe impl SharedWords for WatchEntry {}

/// What one watch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watch {
    /// Its name.
    pub id: WatchId,
    /// The inode.
    pub ino: Ino,
    /// Its generation.
    pub generation: u32,
    /// The `IN_*` bits that the program has asked for.
    pub mask: u32,
    /// The inotify instance, as the watcher numbers it.
    pub instance: u64,
    /// The watch descriptor.
    pub wd: i32,
    /// The inode number of the shadow.
    pub shadow: u64,
    /// The process that is known to have the instance.
    pub owner: u32,
}

impl WatchEntry {
    fn load(&self) -> Option<Watch> {
        let id = self.id.load(Ordering::Acquire);
        if id < FIRST_ID {
            return None;
        }
        let watch = Watch {
            id,
            ino: Ino(self.ino.load(Ordering::Relaxed)),
            generation: self.generation.load(Ordering::Relaxed),
            mask: self.mask.load(Ordering::Relaxed),
            instance: self.instance.load(Ordering::Relaxed),
            wd: self.wd.load(Ordering::Relaxed) as i32,
            shadow: self.shadow.load(Ordering::Relaxed),
            owner: self.owner.load(Ordering::Relaxed),
        };
        fence(Ordering::Acquire);
        (self.id.load(Ordering::Relaxed) == id).then_some(watch)
    }

    fn claim(&self) -> bool {
        let claimed = self
            .id
            .compare_exchange(FREE, CLAIMED, Ordering::SeqCst, Ordering::Relaxed);
        claimed.is_ok()
    }

    fn publish(&self, watch: &Watch) {
        self.ino.store(watch.ino.get(), Ordering::Relaxed);
        self.generation.store(watch.generation, Ordering::Relaxed);
        self.mask.store(watch.mask, Ordering::Relaxed);
        self.instance.store(watch.instance, Ordering::Relaxed);
        self.wd.store(watch.wd as u32, Ordering::Relaxed);
        self.shadow.store(watch.shadow, Ordering::Relaxed);
        self.owner.store(watch.owner, Ordering::Relaxed);
        self.id.store(watch.id, Ordering::SeqCst);
    }
}

impl Session {
    /// Whether anybody watches anything of the pool.
    #[inline(always)]
    pub fn is_watched(&self) -> bool {
        self.memory.header().watches.load(Ordering::Relaxed) != 0
    }

    /// All watches.
    pub fn watches(&self) -> impl Iterator<Item = Watch> + '_ {
        self.watch_entries().iter().filter_map(WatchEntry::load)
    }

    /// A name for a new watch.
    pub fn new_watch_id(&self) -> WatchId {
        let serial = &self.memory.header().watch_serial;
        serial.fetch_add(1, Ordering::Relaxed) + FIRST_ID
    }

    /// Enters a watch. From its return on every change that begins is told.
    pub fn add_watch(&self, watch: &Watch) -> Result<(), Full> {
        let entry = self.claim_watch_entry().ok_or(Full("watches"))?;
        let first = self.count_watch();
        entry.publish(watch);
        if first {
            self.have_descriptions_tell();
        }
        Ok(())
    }

    /// Asks for other events of a watch.
    pub fn change_watch(&self, id: WatchId, mask: u32) {
        if let Some(entry) = self.watch_entry(id) {
            entry.mask.store(mask, Ordering::Relaxed);
        }
    }

    /// Says who has the instance of a watch now.
    pub(crate) fn hand_watch_over(&self, id: WatchId, owner: u32) {
        if let Some(entry) = self.watch_entry(id) {
            entry.owner.store(owner, Ordering::Relaxed);
        }
    }

    /// Ends a watch, once. Its shadow goes too, and the kernel tells the watcher so, if that was
    /// not what ended it.
    pub fn remove_watch(&self, id: WatchId) {
        let Some(entry) = self.watch_entry(id) else {
            return;
        };
        let freed = entry
            .id
            .compare_exchange(id, FREE, Ordering::SeqCst, Ordering::Relaxed);
        if freed.is_ok() {
            self.memory.header().watches.fetch_sub(1, Ordering::SeqCst);
            self.remove_shadow(id);
        }
    }

    fn watch_entry(&self, id: WatchId) -> Option<&WatchEntry> {
        let mut entries = self.watch_entries().iter();
        entries.find(|entry| entry.id.load(Ordering::Acquire) == id)
    }

    /// The entries that were ever used.
    fn watch_entries(&self) -> &[WatchEntry] {
        let all = self.memory.watches.all();
        let high = self.memory.header().watch_high.load(Ordering::Acquire);
        &all[..(high as usize).min(all.len())]
    }

    fn claim_watch_entry(&self) -> Option<&WatchEntry> {
        let all = self.memory.watches.all();
        let index = all.iter().position(WatchEntry::claim)?;
        let high = &self.memory.header().watch_high;
        high.fetch_max(index as u32 + 1, Ordering::SeqCst);
        Some(&all[index])
    }

    /// Whether it is the first.
    fn count_watch(&self) -> bool {
        self.memory.header().watches.fetch_add(1, Ordering::SeqCst) == 0
    }

    /// Open file descriptions have a mark by which calls on them know that they are to tell. One
    /// that is being made looks for watches after it can be found here: of the two at least one
    /// sees the other, as the barrier passes through all threads of the system.
    fn have_descriptions_tell(&self) {
        // Where there is none, an open file may be missed that is opened at this very moment.
        let _ = membarrier(MembarrierCommand::Global);
        for id in self.ofds() {
            if let Some(ofd) = self.ofd(id) {
                ofd.flags.fetch_or(OFD_WATCHED, Ordering::SeqCst);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Watch, WatchId};
    use crate::{Geometry, OFD_WATCHED, OfdInit, Session};
    use nacre_types::Ino;
    use std::sync::atomic::Ordering;

    fn session() -> Session {
        Session::memory(Geometry {
            units: 100,
            max_objects: 64,
            lanes: 1,
        })
        .unwrap()
    }

    fn watch(id: WatchId, ino: u64) -> Watch {
        Watch {
            id,
            ino: Ino(ino),
            generation: 3,
            mask: 2,
            instance: 9,
            wd: 1,
            shadow: 77,
            owner: 1,
        }
    }

    #[test]
    fn watches_come_change_and_go() {
        let session = session();
        assert!(!session.is_watched());
        let ids = [session.new_watch_id(), session.new_watch_id()];
        session.add_watch(&watch(ids[0], 5)).unwrap();
        session.add_watch(&watch(ids[1], 6)).unwrap();
        session.change_watch(ids[1], 64);
        let seen: Vec<_> = session.watches().map(|one| (one.ino.0, one.mask)).collect();
        assert_eq!(seen, [(5, 2), (6, 64)]);
        session.remove_watch(ids[0]);
        session.remove_watch(ids[0]);
        assert!(session.is_watched());
        session.remove_watch(ids[1]);
        assert!(!session.is_watched() && session.watches().next().is_none());
    }

    #[test]
    fn the_first_watch_marks_what_is_open() {
        let session = session();
        let me = session.claim_slot().unwrap();
        let init = OfdInit {
            ino: Ino(5),
            ino_generation: 3,
            flags: 1,
            mode: 0,
            parent: Ino(1),
            name: b"f",
        };
        let id = session.ofd_alloc(me, &init).unwrap();
        session
            .add_watch(&watch(session.new_watch_id(), 5))
            .unwrap();
        let flags = session.ofd(id).unwrap().flags.load(Ordering::Relaxed);
        assert_eq!(flags, 1 | OFD_WATCHED);
    }
}
