//! Pools of disks that all hold the same, behind one image (D76).

use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

use nacre_cache::{Disk, DiskFailed};
use nacre_media::{
    Access, AddressRange, Device, DeviceIdentity, Finding, Image, LegState, Media, RebuildProgress,
    Spans,
};
use nacre_runtime::Trust;
use nacre_types::{DeviceOffset, UNIT_SHIFT, UNIT_SIZE, Uuid, VolumeOffset, crc32c};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use crate::create::table_entry;
use crate::disk::cache::{Cache, Wish};
use crate::disk::{Leg, LegsDisk};
use crate::error::{HOLDS_A_PART, VolumeError};
use crate::kinds::memory_copies::{CopyInfo, take_copy};
use crate::label::seats::Comes;
use crate::label::{self, LabelDevice, LabelInfo};
use crate::layout::{DATA_START, REBUILT_AT, RawRebuilt};
use crate::members::Member;
use crate::members::labels::{Labels, write_as};
use crate::members::presence::{Presence, enter};
use crate::scrub::Usage;
use crate::volume::segment::{Role, units_of};
use crate::volume::{DeviceInfo, Part, Segment, Volume};

/// Tells what is known of a unit.
type UsageAt<'u> = dyn Fn(VolumeOffset) -> Usage + 'u;

/// So much is wiped at once, and how far a rebuild is is remembered in such steps.
const SPAN: u64 = 1 << 20;
/// It remembers how far it is whenever it has copied so much, and waits for the disk.
const KEPT: u64 = 16 << 20;
/// What differs is written in pieces of this size.
const PIECE: usize = 64 << 10;

impl Volume {
    /// The disks behind the image that hold the same; `None` for other pools.
    pub(crate) fn legs(&self) -> Option<&Arc<LegsDisk>> {
        self.cache.as_ref()?.disk.legs()
    }

    /// As [`Volume::assemble_copies`], of disks behind an image.
    pub(crate) fn assemble_disks(
        table: &LabelInfo,
        parts: &[Part],
        (trust, damaged): (Trust, &[Uuid]),
    ) -> Result<Self, VolumeError> {
        let first = parts.first().ok_or(VolumeError::NoDevices)?;
        let current = parts.iter().find(|it| it.state == Some(LegState::Current));
        let head = current.ok_or_else(|| VolumeError::NoCopyLeft(first.device.path().into()))?;
        let data = table.volume_len();
        let writable = head.device.access() == Access::ReadWrite;
        let labels = Labels::new(table, trust, Part::known(parts));
        let legs = LegsDisk::new(table, labels, damaged, writable);
        let wish = Wish {
            journal: table.journal,
            beside: table.beside,
            sums: table.sums,
            room: table.cache,
            saved_every: table.saved_every,
        };
        let cache = Cache::of_legs((&head.device, table.home), legs, data, wish);
        let place = AddressRange::reserve(data)?;
        let at = DeviceOffset(DATA_START);
        let segment = Segment {
            media: Media::map_behind_image(&head.device, at, data, Some(place))?,
            start: 0,
            end: data,
            device: head.uuid,
            granularity: head.granularity,
            role: Role::Device(Default::default()),
        };
        let owned = (table.pool, first.device.owner());
        let home = DeviceIdentity::of_numbers(table.home);
        Self::of_copies(segment, owned, home, (table.arrangement(), Some(cache)))
    }

    /// Whether there are disks that hold the same, which may differ in what is free (D82).
    pub fn has_alike_disks(&self) -> bool {
        self.legs().is_some()
    }

    pub(crate) fn infos_of_disks(&self, legs: &LegsDisk) -> Vec<DeviceInfo> {
        let info = |(_, leg): (LegState, Arc<Leg>)| DeviceInfo {
            path: leg.device.path().to_owned(),
            identity: Some(leg.device.identity()),
            size: leg.device.len(),
            range: self.own_part(legs, leg.uuid),
            kind: label::kind(&leg.device).unwrap_or(self.head.media.kind()),
            ..self.head.info_of(&self.head.media, leg.uuid)
        };
        legs.devices().into_iter().map(info).collect()
    }

    /// The part of the volume that a disk alone holds; all of it where they hold the same.
    fn own_part(&self, legs: &LegsDisk, uuid: Uuid) -> Range<VolumeOffset> {
        let part = legs
            .own()
            .and_then(|own| own.parts().get(legs.index_of(uuid)?));
        let data = DATA_START..DATA_START + self.head.end;
        let part = part.unwrap_or(&data);
        VolumeOffset(part.start - DATA_START)..VolumeOffset(part.end - DATA_START)
    }

