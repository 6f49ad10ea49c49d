//! What depends on the processor. Each module offers the same names.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{
    Copier, Folded, PlainCopy, best_flush, copier, flush_lines, landings, order_cached_stores,
    order_stores, prefetch_line, prefetch_line_to_load, resume_address, set_resume_address,
};
#[cfg(target_arch = "x86_64")]
pub use x86_64::{crc32c_append, thread_address};

#[cfg(not(target_arch = "x86_64"))]
compile_error!("nacre-media knows x86_64 only: add a folder under arch/ for this processor");
