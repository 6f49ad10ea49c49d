//! What a store to the medium is for.

/// What a store to the medium is for. Every store carries one, so that wear and traffic can be told
/// apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StoreKind {
    /// Contents of objects.
    Data,
    /// Structures that describe objects, and labels.
    Metadata,
    /// Redo records.
    Log,
}

impl StoreKind {
    /// All kinds, in a fixed order.
    pub const ALL: [Self; 3] = [Self::Data, Self::Metadata, Self::Log];

    /// Position in [`StoreKind::ALL`].
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }
}
