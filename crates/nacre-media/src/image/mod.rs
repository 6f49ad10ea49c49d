//! The image of a disk: what processes map instead of a device that cannot be mapped and stored to
//! in order (D39).
//!
//! It is one sparse file in shared memory, as long as the device, so that offsets are the same. Its
//! contents come from the disk when they are asked for first. Behind them lie words and bitmaps
//! that all processes share: which units are there, and which granules were stored to since the
//! disk was given a version.
//!
//! Every store is made between [`Committer::enter`] and [`Committer::leave`]. A version is taken
//! while nobody is in between, so it is what the memory held at one moment (D40).

mod ahead;
#[cfg(test)]
mod ahead_tests;
mod bits;
mod calls;
mod changes;
mod evict;
mod gate;
mod home;
mod legs;
mod load;
mod loads;
#[cfg(test)]
mod loads_tests;
mod news;
#[cfg(test)]
mod news_tests;
mod noted;
mod readers;
mod records;
mod sums;
#[cfg(test)]
mod tests;
mod windows;

use std::io;

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use nacre_types::{DeviceOffset, LINE_SIZE, PAGE_SIZE, UNIT_SIZE};
use rustix::fs::{fstat, ftruncate, readlink};
use rustix::io::pread;
use rustix::mm::munmap;
use zerocopy::IntoBytes;

use crate::arch::{copier, order_stores};
use crate::device::Device;
use crate::error::MediaFailed;
use crate::fault::SharedRange;
use crate::shared_file;
use crate::shared_mutex::SharedMutex;
use ahead::Fetched;
use bits::{BitSet, LEVELS};
pub(crate) use bits::{Words, masks};
pub(crate) use gate::Entered;
pub use legs::{DiskFds, DiskLegs, SharedLegs};
use loads::Loads;
pub use news::{News, NewsRoom, Pace};
use readers::{Streams, Strides};
use records::KEPT;
use sums::Sums;
pub use sums::blocks_of_sums;
use windows::{HOLDERS, Holder, Sets};

const MAGIC: u64 = u64::from_le_bytes(*b"NACREimg");
/// Grows with every change of what lies behind the contents.
const VERSION: u64 = 15;
/// What is stored is noted in pieces of this size.
pub const GRANULE: u64 = 256;
/// So much is loaded at once.
pub(crate) const CHUNK: u64 = 64 << 10;
/// Units of one region come one after the other, those of several at the same time.
const REGION: u64 = 1 << 20;
/// Keeps stores and versions apart, and makes versions.
pub trait Committer: Send + Sync {
    /// A store begins. Waits while a version is taken.
    fn enter(&self);
    /// The store is over.
    fn leave(&self);
    /// Gives the disk all that was stored before.
    fn commit(&self) -> Result<(), MediaFailed>;
    /// Which process this is among those that share the device.
    fn set_share(&self, number: u64);
    /// The child in this process's memory that was this one is gone.
    fn end_share(&self, number: u64);
    /// The number of the process that this memory is of.
    fn owner(&self) -> u64;
    /// Runs `work` while nobody stores and no version is made.
    fn while_nobody_stores(&self, work: &mut dyn FnMut());
    /// Runs `work` while no version is made.
    fn while_nobody_commits(&self, work: &mut dyn FnMut()) {
        self.while_nobody_stores(work);
    }
    /// Brings all that was stored before to its home place.
    fn bring_home(&self) -> Result<(), MediaFailed>;
    /// Brings some of what is new to its home place, or waits until somebody has. `false`: there is
    /// nothing new.
    fn make_room(&self) -> Result<bool, MediaFailed>;
    /// Wakes who rests, to bring home what is new.
    fn wake_who_rests(&self) {}
    /// Milliseconds of a clock that all processes share.
    fn now(&self) -> u64;
}

