//! The rings of this process, and their memory.

use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::AcqRel,
    Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use nacre_media::high_fd;

use super::layout::{Parameters, REQUESTS_AT, RING_AT};
use super::ticket::{Later, Ticket};
use crate::entry::call::Call;
use crate::entry::table::MARKS_LEN;
use crate::entry::user;
use crate::runtime::spin::SpinLock;

/// First word of a request that does nothing, on no descriptor.
pub const NOP_WITH_RESULT: u64 = 0xffff_ffff << 32;

static RINGS: [AtomicPtr<Ring>; MARKS_LEN] = [const { AtomicPtr::new(core::ptr::null_mut()) }; _];
static ANY: AtomicBool = AtomicBool::new(false);

/// A ring, by its descriptor. One that is closed is found as long as no other gets its number; the
/// kernel knows then.
#[derive(Default)]
pub struct Ring {
    start: AtomicUsize,
    requests: AtomicUsize,
    entries: AtomicU32,
    wide: AtomicBool,
    needs_call: AtomicBool,
    head: AtomicU32,
    tail: AtomicU32,
    /// 0 if requests are taken in their order in memory.
    order: AtomicU32,
    done_head: AtomicU32,
    done_tail: AtomicU32,
    /// A request of the kernel's waits until all before it are done.
    pub drains: AtomicBool,
    /// A request was completed later than the kernel took it, which it knows as one that completes
    /// in silence: it lets none wait for all before it any more.
    pub drains_no_more: AtomicBool,
    /// Its file, as long as requests are to be completed later.
    later: Later,
    /// Held while requests are looked at and handed over.
    pub turn: Turn,
    /// Registered files of pools.
    pub files: Files,
}

/// A lock of one ring's requests.
pub struct Turn(pub SpinLock<()>);

impl Default for Turn {
    fn default() -> Self {
        Turn(SpinLock::new(()))
    }
}

impl Ring {
    /// The ring behind a descriptor.
    pub fn at(fd: i32) -> Option<&'static Ring> {
        let place = RINGS.get(usize::try_from(fd).ok()?)?;
        // SAFETY: null, or leaked by `made`.
        unsafe { place.load(Acquire).as_ref() }
    }

    /// The kernel has made a ring. False if it cannot be kept.
    pub fn made(c: &mut Call<'_>, fd: i32, parameters: &Parameters) -> bool {
        const IOPOLL: u32 = 1;
        const WIDE: u32 = 1 << 10;
        const DEFER: u32 = 1 << 13;
        const NO_ARRAY: u32 = 1 << 16;
        let Some(place) = RINGS.get(fd as usize) else {
            return false;
        };
        if place.load(Acquire).is_null() {
            place.store(Box::leak(Box::default()), Release);
        }
        let Some(ring) = Ring::at(fd) else {
            return false;
        };
        let flags = parameters[2];
        ring.start.store(0, Relaxed);
        ring.requests.store(0, Relaxed);
        ring.entries.store(parameters[0], Relaxed);
        ring.wide.store(flags & WIDE != 0, Relaxed);
        ring.needs_call
            .store(flags & (IOPOLL | DEFER) != 0, Relaxed);
        ring.head.store(parameters[10], Relaxed);
        ring.tail.store(parameters[11], Relaxed);
        let order = if flags & NO_ARRAY == 0 {
            parameters[16]
        } else {
            0
        };
        ring.order.store(order, Relaxed);
        ring.done_head.store(parameters[20], Relaxed);
        ring.done_tail.store(parameters[21], Relaxed);
        ring.drains.store(false, Relaxed);
        ring.drains_no_more.store(false, Relaxed);
        ring.turn.0.release_after_fork();
        ring.later.forget();
        ring.files.resize(c, 0);
        ANY.store(true, Release);
        true
    }

    /// The program has the kernel map something; whether it may be a ring.
    #[inline]
    pub fn may_be_mapped(c: &Call<'_>) -> bool {
        ANY.load(Relaxed)
            && matches!(c.arg(5), RING_AT | REQUESTS_AT)
            && Ring::at(c.int(4)).is_some()
    }

    /// The kernel has mapped a ring, or its requests.
    pub fn mapped(c: &Call<'_>, at: usize) {
        if let Some(ring) = Ring::at(c.int(4)) {
            match c.arg(5) {
                REQUESTS_AT => ring.requests.store(at, Release),
                _ => ring.start.store(at, Release),
            }
        }
    }

    /// The ring's memory, if the program has mapped it.
    pub fn memory(&self) -> Option<Memory> {
        let memory = Memory {
            start: self.start.load(Acquire),
            requests: self.requests.load(Acquire),
            entries: self.entries.load(Relaxed),
            size: if self.wide.load(Relaxed) { 128 } else { 64 },
            head: self.head.load(Relaxed),
            tail: self.tail.load(Relaxed),
            order: self.order.load(Relaxed),
        };
        let is_there = |at: usize| at != 0 && user::peek(at).is_some();
        (is_there(memory.start) && is_there(memory.requests)).then_some(memory)
    }

    /// Requests that the kernel has taken and not completed, as far as one completion belongs to
    /// each.
    pub fn in_flight(&self, memory: &Memory) -> u32 {
        let taken = memory.word(memory.head).load(Acquire);
        taken.wrapping_sub(memory.word(self.done_tail.load(Relaxed)).load(Acquire))
    }

    /// What completes a request of this ring, which is at `fd`, later. `silent`: only if it fails.
    pub fn ticket(&self, fd: i32, user_data: u64, silent: bool) -> Option<Ticket> {
        self.later.ticket(fd, user_data, silent)
    }

    /// Whether so many completions are there that the kernel would not wait, nor do anything else.
    pub fn has_completed(&self, least: u32, flags: u32) -> bool {
        const PLAIN: u32 = 1;
        if least == 0 || flags != PLAIN || self.needs_call.load(Relaxed) {
            return false;
        }
        self.memory().is_some_and(|memory| {
            let tail = memory.word(self.done_tail.load(Relaxed)).load(Acquire);
            let head = memory.word(self.done_head.load(Relaxed)).load(Acquire);
            tail.wrapping_sub(head) >= least
        })
    }
}

