//! `nacre device rebuild`.

use super::own;
use super::remove::Report;
use crate::attached::Attached;
use crate::failure::{Failure, Result};
use crate::{output, size};
use clap::Args;
use indicatif::ProgressBar;
use nacre_store::Store;
use nacre_volume::{Access, CopyInfo, LegState, Volume};
use serde::Serialize;
use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Give copies that were missing, or whose rebuild was broken off, what they lack
///
/// Programs go on meanwhile. A copy that was missing gets what was stored since; one that failed
/// gets everything. A device for which another one has come (nacre device replace) goes when that
/// one has everything. Killed, it goes on where it was when it is called again.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Any device of the pool that is current
    #[arg(value_name = "POOL")]
    pool: PathBuf,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
pub struct Rebuilt {
    /// Copies that are whole now and were not.
    rebuilt: usize,
    /// Bytes that were looked at.
    bytes: u64,
    /// Copies that are not whole.
    degraded: usize,
    /// Devices for which others have come: they are no devices of the pool any more.
    removed: Vec<PathBuf>,
    /// What became of the disk for which another one has come, where each holds a part alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    leaves: Option<Report>,
}

impl Rebuilt {
    /// With a disk that leaves, or has left.
    pub fn and_left(mut self, report: Report) -> Self {
        if report.removed {
            self.removed.push(report.device.clone());
        }
        self.leaves = Some(report);
        self
    }

    /// Reports, and tells whether all is done.
    pub fn tell(&self, json: bool) -> Result<ExitCode> {
        match json {
            true => output::json(self)?,
            false => output::write(describe(self).as_bytes())?,
        }
        let leaves = self.leaves.as_ref().is_some_and(|report| !report.removed);
        Ok(ExitCode::from(u8::from(self.degraded > 0 || leaves)))
    }
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let pool = Attached::open(&arguments.pool, Access::ReadWrite, None)?;
    if own::is_own(pool.fs.store().volume()) {
        let back = bring_back(pool.fs.store().volume());
        pool.detach()?;
        back?;
        return own::go_on(&arguments.pool, arguments.json);
    }
    let done = bring_back(pool.fs.store().volume())
        .and_then(|()| rebuild(&arguments.pool, pool.fs.store(), arguments.json));
    let detached = pool.detach();
    let code = done?;
    detached?;
    Ok(code)
}

/// Takes copies back that are there again.
fn bring_back(volume: &Volume) -> Result<()> {
    let copies = volume.copies()?;
    let is_replaced = |copy: &CopyInfo| copies.iter().any(|it| it.replaces == Some(copy.uuid));
    for copy in copies.iter().filter(|copy| !is_replaced(copy)) {
        if !copy.state.is_stored_to() && !volume.return_copy(copy.uuid)? {
            let path = copy.path.display();
            eprintln!("nacre: {path}: {}", not_back(volume));
        }
    }
    Ok(())
}

/// Why a copy does not come back.
fn not_back(volume: &Volume) -> &'static str {
    match volume.common_units() {
        0 => "is not there, or not what it was; see nacre device replace",
        _ => "is not there, or lacks what it alone should have; see nacre device replace",
    }
}

/// Rebuilds what is to be rebuilt, and reports.
pub fn rebuild(pool: &Path, store: &Store, json: bool) -> Result<ExitCode> {
    rebuilt(pool, store)?.tell(json)
}

/// Rebuilds what is to be rebuilt.
pub fn rebuilt(pool: &Path, store: &Store) -> Result<Rebuilt> {
    let volume = store.volume();
    if !volume.has_copies() {
        let path = pool.display();
        return Err(Failure::Usage(format!("{path}: is a pool without copies")));
    }
    let mut bar: Option<ProgressBar> = None;
    let mut bytes = 0;
    let rebuilt = store.rebuild_copies(|progress| {
        let bar = bar.get_or_insert_with(|| output::bar(progress.total, "rebuilding", true));
        bar.set_position(progress.done);
        bytes = bytes.max(progress.looked);
        ControlFlow::Continue(())
    })?;
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let removed = volume.let_replaced_go()?;
    let copies = volume.copies()?;
    let degraded = copies.iter().filter(|copy| copy.state != LegState::Current);
    Ok(Rebuilt {
        rebuilt,
        bytes,
        degraded: degraded.count(),
        removed,
        leaves: None,
    })
}

fn describe(report: &Rebuilt) -> String {
    let whole = match report.degraded {
        0 => "all copies are whole".to_string(),
        left => format!("{left} still missing or failed"),
    };
    let mut text = format!(
        "rebuilt {} ({}); {whole}\n",
        report.rebuilt,
        size::human(report.bytes)
    );
    if let Some(leaves) = &report.leaves {
        return text + &super::remove::describe(leaves);
    }
    for path in &report.removed {
        let _ = writeln!(text, "{}: removed", path.display());
    }
    text
}
