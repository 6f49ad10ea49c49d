//! Placeholders in stock, for a process that confines itself: its filter of calls may let it open
//! no further ones, as those of browsers do.
//!
//! A stock has some numbers of its own. Behind each is a placeholder that nobody has, or, so that
//! the number stays taken, the one that all are opened from.

use core::sync::atomic::{AtomicU8, Ordering::AcqRel, Ordering::Relaxed, Ordering::Release};
use std::os::fd::{AsRawFd, OwnedFd};

use nacre_media::lifted;

use crate::program::descriptors;
use crate::runtime::kernel::checked;
use crate::runtime::tls::thread;

/// How many files of a pool a confined process may open and have open at the same time.
const MOST: usize = 32;

/// A number without a placeholder of its own.
const EMPTY: u8 = 0;
/// A number with one.
const FULL: u8 = 1;
/// A number with one that is a parent's.
const INHERITED: u8 = 2;
/// Somebody takes it out or puts one in.
const BUSY: u8 = 3;

#[derive(Debug)]
struct Slot {
    fd: OwnedFd,
    state: AtomicU8,
}

/// The stock of one pool.
#[derive(Debug)]
pub struct Stock(Vec<Slot>);

impl Slot {
    fn new(base: &OwnedFd) -> Option<Slot> {
        let fd = lifted(base.try_clone().ok()?);
        descriptors::keep_internal(fd.as_raw_fd()).then(|| Slot {
            fd,
            state: AtomicU8::new(EMPTY),
        })
    }

    /// True for the one caller who gets it.
    fn claim(&self, state: u8) -> bool {
        let claimed = self.state.compare_exchange(state, BUSY, AcqRel, Relaxed);
        claimed.is_ok()
    }

    fn settle(&self, state: u8) {
        self.state.store(state, Release);
    }

    /// Puts another file behind its number.
    fn hold(&self, fd: i32) -> bool {
        let own = self.fd.as_raw_fd() as usize;
        let args = [fd as usize, own, libc::O_CLOEXEC as usize];
        checked(libc::SYS_dup3, &args).is_ok()
    }

    fn empty(&self, base: &OwnedFd) {
        self.hold(base.as_raw_fd());
        self.settle(EMPTY);
    }
}

impl Stock {
    /// An empty one: as many numbers as there are.
    pub fn new(base: &OwnedFd) -> Stock {
        let slots = core::iter::repeat_with(|| Slot::new(base)).take(MOST);
        Stock(slots.map_while(|slot| slot).collect())
    }

    /// Opens those that it lacks.
    pub fn fill(&self, mut open: impl FnMut() -> Option<OwnedFd>) {
        let lacking = |slot: &&Slot| slot.claim(EMPTY) || slot.claim(INHERITED);
        for slot in self.0.iter().filter(lacking) {
            let opened = open().filter(|fd| slot.hold(fd.as_raw_fd()));
            slot.settle(if opened.is_some() { FULL } else { EMPTY });
        }
    }

    /// Gives one out, at the lowest number that is free. `None` if it has none, or there is no such
    /// number.
    pub fn take(&self, cloexec: bool, base: &OwnedFd) -> Option<i32> {
        let slot = self.slots()?.find(|slot| slot.claim(FULL))?;
        let from = slot.fd.as_raw_fd() as usize;
        let taken = match cloexec {
            true => checked(libc::SYS_fcntl, &[from, libc::F_DUPFD_CLOEXEC as usize, 0]),
            false => checked(libc::SYS_dup, &[from]),
        };
        if taken.is_err() {
            slot.settle(FULL);
            return None;
        }
        slot.empty(base);
        taken.ok().map(|fd| fd as i32)
    }

    /// Closes a placeholder. It is kept if nobody else has got it by then.
    pub fn close(&self, fd: i32, base: &OwnedFd, is_alone: &dyn Fn() -> bool) -> Result<(), i32> {
        let slot = self
            .slots()
            .and_then(|mut all| all.find(|slot| slot.claim(EMPTY)));
        let held = slot.is_some_and(|slot| slot.hold(fd));
        let closed = checked(libc::SYS_close, &[fd as usize]);
        // A child that is forked from now on has it in stock only, and forgets it there.
        match slot {
            Some(slot) if held && is_alone() => slot.settle(FULL),
            Some(slot) => slot.empty(base),
            None => {}
        }
        closed.map(drop)
    }

    /// In a forked child. What is in stock stays open, as calls that would close it may be refused.
    pub fn forget(&self) {
        self.0.iter().for_each(|slot| slot.settle(INHERITED));
    }

    /// A child in its parent's memory has other files behind these numbers.
    fn slots(&self) -> Option<core::slice::Iter<'_, Slot>> {
        thread().origin.view().is_none().then(|| self.0.iter())
    }
}
