//! The event loop that moves requests between threads and modules.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::module::{Answer, Module, Request};
use super::stream::{OWN_BITS, Random, Stream};
use super::{Cut, ModelStep, Operation, Outcome, Workload};
use crate::profile::Profile;

/// From a thread to a module, ns.
const WAY: f64 = 10.0;
/// Share of the time that warms up.
const WARM_UP: f64 = 0.3;
/// How often it is looked whether enough bytes have been moved, ns.
const SLICE: f64 = 20_000.0;

#[derive(Clone, Copy)]
enum Event {
    /// A thread may issue a request.
    Issue(usize),
    /// A request reaches a module.
    Arrive(usize, Request),
    /// A module may take a request.
    Accept(usize),
    /// The cells of a module are ready.
    Ready(usize),
    /// A thread gets an answer.
    Return(Request),
}

/// An event and when it happens; earlier ones, then those scheduled earlier, compare as greater.
struct Timed {
    at: f64,
    order: u64,
    event: Event,
}

impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Timed {}

impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timed {
    fn cmp(&self, other: &Self) -> Ordering {
        let time = other.at.total_cmp(&self.at);
        time.then(other.order.cmp(&self.order))
    }
}

/// What was counted up to some moment.
#[derive(Clone, Copy, Default)]
struct Counts {
    loaded: u64,
    stored: u64,
    answers: u64,
    waited: f64,
    accepted: u64,
    written: u64,
    fetched: u64,
}

pub(super) struct Engine<'a> {
    profile: &'a Profile,
    workload: &'a Workload,
    /// How the stores of played steps are cut.
    cut: Option<&'a Cut<'a>>,
    threads: Vec<Stream<'a>>,
    modules: Vec<Module<'a>>,
    events: BinaryHeap<Timed>,
    order: u64,
    now: f64,
    random: Random,
    counts: Counts,
    answers: Vec<Answer>,
    /// How long a load's fill buffer is busy with the buffer that the load is copied to.
    copying: f64,
}

impl<'a> Engine<'a> {
    pub fn new(profile: &'a Profile, workload: &'a Workload) -> Self {
        let mut random = Random(12345);
        let threads = (0..workload.threads)
            .map(|number| Stream::new(number, profile, workload, &mut random))
            .collect();
        Self::with(profile, workload, threads, random)
    }

    /// Threads that play steps, again and again, each from another place on, evenly spread.
    pub fn playing(
        profile: &'a Profile,
        workload: &'a Workload,
        streams: &'a [Vec<ModelStep>],
        cut: &'a Cut<'a>,
    ) -> Self {
        let mut random = Random(12345);
        let count = streams.len();
        let threads = (0..).zip(streams).map(|(number, steps)| {
            let mut stream = Stream::new(number, profile, workload, &mut random);
            stream.play(steps, steps.len() * number as usize / count);
            stream
        });
        let threads = threads.collect();
        let mut engine = Self::with(profile, workload, threads, random);
        engine.cut = Some(cut);
        engine
    }

    fn with(
        profile: &'a Profile,
        workload: &'a Workload,
        threads: Vec<Stream<'a>>,
        random: Random,
    ) -> Self {
        let modules = (0..profile.layout.modules * workload.copies)
            .map(|_| Module::new(profile))
            .collect();
        Self {
            profile,
            workload,
            cut: None,
            threads,
            modules,
            events: BinaryHeap::new(),
            order: 0,
            now: 0.0,
            random,
            counts: Counts::default(),
            answers: Vec::new(),
            copying: copying(profile, workload),
        }
    }

    fn start(&mut self) {
        for thread in 0..self.threads.len() {
            self.threads[thread].issuing = true;
            self.after(thread as f64 * 1.7, Event::Issue(thread));
        }
    }

