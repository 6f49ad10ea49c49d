//! The sizes that a session is made for.

use crate::MAX_LANES;

pub(crate) const MAX_UNITS: u64 = 1 << 40;
pub(crate) const MAX_OBJECTS: u64 = 1 << 32;

/// The sizes that a session is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Units of the volume, 1 to 2^40.
    pub units: u64,
    /// Object numbers run from 0 to `max_objects - 1`; at most 2^32.
    pub max_objects: u64,
    /// Lanes, 1 to 32.
    pub lanes: u32,
}

impl Geometry {
    /// The limits keep every sum far below 2^63.
    pub(crate) fn validate(&self) -> Result<(), &'static str> {
        if !(1..=MAX_UNITS).contains(&self.units) {
            return Err("units must be 1 to 2^40");
        }
        if !(1..=MAX_OBJECTS).contains(&self.max_objects) {
            return Err("objects must be 1 to 2^32");
        }
        if !(1..=MAX_LANES).contains(&self.lanes) {
            return Err("lanes must be 1 to 32");
        }
        Ok(())
    }
}
