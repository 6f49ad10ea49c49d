//! `nacre bench`: what calls cost on a pool, on the kernel's file systems, and at the least.

mod backend;
mod canary;
pub mod count;
pub mod disk;
mod entries;
mod files;
mod html;
mod lifetime;
mod machine;
mod measure;
mod raw;
mod report;
mod row;
mod site;
mod stage;
mod statistics;
mod table;
mod target;
pub mod worker;

use crate::failure::{Failure, Result};
use crate::{output, size};
use clap::Args;
use indicatif::ProgressBar;
use lifetime::Runs;
use machine::{Machine, Watch};
use report::{Backend, Overhead, Report, RowReport, Run};
use row::Scale;
use row::{Action, Row};
use signal_hook::consts::{SIGINT, SIGTERM};
use site::Outcome;
use stage::Stage;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  nacre bench --quick                          a first look, in less than a minute
  nacre bench --html bench.html                all rows, with plots; several minutes
  nacre bench pread pwrite                     only rows whose name contains one of the words
  nacre bench --pool my.pool --ext4 /mnt/disk  on a pool and an ext4 of your own
  nacre bench --disk /var/tmp                  a pool on that disk beside its file system

The same unmodified calls are measured on a pool (as `nacre run` starts programs), on the kernel's
tmpfs and ext4, and as bare copies from and to mapped memory (raw). Places take turns in every
round; shown are medians over the rounds. Leave the machine alone meanwhile.";

/// Measure what calls cost, beside tmpfs, ext4 and a bare copy of memory
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Less data, fewer rounds
    #[arg(long)]
    quick: bool,
    /// Write all figures to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with plots to FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// A folder on ext4 [default: that of temporary files, if it is]
    #[arg(long, value_name = "DIR")]
    ext4: Option<PathBuf>,
    /// Measure a pool on the disk of DIR beside files in DIR and the bare disk, with the same
    /// guarantees; nothing else
    #[arg(long, value_name = "DIR", conflicts_with_all = ["pool", "ext4", "html", "milliseconds", "file_size", "entries"])]
    disk: Option<PathBuf>,
    /// Pool to use; what is in it stays [default: a new one in memory]
    #[arg(long, value_name = "POOL")]
    pool: Option<PathBuf>,
    /// Rounds [default: 7; quick: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: Option<u64>,
    /// Time for each row, place and round [default: 50; quick: 10]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    milliseconds: Option<u64>,
    /// Length of the files that are read and written [default: 64M; quick: 16M]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    file_size: Option<u64>,
    /// Entries of the folder that is read [default: 100000; quick: 10000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    entries: Option<u64>,
    /// Print the names of the rows, and measure nothing
    #[arg(long)]
    list: bool,
    /// Only rows whose name contains one of these words
    #[arg(value_name = "WORD")]
    words: Vec<String>,
}

impl Arguments {
    fn either<T>(&self, given: Option<T>, full: T, quick: T) -> T {
        given.unwrap_or(if self.quick { quick } else { full })
    }

    fn run(&self) -> Run {
        Run {
            rounds: self.either(self.rounds, 7, 3) as usize,
            milliseconds: self.either(self.milliseconds, 50, 10),
            file_bytes: self
                .either(self.file_size, 64 << 20, 16 << 20)
                .max(FILE_MIN),
            entries: self.either(self.entries, 100_000, 10_000) as usize,
            ..Run::default()
        }
    }
}

