//! Stacks of our own, so that a call needs next to nothing of the program's: handlers of signals
//! run on alternate stacks of a few KiB, and so do some threads.
//!
//! Each thread has one, found by the entry code in [`Thread::stack`]. A call that waits in the
//! kernel takes its stack with it: handlers that run meanwhile, and what they call, get another
//! one.

use core::arch::global_asm;
use core::sync::atomic::{
    AtomicI32, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::arch::x86_64::entry::Frame;
use crate::entry::user;
use crate::runtime::kernel::{self, call};
use crate::runtime::mask;
use crate::runtime::spin::SpinLock;
use crate::runtime::tls::{ALTERNATE, Thread, thread};

const SIZE: usize = 256 << 10;
const GUARD: usize = 4096;

/// Flag of an alternate stack: the kernel forgets it while a handler runs.
const SS_AUTODISARM: usize = 1 << 31;

/// Above the topmost byte of a stack.
#[repr(C, align(64))]
struct Header {
    /// The stack that was made before.
    older: AtomicUsize,
    /// Among those of calls that wait: the next one.
    next: AtomicUsize,
    /// Thread that uses the stack, 0 for none.
    tid: AtomicI32,
    /// Its process: this one, or one that shares our memory.
    pid: AtomicI32,
    /// Where the handler that interrupted the waiting call keeps its [`Mark`]; 0 before.
    mark: AtomicUsize,
}

/// Lies on the stack of a handler that interrupted a waiting call, as long as the handler runs.
/// Once other bytes lie there the handler was left by a jump, and nobody comes back to the call.
type Mark = [usize; 2];

const MARK: usize = 0x6e61_6372_655f_6d6b;

/// All stacks. Threads end unseen, so whoever needs a stack looks at a few each time.
struct Known {
    newest: usize,
    /// Where the next look begins; 0: at the newest.
    look: usize,
}

static KNOWN: SpinLock<Known> = SpinLock::new(Known { newest: 0, look: 0 });

/// How many stacks are asked for whether their thread lives still.
const LOOKS: usize = 8;

unsafe extern "C" {
    fn nacre_call_on(argument: *mut u8, function: unsafe extern "C" fn(*mut u8), top: usize);
}

global_asm!(
    ".text",
    ".globl nacre_call_on",
    ".hidden nacre_call_on",
    "nacre_call_on:",
    "push rbp",
    "mov rbp, rsp",
    "mov rsp, rdx",
    "call rsi",
    "mov rsp, rbp",
    "pop rbp",
    "ret",
);

impl Header {
    /// The calling thread uses the stack.
    fn is_mine(&self) {
        self.pid.store(kernel::getpid(), Relaxed);
        self.tid.store(kernel::gettid(), Relaxed);
    }

    /// Whether it is of a thread of process `me` that has ended. Who shares our memory gives its
    /// stacks when it ends. Only calls that `raise` makes, too: sandboxes kill at others.
    fn is_left(&self, me: i32) -> bool {
        let [pid, tid] = [&self.pid, &self.tid].map(|number| number.load(Relaxed));
        let gone = -libc::ESRCH as isize;
        pid == me && call(libc::SYS_tgkill, &[pid as usize, tid as usize, 0]) == gone
    }
}

/// The header of the stack with this top.
fn header(top: usize) -> &'static Header {
    // SAFETY: every top comes from `map`, which keeps a header there for ever; all fields are
    // atomic.
    unsafe { &*(top as *const Header) }
}

/// Runs `f` on a stack of ours. None if there is no memory for it.
pub fn on_own_stack<T>(f: impl FnOnce() -> T) -> Option<T> {
    let top = take().or_else(map)?;
    let result = run_on(top, f);
    give(top);
    result
}

/// As [`on_own_stack`], for what needs as much stack as the main thread of a program has.
pub fn on_large_stack<T>(f: impl FnOnce() -> T) -> Option<T> {
    const LARGE: usize = 8 << 20;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::STACK;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh private mapping.
    let start = unsafe { mmap_anonymous(core::ptr::null_mut(), LARGE, access, flags) }.ok()?;
    // SAFETY: the lowest page of the mapping, which nobody knows yet.
    let guarded = unsafe { mprotect(start, GUARD, MprotectFlags::empty()) };
    let result = guarded
        .ok()
        .and_then(|()| run_on(start as usize + LARGE, f));
    // SAFETY: nobody uses it any more.
    let _ = unsafe { munmap(start, LARGE) };
    result
}

