//! Processes: fork, exec, exit.

use libc::{SYS_clone, SYS_clone3, SYS_execve, SYS_execveat, SYS_exit_group, SYS_fork, SYS_vfork};

use crate::calls::mounts;
use crate::entry::abi::CloneArgs;
use crate::entry::call::{Call, Verdict, path_at, path_in};
use crate::entry::errno::Stop;
use crate::entry::table::{ServedCall, entry};
use crate::entry::user;
use crate::program::exec;
use crate::program::process;
use crate::program::sharing::Kind;

/// The calls of this family.
pub const ENTRIES: &[ServedCall] = &[
    entry(SYS_fork, "fork", |c| process::fork(c, [0; 6], 0)),
    entry(SYS_vfork, "vfork", |c| share_memory(c, Kind::Vfork, 0)),
    entry(SYS_clone, "clone", clone),
    entry(SYS_clone3, "clone3", clone3),
    entry(SYS_execve, "execve", |c| {
        exec::execve(c, path_in(0), [1, 2], 0)
    }),
    entry(SYS_execveat, "execveat", |c| {
        exec::execve(c, path_at(0), [2, 3], c.int(4))
    }),
    entry(SYS_exit_group, "exit_group", exit_group),
];

fn clone(c: &mut Call<'_>) -> Verdict {
    use_own_thread_pointer(c);
    let (flags, stack) = (c.arg(0) as u64, c.arg(1));
    if let Some(verdict) = in_same_memory(c, flags, stack) {
        return verdict;
    }
    in_new_namespaces(c, flags);
    let mut args = c.frame().args;
    args[1] = 0;
    process::fork(c, args, stack)
}

/// A child for which the caller stands still runs with the caller's thread pointer, as one of vfork
/// does, if it was to have one that points to nothing of a thread's. Sandboxes give such children
/// empty bytes there, where we look for the state of the thread.
fn use_own_thread_pointer(c: &mut Call<'_>) {
    const STANDS_STILL: i32 = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_SETTLS;
    let (flags, pointer) = (c.arg(0), c.arg(4));
    let applies = flags as i32 & (STANDS_STILL | libc::CLONE_THREAD) == STANDS_STILL;
    // The first word that a thread pointer points to is its own address.
    if applies && user::read::<usize>(pointer) != Ok(pointer) {
        c.frame().args[0] = flags & !(libc::CLONE_SETTLS as usize);
    }
}

/// Bytes of `struct clone_args`.
const CLONE_ARGS_LEAST: usize = size_of::<CloneArgs>();
const CLONE_ARGS_MOST: usize = 4096;

fn clone3(c: &mut Call<'_>) -> Verdict {
    match c.arg(1) {
        0..CLONE_ARGS_LEAST => return Err(Stop::Errno(libc::EINVAL)),
        CLONE_ARGS_LEAST..=CLONE_ARGS_MOST => {}
        _ => return Err(Stop::Errno(libc::E2BIG)),
    }
    let mut args: CloneArgs = c.read(0)?;
    let top = args.stack as usize + args.stack_size as usize;
    if let Some(verdict) = in_same_memory(c, args.flags, top) {
        return verdict;
    }
    in_new_namespaces(c, args.flags);
    if c.arg(1) > size_of::<CloneArgs>() && args.stack == 0 {
        return process::fork(c, [c.arg(0), c.arg(1), 0, 0, 0, 0], 0);
    }
    (args.stack, args.stack_size) = (0, 0);
    process::fork(
        c,
        [&raw const args as usize, size_of::<CloneArgs>(), 0, 0, 0, 0],
        top,
    )
}

/// A child in namespaces of its own may not be able to attach pools any more.
fn in_new_namespaces(c: &Call<'_>, flags: u64) {
    const NEW: i32 = libc::CLONE_NEWPID | libc::CLONE_NEWUSER | libc::CLONE_NEWNS;
    // `CLONE_NEWTIME` is among the bits of a signal; only clone3 takes it.
    const NEW_TIME: u64 = 0x80;
    if flags & (NEW as u64 | NEW_TIME) != 0 {
        nacre_session::namespaces_may_differ();
        c.vfs().open_all();
    }
    mounts::in_new_namespace(flags);
}

/// Threads and children that share our memory start natively. `stack`: top of the new one, 0 for
/// the caller's.
fn in_same_memory(c: &mut Call<'_>, flags: u64, stack: usize) -> Option<Verdict> {
    if flags & libc::CLONE_VM as u64 == 0 {
        return None;
    }
    if flags & libc::CLONE_THREAD as u64 != 0 {
        return Some(process::start_thread(c.vfs()));
    }
    let kind = match flags & libc::CLONE_VFORK as u64 {
        0 => Kind::Concurrent,
        _ => Kind::Vfork,
    };
    Some(share_memory(c, kind, stack))
}

fn share_memory(c: &mut Call<'_>, kind: Kind, stack: usize) -> Verdict {
    let stack = match stack {
        0 => c.frame().shown.rsp,
        stack => stack,
    };
    process::share_memory(c, kind, stack)
}

fn exit_group(c: &mut Call<'_>) -> Verdict {
    process::exit(c.vfs());
    Err(Stop::Native)
}
