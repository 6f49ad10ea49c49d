//! open, openat, openat2, creat.

use crate::abi::{
    O_ACCMODE, O_APPEND, O_ASYNC, O_CLOEXEC, O_CREAT, O_DIRECT, O_DIRECTORY, O_DSYNC, O_EXCL,
    O_LARGEFILE, O_NOATIME, O_NOCTTY, O_NOFOLLOW, O_NONBLOCK, O_PATH, O_RDONLY, O_RDWR, O_SYNC,
    O_TMPFILE_BIT, O_TRUNC, O_WRONLY, S_IFMT, S_IFREG,
};
use crate::error::{ErrorKind, VfsError};
use crate::fd::table::{FdEntry, FileId};
use crate::kernel::shadow_name;
use crate::path::mount::Mount;
use crate::reply::{Answer, KernelNode, Reply};
use crate::resolve::walk::{Last, Lookup, Target, WalkEnd};
use crate::state::Vfs;
use nacre_fs::{Access, Caps, Events, FileType, Found, FsError, InodeRef};
use nacre_session::{OFD_SYNCED, OfdInit};

const KNOWN: u32 = O_ACCMODE
    | O_CREAT
    | O_EXCL
    | O_NOCTTY
    | O_TRUNC
    | O_APPEND
    | O_NONBLOCK
    | O_DSYNC
    | O_SYNC
    | O_ASYNC
    | O_DIRECT
    | O_LARGEFILE
    | O_DIRECTORY
    | O_NOFOLLOW
    | O_NOATIME
    | O_CLOEXEC
    | O_PATH
    | O_TMPFILE_BIT;
const WITH_PATH: u32 = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
/// Flags that act at open and are not seen afterwards.
const AT_OPEN_ONLY: u32 = O_CREAT | O_EXCL | O_NOCTTY | O_TRUNC | O_CLOEXEC;
const MODE_BITS: u32 = 0o7777;
/// How often an open starts again because others make and remove the same name.
const RACE_RETRIES: u32 = 1000;

const RESOLVE_NO_XDEV: u64 = 1;
const RESOLVE_NO_MAGICLINKS: u64 = 2;
const RESOLVE_NO_SYMLINKS: u64 = 4;
const RESOLVE_BENEATH: u64 = 8;
const RESOLVE_IN_ROOT: u64 = 16;
const RESOLVE_CACHED: u64 = 32;

/// An open call after its flags were checked.
#[derive(Clone, Copy)]
struct Request {
    flags: u32,
    mode: u32,
}

/// What an attempt to open came to.
enum Attempt {
    Done(Reply),
    /// Somebody changed the name meanwhile.
    Again,
}

impl Request {
    /// By the rules of `open`: unknown flags are ignored.
    fn new(flags: u32, mode: u32) -> Request {
        let flags = if flags & O_PATH != 0 {
            flags & WITH_PATH
        } else {
            flags & KNOWN
        };
        Request {
            flags,
            mode: mode & MODE_BITS,
        }
    }

    /// Refuses flags that contradict each other.
    #[inline]
    fn check(&self) -> Result<(), VfsError> {
        let unnamed = self.has(O_TMPFILE_BIT);
        if unnamed && (!self.has(O_DIRECTORY) || !self.wants_write()) {
            return Err(ErrorKind::Invalid.into());
        }
        if self.flags & (O_CREAT | O_DIRECTORY) == O_CREAT | O_DIRECTORY {
            return Err(ErrorKind::Invalid.into());
        }
        Ok(())
    }

    /// Whether a symbolic link in the last component is followed.
    #[inline]
    fn follows(&self) -> bool {
        !self.has(O_NOFOLLOW) && self.flags & (O_CREAT | O_EXCL) != O_CREAT | O_EXCL
    }

    #[inline]
    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    #[inline]
    fn wants_write(&self) -> bool {
        self.flags & O_ACCMODE != O_RDONLY
    }

    /// What the caller must be allowed to do with an existing file.
    #[inline]
    fn access(&self) -> Access {
        let mut access = match self.flags & O_ACCMODE {
            O_RDONLY => Access::READ,
            O_WRONLY => Access::WRITE,
            _ => Access::READ | Access::WRITE,
        };
        if self.has(O_TRUNC) {
            access |= Access::WRITE;
        }
        access
    }
}

impl Vfs {
    /// `openat`; also `open` and `creat` with `AT_FDCWD`. Answers the fd.
    pub fn openat(&self, dirfd: i32, path: &[u8], flags: i32, mode: u32) -> Answer {
        self.open_request(dirfd, path, flags as u32, mode, Lookup::default())
    }

