//! Removing nodes of which little is left, behind a removal, and all nodes of a tree.

use nacre_types::{ObjectId, UnitNo};

use super::change::{Path, PathNode, SPARSE, append, payload_of, push};
use super::read::TreeId;
use crate::error::Result;
use crate::layout::{MAX_DEPTH, NODE_INDEX_AT, Tree};
use crate::node::{Damaged, NODE_BYTES, NodeImage, Payload, SearchKey};
use crate::tx::Tx;

/// Two nodes are merged when they fill no more than this together.
const MERGED_MAX: usize = (NODE_BYTES - NODE_INDEX_AT) * 3 / 4;

impl Tx<'_> {
    /// Removes all entries of an object that is no directory, whatever their number, by one word.
    /// False: the transaction has changed some of them before, and nothing was done.
    pub fn entries_clear(&mut self, id: ObjectId) -> Result<bool> {
        let tree = Tree::Entries;
        self.settle()?;
        let Some(root) = self.tree_owner(id, tree)?.root else {
            return Ok(true);
        };
        if self.scratch.has_nodes(id, tree) {
            return Ok(false);
        }
        self.scratch.touch(id);
        self.set_root_unit(id, tree, None)?;
        self.scratch.trees.push((id, tree, root));
        Ok(true)
    }

    /// Removes what became empty, merges what became sparse, from the leaf up.
    pub(super) fn shrink(&mut self, which: TreeId, path: &Path) -> Result<()> {
        let mut child = path.leaf;
        for step in path.steps.iter().rev() {
            let (count, used) = self.edit(which, child, |node| Ok((node.count(), node.used())))?;
            if count == 0 {
                self.free_node(child);
                self.edit_whole(which, step.unit, |parent| remove_child(parent, step.index))?;
            } else if used >= SPARSE || !self.merge(which, *step)? {
                return Ok(());
            }
            child = step.unit;
        }
        self.lower_root(which, child)
    }

    /// Merges the child at `step` with a sibling if both fit into one node with room to spare.
    fn merge(&mut self, which: TreeId, step: PathNode) -> Result<bool> {
        let damaged = |tx: &Self| tx.store.damaged(which, step.unit);
        let view = self.page(which, step.unit, None)?;
        let right_index = if step.index + 1 < view.count() {
            step.index + 1
        } else {
            step.index
        };
        if right_index == 0 {
            return Ok(false);
        }
        let left = view
            .child(right_index - 1, which.object)
            .map_err(|_| damaged(self))?;
        let right = view
            .child(right_index, which.object)
            .map_err(|_| damaged(self))?;
        let slot = view.slot(right_index).map_err(|_| damaged(self))?;
        let mut separator = Vec::new();
        view.key_into(&slot, &mut separator);
        let below = Some(view.level());
        let used = self.used(which, left, below)? + self.used(which, right, below)?;
        if left == right || used + separator.len() > MERGED_MAX {
            return Ok(false);
        }
        let (left, right_image) = (
            self.load_whole(which, left)?,
            self.load_whole(which, right)?,
        );
        let pair = self.scratch.nodes.get_disjoint_mut([left, right_image]);
        let merged = pair
            .map_err(|_| Damaged)
            .and_then(|[left, right]| absorb(left, right, &separator));
        merged.map_err(|_| damaged(self))?;
        self.free_node(right);
        self.edit(which, step.unit, |parent| {
            parent.remove_slot(right_index, &slot)
        })?;
        Ok(true)
    }

    fn used(&self, which: TreeId, unit: UnitNo, above: Option<u8>) -> Result<usize> {
        Ok(self.page(which, unit, above)?.used())
    }

    /// Drops a root that is empty or has a single child.
    fn lower_root(&mut self, which: TreeId, root: UnitNo) -> Result<()> {
        let mut root = root;
        for _ in 0..MAX_DEPTH {
            let view = self.page(which, root, None)?;
            let damaged = |Damaged| self.store.damaged(which, root);
            let below = match (view.count(), view.is_leaf()) {
                (0, _) => None,
                (1, false) => Some(view.child(0, which.object).map_err(damaged)?),
                _ => return Ok(()),
            };
            self.free_node(root);
            self.set_root_unit(which.object, which.tree, below)?;
            let Some(unit) = below else { return Ok(()) };
            root = unit;
        }
        Ok(())
    }
}

/// Removes the child at `index` of an inner node; its first key stays the lowest of all.
fn remove_child(parent: &mut NodeImage, index: usize) -> std::result::Result<(), Damaged> {
    parent.remove(index)?;
    if index == 0 && parent.count() > 0 {
        let mut word = Vec::new();
        let view = parent.view()?;
        view.value_into(&view.slot(0)?, &mut word);
        parent.remove(0)?;
        let payload = Payload {
            bytes: &word,
            overflow: false,
        };
        parent.insert(0, &SearchKey::new(&[]), payload)?;
    }
    Ok(())
}

/// Appends all entries of `right` to `left`, its sibling before it.
fn absorb(
    left: &mut NodeImage,
    right: &NodeImage,
    separator: &[u8],
) -> std::result::Result<(), Damaged> {
    let view = right.view()?;
    let mut entries = 0..view.count();
    if !view.is_leaf() {
        // The lowest key of all is not stored.
        push(left, separator, payload_of(&view, &view.slot(0)?))?;
        entries.start = 1;
    }
    if left.append(&view, entries.clone())? {
        return Ok(());
    }
    left.compact()?;
    append(left, &view, entries)
}
