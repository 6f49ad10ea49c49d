//! Rewriting: which `syscall` instructions are intercepted, and what is remembered of that.

pub(crate) mod dynamic;
pub(crate) mod elf;
pub(crate) mod elf_file;
pub(crate) mod libraries;
pub(crate) mod patching;
pub(crate) mod plan;
pub(crate) mod plan_file;
pub(crate) mod proven;
pub(crate) mod signature;
