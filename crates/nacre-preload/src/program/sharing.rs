//! Children that share a thread's memory (vfork, posix_spawn, clone with `CLONE_VM`): who of them
//! calls, with which state.
//!
//! Such a child has its parent's thread pointer too, so both see the same thread-local block. Each
//! child therefore gets a block of its own, in a chain that begins at the thread's, and whoever
//! calls finds its block by its pid. Blocks are never freed but used again: the chain only grows,
//! and is read without a lock.
//!
//! The kernel is asked for the pid once in each call: who shares memory by vfork stands still while
//! the other runs, so that the thread's block can say who it is that calls. Who begins something
//! else than a call, and may be another one since, forgets that first.

use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use crate::program::view::View;
use crate::runtime::kernel::{self, call};
use crate::runtime::stack;
use crate::runtime::tls::{CONCURRENTLY, IN_NACRE, SHARES_MEMORY, Thread, root, thread};

/// In [`Thread::pid`] of a child's block: nobody's.
const FREE: i32 = 0;
/// The child has been or will be started, and has not called yet.
const EXPECTED: i32 = -1;
/// Somebody is about to fill or to empty the block.
const CHANGING: i32 = -2;

/// How far above the place known for a child's stack its first call may be made.
const SLACK: usize = 512;

/// How a child is started.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The thread that starts it stands still until it ends or executes a program.
    Vfork,
    /// It runs at the same time as the thread that starts it.
    Concurrent,
}

/// What makes a block a child's.
#[derive(Default)]
#[repr(C)]
pub struct Origin {
    /// What the child works with; null in a thread's own block.
    view: AtomicPtr<View>,
    /// The block of who started the child.
    starter: AtomicUsize,
    /// The top of its stack.
    stack: AtomicUsize,
    concurrent: AtomicBool,
}

impl Origin {
    /// The child's view, None in a thread's own block.
    pub fn view(&self) -> Option<&View> {
        // SAFETY: set by the starter, who frees it only when this child is gone.
        unsafe { self.view.load(Acquire).as_ref() }
    }

    /// How the child was started.
    pub fn kind(&self) -> Kind {
        match self.concurrent.load(Relaxed) {
            true => Kind::Concurrent,
            false => Kind::Vfork,
        }
    }
}

/// The block of the caller among those of `root`, whose memory is shared. A child calls for the
/// first time with its stack pointer near those of the functions it came from.
#[cold]
pub fn own_block(root: &'static Thread) -> &'static Thread {
    let known = root.caller.load(Relaxed);
    if known != 0 {
        // SAFETY: the entry code or `nacre_claim_block` set it, to a block that lives for ever.
        return unsafe { Thread::at(known) };
    }
    let (pid, here) = (kernel::getpid(), 0u8);
    of_process(root, pid)
        .or_else(|| claim(root, pid, &raw const here as usize))
        .unwrap_or(root)
}

/// As [`own_block`] of a child that calls for the first time, for the entry code: an offset from
/// the thread pointer, 0 if nobody expects the child. `rsp` is the program's stack pointer.
// SAFETY: only the entry code calls it.
pub unsafe extern "C" fn nacre_claim_block(rsp: usize) -> usize {
    let root = root();
    let block = claim(root, kernel::getpid(), rsp).map_or(0, Thread::offset);
    if root.flags.load(Relaxed) & CONCURRENTLY == 0 {
        root.caller.store(block, Relaxed);
    }
    block
}

/// The caller's pid, where memory is shared.
pub fn pid() -> i32 {
    match root().caller.load(Relaxed) {
        0 => kernel::getpid(),
        // SAFETY: as in `own_block`.
        known => unsafe { Thread::at(known) }.pid.load(Relaxed),
    }
}

/// Who runs now may be another than who made the last call: a parent whose child ended in it.
pub fn forget_caller() {
    let root = root();
    if root.flags.load(Relaxed) & SHARES_MEMORY != 0 {
        root.caller.store(0, Relaxed);
    }
}

/// The blocks of the children of `root`.
fn children(root: &Thread) -> impl Iterator<Item = &'static Thread> {
    let follow = |thread: &Thread| {
        let next = thread.next.load(Acquire);
        // SAFETY: `add` set it, to a block that lives for ever.
        (next != 0).then(|| unsafe { Thread::at(next) })
    };
    core::iter::successors(follow(root), move |block| follow(block))
}

