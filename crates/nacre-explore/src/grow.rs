//! Crashes while a pool grows by a device, in front or behind, or as its last one has, and damaged
//! labels, on files in shared memory.

use std::fs::File;
use std::sync::Arc;

use nacre_fs::Fs;
use nacre_store::{FormatOptions, Store, WriteMode};
use nacre_types::BLOCK_SIZE;
use nacre_volume::{Access, CreateOptions, Observer, Volume, VolumeError, tap};

use crate::action::Action;
use crate::bench::Bench;
use crate::ground::Ground;
use crate::judge::examine;
use crate::sabotage::Sabotage;
use crate::two_files::TwoFiles;
use crate::visible::Visible;
use nacre_testkit::medium::{Depth, Difference, LINE, Medium};
use nacre_testkit::pool::CAREFUL;
use nacre_testkit::random::{Random, mix};
use nacre_testkit::recorder::{DEVICE, Event, Recorder, What};

const SIZE: u64 = (2 << 20) + 4 * BLOCK_SIZE + 4096;
const LONGER: u64 = SIZE + 2 * BLOCK_SIZE;
const DEPTH: Depth = Depth {
    all_up_to: 64,
    samples: 120,
    aimed: false,
};

/// What was explored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Grown {
    /// Images of crashes.
    pub images: u64,
    /// Bits of labels flipped, one after the other.
    pub bits: u64,
    /// Flushes and fences met.
    pub events: usize,
}

/// By what a pool grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Front,
    Behind,
    /// Its last device, which stands behind, has become larger.
    Last,
}

impl Way {
    /// Bytes of the volume in the end.
    fn volume(self) -> u64 {
        match self {
            Way::Front | Way::Behind => 8 * BLOCK_SIZE,
            Way::Last => 10 * BLOCK_SIZE,
        }
    }

    /// Bytes of the second device in the end.
    fn second(self) -> u64 {
        match self {
            Way::Front | Way::Behind => SIZE,
            Way::Last => LONGER,
        }
    }
}

/// Crashes a pool while it grows, at every fence; then damages its labels.
pub fn run(sabotage: Sabotage, seed: u64, grown: &mut Grown) -> Result<Vec<Event>, String> {
    let mut all = Vec::new();
    for way in [Way::Front, Way::Behind, Way::Last] {
        let mut scene = Scene(TwoFiles::new(), way);
        let before = scene.prepare()?;
        scene.0.keep()?;
        let events = scene.grow(sabotage)?;
        grown.events += events.len();
        let crashed = scene.crash(&events, &before, (sabotage, seed), grown);
        crashed.map_err(|why| format!("{way:?}: {why}"))?;
        scene.grow(Sabotage::Nothing)?;
        scene.0.keep()?;
        scene.damage(&before, grown)?;
        all.extend(events);
    }
    Ok(all)
}

struct Scene(TwoFiles, Way);

impl Scene {
    /// A pool on the first file, or on both, with something in it.
    fn prepare(&self) -> Result<Visible, String> {
        let (specs, options) = ([0, 1].map(|index| self.0.spec(index, SIZE)), self.options());
        let volume = match self.1 {
            Way::Last => Volume::create(&specs, options),
            Way::Front | Way::Behind => Volume::create(&specs[..1], CAREFUL),
        };
        let volume = volume.map_err(|e| e.to_string())?;
        Store::format(&volume, &FormatOptions::default()).map_err(|e| e.to_string())?;
        let pool = Bench::attach_clean(volume, WriteMode::Direct)?;
        for action in [
            Action::Create("a"),
            Action::Write("a", 0, 5000),
            Action::Mkdir("d"),
        ] {
            action
                .run(Ground::of(&pool), 1)
                .map_err(|e| e.to_string())?;
        }
        let seen = examine(&pool)?;
        pool.into_store().close().map_err(|e| e.to_string())?;
        if self.1 != Way::Last {
            File::create(self.0.path(1)).map_err(|e| e.to_string())?;
        }
        let second = File::options().write(true).open(self.0.path(1));
        let second = second.map_err(|e| e.to_string())?;
        let len = second.set_len(self.1.second());
        len.map_err(|e| e.to_string())?;
        Ok(seen)
    }

