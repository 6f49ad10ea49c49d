//! What can go wrong when a session is made, opened or joined.

use std::path::PathBuf;

use nacre_runtime::RuntimeError;
use rustix::io::Errno;

use crate::MAX_SLOTS;

/// Why a session cannot be created or opened.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The system refused a step.
    #[error("cannot {op} session file {path}: {errno}")]
    Io {
        /// What was tried.
        op: &'static str,
        /// The session file.
        path: PathBuf,
        /// The system's answer.
        errno: Errno,
    },
    /// The folder of sessions has no room for one more.
    #[error("cannot find room for the pool's session in {}: it needs {need} KiB to start and up to {most} MiB when much is open; free some, make it larger (`mount -o remount,size=1G {}`, `docker run --shm-size=1g`), or name another folder in NACRE_SESSION_DIR", folder.display(), folder.display())]
    NoRoom {
        /// Where sessions are.
        folder: PathBuf,
        /// KiB that every session takes.
        need: u64,
        /// MiB that it may take.
        most: u64,
    },
    /// The process may use no more addresses.
    #[error(
        "no {needed} bytes of addresses are left in this process for the pool's session; raise or remove its limit (`ulimit -v`, RLIMIT_AS)"
    )]
    NoAddresses {
        /// Bytes of the session.
        needed: u64,
    },
    /// Its folder or its file cannot be used.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// Made for other devices: those of a copy of the pool, or it is one.
    #[error("session file {0} belongs to other devices than this pool's")]
    OtherDevices(PathBuf),
    /// Nobody has attached the pool.
    #[error("session file {0} does not exist")]
    Missing(PathBuf),
    /// The file is not a session, or is damaged.
    #[error("{path} is no usable session file: {why}; remove it when no process uses the pool")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Made by another version of Nacre.
    #[error(
        "session file {path} has layout version {found}, made by another version of Nacre; end the processes that use the pool first"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its layout version.
        found: u32,
    },
    /// The file's size is not what its header says.
    #[error(
        "session file {path} has {found} bytes where {needed} are needed; remove it when no process uses the pool"
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        found: u64,
        /// The size its geometry needs.
        needed: u64,
    },
    /// Left over from before the last start of the system: its process numbers mean nothing any
    /// more.
    #[error("session file {0} is left over from before the last start of the system")]
    Stale(PathBuf),
    /// Processes of another pid or time namespace cannot be checked for life.
    #[error(
        "the pool is attached from another pid or time namespace (session file {0}); use it from there, or detach it there first"
    )]
    Namespace(PathBuf),
    /// Sizes that no session can have.
    #[error("impossible session geometry: {0}")]
    Geometry(&'static str),
    /// /proc is needed to tell the living from the dead.
    #[error("cannot read {0}: {1}; a session needs a mounted /proc")]
    NoProc(&'static str, Errno),
}

/// Why a process cannot take a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SlotError {
    /// As many processes as a session can have are attached.
    #[error("all {MAX_SLOTS} process slots of the session are in use")]
    Full,
    /// The reserved slot was given up before it was adopted.
    #[error("the slot reserved for this process was given up before it was adopted")]
    Lost,
    /// The process was moved to another pid or time namespace.
    #[error(
        "it is in another pid or time namespace than the pool's other processes, and /proc does not show those: start it before another /proc is mounted, or outside of `nacre run`"
    )]
    Namespace,
    /// /proc is needed to tell the living from the dead.
    #[error("/proc/self/stat cannot be read")]
    NoProc,
}

/// A table of the session has no free entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the session's table of {0} is full")]
pub struct Full(pub &'static str);
