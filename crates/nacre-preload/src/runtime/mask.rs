//! Which signals a thread takes.

use core::sync::atomic::Ordering::Relaxed;

use crate::runtime::kernel::call;
use crate::runtime::tls::{SIGNAL, Thread};

/// Synchronous signals are never blocked by a deferral. SIGSYS is one where a filter of the program
/// traps a call.
pub const FAULTS: u64 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGFPE)
    | bit(libc::SIGILL)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGSYS);

/// The bit of a signal in a mask.
pub const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Blocks all signals but faults; the mask before.
pub fn block_all() -> u64 {
    let (all, mut was) = (!FAULTS, 0u64);
    let places = [&raw const all as usize, &raw mut was as usize];
    let set = libc::SIG_SETMASK as usize;
    call(libc::SYS_rt_sigprocmask, &[set, places[0], places[1], 8]);
    was
}

/// Blocks all signals until the call ends.
pub fn block(thread: &Thread) {
    let was = block_all();
    // A signal that was deferred a moment ago has blocked all others already.
    if thread.deferred.load(Relaxed) & SIGNAL == 0 {
        thread.mask.store(was, Relaxed);
    }
}

/// The signal mask is this one from now on.
pub fn set_mask(mask: u64) {
    call(
        libc::SYS_rt_sigprocmask,
        &[libc::SIG_SETMASK as usize, &raw const mask as usize, 0, 8],
    );
}
