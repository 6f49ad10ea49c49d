//! fork, vfork, exec, exit, and fds that travel between processes.

use crate::error::{ErrorKind, VfsError};
use crate::fd::table::{FdEntry, FileId};
use crate::path::mount::Mount;
use crate::state::{Bound, Vfs};
use nacre_session::SlotRef;
use smallvec::{SmallVec, smallvec};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU32, Ordering};

/// Keeps the process's state still while it forks, and names the child's slots.
#[must_use]
pub struct ForkTicket<'v> {
    _gate: MutexGuard<'v, Vec<Bound>>,
    _attaching: MutexGuard<'v, ()>,
    slots: Slots,
}

/// Of each mount whose pool is attached. Not on the heap: a child that gives it back would write to
/// one more page.
type Slots = SmallVec<[Option<SlotRef>; 2]>;

impl Vfs {
    /// Before a fork: gives the child its slots and its share of everything open.
    pub fn before_fork(&self) -> Result<ForkTicket<'_>, VfsError> {
        self.with_slots(|_attaching, gate, slots| {
            self.placeholders.begin_fork();
            self.unpark_all();
            ForkTicket {
                _gate: gate,
                _attaching,
                slots,
            }
        })
    }

    /// Reserves a child's slots behind the gate. What dead processes still hold is asked for when
    /// there are none left, outside of the gate.
    fn with_slots<'v, T>(
        &'v self,
        then: impl Fn(MutexGuard<'v, ()>, MutexGuard<'v, Vec<Bound>>, Slots) -> T,
    ) -> Result<T, VfsError> {
        let attempt = || {
            let attaching = self.lock_attaching();
            let gate = self.close_gate();
            self.reserve_slots()
                .map(|slots| then(attaching, gate, slots))
        };
        attempt().or_else(|full| {
            let reaped: usize = self
                .attached()
                .filter_map(|mount| mount.fs.reap_dead().ok())
                .sum();
            if reaped > 0 { attempt() } else { Err(full) }
        })
    }

    /// After a fork, in the parent; without a pid the fork has failed.
    pub fn after_fork_parent(&self, ticket: ForkTicket<'_>, child: Option<i32>) {
        self.placeholders.end_fork();
        self.hand_over(&ticket.slots, child);
    }

    /// After a fork, in the child. The front end then calls `mapping_inherited` for each of its
    /// mappings.
    pub fn after_fork_child(&self, ticket: ForkTicket<'_>) -> Result<(), VfsError> {
        let parent_was_alone = self.alone();
        self.placeholders.end_all_forks();
        self.unpark_inherited();
        self.threaded.store(false, Ordering::Relaxed);
        self.has_record_locks.store(false, Ordering::Relaxed);
        self.adopt_slots(&ticket.slots)?;
        self.uses.clear();
        for (fd, id) in self.table.files() {
            self.inherit(fd, id);
        }
        if let FdEntry::Pool(id) = FdEntry::unpack(self.cwd.load(Ordering::Relaxed)) {
            self.uses.add(id, self.alone());
        }
        self.remember_cwd();
        drop(ticket);
        if !parent_was_alone && self.attached().next().is_some() {
            self.settle_copies();
        }
        Ok(())
    }

    /// All of them, or none that is not a child's of its own by then.
    fn adopt_slots(&self, slots: &[Option<SlotRef>]) -> Result<(), VfsError> {
        let adopt = |(mount, slot): (&Mount, SlotRef)| mount.fs.adopt_slot(slot);
        let adopted = self.with_their(slots).try_for_each(adopt);
        if adopted.is_err() {
            for (mount, slot) in self.with_their(slots) {
                mount.fs.renounce_slot(slot);
            }
        }
        Ok(adopted?)
    }

    /// Counts an inherited fd, unless its description was being opened or closed by another thread
    /// of the parent at the moment of the fork.
    fn inherit(&self, fd: i32, id: FileId) {
        let fs = &self.mount(id.pool).fs;
        if fs.is_held_by(id.ofd, fs.slot()) {
            self.uses.add(id, self.alone());
        } else {
            self.table.set(fd, FdEntry::Unknown, self.alone());
        }
    }

    fn reserve_slots(&self) -> Result<Slots, VfsError> {
        let mut slots: Slots = smallvec![None; self.mounts().len()];
        for mount in self.attached() {
            let Ok(child) = mount.fs.reserve_child_slot() else {
                self.hand_over(&slots, None);
                return Err(ErrorKind::WouldBlock.into());
            };
            slots[mount.index] = Some(child);
            for ofd in self.uses.used(mount.index) {
                mount.fs.hold(ofd, child);
            }
        }
        Ok(slots)
    }

    /// The mounts that have a slot, with it.
    fn with_their(&self, slots: &[Option<SlotRef>]) -> impl Iterator<Item = (&Mount, SlotRef)> {
        let mounts = self.mounts().iter().zip(slots);
        mounts.filter_map(|(mount, &slot)| Some((mount, slot?)))
    }

    /// Leaves reserved slots to the child, or gives them up if there is none.
    fn hand_over(&self, slots: &[Option<SlotRef>], child: Option<i32>) {
        for (mount, slot) in self.with_their(slots) {
            match child.and_then(|pid| u32::try_from(pid).ok()) {
                Some(pid) => mount.fs.child_forked(slot, pid),
                None => mount.fs.end_process(slot),
            }
        }
    }

    /// In the parent, before it makes a child that runs in its memory: the state that the child is
    /// to use. The child calls `adopt` before anything else, the parent afterwards `vfork_done`;
    /// and one of them `vfork_has_begun` on the parent's state if [`Vfs::awaits_vfork`] says so of
    /// the child's.
    pub fn vfork_view(&self) -> Result<Vfs, VfsError> {
        let view = self.with_slots(|_attaching, _gate, slots| self.view(&slots))?;
        if !view.awaits_vfork() {
            self.vfork_has_begun();
        }
        Ok(view)
    }

    fn view(&self, slots: &[Option<SlotRef>]) -> Vfs {
        // What was opened before is shared with the child, and what threads open before it has its
        // copy of all numbers.
        self.placeholders.begin_fork();
        self.unpark_all();
        // What cannot be shown is not ours any more.
        let _ = self.show_placeholders();
        let view = self.for_child(slots);
        view.threaded
            .store(self.threaded.load(Ordering::Relaxed), Ordering::Relaxed);
        view.umask
            .store(self.umask.load(Ordering::Relaxed), Ordering::Relaxed);
        for (fd, id) in self.table.files() {
            view.table.set(fd, FdEntry::Pool(id), view.alone());
            view.uses.add(id, view.alone());
        }
        let cwd = self.cwd.load(Ordering::Acquire);
        if let FdEntry::Pool(id) = FdEntry::unpack(cwd) {
            view.uses.add(id, view.alone());
        }
        view.cwd.store(cwd, Ordering::Release);
        view.remember_cwd();
        view
    }

    /// On a view: other threads may open and close numbers until the kernel has copied them.
    pub fn awaits_vfork(&self) -> bool {
        !self.alone()
    }

    /// The kernel has copied the numbers of the process, or will not.
    pub fn vfork_has_begun(&self) {
        self.placeholders.end_fork();
    }

    /// In a child that runs in its parent's memory: takes over the view's slots.
    pub fn adopt(&self) -> Result<(), VfsError> {
        for mount in self.attached() {
            mount.fs.adopt_slot(mount.fs.slot())?;
        }
        if self.awaits_vfork() {
            self.look_at_copies();
        }
        Ok(())
    }

    /// Other threads of the parent opened and closed numbers between the view and the kernel's copy
    /// of them: that is what counts.
    fn look_at_copies(&self) {
        for (fd, _) in self.table.files() {
            self.table.set(fd, FdEntry::Unknown, self.alone());
        }
        self.uses.clear();
        if let FdEntry::Pool(id) = FdEntry::unpack(self.cwd.load(Ordering::Relaxed)) {
            self.uses.add(id, self.alone());
        }
        self.settle_copies();
    }

    /// In a child: finds out what stands behind the numbers that its table does not know. Other
    /// threads of the parent opened and closed some while the kernel copied them.
    fn settle_copies(&self) {
        for fd in self.kernel().open_fds() {
            if matches!(self.table.get(fd), Some(FdEntry::Pool(_))) {
                continue;
            }
            match self.kernel().identity(fd) {
                Ok(Some((pool, identity))) => self.settle_copy(fd, pool, identity),
                Ok(None) if self.is_attached() => self.host_fd(fd),
                _ => {}
            }
        }
    }

    /// A placeholder whose description is there counts. Any other was being opened or closed: for
    /// the child it is not open yet, or not any more.
    fn settle_copy(&self, fd: i32, pool: usize, identity: u64) {
        match self.hold_identity(pool, identity) {
            Ok(id) => self.enter(fd, id),
            // The kernel takes the number back whatever it answers.
            Err(_) => drop(self.close_placeholder(fd)),
        }
    }

    /// In the parent, on a view: the child runs its own program now or has ended; without a pid it
    /// was never made.
    pub fn vfork_done(self, child: Option<i32>) {
        let holder = |mount: &Mount| mount.fs.get().map(|fs| fs.slot());
        let slots: Slots = self.mounts().iter().map(holder).collect();
        self.attached().for_each(|mount| mount.fs.child_is_gone());
        if child.is_none() {
            self.hand_over(&slots, None);
        }
    }

    /// Before exec, in a process that has other threads as well or not. `after_failed_exec` follows
    /// if that fails. The word that is given, if threads die, is to be marked by the kernel when
    /// they have: it is to be in the caller's list of robust futexes.
    pub fn before_exec(&self, threads: bool) -> Result<Option<&AtomicU32>, VfsError> {
        self.placeholders.begin_fork();
        self.unpark_all();
        if let Err(error) = self.show_placeholders() {
            self.after_failed_exec();
            return Err(error);
        }
        self.remember_cwd();
        self.attached().for_each(|mount| mount.fs.commit_if_alone());
        let mut first = None;
        for mount in self.attached().filter(|_| threads) {
            let word = mount.fs.begin_exec();
            // The kernel marks one word for each thread: processes of other pools wait for the new
            // program.
            first.get_or_insert(word);
        }
        Ok(first)
    }

    /// The program goes on.
    pub fn after_failed_exec(&self) {
        self.placeholders.end_fork();
    }

    /// In a new program: takes over what its predecessor in the same process, or its parent, has
    /// left open. `inherited` are all fds of the process.
    pub fn after_exec(&self, inherited: &[i32]) -> Result<(), VfsError> {
        for mount in self.attached() {
            mount.fs.take_over()?;
        }
        for &fd in inherited {
            self.take_over_number(fd);
        }
        self.recall_cwd();
        self.attached()
            .for_each(|mount| self.let_go_of_others(mount));
        let any = inherited.iter().any(|&fd| self.ours(fd));
        self.has_record_locks.store(any, Ordering::Relaxed);
        Ok(())
    }

    /// As [`Vfs::received_fd`]. One that names nothing was about to be opened or closed by a thread
    /// that the exec killed.
    fn take_over_number(&self, fd: i32) {
        self.received_fd(fd);
        if self.table.get(fd) == Some(FdEntry::Unknown)
            && matches!(self.kernel().identity(fd), Ok(Some((_, 0))))
        {
            // The kernel takes the number back whatever it answers.
            let _ = self.close_placeholder(fd);
        }
    }

    /// Before `exit_group`, or when a vfork child ends: lets go of everything. No call may follow.
    pub fn exit(&self) {
        for mount in self.attached() {
            mount.fs.end_process(mount.fs.slot());
        }
    }

    /// Before an fd is sent over a socket: its description must outlive the sender.
    pub fn passing_fd(&self, fd: i32) {
        if let Ok(Some(file)) = self.file(fd) {
            // Whoever receives a placeholder without identity gets EBADF from it.
            let _ = self.show_placeholder(fd, file.id);
            file.ofd.mark_passed();
        }
    }

    /// An fd has come from elsewhere (`recvmsg`, `pidfd_getfd`, exec): finds out what it is.
    pub fn received_fd(&self, fd: i32) {
        self.placeholders.share(fd);
        self.forget(fd);
        // A placeholder that cannot be taken over stays unknown and gives EBADF on use.
        let _ = self.classify(fd);
    }
}