/// A device that is memory and is mapped.
pub trait Mapped: Send + Sync {
    /// Copies `len` bytes at `at`. Fails where the device does, and does not count as failed then.
    ///
    /// # Safety
    /// `len` writable bytes are mapped at `to`, and nobody else uses them.
    unsafe fn fetch(&self, at: DeviceOffset, len: u64, to: *mut u8) -> Result<(), MediaFailed>;
}

/// What an image belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImageKey {
    /// The pool.
    pub pool: [u8; 16],
    /// The device, as [`crate::DeviceIdentity::numbers`].
    pub device: (u64, u64),
    /// Bytes of the device.
    pub len: u64,
}

/// What is shared about versions. Only who may commit changes it.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub enum ImageWord {
    /// Versions that were taken.
    Begun,
    /// The newest version that the disk has.
    Durable,
    /// How far the journal has got: four words.
    Journal,
    /// Not 0: how far, the disk alone knows.
    JournalUnknown = 6,
    /// Records that were written.
    Commits,
    /// Bytes of them.
    Bytes,
    /// Versions that could not be written.
    Failures,
    /// When the last version was durable, in seconds since 1970.
    Time,
    /// Bytes that were written home.
    Home,
    /// Checksum of the newest record of the journal.
    JournalPast,
    /// Number of the first record that may have to go home; 0: nobody knows (C13).
    HomeNext,
    /// Where it is, if its number is not 0.
    HomePlace,
    /// How long it took to write versions, in nanoseconds all in all.
    Spent,
}

#[repr(C, align(4096))]
struct Head {
    magic: AtomicU64,
    version: AtomicU64,
    len: AtomicU64,
    pool: [AtomicU64; 2],
    device: [AtomicU64; 2],
    words: [AtomicU64; 16],
    /// Which of the two sets is added to.
    current: AtomicU64,
    /// Granules in it.
    dirty: AtomicU64,
    /// Of these, those that a record must hold: of units that were not new.
    old: AtomicU64,
    /// So many granules of what is new may be dirty, as was found last.
    allowed: AtomicU64,
    /// With so many granules of what is new dirty, who rests is woken, to bring them home before
    /// those who store must; [`u64::MAX`] while nobody rests.
    wakes_at: AtomicU64,
    /// When a program synced last, in milliseconds.
    asked: AtomicU64,
    /// The thread that did.
    asker: AtomicU64,
    /// Until then somebody who waits presses, in milliseconds.
    pressed: AtomicU64,
    /// Bytes of what is new that the disk takes in a millisecond.
    rate: AtomicU64,
    /// So many bytes take it as long as the call that brings them, whatever is in it.
    even: AtomicU64,
    /// Not 0: it is not known what was freed since the version that the disk has.
    blind: AtomicU64,
    /// Not 0: units were taken meanwhile, of which several disks may hold something else.
    taken_blindly: AtomicU64,
    /// Units that are there.
    present: AtomicU64,
    /// How many units should be there at most.
    room: AtomicU64,
    /// Units that stay.
    pinned: AtomicU64,
    /// Where the search for units to drop goes on, in words of the bits.
    hand: AtomicU64,
    /// Units that came because somebody waited for them.
    awaited: AtomicU64,
    /// Units that came.
    loaded: AtomicU64,
    /// Units that went.
    dropped: AtomicU64,
    /// Not 0: the disk has the version that was taken last.
    settled: AtomicU64,
    /// Which holders of windows there are.
    claimed: AtomicU64,
    holders: [Holder; HOLDERS],
    /// Units that were asked for, and that no disk had as they were given to it.
    wrong: AtomicU64,
    /// Where on the device the last of them is.
    last_wrong: AtomicU64,
    /// Held while units are chosen that are to go.
    dropping: SharedMutex,
    /// Held while checksums of units change.
    sums: SharedMutex,
    /// Held while units of a region come or go: of all regions that share one.
    regions: [SharedMutex; REGION_LOCKS],
    /// Change when a unit of a chunk goes: of all chunks that share one.
    epochs: [AtomicU64; EPOCHS],
    /// Units that were read, each by some threads.
    reads: [Stripe; STRIPES],
}

