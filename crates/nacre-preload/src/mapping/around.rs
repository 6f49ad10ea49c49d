//! Calls that reach mapped memory in other ways than by loads and stores.
//!
//! Each is served, or refused where it would show or change other parts of the pool, or keep a part that its file has given
//! away (docs/semantics.md has the table).

use libc::{MADV_REMOVE, O_ACCMODE, O_RDONLY};

use super::{PAGE, Region, forget, parts_in};
use crate::call::{Call, Verdict};
use crate::errno::Stop;
use crate::kernel::checked;

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

/// Whether a path below /proc is the kernel's name of what is mapped in a shared mapping: it leads to the whole device of the
/// pool.
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

/// mseal: what cannot be unmapped could never give its units back.
pub fn mseal(c: &mut Call<'_>) -> Verdict {
    match parts_in(c.arg(0), c.arg(1)).is_empty() {
        true => Err(Stop::Native),
        false => Err(Stop::Errno(libc::EPERM)),
    }
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
