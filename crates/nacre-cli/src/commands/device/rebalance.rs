//! `nacre device rebalance`.

use crate::attached::Attached;
use crate::failure::{Failure, Result, store_failure};
use crate::{output, size};
use clap::Args;
use indicatif::ProgressBar;
use nacre_store::{Rebalanced, Store};
use nacre_volume::Access;
use serde::Serialize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Spread old data over all devices, as new data would be; after `nacre device add`
///
/// Programs go on meanwhile. What is mapped, or shared with clones and snapshots, stays where it
/// is. If the command is killed, call it again: it goes on where it was.
#[derive(Debug, Args)]
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
    moved_bytes: u64,
    /// Bytes that should lie elsewhere, and are in files that are in use or found no room.
    left_bytes: u64,
    /// Files that are mapped, or were in use each time.
    files_in_use: u64,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let report = Attached::with(&arguments.pool, Access::ReadWrite, |fs| {
        rebalance(&arguments.pool, fs.store())
    })?;
    match arguments.json {
        true => output::json(&report)?,
        false => output::write(describe(&report).as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn rebalance(pool: &Path, store: &Store) -> Result<Report> {
    let mut bar: Option<ProgressBar> = None;
    let done = store.rebalance(&mut |progress| {
        let bar = bar.get_or_insert_with(|| {
            output::bar(progress.total, "rebalancing", output::Counted::Bytes)
        });
        bar.set_length(progress.total);
        bar.set_position(progress.done);
        ControlFlow::Continue(())
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let done = done.map_err(|error| store_failure(pool, error))?;
    let Rebalanced {
        moved,
        left,
        in_use,
    } = done.ok_or_else(|| not_spread(pool, store))?;
    Ok(Report {
        moved_bytes: moved,
        left_bytes: left,
        files_in_use: in_use,
    })
}

fn not_spread(pool: &Path, store: &Store) -> Failure {
    let path = pool.display();
    Failure::Usage(match store.volume().has_copies() {
        true => format!("{path}: each device holds everything: nothing is to be moved"),
        false => format!(
            "{path}: data is not spread over several devices; nacre device add --stripe 2M adds one \
             and spreads it"
        ),
    })
}

fn describe(report: &Report) -> String {
    let left = match report.left_bytes {
        0 => String::new(),
        left => format!("; {} left", size::human(left)),
    };
    let in_use = match report.files_in_use {
        0 => String::new(),
        files => format!("; {files} files in use or mapped were left; call it again later"),
    };
    format!("moved {}{left}{in_use}\n", size::human(report.moved_bytes))
}
