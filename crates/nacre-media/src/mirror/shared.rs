//! What all processes share about a mirror while they use it: one file of words, locks and bits.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, fence};

use nacre_types::{PAGE_SIZE, UNIT_SIZE};
use rustix::fs::{FallocateFlags, fallocate, fstat, ftruncate};
use rustix::io::Errno;
use rustix::mm::munmap;

use super::layout::REGION;
use super::states::{SLOTS, States};
use crate::fault::SharedRange;
use crate::image::Words;
use crate::scrub_turn::ScrubTurn;
use crate::shared_file;
use crate::shared_mutex::{Held, SharedMutex};
use crate::suspects::Suspects;

const MAGIC: u64 = u64::from_le_bytes(*b"NACREmir");
/// Grows with every change of what the file holds.
const VERSION: u64 = 1;
const STRIPES: usize = 1024;
/// The most units of a run.
const RUN_UNITS: usize = 16;
/// Runs lie between two multiples of so many bytes: the locks of one are neighbours, in the order
/// of its units.
pub(super) const RUN: u64 = RUN_UNITS as u64 * UNIT_SIZE;
const _: () = assert!(STRIPES.is_multiple_of(RUN_UNITS) && REGION.is_multiple_of(RUN));
/// So many units that readers repaired are remembered to be told.
const REPAIRED: usize = 64;

/// A lock of some units, and what its holder stores to at the moment.
#[repr(C, align(64))]
struct Stripe {
    lock: SharedMutex,
    at: AtomicU64,
    len: AtomicU64,
}

/// The locks of the units of a run, held.
pub(super) type HeldRun<'s> = [Option<Held<'s>>; RUN_UNITS];

/// What has happened to a mirror since its session began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MirrorCounts {
    /// Legs that were lost.
    pub lost: u64,
    /// Stores that a dying process had made on some legs only, and that were taken back or made on
    /// all.
    pub finished: u64,
    /// Units that differed between legs and were made equal.
    pub repaired: u64,
    /// Bytes that were copied to legs that are being rebuilt.
    pub rebuilt: u64,
}

/// Which count.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(super) enum Count {
    Lost,
    Finished,
    Repaired,
    Rebuilt,
}

#[repr(C, align(4096))]
struct Head {
    magic: AtomicU64,
    version: AtomicU64,
    len: AtomicU64,
    pool: [AtomicU64; 2],
    /// [`States`].
    states: AtomicU64,
    /// What the labels say durably.
    labelled: AtomicU64,
    legs: [[AtomicU64; 2]; SLOTS],
    counts: [AtomicU64; 4],
    /// Held while labels change.
    labels: SharedMutex,
    /// Held while bits of the legs change.
    bits: SharedMutex,
    stripes: [Stripe; STRIPES],
    /// It came later: versions without it leave the place alone.
    scrub_turn: ScrubTurn,
    /// Grows whenever what was found out about seals may not hold any more.
    seal_epoch: AtomicU64,
    /// Spans of which a leg did not hold what was sealed.
    suspects: Suspects,
    /// Units that readers repaired, above the slots of the legs that were wrong; 0: none.
    repaired: [AtomicU64; REPAIRED],
}

// What lies behind it stays where it was.
const _: () = assert!(size_of::<Head>() == 17 * 4096);

pub(super) struct Shared {
    file: OwnedFd,
    head: NonNull<Head>,
    len: usize,
    /// Regions whose bits are set on all legs that are stored to.
    pub intents: Words,
    /// Regions that programs may store to through mappings of their own.
    pub mapped: Words,
    _watched: SharedRange,
}

// SAFETY: the pointer is to memory of atomics and locks that lives as long as the value.
unsafe impl Send for Shared {}
// SAFETY: threads share atomics and locks, nothing else.
unsafe impl Sync for Shared {}

/// Regions that a range of a device touches.
pub(super) fn regions(range: Range<u64>) -> Range<u64> {
    range.start / REGION..range.end.div_ceil(REGION)
}

fn halves(id: [u8; 16]) -> [u64; 2] {
    let all = u128::from_le_bytes(id);
    [all as u64, (all >> 64) as u64]
}

