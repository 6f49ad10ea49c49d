//! Requests that one call hands to the kernel, some of them served here.

use core::sync::atomic::Ordering::Relaxed;

use libc::SYS_io_uring_enter;

use super::later::Job;
use super::ring::{Memory, NOP_WITH_RESULT, Ring, Slot};
use super::sqe::{Action, BUFFER_SELECT, DRAIN, FIXED_FILE, HARD_LINK, LINK, SKIP_SUCCESS, Sqe};
use super::workers;
use crate::entry::call::Call;
use crate::entry::errno::Stop;
use crate::runtime::kernel::{call, nap};

/// A request that has another one in its place.
struct Replaced {
    slot: Slot,
    put: [u64; 2],
    before: [u64; 2],
}

/// Requests that follow each other by links.
#[derive(Clone, Copy, Default)]
struct Chain {
    /// The request before is linked to this one.
    goes_on: bool,
    /// One has failed, so the others are cancelled.
    failed: bool,
    /// The kernel has one of it.
    has_kernels: bool,
    /// One of ours comes behind one of the kernel's, which is done here, too, so that they keep
    /// their order.
    mixed: bool,
}

/// One submission.
pub struct Submission<'a, 'f> {
    c: &'a mut Call<'f>,
    ring: &'static Ring,
    memory: Memory,
    replaced: Vec<Replaced>,
    /// To be served once the kernel has taken so many and one more.
    later: Vec<(u32, Box<Job>)>,
    chain: Chain,
    /// Looked at, and not yet handed over.
    pending: u32,
    /// Some of these are the kernel's.
    kernels_pending: bool,
    submitted: isize,
}

impl<'a, 'f> Submission<'a, 'f> {
    /// Of requests in a ring.
    pub fn new(c: &'a mut Call<'f>, ring: &'static Ring, memory: Memory) -> Self {
        Submission {
            c,
            ring,
            memory,
            replaced: Vec::new(),
            later: Vec::new(),
            chain: Chain::default(),
            pending: 0,
            kernels_pending: false,
            submitted: 0,
        }
    }

    /// Whether the `i`-th request may concern a pool.
    pub fn concerns_pool(c: &Call<'_>, ring: &Ring, memory: &Memory, i: u32) -> bool {
        memory.request(i).is_some_and(|slot| {
            let sqe = Sqe(slot.read());
            ours(c, ring, &sqe).is_some() || sqe.closes_registered()
        })
    }

    /// Serves what is ours of `count` requests, and hands them over; how many the kernel has taken,
    /// or its error.
    pub fn submit(mut self, count: u32) -> isize {
        let _turn = self.ring.turn.0.lock();
        // Another thread may have handed some over meanwhile, and the program fill their slots.
        let count = count.min(self.memory.waiting());
        self.replaced.reserve(count as usize);
        for _ in 0..count {
            let Some(slot) = self.memory.request(self.pending) else {
                break;
            };
            if !self.next(slot) {
                return self.submitted;
            }
        }
        self.hand_over();
        self.submitted
    }

    /// The next request. False if the kernel did not take one before it.
    fn next(&mut self, slot: Slot) -> bool {
        let sqe = Sqe(slot.read());
        if sqe.flags() & DRAIN != 0 && self.ring.drains_no_more.load(Relaxed) {
            return self.next_alone(slot, sqe);
        }
        if !self.chain.goes_on {
            self.chain = Chain {
                mixed: self.is_mixed(&sqe),
                ..Chain::default()
            };
        }
        let action = ours(self.c, self.ring, &sqe);
        let waits = sqe.flags() & DRAIN != 0 || self.ring.drains.load(Relaxed);
        // What the kernel refuses ends the submission, and nothing behind that may be done.
        if action.is_some() && !self.chain.goes_on && self.kernels_pending && !self.hand_over() {
            return false;
        }
        let late = action.is_some() && waits && !self.chain.goes_on && !self.all_done();
        if late {
            self.answer(slot, &sqe, -libc::EBUSY);
        } else {
            self.decide(slot, &sqe, action, !waits);
        }
        self.pending += 1;
        self.chain.goes_on = sqe.flags() & (LINK | HARD_LINK) != 0;
        true
    }

    /// A request that waits until all before it are done, and for which all behind it wait, in a
    /// ring of which the kernel no longer sees to that.
    fn next_alone(&mut self, slot: Slot, sqe: Sqe) -> bool {
        if !self.hand_over() {
            return false;
        }
        let late = !self.all_done();
        let free = sqe.without(DRAIN);
        let action = ours(self.c, self.ring, &free);
        match (late, action) {
            (true, _) => self.answer(slot, &free, -libc::EBUSY),
            (false, None) => self.put(slot, [free.0[0], free.0[3]]),
            (false, action) => self.decide(slot, &free, action, false),
        }
        self.pending += 1;
        self.hand_over() && (late || self.all_done())
    }

    fn decide(&mut self, slot: Slot, sqe: &Sqe, action: Option<Action>, may_be_late: bool) {
        if self.chain.failed {
            return self.answer(slot, sqe, -libc::ECANCELED);
        }
        let Some(action) = action else {
            return self.leave(slot, sqe);
        };
        if self.chain.has_kernels || sqe.flags() & BUFFER_SELECT != 0 || makes_registered(sqe) {
            return self.answer(slot, sqe, -libc::EOPNOTSUPP);
        }
        if let Some(value) = action.serve_now(self.c) {
            return self.complete(slot, sqe, &action, value as i32);
        }
        let linked = self.chain.goes_on || sqe.flags() & (LINK | HARD_LINK) != 0;
        if may_be_late && !linked && self.serve_later(slot, sqe, &action) {
            return;
        }
        match action.serve(self.c) {
            Err(Stop::Native) => self.leave(slot, sqe),
            Err(Stop::Errno(errno)) => self.complete(slot, sqe, &action, -errno),
            Ok(value) => self.complete(slot, sqe, &action, value as i32),
        }
    }

