//! Checksums of units: what the disk has to give where a unit is not in memory (D130).
//!
//! They lie in the volume itself, in a block that nobody gets, for each part of it. So they are
//! stored, noted and written as all else, and a version has those of what it holds. What has them
//! stays in memory once it is there.
//!
//! | bytes of a granule | what |
//! |---|---|
//! | 0..252 | CRC-32C of 63 units, one behind the other; 0: nobody knows |
//! | 252..256 | CRC-32C of the pool, the place of the granule and all before |
//!
//! A granule whose own checksum is wrong says nothing. A unit has a checksum from when a version
//! has it, or it went home ahead of one, until somebody takes it for something new, or may store to
//! it behind our back: then it is 0.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, Release};

use nacre_types::{BLOCK_SIZE, DeviceOffset, UNIT_SIZE, crc32c, crc32c_append};
use zerocopy::IntoBytes;

use super::bits::BitSet;
use super::{CHUNK, DiskFds, GRANULE, Image, units};
use crate::shared_mutex::Held;

/// Units of which one granule has the checksums.
const SLOTS: u64 = GRANULE / size_of::<u32>() as u64 - 1;
/// Units of a block.
const OF_BLOCK: u64 = BLOCK_SIZE / UNIT_SIZE;
/// Where in each part its block is: behind those that each pool begins with.
const WITHIN: Range<u64> = 3 * OF_BLOCK..4 * OF_BLOCK;
/// Units of which one block has the checksums.
const OF_PART: u64 = BLOCK_SIZE / GRANULE * SLOTS;
const GRANULES: u64 = UNIT_SIZE / GRANULE;

const _: () = assert!(OF_PART.is_multiple_of(OF_BLOCK) && OF_PART > WITHIN.end);

/// The blocks that hold checksums, of so many units from the start of the data on: ranges of them.
pub fn blocks_of_sums(all: u64) -> impl Iterator<Item = Range<u64>> {
    let starts = (0..all).step_by(OF_PART as usize);
    let blocks = starts.map(|start| start + WITHIN.start..start + WITHIN.end);
    blocks.filter(move |block| block.end <= all)
}

/// Of which units of the device there are checksums.
#[derive(Debug)]
pub(super) struct Sums {
    units: Range<u64>,
    /// A checksum of the pool: the disk may have been another one's.
    pool: u32,
}

/// Where the checksum of a unit is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Slot {
    /// Device offset of the granule.
    granule: u64,
    index: usize,
}

impl Sums {
    /// None of what holds checksums, nor of what is behind the last block.
    fn slot(&self, unit: u64) -> Option<Slot> {
        let within = unit.checked_sub(self.units.start)?;
        let (part, within) = (within / OF_PART * OF_PART, within % OF_PART);
        let block = self.units.start + part + WITHIN.start;
        let has_one = unit < self.units.end
            && block + OF_BLOCK <= self.units.end
            && !WITHIN.contains(&within);
        has_one.then_some(Slot {
            granule: block * UNIT_SIZE + within / SLOTS * GRANULE,
            index: (within % SLOTS) as usize,
        })
    }

    /// Whether a unit holds checksums.
    fn is_holder(&self, unit: u64) -> bool {
        let within = unit.wrapping_sub(self.units.start) % OF_PART;
        self.units.contains(&unit) && WITHIN.contains(&within)
    }

    /// The units that hold the checksums of some.
    fn holders(&self, of: &Range<u64>) -> Option<Range<u64>> {
        let mut found = of.clone().filter_map(|unit| self.slot(unit));
        let first = found.next()?.granule / UNIT_SIZE;
        let last = of.clone().rev().find_map(|unit| self.slot(unit));
        Some(first..last.map_or(first, |last| last.granule / UNIT_SIZE) + 1)
    }
}

/// A granule that is being changed.
struct Open {
    at: u64,
    entries: [u32; SLOTS as usize],
    is_intact: bool,
    changed: bool,
}

/// Changes checksums. Nobody else does, and no version is taken.
struct Writer<'i, N: Fn(u64)> {
    image: &'i Image,
    sums: &'i Sums,
    open: Option<Open>,
    /// Notes the granule at a place.
    note: N,
    _held: Held<'i>,
}

