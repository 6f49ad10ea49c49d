//! Damaged pools: what the layout allows to be broken is broken, and every front end must answer
//! with an error.
#![forbid(unsafe_code)]

pub mod canary;
pub mod damage;
pub mod devices;
pub mod drive;
pub mod fields;
pub mod fuzz;
pub mod keyed;
pub mod place;
pub mod pool;
pub mod repair;
pub mod site;
pub mod tally;
pub mod watch;
pub mod worker;

/// Which cases to run.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Seed of all cases.
    pub seed: u64,
    /// First case.
    pub from: u64,
    /// Behind the last case.
    pub to: u64,
}
