//! Moving data between files, ours or not, without the program's memory.

use std::os::fd::BorrowedFd;

use libc::{SYS_copy_file_range, SYS_sendfile, SYS_splice, SYS_tee};
use nacre_vfs::Reply;

use crate::entry::call::{Call, Verdict, sink, source};
use crate::entry::errno::Stop;
use crate::entry::table::{ServedCall, entry};
use crate::runtime::kernel::{Raw, checked};

/// The calls of this family.
pub const ENTRIES: &[ServedCall] = &[
    entry(SYS_copy_file_range, "copy_file_range", copy_file_range),
    entry(SYS_sendfile, "sendfile", sendfile),
    entry(SYS_splice, "splice", splice),
    entry(SYS_tee, "tee", tee),
];

/// Flags of splice that mean something.
const SPLICE_FLAGS: u32 =
    libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
/// Bytes moved at once.
const BOUNCE: usize = 64 << 10;

fn copy_file_range(c: &mut Call<'_>) -> Verdict {
    let (from, to) = (c.read_optional::<i64>(1)?, c.read_optional::<i64>(3)?);
    let vfs = c.vfs();
    let ours = [0, 2].map(|i| vfs.ours(c.int(i)));
    if let [true, false] | [false, true] = ours {
        let host = if ours[0] { c.int(2) } else { c.int(0) };
        check_regular(host)?;
    }
    match vfs.copy_file_range(c.int(0), from, c.int(2), to, c.arg(4), c.uint(5))? {
        Reply::Done(copied) => {
            for (i, offset) in [(1, from), (3, to)] {
                offset.map_or(Ok(()), |offset| c.write(i, &(offset + copied)))?;
            }
            Ok(copied as isize)
        }
        _ => Err(Stop::Native),
    }
}

/// tee takes pipes; files of pools are none.
fn tee(c: &mut Call<'_>) -> Verdict {
    let ours = [0, 1].iter().any(|&i| c.vfs().ours(c.int(i)));
    Err(if ours {
        Stop::Errno(libc::EINVAL)
    } else {
        Stop::Native
    })
}

/// One end of a transfer: an fd and, if given, where the offset to use and move is kept.
#[derive(Clone, Copy)]
struct End {
    fd: i32,
    ours: bool,
    offset: Option<i64>,
}

fn end(c: &Call<'_>, fd: usize, offset: Option<i64>) -> End {
    End {
        fd: c.int(fd),
        ours: c.vfs().ours(c.int(fd)),
        offset,
    }
}

/// What the kernel says first of all of a file of the host that bytes are to be copied from or to.
fn check_regular(fd: i32) -> Result<(), Stop> {
    match format_of(fd)? {
        libc::S_IFREG => Ok(()),
        libc::S_IFDIR => Err(Stop::Errno(libc::EISDIR)),
        _ => Err(Stop::Errno(libc::EINVAL)),
    }
}

/// Type of the kernel's file behind an fd.
fn format_of(fd: i32) -> Result<u32, Stop> {
    // SAFETY: whoever closes it meanwhile has the kernel say so.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    match fd {
        0.. => match rustix::fs::fstat(file) {
            Ok(stat) => Ok(stat.st_mode & libc::S_IFMT),
            Err(errno) => Err(Stop::Errno(errno.raw_os_error())),
        },
        _ => Err(Stop::Errno(libc::EBADF)),
    }
}

/// Whether bytes may be read from the one end and written to the other.
fn check_ends(c: &Call<'_>, from: End, to: End) -> Result<(), Stop> {
    let opened = |end: End| -> Result<i32, Stop> {
        let flags = if end.ours {
            count(c.vfs().fcntl(end.fd, libc::F_GETFL, 0)?)? as i32
        } else {
            let args = [end.fd as usize, libc::F_GETFL as usize, 0];
            checked(libc::SYS_fcntl, &args).map_err(Stop::Errno)? as i32
        };
        Ok(flags)
    };
    let (from_flags, to_flags) = (opened(from)?, opened(to)?);
    let allows = |flags: i32, other| flags & libc::O_PATH == 0 && flags & libc::O_ACCMODE != other;
    if !allows(from_flags, libc::O_WRONLY) || !allows(to_flags, libc::O_RDONLY) {
        return Err(Stop::Errno(libc::EBADF));
    }
    // As the kernel: nothing is moved to the end of a file, whatever that is by then.
    let appends = to_flags & libc::O_APPEND != 0;
    let to_end = appends && (to.ours || format_of(to.fd)? != libc::S_IFIFO);
    match to_end || from.ours && is_folder(c, from.fd) {
        true => Err(Stop::Errno(libc::EINVAL)),
        false => Ok(()),
    }
}

fn is_folder(c: &Call<'_>, fd: i32) -> bool {
    let found = c.vfs().fstat(fd);
    matches!(found, Ok(Reply::Done(stat)) if stat.mode & libc::S_IFMT == libc::S_IFDIR)
}

fn sendfile(c: &mut Call<'_>) -> Verdict {
    let from = end(c, 1, c.read_optional(2)?);
    let to = end(c, 0, None);
    if !from.ours && !to.ours {
        return Err(Stop::Native);
    }
    check_ends(c, from, to)?;
    let moved = pump(c, from, to, c.arg(3))?;
    from.offset
        .map_or(Ok(()), |offset| c.write(2, &(offset + moved as i64)))?;
    Ok(moved as isize)
}

