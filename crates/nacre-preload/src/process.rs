//! The process's file system state, through fork and vfork.

use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::Mutex;

use nacre_vfs::{Vfs, VfsError};

use crate::call::{Call, Verdict};
use crate::errno::Stop;
use crate::exec::Image;
use crate::kernel;
use crate::start::CANNOT_START;
use crate::tls::{IN_NACRE, SHARES_MEMORY, thread};
use crate::{allocator, mapping, stack};

static VFS: AtomicPtr<Vfs> = AtomicPtr::new(core::ptr::null_mut());

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

/// What a child works with that shares its parent's memory, but has fds of its own.
pub struct View {
    vfs: Vfs,
    /// Pid of the child once it has taken over, else 0.
    child: AtomicI32,
    /// What the child built for execve, freed by the parent.
    image: Mutex<Option<Image>>,
}

/// Whether this process ever had a second thread.
static THREADED: AtomicBool = AtomicBool::new(false);

/// Before a thread is started.
pub fn now_threaded(vfs: &Vfs) {
    THREADED.store(true, Relaxed);
    vfs.now_threaded();
}

/// Before the process ends. While other threads run they may be inside Nacre, until the kernel
/// stops them: then others must find this process dead rather than gone.
pub fn exit(vfs: &Vfs) {
    if !THREADED.load(Relaxed) || thread_count() == 1 {
        vfs.exit();
    }
}

/// Threads of this process: the folders in /proc/self/task.
fn thread_count() -> u64 {
    let stat = rustix::fs::stat(c"/proc/self/task");
    stat.map_or(u64::MAX, |stat| stat.st_nlink.saturating_sub(2))
}

/// Before vfork or a clone that shares memory: the child will find a view of its own.
/// `concurrent`: parent and child run at the same time.
pub fn share_memory(c: &mut Call<'_>, concurrent: bool) -> Verdict {
    let thread = thread();
    if thread.flags.load(Relaxed) & SHARES_MEMORY == 0 {
        let vfs = c.vfs().vfork_view()?;
        let view = View {
            vfs,
            child: AtomicI32::new(0),
            image: Mutex::new(None),
        };
        thread.view.store(Box::into_raw(Box::new(view)), Release);
        thread.parent.store(kernel::getpid(), Relaxed);
        thread.concurrent.store(u8::from(concurrent), Relaxed);
        stack::lend(thread, c.frame(), concurrent);
        thread.flags.fetch_or(SHARES_MEMORY, Relaxed);
    }
    Err(Stop::Native)
}

/// As [`vfs`] in a thread that started a child in its own memory: are we the child or the parent?
#[cold]
pub fn vfs_of_relative() -> Option<&'static Vfs> {
    let thread = thread();
    let pid = kernel::getpid();
    if pid != thread.parent.load(Relaxed) {
        // SAFETY: the parent set the view and frees it only when this child has left its memory.
        let view = unsafe { thread.view.load(Acquire).as_ref()? };
        if view.child.load(Relaxed) == 0 {
            view.child.store(pid, Relaxed);
            if let Err(error) = view.vfs.adopt(thread.concurrent.load(Relaxed) == 0) {
                lost(&error);
            }
        }
        return Some(&view.vfs);
    }
    if thread.concurrent.load(Relaxed) == 0 {
        thread.flags.fetch_and(!SHARES_MEMORY, Relaxed);
        let view = thread.view.swap(core::ptr::null_mut(), Acquire);
        if !view.is_null() {
            // SAFETY: a leaked box; the child of a vfork has left our memory when we run again.
            let view = unsafe { Box::from_raw(view) };
            let child = view.child.load(Relaxed);
            allocator::take_from_dead_child(child);
            mapping::take_from_dead_child(child);
            let own = VFS.load(Acquire);
            // SAFETY: the process's state, which is never freed.
            if let Some(own) = unsafe { own.as_ref() } {
                view.vfs.vfork_done(own, (child != 0).then_some(child));
            }
        }
    }
    vfs()
}

/// A child without its pools must not run on.
fn lost(error: &VfsError) -> ! {
    kernel::write_all(
        2,
        format!("nacre: the child cannot attach its pools: {error}\n").as_bytes(),
    );
    kernel::exit(CANNOT_START)
}

/// Keeps what a child in its parent's memory built, where the parent frees it.
pub fn keep_for_parent(image: Image) -> Result<(), Image> {
    let thread = thread();
    if thread.flags.load(Relaxed) & SHARES_MEMORY == 0 {
        return Err(image);
    }
    // SAFETY: as in `vfs_of_relative`.
    let Some(view) = (unsafe { thread.view.load(Acquire).as_ref() }) else {
        return Err(image);
    };
    if let Ok(mut kept) = view.image.lock() {
        *kept = Some(image);
    }
    Ok(())
}

/// Makes a child with memory of its own; `args` without the stack, which the child gets from `stack`.
pub fn fork(c: &mut Call<'_>, args: [usize; 6], stack: usize) -> Verdict {
    let vfs = c.vfs();
    let ticket = vfs.before_fork()?;
    mapping::lock_for_fork();
    allocator::lock_for_fork();
    // SAFETY: no new stack and no shared memory, so the child goes on right here in its own copy.
    let result = unsafe { kernel::syscall(c.number(), args) };
    allocator::unlock_after_fork();
    mapping::unlock_after_fork();
    if result != 0 {
        vfs.after_fork_parent(ticket, i32::try_from(result).ok().filter(|&pid| pid > 0));
        return Ok(result);
    }
    stack::after_fork_child();
    crate::signals::after_fork_child();
    if let Err(error) = vfs.after_fork_child(ticket) {
        lost(&error);
    }
    mapping::after_fork_child(vfs);
    let flags = &thread().flags;
    if flags.swap(IN_NACRE, Relaxed) & SHARES_MEMORY != 0 {
        VFS.store(core::ptr::from_ref(vfs).cast_mut(), Release);
    }
    if stack != 0 {
        c.frame().shown.rsp = stack;
    }
    Ok(0)
}
