//! What the vfs asks of the kernel, answered by raw system calls.

use core::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::error::Error;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use nacre_fs::Fs;
use nacre_media::lifted;
use nacre_runtime::{Folder, RuntimeError, Trust, one_user};
use nacre_session::{NODES, Session, SessionPlace};
use nacre_vfs::{Credentials, Kernel, KernelError, KernelNode, Protection};
use rustix::fs::{self, MemfdFlags, Mode, OFlags, SealFlags, Stat, Timespec, Timestamps};

use crate::entry::call::terminated;
use crate::entry::table;
use crate::program::attach::{self, AttachFailure};
use crate::program::descriptors;
use crate::program::identity;
use crate::program::instances;
use crate::program::mounts::Mount;
use crate::program::protection;
use crate::program::stock::Stock;
use crate::runtime::kernel::{self, call, checked};
use crate::runtime::tls::{SIGNAL, thread};

/// A pool as the kernel sees it.
#[derive(Debug)]
pub struct Pool {
    /// Where its session is.
    place: SessionPlace,
    /// The folder of fifos, sockets and device nodes, once one is used.
    nodes: OnceLock<Folder>,
    /// By it the session reaches the folder of nodes.
    reach: Arc<AtomicI32>,
    /// What all placeholder fds of this process are opened from.
    placeholder: OwnedFd,
    /// Those that are open already, once the process confines itself.
    stock: OnceLock<Stock>,
    /// What the placeholders of all processes of the session have.
    mark: Mark,
}

/// By what placeholders of a session are known: a time that nobody else knows, seconds and
/// nanoseconds. They have it as their times, which are quickly looked at but follow what a program
/// without Nacre tries, and in their name, which nothing changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark(i64, u64);

impl Mark {
    fn of(session: &Session) -> Mark {
        const SECONDS: u64 = 1 << 33;
        const NANOSECONDS: u64 = 1_000_000_000;
        let [seconds, nanoseconds] = session.mark();
        Mark((seconds % SECONDS) as i64, nanoseconds % NANOSECONDS)
    }

    fn name(self) -> String {
        format!("nacre-{:x}-{:x}", self.0, self.1)
    }

    fn is_of(self, fd: i32, stat: &Stat) -> bool {
        let times = [
            Mark(stat.st_atime, stat.st_atime_nsec),
            Mark(stat.st_mtime, stat.st_mtime_nsec),
        ];
        times.contains(&self) || link_of(fd) == format!("/memfd:{} (deleted)", self.name())
    }
}

/// What the kernel calls the file of an fd.
fn link_of(fd: i32) -> String {
    let link = fs::readlink(format!("/proc/self/fd/{fd}"), Vec::new());
    link.ok()
        .and_then(|link| link.into_string().ok())
        .unwrap_or_default()
}

/// What `stat` shows of a placeholder.
const PLACEHOLDER: u32 = libc::S_IFREG | 0o222;

impl Pool {
    /// The pool whose session this is.
    pub fn new(session: &Session) -> Result<Pool, Box<dyn Error>> {
        let place = session.place().ok_or("the pool has no session file")?;
        let mark = Mark::of(session);
        Ok(Pool {
            place: place.clone(),
            nodes: OnceLock::new(),
            reach: session.way_to_nodes(),
            placeholder: lifted(make_placeholder(mark, OFlags::CLOEXEC)?),
            stock: OnceLock::new(),
            mark,
        })
    }

    /// Opens a placeholder at the lowest number that is free.
    fn open_placeholder(&self, cloexec: bool) -> Outcome<i32> {
        let cloexec = if cloexec { libc::O_CLOEXEC } else { 0 };
        let name = path(format!("/proc/self/fd/{}", self.placeholder.as_raw_fd()).as_bytes());
        let at = libc::AT_FDCWD as usize;
        // Neither reading nor mapping is possible: what is not served is to fail, not to end.
        let flags = (libc::O_WRONLY | cloexec) as usize;
        match ask(libc::SYS_openat, &[at, name.as_ptr() as usize, flags, 0]) {
            // In another root directory there may be no /proc.
            Err(KernelError(libc::ENOENT)) => fresh_placeholder(self.mark, cloexec),
            opened => Ok(opened? as i32),
        }
    }

