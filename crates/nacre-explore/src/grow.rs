//! Crashes while a pool grows by a device, and damaged labels, on files in shared memory.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre_fs::Fs;
use nacre_store::{FormatOptions, Store, WriteMode};
use nacre_types::BLOCK_SIZE;
use nacre_volume::{Access, DeviceSpec, MAX_DEVICES, Observer, Volume, tap};

use crate::action::Action;
use crate::bench::Bench;
use crate::ground::Ground;
use crate::judge::examine;
use crate::sabotage::Sabotage;
use crate::visible::Visible;
use nacre_testkit::medium::{Depth, Difference, LINE, Line, Medium};
use nacre_testkit::pool::{CAREFUL, Devices, FORCE};
use nacre_testkit::random::{Random, mix};
use nacre_testkit::recorder::{DEVICE, Event, Recorder, What};

const SIZE: u64 = (2 << 20) + 4 * BLOCK_SIZE + 4096;
const DEPTH: Depth = Depth {
    all_up_to: 64,
    samples: 120,
    aimed: false,
};
const NAMES: [&str; 2] = ["a", "b"];
const _: () = assert!(NAMES.len() <= MAX_DEVICES);

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

/// Two files, removed in the end.
struct Files {
    devices: Devices,
    base: [Vec<u8>; 2],
}

/// Crashes a pool while it grows, at every fence; then damages its labels.
pub fn run(sabotage: Sabotage, seed: u64, grown: &mut Grown) -> Result<Vec<Event>, String> {
    let mut files = Files::new();
    let before = files.prepare()?;
    files.keep()?;
    let events = files.grow(sabotage)?;
    grown.events = events.len();
    files.crash(&events, &before, (sabotage, seed), grown)?;
    files.grow(Sabotage::Nothing)?;
    files.keep()?;
    files.damage(&before, grown)?;
    Ok(events)
}

impl Files {
    fn new() -> Files {
        Files {
            devices: Devices::below(Path::new("/dev/shm")),
            base: [Vec::new(), Vec::new()],
        }
    }

    fn path(&self, index: usize) -> PathBuf {
        self.devices.file(NAMES[index])
    }

    fn spec(&self, index: usize) -> DeviceSpec {
        self.devices.spec(NAMES[index], SIZE)
    }

    /// A pool on the first file, with something in it.
    fn prepare(&self) -> Result<Visible, String> {
        let volume = Volume::create(&[self.spec(0)], CAREFUL);
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
        let second = File::create(self.path(1)).map_err(|e| e.to_string())?;
        second.set_len(SIZE).map_err(|e| e.to_string())?;
        Ok(seen)
    }

    /// From now on this is what the files hold.
    fn keep(&mut self) -> Result<(), String> {
        for index in 0..2 {
            self.base[index] = fs::read(self.path(index)).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// Grows the pool and attaches it once.
    fn grow(&self, sabotage: Sabotage) -> Result<Vec<Event>, String> {
        self.lay_out(&Difference::new())?;
        let recorder = Arc::new(Recorder::default());
        let observer: Arc<dyn Observer> = Arc::clone(&recorder) as Arc<dyn Observer>;
        tap::set(Some((
            Arc::clone(&observer),
            vec![self.path(0), self.path(1)],
        )));
        recorder.start();
        let volume = Volume::grow(&[&self.path(0)], &self.spec(1), FORCE);
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
        let floor = |number: u64| self.line(number);
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
            for copy in [0, SIZE - 4096] {
                let first = (device * DEVICE + copy) / LINE as u64;
                for number in first..first + 4096 / LINE as u64 {
                    let mut line = self.line(number);
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
        self.lay_out(image)?;
        let volume = Volume::open(&self.path(0), Access::ReadWrite).map_err(|e| e.to_string())?;
        if done && volume.devices().len() != NAMES.len() {
            return Err("the pool has lost its new device".into());
        }
        let pool: Fs = Bench::attach_clean(volume, WriteMode::Direct)?;
        match examine(&pool)? == *before {
            true => Ok(()),
            false => Err("the pool holds something else".into()),
        }
    }

    fn line(&self, number: u64) -> Line {
        let per_device = DEVICE / LINE as u64;
        let start = (number % per_device) as usize * LINE;
        let bytes = self.base[(number / per_device) as usize].get(start..start + LINE);
        bytes
            .and_then(|bytes| bytes.try_into().ok())
            .unwrap_or([0; LINE])
    }

    fn lay_out(&self, image: &Difference) -> Result<(), String> {
        let write = || -> std::io::Result<()> {
            for (index, base) in self.base.iter().enumerate() {
                fs::write(self.path(index), base)?;
            }
            for (&number, line) in image {
                let at = number * LINE as u64;
                let path = self.path((at / DEVICE) as usize);
                let file = File::options().write(true).open(path)?;
                file.write_all_at(line, at % DEVICE)?;
            }
            Ok(())
        };
        write().map_err(|e| e.to_string())
    }
}
