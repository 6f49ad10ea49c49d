//! `nacre sync`.

use crate::attached::Attached;
use crate::failure::{Failure, Result, fs_failure};
use crate::users::users;
use clap::Args;
use nacre_volume::Access;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  nacre sync my.pool              while programs run, or after they were killed
  nacre sync --every 1 my.pool    every second, until the last program has ended";
/// How often programs get their commits.
const EVERY: u64 = 5;
/// A stand-in that has just decided to end does so within this time.
const LEAVES_WITHIN: Duration = Duration::from_secs(1);
const LOOKS_EVERY: Duration = Duration::from_millis(50);

/// Give the disks of pools all that their caches in memory hold
///
/// Returns when everything that was done before is durable. Pools without a cache are so already.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Any device of each pool
    #[arg(required = true, value_name = "POOL")]
    pools: Vec<PathBuf>,
    /// Do it every so many seconds, until nobody else uses the pool. `nacre run` leaves such a
    /// process behind for programs that outlive it
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    every: Option<u32>,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    match (arguments.every, &arguments.pools[..]) {
        (None, pools) => pools.iter().try_for_each(|pool| sync(pool))?,
        (Some(every), [pool]) => stand_in(pool, Duration::from_secs(every.into()))?,
        (Some(_), _) => {
            let text = "--every is for one pool; start one such process for each";
            return Err(Failure::Usage(text.into()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn sync(pool: &Path) -> Result<()> {
    Attached::with(pool, Access::ReadWrite, |fs| {
        fs.sync_all_mapped().map_err(fs_failure(pool.display()))
    })
}

/// Commits for programs that outlived their supervisor.
fn stand_in(pool: &Path, every: Duration) -> Result<()> {
    let attached = Attached::open(pool, Access::ReadWrite, None)?;
    if may_stand_in(&attached) {
        commit_for_others(&attached, every);
        attached.fs.store().stand_down();
    }
    attached.detach()
}

fn may_stand_in(pool: &Attached) -> bool {
    let begin = Instant::now();
    loop {
        // It may have been killed.
        let _later = pool.fs.reap_dead();
        if pool.fs.store().stand_in() {
            return true;
        }
        if begin.elapsed() >= LEAVES_WITHIN {
            return false;
        }
        sleep(LOOKS_EVERY);
    }
}

fn commit_for_others(pool: &Attached, every: Duration) {
    let mut last = Instant::now();
    loop {
        let others = others(pool);
        if others.is_empty() {
            return;
        }
        await_an_end(&others, every.saturating_sub(last.elapsed()));
        let _later = pool.fs.reap_dead();
        if last.elapsed() >= every {
            last = Instant::now();
            // What the disk does not take stays noted; who syncs is told, and `nacre info` counts.
            let _noted = pool.fs.commit();
        }
    }
}

/// Who else uses a pool.
fn others(pool: &Attached) -> Vec<Pid> {
    let others = users(pool.fs.store().volume()).into_iter();
    let others = others.filter(|&pid| pid != std::process::id());
    others.filter_map(|pid| Pid::from_raw(pid as i32)).collect()
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

/// Leaves a process behind that commits for the programs that go on, if any do.
pub fn leave_stand_in(pool: &Attached) {
    let volume = pool.fs.store().volume();
    if !volume.is_cached() || volume.access() != Access::ReadWrite || others(pool).is_empty() {
        return;
    }
    let Ok(path) = std::path::absolute(&pool.path) else {
        return;
    };
    let mut command = Command::new("/proc/self/exe");
    command
        .args(["sync", "--every", &EVERY.to_string()])
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
