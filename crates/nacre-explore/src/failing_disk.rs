//! One of two disks that hold the same fails all from one of its calls on. What is committed then
//! is on the other one, whose label says so before the commit returns; the failed one is rebuilt.

use std::ops::ControlFlow;

use nacre_fs::Fs;
use nacre_store::{Store, WriteMode};
use nacre_testkit::random::Random;
use nacre_volume::{LegState, Volume, tap};

use super::{Disks, Kind, LENGTH, SPREAD, choose, text};
use crate::bench::Bench;
use crate::ground::Ground;
use crate::judge::examine;
use crate::sabotage::Sabotage;
use crate::visible::Visible;

/// Calls of a disk after which it fails.
const CALLS: u64 = 24;

pub(super) fn run(sabotage: Sabotage, seed: u64, images: &mut u64) -> Result<(), String> {
    tap::write_by_calls(true);
    let mut disks = Disks::new(Kind::Twins);
    disks.prepare()?;
    for after in 0..CALLS {
        *images += 1;
        let failing = after as usize % 2;
        sabotage.switch();
        let played = disks.play_failing(failing, after, seed);
        Sabotage::Nothing.switch();
        let judged = played.and_then(|seen| disks.judge_failed(failing, &seen));
        judged.map_err(|why| format!("disk {failing} failed after {after} calls: {why}"))?;
    }
    Ok(())
}

impl Disks {
    /// Commits after each operation; answers what was there at last.
    fn play_failing(&self, failing: usize, after: u64, seed: u64) -> Result<Visible, String> {
        self.lay_out(&self.untouched(), None)?;
        let pool = Bench::attach_clean(self.open(None)?, WriteMode::Cached)?;
        tap::fail_disk(Some(failing), after);
        let played = self.operate(&pool, Random::new(seed, after), failing);
        tap::fail_disk(None, 0);
        drop(pool.into_store().abandon());
        played
    }

    fn operate(&self, pool: &Fs, mut random: Random, failing: usize) -> Result<Visible, String> {
        let mut seen = examine(pool)?;
        let volume = pool.store().volume();
        for index in 1..=LENGTH {
            let action = choose(&mut random, &seen);
            // One that fails changes nothing.
            let _ = action.run(Ground::of(pool), index as u64);
            pool.commit().map_err(text)?;
            if random.below(3) == 0 {
                volume.checkpoint().map_err(text)?;
            }
            seen = examine(pool)?;
            let known = volume.copies().map_err(text)?[failing].state;
            if self.states_on(1 - failing)?[failing] != known {
                return Err(format!("{known:?}, and a label that does not say it"));
            }
        }
        Ok(seen)
    }

    /// What the label of a disk says of all.
    fn states_on(&self, disk: usize) -> Result<Vec<LegState>, String> {
        let label = Volume::inspect(&self.path(disk)).map_err(text)?;
        let states = label.devices.iter().map(|it| it.state.unwrap_or_default());
        Ok(states.collect())
    }

    fn judge_failed(&self, failing: usize, seen: &Visible) -> Result<(), String> {
        self.forget(None)?;
        let failed = self.states_on(1 - failing)?[failing] == LegState::Failed;
        let pool = Bench::attach_clean(self.open(None)?, WriteMode::Cached)?;
        let judged = match examine(&pool)? == *seen {
            true if failed => rebuild(pool.store(), failing).and_then(|()| self.scrub(&pool)),
            true => Ok(()),
            false => Err("what was committed is not there".into()),
        };
        drop(pool.into_store().abandon());
        judged?;
        match self.states_on(failing)? == [LegState::Current; 2] {
            true => self.judge_each(seen),
            false => Err("a disk is not current after a rebuild".into()),
        }
    }
}

