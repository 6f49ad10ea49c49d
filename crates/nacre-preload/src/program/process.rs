//! The process's file system state, through fork and vfork.

use core::sync::atomic::{
    AtomicBool, AtomicPtr, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use nacre_media::{Caller, tell_callers_apart};
use nacre_vfs::Vfs;

use crate::calls::rings::{ring, workers};
use crate::entry::call::{Call, Verdict};
use crate::entry::errno::Stop;
use crate::mapping;
use crate::program::by_kernel;
use crate::program::host;
use crate::program::image::Image;
use crate::program::instances;
use crate::program::sharing::{self, Kind};
use crate::program::view::{View, lost};
use crate::runtime::allocator;
use crate::runtime::kernel;
use crate::runtime::mask;
use crate::runtime::signals;
use crate::runtime::stack;
use crate::runtime::tls::{Thread, shares_memory, thread};

static VFS: AtomicPtr<Vfs> = AtomicPtr::new(core::ptr::null_mut());

static CALLER: Caller = || {
    let view = thread().origin.view();
    view.map_or(0, |view| core::ptr::from_ref(view) as usize)
};

/// The state, once the mounts are attached.
#[inline]
pub fn vfs() -> Option<&'static Vfs> {
    // SAFETY: null, or a leaked box.
    unsafe { VFS.load(Acquire).as_ref() }
}

/// Calls are served from now on.
pub fn start(vfs: Vfs) -> &'static Vfs {
    let vfs = Box::leak(Box::new(vfs));
    VFS.store(vfs, Release);
    vfs
}

/// A process that has left its pools, to execute a program.
pub struct Left {
    before: &'static Vfs,
    fresh: &'static Vfs,
}

/// Before exec, in a process with one thread: leaves all pools if nothing in them is open. Handlers
/// that run before the new program attach them again.
pub fn leave_pools(vfs: &'static Vfs) -> Option<Left> {
    if nacre_session::has_moved() {
        // The new program may not be able to attach them, and is to say so at its start.
        return None;
    }
    let fresh: &'static Vfs = Box::leak(Box::new(vfs.leave_pools()?));
    use_state(fresh);
    Some(Left { before: vfs, fresh })
}

impl Left {
    /// The program could not be executed.
    pub fn join_again(self) {
        if !self.before.join_again(self.fresh) {
            return;
        }
        use_state(self.before);
        // SAFETY: `leave_pools` leaked it; the only thread has just ceased to use it.
        drop(unsafe { Box::from_raw(core::ptr::from_ref(self.fresh).cast_mut()) });
    }
}

/// The caller's state from now on.
fn use_state(vfs: &'static Vfs) {
    let state = core::ptr::from_ref(vfs).cast_mut();
    match thread().origin.view() {
        None => VFS.store(state, Release),
        Some(view) => view.use_instead(state),
    }
}

/// Whether this process ever had a second thread.
static THREADED: AtomicBool = AtomicBool::new(false);

/// Before a thread is started. One in a child that shares its parent's memory would be taken for
/// the parent's.
pub fn start_thread(vfs: &Vfs) -> Verdict {
    if thread().origin.view().is_some() {
        let message = b"nacre: a process in its parent's memory (clone with CLONE_VM) cannot start threads here\n";
        kernel::write_all(2, message);
        return Err(Stop::Errno(libc::EAGAIN));
    }
    now_threaded(vfs);
    Err(Stop::Native)
}

/// From now on other threads may run beside the caller.
pub fn now_threaded(vfs: &Vfs) {
    THREADED.store(true, Relaxed);
    // The first time asks the C library where the clock is, which may wait for another thread that
    // loads a library.
    let _ = nacre_types::Timestamp::now();
    vfs.now_threaded();
}

/// Before the process ends. While other threads run they may be inside Nacre, until the kernel
/// stops them: then others must find this process dead rather than gone.
pub fn exit(vfs: &Vfs) {
    if !has_threads() {
        instances::end(vfs);
        vfs.exit();
    }
}

/// Whether the caller has other threads beside it. A child in its parent's memory never has.
pub fn has_threads() -> bool {
    THREADED.load(Relaxed) && thread().origin.view().is_none() && thread_count() != 1
}

