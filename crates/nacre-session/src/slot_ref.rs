//! Names of attached processes.

use crate::{MAX_SLOTS, SPARE_SLOTS};

/// One attached process: a slot and which of its users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlotRef {
    /// Index of the slot.
    pub slot: u16,
    /// Counts the users of the slot; never 0.
    pub generation: u32,
}

/// Whether a slot's process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// It runs, or it cannot be found out.
    Alive,
    /// The process runs, but it has executed another program while it had several threads. They
    /// died inside of their operations; what was open and its record locks are the new program's.
    Executed,
    /// It is surely gone, or the slot belongs to somebody else by now.
    Dead,
}

impl SlotRef {
    /// Whether all others were taken: whoever got this one is to recover the dead.
    pub fn is_spare(self) -> bool {
        usize::from(self.slot) >= MAX_SLOTS - SPARE_SLOTS
    }

    /// The next user of the slot.
    pub(crate) fn successor(self) -> SlotRef {
        SlotRef {
            generation: self.generation.wrapping_add(1).max(1),
            ..self
        }
    }
}
