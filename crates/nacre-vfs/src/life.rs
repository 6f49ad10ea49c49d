//! fork, vfork, exec, exit, and fds that travel between processes.

use crate::error::{ErrorKind, VfsError};
use crate::socket::Bound;
use crate::state::{Vfs, pack_slot};
use crate::table::{Entry, FileId};
use nacre_session::{LockOwner, OfdId, SlotRef};
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

/// Keeps the process's state still while it forks, and names the child's slots.
#[must_use]
pub struct ForkTicket<'v> {
    _gate: MutexGuard<'v, Vec<Bound>>,
    slots: Vec<SlotRef>,
}

impl Vfs {
    /// Before a fork: gives the child its slots and its share of everything open.
    pub fn before_fork(&self) -> Result<ForkTicket<'_>, VfsError> {
        let gate = self.close_gate();
        Ok(ForkTicket {
            _gate: gate,
            slots: self.reserve_slots()?,
        })
    }

    /// After a fork, in the parent; without a pid the fork has failed.
    pub fn after_fork_parent(&self, ticket: ForkTicket<'_>, child: Option<i32>) {
        self.hand_over(&ticket.slots, child);
    }

    /// After a fork, in the child. The door then calls `mapping_inherited` for each of its mappings.
    pub fn after_fork_child(&self, ticket: ForkTicket<'_>) -> Result<(), VfsError> {
        self.threaded.store(false, Ordering::Relaxed);
        self.has_record_locks.store(false, Ordering::Relaxed);
        for (mount, &slot) in self.mounts().iter().zip(&ticket.slots) {
            mount
                .session()
                .adopt_slot(slot)
                .map_err(|_| ErrorKind::Io)?;
            mount.fs.store().set_slot(slot);
            self.slots[mount.index].store(pack_slot(slot), Ordering::Release);
        }
        self.uses.clear();
        for (fd, id) in self.table.files() {
            self.inherit(fd, id);
        }
        if let Entry::Pool(id) = Entry::unpack(self.cwd.load(Ordering::Relaxed)) {
            self.uses.add(id);
        }
        self.remember_cwd();
        Ok(())
    }

    /// Counts an inherited fd, unless its description was being opened or closed by another thread
    /// of the parent at the moment of the fork.
    fn inherit(&self, fd: i32, id: FileId) {
        if self
            .mount(id.pool)
            .session()
            .is_held_by(id.ofd, self.holder(id.pool))
        {
            self.uses.add(id);
        } else {
            self.table.set(fd, Entry::Unknown);
        }
    }

    fn reserve_slots(&self) -> Result<Vec<SlotRef>, VfsError> {
        let mut slots = Vec::with_capacity(self.mounts().len());
        for mount in self.mounts() {
            let me = self.holder(mount.index);
            match mount.session().reserve_child_slot(me) {
                Ok(slot) => slots.push(slot),
                Err(_) => {
                    self.hand_over(&slots, None);
                    return Err(ErrorKind::WouldBlock.into());
                }
            }
            let child = slots[mount.index];
            for ofd in self.uses.used(mount.index) {
                mount.session().hold(ofd, child);
            }
        }
        Ok(slots)
    }

    /// Leaves reserved slots to the child, or gives them up if there is none.
    fn hand_over(&self, slots: &[SlotRef], child: Option<i32>) {
        for (mount, &slot) in self.mounts().iter().zip(slots) {
            match child.and_then(|pid| u32::try_from(pid).ok()) {
                Some(pid) => mount.session().child_forked(slot, pid),
                None => {
                    self.unhold_all(mount.index, slot);
                    mount.session().release_slot(slot);
                }
            }
        }
    }

    /// In the parent, before it makes a child that runs in its memory: the state that the child is to
    /// use. Its fds are copies; the child calls `adopt` before anything else, the parent
    /// afterwards `vfork_done`.
    pub fn vfork_view(&self) -> Result<Vfs, VfsError> {
        let _gate = self.close_gate();
        let slots = self.reserve_slots()?;
        let view = Vfs::with(self.shared.clone(), &slots, self.identities.fork());
        view.umask
            .store(self.umask.load(Ordering::Relaxed), Ordering::Relaxed);
        for (fd, id) in self.table.files() {
            view.table.set(fd, Entry::Pool(id));
            view.uses.add(id);
        }
        let cwd = self.cwd.load(Ordering::Acquire);
        if let Entry::Pool(id) = Entry::unpack(cwd) {
            view.uses.add(id);
        }
        view.cwd.store(cwd, Ordering::Release);
        view.remember_cwd();
        Ok(view)
    }

    /// In a child that runs in its parent's memory: takes over the view's slots.
    pub fn adopt(&self) -> Result<(), VfsError> {
        for mount in self.mounts() {
            mount
                .session()
                .adopt_slot(self.holder(mount.index))
                .map_err(|_| ErrorKind::Io)?;
        }
        Ok(())
    }

    /// In the parent, on a view: the child runs its own program now or has ended; without a pid it
    /// was never made.
    pub fn vfork_done(self, child: Option<i32>) {
        let slots: Vec<SlotRef> = self
            .mounts()
            .iter()
            .map(|mount| self.holder(mount.index))
            .collect();
        if child.is_none() {
            self.hand_over(&slots, None);
        }
    }

    /// Before exec. Nothing needs to be undone if that fails.
    pub fn before_exec(&self) -> Result<(), VfsError> {
        for (fd, id) in self.table.files() {
            self.kernel().set_identity(fd, id.ofd.identity())?;
        }
        self.remember_cwd();
        Ok(())
    }

    /// In a new program: takes over what its predecessor in the same process, or its parent, has
    /// left open. `inherited` are all fds of the process.
    pub fn after_exec(&self, inherited: &[i32]) -> Result<(), VfsError> {
        for &fd in inherited {
            self.received_fd(fd);
        }
        self.recall_cwd();
        for mount in self.mounts() {
            let holder = self.holder(mount.index);
            for ofd in mount.session().ofds_held_by(holder) {
                if !self.uses.is_used(FileId {
                    pool: mount.index,
                    ofd,
                }) {
                    self.unhold(mount.index, ofd, holder);
                }
            }
        }
        let any = inherited.iter().any(|&fd| self.ours(fd));
        self.has_record_locks.store(any, Ordering::Relaxed);
        Ok(())
    }

    /// Before `exit_group`, or when a vfork child ends: lets go of everything. No call may follow.
    pub fn exit(&self) {
        for mount in self.mounts() {
            let holder = self.holder(mount.index);
            mount
                .session()
                .advisory_clear_owner(mount.fs.store().slot(), LockOwner::Process(holder));
            self.unhold_all(mount.index, holder);
            mount.session().release_slot(holder);
        }
    }

    fn unhold_all(&self, pool: usize, slot: SlotRef) {
        for ofd in self.mount(pool).session().ofds_held_by(slot) {
            self.unhold(pool, ofd, slot);
        }
    }

    fn unhold(&self, pool: usize, ofd: OfdId, slot: SlotRef) {
        let mount = self.mount(pool);
        if mount.session().unhold(ofd, slot) {
            // As in `release`: nobody is left to be told.
            let _ = mount.fs.release_ofd(ofd);
        }
    }

    /// Before an fd is sent over a socket: its description must outlive the sender.
    pub fn passing_fd(&self, fd: i32) {
        if let Ok(Some(file)) = self.file(fd) {
            file.ofd.mark_passed();
        }
    }

    /// An fd has come from elsewhere (`recvmsg`, `pidfd_getfd`, exec): finds out what it is.
    pub fn received_fd(&self, fd: i32) {
        self.forget(fd);
        // An anchor that cannot be taken over stays unknown and gives EBADF on use.
        let known = self.file(fd);
        if let (None, Ok(Some(file))) = (self.table.get(fd), known) {
            self.uses.add(file.id);
        }
    }
}

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;

