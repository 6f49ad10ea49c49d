//! `nacre device remove`.

use super::own;
use crate::attached::Attached;
use crate::failure::{Failure, Result, store_failure};
use crate::users::{take_alone, users};
use crate::{output, size};
use clap::Args;
use indicatif::ProgressBar;
use nacre_store::{AttachOptions, Drained, LeftThere, SessionChoice, Store, StoreError};
use nacre_volume::{Access, Volume};
use serde::Serialize;
use std::fmt::Write;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Take a device out of a pool; what it holds moves to the others first
///
/// Programs go on meanwhile. What they have mapped or in use, what clones and snapshots share, and
/// what the pool keeps for itself moves when nobody uses the pool: then call it again. Killed, it
/// goes on where it was. Of a pool with copies it takes one copy, and needs the pool for itself.
/// Where disks hold metadata together and the rest each alone, what a lost one alone held stays
/// lost.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Any device of the pool
    #[arg(value_name = "POOL")]
    pool: PathBuf,
    /// The device to remove: its path, or its number among those that `nacre device list` tells
    #[arg(value_name = "DEVICE", required_unless_present = "cancel")]
    device: Option<PathBuf>,
    /// Call off what was begun: the device stays, with what it holds
    #[arg(long, conflicts_with = "device")]
    cancel: bool,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

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

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let pool = &arguments.pool;
    let Some(device) = arguments.device.as_ref().filter(|_| !arguments.cancel) else {
        return cancel(pool);
    };
    let volume = Volume::open(pool, Access::ReadOnly)?;
    let (is_own, has_copies) = (own::is_own(&volume), volume.has_copies());
    drop(volume);
    let report = match has_copies {
        true if is_own => own::remove(pool, device)?,
        true => remove_copy(pool, device)?,
        false => remove(pool, device)?,
    };
    match arguments.json {
        true => output::json(&report)?,
        false => output::write(describe(&report).as_bytes())?,
    }
    Ok(ExitCode::from(u8::from(!report.removed)))
}

fn cancel(pool: &Path) -> Result<ExitCode> {
    let volume = Volume::open(pool, Access::ReadWrite)?;
    take_alone(pool, &volume)?;
    let Some(device) = Volume::end_leaving(pool)? else {
        let pool = pool.display();
        return Err(Failure::Usage(format!("{pool}: no device is leaving")));
    };
    output::write(format!("{}: stays\n", device.display()).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn remove_copy(pool: &Path, device: &Path) -> Result<Report> {
    // What a crash has left is repaired before a copy goes.
    Attached::open(pool, Access::ReadWrite, None)?.detach()?;
    let volume = Volume::open(pool, Access::ReadWrite)?;
    let _alone = volume.lock_exclusive()?;
    take_alone(pool, &volume)?;
    Ok(Report {
        device: Volume::remove_copy(pool, device)?,
        removed: true,
        ..Report::default()
    })
}

fn remove(pool: &Path, device: &Path) -> Result<Report> {
    if let Some(device) = Volume::forget_removed(pool, device)? {
        return Ok(Report {
            device,
            removed: true,
            ..Report::default()
        });
    }
    let number = Volume::may_leave(pool, device)?;
    let mut report = drain(pool, (device, number))?;
    if report.used_by.is_empty() {
        finish(pool, &mut report)?;
    }
    Ok(report)
}

/// Moves what can move while others use the pool.
fn drain(pool: &Path, (device, number): (&Path, usize)) -> Result<Report> {
    let attached = Attached::open(pool, Access::ReadWrite, None)?;
    let drained = drain_attached(pool, (device, number), attached.fs.store());
    let detached = attached.detach();
    let mut report = drained?;
    detached?;
    report.used_by = users(&Volume::open(pool, Access::ReadOnly)?);
    Ok(report)
}

fn drain_attached(pool: &Path, (device, number): (&Path, usize), store: &Store) -> Result<Report> {
    let info = store.volume().devices().into_iter().nth(number);
    let info = info.ok_or_else(|| Failure::Usage(format!("{}: is gone", device.display())))?;
    let units = info.range.start.unit().0..info.range.end.unit().0;
    if !info.is_leaving {
        refuse_without_room(&info.path, store, &units)?;
        Volume::begin_leaving(pool, device)?;
    }
    drained(pool, (&info.path, &units), store)
}

/// Moves contents off the units of a device while others use the pool.
pub fn drained(
    pool: &Path,
    (device, units): (&Path, &Range<u64>),
    store: &Store,
) -> Result<Report> {
    let mut bar: Option<ProgressBar> = None;
    let drained = store.drain_device(units, &mut |progress| {
        let bar = bar.get_or_insert_with(|| output::bar(progress.total, "moving", true));
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

/// Alone: moves all the rest, and takes the device out.
fn finish(pool: &Path, report: &mut Report) -> Result<()> {
    let volume = Volume::open(pool, Access::ReadWrite)?;
    if volume.leaving().is_none() {
        // Somebody has called it off.
        return Ok(());
    }
    let stays = volume.devices().into_iter().find(|it| !it.is_leaving);
    let Some(store) = attach_alone(pool, volume, report)? else {
        return Ok(());
    };
    let done = store.remove_device(pool);
    let (moved, left) = done.map_err(|error| not_left(pool, error))?;
    report.moved_bytes += moved;
    (report.left_content_bytes, report.left_metadata_bytes) = (left.contents, left.metadata);
    report.removed = left.is_nothing();
    if !report.removed {
        return Ok(());
    }
    report.files_in_use = 0;
    // Counts what is free, so that the next one need not.
    if let Some(stays) = stays {
        Attached::open(&stays.path, Access::ReadWrite, None)?.detach()?;
    }
    Ok(())
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
