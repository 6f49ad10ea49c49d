//! The kernel's table of mounts, and leaving it.

use nix::mount::{MntFlags, umount2};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

const TYPE: &str = "fuse.nacre";

/// What is at a mounted folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MountState {
    /// A pool is served.
    Served,
    /// The process that served it died.
    Dead,
}

/// The pool that is mounted at a folder, as [`crate::Options::source`] named it.
pub fn mounted_at(folder: &Path) -> io::Result<Option<PathBuf>> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(table.lines().rev().find_map(|line| source(line, folder)))
}

/// The source in a line of the table, if it is a mount of ours at the folder.
fn source(line: &str, folder: &Path) -> Option<PathBuf> {
    let (mount, origin) = line.split_once(" - ")?;
    let at = unescaped(mount.split(' ').nth(4)?);
    let mut origin = origin.split(' ');
    let ours = origin.next()? == TYPE && at == folder;
    ours.then(|| origin.next().map(unescaped)).flatten()
}

/// Decodes `\040` and the like.
fn unescaped(text: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, others @ ..] = rest {
        let digits = others
            .get(..3)
            .and_then(|digits| str::from_utf8(digits).ok());
        let octal = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (first, octal) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &others[3..];
            }
            _ => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// Whether a mount is served.
pub fn state(folder: &Path) -> MountState {
    match rustix::fs::statfs(folder) {
        Err(Errno::NOTCONN | Errno::CONNABORTED) => MountState::Dead,
        _ => MountState::Served,
    }
}

/// Takes the mount away. If it is `lazy` or dead, programs that still use it keep what they have.
pub fn unmount(folder: &Path, lazy: bool) -> io::Result<()> {
    let lazy = lazy || state(folder) == MountState::Dead;
    let flags = if lazy {
        MntFlags::MNT_DETACH
    } else {
        MntFlags::empty()
    };
    match umount2(folder, flags) {
        Err(nix::errno::Errno::EPERM) => unmount_by_helper(folder, lazy),
        done => Ok(done?),
    }
}

/// Ordinary users need the program that may do it for them.
fn unmount_by_helper(folder: &Path, lazy: bool) -> io::Result<()> {
    let mut helper = Command::new("fusermount3");
    helper.arg(if lazy { "-uz" } else { "-u" }).arg("--");
    let output = helper.arg(folder).output().map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("fusermount3 (package fuse3): {error}"),
        )
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let busy = said.contains("busy");
    let kind = if busy {
        io::ErrorKind::ResourceBusy
    } else {
        io::ErrorKind::Other
    };
    Err(io::Error::new(kind, said.trim().to_string()))
}

#[cfg(test)]
mod tests {
    use super::source;
    use std::path::{Path, PathBuf};

    #[test]
    fn mounts_of_ours_are_found_in_the_table() {
        let line = r"36 35 0:42 / /mnt/a\040b rw,nosuid - fuse.nacre /p/my.pool rw,user_id=0";
        let found = source(line, Path::new("/mnt/a b"));
        assert_eq!(found, Some(PathBuf::from("/p/my.pool")));
        assert_eq!(source(line, Path::new("/mnt/a")), None);
        let other = r"36 35 0:42 / /mnt/a rw,nosuid - ext4 /dev/sda rw";
        assert_eq!(source(other, Path::new("/mnt/a")), None);
    }
}
