//! What a pool with two copies may be after a crash: with both, with either one alone, and when the
//! other one comes back behind that.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use nacre_fs::Fs;
use nacre_store::WriteMode;
use nacre_volume::{Access, LegState, Observer, Volume, VolumeError, tap};

use crate::action::Action;
use crate::bench::Bench;
use crate::copies_files::{Files, scrub, text};
use crate::copies_story::{Alone, Story};
use crate::ground::Ground;
use crate::judge::{Contract, examine};
use crate::visible::Visible;
use nacre_testkit::medium::{Depth, Difference, Medium};
use nacre_testkit::random::Random;
use nacre_testkit::recorder::{Event, Recorder, What};

/// One image in so many is crashed again while it recovers, ...
const NESTED: u64 = 24;
/// ... and after one in so many the pool is used without one device, which then comes back.
const RETURNS: u64 = 12;
const NESTED_DEPTH: Depth = Depth {
    all_up_to: 2,
    samples: 2,
    aimed: false,
};

/// What is to be found.
pub(crate) struct Expected<'e> {
    pub contract: Contract<'e>,
    pub story: Story,
    /// What each device has to be by itself.
    pub alone: [Alone; 3],
}

impl Expected<'_> {
    /// Whether the second copy does alone.
    fn is_whole(&self) -> bool {
        self.alone[self.story.second()] == Alone::Holds
    }
}

/// Recovers images and looks at them.
pub(crate) struct Judge<'f> {
    files: &'f Files,
    mode: WriteMode,
}

impl<'f> Judge<'f> {
    pub fn new(files: &'f Files, mode: WriteMode) -> Judge<'f> {
        Judge { files, mode }
    }

    pub fn files(&self) -> &'f Files {
        self.files
    }

    /// Recovers one image in all ways.
    pub fn judge(
        &mut self,
        image: &Difference,
        expected: &Expected<'_>,
        random: &mut Random,
        images: &mut u64,
    ) -> Result<(), String> {
        let recovery = self.all_there(image, expected, random)?;
        self.each_alone(image, expected, random)?;
        if random.below(NESTED) == 0 {
            self.crash_again(image, &recovery, expected, random, images)
                .map_err(|why| format!("then in recovery: {why}"))?;
        }
        Ok(())
    }

    fn each_alone(
        &self,
        image: &Difference,
        expected: &Expected<'_>,
        random: &mut Random,
    ) -> Result<(), String> {
        let pair = [expected.story.stays(), expected.story.second()];
        for device in 0..expected.alone.len() {
            let other = pair.iter().sum::<usize>().wrapping_sub(device);
            let seen = self
                .alone(image, device, expected)
                .map_err(|why| format!("device {device} alone: {why}"))?;
            if let Some(seen) = seen
                && pair.contains(&device)
                && random.below(RETURNS) == 0
            {
                self.other_comes_back(image, (device, other), &seen)
                    .map_err(|why| format!("{other} comes back to {device}: {why}"))?;
            }
        }
        Ok(())
    }

    /// A recovery that is cut short leads to something that is as good.
    fn crash_again(
        &mut self,
        image: &Difference,
        recovery: &[Event],
        expected: &Expected<'_>,
        random: &mut Random,
        images: &mut u64,
    ) -> Result<(), String> {
        let floor = |number: u64| {
            let line = image.get(&number).copied();
            line.unwrap_or_else(|| self.files.line(number))
        };
        let (mut medium, mut stored) = (Medium::default(), false);
        let mut crashes = Vec::new();
        for event in recovery {
            stored |= matches!(event.what, What::Store { .. });
            if matches!(event.what, What::Fence) && stored {
                let choices = medium.choices(&floor);
                let found = medium.images(&choices, NESTED_DEPTH, random, |second| {
                    let mut both = image.clone();
                    both.extend(second.iter().map(|(&number, line)| (number, *line)));
                    crashes.push(both);
                    Ok::<(), String>(())
                });
                found?;
                stored = false;
            }
            medium.apply(event, &floor);
        }
        let expected = &after_recovery(expected);
        for image in crashes {
            *images += 1;
            self.all_there(&image, expected, random)?;
            self.each_alone(&image, expected, random)?;
        }
        Ok(())
    }

    fn open(&self, device: usize) -> Result<Fs, String> {
        let volume = Volume::open(&self.files.path(device), Access::ReadWrite).map_err(text)?;
        Bench::attach_clean(volume, self.mode)
    }

    /// With all devices, whichever is named; answers what the recovery did.
    fn all_there(
        &self,
        image: &Difference,
        expected: &Expected<'_>,
        random: &mut Random,
    ) -> Result<Vec<Event>, String> {
        self.files.lay_out(image, &self.files.all())?;
        let (stays, second) = (expected.story.stays(), expected.story.second());
        let named = match random.below(2) {
            1 if expected.is_whole() => second,
            _ => stays,
        };
        let recorder = Arc::new(Recorder::default());
        let observer: Arc<dyn Observer> = Arc::clone(&recorder) as Arc<dyn Observer>;
        tap::set(Some((observer, self.files.paths())));
        recorder.start();
        let pool = self.open(named);
        tap::set(None);
        let recovery = recorder.stop();
        let why = |why| format!("all devices, by {named}: {why}");
        let pool = pool.map_err(why)?;
        expected
            .contract
            .judge(&examine(&pool).map_err(why)?)
            .map_err(why)?;
        let whole = self.close_rebuilt(pool)?;
        if let Some(copies) = whole {
            self.files.are_alike(&copies).map_err(why)?;
            if !matches!(expected.story, Story::Whole | Story::Lost(_)) {
                scrub(self.files, stays).map_err(why)?;
            }
            self.is_gone(expected.story).map_err(why)?;
        }
        Ok(recovery)
    }

