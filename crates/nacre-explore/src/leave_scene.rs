//! Crashes while a device leaves its pool, on files in shared memory: the last one, the first one
//! with the pool's header, and one behind the other.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use nacre_fs::{AllocateMode, Fs};
use nacre_store::{FormatOptions, Store, WriteMode};
use nacre_testkit::medium::{Depth, Difference, Medium};
use nacre_testkit::pool::{CAREFUL, PRIVATE};
use nacre_testkit::random::Random;
use nacre_testkit::recorder::{Event, Recorder, What};
use nacre_types::BLOCK_SIZE;
use nacre_volume::{Access, CreateOptions, Observer, Stripe, Volume, tap};

use crate::action::Action;
use crate::bench::Bench;
use crate::ground::Ground;
use crate::judge::examine;
use crate::sabotage::Sabotage;
use crate::two_files::TwoFiles;
use crate::visible::Visible;

const SIZE: u64 = (2 << 20) + 6 * BLOCK_SIZE + 4096;
const DEPTH: Depth = Depth {
    all_up_to: 16,
    samples: 12,
    aimed: false,
};
const CONTENTS: [Action; 15] = [
    Action::Mkdir("d"),
    Action::Create("d/a"),
    Action::Write("d/a", 0, 70_000),
    Action::Write("d/a", 3 << 20, 5000),
    Action::Create("small"),
    Action::Write("small", 0, 3000),
    Action::SetXattr("small", "user.long", 9000),
    Action::SetXattr("small", "user.short", 30),
    Action::Create("reserved"),
    Action::Allocate("reserved", AllocateMode::Extend, 0, 30_000),
    Action::Create("b"),
    Action::Clone("d/a", 0, "b", 0, 65_536),
    Action::Symlink("link", 100),
    Action::Snapshot("d", "monday"),
    Action::Write("b", 8192, 5000),
];

/// Of contents that lie behind.
const SHARED_BEHIND: [Action; 2] = [Action::Create("c"), Action::Clone("d/a", 0, "c", 0, 65_536)];

struct Scene {
    files: TwoFiles,
    /// Which device leaves.
    leaves: usize,
    /// How many devices stand behind.
    behind: usize,
}

/// Crashes a pool at every fence while one of its devices leaves.
pub fn run(sabotage: Sabotage, seed: u64, images: &mut u64) -> Result<Vec<Event>, String> {
    let mut all = Vec::new();
    for (leaves, behind) in [(1, 0), (0, 0), (1, 1)] {
        let files = TwoFiles::new();
        let mut scene = Scene {
            files,
            leaves,
            behind,
        };
        let before = scene.prepare()?;
        scene.files.keep()?;
        let events = scene.remove(sabotage)?;
        scene.crash(&events, &before, (sabotage, seed), images)?;
        all.extend(events);
    }
    Ok(all)
}

fn play(pool: &Fs, actions: &[Action]) -> Result<(), String> {
    for (index, action) in actions.iter().enumerate() {
        let done = action.run(Ground::of(pool), index as u64);
        done.map_err(|why| format!("{action:?}: {why}"))?;
    }
    Ok(())
}

impl Scene {
    /// The device that stays.
    fn stays(&self) -> PathBuf {
        self.files.path(1 - self.leaves)
    }

    /// A pool with something on both devices, one of which is to leave.
    fn prepare(&self) -> Result<Visible, String> {
        let spread = CreateOptions {
            stripe: Some(Stripe::Bytes(4096)),
            behind: self.behind,
            ..CAREFUL
        };
        let specs = [0, 1].map(|index| self.files.spec(index, SIZE));
        let volume = Volume::create(&specs, spread).map_err(|e| e.to_string())?;
        Store::format(&volume, &FormatOptions::default()).map_err(|e| e.to_string())?;
        let pool = Bench::attach_clean(volume, WriteMode::Direct)?;
        play(&pool, &CONTENTS)?;
        if self.behind > 0 {
            let moved = pool.store().move_cold(u64::MAX);
            moved.map_err(|e| format!("nothing moves behind: {e}"))?;
            play(&pool, &SHARED_BEHIND)?;
        }
        let seen = examine(&pool)?;
        pool.into_store().close().map_err(|e| e.to_string())?;
        let begun = Volume::begin_leaving(&self.files.path(0), &self.files.path(self.leaves));
        begun.map_err(|e| e.to_string())?;
        Ok(seen)
    }

