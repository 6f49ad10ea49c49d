//! What a disk may hold after a power cut.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nacre_testkit::random::Random;
use nacre_volume::tap::DiskEvent;

pub(super) const SECTOR: usize = 512;

pub(super) type Sectors = BTreeMap<u64, [u8; SECTOR]>;

/// What the disk may hold: what is durable, and later versions of sectors that may be there.
#[derive(Clone)]
pub(super) struct Model {
    pub(super) base: Arc<[u8]>,
    pub(super) durable: Sectors,
    pub(super) pending: Vec<(u64, [u8; SECTOR])>,
    /// May be there, and no sync changes that: one that failed was to write it.
    pub(super) lost: Vec<(u64, [u8; SECTOR])>,
}

impl Model {
    /// With what is under way: it may be there or not, each sector for itself.
    pub(super) fn with(&self, event: &DiskEvent) -> Model {
        let mut model = self.clone();
        if let DiskEvent::Write(at, bytes) | DiskEvent::Through(at, bytes) = event {
            model.write(*at, bytes);
        }
        model
    }

    pub(super) fn apply(&mut self, event: &DiskEvent) {
        match event {
            DiskEvent::Write(at, bytes) => self.write(*at, bytes),
            DiskEvent::Through(at, bytes) => {
                let earlier = self.pending.len();
                self.write(*at, bytes);
                let through = self.pending.split_off(earlier);
                let sectors: BTreeSet<u64> = through.iter().map(|(sector, _)| *sector).collect();
                self.pending.retain(|(one, _)| !sectors.contains(one));
                self.settle(through);
            }
            DiskEvent::Sync => {
                let all = std::mem::take(&mut self.pending);
                self.settle(all);
            }
            DiskEvent::Settle(ranges) => {
                let sector = |at: u64| at / SECTOR as u64;
                let is_in = |(one, _): &(u64, [u8; SECTOR])| {
                    let mut ranges = ranges.iter();
                    ranges.any(|range| (sector(range.start)..=sector(range.end - 1)).contains(one))
                };
                let (now, later) = self.pending.drain(..).partition(is_in);
                self.pending = later;
                self.settle(now);
            }
            DiskEvent::SyncFailed => self.lost.append(&mut self.pending),
            DiskEvent::Mark(_) => {}
        }
    }

    /// Later versions of sectors are there for good.
    fn settle(&mut self, now: Vec<(u64, [u8; SECTOR])>) {
        let sectors: BTreeSet<u64> = now.iter().map(|(sector, _)| *sector).collect();
        self.lost.retain(|(one, _)| !sectors.contains(one));
        self.durable.extend(now);
    }

    /// What is written of a sector changes it as it was written last.
    fn write(&mut self, at: u64, bytes: &[u8]) {
        let size = SECTOR as u64;
        let end = at + bytes.len() as u64;
        for number in at / size..end.div_ceil(size) {
            let mut sector = self.last(number);
            let (from, to) = (at.max(number * size), end.min((number + 1) * size));
            let place = (from % size) as usize..(from % size + to - from) as usize;
            sector[place].copy_from_slice(&bytes[(from - at) as usize..(to - at) as usize]);
            self.pending.push((number, sector));
        }
    }

    fn last(&self, number: u64) -> [u8; SECTOR] {
        let mut newest = self.lost.iter().chain(&self.pending).rev();
        let known = newest.find(|(one, _)| *one == number);
        let known = known.map(|(_, bytes)| *bytes);
        known
            .or_else(|| self.durable.get(&number).copied())
            .unwrap_or_else(|| {
                let bytes = &self.base[number as usize * SECTOR..][..SECTOR];
                bytes.try_into().unwrap_or([0; SECTOR])
            })
    }

    /// What the disk holds if a choice of what is pending got there: nothing, all, or any.
    pub(super) fn image(&self, choice: u64, random: &mut Random) -> Sectors {
        let mut image = self.durable.clone();
        for (sector, bytes) in self.lost.iter().chain(&self.pending) {
            let arrives = match choice {
                0 => false,
                1 => true,
                _ => random.below(2) == 0,
            };
            if arrives {
                image.insert(*sector, *bytes);
            }
        }
        image
    }
}
