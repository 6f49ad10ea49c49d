//! Per-thread state in static thread-local storage: no lazy allocation, one instruction to reach.
//!
//! The block is defined in assembly because the entry code reads it before any Rust runs and
//! because it must use the initial-exec model.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicU64, Ordering::Relaxed};

use crate::arch::x86_64::entry::Frame;
use crate::process::View;

global_asm!(
    ".section .tbss.nacre_tls,\"awT\",@nobits",
    ".balign 64",
    ".globl nacre_tls",
    ".hidden nacre_tls",
    ".type nacre_tls, @tls_object",
    "nacre_tls: .zero {size}",
    ".size nacre_tls, {size}",
    ".text",
    size = const size_of::<Thread>(),
);

/// The thread is inside Nacre: calls pass to the kernel, signals are deferred.
pub const IN_NACRE: u8 = 1;
/// The thread started a child that shares its memory (vfork): ask who we are at each call.
pub const SHARES_MEMORY: u8 = 2;

/// State of one thread. All zero at the start of a thread.
#[repr(C, align(64))]
pub struct Thread {
    /// `IN_NACRE` and `SHARES_MEMORY`; the entry code expects it at offset 0.
    pub flags: AtomicU8,
    /// A signal is deferred, `info` and `mask` are set, and all signals are blocked.
    pub deferred: AtomicU8,
    /// The deferred signal wants an interrupted call restarted.
    pub restart: AtomicU8,
    /// The child that shares memory runs at the same time as we do (clone without CLONE_VFORK).
    pub concurrent: AtomicU8,
    /// Process that set `SHARES_MEMORY`.
    pub parent: AtomicI32,
    /// Signal mask to restore when the operation ends.
    pub mask: AtomicU64,
    /// Frame of an intercepted call that may be interrupted right now, or null: handlers are shown
    /// the program's registers from it.
    pub frame: AtomicPtr<Frame>,
    /// SIGSEGV and SIGBUS as far as the program thinks that they are blocked, as a signal set.
    pub blocked: AtomicU64,
    /// What a child that shares memory works with, and its parent takes down.
    pub view: AtomicPtr<View>,
    /// The deferred siginfo.
    pub info: [AtomicU64; 16],
}

const _: () = assert!(core::mem::offset_of!(Thread, flags) == 0);

/// State of the calling thread.
#[inline]
pub fn thread() -> &'static Thread {
    let block: *const Thread;
    // SAFETY: reads the thread pointer and a GOT entry; no memory is written.
    unsafe {
        asm!("mov {0}, qword ptr [rip + nacre_tls@GOTTPOFF]",
            "add {0}, qword ptr fs:[0]",
            out(reg) block, options(pure, readonly, nostack));
    }
    // SAFETY: nacre_tls is `size_of::<Thread>()` zeroed bytes, aligned, alive as long as the thread
    // runs; every field is atomic.
    unsafe { &*block }
}

/// Marks the thread as inside Nacre for the life of the value, for code that is not
/// entered through the system-call table (initialisation).
pub struct Inside(u8);

impl Inside {
    /// Enters; remembers whether the thread was inside already.
    pub fn enter() -> Self {
        let flags = &thread().flags;
        let before = flags.load(Relaxed);
        flags.store(before | IN_NACRE, Relaxed);
        Inside(before & IN_NACRE)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let flags = &thread().flags;
        flags.store(flags.load(Relaxed) & !IN_NACRE | self.0, Relaxed);
    }
}
