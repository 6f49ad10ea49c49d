//! How long is waited before looking again.

use rustix::thread::nanosleep;
use rustix::time::Timespec;

/// Longest sleep before the owner's life is checked.
pub(crate) const ROUND: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

/// Sleeps for a short time, for who tries something again.
pub fn pause() {
    // Woken early, it only tries earlier.
    let _ = nanosleep(&ROUND);
}

/// Sleeps until others have had a turn.
pub(crate) fn pause_briefly() {
    let brief = Timespec {
        tv_sec: 0,
        tv_nsec: 100_000,
    };
    let _ = nanosleep(&brief);
}