    /// Opens some ahead, for when the process may open no more.
    fn stock_up(&self) {
        let stock = self.stock.get_or_init(|| Stock::new(&self.placeholder));
        stock.fill(|| {
            let fd = self.open_placeholder(true).ok()?;
            // SAFETY: it was just opened, and nobody else knows it.
            Some(unsafe { OwnedFd::from_raw_fd(fd) })
        });
    }

    /// The folder of nodes, which is opened when it is first needed.
    fn nodes(&self) -> Outcome<&Folder> {
        if let Some(nodes) = self.nodes.get() {
            return Ok(nodes);
        }
        // A child in its parent's memory has descriptors of its own: this one would be neither's.
        // Its parent has tried before.
        if thread().origin.view().is_some() {
            return Err(KernelError(libc::EIO));
        }
        let opened = open_nodes(&self.place).map_err(|_| KernelError(libc::EIO))?;
        // Another thread's is as good.
        let first = self.nodes.set(opened.moved(lifted)).is_ok();
        let nodes = self.nodes.get().ok_or(KernelError(libc::EIO))?;
        if first {
            table::mark_nothing();
            let fd = nodes.fd().as_raw_fd();
            descriptors::keep_internal(fd);
            self.reach.store(fd, Relaxed);
        }
        Ok(nodes)
    }

    /// The number of the folder of nodes, for a call.
    fn nodes_fd(&self) -> Outcome<usize> {
        Ok(self.nodes()?.fd().as_raw_fd() as usize)
    }
}

/// Gives a node of that folder the owner and mode of one in the pool. A process that may not give
/// it to the owner lets all do what any may: the pool is asked before. What is no such node, or has
/// further names, is left alone, as others may have put it there.
fn dress(folder: usize, name: &[u8], like: &nacre_fs::Stat) {
    let (name, flags) = (
        path(name),
        libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC,
    );
    let opened = checked(
        libc::SYS_openat,
        &[folder, name.as_ptr() as usize, flags as usize],
    );
    let Ok(fd) = opened else {
        return;
    };
    let same =
        |found: &Stat| (found.st_mode ^ like.mode) & libc::S_IFMT == 0 && found.st_nlink == 1;
    if let Some(found) = stat_of(fd as i32).ok().filter(same) {
        let (empty, here) = (c"".as_ptr() as usize, libc::AT_EMPTY_PATH as usize);
        let (uid, gid) = (like.uid as usize, like.gid as usize);
        let is_like = (found.st_uid, found.st_gid) == (like.uid, like.gid);
        let given = is_like || call(libc::SYS_fchownat, &[fd, empty, uid, gid, here]) == 0;
        let mode = match given || found.st_uid == like.uid {
            true => like.mode & 0o777,
            false => 0o111 * ((like.mode | like.mode >> 3 | like.mode >> 6) & 0o7),
        };
        let shown = path(format!("/proc/self/fd/{fd}").as_bytes());
        call(libc::SYS_chmod, &[shown.as_ptr() as usize, mode as usize]);
    }
    call(libc::SYS_close, &[fd]);
}

fn open_nodes(place: &SessionPlace) -> Result<Folder, RuntimeError> {
    let name = place.beside(NODES);
    match place.folder().shared_folder(&name) {
        Ok(nodes) => Ok(nodes),
        // Of a damaged pool, whose session is nobody else's: its folder is gone already.
        Err(_) => Folder::make_of_user()?.shared_folder(&name),
    }
}

/// Makes what is behind placeholder fds: memory without a name or a folder above it, empty, and
/// sealed so that nobody can write or lengthen it, not even root. Open to a program that has given
/// up its rights. Each process has one of its own.
fn make_placeholder(mark: Mark, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let mut how = MemfdFlags::NOEXEC_SEAL | MemfdFlags::ALLOW_SEALING;
    how.set(MemfdFlags::CLOEXEC, flags.contains(OFlags::CLOEXEC));
    let made = fs::memfd_create(mark.name(), how);
    // Before Linux 6.3.
    let fd = made.or_else(|_| fs::memfd_create(mark.name(), how - MemfdFlags::NOEXEC_SEAL))?;
    let time = Timespec {
        tv_sec: mark.0,
        tv_nsec: mark.1 as i64,
    };
    fs::fchmod(&fd, Mode::from_raw_mode(PLACEHOLDER & !libc::S_IFMT))?;
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    fs::futimens(&fd, &times)?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    fs::fcntl_add_seals(&fd, seals)?;
    Ok(fd)
}

