//! The way from a stub into Rust and back.
//!
//! A stub arrives by `jmp` with all registers of the program untouched, but r11 = address of the
//! stub's own `syscall` instruction (rcx and r11 are free, as the kernel overwrites them too).
//! `jmp r11` therefore executes the call natively on the program's own stack, and r11 + 2 continues
//! behind it with rax as the result. The flags are dead at every patched site (the planner proved
//! it).

use core::arch::global_asm;
use core::mem::offset_of;

use super::symbols;
use crate::runtime::kernel::Raw;
use crate::runtime::tls::{CONCURRENTLY, IN_NACRE, SHARES_MEMORY, Thread};

/// What handlers are shown of a call that they interrupt.
#[repr(C)]
pub struct Shown {
    /// Where to continue: set by one of the methods of [`Frame`].
    target: usize,
    /// Address of the stub's `syscall` instruction.
    pub resume: usize,
    /// Stack pointer of the program.
    pub rsp: usize,
    /// rbx, rbp, r12 to r15.
    pub saved: [usize; 6],
}

/// Registers of the program at an intercepted call. Lies on a stack of ours, or on the program's
/// below the red zone.
#[repr(C, align(16))]
pub struct Frame {
    xmm: [u128; 16],
    /// Call number in, result out.
    pub rax: usize,
    /// The six arguments: rdi, rsi, rdx, r10, r8, r9.
    pub args: [usize; 6],
    /// Where the call was made. Rust keeps the saved registers, so they are not restored from here.
    pub shown: Shown,
    /// Top of our stack, 0 on the program's.
    pub stack: usize,
    /// The caller's [`Thread`], from the thread pointer.
    pub block: usize,
}

impl Shown {
    /// Whether the call is over for a thread that is interrupted at `rip`. If not, it begins or
    /// begins again.
    pub fn is_over(&self, rip: usize) -> bool {
        let executed = nacre_executed as *const () as usize;
        rip == executed || self.target == self.resume + SYSCALL_LEN
    }
}

impl Frame {
    /// Where in a frame is the program's stack pointer.
    pub const RSP_AT: usize = offset_of!(Frame, shown) + offset_of!(Shown, rsp);
    /// Where in a frame is the address that handlers are shown.
    pub const RESUME_AT: usize = offset_of!(Frame, shown) + offset_of!(Shown, resume);
    /// Where in a frame is the address to continue at.
    pub const TARGET_AT: usize = offset_of!(Frame, shown) + offset_of!(Shown, target);

    /// The stub executes the call with the registers as they are in the frame.
    pub fn execute_natively(&mut self) {
        self.shown.target = self.shown.resume;
    }

    /// The call is done: continue behind the stub's `syscall` with `result`.
    pub fn finish(&mut self, result: isize) {
        self.rax = result as usize;
        self.shown.target = self.shown.resume + SYSCALL_LEN;
    }

    /// The same call enters again, after deferred signals were delivered.
    pub fn restart(&mut self) {
        self.shown.target = nacre_entry as *const () as usize;
    }
}

/// Length of the `syscall` instruction.
pub const SYSCALL_LEN: usize = 2;

unsafe extern "C" {
    /// Where every stub jumps.
    pub fn nacre_entry();
    fn nacre_entry_peek();
    fn nacre_entry_peek_fault();
    fn nacre_leave();
    fn nacre_left();
    fn nacre_left_end();
    fn nacre_execute(call: *const [usize; 7], rsp: usize, block: usize) -> Raw;
    fn nacre_executed();
}

/// Where a thread is at the end of a call.
pub enum End {
    /// Not there.
    Not,
    /// It restores the program's registers, and can begin with that again at this address.
    Leaving(usize),
    /// All is restored; only the flag that it is inside must go.
    Left,
}

/// Where the last steps of a kind of call begin, where all is restored, and where they end.
pub type LastSteps = [unsafe extern "C" fn(); 3];

/// Tells it from the address of the next instruction.
pub fn end_of_call(rip: usize) -> End {
    for steps in [
        [nacre_leave, nacre_left, nacre_left_end],
        symbols::last_steps(),
    ] {
        let [leave, left, end] = steps.map(|label| label as *const () as usize);
        if (leave..left).contains(&rip) {
            return End::Leaving(leave);
        }
        if (left..end).contains(&rip) {
            return End::Left;
        }
    }
    End::Not
}

/// Where the program goes on if its next instruction is at `rip`, which may be the last ones of a
/// call.
pub fn continues_at(rip: usize, r11: usize) -> usize {
    let [left, end] = [nacre_left, nacre_left_end].map(|label| label as *const () as usize);
    if (left..=end).contains(&rip) {
        r11
    } else {
        rip
    }
}

