//! Advisory locks of the mount's programs, kept in the session: they exclude preloaded programs,
//! and are excluded by them.
//!
//! The kernel names an owner by a number: the descriptor table of a process for record locks, an
//! open file for flock and for locks of open file descriptions. Each owner of locks on an inode is
//! an open file description of the session, so that its locks go when this process dies.

use crate::descriptions;
use crate::errno::{Answer, Refusal};
use nacre_fs::{Fs, InodeRef};
use nacre_session::{AdvisoryError, LockKind, LockOwner, LockRange, LockRequest, OfdId};
use rustix::io::Errno;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most locks that are waited for at a time, each by a thread.
const MOST_WAITING: usize = 1024;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Owner {
    ino: u64,
    number: u64,
    flock: bool,
}

struct Known {
    description: OfdId,
    /// Open files through which it has taken locks.
    handles: Vec<u64>,
}

/// A request for a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) handle: u64,
    pub(crate) owner: u64,
    pub(crate) range: LockRange,
    /// `None` gives locks back.
    pub(crate) kind: Option<LockKind>,
    pub(crate) flock: bool,
    /// The description of a preloaded program by which it comes. What locks it, locks for all who
    /// share it.
    pub(crate) description: Option<OfdId>,
}

/// All owners of locks, and all who wait.
#[derive(Default)]
pub(crate) struct Locks {
    owners: Mutex<HashMap<Owner, Known>>,
    waiting: Mutex<HashMap<u64, Arc<AtomicBool>>>,
    count: AtomicUsize,
    ended: AtomicBool,
}

/// Says when a wait is to end.
pub(crate) struct Wait {
    unique: u64,
    interrupted: Arc<AtomicBool>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl From<AdvisoryError> for Refusal {
    fn from(error: AdvisoryError) -> Refusal {
        Refusal(match error {
            AdvisoryError::WouldBlock => Errno::AGAIN,
            AdvisoryError::NoLocks => Errno::NOLCK,
            AdvisoryError::Deadlock => Errno::DEADLK,
            AdvisoryError::Interrupted => Errno::INTR,
        })
    }
}

impl Locks {
    /// The lock that stands in the way of one: its kind and range, and the process that has it, if
    /// that is known.
    pub(crate) fn test(
        &self,
        fs: &Fs,
        node: InodeRef,
        wanted: &Wanted,
    ) -> Option<(LockKind, LockRange, u32)> {
        let owner = self.known(node, wanted);
        // Any other than those that have locks.
        let nobody = LockOwner::Description(OfdId {
            index: 0,
            generation: 0,
        });
        let request = LockRequest {
            ino: node.ino,
            owner: owner.map_or(nobody, LockOwner::Description),
            range: wanted.range,
            kind: wanted.kind?,
        };
        let conflict = fs.record_lock_test(&request)?;
        Some((conflict.kind, conflict.range, conflict.pid.unwrap_or(0)))
    }

    /// Takes or gives back a lock. `wait`: as long as it takes.
    pub(crate) fn set(
        &self,
        fs: &Fs,
        node: InodeRef,
        wanted: &Wanted,
        wait: Option<&Wait>,
    ) -> Answer<()> {
        let Some(kind) = wanted.kind else {
            return self.give_back(fs, node, wanted);
        };
        let description = self.owner(fs, node, wanted)?;
        let over = || wait.is_none_or(|wait| self.is_over(wait));
        let until = wait.map(|_| &over as &dyn Fn() -> bool);
        if wanted.flock {
            return Ok(fs.flock(node.ino, description, kind, until)?);
        }
        let request = LockRequest {
            ino: node.ino,
            owner: LockOwner::Description(description),
            range: wanted.range,
            kind,
        };
        Ok(fs.record_lock(&request, until)?)
    }

    fn give_back(&self, fs: &Fs, node: InodeRef, wanted: &Wanted) -> Answer<()> {
        let Some(description) = self.known(node, wanted) else {
            return Ok(());
        };
        if wanted.flock {
            fs.flock_unlock(node.ino, description);
            return Ok(());
        }
        let owner = LockOwner::Description(description);
        Ok(fs.record_unlock(node.ino, owner, wanted.range)?)
    }

