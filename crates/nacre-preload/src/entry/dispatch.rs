//! From the entry code to the handler of a call and back.

use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::Relaxed;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nacre_vfs::Vfs;

use crate::arch::x86_64::entry::Frame;
use crate::entry::call::{Call, Verdict};
use crate::entry::errno::Stop;
use crate::entry::table::{self, Serve};
use crate::mapping::{buffers, holes};
use crate::program::process;
use crate::runtime::kernel;
use crate::runtime::log;
use crate::runtime::tls::{SIGNAL, shares_memory, thread};

/// Serves the call of a frame and says in the frame how to go on.
///
/// # Safety
/// Called by the entry code only, with a complete frame.
pub unsafe extern "C" fn nacre_dispatch(frame: *mut Frame) {
    // SAFETY: the entry code built the frame on this thread's stack.
    let frame = unsafe { &mut *frame };
    let verdict = catch_unwind(AssertUnwindSafe(|| serve(frame))).unwrap_or_else(|_| panicked());
    match verdict {
        Err(Stop::Native) => frame.execute_natively(),
        Ok(value) => frame.finish(value),
        Err(Stop::Errno(libc::EINTR)) if to_be_restarted() => frame.restart(),
        Err(Stop::Errno(errno)) => frame.finish(-(errno as isize)),
    }
}

#[inline]
fn serve(frame: &mut Frame) -> Verdict {
    let vfs = if shares_memory() {
        let me = thread();
        frame.block = me.offset();
        process::vfs_of_relative(me)
    } else {
        process::vfs()
    };
    let (Some(serve), Some(vfs)) = (table::find(frame.rax), vfs) else {
        return Err(Stop::Native);
    };
    if WATCHED.load(Relaxed) != 0 {
        return serve_watched(frame, serve, vfs);
    }
    serve(&mut Call::new(frame, vfs))
}

/// Why calls are not just served: bits.
static WATCHED: AtomicU8 = AtomicU8::new(0);
const LOGGED: u8 = 1;
const BUFFERS: u8 = 2;

/// Calls are logged from now on.
pub fn log_calls() {
    WATCHED.fetch_or(LOGGED, Relaxed);
}

/// Whether buffers of calls may lie where nobody can access them yet.
pub fn look_at_buffers(may: bool) {
    match may {
        true => WATCHED.fetch_or(BUFFERS, Relaxed),
        false => WATCHED.fetch_and(!BUFFERS, Relaxed),
    };
}

#[cold]
fn serve_watched(frame: &mut Frame, serve: Serve, vfs: &'static Vfs) -> Verdict {
    /// How often a buffer may go while it is used.
    const TRIES: usize = 8;
    let (number, args) = (frame.rax, frame.args);
    let mut verdict = Err(Stop::Errno(libc::EFAULT));
    for _ in 0..TRIES {
        if holes::exist() {
            buffers::prepare(&Call::new(frame, vfs));
        }
        verdict = serve(&mut Call::new(frame, vfs));
        if !holes::exist() || verdict != Err(Stop::Errno(libc::EFAULT)) {
            break;
        }
    }
    if WATCHED.load(Relaxed) & LOGGED != 0 {
        log::call(table::name(number), &args, &verdict);
    }
    verdict
}

#[inline]
fn to_be_restarted() -> bool {
    let thread = thread();
    thread.deferred.load(Relaxed) & SIGNAL != 0 && thread.restart.load(Relaxed) != 0
}

fn panicked() -> Verdict {
    kernel::write_all(
        2,
        b"nacre: internal error, the call fails with EIO (please report it)\n",
    );
    Err(Stop::Errno(libc::EIO))
}
