//! Linux AIO.
//!
//! A request on a pool's file is served when it is submitted, or by another thread if it would wait
//! for a disk. The kernel is given a write of as many bytes to /dev/null in its place, which moves
//! nothing and completes at once with it.
//! An error ends the submission before the request, or answers it if that is the first, as the
//! kernel does with requests that it refuses.

use core::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Relaxed};

use libc::{SYS_io_destroy, SYS_io_getevents, SYS_io_submit};
use zerocopy::{FromBytes, FromZeros};

use super::aio_contexts as contexts;
use super::aio_records::{Block, stand_in, stands_for};
use super::later::{HeldRequest, Job};
use super::request::{Request, Transfer};
use super::workers;
use crate::entry::call::{Call, Verdict};
use crate::entry::errno::Stop;
use crate::entry::table::{ServedCall, entry, number_entry};
use crate::entry::user;
use crate::program::devices;
use crate::runtime::kernel::{checked, nap};

/// The calls of this family.
pub const ENTRIES: &[ServedCall] = &[
    number_entry(SYS_io_submit, "io_submit", submit),
    entry(SYS_io_destroy, "io_destroy", destroy),
    entry(SYS_io_getevents, "io_getevents", completions),
    entry(SYS_IO_PGETEVENTS, "io_pgetevents", completions),
];

const SYS_IO_PGETEVENTS: i64 = 333;

/// Most requests of one call; the program submits the others again, as it does where the kernel's
/// ring has no more room.
const MOST: usize = 1 << 12;

const READ: u16 = 0;
const WRITE: u16 = 1;
const FSYNC: u16 = 2;
const FDATASYNC: u16 = 3;
const READ_VECTOR: u16 = 7;
const WRITE_VECTOR: u16 = 8;

fn submit(c: &mut Call<'_>) -> Verdict {
    let Some(blocks) = blocks_of(c) else {
        return Err(Stop::Native);
    };
    if !blocks.iter().any(|(_, block)| c.vfs().ours(block.fd)) {
        return Err(Stop::Native);
    }
    let context = c.arg(0);
    // Nothing is to be done for a context that is none.
    checked(SYS_io_submit, &[context, 0, 0]).map_err(Stop::Errno)?;
    let may_be_late = Ring::at(context)
        .is_some_and(|ring| contexts::takes_by_calls(context, ring.head, ring.len));
    let mut given = Given::default();
    for (at, block) in blocks {
        if may_be_late && let Some(request) = held_request(c, block) {
            given.later(request, context, at, block)?;
            continue;
        }
        match stand_in_for(c, at, block) {
            Ok(at) => given.now(at),
            Err(stop) if given.count == 0 => return Err(stop),
            Err(_) => break,
        }
    }
    given.submit(c, context)
}

/// What is made of the program's blocks.
#[derive(Default)]
struct Given {
    /// For the kernel, each with its place among all.
    now: Vec<(usize, usize)>,
    /// For other threads.
    later: Vec<(usize, Box<Job>)>,
    count: usize,
}

impl Given {
    fn now(&mut self, at: usize) {
        self.now.push((self.count, at));
        self.count += 1;
    }

    fn later(
        &mut self,
        request: HeldRequest,
        context: usize,
        at: usize,
        block: Block,
    ) -> Result<(), Stop> {
        user::write(at + core::mem::offset_of!(Block, key), &0u32)?;
        let tell = Box::new(move |result| complete(context, at, block, result));
        self.later
            .push((self.count, Box::new(Job { request, tell })));
        self.count += 1;
        Ok(())
    }

    /// Hands all over; answers how many were taken.
    fn submit(self, c: &mut Call<'_>, context: usize) -> Verdict {
        let list: Vec<usize> = self.now.iter().map(|(_, at)| *at).collect();
        let mut taken = self.count as isize;
        if !list.is_empty() || self.count == 0 {
            let tail = Ring::at(context).map(|ring| ring.tail);
            let args = [context, list.len(), list.as_ptr() as usize, 0, 0, 0];
            let submitted = c.interruptible(SYS_io_submit as usize, args);
            if let (Some(tail), Some(ring)) = (tail, Ring::at(context)) {
                ring.name_blocks(tail);
            }
            // All in front of the first one that the kernel did not take.
            let refused = self.now.get(submitted.max(0) as usize);
            taken = match refused.map_or(self.count, |(place, _)| *place) {
                0 => submitted,
                some => some as isize,
            };
        }
        for (place, job) in self.later {
            if (place as isize) < taken {
                contexts::one_more(context);
                workers::serve(c.vfs(), job);
            }
        }
        Ok(taken)
    }
}

/// What another thread is to do for a block, as it would wait for a disk.
fn held_request(c: &Call<'_>, block: Block) -> Option<HeldRequest> {
    const TELLS_AN_EVENT: u32 = 1;
    if block.flags & TELLS_AN_EVENT != 0 {
        return None;
    }
    match block.opcode {
        FSYNC | FDATASYNC => {
            let request = Request::new(libc::SYS_fsync, &[block.fd as usize]);
            HeldRequest::sync(c, request)
        }
        _ => HeldRequest::transfer(c, transfer_of(block)?),
    }
}

/// A request is done by another thread than the one that handed it in.
fn complete(context: usize, at: usize, block: Block, result: i32) {
    // Only a device that cannot be opened any more, or no memory, stands in the way.
    let Some(record) = completed(block, result).and_then(|block| stand_in(at, block)) else {
        return contexts::one_less(context);
    };
    let list = [record];
    let args = [context, 1, list.as_ptr() as usize];
    let tail = Ring::at(context).map(|ring| ring.tail);
    // While nobody takes completions there is no room for more.
    while checked(SYS_io_submit, &args) == Err(libc::EAGAIN) {
        nap();
    }
    if let (Some(tail), Some(ring)) = (tail, Ring::at(context)) {
        ring.name_blocks(tail);
    }
    contexts::one_less(context);
}

