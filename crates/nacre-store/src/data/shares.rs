//! Counting units that several objects own.

use std::collections::HashMap;

use nacre_types::{ObjectId, UnitNo};

use super::File;
use crate::data::map::Met;
use crate::error::Result;
use crate::store::Store;

/// The units of some objects.
#[derive(Default)]
pub struct Shares {
    /// Units that nobody else can own.
    own: u64,
    /// How often units that may have several owners were met.
    shared: HashMap<UnitNo, u64>,
}

/// Units of some objects, each once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharesSum {
    /// All.
    pub used: u64,
    /// Those that nobody else owns.
    pub exclusive: u64,
}

impl Store {
    /// Adds the contents of an object whose lock is held, with the nodes of its map.
    pub fn count_shares(&self, id: ObjectId, shares: &mut Shares) -> Result<()> {
        let mut nodes = HashMap::new();
        let mut damaged = None;
        File::open(self, id)?.map.walk(&mut |met| match met {
            Met::Node(unit) => {
                shares.own += 1;
                nodes.insert(unit, ()).is_none()
            }
            Met::Page(_, entry) if entry.may_be_shared() => {
                *shares.shared.entry(entry.unit()).or_default() += 1;
                false
            }
            Met::Page(..) => {
                shares.own += 1;
                false
            }
            Met::Damaged(at) => {
                damaged = Some(at);
                false
            }
        });
        match damaged {
            Some(at) => Err(crate::StoreError::corrupt(Some(id), "block map word", at)),
            None => Ok(()),
        }
    }

    /// Adds up what was counted.
    pub fn sum_shares(&self, shares: &Shares) -> SharesSum {
        let alloc = self.allocator();
        let owners = |unit: &UnitNo| u64::from(alloc.extra(*unit)) + 1;
        let mine = shares.shared.iter();
        let mine = mine.filter(|(unit, met)| owners(unit) == **met).count() as u64;
        SharesSum {
            used: shares.own + shares.shared.len() as u64,
            exclusive: shares.own + mine,
        }
    }
}
