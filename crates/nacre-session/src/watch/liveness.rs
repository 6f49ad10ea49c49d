//! Which watches have a watcher still: what /proc shows of inotify instances tells.

use std::collections::HashMap;

use rustix::fs::{Dir, Mode, OFlags, openat, readlinkat};

use crate::Session;
use crate::liveness::process::{self, in_proc};
use crate::watch::table::Watch;

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

impl Session {
    /// Removes the watches whose process is gone, unless another one has their instance.
    pub fn sweep_watches_of_the_dead(&self) {
        self.sweep_watches(|watch| !process::is_number_running(watch.owner));
    }

    /// Removes those watches of `doubtful` whose instance nobody has open any more.
    pub fn sweep_watches(&self, doubtful: impl Fn(&Watch) -> bool) {
        let doubtful: Vec<Watch> = self.watches().filter(doubtful).collect();
        if doubtful.is_empty() {
            return;
        }
        let Some(watched) = watched_by_anybody() else {
            return;
        };
        for watch in doubtful {
            match watched.get(&watch.shadow) {
                Some(&owner) => self.hand_watch_over(watch.id, owner),
                None => self.remove_watch(watch.id),
            }
        }
    }
}

/// The inodes that any instance watches, and a process that has it. `None` if /proc tells nothing.
fn watched_by_anybody() -> Option<HashMap<u64, u32>> {
    let mut found = HashMap::new();
    let (proc, path) = in_proc("/proc/.");
    let proc = openat(proc, path, FOLDER, Mode::empty()).ok()?;
    for entry in Dir::read_from(&proc).ok()?.flatten() {
        let pid: Option<u32> = entry.file_name().to_str().ok().and_then(|n| n.parse().ok());
        if let Some(pid) = pid {
            let inodes = watched_by(&pid.to_string()).unwrap_or_default();
            found.extend(inodes.into_iter().map(|inode| (inode, pid)));
        }
    }
    Some(found)
}

/// The inodes that the instances of a process watch; `None` for one that shows nothing.
fn watched_by(process: &str) -> Option<Vec<u64>> {
    let fds = format!("/proc/{process}/fd");
    let (proc, path) = in_proc(&fds);
    let fd = openat(proc, path, FOLDER, Mode::empty()).ok()?;
    let mut inodes = Vec::new();
    for entry in Dir::read_from(&fd).ok()?.flatten() {
        let is_instance = readlinkat(&fd, entry.file_name(), Vec::new())
            .is_ok_and(|target| target.as_bytes() == b"anon_inode:inotify");
        if is_instance && let Ok(number) = entry.file_name().to_str() {
            inodes.extend(watched_through(process, number));
        }
    }
    Some(inodes)
}

/// The inodes that one instance watches.
fn watched_through(process: &str, number: &str) -> Vec<u64> {
    let path = format!("/proc/{process}/fdinfo/{number}");
    let (proc, path) = in_proc(&path);
    let Ok(fd) = openat(proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return Vec::new();
    };
    let mut text = Vec::new();
    let mut part = [0; 4096];
    while let Ok(len @ 1..) = rustix::io::read(&fd, &mut part) {
        text.extend_from_slice(&part[..len]);
    }
    inodes_in(&String::from_utf8_lossy(&text))
}

/// Lines of watches are `inotify wd:1 ino:2a sdev:... mask:...`.
fn inodes_in(text: &str) -> Vec<u64> {
    let watches = text.lines().filter(|line| line.starts_with("inotify "));
    let inodes = watches.filter_map(|line| {
        let field = line.split(' ').find_map(|word| word.strip_prefix("ino:"))?;
        u64::from_str_radix(field, 16).ok()
    });
    inodes.collect()
}

impl Session {
    /// The number that its watcher has given to the instance behind a descriptor of this process,
    /// if it watches anything of the pool.
    pub fn instance_behind(&self, fd: i32) -> Option<u64> {
        let inodes = watched_through("self", &fd.to_string());
        let mut watches = self.watches();
        watches
            .find(|watch| inodes.contains(&watch.shadow))
            .map(|watch| watch.instance)
    }
}

#[cfg(test)]
mod tests {
    use super::inodes_in;

    #[test]
    fn inodes_are_found_in_what_proc_says() {
        let text = "pos:\t0\nflags:\t02004000\nmnt_id:\t15\nino:\t1057\n\
            inotify wd:2 ino:9e7e sdev:800013 mask:800afce ignored_mask:0 fhandle-bytes:8\n\
            inotify wd:1 ino:2a sdev:1a mask:2 ignored_mask:0\n";
        assert_eq!(inodes_in(text), [0x9e7e, 0x2a]);
        assert_eq!(inodes_in("pos:\t0\n"), []);
    }
}
