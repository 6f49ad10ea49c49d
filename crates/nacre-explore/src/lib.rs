//! The crash explorer: every state that a power loss can leave, or a good sample of them, is recovered and looked at.
#![forbid(unsafe_code)]

pub mod action;
pub mod bench;
pub mod campaign;
pub mod canary;
pub mod judge;
pub mod medium;
pub mod random;
pub mod recorder;
pub mod sequence;
pub mod visible;
pub mod workload;
