//! A pool without copies becomes larger: by a device that is added, or as its last one has.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre_media::{Access, Device, Policy};

use crate::create::{
    Caching, CreateOptions, DeviceSpec, Shared, Taken, fit, leave_whole, refuse_disks, usable_size,
    write_labels,
};
use crate::devices::grow_all::{forget_old_label, grow_all, not_larger, resize};
use crate::error::VolumeError;
use crate::label::placement::{Arrangement, Stripe};
use crate::label::stay::Stay;
use crate::label::{self, LabelInfo};
use crate::layout::{MAX_DEVICES, data_len};
use crate::members::{Member, Members};
use crate::volume::{Part, Volume};

impl Members {
    /// What a new device of which nothing is known is taken to be like: its neighbours, as far as
    /// they were not measured.
    fn inherited(&self) -> Policy {
        let last = self.members.last();
        let policy = last.map(|member| member.label.granularity.policy);
        policy
            .filter(|policy| *policy != Policy::Calibrated)
            .unwrap_or_default()
    }
}

/// How a pool spreads data once it has one device more.
fn stripe_of(devices: usize, before: Stripe) -> Stripe {
    match devices {
        1 => Stripe::USUAL,
        _ => before,
    }
}

/// How data is arranged once a device, the last of all, is there in front.
fn with_front(found: &Members, wanted: Option<Stripe>) -> Arrangement {
    let before = found.table.stripe;
    let stripe = wanted.unwrap_or_else(|| stripe_of(found.members.len(), before));
    Arrangement { stripe, behind: 0 }
}

/// How data is arranged once a device, the last of all, is there behind the others.
fn with_behind(found: &Members) -> Result<Arrangement, VolumeError> {
    let table = &found.table;
    if table.journal > 0 {
        return Err(VolumeError::Behind {
            path: found.members[0].device.path().into(),
            why: "is written through memory (mode cached); what has a disk behind it must be memory, in mode direct or atomic",
        });
    }
    let front: Vec<Part> = found.parts();
    let count = found.members.iter().filter_map(|member| member.place);
    let count = count.filter(|place| !table.is_behind(*place)).count();
    refuse_disks(&front[..count])?;
    Ok(Arrangement {
        behind: table.behind + 1,
        ..table.arrangement()
    })
}

/// Where a device goes that is added: behind the others if that is asked for, and a disk where
/// others are behind.
fn arranged(
    found: &Members,
    new: &Part,
    options: CreateOptions,
) -> Result<Arrangement, VolumeError> {
    let has_behind = found.table.has_behind();
    if options.behind > 0 || has_behind && label::is_on_disk(&new.device)? {
        return with_behind(found);
    }
    match has_behind {
        true => Err(VolumeError::Behind {
            path: new.device.path().into(),
            why: "is memory, and memory cannot be added to a pool with a disk behind it yet; with --behind it holds what is cold",
        }),
        false => Ok(with_front(found, options.stripe)),
    }
}

/// Gives a device that is added what the others of a pool behind an image have.
fn join(parts: &mut [Part], options: CreateOptions) -> Result<(), VolumeError> {
    let Some((new, old)) = parts.split_last_mut() else {
        return Ok(());
    };
    let first = old.first().ok_or(VolumeError::NoDevices)?;
    let kinds = [label::kind(&first.device)?, label::kind(&new.device)?];
    if !fit(&kinds, Caching::Always) {
        return Err(VolumeError::Journaled(new.device.path().into()));
    }
    (new.journal, new.beside) = (first.journal, first.beside);
    (new.cache, new.saved_every) = (first.cache, first.saved_every);
    // Disks that hold each a part have none, and nobody keeps those right that there were.
    old.iter_mut().for_each(|part| part.sums = false);
    leave_whole(new, options.granularity);
    Ok(())
}

/// The next labels of a pool, but for what parts and arrangement say.
fn next<'a>(table: &'a LabelInfo, arrangement: Arrangement, gone: &'a label::Gone) -> Shared<'a> {
    Shared {
        pool: table.pool,
        sequence: table.sequence + 1,
        emulates: &table.emulates,
        arrangement,
        common: 0,
        gone,
    }
}

/// Whether a device is the last one of a pool that was about to get it: its label was written, and
/// those of the others were not.
fn is_half_in(table: &LabelInfo, added: &Path) -> bool {
    let Ok(device) = Device::open(added, Access::ReadOnly).map(Arc::new) else {
        return false;
    };
    let newer = |it: LabelInfo| it.pool == table.pool && it.sequence > table.sequence;
    label::read(&device).is_ok_and(newer)
}

