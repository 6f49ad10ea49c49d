//! Memory of which nothing is written before it is used: pages that a process does not touch are
//! neither made at its start nor copied by its forks.

use std::alloc::{Layout, handle_alloc_error};
use zerocopy::FromZeros;

/// Zeros, as the allocator got them from the kernel.
pub(crate) fn zeros<T: FromZeros>(len: usize) -> Box<[T]> {
    let made = <[T]>::new_box_zeroed_with_elems(len);
    made.unwrap_or_else(|_| {
        handle_alloc_error(Layout::array::<T>(len).unwrap_or(Layout::new::<T>()))
    })
}
