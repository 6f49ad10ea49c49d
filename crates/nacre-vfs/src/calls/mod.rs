//! The calls, one file for each family.

pub(crate) mod attributes;
pub(crate) mod data;
pub(crate) mod descriptor;
pub(crate) mod dirents;
pub(crate) mod exec;
pub(crate) mod handles;
pub(crate) mod ioctl;
pub(crate) mod later;
pub(crate) mod links;
pub(crate) mod locks;
pub(crate) mod map;
pub(crate) mod names;
pub(crate) mod open;
pub(crate) mod rename;
pub(crate) mod seek;
pub(crate) mod socket;
pub(crate) mod space;
pub(crate) mod stat;
pub(crate) mod watch;
pub(crate) mod xattr;
