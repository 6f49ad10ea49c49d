//! The POSIX state of one process: which fds are files of pools, where it stands, who it is.

use crate::credentials::{Identities, Identity};
use crate::error::{ErrorKind, VfsError};
use crate::fd::placeholder::Placeholders;
use crate::fd::table::{FdEntry, FdTable, FileId, POOLS_MAX};
use crate::fd::uses::Uses;
use crate::kernel::Kernel;
use crate::path::mount::{Mount, MountSpec};
use crate::path::owner::PathOwners;
use crate::path::path_cache::PathCache;
use crate::reply::Answer;
use nacre_fs::{Cred, Fs, FsError, InodeRef, NewMode, OwnedGuard};
use nacre_session::{Ofd, OfdId, OfdInit, ReservedOfd, SlotRef};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How often a call on a path is made again.
const STALE_RETRIES: u32 = 16;

/// The virtual file system of one process; see the crate's documentation for the calls.
pub struct Vfs {
    mounts: Vec<Mount>,
    /// Owners of paths by their first bytes.
    pub(crate) owners: PathOwners,
    pub(crate) kernel: Arc<dyn Kernel>,
    pub(crate) table: FdTable,
    pub(crate) placeholders: Placeholders,
    pub(crate) uses: Uses,
    pub(crate) path_cache: PathCache,
    /// A packed table entry: the current directory if it lies in a pool.
    pub(crate) cwd: AtomicU64,
    pub(crate) umask: AtomicU32,
    pub(crate) identities: Identities,
    pub(crate) file_size_limit: AtomicU64,
    /// Other threads may close fds while a call uses them.
    pub(crate) threaded: AtomicBool,
    /// POSIX record locks may be held.
    pub(crate) has_record_locks: AtomicBool,
    /// Held by `fork` and by whatever must not be copied half done.
    /// The sockets that the process has bound are kept inside.
    pub(crate) gate: Mutex<Vec<Bound>>,
    /// Held while a pool is attached and, in front of the gate, by `fork`.
    pub(crate) attaching: Mutex<()>,
}

impl Vfs {
    /// The state of a process that has just been started. `after_exec` must follow if it may have
    /// inherited anything of a pool.
    pub fn start(mounts: Vec<MountSpec>, kernel: Arc<dyn Kernel>) -> Result<Vfs, VfsError> {
        if mounts.len() > POOLS_MAX {
            return Err(ErrorKind::TooManyFiles.into());
        }
        let numbered = mounts.into_iter().enumerate();
        let mounts = numbered
            .map(|(index, spec)| Mount::new(index, spec))
            .collect::<Result<_, _>>()?;
        let umask = kernel.umask();
        let identities = Identities::new(kernel.credentials());
        let vfs = Vfs::with(mounts, kernel, identities);
        vfs.umask.store(umask, Ordering::Relaxed);
        Ok(vfs)
    }

    /// The state of a child that runs in this process's memory and will adopt `slots`, one of each
    /// attached pool: without any fd.
    pub(crate) fn for_child(&self, slots: &[Option<SlotRef>]) -> Vfs {
        let mounts = self.mounts.iter().zip(slots);
        Vfs::with(
            mounts.map(|(mount, &slot)| mount.for_child(slot)).collect(),
            self.kernel.clone(),
            self.identities.fork(),
        )
    }

    pub(crate) fn with(mounts: Vec<Mount>, kernel: Arc<dyn Kernel>, identities: Identities) -> Vfs {
        Vfs {
            table: FdTable::new(),
            placeholders: Placeholders::new(),
            uses: Uses::new(mounts.len()),
            path_cache: PathCache::new(),
            cwd: AtomicU64::new(FdEntry::Unknown.pack()),
            umask: AtomicU32::new(0),
            identities,
            file_size_limit: AtomicU64::new(kernel.file_size_limit()),
            threaded: AtomicBool::new(false),
            has_record_locks: AtomicBool::new(false),
            gate: Mutex::new(Vec::new()),
            attaching: Mutex::new(()),
            owners: PathOwners::new(&mounts),
            mounts,
            kernel,
        }
    }

    #[inline]
    pub(crate) fn kernel(&self) -> &dyn Kernel {
        &*self.kernel
    }

    #[inline]
    pub(crate) fn mount(&self, pool: usize) -> &Mount {
        &self.mounts[pool]
    }

    pub(crate) fn mounts(&self) -> &[Mount] {
        &self.mounts
    }

    pub(crate) fn identity(&self) -> &Identity {
        self.identities.current()
    }

    #[inline]
    pub(crate) fn cred(&self) -> &Cred {
        &self.identities.current().effective
    }

