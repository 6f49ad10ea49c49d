//! One module: requests that wait, a buffer for what is written, one for what is read, and the
//! cells.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use super::stream::Random;
use crate::profile::Profile;

/// A request of 64 bytes.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub thread: u32,
    /// Line of the module.
    pub line: u64,
    /// Which 64 bytes of the line.
    pub part: u32,
    pub load: bool,
    /// When the thread issued it.
    pub since: f64,
    /// Nobody waits for it: the line is fetched because stores through the cache need it.
    pub ahead: bool,
}

/// Spreads line numbers; they are no secret that somebody could attack.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 ^= self.0 >> 29;
    }
}

type Lines<T> = HashMap<u64, T, BuildHasherDefault<Spread>>;

/// A line that has a place in the buffer for what is written.
#[derive(Clone, Copy)]
struct Written {
    /// What was written since it was sent to the cells last; none of a line that they have whole.
    bits: u64,
    /// How often it waits for the cells; nothing takes its place until they have it.
    held: u32,
}

/// A line that was read.
struct Fetched {
    /// When it has come from the cells; `None` while they have not read it.
    ready: Option<f64>,
    waiting: Vec<Request>,
}

/// What the cells do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Idle,
    Read(u64),
    Write,
}

/// An answer to a thread, and after how many nanoseconds it arrives.
pub(super) type Answer = (Request, f64);

pub(super) struct Module<'a> {
    profile: &'a Profile,
    full: u64,
    loads: Vec<Request>,
    /// Stores in the queue that combines, the first to come first.
    stores: Vec<Request>,
    /// Stores that found it full.
    outside: Vec<Request>,
    /// The line that was stored to last.
    open: u64,
    written: Lines<Written>,
    /// The lines among them by their places.
    places: Vec<u64>,
    fetched: Lines<Fetched>,
    /// Lines that have come from the cells, the first to come first.
    arrived: VecDeque<u64>,
    /// Of the call that is being served.
    now: f64,
    /// Lines that wait for being written to the cells; `None` for what is merged there.
    to_write: VecDeque<Option<u64>>,
    /// Lines that hold their places while they wait.
    held: usize,
    to_read: VecDeque<u64>,
    work: Work,
    pub accepting: bool,
    pub accepted_bytes: u64,
    pub written_bytes: u64,
    pub fetched_bytes: u64,
}

impl<'a> Module<'a> {
    pub fn new(profile: &'a Profile) -> Self {
        let parts = profile.media.line / 64;
        Self {
            profile,
            full: u64::MAX >> (64 - parts),
            loads: Vec::new(),
            stores: Vec::new(),
            outside: Vec::new(),
            open: u64::MAX,
            written: Lines::default(),
            places: Vec::new(),
            fetched: Lines::default(),
            arrived: VecDeque::new(),
            now: 0.0,
            to_write: VecDeque::new(),
            held: 0,
            to_read: VecDeque::new(),
            work: Work::Idle,
            accepting: false,
            accepted_bytes: 0,
            written_bytes: 0,
            fetched_bytes: 0,
        }
    }

    pub fn arrive(&mut self, request: Request) {
        if request.load {
            self.loads.push(request);
        } else {
            let room = self.stores.len() < self.profile.controller.queue as usize;
            let queue = if room {
                &mut self.stores
            } else {
                &mut self.outside
            };
            queue.push(request);
        }
    }

    pub fn has_pending(&self) -> bool {
        !self.loads.is_empty() || !self.stores.is_empty()
    }

    /// Takes one of the waiting requests, if any can be taken; tells whether, and pushes the answer
    /// if there is one already.
    ///
    /// Loads and stores wait apart; the longer a queue, the likelier its turn.
    pub fn accept(&mut self, now: f64, random: &mut Random, answers: &mut Vec<Answer>) -> bool {
        self.now = now;
        let waiting = (self.loads.len() + self.stores.len() + self.outside.len()) as u64;
        if waiting == 0 {
            return false;
        }
        let loads_first = random.below(waiting) < self.loads.len() as u64;
        let taken = if loads_first {
            self.accept_load(random, answers)
        } else {
            self.accept_store(random, answers)
        };
        taken
            || if loads_first {
                self.accept_store(random, answers)
            } else {
                self.accept_load(random, answers)
            }
    }

    fn accept_load(&mut self, random: &mut Random, answers: &mut Vec<Answer>) -> bool {
        if self.loads.is_empty() {
            return false;
        }
        let place = self.first(&self.loads, random);
        let taken = self.take_load(self.loads[place], answers);
        if taken {
            self.loads.remove(place);
        }
        taken
    }

    /// Place of the request that comes first: now and then that of the core whose requests pass
    /// those of all others on the way, otherwise any.
    fn first(&self, waiting: &[Request], random: &mut Random) -> usize {
        if random.share(self.profile.controller.precedence) {
            let places = waiting.iter().enumerate();
            let nearest = places.min_by_key(|(_, request)| request.thread);
            return nearest.map_or(0, |(place, _)| place);
        }
        random.below(waiting.len() as u64) as usize
    }

    fn accept_store(&mut self, random: &mut Random, answers: &mut Vec<Answer>) -> bool {
        let same = |store: &Request| store.line == self.open;
        if let Some(place) = self.stores.iter().position(same)
            && self.take_store_at(place, random, answers)
        {
            return true;
        }
        let tries = self
            .stores
            .len()
            .min(self.profile.controller.tries as usize);
        (0..tries).any(|place| self.take_store_at(place, random, answers))
    }

