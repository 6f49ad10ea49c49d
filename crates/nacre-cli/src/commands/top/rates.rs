//! What came in between two looks.

use super::sample::{Facts, PoolSample, Program, Sample};
use crate::commands::info::CacheReport;
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// Of one pool, for each second.
#[derive(Clone, Serialize, Default, Debug, PartialEq)]
pub struct Rates {
    /// Changes of names, attributes and objects that were committed.
    pub changes: f64,
    /// What lies between the programs and a disk.
    pub disk: Option<DiskRates>,
}

/// Where a disk is behind a cache.
#[derive(Clone, Serialize, Default, Debug, PartialEq)]
pub struct DiskRates {
    pub commits: f64,
    /// How long each of them took, in milliseconds.
    pub commit_ms: Option<f64>,
    /// Written to the journal.
    pub journal_bytes: f64,
    /// Written to home places.
    pub home_bytes: f64,
    /// Came from the disk, also before anybody asked.
    pub loaded_bytes: f64,
    /// Read by programs.
    pub read_bytes: f64,
    /// Of these, what they had to wait for.
    pub missed_bytes: f64,
}

impl DiskRates {
    /// Which part of what was read was in memory, in percent.
    pub fn memory_part(&self) -> Option<f64> {
        let missed = self.missed_bytes.min(self.read_bytes);
        (self.read_bytes > 0.0).then(|| (1.0 - missed / self.read_bytes) * 100.0)
    }
}

/// What a pool did between two looks; `None` if it was not known at both.
pub fn rates(before: &Sample, pool: &PoolSample, passed: Duration) -> Option<Rates> {
    let then = facts_of(before, &pool.id)?;
    let now = pool.facts.as_ref().ok()?;
    let each = |then: u64, now: u64| now.saturating_sub(then) as f64 / passed.as_secs_f64();
    let disk = then.cache.as_ref().zip(now.cache.as_ref());
    Some(Rates {
        changes: each(then.records, now.records),
        disk: disk.map(|(then, now)| disk_rates(then, now, each)),
    })
}

fn disk_rates(then: &CacheReport, now: &CacheReport, each: impl Fn(u64, u64) -> f64) -> DiskRates {
    DiskRates {
        commits: each(then.commits, now.commits),
        commit_ms: commit_ms(then, now),
        journal_bytes: each(then.committed_bytes, now.committed_bytes),
        home_bytes: each(then.home_bytes, now.home_bytes),
        loaded_bytes: each(then.loaded_bytes, now.loaded_bytes),
        read_bytes: each(then.read_bytes, now.read_bytes),
        missed_bytes: each(then.missed_bytes, now.missed_bytes),
    }
}

fn commit_ms(then: &CacheReport, now: &CacheReport) -> Option<f64> {
    let commits = now.commits.saturating_sub(then.commits);
    let seconds = (now.commit_seconds - then.commit_seconds).max(0.0);
    (commits > 0).then(|| seconds / commits as f64 * 1e3)
}

fn facts_of<'s>(sample: &'s Sample, id: &Path) -> Option<&'s Facts> {
    let found = sample.pools.iter().find(|pool| pool.id == id)?;
    found.facts.as_ref().ok()
}

/// How many percent of one processor a program took.
pub fn processor_percent(before: &Sample, program: &Program, passed: Duration) -> f64 {
    let mut known = before.pools.iter().flat_map(|pool| &pool.programs);
    let then = known.find(|one| one.pid == program.pid);
    let taken = program.seconds - then.map_or(program.seconds, |one| one.seconds);
    taken.max(0.0) / passed.as_secs_f64() * 100.0
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Facts, PoolSample, Program, Sample};
    use super::{DiskRates, processor_percent, rates};
    use crate::commands::info::CacheReport;
    use std::time::{Duration, Instant};

    fn pool(records: u64, commits: Option<u64>, seconds: f64) -> PoolSample {
        let cache = |commits| CacheReport {
            commits,
            commit_seconds: commits as f64 * 0.25,
            read_bytes: commits * 1000,
            missed_bytes: commits * 250,
            ..CacheReport::default()
        };
        PoolSample {
            id: "one".into(),
            uuid: String::new(),
            pool: None,
            programs: vec![Program {
                pid: 7,
                command: "sh".into(),
                mounts: Vec::new(),
                seconds,
            }],
            facts: Ok(Facts {
                mode: "direct",
                bytes: 0,
                free_bytes: 0,
                records,
                copies: Vec::new(),
                cache: commits.map(cache),
            }),
        }
    }

    fn sample(pool: PoolSample) -> Sample {
        Sample {
            at: Instant::now(),
            pools: vec![pool],
        }
    }

    const TWO_SECONDS: Duration = Duration::from_secs(2);

    #[test]
    fn what_came_since_is_divided_by_the_time() {
        let before = sample(pool(10, Some(4), 1.0));
        let now = pool(30, Some(8), 1.5);
        let found = rates(&before, &now, TWO_SECONDS).expect("known at both");
        assert_eq!(found.changes, 10.0);
        let disk = found.disk.expect("a disk");
        assert_eq!((disk.commits, disk.read_bytes), (2.0, 2000.0));
        assert_eq!(disk.memory_part(), Some(75.0));
        assert_eq!(disk.commit_ms, Some(250.0));
        assert_eq!(
            processor_percent(&before, &now.programs[0], TWO_SECONDS),
            25.0
        );
    }

    #[test]
    fn who_was_not_there_has_no_rates() {
        let before = sample(PoolSample {
            id: "another".into(),
            programs: Vec::new(),
            ..pool(0, None, 0.0)
        });
        let now = pool(30, None, 9.0);
        assert_eq!(rates(&before, &now, TWO_SECONDS), None);
        assert_eq!(
            processor_percent(&before, &now.programs[0], TWO_SECONDS),
            0.0
        );
    }

    #[test]
    fn a_pool_that_was_begun_again_has_no_negative_rates() {
        let before = sample(pool(1000, Some(50), 1.0));
        let found = rates(&before, &pool(3, Some(1), 0.5), TWO_SECONDS).expect("known at both");
        assert_eq!(found.changes, 0.0);
        assert_eq!(found.disk, Some(DiskRates::default()));
    }

    #[test]
    fn who_reads_nothing_has_no_part_in_memory() {
        assert_eq!(DiskRates::default().memory_part(), None);
    }
}
