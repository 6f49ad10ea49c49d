//! Requests that programs put into rings of the kernel: Linux AIO and io_uring. What concerns a
//! pool is served as the call that does the same, and the kernel is given a request in its place
//! that does nothing but complete with our result (D43). What would wait for a disk is served by
//! another thread, and completes when that is done (D119). Rings, completions, waiting and what
//! they wake stay the kernel's.

pub mod aio;
mod aio_contexts;
mod aio_records;
mod later;
mod layout;
mod own_ring;
mod request;
pub mod ring;
mod sqe;
mod submission;
mod ticket;
pub mod uring;
pub mod workers;
