//! One thread: the addresses that it touches.

use super::{Cut, ModelStep, Operation, Pattern, Workload};
use crate::profile::{Controller, Profile};

/// A small generator of random numbers (splitmix64), so that outcomes are the same everywhere.
pub(super) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn share(&mut self, share: f64) -> bool {
        ((self.next() >> 11) as f64) < share * (1u64 << 53) as f64
    }
}

/// Bytes of a thread's own memory.
const REGION: u64 = 1 << 30;
/// Above these bits of an address stands the number of the thread whose memory it is.
pub(super) const OWN_BITS: u32 = 40;
/// Threads begin at pages of their own.
const PAGE: u64 = 4096;
/// Lines of 64 bytes, one behind the other, after which the processor prefetches.
const TRAINING: u32 = 4;

/// One thread of a workload.
pub(super) struct Stream<'a> {
    base: u64,
    position: u64,
    /// Address of the next request and bytes left of the access.
    at: u64,
    left: u64,
    reading: bool,
    /// Requests under way.
    pub out: u32,
    /// Requests among them that no module has taken, and the module of the last of them.
    pub waiting: u32,
    toward: usize,
    controller: &'a Controller,
    /// Requests that may be under way, and loads that may while the processor prefetches.
    buffers: u32,
    ahead: u32,
    /// Lines of 64 bytes that were touched one behind the other.
    run: u32,
    /// Accesses follow each other.
    in_order: bool,
    /// When the next load at a random place may begin.
    ready: f64,
    /// The request that is prepared is the first of an access at a random place.
    jumps: bool,
    since_fence: u64,
    pub fenced: bool,
    /// Steps to play instead of the workload's pattern, and the next of them.
    steps: &'a [ModelStep],
    step: usize,
    /// Pieces that the present store is cut to, 0 for none.
    piece: u64,
    /// Time that the thread spends elsewhere before its next request, ns.
    pub pause: f64,
    /// An issue event is on its way.
    pub issuing: bool,
}

impl<'a> Stream<'a> {
    pub fn new(
        number: u32,
        profile: &'a Profile,
        workload: &Workload,
        random: &mut Random,
    ) -> Self {
        let processor = &profile.processor;
        let ahead = f64::from(processor.fill_buffers) * processor.prefetch;
        // Threads start at pages of their own; how these lie to each other is as random as in a
        // real allocation.
        let position = match workload.pattern {
            Pattern::Sequential => random.below(REGION / PAGE) * PAGE,
            _ => 0,
        };
        Self {
            base: u64::from(number) << OWN_BITS,
            position,
            at: 0,
            left: 0,
            reading: false,
            out: 0,
            waiting: 0,
            toward: 0,
            controller: &profile.controller,
            buffers: processor.fill_buffers,
            ahead: ahead.round() as u32,
            run: 0,
            in_order: workload.pattern == Pattern::Sequential,
            ready: 0.0,
            jumps: false,
            since_fence: 0,
            fenced: false,
            steps: &[],
            step: 0,
            piece: 0,
            pause: 0.0,
            issuing: false,
        }
    }

    /// Plays steps from one of them on.
    pub fn play(&mut self, steps: &'a [ModelStep], from: usize) {
        (self.steps, self.step) = (steps, from);
    }

    /// Takes up the next step, unless the thread is in the middle of one; tells whether it is a
    /// store of data.
    pub fn begin(&mut self) -> bool {
        let mut skipped = 0;
        while self.left == 0 && self.pause == 0.0 && skipped <= self.steps.len() {
            skipped += 1;
            let (at, len, load) = match self.advance() {
                Some(ModelStep::Load { at, len }) => (at, len, true),
                Some(ModelStep::Store { at, len, .. }) => (at, len, false),
                Some(ModelStep::Pause { ns }) => {
                    self.pause += f64::from(ns);
                    continue;
                }
                Some(ModelStep::Fence) | None => continue,
            };
            let first = at / 64 * 64;
            let left = (at + len).next_multiple_of(64) - first;
            if first != self.at {
                self.run = 0;
            }
            (self.at, self.reading, self.left) = (first, load, left);
            self.piece = 0;
            let data = matches!(
                self.steps[self.before()],
                ModelStep::Store { data: true, .. }
            );
            if left > 0 {
                return !load && data;
            }
        }
        false
    }