/// Copies for the disk are made past the cache from so many bytes on: the lines of memory that a
/// disk has just read lie in another processor's cache, which to fetch may take twenty times as
/// long as the copy.
const PAST_CACHE_MIN: usize = 16 << 10;
const LINE: usize = LINE_SIZE as usize;
const EPOCHS: usize = 1024;
const REGION_LOCKS: usize = 256;
const STRIPES: usize = 16;

/// A count in a cache line of its own.
#[repr(align(64))]
struct Stripe(AtomicU64);

/// What an image has done so far, in units.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ImageTraffic {
    /// Were read, by programs.
    pub read: u64,
    /// Of these, had to come from the disk first.
    pub missed: u64,
    /// Came from the disk.
    pub loaded: u64,
    /// Were dropped to make room.
    pub dropped: u64,
}

/// The image of one device.
pub struct Image {
    file: OwnedFd,
    disk: Arc<Device>,
    /// Where its contents are mapped, once they are.
    base: usize,
    window: Range<u64>,
    head: NonNull<Head>,
    tail_len: usize,
    /// Units that are there.
    present: Words,
    /// Units that stay: somebody may have their address.
    pinned: Words,
    /// Units that were used since the search for some to drop passed.
    used: Words,
    sets: [BitSet; 2],
    /// Units of which the journal has newer bytes than their home places.
    away: BitSet,
    /// Units that were taken for something new; the version that was taken last has none of it.
    new: Words,
    /// Units that were taken while it was not known what is new, and that nothing was stored to.
    blindly: Words,
    /// New units that went home since a version was taken last.
    ahead: BitSet,
    /// Units that became free before each of the sets was taken, or went home beside the record of
    /// the version before (C16).
    freed: [BitSet; 2],
    /// Of each holder of windows.
    windows: Vec<Sets>,
    /// Where the newest records are remembered, going round.
    records: NonNull<u8>,
    /// Reads the disk past the page cache.
    direct: Option<Arc<OwnedFd>>,
    /// Where much at once is read to first.
    fetched: Mutex<Fetched>,
    loads: Mutex<Loads>,
    /// The device, where it is memory that is mapped.
    mapped: Option<Arc<dyn Mapped>>,
    /// The disks, where there are several.
    legs: Option<Arc<dyn DiskLegs>>,
    /// Where checksums of units are, if they have some.
    sums: Option<Sums>,
    /// Whether units may be dropped.
    drops: bool,
    /// Units that its file system has for it at least, as far as this process has looked.
    known_free: AtomicU64,
    streams: Streams,
    strides: Strides,
    committer: OnceLock<Arc<dyn Committer>>,
    /// Each fence commits.
    commits_fences: AtomicBool,
    /// From so many granules of what is not new on stores commit first.
    limit: AtomicU64,
    /// Whether what is new goes home before a version is taken.
    passes: AtomicBool,
    _watched: SharedRange,
}

// SAFETY: the pointers are to memory that lives as long as the value: atomics, a lock, and a ring
// that only who commits uses.
unsafe impl Send for Image {}
// SAFETY: threads share atomics and a lock, nothing else.
unsafe impl Sync for Image {}

/// Where the words of each level of a set are, and how many.
type SetPlan = [(u64, u64); LEVELS];

/// Offsets behind the contents, in the file.
struct FilePlan {
    tail: u64,
    legs: u64,
    /// Of units that are present, pinned, used, new and taken blindly.
    units: [u64; 5],
    sets: [SetPlan; 2],
    away: SetPlan,
    ahead: SetPlan,
    freed: [SetPlan; 2],
    windows: [[SetPlan; 2]; HOLDERS],
    records: u64,
    len: u64,
}

