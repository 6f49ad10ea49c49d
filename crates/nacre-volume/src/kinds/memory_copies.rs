//! Pools whose devices all hold the same (D57).

use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre_media::{
    Access, AddressRange, Device, DeviceIdentity, Finding, LegFacts, LegState, Media, MediaFailed,
    Mirror, MirrorCounts, NewLeg, RebuildProgress,
};
use nacre_runtime::Trust;
use nacre_types::{Uuid, VolumeOffset};

use crate::create::{DeviceSpec, Taken, table_entry};
use crate::error::VolumeError;
use crate::label::seats::Comes;
use crate::label::{self, LabelDevice, LabelInfo};
use crate::layout::DATA_START;
use crate::members::labels::{Labels, find_copy, newest_of, write_as, write_to_legs};
use crate::members::presence::{Presence, enter, is_held};
use crate::members::{Member, Members, trust_of};
use crate::scrub::{Difference, Judge, Usage, in_volume};
use crate::volume::{Part, Segment, Volume};

/// What is known of one copy of a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyInfo {
    /// Its place in the pool's table.
    pub index: usize,
    /// Identity of the device.
    pub uuid: Uuid,
    /// Where it is, or was last seen.
    pub path: PathBuf,
    /// Bytes of the device.
    pub size: u64,
    /// What it is to the others.
    pub state: LegState,
    /// Whether it was found.
    pub present: bool,
    /// The copy that goes once this one is current.
    pub replaces: Option<Uuid>,
}

/// What came of a rebuild.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rebuilt {
    /// Copies that are whole now and were not.
    pub whole: usize,
    /// Where the copy that was read did not hold what was sealed (D111). Without evidence: no copy
    /// does, and those that were rebuilt hold what the others hold.
    pub found: Vec<Difference>,
}

/// Takes possession of a device that is to have so much data; a file may be made for it. One that
/// died on its way into the pool, which has `others`, is no more than one that was never used.
pub(crate) fn take_copy(
    (new, size, force): (&Path, Option<u64>, bool),
    data: u64,
    (table, others): (&LabelInfo, Vec<Arc<Device>>),
) -> Result<(Taken, Part), VolumeError> {
    let size = size.or(Some(crate::layout::device_for(data)));
    let is_file = std::fs::metadata(new).map_or(true, |found| found.is_file());
    let spec = &DeviceSpec {
        path: new.to_owned(),
        size: size.filter(|_| is_file),
    };
    let mut taken = Taken::one(force, data).beside(others);
    taken.is_half_in = came_half(new, table);
    taken.take(spec, force)?;
    taken.resize()?;
    let part = taken.parts(None)?.pop().ok_or(VolumeError::NoDevices)?;
    if part.data < data {
        return Err(VolumeError::TooSmall {
            path: spec.path.clone(),
            size: part.device.len(),
            least: crate::layout::device_for(data),
        });
    }
    enter(&part.device, Presence::Member)?;
    Ok((taken, part))
}

/// Whether a device says itself that it lacks everything, and the pool never heard of it.
fn came_half(new: &Path, table: &LabelInfo) -> bool {
    let is_known = |uuid: Uuid| table.devices.iter().any(|entry| entry.uuid == uuid);
    let is_empty =
        |state: Option<LegState>| matches!(state, Some(LegState::Rebuilding | LegState::Failed));
    Volume::inspect(new).is_ok_and(|label| {
        let own = label.own();
        label.pool == table.pool && is_empty(own.state) && !is_known(own.uuid)
    })
}