fn fresh_placeholder(mark: Mark, cloexec: i32) -> Outcome<i32> {
    let flags = OFlags::from_bits_retain(cloexec as u32);
    let fd = make_placeholder(mark, flags).map_err(|errno| KernelError(errno.raw_os_error()))?;
    Ok(fd.into_raw_fd())
}

/// A mount, and its pool once that is attached.
#[derive(Debug)]
struct MountedPool {
    mount: Mount,
    pool: OnceLock<Pool>,
}

/// The kernel under this process.
#[derive(Debug)]
pub struct Host {
    /// By index of the mount.
    pools: Vec<MountedPool>,
}

static HERE: OnceLock<Arc<Host>> = OnceLock::new();

/// From now on this is the kernel under this process.
pub fn start(mounts: Vec<Mount>) -> Arc<Host> {
    let none = |mount| MountedPool {
        mount,
        pool: OnceLock::new(),
    };
    let pools = mounts.into_iter().map(none).collect();
    Arc::clone(HERE.get_or_init(|| Arc::new(Host { pools })))
}

/// The kernel under this process. Only what came from a pool asks.
pub fn here() -> &'static Host {
    static NONE: Host = Host { pools: Vec::new() };
    HERE.get().map_or(&NONE, |host| host)
}

/// The kernel under a process that has no pools.
pub fn without_pools() -> Arc<Host> {
    Arc::new(Host { pools: Vec::new() })
}

/// Paths below this length are passed on without an allocation.
const SHORT_PATH: usize = 256;
/// No name of a socket is longer.
const NOTED_MOST: usize = 108;

type Outcome<T> = Result<T, KernelError>;

fn ask(number: libc::c_long, args: &[usize]) -> Outcome<usize> {
    checked(number, args).map_err(KernelError)
}

fn path(bytes: &[u8]) -> Vec<u8> {
    terminated(bytes.to_vec())
}

/// The name of the link beside a shadow by which its program calls it.
fn noted(shadow: &[u8]) -> Vec<u8> {
    [shadow, b"~"].concat()
}

impl Host {
    /// Attaches the pool of a mount. Its descriptors are kept from the program from then on.
    pub fn attach_pool(&self, index: usize) -> Result<Fs, AttachFailure> {
        let mounted = &self.pools[index];
        let (fs, own) = attach::attach(&mounted.mount)?;
        for fd in own {
            descriptors::keep_internal(fd);
        }
        if mounted.pool.get().is_none() {
            let pool = Pool::new(fs.store().session());
            let pool = pool.map_err(|error| attach::failure(&mounted.mount, &*error))?;
            descriptors::keep_internal(pool.placeholder.as_raw_fd());
            // Whoever attaches is alone.
            let _ = mounted.pool.set(pool);
        }
        Ok(fs)
    }

    /// Before the process confines itself.
    pub fn stock_up(&self) {
        self.attached().for_each(Pool::stock_up);
    }

    /// In a forked child.
    pub fn forget_stock(&self) {
        for pool in self.attached() {
            if let Some(stock) = pool.stock.get() {
                stock.forget();
            }
        }
    }

    fn attached(&self) -> impl Iterator<Item = &Pool> {
        self.pools.iter().filter_map(|one| one.pool.get())
    }

    /// A pool that something came from, which is attached therefore.
    fn pool(&self, index: usize) -> Outcome<&Pool> {
        let mounted = self.pools.get(index);
        let pool = mounted.and_then(|mounted| mounted.pool.get());
        pool.ok_or(KernelError(libc::EBADF))
    }

    /// Opens a node of a pool: no link is followed, nothing is made or cut, and what was opened is
    /// what the pool's record says. `open` makes the call, which may wait.
    pub fn open_node(
        &self,
        node: &KernelNode,
        flags: u32,
        open: impl FnOnce(usize, usize, usize) -> isize,
    ) -> isize {
        const ALTERING: i32 = libc::O_CREAT | libc::O_TRUNC | libc::O_EXCL;
        let Ok(pool) = self.pool(node.pool) else {
            return -libc::EBADF as isize;
        };
        let folder = match pool.nodes_fd() {
            Ok(folder) => folder,
            Err(KernelError(errno)) => return -errno as isize,
        };
        let name = path(&node.name);
        let flags = flags as i32 & !ALTERING | libc::O_NOFOLLOW;
        let fd = open(folder, name.as_ptr() as usize, flags as usize);
        if fd >= 0 && !is_node(fd as i32, node, pool) {
            call(libc::SYS_close, &[fd as usize]);
            return -libc::EACCES as isize;
        }
        fd
    }
}

