//! `nacre model`: the device model, as tables and plots.

pub mod cells;
mod compare;
pub mod errors;
mod fit;

use crate::failure::{Failure, Result};
use crate::plot::{Labels, Line, Scale, chart, short};
use crate::{output, size};
use clap::{Args, ValueEnum};
use nacre_emulator::Profile;
use nacre_emulator::model::{Operation, Outcome, Pattern, Workload, probe, simulate};
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  nacre model                                        one Optane module, stores, by threads
  nacre model --threads 20 --access 4M --fence 0,256,512
  nacre model --profile optane-interleaved-6 --operation load --svg loads.svg
  nacre model --probe 4K,16K,18K,20K,64K             how much the buffer holds
  nacre model --compare bandwidth.csv                the error against a published table
  nacre model --compare bandwidth.csv --svg e.svg --json
  nacre model --fit mine.csv > mine.toml             a profile from measurements of your own
  nacre model --show optane-100 > my.toml            a profile to start your own from

GB/s are 10^9 bytes a second. EWR is bytes accepted by the modules over bytes that their cells write.
The simulation is deterministic: the same input gives the same figures everywhere.";

/// Predict bandwidth, write amplification and latency of a device
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Shipped profile, or path of a TOML file
    #[arg(long, value_name = "PROFILE", default_value = "optane-100")]
    profile: String,
    /// What the threads do
    #[arg(long, value_enum, default_value = "ntstore")]
    operation: Kind,
    /// Where they do it, each in memory of its own
    #[arg(long, value_enum, default_value = "random")]
    pattern: AddressOrder,
    /// Bytes of an access; several separated by commas
    #[arg(long, value_parser = size::parse, value_delimiter = ',', default_value = "256")]
    access: Vec<u64>,
    /// Threads; several separated by commas
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,6,8,12,16,20,24")]
    threads: Vec<u32>,
    /// Wait for the buffer after so many bytes, 0 for never; several separated by commas
    #[arg(long, value_delimiter = ',', value_parser = fence, default_value = "0")]
    fence: Vec<u64>,
    /// Share of the accesses that are loads, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    loads: f64,
    /// Modules, instead of the profile's
    #[arg(long)]
    modules: Option<u32>,
    /// Devices that hold the same, each with the modules; each thread loads from one of them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4), default_value_t = 1)]
    copies: u32,
    /// Last level of the processor's cache, instead of the profile's
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    cache: Option<u64>,
    /// Write a region of so many bytes by half lines, then the other halves; several separated by
    /// commas
    #[arg(long, value_name = "BYTES", value_parser = size::parse, value_delimiter = ',')]
    probe: Vec<u64>,
    /// Run the workloads of a table like FAST 2020's bandwidth.csv and tell the error of each cell
    #[arg(long, value_name = "CSV")]
    compare: Option<PathBuf>,
    /// Fit the profile to such a table, to every second size of access, and print it
    #[arg(long, value_name = "CSV", conflicts_with = "compare")]
    fit: Option<PathBuf>,
    /// What is fitted
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = fit::PARAMETERS)]
    parameters: Vec<String>,
    /// Print the text of a shipped profile
    #[arg(long, value_name = "PROFILE")]
    show: Option<String>,
    /// Write a plot of bandwidth by threads, or of the errors
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Load,
    /// Loads, copied to a buffer as large as an access
    Read,
    Ntstore,
    Flush,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum AddressOrder {
    Random,
    Sequential,
}

/// One row of the report.
#[derive(Serialize)]
struct Row {
    access_bytes: u64,
    fence_bytes: u64,
    threads: u32,
    gb_s: f64,
    read_gb_s: f64,
    ewr: f64,
    write_amplification: f64,
    read_amplification: f64,
    latency_ns: f64,
}

/// One region of `--probe`.
#[derive(Serialize)]
struct Probed {
    region_bytes: u64,
    write_amplification: f64,
}