    /// One for which another one has come is no device of the pool any more.
    fn is_gone(&self, story: Story) -> Result<(), String> {
        let Story::Exchanged(old) = story else {
            return Ok(());
        };
        let inspect = |device: usize| Volume::inspect(&self.files.path(device));
        let table = inspect(story.stays()).map_err(text)?;
        let is_in = |uuid| table.copies().any(|(_, entry)| entry.uuid == uuid);
        let has_come = inspect(story.second()).is_ok_and(|new| is_in(new.own().uuid));
        // A crash may keep its label, which says less than the others.
        match Volume::open(&self.files.path(old), Access::ReadWrite) {
            Ok(_) if has_come => Err("what was replaced is used still".into()),
            _ => Ok(()),
        }
    }

    /// Goes on with what was being rebuilt, and leaves. Answers where the copies are if all are
    /// whole now.
    fn close_rebuilt(&self, pool: Fs) -> Result<Option<Vec<PathBuf>>, String> {
        let volume = pool.store().volume();
        volume
            .rebuild_copies(|_| ControlFlow::Continue(()))
            .map_err(text)?;
        let copies = volume.copies().map_err(text)?;
        pool.into_store().close().map_err(text)?;
        let whole = copies.iter().all(|copy| copy.state == LegState::Current);
        Ok(whole.then(|| copies.into_iter().map(|copy| copy.path).collect()))
    }

    /// With one device; `None` if that one does not count, or does not do alone and says so.
    fn alone(
        &self,
        image: &Difference,
        device: usize,
        expected: &Expected<'_>,
    ) -> Result<Option<Visible>, String> {
        let must = match expected.alone[device] {
            Alone::Anything => return Ok(None),
            Alone::Refuses => return self.refuses(image, device),
            alone => alone == Alone::Holds,
        };
        self.files.lay_out(image, &[device])?;
        if !must {
            // What was away stands on its own until it is told that it came back.
            let label = Volume::inspect(&self.files.path(device));
            if label.map_or(0, |label| label.sequence) <= self.files.labels[device] {
                return Ok(None);
            }
        }
        let pool = match self.open(device) {
            Ok(pool) => pool,
            Err(_) if !must => return Ok(None),
            Err(why) => return Err(why),
        };
        let seen = examine(&pool)?;
        drop(pool.into_store().abandon());
        expected.contract.judge(&seen)?;
        Ok(Some(seen))
    }

    fn refuses(&self, image: &Difference, device: usize) -> Result<Option<Visible>, String> {
        self.files.lay_out(image, &[device])?;
        match Volume::inspect(&self.files.path(device)) {
            Err(VolumeError::NotAPool { .. }) => Ok(None),
            found => Err(format!("it went, and says {found:?}")),
        }
    }

    /// One device is used without the other, which is there again behind that: it is not trusted,
    /// and is whole when it has been rebuilt.
    fn other_comes_back(
        &self,
        image: &Difference,
        (device, other): (usize, usize),
        seen: &Visible,
    ) -> Result<(), String> {
        self.files.lay_out(image, &[device])?;
        let pool = self.open(device)?;
        let made = Action::Write("a", 0, 700).run(Ground::of(&pool), 5);
        // It may have no such file.
        let _changed = made;
        let changed = examine(&pool)?;
        pool.into_store().close().map_err(text)?;
        if changed.len() != seen.len() {
            return Err("it shows something else the second time".into());
        }
        self.files.lay_out_one(image, other)?;
        let pool = self.open(device)?;
        let volume = pool.store().volume();
        let copies = volume.copies().map_err(text)?;
        let lost = copies.iter().find(|copy| copy.state != LegState::Current);
        let Some(lost) = lost.map(|copy| copy.uuid) else {
            return Err("what was away is trusted".into());
        };
        if examine(&pool)? != changed {
            return Err("it shows what was before".into());
        }
        volume.return_copy(lost).map_err(text)?;
        match self.close_rebuilt(pool)? {
            Some(copies) => self.files.are_alike(&copies),
            None => Ok(()),
        }
    }
}

/// A recovery lets go what was to go.
fn after_recovery<'e>(expected: &Expected<'e>) -> Expected<'e> {
    let alone = |device: usize| match (expected.story, expected.alone[device]) {
        (Story::Exchanged(old), Alone::Holds) if old == device => Alone::MayHold,
        (_, alone) => alone,
    };
    Expected {
        contract: expected.contract.clone(),
        story: expected.story,
        alone: [0, 1, 2].map(alone),
    }
}
