//! All sequences, on all processors.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::objects_scene::Prepared;
use crate::plan::{Kind, ORDERS, SequencePlan, all_counted, counts, directed, plan};
use crate::sabotage::Sabotage;
use crate::sequence::{Rig, Tally};
use crate::workload::Worlds;

const MAX_VIOLATIONS: usize = 20;
/// After so many sequences comes a transaction on objects.
const OBJECTS_EVERY: u64 = 32;

/// When to stop.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// At the latest after all sequences of one and of two operations, and nothing but these.
    pub pairs: bool,
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

struct Shared {
    next: AtomicU64,
    images: AtomicU64,
    stop: AtomicBool,
    tally: Mutex<Tally>,
}

/// Explores until a limit is reached or too much is wrong.
pub fn run(worlds: &Worlds, limits: Limits, seed: u64) -> Result<Outcome, String> {
    let start = Instant::now();
    let shared = Shared {
        next: AtomicU64::new(0),
        images: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        tally: Mutex::new(Tally::default()),
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let objects = Prepared::new(worlds)?;
    let worker = || {
        let worked = work(&shared, worlds, &objects, limits, seed, start);
        shared.stop.fetch_or(worked.is_err(), Ordering::Relaxed);
        worked
    };
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
    worlds: &Worlds,
    objects: &Prepared,
    limits: Limits,
    seed: u64,
    start: Instant,
) -> Result<(), String> {
    let mut rig = Rig::new(worlds)?;
    let first: Vec<u64> = match limits.pairs {
        true => Vec::new(),
        false => directed(0..ORDERS).collect(),
    };
    while !shared.stop.load(Ordering::Relaxed) {
        let index = shared.next.fetch_add(1, Ordering::Relaxed);
        if limits.pairs && index >= all_counted() {
            break;
        }
        let plan = plan(seed, number_of(index, &first));
        if limits.pairs && !is_counted(&plan) {
            continue;
        }
        let mut tally = Tally::default();
        rig.explore(&plan, Sabotage::Nothing, &mut tally);
        if !limits.pairs && index.is_multiple_of(OBJECTS_EVERY) {
            let number = index / OBJECTS_EVERY;
            objects.explore(seed, number, Sabotage::Nothing, &mut tally.object_images)?;
            tally.transactions += 1;
        }
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

const fn is_counted(plan: &SequencePlan) -> bool {
    matches!(plan.kind, Kind::Single | Kind::Pair)
}

/// The order of plans: single operations, directed ones, then the others.
fn number_of(index: u64, directed: &[u64]) -> u64 {
    let [singles, ..] = counts();
    let Some(behind) = index.checked_sub(singles) else {
        return index;
    };
    let directed_one = directed.get(behind as usize).copied();
    directed_one.unwrap_or(index - directed.len() as u64)
}

impl Tally {
    fn add(&mut self, other: Tally) {
        for (sum, more) in self.sequences.iter_mut().zip(other.sequences) {
            *sum += more;
        }
        self.dropped += other.dropped;
        self.operations += other.operations;
        self.points += other.points;
        self.images += other.images;
        self.transactions += other.transactions;
        self.object_images += other.object_images;
        self.nested += other.nested;
        self.repeated += other.repeated;
        self.places.extend(other.places);
        self.states.extend(other.states);
        self.violations.extend(other.violations);
    }
}
