//! Who is attached and alive: slots, locks that know their owner, recovery of the dead.

pub(crate) mod lock;
pub(crate) mod process;
pub(crate) mod reap;
pub(crate) mod slot;