/// Gives a file its length and its room, so that nobody waits for room in the middle of a store.
fn reserve(file: &OwnedFd, len: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, len) {
        Err(Errno::OPNOTSUPP) => Ok(ftruncate(file, len)?),
        Err(Errno::NOSPC | Errno::DQUOT | Errno::NOMEM) => Err(io::Error::other(format!(
            "cannot find room for its {} KiB; free some, make it larger, or name another folder in \
             NACRE_SESSION_DIR",
            len.div_ceil(1 << 10)
        ))),
        done => Ok(done?),
    }
}

impl Shared {
    /// In an empty file, for devices whose data ends at `end`.
    pub fn create(file: OwnedFd, pool: [u8; 16], end: u64) -> io::Result<Self> {
        reserve(&file, file_len(end))?;
        let shared = Self::map(file, end)?;
        let head = shared.head();
        // SAFETY: the file is new and has no name yet.
        unsafe {
            head.labels.init()?;
            head.bits.init()?;
            for stripe in &head.stripes {
                stripe.lock.init()?;
            }
        }
        head.version.store(VERSION, Relaxed);
        head.len.store(end, Relaxed);
        for (word, value) in head.pool.iter().zip(halves(pool)) {
            word.store(value, Relaxed);
        }
        head.magic.store(MAGIC, SeqCst);
        Ok(shared)
    }

    /// A file that somebody else has made. `None` if it is not of this pool.
    pub fn open(file: OwnedFd, pool: [u8; 16], end: u64) -> io::Result<Option<Self>> {
        if fstat(&file)?.st_size as u64 != file_len(end) {
            return Ok(None);
        }
        let shared = Self::map(file, end)?;
        let head = shared.head();
        let ours = head.magic.load(Acquire) == MAGIC
            && head.version.load(Relaxed) == VERSION
            && head.len.load(Relaxed) == end
            && halves(pool) == [0, 1].map(|half: usize| head.pool[half].load(Relaxed));
        Ok(ours.then_some(shared))
    }

    fn map(file: OwnedFd, end: u64) -> io::Result<Self> {
        let len = file_len(end) as usize;
        let start = shared_file::map(&file, 0, len)?;
        let words = |number: u64| {
            let at = size_of::<Head>() as u64 + number * bits_len(end);
            // SAFETY: the place lies in the mapping, aligned to a page, and the mapping lives as
            // long as the value.
            unsafe { Words::new(start.add(at as usize).cast(), (bits_len(end) / 8) as usize) }
        };
        Ok(Self {
            intents: words(0),
            mapped: words(1),
            head: start.cast(),
            len,
            _watched: SharedRange::new(start.as_ptr().addr(), len),
            file,
        })
    }

    fn head(&self) -> &Head {
        // SAFETY: atomics and locks in a mapping that lives as long as the value.
        unsafe { self.head.as_ref() }
    }

    #[inline]
    pub fn states(&self) -> States {
        States(self.head().states.load(Acquire))
    }

    /// For who made the file.
    pub fn set_states(&self, states: States) {
        self.head().states.store(states.0, SeqCst);
    }

    /// Changes the states in one step, unless `change` gives `None`.
    pub fn change(&self, mut change: impl FnMut(States) -> Option<States>) -> bool {
        let word = |word| change(States(word)).map(|states| states.0);
        let done = self.head().states.fetch_update(SeqCst, SeqCst, word);
        done.is_ok()
    }

    #[inline]
    pub fn labelled(&self) -> States {
        States(self.head().labelled.load(Acquire))
    }

    pub fn set_labelled(&self, states: States) {
        self.head().labelled.store(states.0, SeqCst);
    }

    pub fn leg(&self, slot: usize) -> [u8; 16] {
        let [low, high] = [0, 1].map(|half: usize| self.head().legs[slot][half].load(Acquire));
        (u128::from(low) | u128::from(high) << 64).to_le_bytes()
    }

    pub fn set_leg(&self, slot: usize, id: [u8; 16]) {
        for (word, value) in self.head().legs[slot].iter().zip(halves(id)) {
            word.store(value, SeqCst);
        }
    }

