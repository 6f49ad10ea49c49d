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
mod cwd;
mod data;
mod descriptor;
mod dirents;
mod error;
mod exec;
mod ioctl;
mod kernel;
mod life;
mod links;
mod locks;
mod map;
mod mount;
mod names;
mod open;
mod origin;
mod path_cache;
mod placeholder;
mod procfs;
mod rename;
mod reply;
mod seek;
mod socket;
mod space;
mod stat;
mod state;
mod subject;
mod table;
mod uses;
mod walk;
mod word;
mod xattr;

pub use error::{ErrorKind, VfsError};
pub use exec::ExecImage;
pub use ioctl::IoctlReply;
pub use kernel::{Credentials, Kernel, KernelError};
pub use life::ForkTicket;
pub use locks::FileLock;
pub use map::{MapHold, MapPiece, MapPlan, MapRequest};
pub use mount::MountSpec;
pub use nacre_fs::SetTime;
pub use origin::PathOwner;
pub use reply::{Answer, KernelNode, Reply};
pub use socket::SocketNode;
pub use stat::{FileStat, FsStat, NACRE_MAGIC};
pub use state::Vfs;