    /// `openat2`.
    pub fn openat2(&self, dirfd: i32, path: &[u8], flags: u64, mode: u64, resolve: u64) -> Answer {
        let known = RESOLVE_NO_XDEV
            | RESOLVE_NO_MAGICLINKS
            | RESOLVE_NO_SYMLINKS
            | RESOLVE_BENEATH
            | RESOLVE_IN_ROOT
            | RESOLVE_CACHED;
        let how = Lookup {
            no_links: resolve & RESOLVE_NO_SYMLINKS != 0,
            beneath: resolve & RESOLVE_BENEATH != 0,
            in_root: resolve & RESOLVE_IN_ROOT != 0,
            ..Lookup::STAY
        };
        // The kernel's own refusals come from the kernel.
        let odd = resolve & !known != 0 || (how.beneath && how.in_root);
        let modeless = flags as u32 & (O_CREAT | O_TMPFILE_BIT) == 0 && mode != 0;
        if odd || flags & !u64::from(KNOWN) != 0 || mode & !u64::from(MODE_BITS) != 0 || modeless {
            return Err(ErrorKind::Invalid.into());
        }
        self.open_request(dirfd, path, flags as u32, mode as u32, how)
    }

    fn open_request(
        &self,
        dirfd: i32,
        path: &[u8],
        flags: u32,
        mode: u32,
        restrictions: Lookup,
    ) -> Answer {
        let request = Request::new(flags, mode);
        for tries in 0..RACE_RETRIES {
            let how = Lookup {
                follow: request.follows(),
                vacant: tries == 0 && request.has(O_CREAT),
                ..restrictions
            };
            match self.attempt(dirfd, path, how, request) {
                Ok(Attempt::Done(reply)) => return Ok(reply),
                Ok(Attempt::Again) | Err(VfsError::Fs(FsError::Stale)) => {}
                Err(error) => return Err(error),
            }
        }
        Err(ErrorKind::Busy.into())
    }

    /// As `openat`, if that is done at once: the fd. Returns `None` if the fast path does not
    /// apply: what the kernel opens is left to [`Vfs::openat`].
    #[inline(always)]
    pub fn try_open_fast(
        &self,
        dirfd: i32,
        path: &[u8],
        flags: i32,
        mode: u32,
    ) -> Option<Result<i64, VfsError>> {
        let request = Request::new(flags as u32, mode);
        let how = Lookup {
            follow: request.follows(),
            vacant: request.has(O_CREAT),
            ..Lookup::STAY
        };
        let target = self.plain_spot(dirfd, path, how)?.target(None);
        if !request.has(O_PATH) && target.is_special() {
            return None;
        }
        let checked = request.check();
        match checked.and_then(|()| self.open_target(&target, request)) {
            Ok(Attempt::Done(Reply::Done(fd))) => Some(Ok(fd)),
            Ok(_) | Err(VfsError::Fs(FsError::Stale)) => None,
            Err(error) => Some(Err(error)),
        }
    }

    fn attempt(
        &self,
        dirfd: i32,
        path: &[u8],
        how: Lookup,
        request: Request,
    ) -> Result<Attempt, VfsError> {
        if let Some(spot) = self.plain_spot(dirfd, path, how) {
            request.check()?;
            return self.open_target(&spot.target(None), request);
        }
        match self.resolve(dirfd, path, how)? {
            WalkEnd::Pool(target) => {
                request.check()?;
                self.open_target(&target, request)
            }
            elsewhere => {
                self.prepare_for_host(path);
                Ok(Attempt::Done(elsewhere.pass_on()))
            }
        }
    }

    /// Opens what is known already.
    pub(crate) fn open_found(&self, target: &Target<'_, '_>, flags: u32) -> Answer {
        let request = Request::new(flags & !(O_CREAT | O_EXCL), 0);
        request.check()?;
        match self.open_target(target, request)? {
            Attempt::Done(reply) => Ok(reply),
            Attempt::Again => Err(ErrorKind::Stale.into()),
        }
    }

    /// The kernel will open a file of the host: it gets the lowest number, and the list of fds in
    /// /proc shows none that is closed for the program.
    pub fn prepare_for_host(&self, path: &[u8]) {
        if path.starts_with(b"/proc") {
            self.unpark_all();
        } else {
            self.make_room();
        }
    }

    #[inline]
    fn open_target(&self, target: &Target<'_, '_>, request: Request) -> Result<Attempt, VfsError> {
        if request.has(O_TMPFILE_BIT) {
            return self.open_unnamed(target, request);
        }
        let Some(found) = target.found else {
            return self.open_new(target, request);
        };
        self.check_type(target, found, request)?;
        if request.has(O_CREAT) && matches!(target.last, Last::Name(_)) {
            self.check_sticky(target.mount, target.dir, found.node)?;
        }
        if !request.has(O_PATH) {
            if target.is_special() {
                return self
                    .open_special(target.mount, found, request)
                    .map(Attempt::Done);
            }
            self.pin_permitted(target.mount, found, request)?;
        } else {
            target.mount.fs.pin(found.node)?;
        }
        let fd = self.install(target, found.node, found.file_type.mode_bits(), request)?;
        if request.has(O_TRUNC) && found.file_type == FileType::Regular {
            self.cut_opened(fd, target, found.node)?;
        }
        Ok(Attempt::Done(Reply::Done(fd.into())))
    }

