//! Per-thread state in static thread-local storage: no lazy allocation, one instruction to reach.
//!
//! The block is defined in assembly because the entry code reads it before any Rust runs and
//! because it must use the initial-exec model.

use core::arch::{asm, global_asm};
use core::sync::atomic::{
    AtomicI32, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed,
};

use crate::arch::x86_64::entry::Shown;
use crate::kernel::{self, call};
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
/// As `IN_NACRE`, of that child. It means nothing to the parent, which runs again once the child is gone.
pub const CHILD_IN_NACRE: u8 = 4;
/// Whoever of both runs is inside.
pub const INSIDE: u8 = IN_NACRE | CHILD_IN_NACRE;

/// In `deferred`: a signal is, `info` and `mask` are set, and all signals are blocked.
pub const SIGNAL: u8 = 1;
/// In `deferred`: the alternate stack is switched off, `mask` is set, and all signals are blocked.
pub const ALTERNATE: u8 = 2;

/// The alternate stack on which a handler of this thread runs: `stack_t`, all 0 for none.
#[repr(C)]
pub struct Alternate([AtomicUsize; 3]);

impl Alternate {
    /// Start, flags, length.
    pub fn get(&self) -> [usize; 3] {
        [0, 1, 2].map(|i| self.0[i].load(Relaxed))
    }

    pub fn set(&self, words: [usize; 3]) {
        for (place, word) in self.0.iter().zip(words) {
            place.store(word, Relaxed);
        }
    }

    /// Whether an address lies in it.
    pub fn holds(&self, address: usize) -> bool {
        let [start, _, len] = self.get();
        address.wrapping_sub(start) < len
    }

    /// The kernel forgets it. Not to be called on it.
    pub fn disable(&self) {
        let none = [0, libc::SS_DISABLE as usize, 0];
        call(libc::SYS_sigaltstack, &[none.as_ptr() as usize, 0]);
    }

    /// The kernel knows it again. Not to be called on it.
    pub fn enable(&self) {
        let words = self.get();
        call(libc::SYS_sigaltstack, &[words.as_ptr() as usize, 0]);
    }
}

/// State of one thread. All zero at the start of a thread.
#[repr(C, align(64))]
pub struct Thread {
    /// `INSIDE` and `SHARES_MEMORY`; the entry code expects it at offset 0.
    pub flags: AtomicU8,
    /// `SIGNAL` and `ALTERNATE`: what is left to do at the end of the call.
    pub deferred: AtomicU8,
    /// The deferred signal wants an interrupted call restarted.
    pub restart: AtomicU8,
    /// The child that shares memory runs at the same time as we do (clone without CLONE_VFORK).
    pub concurrent: AtomicU8,
    /// Process that set `SHARES_MEMORY`.
    pub parent: AtomicI32,
    /// Signal mask to restore when the operation ends.
    pub mask: AtomicU64,
    /// Stack of ours on which the next call is served: its top. 0 and 1: the entry code asks for one.
    pub stack: AtomicUsize,
    /// Registers of an intercepted call that may be interrupted right now, or null: handlers are shown these.
    pub shown: AtomicPtr<Shown>,
    /// The stack while a handler runs on the program's alternate one, else 0.
    pub spare: AtomicUsize,
    /// Stacks of calls that wait in the kernel, the newest first.
    pub waiting: AtomicUsize,
    /// The stack that a child may use which shares our memory.
    pub lent: AtomicUsize,
    /// Alternate stack on which a handler runs, as far as we know.
    pub alternate: Alternate,
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

impl Thread {
    /// Whether the caller is inside Nacre. What a child was in the middle of that shared our memory and died is forgotten.
    pub fn is_inside(&self) -> bool {
        let flags = self.flags.load(Relaxed);
        if flags & CHILD_IN_NACRE == 0 || kernel::getpid() != self.parent.load(Relaxed) {
            return flags & INSIDE != 0;
        }
        if self.concurrent.load(Relaxed) == 0 {
            self.shown.store(core::ptr::null_mut(), Relaxed);
            self.deferred.store(0, Relaxed);
            self.flags.fetch_and(!CHILD_IN_NACRE, Relaxed);
        }
        flags & IN_NACRE != 0
    }
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
