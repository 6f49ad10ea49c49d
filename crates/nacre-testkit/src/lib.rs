//! What tests share: pools, a crash recorder, numbers that are the same on every run.
//!
//! A failure of what a test stands on is a panic here.

#![forbid(unsafe_code)]

pub mod built;
pub mod damage;
pub mod image;
pub mod medium;
pub mod names;
pub mod pool;
pub mod random;
pub mod recorder;
pub mod scratch;
pub mod turns;
