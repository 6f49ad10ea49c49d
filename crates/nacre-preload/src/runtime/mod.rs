//! What code inside of programs stands on: memory, stacks, signals, thread state, the kernel.

use nacre_types::PAGE_SIZE;

pub(crate) mod allocator;
pub(crate) mod alternate_stack;
pub(crate) mod environment;
pub(crate) mod kernel;
pub(crate) mod log;
pub(crate) mod mask;
pub(crate) mod robust;
pub(crate) mod sanitizer;
pub(crate) mod signals;
pub(crate) mod spin;
pub(crate) mod stack;
#[cfg(feature = "kill-steps")]
pub(crate) mod steps;
pub(crate) mod tls;

/// Bytes in a page of memory.
pub(crate) const PAGE: usize = PAGE_SIZE as usize;
