//! Flushing lines and ordering flushes.

use std::arch::asm;
use std::arch::x86_64::_mm_sfence;
use std::sync::atomic::{Ordering, compiler_fence};

use nacre_types::LINE_SIZE;

use super::cpu::{Feature, has};
use crate::kind::FlushMethod;

/// The cheapest instruction of this processor that writes a line back.
pub(crate) fn best_flush() -> FlushMethod {
    if has(Feature::Clwb) {
        FlushMethod::Clwb
    } else if has(Feature::ClflushOpt) {
        FlushMethod::ClflushOpt
    } else {
        FlushMethod::Clflush
    }
}

/// Flushes the lines that hold `len` bytes from `start`. Does nothing for methods that do not go by
/// line.
///
/// # Safety
/// The range must be mapped, and the processor must have the instruction.
#[inline]
pub(crate) unsafe fn flush_lines(method: FlushMethod, start: *mut u8, len: usize) {
    if matches!(
        method,
        FlushMethod::None | FlushMethod::Msync | FlushMethod::Commit
    ) {
        return;
    }
    let end = start.addr() + len;
    let mut line = start.addr() & !(LINE_SIZE as usize - 1);
    while line < end {
        // SAFETY: flushing changes no contents; mapped and supported, says the caller.
        unsafe { flush_line(method, line) };
        line += LINE_SIZE as usize;
    }
}

/// # Safety
/// As for `flush_lines`.
#[inline]
unsafe fn flush_line(method: FlushMethod, line: usize) {
    // SAFETY: what the caller vouches for is what is needed.
    unsafe {
        match method {
            FlushMethod::Clwb => asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)),
            FlushMethod::ClflushOpt => {
                asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags))
            }
            _ => asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags)),
        }
    }
}

/// Asks for a line of memory to be stored to soon. Does nothing where nothing is mapped.
#[inline(always)]
pub(crate) fn prefetch_line(line: *mut u8) {
    // SAFETY: a hint that changes nothing and never faults.
    unsafe { asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags)) }
}

/// Asks for a line of memory to be loaded soon. Does nothing where nothing is mapped.
#[inline(always)]
pub(crate) fn prefetch_line_to_load(line: *mut u8) {
    // SAFETY: a hint that changes nothing and never faults.
    unsafe { asm!("prefetcht0 [{}]", in(reg) line, options(nostack, preserves_flags)) }
}

/// Orders this thread's earlier flushes and non-temporal stores before its later stores.
#[inline]
pub(crate) fn order_stores() {
    // SAFETY: every x86_64 processor has SSE.
    unsafe { _mm_sfence() }
}

/// Orders this thread's earlier stores through the cache before its later ones: the processor does
/// so by itself.
#[inline]
pub(crate) fn order_cached_stores() {
    compiler_fence(Ordering::SeqCst);
}
