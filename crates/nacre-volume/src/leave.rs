//! Devices leave a pool (D70): first labels say so, then they are gone.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre_media::{Access, Device, LegState};
use nacre_types::{UNIT_SHIFT, VolumeOffset};
use rustix::fs::FlockOperation;

use crate::create::{Shared, write_labels};
use crate::error::{HOLDS_A_PART, VolumeError};
use crate::label::{self, LabelDevice, LabelInfo};
use crate::lock::lock_device;
use crate::member::{Member, Members};
use crate::segment::Role;
use crate::stay::{HeaderPlace, Stay};
use crate::volume::{Part, Segment, Volume};

/// The place of a device in the table: its path, as it is now or as it was seen last, or its
/// number.
fn find(found: &Members, named: &Path) -> Option<usize> {
    let number = named.to_str().and_then(|text| text.parse::<usize>().ok());
    let same = std::fs::canonicalize(named).ok();
    let is_named = |member: &&Member| {
        let real = member.device.real_path();
        member.device.path() == named || Some(&real) == same.as_ref()
    };
    let member = found.members.iter().find(is_named);
    let by_number = number.and_then(|number| found.members.get(number));
    member.or(by_number).and_then(|member| member.place)
}

impl Volume {
    /// The units of the device that leaves, if one does.
    pub fn leaving(&self) -> Option<Range<u64>> {
        self.closed.leaving.clone()
    }

    /// Units of which nobody may get any: nothing is there, or the pool's header.
    pub fn closed_units(&self) -> &[Range<u64>] {
        &self.closed.gone
    }

    /// Units of [`Volume::units`] that are there.
    pub fn present_units(&self) -> u64 {
        let closed = self.closed.gone.iter().map(|units| units.end - units.start);
        self.units().saturating_sub(closed.sum())
    }

    /// The number of a device, among [`Volume::devices`], that may leave the pool.
    pub fn may_leave(member: &Path, named: &Path) -> Result<usize, VolumeError> {
        let found = Members::find(&[member], Access::ReadWrite)?;
        let index = refuse_to_leave(&found, member, named)?;
        let number = found.members.iter().position(|it| it.place == Some(index));
        number.ok_or_else(|| refused(member, NOT_THERE))
    }

    /// From now on what the device named so holds is to move to the others; `false`: it was to
    /// already. Answers its path, too.
    pub fn begin_leaving(member: &Path, named: &Path) -> Result<(PathBuf, bool), VolumeError> {
        let found = Members::find(&[member], Access::ReadWrite)?;
        let index = refuse_to_leave(&found, member, named)?;
        let path = path_of(&found, index);
        let already = found.table.devices[index].stay == Stay::Leaves;
        if !already {
            set_stay(found, index, Stay::Leaves)?;
        }
        Ok((path, !already))
    }

    /// The device that was leaving stays, with what it holds. The caller is alone. `None`: none
    /// was.
    pub fn end_leaving(member: &Path) -> Result<Option<PathBuf>, VolumeError> {
        let found = Members::find(&[member], Access::ReadWrite)?;
        let leaves = |entry: &LabelDevice| entry.stay == Stay::Leaves;
        let Some(index) = found.table.devices.iter().position(leaves) else {
            return Ok(None);
        };
        let path = path_of(&found, index);
        set_stay(found, index, Stay::Stays)?;
        Ok(Some(path))
    }

    /// Whether the header must move before the device that leaves can go, and then the units among
    /// which it may come to lie.
    pub fn header_goes_to(&self) -> Option<Range<u64>> {
        let leaving = self.leaving()?;
        let is_there = match self.head.role {
            Role::Header(number) => {
                let host = self.segments().filter(|it| it.role.is_device()).nth(number);
                host.is_some_and(|host| host.start >> UNIT_SHIFT == leaving.start)
            }
            _ => leaving.start == 0,
        };
        let stays = |it: &&Segment| it.role == Role::Device(Stay::Stays);
        let host = self.segments().find(stays).filter(|_| is_there)?;
        Some(host.start >> UNIT_SHIFT..host.end >> UNIT_SHIFT)
    }

    /// Takes the device that leaves, and on which nothing is any more, out of the pool. The caller
    /// is alone, and has copied the header there if that was to move. A crash leaves the pool as it
    /// was or without the device.
    pub fn remove_leaving(
        member: &Path,
        header: Option<VolumeOffset>,
    ) -> Result<PathBuf, VolumeError> {
        let found = Members::find(&[member], Access::ReadWrite)?;
        let leaves = |entry: &LabelDevice| entry.stay == Stay::Leaves;
        let index = found.table.devices.iter().position(leaves);
        let index = index.ok_or(VolumeError::NoDevices)?;
        let mut table = found.table.clone();
        table.devices[index].stay = Stay::Gone;
        table.devices[index].path = PathBuf::new();
        if let Some(at) = header {
            table.header = Some(place_in(&table, at).ok_or(VolumeError::NoDevices)?);
        }
        let (leaving, staying): (Vec<Part>, Vec<Part>) = found
            .parts()
            .into_iter()
            .partition(|part| part.stay == Stay::Leaves);
        write_next(&table, &staying)?;
        let device = &leaving[0].device;
        label::erase(device, table.devices[index].size)?;
        Ok(device.path().to_owned())
    }

