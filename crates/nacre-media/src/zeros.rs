//! Private memory of zeros.

use std::alloc::{Layout, handle_alloc_error};
use std::fmt::{self, Debug, Formatter};
use std::ops::Deref;
use std::ptr::{NonNull, null_mut};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use zerocopy::FromZeros;

/// A value of zero bytes in pages of its own, which are made as they are used. A box of what wants
/// more than 16 bytes of alignment is written with zeros by most allocators, all of it.
pub struct Zeros<T>(NonNull<T>);

// SAFETY: it owns the value, as a box does.
unsafe impl<T: Send> Send for Zeros<T> {}
// SAFETY: it gives out shared references alone.
unsafe impl<T: Sync> Sync for Zeros<T> {}

impl<T: FromZeros> Zeros<T> {
    /// Maps it.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        const { assert!(align_of::<T>() <= 4096 && size_of::<T>() > 0 && !std::mem::needs_drop::<T>()) };
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a fresh private mapping at an address of the kernel's choice.
        let at = unsafe { mmap_anonymous(null_mut(), size_of::<T>(), access, flags) };
        let at = at.ok().and_then(|at| NonNull::new(at.cast()));
        Self(at.unwrap_or_else(|| handle_alloc_error(Layout::new::<T>())))
    }
}

impl<T> Deref for Zeros<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: mapped by `new`, as large and as aligned as a T, of which zeros are a value,
        // until it is dropped; changed through the T alone.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Drop for Zeros<T> {
    fn drop(&mut self) {
        // SAFETY: `new` mapped exactly this, and nobody can refer to it any more.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), size_of::<T>()) };
    }
}

impl<T: Debug> Debug for Zeros<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::Zeros;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// Pages of this process that are in memory, of a range.
    fn resident(start: usize, len: usize) -> usize {
        let (start, end) = (start as u64 / 4096, (start + len) as u64 / 4096);
        let map = std::fs::File::open("/proc/self/pagemap").unwrap();
        let is_there = |page: &u64| {
            let mut entry = [0; 8];
            std::os::unix::fs::FileExt::read_exact_at(&map, &mut entry, page * 8).unwrap();
            u64::from_le_bytes(entry) >> 63 == 1
        };
        (start..end).filter(is_there).count()
    }

    #[test]
    fn a_page_is_made_by_its_first_use() {
        let zeros = Zeros::<[AtomicU64; 16 * 512]>::new();
        let start = zeros.as_ptr().addr();
        assert_eq!(resident(start, 16 * 4096), 0);
        zeros[5 * 512].store(7, Relaxed);
        // Larger ones, where the machine's owner wants that.
        assert_ne!(resident(start, 16 * 4096), 0);
        assert_eq!(zeros[5 * 512 + 1].load(Relaxed), 0);
    }
}