impl FilePlan {
    fn new(contents: u64) -> Self {
        let tail = contents.next_multiple_of(2 << 20);
        let mut at = tail + size_of::<Head>() as u64;
        let mut take = |words: u64| {
            let place = (at, words);
            at = (at + words * 8).next_multiple_of(PAGE_SIZE);
            place
        };
        let legs = take(PAGE_SIZE / 8).0;
        let units = contents.div_ceil(UNIT_SIZE);
        let of_units = [(); 5].map(|()| take(Words::needed(units)).0);
        let mut of_some = || BitSet::plan(units).map(&mut take);
        let away = of_some();
        let ahead = of_some();
        let freed = [of_some(), of_some()];
        let windows = [(); HOLDERS].map(|()| [of_some(), of_some()]);
        let levels = BitSet::plan(contents.div_ceil(GRANULE));
        let sets = [levels.map(&mut take), levels.map(&mut take)];
        let records = take(KEPT / 8).0;
        Self {
            tail,
            legs,
            units: of_units,
            sets,
            away,
            ahead,
            freed,
            windows,
            records,
            len: at,
        }
    }
}

impl Image {
    /// Makes an image in an empty file; nothing is in it yet.
    pub fn create(file: OwnedFd, disk: &Arc<Device>, key: ImageKey) -> io::Result<Self> {
        ftruncate(&file, FilePlan::new(key.len).len)?;
        let image = Self::map(file, disk, key.len)?;
        let head = image.head();
        for lock in head.regions.iter().chain([&head.dropping, &head.sums]) {
            // SAFETY: the file is new and has no name yet.
            unsafe { lock.init()? };
        }
        image.shared_legs(key.len)?.init()?;
        head.room.store(u64::MAX, Ordering::Relaxed);
        head.allowed.store(u64::MAX, Ordering::Relaxed);
        head.wakes_at.store(u64::MAX, Ordering::Relaxed);
        head.rate.store(news::USUAL_RATE, Ordering::Relaxed);
        head.even.store(news::LEAST, Ordering::Relaxed);
        head.blind.store(1, Ordering::Relaxed);
        head.version.store(VERSION, Ordering::Relaxed);
        head.len.store(key.len, Ordering::Relaxed);
        for (word, value) in head.identity().zip(key.words()) {
            word.store(value, Ordering::Relaxed);
        }
        head.magic.store(MAGIC, Ordering::Release);
        Ok(image)
    }

    /// Uses an image that somebody else has made. `None` if it is not of this pool and device. What
    /// another version of this program has made may hold what the disk lacks: an error.
    pub fn open(file: OwnedFd, disk: &Arc<Device>, key: ImageKey) -> io::Result<Option<Self>> {
        let found = Self::made_by(&file, key.len)?;
        if found.is_some_and(|version| version != VERSION) {
            return Err(io::Error::other(other_version(&file)));
        }
        let len = fstat(&file)?.st_size as u64;
        if len != FilePlan::new(key.len).len {
            return Ok(None);
        }
        let image = Self::map(file, disk, key.len)?;
        let head = image.head();
        let mut words = head.identity().map(|word| word.load(Ordering::Relaxed));
        let ours = head.magic.load(Ordering::Acquire) == MAGIC
            && head.len.load(Ordering::Relaxed) == key.len
            && key.words().map(Some) == key.words().map(|_| words.next());
        drop(words);
        Ok(ours.then_some(image))
    }

    /// The version that has made the image, if it is one of a device of so many bytes.
    fn made_by(file: &OwnedFd, len: u64) -> io::Result<Option<u64>> {
        let mut words = [0u64; 2];
        let read = pread(file, words.as_mut_bytes(), FilePlan::new(len).tail)?;
        let [magic, version] = words;
        Ok((read == size_of_val(&words) && magic == MAGIC).then_some(version))
    }

