//! Labels: decoding with validation, reading the better of two copies, writing both.

pub(crate) mod placement;
pub(crate) mod seats;
pub(crate) mod stay;
mod watch;

use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre_media::{Device, DeviceKind, Granularity, LegState, Media, PieceTable, Policy, Unfenced};
use nacre_types::{BLOCK_SIZE, DeviceOffset, StoreKind, Uuid, crc32c, site};
use rustix::io::{Errno, pread};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::error::VolumeError;
use crate::label::placement::{Arrangement, Stripe};
use crate::label::stay::{OnDevice, Stay};
use crate::layout::{
    BEHIND, BESIDE, COMMON, COPIES, DISKS, JOURNAL, KNOWN, LABEL_SIZE, LEAVES, MAGIC, MAX_DEVICES,
    PARTS, PARTS_LEAVE, PATH_MAX, POLICY_CALIBRATED, POLICY_NONE, POLICY_OPTANE, RawDevice,
    RawGranularity, RawLabel, SEQUENCE_END, SUMS, VERSION, data_len, most_places, second_copy,
};
pub(crate) use watch::{LabelWatch, has_one_of};

/// One device in a pool's table, as a label tells it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LabelDevice {
    /// Identity of the device.
    pub uuid: Uuid,
    /// Bytes of the device.
    pub size: u64,
    /// Bytes of its part of the volume, without what all hold besides.
    pub data: u64,
    /// Where it was last seen: absolute, a mere file name if that was too long, empty if even that
    /// was.
    pub path: PathBuf,
    /// What it is to the others that hold the same; `None` without copies.
    pub state: Option<LegState>,
    /// Whether it stays in the pool. A copy that is gone has left its place for another one.
    pub stay: Stay,
    /// The copy that goes once this one is current (D81).
    pub replaces: Option<Uuid>,
}

/// What a device's label says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LabelInfo {
    /// The pool.
    pub pool: Uuid,
    /// This device's place in the pool.
    pub index: usize,
    /// Counts changes of the table.
    pub sequence: u64,
    /// Whether both copies were intact.
    pub intact: bool,
    /// In which sizes this device is written and read.
    pub granularity: Granularity,
    /// Name of the device profile that the pool emulates; empty for none.
    pub emulates: String,
    /// Bytes of the journal behind the data of the only device, of each that holds the same, or of
    /// the first of those that hold each a part; 0 for none.
    pub journal: u64,
    /// Whether a record of the journal may be written beside contents that it needs (D123).
    pub beside: bool,
    /// Whether units have checksums (D130).
    pub sums: bool,
    /// Bytes of memory that the image of a disk may take; 0 for no wish.
    pub cache: u64,
    /// Milliseconds after which the disk gets what was stored, if nobody waits for that; else 0.
    pub saved_every: u32,
    /// Bytes of the volume that all devices hold, where each has data of its own besides; else 0.
    pub common: u64,
    /// How data is spread over the devices.
    pub stripe: Stripe,
    /// How many devices, the last ones, stand behind the others and hold what is cold.
    pub behind: usize,
    /// With copies: identity of this device when its label was written; zeros: not known.
    pub at: (u64, u64),
    /// With copies: what tells the pool in the running system.
    pub home: (u64, u64),
    /// Where the pool's header lies, once its first device is gone.
    pub(crate) header: Option<OnDevice>,
    /// Where the journal of disks that hold each a part lies, once the first one is gone.
    pub(crate) journal_at: Option<OnDevice>,
    /// All devices of the pool; at least one.
    pub devices: Vec<LabelDevice>,
}

impl LabelInfo {
    /// The entry of the labelled device itself.
    pub fn own(&self) -> &LabelDevice {
        &self.devices[self.index]
    }

    /// Whether all devices hold the same, or a common part.
    pub fn has_copies(&self) -> bool {
        self.devices[0].state.is_some()
    }

    pub(crate) const fn arrangement(&self) -> Arrangement {
        Arrangement {
            stripe: self.stripe,
            behind: self.behind,
        }
    }

    /// Whether the device at a place of the table stands behind others, or did.
    pub(crate) fn is_behind(&self, place: usize) -> bool {
        place + self.behind >= self.devices.len()
    }

    /// Whether a device that is there stands behind others.
    pub(crate) fn has_behind(&self) -> bool {
        let there =
            |(place, it): (usize, &LabelDevice)| it.stay != Stay::Gone && self.is_behind(place);
        self.devices.iter().enumerate().any(there)
    }

