//! A process over pools in memory and a simulated kernel.

use nacre_fs::{Fs, Stat};
use nacre_store::{AttachOptions, Store};
use nacre_testkit::pool::{PoolChoice, PoolFiles, memory_pool};
use nacre_vfs::{
    Answer, Credentials, ErrorKind, FileStat, Kernel, KernelError, MountSpec, Protection, Reply,
    Vfs,
};
use nacre_volume::{Access, Caching, Observer, Volume};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

pub const AT_FDCWD: i32 = -100;
pub const AT_SYMLINK_NOFOLLOW: i32 = 0x100;
pub const AT_REMOVEDIR: i32 = 0x200;
pub const AT_SYMLINK_FOLLOW: i32 = 0x400;
pub const AT_EMPTY_PATH: i32 = 0x1000;
pub const O_RDONLY: i32 = 0;
pub const O_WRONLY: i32 = 1;
pub const O_RDWR: i32 = 2;
pub const O_CREAT: i32 = 0o100;
pub const O_EXCL: i32 = 0o200;
pub const O_TRUNC: i32 = 0o1000;
pub const O_APPEND: i32 = 0o2000;
pub const O_DIRECTORY: i32 = 0o200000;
pub const O_NOFOLLOW: i32 = 0o400000;
pub const O_CLOEXEC: i32 = 0o2000000;
pub const O_PATH: i32 = 0o10000000;
pub const O_TMPFILE: i32 = 0o20000000 | O_DIRECTORY;
pub const SEEK_SET: i32 = 0;
pub const SEEK_CUR: i32 = 1;
pub const SEEK_END: i32 = 2;

const ENOENT: KernelError = KernelError(2);
const EBADF: KernelError = KernelError(9);
const EINVAL: KernelError = KernelError(22);
const POOL_BYTES: u64 = 64 << 20;

/// What an fd of the simulated kernel refers to.
pub enum File {
    Host(String),
    Placeholder { pool: usize, identity: AtomicU64 },
}

#[derive(Clone)]
struct Process {
    fds: BTreeMap<i32, (Arc<File>, bool)>,
    cwd: String,
}

pub struct World {
    processes: BTreeMap<i32, Process>,
    current: i32,
    directories: BTreeSet<String>,
    links: BTreeMap<String, String>,
    shadows: BTreeSet<String>,
    /// What is noted beside shadows.
    notes: BTreeMap<String, Vec<u8>>,
    user: Credentials,
    /// The pool that is attached next.
    unattached: Option<Fs>,
}

/// The simulated kernel: processes with fds, and a host with directories and symbolic links.
pub struct MockKernel {
    world: Mutex<World>,
    pub signalled: AtomicBool,
    pub interrupt: AtomicBool,
    pub size_limit: AtomicU64,
    /// Of each kind.
    pub protection: AtomicU32,
}

impl MockKernel {
    pub fn new() -> Arc<MockKernel> {
        let standard = [
            "/",
            "/tmp",
            "/home",
            "/home/me",
            "/proc",
            "/proc/tty",
            "/proc/tty/ldisc",
            "/dev",
        ];
        let process = Process {
            fds: BTreeMap::new(),
            cwd: "/tmp".into(),
        };
        let world = World {
            processes: BTreeMap::from([(1, process)]),
            current: 1,
            directories: standard.iter().map(|name| name.to_string()).collect(),
            links: BTreeMap::new(),
            shadows: BTreeSet::new(),
            notes: BTreeMap::new(),
            user: credentials(0),
            unattached: None,
        };
        Arc::new(MockKernel {
            world: Mutex::new(world),
            signalled: AtomicBool::new(false),
            interrupt: AtomicBool::new(false),
            size_limit: AtomicU64::new(u64::MAX),
            protection: AtomicU32::new(0),
        })
    }

    fn with<T>(&self, f: impl FnOnce(&mut World) -> T) -> T {
        f(&mut self.world.lock().unwrap())
    }

