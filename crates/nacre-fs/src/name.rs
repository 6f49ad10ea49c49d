//! Names that a directory may hold.

use crate::error::{FsError, Result};
use nacre_store::layout::NAME_MAX;
use nacre_types::position_of;

/// Names that a directory may hold; `.` and `..` are nobody's to make.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(FsError::NameTooLong);
    }
    if name.is_empty() {
        return Err(FsError::NotFound);
    }
    if position_of(name, *b"/\0").is_some() {
        return Err(FsError::Invalid);
    }
    Ok(())
}

pub(crate) fn is_dot_or_dot_dot(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}