    /// Units that all disks hold, the first ones, where each holds others alone; else 0 (D80).
    pub fn common_units(&self) -> u64 {
        let own = self.legs().and_then(|legs| legs.own());
        own.map_or(0, |own| (own.common_end() - DATA_START) >> UNIT_SHIFT)
    }

    /// Units that were on disks which are lost, and nowhere else.
    pub fn lost_units(&self) -> Vec<Range<u64>> {
        let lost = self.legs().map(|legs| legs.lost_parts());
        lost.iter().flatten().map(units_of).collect()
    }

    /// Whether a place was on a disk that is lost, and nowhere else.
    pub fn is_lost(&self, at: VolumeOffset) -> bool {
        let legs = self.legs();
        legs.is_some_and(|legs| !legs.holds(DATA_START + at.0))
    }

    /// All disks, by the labels in force.
    pub(crate) fn disk_copies(&self, legs: &LegsDisk) -> Result<Vec<CopyInfo>, VolumeError> {
        let table = legs.table().map_err(|why| self.disk_failed(why))?;
        let known = legs.labels().known();
        let info = |(index, entry): (usize, &LabelDevice)| {
            let device = known.iter().find(|(uuid, _)| *uuid == entry.uuid);
            let path = device.map(|(_, device)| device.path().to_owned());
            CopyInfo {
                index,
                uuid: entry.uuid,
                path: path.unwrap_or_else(|| entry.path.clone()),
                size: entry.size,
                state: entry.state.unwrap_or_default(),
                present: device.is_some(),
                replaces: entry.replaces,
            }
        };
        Ok(table.copies().map(info).collect())
    }

    /// As [`Volume::check_copies`].
    pub(crate) fn check_disks(&self, legs: &LegsDisk) -> Result<(), VolumeError> {
        if legs.have_labels(self.uuid()) {
            let settled = legs.settle_labels();
            return settled.map_err(|why| self.disk_failed(why));
        }
        // Whoever holds it may be writing labels: the next one looks again.
        let Some(_lock) = self.try_lock_exclusive()? else {
            return Ok(());
        };
        let checked = legs.check_labels(self.uuid());
        checked.map_err(|why| self.disk_failed(why))
    }

    /// As [`Volume::take_in`].
    pub(crate) fn take_disk_in(
        &self,
        legs: &LegsDisk,
        new: (&Path, Option<u64>, bool),
        comes: Comes,
    ) -> Result<Uuid, VolumeError> {
        let table = legs.table().map_err(|why| self.disk_failed(why))?;
        if legs.own().is_some() {
            return Err(self.refused(HOLDS_A_PART));
        }
        let data = table.devices[0].data;
        let (taken, mut part) =
            take_copy(new, data + table.journal, (&table, self.all_devices()?))?;
        (part.data, part.journal) = (data, table.journal);
        part.state = Some(LegState::Rebuilding);
        part.granularity = self.head.granularity;
        let uuid = part.uuid;
        self.add_disk(legs, (&part.device, &table_entry(&part)), comes)?;
        taken.keep();
        Ok(uuid)
    }

    /// As [`Volume::return_copy`].
    pub(crate) fn return_disk(&self, legs: &LegsDisk, lost: Uuid) -> Result<bool, VolumeError> {
        let table = legs.table().map_err(|why| self.disk_failed(why))?;
        let entry = table.devices.iter().find(|entry| entry.uuid == lost);
        // One that failed may lack what it alone should have (T5).
        let is_whole =
            |it: &LabelDevice| legs.own().is_none() || it.state == Some(LegState::Missing);
        let is_lost =
            |it: &&LabelDevice| !it.state.is_some_and(LegState::is_stored_to) && is_whole(it);
        let Some(entry) = entry.filter(is_lost) else {
            return Ok(false);
        };
        let found = self.copy_of(entry);
        let is_its = |it: &Member| {
            let is_long = it.device.len() >= entry.size;
            // What it alone holds may be something else by now.
            is_long && (legs.own().is_none() || label::begins_as_one(&it.device))
        };
        let Some(member) = found.filter(is_its) else {
            return Ok(false);
        };
        if !enter(&member.device, Presence::Member)? {
            return Err(VolumeError::InUse(member.device.path().to_owned()));
        }
        let entry = LabelDevice {
            state: Some(LegState::Rebuilding),
            ..entry.clone()
        };
        self.add_disk(legs, (&member.device, &entry), Comes::InPlaceOf(lost))?;
        Ok(true)
    }

