//! Programs that this library cannot serve find the pools through the kernel, if the supervisor
//! can mount them: it is asked when such a program is about to start.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use nacre_media::{UserBytesMut, lifted};
use nacre_runtime::one_user;
use nacre_types::mount_table::{self, KernelMount};
use nacre_types::reach::{self, Unserved};
use nacre_vfs::{Answer, HandedOn, KernelError, Reply, Vfs};
use rustix::fs::{PROC_SUPER_MAGIC, fstat, lstat, stat, statfs};
use rustix::io::Errno;

use crate::entry::call::{Call, terminated};
use crate::entry::errno::Stop;
use crate::entry::user;
use crate::program::mounts::{self, Mount};
use crate::program::{descriptors, host};
use crate::runtime::environment;
use crate::runtime::kernel::{call, checked};
use crate::runtime::tls::thread;

/// What the kernel calls the file systems of FUSE (`linux/magic.h`).
const FUSE: i64 = 0x6573_5546;

/// Longer than any mount takes. Somebody else may have the name of a supervisor that died.
static PATIENCE: libc::timeval = libc::timeval {
    tv_sec: 30,
    tv_usec: 0,
};

/// How long to wait for a place in the queue of the socket: whoever listens there is not known yet,
/// as anybody may have taken the name of a supervisor that has ended.
static HASTE: libc::timeval = libc::timeval {
    tv_sec: 1,
    tv_usec: 0,
};

/// The mount points at which a program will not find its pool. First all are mounted that can be.
pub fn hidden(why: Option<&Unserved>) -> Vec<Vec<u8>> {
    let sockets = environment::get().setting(reach::BY_KERNEL);
    let names = sockets.unwrap_or_default().split(|&byte| byte == b';');
    for name in names.filter(|name| !name.is_empty()) {
        // The table says what came of it.
        let _nobody_listens = ask(name);
    }
    let table = table();
    let finds = |mount: &Mount| {
        let mut shown = shown_in_parts(&table, mount);
        shown.any(|(_, shown)| reach::finds(why, &shown))
    };
    let missing = mounts().filter(|mount| !finds(mount));
    missing.map(|mount| mount.prefix).collect()
}

/// What the kernel shows at a mount point instead of the pool.
pub fn taken(prefix: &[u8]) -> Option<KernelMount> {
    let table = table();
    let mount = mounts().find(|mount| mount.prefix == prefix)?;
    match shown(&table, &mount) {
        Some(_) => None,
        None => mount_table::find(&table, prefix),
    }
}

/// Where the kernel shows a pool only to the user and group who mounted it, and not to this
/// process: the mount point, and that user.
pub fn closed_to_us() -> Option<(Vec<u8>, u32)> {
    let table = table();
    let closed = |mount: &Mount| {
        let found = mount_table::find(&table, &mount.prefix)?;
        let refused = stat(&mount.prefix).is_err_and(|errno| errno == Errno::ACCESS);
        (refused && !found.for_all).then_some(found.user)
    };
    mounts().find_map(|mount| closed(&mount).map(|user| (mount.prefix, user)))
}

/// The mount points of all pools.
pub fn prefixes() -> Vec<Vec<u8>> {
    mounts().map(|mount| mount.prefix).collect()
}

/// Whether a program that cannot attach its pools (in a sandbox) does as well without: it finds
/// them by the kernel, is in no folder of theirs but one that the kernel shows, and has nothing
/// open.
pub fn suffices() -> bool {
    has_nothing_open() && !is_nowhere() && hidden(None).is_empty()
}

fn has_nothing_open() -> bool {
    let is_ours = |fd: &i32| host::may_be_placeholder(*fd) && !descriptors::is_internal(*fd);
    !descriptors::open().iter().any(is_ours)
}

