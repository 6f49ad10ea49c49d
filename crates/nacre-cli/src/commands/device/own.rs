//! Pools whose disks hold a part together and the rest each alone: they come and go when nobody
//! uses the pool (D95).

use super::leaving::{Report, attach_alone, drained, not_left, refuse_without_room};
use super::named::{find, is_at};
use super::rebuilt::{Rebuilt, rebuilt};
use crate::attached::Attached;
use crate::commands::grow::Added;
use crate::failure::{Failure, Result};
use crate::users::{at_home, users};
use nacre_fs::Fs;
use nacre_store::Store;
use nacre_types::Uuid;
use nacre_volume::{Access, CopyInfo, LegState, Stripe, Volume};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A disk whose contents move to others.
struct Leaver {
    path: PathBuf,
    disk: Uuid,
    units: Range<u64>,
}

/// Whether each of the pool's disks holds a part alone.
pub fn is_own(volume: &Volume) -> bool {
    volume.common_units() > 0
}

/// `nacre device add`: the disk gets what all hold, and has room for contents.
pub fn add(arguments: &Added, stripe: Option<Stripe>) -> Result<ExitCode> {
    let (pool, new) = (&arguments.pool, &arguments.device);
    if stripe.is_some() {
        return Err(Failure::Usage(format!(
            "{}: its stripes stay as they are; leave --stripe out",
            pool.display()
        )));
    }
    let copies = Volume::open(pool, Access::ReadOnly)?.copies()?;
    match copies.iter().find(|copy| is_at(copy, new)) {
        None => join(pool, (new, arguments.size, arguments.force), None)?,
        Some(copy) if copy.state.is_stored_to() => {}
        Some(_) => {
            return Err(Failure::Usage(format!(
                "{}: is a device of this pool; see nacre device rebuild and replace",
                new.display()
            )));
        }
    }
    go_on(pool, false)
}

/// A disk comes to the pool, which nobody uses at the moment.
pub fn join(pool: &Path, new: (&Path, Option<u64>, bool), instead: Option<Uuid>) -> Result<()> {
    // What a crash has left is repaired as long as all know how large the pool is.
    Attached::open_to_rebuild(pool)?.detach()?;
    at_home(pool, |_| {
        Volume::join_disk(pool, new, instead)?;
        Ok(())
    })
}

/// Disks that lack what all hold get it; then one goes for which another one has come.
pub fn go_on(pool: &Path, json: bool) -> Result<ExitCode> {
    let attached = Attached::open_to_rebuild(pool)?;
    let done = begin(pool, &attached.fs);
    let detached = attached.detach();
    let (rebuilt, leaves) = done?;
    detached?;
    let Some((leaver, mut report)) = leaves else {
        return rebuilt.tell(pool, json);
    };
    finish(pool, &leaver, &mut report)?;
    let rebuilt = rebuilt.and_left(report);
    rebuilt.tell(pool, json)
}

type Begun = (Rebuilt, Option<(Leaver, Report)>);

fn begin(pool: &Path, fs: &Fs) -> Result<Begun> {
    let (rebuilt, store) = (rebuilt(pool, fs)?, fs.store());
    let Some((disk, units)) = store.volume().replaced() else {
        return Ok((rebuilt, None));
    };
    let copies = store.volume().copies()?;
    let path = copies.into_iter().find(|copy| copy.uuid == disk);
    let path = path.map_or_else(PathBuf::new, |copy| copy.path);
    let report = drained(pool, (&path, &units), store)?;
    let leaver = Leaver { path, disk, units };
    Ok((rebuilt, Some((leaver, report))))
}

/// Alone: moves all the rest, and takes the disk out.
fn finish(pool: &Path, leaver: &Leaver, report: &mut Report) -> Result<()> {
    let volume = Volume::open(pool, Access::ReadWrite)?;
    report.used_by = users(&volume);
    if !report.used_by.is_empty() {
        return Ok(());
    }
    let stays = volume.copies()?.into_iter();
    let stays = stays.filter(|copy| copy.uuid != leaver.disk && copy.present);
    let stays: Vec<CopyInfo> = stays.collect();
    let Some(store) = attach_alone(pool, volume, report)? else {
        return Ok(());
    };
    let done = store.remove_own(pool, (leaver.disk, &leaver.units));
    let (moved, left) = done.map_err(|error| not_left(pool, error))?;
    report.moved_bytes += moved;
    report.lost_content_bytes = left.contents;
    (report.left_content_bytes, report.left_metadata_bytes) = (0, 0);
    (report.removed, report.files_in_use) = (true, 0);
    // Counts what is free, so that the next one need not.
    match stays.first() {
        Some(stays) => Attached::open_to_rebuild(&stays.path)?.detach(),
        None => Ok(()),
    }
}

/// `nacre device remove`.
pub fn remove(pool: &Path, named: &Path) -> Result<Report> {
    if let Some(device) = Volume::forget_removed(pool, named)? {
        return Ok(gone(device));
    }
    let attached = Attached::open_to_rebuild(pool)?;
    let begun = begin_to_leave(pool, named, attached.fs.store());
    let detached = attached.detach();
    let (leaver, mut report) = begun?;
    detached?;
    finish(pool, &leaver, &mut report)?;
    Ok(report)
}

fn gone(device: PathBuf) -> Report {
    Report {
        device,
        removed: true,
        ..Report::default()
    }
}

fn begin_to_leave(pool: &Path, named: &Path, store: &Store) -> Result<(Leaver, Report)> {
    let volume = store.volume();
    let copies = volume.copies()?;
    let Some(copy) = find(&copies, named) else {
        return Err(Failure::Refused(format!(
            "{}: is no device of this pool; see `nacre device list {}`",
            named.display(),
            pool.display()
        )));
    };
    let leaver = Leaver {
        path: copy.path.clone(),
        disk: copy.uuid,
        units: volume.own_units(copy.uuid),
    };
    let mut others = copies.iter().filter(|it| it.uuid != copy.uuid);
    if !others.any(|it| it.state == LegState::Current) {
        return Err(Failure::Refused(format!(
            "{}: no other device has what all hold; see nacre device rebuild",
            pool.display()
        )));
    }
    if !copy.state.is_stored_to() {
        let report = Report {
            device: leaver.path.clone(),
            ..Report::default()
        };
        return Ok((leaver, report));
    }
    refuse_without_room(&leaver.path, store, &leaver.units)?;
    let report = drained(pool, (&leaver.path, &leaver.units), store)?;
    Ok((leaver, report))
}
