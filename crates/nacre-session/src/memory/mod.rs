//! The session file: header, geometry, mapping.

pub(crate) mod geometry;
pub(crate) mod header;
pub(crate) mod mapping;
