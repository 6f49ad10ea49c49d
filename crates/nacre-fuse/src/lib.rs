//! A pool as a mounted file system of the kernel: for programs that cannot be preloaded.
//!
//! Requests come from the kernel through /dev/fuse and go straight to the file system, as
//! those of preloaded programs do. The kernel keeps names, attributes and contents only while
//! nobody else changes the pool (`keeping.rs`; it always keeps the pages of mapped files), so that
//! both kinds of programs see each other's changes at once. It checks permissions by the attributes
//! (`default_permissions`).
#![forbid(unsafe_code)]

mod attributes;
mod contents;
mod descriptions;
mod device;
mod errno;
mod forgetting;
mod keeping;
mod kept;
mod locks;
mod mount;
mod names;
mod nodes;
mod operations;
mod server;
mod session;
mod table;
mod wire;

pub use device::Options;
pub use mount::{FrontEnd, Mounted};
pub use table::{MountState, Unmount, mounted_at, state, unmount};
