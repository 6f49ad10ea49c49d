//! Copy routines in one known range of addresses, so that a fault in them can be turned into an
//! error.
//!
//! All are leaf functions that push nothing: a handler may continue at a landing from any
//! instruction of theirs. The AVX-512 ones use zmm16-31 only, which leaves the registers of SSE and
//! AVX code (and its state) alone.

use std::arch::global_asm;
use std::sync::OnceLock;

use super::cpu::{Feature, has};
use super::fold::Folded;
use crate::error::CopyError;

/// Both faults of a copy, as the routines return them.
const USER_FAULT: u32 = 1;
const MEDIA_FAULT: u32 = 2;
/// What was compared differs.
const DIFFERS: u32 = 3;

/// From how many bytes on `rep movsb` beats vector loops where the processor has fast string
/// copies.
const STRING_COPY_MIN: usize = 16384;

type Routine = unsafe extern "C" fn(to: *mut u8, from: *const u8, len: usize) -> u32;
/// Of two ranges.
type Compare = unsafe extern "C" fn(a: *const u8, b: *const u8, len: usize) -> u32;
/// To `n` places, whose addresses are at `to`.
type Spread = unsafe extern "C" fn(*const *mut u8, from: *const u8, len: usize, n: usize) -> u32;

unsafe extern "C" {
    safe static nacre_media_copies_start: u8;
    safe static nacre_media_copies_avx: u8;
    safe static nacre_media_copies_end: u8;
    safe static nacre_media_user_landing: u8;
    safe static nacre_media_media_landing: u8;
    safe static nacre_media_user_landing_avx: u8;
    safe static nacre_media_media_landing_avx: u8;

    fn nacre_media_copy_sse2(to: *mut u8, from: *const u8, len: usize) -> u32;
    fn nacre_media_copy_avx2(to: *mut u8, from: *const u8, len: usize) -> u32;
    fn nacre_media_copy_avx512(to: *mut u8, from: *const u8, len: usize) -> u32;
    fn nacre_media_copy_string(to: *mut u8, from: *const u8, len: usize) -> u32;
    fn nacre_media_stream_sse2(to: *mut u8, from: *const u8, len: usize) -> u32;
    fn nacre_media_stream_avx2(to: *mut u8, from: *const u8, len: usize) -> u32;
    fn nacre_media_stream_avx512(to: *mut u8, from: *const u8, len: usize) -> u32;
    fn nacre_media_compare_sse2(a: *const u8, b: *const u8, len: usize) -> u32;
    fn nacre_media_compare_avx2(a: *const u8, b: *const u8, len: usize) -> u32;
    fn nacre_media_sum_pclmul(a: *const u8, b: *const u8, len: usize, sum: *mut Folded) -> u32;
    fn nacre_media_spread_sse2(to: *const *mut u8, from: *const u8, len: usize, n: usize) -> u32;
    fn nacre_media_spread_avx2(to: *const *mut u8, from: *const u8, len: usize, n: usize) -> u32;
    fn nacre_media_spread_avx512(to: *const *mut u8, from: *const u8, len: usize, n: usize) -> u32;
}

