//! The contents of regular files.

mod allocate;
mod copy;
mod map;
mod read;
mod write;

pub use allocate::{AllocateMode, Seek};
pub use map::MapRun;
pub use write::{WriteAt, Written};

use crate::error::{FsError, Result};
use crate::inode::{is_directory, is_regular};
use nacre_store::Attrs;

/// Only regular files have contents that programs read and write here.
pub(crate) fn check_regular(attrs: &Attrs) -> Result<()> {
    if is_directory(attrs) {
        return Err(FsError::IsDirectory);
    }
    if !is_regular(attrs) {
        return Err(FsError::Invalid);
    }
    Ok(())
}
