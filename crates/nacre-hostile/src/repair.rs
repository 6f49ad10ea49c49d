//! Repairs of damaged pools: clean afterwards, nothing lost that was not damaged, and the same
//! after a crash in the middle.

use std::sync::Arc;

use nacre_fs::Fs;
use nacre_objects::Pool;
use nacre_store::Store;
use nacre_store::check::check;
use nacre_store::repair::repair;
use nacre_testkit::medium::{Depth, Difference, LINE, Line, Medium};
use nacre_testkit::pool::PRIVATE;
use nacre_testkit::random::Random;
use nacre_testkit::recorder::{Event, Recorder, What};
use nacre_types::{StoreKind, UNIT_SIZE, VolumeOffset};
use nacre_volume::{Observer, Volume};

use crate::keyed::{self, KnownObject};
use crate::place::names_place;
use crate::pool::{Known, POOL};
use crate::tally::{Tally, see};

/// Of so many repairs one is crashed.
const CRASHED_EVERY: u64 = 24;
/// Images of each fence.
const DEPTH: Depth = Depth {
    all_up_to: 4,
    samples: 3,
    aimed: false,
};
/// Most images of one repair.
const MAX_IMAGES: u64 = 60;

/// A repair to be tried.
pub struct Repair<'r> {
    /// Paths that the damage cannot have reached.
    pub untouched: &'r [(&'r [u8], &'r Known)],
    /// Objects of collections that the damage cannot have reached.
    pub untouched_objects: &'r [&'r KnownObject],
    /// Attaching refuses the pool.
    pub refused: bool,
    /// Where choices come from.
    pub random: &'r mut Random,
    /// Sums.
    pub tally: &'r mut Tally,
}

impl Repair<'_> {
    /// Repairs the pool, looks at it, repairs it again.
    pub fn run(&mut self, volume: Volume) -> Result<(), String> {
        let crashed = self.random.below(CRASHED_EVERY) == 0;
        let before = crashed.then(|| contents(&volume));
        let recorder = Arc::new(Recorder::default());
        if crashed {
            let observer: Arc<dyn Observer> = Arc::clone(&recorder) as Arc<dyn Observer>;
            volume.set_observer(&observer);
            recorder.start();
        }
        let Some(fixes) = self.repair(volume)? else {
            return Ok(());
        };
        self.tally.repaired += 1;
        self.tally.fixes += fixes;
        match before {
            Some(before) => self.crash(&before, &recorder.stop()),
            None => Ok(()),
        }
    }

    /// Changes made; `None` for a pool that cannot be repaired.
    fn repair(&mut self, volume: Volume) -> Result<Option<u64>, String> {
        let (outcome, volume) = match repair(volume, false, &mut |_| {}) {
            Ok(done) => done,
            Err(error) if self.refused => {
                self.tally.hopeless += 1;
                return names_place(&error).map(|()| None);
            }
            Err(error) => return Err(format!("repair: {error}")),
        };
        if let Some(left) = outcome.left.problems.first() {
            return Err(format!("repair leaves: {left}"));
        }
        let again = repair(volume, false, &mut |_| {});
        let (again, volume) = again.map_err(|e| format!("repair, once more: {e}"))?;
        if let Some(more) = again.fixes.first() {
            return Err(format!("repair does more the second time: {more}"));
        }
        let store = Store::attach(volume, &PRIVATE);
        let fs = Fs::new(store.map_err(|e| format!("attach after the repair: {e}"))?);
        if let Some(problem) = check(fs.store(), &mut |_| {}).problems.first() {
            return Err(format!("check after the repair: {problem}"));
        }
        for (path, known) in self.untouched {
            let name = String::from_utf8_lossy(path);
            let seen = see(&fs, path).map_err(|e| format!("repair lost {name:?}: {e}"))?;
            if seen != known.seen.bytes {
                return Err(format!("repair changed {name:?}"));
            }
        }
        let pool = Pool::of(fs.into_store());
        let compared = keyed::compare(&pool, self.untouched_objects);
        compared.map_err(|why| format!("after the repair: {why}"))?;
        Ok(Some(outcome.fixes.len() as u64 + outcome.more_fixes))
    }

    /// Cuts the repair off at each fence and repairs what is left.
    fn crash(&mut self, before: &[u8], events: &[Event]) -> Result<(), String> {
        let floor = |number: u64| line_of(before, number);
        let before = units_of(before);
        let mut medium = Medium::default();
        let mut images = 0;
        for event in events {
            if matches!(event.what, What::Fence) && images < MAX_IMAGES {
                images += self.point(&medium, &before, &floor)?;
            }
            medium.apply(event, &floor);
        }
        Ok(())
    }

    fn point(
        &mut self,
        medium: &Medium,
        before: &[(u64, &[u8])],
        floor: &dyn Fn(u64) -> Line,
    ) -> Result<u64, String> {
        let mut images = 0;
        let mut random = self.random.clone();
        let found = medium.images(&medium.choices(floor), DEPTH, &mut random, |image| {
            images += 1;
            let volume = volume_of(before, image)?;
            self.repair(volume).map(drop)
        });
        *self.random = random;
        self.tally.images += images;
        found.map_err(|why| format!("after a crash of the repair: {why}"))?;
        Ok(images)
    }
}

fn contents(volume: &Volume) -> Vec<u8> {
    let mut bytes = vec![0; POOL as usize];
    volume.read(VolumeOffset(0), &mut bytes);
    bytes
}

fn line_of(bytes: &[u8], number: u64) -> Line {
    let start = number as usize * LINE;
    bytes[start..start + LINE].try_into().unwrap_or([0; LINE])
}

/// Those that are not all zeros: a pool has few, and there are many images of it.
fn units_of(bytes: &[u8]) -> Vec<(u64, &[u8])> {
    let units = (0..).zip(bytes.chunks(UNIT_SIZE as usize));
    units
        .filter(|(_, unit)| **unit != [0; UNIT_SIZE as usize])
        .collect()
}

fn volume_of(before: &[(u64, &[u8])], image: &Difference) -> Result<Volume, String> {
    let volume = Volume::memory(POOL).map_err(|e| e.to_string())?;
    for &(unit, bytes) in before {
        let at = VolumeOffset(unit * UNIT_SIZE);
        volume
            .fence(volume.write(at, bytes, StoreKind::Data))
            .expect("a device that does not fail");
    }
    for (&number, line) in image {
        let at = VolumeOffset(number * LINE as u64);
        volume
            .fence(volume.write(at, line, StoreKind::Data))
            .expect("a device that does not fail");
    }
    Ok(volume)
}
