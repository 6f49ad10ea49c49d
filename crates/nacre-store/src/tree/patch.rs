//! The usual change of a tree, one entry more in a leaf with room for it, one less, or first one
//! more and then one less, told by what it is: no copy of the leaf is made, its changed words go
//! from the medium and from here into the record.

use nacre_types::UnitNo;

use super::change::SPARSE;
use super::read::TreeId;
use crate::error::Result;
use crate::layout::RawNode;
use crate::node::{
    Arrival, Departure, GRAIN, INDEX_BYTES, LeafPatch, MediaPage, NODE_BYTES, Payload, SearchKey,
    Slot, View, encode_entry, entry_len, head_crc, index_at,
};
use crate::tx::Tx;

/// Patches are searched one by one. Copies, which are not, serve longer transactions.
const MOST_PATCHES: usize = 16;

/// A leaf as it is on the medium, which may be changed where it lies.
struct QuietLeaf<'s> {
    unit: UnitNo,
    view: View<MediaPage<'s>>,
    is_root: bool,
    found: std::result::Result<usize, usize>,
    /// The transaction's patch of the leaf.
    patch: Option<usize>,
}

impl<'s> Tx<'s> {
    /// Inserts a key that is not there into a leaf with room for it. False: nothing was done.
    pub(super) fn patch_insert(
        &mut self,
        which: TreeId,
        root: UnitNo,
        key: &SearchKey<'_>,
        value: &[u8],
    ) -> Result<bool> {
        // Who writes bytes, too, changes attributes with them, of which several lie in a leaf.
        if !self.scratch.staged.is_empty() {
            return Ok(false);
        }
        let Some(leaf) = self.quiet_leaf(which, root, key)? else {
            return Ok(false);
        };
        if leaf.patch.is_some() {
            return Ok(false);
        }
        let (mut head, count) = (leaf.view.head(), leaf.view.count());
        let (heap, need) = (
            usize::from(head.heap.get()),
            entry_len(key.bytes.len(), value.len()),
        );
        let Err(index) = leaf.found else {
            return Ok(false);
        };
        if index_at(count + 1) + need > heap || heap > NODE_BYTES || !heap.is_multiple_of(GRAIN) {
            return Ok(false);
        }
        let mut slot = Slot::new(heap - need, key.bytes.len(), value.len(), false);
        let entries = &mut self.scratch.entries;
        let start = entries.len();
        entries.resize(start + need, 0);
        encode_entry(&mut entries[start..], &mut slot, key.bytes, value);
        head.count = (count as u16 + 1).into();
        head.heap = (slot.at as u16).into();
        head.sum = head.sum.get().wrapping_add(slot.crc).into();
        let come = Arrival {
            index,
            slot,
            bytes: start..start + need,
        };
        head.wear = head.wear.get().saturating_add(1).into();
        self.add_patch(which, &leaf, head, Some(come), None);
        Ok(true)
    }

    /// Removes a key from a leaf that stays filled well enough, as [`Tx::tree_take`]. `None`:
    /// nothing was done.
    pub(super) fn patch_remove(
        &mut self,
        which: TreeId,
        root: UnitNo,
        key: &SearchKey<'_>,
        value: &mut [u8],
    ) -> Result<Option<usize>> {
        let Some(leaf) = self.quiet_leaf(which, root, key)? else {
            return Ok(None);
        };
        let Ok(index) = leaf.found else {
            return Ok(None);
        };
        let Ok(slot) = leaf.view.slot(index) else {
            return Ok(None);
        };
        let before = leaf.patch.map(|patch| &self.scratch.patches[patch]);
        let come = before.and_then(|patch| patch.come.as_ref());
        let used = leaf.view.used() + come.map_or(0, |come| INDEX_BYTES + come.slot.len());
        let left = used.saturating_sub(INDEX_BYTES + slot.len());
        let fewest = if leaf.is_root { 1 } else { SPARSE };
        let is_second = before.is_some_and(|patch| patch.gone.is_some());
        if slot.overflow || left < fewest || is_second {
            return Ok(None);
        }
        if slot.value_len <= value.len() {
            leaf.view.value_prefix(&slot, value);
        }
        let mut head = match before {
            Some(patch) => patch.head,
            None => leaf.view.head(),
        };
        head.count = head.count.get().wrapping_sub(1).into();
        head.sum = head.sum.get().wrapping_sub(slot.crc).into();
        let (heap, len) = (usize::from(head.heap.get()), slot.len() as u16);
        if heap == slot.at {
            head.heap = (slot.at as u16 + len).into();
        } else {
            head.garbage = head.garbage.get().wrapping_add(len).into();
        }
        let gone = Departure { index, slot };
        match leaf.patch {
            Some(patch) => self.scratch.patches[patch].take_away(gone, head),
            None => {
                head.wear = head.wear.get().saturating_add(1).into();
                self.add_patch(which, &leaf, head, None, Some(gone));
            }
        }
        Ok(Some(slot.value_len))
    }

