//! The preload front end: unmodified programs on pools.
//!
//! At load time the `syscall` instructions of libc, of the dynamic linker and of whatever else
//! makes calls of its own are replaced by jumps to our table of calls. A call that concerns a pool
//! is decoded, handed to the vfs and encoded; every other call is executed by the kernel exactly as
//! the program made it.

mod arch;
mod calls;
mod entry;
mod mapping;
mod program;
mod rewrite;
mod runtime;
