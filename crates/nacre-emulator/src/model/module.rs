//! One module: requests that wait, the buffer of lines, and the cells.

use std::collections::{BTreeMap, HashMap, VecDeque};

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

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Written in part; bits tell which.
    Partial(u64),
    /// Waiting for the cells to write it, or being written.
    Leaving(u64),
    /// Waiting for the cells to read it, or being read.
    Coming,
    /// The same as in the cells.
    Clean,
}

struct BufferedLine {
    state: State,
    /// Its place in the order of use; 0 while it cannot be given up.
    used: u64,
    /// When what was read of it has come from the cells.
    ready: f64,
    waiting: Vec<Request>,
}

/// What the cells do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Idle,
    Read(u64),
    Write(u64),
}

/// An answer to a thread, and after how many nanoseconds it arrives.
pub(super) type Answer = (Request, f64);

pub(super) struct Module<'a> {
    profile: &'a Profile,
    full: u64,
    loads: Vec<Request>,
    stores: Vec<Request>,
    buffer: HashMap<u64, BufferedLine>,
    order: BTreeMap<u64, u64>,
    clock: u64,
    /// Of the call that is being served.
    now: f64,
    to_write: VecDeque<u64>,
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
            buffer: HashMap::new(),
            order: BTreeMap::new(),
            clock: 0,
            now: 0.0,
            to_write: VecDeque::new(),
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
            self.stores.push(request);
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
        let waiting = (self.loads.len() + self.stores.len()) as u64;
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
        let place = random.below(self.loads.len() as u64) as usize;
        let taken = self.take_load(self.loads[place], answers);
        if taken {
            self.loads.remove(place);
        }
        taken
    }

    fn accept_store(&mut self, random: &mut Random, answers: &mut Vec<Answer>) -> bool {
        let controller = &self.profile.controller;
        let window = self.stores.len().min(controller.window as usize);
        if window == 0 {
            return false;
        }
        let first = random.below(window as u64) as usize;
        for skip in 0..window.min(controller.tries as usize) {
            let place = (first + skip) % window;
            if self.take_store(self.stores[place], answers) {
                self.stores.remove(place);
                return true;
            }
        }
        false
    }

    fn take_store(&mut self, request: Request, answers: &mut Vec<Answer>) -> bool {
        let bit = 1 << request.part;
        let known = self.buffer.get(&request.line).map(|entry| entry.state);
        let bits = match known {
            Some(State::Partial(bits)) => bits | bit,
            Some(State::Clean) => bit,
            Some(State::Leaving(_) | State::Coming) => return false,
            None => bit,
        };
        let crowded = self.to_write.len() >= self.profile.buffer.writes_waiting as usize;
        if (bits == self.full && crowded) || (known.is_none() && !self.make_room()) {
            return false;
        }
        self.set(request.line, State::Partial(bits));
        if bits == self.full {
            self.send_off(request.line, bits);
        }
        self.accepted_bytes += 64;
        answers.push((request, self.profile.controller.accept_ns));
        true
    }

    fn take_load(&mut self, request: Request, answers: &mut Vec<Answer>) -> bool {
        let controller = &self.profile.controller;
        if let Some(entry) = self.buffer.get_mut(&request.line) {
            match entry.state {
                State::Coming => entry.waiting.push(request),
                state => {
                    let coming = (entry.ready - self.now).max(0.0);
                    if !matches!(state, State::Leaving(_)) {
                        self.set(request.line, state);
                    }
                    answers.push((request, controller.answer_ns + coming));
                }
            }
            return true;
        }
        if self.to_read.len() >= self.profile.buffer.reads_waiting as usize || !self.make_room() {
            return false;
        }
        let entry = BufferedLine {
            state: State::Coming,
            used: 0,
            ready: 0.0,
            waiting: vec![request],
        };
        self.buffer.insert(request.line, entry);
        self.to_read.push_back(request.line);
        true
    }

    /// Gives a line a state in which it can be given up, as the one used last.
    fn set(&mut self, line: u64, state: State) {
        self.clock += 1;
        let entry = self.buffer.entry(line).or_insert(BufferedLine {
            state,
            used: 0,
            ready: 0.0,
            waiting: Vec::new(),
        });
        if entry.used > 0 {
            self.order.remove(&entry.used);
        }
        entry.state = state;
        entry.used = self.clock;
        self.order.insert(self.clock, line);
    }

    /// Queues a line for the cells.
    fn send_off(&mut self, line: u64, bits: u64) {
        if let Some(entry) = self.buffer.get_mut(&line) {
            self.order.remove(&entry.used);
            entry.used = 0;
            entry.state = State::Leaving(bits);
            self.to_write.push_back(line);
        }
    }

    /// Whether there is room for another line. If not, the line that was used longest ago starts to
    /// leave.
    fn make_room(&mut self) -> bool {
        if self.buffer.len() < self.profile.buffer.lines as usize {
            return true;
        }
        let Some((&used, &line)) = self.order.first_key_value() else {
            return false;
        };
        match self.buffer.get(&line).map(|entry| entry.state) {
            Some(State::Partial(bits)) => {
                if self.to_write.len() < self.profile.buffer.writes_waiting as usize {
                    self.send_off(line, bits);
                }
                false
            }
            _ => {
                self.order.remove(&used);
                self.buffer.remove(&line);
                true
            }
        }
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
        let &line = self.to_write.front()?;
        self.work = Work::Write(line);
        self.written_bytes += cells.line;
        let whole = matches!(self.buffer.get(&line), Some(entry) if entry.state == State::Leaving(self.full));
        let merge = if whole {
            0.0
        } else {
            cells.merge * cells.read_ns
        };
        Some(cells.write_ns + merge)
    }

    /// Ends the work of the cells.
    pub fn finish_work(&mut self, now: f64, answers: &mut Vec<Answer>) {
        match std::mem::replace(&mut self.work, Work::Idle) {
            Work::Idle => {}
            Work::Write(line) => {
                self.to_write.pop_front();
                self.buffer.remove(&line);
            }
            Work::Read(line) => {
                let controller = &self.profile.controller;
                let coming = (controller.fetch_ns - self.profile.media.read_ns).max(0.0);
                let waiting = self.buffer.get_mut(&line).map(|entry| {
                    entry.ready = now + coming;
                    std::mem::take(&mut entry.waiting)
                });
                self.set(line, State::Clean);
                let more = controller.answer_ns + coming;
                answers.extend(waiting.into_iter().flatten().map(|request| (request, more)));
            }
        }
    }
}
