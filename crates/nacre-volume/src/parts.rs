//! Pools of disks that each hold a part, behind one image (D77).

use std::sync::Arc;

use nacre_media::{Access, AddressRange, DeviceKind, Media, Policy};
use nacre_types::{DeviceOffset, Uuid, VolumeOffset};

use crate::cache::Cache;
use crate::create::{Caching, CreateOptions};
use crate::disk::{PartDisk, PartsDisk};
use crate::error::VolumeError;
use crate::label;
use crate::layout::{DATA_START, data_len, journal_len};
use crate::placement::{Arrangement, Stripe};
use crate::segment::{Closed, Role};
use crate::volume::{DeviceInfo, Part, Segment, Volume};

/// Whether devices of these kinds can be parts behind one image. Others are used as they are.
fn fit(kinds: &[DeviceKind], caching: Caching) -> bool {
    let alike = kinds.iter().all(|kind| *kind == kinds[0]);
    match caching {
        Caching::Never => false,
        Caching::Disks => alike && kinds[0] == DeviceKind::CachedFile,
        Caching::Always => {
            alike && !matches!(kinds[0], DeviceKind::DevDax | DeviceKind::HugePageFile)
        }
    }
}

/// Gives the first of several parts a journal, if they are to have one and there is room.
pub(crate) fn add_journal(
    parts: &mut [Part],
    size: u64,
    options: CreateOptions,
) -> Result<(), VolumeError> {
    let kinds = parts.iter().map(|part| label::kind(&part.device));
    let kinds: Vec<DeviceKind> = kinds.collect::<Result<_, _>>()?;
    let journal = journal_len(size);
    let first = size.checked_sub(journal).and_then(data_len);
    let (Some(first), true) = (first, fit(&kinds, options.caching)) else {
        return Ok(());
    };
    let others = parts[1..].iter().map(|part| part.data);
    if first + others.sum::<u64>() < options.least {
        return Ok(());
    }
    parts[0].data = first;
    for part in parts {
        part.journal = journal;
        if options.granularity.is_none() {
            // What is stored to an image in memory is not cut, whatever lies behind it.
            part.granularity.policy = Policy::None;
        }
    }
    Ok(())
}

/// Gives a device that is added what the others of a pool on disks have.
pub(crate) fn join(parts: &mut [Part], options: CreateOptions) -> Result<(), VolumeError> {
    let Some((new, old)) = parts.split_last_mut() else {
        return Ok(());
    };
    let first = old.first().ok_or(VolumeError::NoDevices)?;
    let kinds = [label::kind(&first.device)?, label::kind(&new.device)?];
    if !fit(&kinds, Caching::Always) {
        return Err(VolumeError::Journaled(new.device.path().into()));
    }
    (new.journal, new.cache, new.saved_every) = (first.journal, first.cache, first.saved_every);
    if options.granularity.is_none() {
        new.granularity.policy = Policy::None;
    }
    Ok(())
}

impl Volume {
    /// The disks behind the image that hold each a part; `None` for other pools.
    pub(crate) fn parts_on_disks(&self) -> Option<&Arc<PartsDisk>> {
        self.cache.as_ref()?.disk.parts()
    }

    /// As [`Volume::assemble`], of disks behind an image.
    pub(crate) fn assemble_parts(
        pool: Uuid,
        stripe: Stripe,
        parts: &[Part],
    ) -> Result<Self, VolumeError> {
        let first = parts.first().ok_or(VolumeError::NoDevices)?;
        let data = parts.iter().map(|part| part.data).sum();
        let writable = first.device.access() == Access::ReadWrite;
        let disk = PartsDisk::new(parts, writable);
        let cache = Cache::of_parts(&first.device, disk, data, first.wish());
        let at = DeviceOffset(DATA_START);
        let place = AddressRange::reserve(data)?;
        let segment = Segment {
            media: Media::map_behind_image(&first.device, at, data, Some(place))?,
            start: 0,
            end: data,
            device: first.uuid,
            granularity: first.granularity,
            role: Role::Device(Default::default()),
        };
        let owned = (pool, first.device.owner());
        let arrangement = Arrangement { stripe, behind: 0 };
        Self::of(
            vec![segment],
            owned,
            (arrangement, Closed::default()),
            Some(cache),
        )
    }

    pub(crate) fn infos_of_parts(&self, parts: &PartsDisk) -> Vec<DeviceInfo> {
        let info = |disk: &PartDisk| DeviceInfo {
            path: disk.device.path().to_owned(),
            identity: Some(disk.device.identity()),
            size: disk.device.len(),
            granularity: disk.granularity,
            range: VolumeOffset(disk.range.start)..VolumeOffset(disk.range.end),
            ..self.head.info_of(&self.head.media, disk.uuid)
        };
        parts.disks().iter().map(info).collect()
    }
}
