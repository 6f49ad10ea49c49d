//! Serving the calls that come through symbols of the C library's names (`arch`): the plain cases only. What is refused
//! here is called again through the C library, whose system call comes to the table.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering::Relaxed};
use std::panic::{AssertUnwindSafe, catch_unwind};

use nacre_vfs::{Answer, Reply, Vfs};

use crate::call::{sink, source};
use crate::errno::Stop;
use crate::{log, process};

/// Calls with a symbol have lower numbers.
const NUMBERS: usize = 128;

/// The C library's functions, by call number; 0 for none.
pub static FUNCTIONS: [AtomicUsize; NUMBERS] = [const { AtomicUsize::new(0) }; NUMBERS];

static UNKNOWN: AtomicU8 = AtomicU8::new(0);

/// Leads to a byte that is 0 while calls must go through the C library: other threads exist, so that it is a point of
/// cancellation, or we are not ready.
pub static SINGLE_THREADED: AtomicPtr<AtomicU8> = AtomicPtr::new((&raw const UNKNOWN).cast_mut());

/// How a call ended, in the two result registers of a C function.
#[repr(C)]
pub struct Outcome {
    value: isize,
    refused: usize,
}

const REFUSED: Outcome = Outcome {
    value: 0,
    refused: 1,
};

/// Looks up the functions that calls are handed on to, and serves from then on. Calls that are logged come to the table.
pub fn start() {
    let names = [
        (libc::SYS_read, c"read"),
        (libc::SYS_write, c"write"),
        (libc::SYS_pread64, c"pread64"),
        (libc::SYS_pwrite64, c"pwrite64"),
        (libc::SYS_fsync, c"fsync"),
        (libc::SYS_fdatasync, c"fdatasync"),
    ];
    for (number, name) in names {
        // SAFETY: a NUL-terminated name; the dynamic linker has loaded everything.
        let function = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        FUNCTIONS[number as usize].store(function as usize, Relaxed);
    }
    // SAFETY: as above.
    let single: *mut c_void =
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    if !single.is_null() && !log::enabled() {
        SINGLE_THREADED.store(single.cast(), Relaxed);
    }
}

#[inline(always)]
fn serve(call: impl FnOnce(&Vfs) -> Option<Answer>) -> Outcome {
    let answer = catch_unwind(AssertUnwindSafe(|| process::vfs().and_then(call)));
    if let Ok(Some(Ok(Reply::Done(value)))) = answer {
        return Outcome {
            value: value as isize,
            refused: 0,
        };
    }
    failed(answer.ok().flatten())
}

/// The outcome of a call that has no value. After a panic the table answers.
#[cold]
fn failed(answer: Option<Answer>) -> Outcome {
    match answer {
        Some(Err(error)) => match Stop::from(error) {
            Stop::Errno(errno) if errno != libc::EINTR => Outcome {
                value: -(errno as isize),
                refused: 0,
            },
            _ => REFUSED,
        },
        _ => REFUSED,
    }
}

// SAFETY: the entry code alone calls this and the following, with the arguments of the program's call and inside Nacre.
pub unsafe extern "C" fn read(fd: i32, start: usize, len: usize) -> Outcome {
    serve(|vfs| Some(vfs.read(fd, sink(start, len).ok()?)))
}

// SAFETY: as of `read`.
pub unsafe extern "C" fn write(fd: i32, start: usize, len: usize) -> Outcome {
    serve(|vfs| Some(vfs.write(fd, source(start, len).ok()?)))
}

// SAFETY: as of `read`.
pub unsafe extern "C" fn pread(fd: i32, start: usize, len: usize, offset: i64) -> Outcome {
    serve(|vfs| Some(vfs.pread(fd, sink(start, len).ok()?, offset)))
}

// SAFETY: as of `read`.
pub unsafe extern "C" fn pwrite(fd: i32, start: usize, len: usize, offset: i64) -> Outcome {
    serve(|vfs| Some(vfs.pwrite(fd, source(start, len).ok()?, offset)))
}

// SAFETY: as of `read`.
pub unsafe extern "C" fn fsync(fd: i32) -> Outcome {
    serve(|vfs| Some(vfs.fsync(fd)))
}