    /// Erases the label of a device that was removed from the pool of `member`, if a crash has left
    /// it. `None`: it is no such device.
    pub fn forget_removed(member: &Path, named: &Path) -> Result<Option<PathBuf>, VolumeError> {
        let Ok(device) = Device::open(named, Access::ReadWrite).map(Arc::new) else {
            return Ok(None);
        };
        let Ok(old) = label::read(&device) else {
            return Ok(None);
        };
        let found = match Members::find(&[member], Access::ReadWrite) {
            Err(VolumeError::NotAMember { .. }) => return Ok(None),
            found => found?,
        };
        let (uuid, table) = (old.own().uuid, &found.table);
        let entry = table.devices.iter().find(|entry| entry.uuid == uuid);
        let is_gone = entry.is_none_or(|entry| entry.stay == Stay::Gone);
        if old.pool != table.pool || !is_gone || old.sequence >= table.sequence {
            return Ok(None);
        }
        label::erase(&device, old.own().size)?;
        Ok(Some(named.to_owned()))
    }

    /// Takes one of several copies out of the pool. The caller is alone.
    pub fn remove_copy(member: &Path, named: &Path) -> Result<PathBuf, VolumeError> {
        let found = Members::find(&[member], Access::ReadWrite)?;
        let index = find_copy(&found, named).ok_or_else(|| refused(member, NOT_THERE))?;
        if found.table.common > 0 {
            return Err(refused(member, HOLDS_A_PART));
        }
        let mut table = found.table.clone();
        let entry = table.devices.remove(index);
        let is_current = |it: &LabelDevice| it.state == Some(LegState::Current);
        if !table.devices.iter().any(is_current) {
            return Err(refused(
                member,
                "no other copy is current; rebuild one first (`nacre device rebuild`)",
            ));
        }
        table.vacate(entry.uuid);
        table.sequence += 1;
        let is_there = |it: &&Member| it.place != Some(index);
        for member in found.members.iter().filter(is_there) {
            let entry = table.devices.iter().find(|it| it.uuid == member.uuid());
            if entry.is_some_and(|it| it.state.is_some_and(LegState::is_stored_to)) {
                crate::labels::write_as(&table, member.uuid(), &member.device)?;
            }
        }
        let removed = found.members.iter().find(|it| it.place == Some(index));
        if let Some(removed) = removed {
            label::erase(&removed.device, entry.size)?;
        }
        Ok(removed.map_or(entry.path, |it| it.device.path().to_owned()))
    }
}

const NOT_THERE: &str = "has no such device; `nacre device list` names them";

/// As [`find`], of copies, which may be missing.
fn find_copy(found: &Members, named: &Path) -> Option<usize> {
    let absolute = std::path::absolute(named).ok();
    let number = named.to_str().and_then(|text| text.parse::<usize>().ok());
    let mut copies = found.table.copies();
    let by_path = copies.find(|(_, it)| Some(&it.path) == absolute.as_ref());
    let by_path = by_path.map(|(index, _)| index);
    let is_one = |number: &usize| found.table.copies().any(|(index, _)| index == *number);
    let by_number = number.filter(is_one);
    let there = number.is_none().then(|| find(found, named)).flatten();
    there.or(by_path).or(by_number)
}

fn refused(path: &Path, why: &'static str) -> VolumeError {
    VolumeError::CannotLeave {
        path: path.to_owned(),
        why,
    }
}

/// The place of a volume offset as the label tells it.
fn place_in(table: &LabelInfo, at: VolumeOffset) -> Option<HeaderPlace> {
    let mut start = 0;
    for (device, entry) in table.devices.iter().enumerate() {
        if at.0 < start + entry.data {
            let at = at.0 - start;
            return Some(HeaderPlace { device, at });
        }
        start += entry.data;
    }
    None
}

fn path_of(found: &Members, index: usize) -> PathBuf {
    let member = found.members.iter().find(|it| it.place == Some(index));
    member.map_or_else(PathBuf::new, |member| member.device.path().to_owned())
}

/// The place of the device that is named, if it can leave.
fn refuse_to_leave(found: &Members, pool: &Path, named: &Path) -> Result<usize, VolumeError> {
    let table = &found.table;
    let index = find(found, named).ok_or_else(|| refused(pool, NOT_THERE))?;
    let why = match () {
        _ if table.is_parts() => {
            "devices behind an image in memory cannot leave yet; make another pool and copy (`nacre cp -r`)"
        }
        _ if table.common > 0 => HOLDS_A_PART,
        _ if table.behind > 0 => "has a disk behind it; make another pool and copy (`nacre cp -r`)",
        _ if found.members.len() < 2 => {
            "it is the pool's only device; `nacre delete` deletes the pool"
        }
        _ if table
            .devices
            .iter()
            .enumerate()
            .any(|(other, it)| other != index && it.stay == Stay::Leaves) =>
        {
            "another device is leaving; let it, or call that off (`nacre device remove --cancel`)"
        }
        _ => return Ok(index),
    };
    Err(refused(pool, why))
}

/// Writes all labels, with another word on one device.
fn set_stay(found: Members, index: usize, stay: Stay) -> Result<(), VolumeError> {
    let first = &found.members[0].device;
    let _lock = lock_device(first, FlockOperation::LockExclusive)?;
    let mut parts = found.parts();
    for (part, member) in parts.iter_mut().zip(&found.members) {
        if member.place == Some(index) {
            part.stay = stay;
        }
    }
    write_next(&found.table, &parts)
}

/// Writes the labels that come after those of a table.
fn write_next(table: &LabelInfo, parts: &[Part]) -> Result<(), VolumeError> {
    let shared = Shared {
        pool: table.pool,
        sequence: table.sequence + 1,
        emulates: &table.emulates,
        arrangement: table.arrangement(),
        common: table.common,
        gone: &table.gone(),
    };
    write_labels(shared, parts)
}
