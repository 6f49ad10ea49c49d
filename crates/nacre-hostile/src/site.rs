//! A pool that is being damaged.

use std::ops::Range;

use nacre_testkit::random::Random;
use nacre_volume::Volume;

use crate::pool::Prepared;

/// What was done to a pool.
#[derive(Clone, Debug, Default)]
pub struct Damage {
    /// What was done, for people.
    pub text: String,
    /// Bytes of the volume that were changed.
    pub ranges: Vec<Range<u64>>,
    /// Attaching or checking must notice it.
    pub must_report: bool,
    /// What was damaged decides what all files are.
    pub pervasive: bool,
    /// Structures were forged: nobody can tell them from true ones.
    pub forged: bool,
}

/// A pool to be damaged.
pub struct Site<'p> {
    /// The pool as it was.
    pub prepared: &'p Prepared,
    /// Its volume.
    pub volume: &'p Volume,
    /// Where choices come from.
    pub random: &'p mut Random,
    /// What was done so far.
    pub damage: Damage,
}

impl<'p> Site<'p> {
    /// Nothing is damaged yet.
    pub fn new(prepared: &'p Prepared, volume: &'p Volume, random: &'p mut Random) -> Site<'p> {
        Site {
            prepared,
            volume,
            random,
            damage: Damage::default(),
        }
    }
}
