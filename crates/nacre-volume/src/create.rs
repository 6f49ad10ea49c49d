//! Making a pool of devices.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre_media::{
    Access, Device, DeviceKind, Granularity, LegState, MIRROR_MOST_BYTES, MOST_LEGS, MediaError,
    Policy,
};
use nacre_runtime::{has_other_names, one_user};
use nacre_types::{BLOCK_SIZE, Uuid};
use rustix::fs::{FallocateFlags, fallocate, fstat};

use crate::error::VolumeError;
use crate::label::placement::{Arrangement, Stripe};
use crate::label::stay::Stay;
use crate::label::{self, Gone, LabelDevice, LabelInfo};
use crate::layout::{
    COMMON_MIN, DATA_START, LABEL_SIZE, MAX_DEVICES, data_len, device_for, journal_len,
};
use crate::members::presence::{Presence, enter};
use crate::volume::{Part, Volume};

/// A device to make a pool of, or to grow a pool by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceSpec {
    /// A file, which may not exist yet, a block device or a device-DAX device.
    pub path: PathBuf,
    /// Bytes that a missing or empty file gets. `None`: use the device as large as it is.
    pub size: Option<u64>,
}

/// How to take possession of devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CreateOptions {
    /// Overwrite devices that belong to a pool or hold other data.
    pub force: bool,
    /// Bytes that the volume must have at least; nothing is written if it would have fewer.
    pub least: u64,
    /// Whether the devices get a journal: processes then use an image of them in memory, and they
    /// receive consistent versions.
    pub caching: Caching,
    /// In which sizes devices are written and read. `None`: as each of them likes it, as far as the
    /// system tells what it is.
    pub granularity: Option<Policy>,
    /// How data is spread over several devices. `None`: as is usual.
    pub stripe: Option<Stripe>,
    /// How many devices hold the same; as many must be named. 0 and 1: each holds a part.
    pub copies: usize,
    /// With copies: how much all devices hold; the rest of each is its own. `None`: they hold the
    /// same.
    pub common: Option<Common>,
    /// Whether units have checksums.
    pub checksums: Checksums,
    /// How many of the devices, the last ones, stand behind the others and hold what is cold.
    pub behind: usize,
}

/// How much all devices hold of a pool of which each has a part of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Common {
    /// An eighth of the smallest device, and no less than a pool needs.
    Usual,
    /// So many bytes at least.
    Bytes(u64),
}

/// Whether units have checksums (D130): of one disk with a journal, or several that hold the same.
/// They take 4 MiB of each 4 GiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Checksums {
    /// No.
    #[default]
    Never,
    /// Wherever they can be.
    Always,
}

/// Which devices get a journal. Several do only if all are alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Caching {
    /// None.
    #[default]
    Never,
    /// Those that cannot be mapped and stored to in order.
    Disks,
    /// Any.
    Always,
}

impl Volume {
    /// Makes a pool of the devices, in this order, and opens it, alone. Missing files are made, and
    /// removed again if it fails.
    ///
    /// Only labels are written: what else the devices held stays until it is overwritten. Copies
    /// forget it, where that takes no time.
    pub fn create(devices: &[DeviceSpec], options: CreateOptions) -> Result<Self, VolumeError> {
        let front = devices_in_front(devices, options)?;
        let taken = take(devices, front, options)?;
        let pool = Uuid::random();
        let mut parts: Vec<Part> = taken.parts(options.granularity)?;
        if options.behind > 0 {
            refuse_disks(&parts[..front])?;
        }
        let common = add_journals(pool, &mut parts, options)?;
        let has_copies = options.copies > 1;
        let stripe = match front == 1 || has_copies && common == 0 {
            true => Stripe::None,
            false => options.stripe.unwrap_or(Stripe::USUAL),
        };
        let arrangement = Arrangement {
            stripe,
            behind: options.behind,
        };
        let shared = Shared {
            pool,
            sequence: 1,
            emulates: "",
            arrangement,
            common,
            gone: &Gone::default(),
        };
        write_labels(shared, &parts)?;
        let volume = match has_copies {
            true => {
                parts.iter().for_each(forget_contents);
                Self::of_new_copies(&parts)?
            }
            false => Self::assemble(pool, arrangement, &parts, &Gone::default())?,
        };
        if let Some(cache) = volume.cache.as_ref().filter(|_| parts.len() > 1) {
            cache.format(pool)?;
        }
        taken.keep();
        Ok(volume)
    }
}

