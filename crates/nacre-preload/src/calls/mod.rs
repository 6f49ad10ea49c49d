//! The handlers, one file per family of calls. Each decodes, calls the vfs and encodes.

pub mod attributes;
pub mod control;
pub mod data;
pub mod directories;
pub mod handles;
pub mod identity;
pub mod limits;
pub mod listings;
mod loops;
pub mod memory;
pub mod mounts;
pub mod names;
pub mod numbers;
pub mod open;
pub mod process;
pub mod rings;
pub mod signals;
pub mod sockets;
pub mod transfer;
pub mod watches;
pub mod xattr;
