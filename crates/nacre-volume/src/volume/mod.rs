//! The open volume and what is known of it. Its data path is in `data`.

mod data;
pub(crate) mod names;
pub(crate) mod segment;

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use nacre_media::{
    Access, AddressRange, DeviceIdentity, DeviceKind, FlushMethod, Granularity, Media, MediaFailed,
    Mirror, Observer, Owner, Policy, SEALS_AT, SharedTraffic, Survives,
};
use nacre_types::{
    BLOCK_SIZE, DeviceOffset, UNIT_SHIFT, UNIT_SIZE, Uuid, VolumeOffset, mount_table,
};

use crate::disk::cache::Cache;
use crate::error::VolumeError;
use crate::label::Gone;
use crate::label::placement::{Arrangement, Placement, Stripe};
use crate::label::stay::Stay;
use crate::layout::{DATA_START, RESERVED_START};
use crate::volume::segment::{Closed, Role, map_all, spans};
pub(crate) use crate::volume::segment::{Part, Segment};

/// One or more mapped devices as one contiguous address space, from volume offset 0 to
/// [`Volume::len`].
///
/// The data of all devices lies side by side in the process's addresses too.
#[derive(Debug)]
pub struct Volume {
    /// The first device, apart: most pools have no other.
    pub(crate) head: Segment,
    pub(crate) rest: Vec<Segment>,
    /// Those behind these, which hold what is cold (D68). Nothing is stored to them but by
    /// [`Volume::write_behind`].
    pub(crate) behind: Vec<Segment>,
    pool: Uuid,
    owner: Owner,
    /// The disk behind the image, where there is one.
    pub(crate) cache: Option<Cache>,
    placement: Option<Placement>,
    /// Which units nobody gets.
    pub(crate) closed: Closed,
    /// There is a placement, an image, a device behind or one that leaves.
    special: AtomicBool,
    /// With copies: what it is in the running system, whichever of them are there.
    home: Option<DeviceIdentity>,
    /// Of the table that told its devices; `None` if no label did.
    pub(crate) sequence: Option<u64>,
    /// Devices that this process has repaired before it used them.
    pub(crate) repaired: OnceLock<Vec<PathBuf>>,
}

/// What is known of one device of an open volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    /// Where it was found; empty for anonymous memory.
    pub path: PathBuf,
    /// Its identity in the pool.
    pub uuid: Uuid,
    /// Its identity in the running system; `None` for anonymous memory.
    pub identity: Option<DeviceIdentity>,
    /// What it is.
    pub kind: DeviceKind,
    /// How stores become durable on it.
    pub flush: FlushMethod,
    /// Bytes of the whole device.
    pub size: u64,
    /// In which sizes it is written and read, as its label says.
    pub granularity: Granularity,
    /// The part of the volume that it holds.
    pub range: Range<VolumeOffset>,
    /// Whether it stands behind others and holds what is cold.
    pub is_behind: bool,
    /// Whether it is leaving the pool.
    pub is_leaving: bool,
}

/// What of a device can be measured.
#[derive(Debug)]
pub struct ProvingGround<'a> {
    /// A mapping of the device's start.
    pub reserved: Media,
    /// The part of it that holds nothing.
    pub range: Range<DeviceOffset>,
    /// The device's data.
    pub data: &'a Media,
}

impl Volume {
    /// Maps the parts, at least one, side by side.
    pub(crate) fn assemble(
        pool: Uuid,
        arrangement: Arrangement,
        parts: &[Part],
        gone: &Gone,
    ) -> Result<Self, VolumeError> {
        if parts.len() + gone.entries.len() > 1 && parts[0].journal > 0 {
            return Self::assemble_parts(pool, arrangement.stripe, parts, gone);
        }
        let segments = map_all(parts, gone)?;
        let owner = parts[0].device.owner();
        let cache = parts[0].cache(segments[0].media.kind())?;
        let closed = Closed::of(&spans(parts, gone)?, gone, 0);
        Self::of(segments, (pool, owner), (arrangement, closed), cache)
    }

