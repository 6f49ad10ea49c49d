//! `nacre trim`.

use crate::attached::Attached;
use crate::failure::{Failure, Result, store_failure};
use crate::{output, size};
use clap::Args;
use indicatif::ProgressBar;
use nacre_store::{Store, Trimmed};
use nacre_volume::Access;
use serde::Serialize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  nacre trim /dev/nvme1n1        once a week, say: docs/services.md has a timer
  nacre trim --punch my.pool     a file gives what is free in it back to its file system

Programs may use the pool meanwhile. A file that gave room back gets it again as the pool fills. If
its file system is full by then, fsync fails, and what was stored stays in memory until there is
room.";

/// Tell the disks of a pool what is free, as fstrim does for a file system
///
/// An SSD that knows it writes faster and wears less; a thin volume gives the room back.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Any device of the pool
    #[arg(value_name = "POOL")]
    pool: PathBuf,
    /// Devices that are files give the room back, too
    #[arg(long)]
    punch: bool,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    /// Bytes of devices that need not keep what they hold.
    trimmed_bytes: u64,
    /// Free bytes of the pool whose devices were not told.
    left_bytes: u64,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let report = Attached::with(&arguments.pool, Access::ReadWrite, |fs| {
        trim(arguments, fs.store())
    })?;
    match arguments.json {
        true => output::json(&report)?,
        false => output::write(describe(&report).as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn trim(arguments: &Arguments, store: &Store) -> Result<Report> {
    let pool = &arguments.pool;
    if !store.volume().has_image() && !store.volume().has_behind() {
        return Err(no_disk(pool));
    }
    let mut bar: Option<ProgressBar> = None;
    let done = store.trim(arguments.punch, &mut |progress| {
        let begin = || output::bar(progress.total, "trimming", output::Counted::Bytes);
        bar.get_or_insert_with(begin).set_position(progress.done);
        ControlFlow::Continue(())
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let Trimmed { bytes, left } = done.map_err(|error| store_failure(pool, error))?;
    if bytes == 0 && left > 0 {
        return Err(none_takes_it(pool, arguments.punch));
    }
    Ok(Report {
        trimmed_bytes: bytes,
        left_bytes: left,
    })
}

fn no_disk(pool: &Path) -> Failure {
    let pool = pool.display();
    Failure::Refused(format!(
        "{pool}: no disk is behind a cache or memory here: nothing is to be told what is free"
    ))
}

fn none_takes_it(pool: &Path, punch: bool) -> Failure {
    let pool = pool.display();
    Failure::Refused(match punch {
        true => format!("{pool}: none of its devices can be told what is free"),
        false => format!(
            "{pool}: none of its devices is a disk that can be told what is free; files keep their \
             room, so that the pool never lacks it, unless --punch is given"
        ),
    })
}

fn describe(report: &Report) -> String {
    let left = match report.left_bytes {
        0 => String::new(),
        left => format!("; {} on devices that cannot be told", size::human(left)),
    };
    format!("trimmed {}{left}\n", size::human(report.trimmed_bytes))
}
