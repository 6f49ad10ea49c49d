//! Disks that hold a part together come and go (D95).
//!
//! One that comes gets addresses behind all others, and one that goes leaves a hole. So all that is
//! named keeps its address, and what was only on a disk that is lost goes on to fail. Addresses
//! change while nobody uses the pool.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre_media::{Access, Device, LegState, Spans};
use nacre_types::{BLOCK_SIZE, Uuid};

use crate::create::{Caching, fit, leave_whole, table_entry, usable_size};
use crate::disk::{Leg, Own};
use crate::error::VolumeError;
use crate::kinds::disk_copies::forget_all;
use crate::kinds::memory_copies::take_copy;
use crate::label::seats::Comes;
use crate::label::{self, LabelDevice, LabelInfo};
use crate::layout::{DATA_START, data_len};
use crate::members::Members;
use crate::members::labels::write_as;
use crate::volume::segment::units_of;
use crate::volume::{Part, Volume};

impl Volume {
    /// The disk for which another one has come, where each holds a part alone: by its identity, and
    /// its units, which are to move to others.
    pub fn replaced(&self) -> Option<(Uuid, Range<u64>)> {
        let (old, part) = self.legs()?.own()?.replaced()?;
        Some((old, units_of(&part)))
    }

    pub(crate) fn replaced_units(&self) -> Option<Range<u64>> {
        self.replaced().map(|(_, units)| units)
    }

    /// The units that a disk alone holds.
    pub fn own_units(&self, disk: Uuid) -> Range<u64> {
        let index = self.legs().and_then(|legs| legs.index_of(disk));
        let own = self.legs().and_then(|legs| legs.own());
        let part = own.and_then(|own| own.parts().get(index?));
        part.map_or(0..0, units_of)
    }

    /// Takes a disk into a pool whose disks hold a part together: as one more, or `instead` of one.
    /// One that is lost goes at once, with what it alone held; one that is there goes by
    /// [`Volume::let_disk_leave`]. A file that does not exist gets `size` bytes, or as many as the
    /// other one. It gets what all hold by [`Volume::rebuild_copies`].
    ///
    /// Nobody may have the pool open meanwhile, and there is no image of it; the caller sees to
    /// that. A crash leaves the pool as it was or with the new disk.
    pub fn join_disk(
        member: &Path,
        new: (&Path, Option<u64>, bool),
        instead: Option<Uuid>,
    ) -> Result<Uuid, VolumeError> {
        let found = Members::find(&[member], Access::ReadWrite)?;
        let table = &found.table;
        let comes = comes(member, table, instead)?;
        let (taken, part) = take_part(&found, new, instead)?;
        let mut next = table.clone();
        let seated = next.seat(table_entry(&part), comes);
        seated.map_err(|why| refused(member, why))?;
        make_empty(table, &part)?;
        // Until its label is there the pool is as before.
        next.sequence += 1;
        write_as(&next, part.uuid, &part.device)?;
        write_all(&found, &next)?;
        taken.keep();
        Ok(part.uuid)
    }

    /// Takes a disk out of a pool whose disks hold a part together. What it alone holds, and files
    /// still name, is lost. The caller is alone, and there is no image. A crash leaves the pool as
    /// it was or without the disk. Answers where it is.
    pub fn let_disk_leave(member: &Path, left: Uuid) -> Result<PathBuf, VolumeError> {
        let found = Members::find(&[member], Access::ReadWrite)?;
        let table = &found.table;
        let entry = table.copies().find(|(_, entry)| entry.uuid == left);
        let (index, entry) = entry.ok_or_else(|| refused(member, "has no such device"))?;
        let is_other = |it: &LabelDevice| it.uuid != left && it.state == Some(LegState::Current);
        if !table.devices.iter().any(is_other) {
            return Err(refused(member, NO_OTHER));
        }
        let mut next = table.clone();
        next.vacate(left);
        next.sequence += 1;
        write_all(&found, &next)?;
        let device = found.members.iter().find(|it| it.place == Some(index));
        let Some(device) = device.map(|member| &member.device) else {
            return Ok(entry.path.clone());
        };
        label::erase(device, entry.size)?;
        Ok(device.path().to_owned())
    }
}

const NO_OTHER: &str =
    "no other disk has what all hold; rebuild one first (`nacre device rebuild`)";