    fn map(file: OwnedFd, disk: &Arc<Device>, contents: u64) -> io::Result<Self> {
        let plan = FilePlan::new(contents);
        let tail_len = (plan.len - plan.tail) as usize;
        let tail = shared_file::map(&file, plan.tail, tail_len)?;
        let words = |at: u64, count: u64| {
            // SAFETY: the plan's places lie in the mapping, aligned to pages, and the mapping lives
            // as long as the image.
            unsafe { Words::new(tail.add((at - plan.tail) as usize).cast(), count as usize) }
        };
        let units = Words::needed(contents.div_ceil(UNIT_SIZE));
        let [present, pinned, used, new, blindly] = plan.units.map(|at| words(at, units));
        let set = |levels: SetPlan| BitSet::new(levels.map(|(at, count)| words(at, count)));
        let both = |[first, second]: [SetPlan; 2]| [set(first), set(second)];
        Ok(Self {
            disk: Arc::clone(disk),
            base: 0,
            window: 0..0,
            head: tail.cast(),
            tail_len,
            present,
            pinned,
            used,
            sets: both(plan.sets),
            away: set(plan.away),
            new,
            blindly,
            ahead: set(plan.ahead),
            freed: both(plan.freed),
            windows: plan.windows.map(both).map(Sets::new).into(),
            // SAFETY: its place lies in the mapping.
            records: unsafe { tail.add((plan.records - plan.tail) as usize) },
            direct: None,
            fetched: Mutex::default(),
            loads: Mutex::default(),
            mapped: None,
            legs: None,
            sums: None,
            drops: false,
            known_free: AtomicU64::new(0),
            streams: Streams::default(),
            strides: Strides::default(),
            committer: OnceLock::new(),
            commits_fences: AtomicBool::new(false),
            limit: AtomicU64::new(u64::MAX),
            passes: AtomicBool::new(false),
            _watched: SharedRange::new(tail.as_ptr().addr(), tail_len),
            file,
        })
    }

    fn head(&self) -> &Head {
        // SAFETY: atomics and a lock in a mapping that lives as long as the image.
        unsafe { self.head.as_ref() }
    }

    /// Its contents are mapped at `base`, of that part of the device.
    pub(crate) fn use_window(&mut self, window: Range<u64>, base: usize) {
        self.window = window;
        self.base = base;
    }

    /// Its kernel fd.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Becomes one of its users; alone if nobody else is one. `false`: somebody is. It lasts as
    /// long as any process has the image mapped that had it through this one.
    pub fn enter(&self, alone: bool) -> io::Result<bool> {
        shared_file::enter(&self.file, alone)
    }

    /// Whether others can find it; `false` once somebody has removed it.
    pub fn has_name(&self) -> bool {
        fstat(&self.file).is_ok_and(|found| found.st_nlink > 0)
    }

    /// Sets what keeps stores and versions apart. Only the first counts.
    pub fn set_committer(&self, committer: Arc<dyn Committer>) {
        // A second one is refused, as documented.
        let _ = self.committer.set(committer);
    }

    /// Whether each fence is to wait until the disk has what was stored before.
    pub fn commit_fences(&self, commits: bool) {
        self.commits_fences.store(commits, Ordering::Relaxed);
    }

    /// From so many dirty bytes on, who stores commits first. `passes`: what is new counts apart,
    /// as it goes home by [`Image::take_new`].
    pub fn set_limit(&self, bytes: u64, passes: bool) {
        self.limit.store(bytes / GRANULE, Ordering::Relaxed);
        self.passes.store(passes, Ordering::Relaxed);
    }

    /// Units may be dropped, as far as they are home on the disk. `direct` reads it past the page
    /// cache.
    pub fn allow_drops(&mut self, direct: Option<Arc<OwnedFd>>) {
        self.drops = true;
        self.direct = direct;
    }

    /// Units come by copies of a mapping of the device.
    pub fn load_from(&mut self, mapped: Arc<dyn Mapped>) {
        self.mapped = Some(mapped);
    }

