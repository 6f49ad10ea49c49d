//! The mapped memory and typed views of its regions.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU16, AtomicU64};

use nacre_media::SharedMemory;
use nacre_media::fault::SharedRange;
use rustix::io::Errno;

/// One region: byte offset in the file and number of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ByteRange {
    pub(crate) offset: u64,
    pub(crate) count: u64,
}

/// Types that may lie in memory which other processes change at any time.
///
/// # Safety
/// The type consists of atomics only (and types made of them), so that every bit pattern is a value
/// and every change is seen through interior mutability.
pub(crate) unsafe trait SharedWords {}

// SAFETY: an atomic.
unsafe impl SharedWords for AtomicU16 {}
// SAFETY: an atomic.
unsafe impl SharedWords for AtomicU64 {}

/// A shared read-write mapping, unmapped on drop.
pub(crate) struct Mapping {
    memory: SharedMemory,
    /// The pages of a file are found when they are touched.
    _watched: Option<SharedRange>,
}

impl Mapping {
    pub(crate) fn of_file(fd: BorrowedFd<'_>, len: usize) -> Result<Mapping, Errno> {
        let memory = SharedMemory::of_file(fd, len)?;
        let _watched = Some(SharedRange::new(memory.addresses().start, len));
        Ok(Mapping { memory, _watched })
    }

    pub(crate) fn anonymous(len: usize) -> Result<Mapping, Errno> {
        Ok(Mapping {
            memory: SharedMemory::anonymous(len)?,
            _watched: None,
        })
    }

    pub(crate) fn address_range(&self) -> Range<usize> {
        self.memory.addresses()
    }

    /// The view of a region; asserts that it lies inside the mapping. It must not be used after the
    /// mapping is dropped.
    pub(crate) fn region<T: SharedWords>(&self, range: ByteRange) -> Region<T> {
        let (offset, count) = (range.offset as usize, range.count as usize);
        let len = self.memory.addresses().len();
        assert!(count <= len / size_of::<T>() && offset <= len - count * size_of::<T>());
        // SAFETY: offset <= len by the assert, so the sum stays inside the mapping.
        let start = unsafe { self.memory.start().add(offset) }.cast::<T>();
        assert!(start.is_aligned());
        Region { start, count }
    }
}

/// The elements of one region.
pub(crate) struct Region<T> {
    start: NonNull<T>,
    count: usize,
}

// SAFETY: a view of shared words, which are atomics.
unsafe impl<T: SharedWords> Send for Region<T> {}
// SAFETY: `SharedWords` are atomics, which threads may share.
unsafe impl<T: SharedWords> Sync for Region<T> {}

impl<T: SharedWords> Region<T> {
    /// The same view once more.
    pub(crate) fn again(&self) -> Region<T> {
        let Region { start, count } = *self;
        Region { start, count }
    }

    #[inline]
    pub(crate) fn all(&self) -> &[T] {
        // SAFETY: `Mapping::region` checked bounds and alignment, T allows every bit pattern and
        // outside change, and the session that owns this view owns the mapping too.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.all().get(index)
    }
}
