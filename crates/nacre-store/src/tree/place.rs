//! Where nodes and entries come to lie: nodes that were changed often move, and entries go to bytes
//! that nobody reads.

use std::sync::atomic::Ordering::Relaxed;

use nacre_types::UnitNo;

use super::change::{Path, child_word, cut};
use super::read::TreeId;
use crate::alloc::Run;
use crate::error::Result;
use crate::node::{Damaged, NODE_BYTES, PLACED_MIN, Payload, SearchKey, entry_len};
use crate::tx::Tx;

/// Of the records after which a lane moves, the share of changes after which a node does.
const NODE_SHARE: u32 = 256;
/// So many times longer a node stays that is its whole tree: its place is written into the onode,
/// which stays longer still.
const LONE_STAYS: u32 = 8;
/// Free units below which nodes stay where they are.
const ROOM_TO_MOVE: u64 = 64;

impl Tx<'_> {
    /// After how many changes the next one gives a node a fresh place, one that is its whole tree
    /// (`lone`) or another.
    pub(super) fn changes_to_stay(&self, lone: bool) -> u32 {
        let most = (self.store.levelling.load(Relaxed) / NODE_SHARE).max(1);
        let most = if lone { LONE_STAYS * most } else { most };
        most.min(u32::from(u16::MAX))
    }

    /// Moves nodes of the way that were changed often where they lie to other units, from the leaf
    /// up, so that no unit wears out before the others. Best effort: without a free unit they stay.
    pub(super) fn level(&mut self, which: TreeId, path: &mut Path) -> Result<()> {
        if self.store.allocator().free_units() < ROOM_TO_MOVE {
            return Ok(());
        }
        let stays = self.changes_to_stay(path.steps.is_empty());
        for depth in (0..=path.steps.len()).rev() {
            let unit = path.steps.get(depth).map_or(path.leaf, |step| step.unit);
            let index = self.load(which, unit)?;
            let image = &self.scratch.nodes[index];
            if image.fresh || u32::from(image.wear()) < stays {
                break;
            }
            if !self.move_node(which, path, depth)? {
                break;
            }
        }
        Ok(())
    }

    /// Gives the node at `depth` of the way a fresh place; false if there is none.
    pub(super) fn move_node(
        &mut self,
        which: TreeId,
        path: &mut Path,
        depth: usize,
    ) -> Result<bool> {
        let Ok(place) = self.take_unit() else {
            return Ok(false);
        };
        let unit = path.steps.get(depth).map_or(path.leaf, |step| step.unit);
        let index = self.load_whole(which, unit)?;
        self.free_after_commit(Run {
            start: unit,
            count: 1,
        });
        self.scratch.place_image(index, place);
        match path.steps.get_mut(depth) {
            Some(step) => step.unit = place,
            _ => path.leaf = place,
        }
        self.point_to(which, path, depth, place)?;
        Ok(true)
    }

    /// Replaces a payload at a place of its own, or if that is cheaper or it has the same length,
    /// where it is; false: nothing was done.
    pub(super) fn replace_placed(
        &mut self,
        which: TreeId,
        leaf: UnitNo,
        index: usize,
        key: &SearchKey<'_>,
        payload: Payload<'_>,
    ) -> Result<bool> {
        let need = entry_len(key.bytes.len(), payload.bytes.len());
        let image = self.load_whole(which, leaf)?;
        if need >= PLACED_MIN && self.scratch.nodes[image].garbage() >= need {
            self.load_gaps(which, leaf)?;
        }
        self.edit(which, leaf, |leaf| {
            let moved = leaf.overwrite_elsewhere(index, key.bytes, payload)?;
            Ok(moved || leaf.overwrite_differing(index, payload)?)
        })
    }

    /// Before an entry comes to a leaf without room for it in one piece: finds gaps, moves the leaf
    /// if its entries must move together, or what is behind a place where it grows.
    #[inline(never)]
    pub(super) fn make_way(
        &mut self,
        which: TreeId,
        path: &mut Path,
        index: usize,
        (key, payload): (&SearchKey<'_>, Payload<'_>),
    ) -> Result<()> {
        let image = self.load_gaps(which, path.leaf)?;
        let node = &self.scratch.nodes[image];
        let need = entry_len(key.bytes.len(), payload.bytes.len());
        if node.has_gap(need) {
            return Ok(());
        }
        let grows = node.grows_at(index);
        if grows.map_err(|Damaged| self.store.damaged(which, path.leaf))? {
            self.cut_behind(which, path, index, key)?;
        } else if !node.fresh && node.must_compact(need) {
            // All of it is written anyway: at a fresh place once, through the log twice.
            self.move_node(which, path, path.steps.len())?;
        }
        Ok(())
    }

    /// Gives the entries of a full leaf from `index` on a leaf of their own: keys come in order
    /// before them, and the next ones shall find the end of a leaf.
    fn cut_behind(
        &mut self,
        which: TreeId,
        path: &mut Path,
        index: usize,
        key: &SearchKey<'_>,
    ) -> Result<()> {
        let image = self.load_whole(which, path.leaf)?;
        // What goes leaves a hole: the others move together.
        if !self.scratch.nodes[image].fresh && !self.move_node(which, path, path.steps.len())? {
            return Ok(());
        }
        let right = self.new_node(which, 0)?;
        let nodes = self.scratch.nodes.get_disjoint_mut([image, right]);
        let nodes = nodes.map_err(|_| Damaged);
        let done =
            nodes.and_then(|[left, right]| Ok((right.unit, cut(left, right, index, key.bytes)?)));
        let (right, separator) = done.map_err(|_| self.store.damaged(which, path.leaf))?;
        self.link_right(which, path, right, separator)?;
        // Nodes above may have been split, too.
        if let Some(root) = self.tree_owner(which.object, which.tree)?.root {
            *path = self.descend(which, root, key)?;
        }
        Ok(())
    }

    /// As [`Tx::load_whole`]; then the copy also knows which bytes between entries nobody reads on
    /// the medium.
    pub(super) fn load_gaps(&mut self, which: TreeId, unit: UnitNo) -> Result<usize> {
        let index = self.load_whole(which, unit)?;
        if self.scratch.nodes[index].fresh {
            return Ok(index);
        }
        let view = self.store.node(which, unit, None)?;
        let node = &mut self.scratch.nodes[index];
        node.add_spare(usize::from(view.head().heap.get()).min(NODE_BYTES)..NODE_BYTES);
        let read = node.not_spare((0..view.count()).map(|entry| view.slot(entry)));
        read.map_err(|Damaged| self.store.damaged(which, unit))?;
        Ok(index)
    }

    /// Makes whatever leads to the node at `depth` of the way lead to `place`.
    fn point_to(&mut self, which: TreeId, path: &Path, depth: usize, place: UnitNo) -> Result<()> {
        let Some(above) = depth.checked_sub(1).and_then(|above| path.steps.get(above)) else {
            return self.set_root_unit(which.object, which.tree, Some(place));
        };
        let word = child_word(which, place);
        let child = Payload {
            bytes: &word,
            overflow: false,
        };
        let done = self.edit_whole(which, above.unit, |node| node.overwrite(above.index, child));
        match done? {
            true => Ok(()),
            false => Err(self.store.damaged(which, above.unit)),
        }
    }
}
