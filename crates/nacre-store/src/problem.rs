//! What a scan, a check or a repair says of a place.

use std::fmt;

use nacre_types::{ObjectId, VolumeOffset};

/// Something that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The object that it belongs to.
    pub object: Option<ObjectId>,
    /// Where it lies in the volume.
    pub place: Option<VolumeOffset>,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.object {
            Some(id) => write!(f, "object {id}: {}", self.what)?,
            None => f.write_str(&self.what)?,
        }
        match self.place {
            Some(at) => write!(f, " (volume offset {:#x})", at.0),
            None => Ok(()),
        }
    }
}