    fn take_store_at(
        &mut self,
        place: usize,
        random: &mut Random,
        answers: &mut Vec<Answer>,
    ) -> bool {
        let store = self.stores[place];
        if !self.take_store(store, random, answers) {
            return false;
        }
        self.open = store.line;
        self.stores.remove(place);
        if !self.outside.is_empty() {
            let next = self.first(&self.outside, random);
            self.stores.push(self.outside.remove(next));
        }
        true
    }

    fn take_store(
        &mut self,
        request: Request,
        random: &mut Random,
        answers: &mut Vec<Answer>,
    ) -> bool {
        let bit = 1 << request.part;
        let room = self.to_write.len() < self.profile.buffer.writes_waiting as usize;
        let known = self.written.get(&request.line).map(|line| line.bits);
        let bits = known.unwrap_or(0) | bit;
        if !room && (bits == self.full || known.is_none()) {
            return false;
        }
        if known.is_none() {
            self.insert(request.line, random);
        }
        if let Some(line) = self.written.get_mut(&request.line) {
            line.bits = bits;
            if bits == self.full {
                line.bits = 0;
                self.hold(request.line);
            }
        }
        self.accepted_bytes += 64;
        answers.push((request, self.profile.controller.accept_ns));
        true
    }

    /// A whole line waits for the cells, in its place.
    fn hold(&mut self, line: u64) {
        self.to_write.push_back(Some(line));
        if let Some(entry) = self.written.get_mut(&line) {
            entry.held += 1;
            if entry.held == 1 {
                self.held += 1;
                self.places.retain(|&other| other != line);
            }
        }
    }

    /// The cells have a line: others may take its place.
    fn release(&mut self, line: u64, random: &mut Random) {
        if let Some(entry) = self.written.get_mut(&line) {
            entry.held -= 1;
            if entry.held == 0 {
                self.held -= 1;
                self.take_place(line, random);
            }
        }
    }

    fn insert(&mut self, line: u64, random: &mut Random) {
        self.take_place(line, random);
        self.written.insert(line, Written { bits: 0, held: 0 });
    }

    /// Gives a line a place. If all are taken, that of any other one that waits for nothing, which
    /// leaves.
    fn take_place(&mut self, line: u64, random: &mut Random) {
        let free = self.profile.buffer.lines as usize - self.held;
        if self.places.len() < free.max(1) {
            return self.places.push(line);
        }
        let place = random.below(self.places.len() as u64) as usize;
        let other = std::mem::replace(&mut self.places[place], line);
        if self
            .written
            .remove(&other)
            .is_some_and(|line| line.bits > 0)
        {
            self.to_write.push_back(None);
        }
    }

    fn take_load(&mut self, request: Request, answers: &mut Vec<Answer>) -> bool {
        let answer = self.profile.controller.answer_ns;
        if let Some(line) = self.fetched.get_mut(&request.line) {
            match line.ready {
                None => line.waiting.push(request),
                Some(ready) => answers.push((request, answer + (ready - self.now).max(0.0))),
            }
            return true;
        }
        if self.written.contains_key(&request.line) {
            answers.push((request, answer));
            return true;
        }
        if self.to_read.len() >= self.profile.buffer.reads_waiting as usize {
            return false;
        }
        if self.fetched.len() >= self.profile.buffer.read_lines as usize {
            match self.arrived.pop_front() {
                Some(oldest) => self.fetched.remove(&oldest),
                None => return false,
            };
        }
        let line = Fetched {
            ready: None,
            waiting: vec![request],
        };
        self.fetched.insert(request.line, line);
        self.to_read.push_back(request.line);
        true
    }

    /// Starts the next work of the cells if they are idle; gives the time that it takes.
    pub fn start_work(&mut self) -> Option<f64> {
        if self.work != Work::Idle {
            return None;
        }
        let cells = &self.profile.media;
        if let Some(line) = self.to_read.pop_front() {
            self.work = Work::Read(line);
            self.fetched_bytes += cells.line;
            return Some(cells.read_ns);
        }
        let &whole = self.to_write.front()?;
        self.work = Work::Write;
        self.written_bytes += cells.line;
        let merge = if whole.is_some() {
            0.0
        } else {
            cells.merge * cells.read_ns
        };
        Some(cells.write_ns + merge)
    }

    /// Ends the work of the cells.
    pub fn finish_work(&mut self, now: f64, random: &mut Random, answers: &mut Vec<Answer>) {
        match std::mem::replace(&mut self.work, Work::Idle) {
            Work::Idle => {}
            Work::Write => {
                if let Some(Some(line)) = self.to_write.pop_front() {
                    self.release(line, random);
                }
            }
            Work::Read(line) => {
                let controller = &self.profile.controller;
                let coming = (controller.fetch_ns - self.profile.media.read_ns).max(0.0);
                let more = controller.answer_ns + coming;
                if let Some(entry) = self.fetched.get_mut(&line) {
                    entry.ready = Some(now + coming);
                    let waiting = std::mem::take(&mut entry.waiting);
                    answers.extend(waiting.into_iter().map(|request| (request, more)));
                }
                self.arrived.push_back(line);
            }
        }
    }
}
