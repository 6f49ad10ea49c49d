//! Pools of disks that each hold a part, behind one image (D77).

use std::sync::Arc;

use nacre_media::{Access, AddressRange, Media};
use nacre_types::{DeviceOffset, Uuid, VolumeOffset};

use crate::disk::cache::Cache;
use crate::disk::{PartDisk, PartsDisk};
use crate::error::VolumeError;
use crate::label::Gone;
use crate::label::placement::{Arrangement, Stripe};
use crate::layout::DATA_START;
use crate::volume::segment::{Closed, Role, Span, spans};
use crate::volume::{DeviceInfo, Part, Segment, Volume};

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
        gone: &Gone,
    ) -> Result<Self, VolumeError> {
        let first = parts.first().ok_or(VolumeError::NoDevices)?;
        let spans = spans(parts, gone)?;
        let data = spans.last().map_or(0, |last| last.end);
        let cache = cache_of(parts, &spans, gone)?;
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
            (arrangement, Closed::of(&spans, gone, first.journal)),
            Some(cache),
        )
    }

    /// Makes an empty journal where it is to lie from now on, durably.
    pub(crate) fn make_journal(pool: Uuid, parts: &[Part], gone: &Gone) -> Result<(), VolumeError> {
        cache_of(parts, &spans(parts, gone)?, gone)?.format(pool)
    }

    pub(crate) fn infos_of_parts(&self, parts: &PartsDisk) -> Vec<DeviceInfo> {
        let info = |disk: &PartDisk| DeviceInfo {
            path: disk.device.path().to_owned(),
            identity: Some(disk.device.identity()),
            size: disk.device.len(),
            granularity: disk.granularity,
            is_leaving: disk.leaves,
            range: VolumeOffset(disk.range.start)..VolumeOffset(disk.range.end),
            ..self.head.info_of(&self.head.media, disk.uuid)
        };
        parts.disks().iter().map(info).collect()
    }
}

/// The disks of a pool with such pieces, and their journal.
fn cache_of(parts: &[Part], spans: &[Span], gone: &Gone) -> Result<Cache, VolumeError> {
    let first = parts.first().ok_or(VolumeError::NoDevices)?;
    let data = spans.last().map_or(0, |last| last.end);
    let writable = first.device.access() == Access::ReadWrite;
    let held = |part: &Part| (part.uuid, Arc::clone(&part.device), part.granularity);
    let held = parts.iter().map(held);
    let disk = PartsDisk::new(held, (spans, gone), first.journal, writable);
    Ok(Cache::of_parts(&first.device, disk, data, first.wish()))
}
