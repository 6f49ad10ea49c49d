//! Going through a tree from its end.

use std::ops::ControlFlow;

use nacre_types::ObjectId;

use super::read::{Leaf, TreeId, Visit, check_key};
use crate::error::Result;
use crate::layout::Tree;
use crate::node::{Damaged, Page, SearchKey, View};
use crate::store::Store;

impl Store {
    /// Visits all keys before `end`, with `None` all there are, from the last one on backwards,
    /// each once. Changes made meanwhile may or may not be seen; keys that stay are seen.
    pub fn tree_scan_back(
        &self,
        id: ObjectId,
        tree: Tree,
        end: Option<&[u8]>,
        visit: &mut Visit<'_>,
    ) -> Result<()> {
        end.map_or(Ok(()), check_key)?;
        let which = TreeId { object: id, tree };
        let mut leaf = Leaf::new();
        let mut end = end.map(<[u8]>::to_vec);
        loop {
            let mut copy = || self.copy_leaf_before(which, end.as_deref(), &mut leaf);
            if let Err(error) = self.read_stable(id, &mut copy) {
                self.once_more(error, || self.read_stable(id, copy))?;
            }
            let visited = match leaf.filled {
                true => self.visit_leaf_back(which, &leaf, end.as_deref(), visit)?,
                false => ControlFlow::Continue(()),
            };
            let Some(first) = leaf.next.take().filter(|_| visited.is_continue()) else {
                return Ok(());
            };
            if end.is_some_and(|end| first >= end) {
                return Err(self.damaged(which, leaf.unit));
            }
            end = Some(first);
        }
    }

    /// Copies the last leaf that may hold keys before `end`; `next` is the key that it starts with,
    /// if another one is before it.
    fn copy_leaf_before(&self, which: TreeId, end: Option<&[u8]>, leaf: &mut Leaf) -> Result<()> {
        let end = end.map(SearchKey::new);
        self.copy_leaf_by(which, leaf, |view| {
            let index = count_before(view, end.as_ref())?.saturating_sub(1);
            Ok((index, Some(index).filter(|index| *index > 0)))
        })
    }

    fn visit_leaf_back(
        &self,
        which: TreeId,
        leaf: &Leaf,
        end: Option<&[u8]>,
        visit: &mut Visit<'_>,
    ) -> Result<ControlFlow<()>> {
        let damaged = |Damaged| self.damaged(which, leaf.unit);
        let view = View::open(&*leaf.bytes, which.object, which.tree).map_err(damaged)?;
        let end = end.map(SearchKey::new);
        let mut long = Vec::new();
        for index in (0..count_before(&view, end.as_ref()).map_err(damaged)?).rev() {
            let slot = view.slot(index).map_err(damaged)?;
            let key = view.key(&slot);
            let mut value = view.value(&slot);
            if slot.overflow {
                if !self.tree_get(which.object, which.tree, key, &mut long)? {
                    continue;
                }
                value = &long;
            }
            if visit(key, value, None).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// How many keys of a node are before `end`.
fn count_before<P: Page>(
    view: &View<P>,
    end: Option<&SearchKey<'_>>,
) -> std::result::Result<usize, Damaged> {
    let Some(end) = end else {
        return Ok(view.count());
    };
    let (Ok(index) | Err(index)) = view.find(end)?;
    Ok(index)
}