/// How many devices stand in front, if the numbers can be.
fn devices_in_front(devices: &[DeviceSpec], options: CreateOptions) -> Result<usize, VolumeError> {
    let Some(first) = devices.first() else {
        return Err(VolumeError::NoDevices);
    };
    if devices.len() > MAX_DEVICES {
        return Err(VolumeError::TooManyDevices(devices.len()));
    }
    refuse_other_numbers(options.copies, devices.len())?;
    let front = devices.len().saturating_sub(options.behind);
    match front == 0 || options.behind > 0 && options.copies > 1 {
        true => Err(VolumeError::Behind {
            path: first.path.clone(),
            why: "a device in front is needed, and no copies",
        }),
        false => Ok(front),
    }
}

/// Opens all devices, makes the files that are missing, and gives each its size.
fn take(
    devices: &[DeviceSpec],
    front: usize,
    options: CreateOptions,
) -> Result<Taken, VolumeError> {
    let least = options.least * options.copies.max(1) as u64;
    let mut taken = Taken::sharing(least, front);
    taken.force = options.force;
    for spec in devices {
        taken.take(spec, options.force)?;
    }
    taken.refuse_less_than(front, least)?;
    taken.resize()?;
    Ok(taken)
}

/// Gives the devices that are to have one a journal. Answers how much all of them hold, if each has
/// a part of its own, else 0.
fn add_journals(
    pool: Uuid,
    parts: &mut [Part],
    options: CreateOptions,
) -> Result<u64, VolumeError> {
    if let [part] = parts {
        add_journal(pool, part, options)?;
    }
    if options.copies > 1 {
        let journal = wanted_journal(parts, options)?;
        make_copies(parts, journal, options.granularity)?;
        return own_parts(parts, options);
    }
    if parts.len() > 1 && options.behind == 0 {
        add_journal_to_first(parts, options)?;
    }
    Ok(0)
}

/// Copies need as many devices.
fn refuse_other_numbers(copies: usize, devices: usize) -> Result<(), VolumeError> {
    match copies > 1 && (copies != devices || copies > MOST_LEGS) {
        true => Err(VolumeError::NotAsManyDevices { copies, devices }),
        false => Ok(()),
    }
}

/// What is in front holds all that is written, durable at once; a disk does that by its journal.
pub(crate) fn refuse_disks(front: &[Part]) -> Result<(), VolumeError> {
    for part in front {
        if label::is_on_disk(&part.device)? {
            return Err(VolumeError::Behind {
                path: part.device.path().to_owned(),
                why: "is a disk, and what has a disk behind it must be memory; name memory first",
            });
        }
    }
    Ok(())
}

/// Bytes of the journal that each of several copies gets; 0 for none.
fn wanted_journal(parts: &[Part], options: CreateOptions) -> Result<u64, VolumeError> {
    let kinds = kinds_of(parts)?;
    let wanted = match options.caching {
        Caching::Never => false,
        Caching::Disks => kinds.contains(&DeviceKind::CachedFile),
        Caching::Always => true,
    };
    let sizes = parts.iter().map(|part| usable_size(&part.device));
    let (journal, data) = beside_journal(sizes.min().unwrap_or(0));
    let fits = data.is_some_and(|data| data >= options.least);
    Ok(match wanted && fits && kinds.iter().all(is_by_calls) {
        true => journal,
        false => 0,
    })
}

fn kinds_of(parts: &[Part]) -> Result<Vec<DeviceKind>, VolumeError> {
    let kinds = parts.iter().map(|part| label::kind(&part.device));
    kinds.collect()
}

/// Whether a device can be written by calls.
pub(crate) fn is_by_calls(kind: &DeviceKind) -> bool {
    !matches!(kind, DeviceKind::DevDax | DeviceKind::HugePageFile)
}

/// Bytes of a journal on a device of so many bytes, and of data beside it, if there is room.
fn beside_journal(size: u64) -> (u64, Option<u64>) {
    let journal = journal_len(size);
    (journal, size.checked_sub(journal).and_then(data_len))
}

/// What is stored to an image in memory is not cut, whatever lies behind it, unless somebody wants
/// it.
pub(crate) fn leave_whole(part: &mut Part, wanted: Option<Policy>) {
    if wanted.is_none() {
        part.granularity.policy = Policy::None;
    }
}

