//! The POSIX state of one process over mounted pools: fds, open file descriptions, the current
//! directory, paths; one method of [`Vfs`] per system call.
//!
//! Arguments come in as the kernel would get them, decoded; answers go out as [`Reply`], which may
//! also say that the call is the kernel's. Nothing here touches the program's memory but through
//! `UserBytes` and `UserBytesMut`, and nothing makes system calls but through [`Kernel`].
#![forbid(unsafe_code)]

mod abi;
mod attributes;
mod credentials;
mod data;
mod descriptor;
mod error;
mod kernel;
mod mount;
mod open;
mod origin;
mod procfs;
mod reply;
mod seek;
mod space;
mod stat;
mod state;
mod subject;
mod table;
mod uses;
mod walk;
mod xattr;

pub use error::{ErrorKind, VfsError};
pub use kernel::{Credentials, Kernel, KernelError};
pub use mount::MountSpec;
pub use nacre_fs::SetTime;
pub use reply::{Answer, Reply};
pub use stat::{FileStat, FsStat, NACRE_MAGIC};
pub use state::Vfs;
