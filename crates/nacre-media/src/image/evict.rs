//! How units leave an image when it holds as many as it may: those that were not used for longest,
//! are home on the disk, and whose address nobody has.
//!
//! They go while nobody stores, so that no store is lost. Readers look afterwards whether what they
//! copied was there all the time.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use nacre_types::{UNIT_SIZE, site};
use rustix::fs::{FallocateFlags, fallocate, fstatvfs};
use rustix::io::Errno;

use super::bits::masks;
use super::load::region_lock;
use super::{CHUNK, Committer, Image, ImageTraffic, Words, units};
use crate::shared_mutex::Held;

const BITS: u64 = u64::BITS as u64;
/// What may come and go at least, whatever stays: 1 MiB.
pub(super) const LEAST: u64 = (1 << 20) / UNIT_SIZE;
/// So many units go at once at most, besides those that others need: 4 MiB.
const BATCH: u64 = (4 << 20) / UNIT_SIZE;
/// What images leave of their file system at most: sessions lie there, too, and whoever needs more
/// memory of one waits until there is some.
const SPARE: u64 = (16 << 20) / UNIT_SIZE;
/// The same, as a part of the file system.
const SPARE_SHARE: u64 = 16;
/// So many units may come before a process looks again what is free.
const LOOK: u64 = (1 << 20) / UNIT_SIZE;

/// Units of one word of bits.
type Found = (usize, u64);

impl Image {
    /// From now on at most so many bytes should be there.
    pub fn set_room(&self, bytes: u64) {
        self.head().room.store(bytes / UNIT_SIZE, Relaxed);
    }

    /// As [`set_room`](Self::set_room), unless it is less already.
    pub fn lower_room(&self, bytes: u64) {
        self.head().room.fetch_min(bytes / UNIT_SIZE, Relaxed);
    }

    /// How many units may be there.
    pub(super) fn room(&self) -> u64 {
        self.at_least(self.head().room.load(Relaxed))
    }

    /// As many units, or as many as must be able to be there.
    fn at_least(&self, units: u64) -> u64 {
        let stays = self.head().pinned.load(Relaxed) + self.in_windows();
        units.max(stays.saturating_add(LEAST))
    }

    /// How many bytes should be there at most, which is never more than the device has.
    pub fn room_bytes(&self) -> u64 {
        let head = self.head();
        let room = head.room.load(Relaxed).saturating_mul(UNIT_SIZE);
        room.min(head.len.load(Relaxed))
    }

    /// What it has done so far.
    pub fn traffic(&self) -> ImageTraffic {
        let head = self.head();
        let read = head.reads.iter().map(|stripe| stripe.0.load(Relaxed));
        ImageTraffic {
            read: read.sum(),
            missed: head.awaited.load(Relaxed),
            loaded: head.loaded.load(Relaxed),
            dropped: head.dropped.load(Relaxed),
        }
    }

    /// Counts again what is there. Nobody else uses the image.
    pub fn recount(&self) {
        let head = self.head();
        head.present.store(self.present.ones(), Relaxed);
        head.pinned.store(self.pinned.ones(), Relaxed);
    }

    /// Drops all that may go, as if there were no room.
    pub fn drop_all(&self) -> u64 {
        self.drop_others(u64::MAX)
    }

    /// Sees to it that `wanted` units more may come. The caller holds the lock of a region, which
    /// nothing goes from.
    pub(super) fn make_room(&self, wanted: u64) {
        if self.drops && (self.lacks(wanted) > 0 || !self.leaves_spare(wanted)) {
            self.drop_lacking(wanted);
        }
    }

    /// Drops what must go before `wanted` more units may come.
    fn drop_lacking(&self, wanted: u64) {
        let _dropping = self.head().dropping.lock();
        let missing = self.lacks(wanted).max(self.lacks_spare(wanted));
        if missing > 0 {
            let batch = (self.room() / 16).min(BATCH);
            self.drop_some(missing.max(batch));
        }
    }