/// Makes parts copies of each other, each as long as the shortest, and each with such a journal.
fn make_copies(
    parts: &mut [Part],
    journal: u64,
    granularity: Option<Policy>,
) -> Result<(), VolumeError> {
    let sizes = parts.iter().map(|part| usable_size(&part.device));
    let room = sizes.min().and_then(|size| size.checked_sub(journal));
    let data = room.and_then(data_len).unwrap_or(0);
    if journal == 0 && DATA_START + data > MIRROR_MOST_BYTES {
        return Err(VolumeError::TooLargeForCopies(MIRROR_MOST_BYTES));
    }
    for part in parts {
        (part.data, part.journal, part.beside) = (data, journal, journal > 0);
        part.state = Some(LegState::Current);
        if journal > 0 {
            leave_whole(part, granularity);
        }
    }
    Ok(())
}

/// What copies held before differs, and would be taken for damage where nobody has stored yet.
fn forget_contents(part: &Part) {
    let end = DATA_START + part.data + part.journal;
    let fd = part.device.fd();
    let is_reserved = fstat(fd).is_ok_and(|it| it.st_blocks as u64 * 512 >= part.device.len());
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    // A device that cannot do it keeps its bytes: `nacre scrub --repair --from` makes them agree.
    let is_done = fallocate(fd, punch, DATA_START, end - DATA_START).is_ok();
    if is_done && is_reserved && part.device.is_file() {
        let _ = fallocate(fd, FallocateFlags::KEEP_SIZE, DATA_START, end - DATA_START);
    }
}

/// Leaves each of several copies so much that all hold, and gives it the rest. Answers how much
/// all hold; 0 for all.
fn own_parts(parts: &mut [Part], options: CreateOptions) -> Result<u64, VolumeError> {
    let Some(wish) = options.common else {
        add_sums(parts, options.checksums);
        return Ok(0);
    };
    let same = parts[0].data;
    let bytes = match wish {
        Common::Usual => same / 8,
        Common::Bytes(bytes) => bytes,
    };
    let common = bytes.next_multiple_of(BLOCK_SIZE).max(COMMON_MIN);
    let refuse = |why| VolumeError::Copies {
        path: parts[0].device.path().to_owned(),
        why,
    };
    // What one alone holds is as lasting as that one.
    if parts[0].journal == 0 || !fit(&kinds_of(parts)?, options.caching) {
        return Err(refuse(
            "copies of a part are for disks alone, or for files in memory alone in mode cached, with room for a journal",
        ));
    }
    if options.stripe == Some(Stripe::None) {
        return Err(refuse(
            "data beside copies goes round the devices; choose a stripe",
        ));
    }
    if common >= same {
        return Err(refuse(
            "the devices have no room for so much on each; use larger ones, or --copies for all",
        ));
    }
    for part in parts {
        let room = data_len(usable_size(&part.device) - part.journal);
        part.data = room.unwrap_or(same) - common;
    }
    Ok(common)
}

/// What the labels of all parts say alike.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a> {
    pub pool: Uuid,
    pub sequence: u64,
    pub emulates: &'a str,
    pub arrangement: Arrangement,
    /// Bytes that all hold, where each has data of its own; else 0.
    pub common: u64,
    pub gone: &'a Gone,
}

/// Writes the labels of all parts, with a table of all parts, the last device's first.
///
/// When a pool grows the last one is new: until its label is there the pool is as before, from then
/// on any newer label completes the rest.
pub(crate) fn write_labels(shared: Shared<'_>, parts: &[Part]) -> Result<(), VolumeError> {
    let mut devices: Vec<LabelDevice> = parts.iter().map(table_entry).collect();
    for (index, entry) in &shared.gone.entries {
        devices.insert((*index).min(devices.len()), entry.clone());
    }
    for part in parts.iter().rev() {
        let place = devices.iter().position(|entry| entry.uuid == part.uuid);
        let index = place.ok_or(VolumeError::NoDevices)?;
        let label = LabelInfo {
            pool: shared.pool,
            index,
            sequence: shared.sequence,
            intact: true,
            granularity: part.granularity,
            emulates: shared.emulates.to_owned(),
            journal: part.journal,
            beside: part.beside,
            sums: part.sums,
            cache: part.cache,
            saved_every: part.saved_every,
            common: shared.common,
            stripe: shared.arrangement.stripe,
            behind: shared.arrangement.behind,
            at: (0, 0),
            home: home_of(parts),
            header: shared.gone.header,
            journal_at: shared.gone.journal,
            devices: devices.clone(),
        };
        label::write(&part.device, &label)?;
    }
    Ok(())
}

