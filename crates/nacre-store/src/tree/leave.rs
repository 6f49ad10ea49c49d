//! Nodes and long values of a tree move off some units (D70), by transactions.

use nacre_types::{ObjectId, UnitNo};

use super::read::TreeId;
use super::walk::{TreePart, walk};
use crate::error::{Result, StoreError};
use crate::layout::Tree;
use crate::node::SearchKey;
use crate::store::Store;
use crate::tx::Tx;

/// A key on whose way a node is to leave, or whose value is.
pub(crate) struct LeavingKey {
    key: Vec<u8>,
    value_leaves: bool,
}

/// The keys that lead to all that is to leave. Damage ends it.
pub(crate) fn keys_that_lead(
    store: &Store,
    (object, tree): (ObjectId, Tree),
    root: UnitNo,
    leaves: &dyn Fn(UnitNo) -> bool,
) -> Result<Vec<LeavingKey>> {
    let which = TreeId { object, tree };
    let (mut keys, mut pending, mut failed) = (Vec::new(), false, None);
    let mut visit = |part| {
        if let TreePart::Node(unit, level) = part {
            pending |= leaves(unit);
            if level == 0 {
                let added = add_keys(store, which, unit, (pending, leaves), &mut keys);
                failed = failed.take().or(added.err());
                pending = false;
            }
        }
        true
    };
    let mut damage = None;
    walk(store, object, tree, root, &mut visit, &mut |error| {
        damage = damage.take().or(Some(error));
    });
    match failed.or(damage) {
        Some(error) => Err(error),
        None => Ok(keys),
    }
}

/// The first key of a leaf on whose way a node leaves, and those whose values do.
fn add_keys(
    store: &Store,
    which: TreeId,
    leaf: UnitNo,
    (way_leaves, leaves): (bool, &dyn Fn(UnitNo) -> bool),
    keys: &mut Vec<LeavingKey>,
) -> Result<()> {
    let view = store.node(which, leaf, None)?;
    let damaged = |_| store.damaged(which, leaf);
    for index in 0..view.count() {
        let slot = view.slot(index).map_err(damaged)?;
        let value_leaves = match slot.overflow {
            false => false,
            true => {
                let raw = view.overflow(&slot).map_err(damaged)?;
                let run = store.long_value(which, leaf, &raw)?.run();
                (0..run.count).any(|unit| leaves(run.start.add(unit)))
            }
        };
        if value_leaves || way_leaves && index == 0 {
            let mut key = Vec::new();
            view.key_into(&slot, &mut key);
            keys.push(LeavingKey { key, value_leaves });
        }
    }
    Ok(())
}

impl Tx<'_> {
    /// Gives each node on the way to a key that is to leave a fresh place, and so the key's value.
    pub(crate) fn leave_places(
        &mut self,
        (id, tree): (ObjectId, Tree),
        leaving: &LeavingKey,
        leaves: &dyn Fn(UnitNo) -> bool,
    ) -> Result<()> {
        if leaving.value_leaves {
            let mut value = Vec::new();
            if self.tree_get(id, tree, &leaving.key, &mut value)? {
                self.tree_insert(id, tree, &leaving.key, &value)?;
            }
        }
        let which = TreeId { object: id, tree };
        let Some(root) = self.tree_owner(id, tree)?.root else {
            return Ok(());
        };
        self.settle()?;
        let mut path = self.descend(which, root, &SearchKey::new(&leaving.key))?;
        for depth in (0..=path.steps.len()).rev() {
            let unit = path.steps.get(depth).map_or(path.leaf, |step| step.unit);
            if leaves(unit) && !self.move_node(which, &mut path, depth)? {
                return Err(StoreError::NoSpace);
            }
        }
        Ok(())
    }
}
