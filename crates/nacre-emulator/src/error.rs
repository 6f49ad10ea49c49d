//! What can be wrong with profiles and counters. Each message names the field and the remedy.

use std::io;
use std::path::PathBuf;

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// No shipped profile of that name.
    #[error("{name}: no such profile; there are {known}, or give the path of a TOML file")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// The user's file cannot be read.
    #[error("{}: cannot be read: {error}; check its name and permissions", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Not TOML, or fields missing or unknown.
    #[error("{}: {error}\n`nacre model --show optane-100` prints a complete profile to start from", origin.display())]
    Malformed {
        /// The file or name.
        origin: PathBuf,
        /// What the parser says; it names line and field.
        error: String,
    },
    /// A value that no device has.
    #[error("{}: {field} is {value}; {remedy}", origin.display())]
    Nonsense {
        /// The file or name.
        origin: PathBuf,
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What to write.
        remedy: &'static str,
    },
}

/// Why an emulation cannot be made or joined.
#[derive(Debug, thiserror::Error)]
pub enum EmulationError {
    /// Nobody says whose files are to be trusted.
    #[error(transparent)]
    Runtime(#[from] nacre_runtime::RuntimeError),
    /// The processor has no counter of steady pace.
    #[error(
        "this processor has no time-stamp counter of steady pace, by which delays are timed; use --wear without --emulate, or --no-delays"
    )]
    NoSteadyClock,
    /// More modules than the file has places for.
    #[error(
        "the devices have {0} modules together, and 64 can be emulated; write a profile with fewer"
    )]
    Modules(u64),
    /// The granularity is none that counters have.
    #[error("granularity {0} is no power of two from 64 on; give 64, 256 or 4096, for example")]
    Granularity(u64),
    /// The file with the counters cannot be made, opened or read.
    #[error("{}: cannot {action}: {errno}; check the folder's permissions and space", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// What failed.
        action: &'static str,
        /// Why.
        errno: rustix::io::Errno,
    },
    /// Counters that shall go on were made with another granularity.
    #[error("{}: granularity is {found}; count with --wear={found} again, or forget these counts by `nacre wear --reset`", path.display())]
    OtherGranularity {
        /// The file.
        path: PathBuf,
        /// Its granularity.
        found: u64,
    },
    /// The pool has other devices than counters that shall go on.
    #[error("{}: the pool's devices are not of the size that was counted; it has grown, perhaps; forget these counts by `nacre wear --reset`", .0.display())]
    OtherSize(PathBuf),
    /// Not enough memory to measure with.
    #[error("no memory of {0} bytes; measure shorter persists")]
    NoMemory(u64),
    /// The file holds something else.
    #[error("{}: no counters of this version of Nacre; remove it, or use `nacre wear --reset`", .0.display())]
    Foreign(PathBuf),
    /// The counters are of another pool.
    #[error("{}: by their field pool these counters are of another pool; remove the file, or name the pool that it belongs to", .0.display())]
    OtherPool(PathBuf),
}