// Copies of at most 64 bytes: two overlapping halves. Falls through for more. `a` and `b` are
// 16-byte registers. In: rdi to, rsi from, rdx len. Clobbers rax, rcx, r8, r9.
global_asm!(
    ".macro NACRE_HALVES_SSE2",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + rdx - 32]",
    "movups xmm3, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + rdx - 32], xmm2",
    "movups [rdi + rdx - 16], xmm3",
    ".endm",
    ".macro NACRE_HALVES_AVX512",
    "vmovdqu64 ymm16, [rsi]",
    "vmovdqu64 ymm17, [rsi + rdx - 32]",
    "vmovdqu64 [rdi], ymm16",
    "vmovdqu64 [rdi + rdx - 32], ymm17",
    ".endm",
    ".macro NACRE_COPY_SHORT width:req, move:req, a:req, b:req",
    "cmp rdx, 16",
    "jb 3f",
    "cmp rdx, 32",
    "ja 2f",
    "\\move \\a, [rsi]",
    "\\move \\b, [rsi + rdx - 16]",
    "\\move [rdi], \\a",
    "\\move [rdi + rdx - 16], \\b",
    "xor eax, eax",
    "ret",
    "2:",
    "cmp rdx, 64",
    "ja 9f",
    "NACRE_HALVES_\\width",
    "xor eax, eax",
    "ret",
    "3:",
    "cmp edx, 8",
    "jb 4f",
    "mov rax, [rsi]",
    "mov rcx, [rsi + rdx - 8]",
    "mov [rdi], rax",
    "mov [rdi + rdx - 8], rcx",
    "xor eax, eax",
    "ret",
    "4:",
    "cmp edx, 4",
    "jb 5f",
    "mov eax, [rsi]",
    "mov ecx, [rsi + rdx - 4]",
    "mov [rdi], eax",
    "mov [rdi + rdx - 4], ecx",
    "xor eax, eax",
    "ret",
    "5:",
    "test edx, edx",
    "jz 6f",
    "mov r8, rdx",
    "shr r8, 1",
    "movzx eax, byte ptr [rsi]",
    "movzx ecx, byte ptr [rsi + r8]",
    "movzx r9d, byte ptr [rsi + rdx - 1]",
    "mov [rdi], al",
    "mov [rdi + r8], cl",
    "mov [rdi + rdx - 1], r9b",
    "6:",
    "xor eax, eax",
    "ret",
    "9:",
    ".endm",
);

