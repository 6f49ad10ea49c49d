//! Mapping files into memory.

use libc::{SYS_madvise, SYS_mmap, SYS_mprotect, SYS_mremap, SYS_msync, SYS_munmap};

use crate::mapping;
use crate::table::{Entry, entry};

/// The calls of this family.
pub const ENTRIES: &[Entry] = &[
    entry(SYS_mmap, "mmap", mapping::mmap),
    entry(SYS_munmap, "munmap", mapping::munmap),
    entry(SYS_mremap, "mremap", mapping::mremap),
    entry(SYS_mprotect, "mprotect", mapping::mprotect),
    entry(SYS_msync, "msync", mapping::msync),
    entry(SYS_madvise, "madvise", mapping::madvise),
];