    /// What devices that were removed have left.
    pub(crate) fn gone(&self) -> Gone {
        let is_gone = |(_, entry): &(usize, &LabelDevice)| entry.stay == Stay::Gone;
        let entries = self.devices.iter().enumerate().filter(is_gone);
        Gone {
            entries: entries.map(|(index, it)| (index, it.clone())).collect(),
            header: self.header,
            journal: self.journal_at,
        }
    }

    /// The copies that the pool has, with their places; none of those that left.
    pub fn copies(&self) -> impl Iterator<Item = (usize, &LabelDevice)> {
        let entries = self.devices.iter().enumerate();
        entries.filter(|(_, entry)| entry.state.is_some() && entry.stay != Stay::Gone)
    }

    fn place_of(&self, device: Option<Uuid>) -> Option<usize> {
        let device = device?;
        self.devices.iter().position(|entry| entry.uuid == device)
    }

    /// Whether the disk that has a journal is several that hold each a part.
    pub(crate) fn is_parts(&self) -> bool {
        self.journal > 0 && !self.has_copies() && self.devices.len() > 1
    }

    /// Bytes of the volume.
    pub fn volume_len(&self) -> u64 {
        if self.has_copies() && self.common == 0 {
            return self.devices[0].data;
        }
        let own: u64 = self.devices.iter().map(|device| device.data).sum();
        self.common + own
    }

    /// Bytes that each device holds of what all hold; none without copies.
    pub(crate) fn common_len(&self) -> u64 {
        match self.common {
            0 if self.has_copies() => self.devices[0].data,
            common => common,
        }
    }
}

/// What devices that were removed have left in the table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Gone {
    /// With their places, which rise.
    pub entries: Vec<(usize, LabelDevice)>,
    pub header: Option<OnDevice>,
    pub journal: Option<OnDevice>,
}

impl Gone {
    /// Places in the table of the devices that are there.
    pub fn others(&self) -> impl Iterator<Item = usize> {
        let is_gone = |place: &usize| self.entries.iter().any(|(gone, _)| gone == place);
        (0..MAX_DEVICES).filter(move |place| !is_gone(place))
    }

    /// The number among the devices that are there of the one with a place in the table.
    pub fn number_of(&self, place: usize) -> usize {
        self.others().take_while(|other| *other < place).count()
    }
}

/// What stands where a label copy should be.
enum Copy {
    /// Nothing that looks like a label.
    None,
    /// A label once, but not any more.
    Damaged,
    Newer(u32),
    /// A newer version's, or damaged: its checksum is wrong.
    PerhapsNewer(u32),
    Features(u64),
    Good(Box<LabelInfo>),
}

/// The path as a label can keep it.
pub(crate) fn hint(path: &Path) -> PathBuf {
    let fits = |path: &Path| path.as_os_str().len() <= PATH_MAX;
    let name = path.file_name().map(Path::new).filter(|name| fits(name));
    if fits(path) {
        path.to_owned()
    } else {
        name.unwrap_or(Path::new("")).to_owned()
    }
}

fn encode(label: &LabelInfo) -> RawLabel {
    let mut raw = RawLabel::new_zeroed();
    raw.magic = MAGIC;
    raw.version = U32::new(VERSION);
    raw.sequence = U64::new(label.sequence);
    raw.journal = U64::new(label.journal);
    raw.cache = U64::new(label.cache);
    raw.saved_every = U32::new(label.saved_every);
    raw.stripe = U64::new(label.stripe.bytes());
    raw.behind = U16::new(label.behind as u16);
    raw.common = U64::new(label.common);
    raw.incompatible = U64::new(features_of(label));
    if let Some(header) = label.header {
        raw.header_device = U16::new(header.device as u16);
        raw.header_at = U64::new(header.at);
    }
    if let Some(journal) = label.journal_at {
        raw.journal_device = U16::new(journal.device as u16);
        raw.journal_at = U64::new(journal.at);
    }
    raw.at = [U64::new(label.at.0), U64::new(label.at.1)];
    raw.home = [U64::new(label.home.0), U64::new(label.home.1)];
    raw.pool = label.pool.0;
    raw.device = label.own().uuid.0;
    raw.index = U16::new(label.index as u16);
    raw.devices = U16::new(label.devices.len() as u16);
    raw.granularity = encode_granularity(&label.granularity);
    raw.speed = U32::new(label.granularity.speed);
    raw.emulates[..label.emulates.len()].copy_from_slice(label.emulates.as_bytes());
    for (entry, device) in raw.table.iter_mut().zip(&label.devices) {
        encode_device(entry, device, label);
    }
    raw.crc = U32::new(crc32c(raw.as_bytes()));
    raw
}