    /// Anonymous memory of `len` bytes (rounded up to 4 MiB), for tests: inherited by children,
    /// lost with the last of them.
    pub fn memory(len: u64) -> Result<Self, VolumeError> {
        Self::memories(&[len], Arrangement::default())
    }

    /// As [`Volume::memory`], of several devices of so many bytes each.
    pub fn memories(lens: &[u64], arrangement: Arrangement) -> Result<Self, VolumeError> {
        let lens: Vec<u64> = lens
            .iter()
            .map(|&len| len.max(1).next_multiple_of(BLOCK_SIZE))
            .collect();
        let mut place = AddressRange::reserve(lens.iter().sum())?;
        let mut segments: Vec<Segment> = Vec::with_capacity(lens.len());
        for len in lens {
            let rest = place.split_off(len as usize);
            let start = segments.last().map_or(0, |before| before.end);
            segments.push(Segment {
                media: Media::memory_at(len, place)?,
                start,
                end: start + len,
                device: Uuid::random(),
                granularity: Granularity::default(),
                role: Role::Device(Stay::Stays),
            });
            place = rest;
        }
        let owner = Owner {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            mode: 0o600,
        };
        let arranged = (arrangement, Closed::default());
        Self::of(segments, (Uuid::random(), owner), arranged, None)
    }

    /// Of devices that hold the same, behind one window.
    pub(crate) fn of_copies(
        segment: Segment,
        owned: (Uuid, Owner),
        home: DeviceIdentity,
        (arrangement, cache): (Arrangement, Option<Cache>),
    ) -> Result<Self, VolumeError> {
        let legs = cache.as_ref().and_then(|cache| cache.disk.legs());
        let own = legs.and_then(|legs| legs.own());
        let closed = own.map_or_else(Closed::default, |own| Closed::of_holes(own.holes()));
        Ok(Self {
            home: Some(home),
            ..Self::of(vec![segment], owned, (arrangement, closed), cache)?
        })
    }

    pub(crate) fn of(
        mut segments: Vec<Segment>,
        (pool, owner): (Uuid, Owner),
        (Arrangement { stripe, behind }, mut closed): (Arrangement, Closed),
        cache: Option<Cache>,
    ) -> Result<Self, VolumeError> {
        closed.add_sums(cache.as_ref());
        let front = segments.len().saturating_sub(behind);
        let behind = segments.split_off(front);
        let is_real = |segment: &&Segment| segment.role.is_device();
        let spread = || {
            let is_header = |it: &&Segment| matches!(it.role, Role::Header(_));
            segments.iter().filter(move |it| !is_header(it))
        };
        let ends: Vec<u64> = spread().map(|segment| segment.end).collect();
        let speed = |it: &Segment| it.role.is_device().then_some(it.granularity.speed);
        let speeds: Vec<Option<u32>> = spread().map(speed).collect();
        let parts = cache.as_ref().and_then(|cache| cache.disk.parts());
        let own = cache.as_ref().and_then(|cache| cache.disk.legs()?.own());
        let own = own.and_then(|own| {
            let ends = own.parts().iter().map(|part| part.end - DATA_START);
            Placement::behind(own.common_end() - DATA_START, stripe, ends)
        });
        let placement = match (parts, segments.iter().filter(is_real).count()) {
            (Some(parts), _) => Placement::of(stripe, parts.ends().into_iter()),
            (None, 0 | 1) => own,
            (None, _) => {
                Placement::of(stripe, ends.into_iter()).map(|all| all.with_speeds(&speeds))
            }
        };
        let head = match segments.is_empty() {
            true => return Err(VolumeError::NoDevices),
            false => segments.remove(0),
        };
        Ok(Self {
            head,
            rest: segments,
            special: AtomicBool::new(
                placement.is_some() || !behind.is_empty() || closed.leaving.is_some(),
            ),
            closed,
            behind,
            pool,
            owner,
            cache,
            home: None,
            sequence: None,
            repaired: OnceLock::new(),
            placement,
        })
    }