#[cfg(test)]
mod tests {
    use super::common::{
        AT_FDCWD, Harness, MockKernel, O_CLOEXEC, O_CREAT, O_RDONLY, O_RDWR, value,
    };
    use crate::state::Vfs;
    use crate::{ErrorKind, FileLock};
    use std::sync::Arc;

    const F_SETLK: i32 = 6;

    /// The program that follows `before` in the same process.
    fn exec(before: &Vfs, kernel: &Arc<MockKernel>) -> Harness {
        before.before_exec().unwrap();
        let fds = kernel.exec();
        let slots: Vec<_> = before
            .mounts()
            .iter()
            .map(|mount| before.holder(mount.index))
            .collect();
        let after = Vfs::with(before.shared.clone(), &slots, before.identities.fork());
        after.after_exec(&fds).unwrap();
        Harness {
            vfs: after,
            kernel: kernel.clone(),
        }
    }

    fn free_files(harness: &Harness) -> u64 {
        value(harness.vfs.statfs(b"/nacre")).unwrap().files_free
    }

    #[test]
    fn exec_keeps_fds_positions_and_the_current_directory() {
        let before = Harness::new();
        before.mkdir("/nacre/d").unwrap();
        before.file("/nacre/d/f", "0123456789");
        before.file("/nacre/gone", "x");
        let kept = before.open("/nacre/d/f", O_RDONLY).unwrap();
        let closed = before.open("/nacre/gone", O_RDONLY | O_CLOEXEC).unwrap();
        let host = before.kernel.host_open("/tmp");
        before.unlink("/nacre/gone").unwrap();
        before.chdir("/nacre/d").unwrap();
        before.read(kept, 4).unwrap();
        let free = free_files(&before);
        let after = exec(&before.vfs, &before.kernel);
        assert!(after.vfs.ours(kept) && !after.vfs.ours(closed) && !after.vfs.ours(host));
        assert_eq!(after.read(kept, 3).as_deref(), Ok("456"));
        assert_eq!(after.getcwd().as_deref(), Ok("/nacre/d"));
        assert_eq!(after.contents("f").as_deref(), Ok("0123456789"));
        assert_eq!(free_files(&after), free + 1);
        let last = exec(&after.vfs, &after.kernel);
        assert_eq!(last.read(kept, 3).as_deref(), Ok("789"));
        assert_eq!(last.getcwd().as_deref(), Ok("/nacre/d"));
    }

