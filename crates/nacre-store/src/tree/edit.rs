//! Changing a copy of a tree node in DRAM; the lines touched are remembered for the log.

use std::mem::offset_of;

use nacre_types::{LINE_SIZE, ObjectId, UnitNo};

use super::node::{
    Damaged, NODE_BYTES, NodeBytes, SLOT_BYTES, SearchKey, Slot, View, entry_crc, head_crc,
    head_of, slot_at,
};
use crate::layout::{NODE_MAGIC, RawNode, RawSlot, Tree};

const LINE: usize = LINE_SIZE as usize;

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
    /// Bit n: line n differs from the medium.
    pub(crate) dirty: u64,
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
        self.dirty = u64::MAX;
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
        let need = key.tail().len() + payload.bytes.len();
        let count = self.count();
        let slots_end = slot_at(count + 1);
        if slots_end + need > self.heap() {
            if slots_end + need > self.heap() + self.garbage() {
                return Ok(false);
            }
            self.compact()?;
        }
        let at = self.heap() - need;
        self.put(at, key.tail());
        self.put(at + key.tail().len(), payload.bytes);
        self.set_heap(at);
        self.shift_slots(index, count, 1);
        self.set_count(count + 1);
        let slot = Slot {
            prefix: key.prefix,
            at,
            key_len: key.bytes.len(),
            value_len: payload.bytes.len(),
            overflow: payload.overflow,
        };
        self.put_slot(index, &slot);
        self.count_in(index, &slot);
        Ok(true)
    }

    /// Removes the entry at `index`.
    pub(crate) fn remove(&mut self, index: usize) -> Result<(), Damaged> {
        let slot = self.view()?.slot(index)?;
        let count = self.count();
        if index >= count {
            return Err(Damaged);
        }
        self.count_out(index, &slot);
        self.shift_slots(index + 1, count, -1);
        self.set_count(count - 1);
        if slot.at == self.heap() {
            self.set_heap(slot.at + slot.heap_len());
        } else {
            self.set_garbage(self.garbage() + slot.heap_len());
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
        self.count_out(index, &slot);
        self.put(slot.value_at(), payload.bytes);
        self.count_in(index, &slot);
        Ok(true)
    }

    /// Drops the entries from `index` on; their heap bytes become garbage.
    pub(crate) fn truncate(&mut self, index: usize) -> Result<(), Damaged> {
        let mut freed = 0;
        for dropped in index..self.count() {
            let slot = self.view()?.slot(dropped)?;
            self.count_out(dropped, &slot);
            freed += slot.heap_len();
        }
        self.set_count(index);
        self.set_garbage(self.garbage() + freed);
        Ok(())
    }

    /// Bytes that slots and live heap take, without the head.
    pub(crate) fn used(&self) -> usize {
        self.count() * SLOT_BYTES + NODE_BYTES - self.heap() - self.garbage()
    }

    pub(crate) fn count(&self) -> usize {
        usize::from(head_of(&self.bytes).count.get())
    }

    pub(crate) fn level(&self) -> u8 {
        self.bytes[offset_of!(RawNode, level)]
    }

    /// Takes what is in the buffer as a sound node.
    pub(crate) fn loaded(&mut self) {
        let head = head_of(&self.bytes);
        self.entries_crc = head.crc.get().wrapping_sub(head_crc(&head));
    }

    /// Makes the checksum right.
    pub(crate) fn seal(&mut self) {
        let crc = head_crc(&head_of(&self.bytes)).wrapping_add(self.entries_crc);
        self.put(offset_of!(RawNode, crc), &crc.to_le_bytes());
    }

    fn compact(&mut self) -> Result<(), Damaged> {
        let old = *self.bytes;
        let view = View::open(&old, self.owner, self.tree)?;
        let mut heap = NODE_BYTES;
        self.entries_crc = 0;
        for index in 0..view.count() {
            let mut slot = view.slot(index)?;
            let from = slot.at..slot.at + slot.heap_len();
            heap = heap.checked_sub(from.len()).ok_or(Damaged)?;
            slot.at = heap;
            self.put(heap, &old[from]);
            self.put_slot(index, &slot);
            self.count_in(index, &slot);
        }
        self.set_heap(heap);
        self.set_garbage(0);
        Ok(())
    }

    /// Moves slots `first..count` by one place up or down.
    fn shift_slots(&mut self, first: usize, count: usize, by: isize) {
        if first >= count {
            return;
        }
        let from = slot_at(first)..slot_at(count);
        let to = from.start.wrapping_add_signed(by * SLOT_BYTES as isize);
        let len = from.len();
        self.bytes.copy_within(from, to);
        self.mark(to, len);
    }

    fn put_slot(&mut self, index: usize, slot: &Slot) {
        let raw = RawSlot {
            prefix: slot.prefix.into(),
            at: (slot.at as u16).into(),
            key_len: (slot.key_len as u16).into(),
            value_len: (slot.value_len as u16).into(),
            overflow: u16::from(slot.overflow).into(),
        };
        self.put(slot_at(index), zerocopy::IntoBytes::as_bytes(&raw));
    }

    fn count_in(&mut self, index: usize, slot: &Slot) {
        let crc = entry_crc(&self.bytes, index, slot);
        self.entries_crc = self.entries_crc.wrapping_add(crc);
    }

    fn count_out(&mut self, index: usize, slot: &Slot) {
        let crc = entry_crc(&self.bytes, index, slot);
        self.entries_crc = self.entries_crc.wrapping_sub(crc);
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
        if len > 0 {
            self.dirty |= lines(at / LINE, (at + len - 1) / LINE);
        }
    }
}

/// Bits `first..=last`.
fn lines(first: usize, last: usize) -> u64 {
    u64::MAX >> (63 - (last - first)) << first
}

/// The runs of set bits as byte ranges of the node.
pub(crate) fn dirty_runs(mut dirty: u64) -> impl Iterator<Item = std::ops::Range<usize>> {
    std::iter::from_fn(move || {
        if dirty == 0 {
            return None;
        }
        let first = dirty.trailing_zeros() as usize;
        let count = (dirty >> first).trailing_ones() as usize;
        dirty &= !lines(first, first + count - 1);
        Some(first * LINE..(first + count) * LINE)
    })
}

#[cfg(test)]
mod tests {
    use super::dirty_runs;

    #[test]
    fn dirty_lines_become_byte_runs() {
        let runs: Vec<_> = dirty_runs(0b1011 | 1 << 63).collect();
        assert_eq!(runs, [0..128, 192..256, 4032..4096]);
        assert_eq!(dirty_runs(u64::MAX).next(), Some(0..4096));
        assert_eq!(dirty_runs(0).count(), 0);
    }
}