    /// Has another thread serve what would wait for a disk: false if it need not, or cannot.
    fn serve_later(&mut self, slot: Slot, sqe: &Sqe, action: &Action) -> bool {
        let Some(request) = action.later(self.c) else {
            return false;
        };
        let (fd, silent) = (self.c.int(0), sqe.flags() & SKIP_SUCCESS != 0);
        let Some(ticket) = self.ring.ticket(fd, sqe.user_data(), silent) else {
            return false;
        };
        let tell = Box::new(|result| ticket.complete(result));
        self.later
            .push((self.pending, Box::new(Job { request, tell })));
        self.ring.drains_no_more.store(true, Relaxed);
        // The kernel takes it, and says nothing of it.
        self.put(slot, nop(SKIP_SUCCESS, 0));
        true
    }

    /// A request of the kernel's.
    fn leave(&mut self, slot: Slot, sqe: &Sqe) {
        if sqe.closes_registered() {
            self.ring
                .files
                .set(self.c, sqe.file_index() as usize - 1, -1);
        }
        if self.chain.mixed && sqe.flags() & FIXED_FILE == 0 {
            let action = sqe.action(sqe.fd());
            if let Some((action, Ok(value))) = action.map(|a| {
                let done = a.by_kernel();
                (a, done)
            }) {
                return self.complete(slot, sqe, &action, value as i32);
            }
        }
        self.chain.has_kernels = true;
        self.kernels_pending = true;
        if sqe.flags() & DRAIN != 0 {
            self.ring.drains.store(true, Relaxed);
        }
    }

    /// A request is done.
    fn complete(&mut self, slot: Slot, sqe: &Sqe, action: &Action, result: i32) {
        let linked = sqe.flags() & (LINK | HARD_LINK) != 0;
        let short = linked
            && action
                .wanted()
                .is_some_and(|wanted| (result as usize) < wanted);
        self.chain.failed = (result < 0 || short) && sqe.flags() & HARD_LINK == 0;
        self.answer(slot, sqe, result);
    }

    /// The kernel is to complete the request with a result.
    fn answer(&mut self, slot: Slot, sqe: &Sqe, result: i32) {
        const KEPT: u8 = DRAIN | LINK | HARD_LINK | SKIP_SUCCESS;
        self.put(slot, nop(sqe.flags() & KEPT, result));
    }

    /// The kernel finds something else in the place of a request.
    fn put(&mut self, slot: Slot, put: [u64; 2]) {
        let program = slot.read();
        let before = [program[0], program[3]];
        slot.put(put);
        self.replaced.push(Replaced { slot, put, before });
    }

    /// Whether a chain that begins here has one of ours behind one of the kernel's.
    fn is_mixed(&self, first: &Sqe) -> bool {
        let (mut sqe, mut i, mut kernels) = (*first, self.pending, false);
        loop {
            let is_ours = ours(self.c, self.ring, &sqe).is_some();
            if is_ours && kernels {
                return true;
            }
            kernels |= !is_ours;
            i += 1;
            if sqe.flags() & (LINK | HARD_LINK) == 0 || i >= self.memory.waiting() {
                return false;
            }
            match self.memory.request(i) {
                Some(slot) => sqe = Sqe(slot.read()),
                None => return false,
            }
        }
    }

    /// Hands over what was looked at. False if the kernel did not take all of it.
    fn hand_over(&mut self) -> bool {
        if self.pending == 0 {
            return true;
        }
        let args = [self.c.arg(0), self.pending as usize, 0, 0, 0, 0];
        let taken = call(SYS_io_uring_enter, &args);
        for one in self.replaced.drain(..) {
            one.slot.put_back(one.put, one.before);
        }
        for (place, job) in self.later.drain(..) {
            if (place as isize) < taken {
                workers::serve(self.c.vfs(), job);
            }
        }
        let all = taken == self.pending as isize;
        (self.pending, self.kernels_pending) = (0, false);
        match taken {
            0.. => self.submitted += taken,
            _ if self.submitted == 0 => self.submitted = taken,
            _ => {}
        }
        all
    }

    /// Waits until the kernel has completed all that it has taken; false if that takes long.
    fn all_done(&mut self) -> bool {
        const ROUNDS: u32 = 2000;
        const GETEVENTS: usize = 1;
        if !self.hand_over() {
            return false;
        }
        for _ in 0..ROUNDS {
            if self.ring.in_flight(&self.memory) == 0 {
                self.ring.drains.store(false, Relaxed);
                return true;
            }
            call(SYS_io_uring_enter, &[self.c.arg(0), 0, 0, GETEVENTS, 0, 0]);
            nap();
        }
        false
    }
}

/// A request that does nothing but complete with a result.
fn nop(flags: u8, result: i32) -> [u64; 2] {
    const WITH_RESULT: u64 = 1;
    [
        NOP_WITH_RESULT | u64::from(flags) << 8,
        WITH_RESULT << 32 | u64::from(result as u32),
    ]
}

/// What a request does, if it may concern a pool.
fn ours(c: &Call<'_>, ring: &Ring, sqe: &Sqe) -> Option<Action> {
    let fd = match sqe.flags() & FIXED_FILE {
        0 => sqe.fd(),
        _ => ring.files.get(sqe.fd())?,
    };
    sqe.action(fd).filter(|action| action.is_ours(c))
}

/// Makes a registered file, and no descriptor.
fn makes_registered(sqe: &Sqe) -> bool {
    sqe.file_index() != 0 && sqe.opens()
}
