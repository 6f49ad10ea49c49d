//! Errors as C knows them: a number, and a text for each thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nacre_media::MediaError;
use nacre_objects::Error;
use nacre_store::StoreError;
use nacre_volume::{JournalError, VolumeError};

thread_local! {
    /// Destructors of a thread, and handlers of `exit`, may fail once more and ask why. So it has
    /// no destructor itself, behind which it could not be used.
    static MESSAGE: ManuallyDrop<RefCell<Option<CString>>> =
        const { ManuallyDrop::new(RefCell::new(None)) };
    static FREES: FreesMessage = const { FreesMessage };
}

/// Frees a thread's message when the thread ends. One that comes later stays.
struct FreesMessage;

impl Drop for FreesMessage {
    fn drop(&mut self) {
        MESSAGE.with(|message| message.take());
    }
}

/// Why a call failed.
#[derive(Clone)]
pub struct Failed {
    errno: c_int,
    message: String,
}

impl Failed {
    pub fn new(errno: c_int, message: &str) -> Failed {
        Failed {
            errno,
            message: message.to_owned(),
        }
    }

    /// The same of an operation of a transaction, counted from 0.
    pub fn of_operation(self, number: usize) -> Failed {
        let message = format!("operation {number} of the transaction: {}", self.message);
        Failed { message, ..self }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed {
            errno: errno_of(error.cause()),
            message: error.to_string(),
        }
    }
}

/// Runs the body of a call: 0, or a negative errno. No panic leaves it.
pub fn guarded(body: impl FnOnce() -> Result<(), Failed>) -> c_int {
    let failed = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(failed)) => failed,
        Err(_) => Failed::new(
            libc::EIO,
            "an error inside of the library: please report it",
        ),
    };
    let text = failed.message.replace('\0', " ");
    // It fails where that was done already.
    let _ = FREES.try_with(|_| ());
    MESSAGE.with(|message| message.replace(CString::new(text).ok()));
    -failed.errno
}

pub fn message() -> *const c_char {
    MESSAGE.with(|message| {
        let message = message.borrow();
        message.as_ref().map_or(c"".as_ptr(), |text| text.as_ptr())
    })
}

fn errno_of(error: &Error) -> c_int {
    match error {
        Error::NoSuchCollection(_) | Error::NoSuchObject(..) => libc::ENOENT,
        Error::NoSuchKey(..) => libc::ENODATA,
        Error::Exists(..) => libc::EEXIST,
        Error::Changed(..) => libc::ECANCELED,
        Error::NotEmpty(_) => libc::ENOTEMPTY,
        Error::Invalid(_) | Error::Forked => libc::EINVAL,
        Error::Damaged(_) => libc::EUCLEAN,
        Error::InUse => libc::EBUSY,
        Error::Operation { source, .. } => errno_of(source),
        Error::Store(error) => errno_of_store(error),
        Error::Volume(error) => errno_of_volume(error),
        Error::Emulation(_) => libc::EIO,
    }
}

fn errno_of_store(error: &StoreError) -> c_int {
    match error {
        StoreError::NoSpace | StoreError::NoObjects => libc::ENOSPC,
        StoreError::TooLarge { .. } => libc::E2BIG,
        StoreError::NoSuchObject(_) | StoreError::Corrupt(_) => libc::EUCLEAN,
        StoreError::NotAPool
        | StoreError::NewerFormat { .. }
        | StoreError::OlderFormat { .. }
        | StoreError::UnknownFeatures(_)
        | StoreError::Invalid(_)
        | StoreError::PoolTooSmall { .. } => libc::EINVAL,
        StoreError::ReadOnly | StoreError::NeedsRecovery => libc::EROFS,
        StoreError::InUse | StoreError::Busy => libc::EBUSY,
        StoreError::Slot(_) => libc::EAGAIN,
        StoreError::FileTooBig => libc::EFBIG,
        StoreError::UserFault => libc::EFAULT,
        StoreError::Volume(error) => errno_of_volume(error),
        _ => libc::EIO,
    }
}

fn errno_of_volume(error: &VolumeError) -> c_int {
    match error {
        VolumeError::Media(error) => errno_of_media(error),
        VolumeError::AlreadyPool(_) | VolumeError::HoldsData(_) => libc::EEXIST,
        VolumeError::InUse(_) => libc::EBUSY,
        VolumeError::Journal { why, .. } => match why {
            JournalError::Damaged => libc::EUCLEAN,
            _ => libc::EIO,
        },
        VolumeError::WriteFailed(_) => libc::EIO,
        VolumeError::System { errno, .. } => errno.raw_os_error(),
        _ => libc::EINVAL,
    }
}

fn errno_of_media(error: &MediaError) -> c_int {
    match error {
        MediaError::NotFound(_) => libc::ENOENT,
        MediaError::Exists(_) => libc::EEXIST,
        MediaError::IsDirectory(_) => libc::EISDIR,
        MediaError::PermissionDenied(_)
        | MediaError::FolderDenied { .. }
        | MediaError::ForeignLink(_) => libc::EACCES,
        MediaError::MountedReadOnly(_) => libc::EROFS,
        MediaError::NoRoom { .. } => libc::ENOSPC,
        MediaError::Claimed(_) => libc::EBUSY,
        MediaError::NoAddresses { .. } | MediaError::TooManyMappings(_) => libc::ENOMEM,
        MediaError::UnsupportedType(_)
        | MediaError::BadSize { .. }
        | MediaError::GranuleTooLarge { .. }
        | MediaError::TooShort { .. } => libc::EINVAL,
        MediaError::System { errno, .. } => errno.raw_os_error(),
    }
}
