//! `nacre objects bench`: transactions as the OSD of a Ceph cluster queues them, on a pool of its
//! own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::Args;
use nacre_emulator::{Emulation, Pace, Profile, Settings};
use nacre_objects::osd::{ImageWrite, LOG, new_collection};
use nacre_objects::{OpenOptions, Pool, Transaction};
use nacre_types::{DeviceOffset, StoreKind, UNIT_SIZE, VolumeOffset};
use nacre_volume::{Access, Observer, Volume};
use rustix::time::{ClockId, Timespec, clock_gettime};
use serde::Serialize;

use super::failure;
use crate::failure::{Failure, Result};
use crate::scratch::Scratch;
use crate::{output, parallel, size};

const EXAMPLES: &str = "\
Examples:
  nacre objects bench                            1, 4 and 64 KiB, 32 at once, in /dev/shm
  nacre objects bench --sizes 4K --depth 1 /mnt/pmem
  nacre objects bench --emulate pcm --json

Each transaction writes a part of an object of 4 MiB, sets its attributes of 293 and 35 bytes, and
sets entries of 234 and 186 bytes in the omap of its collection; once that holds 300, it removes the
oldest one. The pool, of 512 MiB, is made in the folder and removed.
docs/objects.md has figures and says what they are compared with.";

const COLLECTIONS: u64 = 4;
const OBJECTS: u64 = 8;
const OBJECT: u64 = 4 << 20;
const POOL: u64 = 512 << 20;
/// Less than the entries of a log, so that who removes an entry finds it.
const DEPTH_MAX: u64 = 256;
/// Transactions that are counted, or slowed down by the model of a device.
const COUNTED: u64 = 2000;

/// Measure transactions like those of a Ceph OSD
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Folder for the pool
    #[arg(default_value = "/dev/shm")]
    folder: PathBuf,
    /// Bytes of each write
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "1K,4K,64K",
        value_parser = size::parse)]
    sizes: Vec<u64>,
    /// Transactions at once: threads, each of which waits for its own
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=DEPTH_MAX))]
    depth: u64,
    /// For how long to measure each size
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Device that a commit waits for, as its model has it: a shipped profile or the path of a TOML
    /// file; `none`: do not
    #[arg(long, value_name = "PROFILE", default_value = "optane-100")]
    emulate: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What one size came to.
#[derive(Debug, Serialize)]
struct Row {
    bytes: u64,
    depth: u64,
    transactions_per_second: f64,
    processor_us: f64,
    /// Bytes that the device made durable over bytes that were written to objects.
    amplification: f64,
    fences: f64,
    /// Processor time of the commits of one transaction after another, made before, in memory whose
    /// pages are there.
    software_us: f64,
    /// That, and what the device lets a commit wait, as its model has it.
    emulated_us: Option<f64>,
    /// The first of the two over the second.
    software_share: Option<f64>,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let profile = match arguments.emulate.as_str() {
        "none" => None,
        name => Some(Profile::load(name)?),
    };
    if let Some(wrong) = arguments.sizes.iter().find(|&&bytes| bytes > OBJECT) {
        let most = size::human(OBJECT);
        return Err(Failure::Usage(format!("{wrong}: at most {most}")));
    }
    let rows = arguments.sizes.iter().map(|&bytes| {
        let scratch = Scratch::in_folder(&arguments.folder)?;
        measure(arguments, &scratch, profile.as_ref(), bytes)
    });
    let rows = rows.collect::<Result<Vec<Row>>>()?;
    match arguments.json {
        true => output::json(&rows),
        false => output::write(table(&rows).as_bytes()),
    }
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "     write  depth  transactions/s  processor us  medium/client  fences  commit us  emulated us  software\n",
    );
    for row in rows {
        let optional = |value: Option<String>| value.unwrap_or_else(|| "-".into());
        text += &format!(
            "{:>10} {:>6} {:>15.0} {:>13.1} {:>14.2} {:>7.2} {:>10.1} {:>12} {:>9}\n",
            size::human(row.bytes),
            row.depth,
            row.transactions_per_second,
            row.processor_us,
            row.amplification,
            row.fences,
            row.software_us,
            optional(row.emulated_us.map(|us| format!("{us:.1}"))),
            optional(
                row.software_share
                    .map(|share| format!("{:.0} %", 100.0 * share))
            ),
        );
    }
    text
}

