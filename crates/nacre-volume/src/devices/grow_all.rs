//! Pools each of whose devices holds all of them become larger: those with copies (D81), and those
//! on one disk, whose journal moves, too.

use std::path::Path;
use std::sync::Arc;

use nacre_media::{Access, Device, LegState, MIRROR_MOST_BYTES, SEALS_AT};

use crate::create::usable_size;
use crate::error::{HOLDS_A_PART, VolumeError};
use crate::label::{self, LabelInfo};
use crate::layout::{DATA_START, REBUILT_AT, data_len, device_for, second_copy};
use crate::members::labels::write_as;
use crate::members::{Member, Members};
use crate::volume::Volume;

impl Volume {
    /// Makes the volume of a pool with copies as large as all of its devices have room for. Those
    /// that are files get so many bytes first. Answers how many bytes the volume has.
    ///
    /// Nobody may have the pool open meanwhile, and there is no image of it; the caller sees to
    /// that. A crash leaves the pool as it was or grown.
    pub fn grow_copies(member: &Path, size: Option<u64>) -> Result<u64, VolumeError> {
        let found = Members::find(&[member], Access::ReadWrite)?;
        refuse_unless_whole(&found, member)?;
        grow_all(found, member, size)
    }
}

/// Makes all devices larger, each of which holds the whole pool.
pub(crate) fn grow_all(
    mut found: Members,
    pool: &Path,
    size: Option<u64>,
) -> Result<u64, VolumeError> {
    if let Some(size) = size {
        refuse_smaller(&found, size)?;
        for member in &mut found.members {
            resize(member, size)?;
        }
    }
    let next = grown(&found, pool)?;
    for member in &found.members {
        label::wipe(&member.device, SEALS_AT..REBUILT_AT)?;
    }
    if next.journal > 0 {
        make_journals(&found, &next)?;
    }
    for member in &found.members {
        write_as(&next, member.uuid(), &member.device)?;
    }
    found.members.iter().try_for_each(forget_old_label)?;
    Ok(next.volume_len())
}

fn refused(pool: &Path, why: &'static str) -> VolumeError {
    VolumeError::Copies {
        path: pool.to_owned(),
        why,
    }
}

fn refuse_unless_whole(found: &Members, pool: &Path) -> Result<(), VolumeError> {
    let table = &found.table;
    if !table.has_copies() {
        return Err(refused(
            pool,
            "is a pool without copies; name a device to add",
        ));
    }
    if table.common > 0 {
        return Err(refused(pool, HOLDS_A_PART));
    }
    let mut copies = table.copies();
    let is_whole = copies.all(|(_, it)| it.state == Some(LegState::Current));
    match is_whole && found.members.len() == table.copies().count() {
        true => Ok(()),
        false => Err(refused(
            pool,
            "needs all its copies to grow, and each current; see nacre device list",
        )),
    }
}

fn refuse_smaller(found: &Members, size: u64) -> Result<(), VolumeError> {
    let is_larger = |member: &&Member| member.device.is_file() && member.device.len() > size;
    match found.members.iter().find(is_larger) {
        None => Ok(()),
        Some(member) => Err(not_larger(&member.device, size)),
    }
}

pub(crate) fn not_larger(device: &Device, wanted: u64) -> VolumeError {
    VolumeError::NotLarger {
        path: device.path().to_owned(),
        actual: device.len(),
        wanted,
    }
}

/// Nobody else knows the device.
pub(crate) fn resize(member: &mut Member, size: u64) -> Result<(), VolumeError> {
    let device = Arc::get_mut(&mut member.device);
    if let Some(device) = device.filter(|it| it.is_file() && it.len() < size) {
        device.resize(size)?;
    }
    Ok(())
}

/// The labels of the larger pool.
fn grown(found: &Members, pool: &Path) -> Result<LabelInfo, VolumeError> {
    let table = &found.table;
    let (before, journal) = (table.volume_len(), table.journal);
    let sizes = found.members.iter().map(|it| usable_size(&it.device));
    let room = sizes
        .min()
        .and_then(|size| data_len(size.checked_sub(journal)?));
    let data = room.unwrap_or(0);
    if journal == 0 && DATA_START + data > MIRROR_MOST_BYTES {
        return Err(VolumeError::TooLargeForCopies(MIRROR_MOST_BYTES));
    }
    // The journal moves behind the data: until then the old one counts.
    let least = before + journal.max(1);
    if data < least {
        let smallest = found.members.iter().min_by_key(|it| it.device.len());
        let device = smallest.map_or(pool, |it| it.device.path());
        return Err(VolumeError::NoRoomToGrow {
            path: device.to_owned(),
            size: smallest.map_or(0, |it| it.device.len()),
            least: device_for(least) + journal,
        });
    }
    let mut next = table.clone();
    next.sequence += 1;
    for (index, entry) in next.devices.iter_mut().enumerate() {
        let member = found.members.iter().find(|it| it.place == Some(index));
        let device = &member.unwrap_or(&found.members[0]).device;
        (entry.data, entry.size) = (data, usable_size(device));
    }
    Ok(next)
}

/// All that was in the journals is at home, and each device has an empty one behind what will be
/// its data; nothing is there yet.
fn make_journals(found: &Members, next: &LabelInfo) -> Result<(), VolumeError> {
    let disks = |table: &LabelInfo| {
        let mut parts = found.parts();
        for part in &mut parts {
            part.data = table.volume_len();
        }
        match table.has_copies() {
            true => Volume::assemble_disks(table, &parts, (found.trust, &[])),
            false => Volume::assemble(table.pool, table.arrangement(), &parts, &table.gone()),
        }
    };
    let (before, after) = (disks(&found.table)?, disks(next)?);
    if let (Some(before), Some(after)) = (&before.cache, &after.cache) {
        let emptied = before
            .open_journal(next.pool)
            .and_then(|mut it| it.checkpoint());
        emptied.map_err(|why| before.failed(why))?;
        after.format(next.pool)?;
    }
    Ok(())
}

/// What was the second copy of a label lies where data or the journal is now.
pub(crate) fn forget_old_label(Member { device, label, .. }: &Member) -> Result<(), VolumeError> {
    let old = second_copy(label.own().size);
    let moved = old != second_copy(usable_size(device));
    match old.filter(|_| moved) {
        Some(at) => label::wipe(device, at..at + crate::layout::LABEL_SIZE),
        None => Ok(()),
    }
}