    pub fn host_link(&self, path: &str, target: &str) {
        self.with(|world| world.links.insert(path.into(), target.into()));
    }

    /// Opens a file of the host.
    pub fn host_open(&self, path: &str) -> i32 {
        self.with(|world| world.add(Arc::new(File::Host(path.into())), 0, false))
    }

    pub fn set_user(&self, uid: u32) {
        self.with(|world| world.user = credentials(uid));
    }

    /// A new process with the same fds and directory.
    pub fn fork(&self, child: i32) {
        self.with(|world| {
            let copy = world.here().clone();
            world.processes.insert(child, copy);
        });
    }

    /// The pool that is attached next.
    pub fn offer(&self, fs: Fs) {
        self.with(|world| world.unattached = Some(fs));
    }

    /// Whether nobody has attached it yet.
    pub fn is_unattached(&self) -> bool {
        self.with(|world| world.unattached.is_some())
    }

    pub fn switch(&self, pid: i32) {
        self.with(|world| world.current = pid);
    }

    /// Closes what is marked close-on-exec; the fds that are left.
    pub fn exec(&self) -> Vec<i32> {
        self.with(|world| {
            world.here().fds.retain(|_, (_, cloexec)| !*cloexec);
            world.here().fds.keys().copied().collect()
        })
    }

    pub fn cwd(&self) -> String {
        self.with(|world| world.here().cwd.clone())
    }

    pub fn is_open(&self, fd: i32) -> bool {
        self.with(|world| world.here().fds.contains_key(&fd))
    }

    pub fn shadows(&self) -> Vec<String> {
        self.with(|world| world.shadows.iter().cloned().collect())
    }
}

fn credentials(uid: u32) -> Credentials {
    let cap_effective = if uid == 0 { u64::MAX } else { 0 };
    Credentials {
        ruid: uid,
        rgid: uid,
        euid: uid,
        egid: uid,
        groups: vec![uid],
        cap_effective,
    }
}

impl World {
    fn here(&mut self) -> &mut Process {
        let current = self.current;
        self.processes.get_mut(&current).unwrap()
    }

    fn add(&mut self, file: Arc<File>, at_least: i32, cloexec: bool) -> i32 {
        let fds = &mut self.here().fds;
        let fd = (at_least.max(3)..)
            .find(|fd| !fds.contains_key(fd))
            .unwrap();
        fds.insert(fd, (file, cloexec));
        fd
    }

    fn file(&mut self, fd: i32) -> Result<Arc<File>, KernelError> {
        self.here()
            .fds
            .get(&fd)
            .map(|(file, _)| file.clone())
            .ok_or(EBADF)
    }

    /// Follows links in all components but the last.
    fn parent_resolved(&self, path: &str, depth: u32) -> Result<String, KernelError> {
        let Some((parent, name)) = path.rsplit_once('/') else {
            return Err(ENOENT);
        };
        if parent.is_empty() {
            return Ok(format!("/{name}"));
        }
        let parent = self.resolved(parent, depth)?;
        Ok(format!("{}/{name}", parent.trim_end_matches('/')))
    }

    fn resolved(&self, path: &str, depth: u32) -> Result<String, KernelError> {
        if depth > 40 {
            return Err(KernelError(40));
        }
        let path = self.parent_resolved(path, depth)?;
        match self.links.get(&path) {
            Some(target) if target.starts_with('/') => self.resolved(target, depth + 1),
            Some(target) => {
                let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
                self.resolved(&format!("{parent}/{target}"), depth + 1)
            }
            None if self.directories.contains(&path) => Ok(path),
            None => Err(ENOENT),
        }
    }
}

fn text(path: &[u8]) -> String {
    String::from_utf8(path.to_vec()).unwrap()
}

fn give(out: &mut [u8], text: &str) -> Result<usize, KernelError> {
    let len = text.len().min(out.len());
    out[..len].copy_from_slice(&text.as_bytes()[..len]);
    Ok(len)
}