fn encode_device(raw: &mut RawDevice, device: &LabelDevice, label: &LabelInfo) {
    let path = device.path.as_os_str().as_bytes();
    raw.device = device.uuid.0;
    raw.size = U64::new(device.size);
    raw.data = U64::new(device.data);
    raw.path_len = U16::new(path.len() as u16);
    raw.state = device.state.map_or(device.stay as u8, |state| state as u8);
    raw.vacant = u8::from(label.has_copies() && device.stay == Stay::Gone);
    raw.replaces = label.place_of(device.replaces).map_or(0, |at| at as u8 + 1);
    raw.path[..path.len()].copy_from_slice(path);
}

/// What a program must know to use the pool.
fn features_of(label: &LabelInfo) -> u64 {
    let (has_journal, has_copies) = (label.journal > 0, label.has_copies());
    let leaves = !has_copies && label.devices.iter().any(|it| it.stay != Stay::Stays);
    let features = [
        (has_journal, JOURNAL),
        (has_copies, COPIES),
        (label.behind > 0, BEHIND),
        (leaves, LEAVES),
        (has_journal && has_copies, DISKS),
        (label.is_parts(), PARTS),
        (label.is_parts() && leaves, PARTS_LEAVE),
        (label.common > 0, COMMON),
        (label.beside, BESIDE),
        (label.sums, SUMS),
    ];
    let present = features.iter().filter(|(is_present, _)| *is_present);
    present.fold(0, |all, (_, feature)| all | feature)
}

fn encode_granularity(granularity: &Granularity) -> RawGranularity {
    let (policy, modules) = match granularity.policy {
        Policy::None => (POLICY_NONE, 0),
        Policy::Optane { modules } => (POLICY_OPTANE, modules),
        Policy::Calibrated => (POLICY_CALIBRATED, 0),
    };
    RawGranularity {
        policy: U16::new(policy),
        modules: U16::new(modules),
        measured: U64::new(granularity.measured),
        writes: granularity.writes.0,
        reads: granularity.reads.0,
    }
}

fn decode_granularity(raw: &RawGranularity, speed: U32) -> Option<Granularity> {
    let policy = match (raw.policy.get(), raw.modules.get()) {
        (POLICY_NONE, 0) => Policy::None,
        (POLICY_OPTANE, modules) if modules > 0 => Policy::Optane { modules },
        (POLICY_CALIBRATED, 0) => Policy::Calibrated,
        _ => return None,
    };
    let granularity = Granularity {
        policy,
        measured: raw.measured.get(),
        writes: PieceTable(raw.writes),
        reads: PieceTable(raw.reads),
        speed: speed.get(),
    };
    let sound = granularity.writes.is_sound() && granularity.reads.is_sound();
    sound.then_some(granularity)
}

/// A name padded with zeros; `None` if it is no text, or something stands behind its end.
fn decode_name(raw: &[u8]) -> Option<String> {
    let len = raw.iter().position(|&byte| byte == 0).unwrap_or(raw.len());
    let (name, rest) = raw.split_at(len);
    let name = str::from_utf8(name).ok()?;
    let printable = !name.chars().any(char::is_control) && rest.iter().all(|&byte| byte == 0);
    printable.then(|| name.to_owned())
}

fn decode(bytes: &[u8; LABEL_SIZE as usize]) -> Copy {
    let Ok(mut raw) = RawLabel::read_from_bytes(bytes) else {
        return Copy::Damaged;
    };
    if raw.magic != MAGIC {
        return Copy::None;
    }
    let crc = raw.crc.get();
    raw.crc = U32::ZERO;
    if !site::check(crc == crc32c(raw.as_bytes())) {
        // A newer format may have its checksum elsewhere; but a turned bit may have made the
        // version, too.
        return match raw.version.get() {
            version if version > VERSION => Copy::PerhapsNewer(version),
            _ => Copy::Damaged,
        };
    }
    if raw.version.get() > VERSION {
        return Copy::Newer(raw.version.get());
    }
    let unknown = raw.incompatible.get() & !KNOWN;
    if unknown != 0 {
        return Copy::Features(unknown);
    }
    decode_table(&raw).map_or(Copy::Damaged, |label| Copy::Good(Box::new(label)))
}

