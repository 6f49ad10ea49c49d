//! `nacre emulate`: programs that use libpmem under emulation, and how exact that is.

mod program;

use crate::failure::{Failure, Result};
use crate::plot::{Labels, Line, Scale, chart};
use crate::{output, size};
use clap::{Args, Subcommand};
use nacre_emulator::{Accuracy, Exchange, verify};
use program::Program;
use serde::Serialize;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  nacre emulate -- fio --ioengine=libpmem ...      a program that uses libpmem, on Optane; then its wear
  nacre emulate --profile pcm --wear=256 --html wear.html -- PROGRAM
  nacre emulate verify                             the whole grid, on an idle machine
  nacre emulate verify --svg verify.svg --json
  nacre emulate verify --quick                     a few of them, in seconds
  nacre emulate verify --reads                     of loads
  nacre emulate verify --delay 500 --len 4K,64K    a part of it

Programs keep their files; what libpmem makes durable in them is delayed and counted. The report goes to standard
error. Any file is taken for persistent memory unless PMEM_IS_PMEM_FORCE is set otherwise.
To run other programs on a pool under emulation: nacre run --emulate PROFILE -- PROGRAM";

const QUICK_DELAYS: [f64; 3] = [200.0, 500.0, 1000.0];
const QUICK_LENS: [u64; 5] = [64, 1 << 10, 4 << 10, 64 << 10, 1 << 20];
const QUICK_ROUNDS: usize = 9;
/// From so many bytes on a delay is long enough to be judged by itself.
const JUDGED: u64 = 4096;
/// The delay of which an error was published, in nanoseconds.
const PUBLISHED_DELAY_NS: f64 = 500.0;

/// Run a program that uses libpmem on an emulated device, or measure how exact its delays are
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    program: Program,
}

#[derive(Debug, Subcommand)]
enum Command {
    Verify(Verify),
}

