//! What a transaction does to the bytes of objects.

use nacre_types::{ObjectId, UnitNo, VolumeOffset};

use super::pages::Pages;

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
    /// Each part lies in one of two units.
    Parts(Parts),
}

/// A page whose parts lie in two units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Parts {
    pub(crate) unit: UnitNo,
    pub(crate) second: UnitNo,
    /// The transaction took the second unit.
    pub(crate) is_fresh: bool,
    /// The parts that lie in the second unit, a bit for each.
    pub(crate) there: u8,
    /// Those that the transaction wrote where nobody reads them.
    pub(crate) written: u8,
}

impl Parts {
    /// The unit in which a part lies.
    pub(crate) fn unit_of(&self, part: usize) -> UnitNo {
        match self.there >> part & 1 {
            1 => self.second,
            _ => self.unit,
        }
    }

    pub(crate) fn is_written(&self, part: usize) -> bool {
        self.written >> part & 1 != 0
    }
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
    pub(crate) pages: Pages<Page>,
}
