//! Devices of a pool must be of one moment. Each keeps the number of the use of the pool that it
//! was last part of: one that was put back from an older copy has a lower one. If it holds a part,
//! the pool is refused. If it is a copy, it is one no more: its label does not tell, as labels
//! change with the table alone. Disks that hold the same tell it by their journals.
//!
//! A number is on all devices, durably, before it is *common* on any. So no device is ever behind
//! a common number, wherever a crash comes.

use std::sync::Arc;

use nacre_media::{Access, Device, LegFacts, LegState, Mirror, Unfenced};
use nacre_types::{DeviceOffset, StoreKind, Uuid, crc32c};
use zerocopy::{FromBytes, IntoBytes};

use crate::error::VolumeError;
use crate::label::{self, window};
use crate::layout::{GENERATION_AT, RawGeneration};
use crate::volume::Volume;

const CRC_AT: usize = std::mem::offset_of!(RawGeneration, crc);
const BYTES: usize = size_of::<RawGeneration>();

/// What one device says.
#[derive(Clone, Copy)]
struct Known {
    number: u64,
    is_common: bool,
}

/// One of the devices.
struct Part {
    device: Arc<Device>,
    uuid: Uuid,
    /// `None`: it is new, or was last used by a version that knew nothing of this.
    known: Option<Known>,
}

impl Volume {
    /// Refuses devices of which one is of an earlier moment than the others. The caller holds the
    /// pool's exclusive lock.
    pub fn refuse_older_devices(&self) -> Result<(), VolumeError> {
        // Who may only read can drop no copy.
        match (self.mirror(), self.access()) {
            (Some(_), Access::ReadWrite) => Ok(()),
            _ => refuse_older(&self.parts_of_one_moment()?),
        }
    }

    /// Copies in memory that are of an earlier moment than others have failed. The caller is as
    /// that of [`Volume::begin_use`], and has made what processes share.
    pub fn drop_older_copies(&self) -> Result<(), VolumeError> {
        let Some(mirror) = self.mirror() else {
            return Ok(());
        };
        let parts = self.parts_of_one_moment()?;
        let older: Vec<[u8; 16]> = older(&parts).map(|part| part.uuid.0).collect();
        let is_older = |fact: &LegFacts| older.contains(&fact.id);
        for leg in mirror.facts().into_iter().filter(is_older) {
            mirror.lose(leg.slot, LegState::Failed);
        }
        self.tell_missing(mirror)
    }

    /// What a device says of its moment does not count: it gets what it lacks.
    pub(crate) fn forget_moment(&self, device: &Arc<Device>) -> Result<(), VolumeError> {
        put(device, &[0; BYTES])
    }

    /// A use of the pool begins, by the caller, who is alone and holds the pool's exclusive lock.
    pub fn begin_use(&self) -> Result<(), VolumeError> {
        let parts = self.parts_of_one_moment()?;
        refuse_older(&parts)?;
        match self.number(&parts) {
            // A device that takes nothing is used as far as it goes. Common stays the older number.
            Err(VolumeError::WriteFailed(_)) => Ok(()),
            done => done,
        }
    }

    /// From now on the devices count as of one moment. The caller is as that of
    /// [`Volume::begin_use`].
    pub fn take_as_one_moment(&self) -> Result<(), VolumeError> {
        self.number(&self.parts_of_one_moment()?)
    }

    /// The devices that each hold a part, or all of it in memory and are current, if they are
    /// several.
    fn parts_of_one_moment(&self) -> Result<Vec<Part>, VolumeError> {
        let devices = match (self.mirror(), self.legs()) {
            (Some(mirror), _) => self.current_devices(mirror)?,
            (None, Some(_)) => Vec::new(),
            (None, None) => self.fixed_devices(),
        };
        match devices.len() {
            0 | 1 => Ok(Vec::new()),
            _ => devices.into_iter().map(|it| self.part(it)).collect(),
        }
    }

    fn current_devices(&self, mirror: &Mirror) -> Result<Vec<Arc<Device>>, VolumeError> {
        let table = self.table_of(mirror)?;
        let is_current = |id: [u8; 16]| {
            let mut entries = table.devices.iter();
            entries.any(|it| it.uuid.0 == id && it.state == Some(LegState::Current))
        };
        let legs = mirror.facts().into_iter();
        let current = legs.filter(|leg| is_current(leg.id) && leg.state == LegState::Current);
        Ok(current.filter_map(|leg| leg.device).collect())
    }

    fn part(&self, device: Arc<Device>) -> Result<Part, VolumeError> {
        let uuid = label::read(&device)?.own().uuid;
        let bytes: [u8; BYTES] =
            window(&device, GENERATION_AT)?.read_array(DeviceOffset(GENERATION_AT));
        let raw = RawGeneration::read_from_bytes(&bytes).ok();
        let own = raw.filter(|raw| {
            let is_whole = raw.crc.get() == crc32c(&bytes[..CRC_AT]);
            is_whole && (raw.pool, raw.device) == (self.uuid().0, uuid.0)
        });
        let known = own.map(|raw| Known {
            number: raw.number.get(),
            is_common: raw.common.get() != 0,
        });
        Ok(Part {
            device,
            uuid,
            known,
        })
    }

    /// Gives all devices the next number.
    fn number(&self, parts: &[Part]) -> Result<(), VolumeError> {
        let numbers = parts.iter().filter_map(|part| Some(part.known?.number));
        let number = numbers.max().unwrap_or(0).wrapping_add(1);
        for is_common in [false, true] {
            for part in parts {
                self.write_number(part, Known { number, is_common })?;
            }
        }
        Ok(())
    }

    fn write_number(&self, part: &Part, known: Known) -> Result<(), VolumeError> {
        let mut raw = RawGeneration {
            pool: self.uuid().0,
            device: part.uuid.0,
            number: known.number.into(),
            common: u32::from(known.is_common).into(),
            crc: 0.into(),
        };
        raw.crc = crc32c(&raw.as_bytes()[..CRC_AT]).into();
        put(&part.device, raw.as_bytes())
    }
}

fn put(device: &Arc<Device>, bytes: &[u8]) -> Result<(), VolumeError> {
    let window = window(device, GENERATION_AT)?;
    let at = DeviceOffset(GENERATION_AT);
    let stored: Unfenced = window.write(at, bytes, StoreKind::Metadata);
    let fenced = window.fence(stored);
    fenced.map_err(|_| VolumeError::WriteFailed(device.path().to_owned()))
}

fn refuse_older(parts: &[Part]) -> Result<(), VolumeError> {
    match older(parts).next() {
        Some(older) => Err(VolumeError::OlderDevice(older.device.path().to_owned())),
        None => Ok(()),
    }
}

/// Those that were not part of the newest use.
fn older(parts: &[Part]) -> impl Iterator<Item = &Part> {
    let all = parts.iter().filter_map(|part| Some((part, part.known?)));
    let common = all.clone().filter(|(_, known)| known.is_common);
    let newest = common.map(|(_, known)| known.number).max();
    let older = all.filter(move |(_, known)| Some(known.number) < newest);
    older.map(|(part, _)| part)
}
