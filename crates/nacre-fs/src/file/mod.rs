//! The contents of regular files.

mod allocate;
mod copy;
mod map;
mod read;
mod write;

pub use allocate::{AllocateMode, Seek};
pub use map::{MapAccess, MapRun, MappedPages, PrivatePages};
pub use write::{WriteAt, Written};

use crate::Fs;
use crate::error::{FsError, Result};
use crate::inode::{FileType, InodeRef};
use nacre_store::{Attrs, FileHead};

/// Only regular files have contents that programs read and write here.
pub(crate) fn check_regular(attrs: &Attrs) -> Result<()> {
    check_mode(attrs.mode)
}

/// As `check_regular`, by the mode alone.
#[inline]
pub(crate) fn check_mode(mode: u32) -> Result<()> {
    match FileType::from_mode(mode) {
        Some(FileType::Regular) => Ok(()),
        Some(FileType::Directory) => Err(FsError::IsDirectory),
        _ => Err(FsError::Invalid),
    }
}

impl Fs {
    /// Whether mode and generation are those of the regular file that was meant.
    #[inline(always)]
    pub(crate) fn is_the_file(node: InodeRef, mode: u32, generation: u32) -> bool {
        generation == node.generation && FileType::from_mode(mode) == Some(FileType::Regular)
    }

    /// The file that was meant, not a later one with its number, and regular.
    #[inline]
    pub(crate) fn check_head(node: InodeRef, head: &FileHead) -> Result<()> {
        if head.generation != node.generation {
            return Err(FsError::Stale);
        }
        check_mode(head.mode)
    }
}
