//! The device model: a deterministic simulation of modules, their buffers and the threads that use
//! them.
//!
//! Requests of 64 bytes travel from a thread's fill buffers to the module that holds the address. A
//! module queues stores: the first are in order, and those of one line are taken together; what
//! finds that queue full waits outside, and enters in no order. A line that was written whole goes
//! to the cells at once, and holds its place until they have it; a line that was written in part
//! stays, as the rest usually follows, until another line takes its place, any line's place: then
//! it is merged with what the cells hold, and the cells write a whole line for a part. So
//! amplification grows with the number of threads. It does not grow without bound on several
//! modules, as a thread whose requests wait for one module sends none to another: head-of-line
//! blocking. Requests of cores that come first on the way pass those of the others, so threads that
//! go round the modules in the same order do not stay together. Whoever reads to a buffer also
//! needs the buffer's lines; where all buffers together do not fit in the cache, they come from
//! DRAM, by the same few fill buffers. Lines that were read stay until younger ones take their
//! places, and what was not taken by then is fetched again.

mod engine;
mod module;
mod stream;
#[cfg(test)]
mod tests;

use crate::profile::Profile;

/// What the threads do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Loads.
    Load,
    /// Loads that are copied to a buffer, a thread's own, as large as an access.
    Read,
    /// Stores that bypass the cache.
    NtStore,
    /// Stores through the cache, each line flushed.
    StoreFlush,
}

/// Where the accesses of a thread lie, in memory of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// At random places.
    Random,
    /// One after the other.
    Sequential,
    /// The first halves of all lines of a region of so many bytes, then the second halves, and
    /// again.
    Halves(u64),
}

/// A workload for the model.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Workload {
    /// What is done.
    pub operation: Operation,
    /// Where.
    pub pattern: Pattern,
    /// Bytes of an access, a multiple of 64.
    pub access: u64,
    /// Threads.
    pub threads: u32,
    /// Wait until everything has reached the buffer after so many bytes; 0 for never.
    pub fence: u64,
    /// Share of the accesses that are loads, whatever the operation.
    pub loads: f64,
    /// Devices that hold the same, each with the profile's modules. The threads take turns: each
    /// loads from one of them.
    pub copies: u32,
}

impl Workload {
    /// Accesses of one kind without fences.
    pub const fn new(operation: Operation, pattern: Pattern, access: u64, threads: u32) -> Self {
        Self {
            operation,
            pattern,
            access,
            threads,
            fence: 0,
            loads: 0.0,
            copies: 1,
        }
    }
}

/// A step of a program, as it reached the medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ModelStep {
    /// Bytes stored; `data` tells contents, which a policy of granularity may cut, from structures.
    Store {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
        /// Contents of files.
        data: bool,
    },
    /// Bytes loaded.
    Load {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// Everything stored has reached the buffer.
    Fence,
    /// The program does something else.
    Pause {
        /// For so long.
        ns: u32,
    },
}

/// How many bytes a store of so many bytes is cut to while so many threads store; 0 for whole.
pub type Cut<'a> = dyn Fn(u32, u64) -> u64 + 'a;

/// What the model found, after warming up.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Outcome {
    /// Bandwidth of all threads together, in GB/s (10^9).
    pub bandwidth: f64,
    /// Bandwidth of the loads among it.
    pub read_bandwidth: f64,
    /// Bytes that the modules accepted over bytes that the cells wrote; 1 if nothing was written.
    pub ewr: f64,
    /// Bytes that the cells read over bytes that threads read; 0 if nothing was read.
    pub read_amplification: f64,
    /// Mean time of a request of 64 bytes from the thread and back, ns.
    pub latency: f64,
}

impl Outcome {
    /// Bytes that the cells wrote over bytes that the modules accepted.
    pub fn write_amplification(&self) -> f64 {
        1.0 / self.ewr
    }
}

/// Nanoseconds that are simulated.
const DURATION: f64 = 400_000.0;

/// Simulates so many nanoseconds of a workload: fewer are sooner done and less exact.
pub fn simulate_for(profile: &Profile, workload: &Workload, ns: f64) -> Outcome {
    engine::Engine::new(profile, workload).run(ns)
}

/// Runs a workload on a device. The same input gives the same outcome everywhere.
pub fn simulate(profile: &Profile, workload: &Workload) -> Outcome {
    engine::Engine::new(profile, workload).run(DURATION)
}

/// Plays what threads did at a medium, each its own steps again and again, until `bytes` have been
/// moved. The same input gives the same outcome everywhere.
pub fn play(profile: &Profile, streams: &[Vec<ModelStep>], cut: &Cut<'_>, bytes: u64) -> Outcome {
    let workload = Workload::new(
        Operation::NtStore,
        Pattern::Sequential,
        4096,
        streams.len() as u32,
    );
    engine::Engine::playing(profile, &workload, streams, cut).run_bytes(bytes)
}

/// Write amplification of writing a region half a line at a time, then the other halves, again and
/// again.
pub fn probe(profile: &Profile, region: u64) -> f64 {
    let half = profile.media.line / 2;
    let mut workload = Workload::new(Operation::NtStore, Pattern::Halves(region), half.max(64), 1);
    workload.fence = workload.access;
    // Pass by pass the region is written thrice at least, at the slow pace of fenced stores.
    let duration = DURATION.max(region as f64 * 10.0);
    engine::Engine::new(profile, &workload)
        .run(duration)
        .write_amplification()
}
