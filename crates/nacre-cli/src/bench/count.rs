//! The hidden subcommand that does a fixed number of operations of each kind and prints what one
//! costs.
//!
//! Made for a virtual machine whose clock counts instructions: there the figures repeat to about
//! one percent whatever else its host does. `cargo xtask icount` starts it.

use super::measure::Work;
use super::row::{Action, Row, Scale};
use super::worker::work;
use crate::failure::{Failure, Result};
use crate::output;
use clap::Args;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "Started by `cargo xtask icount` with `nacre run`; of no use alone.";

/// Do a fixed number of operations of each kind in a folder and print what one costs
#[derive(Debug, Args)]
#[command(hide = true, after_help = EXAMPLES)]
pub struct Arguments {
    /// Operations of each kind
    #[arg(long, value_name = "N", default_value_t = 4096)]
    operations: usize,
    /// Stands before each line
    #[arg(value_name = "LABEL")]
    label: String,
    /// Where to work
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Small enough for a slow machine, large enough that the block map has two levels.
const SCALE: Scale = Scale {
    file_bytes: 16 << 20,
    entries: 2000,
};
/// Not measured: finds caches, page tables and what is remembered cold.
const WARM_UP: usize = 1024;
/// Longer than that of a coarse clock: until it has ticked, a read behind a write stores the time
/// of each access.
const TICK: Duration = Duration::from_millis(20);
/// In which the operations of a row are done, if that makes no piece shorter than a chunk: what
/// removing a name costs depends on how many are left.
const PIECES: usize = 16;
/// Of names.
const SETS: usize = 8;
/// Of all operations of a row, for each set.
const SHARE_OF_SET: usize = 2;
/// Folders in which files stay.
const KEPT_SETS: usize = 4;
const KEPT: &str = "create+close, files kept";
/// Calls for each child.
const SHARE_OF_CHILDREN: usize = 64;
/// The planted slowdown does each operation of this number twice.
const HEAVIER_BY: usize = 10;

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    fs::create_dir_all(&arguments.folder)
        .map_err(|error| Failure::io(arguments.folder.display(), error))?;
    let tell = |name: &str, cost: io::Result<f64>| {
        let cost = cost.map_err(|error| Failure::io(name, error))?;
        output::write(format!("{}\t{name}\t{cost:.1}\n", arguments.label).as_bytes())
    };
    // Who has had children has no shortcuts of a single process any more.
    let (children, rows): (Vec<Row>, Vec<Row>) = rows().into_iter().partition(has_children);
    for row in rows {
        tell(&row.name, cost_of(arguments, &row))?;
    }
    tell(KEPT, cost_of_kept(arguments))?;
    for row in children {
        tell(&row.name, cost_of(arguments, &row))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn has_children(row: &Row) -> bool {
    row.action == Action::Fork
}

/// One line for each: the small sizes of the benchmark, and the canary.
fn rows() -> Vec<Row> {
    let words = [
        "pread 64 B",
        "pread 256 B",
        "pread 1 KiB",
        "pwrite 64 B",
        "pwrite 256 B",
        "pwrite 1 KiB",
        "append 64 B",
        "append 4 KiB",
        "pwrite+fsync",
    ];
    let is_small = |row: &Row| words.iter().any(|word| row.name.starts_with(word));
    let mut rows = super::row::chosen(&[]);
    // The machine reads programs over its share of files: their starts would say what that costs.
    rows.retain(|row| {
        row.callers() == 1
            && !matches!(row.action, Action::Start | Action::StartReader)
            && (row.size == 0 || is_small(row) || row.group == super::row::NAMES)
            && !row.name.contains(": 1 thread")
    });
    rows.push(Row::canary());
    rows
}

/// The shape of a folder depends on its names and on the pool's seed: rows about names are averaged
/// over other names.
fn cost_of(arguments: &Arguments, row: &Row) -> io::Result<f64> {
    let sets = if row.group == super::row::NAMES {
        SETS
    } else {
        1
    };
    let mut total = 0.0;
    for caller in 0..sets {
        let mut work = work(&arguments.folder, row, SCALE, caller)?;
        let operations = match row.action {
            Action::Readdir => 2,
            _ if has_children(row) => arguments.operations / SHARE_OF_CHILDREN,
            _ if sets > 1 => arguments.operations / SHARE_OF_SET,
            _ => arguments.operations,
        };
        total += if row.is_canary() {
            mean(&mut Heavier(work), operations)?
        } else {
            mean(work.as_mut(), operations)? / work.parts()
        };
    }
    Ok(total / sets as f64)
}

/// As [`cost_of`] of files that are made in one folder and stay.
fn cost_of_kept(arguments: &Arguments) -> io::Result<f64> {
    let mut total = 0.0;
    for set in 0..KEPT_SETS {
        let folder = arguments.folder.join(format!("kept-{set}"));
        fs::create_dir(&folder)?;
        total += mean(&mut Kept { folder, made: 0 }, arguments.operations)?;
    }
    Ok(total / KEPT_SETS as f64)
}

/// Nanoseconds of one operation; what prepares and cleans is not counted, nor the costliest eighth
/// of the pieces: there the kernel has done something else, which no two runs share.
fn mean(work: &mut dyn Work, operations: usize) -> io::Result<f64> {
    for _ in 0..2 {
        piece(work, WARM_UP.min(operations))?;
        thread::sleep(TICK);
    }
    let (mut done, mut pieces) = (0, Vec::new());
    let least = Some(work.chunk()).filter(|chunk| *chunk <= operations);
    let wanted = operations.div_ceil(PIECES).max(least.unwrap_or(1));
    while done < operations {
        let (count, time) = piece(work, wanted.min(operations - done))?;
        done += count;
        pieces.push((count, time));
    }
    pieces.sort_by(|(count, time), (others, other)| {
        (time.as_nanos() * *others as u128).cmp(&(other.as_nanos() * *count as u128))
    });
    pieces.truncate(pieces.len() - pieces.len() / 8);
    let operations: usize = pieces.iter().map(|(count, _)| count).sum();
    let taken: Duration = pieces.iter().map(|(_, time)| time).sum();
    Ok(taken.as_nanos() as f64 / operations as f64)
}

/// At most one chunk.
fn piece(work: &mut dyn Work, wanted: usize) -> io::Result<(usize, Duration)> {
    let count = wanted.min(work.chunk());
    work.prepare()?;
    let begin = Instant::now();
    for index in 0..count {
        work.step(index)?;
    }
    let taken = begin.elapsed();
    work.clean(count)?;
    Ok((count, taken))
}

/// Makes files that stay: file systems that prepare inodes on first use pay for it here.
struct Kept {
    folder: PathBuf,
    made: usize,
}

impl Work for Kept {
    fn step(&mut self, _: usize) -> io::Result<()> {
        self.made += 1;
        let name = self.folder.join(format!("k{}", self.made));
        File::create_new(name).map(drop)
    }
}

/// A planted slowdown, which whoever compares figures must notice.
struct Heavier(Box<dyn Work>);

impl Work for Heavier {
    fn step(&mut self, index: usize) -> io::Result<()> {
        if index.is_multiple_of(HEAVIER_BY) {
            self.0.step(index)?;
        }
        self.0.step(index)
    }
}

#[cfg(test)]
mod tests {
    use super::{Heavier, Work, mean, rows};
    use std::collections::HashSet;
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    struct Steps(Arc<AtomicUsize>);

    impl Work for Steps {
        fn chunk(&self) -> usize {
            100
        }
        fn step(&mut self, index: usize) -> io::Result<()> {
            assert!(index < 100);
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    #[test]
    fn operations_are_counted_after_a_warm_up_of_two_chunks() {
        let steps = Arc::new(AtomicUsize::new(0));
        mean(&mut Steps(Arc::clone(&steps)), 250).expect("done");
        assert_eq!(steps.load(Ordering::Relaxed), 200 + 250);
    }

    #[test]
    fn the_planted_slowdown_is_a_tenth() {
        let steps = Arc::new(AtomicUsize::new(0));
        let mut work = Heavier(Box::new(Steps(Arc::clone(&steps))));
        (0..100).for_each(|index| work.step(index).expect("done"));
        assert_eq!(steps.load(Ordering::Relaxed), 110);
    }

    #[test]
    fn rows_are_small_and_differ() {
        let rows = rows();
        let names: HashSet<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names.len(), rows.len());
        assert!(rows.iter().all(|row| row.size <= 4096));
        for name in [
            "pread 64 B",
            "append 4 KiB",
            "create+close",
            "getppid: a call not ours",
        ] {
            assert!(names.contains(name), "{name}");
        }
    }
}
