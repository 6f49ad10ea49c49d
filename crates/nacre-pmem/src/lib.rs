//! The libpmem front end: programs that use libpmem and know nothing of pools, on the emulator's
//! devices.
//!
//! The library stands before libpmem in the search for its functions, calls the real ones, and
//! tells the emulation, which `NACRE_EMULATION` names, what was made durable in which file. Waiting
//! happens where lines are flushed, not at the drain behind: that is where the delay of a store of
//! Nacre's own is, too.

mod calls;
mod persist;
mod regions;
mod symbols;
mod unmap;
