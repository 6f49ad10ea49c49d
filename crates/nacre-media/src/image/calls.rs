//! Calls that the kernel may go on with when the process that made them is gone (D99).
//!
//! It ends the threads of a killed process, or of one that execs, and tells so, before it waits for
//! their calls. If somebody else uses the memory of the process, be it who reads
//! `/proc/PID/cmdline`, it ends the whole process first. It waits when nobody uses the memory any
//! more, and unmaps what is mapped there afterwards. So each process has a number for its calls,
//! and a lock on it that only a mapping holds, which forked children do not have.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize};
use std::thread::sleep;
use std::time::Duration;

use nacre_types::PAGE_SIZE;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise, munmap};
use rustix::process::getpid;

use crate::SharedMemory;
use crate::confined::is_confined;
use crate::guest::{caller, may_share_memory};
use crate::hold::{is_locked_by_others, lock_alone};

/// So long who waits for calls sleeps before it looks again.
const ROUND: Duration = Duration::from_millis(1);

/// What processes share of their calls.
#[repr(C)]
pub(super) struct Calls {
    /// Numbers that were given to processes.
    given: AtomicU64,
    /// Of whom calls are under way; 0: of nobody.
    under_way: AtomicU64,
}

/// What a process has to make calls. Whoever may commit changes it.
#[derive(Default)]
pub(super) struct Own {
    number: AtomicU64,
    /// Where the page is mapped that holds the lock.
    page: AtomicUsize,
    /// Who took the number, or 0. Forked children have not.
    process: AtomicI32,
}

impl Calls {
    /// Waits for calls of processes that are gone, and makes it possible for this process to make
    /// some. Nobody else makes any meanwhile.
    pub fn prepare(&self, own: &Own, file: BorrowedFd<'_>) -> io::Result<()> {
        self.wait(own, file)?;
        if !own.is_ours() && !is_confined() && !may_share_memory() {
            // Without a number calls are made one after the other.
            let _ = self.give_number(own, file);
        }
        Ok(())
    }

    fn give_number(&self, own: &Own, file: BorrowedFd<'_>) -> Result<(), Errno> {
        own.take(self.given.fetch_add(1, SeqCst) + 1, file)
    }

    /// Waits for calls of processes that are gone. Nobody else makes any meanwhile.
    pub fn wait(&self, own: &Own, file: BorrowedFd<'_>) -> io::Result<()> {
        match self.under_way.load(SeqCst) {
            0 => Ok(()),
            number => self.wait_for(number, own, file),
        }
    }

    /// Whether calls of a process that is gone are over, and nobody has said so.
    pub fn are_left(&self, file: BorrowedFd<'_>) -> bool {
        match self.under_way.load(SeqCst) {
            0 => false,
            number => is_locked_by_others(file, number).is_ok_and(|locked| !locked),
        }
    }

    /// Who is confined cannot ask for calls of others: waits until somebody else has. To be called
    /// without the right to commit.
    pub fn leave_to_others(&self) {
        const ROUNDS: u32 = 10_000;
        if is_confined() {
            (0..ROUNDS)
                .take_while(|_| self.under_way.load(SeqCst) != 0)
                .for_each(|_| sleep(ROUND));
        }
    }

    #[cold]
    fn wait_for(&self, number: u64, own: &Own, file: BorrowedFd<'_>) -> io::Result<()> {
        // Of this memory's the kernel tells nothing while it is used.
        if is_confined() || own.is_of_this_memory(number) {
            return Err(Errno::BUSY.into());
        }
        while is_locked_by_others(file, number)? {
            sleep(ROUND);
        }
        self.under_way.store(0, SeqCst);
        Ok(())
    }

    /// Makes calls that others can wait for. `None`: this process cannot. After an error the kernel
    /// may still be at them.
    pub fn make<T, E>(
        &self,
        own: &Own,
        calls: impl FnOnce() -> Result<T, E>,
    ) -> Option<Result<T, E>> {
        if !own.is_ours() {
            return None;
        }
        self.under_way.store(own.number.load(SeqCst), SeqCst);
        let done = calls();
        if done.is_ok() {
            self.under_way.store(0, SeqCst);
        }
        Some(done)
    }
}

fn this_process() -> i32 {
    getpid().as_raw_nonzero().get()
}

impl Own {
    fn is_ours(&self) -> bool {
        self.process.load(SeqCst) == this_process()
    }

    /// Whether a number is that of the process in whose memory the caller runs.
    fn is_of_this_memory(&self, number: u64) -> bool {
        self.number.load(SeqCst) == number && (self.is_ours() || caller() != 0)
    }

