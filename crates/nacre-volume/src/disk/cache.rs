//! A disk with a journal, behind an image.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use nacre_cache::{Buffer, Disk, DiskFailed, Journal, JournalError};
use nacre_media::{Device, DeviceKind, Image, ImageKey, SharedLegs, Spare};
use nacre_runtime::memory_limit;
use nacre_types::{UNIT_SIZE, Uuid};
use rustix::fs::fstatvfs;

use crate::disk::{DeviceDisk, LegsDisk, Own, Parts, PartsDisk, not_over};
use crate::error::VolumeError;
use crate::label::{self, LabelWatch};
use crate::layout::{DATA_START, LEAST_ROOM};

/// The least size of a file system that an image may be in.
const LEAST_SYSTEM: u64 = 16 << 20;

/// Bytes of the file system that an image is in, if it has a size.
fn system_size(image: &Image) -> Option<u64> {
    let system = fstatvfs(image.fd()).ok()?;
    (system.f_blocks > 0).then(|| system.f_blocks * system.f_frsize)
}

/// A disk and its journal.
#[derive(Debug)]
pub(crate) struct Cache {
    /// The device, or one of several.
    pub device: Arc<Device>,
    /// What it is in the running system.
    identity: (u64, u64),
    /// Bytes that the image shows.
    image_len: u64,
    pub disk: DeviceDisk,
    /// Where the journal is.
    pub at: u64,
    pub len: u64,
    /// Whether its records may be written beside contents that they need (D123).
    pub beside: bool,
    /// Units of the image of which some have checksums of all (D130).
    pub sums: Option<Range<u64>>,
    /// Bytes of memory that its image is to take at most; 0 for no wish.
    pub asked: u64,
    /// After how long the disk gets what was stored, if nobody waits for that.
    pub saved_every: Option<Duration>,
    /// Memory of versions that were written.
    buffers: Spare<Buffer>,
    /// The label of `device`, where it is alone.
    label: LabelWatch,
}

/// What a label says of a cache.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    /// Bytes of the journal; 0 for none.
    pub journal: u64,
    /// Whether its records may be written beside contents that they need.
    pub beside: bool,
    /// Whether its units have checksums.
    pub sums: bool,
    /// Bytes of memory that the image is to take at most; 0 for no wish.
    pub room: u64,
    /// Milliseconds after which the disk gets what was stored, if nobody waits for that; else 0.
    pub saved_every: u32,
}

/// So many buffers are kept, none larger than this.
const KEPT: usize = 3;
const KEPT_BYTES: usize = (6 << 20) + 4096;

/// What is known of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheInfo {
    /// Records that were written since the image was made.
    pub commits: u64,
    /// Bytes of them.
    pub committed_bytes: u64,
    /// How long all of them took.
    pub commit_time: Duration,
    /// Commits that failed.
    pub failures: u64,
    /// Bytes that the disk does not have yet.
    pub dirty_bytes: u64,
    /// Bytes that are in memory.
    pub present_bytes: u64,
    /// Bytes that should be at most.
    pub room_bytes: u64,
    /// Bytes of units that programs read.
    pub read_bytes: u64,
    /// Bytes of units that somebody had to wait for.
    pub missed_bytes: u64,
    /// Bytes that came from the disk.
    pub loaded_bytes: u64,
    /// Bytes that were dropped to make room.
    pub dropped_bytes: u64,
    /// Bytes that were written to their home places.
    pub home_bytes: u64,
    /// Bytes of the journal.
    pub journal_bytes: u64,
    /// How often a unit was asked for that no disk had as it was given to it; `None` where nothing
    /// tells.
    pub wrong_units: Option<u64>,
}

/// Units of the image that are data, of so many bytes.
fn units_of(data: u64) -> Range<u64> {
    DATA_START / UNIT_SIZE..(DATA_START + data) / UNIT_SIZE
}

