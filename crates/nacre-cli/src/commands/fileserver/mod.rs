//! `nacre fileserver`: the load of a file server, in real time or in a model's.

mod live;
mod mix;
mod played;

use super::calibrate::choice_of_model;
use crate::commands::model::plural;
use crate::failure::{Failure, Result};
use crate::plot::{Labels, Line, Scale, chart};
use crate::{output, size};
use clap::Args;
use live::{Done, Work};
use mix::{Mix, Ratio};
use nacre_emulator::Profile;
use nacre_volume::{Granularity, Policy};
use played::Row;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  nacre fileserver --threads 4 /tmp                        any folder, by ordinary calls
  nacre run --pool my.pool -- nacre fileserver --processes 4 --threads 5 /nacre
  nacre run --emulate optane-100 --granularity optane -- nacre fileserver /nacre
  nacre fileserver --model optane-100 --modules 2          gain of cutting by threads, by the model

Each thread makes files, writes them whole and appends to them, reads every second one whole (with --ratio
operations, as filebench: each) and deletes the oldest. With --model nothing is timed: what the file system stores and loads for each thread is recorded, and
the deterministic model plays it at once for all threads, with and without the policy.";

/// What the published file server's files have, and what it moves by one call.
const FILE_BYTES: u64 = 10 << 20;
const CALL_BYTES: u64 = 16 << 10;

/// Run the workload of a file server, in a folder or on the model of a device
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Folder to work in
    #[arg(
        value_name = "DIR",
        required_unless_present = "model",
        conflicts_with = "model"
    )]
    folder: Option<PathBuf>,
    /// Play it on the model of a device: shipped profile, or path of a TOML file
    #[arg(long, value_name = "PROFILE")]
    model: Option<String>,
    /// Threads (of each process); by the model several separated by commas
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,12,16,20")]
    threads: Vec<u32>,
    /// Processes, in a folder
    #[arg(long, default_value_t = 1)]
    processes: u32,
    /// Size of a file
    #[arg(long, value_name = "BYTES", value_parser = size::parse, default_value = "10M")]
    file_size: u64,
    /// Bytes of one call
    #[arg(long, value_name = "BYTES", value_parser = size::parse, default_value = "16K")]
    io: u64,
    /// What of reading and writing stands in the ratio of 1 to 2
    #[arg(long, value_enum, default_value_t = Ratio::Bytes)]
    ratio: Ratio,
    /// How long, in a folder; rounds are finished
    #[arg(long, default_value_t = 5000)]
    milliseconds: u64,
    /// What a thread does between two calls, by the model, ns
    #[arg(long, value_name = "NS", default_value_t = 0)]
    think: u32,
    /// Modules of the model, instead of the profile's
    #[arg(long)]
    modules: Option<u32>,
    /// Policy to compare with `none` by the model; calibrated: by the same model
    /// [default: optane with the model's modules]
    #[arg(long, value_name = "POLICY")]
    granularity: Option<Policy>,
    /// Write a plot of bandwidth by threads, by the model
    #[arg(long, value_name = "FILE", requires = "model")]
    svg: Option<PathBuf>,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    check(arguments)?;
    let mix = Mix {
        file: arguments.file_size,
        io: arguments.io,
        ratio: arguments.ratio,
    };
    match (&arguments.model, &arguments.folder) {
        (Some(profile), _) => play(arguments, &mix, Profile::load(profile)?),
        (None, Some(folder)) => work(arguments, mix, folder.clone()),
        (None, None) => Err(Failure::Usage("name a folder, or --model PROFILE".into())),
    }
}

/// Percent that the policy `optane` gains for a file server of so many threads, which do something
/// else for `think` ns before each call, by the model.
pub fn gain_by_model(profile: &Profile, threads: u32, think: u32) -> Result<f64> {
    let mix = Mix {
        file: FILE_BYTES,
        io: CALL_BYTES,
        ratio: Ratio::Bytes,
    };
    let granularity = Granularity {
        policy: Policy::Optane {
            modules: profile.layout.modules as u16,
        },
        ..Granularity::default()
    };
    let streams = played::record(&mix, threads, think)?;
    let row = played::row(profile, &streams, threads, &granularity, played_bytes(&mix));
    Ok(row.gain_percent)
}

/// One thread walks through its two rounds; the more there are, the smaller a part of them is
/// enough.
fn played_bytes(mix: &Mix) -> u64 {
    3 * mix.file
}

