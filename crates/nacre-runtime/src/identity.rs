//! Which user the calling process is, in every respect.

use std::sync::OnceLock;

use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, read};

/// What the kernel shows for users and groups that a user namespace does not know.
const UNKNOWN: u32 = 65534;
/// One line maps all ids to themselves.
const ALL: [u32; 3] = [0, 0, u32::MAX];

/// How this process asks for its one user.
static ASK: OnceLock<fn() -> Option<u32>> = OnceLock::new();

/// Names a quicker way to ask for the one user that all four ids of the calling thread name, for
/// who may make raw system calls.
pub fn ask_user_by(ask: fn() -> Option<u32>) {
    ASK.get_or_init(|| ask);
}

/// The user that the real, effective, saved and file-system ids of the calling thread all name.
///
/// `None` if they differ: a process of root that is somebody else for a moment must not take what
/// steers it from that user. `None`, too, where the id stands for users that are not known here,
/// and where the kernel does not tell.
pub fn one_user() -> Option<u32> {
    let ask = ASK.get().copied().unwrap_or(shown_user);
    ask().filter(|&user| is_known_user(user))
}

/// Ids belong to threads.
fn shown_user() -> Option<u32> {
    one_id(&text("/proc/thread-self/status")?)
}

/// Whether an id shown as a file's owner is one user, and not all those unknown here.
pub(crate) fn is_known_user(id: u32) -> bool {
    id != UNKNOWN || maps_all("/proc/self/uid_map")
}

/// As [`is_known_user`], of a group.
pub(crate) fn is_known_group(id: u32) -> bool {
    id != UNKNOWN || maps_all("/proc/self/gid_map")
}

fn maps_all(path: &str) -> bool {
    text(path).is_some_and(|text| numbers(&text).as_deref() == Some(&ALL))
}

/// The one id of the line `Uid:`.
fn one_id(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let ids = numbers(line)?;
    let first = *ids.first()?;
    (ids.len() == 4 && ids.iter().all(|&id| id == first)).then_some(first)
}

fn numbers(text: &str) -> Option<Vec<u32>> {
    let words = text.split_ascii_whitespace();
    words.map(|word| word.parse().ok()).collect()
}

/// The beginning of a file of the kernel.
fn text(path: &str) -> Option<String> {
    let fd = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = vec![0; 4096];
    let len = read_once(&fd, &mut bytes).ok()?;
    bytes.truncate(len);
    String::from_utf8(bytes).ok()
}

fn read_once(fd: &OwnedFd, into: &mut [u8]) -> Result<usize, Errno> {
    loop {
        match read(fd, &mut *into) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{numbers, one_id, one_user};
    use rustix::process::geteuid;

    #[test]
    fn ids_that_differ_are_no_user() {
        let status = |ids| format!("Name:\ta Uid: b\nUid:\t{ids}\nGid:\t9\t9\t9\t9\n");
        assert_eq!(one_id(&status("7\t7\t7\t7")), Some(7));
        for ids in [
            "0\t7\t7\t7",
            "7\t0\t7\t7",
            "7\t7\t0\t7",
            "7\t7\t7\t0",
            "7",
            "x",
            "",
        ] {
            assert_eq!(one_id(&status(ids)), None, "{ids}");
        }
        assert_eq!(one_id("Name:\tx\n"), None);
        assert_eq!(one_user(), Some(geteuid().as_raw()));
    }

    #[test]
    fn maps_are_read() {
        assert_eq!(numbers("  0 0 4294967295\n"), Some(super::ALL.to_vec()));
        assert_ne!(numbers("0 1000 1\n"), Some(super::ALL.to_vec()));
    }
}
