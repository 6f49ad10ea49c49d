//! Copies that lack something get it, and what came of it.

use super::leaving::{self, Report};
use crate::attached::Attached;
use crate::commands::scrub::{Told, all_told, describe_places};
use crate::failure::{Failure, Result};
use crate::{output, parallel, size};
use indicatif::ProgressBar;
use nacre_fs::Fs;
use nacre_volume::{LegState, Volume, VolumeError};
use serde::Serialize;
use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Serialize)]
pub struct Rebuilt {
    /// Copies that are whole now and were not.
    rebuilt: usize,
    /// Bytes that were looked at.
    bytes: u64,
    /// Copies that are not whole.
    degraded: usize,
    /// Where the copy that was read did not hold what its checksum says: bytes that were repaired,
    /// bytes that no copy has as they were, and the places.
    repaired_bytes: u64,
    left_bytes: u64,
    damages: Vec<Told>,
    more_damages: u64,
    /// Devices for which others have come: they are no devices of the pool any more.
    removed: Vec<PathBuf>,
    /// Those that stay copies until nobody uses the pool.
    stay: Vec<PathBuf>,
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

    /// What stayed goes when the last one leaves, which may be who reports.
    fn without_gone(mut self) -> Self {
        let is_gone =
            |path: &mut PathBuf| matches!(Volume::inspect(path), Err(VolumeError::NotAPool { .. }));
        self.removed.extend(self.stay.extract_if(.., is_gone));
        self
    }

    /// Reports, and tells whether all is done.
    pub fn tell(&self, pool: &Path, json: bool) -> Result<ExitCode> {
        match json {
            true => output::json(self)?,
            false => output::write(describe(pool, self).as_bytes())?,
        }
        let leaves = self.leaves.as_ref().is_some_and(|report| !report.removed);
        let failed = self.degraded > 0 || self.left_bytes > 0 || leaves;
        Ok(ExitCode::from(u8::from(failed)))
    }
}

/// Does `first` in a pool, rebuilds what is to be rebuilt, leaves the pool, and reports.
pub fn rebuild_after(
    pool: Attached,
    path: &Path,
    json: bool,
    first: impl FnOnce(&Volume) -> Result<()>,
) -> Result<ExitCode> {
    let store = pool.fs.store();
    let done = first(store.volume()).and_then(|()| rebuilt(path, &pool.fs));
    let detached = pool.detach();
    let report = done?.without_gone();
    detached?;
    report.tell(path, json)
}

/// Rebuilds what is to be rebuilt.
pub fn rebuilt(pool: &Path, fs: &Fs) -> Result<Rebuilt> {
    let (store, volume) = (fs.store(), fs.store().volume());
    if !volume.has_copies() {
        let path = pool.display();
        return Err(Failure::Usage(format!("{path}: is a pool without copies")));
    }
    let mut bar: Option<ProgressBar> = None;
    let mut bytes = 0;
    let (rebuilt, report) = store.rebuild_copies(parallel::processors(), |progress| {
        let bar = bar.get_or_insert_with(|| {
            output::bar(progress.total, "rebuilding", output::Counted::Bytes)
        });
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
    let stay = volume.replaced_copies()?.into_iter().map(|copy| copy.path);
    Ok(Rebuilt {
        rebuilt,
        bytes,
        repaired_bytes: report.repaired,
        left_bytes: report.left,
        damages: all_told(fs, &report),
        more_damages: report.more,
        degraded: degraded.count(),
        removed,
        stay: stay.collect(),
        leaves: None,
    })
}

fn describe(pool: &Path, report: &Rebuilt) -> String {
    let whole = match report.degraded {
        0 => "all copies are whole".to_string(),
        left => format!("{left} still missing or failed"),
    };
    let mut text = describe_places(&pool.display(), &report.damages, report.more_damages);
    let _ = writeln!(
        text,
        "rebuilt {} ({}); {whole}",
        report.rebuilt,
        size::human(report.bytes)
    );
    if report.left_bytes > 0 {
        let bytes = size::human(report.left_bytes);
        let _ = writeln!(
            text,
            "{bytes} are on no copy as they were; the new one holds what the others hold"
        );
    }
    if let Some(leaves) = &report.leaves {
        return text + &leaving::describe(leaves);
    }
    for path in &report.removed {
        let _ = writeln!(text, "{}: removed", path.display());
    }
    for path in &report.stay {
        let path = path.display();
        let _ = writeln!(
            text,
            "{path}: stays a copy while programs use the pool, as they read it; then it goes"
        );
    }
    text
}