    pub(crate) fn set_share(&self, number: u64) {
        if let Some(committer) = self.committer.get() {
            committer.set_share(number);
        }
    }

    pub(crate) fn end_share(&self, number: u64) {
        if let Some(committer) = self.committer.get() {
            committer.end_share(number);
        }
    }

    /// One of the words that are shared about versions, `skip` words behind it.
    pub fn word(&self, word: ImageWord, skip: usize) -> &AtomicU64 {
        &self.head().words[word as usize + skip]
    }

    /// Bytes that the disk does not have yet.
    pub fn dirty_bytes(&self) -> u64 {
        self.head().dirty.load(Ordering::Relaxed) * GRANULE
    }

    /// Of these, what a record must hold: of units that were not new.
    pub fn dirty_old(&self) -> u64 {
        self.head().old.load(Ordering::Relaxed) * GRANULE
    }

    /// The rest of these.
    pub fn dirty_new(&self) -> u64 {
        self.dirty_bytes().saturating_sub(self.dirty_old())
    }

    /// Bytes that are in memory.
    pub fn present_bytes(&self) -> u64 {
        self.head().present.load(Ordering::Relaxed) * UNIT_SIZE
    }

    /// Whether the disk has all that was stored.
    pub fn is_clean(&self) -> bool {
        self.sets.iter().all(BitSet::is_empty)
    }

    /// Copies contents that are there.
    pub fn copy(&self, at: u64, to: &mut [u8]) {
        let (from, to, len) = (self.address(at), to.as_mut_ptr(), to.len());
        let is_whole = to.addr().is_multiple_of(LINE) && len.is_multiple_of(LINE);
        // SAFETY: the source is mapped, as everything noted lies in the window; others may change
        // it, and the copy takes what it finds. The destination is the caller's alone.
        unsafe {
            if len < PAST_CACHE_MIN || !is_whole || copier().stream(to, from, len).is_err() {
                std::ptr::copy_nonoverlapping(from, to, len);
            }
        }
        order_stores();
    }

    /// Memory of a range that is noted or otherwise stays. Others may change it at any time.
    pub fn memory(&self, range: &Range<u64>) -> *const [u8] {
        let len = (range.end - range.start) as usize;
        std::ptr::slice_from_raw_parts(self.address(range.start), len)
    }

    pub(crate) fn address(&self, at: u64) -> *mut u8 {
        let skip = (at - self.window.start) as usize;
        std::ptr::with_exposed_provenance_mut(self.base + skip)
    }
}

/// What to do about an image that another version of this program has made.
fn other_version(file: &OwnedFd) -> String {
    let path = readlink(format!("/proc/self/fd/{}", file.as_raw_fd()), Vec::new());
    let path = path.map_or("it".into(), |path| path.to_string_lossy().into_owned());
    format!(
        "another version of Nacre has made it, and it may hold what the disk lacks; end the programs that use the pool, and run `nacre sync` of that version, or remove {path} to lose what was not synced"
    )
}

#[inline]
fn units(range: Range<u64>) -> Range<u64> {
    range.start / UNIT_SIZE..range.end.div_ceil(UNIT_SIZE)
}

fn granules_of(unit: u64) -> Range<u64> {
    let count = UNIT_SIZE / GRANULE;
    unit * count..(unit + 1) * count
}

impl Head {
    fn identity(&self) -> impl Iterator<Item = &AtomicU64> {
        self.pool.iter().chain(&self.device)
    }
}

impl ImageKey {
    fn words(self) -> [u64; 4] {
        let half = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&self.pool[at..at + 8]);
            u64::from_le_bytes(word)
        };
        [half(0), half(8), self.device.0, self.device.1]
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and its views go with it.
        let _ = unsafe { munmap(self.head.as_ptr().cast(), self.tail_len) };
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image").finish_non_exhaustive()
    }
}
