//! What processes map where a mapped file has a hole: pages of zeros that all of them can lose at
//! once.
//!
//! The zeros are the last window of a sparse file beside the session. Before anybody fills a hole
//! that may be mapped, the file is cut at the beginning of that window: every mapping of it is gone
//! then, in all processes, and whoever touches one finds out what the file holds by now. The next
//! window lies below, so no cut is ever undone.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::SeqCst;

use nacre_runtime::RuntimeError;
use rustix::fs::{FallocateFlags, OFlags, fallocate, fstat, ftruncate};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::liveness::lock::DeadOwner;
use crate::session::{Session, SessionPlace, ZEROS};
use crate::slot_ref::SlotRef;
use crate::step;

/// Bytes of a window.
pub const ZEROS_LEN: u64 = 64 << 10;
/// The first window ends here; file systems on disks take no longer files.
const END: u64 = 8 << 40;

/// Bit of `Shared::zeros`: somebody may have mapped the window. The bits above count the windows
/// that are gone.
const SHOWN: u64 = 1;

/// A window of zeros, to be mapped for reading.
#[derive(Debug)]
pub struct Zeros {
    /// The file.
    pub fd: OwnedFd,
    /// Where the window begins.
    pub offset: u64,
}

/// Where the window of a value of `Shared::zeros` begins.
fn start_of(word: u64) -> Option<u64> {
    (word >> 1)
        .checked_add(1)?
        .checked_mul(ZEROS_LEN)
        .and_then(|below| END.checked_sub(below))
}

/// The value when its window is gone.
fn next(word: u64) -> u64 {
    (word & !SHOWN) + 2
}

impl Session {
    /// Zeros for a hole of an object whose lock is held. `None` if there can be none.
    pub fn show_zeros(&self, me: SlotRef) -> Option<Zeros> {
        let place = self.place()?;
        self.with_zeros(me, || self.show_zeros_locked(place))
    }

    /// Takes all mapped zeros away. To be called before a hole is filled, with the lock of the
    /// object.
    #[inline]
    pub fn hide_zeros(&self, me: SlotRef) -> Result<(), RuntimeError> {
        match self.shared().zeros.load(SeqCst) & SHOWN {
            0 => Ok(()),
            _ => self.hide_shown_zeros(me),
        }
    }

    #[cold]
    fn hide_shown_zeros(&self, me: SlotRef) -> Result<(), RuntimeError> {
        match self.place() {
            Some(place) => self.with_zeros(me, || self.hide_zeros_locked(place)),
            None => Ok(()),
        }
    }

    fn with_zeros<T>(&self, me: SlotRef, work: impl FnOnce() -> T) -> T {
        let lock = &self.shared().zeros_lock;
        // Whatever a dead holder has not done is done again.
        while let Err(DeadOwner(dead)) = lock.lock(self, me) {
            if lock.steal(dead, me) {
                break;
            }
        }
        let done = work();
        lock.unlock(me);
        done
    }

    fn show_zeros_locked(&self, place: &SessionPlace) -> Option<Zeros> {
        let word = &self.shared().zeros;
        let fd = open(place).ok()?;
        let mut now = word.load(SeqCst);
        if now & SHOWN != 0 && fstat(&fd).ok()?.st_size as u64 <= start_of(now)? {
            // Whoever cut it did not live to say so.
            now = next(now);
        }
        let offset = start_of(now)?;
        if now & SHOWN == 0 {
            // Nobody is to find no memory when the page is touched.
            fallocate(&fd, FallocateFlags::empty(), offset, ZEROS_LEN).ok()?;
            step::point();
            word.store(now | SHOWN, SeqCst);
        }
        Some(Zeros { fd, offset })
    }

    fn hide_zeros_locked(&self, place: &SessionPlace) -> Result<(), RuntimeError> {
        let word = &self.shared().zeros;
        let now = word.load(SeqCst);
        let (SHOWN, Some(offset)) = (now & SHOWN, start_of(now)) else {
            return Ok(());
        };
        let cut = |errno| RuntimeError::System {
            action: "cut",
            path: place.folder().path().join(place.beside(ZEROS)),
            errno,
        };
        let file = place
            .folder()
            .open_file(&place.beside(ZEROS), OFlags::RDWR)?;
        ftruncate(file.ok_or_else(|| cut(Errno::NOENT))?, offset).map_err(cut)?;
        step::point();
        word.store(next(now), SeqCst);
        Ok(())
    }
}

/// The file; made if it is missing, by whom no limit of file sizes stops.
fn open(place: &SessionPlace) -> Result<OwnedFd, RuntimeError> {
    let name = place.beside(ZEROS);
    if let Some(file) = place.folder().open_file(&name, OFlags::RDWR)? {
        return Ok(file);
    }
    let path = place.folder().path().join(&name);
    let failed = |errno| RuntimeError::System {
        action: "make",
        path: path.clone(),
        errno,
    };
    if getrlimit(Resource::Fsize).current.is_some() {
        return Err(failed(Errno::FBIG));
    }
    let fresh = place.beside("zeros-new");
    place.folder().remove(&fresh)?;
    let file = place.folder().make_file(&fresh)?;
    ftruncate(&file, END).map_err(failed)?;
    place.folder().rename(&fresh, &name)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::{END, SHOWN, ZEROS_LEN, start_of};

    #[test]
    fn windows_lie_one_below_the_other_until_there_are_no_more() {
        assert_eq!(start_of(0), Some(END - ZEROS_LEN));
        assert_eq!(start_of(SHOWN), start_of(0));
        assert_eq!(start_of(2), Some(END - 2 * ZEROS_LEN));
        let last = END / ZEROS_LEN - 1;
        assert_eq!(start_of(last << 1), Some(0));
        assert_eq!(start_of((last + 1) << 1), None);
        assert_eq!(start_of(u64::MAX), None);
    }
}