    /// Cuts a file that is open: who gets no number must find it as it was.
    #[inline]
    fn cut_opened(&self, fd: i32, target: &Target<'_, '_>, node: InodeRef) -> Result<(), VfsError> {
        let fs = &target.mount.fs;
        if let Err(error) = fs.set_size(self.cred(), node, 0) {
            self.close(fd)?;
            return Err(error.into());
        }
        if fs.is_watched() {
            fs.tell(node, target.place(), Events::MODIFY);
        }
        Ok(())
    }

    #[inline]
    fn check_type(
        &self,
        target: &Target<'_, '_>,
        found: Found,
        request: Request,
    ) -> Result<(), VfsError> {
        if request.has(O_CREAT) && request.has(O_EXCL) {
            return Err(ErrorKind::Exists.into());
        }
        let directory = found.file_type == FileType::Directory;
        if request.has(O_CREAT) && (directory || target.slash) {
            return Err(ErrorKind::IsDirectory.into());
        }
        if request.has(O_DIRECTORY) && !directory {
            return Err(ErrorKind::NotDirectory.into());
        }
        if request.has(O_PATH) {
            return Ok(());
        }
        match found.file_type {
            FileType::Symlink => Err(ErrorKind::Loop.into()),
            FileType::Socket => Err(ErrorKind::NoDevice.into()),
            FileType::Directory if request.wants_write() || request.has(O_TRUNC) => {
                Err(ErrorKind::IsDirectory.into())
            }
            _ => Ok(()),
        }
    }

    /// Pins what the caller may open so.
    #[inline]
    fn pin_permitted(&self, mount: &Mount, found: Found, request: Request) -> Result<(), VfsError> {
        let access = request.access();
        if access.contains(Access::WRITE) && found.file_type == FileType::Regular {
            mount.check_writable()?;
        }
        if request.has(O_NOATIME) && !self.cred().has(Caps::FOWNER) {
            let owner = mount.fs.getattr(found.node)?.uid;
            if owner != self.cred().uid {
                mount.fs.access(self.cred(), found.node, access)?;
                return Err(ErrorKind::NotPermitted.into());
            }
        }
        Ok(mount.fs.pin_for(self.cred(), found.node, access)?)
    }

    fn open_new(&self, target: &Target<'_, '_>, request: Request) -> Result<Attempt, VfsError> {
        let Last::Name(name) = &target.last else {
            return Err(ErrorKind::NotFound.into());
        };
        if !request.has(O_CREAT) {
            return Err(ErrorKind::NotFound.into());
        }
        if target.slash {
            return Err(ErrorKind::IsDirectory.into());
        }
        target.mount.check_writable()?;
        let (fs, mode) = (&target.mount.fs, self.masked(request.mode));
        let made = self.open_made(target, request, || {
            fs.create(self.cred(), target.dir, name, mode)
        });
        match made {
            Err(VfsError::Fs(FsError::Exists)) if !request.has(O_EXCL) => Ok(Attempt::Again),
            made => made,
        }
    }

    fn open_unnamed(&self, target: &Target<'_, '_>, request: Request) -> Result<Attempt, VfsError> {
        let dir = target.existing()?;
        if dir.file_type != FileType::Directory {
            return Err(ErrorKind::NotDirectory.into());
        }
        target.mount.check_writable()?;
        let (fs, mode) = (&target.mount.fs, self.masked(request.mode));
        let linkable = !request.has(O_EXCL);
        self.open_made(target, request, || {
            fs.tmpfile(self.cred(), dir.node, mode, linkable)
        })
    }

    /// Opens what `make` makes and pins: who gets no number, or for whom the table of descriptions
    /// is full, must find nothing made.
    #[inline]
    fn open_made(
        &self,
        target: &Target<'_, '_>,
        request: Request,
        make: impl FnOnce() -> Result<InodeRef, FsError>,
    ) -> Result<Attempt, VfsError> {
        let mount = target.mount;
        let fd = self.take_number(target, request)?;
        let room = match self.reserve_description(mount) {
            Ok(room) => room,
            Err(error) => {
                self.give_number_back(fd)?;
                return Err(error);
            }
        };
        match make() {
            Ok(node) => {
                let id = self.describe_in(mount, room, &init(target, node, S_IFREG, request));
                self.show_at(fd, target, node, id, request)?;
            }
            Err(error) => {
                mount.fs.unreserve_description(room);
                self.give_number_back(fd)?;
                return Err(error.into());
            }
        }
        Ok(Attempt::Done(Reply::Done(fd.into())))
    }

