//! Changing a copy of a tree node in DRAM; the words touched are remembered for the log.

use std::mem::offset_of;
use std::ops::Range;

use nacre_types::{ObjectId, UnitNo};
use zerocopy::IntoBytes;

use super::page::{
    Damaged, GRAIN, INDEX_BYTES, NODE_BYTES, NodeBytes, SearchKey, Slot, View, encode_entry,
    entry_crc, entry_len, head_crc, head_of, index_at,
};
use crate::layout::{NODE_MAGIC, RawNode, Tree};

const WORD: usize = 8;

/// One bit for each word of a node.
pub(crate) type DirtyWords = [u64; DIRTY_WORDS];
const DIRTY_WORDS: usize = NODE_BYTES / WORD / 64;

/// What an entry holds behind its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Payload<'p> {
    pub(crate) bytes: &'p [u8],
    pub(crate) overflow: bool,
}

/// A copy of one node. Of a node on the medium only head and index are copied at first: what most
/// changes need.
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
    /// From here on the bytes are still those of the medium.
    pub(crate) loaded: usize,
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
        self.set_shape(0, NODE_BYTES, 0);
        self.dirty = [u64::MAX; DIRTY_WORDS];
        self.entries_crc = 0;
        self.loaded = NODE_BYTES;
    }

    /// The whole node.
    pub(crate) fn view(&self) -> Result<View<&NodeBytes>, Damaged> {
        match self.is_whole() {
            true => View::open(&*self.bytes, self.owner, self.tree),
            false => Err(Damaged),
        }
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.loaded == NODE_BYTES
    }

    /// Inserts an entry at `index`; false when there is no room, or none without moving entries
    /// that are not here.
    pub(crate) fn insert(
        &mut self,
        index: usize,
        key: &SearchKey<'_>,
        payload: Payload<'_>,
    ) -> Result<bool, Damaged> {
        let need = entry_len(key.bytes.len(), payload.bytes.len());
        let (count, mut heap) = (self.count(), self.heap());
        let index_end = index_at(count + 1);
        if index_end + need > heap {
            if !self.is_whole() || index_end + need > heap + self.garbage() {
                return Ok(false);
            }
            self.compact()?;
            heap = self.heap();
        }
        let at = heap.checked_sub(need).ok_or(Damaged)?;
        self.put_entry(at, key.bytes, payload);
        self.shift_index(index, count, 1);
        self.put_index(index, at);
        self.set_shape(count + 1, at, self.garbage());
        Ok(true)
    }

    /// Appends entries of another node as they are to a whole one; false when there is no room in
    /// one piece.
    pub(crate) fn append(
        &mut self,
        from: &View<&NodeBytes>,
        entries: Range<usize>,
    ) -> Result<bool, Damaged> {
        let (count, end) = (self.count(), self.heap());
        let index_end = index_at(count + entries.len());
        let (mut heap, mut crc) = (end, self.entries_crc);
        for (entry, index) in entries.clone().zip(count..) {
            let slot = from.slot(entry)?;
            let place = heap.checked_sub(slot.len());
            let Some(place) = place.filter(|&place| place >= index_end) else {
                return Ok(false);
            };
            heap = place;
            self.bytes[heap..heap + slot.len()].copy_from_slice(from.entry(&slot));
            self.bytes[index_at(index)..index_at(index + 1)].copy_from_slice(&place_of(heap));
            crc = crc.wrapping_add(slot.crc);
        }
        self.mark(index_at(count), entries.len() * INDEX_BYTES);
        self.mark(heap, end - heap);
        self.set_shape(count + entries.len(), heap, self.garbage());
        self.entries_crc = crc;
        Ok(true)
    }

    /// Removes the entry at `index` of a whole node.
    pub(crate) fn remove(&mut self, index: usize) -> Result<(), Damaged> {
        let slot = self.view()?.slot(index)?;
        self.remove_slot(index, &slot)
    }

    /// Removes the entry at `index`, which is `slot`.
    pub(crate) fn remove_slot(&mut self, index: usize, slot: &Slot) -> Result<(), Damaged> {
        let count = self.count();
        if index >= count {
            return Err(Damaged);
        }
        self.entries_crc = self.entries_crc.wrapping_sub(slot.crc);
        self.shift_index(index + 1, count, -1);
        let (heap, garbage) = match self.heap() {
            heap if heap == slot.at => (heap + slot.len(), self.garbage()),
            heap => (heap, self.garbage() + slot.len()),
        };
        self.set_shape(count - 1, heap, garbage);
        // What is written to the place of the removed entry is here, not on the medium.
        self.loaded = self.loaded.max(heap);
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
        let (mut freed, mut dropped_crc) = (0, 0_u32);
        let view = self.view()?;
        for dropped in index..view.count() {
            let slot = view.slot(dropped)?;
            dropped_crc = dropped_crc.wrapping_add(slot.crc);
            freed += slot.len();
        }
        self.entries_crc = self.entries_crc.wrapping_sub(dropped_crc);
        self.set_shape(index, self.heap(), self.garbage() + freed);
        Ok(())
    }

    /// Bytes that index and entries take.
    pub(crate) fn used(&self) -> usize {
        self.count() * INDEX_BYTES + NODE_BYTES - self.heap() - self.garbage()
    }

    pub(crate) fn count(&self) -> usize {
        self.number(offset_of!(RawNode, count))
    }

    pub(crate) fn level(&self) -> u8 {
        self.bytes[offset_of!(RawNode, level)]
    }

    /// Takes the first `len` bytes in the buffer for those of a sound node.
    pub(crate) fn begin(&mut self, len: usize) {
        self.entries_crc = head_of(&self.bytes).sum.get();
        self.loaded = self.heap().clamp(len, NODE_BYTES);
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

    /// Moves all entries of a whole node together.
    pub(crate) fn compact(&mut self) -> Result<(), Damaged> {
        let old = *self.bytes;
        let view = View::open(&old, self.owner, self.tree)?;
        self.set_shape(0, NODE_BYTES, 0);
        self.entries_crc = 0;
        match self.append(&view, 0..view.count())? {
            true => Ok(()),
            false => Err(Damaged),
        }
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
        self.put(index_at(index), &place_of(at));
    }

    /// Writes an entry to a free place of its length.
    fn put_entry(&mut self, at: usize, key: &[u8], payload: Payload<'_>) {
        let mut slot = Slot::new(at, key.len(), payload.bytes.len(), payload.overflow);
        let entry = &mut self.bytes[at..at + slot.len()];
        encode_entry(entry, &mut slot, key, payload.bytes);
        self.mark(at, slot.len());
        self.entries_crc = self.entries_crc.wrapping_add(slot.crc);
    }

    /// Writes an entry's head, with the checksum of what is behind it, and counts it in.
    fn seal_entry(&mut self, slot: Slot) {
        let mut slot = slot;
        slot.crc = entry_crc(&self.bytes, &slot);
        self.put(slot.at, slot.head().as_bytes());
        self.entries_crc = self.entries_crc.wrapping_add(slot.crc);
    }

    fn heap(&self) -> usize {
        self.number(offset_of!(RawNode, heap))
    }

    fn garbage(&self) -> usize {
        self.number(offset_of!(RawNode, garbage))
    }

    /// A 16-bit number of the head.
    #[inline]
    fn number(&self, at: usize) -> usize {
        usize::from(u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]))
    }

    /// Number of entries, start of the heap, dead bytes in it.
    fn set_shape(&mut self, count: usize, heap: usize, garbage: usize) {
        const AT: usize = offset_of!(RawNode, count);
        const { assert!(offset_of!(RawNode, heap) == AT + 2 && offset_of!(RawNode, garbage) == AT + 4) };
        let [a, b] = (count as u16).to_le_bytes();
        let [c, d] = (heap as u16).to_le_bytes();
        let [e, f] = (garbage as u16).to_le_bytes();
        self.put(AT, &[a, b, c, d, e, f]);
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
        if first / 64 == last / 64 {
            self.dirty[first / 64] |= u64::MAX >> (63 - (last - first)) << (first % 64);
            return;
        }
        for part in first / 64..=last / 64 {
            let from = first.max(part * 64) % 64;
            let to = last.min(part * 64 + 63) % 64;
            self.dirty[part] |= u64::MAX >> (63 - to + from) << from;
        }
    }
}

