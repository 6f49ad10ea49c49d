//! x86_64: copies of SSE2, AVX2 or AVX-512, flushes by line, `sfence`.

mod copy;
mod cpu;
mod crc;
mod flush;
mod fold;
mod signal;
mod thread;

pub use crc::crc32c_append;

pub(crate) use copy::{Copier, PlainCopy, copier, landings};
pub(crate) use flush::{
    best_flush, flush_lines, order_cached_stores, order_stores, prefetch_line,
    prefetch_line_to_load,
};
pub(crate) use fold::Folded;
pub(crate) use signal::{resume_address, set_resume_address};
pub use thread::thread_address;
