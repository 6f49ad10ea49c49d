//! What lies on a device moves to the others, and what came of it.

use crate::failure::{Failure, Result, store_failure};
use crate::users::users;
use crate::{output, size};
use indicatif::ProgressBar;
use nacre_store::{AttachOptions, Drained, LeftThere, SessionChoice, Store, StoreError};
use nacre_volume::{Access, Volume};
use serde::Serialize;
use std::fmt::Write;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

#[derive(Serialize, Default)]
pub struct Report {
    pub device: PathBuf,
    /// Whether it is no device of the pool any more.
    pub removed: bool,
    pub moved_bytes: u64,
    /// Bytes of contents that are still there.
    pub left_content_bytes: u64,
    /// Bytes of what the pool keeps for itself that are still there.
    pub left_metadata_bytes: u64,
    /// Files that are mapped, or were in use each time.
    pub files_in_use: u64,
    pub used_by: Vec<u32>,
    /// Bytes of contents that could not be read: they are lost.
    #[serde(skip_serializing_if = "is_none")]
    pub lost_content_bytes: u64,
}

fn is_none(bytes: &u64) -> bool {
    *bytes == 0
}

/// Moves contents off the units of a device while others use the pool.
pub fn drained(
    pool: &Path,
    (device, units): (&Path, &Range<u64>),
    store: &Store,
) -> Result<Report> {
    let mut bar: Option<ProgressBar> = None;
    let drained = store.drain_device(units, &mut |progress| {
        let bar = bar
            .get_or_insert_with(|| output::bar(progress.total, "moving", output::Counted::Bytes));
        bar.set_position(progress.done);
        ControlFlow::Continue(())
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let drained = drained.map_err(|error| store_failure(pool, error))?;
    refuse_full(pool, &drained)?;
    let LeftThere { contents, metadata } = store.left_on(units);
    Ok(Report {
        device: device.to_owned(),
        removed: false,
        moved_bytes: drained.moved,
        left_content_bytes: contents,
        left_metadata_bytes: metadata,
        files_in_use: drained.in_use,
        ..Report::default()
    })
}

pub fn refuse_without_room(device: &Path, store: &Store, units: &Range<u64>) -> Result<()> {
    let (used, free) = store.room_to_leave(units);
    let needed = used + store.blocks_to_leave(units);
    if needed <= free {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "{}: {} are in use on it, and the other devices have {} free: {} are missing; remove files, \
         or add a device first (nacre device add)",
        device.display(),
        size::human(used),
        size::human(free),
        size::human(needed - free),
    )))
}

fn refuse_full(pool: &Path, drained: &Drained) -> Result<()> {
    match drained.is_full {
        true => Err(no_room(pool)),
        false => Ok(()),
    }
}

fn no_room(pool: &Path) -> Failure {
    let pool = pool.display();
    Failure::Refused(format!(
        "{pool}: the other devices have no room for the rest, some of which needs 4 MiB side by \
         side; remove files or add a device and call it again, or call it off: nacre device remove \
         --cancel {pool}"
    ))
}

pub fn not_left(pool: &Path, error: StoreError) -> Failure {
    match error {
        StoreError::NoSpace => no_room(pool),
        error => store_failure(pool, error),
    }
}

/// Nobody else uses the pool. `None`: somebody does, which the report tells.
pub fn attach_alone(pool: &Path, volume: Volume, report: &mut Report) -> Result<Option<Store>> {
    let options = AttachOptions {
        session: SessionChoice::Memory,
        parallel: true,
        ..AttachOptions::default()
    };
    let store = match Store::attach(volume, &options) {
        Err(StoreError::InUse) => {
            report.used_by = users(&Volume::open(pool, Access::ReadOnly)?);
            return Ok(None);
        }
        store => store.map_err(|error| not_left(pool, error))?,
    };
    match store.is_writable() {
        true => Ok(Some(store)),
        false => {
            let pool = pool.display();
            Err(Failure::Refused(format!(
                "{pool}: is damaged; nacre check --repair {pool} first"
            )))
        }
    }
}

pub fn describe(report: &Report) -> String {
    let (device, moved) = (report.device.display(), size::human(report.moved_bytes));
    if report.removed {
        let lost = match report.lost_content_bytes {
            0 => String::new(),
            lost => format!(
                "; {} could not be read and are lost (nacre check names them)",
                size::human(lost)
            ),
        };
        return format!("{device}: removed; moved {moved}{lost}\n");
    }
    let mut text = format!("{device}: leaving; moved {moved}\n");
    let contents = size::human(report.left_content_bytes);
    let metadata = size::human(report.left_metadata_bytes);
    let _ = writeln!(
        text,
        "still there: {contents} of contents that are in use, mapped, shared with clones or \
         snapshots, or reserved, and {metadata} of what the pool keeps for itself"
    );
    let pids: Vec<String> = report.used_by.iter().map(ToString::to_string).collect();
    let _ = writeln!(
        text,
        "that moves when nobody uses the pool (used by {}): call it again then",
        pids.join(" ")
    );
    text
}
