//! Telling a device that it need not keep what it holds somewhere.

use std::ops::Range;
use std::os::fd::AsFd;

use rustix::fs::{FallocateFlags, FileType, fallocate, fstat};
use rustix::io::Errno;
use rustix::ioctl::{Setter, ioctl, opcode};

/// `BLKDISCARD`: the first byte, and how many.
type Discard = Setter<{ opcode::none(0x12, 119) }, [u64; 2]>;

/// The device need not keep what it holds in a range, which reads as anything afterwards. A file
/// gives the room back to its file system, and reads as zeros. `false`: it cannot do that.
pub fn discard(fd: impl AsFd, range: &Range<u64>) -> Result<bool, Errno> {
    let (at, len) = (range.start, range.end - range.start);
    let done = match FileType::from_raw_mode(fstat(&fd)?.st_mode) {
        // SAFETY: the kernel reads two numbers, which live until it returns.
        FileType::BlockDevice => unsafe { ioctl(&fd, Discard::new([at, len])) },
        _ => {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&fd, flags, at, len)
        }
    };
    match done {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY) => Ok(false),
        done => done.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;

    use super::discard;

    #[test]
    fn a_file_gives_its_room_back() {
        let mut file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.write_all(&[7; 1 << 20]).unwrap();
        let before = file.metadata().unwrap().blocks();
        assert!(discard(&file, &(64 << 10..512 << 10)).unwrap());
        let metadata = file.metadata().unwrap();
        assert_eq!(before - metadata.blocks(), (448 << 10) / 512);
        assert_eq!(metadata.len(), 1 << 20);
    }
}
