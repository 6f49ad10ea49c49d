//! What is known of a file, and changing it.

use libc::{
    SYS_access, SYS_chmod, SYS_chown, SYS_faccessat, SYS_faccessat2, SYS_fchmod, SYS_fchmodat,
    SYS_fchown, SYS_fchownat, SYS_fstat, SYS_fstatfs, SYS_futimesat, SYS_lchown, SYS_lstat,
    SYS_newfstatat, SYS_stat, SYS_statfs, SYS_statx, SYS_utime, SYS_utimensat, SYS_utimes,
};
use nacre_vfs::{Answer, FileStat, Reply, SetTime, Vfs};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::entry::abi::{self, Stat, Statfs, Statx, Timespec, Timeval, Utimbuf};
use crate::entry::call::{Call, PathAt, Verdict, name_in, path_at, path_in};
use crate::entry::errno::Stop;
use crate::entry::table::{ServedCall, entry, fd_entry, fd_path_entry};
use crate::entry::user::{self, StringBuffer};
use crate::program::shown;

const SYS_FCHMODAT2: i64 = 452;
/// From Linux 6.17 on.
const SYS_FILE_GETATTR: i64 = 468;
const SYS_FILE_SETATTR: i64 = 469;
const NO_FOLLOW: i32 = libc::AT_SYMLINK_NOFOLLOW;

/// The calls of this family.
pub const ENTRIES: &[ServedCall] = &[
    entry(SYS_stat, "stat", |c| stat(c, path_in(0), 0, 1)),
    entry(SYS_lstat, "lstat", |c| stat(c, name_in(0), NO_FOLLOW, 1)),
    fd_entry(SYS_fstat, "fstat", fstat),
    fd_path_entry(SYS_newfstatat, "newfstatat", |c| {
        stat(c, at_flags(c, 3), c.int(3), 2)
    }),
    entry(SYS_statx, "statx", statx),
    entry(SYS_access, "access", |c| access(c, path_in(0), 1, 0)),
    entry(SYS_faccessat, "faccessat", |c| access(c, path_at(0), 2, 0)),
    entry(SYS_faccessat2, "faccessat2", |c| {
        access(c, at_flags(c, 3), 2, c.int(3))
    }),
    entry(SYS_chmod, "chmod", |c| chmod(c, path_in(0), 1, 0)),
    fd_entry(SYS_fchmod, "fchmod", |c| {
        c.on_fd(c.vfs().fchmod(c.int(0), c.uint(1)))
    }),
    entry(SYS_fchmodat, "fchmodat", |c| chmod(c, path_at(0), 2, 0)),
    entry(SYS_FCHMODAT2, "fchmodat2", |c| {
        chmod(c, at_flags(c, 3), 2, c.int(3))
    }),
    entry(SYS_chown, "chown", |c| chown(c, path_in(0), 1, 0)),
    entry(SYS_lchown, "lchown", |c| chown(c, name_in(0), 1, NO_FOLLOW)),
    fd_entry(SYS_fchown, "fchown", |c| {
        c.on_fd(c.vfs().fchown(c.int(0), c.uint(1), c.uint(2)))
    }),
    entry(SYS_fchownat, "fchownat", |c| {
        chown(c, at_flags(c, 4), 2, c.int(4))
    }),
    entry(SYS_utime, "utime", utime),
    entry(SYS_utimes, "utimes", |c| utimes(c, path_in(0), 1)),
    entry(SYS_futimesat, "futimesat", |c| utimes(c, path_at(0), 2)),
    entry(SYS_utimensat, "utimensat", utimensat),
    entry(SYS_statfs, "statfs", statfs),
    fd_entry(SYS_fstatfs, "fstatfs", fstatfs),
    entry(SYS_FILE_GETATTR, "file_getattr", file_attributes),
    entry(SYS_FILE_SETATTR, "file_setattr", file_attributes),
];

/// A path behind its directory fd, whose last link is followed unless the flags forbid it.
fn at_flags(c: &Call<'_>, flags: usize) -> PathAt {
    path_at(0).followed_if(c.int(flags) & NO_FOLLOW == 0)
}

/// Turns what the vfs knows into a struct of the program at `address`.
fn encoded<T, S>(answer: Answer<T>, address: usize) -> Answer
where
    S: for<'t> From<&'t T> + IntoBytes + Immutable,
{
    match answer? {
        Reply::Done(known) => match user::write(address, &S::from(&known)) {
            Ok(()) => Ok(Reply::Done(0)),
            Err(_) => Err(nacre_vfs::ErrorKind::UserFault.into()),
        },
        elsewhere => Ok(elsewhere.without_value()),
    }
}

/// Whether a call with a directory fd and a path is about the fd itself, as the C library's fstat.
pub fn names_open_file(c: &Call<'_>, flags: i32) -> Result<bool, Stop> {
    if flags & libc::AT_EMPTY_PATH == 0 || c.int(0) < 0 {
        return Ok(false);
    }
    Ok(c.arg(1) == 0 || c.string(1, &mut StringBuffer::new())?.is_empty())
}

fn stat(c: &mut Call<'_>, place: PathAt, flags: i32, out: usize) -> Verdict {
    if flags & !STATX_FLAGS != 0 {
        return Err(Stop::Native);
    }
    let out = c.arg(out);
    if names_open_file(c, flags)? {
        return c.on_fd(encoded::<FileStat, Stat>(c.vfs().fstat(c.int(0)), out));
    }
    let ask =
        |vfs: &Vfs, dir, path: &[u8]| encoded::<FileStat, Stat>(vfs.fstatat(dir, path, flags), out);
    let answer = c.on_path(place, &ask)?;
    again_if_shown(c, answer, user::read(out).ok(), |c| c.on_path(place, &ask))
}

