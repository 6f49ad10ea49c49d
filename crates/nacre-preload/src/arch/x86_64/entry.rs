//! The way from a stub into Rust and back.
//!
//! A stub arrives by `jmp` with all registers of the program untouched, but r11 = address of the
//! stub's own `syscall` instruction (rcx and r11 are free, as the kernel overwrites them too).
//! `jmp r11` therefore executes the call natively on the program's own stack, and r11 + 2 continues
//! behind it with rax as the result. The flags are dead at every patched site (the planner proved it).

use core::arch::global_asm;
use core::mem::offset_of;

use crate::tls::Thread;

/// Registers of the program at an intercepted call. Lies on the program's stack below the red zone.
#[repr(C, align(16))]
pub struct Frame {
    xmm: [u128; 16],
    /// Call number in, result out.
    pub rax: usize,
    /// The six arguments: rdi, rsi, rdx, r10, r8, r9.
    pub args: [usize; 6],
    /// Address of the stub's `syscall` instruction.
    pub resume: usize,
    /// Stack pointer of the program.
    pub rsp: usize,
    /// Where to continue: set by one of the methods.
    target: usize,
    /// rbx, rbp, r12 to r15: not restored from here (Rust keeps them), but shown to signal handlers.
    pub saved: [usize; 6],
}

impl Frame {
    /// The stub executes the call with the registers as they are in the frame.
    pub fn execute_natively(&mut self) {
        self.target = self.resume;
    }

    /// The call is done: continue behind the stub's `syscall` with `result`.
    pub fn finish(&mut self, result: isize) {
        self.rax = result as usize;
        self.target = self.resume + SYSCALL_LEN;
    }

    /// The same call enters again, after deferred signals were delivered.
    pub fn restart(&mut self) {
        self.target = nacre_entry as *const () as usize;
    }
}

/// Length of the `syscall` instruction.
pub const SYSCALL_LEN: usize = 2;

unsafe extern "C" {
    /// Where every stub jumps.
    pub fn nacre_entry();
}

