//! `nacre check`.

use crate::attached::{Attached, refuse_if_used};
use crate::failure::{Failure, Result};
use crate::output;
use clap::Args;
use nacre_store::check::{Report as Checked, check};
use nacre_types::UNIT_SIZE;
use nacre_volume::Volume;
use serde::Serialize;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  nacre check my.pool            nobody may use the pool meanwhile
  nacre check --json my.pool     for programs

What a cut-off run left unfinished is recovered first, as with any attach.
Exit status: 0 all is well; 1 problems were found, or the pool cannot be attached.";

/// Look at everything in a pool and report whatever contradicts itself
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Any device of the pool
    #[arg(value_name = "POOL")]
    pool: PathBuf,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    clean: bool,
    recovered: bool,
    objects: u64,
    directories: u64,
    entries: u64,
    data_bytes: u64,
    metadata_bytes: u64,
    leaked_bytes: u64,
    problems: Vec<String>,
    more_problems: u64,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let pool = &arguments.pool;
    refuse_if_used(pool, Volume::inspect(pool)?.pool)?;
    let report = examine(pool)?;
    if arguments.json {
        output::json(&report)?;
        return Ok(ExitCode::from(u8::from(!report.clean)));
    }
    output::write(describe(pool, &report).as_bytes())?;
    if report.clean {
        return Ok(ExitCode::SUCCESS);
    }
    let count = report.problems.len() as u64 + report.more_problems;
    let problems = format!("{count} problem{}", if count == 1 { "" } else { "s" });
    Err(Failure::Damaged {
        pool: pool.clone(),
        problems,
    })
}

fn examine(pool: &Path) -> Result<Report> {
    let attached = Attached::open_to_read(pool, None)?;
    let recovered = attached.fs.store().report();
    let bar = output::bar(0, "checking", false);
    let checked = check(attached.fs.store(), &mut |progress| {
        bar.set_length(progress.total);
        bar.set_position(progress.done);
    });
    bar.finish_and_clear();
    attached.detach()?;
    Ok(summarise(
        checked,
        recovered.rebuilt || recovered.replayed > 0,
    ))
}

fn summarise(checked: Checked, recovered: bool) -> Report {
    let counts = checked.counts;
    Report {
        clean: checked.problems.is_empty(),
        recovered,
        objects: counts.objects,
        directories: counts.directories,
        entries: counts.entries,
        data_bytes: counts.data_units * UNIT_SIZE,
        metadata_bytes: counts.metadata_units * UNIT_SIZE,
        leaked_bytes: counts.leaked_units * UNIT_SIZE,
        problems: checked.problems.iter().map(ToString::to_string).collect(),
        more_problems: checked.more_problems,
    }
}

fn describe(pool: &Path, report: &Report) -> String {
    let mut text = String::new();
    for problem in &report.problems {
        let _ = writeln!(text, "{}: {problem}", pool.display());
    }
    let _ = writeln!(
        text,
        "{}: {} objects, {} directories, {} entries, {} of data, {} of metadata{}: {}",
        pool.display(),
        report.objects,
        report.directories,
        report.entries,
        crate::size::human(report.data_bytes),
        crate::size::human(report.metadata_bytes),
        if report.recovered { ", recovered" } else { "" },
        if report.clean { "clean" } else { "DAMAGED" },
    );
    text
}
