//! Alternate stacks that a program has made unusable, on purpose.
//!
//! Our handler of SIGSEGV and SIGBUS runs where the program's would. Bad pointers given to calls
//! end in it, too, so it must run even where the program's could not: while the alternate stack of
//! a thread cannot be written, it runs on the stack that was interrupted.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::runtime::PAGE;
use crate::runtime::kernel::call;

/// Where the last alternate stack begins that was made unusable; 0: none was.
static UNUSABLE: AtomicUsize = AtomicUsize::new(0);

/// Whether our handlers must not run on alternate stacks.
pub fn avoided() -> bool {
    UNUSABLE.load(Relaxed) != 0
}

/// Whether the kernel could begin no handler on this thread's alternate stack.
pub fn is_unusable() -> bool {
    let spoiled = |&[start, _]: &[usize; 2]| start == UNUSABLE.load(Relaxed);
    let stack = current().filter(|stack| avoided() && spoiled(stack));
    stack.is_some_and(|stack| !is_writable(stack))
}

/// Whether there is other memory meanwhile.
fn is_writable([start, len]: [usize; 2]) -> bool {
    let last_page = (start + len - 1) & !(PAGE - 1);
    let advice = libc::MADV_POPULATE_WRITE as usize;
    call(libc::SYS_madvise, &[last_page, PAGE, advice]) == 0
}

/// Start and length of this thread's alternate stack.
fn current() -> Option<[usize; 2]> {
    let mut words = [0usize; 3];
    call(libc::SYS_sigaltstack, &[0, words.as_mut_ptr() as usize]);
    let [start, flags, len] = words;
    (flags as i32 & libc::SS_DISABLE == 0).then_some([start, len])
}

/// Before memory becomes writable, or not. Whether handlers are to run elsewhere from now on.
pub fn protected(start: usize, len: usize, writable: bool) -> bool {
    let end = start.saturating_add(len);
    let touched = |[stack, len]: [usize; 2]| start < stack + len && stack < end;
    let Some([stack, _]) = current().filter(|&stack| touched(stack)) else {
        return false;
    };
    UNUSABLE.store(if writable { 0 } else { stack }, Relaxed);
    true
}
