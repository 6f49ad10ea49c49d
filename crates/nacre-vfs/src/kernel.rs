//! What this layer asks of the kernel. The front end implements it by raw system calls that are not
//! intercepted again; tests by a simulation.

use nacre_fs::{Fs, InodeRef, Stat};
use nacre_types::Ino;
use thiserror::Error;

/// A system call failed with this errno.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the kernel answered errno {0}")]
pub struct KernelError(pub i32);

/// The identities of the process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// Real user id.
    pub ruid: u32,
    /// Real group id.
    pub rgid: u32,
    /// Effective (file-system) user id.
    pub euid: u32,
    /// Effective (file-system) group id.
    pub egid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Effective capability set.
    pub cap_effective: u64,
}

/// What the system may be set to refuse (`fs.protected_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protection {
    /// More names for files of others.
    Hardlinks,
    /// To follow links of others in folders that all may write.
    Symlinks,
    /// `O_CREAT` of regular files of others there.
    Regular,
    /// `O_CREAT` of fifos of others there.
    Fifos,
}

/// Raw system calls. Pools are numbered by their position in the list of mounts.
pub trait Kernel: Send + Sync {
    /// Attaches `pool`, of which the process has used nothing so far.
    fn attach(&self, pool: usize) -> Result<Fs, KernelError>;
    /// Opens the folders of shadow nodes of the pools that are attached, which else are opened when
    /// they are first used: the process may not be able to any more.
    fn open_nodes(&self);
    /// Whether an fd looks like a placeholder of some pool, attached or not.
    fn may_be_placeholder(&self, fd: i32) -> bool;
    /// Opens a placeholder of `pool`, which cannot be read or written.
    fn open_placeholder(&self, pool: usize, cloexec: bool) -> Result<i32, KernelError>;
    /// Closes a placeholder of `pool` whose file nobody else has. It may be kept, to be opened
    /// again, if `is_alone` still says so behind that.
    fn close_placeholder(
        &self,
        pool: usize,
        fd: i32,
        is_alone: &dyn Fn() -> bool,
    ) -> Result<(), KernelError>;
    /// Stores the identity (below 2^63) as the file offset of a placeholder.
    fn set_identity(&self, fd: i32, identity: u64) -> Result<(), KernelError>;
    /// The pool and identity of a placeholder; `None` for every other file.
    fn identity(&self, fd: i32) -> Result<Option<(usize, u64)>, KernelError>;
    /// All open fds of the process. If they cannot be listed, all numbers below
    /// [`TABLE_LEN`](crate::TABLE_LEN) that can be open.
    fn open_fds(&self) -> Vec<i32>;
    /// `close`.
    fn close(&self, fd: i32) -> Result<(), KernelError>;
    /// `fcntl(F_DUPFD)` or `fcntl(F_DUPFD_CLOEXEC)`.
    fn dup(&self, fd: i32, at_least: i32, cloexec: bool) -> Result<i32, KernelError>;
    /// `dup3`.
    fn dup_onto(&self, fd: i32, new: i32, flags: i32) -> Result<i32, KernelError>;
    /// Whether the fd is closed on exec.
    fn is_cloexec(&self, fd: i32) -> Result<bool, KernelError>;
    /// Sets or clears close-on-exec.
    fn set_cloexec(&self, fd: i32, cloexec: bool) -> Result<(), KernelError>;
    /// `readlinkat`; the length written.
    fn readlink(&self, dirfd: i32, path: &[u8], out: &mut [u8]) -> Result<usize, KernelError>;
    /// `getcwd`; the length without NUL.
    fn getcwd(&self, out: &mut [u8]) -> Result<usize, KernelError>;
    /// `chdir`.
    fn chdir(&self, path: &[u8]) -> Result<(), KernelError>;
    /// `mknod` in the pool's folder of shadow nodes, which is made when missing. False if the node
    /// is there already.
    fn make_shadow(
        &self,
        pool: usize,
        name: &[u8],
        mode: u32,
        rdev: u64,
    ) -> Result<bool, KernelError>;
    /// Gives a shadow, if there is one, the owner and mode of its node in the pool, as far as the
    /// process may.
    fn dress_shadow(&self, pool: usize, name: &[u8], like: &Stat);
    /// Notes beside a socket's shadow by which path its program calls it. If that fails, other
    /// processes see the shadow's.
    fn note_shadow(&self, pool: usize, name: &[u8], path: &[u8]);
    /// The path that was noted beside a shadow, by any process.
    fn noted_path(&self, pool: usize, name: &[u8]) -> Option<Vec<u8>>;
    /// Removes a shadow node if there is one, and what is noted beside it.
    fn remove_shadow(&self, pool: usize, name: &[u8]);
    /// `inotify_add_watch` of a shadow of a watch, which is there: the descriptor, and the shadow's
    /// inode number.
    fn watch_shadow(
        &self,
        fd: i32,
        pool: usize,
        name: &[u8],
        mask: u32,
    ) -> Result<(i32, u64), KernelError>;
    /// The pool and name of the shadow node that an fd is open on; `None` for every other file.
    fn shadow_behind(&self, fd: i32) -> Option<(usize, Vec<u8>)>;
    /// Absolute path of a shadow node.
    fn shadow_path(&self, pool: usize, name: &[u8]) -> Vec<u8>;
    /// The name in a path that any process may have given to a shadow node.
    fn shadow_in<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]>;
    /// The identities of the process.
    fn credentials(&self) -> Credentials;
    /// How far the system is set to protect so; 0: not at all.
    fn protection(&self, which: Protection) -> u32;
    /// The file mode creation mask, unchanged.
    fn umask(&self) -> u32;
    /// Soft `RLIMIT_FSIZE` in bytes; `u64::MAX` without a limit.
    fn file_size_limit(&self) -> u64;
    /// Soft `RLIMIT_NOFILE`.
    fn open_file_limit(&self) -> u64;
    /// Sends SIGXFSZ to the process.
    fn raise_file_size_signal(&self);
    /// Whether a signal waits for the calling thread; polled while a call blocks.
    fn interrupted(&self) -> bool;
    /// Process id.
    fn pid(&self) -> i32;
}

/// Name of the host's node that stands for a fifo, socket or device node of a pool.
pub(crate) fn shadow_name(node: InodeRef) -> Vec<u8> {
    format!("{:x}-{:x}", node.ino.0, node.generation).into_bytes()
}

/// The fifo, socket or device node whose shadow has this name.
pub(crate) fn shadowed_node(name: &[u8]) -> Option<InodeRef> {
    let (ino, generation) = std::str::from_utf8(name).ok()?.split_once('-')?;
    Some(InodeRef {
        ino: Ino(u64::from_str_radix(ino, 16).ok()?),
        generation: u32::from_str_radix(generation, 16).ok()?,
    })
}
