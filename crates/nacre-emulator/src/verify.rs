//! How exact injected delays are: the error of what was measured against what was asked for.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use nacre_media::{Observer, Owner};
use nacre_types::{DeviceOffset, LINE_SIZE, StoreKind, Uuid};

use crate::bed::{Bed, Exchange, in_turn, middle};
use crate::clock::{Pace, ticks, wait_until};
use crate::emulation::{Emulation, Pool, Settings};
use crate::error::EmulationError;
use crate::profile::Profile;

/// How often the method that counts cache misses adds what it has counted.
const INTERVAL_NS: f64 = 100_000.0;
/// A measurement of that method goes on for so many intervals, delays not counted: it has no right
/// place for a single one.
const INTERVALS: f64 = 10.0;
/// Measurements of it, of which the median counts.
const MEASUREMENTS: usize = 3;

/// One cell of the grid.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Accuracy {
    /// What each 64 bytes shall take longer, ns.
    pub delay_ns: f64,
    /// Bytes exchanged at once.
    pub len: u64,
    /// What exchanging them takes by itself, ns.
    pub plain_ns: f64,
    /// `|(L2 - L1) - D| / D` of delays at each exchange.
    pub error: f64,
    /// The same of the method that counts the lines touched and waits at fixed intervals.
    pub miss_method_error: f64,
}

/// Injects by the lines touched, at fixed intervals, as emulators driven by cache misses do.
struct MissMethod {
    line_ticks: f64,
    interval: u64,
    lines: AtomicU64,
    last: AtomicU64,
}

impl Observer for MissMethod {
    fn store(&self, _: u16, _: DeviceOffset, _: &[u8], _: StoreKind, _: bool) {}

    fn flush(&self, _: u16, _: DeviceOffset, _: u64) {}

    fn fence(&self, _: u16) {}

    fn wants_stores(&self) -> bool {
        false
    }

    fn persisted(&self, _: u16, _: DeviceOffset, len: u64, _: StoreKind) {
        self.touch(len);
    }

    fn read(&self, _: u16, _: DeviceOffset, len: u64) {
        self.touch(len);
    }
}

impl MissMethod {
    fn touch(&self, len: u64) {
        self.lines.fetch_add(len.div_ceil(LINE_SIZE), Relaxed);
        let now = ticks();
        if now - self.last.load(Relaxed) >= self.interval {
            let wait = self.lines.swap(0, Relaxed) as f64 * self.line_ticks;
            wait_until(now + wait as u64);
            self.last.store(ticks(), Relaxed);
        }
    }
}

/// Measures every pair of a delay and a length, each by the mean of the middle half of `rounds`;
/// `done` hears of each. Uses a file of its own in `folder`.
pub fn verify(
    folder: &Path,
    exchange: Exchange,
    delays_ns: &[f64],
    lens: &[u64],
    rounds: usize,
    done: &mut dyn FnMut(),
) -> Result<Vec<Accuracy>, EmulationError> {
    let pace = Pace::measure()?;
    let mut cells = Vec::new();
    for &delay_ns in delays_ns {
        let emulation: Arc<dyn Observer> = Arc::new(emulation(folder, exchange, delay_ns)?);
        for &len in lens {
            let miss: Arc<dyn Observer> = Arc::new(MissMethod {
                line_ticks: delay_ns * pace.per_ns,
                interval: pace.ticks(INTERVAL_NS),
                lines: AtomicU64::new(0),
                last: AtomicU64::new(ticks()),
            });
            let mut beds = [
                Bed::new(exchange, None, len)?,
                Bed::new(exchange, Some(&emulation), len)?,
            ];
            let [plain, slow] = in_turn(&mut beds, rounds).map(|times| middle(times) / pace.per_ns);
            let wanted = delay_ns * len.div_ceil(LINE_SIZE) as f64;
            let batch = (INTERVALS * INTERVAL_NS / plain.max(1.0)).ceil() as usize;
            let mut bed = Bed::new(exchange, Some(&miss), len)?;
            let times = (0..MEASUREMENTS).map(|_| bed.exchange(batch));
            let counted = median(times.collect(), pace);
            let error = |found: f64| ((found - plain - wanted) / wanted).abs();
            cells.push(Accuracy {
                delay_ns,
                len,
                plain_ns: plain,
                error: error(slow),
                miss_method_error: error(counted / batch as f64),
            });
            done();
        }
    }
    Ok(cells)
}

/// Delays and nothing else, by lines of 64 bytes.
fn emulation(
    folder: &Path,
    exchange: Exchange,
    delay_ns: f64,
) -> Result<Emulation, EmulationError> {
    let mut profile = Profile::plain();
    let latency = &mut profile.latency;
    match exchange {
        Exchange::Persist => latency.write_ns = latency.dram_write_ns + delay_ns,
        Exchange::Read => {
            latency.read_ns = latency.dram_read_ns + delay_ns;
            latency.delay_reads = true;
        }
    }
    let settings = Settings {
        profile: &profile,
        delays: true,
        wear: None,
    };
    let pool = Pool {
        uuid: Uuid::random(),
        devices: vec![1 << 22],
        owner: Owner {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            mode: 0o600,
        },
    };
    let path = folder.join(format!("nacre-verify-{}", pool.uuid));
    let made = Emulation::create(&path, &settings, &pool)?;
    made.remove()?;
    Ok(made)
}

fn median(mut times: Vec<u64>, pace: Pace) -> f64 {
    times.sort_unstable();
    pace.ns(times.get(times.len() / 2).copied().unwrap_or(0))
}
