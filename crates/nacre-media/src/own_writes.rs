//! Writes to files of a pool, which lie beyond what `RLIMIT_FSIZE` allows a program for its own.
//!
//! The kernel counts them as the program's: it would refuse them and send SIGXFSZ, which ends the
//! process. Stores to a mapping are not limited
//! ([D96](../../../docs/decisions/0096-the-limit-of-file-sizes-is-not-one-of-the-pool.md)).

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};

use nacre_types::PAGE_SIZE;
use rustix::io::{Errno, pwrite};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::confined::file_size_limit;
use crate::user::UserBytesMut;

/// So much is mapped at a time.
const WINDOW: u64 = 2 << 20;

/// Whether the limit stood in the way of a command.
static MET: AtomicBool = AtomicBool::new(false);

/// For commands: from now on whoever meets the limit is told by an error, rather than ended without
/// a word. Programs that they execute are ended as ever.
pub fn survive_limit() {
    // SAFETY: all-zero is a valid `sigaction`.
    let (mut ours, mut old): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    ours.sa_sigaction = note as *const () as usize;
    ours.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: reads the present action of the signal into a live struct.
    unsafe { libc::sigaction(libc::SIGXFSZ, null(), &raw mut old) };
    if old.sa_sigaction == libc::SIG_DFL {
        // SAFETY: `note` is async-signal-safe.
        unsafe { libc::sigaction(libc::SIGXFSZ, &raw const ours, null_mut()) };
    }
}

extern "C" fn note(_signal: i32) {
    MET.store(true, Ordering::Relaxed);
}

/// The limit, if a command has met it.
pub fn met_limit() -> Option<u64> {
    MET.load(Ordering::Relaxed).then(file_size_limit)
}

/// Whether the limit stands in the way of a write that ends there.
pub fn is_beyond_limit(end: u64) -> bool {
    end > file_size_limit()
}

/// Writes bytes inside of a file that may be read and written, whatever the limit is; answers how
/// many. Where a limit is in the way the file's own `O_DSYNC` and `O_DIRECT` have no effect.
pub fn write_at(file: impl AsFd, bytes: &[u8], at: u64) -> Result<usize, Errno> {
    match is_beyond_limit(at + bytes.len() as u64) {
        false => pwrite(file, bytes, at),
        true => write_mapped(file.as_fd(), bytes, at),
    }
}

/// Writes the first bytes, as many as are mapped at once.
fn write_mapped(file: BorrowedFd<'_>, bytes: &[u8], at: u64) -> Result<usize, Errno> {
    let end = (at / PAGE_SIZE * PAGE_SIZE + WINDOW).min(at + bytes.len() as u64);
    let len = (end - at) as usize;
    let window = Window::map(file, at / PAGE_SIZE * PAGE_SIZE..end)?;
    window.put((at % PAGE_SIZE) as usize, &bytes[..len])?;
    Ok(len)
}

/// A part of a file that is mapped for a moment.
struct Window(*mut u8, usize);

impl Window {
    fn map(file: BorrowedFd<'_>, range: Range<u64>) -> Result<Self, Errno> {
        let (len, access) = (
            (range.end - range.start) as usize,
            ProtFlags::READ | ProtFlags::WRITE,
        );
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let at = unsafe { mmap(null_mut(), len, access, MapFlags::SHARED, file, range.start)? };
        Ok(Self(at.cast(), len))
    }

    /// Fails where the file ends too early, or its device has no room.
    fn put(&self, skip: usize, bytes: &[u8]) -> Result<(), Errno> {
        assert!(skip + bytes.len() <= self.1);
        // SAFETY: the range is mapped until `self` is dropped, and nobody else knows it.
        let mut place = unsafe { UserBytesMut::from_raw(self.0.wrapping_add(skip), bytes.len()) };
        place.copy_from_slice(bytes).map_err(|_| Errno::IO)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: it was mapped here, and nothing refers to it any more.
        let _ = unsafe { munmap(self.0.cast(), self.1) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::write_mapped;

    #[test]
    fn a_mapped_write_is_a_write() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(5 << 20).unwrap();
        let bytes: Vec<u8> = (0..(3 << 20) + 5).map(|i: u32| i as u8).collect();
        for at in [0, 1, 4095, 4096, 1 << 20] {
            let mut done = 0;
            while done < bytes.len() {
                done += write_mapped(file.as_fd(), &bytes[done..], at + done as u64).unwrap();
            }
            let mut found = vec![0; bytes.len()];
            file.read_exact_at(&mut found, at).unwrap();
            assert!(found == bytes, "at {at}");
        }
    }
}
