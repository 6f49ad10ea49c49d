//! `nacre list`: the pools in use.

use crate::failure::Result;
use crate::output::{self, harmless};
use clap::Args;
use nacre_runtime::{PoolFolder, PoolKey};
use nacre_session::Liveness;
use nacre_store::runtime;
use nacre_types::mount_table;
use nacre_volume::Volume;
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use serde::Serialize;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::Write;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  nacre list                       pools in use, with their processes and mount points
  nacre list --json | jq -r '.[].pool'

Pools that nobody uses are not known to anybody; `nacre info POOL` tells about one.
Sessions in another folder are listed with NACRE_SESSION_DIR=FOLDER.";

/// List the pools in use, their processes and mount points
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

/// A process that uses a pool.
#[derive(Serialize)]
pub struct Process {
    pub pid: u32,
    pub command: String,
    /// Where it sees the pool.
    pub mounts: Vec<String>,
}

/// A pool in use.
#[derive(Serialize)]
pub struct Used {
    pub uuid: String,
    /// A device of it, if a process that may be looked at uses it.
    pub pool: Option<PathBuf>,
    /// Where its programs meet.
    pub session: PathBuf,
    pub processes: Vec<Process>,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let pools = gather()?;
    if arguments.json {
        output::json(&pools)?;
    } else {
        let text: String = pools.iter().map(describe).collect();
        let none = "no pool is in use\n";
        output::write(if text.is_empty() { none } else { &text }.as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// All pools in use.
pub fn gather() -> Result<Vec<Used>> {
    let mut pools: Vec<Used> = nacre_runtime::pool_folders()?
        .iter()
        .filter_map(used)
        .collect();
    pools.sort_by(|a, b| (&a.pool, &a.uuid).cmp(&(&b.pool, &b.uuid)));
    Ok(pools)
}

/// A pool whose session has living processes.
fn used(found: &PoolFolder) -> Option<Used> {
    let key = found.key;
    let session = runtime::session_in(&found.folder).ok()?;
    let path = session.path()?.to_owned();
    let alive = session
        .current_slots()
        .filter(|&slot| session.liveness(slot) == Liveness::Alive);
    let pids: BTreeSet<u32> = alive.filter_map(|slot| session.pid_of(slot)).collect();
    let mut pool = None;
    let mut processes = Vec::new();
    for pid in pids {
        let command = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut mounts = mounts_of(pid, key);
        if mounts.is_empty() && command.trim() == "nacre" {
            mounts = served_mounts(pid, &words, key);
        }
        pool = pool.or_else(|| mounts.first().map(|(_, pool)| pool.clone()));
        pool = pool.or_else(|| mapped_by(pid, key));
        let folder = |(folder, _): &(String, PathBuf)| folder.clone();
        processes.push(Process {
            pid,
            command: command.trim().to_string(),
            mounts: mounts.iter().map(folder).collect(),
        });
    }
    (!processes.is_empty()).then(|| Used {
        uuid: key.uuid.to_string(),
        pool,
        session: path,
        processes,
    })
}

/// Where a process sees the pool, and a device of it.
fn mounts_of(pid: u32, key: PoolKey) -> Vec<(String, PathBuf)> {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let mut variables = environment.split(|&byte| byte == 0);
    let setting = variables.find_map(|text| text.strip_prefix(b"NACRE_MOUNTS="));
    let entries = setting.unwrap_or_default().split(|&byte| byte == b';');
    let entry = |entry: &[u8]| {
        let equals = entry.iter().position(|&byte| byte == b'=')?;
        let pool = entry[equals + 1..].split(|&byte| byte == b',').next()?;
        let pool = PathBuf::from(OsStr::from_bytes(pool));
        let folder = String::from_utf8_lossy(&entry[..equals]).into_owned();
        belongs(&pool, key).then_some((folder, pool))
    };
    entries.filter_map(entry).collect()
}

/// Where a server of `nacre mount`, whose words these are, has mounted the pool, and its path.
fn served_mounts(pid: u32, words: &[u8], key: PoolKey) -> Vec<(String, PathBuf)> {
    let table = fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    let here = PathBuf::from(format!("/proc/{pid}/cwd"));
    let mount = |word: &[u8]| {
        let folder = fs::canonicalize(here.join(OsStr::from_bytes(word))).ok()?;
        let found = mount_table::find(&table, folder.as_os_str().as_bytes())?;
        let pool = PathBuf::from(OsStr::from_bytes(&found.source));
        belongs(&pool, key).then(|| (folder.display().to_string(), pool))
    };
    words.split(|&byte| byte == 0).filter_map(mount).collect()
}

/// A file that a process has mapped and that is a device of the pool.
fn mapped_by(pid: u32, key: PoolKey) -> Option<PathBuf> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let shared = maps.lines().filter(|line| {
        line.split(' ')
            .nth(1)
            .is_some_and(|flags| flags.ends_with('s'))
    });
    let paths: BTreeSet<&str> = shared
        .filter_map(|line| Some(&line[line.find('/')?..]))
        .collect();
    let mut paths = paths.into_iter().map(PathBuf::from);
    paths.find(|path| belongs(path, key))
}

/// Whether a path, which a process of another user may have named, leads to a device of the pool.
/// Only regular files are opened: to open a device file can do something by itself.
fn belongs(path: &Path, key: PoolKey) -> bool {
    let opened = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let Ok((fd, found)) = opened.and_then(|fd| fstat(&fd).map(|found| (fd, found))) else {
        return false;
    };
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => {
            let same = format!("/proc/self/fd/{}", fd.as_raw_fd());
            Volume::inspect(Path::new(&same)).is_ok_and(|label| label.pool == key.uuid)
        }
        FileType::CharacterDevice => key.device == (u64::MAX, found.st_rdev),
        FileType::BlockDevice => key.device == (u64::MAX - 1, found.st_rdev),
        _ => false,
    }
}

fn describe(used: &Used) -> String {
    let pool = used.pool.as_ref().map(|pool| pool.display().to_string());
    let mut text = format!(
        "{}  {}\n",
        harmless(pool.as_deref().unwrap_or("(unknown file)")),
        used.uuid
    );
    for process in &used.processes {
        let place = match process.mounts.is_empty() {
            true => String::new(),
            false => format!(" at {}", process.mounts.join(", ")),
        };
        let line = format!("{}{place}", process.command);
        let _ = writeln!(text, "  {:>8} {}", process.pid, harmless(&line));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Process, Used, belongs, describe};
    use nacre_runtime::PoolKey;
    use nacre_types::Uuid;
    use rustix::fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init};
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::fs::{File, write};
    use std::mem::MaybeUninit;
    use std::path::Path;

