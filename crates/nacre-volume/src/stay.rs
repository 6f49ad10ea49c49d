//! Whether devices stay in their pool, as labels say it (D70).

/// Whether a device stays in its pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Stay {
    /// It does.
    #[default]
    Stays = 0,
    /// What it holds moves to the others.
    Leaves = 16,
    /// It was removed; nothing is at its addresses.
    Gone = 17,
}

impl Stay {
    pub(crate) fn of(number: u8) -> Option<Self> {
        [Stay::Stays, Stay::Leaves, Stay::Gone]
            .into_iter()
            .find(|stay| *stay as u8 == number)
    }
}

/// Where something lies that was on the first device, once that is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OnDevice {
    /// Place of the device in the table.
    pub device: usize,
    /// Bytes from the start of its data.
    pub at: u64,
}