/// Compare the delay that was measured with the one that was asked for
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
struct Verify {
    /// Delays of 64 bytes, ns; several separated by commas
    #[arg(
        long,
        value_name = "NS",
        value_delimiter = ',',
        default_value = "200,300,400,500,600,700,800,900,1000"
    )]
    delay: Vec<u32>,
    /// Bytes persisted or loaded at once; several separated by commas
    #[arg(long, value_name = "BYTES", value_parser = size::parse, value_delimiter = ',', default_value = "64,128,256,512,1K,2K,4K,16K,64K,256K,1M,2M")]
    len: Vec<u64>,
    /// Measurements of a cell, of which the mean of the middle half counts
    #[arg(long, default_value_t = 25)]
    rounds: usize,
    /// Of loads, not of stores that become durable
    #[arg(long)]
    reads: bool,
    /// A few delays and lengths only, in seconds
    #[arg(long, conflicts_with_all = ["delay", "len", "rounds"])]
    quick: bool,
    /// Write a plot of the error by length
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    delay_ns: f64,
    len: u64,
    plain_ns: f64,
    error_percent: f64,
    miss_method_error_percent: f64,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let Some(Command::Verify(arguments)) = &arguments.command else {
        return arguments.program.run();
    };
    if arguments
        .delay
        .iter()
        .any(|&delay| !(1..=1_000_000).contains(&delay))
    {
        return Err(Failure::Usage("--delay: give 1 to 1000000 ns".to_owned()));
    }
    if arguments.len.iter().any(|&len| len > 64 << 20) || arguments.rounds == 0 {
        return Err(Failure::Usage(
            "--len takes up to 64M, --rounds 1 or more".to_owned(),
        ));
    }
    let (delays, lens, rounds) = grid(arguments);
    let bar = output::bar(
        (delays.len() * lens.len()) as u64,
        "measuring",
        output::Counted::Steps,
    );
    let exchange = match arguments.reads {
        true => Exchange::Read,
        false => Exchange::Persist,
    };
    let folder = Path::new("/dev/shm");
    let cells = verify(folder, exchange, &delays, &lens, rounds, &mut || bar.inc(1))?;
    bar.finish_and_clear();
    if let Some(path) = &arguments.svg {
        output::save(path, plot(&cells))?;
    }
    if arguments.json {
        let rows: Vec<Row> = cells.iter().map(row).collect();
        output::json(&rows)?;
    } else {
        output::write(table(&cells, &lens).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Delays, lengths and rounds to measure.
fn grid(arguments: &Verify) -> (Vec<f64>, Vec<u64>, usize) {
    let delays = arguments.delay.iter().map(|&delay| f64::from(delay));
    if arguments.quick {
        let some = |delay: &f64| QUICK_DELAYS.contains(delay);
        let lens = QUICK_LENS.to_vec();
        return (delays.filter(some).collect(), lens, QUICK_ROUNDS);
    }
    (delays.collect(), arguments.len.clone(), arguments.rounds)
}

fn percent(share: f64) -> f64 {
    (share * 1e4).round() / 1e2
}

fn row(cell: &Accuracy) -> Row {
    Row {
        delay_ns: cell.delay_ns,
        len: cell.len,
        plain_ns: cell.plain_ns.round(),
        error_percent: percent(cell.error),
        miss_method_error_percent: percent(cell.miss_method_error),
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / f64::max(count, 1.0)
}

/// Means in percent, by the injected delay and by the method of cache misses.
fn means<'a>(cells: impl Iterator<Item = &'a Accuracy> + Clone) -> (f64, f64) {
    (
        100.0 * mean(cells.clone().map(|cell| cell.error)),
        100.0 * mean(cells.map(|cell| cell.miss_method_error)),
    )
}

/// One row for each length: the error by delay, then the mean of it and of the other method.
fn table(cells: &[Accuracy], lens: &[u64]) -> String {
    let mut text =
        String::from("error of the injected delay in percent, |(L2 - L1) - D| / D\n    bytes");
    for cell in cells.iter().filter(|cell| Some(&cell.len) == lens.first()) {
        let _ = write!(text, " {:>6} ns", cell.delay_ns);
    }
    text.push_str("      mean  by misses\n");
    for &len in lens {
        let _ = write!(text, "{len:>9}");
        let row = cells.iter().filter(|cell| cell.len == len);
        for cell in row.clone() {
            let _ = write!(text, " {:>9.2}", 100.0 * cell.error);
        }
        let (ours, by_misses) = means(row);
        let _ = writeln!(text, " {ours:>9.2} {by_misses:>10.2}");
    }
    let (ours, by_misses) = means(cells.iter());
    let _ = writeln!(
        text,
        "mean of all: {ours:.2} %; by cache misses at fixed intervals: {by_misses:.2} %"
    );
    let judged = cells.iter().filter(|cell| cell.len >= JUDGED);
    if judged.clone().next().is_some() {
        let (all, _) = means(judged.clone());
        let worst = 100.0 * judged.clone().map(|cell| cell.error).fold(0.0, f64::max);
        let (ours, by_misses) = means(judged.filter(|cell| cell.delay_ns == PUBLISHED_DELAY_NS));
        let _ = writeln!(
            text,
            "from {JUDGED} bytes on: mean {all:.2} %, worst cell {worst:.2} %, at {PUBLISHED_DELAY_NS} ns {ours:.2} % (by misses {by_misses:.2} %)"
        );
    }
    text
}

fn plot(cells: &[Accuracy]) -> String {
    let mut lines: Vec<Line> = Vec::new();
    let mut add =
        |name: String, x: f64, y: f64| match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push((x, y)),
            None => lines.push(Line::new(name, vec![(x, y)])),
        };
    for cell in cells {
        add(
            format!("{} ns", cell.delay_ns),
            cell.len as f64,
            100.0 * cell.error,
        );
    }
    for cell in cells.iter().filter(|cell| cell.delay_ns == 500.0) {
        add(
            "500 ns by misses".to_owned(),
            cell.len as f64,
            100.0 * cell.miss_method_error,
        );
    }
    let labels = Labels {
        title: "Error of the injected delay",
        x: "bytes at once",
        y: "error in percent",
        across: Scale::Doubling,
        upwards: Scale::Even,
        dashed: "",
    };
    chart(&labels, &lines)
}

#[cfg(test)]
mod tests {
    use super::{plot, table};
    use nacre_emulator::Accuracy;

    #[test]
    fn tables_and_plots_hold_every_cell() {
        let cell = |delay_ns, len, error| Accuracy {
            delay_ns,
            len,
            plain_ns: 10.0,
            error,
            miss_method_error: 0.5,
        };
        let cells = [cell(500.0, 64, 0.01), cell(500.0, 4096, 0.03)];
        let text = table(&cells, &[64, 4096]);
        assert!(
            text.contains("500 ns")
                && text.contains("mean of all: 2.00 %")
                && text.contains("mean 3.00 %, worst cell 3.00 %"),
            "{text}"
        );
        assert!(plot(&cells).contains("500 ns by misses"));
    }
}
