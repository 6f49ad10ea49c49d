//! What a call answers: a result, or that the kernel is to do it.

use crate::error::VfsError;
use nacre_fs::FsError;
use std::mem::ManuallyDrop;

/// Outcome of a call that did not fail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply<T = i64> {
    /// Served here.
    Done(T),
    /// Not a matter of any pool: make the call unchanged.
    Kernel,
    /// The path leads to the host: make the call with this absolute path instead; the directory fd
    /// no longer matters.
    KernelPath(Vec<u8>),
    /// As `KernelPath` for calls with two paths; `None` leaves that path (and its fd) unchanged.
    KernelPaths(Option<Vec<u8>>, Option<Vec<u8>>),
    /// A fifo, socket or device node: the kernel opens it, or connects to it, in the pool's folder
    /// of nodes.
    KernelNode(KernelNode),
}

/// What the kernel has to find in a pool's folder of nodes, as the pool's record says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelNode {
    /// Which pool.
    pub pool: usize,
    /// Its name there.
    pub name: Vec<u8>,
    /// Type and permission bits.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// The device that it stands for.
    pub rdev: u64,
    /// How the program opens it.
    pub flags: u32,
}

impl<T> Reply<T> {
    /// As a reply of another kind. Only for what was not served here.
    pub fn without_value(self) -> Reply {
        match self {
            Reply::Done(_) | Reply::Kernel => Reply::Kernel,
            Reply::KernelPath(path) => Reply::KernelPath(path),
            Reply::KernelPaths(first, second) => Reply::KernelPaths(first, second),
            Reply::KernelNode(node) => Reply::KernelNode(node),
        }
    }
}

impl<T: Copy> Reply<T> {
    /// The result, if the call was served here. That case has nothing to drop, which the compiler
    /// does not always see.
    #[inline(always)]
    pub fn served(self) -> Option<T> {
        let reply = ManuallyDrop::new(self);
        match *reply {
            Reply::Done(value) => Some(value),
            _ => {
                drop(ManuallyDrop::into_inner(reply));
                None
            }
        }
    }
}

/// Result of nearly every method of [`crate::Vfs`].
pub type Answer<T = i64> = Result<Reply<T>, VfsError>;

#[inline]
pub(crate) fn done<T>(value: T) -> Answer<T> {
    Ok(Reply::Done(value))
}

/// For calls that return 0.
#[inline]
pub(crate) fn success() -> Answer {
    Ok(Reply::Done(0))
}

/// For calls that are done at once: `None` if an inode was stale, so that the call is to be made
/// again.
#[inline]
pub(crate) fn unless_stale(result: Result<(), VfsError>) -> Option<Result<(), VfsError>> {
    match result {
        Err(VfsError::Fs(FsError::Stale)) => None,
        told => Some(told),
    }
}
