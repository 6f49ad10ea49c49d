//! Reserved ranges of addresses, into which devices are mapped side by side.

use std::ffi::c_void;
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::error::MediaError;

/// Alignment of every reservation, so that 2 MiB pages of a device can be mapped as such.
pub const RANGE_ALIGNMENT: u64 = 2 << 20;

/// A range of addresses that belongs to its holder and to which nothing is mapped by anybody else.
/// Unmapped on drop.
#[derive(Debug)]
pub struct AddressRange {
    start: usize,
    len: usize,
}

impl AddressRange {
    /// Reserves `len` bytes (rounded up to 2 MiB) of addresses, no memory, starting at a multiple
    /// of 2 MiB.
    pub fn reserve(len: u64) -> Result<Self, MediaError> {
        let len = len.max(1).next_multiple_of(RANGE_ALIGNMENT) as usize;
        let spare = RANGE_ALIGNMENT as usize;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses disturbs nobody.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len + spare, ProtFlags::empty(), flags) };
        let start = start.map_err(|errno| refused(errno, len as u64))?;
        let mut whole = Self {
            start: start.addr(),
            len: len + spare,
        };
        let mut aligned = whole.split_off(start.addr().next_multiple_of(spare) - start.addr());
        drop(aligned.split_off(len));
        Ok(aligned)
    }

    /// Keeps the first `at` bytes (a multiple of 4 KiB, at most [`AddressRange::len`]) and gives
    /// the rest away.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.len, "split outside of the place");
        let rest = Self {
            start: self.start + at,
            len: self.len - at,
        };
        self.len = at;
        rest
    }

    /// First address.
    pub const fn start(&self) -> usize {
        self.start
    }

    /// Bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the place has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

fn refused(errno: Errno, needed: u64) -> MediaError {
    match errno {
        Errno::NOMEM => MediaError::NoAddresses { needed },
        errno => MediaError::System {
            path: PathBuf::from("memory"),
            action: "reserve addresses",
            errno,
        },
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the range is this place's alone; whoever mapped something into it holds the
            // place and is gone. Failure would only leave the range reserved.
            let _ = unsafe {
                munmap(
                    std::ptr::without_provenance_mut::<c_void>(self.start),
                    self.len,
                )
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AddressRange, RANGE_ALIGNMENT};

    #[test]
    fn places_are_aligned_and_split_side_by_side() {
        let mut place = AddressRange::reserve(5 << 20).unwrap();
        assert_eq!(place.start() as u64 % RANGE_ALIGNMENT, 0);
        assert_eq!(place.len(), 6 << 20);
        let rest = place.split_off(4 << 20);
        assert_eq!(place.len(), 4 << 20);
        assert_eq!(rest.start(), place.start() + (4 << 20));
    }
}
