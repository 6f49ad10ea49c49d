//! What a write call promises.

/// How file writes behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    /// Durable when the call returns.
    Direct,
    /// Durable when the call returns, and all-or-nothing.
    Atomic,
    /// Durable after `fsync` and the like, and after some seconds. For disks; elsewhere it is as
    /// `Direct`.
    Cached,
}

impl WriteMode {
    const ALL: [WriteMode; 3] = [WriteMode::Direct, WriteMode::Atomic, WriteMode::Cached];

    /// As the medium has it.
    pub(crate) fn number(self) -> u32 {
        self as u32
    }

    pub(crate) fn of_number(number: u32) -> Option<WriteMode> {
        WriteMode::ALL.get(number as usize).copied()
    }
}