// The loads and the stores of one line (64 bytes); four lines, from `at` on at both addresses: all
// loads, then all stores, because a load that follows a store to an address that is equal in its
// low 12 bits waits for it. Three macros per width. Besides, whether two lines differ.
global_asm!(
    ".macro NACRE_LOAD_SSE2",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    ".endm",
    ".macro NACRE_STORE_SSE2 to:req, move:req",
    "\\move [\\to], xmm0",
    "\\move [\\to + 16], xmm1",
    "\\move [\\to + 32], xmm2",
    "\\move [\\to + 48], xmm3",
    ".endm",
    ".macro NACRE_LINES_SSE2 at:req, move:req",
    "movups xmm0, [rsi + \\at]",
    "movups xmm1, [rsi + \\at + 16]",
    "movups xmm2, [rsi + \\at + 32]",
    "movups xmm3, [rsi + \\at + 48]",
    "movups xmm4, [rsi + \\at + 64]",
    "movups xmm5, [rsi + \\at + 80]",
    "movups xmm6, [rsi + \\at + 96]",
    "movups xmm7, [rsi + \\at + 112]",
    "movups xmm8, [rsi + \\at + 128]",
    "movups xmm9, [rsi + \\at + 144]",
    "movups xmm10, [rsi + \\at + 160]",
    "movups xmm11, [rsi + \\at + 176]",
    "movups xmm12, [rsi + \\at + 192]",
    "movups xmm13, [rsi + \\at + 208]",
    "movups xmm14, [rsi + \\at + 224]",
    "movups xmm15, [rsi + \\at + 240]",
    "\\move [rdi + \\at], xmm0",
    "\\move [rdi + \\at + 16], xmm1",
    "\\move [rdi + \\at + 32], xmm2",
    "\\move [rdi + \\at + 48], xmm3",
    "\\move [rdi + \\at + 64], xmm4",
    "\\move [rdi + \\at + 80], xmm5",
    "\\move [rdi + \\at + 96], xmm6",
    "\\move [rdi + \\at + 112], xmm7",
    "\\move [rdi + \\at + 128], xmm8",
    "\\move [rdi + \\at + 144], xmm9",
    "\\move [rdi + \\at + 160], xmm10",
    "\\move [rdi + \\at + 176], xmm11",
    "\\move [rdi + \\at + 192], xmm12",
    "\\move [rdi + \\at + 208], xmm13",
    "\\move [rdi + \\at + 224], xmm14",
    "\\move [rdi + \\at + 240], xmm15",
    ".endm",
    ".macro NACRE_DIFFERS_SSE2",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups xmm4, [rdi]",
    "movups xmm5, [rdi + 16]",
    "movups xmm6, [rdi + 32]",
    "movups xmm7, [rdi + 48]",
    "pcmpeqb xmm0, xmm4",
    "pcmpeqb xmm1, xmm5",
    "pcmpeqb xmm2, xmm6",
    "pcmpeqb xmm3, xmm7",
    "pand xmm0, xmm1",
    "pand xmm2, xmm3",
    "pand xmm0, xmm2",
    "pmovmskb eax, xmm0",
    "cmp eax, 0xffff",
    ".endm",
    ".macro NACRE_DIFFERS_AVX2",
    "vmovdqu ymm0, [rsi]",
    "vmovdqu ymm1, [rsi + 32]",
    "vpxor ymm0, ymm0, [rdi]",
    "vpxor ymm1, ymm1, [rdi + 32]",
    "vpor ymm0, ymm0, ymm1",
    "vptest ymm0, ymm0",
    ".endm",
    ".macro NACRE_LOAD_AVX2",
    "vmovdqu ymm0, [rsi]",
    "vmovdqu ymm1, [rsi + 32]",
    ".endm",
    ".macro NACRE_STORE_AVX2 to:req, move:req",
    "\\move [\\to], ymm0",
    "\\move [\\to + 32], ymm1",
    ".endm",
    ".macro NACRE_LINES_AVX2 at:req, move:req",
    "vmovdqu ymm0, [rsi + \\at]",
    "vmovdqu ymm1, [rsi + \\at + 32]",
    "vmovdqu ymm2, [rsi + \\at + 64]",
    "vmovdqu ymm3, [rsi + \\at + 96]",
    "vmovdqu ymm4, [rsi + \\at + 128]",
    "vmovdqu ymm5, [rsi + \\at + 160]",
    "vmovdqu ymm6, [rsi + \\at + 192]",
    "vmovdqu ymm7, [rsi + \\at + 224]",
    "\\move [rdi + \\at], ymm0",
    "\\move [rdi + \\at + 32], ymm1",
    "\\move [rdi + \\at + 64], ymm2",
    "\\move [rdi + \\at + 96], ymm3",
    "\\move [rdi + \\at + 128], ymm4",
    "\\move [rdi + \\at + 160], ymm5",
    "\\move [rdi + \\at + 192], ymm6",
    "\\move [rdi + \\at + 224], ymm7",
    ".endm",
    ".macro NACRE_LOAD_AVX512",
    "vmovdqu64 zmm16, [rsi]",
    ".endm",
    ".macro NACRE_STORE_AVX512 to:req, move:req",
    "\\move [\\to], zmm16",
    ".endm",
    ".macro NACRE_LINES_AVX512 at:req, move:req",
    "vmovdqu64 zmm16, [rsi + \\at]",
    "vmovdqu64 zmm17, [rsi + \\at + 64]",
    "vmovdqu64 zmm18, [rsi + \\at + 128]",
    "vmovdqu64 zmm19, [rsi + \\at + 192]",
    "\\move [rdi + \\at], zmm16",
    "\\move [rdi + \\at + 64], zmm17",
    "\\move [rdi + \\at + 128], zmm18",
    "\\move [rdi + \\at + 192], zmm19",
    ".endm",
);

