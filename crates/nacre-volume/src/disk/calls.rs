//! Calls on disks at the same time.

use std::io;

use nacre_cache::DiskFailed;
use nacre_media::{FileCall, Results, together};
use rustix::io::Errno;

/// As [`together`]; the explorer sees one after the other.
pub(super) fn at_once(calls: &[FileCall<'_>]) -> Result<Results, Errno> {
    match cfg!(feature = "explore") {
        true => Ok(vec![None; calls.len()]),
        false => together(calls),
    }
}

/// What calls gave, if they are all one's own: after an error none is known to be done.
pub(super) fn each_of(done: Result<Results, Errno>, calls: &[FileCall<'_>]) -> Results {
    done.unwrap_or_else(|errno| vec![Some(Err(errno)); calls.len()])
}

/// Why nobody can write.
pub(crate) fn not_over(why: io::Error) -> DiskFailed {
    DiskFailed(format!(
        "cannot tell whether writes of a process that is gone are over: {why}"
    ))
}
