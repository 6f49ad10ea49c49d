//! One look at the pools.

use crate::attached::Attached;
use crate::commands::info::{CacheReport, CopyReport, cache_report, copies};
use crate::commands::list::{Used, gather};
use crate::failure::Result;
use crate::mode::Mode;
use crate::output::harmless;
use crate::processor_time::{self, Of};
use nacre_types::UNIT_SIZE;
use nacre_volume::Volume;
use rustix::fs::{self as kernel, OFlags, fstat};
use rustix::process::geteuid;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Which pools are looked at.
pub struct Chosen {
    /// Their UUIDs, with the device that was named.
    named: Vec<(String, PathBuf)>,
}

/// All of them at one moment.
pub struct Sample {
    pub at: Instant,
    pub pools: Vec<PoolSample>,
}

/// One of them.
pub struct PoolSample {
    /// By this it is known at the next look.
    pub id: PathBuf,
    pub uuid: String,
    /// A device of it, if one is known.
    pub pool: Option<PathBuf>,
    pub programs: Vec<Program>,
    /// Or why nothing is known.
    pub facts: std::result::Result<Facts, String>,
}

/// A process that uses it.
pub struct Program {
    pub pid: u32,
    pub command: String,
    pub mounts: Vec<String>,
    /// Time of a processor that it has taken so far, in seconds.
    pub seconds: f64,
}

/// What whoever is attached can tell.
pub struct Facts {
    pub mode: &'static str,
    pub bytes: u64,
    pub free_bytes: u64,
    /// Changes that were committed since the pool was made.
    pub records: u64,
    pub copies: Vec<CopyReport>,
    pub cache: Option<CacheReport>,
}

impl Facts {
    /// What somebody should do something about.
    pub fn warnings(&self) -> Vec<String> {
        let whole = self.copies.iter().filter(|copy| copy.is_whole()).count();
        let copies = self.copies.len();
        let failed = self.cache.as_ref().map_or(0, |cache| cache.failed_commits);
        let degraded = (whole < copies).then(|| format!("{whole} of {copies} copies are current"));
        let failed = (failed > 0).then(|| format!("{failed} commits FAILED"));
        degraded.into_iter().chain(failed).collect()
    }
}

impl Chosen {
    /// The pools of these devices; all that are in use, if there are none.
    pub fn of(pools: &[PathBuf]) -> Result<Chosen> {
        let named = pools.iter().map(|pool| {
            let label = Volume::inspect(pool)?;
            Ok((label.pool.to_string(), pool.clone()))
        });
        let named = named.collect::<Result<_>>()?;
        Ok(Chosen { named })
    }

    /// Looks at them.
    pub fn look(&self) -> Result<Sample> {
        let used = gather()?;
        let mut pools: Vec<PoolSample> = match self.named.is_empty() {
            true => used.iter().filter_map(|one| in_use(one, None)).collect(),
            false => Vec::new(),
        };
        for (uuid, path) in &self.named {
            let found = in_use_as(&used, uuid, path).unwrap_or_else(|| unused(uuid, path));
            // Two devices of one pool may have been named.
            if pools.iter().all(|known| known.id != found.id) {
                pools.push(found);
            }
        }
        let at = Instant::now();
        Ok(Sample { at, pools })
    }
}

impl PoolSample {
    /// For a line of a terminal.
    pub fn name(&self) -> String {
        let path = self.pool.as_ref().map(|pool| pool.display().to_string());
        harmless(path.as_deref().unwrap_or(&self.uuid))
    }
}

fn unused(uuid: &str, path: &Path) -> PoolSample {
    PoolSample {
        id: path.to_owned(),
        uuid: uuid.to_string(),
        pool: Some(path.to_owned()),
        programs: Vec::new(),
        facts: Err("nobody uses it".to_string()),
    }
}

