//! Calls that reach mapped memory in other ways than by loads and stores.
//!
//! Each is served, or refused where it would show or change other parts of the pool, or keep a part
//! that its file has given away (docs/semantics.md has the table).

use libc::{MADV_REMOVE, O_ACCMODE, O_RDONLY};

use super::{PAGE, Region, forget, holes, make_way, own, parts_in};
use crate::entry::call::{Call, Verdict};
use crate::entry::errno::Stop;
use crate::program::identity;
use crate::runtime::kernel::{self, checked};

/// `SPLICE_F_NONBLOCK`, and what it is for `pwritev2`.
const NONBLOCK: u32 = 2;
const RWF_NOWAIT: usize = 8;
const SHM_REMAP: i32 = 0o40000;
const SHM_RND: i32 = 0o20000;

/// Advice that changes what the pool's device holds, or takes memory of it out of use.
pub fn is_refused(advice: i32) -> bool {
    matches!(
        advice,
        MADV_REMOVE | libc::MADV_HWPOISON | libc::MADV_SOFT_OFFLINE
    )
}

/// Whether a path below /proc is the kernel's name of what is mapped in a shared mapping: it leads
/// to the whole device of the pool.
#[cold]
pub fn is_pool_behind(path: &[u8]) -> bool {
    const FOLDER: &[u8] = b"/map_files/";
    let at = path.windows(FOLDER.len()).position(|part| part == FOLDER);
    let name = at.and_then(|at| str::from_utf8(&path[at + FOLDER.len()..]).ok());
    let ends = name.and_then(|name| name.split_once('-'));
    let parse = |text| usize::from_str_radix(text, 16).ok();
    let Some((start, end)) = ends.and_then(|(start, end)| Some((parse(start)?, parse(end)?)))
    else {
        return false;
    };
    start < end && !parts_in(start, end - start).is_empty()
}

/// mlockall: all but the pools and sessions that every process maps whole, and of which it may use
/// little.
pub fn mlockall(c: &mut Call<'_>) -> Verdict {
    // What is mapped later may be locked at once.
    c.vfs().attach_all();
    let (flags, current) = (c.arg(0), libc::MCL_CURRENT as usize);
    let later = (libc::MCL_FUTURE | libc::MCL_ONFAULT) as usize;
    let Some(parts) =
        lockable(c).filter(|_| flags & current != 0 && flags & !(current | later) == 0)
    else {
        return Err(Stop::Native);
    };
    let total = parts.iter().map(|&(start, end)| (end - start) as u64).sum();
    let limit = kernel::limit(libc::RLIMIT_MEMLOCK as usize);
    if limit < total && identity::read().cap_effective & CAP_IPC_LOCK == 0 {
        let none = limit == 0;
        return Err(Stop::Errno(if none { libc::EPERM } else { libc::ENOMEM }));
    }
    if flags & libc::MCL_FUTURE as usize != 0 {
        checked(libc::SYS_mlockall, &[flags & !current]).map_err(Stop::Errno)?;
    }
    let on_fault = usize::from(flags & libc::MCL_ONFAULT as usize != 0);
    for (start, end) in parts {
        // What has no memory, or may not be touched, is locked as far as it goes.
        let _ = checked(libc::SYS_mlock2, &[start, end - start, on_fault]);
    }
    Ok(0)
}

const CAP_IPC_LOCK: u64 = 1 << 14;

/// What is mapped, by start and end, but for the pools; shared mappings of their files count. None:
/// it cannot be told.
fn lockable(c: &Call<'_>) -> Option<Vec<(usize, usize)>> {
    let pools = c.vfs().mapped_files();
    let maps = rustix::fs::openat(
        rustix::fs::CWD,
        c"/proc/self/maps",
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    );
    let (maps, mut text, mut room) = (maps.ok()?, Vec::new(), vec![0u8; 1 << 16]);
    loop {
        match rustix::io::read(&maps, room.as_mut_slice()).ok()? {
            0 => break,
            len => text.extend_from_slice(&room[..len]),
        }
    }
    let lines = str::from_utf8(&text).ok()?.lines().filter_map(mapped);
    let is_programs = |&(start, end, file): &(usize, usize, _)| {
        !pools.contains(&file) || !parts_in(start, end - start).is_empty()
    };
    Some(
        lines
            .filter(is_programs)
            .map(|(start, end, _)| (start, end))
            .collect(),
    )
}

