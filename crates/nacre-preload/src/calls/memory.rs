//! Mapping files into memory.

use libc::{
    SYS_madvise, SYS_mlock, SYS_mlock2, SYS_mlockall, SYS_mmap, SYS_mprotect, SYS_mremap,
    SYS_mseal, SYS_msync, SYS_munmap, SYS_pkey_mprotect, SYS_process_madvise, SYS_remap_file_pages,
    SYS_shmat, SYS_vmsplice,
};

use crate::entry::errno::Stop;
use crate::entry::table::{ServedCall, entry};
use crate::mapping::{self, around, remap};

/// The calls of this family.
pub const ENTRIES: &[ServedCall] = &[
    entry(SYS_mmap, "mmap", mapping::mmap),
    entry(SYS_munmap, "munmap", mapping::munmap),
    entry(SYS_mremap, "mremap", remap::mremap),
    entry(SYS_mprotect, "mprotect", mapping::mprotect),
    entry(SYS_msync, "msync", mapping::msync),
    entry(SYS_madvise, "madvise", mapping::madvise),
    entry(SYS_pkey_mprotect, "pkey_mprotect", mapping::mprotect),
    entry(
        SYS_remap_file_pages,
        "remap_file_pages",
        remap::remap_file_pages,
    ),
    entry(SYS_mlock, "mlock", |_| Err(Stop::Native)),
    entry(SYS_mlock2, "mlock2", |_| Err(Stop::Native)),
    entry(SYS_mlockall, "mlockall", around::mlockall),
    entry(SYS_mseal, "mseal", around::mseal),
    entry(
        SYS_process_madvise,
        "process_madvise",
        around::process_madvise,
    ),
    entry(SYS_vmsplice, "vmsplice", around::vmsplice),
    entry(SYS_shmat, "shmat", around::shmat),
];
