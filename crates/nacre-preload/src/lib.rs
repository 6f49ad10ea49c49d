//! The preload front end: unmodified programs on pools.
//!
//! At load time the `syscall` instructions of libc, of the dynamic linker and of whatever else makes calls of its own are
//! replaced by jumps to our table of calls. A call that concerns a pool is decoded, handed to the vfs and encoded;
//! every other call is executed by the kernel exactly as the program made it.

mod abi;
mod allocator;
mod arch;
mod call;
mod calls;
mod descriptors;
mod dispatch;
mod dynamic;
mod elf;
mod elf_file;
mod environment;
mod errno;
mod exec;
mod host;
mod identity;
mod kernel;
mod libraries;
mod log;
mod mapping;
mod mounts;
mod patching;
mod plan;
mod plan_file;
mod process;
mod proven;
mod robust;
mod sharing;
mod signals;
mod signature;
mod spin;
mod stack;
mod start;
#[cfg(feature = "kill-steps")]
mod steps;
mod symbols;
mod table;
mod tls;
mod unserved;
mod user;
