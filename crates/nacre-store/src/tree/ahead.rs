//! Going through a tree in order as a transaction sees it.

use nacre_types::ObjectId;

use super::read::{TreeId, check_key};
use crate::error::{Result, StoreError};
use crate::layout::{MAX_DEPTH, Tree};
use crate::node::SearchKey;
use crate::tx::Tx;

impl Tx<'_> {
    /// The first key that is not before `from`, and its value, as the transaction sees them.
    pub fn tree_next(
        &mut self,
        id: ObjectId,
        tree: Tree,
        from: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<Option<Vec<u8>>> {
        check_key(from)?;
        self.settle()?;
        let which = TreeId { object: id, tree };
        let Some(root) = self.tree_owner(id, tree)?.root else {
            return Ok(None);
        };
        let damaged = |unit| self.store.damaged(which, unit);
        let mut from = from.to_vec();
        // A leaf without such a key is followed by one that has some.
        for _ in 0..MAX_DEPTH {
            let path = self.descend(which, root, &SearchKey::new(&from))?;
            let (Ok(index) | Err(index)) = path.found;
            let leaf = self.page(which, path.leaf, None)?;
            if index < leaf.count() {
                let slot = leaf.slot(index).map_err(|_| damaged(path.leaf))?;
                let mut key = Vec::new();
                leaf.key_into(&slot, &mut key);
                self.store
                    .value_now(which, path.leaf, &leaf, &slot, value)?;
                return Ok(Some(key));
            }
            let mut next = None;
            for step in path.steps.iter().rev() {
                let node = self.page(which, step.unit, None)?;
                if step.index + 1 < node.count() {
                    let slot = node.slot(step.index + 1);
                    let slot = slot.map_err(|_| damaged(step.unit))?;
                    let mut key = Vec::new();
                    node.key_into(&slot, &mut key);
                    next = Some(key);
                    break;
                }
            }
            match next {
                Some(next) if next > from => from = next,
                Some(_) => return Err(damaged(path.leaf)),
                None => return Ok(None),
            }
        }
        Err(StoreError::Invalid("a tree whose leaves are empty"))
    }

    /// Whether an object's tree holds nothing, as the transaction sees it.
    pub fn tree_is_empty(&self, id: ObjectId, tree: Tree) -> Result<bool> {
        Ok(self.tree_owner(id, tree)?.root.is_none())
    }
}
