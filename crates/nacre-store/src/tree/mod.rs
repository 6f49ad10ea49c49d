//! The ordered tree.
use std::ops::ControlFlow;

use nacre_types::ObjectId;

use crate::error::Result;
use crate::layout::Tree;
use crate::store::Store;

impl Store {
    /// Reads a key; true when it is there.
    pub fn tree_get(&self, _id: ObjectId, _tree: Tree, _key: &[u8], _value: &mut Vec<u8>) -> Result<bool> {
        unreachable!()
    }
    /// Visits keys from `from` on.
    pub fn tree_scan(
        &self,
        _id: ObjectId,
        _tree: Tree,
        _from: &[u8],
        _visit: &mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        unreachable!()
    }
}