fn measure(
    arguments: &Arguments,
    scratch: &Scratch,
    profile: Option<&Profile>,
    bytes: u64,
) -> Result<Row> {
    let path = scratch.path().join("pool");
    let load = Load::new(bytes);
    let pool = Pool::create(&path, POOL).map_err(failure(&path))?;
    // What comes for the first time is there afterwards.
    let prepared = load
        .fill(&pool)
        .and_then(|()| load.some(&pool, 2 * COLLECTIONS * LOG));
    close(pool, &path, prepared.is_ok())?;
    prepared.map_err(failure(&path))?;
    // Before threads do as much as time allows, so that it counts the same each time.
    let counter = Arc::new(Counter::default());
    load.one_by_one(&path, Some(&(Arc::clone(&counter) as Arc<dyn Observer>)))?;
    let pool = Pool::open(&path, OpenOptions::default()).map_err(failure(&path))?;
    let speed = load.at_once(&pool, &path, arguments);
    close(pool, &path, speed.is_ok())?;
    let (transactions_per_second, processor_us) = speed?;
    let software_us = micros(load.one_by_one(&path, None)?) / COUNTED as f64;
    let waited = profile.map(|profile| load.waited_us(&path, profile));
    let emulated_us = waited.transpose()?.map(|waited| software_us + waited);
    Ok(Row {
        bytes,
        depth: arguments.depth,
        transactions_per_second,
        processor_us,
        amplification: counter.bytes.load(Relaxed) as f64 / (COUNTED * bytes) as f64,
        fences: counter.fences.load(Relaxed) as f64 / COUNTED as f64,
        software_us,
        emulated_us,
        software_share: emulated_us.map(|all| software_us / all),
    })
}

/// After an error that of the work is told.
fn close(pool: Pool, path: &Path, is_fine: bool) -> Result<()> {
    match pool.close() {
        Err(error) if is_fine => Err(failure(path)(error)),
        _ => Ok(()),
    }
}

/// What is written, and how far the logs of collections are.
struct Load {
    bytes: u64,
    noise: Vec<u8>,
    dice: AtomicU64,
    logs: [AtomicU64; COLLECTIONS as usize],
}

impl Load {
    fn new(bytes: u64) -> Load {
        let mut dice = 1;
        let noise = (0..2 * OBJECT / 8).flat_map(|_| next(&mut dice).to_le_bytes());
        Load {
            bytes,
            noise: noise.collect(),
            dice: AtomicU64::new(1),
            logs: Default::default(),
        }
    }

    fn fill(&self, pool: &Pool) -> nacre_objects::Result<()> {
        for c in 0..COLLECTIONS {
            let collection = name("collection", c);
            let mut t = new_collection(&collection);
            for o in 0..OBJECTS {
                let bytes = &self.noise[..OBJECT as usize];
                t.write(&collection, &name("object", o), 0, bytes);
            }
            pool.commit(&t)?;
        }
        Ok(())
    }

    /// So many transactions, one after the other.
    fn some(&self, pool: &Pool, count: u64) -> nacre_objects::Result<()> {
        let mut dice = self.dice.fetch_add(1, Relaxed);
        (0..count).try_for_each(|_| pool.commit(&self.change(&mut dice)))
    }

    /// Transactions in a second, and their processor time in microseconds.
    fn at_once(&self, pool: &Pool, path: &Path, arguments: &Arguments) -> Result<(f64, f64)> {
        let (begin, processor) = (Instant::now(), time_of(ClockId::ProcessCPUTime));
        let end = begin + Duration::from_secs(arguments.seconds);
        let thread = || {
            let (mut dice, mut done) = (self.dice.fetch_add(1, Relaxed), 0_u64);
            while Instant::now() < end {
                pool.commit(&self.change(&mut dice))?;
                done += 1;
            }
            Ok(done)
        };
        let all = parallel::together((0..arguments.depth).map(|_| thread).collect())
            .map_err(|error| Failure::io("starting threads", error))?;
        let done: nacre_objects::Result<u64> = all.into_iter().sum();
        let done = done.map_err(failure(path))?.max(1) as f64;
        let processor = time_of(ClockId::ProcessCPUTime) - processor;
        let per_second = done / begin.elapsed().as_secs_f64();
        Ok((per_second, micros(processor) / done))
    }

