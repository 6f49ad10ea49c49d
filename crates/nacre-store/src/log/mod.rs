//! Records of the redo log.

pub(crate) mod long;
pub(crate) mod record;
