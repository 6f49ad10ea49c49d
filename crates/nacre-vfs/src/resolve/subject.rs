//! The existing file that a call is about, named by a path, an fd, or both.

use crate::abi::{AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW};
use crate::error::{ErrorKind, VfsError};
use crate::kernel::shadowed_node;
use crate::path::mount::Mount;
use crate::reply::{Answer, Reply};
use crate::resolve::walk::Lookup;
use crate::state::{OpenFile, Vfs};
use nacre_fs::{Events, FileType, Found, FsError, InodeRef, NameIn};
use nacre_session::Ofd;

/// An existing file of a pool. Whoever made it keeps the inode from being freed if it is an open
/// file; otherwise a call on it may find it stale.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'v> {
    pub(crate) mount: &'v Mount,
    pub(crate) node: InodeRef,
    pub(crate) is_symlink: bool,
    place: WatchedPlace<'v>,
}

/// Where a file is, for those who watch the directory.
#[derive(Clone, Copy)]
enum WatchedPlace<'v> {
    /// Not known.
    Somewhere,
    /// By this name.
    Named(NameIn<'v>),
    /// Where it was opened.
    Opened(&'v Ofd),
}

impl<'v> Subject<'v> {
    fn of_file(file: &OpenFile<'v>) -> Subject<'v> {
        let is_symlink = file.format() == FileType::Symlink.mode_bits();
        Subject {
            mount: file.mount,
            node: file.node(),
            is_symlink,
            place: WatchedPlace::Opened(file.ofd),
        }
    }

    fn of_node(mount: &'v Mount, node: InodeRef) -> Subject<'v> {
        Subject {
            mount,
            node,
            is_symlink: false,
            place: WatchedPlace::Somewhere,
        }
    }

    #[inline]
    fn of_found(mount: &'v Mount, found: Found, place: WatchedPlace<'v>) -> Subject<'v> {
        Subject {
            mount,
            node: found.node,
            is_symlink: found.file_type == FileType::Symlink,
            place,
        }
    }

    /// Tells those who watch of what was done.
    #[cold]
    #[inline(never)]
    pub(crate) fn tell(&self, events: Events) {
        let fs = &self.mount.fs;
        match self.place {
            WatchedPlace::Opened(ofd) => fs.tell_of_description(ofd, events),
            WatchedPlace::Named(name) => fs.tell(self.node, Some(name), events),
            WatchedPlace::Somewhere => fs.tell(self.node, None, events),
        }
    }
}

/// Whether a link at the end is followed, as the flags of a call say.
#[inline]
pub(crate) fn follows(flags: i32) -> bool {
    flags & AT_SYMLINK_NOFOLLOW == 0
}

impl Vfs {
    /// Does `call` on a file named by path, or by fd alone for an empty path with `AT_EMPTY_PATH`.
    pub(crate) fn on_path<T>(
        &self,
        dirfd: i32,
        path: &[u8],
        follow: bool,
        flags: i32,
        mut call: impl FnMut(Subject<'_>) -> Answer<T>,
    ) -> Answer<T> {
        if path.is_empty() && flags & AT_EMPTY_PATH != 0 {
            let file = if dirfd == AT_FDCWD {
                self.cwd_file()?
            } else {
                self.file(dirfd)?
            };
            return match file {
                Some(file) => call(Subject::of_file(&file)),
                None => self.on_node(dirfd, call),
            };
        }
        let how = Lookup::following(follow);
        if let Some(spot) = self.plain_spot(dirfd, path, how) {
            let found = spot.found.ok_or(ErrorKind::NotFound)?;
            let place = WatchedPlace::Named(spot.place());
            match call(Subject::of_found(spot.mount, found, place)) {
                Err(VfsError::Fs(FsError::Stale)) => {}
                answer => return answer,
            }
        }
        self.at_target(dirfd, path, how, |target| {
            let place = target
                .place()
                .map_or(WatchedPlace::Somewhere, WatchedPlace::Named);
            call(Subject::of_found(target.mount, target.existing()?, place))
        })
    }

    /// Does `call` on a file named by an fd that was not opened with `O_PATH`.
    pub(crate) fn on_fd<T>(
        &self,
        fd: i32,
        call: impl FnOnce(Subject<'_>) -> Answer<T>,
    ) -> Answer<T> {
        match self.io_file(fd)? {
            Some(file) => call(Subject::of_file(&file)),
            None => self.on_node(fd, call),
        }
    }

    /// Does `call` on the fifo or device node of a pool that an fd of the kernel's is open on.
    /// Without its name in the pool only the kernel knows it.
    #[cold]
    pub(crate) fn on_node<T>(
        &self,
        fd: i32,
        call: impl FnOnce(Subject<'_>) -> Answer<T>,
    ) -> Answer<T> {
        let node = || {
            let (pool, name) = self.kernel().shadow_behind(fd)?;
            let (mount, node) = (self.mount(pool), shadowed_node(&name)?);
            let named = mount.fs.getattr(node).is_ok_and(|stat| stat.nlink > 0);
            named.then_some(Subject::of_node(mount, node))
        };
        node().map_or(Ok(Reply::Kernel), call)
    }
}
