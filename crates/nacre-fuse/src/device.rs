//! /dev/fuse: mounting, and the messages that go through it.

use crate::table::{Unmount, unmount};
use crate::wire::REQUEST_HEADER;
use nix::mount::MsFlags;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use rustix::process::{getegid, geteuid};
use std::io::{self, ErrorKind, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program that mounts for ordinary users.
const HELPER: &str = "fusermount3";
/// The variable that tells it through which descriptor to send the device.
const HELPER_SOCKET: &str = "_FUSE_COMMFD";

/// How a pool is mounted.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What stands in lists of mounts: the pool.
    pub source: String,
    /// What its files answer to who asks for [`nacre_types::mount_table::IDENTITY`].
    pub identity: String,
    /// No program may change anything.
    pub read_only: bool,
    /// Other users may use the mount, too, as far as permissions let them.
    pub allow_other: bool,
    /// No program is executed from it.
    pub no_exec: bool,
    /// Reads leave the time of the last access as it is.
    pub no_atime: bool,
    /// Device nodes can be opened, if root mounts.
    pub devices: bool,
}

/// The device, mounted.
pub(crate) struct Device {
    file: OwnedFd,
    folder: PathBuf,
}

impl Device {
    /// Mounts at a folder. Ordinary users need a helper.
    pub(crate) fn mount(folder: &Path, options: &Options) -> io::Result<Device> {
        let file = match mount_directly(folder, options) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied && !geteuid().is_root() => {
                mount_by_helper(folder, options)
            }
            done => done,
        };
        Ok(Device {
            file: file?,
            folder: folder.to_path_buf(),
        })
    }

    /// The next request; `None` when the mount is gone.
    pub(crate) fn receive<'b>(&self, into: &'b mut [u8]) -> io::Result<Option<&'b [u8]>> {
        let len = loop {
            match rustix::io::read(&self.file, &mut *into) {
                // Aborted meanwhile, or a signal.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV) => return Ok(None),
                other => break other?,
            }
        };
        match len {
            REQUEST_HEADER.. => Ok(Some(&into[..len])),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }

    /// Sends an answer. Nobody waits for one to a request that was aborted.
    pub(crate) fn send(&self, message: &[u8]) -> Result<(), Errno> {
        match rustix::io::write(&self.file, message) {
            Ok(_) | Err(Errno::NOENT | Errno::NODEV) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Sends what the kernel has not asked for. `false`: it does not know what that is about.
    pub(crate) fn notify(&self, message: &[u8]) -> bool {
        rustix::io::write(&self.file, message) != Err(Errno::NOENT)
    }

    /// Whether nobody has the mount any more.
    pub(crate) fn is_gone(&self) -> bool {
        let mut state = [PollFd::new(&self.file, PollFlags::IN)];
        let now = rustix::event::Timespec::default();
        let _unknown = poll(&mut state, Some(&now));
        state[0].revents().contains(PollFlags::ERR)
    }
}

impl Drop for Device {
    /// What nobody serves must not stay.
    fn drop(&mut self) {
        if !self.is_gone() {
            let _gone_meanwhile = unmount(&self.folder, Unmount::Lazily);
        }
    }
}

fn mount_directly(folder: &Path, options: &Options) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open("/dev/fuse", flags, Mode::empty())?;
    let mut flags = MsFlags::MS_NOSUID;
    flags.set(MsFlags::MS_NODEV, !options.devices || !geteuid().is_root());
    flags.set(MsFlags::MS_RDONLY, options.read_only);
    flags.set(MsFlags::MS_NOEXEC, options.no_exec);
    flags.set(MsFlags::MS_NOATIME, options.no_atime);
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let mut data = format!(
        "fd={},rootmode=40000,user_id={user},group_id={group},default_permissions",
        file.as_raw_fd()
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let place = at_its_path(folder)?;
    let source = options.source.as_str();
    let mounted = nix::mount::mount(
        Some(source),
        format!("/proc/self/fd/{}", place.as_raw_fd()).as_str(),
        Some("fuse.nacre"),
        flags,
        Some(data.as_str()),
    );
    mounted.map_err(io::Error::from).map(|()| file)
}

/// A folder by its path without links. Whoever may rename a part of that could otherwise lead the
/// mount elsewhere.
fn at_its_path(folder: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = rustix::fs::open(folder, flags, Mode::empty())?;
    let link = format!("/proc/self/fd/{}", place.as_raw_fd());
    match std::fs::read_link(link)? == folder {
        true => Ok(place),
        false => Err(io::Error::other("a link has come into its path")),
    }
}

fn mount_by_helper(folder: &Path, options: &Options) -> io::Result<OwnedFd> {
    let kind = (AddressFamily::UNIX, SocketType::STREAM);
    let (ours, theirs) = rustix::net::socketpair(kind.0, kind.1, SocketFlags::empty(), None)?;
    rustix::io::fcntl_setfd(&ours, FdFlags::CLOEXEC)?;
    let mut helper = Command::new(HELPER);
    helper
        .args(["-o", &helper_options(options), "--"])
        .arg(folder);
    helper.env(HELPER_SOCKET, theirs.as_raw_fd().to_string());
    helper.stdin(Stdio::null()).stderr(Stdio::piped());
    let named = |error: io::Error| {
        io::Error::new(error.kind(), format!("{HELPER} (package fuse3): {error}"))
    };
    let mut child = helper.spawn().map_err(named)?;
    drop(theirs);
    let device = received_device(&ours);
    let mut said = String::new();
    if let Some(mut errors) = child.stderr.take() {
        errors.read_to_string(&mut said)?;
    }
    child.wait()?;
    device.ok_or_else(|| io::Error::other(said))
}

fn helper_options(options: &Options) -> String {
    // A comma would begin another option.
    let source = options.source.replace([',', '\\'], "_");
    let mut all = format!("fsname={source},subtype=nacre,default_permissions,nosuid,nodev");
    let said = [
        (options.read_only, ",ro"),
        (options.allow_other, ",allow_other"),
        (options.no_exec, ",noexec"),
        (options.no_atime, ",noatime"),
    ];
    all.extend(said.iter().filter(|(set, _)| *set).map(|(_, text)| *text));
    all
}

/// The descriptor that comes through a socket; `None` if it is closed before.
fn received_device(socket: &OwnedFd) -> Option<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    })
}
