//! Changing a copy of a tree node in DRAM; the words touched are remembered for the log.

use std::mem::offset_of;
use std::ops::Range;

use nacre_types::{ObjectId, UnitNo};
use zerocopy::IntoBytes;

use super::node::{
    Damaged, GRAIN, INDEX_BYTES, NODE_BYTES, NodeBytes, SearchKey, Slot, View, entry_crc,
    entry_len, head_crc, head_of, index_at,
};
use crate::layout::{NODE_MAGIC, RawNode, Tree};

const WORD: usize = 8;
/// Unchanged words between two changes that make it one change.
const JOINED: usize = 2;

/// One bit for each word of a node.
pub(crate) type DirtyWords = [u64; DIRTY_WORDS];
const DIRTY_WORDS: usize = NODE_BYTES / WORD / 64;

/// What an entry holds behind its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Payload<'p> {
    pub(crate) bytes: &'p [u8],
    pub(crate) overflow: bool,
}

/// A copy of one node.
pub(crate) struct NodeImage {
    pub(crate) unit: UnitNo,
    pub(crate) owner: ObjectId,
    pub(crate) tree: Tree,
    /// Not reachable before the commit: written in place, not logged.
    pub(crate) fresh: bool,
    /// Removed by this transaction.
    pub(crate) freed: bool,
    /// Words that differ from the medium.
    pub(crate) dirty: DirtyWords,
    /// Sum of the checksums of all entries.
    pub(crate) entries_crc: u32,
    pub(crate) bytes: Box<NodeBytes>,
}

impl NodeImage {
    /// Turns the image into an empty node.
    pub(crate) fn reset(&mut self, level: u8) {
        self.bytes.fill(0);
        self.put(0, &NODE_MAGIC.to_le_bytes());
        self.put(offset_of!(RawNode, owner), &self.owner.0.to_le_bytes());
        self.put(offset_of!(RawNode, unit), &self.unit.0.to_le_bytes());
        self.put(offset_of!(RawNode, level), &[level, self.tree as u8]);
        self.set_heap(NODE_BYTES);
        self.dirty = [u64::MAX; DIRTY_WORDS];
        self.entries_crc = 0;
    }

    pub(crate) fn view(&self) -> Result<View<&NodeBytes>, Damaged> {
        View::open(&*self.bytes, self.owner, self.tree)
    }

    /// Inserts an entry at `index`; false when there is no room.
    pub(crate) fn insert(
        &mut self,
        index: usize,
        key: &SearchKey<'_>,
        payload: Payload<'_>,
    ) -> Result<bool, Damaged> {
        let need = entry_len(key.bytes.len(), payload.bytes.len());
        let count = self.count();
        let index_end = index_at(count + 1);
        if index_end + need > self.heap() {
            if index_end + need > self.heap() + self.garbage() {
                return Ok(false);
            }
            self.compact()?;
        }
        let at = self.heap() - need;
        self.put_entry(at, key.bytes, payload);
        self.shift_index(index, count, 1);
        self.put_index(index, at);
        self.set_count(count + 1);
        self.set_heap(at);
        Ok(true)
    }

    /// Appends an entry as it is to a fresh node; false when there is no room.
    pub(crate) fn append_copy(&mut self, from: &NodeBytes, slot: &Slot) -> bool {
        let (count, need) = (self.count(), slot.len());
        if index_at(count + 1) + need > self.heap() {
            return false;
        }
        let at = self.heap() - need;
        self.put(at, &from[slot.at..slot.at + need]);
        self.put_index(count, at);
        self.set_count(count + 1);
        self.set_heap(at);
        self.entries_crc = self.entries_crc.wrapping_add(slot.crc);
        true
    }

    /// Removes the entry at `index`.
    pub(crate) fn remove(&mut self, index: usize) -> Result<(), Damaged> {
        let slot = self.view()?.slot(index)?;
        let count = self.count();
        if index >= count {
            return Err(Damaged);
        }
        self.entries_crc = self.entries_crc.wrapping_sub(slot.crc);
        self.shift_index(index + 1, count, -1);
        self.set_count(count - 1);
        if slot.at == self.heap() {
            self.set_heap(slot.at + slot.len());
        } else {
            self.set_garbage(self.garbage() + slot.len());
        }
        Ok(())
    }

