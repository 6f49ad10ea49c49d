//! x86-64: find `syscall` instructions, move their neighbours into stubs, jump to our table.

pub mod entry;
pub mod patch;
pub mod path_filter;
pub mod relocate;
pub mod stub;
pub mod symbols;
pub mod wide;
