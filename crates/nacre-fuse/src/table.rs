//! The kernel's table of mounts, and leaving it.

use nacre_types::mount_table;
use nix::mount::{MntFlags, umount2};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

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
    let table = fs::read("/proc/self/mountinfo")?;
    let found = mount_table::find(&table, folder.as_os_str().as_bytes());
    Ok(found.map(|found| PathBuf::from(OsString::from_vec(found.source))))
}

/// Whether a mount is served.
pub fn state(folder: &Path) -> MountState {
    match rustix::fs::statfs(folder) {
        Err(Errno::NOTCONN | Errno::CONNABORTED) => MountState::Dead,
        _ => MountState::Served,
    }
}

/// When a mount is taken away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unmount {
    /// If no program uses it; at once if it is dead.
    Unused,
    /// At once. Programs that use it keep what they have until they end.
    Lazily,
}

/// Takes the mount away.
pub fn unmount(folder: &Path, when: Unmount) -> io::Result<()> {
    let when = match when {
        Unmount::Unused if state(folder) == MountState::Dead => Unmount::Lazily,
        when => when,
    };
    let flags = match when {
        Unmount::Lazily => MntFlags::MNT_DETACH,
        Unmount::Unused => MntFlags::empty(),
    };
    match umount2(folder, flags | MntFlags::UMOUNT_NOFOLLOW) {
        Err(nix::errno::Errno::EPERM) => unmount_by_helper(folder, when),
        done => Ok(done?),
    }
}

/// Ordinary users need the program that may do it for them.
fn unmount_by_helper(folder: &Path, when: Unmount) -> io::Result<()> {
    let mut helper = Command::new("fusermount3");
    let how = match when {
        Unmount::Lazily => "-uz",
        Unmount::Unused => "-u",
    };
    helper.args([how, "--"]);
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