/// As [`run`], of disks that hold contents each alone: one that fails calls and takes its label is
/// no lost one (T6). Who commits is told; what failed goes with the commit behind.
pub(super) fn run_alone(kind: Kind, seed: u64, images: &mut u64) -> Result<u64, String> {
    tap::write_by_calls(true);
    let mut disks = Disks::new(kind);
    disks.prepare()?;
    let mut refused = 0;
    for after in 0..CALLS {
        *images += 1;
        let failing = after as usize % 2;
        let played = disks.play_ailing(failing, after, seed);
        let judged = played.and_then(|(seen, failures)| {
            refused += failures;
            disks.judge_ailing(&seen)
        });
        judged.map_err(|why| format!("disk {failing} failed after {after} calls: {why}"))?;
    }
    Ok(refused)
}

impl Disks {
    /// A disk fails for the length of a commit, again and again. Answers what was there at last,
    /// and how many commits failed.
    fn play_ailing(&self, failing: usize, after: u64, seed: u64) -> Result<(Visible, u64), String> {
        self.lay_out(&self.untouched(), None)?;
        let pool = Bench::attach_clean(self.open(None)?, WriteMode::Cached)?;
        let played = self.ail(&pool, Random::new(seed, after), (failing, after));
        tap::fail_disk(None, 0);
        drop(pool.into_store().abandon());
        played
    }

    fn ail(
        &self,
        pool: &Fs,
        mut random: Random,
        (failing, after): (usize, u64),
    ) -> Result<(Visible, u64), String> {
        let (mut seen, mut failures) = (examine(pool)?, 0);
        for index in 1..=LENGTH {
            let action = match random.below(2) {
                0 => choose(&mut random, &seen),
                _ => SPREAD[random.below(SPREAD.len() as u64) as usize],
            };
            // One that fails changes nothing.
            let _ = action.run(Ground::of(pool), index as u64);
            tap::fail_disk(Some(failing), after % 4);
            failures += u64::from(pool.commit().is_err());
            let _ = pool.store().volume().checkpoint();
            tap::fail_disk(None, 0);
            pool.commit().map_err(text)?;
            seen = examine(pool)?;
            for disk in 0..2 {
                if self.states_on(disk)? != [LegState::Current; 2] {
                    return Err("a disk that takes its label is lost".into());
                }
            }
        }
        Ok((seen, failures))
    }

    fn judge_ailing(&self, seen: &Visible) -> Result<(), String> {
        self.forget(None)?;
        let pool = Bench::attach_clean(self.open(None)?, WriteMode::Cached)?;
        let found = examine(&pool);
        drop(pool.into_store().abandon());
        match found? == *seen {
            true => Ok(()),
            false => Err("what was committed is not there".into()),
        }
    }
}

/// It gets what is used (D82), and must do alone with that.
fn rebuild(store: &Store, failed: usize) -> Result<(), String> {
    let volume = store.volume();
    let lost = volume.copies().map_err(text)?[failed].uuid;
    if !volume.return_copy(lost).map_err(text)? {
        return Err("the disk that failed is not taken back".into());
    }
    let rebuilt = store.rebuild_copies(1, |_| ControlFlow::Continue(()));
    match rebuilt.map_err(text)?.0 {
        1 => Ok(()),
        others => Err(format!("{others} disks were rebuilt")),
    }
}

#[cfg(test)]
mod tests {
    use nacre_volume::{LegState, tap};

    use super::{CALLS, Disks, Kind, run, run_alone};
    use crate::sabotage::Sabotage;

    #[test]
    fn a_disk_that_fails_is_given_up_before_anything_is_acknowledged() {
        run(Sabotage::Nothing, 5, &mut 0).unwrap();
    }

    #[test]
    fn a_disk_that_holds_contents_alone_is_not_given_up_for_a_call() {
        for kind in [Kind::Alone, Kind::Kept] {
            let refused = run_alone(kind, 5, &mut 0).unwrap();
            assert!(refused > CALLS, "{refused}");
        }
    }

    #[test]
    fn most_of_the_calls_are_made() {
        tap::write_by_calls(true);
        let mut disks = Disks::new(Kind::Twins);
        disks.prepare().unwrap();
        let failed = (0..CALLS).filter(|&after| {
            disks.play_failing(1, after, 5).unwrap();
            disks.states_on(0).unwrap()[1] == LegState::Failed
        });
        let failed = failed.count() as u64;
        assert!(failed > CALLS / 2, "{failed}");
    }
}