impl Kernel for MockKernel {
    fn attach(&self, _: usize) -> Result<Fs, KernelError> {
        match self.with(|world| world.unattached.take()) {
            Some(fs) => Ok(fs),
            None => Err(KernelError(5)),
        }
    }

    fn open_nodes(&self) {}

    fn may_be_placeholder(&self, fd: i32) -> bool {
        let file = self.with(|world| world.file(fd));
        file.is_ok_and(|file| matches!(*file, File::Placeholder { .. }))
    }

    fn open_placeholder(&self, pool: usize, cloexec: bool) -> Result<i32, KernelError> {
        let file = Arc::new(File::Placeholder {
            pool,
            identity: AtomicU64::new(0),
        });
        Ok(self.with(|world| world.add(file, 0, cloexec)))
    }

    fn set_identity(&self, fd: i32, identity: u64) -> Result<(), KernelError> {
        match &*self.with(|world| world.file(fd))? {
            File::Placeholder {
                identity: place, ..
            } => {
                place.store(identity, Ordering::Relaxed);
                Ok(())
            }
            File::Host(_) => Err(EINVAL),
        }
    }

    fn identity(&self, fd: i32) -> Result<Option<(usize, u64)>, KernelError> {
        Ok(match &*self.with(|world| world.file(fd))? {
            File::Placeholder { pool, identity } => Some((*pool, identity.load(Ordering::Relaxed))),
            File::Host(_) => None,
        })
    }

    fn watch_shadow(&self, _: i32, _: usize, _: &[u8], _: u32) -> Result<(i32, u64), KernelError> {
        Err(EINVAL)
    }

    fn open_fds(&self) -> Vec<i32> {
        self.with(|world| world.here().fds.keys().copied().collect())
    }

    fn close(&self, fd: i32) -> Result<(), KernelError> {
        self.with(|world| world.here().fds.remove(&fd).map(|_| ()).ok_or(EBADF))
    }

    fn close_placeholder(
        &self,
        _: usize,
        fd: i32,
        _: &dyn Fn() -> bool,
    ) -> Result<(), KernelError> {
        self.close(fd)
    }

    fn dup(&self, fd: i32, at_least: i32, cloexec: bool) -> Result<i32, KernelError> {
        self.with(|world| {
            let file = world.file(fd)?;
            Ok(world.add(file, at_least, cloexec))
        })
    }

    fn dup_onto(&self, fd: i32, new: i32, flags: i32) -> Result<i32, KernelError> {
        self.with(|world| {
            let file = world.file(fd)?;
            world.here().fds.insert(new, (file, flags & O_CLOEXEC != 0));
            Ok(new)
        })
    }

    fn is_cloexec(&self, fd: i32) -> Result<bool, KernelError> {
        self.with(|world| {
            world
                .here()
                .fds
                .get(&fd)
                .map(|(_, cloexec)| *cloexec)
                .ok_or(EBADF)
        })
    }

    fn set_cloexec(&self, fd: i32, cloexec: bool) -> Result<(), KernelError> {
        self.with(|world| {
            let here = world.here();
            let (_, flag) = here.fds.get_mut(&fd).ok_or(EBADF)?;
            *flag = cloexec;
            Ok(())
        })
    }