/// Whether an fd is that of a node: its type and device, made by its owner or by somebody who may
/// write the pool.
fn is_node(fd: i32, node: &KernelNode, pool: &Pool) -> bool {
    let Ok(found) = stat_of(fd) else {
        return false;
    };
    let device = [libc::S_IFCHR, libc::S_IFBLK].contains(&(node.mode & libc::S_IFMT));
    found.st_mode & libc::S_IFMT == node.mode & libc::S_IFMT
        && (!device || found.st_rdev == node.rdev)
        && (node.uid == found.st_uid
            || makers(node, pool).made(&found)
            || one_user() == Some(found.st_uid))
}

/// The users who may have made a node for the kernel. A fifo or device is made by whoever opens it
/// first, a socket only by the user who bound it and owned it then.
fn makers(node: &KernelNode, pool: &Pool) -> Trust {
    const OTHERS_WRITE: u32 = 0o022;
    let trust = pool.place.folder().trust();
    match node.mode & libc::S_IFMT {
        libc::S_IFSOCK => Trust {
            mode: trust.mode & !OTHERS_WRITE,
            ..trust
        },
        _ => trust,
    }
}

/// Whether a descriptor looks like one that stands behind a pool's file.
pub fn may_be_placeholder(fd: i32) -> bool {
    stat_of(fd).is_ok_and(|stat| stat.st_mode == PLACEHOLDER && stat.st_nlink == 0)
}

fn stat_of(fd: i32) -> Outcome<Stat> {
    let mut stat = core::mem::MaybeUninit::<Stat>::zeroed();
    ask(libc::SYS_fstat, &[fd as usize, stat.as_mut_ptr() as usize])?;
    // SAFETY: any bytes are a valid Stat, and the kernel has filled it.
    Ok(unsafe { stat.assume_init() })
}

impl Kernel for Host {
    fn attach(&self, pool: usize) -> Outcome<Fs> {
        attach::on_first_use(|| self.attach_pool(pool)).map_err(KernelError)
    }

    fn open_nodes(&self) {
        for pool in self.attached() {
            // Its user is told.
            let _ = pool.nodes();
        }
    }

    fn may_be_placeholder(&self, fd: i32) -> bool {
        may_be_placeholder(fd)
    }

    fn open_placeholder(&self, pool: usize, cloexec: bool) -> Outcome<i32> {
        table::watch_numbers();
        let pool = self.pool(pool)?;
        pool.open_placeholder(cloexec).or_else(|refused| {
            let stock = pool.stock.get();
            let taken = stock.and_then(|stock| stock.take(cloexec, &pool.placeholder));
            taken.ok_or(refused)
        })
    }

    fn close_placeholder(&self, pool: usize, fd: i32, is_alone: &dyn Fn() -> bool) -> Outcome<()> {
        let pool = self.pool(pool)?;
        let Some(stock) = pool.stock.get() else {
            return self.close(fd);
        };
        let closed = stock.close(fd, &pool.placeholder, is_alone);
        closed.map_err(KernelError)
    }

    fn set_identity(&self, fd: i32, identity: u64) -> Outcome<()> {
        let args = [fd as usize, identity as usize, libc::SEEK_SET as usize];
        ask(libc::SYS_lseek, &args).map(drop)
    }

    fn identity(&self, fd: i32) -> Outcome<Option<(usize, u64)>> {
        let stat = stat_of(fd)?;
        if stat.st_mode & libc::S_IFMT == 0 {
            instances::meet(fd);
        }
        if stat.st_mode != PLACEHOLDER {
            return Ok(None);
        }
        let has_mark = |one: &MountedPool| {
            let pool = one.pool.get();
            pool.is_some_and(|pool| pool.mark.is_of(fd, &stat))
        };
        let Some(pool) = self.pools.iter().position(has_mark) else {
            return Ok(None);
        };
        if descriptors::is_internal(fd) {
            return Ok(None);
        }
        let identity = ask(libc::SYS_lseek, &[fd as usize, 0, libc::SEEK_CUR as usize])?;
        Ok(Some((pool, identity as u64)))
    }

