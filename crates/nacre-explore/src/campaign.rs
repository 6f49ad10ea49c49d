//! All sequences, on all processors.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nacre_store::WriteMode;

use crate::medium::Depth;
use crate::random::{Random, mix};
use crate::sequence::{Plan, Rig, Sabotage, Tally};
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
    /// Sequences of one operation, explored and existing.
    pub singles: (u64, u64),
    /// Sequences of two operations.
    pub pairs: (u64, u64),
    /// Time used.
    pub time: Duration,
}

/// The `number`-th sequence: singles, then pairs, then longer ones without end.
pub fn plan(number: u64, seed: u64) -> Plan {
    let (singles, pairs) = counts();
    let mode = MODES[(number % 2) as usize];
    let action = |index: u64| ACTIONS[index as usize];
    let count = ACTIONS.len() as u64;
    let own = mix(seed ^ mix(number));
    let plan = |actions, from, depth| Plan {
        mode,
        actions,
        from,
        depth,
        seed: own,
    };
    if number < singles {
        return plan(vec![action(number / 2)], 0, DEEP);
    }
    if number < singles + pairs {
        // A prime stride, so that a run that is cut short has tried all kinds of pairs.
        let pair = (number - singles) / 2 * 7919 % (count * count);
        return plan(vec![action(pair / count), action(pair % count)], 1, SHALLOW);
    }
    let mut random = Random::new(own, number);
    let length = 3 + random.below(MAX_LENGTH - 2);
    let actions = (0..length).map(|_| action(random.below(count))).collect();
    plan(actions, 1, SHALLOW)
}

/// How many sequences of one and of two operations there are.
pub const fn counts() -> (u64, u64) {
    let count = ACTIONS.len() as u64;
    (2 * count, 2 * count * count)
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
    let (singles, pairs) = counts();
    let tally = shared
        .tally
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    Ok(Outcome {
        singles: (tally.sequences.min(singles), singles),
        pairs: (tally.sequences.saturating_sub(singles).min(pairs), pairs),
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
    let (singles, pairs) = counts();
    let endless = limits.time.is_some() || limits.images.is_some();
    while !shared.stop.load(Ordering::Relaxed) {
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        if !endless && number >= singles + pairs {
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
        self.sequences += other.sequences;
        self.operations += other.operations;
        self.points += other.points;
        self.images += other.images;
        self.nested += other.nested;
        self.repeated += other.repeated;
        self.states.extend(other.states);
        self.violations.extend(other.violations);
    }
}
