//! What depends on the processor: the patcher and the entry from patched text.

#[cfg(target_arch = "x86_64")]
pub mod x86_64;