/// What the index says of an entry at a place of the node.
fn place_of(at: usize) -> [u8; INDEX_BYTES] {
    ((at / GRAIN) as u16).to_le_bytes()
}

/// Calls `found` with the runs of set bits as ranges of bytes, 8 for each bit. Gaps of one or two
/// bits are taken along: that is less than the head of another change.
#[inline]
pub(crate) fn each_run(dirty: &[u64], mut found: impl FnMut(Range<usize>)) {
    let mut open: Option<Range<usize>> = None;
    for (part, &bits) in dirty.iter().enumerate().filter(|(_, bits)| **bits != 0) {
        let near = bits << 1 & bits >> 1;
        let far = bits << 2 & bits >> 1 | bits << 1 & bits >> 2;
        let mut rest = bits | near | far;
        while rest != 0 {
            let first = rest.trailing_zeros();
            let start = part * 64 + first as usize;
            let end = start + (rest >> first).trailing_ones() as usize;
            // The sum carries through the run and clears it.
            rest &= rest.wrapping_add(1 << first);
            match &mut open {
                Some(run) if run.end == start * WORD => run.end = end * WORD,
                _ => open
                    .replace(start * WORD..end * WORD)
                    .map_or((), &mut found),
            }
        }
    }
    if let Some(run) = open {
        found(run);
    }
}