/// Where to continue if the instruction at `rip` faults, which looks at a path.
pub fn fault_landing(rip: usize) -> Option<usize> {
    let [peek, landing] =
        [nacre_entry_peek, nacre_entry_peek_fault].map(|label| label as *const () as usize);
    (rip == peek).then_some(landing)
}

/// Has the kernel execute a call outside of Nacre, with the stack pointer at `rsp` if that is not
/// 0; handlers run there. `block`: the caller's, from the thread pointer.
///
/// # Safety
/// As of [`crate::runtime::kernel::syscall`]; `rsp` is the program's, and nothing of ours is held
/// that a handler could need.
pub unsafe fn execute(number: usize, args: [usize; 6], rsp: usize, block: usize) -> Raw {
    let [a, b, c, d, e, f] = args;
    // SAFETY: the caller's promise.
    unsafe { nacre_execute(&[number, a, b, c, d, e, f], rsp, block) }
}

global_asm!(
    // The linker puts it before all else: each process executes it, and each forked one again.
    ".section .text.nacre_entry,\"ax\",@progbits",
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
    "cmp ecx, {fd_path_class}",
    "je 10f",
    "cmp ecx, {open_class}",
    "je 11f",
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
    "shl ecx, 2",
    "add rcx, qword ptr [rip + {marks}]",
    "test byte ptr [rcx], {kernel_mark}",
    "je 3f",
    "jmp r11",
    // As the C library's fstat makes it? Who serves the call finds out what is wrong with the path.
    "10:",
    "cmp r10d, {empty_path}",
    "jne 3f",
    ".globl nacre_entry_peek, nacre_entry_peek_fault",
    ".hidden nacre_entry_peek, nacre_entry_peek_fault",
    "nacre_entry_peek:",
    "cmp byte ptr [rsi], 0",
    "je 6b",
    "jmp 3f",
    // A folder that is plainly the host's is opened here and its fd marked. What the kernel does
    // not find is looked for. Other files may be waited for, and handlers are to see the program at
    // its own call then.
    "11:",
    "test edx, {directory}",
    "je 3f",
    "cmp byte ptr [rip + {watched}], 0",
    "jne 3f",
    "lea rsp, [rsp - 128]",
    "push r11",
    "push r9",
    "push r10",
    "lea rsp, [rsp - 64]",
    ".irp n, 0, 1, 2, 3",
    "movups [rsp + 16 * \\n], xmm\\n",
    ".endr",
    "call nacre_filter_at",
    "mov ecx, eax",
    ".irp n, 0, 1, 2, 3",
    "movups xmm\\n, [rsp + 16 * \\n]",
    ".endr",
    "lea rsp, [rsp + 64]",
    "pop r10",
    "pop r9",
    "mov eax, {openat}",
    "test ecx, ecx",
    "jne 12f",
    "syscall",
    "cmp rax, {missing}",
    "je 13f",
    "cmp rax, {marks_len}",
    "jae 14f",
    "mov r11, qword ptr [rip + {marks}]",
    "lea r11, [r11 + rax * 4]",
    "mov ecx, [r11]",
    "test ecx, {kernel_mark}",
    "jne 14f",
    // Not even if another thread has opened a pool's first file since.
    "cmp byte ptr [rip + {watched}], 0",
    "jne 14f",
    "push rax",
    "mov eax, ecx",
    "or ecx, {kernel_mark}",
    "lock cmpxchg [r11], ecx",
    "pop rax",
    "14:",
    "pop r11",
    "lea rsp, [rsp + 128]",
    "lea r11, [r11 + {syscall_len}]",
    "jmp r11",
    "13:",
    "mov eax, {openat}",
    "12:",
    "pop r11",
    "lea rsp, [rsp + 128]",
    "jmp 3f",
    // Flags set: our own call, or memory is shared with a child.
    "2:",
    "test byte ptr fs:[rcx], {shares_memory}",
    "jne 9f",
    "jmp r11",
    // Which block is ours?
    "9:",
    "lea rsp, [rsp - 128]",
    "push rax",
    "push r11",
    "mov eax, {getpid}",
    "syscall",
    "mov rcx, qword ptr [rip + nacre_tls@GOTTPOFF]",
    "22:",
    "cmp eax, dword ptr fs:[rcx + {pid}]",
    "je 23f",
    "mov rcx, qword ptr fs:[rcx + {next}]",
    "test rcx, rcx",
    "jne 22b",
    "23:",
    // Known for the rest of the call, unless others run meanwhile.
    "mov rax, qword ptr [rip + nacre_tls@GOTTPOFF]",
    "test byte ptr fs:[rax], {concurrently}",
    "jne 27f",
    "mov qword ptr fs:[rax + {caller}], rcx",
    "27:",
    "pop r11",
    "pop rax",
    "lea rsp, [rsp + 128]",
    "test rcx, rcx",
    "je 25f",
    "24:",
    "test byte ptr fs:[rcx], {in_nacre}",
    "je 26f",
    "jmp r11",
    // A child calls for the first time. One that nobody expects is left alone.
    "25:",
    "lea rcx, [rip + {claim_block}]",
    "lea rsp, [rsp - 128]",
    "call 30f",
    "lea rsp, [rsp + 128]",
    "test rcx, rcx",
    "jne 24b",
    "jmp r11",
    // Inside from here on: signals are deferred. Then onto a stack of ours.
    "nacre_entry_peek_fault:",
    "3:",
    "mov rcx, qword ptr [rip + nacre_tls@GOTTPOFF]",
    "26:",
    "or byte ptr fs:[rcx], {in_nacre}",
    "mov rcx, qword ptr fs:[rcx + {stack}]",
    "test rcx, rcx",
    "je 8f",
    "4:",
    "mov [rcx - {size} + {rsp}], rsp",
    "lea rsp, [rcx - {size}]",
    "5:",
    "mov [rsp + {own}], rcx",
    "mov rcx, qword ptr [rip + nacre_tls@GOTTPOFF]",
    "mov [rsp + {block}], rcx",
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
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "movaps [rsp + 16 * \\n], xmm\\n",
    ".endr",
    "mov rdi, rsp",
    "call {dispatch}",
    // The last steps. A signal that arrives in the middle is deferred and sends the thread back to
    // the first one.
    ".globl nacre_leave, nacre_left, nacre_left_end",
    ".hidden nacre_leave",
    "nacre_leave:",
    "mov rcx, [rsp + {block}]",
    "cmp byte ptr fs:[rcx + {deferred}], 0",
    "jne 7f",
    ".macro nacre_restore",
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "movaps xmm\\n, [rsp + 16 * \\n]",
    ".endr",
    "mov rax, [rsp + {rax}]",
    "mov rdi, [rsp + {args}]",
    "mov rsi, [rsp + {args} + 8]",
    "mov rdx, [rsp + {args} + 16]",
    "mov r10, [rsp + {args} + 24]",
    "mov r8, [rsp + {args} + 32]",
    "mov r9, [rsp + {args} + 40]",
    ".endm",
    "nacre_restore",
    "mov r11, [rsp + {target}]",
    "mov rsp, [rsp + {rsp}]",
    // Nothing of ours is in use any more: who is interrupted here has left.
    ".hidden nacre_left",
    "nacre_left:",
    "and byte ptr fs:[rcx], {outside}",
    ".hidden nacre_left_end",
    "nacre_left_end:",
    "jmp r11",
    // Something was deferred, and all signals are blocked: do it, restore all but the mask, then
    // the mask. Handlers run on top of a few words on the program's stack, and see its own context.
    "7:",
    "call {before_leaving}",
    "nacre_restore",
    "mov r11, rsp",
    "mov rsp, [r11 + {rsp}]",
    "lea rsp, [rsp - 128]",
    "push r15",
    "push r14",
    "push r13",
    "push r12",
    "push rbp",
    "push rbx",
    "push rax",
    "lea rax, [rsp + 7 * 8 + 128]",
    "xchg rax, [rsp]",
    "push qword ptr [r11 + {resume}]",
    "push qword ptr [r11 + {target}]",
    "push rax",
    "push rdi",
    "push rsi",
    "push rdx",
    "push r10",
    "mov rcx, [r11 + {block}]",
    "lea rax, [rsp + 5 * 8]",
    "mov qword ptr fs:[rcx + {shown}], rax",
    "mov byte ptr fs:[rcx + {deferred}], 0",
    "and byte ptr fs:[rcx], {outside}",
    "lea rsi, [rcx + {mask}]",
    "add rsi, qword ptr fs:[0]",
    "mov edi, 2",
    "xor edx, edx",
    "mov r10d, 8",
    "mov eax, 14",
    "syscall",
    "mov qword ptr [rsi + {shown} - {mask}], 0",
    "pop r10",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    "pop rax",
    "pop rcx",
    "pop r11",
    "lea rsp, [rsp + 7 * 8 + 128]",
    "jmp rcx",
    // The thread has no stack of ours yet, or must not use it now.
    "8:",
    "lea rcx, [rip + {find_stack}]",
    "lea rsp, [rsp - 128]",
    "call 30f",
    "lea rsp, [rsp + 128]",
    "test rcx, rcx",
    "jne 4b",
    "mov rcx, rsp",
    "lea rsp, [rsp - 128 - {size}]",
    "and rsp, -64",
    "mov [rsp + {rsp}], rcx",
    "xor ecx, ecx",
    "jmp 5b",
    // Calls the function in rcx with the program's stack pointer, on the program's stack, whose red
    // zone was left. All registers but rcx, the result, are kept.
    "30:",
    "push rax",
    "push rdi",
    "push rsi",
    "push rdx",
    "push r10",
    "push r8",
    "push r9",
    "push r11",
    "push rbp",
    "mov rbp, rsp",
    "lea rsp, [rsp - 256]",
    "and rsp, -16",
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "movaps [rsp + 16 * \\n], xmm\\n",
    ".endr",
    "lea rdi, [rbp + 10 * 8 + 128]",
    "call rcx",
    "mov rcx, rax",
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "movaps xmm\\n, [rsp + 16 * \\n]",
    ".endr",
    "mov rsp, rbp",
    "pop rbp",
    "pop r11",
    "pop r9",
    "pop r8",
    "pop r10",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    "pop rax",
    "ret",
    // A call of the kernel from the middle of ours.
    ".globl nacre_executed",
    ".hidden nacre_execute, nacre_executed",
    "nacre_execute:",
    "push rbp",
    "mov rbp, rsp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "mov rbx, rdi",
    "mov r13, rdx",
    "test rsi, rsi",
    "je 2f",
    "lea rsp, [rsi - 128]",
    "and rsp, -16",
    "2:",
    "movzx r12d, byte ptr fs:[r13]",
    "and r12d, {in_nacre}",
    "and byte ptr fs:[r13], {outside}",
    "cmp byte ptr fs:[r13 + {deferred}], 0",
    "je 3f",
    "call {deliver}",
    "3:",
    "mov rax, [rbx]",
    "mov rdi, [rbx + 8]",
    "mov rsi, [rbx + 16]",
    "mov rdx, [rbx + 24]",
    "mov r10, [rbx + 32]",
    "mov r8, [rbx + 40]",
    "mov r9, [rbx + 48]",
    "syscall",
    "nacre_executed:",
    "or byte ptr fs:[r13], r12b",
    "lea rsp, [rbp - 32]",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    ".text",
    size = const size_of::<Frame>(),
    rsp = const Frame::RSP_AT,
    resume = const Frame::RESUME_AT,
    saved = const offset_of!(Frame, shown) + offset_of!(Shown, saved),
    rax = const offset_of!(Frame, rax),
    args = const offset_of!(Frame, args),
    target = const Frame::TARGET_AT,
    own = const offset_of!(Frame, stack),
    block = const offset_of!(Frame, block),
    deferred = const offset_of!(Thread, deferred),
    mask = const offset_of!(Thread, mask),
    shown = const offset_of!(Thread, shown),
    pid = const offset_of!(Thread, pid),
    next = const offset_of!(Thread, next),
    in_nacre = const IN_NACRE,
    shares_memory = const SHARES_MEMORY,
    concurrently = const CONCURRENTLY,
    caller = const offset_of!(Thread, caller),
    outside = const !IN_NACRE,
    getpid = const libc::SYS_getpid,
    stack = const offset_of!(Thread, stack),
    calls = const crate::entry::table::CALLS,
    classes = sym crate::entry::table::CLASSES,
    fd_class = const crate::entry::table::FD_CLASS,
    fd_number_class = const crate::entry::table::FD_NUMBER_CLASS,
    fd_path_class = const crate::entry::table::FD_PATH_CLASS,
    empty_path = const libc::AT_EMPTY_PATH,
    watched = sym crate::entry::table::WATCHED,
    marks = sym crate::entry::table::MARKS_AT,
    marks_len = const crate::entry::table::MARKS_LEN,
    kernel_mark = const crate::entry::table::KERNEL_MARK,
    open_class = const crate::entry::table::OPEN_CLASS,
    openat = const libc::SYS_openat,
    directory = const libc::O_DIRECTORY,
    missing = const crate::entry::symbols::MISSING,
    syscall_len = const SYSCALL_LEN,
    dispatch = sym crate::entry::dispatch::nacre_dispatch,
    before_leaving = sym crate::runtime::signals::nacre_before_leaving,
    deliver = sym crate::runtime::signals::nacre_deliver,
    find_stack = sym crate::runtime::stack::nacre_find_stack,
    claim_block = sym crate::program::sharing::nacre_claim_block,
);

const _: () = assert!(offset_of!(Shown, target) == 0 && offset_of!(Shown, saved) == 24);