    /// Simulates until so many bytes have been moved after warming up.
    pub fn run_bytes(mut self, bytes: u64) -> Outcome {
        self.start();
        let moved = |counts: &Counts| counts.loaded + counts.stored;
        let reach = |engine: &mut Self, goal: u64| {
            let mut counts = engine.counted();
            while moved(&counts) < goal && !engine.events.is_empty() {
                let end = engine.now + SLICE;
                engine.run_until(end);
                engine.now = end;
                counts = engine.counted();
            }
            (counts, engine.now)
        };
        let warm = (bytes as f64 * WARM_UP) as u64;
        let (before, from) = reach(&mut self, warm);
        let (after, to) = reach(&mut self, warm + bytes);
        outcome(before, after, (to - from).max(1.0))
    }

    /// Simulates so many nanoseconds and measures after warming up.
    pub fn run(mut self, duration: f64) -> Outcome {
        self.start();
        let warm = duration * WARM_UP;
        self.run_until(warm);
        let before = self.counted();
        self.run_until(duration);
        outcome(before, self.counted(), duration - warm)
    }

    fn run_until(&mut self, end: f64) {
        while self.events.peek().is_some_and(|next| next.at < end) {
            if let Some(Timed { at, event, .. }) = self.events.pop() {
                self.now = at;
                self.handle(event);
            }
        }
    }

    fn counted(&self) -> Counts {
        let sum = |of: fn(&Module<'_>) -> u64| self.modules.iter().map(of).sum();
        Counts {
            accepted: sum(|module| module.accepted_bytes),
            written: sum(|module| module.written_bytes),
            fetched: sum(|module| module.fetched_bytes),
            ..self.counts
        }
    }

    fn after(&mut self, time: f64, event: Event) {
        self.order += 1;
        self.events.push(Timed {
            at: self.now + time,
            order: self.order,
            event,
        });
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Issue(thread) => self.issue(thread),
            Event::Arrive(module, request) => {
                self.modules[module].arrive(request);
                self.wake(module);
            }
            Event::Accept(module) => self.accept(module),
            Event::Ready(module) => {
                self.modules[module].finish_work(self.now, &mut self.random, &mut self.answers);
                self.deliver();
                self.start_work(module);
                self.wake(module);
            }
            Event::Return(request) => self.answered(request),
        }
    }

    fn issue(&mut self, thread: usize) {
        let stream = &mut self.threads[thread];
        stream.issuing = false;
        if !stream.may_issue() {
            return;
        }
        let line = self.profile.media.line;
        if let Some(cut) = self.cut {
            self.begin_step(thread, cut);
            if self.threads[thread].is_idle() {
                return self.pause(thread);
            }
        }
        let stream = &mut self.threads[thread];
        let address = stream.prepare(self.workload, line, &mut self.random);
        let (module, inside) = self.locate(address);
        let stream = &mut self.threads[thread];
        if stream.is_blocked(module) {
            return;
        }
        let early = stream.ready() - self.now;
        if early > 0.0 {
            stream.issuing = true;
            return self.after(early, Event::Issue(thread));
        }
        let access = self.profile.processor.access_ns;
        let load = stream.issue(self.workload, module, access, self.now);
        stream.issuing = true;
        let request = Request {
            thread: thread as u32,
            line: inside / line,
            part: (inside % line / 64) as u32,
            load,
            since: self.now,
            ahead: false,
        };
        let flushed = !load && self.workload.operation == Operation::StoreFlush;
        if flushed {
            // The processor reads a line before it changes a part of it; prefetching hides the
            // wait, not the traffic.
            let fetch = Request {
                load: true,
                ahead: true,
                ..request
            };
            self.after(0.0, Event::Arrive(module, fetch));
        }
        self.after(WAY, Event::Arrive(module, request));
        let processor = &self.profile.processor;
        let pace = if flushed {
            processor.flush_issue_ns
        } else {
            processor.issue_ns
        };
        self.after(pace, Event::Issue(thread));
    }

    /// A thread that pauses, once its requests are answered, issues again later; one that has
    /// nothing to do never.
    fn pause(&mut self, thread: usize) {
        let stream = &mut self.threads[thread];
        if stream.pause > 0.0 && stream.out == 0 {
            let time = std::mem::take(&mut stream.pause);
            stream.issuing = true;
            self.after(time, Event::Issue(thread));
        }
    }