impl Cache {
    /// Of a device of this kind, with `data` bytes of data; `None` without a journal.
    pub fn of(
        (device, kind): (&Arc<Device>, DeviceKind),
        data: u64,
        wish: Wish,
    ) -> Result<Option<Self>, VolumeError> {
        if wish.journal == 0 {
            return Ok(None);
        }
        let parts = Parts {
            start: DATA_START,
            data,
            journal: wish.journal,
        };
        let disk = DeviceDisk::new(device, kind, parts)?;
        let known = (device.identity().numbers(), device.len());
        Ok(Some(Self::on((device, known), disk, data, wish)))
    }

    /// Of disks that hold the same, of which one is `device`.
    pub fn of_legs(
        (device, identity): (&Arc<Device>, (u64, u64)),
        legs: LegsDisk,
        data: u64,
        wish: Wish,
    ) -> Self {
        let disk = DeviceDisk::Legs(Arc::new(legs));
        let known = (identity, DATA_START + data + wish.journal);
        Self::on((device, known), disk, data, wish)
    }

    /// Of disks that hold each a part, of which the first is `device`; they have so much data.
    pub fn of_parts(device: &Arc<Device>, parts: PartsDisk, data: u64, wish: Wish) -> Self {
        let disk = DeviceDisk::Parts(Arc::new(parts));
        let known = (
            device.identity().numbers(),
            DATA_START + data + wish.journal,
        );
        Self::on((device, known), disk, data, wish)
    }

    fn on(
        (device, (identity, image_len)): (&Arc<Device>, ((u64, u64), u64)),
        disk: DeviceDisk,
        data: u64,
        wish: Wish,
    ) -> Self {
        let every = Duration::from_millis(wish.saved_every.into());
        Self {
            device: Arc::clone(device),
            identity,
            image_len,
            beside: wish.beside && matches!(disk, DeviceDisk::File(..)),
            sums: (wish.sums && disk.is_whole()).then(|| units_of(data)),
            disk,
            at: DATA_START + data,
            len: wish.journal,
            asked: wish.room,
            saved_every: Some(every).filter(|every| !every.is_zero()),
            buffers: Spare::new(KEPT),
            label: LabelWatch::default(),
        }
    }

    /// Memory for a version.
    pub fn buffer(&self) -> Buffer {
        self.buffers.take().unwrap_or_default()
    }

    /// The next version may have it.
    pub fn keep_buffer(&self, buffer: Buffer) {
        if (1..=KEPT_BYTES).contains(&buffer.kept()) {
            self.buffers.put(buffer);
        }
    }

    /// Bytes of memory that a new image may use, if nobody says how many: half of what its file
    /// system has, which as a rule is a quarter of memory, or of what the caller's control group
    /// allows.
    pub fn room(&self, image: &Image) -> u64 {
        let usual = || {
            let most = system_size(image).into_iter().chain(memory_limit()).min();
            most.map_or(u64::MAX, |most| most / 2)
        };
        let room = match self.asked {
            0 => usual(),
            asked => asked,
        };
        room.max(LEAST_ROOM)
    }

    /// As [`room`](Self::room), if nobody says how many and the caller's control group has a limit.
    pub fn room_of_group(&self) -> Option<u64> {
        let limit = memory_limit().filter(|_| self.asked == 0)?;
        Some((limit / 2).max(LEAST_ROOM))
    }

    /// Refuses a file system for a new image where metadata alone may wait for room for ever.
    pub fn look_for_room(&self, image: &Image) -> Result<(), VolumeError> {
        match system_size(image) {
            Some(size) if size < LEAST_SYSTEM => Err(self.unusable(format!(
                "its folder has {} MiB in all, and has to have {}; make it larger (`mount -o \
                 remount,size=1G /dev/shm`, `docker run --shm-size=1g`), or name another one in \
                 NACRE_SESSION_DIR",
                size >> 20,
                LEAST_SYSTEM >> 20
            ))),
            _ => Ok(()),
        }
    }

    /// Makes the empty journal of a new pool.
    pub fn format(&self, pool: Uuid) -> Result<(), VolumeError> {
        let made = Journal::create(&self.disk, pool.0, self.at, self.len);
        made.map(drop).map_err(|why| self.failed(why))
    }

