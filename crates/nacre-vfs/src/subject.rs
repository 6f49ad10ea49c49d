//! The existing file that a call is about, named by a path, an fd, or both.

use crate::abi::{AT_EMPTY_PATH, AT_FDCWD};
use crate::error::VfsError;
use crate::mount::Mount;
use crate::reply::Reply;
use crate::state::{OpenFile, Vfs};
use crate::walk::{Lookup, Place, Target};
use nacre_fs::{FileType, InodeRef};

/// What keeps the file reachable during the call.
enum Keep<'v, 'p> {
    File(OpenFile<'v>),
    Target(Target<'v, 'p>),
}

/// An existing file of a pool.
pub(crate) struct Subject<'v, 'p> {
    pub(crate) mount: &'v Mount,
    pub(crate) node: InodeRef,
    keep: Keep<'v, 'p>,
}

/// A subject, or the answer if the call is the kernel's.
pub(crate) type OrReply<'v, 'p, T> = Result<Result<Subject<'v, 'p>, Reply<T>>, VfsError>;

impl<'v> Subject<'v, '_> {
    fn of_file<'p>(file: OpenFile<'v>) -> Subject<'v, 'p> {
        Subject {
            mount: file.mount,
            node: file.node(),
            keep: Keep::File(file),
        }
    }

    pub(crate) fn is_symlink(&self) -> bool {
        match &self.keep {
            Keep::File(file) => file.format() == FileType::Symlink.mode_bits(),
            Keep::Target(target) => target
                .found
                .is_some_and(|found| found.file_type == FileType::Symlink),
        }
    }
}

impl Vfs {
    /// By path, or by fd alone for an empty path with `AT_EMPTY_PATH`.
    pub(crate) fn subject<'v, 'p, T>(
        &'v self,
        dirfd: i32,
        path: &'p [u8],
        follow: bool,
        flags: i32,
    ) -> OrReply<'v, 'p, T> {
        if path.is_empty() && flags & AT_EMPTY_PATH != 0 {
            let file = if dirfd == AT_FDCWD {
                self.cwd_file()?
            } else {
                self.file(dirfd)?
            };
            return Ok(file.map(Subject::of_file).ok_or(Reply::Kernel));
        }
        match self.resolve(dirfd, path, Lookup::following(follow))? {
            Place::Pool(target) => {
                let node = target.existing()?.node;
                Ok(Ok(Subject {
                    mount: target.mount,
                    node,
                    keep: Keep::Target(target),
                }))
            }
            elsewhere => Ok(Err(elsewhere.pass_on())),
        }
    }

    /// By path relative to the current directory.
    pub(crate) fn subject_here<'v, 'p, T>(
        &'v self,
        path: &'p [u8],
        follow: bool,
    ) -> OrReply<'v, 'p, T> {
        self.subject(AT_FDCWD, path, follow, 0)
    }

    /// By an fd that was not opened with `O_PATH`.
    pub(crate) fn subject_fd<'v, T>(&'v self, fd: i32) -> OrReply<'v, 'static, T> {
        Ok(self.io_file(fd)?.map(Subject::of_file).ok_or(Reply::Kernel))
    }
}