/// `None` if the table contradicts itself.
fn decode_table(raw: &RawLabel) -> Option<LabelInfo> {
    let count = usize::from(raw.devices.get());
    let index = usize::from(raw.index.get());
    if index >= count || count > MAX_DEVICES || raw.table[index].device != raw.device {
        return None;
    }
    let sequence = Some(raw.sequence.get()).filter(|it| *it < SEQUENCE_END)?;
    let journal = decode_journal(raw)?;
    let is_copied = raw.incompatible.get() & COPIES != 0;
    let common = decode_common(raw)?;
    let mut devices: Vec<LabelDevice> = raw.table[..count]
        .iter()
        .enumerate()
        .map(|(place, device)| decode_device(device, journal_on(raw, place), (is_copied, common)))
        .collect::<Option<_>>()?;
    if is_copied {
        decode_replaced(raw, &mut devices)?;
        if !are_copies(&devices, common) {
            return None;
        }
    }
    let behind = decode_behind(raw)?;
    let leaves = raw.incompatible.get() & LEAVES != 0;
    let header = decode_header(raw, &devices, (index, leaves))?;
    if behind > 0 && !has_front(&devices[..count - behind], header) {
        return None;
    }
    let journal_at = decode_journal_at(raw, &devices)?;
    let repeats = (1..count).any(|i| {
        devices[..i]
            .iter()
            .any(|earlier| earlier.uuid == devices[i].uuid)
    });
    let total = devices
        .iter()
        .try_fold(common, |sum, device| sum.checked_add(device.data))?;
    if repeats || total > i64::MAX as u64 {
        return None;
    }
    Some(LabelInfo {
        pool: Uuid(raw.pool),
        index,
        sequence,
        intact: true,
        granularity: decode_granularity(&raw.granularity, raw.speed)?,
        emulates: decode_name(&raw.emulates)?,
        journal,
        beside: raw.incompatible.get() & BESIDE != 0,
        sums: raw.incompatible.get() & SUMS != 0,
        cache: raw.cache.get(),
        saved_every: raw.saved_every.get(),
        common,
        stripe: Stripe::of_label(raw.stripe.get())?,
        behind,
        at: (raw.at[0].get(), raw.at[1].get()),
        home: (raw.home[0].get(), raw.home[1].get()),
        header,
        journal_at,
        devices,
    })
}

/// `None` if the feature and the length contradict each other.
fn decode_journal(raw: &RawLabel) -> Option<u64> {
    let (len, features) = (raw.journal.get(), raw.incompatible.get());
    let is_copied = features & COPIES != 0;
    let sound = match features & JOURNAL {
        0 => len == 0,
        _ => len > 0 && len.is_multiple_of(BLOCK_SIZE),
    };
    let (is_disks, is_parts) = (features & DISKS != 0, features & PARTS != 0);
    let has_parts = len > 0 && !is_copied && raw.devices.get() > 1;
    let leaves = is_parts && features & LEAVES != 0;
    let sound = sound
        && is_disks == (len > 0 && is_copied)
        && leaves == (features & PARTS_LEAVE != 0)
        && !(is_parts && features & BEHIND != 0);
    let sound = sound && (len > 0 || features & BESIDE == 0);
    (sound && is_parts == has_parts).then_some(len)
}

/// `None` if the feature and the length contradict each other.
fn decode_common(raw: &RawLabel) -> Option<u64> {
    let (len, features) = (raw.common.get(), raw.incompatible.get());
    let sound = match features & COMMON {
        0 => len == 0,
        _ => len > 0 && len.is_multiple_of(BLOCK_SIZE) && features & DISKS != 0,
    };
    sound.then_some(len)
}

/// Bytes of the journal on the device at a place of the table.
fn journal_on(raw: &RawLabel, place: usize) -> u64 {
    match raw.incompatible.get() & PARTS != 0 && place > 0 {
        true => 0,
        false => raw.journal.get(),
    }
}

/// `None` if the feature and the number contradict each other.
fn decode_behind(raw: &RawLabel) -> Option<usize> {
    let (behind, features) = (raw.behind.get(), raw.incompatible.get());
    let sound = match features & BEHIND {
        0 => behind == 0,
        _ => behind > 0 && behind < raw.devices.get() && features & COPIES == 0,
    };
    sound.then_some(behind.into())
}

