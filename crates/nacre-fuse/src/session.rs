//! Threads that answer the kernel's requests until the pool is unmounted.

use crate::device::Device;
use crate::errno::{Answer, Refusal};
use crate::keeping::Keeping;
use crate::operations::Pool;
use crate::wire::{ANSWER_HEADER, Opcode, Output, REQUEST_HEADER, Request};
use rustix::io::Errno;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Builder, Scope};

/// The protocol that is spoken: what the kernel sends in it is understood, whatever it has besides.
const MAJOR: u32 = 7;
const MINOR: u32 = 39;
/// The oldest of the kernel's that has all that is needed (Linux 5.4).
const MINOR_OLDEST: u32 = 31;
/// The kernel's, from where on it forgets for good what it is told to (Linux 5.10).
const MINOR_WITH_VERSIONS: u32 = 32;
/// Largest write, and bytes for all else in a request.
const WRITE_MAX: usize = 1 << 20;
const REQUEST_ROOM: usize = WRITE_MAX + (64 << 10);
const PAGE: usize = 4096;
const BACKGROUND_MOST: u16 = 64;

/// What is wanted of the kernel if it can do it.
const WANTED: u64 = ASYNC_READ
    | POSIX_LOCKS
    | BIG_WRITES
    | DONT_MASK
    | POSIX_ACL
    | SETXATTR_EXT
    | FLOCK_LOCKS
    | AUTO_INVAL_DATA
    | PARALLEL_DIROPS
    | MAX_PAGES
    | INIT_EXT
    | DIRECT_IO_ALLOW_MMAP;
const ASYNC_READ: u64 = 1;
const POSIX_LOCKS: u64 = 1 << 1;
const BIG_WRITES: u64 = 1 << 5;
const DONT_MASK: u64 = 1 << 6;
const FLOCK_LOCKS: u64 = 1 << 10;
const AUTO_INVAL_DATA: u64 = 1 << 12;
const PARALLEL_DIROPS: u64 = 1 << 18;
const POSIX_ACL: u64 = 1 << 20;
const SETXATTR_EXT: u64 = 1 << 29;
const MAX_PAGES: u64 = 1 << 22;
const INIT_EXT: u64 = 1 << 30;
const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;

/// Serves with so many threads, or as many as the system allows; `started` is called once nothing
/// can stand in the way any more.
pub(crate) fn serve(
    pool: &Pool,
    device: &Device,
    threads: usize,
    started: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    thread::scope(|scope| {
        let keeping = Builder::new().spawn_scoped(scope, move || pool.keep(device));
        let keeping = keeping.map_err(|error| no_thread(&error))?;
        let mut others = Vec::new();
        let served = started().and_then(|()| {
            let answer = move || answer_all(scope, pool, device);
            let start = |_| Builder::new().spawn_scoped(scope, answer).ok();
            others.extend((1..threads).map_while(start));
            answer()
        });
        pool.keeping.end(&pool.fs, keeping.thread());
        pool.locks.end_all(&pool.fs);
        let ended = others.into_iter().map(|thread| thread.join());
        let failed = || Err(io::Error::other("a thread of the server failed"));
        ended.fold(served, |served, one| {
            served.and(one.unwrap_or_else(|_| failed()))
        })
    })
}

fn no_thread(error: &io::Error) -> io::Error {
    let text = format!("the system gives no thread for its server: {error}");
    io::Error::new(error.kind(), text)
}

fn answer_all<'s>(scope: &'s Scope<'s, '_>, pool: &'s Pool, device: &'s Device) -> io::Result<()> {
    let mut room = vec![0; REQUEST_ROOM];
    while let Some(bytes) = device.receive(&mut room)? {
        let Ok(request) = Request::decode(bytes) else {
            continue;
        };
        match request.opcode {
            Opcode::SETLKW => {
                let bytes = bytes.to_vec();
                let waits =
                    Builder::new().spawn_scoped(scope, move || wait_for_lock(pool, device, &bytes));
                if waits.is_err() {
                    send(device, request.unique, Err(Errno::NOLCK.into()));
                }
            }
            Opcode::LOOKUP | Opcode::CREATE | Opcode::TMPFILE => {
                let _until_it_was_sent = pool.keeping.looking.read();
                send(device, request.unique, guarded(|| pool.serve(request)));
            }
            Opcode::FORGET | Opcode::BATCH_FORGET => {
                let _as_far_as_it_goes = guarded(|| pool.forget_told(request));
            }
            Opcode::INTERRUPT => {
                if let Some(again) = pool.interrupt(request) {
                    send(device, request.unique, Err(again));
                }
            }
            Opcode::INIT => send(
                device,
                request.unique,
                agree(request, &pool.long_setxattr, &pool.keeping),
            ),
            _ => send(device, request.unique, guarded(|| pool.serve(request))),
        }
    }
    Ok(())
}