    /// Keeps forks away.
    pub(crate) fn close_gate(&self) -> MutexGuard<'_, Vec<Bound>> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot that is this process's among those that use a pool.
    #[inline]
    pub(crate) fn holder(&self, pool: usize) -> SlotRef {
        self.mount(pool).fs.slot()
    }

    /// Whether the fd is an open file of a pool. If not, the kernel may be asked about it: it finds
    /// no cached placeholder there.
    #[inline]
    pub fn ours(&self, fd: i32) -> bool {
        match self.table.get(fd) {
            Some(FdEntry::Host) => false,
            Some(FdEntry::Pool(_)) => true,
            Some(FdEntry::Cached) => {
                self.unpark(fd);
                false
            }
            _ => matches!(self.file(fd), Ok(Some(_))),
        }
    }

    /// Whether no other thread can change the process's own words.
    #[inline]
    pub fn alone(&self) -> bool {
        !self.threaded.load(Ordering::Relaxed)
    }

    /// Notes that the kernel has just given this fd to the program and that it is no pool's file.
    #[inline]
    pub fn host_fd(&self, fd: i32) {
        if fd >= 0
            && !self.table.needs_chunk(fd)
            && let FdEntry::Pool(stale) = self.table.set(fd, FdEntry::Host, self.alone())
        {
            self.release(stale);
        }
    }