    pub fn lock_labels(&self) -> Held<'_> {
        self.head().labels.lock()
    }

    pub fn lock_bits(&self) -> Held<'_> {
        self.head().bits.lock()
    }

    /// Locks the unit of `at`, of which `len` bytes are about to be stored to. If the holder before
    /// died, `finish` gets what that was at.
    #[inline]
    pub fn lock_unit(&self, at: u64, len: u64, finish: impl FnOnce(u64, u64)) -> Held<'_> {
        let stripe = &self.head().stripes[(at / UNIT_SIZE) as usize % STRIPES];
        let held = stripe.lock.lock_after(|| {
            finish(stripe.at.load(Acquire), stripe.len.load(Acquire));
            self.count(Count::Finished, 1);
        });
        stripe.at.store(at, Relaxed);
        stripe.len.store(len, Relaxed);
        // Before what it is about.
        fence(Release);
        held
    }

    /// As [`Shared::lock_unit`], of whole units from `at` on that lie in one run, in their order.
    pub fn lock_run(&self, at: u64, len: u64, finish: impl Fn(u64, u64)) -> HeldRun<'_> {
        let units = (len / UNIT_SIZE) as usize;
        std::array::from_fn(|unit| {
            let at = at + unit as u64 * UNIT_SIZE;
            (unit < units).then(|| self.lock_unit(at, UNIT_SIZE, &finish))
        })
    }

    /// Waits until all stores that began before are over; `finish` gets what dead processes were
    /// at.
    pub fn wait_for_stores(&self, finish: impl Fn(u64, u64)) {
        for stripe in &self.head().stripes {
            let left = || finish(stripe.at.load(Acquire), stripe.len.load(Acquire));
            drop(stripe.lock.lock_after(left));
        }
    }

    /// Whose turn it is to scrub.
    pub fn scrub_turn(&self) -> &ScrubTurn {
        &self.head().scrub_turn
    }

    /// As long as it stays nobody has taken bits back, sealed, or dropped a leg.
    #[inline]
    pub fn seal_epoch(&self) -> u64 {
        self.head().seal_epoch.load(Acquire)
    }

    /// To be called before bits are taken back, and after anything else that seals, repairs, drops
    /// or adds.
    pub fn move_seal_epoch(&self) {
        self.head().seal_epoch.fetch_add(1, SeqCst);
    }

    /// Remembers a span of which some leg does not hold what was sealed.
    pub fn suspect(&self, span: u64) {
        self.head().suspects.add(span);
    }

    /// A span that was remembered, and is not any more.
    pub fn take_suspect(&self) -> Option<u64> {
        self.head().suspects.take()
    }

    /// A span is scrubbed.
    pub fn clear_suspect(&self, span: u64) {
        self.head().suspects.clear(span);
    }

    /// Remembers that a unit was repaired, and the slots of the legs that were wrong.
    pub fn tell_repaired(&self, unit: u64, slots: u64) {
        let words = &self.head().repaired;
        let is_known = |word: &AtomicU64| word.load(Relaxed) >> SLOTS == unit;
        let told = unit << SLOTS | slots;
        let claim = |word: &AtomicU64| word.compare_exchange(0, told, SeqCst, Relaxed).is_ok();
        // Without a place for it the count tells.
        let _told = words.iter().any(is_known) || words.iter().any(claim);
    }

    /// A unit that was remembered, with the slots, and is not any more.
    pub fn take_repaired(&self) -> Option<(u64, u64)> {
        let mut words = self.head().repaired.iter();
        let word = words.find_map(|word| match word.load(Relaxed) {
            0 => None,
            _ => Some(word.swap(0, SeqCst)).filter(|&word| word != 0),
        })?;
        Some((word >> SLOTS, word & ((1 << SLOTS) - 1)))
    }

    pub fn count(&self, count: Count, by: u64) {
        self.head().counts[count as usize].fetch_add(by, Relaxed);
    }

    pub fn counts(&self) -> MirrorCounts {
        let of = |count: Count| self.head().counts[count as usize].load(Relaxed);
        MirrorCounts {
            lost: of(Count::Lost),
            finished: of(Count::Finished),
            repaired: of(Count::Repaired),
            rebuilt: of(Count::Rebuilt),
        }
    }

    /// Becomes one of its users; alone if nobody else is one. `false`: somebody is. It lasts as
    /// long as any process has the file mapped that had it through this one.
    pub fn enter(&self, alone: bool) -> io::Result<bool> {
        shared_file::enter(&self.file, alone)
    }
}

fn bits_len(end: u64) -> u64 {
    let words = Words::needed(end.div_ceil(REGION));
    (words * 8).next_multiple_of(PAGE_SIZE)
}

fn file_len(end: u64) -> u64 {
    size_of::<Head>() as u64 + 2 * bits_len(end)
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and its views go with it.
        let _ = unsafe { munmap(self.head.as_ptr().cast(), self.len) };
    }
}
