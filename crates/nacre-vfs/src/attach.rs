//! Pools are attached when the process first uses them: by a path into them, or by an fd that
//! another process has left or sent.
//!
//! Whoever names something of a pool passes [`Vfs::ready`] or [`Vfs::attach_all`], so that all
//! other code finds the pool attached. Forks wait meanwhile.

use crate::error::VfsError;
use crate::fd::table::{FdEntry, FileId};
use crate::path::mount::Mount;
use crate::state::Vfs;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

impl Vfs {
    /// The mounts whose pools are attached.
    pub(crate) fn attached(&self) -> impl Iterator<Item = &Mount> {
        let mounts = self.mounts().iter();
        mounts.filter(|mount| mount.fs.get().is_some())
    }

    /// Whether the process uses all of its pools.
    pub fn is_attached(&self) -> bool {
        self.attached().count() == self.mounts().len()
    }

    /// The mount with its pool attached.
    #[inline]
    pub(crate) fn ready<'v>(&self, mount: &'v Mount) -> Result<&'v Mount, VfsError> {
        match mount.fs.get() {
            Some(_) => Ok(mount),
            None => self.attach(mount).map(|()| mount),
        }
    }

    /// Attaches all pools. One that cannot be attached stays so: who uses it is told.
    pub fn attach_all(&self) {
        for mount in self.mounts() {
            let _ = self.ready(mount);
        }
    }

    /// Before something that later attaching or opening could not bear, like giving up rights.
    pub fn open_all(&self) {
        self.attach_all();
        self.kernel().open_nodes();
    }

    /// Bytes of addresses that this process has mapped to use its pools.
    pub fn addresses(&self) -> u64 {
        self.attached().map(|mount| mount.fs.addresses()).sum()
    }

    /// Keeps others from attaching pools, and forks away.
    pub(crate) fn lock_attaching(&self) -> MutexGuard<'_, ()> {
        let lock = self.attaching.lock();
        lock.unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    fn attach(&self, mount: &Mount) -> Result<(), VfsError> {
        let _lock = self.lock_attaching();
        if mount.fs.get().is_some() {
            return Ok(());
        }
        let fs = self.kernel().attach(mount.index)?;
        fs.take_over()?;
        mount.fs.set(fs)?;
        self.take_over_late(mount);
        Ok(())
    }

    /// A former program of the process may have left something in its slot after all: a handler of
    /// a signal may have run just before exec.
    fn take_over_late(&self, mount: &Mount) {
        let holder = self.holder(mount.index);
        let left = mount.fs.held_by(holder).next().is_some();
        if left && self.alone() {
            let inherited = self.kernel().open_fds();
            for &fd in &inherited {
                self.look_at(fd);
            }
            self.let_go_of_others(mount);
            self.has_record_locks.store(true, Ordering::Relaxed);
        }
    }

    /// Takes over what is behind a number, if nothing is known of it.
    fn look_at(&self, fd: i32) {
        if !matches!(self.table.get(fd), Some(FdEntry::Pool(_))) {
            self.received_fd(fd);
        }
    }

    /// Ends what the process's slot holds and no number stands for.
    pub(crate) fn let_go_of_others(&self, mount: &Mount) {
        let holder = self.holder(mount.index);
        for ofd in mount.fs.held_by(holder) {
            let id = FileId {
                pool: mount.index,
                ofd,
            };
            if !self.uses.is_used(id) {
                // As in `release`: nobody is left to be told.
                let _ = mount.fs.let_go(ofd, holder);
            }
        }
    }

    /// Whether nothing of a pool is open in this process, nor its current directory.
    pub(crate) fn holds_nothing(&self) -> bool {
        self.attached()
            .all(|mount| self.uses.used(mount.index).next().is_none())
    }

    /// Before exec, in a process with one thread: leaves all pools, if nothing in them is open, so
    /// that the new program need not attach them. From then on the process uses the state that
    /// this returns, until [`Vfs::join_again`] succeeds after a failure.
    pub fn leave_pools(&self) -> Option<Vfs> {
        if !self.holds_nothing() {
            return None;
        }
        let mounts = self.mounts().iter().map(Mount::unattached).collect();
        let fresh = Vfs::with(mounts, self.kernel.clone(), self.identities.fork());
        let umask = self.umask.load(Ordering::Relaxed);
        fresh.umask.store(umask, Ordering::Relaxed);
        for mount in self.attached() {
            mount.fs.leave_slot();
        }
        Some(fresh)
    }

    /// After [`Vfs::leave_pools`], when the program could not be executed: this state can be used
    /// again, unless the `fresh` one has attached a pool meanwhile.
    pub fn join_again(&self, fresh: &Vfs) -> bool {
        if fresh.attached().next().is_some() {
            return false;
        }
        self.attached().all(|mount| mount.fs.claim_slot().is_ok())
    }
}
