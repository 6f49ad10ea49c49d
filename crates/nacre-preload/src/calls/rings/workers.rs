//! Requests that would wait for a disk are served by threads of ours, as the kernel has threads for
//! what its rings would wait for. One begins when a request finds none idle, and ends when nothing
//! has come for a while.
//!
//! They are threads of the C library's, so that it knows them when it changes who the process is:
//! its own signals reach them between two requests. A process that confines itself has none.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};
use std::collections::VecDeque;
use std::time::Duration;

use libc::{SYS_futex, c_void};
use nacre_vfs::Vfs;
use rustix::time::Timespec;

use super::aio_contexts;
use super::later::Job;
use super::ticket;
use crate::program::process;
use crate::runtime::kernel::{Raw, call, nap};
use crate::runtime::mask::{FAULTS, bit, block_all, set_mask};
use crate::runtime::spin::SpinLock;
use crate::runtime::tls::{Inside, thread};

/// At most so many requests of a process wait for disks at the same time.
const MOST: u32 = 32;
/// Of the C library.
const STACK: usize = 256 << 10;
/// How long a thread waits for something to do.
const PATIENCE: Duration = Duration::from_secs(2);

struct Queue {
    jobs: VecDeque<Box<Job>>,
    threads: u32,
    idle: u32,
    /// Of each pool: requests that wait for what has been asked for.
    loads: Vec<Loads>,
    /// All threads are to end.
    ends: bool,
}

#[derive(Clone, Copy, Default)]
struct Loads {
    count: u32,
    /// A thread takes what has come.
    taken: bool,
}

impl Queue {
    const fn new() -> Self {
        Queue {
            jobs: VecDeque::new(),
            threads: 0,
            idle: 0,
            loads: Vec::new(),
            ends: false,
        }
    }

    fn loads(&mut self, pool: usize) -> &mut Loads {
        if self.loads.len() <= pool {
            self.loads.resize(pool + 1, Loads::default());
        }
        &mut self.loads[pool]
    }

    /// A further thread is to begin for what has just come.
    fn wants_thread(&mut self) -> bool {
        let wants = self.jobs.len() as u32 > self.idle && self.threads < MOST;
        self.threads += u32::from(wants);
        wants
    }

    /// One is to begin that takes what comes for a pool.
    fn wants_taker(&mut self, pool: usize) -> bool {
        let wants = !self.loads(pool).taken;
        self.loads(pool).taken = true;
        self.threads += u32::from(wants);
        wants
    }
}

static QUEUE: SpinLock<Queue> = SpinLock::new(Queue::new());
/// Changes with each request that comes: what idle threads wait for.
static BELL: AtomicU32 = AtomicU32::new(0);

/// Serves it soon.
pub fn serve(vfs: &Vfs, job: Box<Job>) {
    if vfs.alone() {
        process::now_threaded(vfs);
    }
    if let Err(job) = serve_when_loaded(job) {
        serve_by_waiting(job);
    }
}

/// As [`serve`], once what it reads is in memory.
fn serve_when_loaded(job: Box<Job>) -> Result<(), Box<Job>> {
    let pool = job.request.pool();
    let job = Box::into_raw(job);
    QUEUE.lock().loads(pool).count += 1;
    // SAFETY: whoever is told of the tag takes it, once; before that nobody changes it.
    if unsafe { &*job }.request.begin_load(job as u64) {
        if QUEUE.lock().wants_taker(pool) {
            begin(pool);
        }
        return Ok(());
    }
    QUEUE.lock().loads(pool).count -= 1;
    // SAFETY: nobody will be told.
    Err(unsafe { Box::from_raw(job) })
}

/// As [`serve`], by a thread that waits for the disk.
fn serve_by_waiting(job: Box<Job>) {
    let wants_thread = {
        let mut queue = QUEUE.lock();
        queue.jobs.push_back(job);
        queue.wants_thread()
    };
    match wants_thread {
        true => begin(ANY),
        false => ring_bell(1),
    }
}

/// Waits until all is served, and no thread is left.
pub fn end() {
    QUEUE.lock().ends = true;
    while QUEUE.lock().threads > 0 {
        ring_bell(MOST);
        nap();
    }
    QUEUE.lock().ends = false;
}

/// What was asked for in the parent is served there.
pub fn after_fork_child() {
    aio_contexts::after_fork_child();
    ticket::after_fork_child();
    QUEUE.release_after_fork();
    // Its files are not ours to close.
    core::mem::forget(core::mem::replace(&mut *QUEUE.lock(), Queue::new()));
}

fn ring_bell(most: u32) {
    BELL.fetch_add(1, AcqRel);
    let args = [BELL.as_ptr() as usize, WAKE, most as usize];
    call(SYS_futex, &args);
}