global_asm!(
    ".macro NACRE_LINE width:req, move:req",
    "NACRE_LOAD_\\width",
    "NACRE_STORE_\\width rdi, \\move",
    ".endm",
    // Each line to all places before the next: what one got the others get, whoever changes the
    // source meanwhile. In: rdi addresses of the places, rsi from, rdx len, rcx how many they are.
    // Clobbers rax, r8, r9.
    ".macro NACRE_SPREAD width:req, move:req",
    "xor r8d, r8d",
    "test rdx, rdx",
    "jz 4f",
    ".p2align 4",
    "2:",
    "NACRE_LOAD_\\width",
    "xor eax, eax",
    "3:",
    "mov r9, [rdi + rax * 8]",
    "add r9, r8",
    "NACRE_STORE_\\width r9, \\move",
    "inc rax",
    "cmp rax, rcx",
    "jb 3b",
    "add rsi, 64",
    "add r8, 64",
    "cmp r8, rdx",
    "jb 2b",
    "4:",
    ".endm",
    // Line by line, up to the first that differs. In: rdi and rsi the ranges, rdx len. Out: eax.
    ".macro NACRE_COMPARE width:req",
    "test rdx, rdx",
    "jz 3f",
    ".p2align 4",
    "2:",
    "NACRE_DIFFERS_\\width",
    "jne 4f",
    "add rsi, 64",
    "add rdi, 64",
    "sub rdx, 64",
    "jnz 2b",
    "3:",
    "xor eax, eax",
    "jmp 5f",
    "4:",
    "mov eax, {differs}",
    "5:",
    ".endm",
    // 16 bytes of the line at rsi: they are compared with those at rdi (xmm14 keeps whether all are
    // alike), and come to what was folded of the lines before. xmm15 has the factors.
    ".macro NACRE_FOLD at:req, folded:req",
    "movups xmm4, [rsi + \\at]",
    "movups xmm5, [rdi + \\at]",
    "movaps xmm6, \\folded",
    "pcmpeqb xmm5, xmm4",
    "pclmulqdq \\folded, xmm15, 0x00",
    "pclmulqdq xmm6, xmm15, 0x11",
    "pand xmm14, xmm5",
    "pxor \\folded, xmm4",
    "pxor \\folded, xmm6",
    ".endm",
    // In: rdi and rsi the ranges, rdx len, not 0, rcx what was folded, the factors behind it. Out:
    // eax.
    ".macro NACRE_SUM",
    "movups xmm0, [rcx]",
    "movups xmm1, [rcx + 16]",
    "movups xmm2, [rcx + 32]",
    "movups xmm3, [rcx + 48]",
    "movups xmm15, [rcx + 64]",
    "pcmpeqd xmm14, xmm14",
    ".p2align 4",
    "2:",
    "NACRE_FOLD 0, xmm0",
    "NACRE_FOLD 16, xmm1",
    "NACRE_FOLD 32, xmm2",
    "NACRE_FOLD 48, xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "sub rdx, 64",
    "jnz 2b",
    "movups [rcx], xmm0",
    "movups [rcx + 16], xmm1",
    "movups [rcx + 32], xmm2",
    "movups [rcx + 48], xmm3",
    "pmovmskb ecx, xmm14",
    "mov edx, {differs}",
    "xor eax, eax",
    "cmp ecx, 0xffff",
    "cmovne eax, edx",
    ".endm",
    // Four lines at a time, then one, while there are whole lines: rdx counts down to the rest, rsi
    // and rdi advance.
    ".macro NACRE_STRIDE width:req, move:req",
    "sub rdx, 256",
    "jb 3f",
    ".p2align 4",
    "2:",
    "NACRE_LINES_\\width 0, \\move",
    "add rsi, 256",
    "add rdi, 256",
    "sub rdx, 256",
    "jae 2b",
    "3:",
    "add rdx, 192",
    "js 5f",
    "4:",
    "NACRE_LINE \\width, \\move",
    "add rsi, 64",
    "add rdi, 64",
    "sub rdx, 64",
    "jns 4b",
    "5:",
    "add rdx, 64",
    ".endm",
    // The first line; then everything from the destination's next line on.
    ".macro NACRE_ALIGN width:req, loose:req",
    "NACRE_LINE \\width, \\loose",
    "mov rcx, rdi",
    "neg rcx",
    "and rcx, 63",
    "add rsi, rcx",
    "add rdi, rcx",
    "sub rdx, rcx",
    ".endm",
    // More than 64 bytes: the first line, lines aligned at the destination, the last line
    // overlapping.
    ".macro NACRE_COPY_LONG width:req, loose:req, aligned:req",
    "lea r8, [rsi + rdx - 64]",
    "lea r9, [rdi + rdx - 64]",
    "NACRE_ALIGN \\width, \\loose",
    "NACRE_STRIDE \\width, \\aligned",
    "mov rsi, r8",
    "mov rdi, r9",
    "NACRE_LINE \\width, \\loose",
    ".endm",
    ".macro NACRE_ROUTINE name:req",
    ".globl \\name",
    ".hidden \\name",
    ".type \\name, @function",
    ".p2align 6",
    "\\name:",
    ".cfi_startproc",
    ".endm",
    ".macro NACRE_LABEL name:req",
    ".globl \\name",
    ".hidden \\name",
    "\\name:",
    ".endm",
    differs = const DIFFERS,
);

