//! What can go wrong in the store.

use nacre_types::{ObjectId, VolumeOffset};
use nacre_volume::MediaFailed;

/// Result of a store function.
pub type Result<T> = std::result::Result<T, StoreError>;

/// What a fast path answers. `None`: it does not apply and has changed nothing; the general way
/// does it all. `Some`: it has done all of it or failed, and nobody tries again.
pub type Fast<T> = Option<Result<T>>;

/// Why the store refused or could not finish an operation.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No free unit is left in the pool.
    #[error("the pool has no free space")]
    NoSpace,
    /// Every object number the session has room for is in use.
    #[error("the pool has no free object number")]
    NoObjects,
    /// A transaction would need a log record over the limit.
    #[error("a transaction of {bytes} bytes exceeds the log record limit of {limit} bytes")]
    TooLarge {
        /// Bytes that the record would need.
        bytes: u64,
        /// Largest record in bytes.
        limit: u64,
    },
    /// The object number is free or out of range.
    #[error("object {} does not exist", .0.0)]
    NoSuchObject(ObjectId),
    /// A structure on the medium is damaged.
    #[error(transparent)]
    Corrupt(Box<Corruption>),
    /// Neither superblock copy carries the magic of a pool.
    #[error("no Nacre pool here: neither superblock copy is valid")]
    NotAPool,
    /// The pool was written by a newer format version.
    #[error(
        "pool format version {version} is newer than {known}, the newest that this version knows"
    )]
    NewerFormat {
        /// Version found.
        version: u32,
        /// Newest version known.
        known: u32,
    },
    /// The pool was written by an older version, in a format that nobody had to keep.
    #[error(
        "pool format version {version} is older than {known}, the only one that this version knows"
    )]
    OlderFormat {
        /// Version found.
        version: u32,
        /// Version known.
        known: u32,
    },
    /// The pool uses features that this version does not know.
    #[error("the pool uses features {0:#x} that this version does not know")]
    UnknownFeatures(u64),
    /// The volume is too small to hold a pool.
    #[error("a pool needs at least {need} bytes, the volume has {have}")]
    PoolTooSmall {
        /// Bytes needed.
        need: u64,
        /// Bytes there.
        have: u64,
    },
    /// The volume is smaller than the pool that was formatted on it.
    #[error(
        "the pool has {expected} units but the volume only {found}: a device is missing or cut"
    )]
    Shrunk {
        /// Units that the pool counts on.
        expected: u64,
        /// Units of the volume.
        found: u64,
    },
    /// The pool is attached read-only.
    #[error("the pool is attached read-only")]
    ReadOnly,
    /// A committed operation waits for replay, which a read-only attach may not do.
    #[error(
        "a process died in the middle of a change, and who may only read cannot repair that: let a user with write permission run `nacre check` on the pool once"
    )]
    NeedsRecovery,
    /// Live processes use the pool and this one cannot join their session.
    #[error(
        "the pool is in use by processes of another session: end them first, or share their /dev/shm or NACRE_SESSION_DIR (and their user, if the pool is not yours)"
    )]
    InUse,
    /// No process slot of the session can be had.
    #[error(transparent)]
    Slot(#[from] nacre_session::SlotError),
    /// The file would grow past the largest size.
    #[error("it would grow past the largest size of a file or object")]
    FileTooBig,
    /// An argument is outside of what the function takes.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// The object is in a state that forbids the operation for now.
    #[error("the object is busy")]
    Busy,
    /// The program's memory could not be read or written.
    #[error("the caller's memory is not accessible")]
    UserFault,
    /// The device could not be read or written.
    #[error("the device returned an error")]
    MediaFault,
    /// An error of the volume below.
    #[error(transparent)]
    Volume(Box<nacre_volume::VolumeError>),
    /// An error of the session.
    #[error(transparent)]
    Session(Box<nacre_session::SessionError>),
    /// The pool's run-time folder could not be found or made.
    #[error(transparent)]
    Runtime(Box<nacre_runtime::RuntimeError>),
}

// Every result on the way of a write has room for an error, and is copied from layer to layer.
const _: () = assert!(size_of::<StoreError>() <= 24);

/// A damaged structure on the medium.
#[derive(Debug, thiserror::Error)]
#[error("{what} at volume offset {:#x} is damaged{}", .at.0, of_object(.object))]
pub struct Corruption {
    /// The object that the structure belongs to, if known.
    pub object: Option<ObjectId>,
    /// Name of the structure.
    pub what: &'static str,
    /// Where it lies, in bytes from the start of the volume.
    pub at: VolumeOffset,
}

impl From<nacre_volume::VolumeError> for StoreError {
    fn from(error: nacre_volume::VolumeError) -> Self {
        StoreError::Volume(Box::new(error))
    }
}

impl From<nacre_session::SessionError> for StoreError {
    fn from(error: nacre_session::SessionError) -> Self {
        StoreError::Session(Box::new(error))
    }
}

impl From<nacre_runtime::RuntimeError> for StoreError {
    fn from(error: nacre_runtime::RuntimeError) -> Self {
        StoreError::Runtime(Box::new(error))
    }
}

impl From<MediaFailed> for StoreError {
    #[inline]
    fn from(_: MediaFailed) -> Self {
        StoreError::MediaFault
    }
}

impl StoreError {
    /// A damaged structure called `what`, found at `at`.
    #[cold]
    pub fn corrupt(object: Option<ObjectId>, what: &'static str, at: VolumeOffset) -> StoreError {
        StoreError::Corrupt(Box::new(Corruption { object, what, at }))
    }
}

fn of_object(object: &Option<ObjectId>) -> String {
    match object {
        Some(id) => format!(" (object {})", id.0),
        None => String::new(),
    }
}