    /// Makes copies of the leaves that patches change, so that all further changes see them.
    pub(super) fn settle(&mut self) -> Result<()> {
        if self.scratch.patches.is_empty() {
            return Ok(());
        }
        let entries = std::mem::take(&mut self.scratch.entries);
        for patch in std::mem::take(&mut self.scratch.patches) {
            let which = TreeId {
                object: patch.owner,
                tree: patch.tree,
            };
            if let Some(come) = &patch.come {
                let body = &entries[come.bytes.clone()][come.slot.key_at() - come.slot.at..];
                let (key, rest) = body.split_at(come.slot.key_len);
                let skip = come.slot.value_at() - come.slot.key_at() - key.len();
                let payload = Payload {
                    bytes: &rest[skip..skip + come.slot.value_len],
                    overflow: false,
                };
                let key = SearchKey::new(key);
                let fits = self.edit(which, patch.unit, |leaf| {
                    leaf.insert(come.index, &key, payload).map(Ok)
                })?;
                self.must_fit(which, patch.unit, fits)?;
            }
            if let Some(gone) = &patch.gone {
                let moved = patch
                    .come
                    .as_ref()
                    .is_some_and(|come| come.index <= gone.index);
                let index = gone.index + usize::from(moved);
                self.edit(which, patch.unit, |leaf| {
                    leaf.remove_slot(index, &gone.slot)
                })?;
            }
        }
        Ok(())
    }

    /// The leaf that covers a key, if the transaction has made no copies and it need not move.
    fn quiet_leaf(
        &self,
        which: TreeId,
        root: UnitNo,
        key: &SearchKey<'_>,
    ) -> Result<Option<QuietLeaf<'s>>> {
        if !self.scratch.nodes.is_empty() || self.scratch.patches.len() >= MOST_PATCHES {
            return Ok(None);
        }
        let (unit, view) = self.store.leaf_of(which, root, key)?;
        let mut patches = self.scratch.patches.iter();
        let patch = patches.position(|patch| patch.unit == unit);
        let is_root = unit == root;
        if u32::from(view.head().wear.get()) >= self.changes_to_stay(is_root) {
            return Ok(None);
        }
        let Ok(found) = view.find(key) else {
            // The general way finds it repaired, or tells.
            self.store.repair_node_copies(which, unit);
            return Ok(None);
        };
        Ok(Some(QuietLeaf {
            unit,
            view,
            is_root,
            found,
            patch,
        }))
    }

    fn add_patch(
        &mut self,
        which: TreeId,
        leaf: &QuietLeaf<'_>,
        mut head: RawNode,
        come: Option<Arrival>,
        gone: Option<Departure>,
    ) {
        head.crc = head_crc(&head).into();
        self.scratch.patches.push(LeafPatch {
            unit: leaf.unit,
            owner: which.object,
            tree: which.tree,
            head,
            count: leaf.view.count(),
            come,
            gone,
        });
    }
}
