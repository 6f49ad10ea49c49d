//! How much room a tree takes, shared units counted once.

use crate::Fs;
use crate::error::Result;
use crate::inode::Found;
use nacre_store::Shares;
use nacre_types::UNIT_SIZE;

/// The room that a tree takes, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TreeSpace {
    /// All contents, each unit once.
    pub used: u64,
    /// What would be free if the tree were gone: nothing else shares it.
    pub exclusive: u64,
}

impl Fs {
    /// Adds up the room of a tree, folders of snapshots left out. It is locked meanwhile.
    pub fn tree_space(&self, root: Found) -> Result<TreeSpace> {
        let mut held = self.hold_trees(&[root], &[])?;
        let tree = held.trees.remove(0);
        let mut shares = Shares::default();
        for member in &tree.members {
            self.store.count_shares(member.id, &mut shares)?;
        }
        let units = self.store.sum_shares(&shares);
        Ok(TreeSpace {
            used: units.used * UNIT_SIZE,
            exclusive: units.exclusive * UNIT_SIZE,
        })
    }
}
