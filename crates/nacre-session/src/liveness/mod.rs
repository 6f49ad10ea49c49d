//! Attached processes and whether they live: slots, locks that know their owner.

pub(crate) mod gate;
pub(crate) mod group;
pub(crate) mod lock;
pub(crate) mod process;
pub(crate) mod slot;
pub(crate) mod wait_record;
