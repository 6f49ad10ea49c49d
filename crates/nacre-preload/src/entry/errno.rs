//! The one place where reasons become errnos.

use nacre_vfs::{ErrorKind, VfsError};
use rustix::io::Errno;

use crate::entry::user::{BadAddress, BadString};

/// Why a handler does not answer with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The kernel is to execute the call unchanged.
    Native,
    /// The call fails with this errno.
    Errno(i32),
}

impl From<VfsError> for Stop {
    fn from(error: VfsError) -> Self {
        Stop::Errno(errno(error.kind()))
    }
}

impl From<Errno> for Stop {
    fn from(error: Errno) -> Self {
        Stop::Errno(error.raw_os_error())
    }
}

impl From<BadAddress> for Stop {
    fn from(_: BadAddress) -> Self {
        Stop::Errno(libc::EFAULT)
    }
}

/// The kernel says by itself what is wrong with a path that we cannot read.
impl From<BadString> for Stop {
    fn from(_: BadString) -> Self {
        Stop::Native
    }
}

/// The errno of a reason.
pub fn errno(kind: ErrorKind) -> i32 {
    match kind {
        ErrorKind::BadFd => libc::EBADF,
        ErrorKind::NotFound => libc::ENOENT,
        ErrorKind::Exists => libc::EEXIST,
        ErrorKind::NotDirectory => libc::ENOTDIR,
        ErrorKind::IsDirectory => libc::EISDIR,
        ErrorKind::NotEmpty => libc::ENOTEMPTY,
        ErrorKind::NoSpace => libc::ENOSPC,
        ErrorKind::Denied => libc::EACCES,
        ErrorKind::NotPermitted => libc::EPERM,
        ErrorKind::NameTooLong => libc::ENAMETOOLONG,
        ErrorKind::ReadOnly => libc::EROFS,
        ErrorKind::TooManyLinks => libc::EMLINK,
        ErrorKind::CrossDevice => libc::EXDEV,
        ErrorKind::Invalid => libc::EINVAL,
        ErrorKind::NoAttribute => libc::ENODATA,
        ErrorKind::RangeTooSmall => libc::ERANGE,
        ErrorKind::ArgumentTooBig => libc::E2BIG,
        ErrorKind::FileTooBig => libc::EFBIG,
        ErrorKind::Busy => libc::EBUSY,
        ErrorKind::Unsupported => libc::EOPNOTSUPP,
        ErrorKind::NotImplemented => libc::ENOSYS,
        ErrorKind::UserFault => libc::EFAULT,
        ErrorKind::Io => libc::EIO,
        ErrorKind::Stale => libc::ESTALE,
        ErrorKind::Loop => libc::ELOOP,
        ErrorKind::Interrupted => libc::EINTR,
        ErrorKind::WouldBlock => libc::EAGAIN,
        ErrorKind::Deadlock => libc::EDEADLK,
        ErrorKind::NoLocks => libc::ENOLCK,
        ErrorKind::NotTty => libc::ENOTTY,
        ErrorKind::IllegalSeek => libc::ESPIPE,
        ErrorKind::NoDevice => libc::ENXIO,
        ErrorKind::CannotMap => libc::ENODEV,
        ErrorKind::TooManyFiles => libc::ENFILE,
        ErrorKind::NotExecutable => libc::ENOEXEC,
        ErrorKind::NoMemory => libc::ENOMEM,
        ErrorKind::AddressInUse => libc::EADDRINUSE,
        ErrorKind::ConnectionRefused => libc::ECONNREFUSED,
        ErrorKind::Overflow => libc::EOVERFLOW,
        ErrorKind::Kernel(errno) => errno,
    }
}