impl<N: Fn(u64)> Writer<'_, N> {
    fn put(&mut self, unit: u64, sum: impl FnOnce() -> u32) {
        let Some(slot) = self.sums.slot(unit) else {
            return;
        };
        if self
            .open
            .as_ref()
            .is_none_or(|open| open.at != slot.granule)
        {
            self.close();
            self.open = self.image.open_granule(slot.granule);
        }
        if let Some(open) = &mut self.open {
            let sum = sum();
            open.changed |= open.entries[slot.index] != sum;
            open.entries[slot.index] = sum;
        }
    }

    fn close(&mut self) {
        if let Some(open) = self.open.take().filter(|open| open.changed) {
            (self.note)(open.at);
            self.image.store_granule(&open);
        }
    }
}

impl<N: Fn(u64)> Drop for Writer<'_, N> {
    fn drop(&mut self) {
        self.close();
    }
}

/// How many granules of a unit that holds checksums are right by their own; `None` if any is wrong.
fn intact(pool: u32, at: u64, unit: &[u8]) -> Option<usize> {
    let granules = (at..)
        .step_by(GRANULE as usize)
        .zip(unit.chunks_exact(GRANULE as usize));
    let is_intact = |(at, granule): (u64, &[u8])| {
        let (entries, own) = granule.split_at(granule.len() - size_of::<u32>());
        match own == own_sum(pool, at, entries).to_le_bytes() {
            true => Some(1),
            // Nobody has stored there yet.
            false => granule.iter().all(|byte| *byte == 0).then_some(0),
        }
    };
    granules.map(is_intact).sum()
}

/// The copy of a unit of checksums of which most is right, if it is one.
fn right_holder(pool: u32, at: u64, copies: &[&[u8]]) -> Option<usize> {
    let scores: Vec<Option<usize>> = copies.iter().map(|unit| intact(pool, at, unit)).collect();
    let best = (*scores.iter().max()?)?;
    let mut found = (0..copies.len()).filter(|&index| scores[index] == Some(best));
    let first = found.next()?;
    found
        .all(|other| copies[other] == copies[first])
        .then_some(first)
}

/// Never 0, which says that nobody knows.
fn sum(bytes: &[u8]) -> u32 {
    crc32c(bytes).max(1)
}

/// Of a granule at a place of the device.
fn own_sum(pool: u32, at: u64, entries: &[u8]) -> u32 {
    crc32c_append(crc32c_append(pool, &at.to_le_bytes()), entries)
}

impl Image {
    /// What comes from the disk is compared with checksums that lie in these units of the device,
    /// from now on, and what goes there gets some.
    pub fn use_sums(&mut self, units: Range<u64>, pool: [u8; 16]) {
        let pool = crc32c(&pool);
        self.sums = Some(Sums { units, pool });
    }

    /// Whether units have checksums.
    pub fn has_sums(&self) -> bool {
        self.sums.is_some()
    }

    /// What holds checksums of some units comes, and stays: whoever takes a version cannot wait for
    /// it. The caller holds no lock.
    pub(super) fn hold_sums(&self, of: &Range<u64>) {
        let holders = self.sums.as_ref().and_then(|sums| sums.holders(of));
        for unit in holders.into_iter().flatten() {
            if !self.pinned.has(unit) || !self.present.has(unit) {
                self.hold_holder(unit);
            }
        }
    }

    #[cold]
    fn hold_holder(&self, unit: u64) {
        let new = self.pinned.set_all(unit..unit + 1);
        self.head().pinned.fetch_add(new, Relaxed);
        let chunk = unit / (CHUNK / UNIT_SIZE) * (CHUNK / UNIT_SIZE);
        let all = chunk..chunk + CHUNK / UNIT_SIZE;
        if self.load_part(all, &(unit..unit + 1)).is_err() {
            // Nobody can tell any more: new ones are written there.
            let _ = self.claim(unit * UNIT_SIZE..(unit + 1) * UNIT_SIZE);
        }
    }

