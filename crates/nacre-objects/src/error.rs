//! What can go wrong with objects.

use nacre_emulator::EmulationError;
use nacre_store::StoreError;
use nacre_types::ObjectId;
use nacre_volume::VolumeError;

/// Result of a function of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The collection does not exist.
    #[error("there is no collection {0:?}: create it first")]
    NoSuchCollection(String),
    /// The object does not exist.
    #[error("there is no object {1:?} in collection {0:?}")]
    NoSuchObject(String, String),
    /// Such an attribute or omap key does not exist.
    #[error("the object has no {0} {1:?}")]
    NoSuchKey(&'static str, String),
    /// A collection or object of that name exists.
    #[error("{0} {1:?} exists already")]
    Exists(&'static str, String),
    /// An attribute or omap key has another value than the transaction expects.
    #[error("{0} {1:?} is not what was expected: read it again")]
    Changed(&'static str, String),
    /// The collection holds objects.
    #[error("collection {0:?} is not empty")]
    NotEmpty(String),
    /// A key or value that cannot be stored.
    #[error("{0}")]
    Invalid(&'static str),
    /// A name or value does not say what it must.
    #[error("a name or value of object {} is damaged: let `nacre check` look at it", .0.0)]
    Damaged(ObjectId),
    /// An operation of a transaction failed; nothing of the transaction happened.
    #[error("operation {number} of the transaction: {source}")]
    Operation {
        /// Its number, counted from 0.
        number: usize,
        /// Why.
        source: Box<Error>,
    },
    /// The process was forked from the one that opened the pool.
    #[error("this process was forked from the one that opened the pool: open it again here")]
    Forked,
    /// Somebody uses the pool, who could change what is looked at.
    #[error("the pool is in use: end the programs that use it, and check it then")]
    InUse,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The pool could not be opened.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// It is emulated, and its counters cannot be used.
    #[error(transparent)]
    Emulation(#[from] EmulationError),
}

impl Error {
    /// The failure itself, without the number of the operation.
    pub fn cause(&self) -> &Error {
        match self {
            Error::Operation { source, .. } => source.cause(),
            other => other,
        }
    }
}

/// A key for people.
pub(crate) fn shown(key: &[u8]) -> String {
    let text = String::from_utf8_lossy(key);
    match text.chars().count() > 64 {
        true => text.chars().take(64).chain("...".chars()).collect(),
        false => text.into_owned(),
    }
}
