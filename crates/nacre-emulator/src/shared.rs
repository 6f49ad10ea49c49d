//! The file that all processes of an emulated pool share: settings, totals, the buffers' state and
//! the counters.
//!
//! | place | what |
//! |---|---|
//! | first 4096 bytes | [`Header`] |
//! | then 64 KiB | what each module's buffer for stores holds |
//! | then 64 KiB | what each module's buffer for loads holds |
//! | then, for each kind of store | one 32-bit counter for each granule of all devices, side by side |

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use nacre_media::SharedMemory;
use nacre_runtime::Trust;
use nacre_types::StoreKind;
use rustix::fs::{FileType, fstat};

use crate::error::EmulationError;
use crate::place::CounterPlace;

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"NACREemu");
pub(crate) const VERSION: u64 = 4;
const HEADER: u64 = 4096;
/// Modules that one file knows, and lines of each module's buffer.
pub(crate) const MODULES: usize = 64;
pub(crate) const LINES: usize = 128;
const BUFFER: u64 = (MODULES * LINES * 8) as u64;
const COUNTERS: u64 = HEADER + 2 * BUFFER;
/// Devices of a pool.
pub(crate) const DEVICES: usize = 16;
/// Threads that store at the same time.
pub(crate) const WRITERS: usize = 32;
const KINDS: u64 = StoreKind::ALL.len() as u64;

/// More than any total comes to.
const MOST: u64 = 1 << 56;

/// Settings, written before anybody else sees the file, and totals.
#[repr(C, align(64))]
pub(crate) struct Header {
    pub magic: AtomicU64,
    pub version: AtomicU64,
    pub pool: [AtomicU64; 2],
    /// Bits of [`crate::emulation`]: what is on now.
    pub active: AtomicU64,
    pub granularity: AtomicU64,
    /// Writes that a cell bears, as the bits of an f64.
    pub endurance: AtomicU64,
    pub devices: AtomicU64,
    /// First granule of each device, and behind the last.
    pub first: [AtomicU64; DEVICES + 1],
    /// Granules that each device has; between the last of them and the next device's first there
    /// may be a gap.
    pub used: [AtomicU64; DEVICES],
    /// Where files stand for devices: which file, 0 for none yet.
    pub files: [AtomicU64; DEVICES],
    /// Name of the profile.
    pub name: [AtomicU64; 8],
    /// Nanoseconds of use so far, and since when the present one lasts (0: none).
    pub used_ns: AtomicU64,
    pub since_ns: AtomicU64,
    pub totals: Totals,
    /// Until when each module is busy, in ticks.
    pub busy: [AtomicU64; MODULES],
    /// What each device is like.
    pub each: [DeviceModel; DEVICES],
    /// How each device's modules take stores that come at the same time.
    pub crowding: [Crowding; DEVICES],
    /// Lines written more than once, times 65536.
    pub split: AtomicU64,
    /// Who stores, by thread; two in one place count as one.
    pub writers: [Writer; WRITERS],
    /// Share of the turns at each device's modules that one core has before all others, times 1000.
    pub precedence: [AtomicU64; DEVICES],
    /// Bytes that the modules' cells wrote; 0 in files of versions that counted lines alone.
    pub cell_bytes: AtomicU64,
}

/// How modules take stores that come at the same time; all 0 where nobody filled it in.
#[repr(C)]
pub(crate) struct Crowding {
    /// Stores of 64 bytes that a module queues in order.
    pub queue: AtomicU64,
    /// Stores that one thread has under way to it.
    pub of_one: AtomicU64,
}

/// A thread that stores. It needs no end: it is over when its time is.
#[repr(C)]
pub(crate) struct Writer {
    /// In ticks.
    pub until: AtomicU64,
    /// Stores of 64 bytes that it has under way to a device, in halves, and that device.
    pub halves: AtomicU64,
    pub device: AtomicU64,
}

/// What one device is like.
#[repr(C)]
pub(crate) struct DeviceModel {
    /// Ticks of delay for each unit that is persisted or read, times 65536.
    pub write_delay: AtomicU64,
    pub read_delay: AtomicU64,
    /// Bytes of a unit.
    pub unit: AtomicU64,
    /// Ticks for a line that a module's cells write, times 65536.
    pub line_ticks: AtomicU64,
    /// As before, of a line that they read.
    pub fetch_ticks: AtomicU64,
    pub line: AtomicU64,
    /// Lines of a module's buffer.
    pub lines: AtomicU64,
    pub read_lines: AtomicU64,
    /// The first of its modules, and how many they are.
    pub first_module: AtomicU64,
    pub modules: AtomicU64,
    pub interleave: AtomicU64,
}

/// What was counted altogether.
#[repr(C, align(64))]
pub(crate) struct Totals {
    /// Stores by kind.
    pub stores: [AtomicU64; 3],
    /// Bytes by kind.
    pub bytes: [AtomicU64; 3],
    /// Cache lines by kind.
    pub lines: [AtomicU64; 3],
    /// Lines that the modules' cells wrote.
    pub cells: AtomicU64,
    /// Among them those written in part.
    pub merged: AtomicU64,
    /// Lines that they read for loads.
    pub fetched: AtomicU64,
    pub reads: AtomicU64,
    pub read_bytes: AtomicU64,
    /// Ticks that were waited.
    pub waited: AtomicU64,
}

const _: () = assert!(size_of::<Header>() <= HEADER as usize);