    /// Replaces the payload at `index` if the new one has the same length; false otherwise.
    pub(crate) fn overwrite(
        &mut self,
        index: usize,
        payload: Payload<'_>,
    ) -> Result<bool, Damaged> {
        let slot = self.view()?.slot(index)?;
        if slot.value_len != payload.bytes.len() || slot.overflow != payload.overflow {
            return Ok(false);
        }
        self.entries_crc = self.entries_crc.wrapping_sub(slot.crc);
        self.put(slot.value_at(), payload.bytes);
        self.seal_entry(slot);
        Ok(true)
    }

    /// Drops the entries from `index` on; their heap bytes become garbage.
    pub(crate) fn truncate(&mut self, index: usize) -> Result<(), Damaged> {
        let mut freed = 0;
        for dropped in index..self.count() {
            let slot = self.view()?.slot(dropped)?;
            self.entries_crc = self.entries_crc.wrapping_sub(slot.crc);
            freed += slot.len();
        }
        self.set_count(index);
        self.set_garbage(self.garbage() + freed);
        Ok(())
    }

    /// Bytes that index and entries take.
    pub(crate) fn used(&self) -> usize {
        self.count() * INDEX_BYTES + NODE_BYTES - self.heap() - self.garbage()
    }

    pub(crate) fn count(&self) -> usize {
        usize::from(head_of(&self.bytes).count.get())
    }

    pub(crate) fn level(&self) -> u8 {
        self.bytes[offset_of!(RawNode, level)]
    }

    /// Takes what is in the buffer as a sound node.
    pub(crate) fn loaded(&mut self) {
        self.entries_crc = head_of(&self.bytes).sum.get();
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.iter().any(|&words| words != 0)
    }

    /// How many transactions have changed the node where it lies.
    pub(crate) fn wear(&self) -> u16 {
        head_of(&self.bytes).wear.get()
    }

    /// Turns the copy into that of a node at another place.
    pub(crate) fn place_at(&mut self, unit: UnitNo) {
        self.unit = unit;
        self.fresh = true;
        self.put(offset_of!(RawNode, unit), &unit.0.to_le_bytes());
        self.put(offset_of!(RawNode, wear), &[0; 2]);
        self.dirty = [u64::MAX; DIRTY_WORDS];
    }

    /// Counts a transaction, and makes the checksum right.
    pub(crate) fn seal(&mut self) {
        let wear = self.wear().saturating_add(1);
        self.put(offset_of!(RawNode, wear), &wear.to_le_bytes());
        self.put(offset_of!(RawNode, sum), &self.entries_crc.to_le_bytes());
        let crc = head_crc(&head_of(&self.bytes));
        self.put(offset_of!(RawNode, crc), &crc.to_le_bytes());
    }

    fn compact(&mut self) -> Result<(), Damaged> {
        let old = *self.bytes;
        let view = View::open(&old, self.owner, self.tree)?;
        let mut heap = NODE_BYTES;
        for index in 0..view.count() {
            let slot = view.slot(index)?;
            heap = heap.checked_sub(slot.len()).ok_or(Damaged)?;
            self.put(heap, &old[slot.at..slot.at + slot.len()]);
            self.put_index(index, heap);
        }
        self.set_heap(heap);
        self.set_garbage(0);
        Ok(())
    }

    /// Moves the index of the entries `first..count` by one up or down.
    fn shift_index(&mut self, first: usize, count: usize, by: isize) {
        if first >= count {
            return;
        }
        let from = index_at(first)..index_at(count);
        let to = from.start.wrapping_add_signed(by * INDEX_BYTES as isize);
        let len = from.len();
        self.bytes.copy_within(from, to);
        self.mark(to, len);
    }