    /// How many units must go before `wanted` more may come.
    fn lacks(&self, wanted: u64) -> u64 {
        let there = self.head().present.load(Relaxed);
        there.saturating_add(wanted).saturating_sub(self.room())
    }

    /// Whether `wanted` more leave others enough, as far as this process has looked.
    fn leaves_spare(&self, wanted: u64) -> bool {
        let take = |known: u64| known.checked_sub(wanted);
        if self.known_free.fetch_update(Relaxed, Relaxed, take).is_ok() {
            return true;
        }
        let there = self.head().present.load(Relaxed);
        let free = self.fits().saturating_sub(there);
        // Others take some meanwhile.
        self.known_free.store((free / 16).min(LOOK), Relaxed);
        free >= wanted
    }

    /// How many units must go before `wanted` more leave others enough.
    fn lacks_spare(&self, wanted: u64) -> u64 {
        let there = self.head().present.load(Relaxed);
        there
            .saturating_add(wanted)
            .saturating_sub(self.at_least(self.fits()))
    }

    /// How many units may be there so that the file system has some left for others.
    pub(super) fn fits(&self) -> u64 {
        let there = self.head().present.load(Relaxed);
        let Some(system) = fstatvfs(&self.file).ok().filter(|found| found.f_blocks > 0) else {
            // It has no limit of its own.
            return u64::MAX;
        };
        let units = |blocks: u64| blocks.saturating_mul(system.f_frsize) / UNIT_SIZE;
        let spare = (units(system.f_blocks) / SPARE_SHARE).min(SPARE);
        there
            .saturating_add(units(system.f_bavail))
            .saturating_sub(spare)
    }

    /// Gives the file system what others lack there. Whoever stays beside the programs calls it now
    /// and then, as a session grows also where nothing comes from the disk.
    pub fn leave_spare(&self) {
        if self.drops && self.lacks_spare(0) > 0 {
            self.drop_lacking(0);
        }
    }

    /// Drops about so many units of regions that nobody holds. Answers how many went.
    pub(super) fn drop_others(&self, wanted: u64) -> u64 {
        let _dropping = self.head().dropping.lock();
        self.drop_some(wanted)
    }

    /// Drops about so many units; what is not home is brought there if nothing else can go. Answers
    /// how many went. The caller holds the lock of dropping.
    fn drop_some(&self, wanted: u64) -> u64 {
        let Some(committer) = self.committer.get().filter(|_| self.drops) else {
            return 0;
        };
        let dropped = self.drop_clean(&**committer, wanted);
        if dropped >= wanted.min(BATCH) || (self.is_clean() && self.away.is_empty()) {
            return dropped;
        }
        // What cannot be brought home stays.
        match committer.bring_home() {
            Ok(()) => dropped + self.drop_clean(&**committer, wanted - dropped),
            Err(_) => dropped,
        }
    }

    /// Drops the units of a range that may go at once.
    pub fn drop_range(&self, range: Range<u64>) {
        let Some(committer) = self.committer.get().filter(|_| self.drops) else {
            return;
        };
        let _dropping = self.head().dropping.lock();
        let may_go = |(word, mask): Found| {
            let there = self.present.word(word) & mask;
            (word, self.clean_of(word, there & !self.kept(word, there)))
        };
        let found = masks(units(range)).map(may_go);
        let found = found.filter(|(_, mask)| *mask != 0).collect();
        self.drop_found(&**committer, found);
    }

    /// Whether a range is there now: reading it would not wait for the disk.
    pub fn has_range(&self, range: Range<u64>) -> bool {
        self.present.has_all(units(range))
    }

    /// Which units of some of a word somebody has an address of.
    fn kept(&self, word: usize, of: u64) -> u64 {
        match of {
            0 => 0,
            _ => of & (self.pinned.word(word) | self.windows_of(word)),
        }
    }

    fn drop_clean(&self, committer: &dyn Committer, wanted: u64) -> u64 {
        self.drop_found(committer, self.search(wanted))
    }