    /// Whether somebody opens a file.
    fn is_opened(path: &Path, act: impl FnOnce()) -> bool {
        let watcher = init(CreateFlags::NONBLOCK).unwrap();
        add_watch(&watcher, path, WatchFlags::OPEN).unwrap();
        act();
        Reader::new(watcher, &mut [MaybeUninit::uninit(); 512])
            .next()
            .is_ok()
    }

    #[test]
    fn what_another_user_names_is_not_opened_unless_it_is_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, file) = (folder.path().join("pipe"), folder.path().join("file"));
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        write(&file, "no pool").unwrap();
        let key = PoolKey {
            uuid: Uuid::random(),
            device: (u64::MAX, 1),
        };
        assert!(!is_opened(&pipe, || assert!(!belongs(&pipe, key))));
        assert!(is_opened(&file, || assert!(!belongs(&file, key))));
        assert!(is_opened(&pipe, || {
            File::options().read(true).write(true).open(&pipe).unwrap();
        }));
    }

    #[test]
    fn names_of_other_users_do_not_write_on_the_terminal() {
        let used = Used {
            uuid: String::from("u"),
            pool: None,
            session: "s".into(),
            processes: vec![Process {
                pid: 1,
                command: String::from("a\x1b[2Jb"),
                mounts: vec![String::from("/\nx\r")],
            }],
        };
        assert_eq!(
            describe(&used),
            "(unknown file)  u\n         1 a?[2Jb at /?x?\n"
        );
    }
}