impl Volume {
    /// Adds a device behind the end of the volume of the pool that `members` belong to, and opens
    /// the larger volume.
    ///
    /// Nobody may have the pool open meanwhile, and there is no image of it; the caller sees to
    /// that. A crash leaves the pool as it was or grown; called again, it goes on.
    pub fn grow(
        members: &[&Path],
        added: &DeviceSpec,
        options: CreateOptions,
    ) -> Result<Self, VolumeError> {
        let found = Members::find(members, Access::ReadWrite)?;
        let table = &found.table;
        if table.has_copies() {
            return Err(VolumeError::Copies {
                path: found.members[0].device.path().into(),
                why: "grows by its own devices, all of them: name none (`nacre grow --size`), or add a copy (`nacre device add`)",
            });
        }
        if is_half_in(table, &added.path) {
            return Self::go_on_growing(&added.path);
        }
        let count = table.devices.len() + 1;
        if count > MAX_DEVICES {
            return Err(VolumeError::TooManyDevices(count));
        }
        let mut taken = Taken::sharing(0, 1).beside(found.devices());
        taken.take(added, options.force)?;
        let mut parts = found.parts();
        parts.append(&mut taken.parts(options.granularity)?);
        let new = parts.last_mut().ok_or(VolumeError::NoDevices)?;
        let arrangement = arranged(&found, new, options)?;
        let is_like_others = options.granularity.is_none() && arrangement.behind == 0;
        if is_like_others && new.granularity.policy == Policy::None {
            new.granularity.policy = found.inherited();
        }
        if table.journal > 0 {
            join(&mut parts, options)?;
        }
        let gone = table.gone();
        write_labels(next(table, arrangement, &gone), &parts)?;
        taken.keep();
        Self::assemble(table.pool, arrangement, &parts, &gone)
    }

    /// Writes the labels of a pool that was about to get a device, which alone has its label.
    fn go_on_growing(added: &Path) -> Result<Self, VolumeError> {
        let found = Members::find(&[added], Access::ReadWrite)?;
        let (table, parts, gone) = (&found.table, found.parts(), found.table.gone());
        write_labels(next(table, table.arrangement(), &gone), &parts)?;
        Self::assemble(table.pool, table.arrangement(), &parts, &gone)
    }

    /// Makes the volume of a pool without copies as large as its last device has room for. If that
    /// is a file it gets so many bytes first. Answers its path.
    ///
    /// Nobody may have the pool open meanwhile; the caller sees to that. A crash leaves the pool as
    /// it was or grown.
    pub fn grow_last(member: &Path, size: Option<u64>) -> Result<PathBuf, VolumeError> {
        let mut found = Members::find(&[member], Access::ReadWrite)?;
        refuse_to_grow(&found, member)?;
        if found.table.journal > 0 {
            return grow_all(found, member, size).map(|_bytes| member.to_owned());
        }
        let last = found.members.last_mut().ok_or(VolumeError::NoDevices)?;
        if let Some(size) = size {
            resize_last(last, size)?;
        }
        let mut parts = found.parts();
        let part = parts.last_mut().ok_or(VolumeError::NoDevices)?;
        (part.size, part.data) = larger(part)?;
        let (table, gone) = (&found.table, found.table.gone());
        write_labels(next(table, table.arrangement(), &gone), &parts)?;
        let last = found.members.last().ok_or(VolumeError::NoDevices)?;
        forget_old_label(last)?;
        Ok(last.device.path().to_owned())
    }
}

/// Behind the data of each device but the last the next one's begins. Of several disks the journal
/// lies there.
fn refuse_to_grow(found: &Members, pool: &Path) -> Result<(), VolumeError> {
    let table = &found.table;
    let why = match table.devices.last().map(|entry| entry.stay) {
        _ if table.has_copies() => "has copies, which grow together",
        _ if table.journal > 0 && table.devices.len() > 1 => {
            "is on several disks and written through memory (mode cached), so its journal lies behind its data; name a device to add"
        }
        Some(Stay::Stays) => return Ok(()),
        _ => "its last device is leaving or has left; name a device to add",
    };
    let path = pool.to_owned();
    Err(VolumeError::CannotGrow { path, why })
}

/// Only files get another size.
fn resize_last(last: &mut Member, size: u64) -> Result<(), VolumeError> {
    let (actual, is_file) = (last.device.len(), last.device.is_file());
    match actual < size && is_file || actual == size {
        true => resize(last, size),
        false => Err(not_larger(&last.device, size)),
    }
}

/// How many bytes a device has, and of data, if that is more than before.
fn larger(part: &Part) -> Result<(u64, u64), VolumeError> {
    let size = usable_size(&part.device);
    let data = data_len(size).filter(|data| *data > part.data);
    let data = data.ok_or_else(|| VolumeError::CannotGrow {
        path: part.device.path().to_owned(),
        why: "is the pool's last device, and has no room for 4 MiB more than before; make it larger first (a file: --size), or name a device to add",
    })?;
    Ok((size, data))
}