    /// Kernel fds of the disk.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let mut all = self.disk.fds();
        all.push(self.device.fd());
        all
    }

    pub fn failed(&self, why: JournalError) -> VolumeError {
        VolumeError::Journal {
            path: self.device.path().to_owned(),
            why,
        }
    }

    pub fn unusable(&self, why: impl ToString) -> VolumeError {
        VolumeError::Image {
            path: self.device.path().to_owned(),
            why: why.to_string(),
        }
    }

    /// Fails if the pool could not be opened again: somebody cut its disk, or wrote over it. What
    /// is there now is not to be written to.
    pub fn check_label(&self, pool: Uuid) -> Result<(), JournalError> {
        let is_lost = |device: &Device| !label::has_one_of(device, pool);
        let lost = match &self.disk {
            DeviceDisk::Legs(legs) => {
                legs.lose_cut()?;
                legs.all_lost(is_lost)
            }
            DeviceDisk::Parts(parts) => parts.devices().find(|device| is_lost(device)).cloned(),
            _ => match self.label.has_one_of(&self.device, pool) {
                true => None,
                false => Some(Arc::clone(&self.device)),
            },
        };
        match lost {
            None => Ok(()),
            Some(device) => {
                let path = device.path().display();
                Err(DiskFailed(format!("{path} was cut or written over")).into())
            }
        }
    }

    pub fn open_journal(&self, pool: Uuid) -> Result<Journal<&DeviceDisk>, JournalError> {
        if let Some(legs) = self.disk.legs() {
            legs.agree((pool.0, self.at, self.len))?;
        }
        Journal::open(&self.disk, pool.0, self.at, self.len)
    }

    /// What processes share of their calls.
    pub fn shared_calls(&self) -> Option<&SharedLegs> {
        match &self.disk {
            DeviceDisk::Legs(legs) => legs.shared(),
            DeviceDisk::File(file, _) => file.shared_calls(),
            DeviceDisk::Mapped(_) | DeviceDisk::Parts(_) => None,
        }
    }

    /// Waits for writes of processes that are gone. Nobody else commits.
    pub fn wait_for_calls(&self, image: &Image) -> Result<(), DiskFailed> {
        let shared = self.shared_calls();
        let waited = shared.map_or(Ok(()), |shared| shared.wait_for_calls(image));
        waited.map_err(not_over)
    }

    /// As `wait_for_calls`, before this process writes several pieces at the same time.
    pub fn prepare_calls(&self, image: &Image) -> Result<(), DiskFailed> {
        let shared = self.shared_calls();
        let waited = shared.map_or(Ok(()), |shared| shared.prepare_calls(image));
        waited.map_err(not_over)
    }

    /// As `wait_for_calls`, before this process writes anything: behind several disks each write is
    /// several.
    pub fn begin_calls(&self, image: &Image) -> Result<(), DiskFailed> {
        match self.disk.legs() {
            Some(_) => self.prepare_calls(image),
            None => self.wait_for_calls(image),
        }
    }

    /// Remembers a record that was written to a place of the journal, if it goes home before a
    /// checkpoint.
    pub fn keep(&self, image: &Image, place: u64, record: &[u8]) {
        if (&self.disk).gathers().is_some() {
            image.keep_record(place, record);
        }
    }

    /// Where the journal is on each of several disks.
    pub fn at_on(&self, legs: &LegsDisk) -> u64 {
        legs.own().map_or(self.at, Own::common_end)
    }

    /// Processes share from now on what the disks behind an image are, and what they are told to
    /// do. The caller is `alone`, or joins those who use it.
    pub fn share_legs(&self, image: &Image, alone: bool) -> Result<(), VolumeError> {
        let shared = || {
            let shared = image.shared_legs(self.image_len);
            shared.map_err(|why| self.unusable(why))
        };
        match &self.disk {
            DeviceDisk::File(file, _) => file.share(shared()?),
            DeviceDisk::Legs(legs) => {
                let done = legs.share(shared()?, alone);
                done.map_err(|why| self.failed(why.into()))?;
            }
            DeviceDisk::Mapped(_) | DeviceDisk::Parts(_) => {}
        }
        Ok(())
    }

    pub fn key(&self, pool: Uuid) -> ImageKey {
        ImageKey {
            pool: pool.0,
            device: self.identity,
            len: self.image_len,
        }
    }
}
