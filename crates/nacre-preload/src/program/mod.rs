//! The life of a process: start, fork, exec, mappings, what it shares and names.

pub(crate) mod attach;
pub(crate) mod by_kernel;
pub(crate) mod descriptors;
pub(crate) mod devices;
pub(crate) mod exec;
pub(crate) mod host;
pub(crate) mod identity;
pub(crate) mod image;
pub(crate) mod instances;
pub(crate) mod memory_copy;
pub(crate) mod mounts;
pub(crate) mod process;
pub(crate) mod protection;
pub(crate) mod sharing;
pub(crate) mod shown;
pub(crate) mod start;
pub(crate) mod stock;
pub(crate) mod unserved;
pub(crate) mod view;