/// The pool of a device. A copy of it may be in use, too, which has the same UUID.
fn in_use_as(used: &[Used], uuid: &str, device: &Path) -> Option<PoolSample> {
    let real = |path: &Path| fs::canonicalize(path).ok();
    let is_there = |one: &&Used| one.pool.as_deref().and_then(real) == real(device);
    let candidates = used.iter().filter(|one| one.uuid == uuid);
    let best = candidates.max_by_key(is_there)?;
    in_use(best, Some(device))
}

/// A pool that others than this process use.
fn in_use(used: &Used, named: Option<&Path>) -> Option<PoolSample> {
    let others = used.processes.iter();
    let others = others.filter(|one| one.pid != std::process::id());
    let programs: Vec<Program> = others
        .map(|one| Program {
            pid: one.pid,
            command: one.command.clone(),
            mounts: one.mounts.clone(),
            seconds: seconds_of(one.pid),
        })
        .collect();
    (!programs.is_empty()).then_some(())?;
    let facts = match (named, &used.pool) {
        (Some(named), _) => facts(named).map_err(|failure| failure.to_string()),
        (None, Some(found)) => facts_of_own(found),
        (None, None) => Err("no device of it is known here".to_string()),
    };
    Some(PoolSample {
        id: used.session.clone(),
        uuid: used.uuid.clone(),
        pool: named.map(Path::to_owned).or_else(|| used.pool.clone()),
        programs,
        facts,
    })
}

/// Of a pool that nobody named. That of another user is left alone: what is in it, and in the
/// memory that its programs share, is theirs.
fn facts_of_own(found: &Path) -> std::result::Result<Facts, String> {
    let opened = kernel::open(found, OFlags::PATH | OFlags::CLOEXEC, kernel::Mode::empty());
    let looked = opened.and_then(|device| Ok((fstat(&device)?.st_uid, device)));
    let (owner, device) = looked.map_err(|errno| errno.to_string())?;
    if owner != geteuid().as_raw() {
        return Err("is another user's; name it to look into it".to_string());
    }
    // The name may lead elsewhere by now.
    let same = PathBuf::from(format!("/proc/self/fd/{}", device.as_raw_fd()));
    facts(&same).map_err(|failure| failure.to_string())
}

fn facts(pool: &Path) -> Result<Facts> {
    let attached = Attached::open_to_look(pool)?;
    let store = attached.fs.store();
    let space = store.statfs();
    let copies = copies(store.volume());
    let facts = Facts {
        mode: Mode::name(store.mode()),
        bytes: space.units * UNIT_SIZE,
        free_bytes: space.free_units * UNIT_SIZE,
        records: store.records(),
        copies: Vec::new(),
        cache: cache_report(store),
    };
    attached.detach()?;
    copies.map(|copies| Facts { copies, ..facts })
}

/// What a process and its threads took so far. 0 if it has gone.
fn seconds_of(pid: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    processor_time::seconds(&text, Of::Itself)
}

#[cfg(test)]
mod tests {
    use super::{CacheReport, CopyReport, Facts, Instant, seconds_of};
    use nacre_volume::LegState;

    #[test]
    fn copies_that_are_not_whole_and_commits_that_failed_are_told() {
        let mut facts = Facts {
            mode: "cached",
            bytes: 0,
            free_bytes: 0,
            records: 0,
            copies: vec![CopyReport::of("a", LegState::Current)],
            cache: Some(CacheReport::default()),
        };
        assert!(facts.warnings().is_empty());
        facts.copies.push(CopyReport::of("b", LegState::Missing));
        facts.cache = Some(CacheReport {
            failed_commits: 2,
            ..CacheReport::default()
        });
        let told = ["1 of 2 copies are current", "2 commits FAILED"];
        assert_eq!(facts.warnings(), told);
    }

    #[test]
    fn this_process_took_some_time() {
        let begin = Instant::now();
        while seconds_of(std::process::id()) == 0.0 {
            assert!(begin.elapsed().as_secs() < 60);
        }
        assert_eq!(seconds_of(u32::MAX), 0.0);
    }
}
