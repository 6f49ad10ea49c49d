//! The POSIX state of one process over mounted pools: fds, open file descriptions, the current
//! directory, paths; one method of [`Vfs`] per system call.
//!
//! Arguments come in as the kernel would get them, decoded; answers go out as [`Reply`], which may
//! also say that the call is the kernel's. Nothing here touches the program's memory but through
//! `UserBytes` and `UserBytesMut`, and nothing makes system calls but through [`Kernel`].
#![forbid(unsafe_code)]

mod abi;
mod attach;
mod calls;
mod credentials;
mod error;
mod fd;
mod fork_exec;
mod kernel;
mod kernel_fds;
mod path;
mod protect;
mod reply;
mod resolve;
mod state;
mod untouched;

pub use calls::exec::{ExecImage, HandedOn};
pub use calls::handles::FileHandle;
pub use calls::ioctl::IoctlReply;
pub use calls::later::{Held, Wish};
pub use calls::locks::FileLock;
pub use calls::map::{MapHold, MapPiece, MapPlan, MapRange, MapRequest, Showing, Staying};
pub use calls::socket::SocketNode;
pub use calls::stat::{FileStat, FsStat, NACRE_MAGIC};
pub use calls::watch::Told;
pub use error::{ErrorKind, VfsError};
pub use fd::table::TABLE_LEN;
pub use fork_exec::ForkTicket;
pub use kernel::{Credentials, Kernel, KernelError, Protection};
pub use nacre_fs::{Holes, SetTime, ShownPage};
pub use path::mount::MountSpec;
pub use path::owner::PathOwner;
pub use reply::{Answer, KernelNode, Reply};
pub use state::Vfs;