const WAIT: usize = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
const WAKE: usize = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;

/// What a thread is for that serves by waiting, and not what comes for a pool.
const ANY: usize = usize::MAX;

/// Begins a thread that is counted already, for a pool or [`ANY`]. Where there can be none the
/// caller does its work.
fn begin(what: usize) {
    let before = block_all();
    let begun = try_begin(what);
    if !begun {
        work_at(what, false);
    }
    set_mask(before);
}

fn try_begin(what: usize) -> bool {
    let mut attributes = core::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut made = 0;
    // SAFETY: the attributes are made, used and taken down here; `work` takes a number.
    unsafe {
        let at = attributes.as_mut_ptr();
        libc::pthread_attr_init(at);
        libc::pthread_attr_setstacksize(at, STACK);
        libc::pthread_attr_setdetachstate(at, libc::PTHREAD_CREATE_DETACHED);
        let failed = libc::pthread_create(&raw mut made, at, work, what as *mut c_void);
        libc::pthread_attr_destroy(at);
        failed == 0
    }
}

/// All signals are blocked when it begins.
extern "C" fn work(what: *mut c_void) -> *mut c_void {
    let inside = Inside::enter();
    work_at(what as usize, true);
    drop(inside);
    null_mut()
}

/// Does what a thread is for; `stays`: as long as more may come.
fn work_at(what: usize, stays: bool) {
    match what {
        ANY => serve_all(stays),
        pool => take_all(pool, stays),
    }
}

fn serve_all(stays: bool) {
    loop {
        while let Some(job) = next_job() {
            job.run();
            let_signals_come(stays);
        }
        if !stays {
            QUEUE.lock().threads -= 1;
            return;
        }
        if !wait() {
            return;
        }
    }
}

/// Serves what waits for what comes for a pool.
fn take_all(pool: usize, stays: bool) {
    let Some(vfs) = process::vfs() else {
        return;
    };
    let mut idle = Duration::ZERO;
    for turn in 1u64.. {
        let mut served = 0;
        vfs.take_loaded(pool, TURN, |tag| {
            // SAFETY: `serve_when_loaded` made the tag, and it is told once.
            unsafe { Box::from_raw(tag as *mut Job) }.run();
            served += 1;
        });
        idle = if served == 0 {
            idle + TURN
        } else {
            Duration::ZERO
        };
        let mut queue = QUEUE.lock();
        queue.loads(pool).count -= served;
        let patient = stays && !queue.ends && idle < PATIENCE;
        if queue.loads(pool).count == 0 && !patient {
            queue.loads(pool).taken = false;
            queue.threads -= 1;
            return;
        }
        drop(queue);
        if served == 0 || turn.is_multiple_of(TURNS) {
            let_signals_come(stays);
        }
    }
}

fn next_job() -> Option<Box<Job>> {
    QUEUE.lock().jobs.pop_front()
}

/// Waits until something may have come; false: nothing has, and the thread is to end.
fn wait() -> bool {
    let seen = {
        let mut queue = QUEUE.lock();
        if !queue.jobs.is_empty() {
            return true;
        }
        if queue.ends {
            queue.threads -= 1;
            return false;
        }
        queue.idle += 1;
        BELL.load(Acquire)
    };
    wait_for_bell(seen);
    let mut queue = QUEUE.lock();
    queue.idle -= 1;
    let goes_on = BELL.load(Acquire) != seen || !queue.jobs.is_empty();
    queue.threads -= u32::from(!goes_on);
    goes_on
}

/// How long at most a thread waits for the disk at a time.
const TURN: Duration = Duration::from_millis(20);
/// After so many turns in which something came, too, signals of the C library may come.
const TURNS: u64 = 32;

fn wait_for_bell(seen: u32) {
    let until = Timespec {
        tv_sec: PATIENCE.as_secs() as i64,
        tv_nsec: 0,
    };
    let until = &raw const until as usize;
    let args = [BELL.as_ptr() as usize, WAIT, seen as usize, until];
    outside(|| call(SYS_futex, &args));
}

/// Of the C library, to a thread of ours: not to one that is in the middle of a call.
fn let_signals_come(is_ours: bool) {
    if is_ours {
        outside(|| 0);
    }
}

/// Meanwhile signals of the C library may come, which are to find a thread of the program's.
fn outside(wait: impl FnOnce() -> Raw) {
    const CANCEL: i32 = 32;
    const CHANGE_IDS: i32 = 33;
    let flags = &thread().flags;
    let inside = flags.swap(0, Relaxed);
    set_mask(!(FAULTS | bit(CANCEL) | bit(CHANGE_IDS)));
    wait();
    block_all();
    flags.store(inside, Relaxed);
}