/// What tells a pool with copies from a copy of its files.
fn home_of(parts: &[Part]) -> (u64, u64) {
    match parts[0].state {
        Some(_) => parts[0].device.identity().numbers(),
        None => (0, 0),
    }
}

pub(crate) fn table_entry(part: &Part) -> LabelDevice {
    LabelDevice {
        uuid: part.uuid,
        size: part.size,
        data: part.data,
        path: label::hint(&part.device.real_path()),
        state: part.state,
        stay: part.stay,
        replaces: None,
    }
}

/// Bytes of a device that can be mapped.
pub(crate) fn usable_size(device: &Device) -> u64 {
    device.len() & !(device.granule().max(LABEL_SIZE) - 1)
}

/// Devices that are being taken possession of. Files that were made for it are removed on drop,
/// unless kept.
#[derive(Default)]
pub(crate) struct Taken {
    devices: Vec<Arc<Device>>,
    /// Devices of the pool that they are to come to.
    others: Vec<Arc<Device>>,
    made: Vec<PathBuf>,
    /// Files may get another size.
    force: bool,
    /// What the device holds is a label of a copy that never came in.
    pub is_half_in: bool,
    /// Bytes that suffice for each, for those who are told that theirs do not.
    enough: u64,
    /// The size that each device is to get, if it is another one.
    wanted: Vec<Option<u64>>,
}

impl Taken {
    /// For `devices` that together are to have `least` bytes of data.
    pub fn sharing(least: u64, devices: usize) -> Self {
        let mut taken = Taken::default();
        taken.enough = device_for(least.div_ceil(devices as u64));
        taken
    }

    /// For one device that is to have so much data.
    pub fn one(force: bool, data: u64) -> Self {
        let mut taken = Taken::sharing(data, 1);
        taken.force = force;
        taken
    }

    /// The devices are to come to a pool that has these.
    pub fn beside(mut self, others: Vec<Arc<Device>>) -> Self {
        self.others = others;
        self
    }

    /// Opens or makes the device of `spec` and checks that it may be overwritten.
    pub fn take(&mut self, spec: &DeviceSpec, force: bool) -> Result<(), VolumeError> {
        let device = self.open_or_make(spec)?;
        self.take_opened(device, spec, force)
    }

    fn take_opened(
        &mut self,
        device: Device,
        spec: &DeviceSpec,
        force: bool,
    ) -> Result<(), VolumeError> {
        let device = Arc::new(device);
        let is_it = |other: &Arc<Device>| other.identity() == device.identity();
        if self.others.iter().any(is_it) {
            return Err(VolumeError::InPool(spec.path.clone()));
        }
        let mut others = self.others.iter().chain(&self.devices);
        if let Some(same) = others.find(|other| other.shares_bytes_with(&device)) {
            return Err(VolumeError::SameDevice(
                same.path().to_owned(),
                spec.path.clone(),
            ));
        }
        if let Err(error) = self.come_in(&device, force) {
            // Made here or not: who came to it first has it.
            self.made.retain(|path| *path != spec.path);
            return Err(error);
        }
        let wanted = spec.size.filter(|&wanted| wanted != device.len());
        if data_len(wanted.unwrap_or(usable_size(&device))).is_none() {
            return Err(VolumeError::TooSmall {
                path: spec.path.clone(),
                size: wanted.unwrap_or(device.len()),
                least: self.enough,
            });
        }
        if !force && !self.made.contains(&spec.path) {
            refuse_of_others(&device)?;
        }
        if !(force && device.is_file()) {
            refuse_other_size(spec, &device)?;
        }
        self.devices.push(device);
        self.wanted.push(wanted);
        Ok(())
    }

    /// Keeps all others out of a device that holds nothing. Looks at it only then, as somebody may
    /// have made a pool of it just before.
    fn come_in(&self, device: &Arc<Device>, force: bool) -> Result<(), VolumeError> {
        let is_alone = enter(device, Presence::Alone)?;
        if !force && !self.is_half_in {
            refuse_to_overwrite(device)?;
        }
        match is_alone {
            true => Ok(()),
            false => Err(VolumeError::InUse(device.path().to_owned())),
        }
    }