fn of_process(root: &'static Thread, pid: i32) -> Option<&'static Thread> {
    core::iter::once(root)
        .chain(children(root))
        .find(|block| block.pid.load(Acquire) == pid)
}

/// Takes the block that was made for the child with this stack pointer.
fn claim(root: &Thread, pid: i32, rsp: usize) -> Option<&'static Thread> {
    loop {
        let below = |block: &&Thread| (block.origin.stack.load(Relaxed) + SLACK).wrapping_sub(rsp);
        let expected = children(root).filter(|block| block.pid.load(Acquire) == EXPECTED);
        let nearest = expected.min_by_key(below);
        // A handler may have come in between and taken it for the same child.
        let Some(block) = nearest else {
            return children(root).find(|block| block.pid.load(Acquire) == pid);
        };
        if become_owner(block, EXPECTED, pid) {
            return Some(block);
        }
    }
}

fn become_owner(block: &Thread, before: i32, after: i32) -> bool {
    let exchanged = block.pid.compare_exchange(before, after, AcqRel, Relaxed);
    exchanged.is_ok()
}

/// Before the caller starts a child: keeps `view` for it. `stack`: top of the child's stack.
pub fn expect(view: View, kind: Kind, stack: usize) {
    let (root, starter) = (root(), thread());
    if root.flags.load(Relaxed) & SHARES_MEMORY == 0 {
        root.pid.store(kernel::getpid(), Relaxed);
    }
    let free = children(root).find(|block| become_owner(block, FREE, CHANGING));
    let block = free.unwrap_or_else(|| add(root));
    block.blocked.store(starter.blocked.load(Relaxed), Relaxed);
    if kind == Kind::Vfork {
        block.alternate.set(starter.alternate.get());
    }
    let origin = &block.origin;
    origin.view.store(Box::into_raw(Box::new(view)), Release);
    origin.starter.store(address(starter), Relaxed);
    origin.stack.store(stack, Relaxed);
    origin.concurrent.store(kind == Kind::Concurrent, Relaxed);
    block.pid.store(EXPECTED, Release);
    let flags = match kind {
        Kind::Vfork => SHARES_MEMORY,
        Kind::Concurrent => SHARES_MEMORY | CONCURRENTLY,
    };
    if root.flags.load(Relaxed) & flags != flags {
        root.flags.fetch_or(flags, Relaxed);
        let known = kind == Kind::Vfork;
        root.caller
            .store(if known { starter.offset() } else { 0 }, Relaxed);
    }
}

fn address(block: &Thread) -> usize {
    core::ptr::from_ref(block) as usize
}

/// A new block in the chain, `CHANGING`.
fn add(root: &Thread) -> &'static Thread {
    let block: &'static Thread = Box::leak(Box::default());
    block.pid.store(CHANGING, Relaxed);
    let mut first = root.next.load(Acquire);
    loop {
        block.next.store(first, Relaxed);
        let offset = block.offset();
        match root.next.compare_exchange(first, offset, AcqRel, Acquire) {
            Ok(_) => return block,
            Err(other) => first = other,
        }
    }
}

/// Empties the blocks of children that are gone: those for whose end `me`, who runs, had to wait,
/// and with `all` those that have ended since. `take_down` gets the view of each, and the child's
/// pid if it ever called.
pub fn release_ended(me: &Thread, all: bool, take_down: impl Fn(View, Option<i32>)) {
    let root = root();
    for block in children(root) {
        let pid = block.pid.load(Acquire);
        let gone = match block.origin.kind() {
            Kind::Vfork => block.origin.starter.load(Relaxed) == address(me),
            Kind::Concurrent => all && pid > 0 && !lives(pid),
        };
        if gone && matches!(pid, EXPECTED | 1..) && become_owner(block, pid, CHANGING) {
            let view = block.origin.view.swap(core::ptr::null_mut(), Acquire);
            // SAFETY: `expect` made the box, and its user is gone.
            let view = unsafe { Box::from_raw(view) };
            take_down(*view, (pid > 0).then_some(pid));
            stack::give_all(block);
            block.reset();
            block.pid.store(FREE, Release);
        }
    }
    let unused = || children(root).all(|block| block.pid.load(Acquire) == FREE);
    if core::ptr::eq(me, root) && unused() {
        let alone = !(SHARES_MEMORY | CONCURRENTLY);
        root.flags.fetch_and(alone, Relaxed);
    }
}

fn lives(pid: i32) -> bool {
    call(libc::SYS_kill, &[pid as usize, 0]) != -libc::ESRCH as isize
}

/// In a child with memory of its own: its thread's block holds what that of who forked, `me`, held.
pub fn after_fork_child(me: &Thread) {
    let root = root();
    if !core::ptr::eq(me, root) {
        root.take_over(me);
    }
    root.next.store(0, Relaxed);
    root.caller.store(0, Relaxed);
    root.flags.store(IN_NACRE, Relaxed);
}