fn run_on<T>(top: usize, f: impl FnOnce() -> T) -> Option<T> {
    struct Job<F, T>(Option<F>, Option<T>);
    // SAFETY: only the assembly above calls it, with the Job that `run_on` holds alive.
    unsafe extern "C" fn run<F: FnOnce() -> T, T>(job: *mut u8) {
        // SAFETY: `job` is the Job below, alive until this returns.
        let job = unsafe { &mut *job.cast::<Job<F, T>>() };
        job.1 = job.0.take().map(|f| f());
    }
    fn runner<F: FnOnce() -> T, T>(_: &Job<F, T>) -> unsafe extern "C" fn(*mut u8) {
        run::<F, T>
    }
    let mut job = Job(Some(f), None);
    let runner = runner(&job);
    // SAFETY: the stack is ours alone; the job outlives the call.
    unsafe { nacre_call_on((&raw mut job).cast(), runner, top) };
    job.1
}

/// A new stack, mapped lazily above a page that nobody can touch.
#[cold]
fn map() -> Option<usize> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::STACK;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh private mapping.
    let start = unsafe { mmap_anonymous(core::ptr::null_mut(), SIZE, access, flags) }.ok()?;
    // SAFETY: the lowest page of the mapping, which nobody knows yet.
    unsafe { mprotect(start, GUARD, MprotectFlags::empty()) }.ok()?;
    let top = start as usize + SIZE - size_of::<Header>();
    header(top).is_mine();
    let mut known = KNOWN.lock();
    header(top).older.store(known.newest, Relaxed);
    known.newest = top;
    Some(top)
}

/// The stacks from `first` on that `link` leads to.
fn chain(first: usize, link: fn(usize) -> &'static AtomicUsize) -> impl Iterator<Item = usize> {
    let some = |top: usize| (top != 0).then_some(top);
    core::iter::successors(some(first), move |&top| some(link(top).load(Relaxed)))
}

impl Known {
    fn all(&self) -> impl Iterator<Item = usize> {
        chain(self.newest, |top| &header(top).older)
    }

    /// A stack whose thread has ended.
    fn of_ended(&mut self) -> Option<usize> {
        let me = kernel::getpid();
        for _ in 0..LOOKS {
            let top = if self.look == 0 {
                self.newest
            } else {
                self.look
            };
            if top == 0 {
                return None;
            }
            self.look = header(top).older.load(Relaxed);
            if header(top).is_left(me) {
                return Some(top);
            }
        }
        None
    }
}

/// A stack that nobody uses.
fn take() -> Option<usize> {
    let mut known = KNOWN.lock();
    let free = known.all().find(|&top| header(top).tid.load(Relaxed) == 0);
    let top = free.or_else(|| known.of_ended())?;
    header(top).is_mine();
    Some(top)
}

/// Whoever comes next may have the stack.
fn give(top: usize) {
    header(top).tid.store(0, Release);
}

/// The stack on which the next call of a thread is served that has none or none that it may use:
/// its top, or 0 for the program's stack, whose pointer is `rsp`.
// SAFETY: only the entry code calls it, inside Nacre.
pub unsafe extern "C" fn nacre_find_stack(rsp: usize) -> usize {
    let thread = thread();
    let alternate = thread.alternate.holds(rsp);
    let kept = [&thread.stack, &thread.spare].map(|place| place.swap(0, Relaxed));
    let kept = kept.into_iter().find(|&top| top != 0);
    let fresh = || left_behind(thread).or_else(take).or_else(map);
    let top = kept.or_else(fresh).unwrap_or(0);
    if !alternate {
        thread.alternate.set([0; 3]);
        thread.stack.store(top, Relaxed);
    } else if top != 0 {
        // Off its alternate stack the kernel would begin it again for the next signal, over the
        // handler that is there.
        thread.spare.store(top, Relaxed);
        mask::block(thread);
        run_on(top, || thread.alternate.disable());
        thread.deferred.fetch_or(ALTERNATE, Relaxed);
    }
    top
}

