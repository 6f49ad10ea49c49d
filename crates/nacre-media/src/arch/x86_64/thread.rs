//! Which thread this is.

use std::arch::asm;

/// An address that belongs to the calling thread alone, in its process.
#[inline]
pub fn thread_address() -> usize {
    let address: usize;
    // SAFETY: the ABI keeps the address of the thread's control block in the first word of that
    // block, at `fs:0`.
    unsafe {
        asm!("mov {}, fs:[0]", out(reg) address, options(nostack, preserves_flags, readonly));
    }
    address
}