    /// As `file`, for the frequent case: Returns `None` if the fast path does not apply. No copies
    /// of the answer are made on its way up.
    #[inline(always)]
    pub(crate) fn known_file(&self, fd: i32) -> Option<OpenFile<'_>> {
        let id = self.table.low_file(fd)?;
        if !self.alone() {
            return None;
        }
        let mount = self.mount(id.pool);
        let ofd = mount.fs.description(id.ofd)?;
        Some(OpenFile {
            vfs: self,
            mount,
            id,
            ofd,
            counted: false,
        })
    }

    /// What calls that only look at contents need of a description, without counting a use of it:
    /// another thread may close the fd meanwhile. Returns `None` if the fast path does not apply.
    /// All of it belongs to one description, and that was open when the call began.
    #[inline(always)]
    pub(crate) fn snapshot(&self, fd: i32) -> Option<FdSnapshot<'_>> {
        let id = self.table.low_file(fd)?;
        // Looked up once: each look asks whether the pool is attached.
        let fs: &Fs = &self.mount(id.pool).fs;
        let ofd = fs.description_at(id.ofd.index)?;
        let node = InodeRef {
            ino: ofd.ino(),
            generation: ofd.ino_generation(),
        };
        let flags = ofd.flags.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        if !ofd.is_of(id.ofd.generation) {
            return None;
        }
        Some(FdSnapshot {
            fs,
            ofd,
            node,
            flags,
        })
    }

    /// As `snapshot`, if nobody else can move the position meanwhile.
    #[inline(always)]
    pub(crate) fn snapshot_alone(&self, fd: i32) -> Option<FdSnapshot<'_>> {
        self.snapshot(fd)
            .filter(|file| self.alone() && file.ofd.is_private())
    }

    /// The file behind an fd; `None` if the kernel is to look after it.
    pub(crate) fn file(&self, fd: i32) -> Result<Option<OpenFile<'_>>, VfsError> {
        loop {
            let id = match self.table.get(fd) {
                Some(FdEntry::Pool(id)) => id,
                Some(FdEntry::Host) => return Ok(None),
                Some(FdEntry::Cached) => return Err(ErrorKind::BadFd.into()),
                // Other threads may close the number before it could be entered.
                Some(FdEntry::Unknown) if !self.alone() => return self.unentered_file(fd),
                Some(FdEntry::Unknown) => match self.classify(fd)? {
                    true => continue,
                    false => return Ok(None),
                },
                None => return self.unentered_file(fd),
            };
            if self.alone() {
                return self.open_file(id, false).map(Some);
            }
            if self.uses.add_if_used(id) {
                let file = self.open_file(id, true)?;
                if self.table.get(fd) == Some(FdEntry::Pool(id)) {
                    return Ok(Some(file));
                }
            }
        }
    }

    /// As `file`, for fds that must be open and, as O_PATH gives no access, not opened so.
    #[inline(always)]
    pub(crate) fn io_file(&self, fd: i32) -> Result<Option<OpenFile<'_>>, VfsError> {
        match self.known_file(fd) {
            Some(file) if file.flags() & crate::abi::O_PATH == 0 => Ok(Some(file)),
            _ => self.any_io_file(fd),
        }
    }

    #[inline(never)]
    fn any_io_file(&self, fd: i32) -> Result<Option<OpenFile<'_>>, VfsError> {
        match self.file(fd)? {
            Some(file) if file.flags() & crate::abi::O_PATH != 0 => Err(ErrorKind::BadFd.into()),
            other => Ok(other),
        }
    }

    #[inline]
    pub(crate) fn open_file(&self, id: FileId, counted: bool) -> Result<OpenFile<'_>, VfsError> {
        let mount = self.mount(id.pool);
        let Some(ofd) = mount.fs.description(id.ofd) else {
            if counted {
                self.release(id);
            }
            return Err(ErrorKind::BadFd.into());
        };
        Ok(OpenFile {
            vfs: self,
            mount,
            id,
            ofd,
            counted,
        })
    }

    /// Asks the kernel about an unknown fd that no other thread closes meanwhile, as none runs or
    /// the caller has just received it, and fills its entry. False: not ours, or not open.
    #[cold]
    pub(crate) fn classify(&self, fd: i32) -> Result<bool, VfsError> {
        let Some((pool, identity)) = self.ask(fd) else {
            return Ok(false);
        };
        let id = self.hold_identity(pool, identity)?;
        self.enter(fd, id);
        Ok(true)
    }

    /// Asks the kernel about a number that is not in the table, or unknown there. Its description
    /// is one that this process uses: to take hold of another one could cross its end.
    #[cold]
    pub(crate) fn unentered_file(&self, fd: i32) -> Result<Option<OpenFile<'_>>, VfsError> {
        let Some((pool, identity)) = self.ask(fd) else {
            return Ok(None);
        };
        let id = self.named(pool, identity)?;
        if self.uses.needs_chunk(id) || !self.uses.add_if_used(id) {
            return Err(ErrorKind::BadFd.into());
        }
        self.open_file(id, true).map(Some)
    }

    /// The placeholder that the kernel has there, its pool, and what it names. What is the host's
    /// is entered, unless a file of a pool has been meanwhile, and one that comes later takes its
    /// place.
    fn ask(&self, fd: i32) -> Option<(usize, u64)> {
        if !self.is_attached() && self.kernel().may_be_placeholder(fd) {
            self.attach_all();
        }
        let known = self.kernel().identity(fd).ok()?;
        if known.is_none() {
            let _gate = self.close_gate();
            self.table
                .exchange(fd, FdEntry::Unknown, FdEntry::Host, self.alone());
        }
        known
    }

    /// The description that a placeholder names.
    fn named(&self, pool: usize, identity: u64) -> Result<FileId, VfsError> {
        let ofd = OfdId::from_identity(identity).ok_or(ErrorKind::BadFd)?;
        let mount = self.mounts().get(pool);
        if mount.is_none_or(|mount| mount.fs.get().is_none()) {
            return Err(ErrorKind::BadFd.into());
        }
        Ok(FileId { pool, ofd })
    }

    /// Takes a use of the description that a placeholder names. A stale identity is a bad fd.
    pub(crate) fn hold_identity(&self, pool: usize, identity: u64) -> Result<FileId, VfsError> {
        let id = self.named(pool, identity)?;
        if !self.mount(pool).fs.hold(id.ofd, self.holder(pool)) {
            return Err(ErrorKind::BadFd.into());
        }
        self.note_use(id);
        Ok(id)
    }

    /// A new description with one use. On failure the caller undoes what it pinned.
    #[inline]
    pub(crate) fn describe(&self, mount: &Mount, init: &OfdInit<'_>) -> Result<FileId, VfsError> {
        let room = self.reserve_description(mount)?;
        Ok(self.describe_in(mount, room, init))
    }

    /// Room for a description of a file that is still to be made.
    #[inline]
    pub(crate) fn reserve_description(&self, mount: &Mount) -> Result<ReservedOfd, VfsError> {
        let room = mount.fs.reserve_description()?;
        room.ok_or_else(|| ErrorKind::TooManyFiles.into())
    }

    /// As [`Vfs::describe`], in room that was reserved.
    #[inline]
    pub(crate) fn describe_in(
        &self,
        mount: &Mount,
        room: ReservedOfd,
        init: &OfdInit<'_>,
    ) -> FileId {
        let id = FileId {
            pool: mount.index,
            ofd: mount.fs.describe_in(room, init),
        };
        self.note_use(id);
        id
    }

    /// Counts a use of a description that this process holds.
    #[inline]
    pub(crate) fn note_use(&self, id: FileId) {
        let _gate = self.uses.needs_chunk(id).then(|| self.close_gate());
        self.uses.add(id, self.alone());
    }

    /// Makes a call on a path again if an inode on its way was deleted and its number reused
    /// meanwhile.
    pub(crate) fn fresh<T>(&self, mut call: impl FnMut() -> Answer<T>) -> Answer<T> {
        for _ in 0..STALE_RETRIES {
            match call() {
                Err(VfsError::Fs(FsError::Stale)) => {}
                other => return other,
            }
        }
        Err(ErrorKind::NotFound.into())
    }

    /// Ends one use of a description; the last one of all processes closes it.
    #[inline]
    pub(crate) fn release(&self, id: FileId) {
        if self.uses.remove(id, self.alone()) {
            let fs = &self.mount(id.pool).fs;
            // Nobody is left who could be told; `check` finds what a failing device keeps pinned.
            let _ = fs.let_go(id.ofd, fs.slot());
        }
    }

    /// What closing any fd of a file does to the process's record locks on it.
    pub(crate) fn drop_record_locks(&self, file: &OpenFile<'_>) {
        if !self.has_record_locks.load(Ordering::Relaxed) {
            return;
        }
        file.mount.fs.record_lock_clear(file.ofd.ino());
    }

    /// Notes a change of the process's user, group or capabilities.
    pub fn credentials_changed(&self) {
        let _gate = self.close_gate();
        self.identities.change(self.kernel().credentials());
    }

    /// Notes a change of `RLIMIT_FSIZE` or `RLIMIT_NOFILE`.
    pub fn limits_changed(&self) {
        self.file_size_limit
            .store(self.kernel().file_size_limit(), Ordering::Relaxed);
        self.unpark_all();
    }

    /// To be called before the process's first further thread starts.
    pub fn now_threaded(&self) {
        self.threaded.store(true, Ordering::SeqCst);
    }

    /// The mode of something new, with the creation mask.
    #[inline]
    pub(crate) fn masked(&self, mode: u32) -> NewMode {
        NewMode::masked(mode, self.umask.load(Ordering::Relaxed))
    }
}

