//! A disk for tests. What is written stands in a volatile cache until it is flushed. A power cut
//! keeps any subset of the sectors that were not, each in any of the states that were written to
//! it. The disk refuses what it is told to refuse.
#![forbid(unsafe_code)]

mod file;
mod nbd;
mod volatile;

pub use file::{FILE, Mounted, mount};
pub use nbd::NbdServer;
pub use volatile::{Disk, Faults, Traffic};
