//! Kinds of pools of several devices that all or in part hold the same.

pub(crate) mod disk_copies;
pub(crate) mod disk_parts;
pub(crate) mod memory_copies;