    fn open_or_make(&mut self, spec: &DeviceSpec) -> Result<Device, VolumeError> {
        let mut device = match Device::open(&spec.path, Access::ReadWrite) {
            Err(MediaError::NotFound(path)) => return self.make(&path, spec.size),
            other => other?,
        };
        if has_other_names(&spec.path) == Ok(true) {
            return Err(VolumeError::OtherNames(spec.path.clone()));
        }
        device.refuse_claimed()?;
        match spec.size {
            Some(wanted) if device.is_empty() && device.is_file() => {
                if !self.force {
                    refuse_of_others(&device)?;
                }
                device.allocate(wanted)?;
            }
            None if device.is_empty() => return Err(VolumeError::SizeNeeded(spec.path.clone())),
            _ => {}
        }
        Ok(device)
    }

    fn make(&mut self, path: &Path, size: Option<u64>) -> Result<Device, VolumeError> {
        let size = size.ok_or_else(|| VolumeError::SizeNeeded(path.to_owned()))?;
        if data_len(size).is_none() {
            return Err(VolumeError::TooSmall {
                path: path.to_owned(),
                size,
                least: self.enough,
            });
        }
        let device = Device::create(path, size)?;
        self.made.push(path.to_owned());
        Ok(device)
    }

    fn refuse_less_than(&self, front: usize, least: u64) -> Result<(), VolumeError> {
        let sizes = self.devices.iter().zip(&self.wanted).take(front);
        let sizes = sizes.map(|(device, wanted)| wanted.unwrap_or(usable_size(device)));
        let usable = |size: u64| data_len(size).unwrap_or(0);
        let Some(first) = self.devices.first() else {
            return Ok(());
        };
        if sizes.clone().map(usable).sum::<u64>() >= least {
            return Ok(());
        }
        let (path, size, least) = (first.path().to_owned(), sizes.sum(), self.enough);
        Err(match front {
            1 => VolumeError::TooSmall { path, size, least },
            devices => VolumeError::PoolTooSmall {
                first: path,
                devices,
                size,
                least,
            },
        })
    }

    /// Gives files the sizes that they are to have.
    pub fn resize(&mut self) -> Result<(), VolumeError> {
        for (device, wanted) in self.devices.iter_mut().zip(&self.wanted) {
            if let (Some(device), Some(wanted)) = (Arc::get_mut(device), *wanted) {
                device.resize(wanted)?;
            }
        }
        Ok(())
    }

    /// The devices as parts of a volume, each with a new identity.
    pub fn parts(&self, policy: Option<Policy>) -> Result<Vec<Part>, VolumeError> {
        let part = |device| part_of(device, policy, self.enough);
        self.devices.iter().map(part).collect()
    }

    /// Whatever was made stays.
    pub fn keep(mut self) {
        self.made.clear();
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        for path in &self.made {
            // The error that led here says more than a failure to clean up would.
            let _ = rustix::fs::unlink(path);
        }
    }
}

fn part_of(device: &Arc<Device>, policy: Option<Policy>, enough: u64) -> Result<Part, VolumeError> {
    let too_small = || VolumeError::TooSmall {
        path: device.path().to_owned(),
        size: device.len(),
        least: enough,
    };
    let size = usable_size(device);
    let data = data_len(size).ok_or_else(too_small)?;
    Ok(Part {
        device: Arc::clone(device),
        uuid: Uuid::random(),
        size,
        data,
        granularity: Granularity {
            policy: policy.map_or_else(|| own_policy(device), Ok)?,
            ..Granularity::default()
        },
        journal: 0,
        beside: false,
        sums: false,
        cache: 0,
        saved_every: 0,
        state: None,
        stay: Stay::Stays,
    })
}

/// What is stored to a disk is not cut.
fn own_policy(device: &Arc<Device>) -> Result<Policy, VolumeError> {
    match device.own_policy() {
        Policy::None => Ok(Policy::None),
        _ if label::is_on_disk(device)? => Ok(Policy::None),
        policy => Ok(policy),
    }
}