fn splice(c: &mut Call<'_>) -> Verdict {
    let from = end(c, 0, c.read_optional(1)?);
    let to = end(c, 2, c.read_optional(3)?);
    if !from.ours && !to.ours {
        return Err(Stop::Native);
    }
    if from.ours && to.ours {
        return Err(Stop::Errno(libc::EINVAL));
    }
    if c.arg(4) == 0 {
        return Ok(0);
    }
    if c.uint(5) & !SPLICE_FLAGS != 0 {
        return Err(Stop::Errno(libc::EINVAL));
    }
    check_ends(c, from, to)?;
    let pipe = if from.ours { to } else { from };
    if format_of(pipe.fd)? != libc::S_IFIFO {
        return Err(Stop::Errno(libc::EINVAL));
    }
    if pipe.offset.is_some() {
        return Err(Stop::Errno(libc::ESPIPE));
    }
    // A pipe gives what it has: waiting for more would differ from the kernel.
    let len = if from.ours {
        c.arg(4)
    } else {
        c.arg(4).min(BOUNCE)
    };
    let moved = pump(c, from, to, len)?;
    for (i, end) in [(1, from), (3, to)] {
        end.offset
            .map_or(Ok(()), |offset| c.write(i, &(offset + moved as i64)))?;
    }
    Ok(moved as isize)
}

/// Copies up to `len` bytes through a buffer. An error counts only if nothing was moved.
fn pump(c: &mut Call<'_>, from: End, to: End, len: usize) -> Result<usize, Stop> {
    let mut buffer = vec![0u8; BOUNCE.min(len)];
    let mut moved = 0;
    while moved < len {
        let part = &mut buffer[..BOUNCE.min(len - moved)];
        let step = pump_once(c, from, to, part, moved);
        match step {
            Ok((read, written)) => {
                moved += written;
                if written < read || read < part.len() {
                    break;
                }
            }
            Err(_) if moved > 0 => break,
            Err(stop) => return Err(stop),
        }
    }
    Ok(moved)
}

/// One round: bytes read and bytes written. What was read but not written is given back.
fn pump_once(
    c: &mut Call<'_>,
    from: End,
    to: End,
    part: &mut [u8],
    done: usize,
) -> Result<(usize, usize), Stop> {
    let position = from.offset.map(|offset| offset + done as i64);
    let read = read_from(c, from, position, part)?;
    if read == 0 {
        return Ok((0, 0));
    }
    let place = to.offset.map(|offset| offset + done as i64);
    let written = write_to(c, to, place, &part[..read]);
    let left = read - *written.as_ref().unwrap_or(&0);
    if left > 0 && position.is_none() {
        give_back(c, from, left);
    }
    Ok((read, written?))
}

fn read_from(c: &mut Call<'_>, from: End, at: Option<i64>, to: &mut [u8]) -> Result<usize, Stop> {
    let (start, len) = (to.as_mut_ptr() as usize, to.len());
    if !from.ours {
        return kernel_io(
            c,
            [libc::SYS_read, libc::SYS_pread64],
            from.fd,
            at,
            start,
            len,
        );
    }
    let reply = match at {
        Some(at) => c.vfs().pread(from.fd, sink(start, len)?, at)?,
        None => c.vfs().read(from.fd, sink(start, len)?)?,
    };
    count(reply)
}

fn write_to(c: &mut Call<'_>, to: End, at: Option<i64>, from: &[u8]) -> Result<usize, Stop> {
    let (start, len) = (from.as_ptr() as usize, from.len());
    if !to.ours {
        return kernel_io(
            c,
            [libc::SYS_write, libc::SYS_pwrite64],
            to.fd,
            at,
            start,
            len,
        );
    }
    let reply = match at {
        Some(at) => c.vfs().pwrite(to.fd, source(start, len)?, at)?,
        None => c.vfs().write(to.fd, source(start, len)?)?,
    };
    count(reply)
}

fn kernel_io(
    c: &mut Call<'_>,
    [plain, positioned]: [libc::c_long; 2],
    fd: i32,
    at: Option<i64>,
    start: usize,
    len: usize,
) -> Result<usize, Stop> {
    let number = if at.is_some() { positioned } else { plain };
    let args = [fd as usize, start, len, at.unwrap_or(0) as usize, 0, 0];
    value(c.interruptible(number as usize, args))
}

fn value(result: Raw) -> Result<usize, Stop> {
    usize::try_from(result).map_err(|_| Stop::Errno(-result as i32))
}

fn count(reply: Reply) -> Result<usize, Stop> {
    match reply {
        Reply::Done(count) => Ok(count as usize),
        _ => Err(Stop::Errno(libc::EBADF)),
    }
}

/// Moves the position back over bytes that nobody took.
fn give_back(c: &mut Call<'_>, from: End, left: usize) {
    let back = -(left as i64);
    if from.ours {
        let _ = c.vfs().lseek(from.fd, back, libc::SEEK_CUR);
    } else {
        let args = [
            from.fd as usize,
            back as usize,
            libc::SEEK_CUR as usize,
            0,
            0,
            0,
        ];
        c.interruptible(libc::SYS_lseek as usize, args);
    }
}