/// In a thread of its own.
fn wait_for_lock(pool: &Pool, device: &Device, bytes: &[u8]) {
    if let Ok(request) = Request::decode(bytes) {
        let taken = guarded(|| pool.wait_for_lock(request));
        send(device, request.unique, taken);
    }
}

/// A bug in the layers below fails this request and no other.
fn guarded<T>(serve: impl FnOnce() -> Answer<T>) -> Answer<T> {
    catch_unwind(AssertUnwindSafe(serve)).unwrap_or(Err(Refusal(Errno::IO)))
}

fn send(device: &Device, unique: u64, answer: Answer<Output>) {
    let refused = |Refusal(errno): Refusal| (Output::new(), errno.raw_os_error());
    let (mut output, errno) = answer.map_or_else(refused, |output| (output, 0));
    let sent = device.send(output.message(unique, errno));
    if sent.is_err() && errno == 0 {
        // The kernel finds it wrong. Whoever waits must not wait forever.
        let mut failure = Output::new();
        let _nothing_helps = device.send(failure.message(unique, Errno::IO.raw_os_error()));
    }
}

/// The first request: which protocol is spoken.
fn agree(request: Request<'_>, long_setxattr: &AtomicBool, keeping: &Keeping) -> Answer<Output> {
    let mut body = request.body;
    let (major, minor) = (body.u32()?, body.u32()?);
    let (ahead, low) = (body.u32()?, body.u32()?);
    let mut answer = Output::new();
    if major > MAJOR {
        // The kernel then speaks ours.
        answer.u32(MAJOR).u32(MINOR).zeros(56);
        return Ok(answer);
    }
    if major < MAJOR || minor < MINOR_OLDEST {
        return Err(Errno::PROTO.into());
    }
    let high = match u64::from(low) & INIT_EXT {
        0 => 0,
        _ => body.u32()?,
    };
    let flags = (u64::from(high) << 32 | u64::from(low)) & WANTED;
    keeping
        .forgets
        .store(minor >= MINOR_WITH_VERSIONS, Ordering::Relaxed);
    let forgets_more = minor >= MINOR && flags & DIRECT_IO_ALLOW_MMAP != 0;
    keeping.forgets_more.store(forgets_more, Ordering::Relaxed);
    long_setxattr.store(flags & SETXATTR_EXT != 0, Ordering::Relaxed);
    answer
        .u32(MAJOR)
        .u32(MINOR.min(minor))
        .u32(ahead)
        .u32(flags as u32);
    answer.u16(BACKGROUND_MOST).u16(BACKGROUND_MOST / 4 * 3);
    answer.u32(WRITE_MAX as u32).u32(1);
    answer
        .u16((WRITE_MAX / PAGE) as u16)
        .u16(0)
        .u32((flags >> 32) as u32)
        .zeros(28);
    Ok(answer)
}

const _: () = assert!(REQUEST_ROOM > WRITE_MAX + REQUEST_HEADER + ANSWER_HEADER);

#[cfg(test)]
mod tests {
    use super::{FLOCK_LOCKS, Keeping, POSIX_LOCKS, agree};
    use crate::wire::Request;
    use std::sync::atomic::AtomicBool;

    fn first(major: u32, minor: u32) -> Option<Vec<u8>> {
        let mut bytes = vec![0; 40];
        for word in [major, minor, 0x20000, u32::MAX, u32::MAX] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        bytes.resize(104, 0);
        let request = Request::decode(&bytes).ok()?;
        let mut answer = agree(request, &AtomicBool::new(false), &Keeping::default()).ok()?;
        Some(answer.message(1, 0)[16..].to_vec())
    }

    #[test]
    fn the_kernel_is_asked_for_locks_in_its_own_protocol_or_an_older_one() {
        let word =
            |bytes: &[u8], at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let answer = first(7, 45).unwrap();
        assert_eq!((answer.len(), word(&answer, 4)), (64, 39));
        let locks = (POSIX_LOCKS | FLOCK_LOCKS) as u32;
        assert_eq!(word(&answer, 12) & locks, locks);
        assert_eq!(word(&first(7, 34).unwrap(), 4), 34);
        assert!(first(7, 30).is_none() && first(6, 40).is_none());
        assert_eq!(word(&first(8, 1).unwrap(), 0), 7);
    }
}