    fn drop_found(&self, committer: &dyn Committer, mut found: Vec<Found>) -> u64 {
        let _held = self.hold_regions(&mut found);
        if found.is_empty() {
            return 0;
        }
        // While nobody stores no memory is asked for.
        let mut taken = Vec::with_capacity(found.len());
        committer.while_nobody_stores(&mut || {
            self.take_out(&mut found);
            taken.append(&mut found);
        });
        taken.iter().for_each(|&found| self.free(found));
        let dropped = taken.iter().map(|(_, mask)| u64::from(mask.count_ones()));
        let dropped = dropped.sum();
        self.head().present.fetch_sub(dropped, Relaxed);
        self.head().dropped.fetch_add(dropped, Relaxed);
        dropped
    }

    /// Holds the regions of units that are to go, so that none of them comes meanwhile. Leaves in
    /// `found` those whose region nobody else holds: who waits here for room does.
    fn hold_regions(&self, found: &mut Vec<Found>) -> BTreeMap<usize, Option<Held<'_>>> {
        let mut held = BTreeMap::new();
        found.retain(|&(word, _)| {
            let lock = region_lock(word as u64 * BITS);
            let region = held
                .entry(lock)
                .or_insert_with(|| self.head().regions[lock].try_lock());
            region.is_some()
        });
        held
    }

    /// Finds units that may go: in two rounds, as the first one passes over what was used.
    fn search(&self, wanted: u64) -> Vec<Found> {
        let count = self.present.count();
        let hand = &self.head().hand;
        let (mut found, mut units) = (Vec::new(), 0);
        for _ in 0..2 * count {
            if units >= wanted {
                break;
            }
            let word = hand.fetch_add(1, Relaxed) as usize % count;
            let there = self.present.word(word);
            let there = there & !self.kept(word, there);
            let used = self.used.clear(word, there);
            let mask = self.clean_of(word, there & !used);
            if mask != 0 {
                units += u64::from(mask.count_ones());
                found.push((word, mask));
            }
        }
        found
    }

    /// Which units of a word the disk has at home as they are here.
    fn clean_of(&self, word: usize, mut mask: u64) -> u64 {
        let mut left = mask;
        while left != 0 {
            let bit = left.trailing_zeros();
            left &= left - 1;
            if !self.is_home(word as u64 * BITS + u64::from(bit)) {
                mask &= !(1 << bit);
            }
        }
        mask
    }

    pub(super) fn is_home(&self, unit: u64) -> bool {
        let noted = self.is_noted(unit * UNIT_SIZE..(unit + 1) * UNIT_SIZE);
        // In this order: what leaves the sets is in the other one before (C7).
        let noted_nowhere = site::check(!noted);
        noted_nowhere && site::check(!self.away.has_any(unit..unit + 1))
    }

    /// Makes units absent, while nobody stores; leaves in `found` those that are.
    fn take_out(&self, found: &mut Vec<Found>) {
        for (word, mask) in found.iter_mut() {
            let clean = self.clean_of(*word, *mask);
            let gone = self.present.clear(*word, clean);
            // Whoever pinned one meanwhile, or mapped it, either finds it gone or is seen here.
            let kept = self.kept(*word, gone);
            self.present.set(*word, kept);
            *mask = gone & !kept;
            let first = *word as u64 * BITS;
            // C9: after they are absent, before their bytes go.
            (first..first + BITS)
                .step_by((CHUNK / UNIT_SIZE) as usize)
                .for_each(|unit| _ = self.epoch(unit).fetch_add(1, SeqCst));
        }
        found.retain(|(_, mask)| *mask != 0);
    }

    /// Gives the memory of absent units back.
    fn free(&self, (word, mask): Found) {
        let mut left = mask;
        while left != 0 {
            let first = left.trailing_zeros();
            let count = (left >> first).trailing_ones();
            left &= !((u64::MAX >> (BITS as u32 - count)) << first);
            let at = (word as u64 * BITS + u64::from(first)) * UNIT_SIZE;
            let len = u64::from(count) * UNIT_SIZE;
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // What is not given back is used again when the unit comes.
            while fallocate(&self.file, punch, at, len) == Err(Errno::INTR) {}
        }
    }
}

const _: () = assert!(Words::needed(BITS) == 1);