global_asm!(
    ".pushsection .text.nacre_media_copies, \"ax\", @progbits",
    "NACRE_LABEL nacre_media_copies_start",
    "NACRE_ROUTINE nacre_media_copy_sse2",
    "NACRE_COPY_SHORT SSE2, movups, xmm0, xmm1",
    "NACRE_COPY_LONG SSE2, movups, movaps",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    "NACRE_ROUTINE nacre_media_copy_avx512",
    "NACRE_COPY_SHORT AVX512, vmovdqu64, xmm16, xmm17",
    "NACRE_COPY_LONG AVX512, vmovdqu64, vmovdqa64",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    "NACRE_ROUTINE nacre_media_copy_string",
    "NACRE_ALIGN SSE2, movups",
    "mov rcx, rdx",
    "rep movsb",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    "NACRE_ROUTINE nacre_media_stream_sse2",
    "NACRE_STRIDE SSE2, movntps",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    "NACRE_ROUTINE nacre_media_spread_sse2",
    "NACRE_SPREAD SSE2, movntps",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    "NACRE_ROUTINE nacre_media_compare_sse2",
    "NACRE_COMPARE SSE2",
    "ret",
    ".cfi_endproc",
    "NACRE_ROUTINE nacre_media_sum_pclmul",
    "NACRE_SUM",
    "ret",
    ".cfi_endproc",
    "NACRE_ROUTINE nacre_media_stream_avx512",
    "NACRE_STRIDE AVX512, vmovntdq",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    "NACRE_ROUTINE nacre_media_spread_avx512",
    "NACRE_SPREAD AVX512, vmovntdq",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    // From here on ymm registers are in use: the landings clean their upper halves.
    "NACRE_LABEL nacre_media_copies_avx",
    "NACRE_ROUTINE nacre_media_copy_avx2",
    "NACRE_COPY_SHORT SSE2, movups, xmm0, xmm1",
    "NACRE_COPY_LONG AVX2, vmovdqu, vmovdqa",
    "vzeroupper",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    "NACRE_ROUTINE nacre_media_stream_avx2",
    "NACRE_STRIDE AVX2, vmovntdq",
    "vzeroupper",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    "NACRE_ROUTINE nacre_media_spread_avx2",
    "NACRE_SPREAD AVX2, vmovntdq",
    "vzeroupper",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    "NACRE_ROUTINE nacre_media_compare_avx2",
    "NACRE_COMPARE AVX2",
    "vzeroupper",
    "ret",
    ".cfi_endproc",
    "NACRE_LABEL nacre_media_copies_end",
    "NACRE_LABEL nacre_media_user_landing_avx",
    "vzeroupper",
    "NACRE_LABEL nacre_media_user_landing",
    "mov eax, {user}",
    "ret",
    "NACRE_LABEL nacre_media_media_landing_avx",
    "vzeroupper",
    "NACRE_LABEL nacre_media_media_landing",
    "mov eax, {media}",
    "ret",
    ".popsection",
    user = const USER_FAULT,
    media = const MEDIA_FAULT,
);

/// Where a faulting copy continues.
#[derive(Clone, Copy)]
pub(crate) struct Landings {
    /// The copy then returns [`CopyError::UserFault`].
    pub user: usize,
    /// The copy then returns [`CopyError::MediaFault`].
    pub media: usize,
}

/// Where a copy that faults at `instruction` continues; `None` if that is in no copy routine.
pub(crate) fn landings(instruction: usize) -> Option<Landings> {
    let address = |label: &'static u8| std::ptr::from_ref(label).addr();
    if !(address(&nacre_media_copies_start)..address(&nacre_media_copies_end))
        .contains(&instruction)
    {
        return None;
    }
    Some(if instruction < address(&nacre_media_copies_avx) {
        Landings {
            user: address(&nacre_media_user_landing),
            media: address(&nacre_media_media_landing),
        }
    } else {
        Landings {
            user: address(&nacre_media_user_landing_avx),
            media: address(&nacre_media_media_landing_avx),
        }
    })
}