    /// Makes a disk one of the copies. Before any other label names it, its journal has nothing
    /// that counts, and its label says that it lacks everything.
    fn add_disk(
        &self,
        legs: &LegsDisk,
        (device, entry): (&Arc<Device>, &LabelDevice),
        comes: Comes,
    ) -> Result<(), VolumeError> {
        let cache = self.cache.as_ref().ok_or(VolumeError::NoDevices)?;
        let leg = Leg::new(entry.uuid, device, true);
        let journal = cache.at_on(legs);
        let journal = journal..journal + cache.len;
        forget_all(&leg, legs.spans(), journal).map_err(|why| self.disk_failed(why))?;
        let add = || {
            legs.settle_labels().map_err(|why| self.disk_failed(why))?;
            legs.changing_labels(|| {
                let mut table = legs.table().map_err(|why| self.disk_failed(why))?;
                let seated = table.seat(entry.clone(), comes);
                seated.map_err(|why| self.refused(why))?;
                let next = LabelInfo {
                    sequence: table.sequence + 1,
                    ..table.clone()
                };
                write_as(&next, entry.uuid, device)?;
                legs.labels().add(entry.uuid, device);
                legs.write_table(table, 0)
                    .map_err(|why| self.disk_failed(why))
            })
        };
        self.while_nobody_commits(add)
    }

    /// Does something while no version is made.
    pub(crate) fn while_nobody_commits<T>(
        &self,
        work: impl FnOnce() -> Result<T, VolumeError>,
    ) -> Result<T, VolumeError> {
        self.done_by(work, Image::while_nobody_commits)
    }

    /// Does something while no version is made and nobody stores.
    pub(crate) fn while_nobody_stores<T>(
        &self,
        work: impl FnOnce() -> Result<T, VolumeError>,
    ) -> Result<T, VolumeError> {
        self.done_by(work, Image::while_nobody_stores)
    }

    pub(crate) fn done_by<T>(
        &self,
        work: impl FnOnce() -> Result<T, VolumeError>,
        by: impl FnOnce(&Image, &mut dyn FnMut()),
    ) -> Result<T, VolumeError> {
        let (mut work, mut done) = (Some(work), None);
        if let (Some(image), Some(cache)) = (self.head.media.image(), &self.cache) {
            let mut once = || {
                let waited = cache.wait_for_calls(image);
                let waited = waited.map_err(|why| self.disk_failed(why));
                done = work.take().map(|work| waited.and_then(|()| work()));
            };
            by(image, &mut once);
        }
        done.unwrap_or_else(|| Err(self.refused("is not in use by this process")))
    }

    /// As [`Volume::rebuild_copies`].
    pub(crate) fn rebuild_disks(
        &self,
        legs: &LegsDisk,
        usage: &UsageAt<'_>,
        found: &mut Vec<Finding>,
        told: &mut dyn FnMut(RebuildProgress) -> ControlFlow<()>,
    ) -> Result<usize, VolumeError> {
        let is_rebuilt = |(state, _): &(LegState, Arc<Leg>)| *state == LegState::Rebuilding;
        let known = legs.in_use().map_err(|why| self.disk_failed(why))?;
        let rebuilt: Vec<_> = known.into_iter().filter(is_rebuilt).collect();
        if !rebuilt.is_empty() {
            // What is not at home is not compared.
            self.prepare_scrub()?;
        }
        let mut whole = 0;
        for (_, leg) in rebuilt {
            if self.fill((legs, &leg), usage, found, told)? {
                self.while_nobody_commits(|| self.now_current(legs, &leg))?;
                whole += 1;
            }
        }
        Ok(whole)
    }