    fn options(&self) -> CreateOptions {
        CreateOptions {
            force: self.1 != Way::Last,
            behind: usize::from(self.1 != Way::Front),
            ..CAREFUL
        }
    }

    fn enlarge(&self) -> Result<Volume, VolumeError> {
        let first = self.0.path(0);
        match self.1 {
            Way::Front | Way::Behind => {
                Volume::grow(&[&first], &self.0.spec(1, SIZE), self.options())
            }
            Way::Last => {
                Volume::grow_last(&first, None)?;
                Volume::open(&first, Access::ReadWrite)
            }
        }
    }

    /// Grows the pool and attaches it once.
    fn grow(&self, sabotage: Sabotage) -> Result<Vec<Event>, String> {
        self.0.lay_out(&Difference::new())?;
        let recorder = Arc::new(Recorder::default());
        let observer: Arc<dyn Observer> = Arc::clone(&recorder) as Arc<dyn Observer>;
        tap::set(Some((Arc::clone(&observer), self.0.paths())));
        recorder.start();
        let volume = self.enlarge();
        tap::set(None);
        let volume = volume.map_err(|e| format!("grow: {e}"))?;
        recorder.mark_done();
        volume.set_observer(&observer);
        let pool = Bench::attach_clean(volume, WriteMode::Direct)?;
        pool.into_store().close().map_err(|e| e.to_string())?;
        let mut events = recorder.stop();
        sabotage.plant(&mut events);
        Ok(events)
    }

    fn crash(
        &self,
        events: &[Event],
        before: &Visible,
        (sabotage, seed): (Sabotage, u64),
        grown: &mut Grown,
    ) -> Result<(), String> {
        let floor = |number: u64| self.0.line(number);
        let (mut medium, mut done) = (Medium::default(), false);
        let (mut random, depth) = (Random::new(seed, 0), sabotage.aim(DEPTH));
        for event in events {
            done |= matches!(event.what, What::Done);
            if matches!(event.what, What::Done | What::Fence) {
                let choices = medium.choices(&floor);
                let found = medium.images(&choices, depth, &mut random, |image| {
                    grown.images += 1;
                    self.judge(image, before, done)
                });
                found.map_err(|why| format!("a crash while the pool grows: {why}"))?;
            }
            medium.apply(event, &floor);
        }
        Ok(())
    }

    /// A damaged copy of a label is as good as none, and the other copy is enough.
    fn damage(&self, before: &Visible, grown: &mut Grown) -> Result<(), String> {
        for device in 0..2 {
            let size = [SIZE, self.1.second()][device as usize];
            for copy in [0, size - 4096] {
                let first = (device * DEVICE + copy) / LINE as u64;
                for number in first..first + 4096 / LINE as u64 {
                    let mut line = self.0.line(number);
                    if line == [0; LINE] {
                        continue;
                    }
                    grown.bits += 1;
                    let bit = mix(number) % (8 * LINE as u64);
                    line[bit as usize / 8] ^= 1 << (bit % 8);
                    let judged = self.judge(&Difference::from([(number, line)]), before, true);
                    judged.map_err(|why| format!("a flipped bit in a label: {why}"))?;
                }
            }
        }
        Ok(())
    }

    /// The pool must be as it was, or grown; surely grown if `done`.
    fn judge(&self, image: &Difference, before: &Visible, done: bool) -> Result<(), String> {
        self.0.lay_out(image)?;
        let volume = Volume::open(&self.0.path(0), Access::ReadWrite).map_err(|e| e.to_string())?;
        if done && volume.len() != self.1.volume() {
            return Err("the pool has lost its new room".into());
        }
        let pool: Fs = Bench::attach_clean(volume, WriteMode::Direct)?;
        match examine(&pool)? == *before {
            true => Ok(()),
            false => Err("the pool holds something else".into()),
        }
    }
}