#[inline]
fn outcome(status: u32) -> Result<(), CopyError> {
    match status {
        0 => Ok(()),
        USER_FAULT => Err(CopyError::UserFault),
        _ => Err(CopyError::MediaFault),
    }
}

/// A copy with ordinary (cached) stores.
#[derive(Clone, Copy)]
pub(crate) struct PlainCopy {
    short: Routine,
    long: Routine,
    long_min: usize,
}

impl PlainCopy {
    /// Needs no choice by processor; for rare copies.
    pub const BASIC: Self = Self {
        short: nacre_media_copy_sse2,
        long: nacre_media_copy_sse2,
        long_min: usize::MAX,
    };

    /// Copies `len` bytes; a fault on either side gives an error, if a handler applies
    /// `fault::resolve`.
    ///
    /// # Safety
    /// Writing the destination must not break anybody's assumptions: it is the program's buffer or
    /// the caller's own, and does not overlap the source.
    #[inline]
    pub unsafe fn copy(self, to: *mut u8, from: *const u8, len: usize) -> Result<(), CopyError> {
        let routine = if len < self.long_min {
            self.short
        } else {
            self.long
        };
        // SAFETY: the routine touches nothing but the two ranges, which the caller vouches for.
        outcome(unsafe { routine(to, from, len) })
    }
}

/// The copy routines that suit this processor.
#[derive(Clone, Copy)]
pub(crate) struct Copier {
    /// Cached copies.
    pub plain: PlainCopy,
    stream: Routine,
    spread: Spread,
    compare: Compare,
}

impl Copier {
    /// Whether `len` bytes, a multiple of 64, are the same at both places.
    ///
    /// # Safety
    /// Both ranges may be read: a fault gives an error, if a handler applies `fault::resolve`.
    #[inline]
    pub unsafe fn are_equal(
        self,
        a: *const u8,
        b: *const u8,
        len: usize,
    ) -> Result<bool, CopyError> {
        debug_assert!(len.is_multiple_of(64));
        // SAFETY: the routine reads nothing but the two ranges, for which the caller vouches.
        match unsafe { (self.compare)(a, b, len) } {
            DIFFERS => Ok(false),
            status => outcome(status).map(|()| true),
        }
    }

    /// Copies `len` bytes, a multiple of 64, with non-temporal stores.
    ///
    /// # Safety
    /// As for [`PlainCopy::copy`]; `to` must be a multiple of 64.
    #[inline]
    pub unsafe fn stream(self, to: *mut u8, from: *const u8, len: usize) -> Result<(), CopyError> {
        debug_assert!(to.addr().is_multiple_of(64) && len.is_multiple_of(64));
        // SAFETY: the routine touches nothing but the two ranges, which the caller vouches for.
        outcome(unsafe { (self.stream)(to, from, len) })
    }

    /// As [`Copier::stream`], to several places, each line to all of them, in their order, before
    /// the next. An error does not tell which one it was. All get the same, even if the source
    /// changes meanwhile.
    ///
    /// # Safety
    /// As for [`Copier::stream`], of each place; there must be one.
    #[inline]
    pub unsafe fn spread(
        self,
        to: &[*mut u8],
        from: *const u8,
        len: usize,
    ) -> Result<(), CopyError> {
        debug_assert!(to.iter().all(|to| to.addr().is_multiple_of(64)) && len.is_multiple_of(64));
        // SAFETY: the routine touches nothing but the list, the source and the places, for which
        // the caller vouches.
        outcome(unsafe { (self.spread)(to.as_ptr(), from, len, to.len()) })
    }
}

impl Folded {
    /// Sums up `len` bytes more, a multiple of 64 and not 0, if they are the same at both places.
    /// Else the sum is of no use any more.
    ///
    /// # Safety
    /// As for [`Copier::are_equal`].
    pub unsafe fn add(
        &mut self,
        a: *const u8,
        b: *const u8,
        len: usize,
    ) -> Result<bool, CopyError> {
        assert!(len > 0 && len.is_multiple_of(64));
        // SAFETY: the routine reads nothing but the two ranges, for which the caller vouches. Where
        // the processor lacks an instruction of its, there is no `Folded`.
        match unsafe { nacre_media_sum_pclmul(a, b, len, self) } {
            DIFFERS => Ok(false),
            status => outcome(status).map(|()| true),
        }
    }
}

