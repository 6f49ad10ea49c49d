//! Superblock copies and the alternating state record.
pub(crate) struct Superblock {}
