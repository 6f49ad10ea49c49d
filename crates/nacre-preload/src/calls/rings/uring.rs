//! io_uring.
//!
//! Rings are the kernel's. What a program submits is looked at before the kernel takes it: requests
//! on a pool are served, and the kernel finds in their place requests that do nothing and complete
//! with our results. Completions, waiting, links and whatever else rings can do stay its.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use libc::{SYS_io_uring_enter, SYS_io_uring_register, SYS_io_uring_setup};

use super::layout::Parameters;
use super::own_ring::OwnRing;
use super::ring::{NOP_WITH_RESULT, Ring};
use super::sqe::NOT_SERVED;
use super::submission::Submission;
use crate::entry::call::{Call, Verdict};
use crate::entry::errno::Stop;
use crate::entry::table::{ServedCall, entry};
use crate::entry::user;
use crate::runtime::kernel::call;

/// The calls of this family.
pub const ENTRIES: &[ServedCall] = &[
    entry(SYS_io_uring_setup, "io_uring_setup", setup),
    entry(SYS_io_uring_enter, "io_uring_enter", enter),
    entry(SYS_io_uring_register, "io_uring_register", register),
];

/// Where in them the flags are.
const FLAGS: usize = 2;

/// Flags of rings that are served: all up to version 6.11 but those by which the kernel takes
/// requests without a call, or the program brings the memory.
const SERVED: u32 = ((1 << 18) - 1) & !(POLLED_BY_KERNEL | 1 << 14 | 1 << 15);
const POLLED_BY_KERNEL: u32 = 1 << 1;

const GETEVENTS: u32 = 1;
const REGISTERED_RING: u32 = 1 << 4;

fn setup(c: &mut Call<'_>) -> Verdict {
    let parameters: Parameters = c.read(1)?;
    let flags = parameters[FLAGS];
    if !can_answer() {
        // Programs know kernels without rings and take another way.
        return Err(Stop::Errno(libc::ENOSYS));
    }
    if flags & POLLED_BY_KERNEL != 0 {
        return Err(Stop::Errno(libc::EPERM));
    }
    if flags & !SERVED != 0 {
        return Err(Stop::Errno(libc::EINVAL));
    }
    c.vfs().make_room();
    let fd = c.native();
    if fd >= 0 {
        let parameters = c.read(1)?;
        if !Ring::made(c, fd as i32, &parameters) {
            call(libc::SYS_close, &[fd as usize]);
            return Err(Stop::Errno(libc::EMFILE));
        }
    }
    Ok(fd)
}

/// Whether this kernel completes requests with results of ours (Linux 6.10).
fn can_answer() -> bool {
    const UNKNOWN: u8 = 0;
    const YES: u8 = 1;
    const NO: u8 = 2;
    static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
    if KNOWN.load(Relaxed) == UNKNOWN {
        const ANSWER: i32 = 77;
        let with_result = 1 << 32 | ANSWER as u64;
        let request = [NOP_WITH_RESULT, 0, 0, with_result, 0, 0, 0, 0];
        let can = OwnRing::make().and_then(|mut ring| ring.ask(request).ok());
        KNOWN.store(if can == Some(ANSWER) { YES } else { NO }, Relaxed);
    }
    KNOWN.load(Relaxed) == YES
}

fn enter(c: &mut Call<'_>) -> Verdict {
    let (count, flags) = (c.uint(1), c.uint(3));
    let ring = match Ring::at(c.int(0)) {
        Some(ring) if count > 0 && flags & REGISTERED_RING == 0 => ring,
        _ => return Err(Stop::Native),
    };
    let Some(memory) = ring.memory() else {
        return Err(Stop::Native);
    };
    let count = count.min(memory.waiting());
    if count == 0 {
        // What another thread fills in meanwhile is not to be handed over unseen.
        let mut args = c.frame().args;
        args[1] = 0;
        return Ok(c.interruptible(SYS_io_uring_enter as usize, args));
    }
    let concerns_pool = || (0..count).any(|i| Submission::concerns_pool(c, ring, &memory, i));
    if c.vfs().alone() && !concerns_pool() {
        return Err(Stop::Native);
    }
    let submitted = Submission::new(c, ring, memory).submit(count);
    let all = submitted == c.uint(1) as isize;
    if !all || flags & GETEVENTS == 0 || ring.has_completed(c.uint(2), flags) {
        return Ok(submitted);
    }
    let mut args = c.frame().args;
    args[1] = 0;
    match c.interruptible(SYS_io_uring_enter as usize, args) {
        failed if failed < 0 && submitted == 0 => Ok(failed),
        _ => Ok(submitted),
    }
}

