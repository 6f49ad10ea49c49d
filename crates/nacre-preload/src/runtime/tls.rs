//! Per-thread state in static thread-local storage: no lazy allocation, one instruction to reach.
//!
//! The block is defined in assembly because the entry code reads it before any Rust runs and
//! because it must use the initial-exec model.

use core::arch::{asm, global_asm};
use core::sync::atomic::{
    AtomicI32, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed,
};

use crate::arch::x86_64::entry::Shown;
use crate::program::sharing::{self, Origin};
use crate::runtime::kernel::call;

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
/// In the block of a thread: children share its memory, and with it this block (vfork). Ask who we
/// are at each call.
pub const SHARES_MEMORY: u8 = 2;
/// With it: some of them run at the same time as the thread.
pub const CONCURRENTLY: u8 = 4;

/// In `deferred`: a signal is, `info` and `mask` are set, and all signals are blocked.
pub const SIGNAL: u8 = 1;
/// In `deferred`: the alternate stack is switched off, `mask` is set, and all signals are blocked.
pub const ALTERNATE: u8 = 2;

/// The alternate stack on which a handler of this thread runs: `stack_t`, all 0 for none.
#[derive(Default)]
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

/// State of one thread, or of a child that shares a thread's memory (`sharing`). All zero at the
/// start.
#[derive(Default)]
#[repr(C, align(64))]
pub struct Thread {
    /// `IN_NACRE`, `SHARES_MEMORY`, `CONCURRENTLY`; the entry code expects it at offset 0.
    pub flags: AtomicU8,
    /// `SIGNAL` and `ALTERNATE`: what is left to do at the end of the call.
    pub deferred: AtomicU8,
    /// The deferred signal wants an interrupted call restarted.
    pub restart: AtomicU8,
    /// The owner of this block, once memory is shared: a pid, or a state that `sharing` gives.
    pub pid: AtomicI32,
    /// Signal mask to restore when the operation ends.
    pub mask: AtomicU64,
    /// Stack of ours on which the next call is served: its top. 0: the entry code asks for one.
    pub stack: AtomicUsize,
    /// Registers of an intercepted call that may be interrupted right now, or null: handlers are
    /// shown these.
    pub shown: AtomicPtr<Shown>,
    /// The stack while a handler runs on the program's alternate one, else 0.
    pub spare: AtomicUsize,
    /// Stacks of calls that wait in the kernel, the newest first.
    pub waiting: AtomicUsize,
    /// Alternate stack on which a handler runs, as far as we know.
    pub alternate: Alternate,
    /// SIGSEGV and SIGBUS as far as the program thinks that they are blocked, as a signal set.
    pub blocked: AtomicU64,
    /// The next block of those who share this thread's memory, as an offset from the thread
    /// pointer; 0: none.
    pub next: AtomicUsize,
    /// In the block of a thread whose memory is shared: the block of who made the call that is
    /// served, as an offset from the thread pointer; 0: not known, or others run meanwhile.
    pub caller: AtomicUsize,
    /// What makes this block a child's.
    pub origin: Origin,
    /// The page of a mapping that was there when this thread met a fault at it, or 0.
    pub retried: AtomicUsize,
    /// The deferred siginfo.
    pub info: [AtomicU64; 16],
}

const _: () = assert!(core::mem::offset_of!(Thread, flags) == 0);

/// The block of the calling thread, which children that share its memory see as theirs too.
#[inline]
pub fn root() -> &'static Thread {
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

/// Whether children may share this thread's memory, or the caller is one.
#[inline]
pub fn shares_memory() -> bool {
    root().flags.load(Relaxed) & SHARES_MEMORY != 0
}

/// State of the caller.
#[inline]
pub fn thread() -> &'static Thread {
    let root = root();
    if root.flags.load(Relaxed) & SHARES_MEMORY == 0 {
        return root;
    }
    sharing::own_block(root)
}

/// Where the thread pointer points.
fn thread_pointer() -> usize {
    let at: usize;
    // SAFETY: the first word there is its own address.
    unsafe { asm!("mov {0}, qword ptr fs:[0]", out(reg) at, options(pure, readonly, nostack)) };
    at
}

impl Thread {
    /// Where the block is, from the thread pointer.
    pub fn offset(&self) -> usize {
        (core::ptr::from_ref(self) as usize).wrapping_sub(thread_pointer())
    }

    /// The block at an offset from the thread pointer.
    ///
    /// # Safety
    /// The offset is that of a block that is never freed.
    pub unsafe fn at(offset: usize) -> &'static Thread {
        // SAFETY: the caller's promise.
        unsafe { &*(thread_pointer().wrapping_add(offset) as *const Thread) }
    }

    /// Nothing is going on. For a block that nobody uses.
    pub fn reset(&self) {
        self.take_over(&Thread::default());
        self.flags.store(0, Relaxed);
    }

    /// Goes on with what is going on in `other`, which is not used any more.
    pub fn take_over(&self, other: &Thread) {
        self.deferred.store(other.deferred.load(Relaxed), Relaxed);
        self.restart.store(other.restart.load(Relaxed), Relaxed);
        self.mask.store(other.mask.load(Relaxed), Relaxed);
        self.stack.store(other.stack.load(Relaxed), Relaxed);
        self.shown.store(other.shown.load(Relaxed), Relaxed);
        self.spare.store(other.spare.load(Relaxed), Relaxed);
        self.waiting.store(other.waiting.load(Relaxed), Relaxed);
        self.alternate.set(other.alternate.get());
        self.blocked.store(other.blocked.load(Relaxed), Relaxed);
        for (word, other) in self.info.iter().zip(&other.info) {
            word.store(other.load(Relaxed), Relaxed);
        }
    }

    /// Whether the caller, whose block this is, is inside Nacre.
    pub fn is_inside(&self) -> bool {
        self.flags.load(Relaxed) & IN_NACRE != 0
    }
}

/// Marks the thread as inside Nacre for the life of the value, for code that is not
/// entered through the system-call table (initialisation).
pub struct Inside(u8);

impl Inside {
    /// Enters; remembers whether the thread was inside already.
    pub fn enter() -> Self {
        let flags = &root().flags;
        let before = flags.load(Relaxed);
        flags.store(before | IN_NACRE, Relaxed);
        Inside(before & IN_NACRE)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let flags = &root().flags;
        flags.store(flags.load(Relaxed) & !IN_NACRE | self.0, Relaxed);
    }
}
