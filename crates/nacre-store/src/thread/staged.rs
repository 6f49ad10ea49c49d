//! What a transaction does to the bytes of objects.

use std::collections::BTreeMap;

use nacre_types::{ObjectId, UnitNo, VolumeOffset};

/// What the transaction makes of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Page {
    Hole,
    /// A unit that the transaction took.
    Own(UnitNo),
    /// A unit with other owners; the transaction has counted this one.
    Shared(UnitNo),
    /// The unit that the object has; from now on it is marked as shared.
    Kept(UnitNo),
    /// The unit that the object has; bytes of it are in the transaction's writes.
    Logged(UnitNo),
}

/// What a transaction does to the bytes of one object.
pub(crate) struct Staged {
    pub(crate) id: ObjectId,
    pub(crate) onode: VolumeOffset,
    /// Created by the transaction.
    pub(crate) fresh: bool,
    /// Bytes from here on are not those of the medium.
    pub(crate) kept: u64,
    pub(crate) size: u64,
    pub(crate) old_size: u64,
    pub(crate) pages: BTreeMap<u64, Page>,
}
