//! Running code on a stack of ours: a fault may arrive on a program's small alternate stack.

use core::arch::global_asm;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::spin::SpinLock;

const SIZE: usize = 256 << 10;

/// Top of the one stack, 0 before its first use. Whoever runs on it holds the lock.
static TOP: SpinLock<usize> = SpinLock::new(0);

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

/// Runs `f` on our own stack, one thread at a time. None if there is no memory for it.
pub fn on_own_stack<T>(f: impl FnOnce() -> T) -> Option<T> {
    struct Job<F, T>(Option<F>, Option<T>);
    // SAFETY: only the assembly below calls it, with the Job that `on_own_stack` holds alive.
    unsafe extern "C" fn run<F: FnOnce() -> T, T>(job: *mut u8) {
        // SAFETY: `job` is the Job below, alive until this returns.
        let job = unsafe { &mut *job.cast::<Job<F, T>>() };
        job.1 = job.0.take().map(|f| f());
    }
    fn runner<F: FnOnce() -> T, T>(_: &Job<F, T>) -> unsafe extern "C" fn(*mut u8) {
        run::<F, T>
    }
    let mut top = TOP.lock();
    if *top == 0 {
        *top = new_stack()?;
    }
    let mut job = Job(Some(f), None);
    let runner = runner(&job);
    // SAFETY: the stack is ours alone while the lock is held; the job outlives the call.
    unsafe { nacre_call_on((&raw mut job).cast(), runner, *top) };
    job.1
}

fn new_stack() -> Option<usize> {
    // SAFETY: a fresh private mapping.
    let stack = unsafe {
        mmap_anonymous(
            core::ptr::null_mut(),
            SIZE,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    };
    Some(stack.ok()? as usize + SIZE)
}

/// Held across a fork.
pub fn lock_for_fork() {
    TOP.hold_for_fork();
}

/// Undoes [`lock_for_fork`].
pub fn unlock_after_fork() {
    TOP.release_after_fork();
}