    #[test]
    fn exec_with_a_current_directory_on_the_host() {
        let before = Harness::new();
        before.mkdir("/nacre/d").unwrap();
        before.chdir("/nacre/d").unwrap();
        crate::Kernel::chdir(&*before.kernel, b"/tmp").unwrap();
        before.vfs.host_chdir_done();
        let after = exec(&before.vfs, &before.kernel);
        assert_eq!(
            super::common::passed(after.vfs.fstatat(AT_FDCWD, b"x", 0)),
            None
        );
    }

    #[test]
    fn a_forked_child_has_its_own_share() {
        let parent = Harness::new();
        let fd = parent.open("/nacre/f", O_RDWR | O_CREAT).unwrap();
        let mut lock = FileLock {
            kind: 1,
            ..FileLock::default()
        };
        value(parent.vfs.fcntl_lock(fd, F_SETLK, &mut lock)).unwrap();
        parent.chdir("/nacre").unwrap();
        let free = free_files(&parent);
        let before = parent.vfs.holder(0);
        // The test goes on as the child; the parent's slot stays as it was left.
        let ticket = parent.vfs.before_fork().unwrap();
        parent.vfs.after_fork_child(ticket).unwrap();
        let child = parent;
        assert_ne!(child.vfs.holder(0), before);
        assert_eq!(
            value(child.vfs.fcntl_lock(fd, F_SETLK, &mut lock)),
            Err(ErrorKind::WouldBlock)
        );
        assert_eq!(child.getcwd().as_deref(), Ok("/nacre"));
        child.unlink("/nacre/f").unwrap();
        child.close(fd).unwrap();
        assert_eq!(free_files(&child), free);
        let session = child.vfs.mount(0).session();
        let held: Vec<_> = session.ofds_held_by(before).collect();
        assert_eq!(held.len(), 2);
        child.vfs.unhold_all(0, before);
        assert_eq!(free_files(&child), free + 1);
    }

    #[test]
    fn a_fork_that_fails_leaves_nothing() {
        let harness = Harness::new();
        let fd = harness.open("/nacre/f", O_RDWR | O_CREAT).unwrap();
        let free = free_files(&harness);
        let ticket = harness.vfs.before_fork().unwrap();
        harness.vfs.after_fork_parent(ticket, None);
        harness.vfs.vfork_view().unwrap().vfork_done(None);
        harness.unlink("/nacre/f").unwrap();
        harness.close(fd).unwrap();
        assert_eq!(free_files(&harness), free + 1);
        let slots = harness.vfs.mount(0).session().current_slots().count();
        assert_eq!(slots, 1);
    }

    #[test]
    fn exit_lets_go_of_everything() {
        let harness = Harness::new();
        harness.open("/nacre/f", O_RDWR | O_CREAT).unwrap();
        harness.chdir("/nacre").unwrap();
        harness.vfs.exit();
        let session = harness.vfs.mount(0).session();
        assert_eq!(
            (session.ofds().count(), session.current_slots().count()),
            (0, 0)
        );
    }
}