/// Threads of this process: the folders in /proc/self/task.
fn thread_count() -> u64 {
    let stat = rustix::fs::stat(c"/proc/self/task");
    stat.map_or(u64::MAX, |stat| stat.st_nlink.saturating_sub(2))
}

/// Before vfork or a clone that shares memory: the child will find a view of its own. `stack`: top
/// of its stack.
pub fn share_memory(c: &mut Call<'_>, kind: Kind, stack: usize) -> Verdict {
    let vfs = c.vfs();
    sharing::release_ended(thread(), true, View::take_down);
    tell_callers_apart(&CALLER);
    // What the child attached would be in its descriptors and in our memory.
    vfs.open_all();
    if kind == Kind::Concurrent {
        now_threaded(vfs);
    }
    let own = vfs.vfork_view()?;
    let mut starter = core::ptr::null_mut();
    if own.awaits_vfork() {
        // A starter that is a child itself may be gone before one that runs beside it.
        match kind == Kind::Concurrent && thread().origin.view().is_some() {
            true => vfs.vfork_has_begun(),
            false => starter = core::ptr::from_ref(vfs).cast_mut(),
        }
    }
    sharing::expect(View::new(own, starter), kind, stack);
    Err(Stop::Native)
}

/// As [`vfs`] in a thread that started a child in its own memory, or in that child.
#[cold]
pub fn vfs_of_relative(me: &'static Thread) -> Option<&'static Vfs> {
    let own = match me.origin.view() {
        None => vfs()?,
        Some(view) => view.state(),
    };
    sharing::release_ended(me, false, View::take_down);
    Some(own)
}

/// Keeps what a child in its parent's memory built, where the parent frees it.
pub fn keep_for_parent(image: Image) -> Result<(), Image> {
    let Some(view) = thread().origin.view() else {
        return Err(image);
    };
    view.keep(image);
    Ok(())
}

/// Makes a child with memory of its own; `args` without the stack, which the child gets from
/// `stack`.
pub fn fork(c: &mut Call<'_>, args: [usize; 6], stack: usize) -> Verdict {
    let (vfs, me, shared) = (c.vfs(), thread(), shares_memory());
    let moved = nacre_session::has_moved();
    let folder = moved.then(|| by_kernel::pool_folder(c)).flatten();
    let ticket = vfs.before_fork()?;
    // The child is not known by its pid until it has settled.
    let mask = shared.then(mask::block_all);
    mapping::lock_for_fork(vfs);
    allocator::lock_for_fork();
    // SAFETY: no new stack and no shared memory, so the child goes on right here in its own copy.
    let result = unsafe { kernel::syscall(c.number(), args) };
    allocator::unlock_after_fork();
    mapping::unlock_after_fork();
    if result == 0 {
        settle(c, me, shared);
    }
    if let Some(mask) = mask {
        mask::set_mask(mask);
    }
    if result != 0 {
        vfs.after_fork_parent(ticket, i32::try_from(result).ok().filter(|&pid| pid > 0));
        return Ok(result);
    }
    match vfs.after_fork_child(ticket) {
        Ok(()) => mapping::after_fork_child(vfs),
        Err(_) if moved && by_kernel::suffices_in(folder.as_deref()) => use_no_pools(),
        Err(error) => lost(&error),
    }
    host::here().forget_stock();
    workers::after_fork_child();
    ring::after_fork_child();
    if stack != 0 {
        c.frame().shown.rsp = stack;
    }
    Ok(0)
}

/// In a child that cannot attach its pools: the kernel serves it from now on.
fn use_no_pools() {
    match Vfs::start(Vec::new(), host::without_pools()) {
        Ok(vfs) => use_state(Box::leak(Box::new(vfs))),
        Err(error) => lost(&error),
    }
}

/// In a child with memory of its own, which its parent, that had the block `me`, may have `shared`
/// before.
fn settle(c: &mut Call<'_>, me: &Thread, shared: bool) {
    if shared {
        VFS.store(core::ptr::from_ref(c.vfs()).cast_mut(), Release);
    }
    sharing::after_fork_child(me);
    c.frame().block = thread().offset();
    stack::after_fork_child();
    signals::after_fork_child();
}