    /// Removes the device, and records how.
    fn remove(&self, sabotage: Sabotage) -> Result<Vec<Event>, String> {
        self.files.lay_out(&Difference::new())?;
        let recorder = Arc::new(Recorder::default());
        let observer: Arc<dyn Observer> = Arc::clone(&recorder) as Arc<dyn Observer>;
        let volume =
            Volume::open(&self.files.path(0), Access::ReadWrite).map_err(|e| e.to_string())?;
        volume.set_observer(&observer);
        tap::set(Some((observer, self.files.paths())));
        recorder.start();
        let store = Store::attach(volume, &PRIVATE).map_err(|e| format!("attach: {e}"))?;
        self.drain(&store)?;
        let removed = store.remove_device(&self.files.path(0));
        tap::set(None);
        let (_, left) = removed.map_err(|e| format!("remove: {e}"))?;
        if !left.is_nothing() {
            return Err(format!("something is left: {left:?}"));
        }
        recorder.mark_done();
        let mut events = recorder.stop();
        sabotage.plant(&mut events);
        Ok(events)
    }

    /// From behind contents move as they do while others use the pool.
    fn drain(&self, store: &Store) -> Result<(), String> {
        let Some(units) = store.volume().leaving().filter(|_| self.behind > 0) else {
            return Ok(());
        };
        let told = &mut |_| ControlFlow::Continue(());
        let drained = store.drain_device(&units, told);
        match drained.map_err(|e| format!("drain: {e}"))?.moved {
            0 => Err("nothing lay behind".into()),
            _ => Ok(()),
        }
    }

    fn crash(
        &self,
        events: &[Event],
        before: &Visible,
        (sabotage, seed): (Sabotage, u64),
        images: &mut u64,
    ) -> Result<(), String> {
        let floor = |number: u64| self.files.line(number);
        let (mut medium, mut done) = (Medium::default(), false);
        let (mut random, depth) = (Random::new(seed, 0), sabotage.aim(DEPTH));
        for event in events {
            done |= matches!(event.what, What::Done);
            if matches!(event.what, What::Done | What::Fence) {
                let choices = medium.choices(&floor);
                let found = medium.images(&choices, depth, &mut random, |image| {
                    *images += 1;
                    self.judge(image, before, done)
                });
                found.map_err(|why| {
                    let (leaves, behind) = (self.leaves, self.behind);
                    format!("a crash while device {leaves} leaves, {behind} behind: {why}")
                })?;
            }
            medium.apply(event, &floor);
        }
        Ok(())
    }

    /// All that was there must be, whether the device is gone or not; surely gone if `done`. Called
    /// again, it goes.
    fn judge(&self, image: &Difference, before: &Visible, done: bool) -> Result<(), String> {
        self.files.lay_out(image)?;
        let volume = Volume::open(&self.stays(), Access::ReadWrite).map_err(|e| e.to_string())?;
        let is_gone = volume.devices().len() == 1;
        if done && !is_gone {
            return Err("the device is still there".into());
        }
        let pool: Fs = Bench::attach_clean(volume, WriteMode::Direct)?;
        if examine(&pool)? != *before {
            return Err("the pool holds something else".into());
        }
        if is_gone {
            return Ok(());
        }
        let again = pool.into_store().remove_device(&self.stays());
        let (_, left) = again.map_err(|e| format!("remove again: {e}"))?;
        let volume = Volume::open(&self.stays(), Access::ReadWrite).map_err(|e| e.to_string())?;
        let pool: Fs = Bench::attach_clean(volume, WriteMode::Direct)?;
        match left.is_nothing() && examine(&pool)? == *before {
            true => Ok(()),
            false => Err(format!(
                "once it is gone the pool holds something else: {left:?}"
            )),
        }
    }
}