    pub(crate) fn segments(&self) -> impl Iterator<Item = &Segment> {
        std::iter::once(&self.head)
            .chain(&self.rest)
            .chain(&self.behind)
    }

    /// The devices, without what those that were removed have left.
    pub(crate) fn real_segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments().filter(|segment| segment.role.is_device())
    }

    /// Bytes, a multiple of 4 MiB.
    #[inline]
    pub fn len(&self) -> u64 {
        self.behind
            .last()
            .map_or(self.front_len(), |segment| segment.end)
    }

    /// As [`Volume::len`], without the devices behind the others.
    #[inline]
    pub fn front_len(&self) -> u64 {
        self.rest.last().unwrap_or(&self.head).end
    }

    /// Units of [`Volume::front_len`].
    #[inline]
    pub fn front_units(&self) -> u64 {
        self.front_len() >> UNIT_SHIFT
    }

    /// Whether there are devices behind the others.
    #[inline]
    pub fn has_behind(&self) -> bool {
        let mut behind = self.behind.iter();
        behind.any(|segment| segment.role.is_device())
    }

    /// Never: a volume has at least one block.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Units of 4 KiB.
    #[inline]
    pub fn units(&self) -> u64 {
        self.len() >> UNIT_SHIFT
    }

    /// Identity of the pool, random for each pool that is created.
    pub const fn uuid(&self) -> Uuid {
        self.pool
    }

    /// How it was opened.
    pub const fn access(&self) -> Access {
        self.head.media.access()
    }

    /// Owner and permissions of the pool: those of its first device's file.
    pub const fn owner(&self) -> Owner {
        self.owner
    }

    /// Path of its first device; empty for anonymous memory.
    pub fn path(&self) -> &Path {
        self.head
            .media
            .device()
            .map_or(Path::new(""), |device| device.path())
    }

    /// Identity of the first device in the running system. A copy of a pool has the same
    /// [`Volume::uuid`], but not this.
    pub fn identity(&self) -> Option<DeviceIdentity> {
        let first = || self.head.media.device().map(|device| device.identity());
        self.home.or_else(first)
    }

    /// The same as text, for those who begin later to know the pool by.
    pub fn identity_text(&self) -> Option<String> {
        let (device, inode) = self.identity()?.numbers();
        Some(mount_table::identity(device, inode))
    }

    /// One number for the identities of all devices in the running system, in volume order. It
    /// tells a pool from its copies.
    pub fn identities(&self) -> u64 {
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        let mix = |all: u64, word: u64| (all ^ word).wrapping_mul(FACTOR).rotate_left(29);
        let devices = || {
            self.fixed_devices()
                .iter()
                .map(|it| it.identity())
                .collect()
        };
        let identities: Vec<DeviceIdentity> = self.home.map_or_else(devices, |home| vec![home]);
        identities
            .into_iter()
            .map(DeviceIdentity::numbers)
            .fold(FACTOR, |all, (device, inode)| mix(mix(all, device), inode))
    }

    /// The kernel fds of all devices, and of a disk's image and journal.
    ///
    /// In steps: of one long iterator the compiler makes code that Valgrind complains of.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let segments = self.real_segments();
        let mut all: Vec<_> = segments.filter_map(|one| one.media.fd()).collect();
        if let Some(mirror) = self.mirror() {
            all.extend(mirror.mapped().filter_map(|(_, leg)| leg.fd()));
        }
        if let Some(cache) = &self.cache {
            all.extend(cache.fds());
        }
        all
    }

    /// The devices over which data is spread, if it is.
    #[inline]
    pub fn placement(&self) -> Option<&Placement> {
        self.placement.as_ref()
    }

    /// How data is spread over the devices.
    pub fn stripe(&self) -> Stripe {
        self.placement
            .as_ref()
            .map_or(Stripe::None, |it| Stripe::Bytes(it.stripe() << UNIT_SHIFT))
    }

    /// Whether who takes and frees units has to look at [`Volume::placement`],
    /// [`Volume::has_image`] and [`Volume::has_behind`].
    #[inline]
    pub fn is_special(&self) -> bool {
        self.special.load(Relaxed)
    }

    /// From now on [`Volume::is_special`], as units of it are not to be had.
    pub fn now_closes(&self) {
        self.special.store(true, Relaxed);
    }

    /// From now on an image is there.
    pub(crate) fn now_has_image(&self) {
        self.special.store(true, Relaxed);
    }

    /// All devices, in volume order.
    pub fn devices(&self) -> Vec<DeviceInfo> {
        match (self.mirror(), self.legs(), self.parts_on_disks()) {
            (Some(mirror), _, _) => self.infos_of(mirror),
            (None, Some(legs), _) => self.infos_of_disks(legs),
            (None, None, Some(parts)) => self.infos_of_parts(parts),
            (None, None, None) => self
                .real_segments()
                .map(|segment| self.info(segment))
                .collect(),
        }
    }

    fn info(&self, segment: &Segment) -> DeviceInfo {
        DeviceInfo {
            is_behind: segment.start >= self.front_len(),
            is_leaving: segment.role == Role::Device(Stay::Leaves),
            ..segment.info_of(&segment.media, segment.device)
        }
    }

    fn infos_of(&self, mirror: &Mirror) -> Vec<DeviceInfo> {
        let facts = mirror.facts();
        let info = |(slot, leg): (usize, &Media)| {
            let fact = facts.iter().find(|fact| fact.slot == slot);
            let id = fact.map_or([0; 16], |fact| fact.id);
            self.head.info_of(leg, Uuid(id))
        };
        mirror.mapped().map(info).collect()
    }

    /// What fenced stores survive: that of the weakest device.
    pub fn survives(&self) -> Survives {
        let each = self.real_segments().map(|segment| segment.media.survives());
        each.fold(self.head.media.survives(), Survives::and)
    }

    /// Fails for good once a device has: its file was truncated, its memory is damaged, or a
    /// write-back failed. For who has read: stores learn it from their fence.
    #[inline]
    pub fn health(&self) -> Result<(), MediaFailed> {
        self.head.media.health()?;
        if self.rest.is_empty() {
            return Ok(());
        }
        self.rest_health()
    }

    #[inline(never)]
    fn rest_health(&self) -> Result<(), MediaFailed> {
        self.rest
            .iter()
            .try_for_each(|segment| segment.media.health())
    }

    /// The kernel fd and device offset behind a volume offset, and how many of `len` bytes lie
    /// contiguously there.
    ///
    /// `None` for anonymous memory. For mapping units elsewhere; nobody reads or writes through it.
    /// Behind an image the fd is the image's, and the bytes have come from the disk.
    pub fn locate(
        &self,
        at: VolumeOffset,
        len: u64,
    ) -> Option<(BorrowedFd<'_>, DeviceOffset, u64)> {
        let (segment, at, room) = self.find(at);
        segment.media.bring(at, len.min(room));
        Some((segment.media.fd()?, at, len.min(room)))
    }

    /// As [`Volume::locate`]; the bytes need not have come from the disk.
    pub fn place_of(
        &self,
        at: VolumeOffset,
        len: u64,
    ) -> Option<(BorrowedFd<'_>, DeviceOffset, u64)> {
        let (segment, at, room) = self.find(at);
        Some((segment.media.fd()?, at, len.min(room)))
    }

    /// Ranges of [`Volume::locate`] can be mapped if they begin and end at multiples of this: 4096,
    /// or more on devices with larger pages (device-DAX: 2 MiB as a rule). An image has small ones.
    pub fn granule(&self) -> u64 {
        if self.is_cached() {
            return UNIT_SIZE;
        }
        let granule =
            |segment: &Segment| segment.media.device().map_or(0, |device| device.granule());
        self.segments().map(granule).fold(UNIT_SIZE, u64::max)
    }

    /// Writes and reads each device from now on in the sizes that its label says, or that `policy`
    /// says instead, by the traffic that `memory` counts. Only the first call counts.
    pub fn set_granularity(&self, policy: Option<Policy>, memory: &Arc<dyn SharedTraffic>) {
        for (number, segment, media) in self.medias() {
            let mut granularity = segment.granularity;
            granularity.policy = policy.unwrap_or(granularity.policy);
            let memory = Arc::clone(memory);
            media.set_granularity(&granularity, memory, number);
        }
    }

    /// Names the calling process among those that use the pool, by a number of its own.
    pub fn set_share(&self, number: u64) {
        for segment in self.segments() {
            segment.media.set_share(number);
        }
    }

    /// The child in this process's memory that had a number is gone.
    pub fn end_share(&self, number: u64) {
        for segment in self.segments() {
            segment.media.end_share(number);
        }
    }

    /// What of each device can be measured without harm: its reserved bytes, mapped once more, to
    /// store to, and the window of its data, to read from. Empty for anonymous memory.
    pub fn proving_grounds(&self) -> Result<Vec<ProvingGround<'_>>, VolumeError> {
        let end = match self.has_copies() {
            true => SEALS_AT,
            false => DATA_START,
        };
        let real = self
            .medias()
            .into_iter()
            .filter(|(_, segment, _)| segment.role.is_device());
        let grounds = real.filter_map(|(_, _, data)| {
            let reserved = Media::map(data.device()?, DeviceOffset(0), DATA_START, None);
            Some(reserved.map(|reserved| ProvingGround {
                reserved,
                range: DeviceOffset(RESERVED_START)..DeviceOffset(end),
                data,
            }))
        });
        Ok(grounds.collect::<Result<_, _>>()?)
    }

    /// Reports every later store, flush and fence to `observer`, with the devices numbered in
    /// volume order. Only the first observer counts. Device offsets of pools on real devices
    /// include the 2 MiB before the data.
    ///
    /// Of a device behind an image it sees what is stored to the image. Where the device is memory,
    /// who only counts what wears it sees what reaches it instead.
    pub fn set_observer(&self, observer: &Arc<dyn Observer>) {
        let mapped = self.cache.as_ref().and_then(|cache| cache.disk.mapped());
        if let Some(device) = mapped.filter(|_| !observer.wants_stores()) {
            return device.set_observer(0, Arc::clone(observer));
        }
        for (number, _, media) in self.medias() {
            media.set_observer(number, Arc::clone(observer));
        }
        let fronts = self.mirror().into_iter().flat_map(|mirror| mirror.fronts());
        for (number, (_, front)) in (0..).zip(fronts) {
            front.set_observer(number, Arc::clone(observer));
        }
    }

    /// What is mapped, device by device, with the number of each device.
    fn medias(&self) -> Vec<(u16, &Segment, &Media)> {
        if let Some(mirror) = self.mirror() {
            let legs = (0..).zip(mirror.mapped());
            return legs
                .map(|(number, (_, leg))| (number, &self.head, leg))
                .collect();
        }
        let mut next = 0;
        let numbered = self.segments().filter_map(|segment| {
            let number = match segment.role {
                Role::Gap => return None,
                Role::Header(device) => device as u16,
                Role::Device(_) => {
                    next += 1;
                    next - 1
                }
            };
            Some((number, segment, &segment.media))
        });
        numbered.collect()
    }
}

impl Segment {
    pub(crate) fn info_of(&self, media: &Media, uuid: Uuid) -> DeviceInfo {
        let device = media.device();
        DeviceInfo {
            path: device.map_or_else(PathBuf::new, |device| device.path().to_owned()),
            uuid,
            identity: device.map(|device| device.identity()),
            kind: media.kind(),
            flush: media.flush_method(),
            size: device.map_or(media.len(), |device| device.len()),
            granularity: self.granularity,
            range: VolumeOffset(self.start)..VolumeOffset(self.end),
            is_behind: false,
            is_leaving: false,
        }
    }
}