    /// What has checksums of a range of the device comes, for [`Image::tells_wrong`] and
    /// [`Image::right_of`].
    pub fn bring_sums(&self, range: Range<u64>) {
        self.hold_sums(&units(range));
    }

    /// Whether bytes that a disk has of the unit at a place, which is at home, are not what was
    /// given to it.
    pub fn tells_wrong(&self, at: u64, bytes: &[u8]) -> bool {
        self.sum_at(at).is_some_and(|known| known != sum(bytes))
    }

    /// Which of several copies of the unit at a place, which is at home, is what was given to the
    /// disks; `None` if nobody knows.
    pub fn right_of(&self, at: u64, copies: &[&[u8]]) -> Option<usize> {
        let sums = self.sums.as_ref()?;
        if sums.is_holder(at / UNIT_SIZE) {
            return right_holder(sums.pool, at, copies);
        }
        let known = self.sum_at(at)?;
        copies.iter().position(|bytes| sum(bytes) == known)
    }

    fn sum_at(&self, at: u64) -> Option<u32> {
        self.known_sum(self.sums.as_ref()?, at / UNIT_SIZE)
    }

    /// Whether a unit that came from the disk is what was given to it, as far as anybody knows.
    pub(super) fn is_as_given(&self, unit: u64) -> bool {
        let sum = self
            .sums
            .as_ref()
            .and_then(|sums| self.known_sum(sums, unit));
        sum.is_none_or(|sum| sum == self.sum_of(unit))
    }

    fn known_sum(&self, sums: &Sums, unit: u64) -> Option<u32> {
        let slot = sums.slot(unit)?;
        let mut open = self.open_granule(slot.granule)?;
        if !open.is_intact {
            // Somebody may be changing it.
            let _held = self.head().sums.lock();
            open = self.open_granule(slot.granule)?;
        }
        Some(open.entries[slot.index]).filter(|sum| *sum != 0)
    }

    /// Of a unit as it is in memory.
    fn sum_of(&self, unit: u64) -> u32 {
        let from = self.address(unit * UNIT_SIZE);
        // SAFETY: the unit is there and stays: it is noted, has just come, or a version is taken.
        // If somebody stores to it, it is noted once more, and summed up again.
        let bytes = unsafe { std::slice::from_raw_parts(from, UNIT_SIZE as usize) };
        sum(bytes)
    }

    fn pool(&self) -> u32 {
        self.sums.as_ref().map_or(0, |sums| sums.pool)
    }

    /// The words of a granule, if it is there.
    fn granule(&self, at: u64) -> Option<&[AtomicU32; SLOTS as usize + 1]> {
        if !self.present.has(at / UNIT_SIZE) {
            return None;
        }
        // SAFETY: the place is mapped, as long as the image, aligned, and only stored to as words.
        Some(unsafe { &*self.address(at).cast() })
    }

    /// What a granule says: nothing, if its own checksum is wrong.
    fn open_granule(&self, at: u64) -> Option<Open> {
        let words = self.granule(at)?;
        let mut entries = [0; SLOTS as usize];
        for (entry, word) in entries.iter_mut().zip(words) {
            *entry = word.load(Relaxed);
        }
        let is_intact =
            words[SLOTS as usize].load(Relaxed) == own_sum(self.pool(), at, entries.as_bytes());
        Some(Open {
            at,
            entries: if is_intact {
                entries
            } else {
                [0; SLOTS as usize]
            },
            is_intact,
            changed: false,
        })
    }

    fn store_granule(&self, open: &Open) {
        let Some(words) = self.granule(open.at) else {
            return;
        };
        let entries = open.entries.iter().copied();
        let all = entries.chain([own_sum(self.pool(), open.at, open.entries.as_bytes())]);
        words
            .iter()
            .zip(all)
            .for_each(|(word, value)| word.store(value, Release));
    }

    fn write_sums<'i, N: Fn(u64)>(&'i self, sums: &'i Sums, note: N) -> Writer<'i, N> {
        Writer {
            image: self,
            sums,
            open: None,
            note,
            _held: self.head().sums.lock(),
        }
    }

