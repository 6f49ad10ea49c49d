//! Flushing lines and ordering flushes.

use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, _mm_sfence};

use nacre_types::LINE_SIZE;

use crate::kind::FlushMethod;

const CPUID_FEATURES: u32 = 7;
const EBX_CLFLUSHOPT: u32 = 1 << 23;
const EBX_CLWB: u32 = 1 << 24;

/// The cheapest instruction of this processor that writes a line back.
pub(crate) fn best_flush() -> FlushMethod {
    let features = __cpuid_count(CPUID_FEATURES, 0).ebx;
    if features & EBX_CLWB != 0 {
        FlushMethod::Clwb
    } else if features & EBX_CLFLUSHOPT != 0 {
        FlushMethod::ClflushOpt
    } else {
        FlushMethod::Clflush
    }
}

/// Flushes the lines that hold `len` bytes from `start`. Does nothing for methods that do not go by line.
///
/// # Safety
/// The range must be mapped, and the processor must have the instruction.
#[inline]
pub(crate) unsafe fn flush_lines(method: FlushMethod, start: *mut u8, len: usize) {
    if matches!(method, FlushMethod::None | FlushMethod::Msync) {
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

/// Orders this thread's earlier flushes and non-temporal stores before its later stores.
#[inline]
pub(crate) fn order_stores() {
    // SAFETY: every x86_64 processor has SSE.
    unsafe { _mm_sfence() }
}
