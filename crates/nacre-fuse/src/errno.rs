//! The one place of this front end where errors become errnos.

use nacre_fs::FsError;
use rustix::io::Errno;

/// Why a request fails, as the kernel passes it on to the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refusal(pub(crate) Errno);

/// What a request is answered.
pub(crate) type Answer<T> = Result<T, Refusal>;

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Refusal {
        Refusal(errno)
    }
}

impl From<FsError> for Refusal {
    fn from(error: FsError) -> Refusal {
        Refusal(match error {
            FsError::NotFound => Errno::NOENT,
            FsError::Exists => Errno::EXIST,
            FsError::NotDirectory => Errno::NOTDIR,
            FsError::IsDirectory => Errno::ISDIR,
            FsError::NotEmpty => Errno::NOTEMPTY,
            FsError::NoSpace => Errno::NOSPC,
            FsError::PermissionDenied => Errno::ACCESS,
            FsError::NotPermitted => Errno::PERM,
            FsError::NameTooLong => Errno::NAMETOOLONG,
            FsError::ReadOnly => Errno::ROFS,
            FsError::TooManyLinks => Errno::MLINK,
            FsError::CrossPool => Errno::XDEV,
            FsError::Invalid => Errno::INVAL,
            FsError::NoAttribute => Errno::NODATA,
            FsError::RangeTooSmall => Errno::RANGE,
            FsError::AttributeTooBig => Errno::TOOBIG,
            FsError::FileTooBig => Errno::FBIG,
            FsError::Busy => Errno::BUSY,
            FsError::Unsupported => Errno::OPNOTSUPP,
            FsError::NoSuchOffset => Errno::NXIO,
            FsError::Stale => Errno::STALE,
            FsError::UserFault => Errno::FAULT,
            FsError::SessionFull => Errno::NFILE,
            FsError::Corrupt(_) | FsError::Io => Errno::IO,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Refusal;
    use nacre_fs::FsError;

    #[test]
    fn programs_get_the_errnos_that_they_expect() {
        let errno = |error: FsError| Refusal::from(error).0.raw_os_error();
        assert_eq!(errno(FsError::NotFound), 2);
        assert_eq!(errno(FsError::NotEmpty), 39);
        assert_eq!(errno(FsError::NoAttribute), 61);
        assert_eq!(errno(FsError::Corrupt("x".into())), 5);
    }
}
