//! Why a device cannot be opened, a copy not be done.

use std::path::PathBuf;

use rustix::io::Errno;

/// Why the system call that was made last failed.
pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// The program's memory cannot be accessed (`EFAULT`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the program's memory cannot be accessed")]
pub struct Fault;

/// A copy between a device and a program's memory stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CopyError {
    /// The program's memory cannot be accessed (`EFAULT`). A part may have been copied.
    #[error("the program's memory cannot be accessed")]
    UserFault,
    /// The device cannot be accessed (`EIO`): its file was truncated or its memory is broken.
    #[error("the device gave a memory error: its file was truncated or its memory is damaged")]
    MediaFault,
}

impl From<Fault> for CopyError {
    fn from(Fault: Fault) -> Self {
        Self::UserFault
    }
}

/// A mapped device has failed since it was opened: what it returned or took since then is not to be
/// trusted (`EIO`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a device of the pool failed: its file was truncated, its memory is damaged, or it could not be written back"
)]
pub struct MediaFailed;

impl From<MediaFailed> for CopyError {
    fn from(MediaFailed: MediaFailed) -> Self {
        Self::MediaFault
    }
}

/// A device cannot be opened, made or mapped.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MediaError {
    /// There is no such file.
    #[error("{}: no such file or device; check the path", .0.display())]
    NotFound(PathBuf),
    /// The file exists already.
    #[error("{}: the file exists already", .0.display())]
    Exists(PathBuf),
    /// The path is a directory.
    #[error("{}: is a directory; name a file in it", .0.display())]
    IsDirectory(PathBuf),
    /// A link in a folder where everybody makes names, of somebody else.
    #[error("{}: a link that another user made; name what it leads to, if that is meant", .0.display())]
    ForeignLink(PathBuf),
    /// Access is refused.
    #[error("{}: permission denied; a pool's users need read and write permission on each of its devices", .0.display())]
    PermissionDenied(PathBuf),
    /// A folder on the way there may not be used so.
    #[error("{}: the folder {} may not be {how} by user {user}; choose another one, or ask its owner", path.display(), folder.display())]
    FolderDenied {
        /// The device.
        path: PathBuf,
        /// The folder that it is in, or was to be.
        folder: PathBuf,
        /// Entered or written.
        how: &'static str,
        /// Who may not.
        user: u32,
    },
    /// It could be written by its mode, but not where it is seen.
    #[error("{}: its file system is mounted read-only here (a sandbox may do so); a pool's users write to each of its devices", .0.display())]
    MountedReadOnly(PathBuf),
    /// The path is neither a regular file nor a device that a pool can be on.
    #[error("{}: not a regular file, block device or device-DAX device (/dev/daxX.Y)", .0.display())]
    UnsupportedType(PathBuf),
    /// A block device is in use as a whole.
    #[error("{}: is mounted, or used by another part of the system (swap, LVM, RAID); name a free device", .0.display())]
    Claimed(PathBuf),
    /// The file system has no room for a file of that size.
    #[error("{}: its file system has no room for {size} bytes; choose a smaller size or another place", path.display())]
    NoRoom {
        /// The file.
        path: PathBuf,
        /// The size that was wanted.
        size: u64,
    },
    /// The size is no multiple of the device's granule.
    #[error("{}: the size must be a multiple of {granule} bytes here, {size} is not", path.display())]
    BadSize {
        /// The device.
        path: PathBuf,
        /// The size that was wanted.
        size: u64,
        /// Of what it must be a multiple.
        granule: u64,
    },
    /// The device can only be mapped in granules that are too large.
    #[error("{}: can be mapped only in pieces of {granule} bytes; at most {most} are supported, so use 2 MiB pages or alignment", path.display())]
    GranuleTooLarge {
        /// The device.
        path: PathBuf,
        /// Its granule.
        granule: u64,
        /// The largest that is supported.
        most: u64,
    },
    /// The device ends before the range that is to be mapped.
    #[error("{}: has {actual} bytes, but {needed} are needed", path.display())]
    TooShort {
        /// The device.
        path: PathBuf,
        /// Bytes that are there.
        actual: u64,
        /// Bytes that must be there.
        needed: u64,
    },
    /// The process may use no more addresses.
    #[error(
        "no {needed} bytes of addresses are left for this process; raise or remove its limit (`ulimit -v`, RLIMIT_AS)"
    )]
    NoAddresses {
        /// Bytes that were to be mapped.
        needed: u64,
    },
    /// More devices are mapped than this process can watch.
    #[error("more than {0} device ranges are mapped in one process; detach a pool first")]
    TooManyMappings(usize),
    /// The kernel refused.
    #[error("{}: cannot {action}: {errno}", path.display())]
    System {
        /// The device.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
}