    /// Gives a disk what is at home on the others. `false`: it was broken off.
    fn fill(
        &self,
        (legs, leg): (&LegsDisk, &Leg),
        usage: &UsageAt<'_>,
        found: &mut Vec<Finding>,
        told: &mut dyn FnMut(RebuildProgress) -> ControlFlow<()>,
    ) -> Result<bool, VolumeError> {
        let end = self.cache.as_ref();
        let end = end.map_or(DATA_START, |cache| cache.at_on(legs));
        let total = end - DATA_START;
        let pool = self.uuid().0;
        let first = rebuilt_before(leg, pool).clamp(DATA_START, end);
        let (mut looked, mut kept, spans) = (0, first, legs.spans());
        for span in spans.all().filter(|&span| spans.bytes(span).end > first) {
            looked += self.fill_span((legs, leg), span, usage, found)?;
            let until = spans.bytes(span).end;
            if until - kept >= KEPT {
                let settled = legs.settle_seals();
                let settled = settled.and_then(|()| keep_rebuilt(leg, pool, until));
                settled.map_err(|why| self.disk_failed(why))?;
                kept = until;
            }
            let progress = RebuildProgress {
                done: until - DATA_START,
                total,
                looked,
            };
            if told(progress).is_break() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Gives a disk what counts of a span; answers how many bytes do. Before anything is copied
    /// that is not as it was sealed, other disks are asked for that (D111).
    fn fill_span(
        &self,
        disks: (&LegsDisk, &Leg),
        span: u64,
        usage: &UsageAt<'_>,
        found: &mut Vec<Finding>,
    ) -> Result<u64, VolumeError> {
        let fill = |sealed_only: bool| {
            self.while_nobody_commits(|| {
                let filled = self.fill_now(disks, span, usage, sealed_only);
                filled.map_err(|why| self.disk_failed(why))
            })
        };
        if let Some(bytes) = fill(true)? {
            return Ok(bytes);
        }
        let (legs, leg) = disks;
        found.extend(self.verify_disks(legs, span, Some(leg))?.found);
        Ok(fill(false)?.unwrap_or(0))
    }

    /// As [`Volume::fill_span`]. Of what does not count the disks may differ, so that no seal may
    /// say what all hold. What no disk has as it was sealed is copied whole: its seal goes on to
    /// say so. `None`: it is not as it was sealed, and nothing was done. Nobody commits.
    fn fill_now(
        &self,
        (legs, leg): (&LegsDisk, &Leg),
        span: u64,
        usage: &UsageAt<'_>,
        sealed_only: bool,
    ) -> Result<Option<u64>, DiskFailed> {
        let range = legs.spans().bytes(span);
        let mut counted = self.counted(range.clone(), usage);
        let bytes_of = |all: &[Range<u64>]| all.iter().map(|one| one.end - one.start).sum::<u64>();
        let bytes = bytes_of(&counted);
        let seal = self.seal_at_home(legs, span).filter(|_| bytes > 0);
        let mut held = vec![0; seal.map_or(0, |_| (range.end - range.start) as usize)];
        if let Some(seal) = seal {
            legs.read(range.start, &mut held)?;
            if seal != crc32c(&held) {
                if sealed_only {
                    return Ok(None);
                }
                counted = vec![range.clone()];
            }
        }
        let is_whole = bytes_of(&counted) == range.end - range.start;
        if !is_whole {
            legs.remove_seals(range.clone())?;
        }
        for part in counted {
            match seal {
                Some(_) => {
                    let skip = (part.start - range.start) as usize;
                    let len = (part.end - part.start) as usize;
                    put(leg, part.start, &held[skip..skip + len])?;
                }
                None => copy(legs, leg, part)?,
            }
        }
        legs.forget(range.start, range.end - range.start);
        if let Some(seal) = seal.filter(|_| is_whole) {
            legs.set_seal(span, seal)?;
        }
        Ok(Some(bytes))
    }

    /// The seal of a span, if all of that is at home.
    fn seal_at_home(&self, legs: &LegsDisk, span: u64) -> Option<u32> {
        let image = self.head.media.image()?;
        let mut units = legs.spans().bytes(span).step_by(UNIT_SIZE as usize);
        units
            .all(|at| image.has_home(at))
            .then(|| legs.seal_of(span))
            .flatten()
    }

    /// The parts of a span in which anything counts. The caller keeps versions from being made, so
    /// what means nothing to the disks goes on to (D82): whether a unit is free is asked before
    /// whether it was freed since, and one that is taken meanwhile goes to all disks later.
    fn counted(&self, span: Range<u64>, usage: &UsageAt<'_>) -> Vec<Range<u64>> {
        let mut counted: Vec<Range<u64>> = Vec::new();
        let image = self.head.media.image();
        for at in span.step_by(UNIT_SIZE as usize) {
            let is_free = || usage(VolumeOffset(at - DATA_START)) == Usage::Free;
            let counts = !image.is_some_and(|image| is_free() && image.means_nothing(at, true));
            match counted.last_mut().filter(|last| last.end == at) {
                _ if !counts => {}
                Some(last) => last.end += UNIT_SIZE,
                None => counted.push(at..at + UNIT_SIZE),
            }
        }
        counted
    }

    /// A disk that has all home places gets a journal, and is one of the others. Nobody commits
    /// meanwhile.
    fn now_current(&self, legs: &LegsDisk, leg: &Leg) -> Result<(), VolumeError> {
        // Syncs all disks, this one too, and writes a header to it.
        self.checkpoint()?;
        let path = leg.device.path().display();
        let lost = |what| DiskFailed(format!("{path} {what} while it was rebuilt"));
        let changed = legs.changing_labels(|| {
            let mut table = legs.table()?;
            let mut entries = table.devices.iter_mut();
            let entry = entries.find(|it| it.uuid == leg.uuid);
            match entry.and_then(|it| it.state.as_mut()) {
                // Somebody else who rebuilt it was quicker.
                Some(LegState::Current) => return Ok(()),
                Some(state @ LegState::Rebuilding) => *state = LegState::Current,
                Some(_) => return Err(lost("failed")),
                None => return Err(lost("left the pool")),
            }
            legs.write_table(table, 0)
        });
        changed.map_err(|why| self.disk_failed(why))
    }

    pub(crate) fn disk_failed(&self, why: DiskFailed) -> VolumeError {
        VolumeError::Journal {
            path: self.path().to_owned(),
            why: why.into(),
        }
    }

    pub(crate) fn refused(&self, why: &'static str) -> VolumeError {
        VolumeError::Copies {
            path: self.path().to_owned(),
            why,
        }
    }
}

/// A disk says nothing of its own that would count, durably on return.
pub(crate) fn forget_all(leg: &Leg, spans: &Spans, journal: Range<u64>) -> Result<(), DiskFailed> {
    let seals = spans.places(spans.all());
    let known = REBUILT_AT..REBUILT_AT + size_of::<RawRebuilt>() as u64;
    let mut all = [journal, seals, known].into_iter();
    all.try_for_each(|range| wipe(leg, range))
}

/// Nothing that was in a range counts any more; durable on return.
fn wipe(leg: &Leg, range: Range<u64>) -> Result<(), DiskFailed> {
    let zeros = vec![0; SPAN as usize];
    for start in range.clone().step_by(zeros.len()) {
        let len = zeros.len().min((range.end - start) as usize);
        leg.file.write(start, &zeros[..len])?;
    }
    leg.file.sync()?;
    leg.file.forget(range.start, range.end - range.start);
    Ok(())
}

/// How far an earlier rebuild of a disk got, which gets all that is written since it began.
fn rebuilt_before(leg: &Leg, pool: [u8; 16]) -> u64 {
    let mut raw = RawRebuilt::new_zeroed();
    let is_read = leg.file.read(REBUILT_AT, raw.as_mut_bytes()).is_ok();
    let is_its = is_read && raw.pool == pool && raw.crc.get() == crc_of(&raw);
    // All of it is of whole spans, wherever it was kept.
    let end = raw.end.get() / SPAN * SPAN;
    if is_its { end } else { 0 }
}

/// All before a place is copied; that is durable before it is said.
fn keep_rebuilt(leg: &Leg, pool: [u8; 16], end: u64) -> Result<(), DiskFailed> {
    leg.file.sync()?;
    let mut raw = RawRebuilt {
        pool,
        end: U64::new(end),
        ..RawRebuilt::new_zeroed()
    };
    raw.crc = U32::new(crc_of(&raw));
    leg.file.write(REBUILT_AT, raw.as_bytes())
}

fn crc_of(raw: &RawRebuilt) -> u32 {
    crc32c(&raw.as_bytes()[..std::mem::offset_of!(RawRebuilt, crc)])
}

/// Gives a disk what it lacks of a range.
fn copy(legs: &LegsDisk, leg: &Leg, range: Range<u64>) -> Result<(), DiskFailed> {
    let mut wanted = vec![0; (range.end - range.start) as usize];
    legs.read(range.start, &mut wanted)?;
    put(leg, range.start, &wanted)
}

/// Writes to a disk what it holds otherwise.
fn put(leg: &Leg, at: u64, wanted: &[u8]) -> Result<(), DiskFailed> {
    let mut found = vec![0; wanted.len()];
    // What cannot be read is written.
    let is_known = leg.file.read(at, &mut found).is_ok();
    let pieces = wanted.chunks(PIECE).zip(found.chunks(PIECE));
    for (place, (wanted, found)) in (at..).step_by(PIECE).zip(pieces) {
        if !is_known || wanted != found {
            leg.file.write(place, wanted)?;
        }
    }
    leg.file.begin_writing(at..at + wanted.len() as u64);
    Ok(())
}
