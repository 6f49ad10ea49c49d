//! Contexts of Linux AIO whose requests may complete later than they were handed in.
//!
//! A completion names a block of ours until its name is replaced. Who takes completions by calls
//! never sees that; who reads the kernel's ring could. So requests complete later only where all
//! completions so far were taken by calls.

use crate::runtime::kernel::nap;
use crate::runtime::spin::SpinLock;

struct Context {
    number: usize,
    /// Completions that were taken by calls.
    taken: u32,
    /// Requests that are not completed yet.
    waiting: u32,
}

static CONTEXTS: SpinLock<Vec<Context>> = SpinLock::new(Vec::new());

fn with<T>(number: usize, act: impl FnOnce(&mut Context) -> T) -> T {
    let mut contexts = CONTEXTS.lock();
    let known = contexts.iter().position(|context| context.number == number);
    let place = known.unwrap_or_else(|| {
        contexts.push(Context {
            number,
            taken: 0,
            waiting: 0,
        });
        contexts.len() - 1
    });
    act(&mut contexts[place])
}

/// So many completions were taken by a call.
pub fn have_taken(number: usize, count: u32) {
    with(number, |context| {
        context.taken = context.taken.wrapping_add(count);
    });
}

/// Whether some were, and no other way, if the next one in a ring for `len` is `head`.
pub fn takes_by_calls(number: usize, head: u32, len: u32) -> bool {
    with(number, |context| {
        context.taken > 0 && context.taken % len == head
    })
}

/// A request will be completed later.
pub fn one_more(number: usize) {
    with(number, |context| context.waiting += 1);
}

/// It is.
pub fn one_less(number: usize) {
    with(number, |context| context.waiting -= 1);
}

/// The context is to go: waits for its requests, as the kernel does.
pub fn wait_for_all(number: usize) {
    while with(number, |context| context.waiting) > 0 {
        nap();
    }
    CONTEXTS.lock().retain(|context| context.number != number);
}

/// Contexts are the parent's.
pub fn after_fork_child() {
    CONTEXTS.release_after_fork();
    core::mem::forget(core::mem::take(&mut *CONTEXTS.lock()));
}
