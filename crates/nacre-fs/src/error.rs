//! The one error type of the file system. The front ends give each variant its errno.

use nacre_store::StoreError;
use nacre_types::ObjectId;

/// Why an operation failed. The errno in brackets is what POSIX programs expect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FsError {
    /// No such name, or a removed directory (ENOENT).
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken (EEXIST).
    #[error("file exists")]
    Exists,
    /// A directory is needed (ENOTDIR).
    #[error("not a directory")]
    NotDirectory,
    /// A directory is not allowed (EISDIR).
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries (ENOTEMPTY).
    #[error("directory not empty")]
    NotEmpty,
    /// No free units, objects or log space (ENOSPC).
    #[error("no space left in the pool")]
    NoSpace,
    /// Mode bits forbid it (EACCES).
    #[error("permission denied")]
    PermissionDenied,
    /// Only the owner or a privileged caller may (EPERM).
    #[error("operation not permitted")]
    NotPermitted,
    /// Longer than 255 bytes (ENAMETOOLONG).
    #[error("file name too long")]
    NameTooLong,
    /// The pool is attached read-only (EROFS).
    #[error("read-only file system")]
    ReadOnly,
    /// Link count at its limit (EMLINK).
    #[error("too many links")]
    TooManyLinks,
    /// Both ends must be in one pool (EXDEV).
    #[error("cross-pool link")]
    CrossPool,
    /// The arguments make no sense (EINVAL).
    #[error("invalid argument")]
    Invalid,
    /// No such extended attribute (ENODATA).
    #[error("no such attribute")]
    NoAttribute,
    /// The buffer is too small, or an attribute's name too long (ERANGE).
    #[error("result does not fit")]
    RangeTooSmall,
    /// An attribute value beyond 64 KiB (E2BIG).
    #[error("attribute value too big")]
    AttributeTooBig,
    /// Beyond the largest file size (EFBIG).
    #[error("file too big")]
    FileTooBig,
    /// In use (EBUSY).
    #[error("busy")]
    Busy,
    /// Nacre does not do this (EOPNOTSUPP).
    #[error("operation not supported")]
    Unsupported,
    /// No data or hole at or behind the offset (ENXIO).
    #[error("no such offset")]
    NoSuchOffset,
    /// The inode is gone (ESTALE).
    #[error("stale inode")]
    Stale,
    /// The program's buffer is not accessible (EFAULT).
    #[error("bad address")]
    UserFault,
    /// The session has no room for another open file or process (ENFILE).
    #[error("too many open files in the session")]
    SessionFull,
    /// The pool contradicts itself (EIO).
    #[error("the pool is damaged: {0}; run `nacre check`")]
    Corrupt(String),
    /// The device failed (EIO).
    #[error("input/output error")]
    Io,
}

/// Short form used throughout the crate.
pub type Result<T> = std::result::Result<T, FsError>;

impl FsError {
    /// An object contradicts itself or others.
    #[cold]
    pub(crate) fn corrupt(object: ObjectId, what: &str) -> FsError {
        FsError::Corrupt(format!("object {object}: {what}"))
    }
}

impl From<StoreError> for FsError {
    fn from(error: StoreError) -> FsError {
        match error {
            StoreError::NoSpace | StoreError::NoObjects | StoreError::TooLarge { .. } => {
                FsError::NoSpace
            }
            StoreError::NoSuchObject(_) => FsError::Stale,
            StoreError::ReadOnly | StoreError::NeedsRecovery => FsError::ReadOnly,
            StoreError::Slot(_) => FsError::SessionFull,
            StoreError::FileTooBig => FsError::FileTooBig,
            StoreError::Invalid(_) => FsError::Invalid,
            StoreError::Busy | StoreError::InUse => FsError::Busy,
            StoreError::UserFault => FsError::UserFault,
            StoreError::MediaFault => FsError::Io,
            damaged @ StoreError::Corrupt { .. } => FsError::Corrupt(damaged.to_string()),
            _ => FsError::Io,
        }
    }
}
