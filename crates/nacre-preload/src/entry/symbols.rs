//! Serving the calls that come through symbols of the C library's names (`arch`): the plain cases
//! only. What is refused here is called again through the C library, whose system call comes to the
//! table.

use core::mem::offset_of;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::panic::{AssertUnwindSafe, catch_unwind};

use nacre_vfs::{Answer, FileStat, PathOwner, Reply, Vfs, VfsError};
use zerocopy::{Immutable, IntoBytes};

use crate::arch::x86_64::path_filter::{self, PATH_FILTER};
use crate::arch::x86_64::symbols::LIBRARY;
use crate::entry::abi::{STATX_RESERVED, Stat, Statx};
use crate::entry::call::{HERE, sink, sink_for_now, source};
use crate::entry::errno::Stop;
use crate::entry::table;
use crate::entry::user;
use crate::entry::user::{ShortString, StringBuffer};
use crate::program::{process, shown};
use crate::runtime::kernel;
use crate::runtime::log;
use crate::runtime::signals;

/// The C library's functions, by call number; 0 for none.
pub static FUNCTIONS: [AtomicUsize; table::CALLS] = [const { AtomicUsize::new(0) }; table::CALLS];

/// How a call ended, in the two result registers of a C function.
#[repr(C)]
pub struct Outcome {
    value: isize,
    refused: usize,
}

const REFUSED: Outcome = Outcome {
    value: 0,
    refused: 1,
};

/// Looks up the functions that calls are handed on to, and serves from then on. Calls that are
/// logged come to the table.
pub fn start(vfs: &Vfs) {
    hand_on();
    serve_again(vfs);
}

/// Looks up the functions that calls are handed on to.
pub fn hand_on() {
    for &(number, name) in LIBRARY {
        // SAFETY: a NUL-terminated name; the dynamic linker has loaded everything.
        let function = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        FUNCTIONS[number as usize].store(function as usize, Relaxed);
    }
}

/// Serves, if calls need not come to the table.
pub fn serve_again(vfs: &Vfs) {
    if !log::enabled() && !signals::may_cancel() && !shown::was_met() {
        path_filter::serve(|byte, absolute| vfs.owner_by(byte, absolute));
    }
}

/// Before the program's first thread is cancelled: calls are points of cancellation from then on.
pub fn leave_to_the_library() {
    path_filter::stop_serving();
}

