//! What can go wrong with run-time names.

use std::path::PathBuf;

use rustix::io::Errno;

/// Why a run-time folder or file cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The system refused a step.
    #[error("cannot {action} {path}: {errno}")]
    System {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// The system's answer.
        errno: Errno,
    },
    /// Others could replace what is in the folder.
    #[error(
        "the folder of sessions {0} can be changed by other users: choose one of your own for NACRE_SESSION_DIR, or set its sticky bit"
    )]
    OpenBase(PathBuf),
    /// Not made by anybody who may write the pool.
    #[error(
        "{0} was not made by anybody who may write the pool, and is not used: remove it, or see who made it"
    )]
    Foreign(PathBuf),
    /// The process is several users at once, or one that is not known here.
    #[error(
        "the ids of this process name several users, or one that is not known here: it has no folder for run-time files of its own"
    )]
    ManyUsers,
    /// Not a single name.
    #[error("{0} is no single name")]
    Name(PathBuf),
}