/// Whether one of the devices in front stays, and has the pool's header if that has moved.
fn has_front(front: &[LabelDevice], header: Option<OnDevice>) -> bool {
    let stays = front.iter().any(|it| it.stay == Stay::Stays);
    stays && header.is_none_or(|header| header.device < front.len())
}

/// `None` if what a label says of devices that leave contradicts itself.
fn decode_header(
    raw: &RawLabel,
    devices: &[LabelDevice],
    (own, leaves): (usize, bool),
) -> Option<Option<OnDevice>> {
    let place = OnDevice {
        device: raw.header_device.get().into(),
        at: raw.header_at.get(),
    };
    let is_told = place.device != 0 || place.at != 0;
    let all_stay = devices
        .iter()
        .all(|it| it.stay == Stay::Stays || it.state.is_some());
    let leaving = devices.iter().filter(|it| it.stay == Stay::Leaves).count();
    if all_stay == leaves || leaving > 1 || devices[own].stay == Stay::Gone {
        return None;
    }
    if devices[0].stay != Stay::Gone || devices[0].state.is_some() {
        return (!is_told).then_some(None);
    }
    fits(place, BLOCK_SIZE, devices).then_some(Some(place))
}

/// `None` if what a label says of a journal that has moved contradicts itself.
fn decode_journal_at(raw: &RawLabel, devices: &[LabelDevice]) -> Option<Option<OnDevice>> {
    let place = OnDevice {
        device: raw.journal_device.get().into(),
        at: raw.journal_at.get(),
    };
    let has_moved = raw.incompatible.get() & PARTS != 0 && devices[0].stay == Stay::Gone;
    match (has_moved, place.device != 0 || place.at != 0) {
        (false, is_told) => (!is_told).then_some(None),
        (true, _) => fits(place, raw.journal.get(), devices).then_some(Some(place)),
    }
}

/// Whether so many bytes can lie there.
fn fits(place: OnDevice, len: u64, devices: &[LabelDevice]) -> bool {
    let host = devices.get(place.device);
    let host = host.filter(|host| host.stay != Stay::Gone);
    let room = host.and_then(|host| host.data.checked_sub(place.at));
    place.at.is_multiple_of(BLOCK_SIZE) && room.is_some_and(|room| len <= room)
}

/// Notes which copies go for which others. `None` if that is no copy that is there.
fn decode_replaced(raw: &RawLabel, devices: &mut [LabelDevice]) -> Option<()> {
    for (index, entry) in raw.table[..devices.len()].iter().enumerate() {
        let Some(old) = usize::from(entry.replaces).checked_sub(1) else {
            continue;
        };
        let old = devices.get(old).filter(|it| it.stay == Stay::Stays)?.uuid;
        if old == devices[index].uuid || devices[index].stay != Stay::Stays {
            return None;
        }
        devices[index].replaces = Some(old);
    }
    Some(())
}

/// Whether devices can hold the same.
fn are_copies(devices: &[LabelDevice], common: u64) -> bool {
    let is_current = |device: &LabelDevice| device.state == Some(LegState::Current);
    devices.len() <= most_places(common)
        && (common > 0 || devices.iter().all(|device| device.data == devices[0].data))
        && devices.iter().any(is_current)
}

fn decode_device(
    raw: &RawDevice,
    journal: u64,
    (copies, common): (bool, u64),
) -> Option<LabelDevice> {
    let path = raw.path.get(..usize::from(raw.path_len.get()))?;
    let (size, data) = (raw.size.get(), raw.data.get());
    let room = data_len(size.checked_sub(journal)?)?.checked_sub(common)?;
    let state = match copies {
        true => Some(LegState::of(raw.state)?),
        false => None,
    };
    let stay = match (copies, raw.vacant) {
        (true, 0) => Stay::Stays,
        (true, 1) if state == Some(LegState::Failed) => Stay::Gone,
        (true, _) => return None,
        (false, _) => Stay::of(raw.state)?,
    };
    let sound = match copies {
        true => data <= room && data + common > 0 && data.is_multiple_of(BLOCK_SIZE),
        false => data == room,
    };
    if !sound {
        return None;
    }
    Some(LabelDevice {
        uuid: Uuid(raw.device),
        size,
        data,
        path: PathBuf::from(OsString::from_vec(path.to_vec())),
        state,
        stay,
        replaces: None,
    })
}