/// Start, end, and device and inode of a line of /proc/self/maps.
fn mapped(line: &str) -> Option<(usize, usize, (u64, u64))> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let (major, minor) = words.nth(2)?.split_once(':')?;
    let parse = |text| usize::from_str_radix(text, 16).ok();
    let device = rustix::fs::makedev(parse(major)? as u32, parse(minor)? as u32);
    let inode = words.next()?.parse().ok()?;
    Some((parse(start)?, parse(end)?, (device, inode)))
}

/// mseal: what cannot be unmapped could never give its units back.
pub fn mseal(c: &mut Call<'_>) -> Verdict {
    let parts = parts_in(c.arg(0), c.arg(1));
    if parts.iter().any(|part| !part.private) {
        return Err(Stop::Errno(libc::EPERM));
    }
    // What is private can be memory of the process's own.
    {
        let mut pages = holes::lock();
        own::part_with(c.vfs(), &mut pages, &parts)?;
    }
    Err(Stop::Native)
}

/// process_madvise: since Linux 6.13 a process may give itself any advice.
pub fn process_madvise(c: &mut Call<'_>) -> Verdict {
    if is_refused(c.int(3)) && touches_regions(c)? {
        return Err(Stop::Errno(libc::EINVAL));
    }
    Err(Stop::Native)
}

/// Whether a buffer of the vector at argument 1 lies in a shared mapping.
fn touches_regions(c: &Call<'_>) -> Result<bool, Stop> {
    // The kernel knows better what is wrong with a vector.
    let vectors = c.vectors(1).map_err(|_| Stop::Native)?;
    Ok(vectors
        .iter()
        .any(|vector| !parts_in(vector.start, vector.len).is_empty()))
}

/// vmsplice: a pipe would keep the pages, also when they are another file's. So it gets a copy.
pub fn vmsplice(c: &mut Call<'_>) -> Verdict {
    if c.vfs().ours(c.int(0)) {
        return Err(Stop::Errno(libc::EBADF));
    }
    if !touches_regions(c)? || reads(c) {
        return Err(Stop::Native);
    }
    let flags = match c.uint(3) & NONBLOCK {
        0 => 0,
        _ => RWF_NOWAIT,
    };
    let (fd, vectors, count) = (c.arg(0), c.arg(1), c.arg(2));
    let args = [fd, vectors, count, usize::MAX, usize::MAX, flags];
    Ok(c.interruptible(libc::SYS_pwritev2 as usize, args))
}

/// Whether data goes from the pipe to memory, or the fd is none.
fn reads(c: &Call<'_>) -> bool {
    let flags = checked(libc::SYS_fcntl, &[c.arg(0), libc::F_GETFL as usize]);
    flags.map_or(true, |flags| flags as i32 & O_ACCMODE == O_RDONLY)
}

/// shmat: with `SHM_REMAP` it takes the place of what was mapped.
pub fn shmat(c: &mut Call<'_>) -> Verdict {
    if c.int(2) & SHM_REMAP == 0 {
        return Err(Stop::Native);
    }
    let Some(len) = segment_len(c.arg(0)) else {
        return Err(Stop::Native);
    };
    let start = match c.int(2) & SHM_RND {
        0 => c.arg(1),
        _ => c.arg(1) & !(PAGE - 1),
    };
    let parts = parts_in(start, len);
    if parts.is_empty() {
        return Err(Stop::Native);
    }
    if parts.iter().any(Region::is_chunked) {
        return Err(Stop::Errno(libc::EINVAL));
    }
    make_way(c, start, len);
    let result = c.native();
    if result >= 0 {
        forget(c.vfs(), result as usize, len);
    }
    Ok(result)
}

fn segment_len(id: usize) -> Option<usize> {
    // SAFETY: all zero is a valid `shmid_ds`.
    let mut about: libc::shmid_ds = unsafe { core::mem::zeroed() };
    let args = [id, libc::IPC_STAT as usize, &raw mut about as usize];
    checked(libc::SYS_shmctl, &args).ok()?;
    Some(about.shm_segsz)
}
