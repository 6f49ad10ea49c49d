//! The control path: format, attach, and the scan that finds what is used.

pub(crate) mod attach;
pub(crate) mod format;
pub(crate) mod image;
pub(crate) mod scan;
mod snapshot;
