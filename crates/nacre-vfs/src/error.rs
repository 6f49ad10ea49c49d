//! What can go wrong, and the flat list of kinds that the front ends turn into errnos.

use crate::kernel::KernelError;
use nacre_fs::FsError;
use nacre_media::Fault;
use thiserror::Error;

/// Why a call failed.
#[derive(Debug, Error)]
pub enum VfsError {
    /// The file system refused.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// The kernel refused a system call made on the program's behalf.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The process cannot be one of those that use the pool.
    #[error(transparent)]
    NoSlot(#[from] nacre_session::SlotError),
    /// Refused at this layer, for a reason that needs no details.
    #[error("{0:?}")]
    Refused(ErrorKind),
}

/// Every distinguishable reason; a front end maps each to exactly one errno.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the names say what the variants mean")]
pub enum ErrorKind {
    BadFd,
    NotFound,
    Exists,
    NotDirectory,
    IsDirectory,
    NotEmpty,
    NoSpace,
    Denied,
    NotPermitted,
    NameTooLong,
    ReadOnly,
    TooManyLinks,
    CrossDevice,
    Invalid,
    NoAttribute,
    RangeTooSmall,
    ArgumentTooBig,
    FileTooBig,
    Busy,
    Unsupported,
    NotImplemented,
    UserFault,
    Io,
    Stale,
    Loop,
    Interrupted,
    WouldBlock,
    Deadlock,
    NoLocks,
    NotTty,
    IllegalSeek,
    NoDevice,
    /// Files of its kind have no memory to map.
    CannotMap,
    TooManyFiles,
    NotExecutable,
    NoMemory,
    AddressInUse,
    ConnectionRefused,
    Overflow,
    /// The errno that the kernel gave.
    Kernel(i32),
}

impl VfsError {
    /// The kind to map to an errno.
    pub fn kind(&self) -> ErrorKind {
        match self {
            VfsError::Fs(error) => fs_kind(error),
            VfsError::Kernel(KernelError(errno)) => ErrorKind::Kernel(*errno),
            VfsError::NoSlot(_) => ErrorKind::Io,
            VfsError::Refused(kind) => *kind,
        }
    }
}

impl From<ErrorKind> for VfsError {
    fn from(kind: ErrorKind) -> VfsError {
        VfsError::Refused(kind)
    }
}

impl From<Fault> for VfsError {
    fn from(_: Fault) -> VfsError {
        VfsError::Refused(ErrorKind::UserFault)
    }
}

fn fs_kind(error: &FsError) -> ErrorKind {
    match error {
        FsError::NotFound => ErrorKind::NotFound,
        FsError::Exists => ErrorKind::Exists,
        FsError::NotDirectory => ErrorKind::NotDirectory,
        FsError::IsDirectory => ErrorKind::IsDirectory,
        FsError::NotEmpty => ErrorKind::NotEmpty,
        FsError::NoSpace => ErrorKind::NoSpace,
        FsError::PermissionDenied => ErrorKind::Denied,
        FsError::NotPermitted => ErrorKind::NotPermitted,
        FsError::NameTooLong => ErrorKind::NameTooLong,
        FsError::ReadOnly => ErrorKind::ReadOnly,
        FsError::TooManyLinks => ErrorKind::TooManyLinks,
        FsError::CrossPool => ErrorKind::CrossDevice,
        FsError::Invalid => ErrorKind::Invalid,
        FsError::NoAttribute => ErrorKind::NoAttribute,
        FsError::RangeTooSmall => ErrorKind::RangeTooSmall,
        FsError::AttributeTooBig => ErrorKind::ArgumentTooBig,
        FsError::FileTooBig => ErrorKind::FileTooBig,
        FsError::Busy => ErrorKind::Busy,
        FsError::Unsupported => ErrorKind::Unsupported,
        FsError::NoSuchOffset => ErrorKind::NoDevice,
        FsError::Stale => ErrorKind::Stale,
        FsError::UserFault => ErrorKind::UserFault,
        FsError::SessionFull => ErrorKind::TooManyFiles,
        FsError::Corrupt(_) | FsError::Io => ErrorKind::Io,
    }
}
