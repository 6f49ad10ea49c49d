//! Devices leave a pool (D70): first labels say so, then they are gone.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre_media::{Access, Device, LegState};
use nacre_types::{UNIT_SHIFT, UNITS_PER_BLOCK, VolumeOffset};

use crate::create::{Shared, write_labels};
use crate::devices::join::end_replacing;
use crate::error::{HOLDS_A_PART, VolumeError};
use crate::label::stay::{OnDevice, Stay};
use crate::label::{self, LabelDevice, LabelInfo};
use crate::members::{Member, Members};
use crate::volume::segment::Role;
use crate::volume::{Part, Volume};

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

/// Where the others have room for what was on a device besides data, if that was to move.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Room {
    /// The pool's header, of which a copy lies there.
    pub header: Option<VolumeOffset>,
    /// The journal: nothing of use lies there.
    pub journal: Option<VolumeOffset>,
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

    /// Units that left with their disks, though files may name some of them (D95).
    pub fn holes(&self) -> &[Range<u64>] {
        &self.closed.holes
    }

    /// Units of devices that are there no more, or not for long: nobody is to get any.
    pub fn closing_units(&self) -> Vec<Range<u64>> {
        let lost = self.lost_units().into_iter();
        let leaving = self.leaving().into_iter().chain(self.replaced_units());
        lost.chain(leaving).collect()
    }

    /// Units of [`Volume::units`] that are there.
    pub fn present_units(&self) -> u64 {
        let closed = self.closed.gone.iter().chain(&self.closed.holes);
        let closed = closed.map(|units| units.end - units.start);
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
        let (found, _lock) = Members::find_locked(member)?;
        let index = refuse_to_leave(&found, member, named)?;
        let path = path_of(&found, index);
        let already = found.table.devices[index].stay == Stay::Leaves;
        if !already {
            set_stay(&found, index, Stay::Leaves)?;
        }
        Ok((path, !already))
    }

    /// The device that was leaving stays, with what it holds. The caller is alone. `None`: none
    /// was.
    pub fn end_leaving(member: &Path) -> Result<Option<PathBuf>, VolumeError> {
        let (found, _lock) = Members::find_locked(member)?;
        if found.table.common > 0 {
            return end_replacing(&found);
        }
        let leaves = |entry: &LabelDevice| entry.stay == Stay::Leaves;
        let Some(index) = found.table.devices.iter().position(leaves) else {
            return Ok(None);
        };
        let path = path_of(&found, index);
        set_stay(&found, index, Stay::Stays)?;
        Ok(Some(path))
    }

    /// Whether the header must move before the device that leaves can go, and then the units among
    /// which it may come to lie.
    pub fn header_goes_to(&self) -> Option<Range<u64>> {
        let leaving = self.leaving()?;
        let host = match (self.parts_on_disks(), self.head.role) {
            (Some(parts), _) => parts.hosts()?.0.range.start,
            (None, Role::Header(number)) => self.real_segments().nth(number)?.start,
            (None, _) => 0,
        };
        let is_there = host >> UNIT_SHIFT == leaving.start;
        self.others().next().filter(|_| is_there)
    }

    /// How many units the journal takes elsewhere once the device of these units has left; 0: none,
    /// or it is not there.
    pub fn journal_on(&self, device: &Range<u64>) -> u64 {
        let hosts = self.parts_on_disks().and_then(|parts| parts.hosts());
        let is_there = hosts.is_some_and(|(_, it)| it.range.start >> UNIT_SHIFT == device.start);
        let len = self.cache.as_ref().filter(|_| is_there).map(|it| it.len);
        len.map_or(0, |len| len >> UNIT_SHIFT)
    }

    /// Units that suffice for a journal of so many, on a device that does not leave.
    pub fn room_for_journal(&self, units: u64) -> Option<Range<u64>> {
        let to = self.others().max_by_key(|to| to.end - to.start)?;
        let last = to.end.checked_sub(units).filter(|last| *last >= to.start)?;
        let starts = (to.start..=last).rev().step_by(UNITS_PER_BLOCK as usize);
        let mut places = starts.map(|start| start..start + units);
        let is_free = |place: &Range<u64>| {
            let mut closed = self.closed.gone.iter();
            closed.all(|it| it.end <= place.start || place.end <= it.start)
        };
        places.find(is_free)
    }

    /// Units of each device that does not leave.
    fn others(&self) -> impl Iterator<Item = Range<u64>> {
        let devices = self.devices().into_iter();
        let stays = devices.filter(|device| !device.is_leaving);
        stays.map(|device| device.range.start.unit().0..device.range.end.unit().0)
    }

    /// Takes the device that leaves, and on which nothing is any more, out of the pool. The caller
    /// is alone, and has made `room` for what was on it besides. All of the pool is at home, and
    /// there is no image. A crash leaves the pool as it was or without the device.
    pub fn remove_leaving(member: &Path, room: Room) -> Result<PathBuf, VolumeError> {
        let (found, _lock) = Members::find_locked(member)?;
        let leaves = |entry: &LabelDevice| entry.stay == Stay::Leaves;
        let index = found.table.devices.iter().position(leaves);
        let index = index.ok_or(VolumeError::NoDevices)?;
        let mut table = found.table.clone();
        table.devices[index].stay = Stay::Gone;
        table.devices[index].path = PathBuf::new();
        let place = |at| place_in(&table, at).ok_or(VolumeError::NoDevices);
        let header = room.header.map(place).transpose()?;
        let journal = room.journal.map(place).transpose()?;
        table.header = header.or(table.header);
        table.journal_at = journal.or(table.journal_at);
        let (leaving, staying): (Vec<Part>, Vec<Part>) = found
            .parts()
            .into_iter()
            .partition(|part| part.stay == Stay::Leaves);
        if journal.is_some() {
            Self::make_journal(table.pool, &staying, &table.gone())?;
        }
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
        let (found, _lock) = match Members::find_locked(member) {
            Err(VolumeError::NotAMember { .. }) => return Ok(None),
            found => found?,
        };
        let (uuid, table) = (old.own().uuid, &found.table);
        let entry = table.devices.iter().find(|entry| entry.uuid == uuid);
        let is_gone = entry.is_none_or(|entry| entry.stay == Stay::Gone);
        if old.pool != table.pool || !is_gone || old.sequence >= table.sequence {
            return Ok(None);
        }
        // A label that still names it would lead to nothing: the pool could not be opened by it.
        if !table.has_copies() {
            write_next(table, &found.parts())?;
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
                crate::members::labels::write_as(&table, member.uuid(), &member.device)?;
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
fn place_in(table: &LabelInfo, at: VolumeOffset) -> Option<OnDevice> {
    let mut start = 0;
    for (device, entry) in table.devices.iter().enumerate() {
        if at.0 < start + entry.data {
            let at = at.0 - start;
            return Some(OnDevice { device, at });
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
        _ if table.common > 0 => HOLDS_A_PART,
        _ if found.members.len() < 2 => {
            "it is the pool's only device; `nacre delete` deletes the pool"
        }
        _ if is_front_alone(found, index) => {
            "it is the only device in front of what is cold; that may leave first"
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

/// Whether nothing else stands in front of the devices behind.
fn is_front_alone(found: &Members, index: usize) -> bool {
    let places = found.members.iter().filter_map(|member| member.place);
    let mut front = places.filter(|place| !found.table.is_behind(*place));
    front.next() == Some(index) && front.next().is_none()
}

/// Writes all labels, with another word on one device.
fn set_stay(found: &Members, index: usize, stay: Stay) -> Result<(), VolumeError> {
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