#[inline(always)]
fn serve(call: impl FnOnce(&'static Vfs) -> Option<Answer>) -> Outcome {
    try_serve_fast(|vfs| match call(vfs)? {
        Ok(reply) => reply.served().map(|value| Ok(value as isize)),
        Err(error) => Some(Err(error)),
    })
}

/// The outcome of a call that fails.
#[inline(never)]
fn failed(error: VfsError) -> Outcome {
    match Stop::from(error) {
        Stop::Errno(errno) if errno != libc::EINTR => Outcome {
            value: -(errno as isize),
            refused: 0,
        },
        _ => REFUSED,
    }
}

/// Serves a call that is done at once or not at all.
#[inline(always)]
fn try_serve_fast(call: impl FnOnce(&'static Vfs) -> Option<Result<isize, VfsError>>) -> Outcome {
    let serve = || match process::vfs().and_then(call) {
        Some(Ok(value)) => Outcome { value, refused: 0 },
        Some(Err(error)) => failed(error),
        None => REFUSED,
    };
    // After a panic the table answers.
    catch_unwind(AssertUnwindSafe(serve)).unwrap_or(REFUSED)
}

/// As [`try_serve_fast`], for a call on a path.
#[inline(always)]
fn serve_path(
    path: usize,
    call: impl FnOnce(&'static Vfs, &[u8]) -> Option<Result<isize, VfsError>>,
) -> Outcome {
    try_serve_fast(|vfs| {
        let mut buffer = StringBuffer::new();
        call(vfs, buffer.read(path).ok()?)
    })
}

#[inline(always)]
fn stat_path<S>(dir: i32, path: usize, follow: bool, out: usize) -> Outcome
where
    S: for<'s> From<&'s FileStat> + IntoBytes + Immutable,
{
    serve_path(path, |vfs, path| {
        let tell = |stat: &FileStat| user::write(out, &S::from(stat));
        match vfs.try_stat_fast(dir, path, follow, tell)? {
            Ok(written) => written.ok().map(|()| Ok(0)),
            Err(error) => Some(Err(error)),
        }
    })
}

#[inline(always)]
fn open_path(dir: i32, path: usize, flags: i32, mode: u32) -> Outcome {
    serve_path(path, |vfs, path| {
        let opened = vfs.try_open_fast(dir, path, flags, mode)?;
        if let Ok(fd) = opened {
            table::unmark(fd as i32);
        }
        Some(opened.map(|fd| fd as isize))
    })
}

#[inline(always)]
fn make_folder(dir: i32, path: usize, mode: u32) -> Outcome {
    serve_path(path, |vfs, path| {
        Some(vfs.try_mkdir_fast(dir, path, mode)?.map(|()| 0))
    })
}

#[inline(always)]
fn remove_name(dir: i32, path: usize, flags: i32) -> Outcome {
    serve_path(path, |vfs, path| {
        Some(vfs.try_unlink_fast(dir, path, flags)?.map(|()| 0))
    })
}

/// Directory fd and address of the path of each end.
fn rename_path(from: (i32, usize), to: (i32, usize), flags: u32) -> Outcome {
    serve_path(from.1, |vfs, path| {
        let mut buffer = StringBuffer::new();
        let new_path = buffer.read(to.1).ok()?;
        let renamed = vfs.try_rename_fast(from.0, path, to.0, new_path, flags)?;
        Some(renamed.map(|()| 0))
    })
}

// SAFETY: the entry code alone calls this and the following, with the arguments of the program's
// call and inside Nacre.
pub unsafe extern "C" fn read(fd: i32, start: usize, len: usize) -> Outcome {
    serve(|vfs| Some(vfs.read(fd, sink(start, len).ok()?)))
}

// SAFETY: as of `read`.
pub unsafe extern "C" fn write(fd: i32, start: usize, len: usize) -> Outcome {
    serve(|vfs| Some(vfs.write(fd, source(start, len).ok()?)))
}

// SAFETY: as of `read`.
pub unsafe extern "C" fn pread(fd: i32, start: usize, len: usize, offset: i64) -> Outcome {
    serve(|vfs| Some(vfs.pread(fd, sink(start, len).ok()?, offset)))
}

/// As [`pread`] for who has not entered Nacre: such a read changes nothing and holds nothing, so
/// that signals need not wait for it, and it takes little of the program's stack. Returns `None` if
/// the fast path does not apply.
#[inline(always)]
pub fn pread_outside(fd: i32, start: usize, len: usize, offset: i64) -> Option<usize> {
    fast_outside(move || process::vfs()?.try_pread_fast(fd, sink_for_now(start, len)?, offset))
}

/// Makes a call that changes and holds nothing, if calls may be made here.
#[inline(always)]
fn fast_outside<T>(call: impl FnOnce() -> Option<T>) -> Option<T> {
    if !path_filter::serves_here() {
        return None;
    }
    catch_unwind(AssertUnwindSafe(call)).ok()?
}

/// As [`pread_outside`], of `fsync` and `fdatasync`, which have one argument: 0 if it is done.
#[inline(always)]
pub fn fsync_outside(fd: i32, _: usize, _: usize, _: i64) -> Option<usize> {
    fast_outside(move || process::vfs()?.try_fsync_fast(fd))?;
    Some(0)
}

// SAFETY: as of `read`.
pub unsafe extern "C" fn pwrite(fd: i32, start: usize, len: usize, offset: i64) -> Outcome {
    serve(|vfs| Some(vfs.pwrite(fd, source(start, len).ok()?, offset)))
}

// SAFETY: as of `read`.
pub unsafe extern "C" fn fsync(fd: i32) -> Outcome {
    serve(|vfs| Some(vfs.fsync(fd)))
}

// SAFETY: as of `read`.
pub unsafe extern "C" fn close(fd: i32) -> Outcome {
    try_serve_fast(|vfs| Some(vfs.try_close_fast(fd)?.map(|()| 0)))
}

// SAFETY: as of `read`.
pub unsafe extern "C" fn fstat(fd: i32, out: usize) -> Outcome {
    serve(|vfs| {
        let stat = vfs.fstat(fd);
        match stat {
            Ok(Reply::Done(stat)) => user::write(out, &Stat::from(&stat))
                .ok()
                .map(|()| Ok(Reply::Done(0))),
            _ => None,
        }
    })
}

// SAFETY: as of `read`.
pub unsafe extern "C" fn open(path: usize, flags: i32, mode: u32) -> Outcome {
    open_path(HERE, path, flags, mode)
}

// SAFETY: as of `read`.
pub unsafe extern "C" fn openat(dir: i32, path: usize, flags: i32, mode: u32) -> Outcome {
    open_path(dir, path, flags, mode)
}

// SAFETY: as of `read`.
pub unsafe extern "C" fn stat(path: usize, out: usize) -> Outcome {
    stat_path::<Stat>(HERE, path, true, out)
}

// SAFETY: as of `read`.
pub unsafe extern "C" fn lstat(path: usize, out: usize) -> Outcome {
    stat_path::<Stat>(HERE, path, false, out)
}

// SAFETY: as of `read`.
pub unsafe extern "C" fn fstatat(dir: i32, path: usize, out: usize, flags: i32) -> Outcome {
    if flags & !libc::AT_SYMLINK_NOFOLLOW != 0 {
        return REFUSED;
    }
    stat_path::<Stat>(dir, path, flags == 0, out)
}

// SAFETY: as of `read`.
pub unsafe extern "C" fn statx(
    dir: i32,
    path: usize,
    flags: i32,
    mask: u32,
    out: usize,
) -> Outcome {
    if flags & !libc::AT_SYMLINK_NOFOLLOW != 0 || mask & STATX_RESERVED != 0 {
        return REFUSED;
    }
    stat_path::<Statx>(dir, path, flags == 0, out)
}

/// The kernel's answer for what is not there.
pub const MISSING: isize = -libc::ENOENT as isize;

/// What a call on a path names.
#[derive(Clone, Copy)]
pub struct Named {
    /// Where a relative path starts.
    pub dir: i32,
    /// The path's address.
    pub path: usize,
    /// Whether a link there is followed.
    pub follow: bool,
}

/// The kernel's answer to a call on a path that is plainly the host's, asked without entering
/// Nacre, as [`pread_outside`]. Returns `None` if the fast path does not apply; an error
/// decides nothing where a link may lead into a pool.
#[inline(always)]
pub fn ask_host(named: &mut Named, number: i64, args: [usize; 5]) -> Option<isize> {
    let vfs = process::vfs()?;
    let is_hosts = match vfs.owner_of(named.dir, user::peek(named.path)?) {
        PathOwner::Unknown => return None,
        PathOwner::Host => path_filter::whose_text(named.path) == path_filter::HOST,
        PathOwner::Text => reads_as_hosts(vfs, named.path),
    };
    if !is_hosts || !path_filter::serves_here() {
        return None;
    }
    let [a, b, c, d, e] = args;
    // SAFETY: the call that the program makes, as it makes it.
    Some(unsafe { kernel::syscall(number as usize, [a, b, c, d, e, 0]) })
}

#[cold]
fn reads_as_hosts(vfs: &'static Vfs, path: usize) -> bool {
    let read = || {
        let mut room = ShortString::uninit();
        vfs.reads_as_hosts(user::short_string(path, &mut room)?)
            .then_some(())
    };
    fast_outside(read).is_some()
}

/// How calls on paths of the host are made that only ask.
pub trait OfHost {
    /// Whether a call on what is plainly the host's is made as it is.
    #[inline(always)]
    fn is_served_directly(_: &Named) -> bool {
        true
    }

    /// Makes a call that is not made at once, as [`ask_host`].
    #[inline(always)]
    fn ask(named: &mut Named, number: i64, args: [usize; 5]) -> Option<isize> {
        ask_host(named, number, args)
    }

    /// The kernel has found no such name.
    #[inline(always)]
    fn misses(_: &Named) {}

    /// The call has succeeded.
    #[inline(always)]
    fn is_done(_: isize) {}

    /// Whether the kernel's answer may be of a pool that it shows; then the call is made again.
    #[inline(always)]
    fn may_be_shown(_: i64, _: [usize; 5]) -> bool {
        false
    }
}

/// Calls that tell about a name.
pub struct Asks;

impl OfHost for Asks {}

/// `stat`, `fstatat` and `statx`. After a name that is missing, others often are, too: what is then
/// told of the name itself is enough if it is no link, and spares the question whether it is one.
pub struct Stats;

impl OfHost for Stats {
    #[inline(always)]
    fn is_served_directly(named: &Named) -> bool {
        !named.follow || !PATH_FILTER.links_are_rare.load(Relaxed)
    }

    #[inline(always)]
    fn ask(named: &mut Named, number: i64, args: [usize; 5]) -> Option<isize> {
        if !Self::is_served_directly(named) {
            let told = stat_unless_link(named, number, args);
            if told.is_some() {
                return told;
            }
        }
        ask_host(named, number, args)
    }

    #[inline(always)]
    fn misses(named: &Named) {
        if named.follow {
            PATH_FILTER.links_are_rare.store(true, Relaxed);
        }
    }

    #[inline(always)]
    fn may_be_shown(number: i64, args: [usize; 5]) -> bool {
        told_device(number, args).is_some_and(shown::may_be)
    }
}

/// The device number that the kernel has told.
#[inline(always)]
fn told_device(number: i64, args: [usize; 5]) -> Option<u64> {
    match number {
        libc::SYS_stat => user::read(args[1]).ok(),
        libc::SYS_newfstatat => user::read(args[2]).ok(),
        _ => user::device_of_statx(args[4]),
    }
}

/// Calls that open; not where numbers are free for the program that the kernel does not give out.
pub struct Opens;

impl OfHost for Opens {
    #[inline(always)]
    fn is_served_directly(_: &Named) -> bool {
        table::WATCHED.load(Relaxed) == 0 && !shown::are_looked_at()
    }

    #[inline(always)]
    fn ask(named: &mut Named, number: i64, args: [usize; 5]) -> Option<isize> {
        if !Self::is_served_directly(named) {
            return None;
        }
        let opened = ask_host(named, number, args)?;
        Self::is_done(opened);
        Some(opened)
    }

    #[inline(always)]
    fn is_done(opened: isize) {
        // Not even if another thread has opened a pool's first file since.
        table::mark_kernel(opened as i32, || table::WATCHED.load(SeqCst) == 0);
    }
}

#[inline(never)]
fn stat_unless_link(named: &mut Named, number: i64, mut args: [usize; 5]) -> Option<isize> {
    const STAT: (usize, usize) = (size_of::<Stat>(), offset_of!(libc::stat, st_mode));
    const STATX: (usize, usize) = (size_of::<Statx>(), offset_of!(libc::statx, stx_mode));
    const NO_FOLLOW: usize = libc::AT_SYMLINK_NOFOLLOW as usize;
    let (number, out, (len, mode_at)) = match number {
        libc::SYS_stat => (libc::SYS_lstat, 1, STAT),
        libc::SYS_newfstatat => (number, 2, STAT),
        _ => (number, 4, STATX),
    };
    match number {
        libc::SYS_newfstatat => args[3] |= NO_FOLLOW,
        libc::SYS_statx if args[3] & libc::STATX_TYPE as usize == 0 => return None,
        libc::SYS_statx => args[2] |= NO_FOLLOW,
        _ => {}
    }
    let mut told = [0u8; size_of::<Statx>()];
    let address = core::mem::replace(&mut args[out], told.as_mut_ptr() as usize);
    let answer = ask_host(named, number, args)?;
    if answer != 0 {
        named.follow = false;
        return Some(answer);
    }
    let mode = u16::from_ne_bytes([told[mode_at], told[mode_at + 1]]);
    if u32::from(mode) & libc::S_IFMT == libc::S_IFLNK {
        PATH_FILTER.links_are_rare.store(false, Relaxed);
        return None;
    }
    match user::write_bytes(address, &told[..len]) {
        Ok(()) => Some(0),
        Err(_) => Some(-libc::EFAULT as isize),
    }
}

/// Whether no link leads a path of the host's into a pool that the kernel has just not found; false
/// says nothing. Asked as [`ask_host`]: short paths need no memory.
#[cold]
pub fn is_merely_missing(named: Named) -> bool {
    let look = || {
        let mut room = ShortString::uninit();
        let path = user::short_string(named.path, &mut room)?;
        let vfs = process::vfs()?;
        vfs.is_merely_missing(named.dir, path, named.follow)
            .then_some(())
    };
    fast_outside(look).is_some()
}

// SAFETY: as of `read`. The kernel has not found a path of the host.
pub unsafe extern "C" fn missing(path: usize) -> Outcome {
    missing_path(HERE, path)
}

// SAFETY: as of `missing`.
pub unsafe extern "C" fn missing_at(dir: i32, path: usize) -> Outcome {
    missing_path(dir, path)
}

/// Such a path may lead into a pool; then the call is made again.
fn missing_path(dir: i32, path: usize) -> Outcome {
    serve_path(path, |vfs, path| {
        let gone_elsewhere = vfs.retry_after_enoent(dir, path, true).is_some();
        (!gone_elsewhere).then_some(Ok(-libc::ENOENT as isize))
    })
}

// SAFETY: as of `read`.
pub unsafe extern "C" fn mkdir(path: usize, mode: u32) -> Outcome {
    make_folder(HERE, path, mode)
}

// SAFETY: as of `read`.
pub unsafe extern "C" fn mkdirat(dir: i32, path: usize, mode: u32) -> Outcome {
    make_folder(dir, path, mode)
}

// SAFETY: as of `read`.
pub unsafe extern "C" fn unlink(path: usize) -> Outcome {
    remove_name(HERE, path, 0)
}

// SAFETY: as of `read`.
pub unsafe extern "C" fn unlinkat(dir: i32, path: usize, flags: i32) -> Outcome {
    remove_name(dir, path, flags)
}

// SAFETY: as of `read`.
pub unsafe extern "C" fn rmdir(path: usize) -> Outcome {
    remove_name(HERE, path, libc::AT_REMOVEDIR)
}

// SAFETY: as of `read`.
pub unsafe extern "C" fn rename(from: usize, to: usize) -> Outcome {
    rename_path((HERE, from), (HERE, to), 0)
}

// SAFETY: as of `read`.
pub unsafe extern "C" fn renameat(from_dir: i32, from: usize, to_dir: i32, to: usize) -> Outcome {
    rename_path((from_dir, from), (to_dir, to), 0)
}

// SAFETY: as of `read`.
pub unsafe extern "C" fn renameat2(
    from_dir: i32,
    from: usize,
    to_dir: i32,
    to: usize,
    flags: u32,
) -> Outcome {
    rename_path((from_dir, from), (to_dir, to), flags)
}