/// A block that completes at once with a result.
fn completed(block: Block, result: i32) -> Option<Block> {
    let (device, len) = match result {
        0.. => (devices::null(), result as u64),
        result if result == -libc::ENOSPC => (devices::full(), 1),
        _ => (devices::failing().or_else(|_| devices::full()), 1),
    };
    Some(Block {
        data: block.data,
        flags: block.flags,
        event_fd: block.event_fd,
        priority: block.priority,
        opcode: WRITE,
        fd: device.ok()?,
        len,
        // It is read as far as the device looks: at none, or at one byte.
        buffer: &raw const SOMETHING as u64,
        ..Block::new_zeroed()
    })
}

static SOMETHING: u64 = 0;

/// Waits for requests that are served by other threads, as the kernel does for its.
fn destroy(c: &mut Call<'_>) -> Verdict {
    contexts::wait_for_all(c.arg(0));
    Err(Stop::Native)
}

/// The program's blocks with their addresses; None if the kernel has to say what is wrong with
/// them.
fn blocks_of(c: &Call<'_>) -> Option<Vec<(usize, Block)>> {
    let (count, list) = (isize::try_from(c.arg(1)).ok()? as usize, c.arg(2));
    (0..count.min(MOST))
        .map(|i| {
            let at: usize = user::read(list.wrapping_add(i * size_of::<usize>())).ok()?;
            Some((at, user::read(at).ok()?))
        })
        .collect()
}

/// What the kernel is given for a block: the block, or one that stands for it once it is served.
fn stand_in_for(c: &mut Call<'_>, at: usize, block: Block) -> Result<usize, Stop> {
    if !c.vfs().ours(block.fd) {
        return Ok(at);
    }
    let result = match serve(c, block) {
        Err(Stop::Native) => return Ok(at),
        Err(Stop::Errno(libc::ENOSPC)) => -libc::ENOSPC,
        Err(stop) => return Err(stop),
        Ok(len) => len as i32,
    };
    let block = completed(block, result).ok_or(Stop::Errno(libc::EAGAIN))?;
    // The kernel clears the key of a block that it takes.
    user::write(at + core::mem::offset_of!(Block, key), &0u32)?;
    stand_in(at, block).ok_or(Stop::Errno(libc::ENOMEM))
}

fn serve(c: &mut Call<'_>, block: Block) -> Verdict {
    let fd = block.fd as usize;
    match block.opcode {
        FSYNC => Request::new(libc::SYS_fsync, &[fd]).serve(c),
        FDATASYNC => Request::new(libc::SYS_fdatasync, &[fd]).serve(c),
        _ => match transfer_of(block) {
            Some(transfer) if transfer.offset < 0 => Err(Stop::Errno(libc::EINVAL)),
            Some(transfer) => transfer.serve(c),
            None => Err(Stop::Native),
        },
    }
}

fn transfer_of(block: Block) -> Option<Transfer> {
    let moves = matches!(block.opcode, READ | WRITE | READ_VECTOR | WRITE_VECTOR);
    moves.then_some(Transfer {
        fd: block.fd,
        write: matches!(block.opcode, WRITE | WRITE_VECTOR),
        at: block.buffer as usize,
        len: block.len as usize,
        vectored: matches!(block.opcode, READ_VECTOR | WRITE_VECTOR),
        offset: block.offset,
        flags: block.rw_flags,
    })
}

/// `struct io_event`.
#[repr(C)]
struct Completion {
    data: u64,
    block: AtomicUsize,
    results: [i64; 2],
}

/// Where in a completion the block is named.
const BLOCK_AT: usize = core::mem::offset_of!(Completion, block);

/// Completions name the program's blocks.
fn completions(c: &mut Call<'_>) -> Verdict {
    let taken = c.native();
    if taken > 0 {
        contexts::have_taken(c.arg(0), taken as u32);
    }
    for i in 0..usize::try_from(taken).unwrap_or(0) {
        let at = c
            .arg(3)
            .wrapping_add(i * size_of::<Completion>() + BLOCK_AT);
        if let Some(block) = user::read(at).ok().and_then(stands_for) {
            user::write(at, &block)?;
        }
    }
    Ok(taken)
}

/// Head of the ring that the kernel maps at the address that names a context.
#[derive(FromBytes)]
#[repr(C)]
struct Header {
    id: u32,
    len: u32,
    head: u32,
    tail: u32,
    magic: u32,
    features: [u32; 2],
    header_len: u32,
}

/// A context's ring of completions. Some programs read it by themselves.
struct Ring {
    events: usize,
    len: u32,
    head: u32,
    tail: u32,
}

impl Ring {
    const MAGIC: u32 = 0xa10a_10a1;

    fn at(context: usize) -> Option<Ring> {
        let header: Header = user::read(context).ok()?;
        (header.magic == Ring::MAGIC && header.tail < header.len).then(|| Ring {
            events: context + header.header_len as usize,
            len: header.len,
            head: header.head,
            tail: header.tail,
        })
    }

    /// Completions from `tail` on name the program's blocks.
    fn name_blocks(&self, mut tail: u32) {
        while tail != self.tail {
            let event =
                (self.events + tail as usize * size_of::<Completion>()) as *const Completion;
            // SAFETY: the kernel's ring has `len` completions, which the program may write, too;
            // the field is atomic.
            let block = unsafe { &(*event).block };
            let named = block.load(Relaxed);
            if let Some(user) = stands_for(named) {
                let _newer = block.compare_exchange(named, user, AcqRel, Relaxed);
            }
            tail = (tail + 1) % self.len;
        }
    }
}