/// Gives a part that is to have one, and is large enough, an empty journal behind its data.
fn add_journal(pool: Uuid, part: &mut Part, options: CreateOptions) -> Result<(), VolumeError> {
    let wanted = match options.caching {
        Caching::Never => false,
        Caching::Disks => label::is_on_disk(&part.device)?,
        Caching::Always => true,
    };
    let (journal, data) = beside_journal(usable_size(&part.device));
    let data = data.filter(|&data| data >= options.least);
    let (Some(data), true) = (data, wanted) else {
        return Ok(());
    };
    (part.data, part.journal, part.beside) = (data, journal, true);
    leave_whole(part, options.granularity);
    add_sums(std::slice::from_mut(part), options.checksums);
    match part.cache(label::kind(&part.device)?)? {
        Some(cache) => cache.format(pool),
        None => Ok(()),
    }
}

/// Parts that have a journal, and hold the same if they are several, get checksums.
fn add_sums(parts: &mut [Part], wanted: Checksums) {
    for part in parts {
        part.sums = wanted == Checksums::Always && part.journal > 0;
    }
}

/// Whether devices of these kinds can hold each a part behind one image. Others are used as they
/// are.
pub(crate) fn fit(kinds: &[DeviceKind], caching: Caching) -> bool {
    let alike = kinds.iter().all(|kind| *kind == kinds[0]);
    match caching {
        Caching::Never => false,
        Caching::Disks => alike && kinds[0] == DeviceKind::CachedFile,
        Caching::Always => alike && is_by_calls(&kinds[0]),
    }
}

/// Gives the first of several parts a journal, if they are to have one and there is room.
fn add_journal_to_first(parts: &mut [Part], options: CreateOptions) -> Result<(), VolumeError> {
    let (journal, first) = beside_journal(usable_size(&parts[0].device));
    let (Some(first), true) = (first, fit(&kinds_of(parts)?, options.caching)) else {
        return Ok(());
    };
    let others = parts[1..].iter().map(|part| part.data);
    if first + others.sum::<u64>() < options.least {
        return Ok(());
    }
    parts[0].data = first;
    for part in parts {
        (part.journal, part.beside) = (journal, true);
        leave_whole(part, options.granularity);
    }
    Ok(())
}

/// A file that stands there already may have been put there by another user.
fn refuse_of_others(device: &Device) -> Result<(), VolumeError> {
    let owner = device.owner().uid;
    match !device.is_file() || one_user() == Some(owner) {
        true => Ok(()),
        false => Err(VolumeError::ForeignFile {
            path: device.path().to_owned(),
            owner,
        }),
    }
}

fn refuse_other_size(spec: &DeviceSpec, device: &Device) -> Result<(), VolumeError> {
    let actual = device.len();
    match spec.size.filter(|&wanted| wanted != actual) {
        Some(wanted) => Err(VolumeError::SizeDiffers {
            path: spec.path.clone(),
            actual,
            wanted,
        }),
        None => Ok(()),
    }
}

fn refuse_to_overwrite(device: &Arc<Device>) -> Result<(), VolumeError> {
    if label::present(device)? {
        return Err(VolumeError::AlreadyPool(device.path().to_owned()));
    }
    if !label::blank(device)? {
        return Err(VolumeError::HoldsData(device.path().to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{CreateOptions, DeviceSpec, Presence, Taken, enter};
    use crate::{Access, Volume, VolumeError};
    use nacre_media::Device;

    /// What the maker of a file is told if `other` came to it first. The file stays.
    fn told<T>(other: impl FnOnce(&DeviceSpec) -> T) -> VolumeError {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let spec = DeviceSpec {
            path: folder.path().join("pool"),
            size: Some(32 << 20),
        };
        let mut first = Taken::one(false, 0);
        let device = first.open_or_make(&spec).unwrap();
        let others = other(&spec);
        let told = first.take_opened(device, &spec, false).unwrap_err();
        drop(first);
        assert!(spec.path.exists(), "{told}");
        drop(others);
        told
    }

    #[test]
    fn a_file_that_somebody_else_took_first_is_neither_overwritten_nor_removed() {
        let create = |spec: &DeviceSpec| {
            Volume::create(std::slice::from_ref(spec), CreateOptions::default()).unwrap()
        };
        let at_work = told(create);
        assert!(matches!(at_work, VolumeError::AlreadyPool(_)), "{at_work}");
        let done = told(|spec| drop(create(spec)));
        assert!(matches!(done, VolumeError::AlreadyPool(_)), "{done}");
        let began = told(|spec| {
            let device = Device::open(&spec.path, Access::ReadWrite).unwrap();
            assert!(enter(&device, Presence::Alone).unwrap());
            device
        });
        assert!(matches!(began, VolumeError::InUse(_)), "{began}");
    }
}
