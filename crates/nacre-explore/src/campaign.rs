//! All sequences, on all processors.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nacre_store::WriteMode;

use crate::medium::Depth;
use crate::random::{Random, mix};
use crate::sequence::{Kind, Plan, Rig, Sabotage, Tally};
use crate::workload::ACTIONS;

const MODES: [WriteMode; 2] = [WriteMode::Direct, WriteMode::Atomic];
/// Single operations: every subset where that is possible.
const DEEP: Depth = Depth {
    all_up_to: 1 << 12,
    samples: 400,
};
/// Pairs and longer ones: every subset where there are few.
const SHALLOW: Depth = Depth {
    all_up_to: 32,
    samples: 16,
};
const MAX_VIOLATIONS: usize = 20;
const MAX_LENGTH: u64 = 8;

/// When to stop. Without any, after all sequences of one and of two operations.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Longest time.
    pub time: Option<Duration>,
    /// Most images (a sequence under way is finished).
    pub images: Option<u64>,
}

/// What a campaign came to.
pub struct Outcome {
    /// Sums.
    pub tally: Tally,
    /// Time used.
    pub time: Duration,
}

/// The `number`-th sequence: singles at a glance, then deep singles among pairs, then longer ones without end.
pub fn plan(number: u64, seed: u64) -> Plan {
    let count = ACTIONS.len() as u64;
    let [singles, deep, pairs] = counts();
    let action = |index: u64| ACTIONS[(index % count) as usize];
    let plan = |index: u64, kind, actions, depth| Plan {
        mode: MODES[(index % 2) as usize],
        kind,
        actions,
        depth,
        seed: mix(seed ^ mix(number)),
    };
    if number < singles {
        return plan(number, Kind::Single, vec![action(number / 2)], SHALLOW);
    }
    let rest = number - singles;
    if rest < deep + pairs {
        let (chunk, place) = (rest / (count + 1), rest % (count + 1));
        if place == 0 {
            return plan(chunk, Kind::Deep, vec![action(chunk / 2)], DEEP);
        }
        // A prime stride, so that a run that is cut short has tried all kinds of pairs.
        let index = chunk * count + place - 1;
        let pair = index / 2 * 7919 % (count * count);
        let actions = vec![action(pair / count), action(pair)];
        return plan(index, Kind::Pair, actions, SHALLOW);
    }
    let mut random = Random::new(seed, number);
    let length = 3 + random.below(MAX_LENGTH - 2);
    let actions = (0..length).map(|_| action(random.below(count))).collect();
    plan(number, Kind::Longer, actions, SHALLOW)
}

/// How many sequences there are of one operation, of one operation in depth, and of two operations.
pub const fn counts() -> [u64; 3] {
    let count = ACTIONS.len() as u64;
    [2 * count, 2 * count, 2 * count * count]
}

struct Shared {
    next: AtomicU64,
    images: AtomicU64,
    stop: AtomicBool,
    tally: Mutex<Tally>,
}

/// Explores until a limit is reached or too much is wrong.
pub fn run(base: &Arc<[u8]>, limits: Limits, seed: u64) -> Result<Outcome, String> {
    let start = Instant::now();
    let shared = Shared {
        next: AtomicU64::new(0),
        images: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        tally: Mutex::new(Tally::default()),
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let worker = || work(&shared, base, limits, seed, start);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| {
            worker
                .join()
                .unwrap_or_else(|_| Err("a worker panicked".into()))
        })
    })?;
    let tally = shared
        .tally
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    Ok(Outcome {
        tally,
        time: start.elapsed(),
    })
}

fn work(
    shared: &Shared,
    base: &Arc<[u8]>,
    limits: Limits,
    seed: u64,
    start: Instant,
) -> Result<(), String> {
    let mut rig = Rig::new(base)?;
    let all_counted: u64 = counts().iter().sum();
    let endless = limits.time.is_some() || limits.images.is_some();
    while !shared.stop.load(Ordering::Relaxed) {
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        if !endless && number >= all_counted {
            break;
        }
        let mut tally = Tally::default();
        rig.explore(&plan(number, seed), Sabotage::Nothing, &mut tally);
        let images = shared.images.fetch_add(tally.images, Ordering::Relaxed) + tally.images;
        let mut all = shared.tally.lock().unwrap_or_else(PoisonError::into_inner);
        all.add(tally);
        if all.violations.len() >= MAX_VIOLATIONS
            || limits.images.is_some_and(|limit| images >= limit)
            || limits.time.is_some_and(|limit| start.elapsed() >= limit)
        {
            shared.stop.store(true, Ordering::Relaxed);
        }
    }
    Ok(())
}

impl Tally {
    fn add(&mut self, other: Tally) {
        for (sum, more) in self.sequences.iter_mut().zip(other.sequences) {
            *sum += more;
        }
        self.operations += other.operations;
        self.points += other.points;
        self.images += other.images;
        self.nested += other.nested;
        self.repeated += other.repeated;
        self.states.extend(other.states);
        self.violations.extend(other.violations);
    }
}