impl DeviceModel {
    /// Whether nothing divides by zero with it, or leads beyond the buffers.
    pub fn is_sound(&self) -> bool {
        let line = self.line.load(Relaxed);
        let places = 1..=LINES as u64;
        self.unit.load(Relaxed) > 0
            && line.is_power_of_two()
            && self.interleave.load(Relaxed) >= line
            && (1..=MODULES as u64).contains(&self.modules.load(Relaxed))
            && places.contains(&self.lines.load(Relaxed))
            && places.contains(&self.read_lines.load(Relaxed))
    }

    /// The module, of all devices, of a place on this one.
    #[inline]
    pub fn module_of(&self, piece: u64) -> usize {
        (self.first_module.load(Relaxed) + piece % self.modules.load(Relaxed)) as usize
    }
}

impl Header {
    /// What a device is like.
    #[inline]
    pub fn model(&self, device: u16) -> &DeviceModel {
        &self.each[usize::from(device).min(DEVICES - 1)]
    }

    /// Bytes that the modules' cells wrote. Lines that were counted without their bytes are taken
    /// for those of the first device.
    pub fn cell_bytes(&self) -> u64 {
        match self.cell_bytes.load(Relaxed) {
            0 => {
                let line = self.model(0).line.load(Relaxed);
                self.totals.cells.load(Relaxed).saturating_mul(line)
            }
            bytes => bytes,
        }
    }

    /// Whether the devices' granules follow one another and lie within so many, and no total is
    /// beyond counting.
    pub fn is_ordered(&self, granules: u64) -> bool {
        let totals = &self.totals;
        let singles = [
            &totals.cells,
            &totals.merged,
            &totals.fetched,
            &totals.reads,
            &totals.read_bytes,
            &self.used_ns,
            &self.cell_bytes,
        ];
        let by_kind = [&totals.stores, &totals.bytes, &totals.lines]
            .into_iter()
            .flatten();
        if by_kind
            .chain(singles)
            .any(|total| total.load(Relaxed) > MOST)
        {
            return false;
        }
        let first = self.first.each_ref().map(|first| first.load(Relaxed));
        let devices = self.devices.load(Relaxed) as usize;
        (0..devices.min(DEVICES)).all(|device| {
            let (from, to) = (first[device], first[device + 1]);
            let used = self.used[device].load(Relaxed);
            from <= to && to <= granules && used <= to - from
        })
    }
}

/// The mapped file.
pub(crate) struct Shared {
    memory: SharedMemory,
    granules: u64,
    fd: OwnedFd,
}

impl Shared {
    /// Bytes of a file with so many granules.
    pub fn len_for(granules: u64) -> u64 {
        COUNTERS + granules * KINDS * 4
    }

    /// Maps a file that has been sized for `granules`.
    pub fn map(fd: OwnedFd, granules: u64) -> Result<Self, rustix::io::Errno> {
        let memory = SharedMemory::of_file(&fd, Self::len_for(granules) as usize)?;
        Ok(Self {
            memory,
            granules,
            fd,
        })
    }

    /// Opens and maps an existing file of those who are trusted. `None` if there is none.
    pub fn open(place: &CounterPlace, trust: Trust) -> Result<Option<Self>, EmulationError> {
        let failed = |action| {
            move |errno| EmulationError::System {
                path: place.path(),
                action,
                errno,
            }
        };
        let fd = match place.open() {
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            other => other.map_err(failed("open it"))?,
        };
        let found = fstat(&fd).map_err(failed("examine it"))?;
        let size = found.st_size as u64;
        let regular = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        if !regular || size < COUNTERS || !trust.accepts(&found) {
            return Err(EmulationError::Foreign(place.path()));
        }
        let granules = (size - COUNTERS) / (KINDS * 4);
        Self::map(fd, granules).map(Some).map_err(failed("map it"))
    }

    pub fn granules(&self) -> u64 {
        self.granules
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Where the counters of a kind start in the file.
    pub fn counters_at(&self, kind: StoreKind) -> u64 {
        COUNTERS + kind.index() as u64 * self.granules * 4
    }

    #[inline]
    pub fn header(&self) -> &Header {
        // SAFETY: the mapping starts with a page, holds the header, and is atomics only; it lives
        // as long as `self`.
        unsafe { self.memory.start().cast::<Header>().as_ref() }
    }

    /// A counter. A granule behind the last is counted with the last.
    #[inline]
    pub fn counter(&self, kind: StoreKind, granule: u64) -> &AtomicU32 {
        let granule = granule.min(self.granules - 1);
        let place = (self.counters_at(kind) + granule * 4) as usize;
        // SAFETY: the place lies in the mapping, which is as long as `len_for` says, and is
        // 4-aligned.
        unsafe { self.memory.start().add(place).cast::<AtomicU32>().as_ref() }
    }

    /// A place of a module's buffer for stores; both numbers are taken modulo what there is.
    #[inline]
    pub fn line(&self, module: usize, line: usize) -> &AtomicU64 {
        self.place(HEADER, module, line)
    }

    /// As [`Shared::line`], of the buffer for loads.
    #[inline]
    pub fn fetched(&self, module: usize, line: usize) -> &AtomicU64 {
        self.place(HEADER + BUFFER, module, line)
    }

    #[inline]
    fn place(&self, buffer: u64, module: usize, line: usize) -> &AtomicU64 {
        let place = buffer as usize + (module % MODULES * LINES + line % LINES) * 8;
        // SAFETY: the place lies before the counters, in the mapping, and is 8-aligned.
        unsafe { self.memory.start().add(place).cast::<AtomicU64>().as_ref() }
    }
}