    /// Units of which a version has something get the checksums that they have when all of it is at
    /// home. Nobody stores.
    pub(super) fn sum_taken(&self, set: &BitSet) {
        let Some(sums) = &self.sums else {
            return;
        };
        let note = |at: u64| _ = set.insert(at / GRANULE..at / GRANULE + 1);
        let mut writer = self.write_sums(sums, note);
        let mut done = 0;
        set.each_range(|granules| {
            let units = granules.start / GRANULES..granules.end.div_ceil(GRANULES);
            for unit in units.start.max(done)..units.end {
                writer.put(unit, || self.sum_if_kept(unit));
            }
            done = units.end;
        });
    }

    /// Behind the copying of what was taken: who has mapped a unit meanwhile may have stored to it
    /// before it was copied. Answers whether that was so of any. Nobody stores.
    pub fn unsum_mapped(&self) -> bool {
        let Some(sums) = &self.sums else {
            return false;
        };
        let set = self.taken();
        let any = Cell::new(false);
        let note = |at: u64| {
            any.set(true);
            set.insert(at / GRANULE..at / GRANULE + 1);
        };
        let mut writer = self.write_sums(sums, note);
        set.each_range(|granules| {
            for unit in granules.start / GRANULES..granules.end.div_ceil(GRANULES) {
                if self.may_hold_unnoted(unit..unit + 1) {
                    writer.put(unit, || 0);
                }
            }
        });
        drop(writer);
        any.get()
    }

    /// Copies what is at a place of the device, if it is what has checksums.
    pub fn copy_sums(&self, at: u64, to: &mut [u8]) {
        let is_one = |sums: &Sums| sums.is_holder(at / UNIT_SIZE);
        if self.sums.as_ref().is_some_and(is_one) {
            self.copy(at, to);
        }
    }

    /// Units went home ahead of a version, as they are in memory if nobody notes them again.
    pub(super) fn sum_ahead(&self, units: impl Iterator<Item = u64>) {
        let Some(sums) = &self.sums else {
            return;
        };
        let _entered = self.enter_gate();
        let mut writer = self.write_sums(sums, |at| self.note(at, GRANULE));
        units.for_each(|unit| writer.put(unit, || self.sum_if_kept(unit)));
    }

    /// Units are used for something new: what the disk has there is no matter. The caller is inside
    /// of the gate.
    pub(super) fn forget_sums(&self, units: Range<u64>) {
        let Some(sums) = &self.sums else {
            return;
        };
        let is_known = |unit: u64| {
            let slot = sums.slot(unit);
            let known = slot.and_then(|slot| Some((self.granule(slot.granule)?, slot.index)));
            known.is_some_and(|(words, index)| words[index].load(Relaxed) != 0)
        };
        let mut known = units.filter(|unit| is_known(*unit)).peekable();
        if known.peek().is_some() {
            let mut writer = self.write_sums(sums, |at| self.note(at, GRANULE));
            known.for_each(|unit| writer.put(unit, || 0));
        }
    }

    /// Programs store to what they map without a word to anybody.
    fn sum_if_kept(&self, unit: u64) -> u32 {
        let sum = self.sum_of(unit);
        match self.may_hold_unnoted(unit..unit + 1) {
            true => 0,
            false => sum,
        }
    }