    /// The counted transactions, perhaps seen by an observer; the processor time of their commits.
    fn one_by_one(&self, path: &Path, observer: Option<&Arc<dyn Observer>>) -> Result<Duration> {
        let pool = Pool::open(path, OpenOptions::default()).map_err(failure(path))?;
        touch(pool.store().volume());
        if let Some(observer) = observer {
            pool.store().volume().set_observer(observer);
        }
        let mut dice = self.dice.fetch_add(1, Relaxed);
        let made: Vec<_> = (0..COUNTED).map(|_| self.change(&mut dice)).collect();
        let begin = time_of(ClockId::ThreadCPUTime);
        let done = made.iter().try_for_each(|t| pool.commit(t));
        let time = time_of(ClockId::ThreadCPUTime) - begin;
        close(pool, path, done.is_ok())?;
        done.map_err(failure(path))?;
        Ok(time)
    }

    /// Microseconds that the model of a device lets a commit wait. What the model itself takes is
    /// nobody's.
    fn waited_us(&self, path: &Path, profile: &Profile) -> Result<f64> {
        let settings = Settings {
            profile,
            delays: true,
            wear: None,
        };
        let volume = Volume::open(path, Access::ReadOnly)?;
        let known = nacre_emulator::Pool {
            uuid: volume.uuid(),
            devices: volume.devices().iter().map(|device| device.size).collect(),
            owner: volume.owner(),
        };
        drop(volume);
        let counters = path.with_extension("emulation");
        let emulation = Arc::new(Emulation::create(&counters, &settings, &known)?);
        self.one_by_one(path, Some(&(Arc::clone(&emulation) as Arc<dyn Observer>)))?;
        Ok(emulation.waited_ns(Pace::measure()?) / 1e3 / COUNTED as f64)
    }

    fn change(&self, dice: &mut u64) -> Transaction<'_> {
        let at_random = next(dice);
        let c = at_random % COLLECTIONS;
        let (collection, object) = (name("collection", c), name("object", at_random >> 8 & 7));
        let at = (at_random >> 16) % (OBJECT / self.bytes) * self.bytes;
        let noise = |skip: u64| &self.noise[(at_random >> skip & 0xFFFF) as usize..];
        let write = ImageWrite {
            collection: &collection,
            object: &object,
            at,
            bytes: &noise(20)[..self.bytes as usize],
            entry: self.logs[c as usize].fetch_add(1, Relaxed),
            beside: noise(24),
        };
        write.transaction()
    }
}

/// Has the kernel map all of a pool, as a DAX device is mapped in large pages.
fn touch(volume: &Volume) {
    for at in (0..volume.len()).step_by(UNIT_SIZE as usize) {
        volume.read_array::<1>(VolumeOffset(at));
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn name(kind: &str, number: u64) -> Vec<u8> {
    format!("{kind}.{number:020}").into_bytes()
}

/// Numbers that look random (splitmix64).
fn next(dice: &mut u64) -> u64 {
    *dice = dice.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut word = *dice;
    word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ word >> 31
}

fn time_of(clock: ClockId) -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
    Duration::new(tv_sec as u64, tv_nsec as u32)
}

/// Counts what is made durable.
#[derive(Default)]
struct Counter {
    bytes: AtomicU64,
    fences: AtomicU64,
}

impl Observer for Counter {
    fn store(&self, _: u16, _: DeviceOffset, _: &[u8], _: StoreKind, _: bool) {}

    fn flush(&self, _: u16, _: DeviceOffset, _: u64) {}

    fn fence(&self, _: u16) {
        self.fences.fetch_add(1, Relaxed);
    }

    fn wants_stores(&self) -> bool {
        false
    }

    fn persisted(&self, _: u16, _: DeviceOffset, len: u64, _: StoreKind) {
        self.bytes.fetch_add(len, Relaxed);
    }
}