const REGISTER_FILES: u32 = 2;
const UNREGISTER_FILES: u32 = 3;
const UPDATE_FILES: u32 = 6;
const PROBE: u32 = 8;
const REGISTER_FILES_2: u32 = 13;
const UPDATE_FILES_2: u32 = 14;
const REGISTER_RINGS: u32 = 20;
const RESIZE_RINGS: u32 = 33;

/// Descriptors of a pool's files are kept as the kernel keeps its: whatever becomes of the number.
fn register(c: &mut Call<'_>) -> Verdict {
    let Some(ring) = Ring::at(c.int(0)) else {
        return Err(Stop::Native);
    };
    let (at, count) = (c.arg(2), c.uint(3));
    match c.uint(1) {
        REGISTER_FILES => fresh_files(c, ring, at, count as usize),
        REGISTER_FILES_2 => {
            let [len, _, _, _, low, high]: [u32; 6] = c.read(2)?;
            fresh_files(c, ring, pointer(low, high), len as usize)
        }
        UNREGISTER_FILES => {
            let done = c.native();
            if done >= 0 {
                ring.files.resize(c, 0);
            }
            Ok(done)
        }
        UPDATE_FILES => {
            let [first, _, low, high]: [u32; 4] = c.read(2)?;
            update_files(c, ring, first, pointer(low, high))
        }
        UPDATE_FILES_2 => {
            let [first, _, low, high]: [u32; 4] = c.read(2)?;
            update_files(c, ring, first, pointer(low, high))
        }
        PROBE => {
            let done = c.native();
            if done >= 0 {
                not_served(at, count);
            }
            Ok(done)
        }
        // Requests are found by the ring's descriptor, and in memory that stays where it is.
        REGISTER_RINGS | RESIZE_RINGS => Err(Stop::Errno(libc::EINVAL)),
        _ => Err(Stop::Native),
    }
}

/// Says of requests that would not reach a pool that there are none, so that programs fall back.
/// The kernel has filled `struct io_uring_probe` with room for so many requests.
fn not_served(probe: usize, room: u32) {
    const HEADER: usize = 16;
    const ENTRY: usize = 8;
    const FLAGS_AT: usize = 2;
    let kinds = NOT_SERVED
        .into_iter()
        .filter(|&kind| u32::from(kind) < room);
    for kind in kinds {
        let flags = probe + HEADER + usize::from(kind) * ENTRY + FLAGS_AT;
        // The kernel has just written there.
        let _written = user::write(flags, &0u16);
    }
}

fn pointer(low: u32, high: u32) -> usize {
    u64::from(low) as usize | (high as usize) << 32
}

fn fresh_files(c: &mut Call<'_>, ring: &Ring, fds: usize, len: usize) -> Verdict {
    let done = c.native();
    if done >= 0 {
        ring.files.resize(c, len);
        set_files(c, ring, 0, fds, len);
    }
    Ok(done)
}

fn update_files(c: &mut Call<'_>, ring: &Ring, first: u32, fds: usize) -> Verdict {
    let done = c.native();
    set_files(
        c,
        ring,
        first as usize,
        fds,
        usize::try_from(done).unwrap_or(0),
    );
    Ok(done)
}

/// Copies `len` descriptors of the program, at an address that may be null.
fn set_files(c: &mut Call<'_>, ring: &Ring, first: usize, fds: usize, len: usize) {
    const KEEP: i32 = -2;
    for i in 0..if fds == 0 { 0 } else { len } {
        match user::read(fds + i * size_of::<i32>()) {
            Ok(KEEP) | Err(_) => {}
            Ok(fd) => ring.files.set(c, first + i, fd),
        }
    }
}
