//! Making, duplicating and closing descriptors.

use libc::{
    SYS_close, SYS_close_range, SYS_creat, SYS_dup, SYS_dup2, SYS_dup3, SYS_open, SYS_openat2,
    SYS_pidfd_getfd,
};
use nacre_vfs::{Answer, Reply, Vfs};

use crate::calls::watches;
use crate::entry::abi::OpenHow;
use crate::entry::call::{Call, Verdict, path_at, path_in};
use crate::entry::errno::Stop;
use crate::entry::table::{self, ServedCall, entry, fd_number_entry, open_entry};
use crate::entry::user::StringBuffer;
use crate::program::descriptors;
use crate::program::instances;
use crate::runtime::kernel::checked;

/// The calls of this family.
pub const ENTRIES: &[ServedCall] = &[
    entry(SYS_open, "open", open),
    entry(SYS_creat, "creat", creat),
    open_entry(openat),
    entry(SYS_openat2, "openat2", openat2),
    fd_number_entry(SYS_close, "close", close),
    entry(SYS_close_range, "close_range", close_range),
    fd_number_entry(SYS_dup, "dup", |c| {
        let copy = new_fd(c.on_fd(c.vfs().dup(c.int(0))));
        or_instance(c, copy)
    }),
    entry(SYS_dup2, "dup2", |c| {
        onto(c, |vfs, old, new| vfs.dup2(old, new))
    }),
    entry(SYS_dup3, "dup3", |c| {
        let flags = c.int(2);
        onto(c, |vfs, old, new| vfs.dup3(old, new, flags))
    }),
    entry(SYS_pidfd_getfd, "pidfd_getfd", pidfd_getfd),
];

/// A descriptor that a call has just returned may be ours: forget what was known of its number.
pub fn new_fd(verdict: Verdict) -> Verdict {
    if let Ok(fd) = verdict {
        table::unmark(fd as i32);
    }
    verdict
}

fn open(c: &mut Call<'_>) -> Verdict {
    let (flags, mode) = (c.int(1), c.uint(2));
    let place = path_in(0).followed_if(flags & libc::O_NOFOLLOW == 0);
    c.on_path_to_fd(place, &|vfs, dir, path| vfs.openat(dir, path, flags, mode))
}

fn creat(c: &mut Call<'_>) -> Verdict {
    let (flags, mode) = (libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, c.uint(1));
    c.on_path_to_fd(path_in(0), &|vfs, dir, path| {
        vfs.openat(dir, path, flags, mode)
    })
}

fn openat(c: &mut Call<'_>) -> Verdict {
    let (flags, mode) = (c.int(2), c.uint(3));
    let place = path_at(0).followed_if(flags & libc::O_NOFOLLOW == 0);
    c.on_path_to_fd(place, &|vfs, dir, path| vfs.openat(dir, path, flags, mode))
}

fn openat2(c: &mut Call<'_>) -> Verdict {
    let how: OpenHow = c.read_growing(2)?;
    if how.resolve & libc::RESOLVE_IN_ROOT != 0
        && let Some(relative) = below_root(c)?
    {
        let args = [c.arg(0), relative, c.arg(2), c.arg(3), 0, 0];
        return c.serve_another(SYS_openat2, args);
    }
    let place = path_at(0).followed_if(how.flags & libc::O_NOFOLLOW as u64 == 0);
    let open =
        |vfs: &Vfs, dir, path: &[u8]| vfs.openat2(dir, path, how.flags, how.mode, how.resolve);
    c.on_path_to_fd(place, &open)
}

/// Where the path of a call begins without its slashes, if it begins with any: with
/// `RESOLVE_IN_ROOT` it starts at the given folder, whoever would own it otherwise.
fn below_root(c: &Call<'_>) -> Result<Option<usize>, Stop> {
    let mut buffer = StringBuffer::new();
    let path = c.string(1, &mut buffer)?;
    let slashes = path.iter().take_while(|&&byte| byte == b'/').count();
    Ok(match slashes {
        0 => None,
        all if all == path.len() => Some(c".".as_ptr() as usize),
        _ => Some(c.arg(1) + slashes),
    })
}

/// Descriptors of the library do not exist for the program.
fn close(c: &mut Call<'_>) -> Verdict {
    if descriptors::is_internal(c.int(0)) {
        return Err(Stop::Errno(libc::EBADF));
    }
    let fd = c.int(0);
    match c.vfs().close(fd)? {
        Reply::Done(value) => Ok(value as isize),
        _ => {
            c.note_kernel(fd);
            let result = c.native();
            c.vfs().closed_in_kernel(fd);
            watches::closed(c, fd);
            Ok(result)
        }
    }
}

fn close_range(c: &mut Call<'_>) -> Verdict {
    let (first, last, flags) = (c.uint(0), c.uint(1), c.uint(2));
    if let Reply::Done(value) = c.vfs().close_range(first, last, flags)? {
        return Ok(value as isize);
    }
    let result = if descriptors::internal().all(|fd| !(first..=last).contains(&(fd as u32))) {
        Ok(c.native())
    } else {
        close_around_internal(first, last, flags)
    };
    c.vfs().closed_in_kernel(first as i32);
    if flags & libc::CLOSE_RANGE_CLOEXEC == 0 {
        watches::closed_range(c, first, last);
    }
    result
}

fn close_around_internal(mut first: u32, last: u32, flags: u32) -> Verdict {
    let mut internal: Vec<u32> = descriptors::internal().map(|fd| fd as u32).collect();
    internal.sort_unstable();
    internal.retain(|fd| (first..=last).contains(fd));
    let mut result = Ok(0);
    let mut close = |first: u32, last: u32| {
        let args = [first as usize, last as usize, flags as usize];
        if let (true, Err(errno)) = (first <= last, checked(SYS_close_range, &args)) {
            result = Err(Stop::Errno(errno));
        }
    };
    for fd in internal {
        if fd > first {
            close(first, fd - 1);
        }
        first = fd + 1;
    }
    close(first, last);
    result
}

/// What the kernel is to duplicate may be an inotify instance.
pub fn or_instance(c: &mut Call<'_>, copy: Verdict) -> Verdict {
    match copy {
        Err(Stop::Native) if instances::has(c.int(0)) => watches::duplicate(c),
        other => other,
    }
}

fn onto(c: &mut Call<'_>, duplicate: impl Fn(&Vfs, i32, i32) -> Answer) -> Verdict {
    let (old, new) = (c.int(0), c.int(1));
    if descriptors::is_internal(new) {
        return Err(Stop::Errno(libc::EBADF));
    }
    match duplicate(c.vfs(), old, new)? {
        Reply::Done(fd) => {
            watches::closed(c, new);
            new_fd(Ok(fd as isize))
        }
        _ if old != new && instances::exist() => {
            watches::closed(c, new);
            or_instance(c, Err(Stop::Native))
        }
        _ => Err(Stop::Native),
    }
}

fn pidfd_getfd(c: &mut Call<'_>) -> Verdict {
    c.vfs().make_room();
    let result = c.native();
    if result >= 0 {
        c.vfs().received_fd(result as i32);
        table::unmark(result as i32);
    }
    Ok(result)
}