fn fence(text: &str) -> std::result::Result<u64, String> {
    if text == "0" {
        Ok(0)
    } else {
        size::parse(text)
    }
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(name) = &arguments.show {
        let profile = Profile::load(name)?;
        let text = Profile::text(&profile.name).unwrap_or_default();
        output::write(text.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(table) = &arguments.fit {
        return fit::fit(&arguments.profile, table, &arguments.parameters);
    }
    let profile = profile(arguments)?;
    if let Some(table) = &arguments.compare {
        let outputs = compare::Outputs {
            json: arguments.json,
            svg: arguments.svg.as_ref(),
        };
        return compare::compare(&profile, table, &outputs);
    }
    if !arguments.probe.is_empty() {
        return probe_regions(&profile, arguments);
    }
    let rows = rows(arguments, &profile);
    if let Some(path) = &arguments.svg {
        let svg = plot(arguments, &profile, &rows);
        output::save(path, svg)?;
    }
    if arguments.json {
        output::json(&rows)?;
    } else {
        output::write(table(&profile, &rows).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn profile(arguments: &Arguments) -> Result<Profile> {
    let mut profile = Profile::load(&arguments.profile)?;
    if let Some(modules) = arguments.modules {
        if !(1..=64).contains(&modules) {
            return Err(Failure::Usage(format!("--modules {modules}: give 1 to 64")));
        }
        profile.layout.modules = modules;
    }
    profile.processor.cache = arguments.cache.unwrap_or(profile.processor.cache);
    if let Some(access) = arguments
        .access
        .iter()
        .find(|&&access| access < 64 || access % 64 > 0 || access > 1 << 30)
    {
        return Err(Failure::Usage(format!(
            "--access {access}: give a multiple of 64 up to 1G"
        )));
    }
    if let Some(threads) = arguments
        .threads
        .iter()
        .find(|&&threads| !(1..=1024).contains(&threads))
    {
        return Err(Failure::Usage(format!(
            "--threads {threads}: give 1 to 1024"
        )));
    }
    if arguments.copies > 1 && !matches!(arguments.operation, Kind::Load | Kind::Read) {
        return Err(Failure::Usage(format!(
            "--copies {}: stores go to all copies; give --operation load or read",
            arguments.copies
        )));
    }
    if !(0.0..=1.0).contains(&arguments.loads) {
        return Err(Failure::Usage(format!(
            "--loads {}: give 0 to 1",
            arguments.loads
        )));
    }
    Ok(profile)
}

fn rows(arguments: &Arguments, profile: &Profile) -> Vec<Row> {
    let operation = match arguments.operation {
        Kind::Load => Operation::Load,
        Kind::Read => Operation::Read,
        Kind::Ntstore => Operation::NtStore,
        Kind::Flush => Operation::StoreFlush,
    };
    let pattern = match arguments.pattern {
        AddressOrder::Random => Pattern::Random,
        AddressOrder::Sequential => Pattern::Sequential,
    };
    let mut rows = Vec::new();
    for &access in &arguments.access {
        for &fence in &arguments.fence {
            for &threads in &arguments.threads {
                let mut workload = Workload::new(operation, pattern, access, threads);
                workload.fence = fence;
                workload.loads = arguments.loads;
                workload.copies = arguments.copies;
                rows.push(row(&workload, &simulate(profile, &workload)));
            }
        }
    }
    rows
}

fn row(workload: &Workload, outcome: &Outcome) -> Row {
    let digits = |value: f64| (value * 1000.0).round() / 1000.0;
    Row {
        access_bytes: workload.access,
        fence_bytes: workload.fence,
        threads: workload.threads,
        gb_s: digits(outcome.bandwidth),
        read_gb_s: digits(outcome.read_bandwidth),
        ewr: digits(outcome.ewr),
        write_amplification: digits(outcome.write_amplification()),
        read_amplification: digits(outcome.read_amplification),
        latency_ns: outcome.latency.round(),
    }
}

fn table(profile: &Profile, rows: &[Row]) -> String {
    let mut text = format!(
        "{}: {}, {} module(s)\n{:>9} {:>9} {:>7} {:>8} {:>7} {:>9} {:>9} {:>8}\n",
        profile.name,
        profile.title,
        profile.layout.modules,
        "access",
        "fence",
        "threads",
        "GB/s",
        "EWR",
        "write amp",
        "read amp",
        "ns"
    );
    for row in rows {
        let _ = writeln!(
            text,
            "{:>9} {:>9} {:>7} {:>8.3} {:>7.3} {:>9.3} {:>9.3} {:>8}",
            row.access_bytes,
            row.fence_bytes,
            row.threads,
            row.gb_s,
            row.ewr,
            row.write_amplification,
            row.read_amplification,
            row.latency_ns
        );
    }
    text
}

fn plot(arguments: &Arguments, profile: &Profile, rows: &[Row]) -> String {
    let by_access = arguments.threads.len() == 1;
    let mut lines: Vec<Line> = Vec::new();
    for row in rows {
        let cut = if row.fence_bytes > 0 {
            format!(", cut at {}", bytes(row.fence_bytes))
        } else {
            String::new()
        };
        let (name, x) = if by_access {
            (
                format!("{}{cut}", plural(row.threads, "thread")),
                row.access_bytes as f64,
            )
        } else {
            (
                format!("{}{cut}", bytes(row.access_bytes)),
                f64::from(row.threads),
            )
        };
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push((x, row.gb_s)),
            None => lines.push(Line::new(name, vec![(x, row.gb_s)])),
        }
    }
    let title = format!(
        "{}, {}: {}, {}",
        profile.name,
        plural(profile.layout.modules, "module"),
        name(arguments.operation),
        name(arguments.pattern)
    );
    let labels = Labels {
        title: &title,
        x: if by_access {
            "bytes of an access"
        } else {
            "threads"
        },
        y: "GB/s",
        across: if by_access {
            Scale::Doubling
        } else {
            Scale::Even
        },
        upwards: Scale::Even,
        dashed: "",
    };
    chart(&labels, &lines)
}

fn probe_regions(profile: &Profile, arguments: &Arguments) -> Result<ExitCode> {
    let regions = arguments.probe.iter();
    let found: Vec<(u64, f64)> = regions
        .map(|&region| (region, probe(profile, region)))
        .collect();
    if let Some(path) = &arguments.svg {
        output::save(path, probe_plot(profile, &found))?;
    }
    if arguments.json {
        let rows = found.iter().map(|&(region, amplification)| Probed {
            region_bytes: region,
            write_amplification: (amplification * 1000.0).round() / 1000.0,
        });
        output::json(&rows.collect::<Vec<_>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::from("   region  write amplification\n");
    for (region, amplification) in &found {
        let _ = writeln!(text, "{region:>9}  {amplification:.3}");
    }
    output::write(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn probe_plot(profile: &Profile, found: &[(u64, f64)]) -> String {
    let points = found.iter().map(|&(region, value)| (region as f64, value));
    let labels = Labels {
        title: &format!("{}: a region written by half lines", profile.name),
        x: "bytes of the region",
        y: "write amplification",
        across: Scale::Doubling,
        upwards: Scale::Even,
        dashed: "",
    };
    chart(&labels, &[Line::new("half lines", points.collect())])
}

/// A choice as it is written on the command line.
fn name(choice: impl ValueEnum) -> String {
    let value = choice.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// So many of something.
pub fn plural(count: u32, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn bytes(count: u64) -> String {
    let unit = if count < 1024 { " B" } else { "" };
    format!("{}{unit}", short(count as f64))
}