/// Two callers of one file need room for the largest operation each.
const FILE_MIN: u64 = 2 << 20;
/// What a pool needs beside the contents of files, and for each entry of the folder.
const POOL_MORE: u64 = 128 << 20;
const POOL_ENTRY: u64 = 2 << 10;
const DATA_FILES: u64 = 4;

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(folder) = &arguments.disk {
        let extent = disk::Extent {
            rounds: arguments.either(arguments.rounds, 7, 3) as usize,
            calls: arguments.either(None, 400, 50),
        };
        return disk::run(folder, &extent, &arguments.words, arguments.json.as_deref());
    }
    let rows = row::chosen(&arguments.words);
    let words = &arguments.words;
    if rows.is_empty()
        && !lifetime::NAMES
            .iter()
            .any(|name| row::is_chosen(name, words))
    {
        return Err(Failure::Usage(format!(
            "no row's name contains `{}`; see them all with `nacre bench --list`",
            words.join("` or `")
        )));
    }
    if arguments.list {
        let of_rows = rows.iter().map(|row| row.name.as_str());
        let others = lifetime::NAMES
            .into_iter()
            .filter(|name| row::is_chosen(name, words));
        let names: Vec<&str> = of_rows.chain(others).collect();
        output::write(format!("{}\n", names.join("\n")).as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut report = Report {
        machine: Machine::now(),
        run: arguments.run(),
        ..Report::default()
    };
    if let Some(warning) = report.machine.warning_before() {
        eprintln!("nacre: warning: {warning}");
    }
    let watch = Watch::start();
    let entries = report.run.entries as u64 * POOL_ENTRY;
    let pool_bytes = report.run.file_bytes * DATA_FILES + entries + POOL_MORE;
    let stage = Stage::set(arguments, pool_bytes, &mut report)?;
    perform(stage, &rows, arguments, &mut report)?;
    report.judge();
    watch.stop(&mut report.machine);
    publish(arguments, &report)?;
    Ok(if report.is_whole() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn perform(
    mut stage: Stage,
    rows: &[Row],
    arguments: &Arguments,
    report: &mut Report,
) -> Result<()> {
    let measured = measure(&mut stage, rows, arguments, report);
    let (count, words) = (report.run.rounds, &arguments.words);
    // Whatever happened, the pool is left properly.
    let attached = stage.leave(|pool| lifetime::attach(pool, count, words));
    measured?;
    report.rows.extend(attached?);
    Ok(())
}

fn measure(
    stage: &mut Stage,
    rows: &[Row],
    arguments: &Arguments,
    report: &mut Report,
) -> Result<()> {
    let words = &arguments.words;
    let memory = lifetime::memory(stage, words)?;
    report.overhead = overhead(stage, &report.run)?;
    let mut runs = Runs::default();
    report.rows = rounds(stage, rows, &report.run, &mut |stage| {
        runs.round(&stage.pool, words, arguments.either(None, 20, 5))
    })?;
    report.rows.extend(runs.row());
    report.rows.extend(memory);
    Ok(())
}

fn scale(run: &Run) -> Scale {
    Scale {
        file_bytes: run.file_bytes,
        entries: run.entries,
    }
}

/// Measured in the pool's worker, as everything there contains it.
fn overhead(stage: &mut Stage, run: &Run) -> Result<Overhead> {
    let budget = Duration::from_millis(run.milliseconds);
    let mut cost =
        |action| match stage.sites[0].measure(&Row::overhead(action), budget, scale(run))? {
            Outcome::Measured(figures) => Ok(figures.p50),
            _ => Err(Failure::Usage("the loop cannot be measured".to_string())),
        };
    Ok(Overhead {
        loop_ns: cost(Action::Nothing)?,
        clock_ns: cost(Action::Clock)?,
    })
}

/// All rows in all places, round by round; the places take turns in being the first.
fn rounds(
    stage: &mut Stage,
    rows: &[Row],
    run: &Run,
    after_each: &mut dyn FnMut(&Stage) -> Result<()>,
) -> Result<Vec<RowReport>> {
    let stop = interrupted()?;
    let budget = Duration::from_millis(run.milliseconds);
    let bar = output::bar(
        (run.rounds * rows.len()) as u64,
        "measuring",
        output::Counted::Steps,
    );
    let mut found: Vec<BTreeMap<Backend, Vec<Outcome>>> =
        rows.iter().map(|_| BTreeMap::new()).collect();
    for round in 0..run.rounds {
        for (index, row) in rows.iter().enumerate() {
            show(&bar, row);
            let count = stage.sites.len();
            for turn in 0..count {
                if stop.load(Ordering::Relaxed) {
                    return Err(Failure::Usage(
                        "interrupted; nothing is reported".to_string(),
                    ));
                }
                let site = &mut stage.sites[(round + index + turn) % count];
                let outcome = site.measure(row, budget, scale(run))?;
                found[index].entry(site.place).or_default().push(outcome);
            }
            bar.inc(1);
        }
        after_each(stage)?;
    }
    bar.finish_and_clear();
    let reports = rows.iter().zip(found);
    Ok(reports
        .map(|(row, found)| RowReport::of(row, found))
        .collect())
}

fn show(bar: &ProgressBar, row: &Row) {
    bar.set_message(row.name.clone());
}

/// Set when somebody wants us to end; folders are then still removed.
fn interrupted() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&flag))
            .map_err(|error| Failure::io("signals", error))?;
    }
    Ok(flag)
}

fn publish(arguments: &Arguments, report: &Report) -> Result<()> {
    let has_colours = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    output::write(table::text(report, has_colours).as_bytes())?;
    if let Some(path) = &arguments.json {
        let text = serde_json::to_vec_pretty(report);
        let text = text.map_err(|error| Failure::io(path.display(), error))?;
        output::save(path, text)?;
    }
    if let Some(path) = &arguments.html {
        let page = html::page(report);
        output::save(path, page)?;
    }
    Ok(())
}
