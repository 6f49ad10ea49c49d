//! Behaviour of the file system over pools in memory.
#![forbid(unsafe_code)]

mod attributes;
mod behind;
mod cached;
mod damaged_disks;

mod data;
mod failing;
mod joined;
mod kept;
mod leaving;
mod lists;
mod model;
mod namespace;
mod other_copy;
mod permissions;
mod pins;
mod placement;
mod pools;
mod processes;
mod readdir;
mod threads;
mod whole;
mod xattrs;