/// Whether the root that this process sees (a sandbox's) has neither the pool nor a name where the
/// pool would be: the kernel says what is so there, that its files do not exist. A root may also be
/// the folder that a process had in /proc (browsers'), in which nothing is found any more.
fn is_left_out(mount: &Mount) -> bool {
    let found = [lstat(&mount.pool), lstat(&mount.prefix)];
    let nothing = |found: &_| matches!(found, Err(Errno::NOENT | Errno::SRCH));
    found.iter().all(nothing)
}

/// Whether this process is in a sandbox's root, which shows none of the pools.
pub fn are_left_out() -> bool {
    environment::is_root_exchanged() && mounts().all(|mount| is_left_out(&mount))
}

/// As [`suffices`], of a child that was in this folder of a pool when it was forked. The kernel is
/// there from then on. Where no pool is to be seen the folder is as one that was removed, and calls
/// on what is open fail.
pub fn suffices_in(folder: Option<&[u8]>) -> bool {
    if mounts().all(|mount| is_left_out(&mount)) {
        return true;
    }
    if let Some(folder) = folder.filter(|folder| is_shown(folder)) {
        let path = terminated(folder.to_vec());
        call(libc::SYS_chdir, &[path.as_ptr() as usize]);
    }
    suffices()
}

/// Whether the current directory is the empty one behind a folder of a pool.
fn is_nowhere() -> bool {
    statfs(c".").is_ok_and(|here| here.f_type == PROC_SUPER_MAGIC)
}

/// Has the kernel show the pools, where it can.
pub fn show() {
    hidden(None);
}

fn mounts() -> impl Iterator<Item = Mount> {
    let setting = environment::get().setting("NACRE_MOUNTS");
    let mounts = setting.and_then(|text| mounts::parse(text).ok());
    mounts.into_iter().flatten()
}

/// The kernel's mount of a pool, if root, the pool's owner or the own user made it there.
fn shown(table: &[u8], mount: &Mount) -> Option<KernelMount> {
    let mut parts = shown_in_parts(table, mount);
    let whole = parts.find(|(at, _)| *at == mount.prefix);
    whole.map(|(_, found)| found)
}

/// As [`shown`], and the mounts of its folders below: a sandbox may have these alone.
fn shown_in_parts<'a>(
    table: &'a [u8],
    mount: &'a Mount,
) -> impl Iterator<Item = (Vec<u8>, KernelMount)> + 'a {
    // A sandbox with a root of its own does not show the pool's file.
    let pool = stat(&mount.pool).ok();
    let file = match &pool {
        Some(pool) => Some(mount_table::identity(pool.st_dev, pool.st_ino)),
        None => mount.file.clone(),
    };
    let owner = pool.map(|pool| pool.st_uid);
    let is_trusted = move |user| user == 0 || [owner, one_user()].contains(&Some(user));
    mount_table::pools(table).filter(move |(at, found)| {
        let told = || file.as_deref().is_some_and(|file| tells(at, file));
        is_below(&mount.prefix, at) && is_trusted(found.user) && told()
    })
}

/// Whether a file system of FUSE is where a pool is to be seen.
pub fn is_fuse_at(mount: &Mount) -> bool {
    statfs(&mount.prefix).is_ok_and(|there| there.f_type == FUSE)
}

/// Whether files with this device number are in the kernel's mount of a pool.
pub fn shows_as(device: u64) -> bool {
    let at = |mount: &Mount| stat(&mount.prefix).is_ok_and(|found| found.st_dev == device);
    mounts().any(|mount| is_fuse_at(&mount) && at(&mount) && shown(&table(), &mount).is_some())
}

/// Whether the kernel's mount there is of this file.
fn tells(folder: &[u8], identity: &str) -> bool {
    let (path, mut room) = (terminated(folder.to_vec()), [0u8; 64]);
    let (name, to) = (mount_table::IDENTITY.as_ptr(), room.as_mut_ptr());
    let args = [
        path.as_ptr() as usize,
        name as usize,
        to as usize,
        room.len(),
    ];
    let len = checked(libc::SYS_getxattr, &args);
    len.is_ok_and(|len| room.get(..len) == Some(identity.as_bytes()))
}