    fn open_fds(&self) -> Vec<i32> {
        let found = descriptors::open();
        if !found.is_empty() {
            return found;
        }
        // None is free to list them with, or there are none.
        let limit = i32::try_from(self.open_file_limit()).unwrap_or(i32::MAX);
        (0..limit.min(nacre_vfs::TABLE_LEN)).collect()
    }

    fn close(&self, fd: i32) -> Outcome<()> {
        ask(libc::SYS_close, &[fd as usize]).map(drop)
    }

    fn dup(&self, fd: i32, at_least: i32, cloexec: bool) -> Outcome<i32> {
        let command = if cloexec {
            libc::F_DUPFD_CLOEXEC
        } else {
            libc::F_DUPFD
        };
        let args = [fd as usize, command as usize, at_least as usize];
        Ok(ask(libc::SYS_fcntl, &args)? as i32)
    }

    fn dup_onto(&self, fd: i32, new: i32, flags: i32) -> Outcome<i32> {
        if descriptors::is_internal(new) {
            return Err(KernelError(libc::EBADF));
        }
        let args = [fd as usize, new as usize, flags as usize];
        Ok(ask(libc::SYS_dup3, &args)? as i32)
    }

    fn is_cloexec(&self, fd: i32) -> Outcome<bool> {
        let flags = ask(libc::SYS_fcntl, &[fd as usize, libc::F_GETFD as usize, 0])?;
        Ok(flags & libc::FD_CLOEXEC as usize != 0)
    }

    fn set_cloexec(&self, fd: i32, cloexec: bool) -> Outcome<()> {
        let flags = if cloexec { libc::FD_CLOEXEC } else { 0 };
        let args = [fd as usize, libc::F_SETFD as usize, flags as usize];
        ask(libc::SYS_fcntl, &args).map(drop)
    }

    fn readlink(&self, dirfd: i32, name: &[u8], out: &mut [u8]) -> Outcome<usize> {
        let (mut short, long);
        let name = if name.len() < SHORT_PATH {
            short = [0; SHORT_PATH];
            short[..name.len()].copy_from_slice(name);
            short.as_ptr() as usize
        } else {
            long = path(name);
            long.as_ptr() as usize
        };
        let room = out.as_mut_ptr() as usize;
        ask(
            libc::SYS_readlinkat,
            &[dirfd as usize, name, room, out.len()],
        )
    }

    fn getcwd(&self, out: &mut [u8]) -> Outcome<usize> {
        Ok(ask(libc::SYS_getcwd, &[out.as_mut_ptr() as usize, out.len()])?.saturating_sub(1))
    }

    fn chdir(&self, name: &[u8]) -> Outcome<()> {
        ask(libc::SYS_chdir, &[path(name).as_ptr() as usize]).map(drop)
    }

    fn make_shadow(&self, pool: usize, name: &[u8], mode: u32, rdev: u64) -> Outcome<bool> {
        let pool = self.pool(pool)?;
        let device = [libc::S_IFCHR, libc::S_IFBLK].contains(&(mode & libc::S_IFMT));
        if device && !pool.place.folder().trust().is_root_alone() {
            // As on a file system that a user mounted: who writes the pool would choose the device.
            return Err(KernelError(libc::EACCES));
        }
        let (folder, name) = (pool.nodes_fd()?, path(name));
        let args = [folder, name.as_ptr() as usize, mode as usize, rdev as usize];
        match ask(libc::SYS_mknodat, &args) {
            Err(KernelError(libc::EEXIST)) => Ok(false),
            other => other.map(|_| true),
        }
    }

    fn dress_shadow(&self, pool: usize, name: &[u8], like: &nacre_fs::Stat) {
        if let Ok(folder) = self.pool(pool).and_then(Pool::nodes_fd) {
            dress(folder, name, like);
        }
    }

