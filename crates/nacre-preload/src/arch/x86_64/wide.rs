//! The way into Rust from functions that may keep something in wide registers: the upper halves of
//! `ymm` and `zmm`, `zmm16` and above, and masks. Kernels keep them, [`entry`](super::entry) does
//! not.
//!
//! They are put on the program's stack, below its red zone, and then the usual entry follows with
//! the `syscall` below in place of the stub's. So whatever becomes of the call, it ends there.
//! Calls that go on elsewhere, or twice in the same memory, are the kernel's.

use core::arch::global_asm;
use core::arch::x86_64::{__cpuid_count, _xgetbv};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

unsafe extern "C" {
    /// Where the stubs of such functions jump.
    pub fn nacre_entry_wide();
}

/// Bits of XCR0: upper halves of `ymm`, masks, upper halves of `zmm`, `zmm16` and above.
const COMPONENTS: u64 = 1 << 2 | 1 << 5 | 1 << 6 | 1 << 7;
/// Bytes of an XSAVE area before its components.
const HEAD: u64 = 512 + 64;
/// Where in an area software may keep something.
const FREE: usize = 464;

/// Of [`COMPONENTS`] those that this processor has, and the system keeps. 0: not known, or none.
static KEPT: AtomicU64 = AtomicU64::new(0);
/// Bytes of an area that holds them.
static LEN: AtomicU64 = AtomicU64::new(0);

/// Finds out what is to be kept. Before the first such function is patched.
pub fn prepare() {
    let kept = components() & COMPONENTS;
    let ends = (0..u64::BITS).filter(|bit| kept >> bit & 1 != 0).map(end);
    LEN.store(ends.max().unwrap_or(0).max(HEAD), Relaxed);
    KEPT.store(kept, Relaxed);
}

/// The register XCR0, or 0 where there is none.
fn components() -> u64 {
    const OSXSAVE: u32 = 1 << 27;
    if __cpuid_count(1, 0).ecx & OSXSAVE == 0 {
        return 0;
    }
    // SAFETY: the system has enabled it, as the bit says.
    unsafe { xcr0() }
}

#[target_feature(enable = "xsave")]
fn xcr0() -> u64 {
    // SAFETY: register 0 is there wherever the instruction is.
    unsafe { _xgetbv(0) }
}

/// Where a component of an XSAVE area ends.
fn end(component: u32) -> u64 {
    let found = __cpuid_count(0xd, component);
    u64::from(found.eax) + u64::from(found.ebx)
}

global_asm!(
    ".section .text.nacre_entry_wide,\"ax\",@progbits",
    ".globl nacre_entry_wide",
    ".hidden nacre_entry_wide",
    ".balign 64",
    "nacre_entry_wide:",
    "cmp qword ptr [rip + {kept}], 0",
    "je nacre_entry",
    ".irp number, {clone}, {clone3}, {vfork}, {sigreturn}",
    "cmp rax, \\number",
    "je 3f",
    ".endr",
    "lea rsp, [rsp - 128]",
    "push r11",
    "push rax",
    "push rdx",
    "mov rcx, rsp",
    "sub rsp, qword ptr [rip + {len}]",
    "and rsp, -64",
    // What is not in the area counts as such only if the header says so.
    "xor eax, eax",
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7",
    "mov [rsp + 512 + 8 * \\n], rax",
    ".endr",
    "mov [rsp + {free}], rcx",
    "mov eax, dword ptr [rip + {kept}]",
    "xor edx, edx",
    "xsave [rsp]",
    // Other code is slow while upper halves hold something.
    "vzeroupper",
    "mov rax, [rcx + 8]",
    "mov rdx, [rcx]",
    "lea r11, [rip + 2f]",
    "jmp nacre_entry",
    "2:",
    "syscall",
    "mov rcx, [rsp + {free}]",
    "mov [rcx + 8], rax",
    "mov eax, dword ptr [rip + {kept}]",
    "xor edx, edx",
    "xrstor [rsp]",
    "mov rsp, rcx",
    "pop rdx",
    "pop rax",
    "pop r11",
    "lea rsp, [rsp + 128]",
    "lea r11, [r11 + {syscall_len}]",
    "3:",
    "jmp r11",
    ".text",
    kept = sym KEPT,
    len = sym LEN,
    free = const FREE,
    clone = const libc::SYS_clone,
    clone3 = const libc::SYS_clone3,
    vfork = const libc::SYS_vfork,
    sigreturn = const libc::SYS_rt_sigreturn,
    syscall_len = const super::entry::SYSCALL_LEN,
);

#[cfg(test)]
mod tests {
    use super::{HEAD, KEPT, LEN, Relaxed, prepare};

    #[test]
    fn an_area_holds_what_the_processor_has() {
        prepare();
        let (kept, len) = (KEPT.load(Relaxed), LEN.load(Relaxed));
        assert_eq!(kept & 1 << 2 != 0, is_x86_feature_detected!("avx"));
        assert_eq!(kept & 1 << 7 != 0, is_x86_feature_detected!("avx512f"));
        // The least that 16 registers' upper halves of 16 bytes need.
        assert!(kept == 0 || len >= HEAD + 16 * 16, "{len}");
        assert!(len <= 4096, "{len}");
    }
}
