//! Files in shared memory that all users of a device map, and who uses one.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::{NonNull, null_mut};

use nacre_types::PAGE_SIZE;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::map::leave_out_of_core_dumps;

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
const SHARED: MapFlags = MapFlags::SHARED.union(MapFlags::NORESERVE);

/// Memory that processes share, mapped until it is dropped. What is in it may change at any time:
/// its owner reaches it through atomics.
#[derive(Debug)]
pub struct SharedMemory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: who makes a reference of `start` answers for it; the memory is unmapped by its one owner.
unsafe impl Send for SharedMemory {}
// SAFETY: a shared reference gives an address and a length.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// The first `len` bytes of a file.
    pub fn of_file(file: impl AsFd, len: usize) -> Result<SharedMemory, Errno> {
        let start = map(file, 0, len)?;
        Ok(SharedMemory { start, len })
    }

    /// Zeros that children share which are forked later.
    pub fn anonymous(len: usize) -> Result<SharedMemory, Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe { mmap_anonymous(null_mut(), len, READ_WRITE, SHARED)? };
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(SharedMemory { start, len })
    }

    /// A page that nobody reads. It keeps the open file description, and locks of that.
    pub fn keeping(file: impl AsFd) -> Result<SharedMemory, Errno> {
        let len = PAGE_SIZE as usize;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe { mmap(null_mut(), len, ProtFlags::empty(), SHARED, file, 0)? };
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(SharedMemory { start, len })
    }

    /// Where it begins.
    #[inline(always)]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Its addresses.
    pub fn addresses(&self) -> Range<usize> {
        let start = self.start.as_ptr() as usize;
        start..start + self.len
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping that this value made and owns. Nothing can be done about
        // a failure but to keep the addresses.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Maps `len` bytes of the file at `at`, which core dumps leave out. The caller unmaps them.
pub(crate) fn map(file: impl AsFd, at: u64, len: usize) -> Result<NonNull<u8>, Errno> {
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    let start = unsafe { mmap(null_mut(), len, READ_WRITE, SHARED, file, at)? };
    leave_out_of_core_dumps(start.addr(), len);
    NonNull::new(start.cast()).ok_or(Errno::NOMEM)
}

/// Becomes one of the file's users; alone if nobody else is one. `false`: somebody is. It lasts as
/// long as any process has the file mapped that had it through this one.
pub(crate) fn enter(file: impl AsFd, alone: bool) -> io::Result<bool> {
    let operation = match alone {
        true => FlockOperation::NonBlockingLockExclusive,
        false => FlockOperation::NonBlockingLockShared,
    };
    loop {
        match flock(&file, operation) {
            Ok(()) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        }
    }
}