impl Members {
    /// Whether somebody is present on any of the devices.
    pub fn in_use(&self) -> Result<bool, VolumeError> {
        for member in &self.members {
            if is_held(&member.device)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The state of a copy as it was found: one that is said to be current, and is not there, is
/// missing, though nobody has noticed yet.
fn state_seen(fact: Option<&LegFacts>, entry: &LabelDevice) -> LegState {
    let told = fact.map_or(entry.state.unwrap_or_default(), |fact| fact.state);
    match fact.is_some_and(|fact| fact.device.is_some()) {
        false if told.is_stored_to() => LegState::Missing,
        _ => told,
    }
}

impl Volume {
    /// As [`Volume::assemble_copies`], of a pool that was just made.
    pub(crate) fn of_new_copies(parts: &[Part]) -> Result<Self, VolumeError> {
        let first = parts.first().ok_or(VolumeError::NoDevices)?;
        let table = label::read(&first.device)?;
        let trust = trust_of(first.device.owner());
        Self::assemble_copies(&table, parts, (trust, &[]))
    }

    /// Maps the devices of a pool that hold the same, as far as they are there.
    pub(crate) fn assemble_copies(
        table: &LabelInfo,
        parts: &[Part],
        (trust, damaged): (Trust, &[Uuid]),
    ) -> Result<Self, VolumeError> {
        if table.journal > 0 {
            return Self::assemble_disks(table, parts, (trust, damaged));
        }
        let device_of = |uuid: Uuid| {
            let part = parts.iter().find(|part| part.uuid == uuid);
            part.map(|part| Arc::clone(&part.device))
        };
        let legs = table.copies().map(|(_, entry)| NewLeg {
            id: entry.uuid.0,
            state: entry.state.unwrap_or_default(),
            device: device_of(entry.uuid),
            is_damaged: damaged.contains(&entry.uuid),
        });
        let legs: Vec<NewLeg> = legs.collect();
        let data = table.devices[0].data;
        let first = parts.first().ok_or(VolumeError::NoDevices)?;
        let writable = first.device.access() == Access::ReadWrite;
        let window = DATA_START..DATA_START + data;
        let mirror = Mirror::new(table.pool.0, window, writable, &legs)?;
        let mirror = mirror.ok_or_else(|| VolumeError::NoCopyLeft(first.device.path().into()))?;
        mirror.set_registry(Arc::new(Labels::new(table, trust, Part::known(parts))));
        let media = Media::mirrored(mirror, AddressRange::reserve(data)?)?;
        let head = Segment {
            media,
            start: 0,
            end: data,
            device: first.uuid,
            granularity: first.granularity,
            role: crate::volume::segment::Role::Device(Default::default()),
        };
        let owner = first.device.owner();
        let home = DeviceIdentity::of_numbers(table.home);
        Self::of_copies(head, (table.pool, owner), home, Default::default())
    }

    /// The devices that hold the same and are stored to in order; `None` for a pool without copies,
    /// or with copies behind an image.
    pub fn mirror(&self) -> Option<&Mirror> {
        self.head.media.mirror()
    }

    /// Whether its devices hold the same.
    pub fn has_copies(&self) -> bool {
        self.mirror().is_some() || self.legs().is_some()
    }

    /// Whether processes must share a file before anything of the volume is used, and have it not.
    pub fn lacks_shared_file(&self) -> bool {
        match self.mirror() {
            Some(mirror) => !mirror.is_up(),
            None => self.is_cached() && !self.has_image(),
        }
    }

    /// Begins what processes share about copies in an empty file. The caller holds the pool's
    /// exclusive lock, or the file is its own, and calls [`Volume::recover_copies`] next.
    pub fn make_shared(&self, file: OwnedFd) -> Result<(), VolumeError> {
        let Some(mirror) = self.mirror() else {
            return Ok(());
        };
        let made = mirror.create_shared(file);
        made.map_err(|why| self.unusable(why))?;
        self.tell_missing(mirror)
    }

    /// Makes copies agree again after a crash: where they may differ, all get what the one holds
    /// that `judge` says is right, or else the one that is read. Copies go that could not while
    /// others used the pool.
    pub fn recover_copies(&self, judge: &mut Judge<'_>) {
        let mirror = self.mirror();
        if let Some(mirror) = mirror.filter(|_| self.access() == Access::ReadWrite) {
            mirror.recover(&mut |at, copies| judge(in_volume(at), copies));
            // One that stays is a copy as before.
            let _gone = self.let_all_go(true);
        }
    }

    /// Joins those who use the copies. `false`: nobody does, and the file is of no use.
    pub fn join_shared(&self, file: OwnedFd) -> Result<bool, VolumeError> {
        let Some(mirror) = self.mirror() else {
            return Ok(true);
        };
        let joined = mirror.join_shared(file).map_err(|why| self.unusable(why))?;
        if joined {
            self.tell_missing(mirror)?;
        }
        Ok(joined)
    }

    /// Labels name what is missing before anything is stored.
    pub(crate) fn tell_missing(&self, mirror: &Mirror) -> Result<(), VolumeError> {
        let failed = |MediaFailed| VolumeError::WriteFailed(self.path().to_owned());
        match self.access() {
            Access::ReadWrite => mirror.settle().map_err(failed),
            Access::ReadOnly => Ok(()),
        }
    }

    fn unusable(&self, why: std::io::Error) -> VolumeError {
        VolumeError::Image {
            path: self.path().to_owned(),
            why: why.to_string(),
        }
    }

    /// Makes copies agree and forgets where they might not: for the last one who leaves. Answers
    /// whether this one was the last.
    pub fn close_copies(&self) -> Result<bool, VolumeError> {
        let Some(mirror) = self.mirror() else {
            return Ok(false);
        };
        if !mirror.is_up() || self.access() == Access::ReadOnly || !mirror.is_last() {
            return Ok(false);
        }
        let failed = |MediaFailed| VolumeError::WriteFailed(self.path().to_owned());
        mirror.close().map_err(failed)?;
        // One that stays is a copy as before.
        let _gone = self.let_all_go(true);
        Ok(true)
    }

    /// Drops copies whose labels are not theirs any more: something else was written over them.
    /// Somebody should ask for it now and then, as nothing tells.
    pub fn check_copies(&self) -> Result<(), VolumeError> {
        if let Some(legs) = self.legs().filter(|_| self.has_image()) {
            return self.check_disks(legs);
        }
        let Some(mirror) = self.mirror().filter(|mirror| mirror.is_up()) else {
            return Ok(());
        };
        mirror.check_labels();
        self.tell_missing(mirror)?;
        self.forget_strangers(mirror)
    }

    /// Takes a device into a pool with copies.
    pub(crate) fn take_in(
        &self,
        new: (&Path, Option<u64>, bool),
        comes: Comes,
    ) -> Result<Uuid, VolumeError> {
        if let Some(legs) = self.legs() {
            return self.take_disk_in(legs, new, comes);
        }
        let (mirror, table) = self.newest_table()?;
        let data = table.devices[0].data;
        let (taken, mut part) = take_copy(new, data, (&table, self.all_devices()?))?;
        part.data = data;
        part.state = Some(LegState::Rebuilding);
        self.bring_in(mirror, (&part.device, &table_entry(&part)), comes, true)?;
        taken.keep();
        Ok(part.uuid)
    }

    /// Takes a copy that was missing and is there again back; [`Volume::rebuild_copies`] gives it
    /// what it lacks. `false`: it is not there.
    pub fn return_copy(&self, lost: Uuid) -> Result<bool, VolumeError> {
        if let Some(legs) = self.legs() {
            return self.return_disk(legs, lost);
        }
        let (mirror, table) = self.newest_table()?;
        let known = table.devices.iter().position(|entry| entry.uuid == lost);
        let Some(index) = known else {
            return Ok(false);
        };
        let state = table.devices[index].state.unwrap_or_default();
        // Who was killed as he brought it in may have told the labels alone.
        let is_in = |leg: &LegFacts| leg.id == lost.0 && leg.state.is_stored_to();
        let found = self.copy_of(&table.devices[index]);
        let Some(member) = found.filter(|_| !mirror.facts().iter().any(is_in)) else {
            return Ok(false);
        };
        if member.device.len() < table.devices[index].size {
            return Ok(false);
        }
        if !enter(&member.device, Presence::Member)? {
            return Err(VolumeError::InUse(member.device.path().to_owned()));
        }
        let entry = LabelDevice {
            state: Some(LegState::Rebuilding),
            ..table.devices[index].clone()
        };
        // What was written over it while it was away nobody has noted.
        let whole = state != LegState::Missing || !label::begins_as_one(&member.device);
        let comes = Comes::InPlaceOf(lost);
        self.forget_moment(&member.device)?;
        self.bring_in(mirror, (&member.device, &entry), comes, whole)?;
        Ok(true)
    }

    /// The device of a copy that this process may not have, wherever it is now.
    pub(crate) fn copy_of(&self, entry: &LabelDevice) -> Option<Member> {
        let folder = self.head.media.device().map(|device| device.real_path());
        let folder = folder.as_deref().and_then(Path::parent);
        find_copy(self.uuid(), entry, folder, trust_of(self.owner()))
    }

    /// Gives the copies that are stored to a label; at least one that is current must take it. Any
    /// other one has failed, and will be found out.
    pub(crate) fn write_labels(
        &self,
        mirror: &Mirror,
        mut table: LabelInfo,
    ) -> Result<(), VolumeError> {
        table.sequence += 1;
        match write_to_legs(&table, &mirror.facts()) {
            0 => Err(VolumeError::WriteFailed(self.path().to_owned())),
            _ => Ok(()),
        }
    }

    /// Places of the session whose copies labels do not name are out of use: who let a copy go may
    /// have died.
    fn forget_strangers(&self, mirror: &Mirror) -> Result<(), VolumeError> {
        let (facts, table) = (mirror.facts(), self.table_of(mirror)?);
        let is_known = |id: [u8; 16]| table.copies().any(|(_, entry)| entry.uuid.0 == id);
        for fact in facts.iter().filter(|fact| !is_known(fact.id)) {
            mirror.forget_leg(fact.slot);
        }
        Ok(())
    }

    pub(crate) fn newest_table(&self) -> Result<(&Mirror, LabelInfo), VolumeError> {
        let mirror = self.mirror().ok_or_else(|| VolumeError::Copies {
            path: self.path().to_owned(),
            why: "is a pool without copies",
        })?;
        Ok((mirror, self.table_of(mirror)?))
    }

    pub(crate) fn table_of(&self, mirror: &Mirror) -> Result<LabelInfo, VolumeError> {
        let devices = mirror.mapped().filter_map(|(_, leg)| leg.device());
        let table = newest_of(self.uuid(), devices);
        let table = table.map(|table| LabelInfo {
            home: self.identity().map_or(table.home, |home| home.numbers()),
            ..table
        });
        table.ok_or_else(|| VolumeError::NoCopyLeft(self.path().to_owned()))
    }

    /// Makes a device one of the copies. Before any label names it, it says itself that it lacks
    /// everything: it may be killed here, and is rebuilt by who comes next.
    fn bring_in(
        &self,
        mirror: &Mirror,
        (device, entry): (&Arc<Device>, &LabelDevice),
        comes: Comes,
        whole: bool,
    ) -> Result<(), VolumeError> {
        if !mirror.has_room() {
            return Err(self.refused(
                "has had twelve devices since its use began, which is the most: end all programs that use it first",
            ));
        }
        let failed = || VolumeError::WriteFailed(device.path().to_owned());
        if !mirror.prepare(device, entry.uuid.0)? {
            return Err(failed());
        }
        let facts = mirror.facts();
        let stored_to = facts.iter().filter(|fact| fact.state.is_stored_to());
        let devices = stored_to.filter_map(|fact| Some((Uuid(fact.id), fact.device.clone()?)));
        mirror.changing_labels(|| {
            let mut table = self.table_of(mirror)?;
            let seated = table.seat(entry.clone(), comes);
            seated.map_err(|why| self.refused(why))?;
            table.sequence += 1;
            write_as(&table, entry.uuid, device)?;
            for (uuid, device) in devices {
                write_as(&table, uuid, &device)?;
            }
            Ok::<_, VolumeError>(())
        })?;
        let added = mirror.add(device, entry.uuid.0, whole)?;
        added.ok_or_else(failed)?;
        self.tell_missing(mirror)?;
        if let Comes::InPlaceOf(lost) = comes
            && let Some(old) = facts.iter().find(|fact| fact.id == lost.0)
        {
            mirror.forget_leg(old.slot);
        }
        Ok(())
    }

    /// Gives copies that are being rebuilt what they lack, while others use the pool. Answers how
    /// many are whole now. `told` hears how far each is, and may break off: it can be gone on with
    /// later.
    pub fn rebuild_copies(
        &self,
        told: impl FnMut(RebuildProgress) -> ControlFlow<()>,
    ) -> Result<usize, VolumeError> {
        let rebuilt = self.rebuild_used(&|_| Usage::Used, 1, told)?;
        Ok(rebuilt.whole)
    }

    /// As [`Volume::rebuild_copies`]; disks do not get what is free (D82). The session knows what
    /// is, and `usage` tells. Copies in memory are made on so many threads.
    pub fn rebuild_used(
        &self,
        usage: &dyn Fn(VolumeOffset) -> Usage,
        threads: usize,
        mut told: impl FnMut(RebuildProgress) -> ControlFlow<()>,
    ) -> Result<Rebuilt, VolumeError> {
        let mut found = Vec::new();
        let whole = match self.legs() {
            Some(legs) => self.rebuild_disks(legs, usage, &mut found, &mut told)?,
            None => self.rebuild_mirror(threads, &mut found, told)?,
        };
        found.sort_by_key(|one: &Finding| one.range.start);
        Ok(Rebuilt {
            whole,
            found: self.with_paths(found),
        })
    }

    fn rebuild_mirror(
        &self,
        threads: usize,
        found: &mut Vec<Finding>,
        mut told: impl FnMut(RebuildProgress) -> ControlFlow<()>,
    ) -> Result<usize, VolumeError> {
        let (mirror, _) = self.newest_table()?;
        let failed = |MediaFailed| VolumeError::WriteFailed(self.path().to_owned());
        let facts = mirror.facts();
        let mut done = 0;
        for fact in facts
            .iter()
            .filter(|fact| fact.state == LegState::Rebuilding)
        {
            let rebuilt = mirror.rebuild(fact.slot, threads, found, &mut told);
            done += usize::from(rebuilt.map_err(failed)?);
        }
        Ok(done)
    }

    /// What has happened to copies since their session began.
    pub fn copy_counts(&self) -> MirrorCounts {
        self.mirror().map(Mirror::counts).unwrap_or_default()
    }

    /// All copies of the pool, by the newest label, in the order of its table; none without copies.
    pub fn copies(&self) -> Result<Vec<CopyInfo>, VolumeError> {
        if let Some(legs) = self.legs() {
            return self.disk_copies(legs);
        }
        let Some(mirror) = self.mirror() else {
            return Ok(Vec::new());
        };
        let (facts, table) = (mirror.facts(), self.table_of(mirror)?);
        let copy = |(index, entry): (usize, &LabelDevice)| {
            let fact = facts.iter().find(|fact| fact.id == entry.uuid.0);
            let device = fact.and_then(|fact| fact.device.as_ref());
            CopyInfo {
                index,
                uuid: entry.uuid,
                path: device.map_or_else(|| entry.path.clone(), |it| it.path().to_owned()),
                size: entry.size,
                state: state_seen(fact, entry),
                present: device.is_some(),
                replaces: entry.replaces,
            }
        };
        Ok(table.copies().map(copy).collect())
    }
}