    /// Brings a unit that one disk gave wrong from another one that holds the same.
    pub(super) fn bring_right(&self, unit: u64) -> bool {
        let range = unit * UNIT_SIZE..(unit + 1) * UNIT_SIZE;
        let mut seen = Vec::new();
        let mut is_right = |disk: DiskFds<'_>| {
            let came = self.bring_from(disk, &range).is_ok();
            seen.push(came.then(|| self.sum_of(unit)));
            came && self.is_as_given(unit)
        };
        let legs = self.legs.as_ref();
        let is_found = legs.is_some_and(|legs| legs.find_right(range.start, &mut is_right));
        // Rather the checksum is an old one than that several disks are wrong alike.
        let are_alike =
            || seen.len() > 1 && seen.iter().all(|one| one.is_some() && *one == seen[0]);
        let found = is_found || are_alike();
        if !found {
            let head = self.head();
            head.last_wrong.store(range.start, Relaxed);
            head.wrong.fetch_add(1, Relaxed);
        }
        found
    }

    /// Units that were just stored to get no checksums, and stay.
    pub fn leave_unsummed(&self, range: Range<u64>) {
        let new = self.pinned.set_all(units(range));
        self.head().pinned.fetch_add(new, Relaxed);
    }

    /// How many units that were asked for no disk had as they were given to it, and where the last
    /// one was on the device.
    pub fn wrong_units(&self) -> (u64, DeviceOffset) {
        let head = self.head();
        let last = head.last_wrong.load(Relaxed);
        (head.wrong.load(Relaxed), DeviceOffset(last))
    }
}

#[cfg(test)]
mod tests {
    use super::{OF_BLOCK, OF_PART, SLOTS, Sums, blocks_of_sums, own_sum, right_holder};
    use std::collections::HashSet;
    use zerocopy::IntoBytes;

    #[test]
    fn each_unit_has_a_place_of_its_own_in_the_block_of_its_part() {
        let all = 2 * OF_PART + 5 * OF_BLOCK;
        let sums = Sums {
            units: 512..512 + all,
            pool: 3,
        };
        let blocks: Vec<_> = blocks_of_sums(all).collect();
        let mut places = HashSet::new();
        for unit in 0..all {
            let Some(slot) = sums.slot(512 + unit) else {
                assert!(blocks.iter().any(|block| block.contains(&unit)), "{unit}");
                continue;
            };
            let held = slot.granule / 4096 - 512;
            let block = &blocks[(unit / OF_PART) as usize];
            assert!(block.contains(&held) && slot.index < SLOTS as usize);
            assert!(places.insert((slot.granule, slot.index)));
        }
        assert_eq!(blocks.len(), 3);
        assert_eq!(sums.slot(511), None);
        assert_eq!(sums.slot(512 + all), None);
    }

    #[test]
    fn of_copies_of_checksums_that_is_right_which_says_most() {
        let unit = |granules: u64| -> Vec<u8> {
            let mut bytes = vec![0; 4096];
            for number in 0..granules {
                let entries = [7; SLOTS as usize];
                let at = (number * 256) as usize;
                bytes[at..at + 252].copy_from_slice(entries.as_bytes());
                let own = own_sum(3, 4096 + at as u64, entries.as_bytes()).to_le_bytes();
                bytes[at + 252..at + 256].copy_from_slice(&own);
            }
            bytes
        };
        let (most, less, none) = (unit(9), unit(3), unit(0));
        let mut damaged = unit(16);
        damaged[100] ^= 1;
        let right = |copies: &[&[u8]]| right_holder(3, 4096, copies);
        assert_eq!(right(&[&damaged, &less]), Some(1));
        assert_eq!(right(&[&less, &most]), Some(1));
        assert_eq!(right(&[&none, &most, &most]), Some(1));
        assert_eq!(right(&[&damaged, &none]), Some(1));
        assert_eq!(right(&[&damaged, &damaged]), None);
        let mut other = most.clone();
        other[..256].fill(0);
        other[9 * 256..10 * 256].copy_from_slice(&unit(10)[9 * 256..10 * 256]);
        assert_eq!(right(&[&most, &other]), None);
        // Of another place, or pool.
        assert_eq!(right_holder(3, 8192, &[&most, &none]), Some(1));
        assert_eq!(right_holder(4, 4096, &[&most, &none]), Some(1));
    }

    #[test]
    fn a_part_without_room_for_its_block_has_none() {
        assert_eq!(blocks_of_sums(3 * OF_BLOCK).count(), 0);
        assert_eq!(blocks_of_sums(OF_PART + 3 * OF_BLOCK).count(), 1);
        let sums = Sums {
            units: 0..OF_PART + 3 * OF_BLOCK,
            pool: 3,
        };
        assert_eq!(sums.slot(OF_PART), None);
        assert!(sums.slot(OF_PART - 1).is_some());
    }
}