    fn readlink(&self, dirfd: i32, path: &[u8], out: &mut [u8]) -> Result<usize, KernelError> {
        let mut path = text(path);
        self.with(|world| {
            if dirfd != AT_FDCWD && !path.starts_with('/') {
                let File::Host(folder) = &*world.file(dirfd)? else {
                    return Err(ENOENT);
                };
                path = format!("{folder}/{path}");
            }
            if let Some(fd) = path.strip_prefix("/proc/self/fd/") {
                return match &*world.file(fd.parse().map_err(|_| ENOENT)?)? {
                    File::Host(name) => give(out, name),
                    File::Placeholder { .. } => give(out, "/dev/shm/session"),
                };
            }
            let path = if path.starts_with('/') {
                path
            } else {
                format!("{}/{path}", world.here().cwd)
            };
            if let Some(folder) = path.strip_suffix("/.") {
                let folder = world.resolved(if folder.is_empty() { "/" } else { folder }, 0)?;
                return Err(if world.directories.contains(&folder) {
                    EINVAL
                } else {
                    ENOENT
                });
            }
            let path = world.parent_resolved(&path, 0)?;
            match world.links.get(&path) {
                Some(target) => give(out, target),
                None if world.directories.contains(&path) => Err(EINVAL),
                None => Err(ENOENT),
            }
        })
    }

    fn getcwd(&self, out: &mut [u8]) -> Result<usize, KernelError> {
        give(out, &self.cwd())
    }

    fn chdir(&self, path: &[u8]) -> Result<(), KernelError> {
        let path = text(path);
        self.with(|world| {
            world.here().cwd = world.resolved(&path, 0)?;
            Ok(())
        })
    }

    fn make_shadow(
        &self,
        pool: usize,
        name: &[u8],
        _mode: u32,
        _rdev: u64,
    ) -> Result<bool, KernelError> {
        let path = text(&self.shadow_path(pool, name));
        Ok(self.with(|world| world.shadows.insert(path)))
    }

    fn dress_shadow(&self, _: usize, _: &[u8], _: &Stat) {}

    fn remove_shadow(&self, pool: usize, name: &[u8]) {
        let path = text(&self.shadow_path(pool, name));
        self.with(|world| (world.shadows.remove(&path), world.notes.remove(&path)));
    }

    fn note_shadow(&self, pool: usize, name: &[u8], called: &[u8]) {
        let path = text(&self.shadow_path(pool, name));
        self.with(|world| world.notes.insert(path, called.to_vec()));
    }

    fn noted_path(&self, pool: usize, name: &[u8]) -> Option<Vec<u8>> {
        let path = text(&self.shadow_path(pool, name));
        self.with(|world| world.notes.get(&path).cloned())
    }

    fn shadow_in<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        path.strip_prefix(b"/dev/shm/shadows")?
            .split(|&byte| byte == b'/')
            .nth(1)
    }

    fn shadow_behind(&self, fd: i32) -> Option<(usize, Vec<u8>)> {
        let File::Host(name) = &*self.with(|world| world.file(fd)).ok()? else {
            return None;
        };
        let (pool, name) = name.strip_prefix("/dev/shm/shadows")?.split_once('/')?;
        Some((pool.parse().ok()?, name.as_bytes().to_vec()))
    }

    fn shadow_path(&self, pool: usize, name: &[u8]) -> Vec<u8> {
        format!("/dev/shm/shadows{pool}/{}", text(name)).into_bytes()
    }

    fn credentials(&self) -> Credentials {
        self.with(|world| world.user.clone())
    }

    fn protection(&self, _: Protection) -> u32 {
        self.protection.load(Ordering::Relaxed)
    }

    fn umask(&self) -> u32 {
        0o022
    }

    fn file_size_limit(&self) -> u64 {
        self.size_limit.load(Ordering::Relaxed)
    }

    fn open_file_limit(&self) -> u64 {
        1024
    }

    fn raise_file_size_signal(&self) {
        self.signalled.store(true, Ordering::Relaxed);
    }

    fn interrupted(&self) -> bool {
        self.interrupt.load(Ordering::Relaxed)
    }

    fn pid(&self) -> i32 {
        self.with(|world| world.current)
    }
}

/// A file system of its own in memory.
pub fn memory_fs() -> Fs {
    Fs::new(memory_pool(POOL_BYTES))
}

/// A pool in a file, which two programs of one process can use after each other.
pub struct FilePool(PoolFiles);

impl FilePool {
    pub fn new() -> FilePool {
        FilePool(PoolFiles::new(POOL_BYTES))
    }

