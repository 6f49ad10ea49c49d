//! Several disks behind one image, which hold the same (D76) or each a part (D77).

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use nacre_types::PAGE_SIZE;
use rustix::mm::munmap;

use super::calls::{Calls, Own};
use super::{FilePlan, Image};
use crate::scrub_turn::ScrubTurn;
use crate::shared_file;
use crate::shared_mutex::SharedMutex;
use crate::suspects::Suspects;

/// How a disk is read.
#[derive(Clone, Copy, Debug)]
pub struct DiskFds<'d> {
    /// Through the page cache.
    pub plain: BorrowedFd<'d>,
    /// Past it, where that can be.
    pub direct: Option<BorrowedFd<'d>>,
    /// A place of the image lies so many bytes nearer to the start on the disk, modulo 2^64.
    pub back: u64,
}

/// Several disks.
pub trait DiskLegs: Send + Sync {
    /// Calls `read` with the disk that a place, and what follows it up to a multiple of 1 MiB, is
    /// to be read from, and with another one if that fails.
    fn read(&self, at: u64, read: &mut dyn FnMut(DiskFds<'_>) -> io::Result<()>) -> io::Result<()>;

    /// Calls `is_right`, which reads what is at a place, with one disk after the other until it is
    /// so. Those before it are in doubt from then on. `false`: no disk has it.
    fn find_right(&self, _at: u64, _is_right: &mut dyn FnMut(DiskFds<'_>) -> bool) -> bool {
        false
    }

    /// Whether a disk is there that has a place.
    fn has_place(&self, at: u64) -> bool;

    /// Whether none of them was cut or written over.
    fn are_whole(&self) -> bool;
}

/// A page of the image.
#[repr(C, align(4096))]
struct Page {
    states: AtomicU64,
    labels: SharedMutex,
    /// Not 0: no seal was removed that a disk may still have durably.
    seals_settled: AtomicU64,
    scrub_turn: ScrubTurn,
    calls: Calls,
    doubted: AtomicU64,
    suspects: Suspects,
}

const _: () = assert!(size_of::<Page>() == PAGE_SIZE as usize);

/// What processes share about the disks behind an image. It is mapped apart from the image, and
/// may outlive it.
pub struct SharedLegs {
    page: NonNull<Page>,
    own_calls: Own,
}

// SAFETY: the pointer is to memory of an atomic and a lock that lives as long as the value.
unsafe impl Send for SharedLegs {}
// SAFETY: threads share an atomic and a lock, nothing else.
unsafe impl Sync for SharedLegs {}

impl Image {
    /// Units come from these disks.
    pub fn load_from_legs(&mut self, legs: Arc<dyn DiskLegs>) {
        self.legs = Some(legs);
    }

    /// What processes share about the disks behind an image of a device of so many bytes.
    pub fn shared_legs(&self, len: u64) -> io::Result<SharedLegs> {
        let at = FilePlan::new(len).legs;
        let page = shared_file::map(&self.file, at, PAGE_SIZE as usize)?;
        Ok(SharedLegs {
            page: page.cast(),
            own_calls: Own::default(),
        })
    }

    /// Runs `work` while no version is made; not if this process is leaving.
    pub fn while_nobody_commits(&self, work: &mut dyn FnMut()) {
        match self.committer.get() {
            Some(committer) => committer.while_nobody_commits(work),
            None => work(),
        }
    }
}

impl SharedLegs {
    fn page(&self) -> &Page {
        // SAFETY: an atomic and a lock in a mapping that lives as long as the value.
        unsafe { self.page.as_ref() }
    }

    pub(super) fn init(&self) -> io::Result<()> {
        // SAFETY: the file is new and has no name yet.
        unsafe { self.page().labels.init()? };
        Ok(())
    }

    /// What the disks are; its meaning is the user's. A new image has 0.
    pub fn states(&self) -> &AtomicU64 {
        &self.page().states
    }

    /// Not 0: whoever removed seals has waited until all disks had that durably.
    pub fn seals_settled(&self) -> &AtomicU64 {
        &self.page().seals_settled
    }

    /// Disks that held what was wrong, and were not scrubbed since; its meaning is the user's.
    pub fn doubted(&self) -> &AtomicU64 {
        &self.page().doubted
    }

    /// Remembers a span that is to be scrubbed before others.
    pub fn suspect(&self, span: u64) {
        self.page().suspects.add(span);
    }

    /// A span that was remembered, and is not any more.
    pub fn take_suspect(&self) -> Option<u64> {
        self.page().suspects.take()
    }

    /// The next who asks whether to scrub is to.
    pub fn scrub_soon(&self) {
        self.page().scrub_turn.keep(1);
    }

    /// As [`crate::Mirror::take_scrub`].
    pub fn take_scrub(&self, now: u64, next: u64) -> bool {
        self.page().scrub_turn.take(now, next)
    }

    /// As [`crate::Mirror::keep_scrub`].
    pub fn keep_scrub(&self, next: u64) {
        self.page().scrub_turn.keep(next);
    }

    /// Does something while nobody else of all processes does. Runs `finish` first if somebody died
    /// while doing so.
    pub fn alone<T>(&self, finish: impl FnOnce(), work: impl FnOnce() -> T) -> T {
        let _held = self.page().labels.lock_after(finish);
        work()
    }

    /// Waits for calls of processes that are gone. Nobody else commits.
    pub fn wait_for_calls(&self, image: &Image) -> io::Result<()> {
        self.page().calls.wait(&self.own_calls, image.fd())
    }

    /// Whether calls of a process that is gone are over, and nobody has said so: whoever commits
    /// next says it.
    pub fn are_calls_left(&self, image: &Image) -> bool {
        self.page().calls.are_left(image.fd())
    }

    /// Before this process commits, if it is confined: others wait for calls of those who are gone.
    pub fn leave_calls_to_others(&self) {
        self.page().calls.leave_to_others();
    }

    /// As [`SharedLegs::wait_for_calls`], and makes it possible for this process to make some.
    pub fn prepare_calls(&self, image: &Image) -> io::Result<()> {
        self.page().calls.prepare(&self.own_calls, image.fd())
    }

    /// Makes calls that the next one who commits can wait for, should this process die. `None`: it
    /// is not prepared to. After an error the kernel may still be at them.
    pub fn make_calls<T, E>(&self, calls: impl FnOnce() -> Result<T, E>) -> Option<Result<T, E>> {
        self.page().calls.make(&self.own_calls, calls)
    }

    /// Does not end what it began alone.
    #[cfg(test)]
    pub(super) fn die_alone(&self) {
        std::mem::forget(self.page().labels.lock());
    }
}

impl Drop for SharedLegs {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's.
        let _ = unsafe { munmap(self.page.as_ptr().cast(), PAGE_SIZE as usize) };
    }
}

impl std::fmt::Debug for SharedLegs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedLegs").finish_non_exhaustive()
    }
}
