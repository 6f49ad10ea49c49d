//! `nacre device remove`.

use super::leaving::{Report, attach_alone, describe, drained, not_left, refuse_without_room};
use super::own;
use crate::attached::Attached;
use crate::failure::{Failure, Result};
use crate::output;
use crate::users::{take_alone, users};
use clap::Args;
use nacre_store::Store;
use nacre_volume::{Access, Volume};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Take a device out of a pool; what it holds moves to the others first
///
/// Programs go on meanwhile. Some things move only when nobody uses the pool: what programs have
/// mapped or in use, what clones and snapshots share, and what the pool keeps for itself. The
/// command says so; call it again then. If it is killed, call it again: it goes on.
///
/// In a pool with copies one copy is taken out; nobody may use the pool meanwhile. Where only
/// metadata is on all disks, what a lost disk alone held stays lost.
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