/// The copy routines that suit this processor, found out once.
pub(crate) fn copier() -> Copier {
    static CHOICE: OnceLock<Copier> = OnceLock::new();
    *CHOICE.get_or_init(choose)
}

fn choose() -> Copier {
    let (short, stream, spread): (Routine, Routine, Spread) = if has(Feature::Avx512Vl) {
        (
            nacre_media_copy_avx512,
            nacre_media_stream_avx512,
            nacre_media_spread_avx512,
        )
    } else if has(Feature::Avx2) {
        (
            nacre_media_copy_avx2,
            nacre_media_stream_avx2,
            nacre_media_spread_avx2,
        )
    } else {
        (
            nacre_media_copy_sse2,
            nacre_media_stream_sse2,
            nacre_media_spread_sse2,
        )
    };
    let plain = if has(Feature::Erms) {
        PlainCopy {
            short,
            long: nacre_media_copy_string,
            long_min: STRING_COPY_MIN,
        }
    } else {
        PlainCopy {
            short,
            long: short,
            long_min: usize::MAX,
        }
    };
    Copier {
        plain,
        stream,
        spread,
        compare: match has(Feature::Avx2) {
            true => nacre_media_compare_avx2,
            false => nacre_media_compare_sse2,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Compare, DIFFERS, Routine, Spread, copier, landings, nacre_media_compare_avx2,
        nacre_media_compare_sse2, nacre_media_copy_avx2, nacre_media_copy_avx512,
        nacre_media_copy_sse2, nacre_media_copy_string, nacre_media_spread_avx2,
        nacre_media_spread_avx512, nacre_media_spread_sse2, nacre_media_stream_avx2,
        nacre_media_stream_avx512, nacre_media_stream_sse2,
    };

    fn copies() -> Vec<(&'static str, Routine)> {
        let mut routines: Vec<(&str, Routine)> = vec![
            ("sse2", nacre_media_copy_sse2),
            ("string", nacre_media_copy_string),
        ];
        if is_x86_feature_detected!("avx2") {
            routines.push(("avx2", nacre_media_copy_avx2));
        }
        if is_x86_feature_detected!("avx512vl") {
            routines.push(("avx512", nacre_media_copy_avx512));
        }
        routines
    }

    fn streams() -> Vec<(&'static str, Routine)> {
        let mut routines: Vec<(&str, Routine)> = vec![("sse2", nacre_media_stream_sse2)];
        if is_x86_feature_detected!("avx2") {
            routines.push(("avx2", nacre_media_stream_avx2));
        }
        if is_x86_feature_detected!("avx512vl") {
            routines.push(("avx512", nacre_media_stream_avx512));
        }
        routines
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 + i / 256 + 1) as u8).collect()
    }

    fn check(name: &str, routine: Routine, to_at: usize, from_at: usize, len: usize) {
        let source = pattern(from_at + len);
        let mut target = vec![0xee; to_at + len + 64];
        // SAFETY: both ranges lie inside their vectors.
        let status = unsafe {
            routine(
                target[to_at..].as_mut_ptr(),
                source[from_at..].as_ptr(),
                len,
            )
        };
        assert_eq!(status, 0);
        assert_eq!(
            target[to_at..to_at + len],
            source[from_at..],
            "{name}: {len} bytes from {from_at} to {to_at}"
        );
        assert!(
            target[..to_at]
                .iter()
                .chain(&target[to_at + len..])
                .all(|&b| b == 0xee),
            "{name}: {len} bytes stray"
        );
    }

    #[test]
    fn copies_move_every_byte_and_no_other() {
        for (name, routine) in copies() {
            // The string copy is for long copies only.
            let shortest = if name == "string" { 64 } else { 0 };
            for len in (shortest..700).chain([1023, 1024, 1025, 4096, 4097, 20000]) {
                check(name, routine, len % 67, len % 13, len);
            }
        }
    }

    #[test]
    fn streams_move_every_line_and_no_other() {
        #[repr(align(64))]
        struct Lines([u8; 8192]);
        for (name, routine) in streams() {
            for lines in 0..40 {
                let len = lines * 64;
                let source = pattern(len + 5);
                let mut target = Box::new(Lines([0xee; 8192]));
                // SAFETY: both ranges lie inside their buffers, the target is aligned to lines.
                let status =
                    unsafe { routine(target.0[64..].as_mut_ptr(), source[5..].as_ptr(), len) };
                super::super::order_stores();
                assert_eq!(status, 0);
                assert_eq!(target.0[64..64 + len], source[5..], "{name}: {lines} lines");
                assert!(
                    target.0[..64]
                        .iter()
                        .chain(&target.0[64 + len..])
                        .all(|&b| b == 0xee),
                    "{name} strays"
                );
            }
        }
    }

    fn compares() -> Vec<(&'static str, Compare)> {
        let mut routines: Vec<(&str, Compare)> = vec![("sse2", nacre_media_compare_sse2)];
        if is_x86_feature_detected!("avx2") {
            routines.push(("avx2", nacre_media_compare_avx2));
        }
        routines
    }

    #[test]
    fn each_byte_that_differs_is_seen_and_none_outside() {
        for (name, routine) in compares() {
            // SAFETY: both slices have so many bytes.
            let differ = |a: &[u8], b: &[u8]| unsafe {
                routine(a.as_ptr(), b.as_ptr(), a.len().min(b.len()))
            };
            for len in (0..6).map(|lines| lines * 64) {
                let (a, mut b) = (pattern(len + 5), pattern(len + 7));
                b.rotate_right(2);
                let a = &a[..len];
                assert_eq!(differ(a, &b[2..len + 2]), 0, "{name}: {len} bytes");
                for at in 0..len + 4 {
                    b[at] ^= 0x10;
                    let expected = if (2..len + 2).contains(&at) {
                        DIFFERS
                    } else {
                        0
                    };
                    assert_eq!(differ(a, &b[2..len + 2]), expected, "{name}: byte {at}");
                    b[at] ^= 0x10;
                }
            }
        }
    }

    fn spreads() -> Vec<(&'static str, Spread)> {
        let mut routines: Vec<(&str, Spread)> = vec![("sse2", nacre_media_spread_sse2)];
        if is_x86_feature_detected!("avx2") {
            routines.push(("avx2", nacre_media_spread_avx2));
        }
        if is_x86_feature_detected!("avx512vl") {
            routines.push(("avx512", nacre_media_spread_avx512));
        }
        routines
    }

    #[test]
    fn spreads_move_every_line_to_all_places_and_no_other() {
        #[repr(align(64))]
        #[derive(Clone)]
        struct Lines([u8; 2048]);
        for (name, routine) in spreads() {
            for (places, lines) in (1..=5).flat_map(|n| (0..12).map(move |lines| (n, lines))) {
                let len = lines * 64;
                let source = pattern(len + 5);
                let mut targets = vec![Lines([0xee; 2048]); places];
                let to: Vec<*mut u8> = targets
                    .iter_mut()
                    .map(|lines| lines.0[64..].as_mut_ptr())
                    .collect();
                // SAFETY: all ranges lie inside their buffers, the targets are aligned to lines.
                let status = unsafe { routine(to.as_ptr(), source[5..].as_ptr(), len, places) };
                super::super::order_stores();
                assert_eq!(status, 0);
                for target in &targets {
                    assert_eq!(target.0[64..64 + len], source[5..], "{name}: {lines} lines");
                    let mut others = target.0[..64].iter().chain(&target.0[64 + len..]);
                    assert!(others.all(|&byte| byte == 0xee), "{name} strays");
                }
            }
        }
    }

    #[test]
    fn only_the_routines_have_landings() {
        let inside = nacre_media_copy_sse2 as *const () as usize;
        let user = landings(inside).unwrap().user;
        assert!(landings(user).is_none());
        assert!(landings(copier as *const () as usize).is_none());
        assert_ne!(
            landings(nacre_media_copy_avx2 as *const () as usize)
                .unwrap()
                .user,
            user
        );
    }
}
