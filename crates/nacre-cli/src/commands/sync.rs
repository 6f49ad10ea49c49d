//! `nacre sync`.

use crate::attached::Attached;
use crate::every;
use crate::failure::{Failure, Result, fs_failure, store_failure};
use crate::ourselves;
use crate::users::{committers, programs};
use clap::Args;
use nacre_volume::Access;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  nacre sync my.pool              while programs run, or after they were killed
  nacre sync --every 1s my.pool   every second, until the last program has ended";
const LOOKS_EVERY: Duration = Duration::from_millis(50);

/// Write to the disks of pools what only their caches in memory hold
///
/// Returns when everything that was done before is durable. Pools without a cache are so already.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Any device of each pool
    #[arg(required = true, value_name = "POOL")]
    pools: Vec<PathBuf>,
    /// Do it so often, until nobody else uses the pool. `nacre run` leaves such a process behind
    /// for programs that outlive it
    #[arg(long, value_name = "TIME", value_parser = every::parse)]
    every: Option<Duration>,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    match (arguments.every, &arguments.pools[..]) {
        (None, pools) => pools.iter().try_for_each(|pool| sync(pool))?,
        (Some(every), [pool]) => stand_in(pool, every)?,
        (Some(_), _) => {
            let text = "--every is for one pool; start one such process for each";
            return Err(Failure::Usage(text.into()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn sync(pool: &Path) -> Result<()> {
    Attached::with(pool, Access::ReadWrite, |fs| {
        let mapped = fs.sync_all_mapped();
        // It says why the disk takes nothing.
        let committed = fs.store().commit_now();
        committed.map_err(|error| store_failure(pool, error))?;
        mapped.map_err(fs_failure(pool.display()))
    })
}

/// Commits for programs that outlived their supervisor.
fn stand_in(pool: &Path, every: Duration) -> Result<()> {
    let attached = Attached::open(pool, Access::ReadWrite, None)?;
    attached.fs.only_looks();
    let store = attached.fs.store();
    if committers(store.volume()).is_empty() {
        // A supervisor may rely on this one just before it says that it does not commit any more.
        while !programs_of(&attached).is_empty() {
            store.set_commits_for_all(true);
            commit_for_others(&attached, every);
            store.set_commits_for_all(false);
        }
    }
    attached.detach()
}

fn commit_for_others(pool: &Attached, every: Duration) {
    let mut last = Instant::now();
    loop {
        let others = programs_of(pool);
        if others.is_empty() {
            return;
        }
        await_an_end(&others, every.saturating_sub(last.elapsed()));
        let _later = pool.fs.reap_dead();
        if last.elapsed() >= every {
            last = Instant::now();
            // What the disk does not take stays noted; who syncs is told, and `nacre info` counts.
            let _noted = pool.fs.store().commit_now();
        }
    }
}

/// The programs that use a pool.
fn programs_of(pool: &Attached) -> Vec<Pid> {
    let programs = programs(pool.fs.store().volume()).into_iter();
    let programs = programs.filter(|&pid| pid != std::process::id());
    programs
        .filter_map(|pid| Pid::from_raw(pid as i32))
        .collect()
}

/// Waits until one of them ends, but not for longer than this.
fn await_an_end(processes: &[Pid], longest: Duration) {
    let open = |pid: &Pid| pidfd_open(*pid, PidfdFlags::empty()).ok();
    let open: Vec<OwnedFd> = processes.iter().filter_map(open).collect();
    // Processes of another pid namespace cannot be waited for.
    let longest = match open.len() == processes.len() {
        true => longest,
        false => longest.min(LOOKS_EVERY),
    };
    let mut ends: Vec<PollFd<'_>> = open
        .iter()
        .map(|process| PollFd::new(process, PollFlags::IN))
        .collect();
    let longest = Timespec::try_from(longest).ok();
    let _ends_or_not = poll(&mut ends, longest.as_ref());
}

/// From now on this process commits for all who use these pools, until [`leave_stand_in`].
pub fn commit_for_all(pools: &[Attached]) {
    for pool in pools.iter().filter(|pool| needs_commits(pool)) {
        pool.fs.store().set_commits_for_all(true);
    }
}

fn needs_commits(pool: &Attached) -> bool {
    let volume = pool.fs.store().volume();
    volume.is_cached() && volume.access() == Access::ReadWrite
}

/// Leaves a process behind that commits for the programs that go on, if any do and nobody else
/// commits for them. Of several who leave at once the last one sees that nobody does.
pub fn leave_stand_in(pool: &Attached) {
    let volume = pool.fs.store().volume();
    if !needs_commits(pool) {
        return;
    }
    pool.fs.store().set_commits_for_all(false);
    if !committers(volume).is_empty() || programs_of(pool).is_empty() {
        return;
    }
    let Ok(path) = std::path::absolute(&pool.path) else {
        return;
    };
    let mut command = ourselves::command();
    command
        .args(["sync", "--every", &every::argument(pool.commit_every)])
        .arg(path);
    command.current_dir("/");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // The terminal does not end it with the programs in its foreground.
    command.process_group(0);
    // Without it they commit when they store something.
    let _left_alone = command.spawn();
}