/// A mapping of the device that holds the label copy at `at`.
pub(crate) fn window(device: &Arc<Device>, at: u64) -> Result<Media, VolumeError> {
    let granule = device.granule().max(LABEL_SIZE);
    let window = Media::map(device, DeviceOffset(at & !(granule - 1)), granule, None)?;
    #[cfg(feature = "explore")]
    crate::tap::watch(device.path(), &window);
    Ok(window)
}

/// The copy at `at`; none if the device ends before.
fn read_copy(device: &Arc<Device>, at: u64) -> Result<Copy, VolumeError> {
    let granule = device.granule().max(LABEL_SIZE);
    if (at & !(granule - 1)) + granule > device.len() {
        return Ok(Copy::None);
    }
    let mut bytes = [0; LABEL_SIZE as usize];
    // A mapping takes ten calls more; but only by it are all kinds of devices read, and bad places.
    match pread(device.fd(), &mut bytes, at) {
        Ok(len) if len == bytes.len() => {}
        // It was cut: who touches a mapping there gets a signal.
        Ok(_) if device.is_cut() => return Ok(Copy::None),
        _ => bytes = window(device, at)?.read_array(DeviceOffset(at)),
    }
    Ok(decode(&bytes))
}

/// Reads the label of a device: the newer intact copy. Checks that the device is as long as its
/// label says.
pub(crate) fn read(device: &Arc<Device>) -> Result<LabelInfo, VolumeError> {
    let path = || device.path().to_owned();
    let first = read_copy(device, 0)?;
    let size = if let Copy::Good(label) = &first {
        label.own().size
    } else {
        device.len()
    };
    if size > device.len() {
        return Err(VolumeError::Truncated {
            path: path(),
            actual: device.len(),
            recorded: size,
        });
    }
    let second = second_copy(size).map_or(Ok(Copy::None), |at| read_copy(device, at))?;
    match (first, second) {
        (Copy::Newer(found), _) | (_, Copy::Newer(found)) => Err(VolumeError::NewerVersion {
            path: path(),
            found,
        }),
        (Copy::Features(features), _) | (_, Copy::Features(features)) => {
            Err(VolumeError::UnknownFeatures {
                path: path(),
                features,
            })
        }
        (Copy::Good(first), Copy::Good(second)) => Ok(newer(*first, *second)),
        (Copy::Good(label), _) | (_, Copy::Good(label)) => Ok(LabelInfo {
            intact: false,
            ..*label
        }),
        (Copy::None, Copy::None) if is_unreadable(device) => Err(VolumeError::Unreadable(path())),
        (Copy::None, Copy::None) => Err(VolumeError::NotAPool {
            path: path(),
            is_blank: blank(device)?,
        }),
        (Copy::PerhapsNewer(found), Copy::None) => Err(VolumeError::NewerVersion {
            path: path(),
            found,
        }),
        (Copy::PerhapsNewer(found), Copy::PerhapsNewer(second)) if found == second => {
            Err(VolumeError::NewerVersion {
                path: path(),
                found,
            })
        }
        _ => Err(VolumeError::LabelsDamaged(path())),
    }
}

/// Whether a device gives errors where it begins. Those that cannot be read by calls are not asked.
fn is_unreadable(device: &Device) -> bool {
    pread(device.fd(), &mut [0; MAGIC.len()], 0) == Err(Errno::IO)
}

fn newer(first: LabelInfo, second: LabelInfo) -> LabelInfo {
    let intact = first == second;
    let label = if second.sequence > first.sequence {
        second
    } else {
        first
    };
    LabelInfo { intact, ..label }
}

/// Whether both copies are whole, and of this device of this pool; they may differ.
pub(crate) fn are_of(device: &Arc<Device>, pool: Uuid, uuid: Uuid) -> bool {
    let own = |at| match read_copy(device, at) {
        Ok(Copy::Good(label)) if label.pool == pool && label.own().uuid == uuid => Some(label),
        _ => None,
    };
    own(0).is_some_and(|first| {
        let second = second_copy(first.own().size);
        second.is_none_or(|at| own(at).is_some())
    })
}

/// Whether a device still begins as one of a pool does, also while its label is being written. What
/// else is written to a device begins there as a rule. One that cannot be read tells nothing.
pub(crate) fn begins_as_one(device: &Arc<Device>) -> bool {
    let mut magic = [0; MAGIC.len()];
    match pread(device.fd(), &mut magic, 0) {
        Ok(_) => magic == MAGIC,
        Err(_) => !matches!(read_copy(device, 0), Ok(Copy::None)),
    }
}