    /// The pool is a disk behind an image.
    pub fn on_disk() -> FilePool {
        FilePool(PoolFiles::make(&PoolChoice {
            base: Path::new(env!("CARGO_TARGET_TMPDIR")),
            bytes: POOL_BYTES,
            caching: Caching::Always,
            ..PoolChoice::default()
        }))
    }

    pub fn device(&self) -> PathBuf {
        self.0.path()
    }

    /// Attaches; `resume` as the program that follows another one in the same process.
    fn attach(&self, resume: bool) -> Fs {
        let volume = Volume::open(&self.device(), Access::ReadWrite).unwrap();
        let options = AttachOptions {
            resume,
            ..AttachOptions::default()
        };
        Fs::new(Store::attach(volume, &options).unwrap())
    }

    pub fn first_program(&self) -> Harness {
        self.program_of(self.attach(false))
    }

    /// As [`FilePool::first_program`]. Who looks on sees what reaches the device.
    pub fn watched_program(&self, observer: &Arc<dyn Observer>) -> Harness {
        let fs = self.attach(false);
        fs.store().volume().set_observer(observer);
        self.program_of(fs)
    }

    fn program_of(&self, fs: Fs) -> Harness {
        let kernel = MockKernel::new();
        let mounts = vec![mount("/nacre", fs)];
        let vfs = Vfs::start(mounts, kernel.clone()).unwrap();
        vfs.after_exec(&[]).unwrap();
        Harness { vfs, kernel }
    }

    /// What runs after the program has called exec.
    pub fn next_program(&self, before: Harness) -> Harness {
        before.vfs.before_exec(false).unwrap();
        let kernel = before.kernel.clone();
        // The old program's memory is gone without any of its destructors.
        std::mem::forget(before);
        let fds = kernel.exec();
        let mounts = vec![mount("/nacre", self.attach(true))];
        let vfs = Vfs::start(mounts, kernel.clone()).unwrap();
        vfs.after_exec(&fds).unwrap();
        Harness { vfs, kernel }
    }
}

fn mount(prefix: &str, fs: Fs) -> MountSpec {
    MountSpec {
        prefix: prefix.into(),
        fs: Some(fs),
        read_only: false,
    }
}

/// A process with pools at `/nacre` and `/mnt/two`.
pub struct Harness {
    pub vfs: Vfs,
    pub kernel: Arc<MockKernel>,
}

impl Harness {
    pub fn new() -> Harness {
        let kernel = MockKernel::new();
        let mounts = vec![mount("/nacre", memory_fs()), mount("/mnt/two", memory_fs())];
        let vfs = Vfs::start(mounts, kernel.clone()).unwrap();
        vfs.after_exec(&[]).unwrap();
        Harness { vfs, kernel }
    }

    pub fn open(&self, path: &str, flags: i32) -> Result<i32, ErrorKind> {
        value(self.vfs.openat(AT_FDCWD, path.as_bytes(), flags, 0o666)).map(|fd| fd as i32)
    }

    /// Makes a file with contents.
    pub fn file(&self, path: &str, contents: &str) {
        let fd = self.open(path, O_WRONLY | O_CREAT | O_TRUNC).unwrap();
        assert_eq!(self.write(fd, contents), Ok(contents.len() as i64));
        self.close(fd).unwrap();
    }

    pub fn contents(&self, path: &str) -> Result<String, ErrorKind> {
        let fd = self.open(path, O_RDONLY)?;
        let text = self.read(fd, 1 << 16)?;
        self.close(fd)?;
        Ok(text)
    }

    pub fn read(&self, fd: i32, len: usize) -> Result<String, ErrorKind> {
        let mut buffer = vec![0; len];
        let got = value(self.vfs.read(fd, buffer.as_mut_slice().into()))?;
        buffer.truncate(got as usize);
        Ok(String::from_utf8(buffer).unwrap())
    }

