//! Write-back of parts of a file: begun without waiting, or waited for without the rest of it.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::null_mut;

use libc::{SYNC_FILE_RANGE_WAIT_AFTER, SYNC_FILE_RANGE_WAIT_BEFORE, SYNC_FILE_RANGE_WRITE};
use nacre_types::PAGE_SIZE;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

use crate::error::last_errno;

/// The kernel begins to write what it holds of a range.
pub fn begin_write_back(fd: impl AsFd, range: Range<u64>) -> Result<(), Errno> {
    write_back(fd, range, SYNC_FILE_RANGE_WRITE)
}

/// What was written to these ranges is durable on return. Nobody waits for what is dirty elsewhere
/// in the file, but for its place in the file system.
pub fn settle(fd: impl AsFd, ranges: &[Range<u64>]) -> Result<(), Errno> {
    let each = |how| {
        let mut ranges = ranges.iter().cloned();
        ranges.try_for_each(|range| write_back(&fd, range, how))
    };
    each(SYNC_FILE_RANGE_WRITE)?;
    each(SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER)?;
    match ranges.first() {
        Some(first) => flush(fd, first.start),
        None => Ok(()),
    }
}

fn write_back(fd: impl AsFd, range: Range<u64>, how: u32) -> Result<(), Errno> {
    let (at, len) = (range.start as i64, (range.end - range.start) as i64);
    // SAFETY: the call takes numbers alone.
    match unsafe { libc::sync_file_range(fd.as_fd().as_raw_fd(), at, len, how) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// What the device took is durable on return, and so is where it belongs. `msync` is the one call
/// that does this and waits for a part of a file only: here the page at `at`.
fn flush(fd: impl AsFd, at: u64) -> Result<(), Errno> {
    let at = at / PAGE_SIZE * PAGE_SIZE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    let page = unsafe {
        mmap(
            null_mut(),
            PAGE_SIZE as usize,
            ProtFlags::READ,
            MapFlags::SHARED,
            fd,
            at,
        )?
    };
    // SAFETY: the page was just mapped, and nobody else knows it.
    unsafe {
        let done = msync(page, PAGE_SIZE as usize, MsyncFlags::SYNC);
        // It was just mapped, so this cannot fail.
        let _ = munmap(page, PAGE_SIZE as usize);
        done
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use rustix::io::Errno;

    use super::{begin_write_back, settle};

    #[test]
    fn parts_of_a_file_are_written_back() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.set_len(1 << 20).unwrap();
        file.write_all_at(&[7; 5000], 9000).unwrap();
        assert_eq!(begin_write_back(&file, 0..1 << 20), Ok(()));
        assert_eq!(settle(&file, &[9000..14000, 0..1]), Ok(()));
        assert_eq!(settle(&file, &[]), Ok(()));
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let (_reader, writer) = std::io::pipe().unwrap();
        assert_eq!(begin_write_back(&writer, 0..1), Err(Errno::SPIPE));
        let gone = File::open("/proc/self/mem").unwrap();
        assert!(settle(&gone, &[0..4096, 8192..9000]).is_err());
    }
}
