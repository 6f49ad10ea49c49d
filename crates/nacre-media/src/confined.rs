//! What a program has forbidden itself.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::process::{Resource, getrlimit};

/// This process may make no calls that it did not make before.
static CONFINED: AtomicBool = AtomicBool::new(false);
/// The limit of file sizes as it was asked for last.
static FILE_SIZE: AtomicU64 = AtomicU64::new(u64::MAX);

/// From now on this process makes no calls that it can do without, and none to ask what it may:
/// whoever confines it may not know them. True for the first one, who takes it back
/// ([`confined_in_vain`]) if the kernel refuses: programs ask that way what it knows.
pub fn confine() -> bool {
    file_size_limit();
    !CONFINED.swap(true, Ordering::Relaxed)
}

/// The process may do what it could before.
pub fn confined_in_vain() {
    CONFINED.store(false, Ordering::Relaxed);
}

/// Whether [`confine`] was called.
pub fn is_confined() -> bool {
    CONFINED.load(Ordering::Relaxed)
}

/// Soft `RLIMIT_FSIZE`: a write of a file behind it fails, and by default ends the process.
pub(crate) fn file_size_limit() -> u64 {
    if !is_confined() {
        let now = getrlimit(Resource::Fsize).current;
        FILE_SIZE.store(now.unwrap_or(u64::MAX), Ordering::Relaxed);
    }
    FILE_SIZE.load(Ordering::Relaxed)
}
