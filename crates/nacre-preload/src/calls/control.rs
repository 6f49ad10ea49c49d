//! fcntl, locks and ioctl.

use libc::{SYS_fcntl, SYS_flock, SYS_ioctl};
use nacre_vfs::{FileLock, IoctlReply, Reply};

use super::open::{new_fd, or_instance};
use super::{loops, watches};
use crate::entry::abi::{CloneRange, Flock};
use crate::entry::call::{Call, Verdict};
use crate::entry::errno::Stop;
use crate::entry::table::{ServedCall, entry, fd_entry, fd_number_entry};
use crate::entry::user;

/// The calls of this family.
pub const ENTRIES: &[ServedCall] = &[
    fd_number_entry(SYS_fcntl, "fcntl", fcntl),
    fd_entry(SYS_flock, "flock", |c| {
        c.on_fd(c.vfs().flock(c.int(0), c.int(1)))
    }),
    entry(SYS_ioctl, "ioctl", ioctl),
];

const F_OFD_GETLK: i32 = 36;
const F_OFD_SETLKW: i32 = 38;

fn fcntl(c: &mut Call<'_>) -> Verdict {
    match c.int(1) {
        libc::F_GETLK..=libc::F_SETLKW | F_OFD_GETLK..=F_OFD_SETLKW => lock(c),
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            let copy = new_fd(c.on_fd(c.vfs().fcntl(c.int(0), c.int(1), c.long(2))));
            or_instance(c, copy)
        }
        command => c.on_fd(c.vfs().fcntl(c.int(0), command, c.long(2))),
    }
}

fn lock(c: &mut Call<'_>) -> Verdict {
    if !c.vfs().ours(c.int(0)) {
        c.note_kernel(c.int(0));
        return Err(Stop::Native);
    }
    let mut raw: Flock = c.read(2)?;
    let Flock {
        kind,
        whence,
        start,
        len,
        pid,
        ..
    } = raw;
    let mut lock = FileLock {
        kind,
        whence,
        start,
        len,
        pid,
    };
    let result = c.on_fd(c.vfs().fcntl_lock(c.int(0), c.int(1), &mut lock))?;
    if matches!(c.int(1), libc::F_GETLK | F_OFD_GETLK) {
        let FileLock {
            kind,
            whence,
            start,
            len,
            pid,
        } = lock;
        raw = Flock {
            kind,
            whence,
            start,
            len,
            pid,
            ..raw
        };
        c.write(2, &raw)?;
    }
    Ok(result)
}

fn ioctl(c: &mut Call<'_>) -> Verdict {
    const FICLONERANGE: u32 = 0x4020_940d;
    const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
    const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;
    const FIONREAD: u32 = libc::FIONREAD as u32;
    let answer = match c.uint(1) {
        FICLONERANGE => return clone_range(c),
        loops::SET_FD | loops::CHANGE_FD => return loops::set_file(c),
        loops::CONFIGURE => return loops::configure(c),
        FS_IOC_SETFLAGS if c.vfs().ours(c.int(0)) => c.vfs().set_attributes(c.int(0), c.read(2)?),
        FS_IOC_FSSETXATTR if c.vfs().ours(c.int(0)) => {
            let words: [u32; 7] = c.read(2)?;
            let any = words.into_iter().fold(0, core::ops::BitOr::bitor);
            c.vfs().set_attributes(c.int(0), any)
        }
        request => c.vfs().ioctl(c.int(0), request, c.arg(2) as u64),
    };
    match answer? {
        Reply::Done(IoctlReply::Nothing) => Ok(0),
        Reply::Done(IoctlReply::Int(value)) => c.write(2, &value).map(|()| 0),
        Reply::Done(IoctlReply::Zeros(count)) => {
            user::write_bytes(c.arg(2), &vec![0; count])?;
            Ok(0)
        }
        _ if c.uint(1) == FIONREAD => {
            let bytes = watches::readable(c, c.int(0))?;
            c.write(2, &bytes).map(|()| 0)
        }
        _ => Err(Stop::Native),
    }
}

fn clone_range(c: &mut Call<'_>) -> Verdict {
    let range: CloneRange = c.read(2)?;
    let source = i32::try_from(range.source).map_err(|_| Stop::Errno(libc::EBADF))?;
    c.on_fd(c.vfs().clone_range(
        c.int(0),
        source,
        range.source_offset,
        range.len,
        range.target_offset,
    ))
}