    fn take(&self, number: u64, file: BorrowedFd<'_>) -> Result<(), Errno> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let description = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let page = SharedMemory::keeping(&description)?;
        let at = page.start().as_ptr();
        // SAFETY: the mapping is this call's, and nothing refers to it.
        unsafe { madvise(at.cast(), PAGE_SIZE as usize, Advice::LinuxDontFork)? };
        lock_alone(&description, number)?;
        self.page.store(at.expose_provenance(), SeqCst);
        // Not of forked children, who have other things there: `Drop` unmaps it.
        std::mem::forget(page);
        self.number.store(number, SeqCst);
        self.process.store(this_process(), SeqCst);
        Ok(())
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if self.is_ours() {
            let page = with_exposed_provenance_mut(self.page.load(SeqCst));
            // SAFETY: this process has mapped it for this value alone.
            let _ = unsafe { munmap(page, PAGE_SIZE as usize) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::{c_int, c_void};
    use std::fs::File;
    use std::mem::MaybeUninit;
    use std::os::fd::AsFd;
    use std::ptr::null_mut;

    use super::{Calls, Own, SharedMemory};
    use crate::hold::is_locked_by_others;

    struct Shared {
        file: File,
        memory: SharedMemory,
    }

    impl Shared {
        fn new() -> Shared {
            let file = tempfile::tempfile_in("/dev/shm").unwrap();
            file.set_len(8192).unwrap();
            let memory = SharedMemory::of_file(&file, 8192).unwrap();
            Shared { file, memory }
        }

        fn calls(&self) -> &Calls {
            // SAFETY: words of atomics in a mapping that lives as long as the value.
            unsafe { self.memory.start().cast().as_ref() }
        }

        /// Says that it is ready in the second page.
        fn say(&self) {
            self.word().store(1, super::SeqCst);
        }

        fn await_word(&self) {
            while self.word().load(super::SeqCst) == 0 {
                std::thread::yield_now();
            }
        }

        fn word(&self) -> &std::sync::atomic::AtomicU64 {
            // SAFETY: as in `calls`, behind them.
            unsafe { self.memory.start().add(4096).cast().as_ref() }
        }

        /// A process that is in the middle of its calls.
        fn dies_in_calls(&self, before: impl FnOnce()) {
            // SAFETY: the child ends by a signal, or by `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let own = Own::default();
                before();
                self.prepare(&own);
                let _ = self.calls().make(&own, || {
                    self.say();
                    pause();
                    Ok::<_, ()>(())
                });
                // SAFETY: ends the child.
                unsafe { libc::_exit(1) };
            }
            self.await_word();
            kill(child);
            // SAFETY: the child is this test's.
            assert_eq!(unsafe { libc::waitpid(child, null_mut(), 0) }, child);
        }

        /// As `Calls::prepare`, though other tests of this program say that it has children in its
        /// memory.
        fn prepare(&self, own: &Own) {
            self.calls().give_number(own, self.file.as_fd()).unwrap();
        }

        fn wait(&self) -> std::io::Result<()> {
            self.calls().wait(&Own::default(), self.file.as_fd())
        }

        fn is_held(&self) -> bool {
            is_locked_by_others(self.file.as_fd(), 1).unwrap()
        }

        /// Whether nobody holds it, once children of other tests have executed their programs: they
        /// may have been made while it was opened.
        fn is_let_go(&self) -> bool {
            (0..6000).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(10));
                !self.is_held()
            })
        }
    }

    fn pause() {
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    }

    fn kill(process: c_int) {
        // SAFETY: the process is this test's.
        unsafe { libc::kill(process, libc::SIGKILL) };
    }

    extern "C" fn stay(_: *mut c_void) -> c_int {
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    }

    /// A process in this one's memory.
    fn guest() -> c_int {
        static mut STACK: MaybeUninit<[u128; 4096]> = MaybeUninit::uninit();
        let stack = &raw mut STACK;
        // SAFETY: the stack is the guest's alone, which touches nothing else of the memory.
        unsafe { libc::clone(stay, stack.add(1).cast(), libc::CLONE_VM, null_mut()) }
    }

    #[test]
    fn calls_of_a_dead_process_are_waited_for_while_its_memory_is_used() {
        let shared = Shared::new();
        let guests = SharedMemory::anonymous(4096).unwrap();
        // SAFETY: a word of an atomic in a mapping that lives as long as the value.
        let guest_is: &std::sync::atomic::AtomicI32 = unsafe { guests.start().cast().as_ref() };
        shared.dies_in_calls(|| guest_is.store(guest(), super::SeqCst));
        assert!(shared.is_held(), "the kernel waits for no call yet");
        kill(guest_is.load(super::SeqCst));
        shared.wait().unwrap();
        assert!(shared.is_let_go());
    }

    #[test]
    fn children_do_not_keep_calls_of_their_parent() {
        let shared = Shared::new();
        let own = Own::default();
        shared.prepare(&own);
        // SAFETY: the child ends by a signal.
        let child = unsafe { libc::fork() };
        if child == 0 {
            pause();
        }
        let is_kept = shared.is_held();
        drop(own);
        let is_let_go = shared.is_let_go();
        kill(child);
        // SAFETY: the child is this test's.
        unsafe { libc::waitpid(child, null_mut(), 0) };
        assert!(is_kept && is_let_go);
    }

    #[test]
    fn a_child_has_no_calls_before_it_is_prepared() {
        let shared = Shared::new();
        let own = Own::default();
        assert_eq!(shared.calls().make(&own, || Ok::<_, ()>(1)), None);
        shared.prepare(&own);
        // SAFETY: the child ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let none = shared.calls().make(&own, || Ok::<_, ()>(1)).is_none();
            shared.prepare(&own);
            let some = shared.calls().make(&own, || Ok::<_, ()>(1)).is_some();
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!(none && some))) };
        }
        let mut status = 1;
        // SAFETY: the child is this test's.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        assert_eq!(shared.calls().make(&own, || Ok::<_, ()>(1)), Some(Ok(1)));
    }

    #[test]
    fn calls_that_are_left_are_seen_by_others() {
        let shared = Shared::new();
        assert!(!shared.calls().are_left(shared.file.as_fd()));
        shared.dies_in_calls(|| {});
        let is_seen = || shared.calls().are_left(shared.file.as_fd());
        assert!(shared.is_let_go() && is_seen());
        shared.wait().unwrap();
        assert!(!is_seen());
    }

    #[test]
    fn who_has_calls_under_way_after_an_error_commits_no_more() {
        let shared = Shared::new();
        let own = Own::default();
        shared.prepare(&own);
        let failed = shared.calls().make(&own, || Err::<(), _>(7));
        assert_eq!(failed, Some(Err(7)));
        shared.calls().wait(&own, shared.file.as_fd()).unwrap_err();
        drop(own);
        shared.wait().unwrap();
    }
}