    fn advance(&mut self) -> Option<ModelStep> {
        let step = self.steps.get(self.step).copied();
        self.step = (self.step + 1) % self.steps.len().max(1);
        step
    }

    /// The step that was taken up last.
    fn before(&self) -> usize {
        (self.step + self.steps.len() - 1) % self.steps.len()
    }

    /// Whether there is nothing to play.
    pub fn is_idle(&self) -> bool {
        self.left == 0
    }

    /// Whether the thread is in the middle of a store.
    pub fn stores(&self) -> bool {
        self.left > 0 && !self.reading
    }

    /// Cuts the step just taken up.
    pub fn cut_by(&mut self, storing: u32, cut: &Cut<'_>) {
        self.piece = cut(storing, self.left);
    }

    /// Whether the thread waits after the request just issued: at the end of a piece, or before a
    /// fence.
    fn waits(&self, workload: &Workload) -> bool {
        if self.steps.is_empty() {
            return workload.fence > 0 && self.since_fence >= workload.fence;
        }
        let cut = self.piece > 0 && self.at.is_multiple_of(self.piece) && !self.reading;
        cut || (self.left == 0 && self.steps[self.step] == ModelStep::Fence)
    }

    /// Whether another request may be issued now.
    pub fn may_issue(&mut self) -> bool {
        if self.fenced {
            if self.out > 0 {
                return false;
            }
            self.fenced = false;
            self.since_fence = 0;
        }
        let inside = self.left > 0 || self.in_order;
        let prefetched = self.reading && inside && self.run >= TRAINING;
        self.out < if prefetched { self.ahead } else { self.buffers }
    }

    /// When the request that is prepared may be issued.
    pub fn ready(&self) -> f64 {
        if self.jumps && self.reading {
            self.ready
        } else {
            0.0
        }
    }

    /// Decides where the next access lies if there is none under way; gives its next address.
    pub fn prepare(&mut self, workload: &Workload, line: u64, random: &mut Random) -> u64 {
        if self.left == 0 && self.steps.is_empty() {
            let at = self.base + self.place(workload, line, random);
            if at != self.at {
                self.run = 0;
            }
            self.at = at;
            self.jumps = workload.pattern == Pattern::Random;
            self.left = workload.access.max(64);
            let loads = matches!(workload.operation, Operation::Load | Operation::Read);
            self.reading = loads || random.share(workload.loads);
        }
        self.at
    }

    /// Whether a request to a module has to wait for earlier ones: of the thread's stores only so
    /// many may wait for a module, and while so many requests do, none goes to another module.
    pub fn is_blocked(&self, module: usize) -> bool {
        let controller = self.controller;
        let most = match (self.reading, self.toward == module) {
            (true, true) => u32::MAX,
            (true, false) => controller.loads_ahead,
            (false, true) => controller.stores_waiting,
            (false, false) => controller.stores_waiting.min(controller.stores_ahead),
        };
        self.waiting >= most
    }

    /// Issues the request that was prepared, to a module; tells whether it is a load.
    pub fn issue(&mut self, workload: &Workload, module: usize, access_ns: f64, now: f64) -> bool {
        if std::mem::take(&mut self.jumps) {
            self.ready = now + access_ns;
        }
        self.at += 64;
        self.run = self.run.saturating_add(1);
        self.left = self.left.saturating_sub(64);
        self.since_fence += 64;
        self.fenced = self.waits(workload);
        self.out += 1;
        self.waiting += 1;
        self.toward = module;
        self.reading
    }

    fn place(&mut self, workload: &Workload, line: u64, random: &mut Random) -> u64 {
        match workload.pattern {
            Pattern::Random => random.below(REGION / workload.access) * workload.access,
            Pattern::Sequential => {
                let place = self.position;
                self.position += workload.access;
                place
            }
            Pattern::Halves(region) => {
                let lines = (region / line).max(1);
                let step = self.position;
                self.position += 1;
                (step % lines) * line + (step / lines % 2) * (line / 2)
            }
        }
    }
}