/// Whether anything on the device looks like a label, intact or not.
pub(crate) fn present(device: &Arc<Device>) -> Result<bool, VolumeError> {
    match read(device) {
        Err(VolumeError::NotAPool { .. }) => Ok(false),
        Err(error @ (VolumeError::Media(_) | VolumeError::Unreadable(_))) => Err(error),
        _ => Ok(true),
    }
}

/// Whether the device is a disk, which cannot be stored to in order.
pub(crate) fn is_on_disk(device: &Arc<Device>) -> Result<bool, VolumeError> {
    Ok(kind(device)? == DeviceKind::CachedFile)
}

/// What the device is.
pub(crate) fn kind(device: &Arc<Device>) -> Result<DeviceKind, VolumeError> {
    Ok(window(device, 0)?.kind())
}

/// Whether the first and the last 4 KiB hold nothing but zeros. What is shorter is not looked at:
/// it is blank if it is empty.
pub(crate) fn blank(device: &Arc<Device>) -> Result<bool, VolumeError> {
    if device.len() < device.granule().max(LABEL_SIZE) {
        return Ok(device.is_empty());
    }
    for at in [Some(0), second_copy(device.len())].into_iter().flatten() {
        let bytes: [u8; LABEL_SIZE as usize] = window(device, at)?.read_array(DeviceOffset(at));
        if bytes.iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Writes both copies of a label, each durable before the next: first the one that says less, so
/// that the other one is there if this is cut short.
pub(crate) fn write(device: &Arc<Device>, label: &LabelInfo) -> Result<(), VolumeError> {
    let at = match label.has_copies() {
        true => device.identity().numbers(),
        false => (0, 0),
    };
    let label = LabelInfo {
        at,
        ..label.clone()
    };
    put_copies(device, label.own().size, encode(&label).as_bytes())
}

/// Whether the first copy does not say what the label is: a crash came between the two, or there is
/// none. A device that gets its first label begins as one of a pool before anything else of it says
/// so: else it would seem to be written over.
fn first_counts_less(device: &Arc<Device>, second: u64) -> Result<bool, VolumeError> {
    let sequence = |copy: Copy| match copy {
        Copy::Good(label) => Some(label.sequence),
        _ => None,
    };
    let [first, second] = [read_copy(device, 0)?, read_copy(device, second)?].map(sequence);
    Ok(first.is_none() || second > first)
}

/// Destroys both copies of a label on a device of `size` bytes.
pub(crate) fn erase(device: &Arc<Device>, size: u64) -> Result<(), VolumeError> {
    put_copies(device, size, &[0; LABEL_SIZE as usize])
}

/// Makes a range beside labels zeros, durably.
pub(crate) fn wipe(device: &Arc<Device>, range: Range<u64>) -> Result<(), VolumeError> {
    let granule = device.granule().max(LABEL_SIZE);
    let first = range.start & !(granule - 1);
    let len = (range.end - first).next_multiple_of(granule);
    let window = Media::map(device, DeviceOffset(first), len, None)?;
    #[cfg(feature = "explore")]
    crate::tap::watch(device.path(), &window);
    let zeros = vec![0; (range.end - range.start) as usize];
    let stored: Unfenced = window.write(DeviceOffset(range.start), &zeros, StoreKind::Metadata);
    let fenced = window.fence(stored);
    fenced.map_err(|_| VolumeError::WriteFailed(device.path().to_owned()))
}

/// Where the copies of a label are, in the order in which they are written.
fn order(device: &Arc<Device>, size: u64) -> Result<Vec<u64>, VolumeError> {
    let second = second_copy(size);
    let mut order: Vec<u64> = second.into_iter().chain([0]).collect();
    if let Some(second) = second
        && site::step()
        && first_counts_less(device, second)?
    {
        order.reverse();
    }
    Ok(order)
}

fn put_copies(device: &Arc<Device>, size: u64, bytes: &[u8]) -> Result<(), VolumeError> {
    for at in order(device, size)? {
        let window = window(device, at)?;
        let stored: Unfenced = window.write(DeviceOffset(at), bytes, StoreKind::Metadata);
        window
            .fence(stored)
            .map_err(|_| VolumeError::WriteFailed(device.path().to_owned()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
