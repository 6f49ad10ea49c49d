//! What the vfs asks of the kernel, answered by raw system calls.

use core::sync::atomic::Ordering::Relaxed;

use nacre_vfs::{Credentials, Kernel, KernelError};
use rustix::fs::Stat;

use crate::call::terminated;
use crate::kernel::{self, call, checked};
use crate::{descriptors, table, tls};

/// A pool as the kernel sees it.
#[derive(Debug)]
pub struct Pool {
    /// Path of the session file, with its NUL.
    pub session: Vec<u8>,
    /// Path of the placeholder folder, with its NUL.
    pub placeholder: Vec<u8>,
    /// Device and inode of the placeholder folder.
    pub id: (u64, u64),
}

impl Pool {
    /// The pool whose session file is at `session`. Makes its placeholder folder: an empty one beside
    /// the session, which every user may open and nobody can read, write or change. A program that
    /// has given up its rights can open files of the pool still, and a re-open by name that is not
    /// seen here fails instead of reaching the session file.
    pub fn new(session: &[u8]) -> Outcome<Pool> {
        let placeholder = path(&[session, b".fd"].concat());
        let here = libc::AT_FDCWD as usize;
        let folder = [here, placeholder.as_ptr() as usize, 0o555, 0];
        match ask(libc::SYS_mkdirat, &folder[..3]) {
            Ok(_) => ask(libc::SYS_fchmodat, &folder[..3]).map(drop)?,
            Err(KernelError(libc::EEXIST)) => {}
            Err(error) => return Err(error),
        }
        let mut stat = core::mem::MaybeUninit::<Stat>::zeroed();
        let (name, room) = (placeholder.as_ptr() as usize, stat.as_mut_ptr() as usize);
        let no_follow = libc::AT_SYMLINK_NOFOLLOW as usize;
        ask(libc::SYS_newfstatat, &[here, name, room, no_follow])?;
        // SAFETY: any bytes are a valid Stat, and the kernel has filled it.
        let stat = unsafe { stat.assume_init() };
        Ok(Pool {
            session: path(session),
            placeholder,
            id: (stat.st_dev, stat.st_ino),
        })
    }
}

/// The kernel under this process.
#[derive(Debug)]
pub struct Host {
    /// By index of the mount.
    pub pools: Vec<Pool>,
}

/// Paths below this length are passed on without an allocation.
const SHORT_PATH: usize = 256;

type Outcome<T> = Result<T, KernelError>;

fn ask(number: libc::c_long, args: &[usize]) -> Outcome<usize> {
    checked(number, args).map_err(KernelError)
}

fn path(bytes: &[u8]) -> Vec<u8> {
    terminated(bytes.to_vec())
}

/// Makes the folder of a shadow node, for every user, if it is missing.
pub fn make_folder(node: &[u8]) {
    let slash = node.iter().rposition(|&b| b == b'/').unwrap_or(0);
    let folder = path(&node[..slash]);
    let args = [libc::AT_FDCWD as usize, folder.as_ptr() as usize, 0o1777];
    if checked(libc::SYS_mkdirat, &args).is_ok() {
        call(libc::SYS_fchmodat, &args);
    }
}

impl Host {
    fn shadow_folder(&self, pool: usize) -> Vec<u8> {
        let session = &self.pools[pool].session;
        [&session[..session.len() - 1], b".d"].concat()
    }
}

impl Kernel for Host {
    fn open_placeholder(&self, pool: usize, cloexec: bool) -> Outcome<i32> {
        table::watch_numbers();
        let cloexec = if cloexec { libc::O_CLOEXEC } else { 0 };
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | cloexec;
        let placeholder = self.pools[pool].placeholder.as_ptr() as usize;
        let args = [libc::AT_FDCWD as usize, placeholder, flags as usize, 0];
        Ok(ask(libc::SYS_openat, &args)? as i32)
    }

    fn set_identity(&self, fd: i32, identity: u64) -> Outcome<()> {
        let args = [fd as usize, identity as usize, libc::SEEK_SET as usize];
        ask(libc::SYS_lseek, &args).map(drop)
    }

    fn identity(&self, fd: i32) -> Outcome<Option<(usize, u64)>> {
        let mut stat = core::mem::MaybeUninit::<Stat>::zeroed();
        ask(libc::SYS_fstat, &[fd as usize, stat.as_mut_ptr() as usize])?;
        // SAFETY: any bytes are a valid Stat, and the kernel has filled it.
        let stat = unsafe { stat.assume_init() };
        let id = (stat.st_dev, stat.st_ino);
        let Some(pool) = self.pools.iter().position(|pool| pool.id == id) else {
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
        (0..i32::try_from(self.open_file_limit()).unwrap_or(i32::MAX)).collect()
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

    fn make_shadow(&self, pool: usize, name: &[u8], mode: u32, rdev: u64) -> Outcome<()> {
        let here = libc::AT_FDCWD as usize;
        make_folder(&self.shadow_path(pool, name));
        let node = terminated(self.shadow_path(pool, name));
        let args = [here, node.as_ptr() as usize, mode as usize, rdev as usize];
        match ask(libc::SYS_mknodat, &args) {
            Err(KernelError(libc::EEXIST)) => Ok(()),
            other => other.map(drop),
        }
    }

    fn remove_shadow(&self, pool: usize, name: &[u8]) {
        let node = terminated(self.shadow_path(pool, name));
        call(
            libc::SYS_unlinkat,
            &[libc::AT_FDCWD as usize, node.as_ptr() as usize, 0],
        );
    }

    fn shadow_path(&self, pool: usize, name: &[u8]) -> Vec<u8> {
        [&self.shadow_folder(pool), b"/".as_slice(), name].concat()
    }

    fn credentials(&self) -> Credentials {
        crate::identity::read()
    }

    fn umask(&self) -> u32 {
        // Nothing reads the mask without setting it, but /proc, which is slow; this runs at start
        // only, before the program has threads.
        let mask = call(libc::SYS_umask, &[0o777]) as u32;
        call(libc::SYS_umask, &[mask as usize]);
        mask
    }

    fn file_size_limit(&self) -> u64 {
        limit(libc::RLIMIT_FSIZE as usize)
    }

    fn open_file_limit(&self) -> u64 {
        limit(libc::RLIMIT_NOFILE as usize)
    }

    fn raise_file_size_signal(&self) {
        let (pid, tid) = (kernel::getpid() as usize, kernel::gettid() as usize);
        call(libc::SYS_tgkill, &[pid, tid, libc::SIGXFSZ as usize]);
    }

    fn interrupted(&self) -> bool {
        tls::thread().deferred.load(Relaxed) & tls::SIGNAL != 0
    }

    fn pid(&self) -> i32 {
        kernel::getpid()
    }
}

/// Soft limit of a resource.
fn limit(resource: usize) -> u64 {
    let mut pair = [u64::MAX; 2];
    call(
        libc::SYS_prlimit64,
        &[0, resource, 0, pair.as_mut_ptr() as usize],
    );
    pair[0]
}