    fn put_index(&mut self, index: usize, at: usize) {
        let place = (at / GRAIN) as u16;
        self.put(index_at(index), &place.to_le_bytes());
    }

    /// Writes an entry to a free place of its length.
    fn put_entry(&mut self, at: usize, key: &[u8], payload: Payload<'_>) {
        let slot = Slot::new(at, key.len(), payload.bytes.len(), payload.overflow);
        // What no put reaches: behind a short key and behind the value.
        let padded = slot.key_at()..at + slot.len();
        self.bytes[slot.key_at()..slot.key_at() + WORD].fill(0);
        self.bytes[padded.end - WORD..padded.end].fill(0);
        self.put(slot.key_at(), key);
        self.put(slot.value_at(), payload.bytes);
        self.mark(padded.start, padded.len());
        self.seal_entry(slot);
    }

    /// Writes an entry's head, with the checksum of what is behind it, and counts it in.
    fn seal_entry(&mut self, slot: Slot) {
        let mut slot = slot;
        self.put(slot.at, slot.head().as_bytes());
        slot.crc = entry_crc(&self.bytes, &slot);
        self.put(slot.at, slot.head().as_bytes());
        self.entries_crc = self.entries_crc.wrapping_add(slot.crc);
    }

    fn heap(&self) -> usize {
        usize::from(head_of(&self.bytes).heap.get())
    }

    fn garbage(&self) -> usize {
        usize::from(head_of(&self.bytes).garbage.get())
    }

    fn set_count(&mut self, count: usize) {
        self.put(offset_of!(RawNode, count), &(count as u16).to_le_bytes());
    }

    fn set_heap(&mut self, heap: usize) {
        self.put(offset_of!(RawNode, heap), &(heap as u16).to_le_bytes());
    }

    fn set_garbage(&mut self, garbage: usize) {
        self.put(
            offset_of!(RawNode, garbage),
            &(garbage as u16).to_le_bytes(),
        );
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.mark(at, bytes.len());
    }

    fn mark(&mut self, at: usize, len: usize) {
        if len == 0 {
            return;
        }
        let (first, last) = (at / WORD, (at + len - 1) / WORD);
        for part in first / 64..=last / 64 {
            let from = first.max(part * 64) % 64;
            let to = last.min(part * 64 + 63) % 64;
            self.dirty[part] |= u64::MAX >> (63 - to + from) << from;
        }
    }
}

/// The runs of set bits as ranges of bytes, 8 for each bit. Gaps of [`JOINED`] words are taken along:
/// that is less than the head of another change.
pub(crate) fn dirty_runs(dirty: &[u64]) -> impl Iterator<Item = Range<usize>> {
    let end = dirty.len() * 64;
    let mut next = find_bit(dirty, 0, true);
    std::iter::from_fn(move || {
        let first = next?;
        let mut last = first;
        while let Some(bit) = next
            && bit <= last + JOINED
        {
            last = find_bit(dirty, bit, false).unwrap_or(end);
            next = find_bit(dirty, last, true);
        }
        Some(first * WORD..last * WORD)
    })
}

/// The first bit from `from` on that is as wanted.
fn find_bit(bits: &[u64], from: usize, set: bool) -> Option<usize> {
    let flip = if set { 0 } else { u64::MAX };
    let mut index = from / 64;
    let mut rest = (bits.get(index)? ^ flip) & u64::MAX << (from % 64);
    while rest == 0 {
        index += 1;
        rest = bits.get(index)? ^ flip;
    }
    Some(index * 64 + rest.trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::dirty_runs;

    #[test]
    fn dirty_words_become_byte_runs() {
        let runs: Vec<_> = dirty_runs(&[0b1_0001_0011 | 1 << 63, 3, 0, 1 << 63]).collect();
        assert_eq!(runs, [0..40, 64..72, 504..528, 2040..2048]);
        assert_eq!(dirty_runs(&[u64::MAX; 8]).next(), Some(0..4096));
        assert_eq!(dirty_runs(&[0; 8]).count(), 0);
    }
}