global_asm!(
    ".text",
    ".globl nacre_entry",
    ".hidden nacre_entry",
    ".balign 64",
    "nacre_entry:",
    "mov rcx, qword ptr [rip + nacre_tls@GOTTPOFF]",
    "cmp byte ptr fs:[rcx], 0",
    "jne 2f",
    // A call on an fd that is known to be the kernel's?
    "cmp rax, {calls}",
    "jae 3f",
    "lea rcx, [rip + {classes}]",
    "movzx ecx, byte ptr [rcx + rax]",
    "cmp ecx, {fd_class}",
    "je 6f",
    "jb 3f",
    // A call that concerns fd numbers: are they watched?
    "cmp byte ptr [rip + {watched}], 0",
    "jne 3f",
    "cmp ecx, {fd_number_class}",
    "je 6f",
    "jmp r11",
    "6:",
    "cmp edi, {marks_len}",
    "jae 3f",
    "mov ecx, edi",
    "add rcx, qword ptr [rip + {marks}]",
    "cmp byte ptr [rcx], {kernel_mark}",
    "jne 3f",
    "jmp r11",
    // Flags set: our own call, or the slow path decides.
    "2:",
    "test byte ptr fs:[rcx], 1",
    "je 3f",
    "jmp r11",
    "3:",
    "mov rcx, rsp",
    "lea rsp, [rsp - 128 - {size}]",
    "and rsp, -64",
    "mov [rsp + {rsp}], rcx",
    "mov [rsp + {resume}], r11",
    "mov [rsp + {rax}], rax",
    "mov [rsp + {args}], rdi",
    "mov [rsp + {args} + 8], rsi",
    "mov [rsp + {args} + 16], rdx",
    "mov [rsp + {args} + 24], r10",
    "mov [rsp + {args} + 32], r8",
    "mov [rsp + {args} + 40], r9",
    "mov [rsp + {saved}], rbx",
    "mov [rsp + {saved} + 8], rbp",
    "mov [rsp + {saved} + 16], r12",
    "mov [rsp + {saved} + 24], r13",
    "mov [rsp + {saved} + 32], r14",
    "mov [rsp + {saved} + 40], r15",
    "movaps [rsp], xmm0",
    "movaps [rsp + 16], xmm1",
    "movaps [rsp + 32], xmm2",
    "movaps [rsp + 48], xmm3",
    "movaps [rsp + 64], xmm4",
    "movaps [rsp + 80], xmm5",
    "movaps [rsp + 96], xmm6",
    "movaps [rsp + 112], xmm7",
    "movaps [rsp + 128], xmm8",
    "movaps [rsp + 144], xmm9",
    "movaps [rsp + 160], xmm10",
    "movaps [rsp + 176], xmm11",
    "movaps [rsp + 192], xmm12",
    "movaps [rsp + 208], xmm13",
    "movaps [rsp + 224], xmm14",
    "movaps [rsp + 240], xmm15",
    "mov rcx, qword ptr [rip + nacre_tls@GOTTPOFF]",
    "or byte ptr fs:[rcx], 1",
    "mov rdi, rsp",
    "call {dispatch}",
    // Leave Nacre, then look for a signal that came meanwhile.
    "mov rcx, qword ptr [rip + nacre_tls@GOTTPOFF]",
    "and byte ptr fs:[rcx], 0xfe",
    "cmp byte ptr fs:[rcx + {deferred}], 0",
    "je 4f",
    "call {requeue}",
    "4:",
    "movaps xmm0, [rsp]",
    "movaps xmm1, [rsp + 16]",
    "movaps xmm2, [rsp + 32]",
    "movaps xmm3, [rsp + 48]",
    "movaps xmm4, [rsp + 64]",
    "movaps xmm5, [rsp + 80]",
    "movaps xmm6, [rsp + 96]",
    "movaps xmm7, [rsp + 112]",
    "movaps xmm8, [rsp + 128]",
    "movaps xmm9, [rsp + 144]",
    "movaps xmm10, [rsp + 160]",
    "movaps xmm11, [rsp + 176]",
    "movaps xmm12, [rsp + 192]",
    "movaps xmm13, [rsp + 208]",
    "movaps xmm14, [rsp + 224]",
    "movaps xmm15, [rsp + 240]",
    "mov rcx, qword ptr [rip + nacre_tls@GOTTPOFF]",
    "cmp byte ptr fs:[rcx + {deferred}], 0",
    "je 5f",
    // Deferred signals are queued again and all signals are blocked: restore the mask from the
    // thread block. The handlers run on top of this frame and see the program's own context.
    "mov byte ptr fs:[rcx + {deferred}], 0",
    "mov qword ptr fs:[rcx + {frame}], rsp",
    "lea rsi, [rcx + {mask}]",
    "add rsi, qword ptr fs:[0]",
    "mov edi, 2",
    "xor edx, edx",
    "mov r10d, 8",
    "mov eax, 14",
    "syscall",
    "mov rcx, qword ptr [rip + nacre_tls@GOTTPOFF]",
    "mov qword ptr fs:[rcx + {frame}], 0",
    "5:",
    "mov rax, [rsp + {rax}]",
    "mov rdi, [rsp + {args}]",
    "mov rsi, [rsp + {args} + 8]",
    "mov rdx, [rsp + {args} + 16]",
    "mov r10, [rsp + {args} + 24]",
    "mov r8, [rsp + {args} + 32]",
    "mov r9, [rsp + {args} + 40]",
    "mov r11, [rsp + {resume}]",
    "mov rcx, [rsp + {target}]",
    "mov rsp, [rsp + {rsp}]",
    "jmp rcx",
    size = const size_of::<Frame>(),
    rsp = const offset_of!(Frame, rsp),
    resume = const offset_of!(Frame, resume),
    rax = const offset_of!(Frame, rax),
    args = const offset_of!(Frame, args),
    target = const offset_of!(Frame, target),
    saved = const offset_of!(Frame, saved),
    deferred = const offset_of!(Thread, deferred),
    mask = const offset_of!(Thread, mask),
    frame = const offset_of!(Thread, frame),
    calls = const crate::table::CALLS,
    classes = sym crate::table::CLASSES,
    fd_class = const crate::table::FD_CLASS,
    fd_number_class = const crate::table::FD_NUMBER_CLASS,
    watched = sym crate::table::WATCHED,
    marks = sym crate::table::MARKS_AT,
    marks_len = const crate::table::MARKS_LEN,
    kernel_mark = const crate::table::KERNEL_MARK,
    dispatch = sym crate::dispatch::nacre_dispatch,
    requeue = sym crate::signals::nacre_requeue,
);