    /// A thread between two played steps takes up the next, in pieces that depend on how many
    /// store.
    fn begin_step(&mut self, thread: usize, cut: &Cut<'_>) {
        if self.threads[thread].begin() {
            let storing = self.threads.iter().filter(|stream| stream.stores()).count();
            self.threads[thread].cut_by(storing as u32, cut);
        }
    }

    /// The module of an address, and the address inside of it.
    fn locate(&self, address: u64) -> (usize, u64) {
        let (size, count) = (
            self.profile.layout.interleave,
            u64::from(self.profile.layout.modules),
        );
        let piece = address / size;
        let device = (address >> OWN_BITS) % u64::from(self.workload.copies);
        (
            (device * count + piece % count) as usize,
            piece / count * size + address % size,
        )
    }

    /// Lets a module look at its requests, unless it is about to.
    fn wake(&mut self, module: usize) {
        if !self.modules[module].accepting && self.modules[module].has_pending() {
            self.modules[module].accepting = true;
            self.after(0.0, Event::Accept(module));
        }
    }

    fn accept(&mut self, module: usize) {
        let taken = self.modules[module].accept(self.now, &mut self.random, &mut self.answers);
        self.modules[module].accepting = taken;
        self.deliver();
        self.start_work(module);
        if taken {
            self.after(self.profile.controller.transfer_ns, Event::Accept(module));
        }
    }

    fn start_work(&mut self, module: usize) {
        if let Some(time) = self.modules[module].start_work() {
            self.after(time, Event::Ready(module));
        }
    }

    fn deliver(&mut self) {
        let mut answers = std::mem::take(&mut self.answers);
        for (request, time) in answers.drain(..) {
            if !request.ahead {
                self.accepted(request.thread as usize);
            }
            let flushed = !request.load && self.workload.operation == Operation::StoreFlush;
            let time = if flushed {
                self.profile.processor.flush_ns
            } else {
                time
            };
            if !request.ahead {
                let time = if request.load {
                    time + self.copying
                } else {
                    time
                };
                self.after(time, Event::Return(request));
            }
        }
        self.answers = answers;
    }

    /// A store waits no longer: its thread may be able to go on.
    fn accepted(&mut self, thread: usize) {
        self.threads[thread].waiting -= 1;
        self.wake_thread(thread);
    }

    fn wake_thread(&mut self, thread: usize) {
        if !self.threads[thread].issuing {
            self.threads[thread].issuing = true;
            self.after(0.0, Event::Issue(thread));
        }
    }

    fn answered(&mut self, request: Request) {
        let count = if request.load {
            &mut self.counts.loaded
        } else {
            &mut self.counts.stored
        };
        *count += 64;
        self.counts.answers += 1;
        self.counts.waited += self.now - request.since;
        let thread = request.thread as usize;
        self.threads[thread].out -= 1;
        self.wake_thread(thread);
    }
}

/// Lines of a buffer that is not in the cache are fetched before they are changed.
fn copying(profile: &Profile, workload: &Workload) -> f64 {
    let buffers = workload.access.saturating_mul(u64::from(workload.threads));
    if workload.operation == Operation::Read && buffers > profile.processor.cache {
        profile.latency.dram_read_ns
    } else {
        0.0
    }
}

fn outcome(before: Counts, after: Counts, time: f64) -> Outcome {
    let loaded = (after.loaded - before.loaded) as f64;
    let stored = (after.stored - before.stored) as f64;
    let written = (after.written - before.written) as f64;
    let ratio = |part: f64, whole: f64, none: f64| if whole > 0.0 { part / whole } else { none };
    Outcome {
        bandwidth: (loaded + stored) / time,
        read_bandwidth: loaded / time,
        ewr: ratio((after.accepted - before.accepted) as f64, written, 1.0),
        read_amplification: ratio((after.fetched - before.fetched) as f64, loaded, 0.0),
        latency: ratio(
            after.waited - before.waited,
            (after.answers - before.answers) as f64,
            0.0,
        ),
    }
}
