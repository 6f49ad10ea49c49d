//! The time-stamp counter.

use std::arch::x86_64::{__cpuid, _mm_pause, _rdtsc};

/// Ticks of the counter, which all processors share.
#[inline]
pub(crate) fn ticks() -> u64 {
    // SAFETY: every x86_64 processor has the counter; user programs may read it unless the system
    // forbids it, and then they are ended, which `is_steady` is asked about before.
    unsafe { _rdtsc() }
}

/// Whether the counter runs at the same pace whatever the processor does.
pub(crate) fn is_steady() -> bool {
    const LEAF: u32 = 0x8000_0007;
    __cpuid(0x8000_0000).eax >= LEAF && __cpuid(LEAF).edx & (1 << 8) != 0
}

/// Makes a short break in a waiting loop.
#[inline]
pub(crate) fn pause() {
    _mm_pause();
}