    fn known(&self, node: InodeRef, wanted: &Wanted) -> Option<OfdId> {
        if let Some(description) = wanted.description.filter(|_| wanted.flock) {
            return Some(description);
        }
        let owners = locked(&self.owners);
        let known = owners.get(&Owner::of(node, wanted));
        known.map(|known| known.description)
    }

    /// The description that stands for an owner.
    fn owner(&self, fs: &Fs, node: InodeRef, wanted: &Wanted) -> Answer<OfdId> {
        if let Some(description) = wanted.description.filter(|_| wanted.flock) {
            return Ok(description);
        }
        let mut owners = locked(&self.owners);
        let known = match owners.entry(Owner::of(node, wanted)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => free.insert(Known {
                description: description(fs, node)?,
                handles: Vec::new(),
            }),
        };
        if !known.handles.contains(&wanted.handle) {
            known.handles.push(wanted.handle);
        }
        Ok(known.description)
    }

    /// A process closes a descriptor of a file: its record locks go.
    pub(crate) fn close(&self, fs: &Fs, ino: u64, owner: u64) {
        self.end(fs, |one, _| {
            one.ino == ino && one.number == owner && !one.flock
        });
    }

    /// An open file is closed for the last time: locks taken through it go.
    pub(crate) fn release(&self, fs: &Fs, handle: u64) {
        self.end(fs, |_, known| known.handles.contains(&handle));
    }

    /// Ends the owners that `which` names.
    fn end(&self, fs: &Fs, which: impl Fn(&Owner, &Known) -> bool) {
        let mut owners = locked(&self.owners);
        if owners.is_empty() {
            return;
        }
        let ended: Vec<Known> = owners
            .extract_if(|owner, known| which(owner, known))
            .map(|(_, known)| known)
            .collect();
        drop(owners);
        for Known { description, .. } in ended {
            // What cannot be let go of now goes with the session.
            let _later = fs.let_go(description, fs.slot());
        }
    }

    /// Makes ready to wait. `NOLCK` if too many do.
    pub(crate) fn wait(&self, unique: u64) -> Answer<Wait> {
        if self.count.fetch_add(1, Ordering::Relaxed) >= MOST_WAITING {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return Err(Errno::NOLCK.into());
        }
        let interrupted = Arc::new(AtomicBool::new(false));
        locked(&self.waiting).insert(unique, Arc::clone(&interrupted));
        Ok(Wait {
            unique,
            interrupted,
        })
    }

    fn is_over(&self, wait: &Wait) -> bool {
        wait.interrupted.load(Ordering::Relaxed) || self.ended.load(Ordering::Relaxed)
    }

    pub(crate) fn has_waited(&self, wait: &Wait) {
        locked(&self.waiting).remove(&wait.unique);
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Ends the wait of a request. False: it does not wait (yet).
    pub(crate) fn interrupt(&self, unique: u64) -> bool {
        let waiting = locked(&self.waiting);
        let wait = waiting.get(&unique);
        wait.map(|wait| wait.store(true, Ordering::Relaxed))
            .is_some()
    }

    /// Nobody has the mount any more.
    pub(crate) fn end_all(&self, fs: &Fs) {
        self.ended.store(true, Ordering::Relaxed);
        self.end(fs, |_, _| true);
    }
}

impl Owner {
    fn of(node: InodeRef, wanted: &Wanted) -> Owner {
        Owner {
            ino: node.ino.0,
            number: wanted.owner,
            flock: wanted.flock,
        }
    }
}

fn description(fs: &Fs, node: InodeRef) -> Answer<OfdId> {
    fs.pin(node)?;
    match descriptions::of_node(fs, node) {
        Ok(Some(id)) => Ok(id),
        full_or_failed => {
            let _later = fs.unpin(node.ino);
            full_or_failed?;
            Err(Errno::NOLCK.into())
        }
    }
}