/// A socket bound by this process: the kernel's name and the program's.
pub(crate) struct Bound {
    pub(crate) shadow: Vec<u8>,
    pub(crate) path: Vec<u8>,
}

/// What [`Vfs::snapshot`] saw.
pub(crate) struct FdSnapshot<'v> {
    pub(crate) fs: &'v Fs,
    pub(crate) ofd: &'v Ofd,
    pub(crate) node: InodeRef,
    pub(crate) flags: u32,
}

/// An open file description in use by a call.
pub(crate) struct OpenFile<'v> {
    pub(crate) vfs: &'v Vfs,
    pub(crate) mount: &'v Mount,
    pub(crate) id: FileId,
    pub(crate) ofd: &'v Ofd,
    counted: bool,
}

impl<'v> OpenFile<'v> {
    /// With a use of its own, so that it stays when its fd is closed.
    pub(crate) fn counted(mut self) -> Self {
        if !self.counted {
            self.vfs.note_use(self.id);
            self.counted = true;
        }
        self
    }

    #[inline]
    pub(crate) fn node(&self) -> InodeRef {
        InodeRef {
            ino: self.ofd.ino(),
            generation: self.ofd.ino_generation(),
        }
    }

    #[inline]
    pub(crate) fn flags(&self) -> u32 {
        self.ofd.flags.load(Ordering::Relaxed)
    }

    /// What calls that only look at contents need of it.
    #[inline]
    pub(crate) fn snapshot(&self) -> FdSnapshot<'v> {
        FdSnapshot {
            fs: &self.mount.fs,
            ofd: self.ofd,
            node: self.node(),
            flags: self.flags(),
        }
    }

    /// The type part of the mode.
    #[inline]
    pub(crate) fn format(&self) -> u32 {
        self.ofd.mode() & crate::abi::S_IFMT
    }

    #[inline]
    pub(crate) fn is_directory(&self) -> bool {
        self.format() == crate::abi::S_IFDIR
    }

    /// Locks the file position, unless nobody else can reach it during the call: no other process
    /// holds the description, and no other thread runs. Only this thread could change that.
    #[inline]
    pub(crate) fn lock_position(&self) -> Result<Option<OwnedGuard<'v>>, VfsError> {
        if self.vfs.alone() && self.ofd.is_private() {
            return Ok(None);
        }
        Ok(Some(self.mount.fs.lock_position(self.ofd)?))
    }

    #[inline]
    pub(crate) fn position(&self) -> u64 {
        self.ofd.pos.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set_position(&self, position: u64) {
        self.ofd.pos.store(position, Ordering::Relaxed);
    }
}

impl Drop for OpenFile<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.counted {
            self.vfs.release(self.id);
        }
    }
}
