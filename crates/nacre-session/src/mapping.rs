//! The mapped memory and typed views of its regions.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::slice;
use std::sync::atomic::{AtomicU16, AtomicU64};

use nacre_media::fault::SharedRange;
use nacre_media::leave_out_of_core_dumps;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

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
    base: NonNull<u8>,
    len: usize,
    /// The pages of a file are found when they are touched.
    _watched: Option<SharedRange>,
}

// SAFETY: the memory is reached through atomics only, and unmapped by whoever drops the one owner.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference hands out atomics only.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn of_file(fd: BorrowedFd<'_>, len: usize) -> Result<Mapping, Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            mmap(
                null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                fd,
                0,
            )?
        };
        leave_out_of_core_dumps(base.addr(), len);
        Ok(Mapping {
            base: NonNull::new(base.cast()).ok_or(Errno::NOMEM)?,
            len,
            _watched: Some(SharedRange::new(base as usize, len)),
        })
    }

    pub(crate) fn anonymous(len: usize) -> Result<Mapping, Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            mmap_anonymous(
                null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
            )?
        };
        Ok(Mapping {
            base: NonNull::new(base.cast()).ok_or(Errno::NOMEM)?,
            len,
            _watched: None,
        })
    }

    pub(crate) fn address_range(&self) -> Range<usize> {
        let start = self.base.as_ptr() as usize;
        start..start + self.len
    }

    /// The view of a region; asserts that it lies inside the mapping. It must not be used after the
    /// mapping is dropped.
    pub(crate) fn region<T: SharedWords>(&self, span: ByteRange) -> Region<T> {
        let (offset, count) = (span.offset as usize, span.count as usize);
        assert!(count <= self.len / size_of::<T>() && offset <= self.len - count * size_of::<T>());
        // SAFETY: offset <= len by the assert, so the sum stays inside the mapping.
        let start = unsafe { self.base.add(offset) }.cast::<T>();
        assert!(start.is_aligned());
        Region { start, count }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping this value made and owns; the session drops the views
        // together with it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
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
