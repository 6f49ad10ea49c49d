//! What all processes share: in-core objects, names, open file descriptions, lanes.

pub(crate) mod dentry;
pub(crate) mod icore;
pub(crate) mod lane;
pub(crate) mod ofd;
pub(crate) mod ofd_table;
pub(crate) mod traffic;
