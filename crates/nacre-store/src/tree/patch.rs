//! The usual change of a tree, one entry more or less in a leaf with room for it, told by what it is: no copy of the
//! leaf is made, its changed words go from the medium and from here into the record.

use std::ops::Range;

use nacre_types::{ObjectId, UnitNo, VolumeOffset};
use nacre_volume::Volume;
use zerocopy::IntoBytes;

use super::change::SPARSE;
use super::edit::Payload;
use super::node::{
    GRAIN, INDEX_BYTES, MediaPage, NODE_BYTES, SearchKey, Slot, View, encode_entry, entry_len,
    head_crc, index_at,
};
use super::read::TreeId;
use crate::error::Result;
use crate::layout::{NODE_INDEX_AT, RawNode, Tree};
use crate::log::Record;
use crate::tx::Tx;

/// Where the words of the head begin that change.
const HEAD_AT: usize = std::mem::offset_of!(RawNode, crc);

/// So many bytes of the index that do not change are logged to have one change of head and index: two cost more.
const HEAD_GAP: usize = 64;

/// One entry that comes to a leaf or goes.
pub(crate) struct LeafPatch {
    unit: UnitNo,
    owner: ObjectId,
    tree: Tree,
    /// As it will be.
    head: RawNode,
    /// Entries before the change.
    count: usize,
    /// Number of the entry.
    index: usize,
    slot: Slot,
    /// The bytes of an entry that comes, in the transaction's buffer.
    entry: Option<Range<usize>>,
}

/// A leaf as it is on the medium, which may be changed where it lies.
struct QuietLeaf<'s> {
    unit: UnitNo,
    view: View<MediaPage<'s>>,
    is_root: bool,
    found: std::result::Result<usize, usize>,
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
        let Some(leaf) = self.quiet_leaf(which, root, key)? else {
            return Ok(false);
        };
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
        let entry = Some(start..start + need);
        self.add_patch(which, &leaf, index, slot, entry, head);
        Ok(true)
    }

    /// Removes a key from a leaf that stays filled well enough. False: nothing was done.
    pub(super) fn patch_remove(
        &mut self,
        which: TreeId,
        root: UnitNo,
        key: &SearchKey<'_>,
    ) -> Result<bool> {
        let Some(leaf) = self.quiet_leaf(which, root, key)? else {
            return Ok(false);
        };
        let Ok(index) = leaf.found else {
            return Ok(false);
        };
        let Ok(slot) = leaf.view.slot(index) else {
            return Ok(false);
        };
        let left = leaf.view.used().saturating_sub(INDEX_BYTES + slot.len());
        let fewest = if leaf.is_root { 1 } else { SPARSE };
        if slot.overflow || left < fewest {
            return Ok(false);
        }
        let mut head = leaf.view.head();
        head.count = (leaf.view.count() as u16 - 1).into();
        head.sum = head.sum.get().wrapping_sub(slot.crc).into();
        let (heap, len) = (usize::from(head.heap.get()), slot.len() as u16);
        if heap == slot.at {
            head.heap = (slot.at as u16 + len).into();
        } else {
            head.garbage = head.garbage.get().wrapping_add(len).into();
        }
        self.add_patch(which, &leaf, index, slot, None, head);
        Ok(true)
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
            let Some(entry) = patch.entry else {
                self.edit(which, patch.unit, |leaf| {
                    leaf.remove_slot(patch.index, &patch.slot)
                })?;
                continue;
            };
            let body = &entries[entry][patch.slot.key_at() - patch.slot.at..];
            let (key, rest) = body.split_at(patch.slot.key_len);
            let skip = patch.slot.value_at() - patch.slot.key_at() - key.len();
            let payload = Payload {
                bytes: &rest[skip..skip + patch.slot.value_len],
                overflow: false,
            };
            let key = SearchKey::new(key);
            let fits = self.edit(which, patch.unit, |leaf| {
                leaf.insert(patch.index, &key, payload).map(Ok)
            })?;
            self.must_fit(which, patch.unit, fits)?;
        }
        Ok(())
    }

    /// The leaf that covers a key, if the transaction has not changed it and it need not move.
    fn quiet_leaf(
        &self,
        which: TreeId,
        root: UnitNo,
        key: &SearchKey<'_>,
    ) -> Result<Option<QuietLeaf<'s>>> {
        if !self.scratch.nodes.is_empty() {
            return Ok(None);
        }
        let (unit, view) = self.store.leaf_of(which, root, key)?;
        if self.scratch.patches.iter().any(|patch| patch.unit == unit) {
            return Ok(None);
        }
        let is_root = unit == root;
        if u32::from(view.head().wear.get()) >= self.changes_to_stay(is_root) {
            return Ok(None);
        }
        let found = view.find(key);
        let found = found.map_err(|_| self.store.damaged(which, unit))?;
        Ok(Some(QuietLeaf {
            unit,
            view,
            is_root,
            found,
        }))
    }

    fn add_patch(
        &mut self,
        which: TreeId,
        leaf: &QuietLeaf<'_>,
        index: usize,
        slot: Slot,
        entry: Option<Range<usize>>,
        mut head: RawNode,
    ) {
        head.wear = head.wear.get().saturating_add(1).into();
        head.crc = head_crc(&head).into();
        self.scratch.patches.push(LeafPatch {
            unit: leaf.unit,
            owner: which.object,
            tree: which.tree,
            head,
            count: leaf.view.count(),
            index,
            slot,
            entry,
        });
    }
}

impl LeafPatch {
    /// Puts the changed words into the record.
    pub(crate) fn fill(&self, record: &mut Record, volume: &Volume, entries: &[u8]) {
        let at = |place: usize| VolumeOffset(self.unit.offset().0 + place as u64);
        let first = index_at(self.index);
        let behind = index_at(self.count);
        let new_behind = index_at(usize::from(self.head.count.get()));
        let words = first / GRAIN * GRAIN..behind.max(new_behind).next_multiple_of(GRAIN);
        let is_last = self.entry.is_none() && first + INDEX_BYTES == behind;
        let shift = |bytes: &mut [u8], from: usize| {
            volume.read(at(from), bytes);
            let (first, behind) = (first - from, behind - from);
            match self.entry {
                Some(_) => {
                    bytes.copy_within(first..behind, first + INDEX_BYTES);
                    let place = (self.slot.at / GRAIN) as u16;
                    bytes[first..first + INDEX_BYTES].copy_from_slice(&place.to_le_bytes());
                }
                None => bytes.copy_within(first + INDEX_BYTES..behind, first),
            }
        };
        let head = &self.head.as_bytes()[HEAD_AT..];
        if is_last {
            record.add_words(at(HEAD_AT), head);
        } else if words.start <= NODE_INDEX_AT + HEAD_GAP {
            record.add_with(at(HEAD_AT), words.end - HEAD_AT, |bytes| {
                let (to, index) = bytes.split_at_mut(head.len());
                to.copy_from_slice(head);
                shift(index, NODE_INDEX_AT);
            });
        } else {
            record.add_words(at(HEAD_AT), head);
            record.add_with(at(words.start), words.len(), |bytes| {
                shift(bytes, words.start)
            });
        }
        if let Some(entry) = self.entry.clone() {
            record.add_words(at(self.slot.at), &entries[entry]);
        }
    }
}