fn refused(pool: &Path, why: &'static str) -> VolumeError {
    VolumeError::Copies {
        path: pool.to_owned(),
        why,
    }
}

/// What a disk comes for.
fn comes(pool: &Path, table: &LabelInfo, instead: Option<Uuid>) -> Result<Comes, VolumeError> {
    if table.common == 0 {
        return Err(refused(
            pool,
            "is a pool whose devices hold the same, or nothing together",
        ));
    }
    let Some(old) = instead else {
        return Ok(Comes::Further);
    };
    let known = table.copies().find(|(_, entry)| entry.uuid == old);
    let (_, entry) = known.ok_or_else(|| refused(pool, "has no such device"))?;
    if table.devices.iter().any(|entry| entry.replaces.is_some()) {
        return Err(refused(
            pool,
            "a device is being replaced already; nacre device rebuild goes on",
        ));
    }
    Ok(match entry.state.is_some_and(LegState::is_stored_to) {
        true => Comes::For(old),
        false => Comes::InPlaceOf(old),
    })
}

/// Takes possession of a disk, which lacks everything.
fn take_part(
    found: &Members,
    (new, size, force): (&Path, Option<u64>, bool),
    instead: Option<Uuid>,
) -> Result<(crate::create::Taken, Part), VolumeError> {
    let table = &found.table;
    let least = table.common + table.journal + BLOCK_SIZE;
    let like = table
        .copies()
        .find(|(_, entry)| Some(entry.uuid) == instead);
    let like = like
        .or_else(|| table.copies().last())
        .map(|(_, entry)| entry.size);
    let size = size.or_else(|| len_of(new)).or(like);
    let (taken, mut part) = take_copy((new, size, force), least, (table, found.devices()))?;
    refuse_unlike(found, &part.device)?;
    let room = data_len(usable_size(&part.device) - table.journal).unwrap_or(0);
    part.data = room.saturating_sub(table.common);
    (part.journal, part.beside) = (table.journal, table.beside);
    part.sums = table.sums;
    part.state = Some(LegState::Rebuilding);
    leave_whole(&mut part, None);
    Ok((taken, part))
}

/// Bytes of a file that is there.
fn len_of(new: &Path) -> Option<u64> {
    let found = std::fs::metadata(new).ok()?;
    Some(found.len()).filter(|len| found.is_file() && *len > 0)
}

/// What one alone holds is as lasting as that one.
fn refuse_unlike(found: &Members, new: &Arc<Device>) -> Result<(), VolumeError> {
    let kinds = [label::kind(&found.members[0].device)?, label::kind(new)?];
    match fit(&kinds, Caching::Always) {
        true => Ok(()),
        false => Err(VolumeError::Journaled(new.path().to_owned())),
    }
}

/// Nothing that a disk held before counts, durably.
fn make_empty(table: &LabelInfo, part: &Part) -> Result<(), VolumeError> {
    let spans = Spans::new(table.pool.0, DATA_START..DATA_START + table.common_len());
    let start = Own::of(table).map_or(DATA_START, |own| own.common_end());
    let leg = Leg::new(part.uuid, &part.device, true);
    let done = forget_all(&leg, &spans, start..start + table.journal);
    done.map_err(|why| VolumeError::Journal {
        path: part.device.path().to_owned(),
        why: why.into(),
    })
}

/// The disk for which another one has come stays, and that one is one more. Answers where it is.
pub(crate) fn end_replacing(found: &Members) -> Result<Option<PathBuf>, VolumeError> {
    let mut next = found.table.clone();
    let mut entries = next.devices.iter_mut();
    let old = entries.find_map(|entry| entry.replaces.take());
    let old = found
        .table
        .copies()
        .find(|(_, entry)| Some(entry.uuid) == old);
    let Some((_, entry)) = old else {
        return Ok(None);
    };
    next.sequence += 1;
    write_all(found, &next)?;
    Ok(Some(entry.path.clone()))
}

/// Writes the labels of a table to all disks that are part of it; the first one decides.
fn write_all(found: &Members, next: &LabelInfo) -> Result<(), VolumeError> {
    for member in &found.members {
        let entry = next.devices.iter().find(|it| it.uuid == member.uuid());
        if entry.is_some_and(|it| it.state.is_some_and(LegState::is_stored_to)) {
            write_as(next, member.uuid(), &member.device)?;
        }
    }
    Ok(())
}