/// Only the forking thread is in the child.
pub fn after_fork_child() {
    if !ANY.load(Relaxed) {
        return;
    }
    for fd in 0..MARKS_LEN {
        if let Some(ring) = Ring::at(fd as i32) {
            ring.turn.0.release_after_fork();
            ring.later.forget();
        }
    }
}

/// Where the program's requests are.
#[derive(Clone, Copy)]
pub struct Memory {
    start: usize,
    requests: usize,
    entries: u32,
    size: usize,
    head: u32,
    tail: u32,
    order: u32,
}

impl Memory {
    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the kernel gave the offset, the program maps the ring while it uses it, and all
        // words in it are aligned and changed atomically.
        unsafe { &*((self.start + offset as usize) as *const AtomicU32) }
    }

    /// Requests that the kernel has not taken.
    pub fn waiting(&self) -> u32 {
        let head = self.word(self.head).load(Acquire);
        let waiting = self.word(self.tail).load(Acquire).wrapping_sub(head);
        waiting.min(self.entries)
    }

    /// The `i`-th request that the kernel has not taken; None if its number is wrong.
    pub fn request(&self, i: u32) -> Option<Slot> {
        let mask = self.entries - 1;
        let place = self.word(self.head).load(Acquire).wrapping_add(i) & mask;
        let place = match self.order {
            0 => place,
            order => self.word(order + place * 4).load(Relaxed),
        };
        (place < self.entries).then(|| Slot(self.requests + place as usize * self.size))
    }
}

/// Where a request is.
#[derive(Clone, Copy)]
pub struct Slot(usize);

impl Slot {
    fn word(&self, i: usize) -> &AtomicU64 {
        // SAFETY: a slot is 64 bytes within the requests that the program maps, aligned.
        unsafe { &*((self.0 + i * 8) as *const AtomicU64) }
    }

    /// The request.
    pub fn read(&self) -> [u64; 8] {
        core::array::from_fn(|i| self.word(i).load(Relaxed))
    }

    /// Writes the words that tell what is to be done.
    pub fn put(&self, [what, how_much]: [u64; 2]) {
        self.word(0).store(what, Relaxed);
        self.word(3).store(how_much, Release);
    }

    /// Undoes [`Slot::put`], where the program has not begun to write another request.
    pub fn put_back(&self, put: [u64; 2], before: [u64; 2]) {
        for (i, k) in [(0, 0), (3, 1)] {
            let _newer = self
                .word(i)
                .compare_exchange(put[k], before[k], AcqRel, Relaxed);
        }
    }
}

/// Descriptors of ours for registered files of pools: -1 where the file is the kernel's.
#[derive(Default)]
pub struct Files(AtomicPtr<Vec<AtomicI32>>);

impl Files {
    fn list(&self) -> &[AtomicI32] {
        // SAFETY: null, or leaked by `resize`.
        unsafe { self.0.load(Acquire).as_ref() }.map_or(&[], Vec::as_slice)
    }

    /// The descriptor of a registered file, if it is one of a pool.
    pub fn get(&self, index: i32) -> Option<i32> {
        let fd = self.list().get(usize::try_from(index).ok()?)?.load(Acquire);
        (fd >= 0).then_some(fd)
    }

    /// Makes room for so many, and forgets all. Other threads may be looking at the list, so it
    /// stays unless another size is wanted, and is never freed.
    pub fn resize(&self, c: &mut Call<'_>, len: usize) {
        (0..self.list().len()).for_each(|i| self.set(c, i, -1));
        if self.list().len() < len {
            let list: Vec<AtomicI32> = (0..len).map(|_| AtomicI32::new(-1)).collect();
            self.0.store(Box::leak(Box::new(list)), Release);
        }
    }

    /// The program has registered a descriptor of its own at an index.
    pub fn set(&self, c: &mut Call<'_>, index: usize, fd: i32) {
        let Some(place) = self.list().get(index) else {
            return;
        };
        let kept = match fd >= 0 && c.vfs().ours(fd) {
            false => -1,
            true => {
                let args = [
                    fd as usize,
                    libc::F_DUPFD_CLOEXEC as usize,
                    high_fd() as usize,
                ];
                let made = c.serve_another(libc::SYS_fcntl, [args[0], args[1], args[2], 0, 0, 0]);
                made.map_or(-1, |fd| fd as i32)
            }
        };
        let before = place.swap(kept, AcqRel);
        if before >= 0 && c.vfs().ours(before) {
            let _gone = c.serve_another(libc::SYS_close, [before as usize, 0, 0, 0, 0, 0]);
        }
    }
}