    /// Fifos and device nodes live on as nodes of the host.
    fn open_special(
        &self,
        mount: &Mount,
        found: Found,
        request: Request,
    ) -> Result<Reply, VfsError> {
        self.make_room();
        mount.fs.access(self.cred(), found.node, request.access())?;
        let stat = mount.fs.getattr(found.node)?;
        let name = shadow_name(found.node);
        let kernel = self.kernel();
        if kernel.make_shadow(mount.index, &name, stat.mode, stat.rdev)? {
            // The process's umask has no say in that.
            kernel.dress_shadow(mount.index, &name, &stat);
        }
        Ok(Reply::KernelNode(KernelNode {
            pool: mount.index,
            name,
            mode: stat.mode,
            uid: stat.uid,
            rdev: stat.rdev,
            flags: request.flags,
        }))
    }

    #[inline]
    fn take_number(&self, target: &Target<'_, '_>, request: Request) -> Result<i32, VfsError> {
        self.take_placeholder(target.mount.index, request.has(O_CLOEXEC))
    }

    /// Gives a pinned inode an open file description and an fd; unpins it on failure.
    #[inline]
    fn install(
        &self,
        target: &Target<'_, '_>,
        node: InodeRef,
        format: u32,
        request: Request,
    ) -> Result<i32, VfsError> {
        match self.take_number(target, request) {
            Ok(fd) => self
                .install_at(fd, target, node, format, request)
                .map(|()| fd),
            Err(error) => {
                target.mount.fs.unpin(node.ino)?;
                Err(error)
            }
        }
    }

    /// As [`Vfs::install`], at a number that was taken before, which is given back on failure.
    #[inline]
    fn install_at(
        &self,
        fd: i32,
        target: &Target<'_, '_>,
        node: InodeRef,
        format: u32,
        request: Request,
    ) -> Result<(), VfsError> {
        let mount = target.mount;
        match self.describe(mount, &init(target, node, format, request)) {
            Ok(id) => self.show_at(fd, target, node, id, request),
            Err(error) => {
                mount.fs.unpin(node.ino)?;
                self.give_number_back(fd)?;
                Err(error)
            }
        }
    }

    /// Opens a number that was taken before, which is given back on failure, as the description is.
    #[inline]
    fn show_at(
        &self,
        fd: i32,
        target: &Target<'_, '_>,
        node: InodeRef,
        id: FileId,
        request: Request,
    ) -> Result<(), VfsError> {
        if let Err(error) = self.enter_placeholder(fd, id) {
            self.release(id);
            return Err(error);
        }
        let fs = &target.mount.fs;
        if fs.is_watched() && !request.has(O_PATH) {
            fs.tell(node, target.place(), Events::OPEN);
        }
        Ok(())
    }

    /// Fills the entry of an fd that the kernel has just made. The use is counted already.
    #[inline]
    pub(crate) fn enter(&self, fd: i32, id: FileId) {
        let _gate = self.table.needs_chunk(fd).then(|| self.close_gate());
        if let FdEntry::Pool(old) = self.table.set(fd, FdEntry::Pool(id), self.alone()) {
            self.release(old);
        }
    }
}

/// What describes the opened file.
#[inline]
fn init<'a>(
    target: &'a Target<'_, '_>,
    node: InodeRef,
    format: u32,
    request: Request,
) -> OfdInit<'a> {
    OfdInit {
        ino: node.ino,
        ino_generation: node.generation,
        flags: status_flags(request.flags) | synced(target.mount, request),
        mode: format & S_IFMT,
        parent: target.dir.ino,
        name: match &target.last {
            Last::Name(name) => name,
            _ => b"",
        },
    }
}

/// [`OFD_SYNCED`] where `O_DSYNC` or `O_SYNC`, which holds its bit, takes more than a store.
fn synced(mount: &Mount, request: Request) -> u32 {
    match request.has(O_DSYNC) && mount.fs.is_cached() {
        true => OFD_SYNCED,
        false => 0,
    }
}

/// What `F_GETFL` will show.
fn status_flags(flags: u32) -> u32 {
    let shown = flags & !AT_OPEN_ONLY;
    if flags & O_PATH != 0 {
        shown
    } else {
        shown | O_LARGEFILE
    }
}

/// Whether a description with these flags may be read.
#[inline]
pub(crate) fn readable(flags: u32) -> bool {
    matches!(flags & O_ACCMODE, O_RDONLY | O_RDWR)
}

/// Whether a description with these flags may be written.
#[inline]
pub(crate) fn writable(flags: u32) -> bool {
    matches!(flags & O_ACCMODE, O_WRONLY | O_RDWR)
}
