//! The inotify instances of this process that watch files of pools, by their descriptors.
//!
//! A new program finds those that it has inherited when it first uses them. The number of an
//! instance tells its watches from those of others, in all processes that have it.

use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nacre_vfs::Vfs;

use crate::runtime::kernel::{self, checked};
use crate::runtime::tls::shares_memory;

/// Most of them.
const MOST: usize = 128;
const LINK: &[u8] = b"anon_inode:inotify";

/// One descriptor of an instance; free if `fd` is 0.
struct Instance {
    /// The descriptor and 1.
    fd: AtomicU32,
    /// Its number; 0 as long as that is not known.
    number: AtomicU64,
}

static INSTANCES: [Instance; MOST] = [const {
    Instance {
        fd: AtomicU32::new(0),
        number: AtomicU64::new(0),
    }
}; MOST];
static COUNT: AtomicU32 = AtomicU32::new(0);
static MADE: AtomicU32 = AtomicU32::new(0);

/// What was read of instances and did not fit into the program's buffer.
static WAITING: Mutex<Vec<(i32, Vec<u8>)>> = Mutex::new(Vec::new());

fn place_of(fd: i32) -> Option<&'static Instance> {
    let wanted = u32::try_from(fd).ok()?.wrapping_add(1);
    INSTANCES.iter().find(|one| one.fd.load(Acquire) == wanted)
}

/// Whether there are any.
#[inline]
pub fn exist() -> bool {
    COUNT.load(Relaxed) != 0
}

/// Whether the descriptor is one of them.
#[inline]
pub fn has(fd: i32) -> bool {
    exist() && place_of(fd).is_some()
}

/// The number of the instance behind a descriptor. One that is not known gets a new number, or that
/// of the program that it comes from.
pub fn number(vfs: &Vfs, fd: i32) -> u64 {
    let known = place_of(fd).map(|one| one.number.load(Acquire));
    known.filter(|&number| number != 0).unwrap_or_else(|| {
        let number = vfs.instance_behind(fd).unwrap_or_else(new_number);
        if let Some(place) = place_of(fd) {
            place.number.store(number, SeqCst);
        }
        number
    })
}

fn new_number() -> u64 {
    let made = MADE.fetch_add(1, Relaxed);
    (kernel::getpid() as u64) << 32 | u64::from(made.wrapping_add(1))
}

/// From now on the descriptor is one of them.
pub fn note(fd: i32, number: u64) {
    if shares_memory() {
        return;
    }
    if let Some(known) = place_of(fd) {
        known.number.store(number, SeqCst);
        return;
    }
    let taken = INSTANCES.iter().find(|one| {
        let fd = fd as u32 + 1;
        one.fd.compare_exchange(0, fd, SeqCst, Relaxed).is_ok()
    });
    if let Some(place) = taken {
        place.number.store(number, SeqCst);
        COUNT.fetch_add(1, SeqCst);
    }
}

/// The descriptor is closed. The number of the instance, if no other one of this process has it.
pub fn forget(fd: i32) -> Option<u64> {
    if !exist() || shares_memory() {
        return None;
    }
    let place = place_of(fd)?;
    let number = place.number.load(Acquire);
    place.fd.store(0, SeqCst);
    COUNT.fetch_sub(1, SeqCst);
    waiting().retain(|(one, _)| *one != fd);
    let left = numbers().any(|(_, other)| other == number);
    (!left && number != 0).then_some(number)
}

/// The descriptors and their numbers.
pub fn numbers() -> impl Iterator<Item = (i32, u64)> {
    let known = INSTANCES.iter().filter_map(|one| {
        let fd = one.fd.load(Acquire).checked_sub(1)?;
        Some((fd as i32, one.number.load(Acquire)))
    });
    known.take_while(|_| exist())
}

/// What waits to be read.
pub fn waiting() -> MutexGuard<'static, Vec<(i32, Vec<u8>)>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Events wait behind those that do.
pub fn keep(fd: i32, events: &[u8]) {
    let mut waiting = waiting();
    match waiting.iter_mut().find(|(one, _)| *one == fd) {
        Some((_, kept)) => kept.extend_from_slice(events),
        None if events.is_empty() => {}
        None => waiting.push((fd, events.to_vec())),
    }
}

/// Bytes that wait.
pub fn kept(fd: i32) -> usize {
    let waiting = waiting();
    let kept = waiting.iter().find(|(one, _)| *one == fd);
    kept.map_or(0, |(_, events)| events.len())
}

/// Whether the kernel has an instance there.
pub fn is_instance(fd: i32) -> bool {
    let path = format!("/proc/self/fd/{fd}\0");
    let mut target = [0; 32];
    let room = target.as_mut_ptr() as usize;
    let args = [
        libc::AT_FDCWD as usize,
        path.as_ptr() as usize,
        room,
        target.len(),
    ];
    let len = checked(libc::SYS_readlinkat, &args).unwrap_or(0);
    target.get(..len) == Some(LINK)
}

/// A descriptor without a file, which this program has not used before: it may be one of them.
#[cold]
pub fn meet(fd: i32) {
    if place_of(fd).is_none() && is_instance(fd) {
        note(fd, 0);
    }
}

/// Before the process ends: closes its instances, so that their watches end if nobody else has
/// them.
pub fn end(vfs: &Vfs) {
    if !exist() || shares_memory() {
        return;
    }
    let numbers: Vec<(i32, u64)> = numbers().collect();
    for &(fd, _) in &numbers {
        kernel::call(libc::SYS_close, &[fd as usize]);
    }
    for (_, number) in numbers.into_iter().filter(|&(_, number)| number != 0) {
        vfs.instance_closed(number);
    }
}
