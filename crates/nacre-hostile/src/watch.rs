//! The parent process: starts children, notices when one hangs or dies, and goes on behind that
//! case.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::Setup;
use crate::tally::Tally;
use crate::worker::{CASE, FINDING, TALLY};

/// Cases of one child: the parent looks at the clock between children.
const BATCH: u64 = 400;
/// Processor time that one case may take. It needs some milliseconds.
const PROCESSOR_LIMIT: Duration = Duration::from_secs(20);
/// A case that waits for ever uses no processor time.
const WALL_LIMIT: Duration = Duration::from_secs(300);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest time.
    pub time: Duration,
    /// Most cases.
    pub cases: u64,
    /// Most findings.
    pub findings: usize,
    /// Processor time that one case may take.
    pub hang: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            time: Duration::from_secs(600),
            cases: u64::MAX,
            findings: 20,
            hang: PROCESSOR_LIMIT,
        }
    }
}

/// What a run came to.
#[derive(Default)]
pub struct Outcome {
    /// Sums.
    pub tally: Tally,
    /// Case and what was wrong.
    pub findings: Vec<(u64, String)>,
    /// Time used.
    pub time: Duration,
}

/// Runs cases from `setup.from` on in children of this program, with `extra` arguments.
pub fn run(setup: &Setup, extra: &[&str], limits: Limits) -> Result<Outcome, String> {
    let start = Instant::now();
    let outcome = Mutex::new(Outcome::default());
    let next = AtomicU64::new(setup.from);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let end = setup.from.saturating_add(limits.cases).min(setup.to);
    let turn = || -> Result<(), String> {
        loop {
            let from = next.fetch_add(BATCH, Ordering::Relaxed);
            let found = lock(&outcome).findings.len();
            if from >= end || start.elapsed() >= limits.time || found >= limits.findings {
                return Ok(());
            }
            let batch = Setup {
                from,
                to: (from + BATCH).min(end),
                ..*setup
            };
            run_batch(batch, extra, limits, &outcome)?;
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(turn)).collect();
        workers.into_iter().try_for_each(|worker| {
            let panicked = |_| Err("a watcher panicked".into());
            worker.join().unwrap_or_else(panicked)
        })
    })?;
    let mut outcome = outcome.into_inner().unwrap_or_else(PoisonError::into_inner);
    outcome.time = start.elapsed();
    outcome.findings.sort();
    Ok(outcome)
}

fn lock(outcome: &Mutex<Outcome>) -> std::sync::MutexGuard<'_, Outcome> {
    outcome.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a batch to its end; a child that hung or died is followed by one that starts behind that
/// case.
fn run_batch(
    mut batch: Setup,
    extra: &[&str],
    limits: Limits,
    outcome: &Mutex<Outcome>,
) -> Result<(), String> {
    while batch.from < batch.to {
        let mut child = start_child(&batch, extra)?;
        let state = Arc::new(Shared::default());
        state.case.store(batch.from, Ordering::Relaxed);
        let guard = Arc::clone(&state);
        let pid = child.id();
        let watcher = std::thread::spawn(move || guard.watch(pid, limits.hang));
        read_lines(&mut child, &state, outcome);
        let status = child.wait().map_err(|e| e.to_string())?;
        state.over.store(true, Ordering::Relaxed);
        let hung = watcher.join().unwrap_or(false);
        if status.success() {
            return Ok(());
        }
        let at = state.case.load(Ordering::Relaxed);
        let why = match hung {
            true => "hang".to_owned(),
            false => format!("the process died: {status}"),
        };
        lock(outcome).findings.push((at, why));
        if lock(outcome).findings.len() >= limits.findings {
            return Ok(());
        }
        batch.from = at + 1;
    }
    Ok(())
}

fn start_child(batch: &Setup, extra: &[&str]) -> Result<Child, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let numbers = [batch.seed, batch.from, batch.to].map(|n| n.to_string());
    Command::new(program)
        .arg("--work")
        .args(numbers)
        .args(extra)
        // Nobody reads it, and out of memory it would wait for itself.
        .env("RUST_BACKTRACE", "0")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| e.to_string())
}

fn read_lines(child: &mut Child, state: &Shared, outcome: &Mutex<Outcome>) {
    let Some(out) = child.stdout.take() else {
        return;
    };
    for line in BufReader::new(out).lines().map_while(Result::ok) {
        let rest = line.get(2..).unwrap_or_default();
        let case = state.case.load(Ordering::Relaxed);
        match line.chars().next() {
            Some(CASE) => {
                let number = rest.parse().unwrap_or(case);
                state.case.store(number, Ordering::Relaxed);
            }
            Some(FINDING) => {
                let finding = (case, rest.replace('\t', "\n"));
                lock(outcome).findings.push(finding);
            }
            Some(TALLY) => lock(outcome).tally.add_line(rest),
            _ => {}
        }
    }
}

/// What a child's reader tells its watcher.
#[derive(Default)]
struct Shared {
    case: AtomicU64,
    over: AtomicBool,
}

impl Shared {
    /// Ends the child when one case takes too long; whether it did.
    fn watch(&self, pid: u32, limit: Duration) -> bool {
        let mut case = self.case.load(Ordering::Relaxed);
        let (mut since, mut used) = (Instant::now(), processor_time(pid));
        while !self.over.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK_EVERY);
            let now = self.case.load(Ordering::Relaxed);
            if now != case {
                (case, since, used) = (now, Instant::now(), processor_time(pid));
            }
            let busy = processor_time(pid).saturating_sub(used);
            if busy > limit || since.elapsed() > WALL_LIMIT {
                return kill(pid);
            }
        }
        false
    }
}

/// Processor time of a process so far; clock ticks are 10 ms.
fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

fn kill(pid: u32) -> bool {
    let killed = Command::new("kill").args(["-9", &pid.to_string()]).status();
    killed.is_ok_and(|status| status.success())
}