/// The table of mounts, as far as it can be read.
fn table() -> Vec<u8> {
    let path = c"/proc/self/mountinfo".as_ptr() as usize;
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    let file = checked(libc::SYS_open, &[path, flags]);
    let mut table = Vec::new();
    if let Ok(fd) = file {
        // SAFETY: the kernel has just made it, and nobody else knows it.
        let file = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let _as_far_as_it_goes = read_all(&file, &mut table);
    }
    table
}

fn read_all(file: &OwnedFd, into: &mut Vec<u8>) -> Result<(), i32> {
    const STEP: usize = 1 << 14;
    let fd = file.as_raw_fd() as usize;
    loop {
        let len = into.len();
        into.resize(len + STEP, 0);
        let more = checked(
            libc::SYS_read,
            &[fd, into[len..].as_mut_ptr() as usize, STEP],
        );
        into.truncate(len + more.unwrap_or(0));
        match more {
            Ok(0) => return Ok(()),
            Ok(_) | Err(libc::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Asks at a socket and waits until all is done.
fn ask(name: &[u8]) -> Result<(), i32> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    let socket = checked(
        libc::SYS_socket,
        &[libc::AF_UNIX as usize, kind as usize, 0],
    )?;
    // SAFETY: the kernel has just made it, and nobody else knows it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket as i32) };
    let fd = socket.as_raw_fd() as usize;
    let family = (libc::AF_UNIX as u16).to_ne_bytes();
    let address = [&family[..], b"\0", name].concat();
    for (option, time) in [
        (libc::SO_SNDTIMEO, &raw const HASTE),
        (libc::SO_RCVTIMEO, &raw const PATIENCE),
    ] {
        let (level, len) = (libc::SOL_SOCKET as usize, size_of::<libc::timeval>());
        let args = [fd, level, option as usize, time as usize, len];
        checked(libc::SYS_setsockopt, &args)?;
    }
    checked(
        libc::SYS_connect,
        &[fd, address.as_ptr() as usize, address.len()],
    )?;
    match is_trusted(fd) {
        true => read_all(&socket, &mut Vec::new()),
        false => Err(libc::EPERM),
    }
}

/// Whether root or the own user listens.
fn is_trusted(socket: usize) -> bool {
    let mut peer = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: 0,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (at, room) = ((&raw mut peer) as usize, (&raw mut len) as usize);
    let (level, option) = (libc::SOL_SOCKET as usize, libc::SO_PEERCRED as usize);
    let found = checked(libc::SYS_getsockopt, &[socket, level, option, at, room]);
    found.is_ok() && (peer.uid == 0 || one_user() == Some(peer.uid))
}

/// Puts the kernel where the program is, for one that is not served. False: it was not elsewhere.
pub fn go_where_the_program_is(c: &Call<'_>) -> bool {
    let folder = pool_folder(c).filter(|folder| is_shown(folder));
    let Some(folder) = folder else {
        return false;
    };
    let path = terminated(folder);
    call(libc::SYS_chdir, &[path.as_ptr() as usize]) == 0
}

/// Files of pools that a program which is not served inherits, opened by the kernel in the places
/// of their placeholders.
pub struct HandOver(Vec<Handed>);

struct Handed {
    fd: usize,
    placeholder: usize,
}

/// The kernel's mount of a pool, which no path leads to any more.
struct Root {
    mount: Mount,
    folder: OwnedFd,
}

/// As they were before the process went below another root directory.
static ROOTS: OnceLock<Vec<Root>> = OnceLock::new();

/// Keeps the way to the kernel's mounts, for what is open and is handed on later. The process is
/// about to go below another root directory.
pub fn keep_roots(vfs: &Vfs) {
    // A child in its parent's memory has descriptors of its own.
    if vfs.handed_on().is_empty() || thread().origin.view().is_some() {
        return;
    }
    hidden(None);
    ROOTS.get_or_init(|| {
        let table = table();
        let shown = mounts().filter(|mount| shown(&table, mount).is_some());
        let roots: Vec<Root> = shown.filter_map(|mount| root(mount).ok()).collect();
        for root in &roots {
            descriptors::keep_internal(root.folder.as_raw_fd());
        }
        roots
    });
}

fn root(mount: Mount) -> Result<Root, i32> {
    let folder = open(mount.prefix.clone(), libc::O_PATH as u32)?;
    Ok(Root {
        mount,
        folder: lifted(folder),
    })
}

impl HandOver {
    /// Exchanges what the kernel can open. The rest stays as it is.
    pub fn make(c: &Call<'_>) -> HandOver {
        let files = c.vfs().handed_on().into_iter();
        let handed: Vec<Handed> = match ROOTS.get() {
            Some(roots) => files
                .filter_map(|file| exchange(&file, |flags| open_below(roots, &file.path, flags)))
                .collect(),
            None => {
                let table = table();
                let shown: Vec<Mount> = mounts()
                    .filter(|mount| shown(&table, mount).is_some())
                    .collect();
                let reached = files.filter(|file| {
                    shown
                        .iter()
                        .any(|mount| is_below(&mount.prefix, &file.path))
                });
                reached
                    .filter_map(|file| exchange(&file, |flags| open(file.path.clone(), flags)))
                    .collect()
            }
        };
        HandOver(handed)
    }

    /// Puts the placeholders back.
    pub fn undo(self) {
        for Handed { fd, placeholder } in self.0 {
            call(libc::SYS_dup3, &[placeholder, fd, 0]);
            call(libc::SYS_close, &[placeholder]);
        }
    }
}

/// The kernel's own descriptor of an open file of a pool, which is mounted for that. It has a
/// position of its own.
pub fn opened(c: &Call<'_>, fd: i32) -> Result<OwnedFd, Stop> {
    let vfs = c.vfs();
    let (stat, flags) = (vfs.fstat(fd)?, vfs.fcntl(fd, libc::F_GETFL, 0)?);
    let (Reply::Done(stat), Reply::Done(flags)) = (stat, flags) else {
        return Err(Stop::Errno(libc::EBADF));
    };
    let own = path_of(vfs, fd)
        .filter(|path| hidden(None).is_empty() && is_shown(path))
        .and_then(|path| open(path, flags as u32 & libc::O_ACCMODE as u32).ok());
    // A name may be another file's by now.
    own.filter(|own| fstat(own).is_ok_and(|found| found.st_ino == stat.ino))
        .ok_or(Stop::Errno(libc::EOPNOTSUPP))
}

/// The name of an open file of a pool.
fn path_of(vfs: &Vfs, fd: i32) -> Option<Vec<u8>> {
    let mut room = vec![0u8; user::PATH_MAX];
    let link = format!("/proc/self/fd/{fd}");
    let buffer = UserBytesMut::from(room.as_mut_slice());
    match vfs.readlinkat(libc::AT_FDCWD, link.as_bytes(), buffer) {
        Ok(Reply::Done(len)) => room.truncate(len as usize),
        _ => return None,
    }
    Some(room)
}

/// The name by which the kernel shows what lies at a path of a pool.
pub fn shown_path(vfs: &Vfs, dir: i32, path: &[u8]) -> Answer {
    let opened = match vfs.openat(dir, path, libc::O_PATH | libc::O_CLOEXEC, 0)? {
        Reply::Done(fd) => fd as i32,
        reply => return Ok(reply),
    };
    let name = path_of(vfs, opened).filter(|name| is_shown(name));
    vfs.close(opened)?;
    name.map(Reply::KernelPath)
        .ok_or_else(|| KernelError(libc::EOPNOTSUPP).into())
}

fn open(path: Vec<u8>, flags: u32) -> Result<OwnedFd, i32> {
    open_at(libc::AT_FDCWD, path, flags)
}

/// Opens what lies at a path by the root of its pool.
fn open_below(roots: &[Root], path: &[u8], flags: u32) -> Result<OwnedFd, i32> {
    let found = roots.iter().find(|root| is_below(&root.mount.prefix, path));
    let Root { mount, folder } = found.ok_or(libc::ENOENT)?;
    let inside = [b".", &path[mount.prefix.len()..]].concat();
    open_at(folder.as_raw_fd(), inside, flags)
}

fn open_at(folder: i32, path: Vec<u8>, flags: u32) -> Result<OwnedFd, i32> {
    let path = terminated(path);
    let how = flags as usize | libc::O_CLOEXEC as usize;
    let args = [folder as usize, path.as_ptr() as usize, how];
    let fd = checked(libc::SYS_openat, &args)?;
    // SAFETY: the kernel has just made it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Only descriptors that exec keeps.
fn exchange(file: &HandedOn, open: impl FnOnce(u32) -> Result<OwnedFd, i32>) -> Option<Handed> {
    const KEPT: u32 = (libc::O_ACCMODE | libc::O_APPEND | libc::O_DIRECTORY | libc::O_PATH) as u32;
    let fd = file.fd as usize;
    let flags = checked(libc::SYS_fcntl, &[fd, libc::F_GETFD as usize]).ok()?;
    if flags & libc::FD_CLOEXEC as usize != 0 {
        return None;
    }
    let copy = [fd, libc::F_DUPFD_CLOEXEC as usize, 0];
    let placeholder = checked(libc::SYS_fcntl, &copy).ok()?;
    let exchanged = open(file.flags & KEPT)
        .and_then(|own| checked(libc::SYS_dup3, &[own.as_raw_fd() as usize, fd, 0]));
    if exchanged.is_err() {
        call(libc::SYS_close, &[placeholder]);
        return None;
    }
    Some(Handed { fd, placeholder })
}

/// Serves a program in the folder of a pool in which one that is not served has started it.
pub fn enter_folder(vfs: &Vfs) {
    if environment::get().setting(reach::BY_KERNEL).is_none() {
        return;
    }
    let mut here = vec![0; user::PATH_MAX];
    let args = [here.as_mut_ptr() as usize, here.len()];
    let len = checked(libc::SYS_getcwd, &args).unwrap_or(0);
    here.truncate(len.saturating_sub(1));
    if is_shown(&here) {
        // Where it cannot, the kernel shows the same folder.
        let _harmless = vfs.chdir(&here);
    }
}

/// The current directory, if it lies in a pool.
pub fn pool_folder(c: &Call<'_>) -> Option<Vec<u8>> {
    let mut room = vec![0u8; user::PATH_MAX];
    match c.vfs().getcwd(UserBytesMut::from(room.as_mut_slice())) {
        Ok(Reply::Done(len)) => room.truncate((len as usize).saturating_sub(1)),
        _ => return None,
    }
    Some(room)
}

/// Whether a folder lies in a pool, or in a folder of one, that the kernel shows, too.
fn is_shown(folder: &[u8]) -> bool {
    let shows = |mount: Mount| {
        let table = table();
        shown_in_parts(&table, &mount).any(|(at, _)| is_below(&at, folder))
    };
    let mut owners = mounts().filter(|mount| is_below(&mount.prefix, folder));
    owners.any(shows)
}

/// Whether the kernel shows a pool's program at its path.
pub fn shows_program(path: &[u8], inode: u64) -> bool {
    is_shown(path) && stat(path).is_ok_and(|found| found.st_ino == inode)
}

fn is_below(folder: &[u8], path: &[u8]) -> bool {
    let rest = path.strip_prefix(folder);
    rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}
