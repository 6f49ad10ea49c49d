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

/// What a segment is to the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Device(Stay),
    /// A block of this device, counted without those that are gone, in which the header lies.
    Header(usize),
    /// Nothing: a device that is gone was here.
    Gap,
}

impl Role {
    pub(crate) fn is_device(self) -> bool {
        matches!(self, Role::Device(_))
    }
}

/// A piece of the volume, and what it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub start: u64,
    pub end: u64,
    pub role: Role,
}