    fn watch_shadow(&self, fd: i32, pool: usize, name: &[u8], mask: u32) -> Outcome<(i32, u64)> {
        let shadow = path(&self.shadow_path(pool, name));
        let at = shadow.as_ptr() as usize;
        let wd = ask(
            libc::SYS_inotify_add_watch,
            &[fd as usize, at, (mask | libc::IN_DONT_FOLLOW) as usize],
        )?;
        let mut stat = core::mem::MaybeUninit::<Stat>::zeroed();
        ask(libc::SYS_lstat, &[at, stat.as_mut_ptr() as usize])?;
        // SAFETY: any bytes are a valid Stat, and the kernel has filled it.
        let inode = unsafe { stat.assume_init() }.st_ino;
        Ok((wd as i32, inode))
    }

    fn remove_shadow(&self, pool: usize, name: &[u8]) {
        let Ok(pool) = self.pool(pool) else {
            return;
        };
        let Ok(folder) = pool.nodes_fd() else {
            return;
        };
        for name in [path(name), path(&noted(name))] {
            call(libc::SYS_unlinkat, &[folder, name.as_ptr() as usize, 0]);
        }
    }

    fn note_shadow(&self, pool: usize, name: &[u8], called: &[u8]) {
        let Ok(folder) = self.pool(pool).and_then(Pool::nodes_fd) else {
            return;
        };
        let (name, called) = (path(&noted(name)), path(called));
        let args = [called.as_ptr() as usize, folder, name.as_ptr() as usize];
        call(libc::SYS_symlinkat, &args);
    }

    fn noted_path(&self, pool: usize, name: &[u8]) -> Option<Vec<u8>> {
        let folder = self.pool(pool).and_then(Pool::nodes_fd).ok()?;
        let mut room = [0; NOTED_MOST];
        let len = self.readlink(folder as i32, &noted(name), &mut room).ok()?;
        Some(room[..len].to_vec())
    }

    fn shadow_behind(&self, fd: i32) -> Option<(usize, Vec<u8>)> {
        let folders = || {
            let pools = self.pools.iter().enumerate();
            pools.filter_map(|(index, one)| Some((index, one.pool.get()?.nodes.get()?.fd())))
        };
        folders().next()?;
        let found = stat_of(fd).ok()?;
        let opened = [libc::S_IFIFO, libc::S_IFCHR, libc::S_IFBLK];
        if !opened.contains(&(found.st_mode & libc::S_IFMT)) {
            return None;
        }
        let link = link_of(fd);
        let (place, name) = link.rsplit_once('/')?;
        let same = |folder: i32| {
            stat_of(folder).is_ok_and(|stat| stat.st_dev == found.st_dev)
                && link_of(folder) == place
        };
        let (pool, _) = folders().find(|(_, folder)| same(folder.as_raw_fd()))?;
        Some((pool, name.as_bytes().to_vec()))
    }

    fn shadow_path(&self, pool: usize, name: &[u8]) -> Vec<u8> {
        let folder = self.pool(pool).and_then(Pool::nodes_fd);
        let folder = folder.map_or(-1, |fd| fd as i32);
        [format!("/proc/self/fd/{folder}/").as_bytes(), name].concat()
    }

    fn shadow_in<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        let mut below = path.strip_prefix(b"/proc/self/fd/")?.split(|&b| b == b'/');
        let (_folder, name) = (below.next()?, below.next()?);
        below.next().is_none().then_some(name)
    }

    fn credentials(&self) -> Credentials {
        identity::read()
    }

    fn protection(&self, which: Protection) -> u32 {
        protection::setting(which)
    }

    fn umask(&self) -> u32 {
        // Nothing reads the mask without setting it, but /proc, which is slow; this runs at start
        // only, before the program has threads.
        let mask = call(libc::SYS_umask, &[0o777]) as u32;
        call(libc::SYS_umask, &[mask as usize]);
        mask
    }

    fn file_size_limit(&self) -> u64 {
        kernel::limit(libc::RLIMIT_FSIZE as usize)
    }

    fn open_file_limit(&self) -> u64 {
        kernel::limit(libc::RLIMIT_NOFILE as usize)
    }

    fn raise_file_size_signal(&self) {
        let (pid, tid) = (kernel::getpid() as usize, kernel::gettid() as usize);
        call(libc::SYS_tgkill, &[pid, tid, libc::SIGXFSZ as usize]);
    }

    fn interrupted(&self) -> bool {
        thread().deferred.load(Relaxed) & SIGNAL != 0
    }

    fn pid(&self) -> i32 {
        kernel::getpid()
    }
}
