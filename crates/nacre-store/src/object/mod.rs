//! Objects: their numbers, onodes and locks.

pub(crate) mod blocks;
pub(crate) mod lock;
pub(crate) mod numbers;
pub(crate) mod onode;