    pub fn write(&self, fd: i32, text: &str) -> Result<i64, ErrorKind> {
        value(self.vfs.write(fd, text.as_bytes().into()))
    }

    pub fn close(&self, fd: i32) -> Result<i64, ErrorKind> {
        value(self.vfs.close(fd))
    }

    pub fn mkdir(&self, path: &str) -> Result<i64, ErrorKind> {
        value(self.vfs.mkdirat(AT_FDCWD, path.as_bytes(), 0o777))
    }

    pub fn symlink(&self, target: &str, path: &str) -> Result<i64, ErrorKind> {
        value(
            self.vfs
                .symlinkat(target.as_bytes(), AT_FDCWD, path.as_bytes()),
        )
    }

    pub fn unlink(&self, path: &str) -> Result<i64, ErrorKind> {
        value(self.vfs.unlinkat(AT_FDCWD, path.as_bytes(), 0))
    }

    pub fn rmdir(&self, path: &str) -> Result<i64, ErrorKind> {
        value(self.vfs.unlinkat(AT_FDCWD, path.as_bytes(), AT_REMOVEDIR))
    }

    pub fn rename(&self, from: &str, to: &str) -> Result<i64, ErrorKind> {
        value(
            self.vfs
                .renameat2(AT_FDCWD, from.as_bytes(), AT_FDCWD, to.as_bytes(), 0),
        )
    }

    pub fn link(&self, from: &str, to: &str) -> Result<i64, ErrorKind> {
        value(
            self.vfs
                .linkat(AT_FDCWD, from.as_bytes(), AT_FDCWD, to.as_bytes(), 0),
        )
    }

    pub fn stat(&self, path: &str) -> Result<FileStat, ErrorKind> {
        value(self.vfs.fstatat(AT_FDCWD, path.as_bytes(), 0))
    }

    pub fn lstat(&self, path: &str) -> Result<FileStat, ErrorKind> {
        value(
            self.vfs
                .fstatat(AT_FDCWD, path.as_bytes(), AT_SYMLINK_NOFOLLOW),
        )
    }

    pub fn readlink(&self, path: &str) -> Result<String, ErrorKind> {
        let mut buffer = vec![0; 4096];
        let len = value(self.vfs.readlinkat(
            AT_FDCWD,
            path.as_bytes(),
            buffer.as_mut_slice().into(),
        ))?;
        Ok(text(&buffer[..len as usize]))
    }

    /// Free inodes of the first pool.
    pub fn free_files(&self) -> u64 {
        value(self.vfs.statfs(b"/nacre")).unwrap().files_free
    }

    pub fn chdir(&self, path: &str) -> Result<i64, ErrorKind> {
        value(self.vfs.chdir(path.as_bytes()))
    }

    pub fn getcwd(&self) -> Result<String, ErrorKind> {
        let mut buffer = vec![0; 4096];
        let len = value(self.vfs.getcwd(buffer.as_mut_slice().into()))?;
        assert_eq!(buffer[len as usize - 1], 0);
        Ok(text(&buffer[..len as usize - 1]))
    }
}

/// The value of a call that is served here.
pub fn value<T: std::fmt::Debug>(answer: Answer<T>) -> Result<T, ErrorKind> {
    match answer {
        Ok(Reply::Done(value)) => Ok(value),
        Ok(other) => panic!("left to the kernel: {other:?}"),
        Err(error) => Err(error.kind()),
    }
}

/// The path at which the kernel is to make a call; `None` for the path as given.
pub fn passed<T: std::fmt::Debug>(answer: Answer<T>) -> Option<String> {
    match answer {
        Ok(Reply::Kernel) => None,
        Ok(Reply::KernelPath(path)) => Some(text(&path)),
        Ok(Reply::KernelNode(node)) => Some(format!(
            "/dev/shm/shadows{}/{}",
            node.pool,
            text(&node.name)
        )),
        other => panic!("not left to the kernel: {other:?}"),
    }
}