fn check(arguments: &Arguments) -> Result<()> {
    let wrong = |text: String| Err(Failure::Usage(text));
    if let Some(threads) = arguments
        .threads
        .iter()
        .find(|&&threads| !(1..=64).contains(&threads))
    {
        return wrong(format!("--threads {threads}: give 1 to 64"));
    }
    if !(1..=64).contains(&arguments.processes) {
        return wrong(format!("--processes {}: give 1 to 64", arguments.processes));
    }
    if !(4096..=1 << 30).contains(&arguments.io) || arguments.file_size > 1 << 30 {
        return wrong("--io takes 4K to 1G, --file-size up to 1G".into());
    }
    match arguments.modules {
        Some(modules) if !(1..=64).contains(&modules) => {
            wrong(format!("--modules {modules}: give 1 to 64"))
        }
        _ => Ok(()),
    }
}

fn work(arguments: &Arguments, mix: Mix, folder: PathBuf) -> Result<ExitCode> {
    live::check(&folder)?;
    let work = Work {
        folder,
        mix,
        threads: arguments.threads.last().copied().unwrap_or(1),
        time: Duration::from_millis(arguments.milliseconds),
    };
    let done = if arguments.processes == 1 {
        live::threads(&work)?
    } else {
        live::processes(&work, arguments.processes)?
    };
    if arguments.json {
        output::json(&done)?;
    } else {
        output::write(describe(&done).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(done: &Done) -> String {
    let seconds = done.seconds.max(1e-9);
    format!(
        "{:.0} calls/s; {:.1} MB/s written, {:.1} MB/s read (10^6 bytes), {:.1} s\n",
        done.calls as f64 / seconds,
        done.written_bytes as f64 / seconds / 1e6,
        done.read_bytes as f64 / seconds / 1e6,
        done.seconds
    )
}

fn play(arguments: &Arguments, mix: &Mix, mut profile: Profile) -> Result<ExitCode> {
    profile.layout.modules = arguments.modules.unwrap_or(profile.layout.modules);
    let modules = profile.layout.modules as u16;
    let granularity = match arguments.granularity {
        Some(Policy::Calibrated) => choice_of_model(&profile)?,
        policy => Granularity {
            policy: policy.unwrap_or(Policy::Optane { modules }),
            ..Granularity::default()
        },
    };
    let policy = granularity.policy;
    let most = arguments.threads.iter().copied().max().unwrap_or(1);
    let streams = played::record(mix, most, arguments.think)?;
    let bytes = played_bytes(mix);
    let bar = output::bar(
        arguments.threads.len() as u64,
        "playing",
        output::Counted::Steps,
    );
    let rows: Vec<Row> = arguments
        .threads
        .iter()
        .map(|&threads| {
            bar.inc(1);
            played::row(&profile, &streams, threads, &granularity, bytes)
        })
        .collect();
    bar.finish_and_clear();
    if let Some(path) = &arguments.svg {
        let svg = plot(&profile, policy, &rows);
        output::save(path, svg)?;
    }
    if arguments.json {
        output::json(&rows)?;
    } else {
        output::write(table(&profile, policy, &rows).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn table(profile: &Profile, policy: Policy, rows: &[Row]) -> String {
    let mut text = format!(
        "file server on {}, {} module(s), by the model; GB/s of stores and loads\nthreads     none   EWR {:>10}   EWR    gain\n",
        profile.name,
        profile.layout.modules,
        policy.to_string()
    );
    for row in rows {
        let _ = writeln!(
            text,
            "{:>7} {:>8.3} {:>5.2} {:>10.3} {:>5.2} {:>+6.1}%",
            row.threads, row.whole_gb_s, row.whole_ewr, row.cut_gb_s, row.cut_ewr, row.gain_percent
        );
    }
    text
}

fn plot(profile: &Profile, policy: Policy, rows: &[Row]) -> String {
    let line = |name: String, of: fn(&Row) -> f64| {
        let points = rows.iter().map(|row| (f64::from(row.threads), of(row)));
        Line::new(name, points.collect())
    };
    let lines = [
        line("none".into(), |row| row.whole_gb_s),
        line(policy.to_string(), |row| row.cut_gb_s),
    ];
    let title = format!(
        "File server on {}, {}",
        profile.name,
        plural(profile.layout.modules, "module")
    );
    let labels = Labels {
        title: &title,
        x: "threads",
        y: "GB/s",
        across: Scale::Even,
        upwards: Scale::Even,
        dashed: "",
    };
    chart(&labels, &lines)
}