#[cfg(test)]
mod tests {
    use super::{DirtyWords, NodeImage, Payload, each_run};
    use crate::layout::Tree;
    use crate::node::page::{NODE_BYTES, SearchKey};
    use nacre_types::{ObjectId, UnitNo};
    use std::ops::Range;

    /// A leaf with entries of so many bytes, whose keys begin with `first`.
    fn leaf(first: u8, sizes: &[usize]) -> NodeImage {
        let mut image = NodeImage {
            unit: UnitNo(70),
            owner: ObjectId(1),
            tree: Tree::Xattrs,
            fresh: true,
            freed: false,
            dirty: DirtyWords::default(),
            entries_crc: 0,
            loaded: NODE_BYTES,
            bytes: Box::new([0; NODE_BYTES]),
        };
        image.reset(0);
        for (index, &size) in sizes.iter().enumerate() {
            let (key, bytes) = ([first, index as u8], vec![first; size]);
            let payload = Payload {
                bytes: &bytes,
                overflow: false,
            };
            assert_eq!(
                image.insert(index, &SearchKey::new(&key), payload),
                Ok(true)
            );
        }
        image
    }

    #[test]
    fn entries_are_appended_if_there_is_room_in_one_piece() {
        let more = leaf(2, &[1200, 1200]);
        let view = more.view().unwrap();
        for (there, fits) in [
            (&[1200, 300][..], true),
            (&[1200, 1200], false),
            (&[1], true),
        ] {
            let mut image = leaf(1, there);
            assert_eq!(image.append(&view, 0..2), Ok(fits));
            let after = there.len() + if fits { 2 } else { 0 };
            assert_eq!(image.view().unwrap().count(), after);
        }
        let mut image = leaf(1, &[1200, 1200]);
        image.remove(0).unwrap();
        assert_eq!(image.append(&view, 0..2), Ok(false));
        image.compact().unwrap();
        assert_eq!(image.append(&view, 0..2), Ok(true));
    }

    fn runs(dirty: &[u64]) -> Vec<Range<usize>> {
        let mut runs = Vec::new();
        each_run(dirty, |run| runs.push(run));
        runs
    }

    #[test]
    fn dirty_words_become_byte_runs() {
        let found = runs(&[0b1_0001_0011 | 1 << 63, 3, 0, 1 << 63]);
        assert_eq!(found, [0..40, 64..72, 504..528, 2040..2048]);
        let gaps = 1 | 1 << 6 | 1 << 8 | 1 << 11 | 1 << 15;
        assert_eq!(runs(&[gaps]), [0..8, 48..96, 120..128]);
        assert_eq!(
            runs(&[u64::MAX; 8]).as_slice(),
            std::slice::from_ref(&(0..4096))
        );
        assert_eq!(runs(&[0; 8]), []);
    }
}