/// Makes a call again that the kernel has answered with a file of a pool that it shows.
fn again_if_shown(
    c: &mut Call<'_>,
    answer: isize,
    device: Option<u64>,
    again: impl FnOnce(&mut Call<'_>) -> Verdict,
) -> Verdict {
    match answer == 0 && device.is_some_and(shown::is) {
        true => again(c),
        false => Ok(answer),
    }
}

fn fstat(c: &mut Call<'_>) -> Verdict {
    c.on_fd(encoded::<FileStat, Stat>(c.vfs().fstat(c.int(0)), c.arg(1)))
}

/// Flags of statx that mean something; the kernel refuses the others.
const STATX_FLAGS: i32 = NO_FOLLOW | libc::AT_EMPTY_PATH | libc::AT_NO_AUTOMOUNT | 0x6000;

fn statx(c: &mut Call<'_>) -> Verdict {
    if c.int(2) & !STATX_FLAGS != 0
        || c.int(2) & 0x6000 == 0x6000
        || c.uint(3) & abi::STATX_RESERVED != 0
    {
        return Err(Stop::Native);
    }
    let (flags, out) = (c.int(2), c.arg(4));
    if names_open_file(c, flags)? {
        return c.on_fd(encoded::<FileStat, Statx>(c.vfs().fstat(c.int(0)), out));
    }
    let ask = |vfs: &Vfs, dir, path: &[u8]| {
        encoded::<FileStat, Statx>(vfs.fstatat(dir, path, flags), out)
    };
    let place = at_flags(c, 2);
    let answer = c.on_path(place, &ask)?;
    let device = user::device_of_statx(out);
    again_if_shown(c, answer, device, |c| c.on_path(place, &ask))
}

fn access(c: &mut Call<'_>, place: PathAt, mode: usize, flags: i32) -> Verdict {
    let mode = c.int(mode);
    c.on_path(place, &|vfs, dir, path| {
        vfs.faccessat(dir, path, mode, flags)
    })
}

fn chmod(c: &mut Call<'_>, place: PathAt, mode: usize, flags: i32) -> Verdict {
    let mode = c.uint(mode);
    c.on_path(place, &|vfs, dir, path| {
        vfs.fchmodat(dir, path, mode, flags)
    })
}

fn chown(c: &mut Call<'_>, place: PathAt, uid: usize, flags: i32) -> Verdict {
    let (uid, gid) = (c.uint(uid), c.uint(uid + 1));
    c.on_path(place, &|vfs, dir, path| {
        vfs.fchownat(dir, path, uid, gid, flags)
    })
}

/// Access and modification time to set.
type Times = [SetTime; 2];

/// Two times of the program at argument `i`; a null pointer means now.
fn times<T: FromBytes + Copy>(
    c: &Call<'_>,
    i: usize,
    to_set: fn(T) -> Option<SetTime>,
) -> Result<Times, Stop> {
    let Some(pair) = c.read_optional::<[T; 2]>(i)? else {
        return Ok([SetTime::Now; 2]);
    };
    match pair.map(to_set) {
        [Some(access), Some(modification)] => Ok([access, modification]),
        _ => Err(Stop::Errno(libc::EINVAL)),
    }
}

fn set_times(c: &mut Call<'_>, place: PathAt, [access, modification]: Times) -> Verdict {
    c.on_path(place, &|vfs: &Vfs, dir, path| {
        vfs.utimensat(dir, Some(path), access, modification, 0)
    })
}

fn utime(c: &mut Call<'_>) -> Verdict {
    let times = match c.read_optional::<Utimbuf>(1)? {
        None => [SetTime::Now; 2],
        Some(times) => [abi::seconds(times.access), abi::seconds(times.modification)],
    };
    set_times(c, path_in(0), times)
}

fn utimes(c: &mut Call<'_>, place: PathAt, i: usize) -> Verdict {
    let times = times(c, i, Timeval::to_set)?;
    set_times(c, place, times)
}

fn utimensat(c: &mut Call<'_>) -> Verdict {
    let [access, modification] = times(c, 2, Timespec::to_set)?;
    let flags = c.int(3);
    if c.arg(1) == 0 {
        return c.on_fd(
            c.vfs()
                .utimensat(c.int(0), None, access, modification, flags),
        );
    }
    c.on_path(at_flags(c, 3), &|vfs, dir, path| {
        vfs.utimensat(dir, Some(path), access, modification, flags)
    })
}

fn statfs(c: &mut Call<'_>) -> Verdict {
    let out = c.arg(1);
    c.on_path(path_in(0), &|vfs, _, path| {
        encoded::<_, Statfs>(vfs.statfs(path), out)
    })
}

fn fstatfs(c: &mut Call<'_>) -> Verdict {
    c.on_fd(encoded::<_, Statfs>(c.vfs().fstatfs(c.int(0)), c.arg(1)))
}

fn file_attributes(c: &mut Call<'_>) -> Verdict {
    let flags = c.int(4);
    if flags & !(NO_FOLLOW | libc::AT_EMPTY_PATH) != 0 {
        return Err(Stop::Native);
    }
    if names_open_file(c, flags)? {
        return c.on_fd(c.vfs().ffile_attributes(c.int(0)));
    }
    c.on_path(at_flags(c, 4), &|vfs, dir, path| {
        vfs.file_attributes(dir, path, flags)
    })
}