/// A handler begins whose frame lies at `at`: on the alternate stack, if the kernel says that this
/// is there. What was known before, to be given to [`handler_ends`].
pub fn handler_begins(thread: &Thread, at: usize, [start, flags, len]: [usize; 3]) -> [usize; 3] {
    let before = thread.alternate.get();
    // The kernel itself switches an alternate stack off that is to be.
    let off = flags & SS_AUTODISARM != 0;
    if !off && at.wrapping_sub(start) < len {
        thread.alternate.set([start, flags, len]);
        let top = thread.stack.load(Relaxed);
        if top != 0 {
            thread.spare.store(top, Relaxed);
            thread.stack.store(0, Relaxed);
        }
    }
    before
}

/// The handler returns.
pub fn handler_ends(thread: &Thread, before: [usize; 3]) {
    thread.alternate.set(before);
    if before == [0; 3] && thread.stack.load(Relaxed) == 0 {
        thread.stack.store(thread.spare.swap(0, Relaxed), Relaxed);
    }
}

/// The call of `frame` is about to wait in the kernel: what is called meanwhile runs elsewhere. The
/// program's stack pointer if it must be set, else 0.
pub fn suspend(thread: &Thread, frame: &Frame) -> usize {
    if frame.stack == 0 {
        return 0;
    }
    let header = header(frame.stack);
    header.mark.store(0, Relaxed);
    header.next.store(thread.waiting.load(Relaxed), Relaxed);
    thread.waiting.store(frame.stack, Relaxed);
    thread.stack.store(0, Relaxed);
    thread.spare.store(0, Relaxed);
    frame.shown.rsp
}

/// The call of `frame` is back.
pub fn resume(thread: &Thread, frame: &Frame) {
    if frame.stack == 0 {
        return;
    }
    forget(thread, frame.stack);
    let mine = match thread.alternate.get() {
        [0, 0, 0] => &thread.stack,
        _ => &thread.spare,
    };
    let other = mine.swap(frame.stack, Relaxed);
    if other != 0 {
        give(other);
    }
}

/// Takes a stack out of the list of waiting calls.
fn forget(thread: &Thread, top: usize) {
    let mut link = &thread.waiting;
    loop {
        match link.load(Relaxed) {
            0 => return,
            found if found == top => break,
            other => link = &header(other).next,
        }
    }
    link.store(header(top).next.load(Relaxed), Relaxed);
}

/// A stack whose call will never come back, as the handler that interrupted it was left by a jump.
fn left_behind(thread: &Thread) -> Option<usize> {
    let mut waiting = chain(thread.waiting.load(Relaxed), |top| &header(top).next);
    let top = waiting.find(|&top| {
        let at = header(top).mark.load(Acquire);
        at != 0 && user::read::<Mark>(at) != Ok([MARK, top])
    })?;
    forget(thread, top);
    Some(top)
}

/// A handler that interrupts the newest waiting call marks it as long as it runs. Nothing is
/// dropped when the handler is left by a jump or an exception: the unwinder may be another copy
/// than ours, which knows only frames without cleanups.
pub struct Interrupted(Mark);

impl Interrupted {
    /// No mark yet.
    pub const fn new() -> Self {
        Interrupted([0; 2])
    }

    /// To be called where the value stays until it is dropped. `shown` is what handlers are shown
    /// of the interrupted call.
    pub fn mark(&mut self, thread: &Thread, shown: usize) {
        let top = thread.waiting.load(Relaxed);
        if top != 0 && top.wrapping_sub(shown) < SIZE {
            self.0 = [MARK, top];
            header(top).mark.store(self.0.as_ptr() as usize, Release);
        }
    }

    /// The handler has returned.
    pub fn end(self) {
        let [_, top] = self.0;
        if top != 0 {
            header(top).mark.store(0, Relaxed);
        }
    }
}

/// The stacks that a thread has.
fn held(thread: &Thread) -> impl Iterator<Item = usize> {
    let waiting = chain(thread.waiting.load(Relaxed), |top| &header(top).next);
    let own = [&thread.stack, &thread.spare].map(|place| place.load(Relaxed));
    own.into_iter().filter(|&top| top != 0).chain(waiting)
}

/// A child that shared memory leaves its stacks.
pub fn give_all(thread: &Thread) {
    held(thread).for_each(give);
}

/// In a child: only the stacks of the thread that forked are in use.
pub fn after_fork_child() {
    let known = KNOWN.lock();
    known.all().for_each(give);
    for top in held(thread()) {
        header(top).is_mine();
    }
}

/// Held across a fork.
pub fn lock_for_fork() {
    KNOWN.hold_for_fork();
}

/// Undoes [`lock_for_fork`].
pub fn unlock_after_fork() {
    KNOWN.release_after_fork();
}
