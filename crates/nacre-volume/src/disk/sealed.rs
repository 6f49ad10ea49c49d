//! Checksums of what is at home on disks that hold the same, and what is there (D78).
//!
//! - **T4 A seal goes before its bytes.** Before anything is written home to a span, its seal is
//!   removed from each disk, durably. So a seal is of what is at home, whatever was cut short. Who
//!   removes several waits once: a word that all processes share says whether there is anything to
//!   wait for.

use std::ops::Range;
use std::slice;
use std::sync::atomic::Ordering::SeqCst;

use nacre_cache::{Disk, DiskFailed};
use nacre_media::{Copies, Copy, LegState};
use nacre_types::site;

use super::legs::{Leg, LegsDisk};
use super::one::One;

/// Bytes of a seal.
const WORD: usize = size_of::<u64>();

/// Some were removed, perhaps not durably.
const REMOVED: u64 = 0;
/// All that were removed are so durably.
const SETTLED: u64 = 1;
/// A call failed. What the kernel had of removals may be lost, though it shows them (C13).
const DOUBTFUL: u64 = 2;

impl LegsDisk {
    /// Removes the seals of data that is about to be written; not yet durably.
    pub fn remove_seals(&self, data: Range<u64>) -> Result<(), DiskFailed> {
        let spans = self.spans().touched_by(data);
        if spans.is_empty() {
            return Ok(());
        }
        let places = self.spans().places(spans);
        let none = vec![0; (places.end - places.start) as usize];
        self.on_all(|disk| {
            let mut seals = none.clone();
            disk.read(places.start, &mut seals)?;
            if seals == none {
                return Ok(());
            }
            let word = self.seals_settled();
            // What is in doubt stays so.
            let _ = word.compare_exchange(SETTLED, REMOVED, SeqCst, SeqCst);
            disk.write(places.start, &none)
        })
    }

    /// As [`FileDisk::discard`](super::file::FileDisk::discard), of all disks that have the place.
    pub fn discard(&self, range: &Range<u64>, files: bool) -> Result<u64, DiskFailed> {
        self.break_seals(range.clone())?;
        let mut bytes = Ok(0);
        self.each_of(range.clone(), |file, there| {
            let taken = bytes.clone();
            bytes = taken.and_then(|bytes| Ok(bytes + file.discard(&there, files)?));
        });
        bytes
    }

    /// Whether any of the disks is told what it need not keep.
    pub fn is_told(&self, files: bool) -> bool {
        let mut any = false;
        self.each(|file| any |= file.is_told(files));
        any
    }

    /// Data may be written to these places from now on (T4).
    pub(super) fn break_seals(&self, data: Range<u64>) -> Result<(), DiskFailed> {
        self.remove_seals(data.clone())?;
        match self.spans().touched_by(data).is_empty() || !site::step() {
            true => Ok(()),
            false => self.settle_seals(),
        }
    }

    /// What was removed of seals is removed durably, on return.
    pub fn settle_seals(&self) -> Result<(), DiskFailed> {
        let known = self.seals_settled().load(SeqCst);
        if known == SETTLED {
            return Ok(());
        }
        let seals = self.spans().places(self.spans().all());
        self.on_all(|disk| {
            if known == DOUBTFUL {
                write_again(disk, &seals)?;
            }
            disk.settle(slice::from_ref(&seals))
        })?;
        self.seals_settled().store(SETTLED, SeqCst);
        Ok(())
    }

    /// A call failed on a disk that may go on.
    pub(super) fn doubt_seals(&self) {
        self.seals_settled().store(DOUBTFUL, SeqCst);
    }

    /// What a span was when it was sealed, by any disk that is current. Nobody commits.
    pub fn seal_of(&self, span: u64) -> Option<u32> {
        let at = self.spans().places(span..span + 1).start;
        let legs = self.devices().into_iter();
        let mut current = legs.filter(|(state, _)| *state == LegState::Current);
        current.find_map(|(_, leg)| {
            let mut seal = [0; WORD];
            leg.file.read(at, &mut seal).ok()?;
            self.spans().sealed(span, u64::from_le_bytes(seal))
        })
    }

    /// Seals a span on all disks. Nobody commits.
    pub fn set_seal(&self, span: u64, crc: u32) -> Result<(), DiskFailed> {
        let at = self.spans().places(span..span + 1).start;
        let seal = self.spans().seal(span, crc).to_le_bytes();
        self.on_all(|disk| {
            let mut known = [0; WORD];
            disk.read(at, &mut known)?;
            match known == seal {
                true => Ok(()),
                false => disk.write(at, &seal),
            }
        })
    }

    /// What the disks that are current hold of a range, the one that is read there first. One that
    /// cannot be read is lost.
    pub fn copies(&self, range: Range<u64>) -> Result<Copies, DiskFailed> {
        let legs = self.current_in_turn(range.start)?;
        let (mut all, mut bad) = (Vec::new(), Vec::new());
        let mut room = self.room.take().unwrap_or_default();
        for leg in legs {
            let mut bytes = self.spare.bytes((range.end - range.start) as usize);
            match leg.file.read_medium(range.start, &mut bytes, &mut room) {
                Ok(()) => all.push(Copy {
                    id: leg.uuid.0,
                    bytes,
                }),
                Err(why) => bad.push((leg.uuid, why)),
            }
        }
        self.room.put(room);
        if let (true, Some((_, why))) = (all.is_empty(), bad.first()) {
            return Err(why.clone());
        }
        let lost = bad.into_iter().filter(|_| self.own().is_none());
        lost.for_each(|(uuid, _)| self.lose(uuid));
        self.settle_labels()?;
        Ok(Copies { range, all })
    }

    /// What one disk holds of a range. `None`: it cannot be read.
    pub fn copy_on(&self, leg: &Leg, range: Range<u64>) -> Option<Copy> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let mut room = self.room.take().unwrap_or_default();
        let read = leg.file.read_medium(range.start, &mut bytes, &mut room);
        self.room.put(room);
        let id = leg.uuid.0;
        read.is_ok().then_some(Copy { id, bytes })
    }

    /// What copies were compared in is for the next ones.
    pub fn put_back(&self, copies: &mut Copies) {
        let all = copies.all.drain(..);
        all.for_each(|copy| self.spare.put(copy.bytes));
    }

    /// Gives all disks the right bytes of some units, durably; a seal of them stays. Nobody
    /// commits.
    pub fn repair(&self, units: &[(u64, Vec<u8>)]) -> Result<(), DiskFailed> {
        let range = |(at, bytes): &(u64, Vec<u8>)| *at..at + bytes.len() as u64;
        let ranges: Vec<Range<u64>> = units.iter().map(range).collect();
        self.on_all(|disk| {
            for (at, bytes) in units {
                disk.write(*at, bytes)?;
            }
            match ranges.is_empty() {
                true => Ok(()),
                false => disk.settle(&ranges),
            }
        })
    }
}

/// Writes what is there once more, as the kernel may think that the disk has it.
fn write_again(disk: One<'_>, places: &Range<u64>) -> Result<(), DiskFailed> {
    let mut bytes = vec![0; (places.end - places.start) as usize];
    disk.read(places.start, &mut bytes)?;
    disk.write(places.start, &bytes)
}
