//! Changing a copy of a tree node in DRAM; the words touched are remembered for the log.

use std::mem::offset_of;
use std::ops::Range;

use nacre_types::{ObjectId, UnitNo};
use zerocopy::transmute;

use super::page::{
    Damaged, GRAIN, INDEX_BYTES, NODE_BYTES, NodeBytes, SearchKey, Slot, View, encode_entry,
    entry_crc, entry_len, head_crc, head_of, index_at,
};
use crate::layout::{NODE_MAGIC, RawNode, Tree};

const WORD: usize = 8;
/// Fewer bytes of an entry are not worth a place of their own: head and index change, too.
pub(crate) const PLACED_MIN: usize = 64;
/// What an entry that is changed where it is brings to the log beside the changed words.
const LOGGED_BESIDE: usize = 32;

/// One bit for each word of a node.
pub(crate) type DirtyWords = [u64; DIRTY_WORDS];
const DIRTY_WORDS: usize = NODE_BYTES / WORD / 64;

/// What an entry holds behind its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Payload<'p> {
    pub(crate) bytes: &'p [u8],
    pub(crate) overflow: bool,
}

impl Payload<'_> {
    /// Whether it can take the place of that of an entry.
    #[inline]
    fn fits_over(&self, slot: &Slot) -> bool {
        slot.value_len == self.bytes.len() && slot.overflow == self.overflow
    }
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
    /// Words that nobody reads on the medium, as far as known: what comes there is written once,
    /// before the record that leads to it.
    pub(crate) spare: DirtyWords,
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
        self.put_array(0, NODE_MAGIC.to_le_bytes());
        self.put_array(offset_of!(RawNode, owner), self.owner.0.to_le_bytes());
        self.put_array(offset_of!(RawNode, unit), self.unit.0.to_le_bytes());
        self.put_array(offset_of!(RawNode, level), [level, self.tree as u8]);
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
            if let Some(at) = self.gap(need).filter(|_| index_end <= heap) {
                self.put_entry(at, key.bytes, payload);
                self.shift_index(index, count, 1);
                self.put_index(index, at);
                self.set_shape(count + 1, heap, self.garbage().saturating_sub(need));
                return Ok(true);
            }
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
        if !payload.fits_over(&slot) {
            return Ok(false);
        }
        self.entries_crc = self.entries_crc.wrapping_sub(slot.crc);
        self.put(slot.value_at(), payload.bytes);
        self.seal_entry(slot);
        Ok(true)
    }

    /// As [`NodeImage::overwrite`], of the words that differ.
    pub(crate) fn overwrite_differing(
        &mut self,
        index: usize,
        payload: Payload<'_>,
    ) -> Result<bool, Damaged> {
        let slot = self.view()?.slot(index)?;
        if !payload.fits_over(&slot) {
            return Ok(false);
        }
        if self.differs_by_at_most(&slot, payload, 0) {
            return Ok(true);
        }
        self.entries_crc = self.entries_crc.wrapping_sub(slot.crc);
        self.put_differing(slot.value_at(), payload.bytes);
        self.seal_entry(slot);
        Ok(true)
    }

    /// Puts the entry at `index` with a new payload to a spare place, if that is cheaper than to
    /// change it through the log; false: nothing was done.
    pub(crate) fn overwrite_elsewhere(
        &mut self,
        index: usize,
        key: &[u8],
        payload: Payload<'_>,
    ) -> Result<bool, Damaged> {
        let slot = self.view()?.slot(index)?;
        let need = entry_len(key.len(), payload.bytes.len());
        let same_len = payload.fits_over(&slot);
        let cheap = (need / 2).checked_sub(LOGGED_BESIDE);
        let logged = || cheap.is_some_and(|most| self.differs_by_at_most(&slot, payload, most));
        if self.fresh || need < PLACED_MIN || same_len && logged() {
            return Ok(false);
        }
        let (mut heap, mut garbage) = (self.heap(), self.garbage());
        let at = match (self.gap(need), heap.checked_sub(need)) {
            (Some(at), _) if garbage >= need => {
                garbage -= need;
                at
            }
            (_, Some(at)) if at >= index_at(self.count()) => {
                heap = at;
                at
            }
            _ => return Ok(false),
        };
        match slot.at == heap {
            true => heap += slot.len(),
            false => garbage += slot.len(),
        }
        self.entries_crc = self.entries_crc.wrapping_sub(slot.crc);
        self.put_entry(at, key, payload);
        self.put_index(index, at);
        self.set_shape(self.count(), heap, garbage);
        Ok(true)
    }

    /// Whether a payload of the same length changes words of the value of an entry of at most so
    /// many bytes.
    fn differs_by_at_most(&self, slot: &Slot, payload: Payload<'_>, most: usize) -> bool {
        let old = self.bytes.get(slot.value_at()..).unwrap_or_default();
        let old = old.get(..payload.bytes.len()).unwrap_or_default();
        let (old, old_rest) = old.as_chunks::<WORD>();
        let (new, new_rest) = payload.bytes.as_chunks::<WORD>();
        let mut left = (most / WORD + 1).saturating_sub(usize::from(old_rest != new_rest));
        for (old, new) in old.iter().zip(new) {
            if left == 0 {
                break;
            }
            left -= usize::from(old != new);
        }
        left > 0
    }

    /// As [`NodeImage::put`], of what differs.
    fn put_differing(&mut self, at: usize, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<WORD>();
        let end = at + words.len() * WORD;
        for (at, word) in (at..end).step_by(WORD).zip(words) {
            if self.bytes[at..].first_chunk() != Some(word) {
                self.put_array(at, *word);
            }
        }
        if self.bytes[end..end + rest.len()] != *rest {
            self.put(end, rest);
        }
    }

    /// A place between entries of the medium for one of `need` bytes.
    fn gap(&self, need: usize) -> Option<usize> {
        if !self.is_whole() || self.spare == [0; DIRTY_WORDS] {
            return None;
        }
        let free = pairwise(&self.spare, &self.dirty, |spare, dirty| spare & !dirty);
        let mut end = self.heap() / WORD;
        while end < NODE_BYTES / WORD {
            let start = next_word(&free, end, true);
            end = next_word(&free, start, false);
            if end - start >= need / WORD {
                return Some(start * WORD).filter(|&start| start < NODE_BYTES);
            }
        }
        None
    }

    /// Whether there is a place between entries for one of `need` bytes.
    pub(crate) fn has_gap(&self, need: usize) -> bool {
        self.gap(need).is_some()
    }

    /// Whether an entry of `need` bytes, for which there is no gap, fits only if all others are
    /// moved together.
    pub(crate) fn must_compact(&self, need: usize) -> bool {
        let end = index_at(self.count() + 1) + need;
        end > self.heap() && end <= self.heap() + self.garbage()
    }

    /// Whether the two entries before `index`, but not those behind, came last and in the order of
    /// their keys.
    pub(crate) fn grows_at(&self, index: usize) -> Result<bool, Damaged> {
        if index < 2 || index >= self.count() {
            return Ok(false);
        }
        let view = self.view()?;
        let (before, last) = (view.slot(index - 2)?, view.slot(index - 1)?);
        Ok(last.at == self.heap() && before.at == last.at + last.len())
    }

    /// Takes note that nobody reads the room between index and heap of a copy that is unchanged.
    pub(crate) fn add_room(&mut self) {
        let index_end = index_at(self.count()).next_multiple_of(WORD);
        self.add_spare(index_end..self.heap().min(NODE_BYTES));
    }

    /// Takes note that nobody reads these bytes on the medium, which begin and end at words.
    pub(crate) fn add_spare(&mut self, bytes: Range<usize>) {
        mark(&mut self.spare, bytes.start, bytes.len());
    }

    /// Takes note that somebody reads these entries on the medium.
    pub(crate) fn not_spare(
        &mut self,
        entries: impl Iterator<Item = Result<Slot, Damaged>>,
    ) -> Result<(), Damaged> {
        let mut used = DirtyWords::default();
        for slot in entries {
            let slot = slot?;
            mark(&mut used, slot.at, slot.len());
        }
        self.spare = pairwise(&self.spare, &used, |spare, used| spare & !used);
        Ok(())
    }

    /// The changed words that may be written before the record: spare ones behind the index.
    pub(crate) fn placeable(&self) -> DirtyWords {
        let index_end = index_at(self.count()).div_ceil(WORD).min(NODE_BYTES / WORD);
        let (whole, rest) = (index_end / 64, index_end % 64);
        let mut words = pairwise(&self.dirty, &self.spare, |dirty, spare| dirty & spare);
        words[..whole].fill(0);
        if let Some(word) = words.get_mut(whole) {
            *word = *word >> rest << rest;
        }
        words
    }

    /// As [`NodeImage::placeable`], of words that need not be written any more then.
    pub(crate) fn take_placeable(&mut self) -> DirtyWords {
        let words = self.placeable();
        self.dirty = pairwise(&self.dirty, &words, |dirty, word| dirty & !word);
        words
    }

    /// Head with index, and heap: all that anybody reads of a node.
    pub(crate) fn parts(&self) -> [Range<usize>; 2] {
        let index_end = index_at(self.count()).next_multiple_of(WORD);
        match self.heap().checked_sub(index_end) {
            Some(room) if room >= PLACED_MIN => [0..index_end, self.heap()..NODE_BYTES],
            _ => [0..NODE_BYTES, NODE_BYTES..NODE_BYTES],
        }
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

    /// Written in place before the commit.
    #[inline]
    pub(crate) fn is_new(&self) -> bool {
        self.fresh && !self.freed
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.iter().any(|&words| words != 0)
    }

    /// How many transactions have changed the node where it lies.
    pub(crate) fn wear(&self) -> u16 {
        self.number(offset_of!(RawNode, wear)) as u16
    }

    /// Turns the copy into that of a node at another place.
    pub(crate) fn place_at(&mut self, unit: UnitNo) {
        self.unit = unit;
        self.fresh = true;
        self.put_array(offset_of!(RawNode, unit), unit.0.to_le_bytes());
        self.put_array(offset_of!(RawNode, wear), [0; 2]);
        self.dirty = [u64::MAX; DIRTY_WORDS];
    }

    /// Counts a transaction, and makes the checksum right.
    pub(crate) fn seal(&mut self) {
        let mut head = head_of(&self.bytes);
        let wear = head.wear.get().saturating_add(1);
        head.wear = wear.into();
        head.sum = self.entries_crc.into();
        self.put_array(offset_of!(RawNode, wear), wear.to_le_bytes());
        self.put_array(offset_of!(RawNode, sum), self.entries_crc.to_le_bytes());
        self.put_array(offset_of!(RawNode, crc), head_crc(&head).to_le_bytes());
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
        self.put_array(index_at(index), place_of(at));
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
        let head: [u8; WORD] = transmute!(slot.head());
        self.put_array(slot.at, head);
        self.entries_crc = self.entries_crc.wrapping_add(slot.crc);
    }

    fn heap(&self) -> usize {
        self.number(offset_of!(RawNode, heap))
    }

    pub(crate) fn garbage(&self) -> usize {
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
        self.put_array(AT, [a, b, c, d, e, f]);
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.mark(at, bytes.len());
    }

    /// As [`NodeImage::put`], of a few bytes.
    #[inline]
    fn put_array<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        if let Some(there) = self.bytes[at..].first_chunk_mut::<N>() {
            *there = bytes;
            self.mark(at, N);
        }
    }

    #[inline]
    fn mark(&mut self, at: usize, len: usize) {
        mark(&mut self.dirty, at, len);
    }
}

/// What becomes of each two words of the same place.
#[inline]
fn pairwise(left: &DirtyWords, right: &DirtyWords, both: impl Fn(u64, u64) -> u64) -> DirtyWords {
    let mut words = *left;
    for (word, other) in words.iter_mut().zip(right) {
        *word = both(*word, *other);
    }
    words
}

/// Sets the bits of the words that hold these bytes.
#[inline]
fn mark(words: &mut DirtyWords, at: usize, len: usize) {
    if len == 0 {
        return;
    }
    let (first, last) = (at / WORD, (at + len - 1) / WORD);
    match first / 64 == last / 64 {
        true => words[first / 64] |= u64::MAX >> (63 - (last - first)) << (first % 64),
        false => mark_many(words, first, last),
    }
}

/// Sets the bits from `first` to `last`, which belong to different parts.
fn mark_many(words: &mut DirtyWords, first: usize, last: usize) {
    words[first / 64] |= u64::MAX << (first % 64);
    words[first / 64 + 1..last / 64].fill(u64::MAX);
    words[last / 64] |= u64::MAX >> (63 - last % 64);
}

/// The next bit from `from` on that is as wanted; the number of bits if there is none.
fn next_word(words: &DirtyWords, from: usize, wanted: bool) -> usize {
    let mut at = from;
    while at < DIRTY_WORDS * 64 {
        let part = words[at / 64];
        let part = if wanted { part } else { !part };
        let rest = part >> (at % 64);
        if rest != 0 {
            return at + rest.trailing_zeros() as usize;
        }
        at = (at / 64 + 1) * 64;
    }
    DIRTY_WORDS * 64
}

/// Calls `found` with the runs of set bits as ranges of bytes, 8 for each bit, exactly.
pub(crate) fn each_exact_run(words: &DirtyWords, found: impl FnMut(Range<usize>)) {
    each_run_of(words.iter().copied(), found);
}

/// What the index says of an entry at a place of the node.
fn place_of(at: usize) -> [u8; INDEX_BYTES] {
    ((at / GRAIN) as u16).to_le_bytes()
}

/// As [`each_exact_run`], but gaps of one or two bits are taken along: that is less than the head
/// of another change.
#[inline]
pub(crate) fn each_run(dirty: &[u64], found: impl FnMut(Range<usize>)) {
    let without_gaps = |&bits: &u64| {
        let near = bits << 1 & bits >> 1;
        let far = bits << 2 & bits >> 1 | bits << 1 & bits >> 2;
        bits | near | far
    };
    each_run_of(dirty.iter().map(without_gaps), found);
}

#[inline]
fn each_run_of(words: impl Iterator<Item = u64>, mut found: impl FnMut(Range<usize>)) {
    let mut open: Option<Range<usize>> = None;
    for (part, mut rest) in words.enumerate() {
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
    use super::{DIRTY_WORDS, DirtyWords, NodeImage, Payload, each_exact_run, each_run, next_word};
    use crate::layout::Tree;
    use crate::node::page::{NODE_BYTES, NodeBytes, SearchKey, Slot, View, verify};
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
            spare: DirtyWords::default(),
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

    type Entries = Vec<(Vec<u8>, Vec<u8>)>;

    /// What a sound node holds.
    fn entries(bytes: &NodeBytes) -> Option<Entries> {
        verify(bytes, UnitNo(70), ObjectId(1), Tree::Xattrs).ok()?;
        let view = View::open(bytes, ObjectId(1), Tree::Xattrs).ok()?;
        let slots = (0..view.count()).map(|index| view.slot(index).ok());
        slots
            .map(|slot| slot.map(|slot| (view.key(&slot).to_vec(), view.value(&slot).to_vec())))
            .collect()
    }

    /// A copy of a node on the medium that knows what is spare there.
    fn copy_of(bytes: &NodeBytes) -> NodeImage {
        let mut image = leaf(1, &[]);
        (image.fresh, image.dirty) = (false, DirtyWords::default());
        image.bytes = Box::new(*bytes);
        image.begin(NODE_BYTES);
        image.add_room();
        let view = View::open(bytes, ObjectId(1), Tree::Xattrs).unwrap();
        image.add_spare(image.heap()..NODE_BYTES);
        let slots = (0..view.count()).map(|index| view.slot(index));
        image.not_spare(slots).unwrap();
        image
    }

    /// The first bytes of a key.
    fn key_of(image: &NodeImage, slot: &Slot) -> [u8; 4] {
        let at = slot.key_at();
        image.bytes[at..at + 4].try_into().unwrap()
    }

    fn change(image: &mut NodeImage, dice: u64) {
        let (count, value) = (image.count(), vec![dice as u8; (dice >> 8) as usize % 300]);
        let payload = Payload {
            bytes: &value,
            overflow: false,
        };
        let index = (dice >> 20) as usize % (count + 1);
        if index == count {
            let last = count.checked_sub(1);
            let last = last.map(|last| image.view().unwrap().slot(last).unwrap());
            let next = last.map_or(0, |slot| u32::from_be_bytes(key_of(image, &slot)) + 1);
            let key = next.to_be_bytes();
            image.insert(count, &SearchKey::new(&key), payload).unwrap();
        } else if dice >> 40 & 3 == 0 {
            image.remove(index).unwrap();
        } else {
            let slot = image.view().unwrap().slot(index).unwrap();
            let key = image.bytes[slot.key_at()..slot.key_at() + slot.key_len].to_vec();
            let _ = image.overwrite_elsewhere(index, &key, payload).unwrap()
                || image.overwrite_differing(index, payload).unwrap();
        }
    }

    /// Changes a node again and again, as transactions do. Whether what is placed before a record
    /// ever changed what the node holds.
    fn placing_shows(spare_is_all: bool) -> bool {
        let (mut medium, mut dice, mut placed) = (*leaf(1, &[200; 12]).bytes, 1_u64, 0);
        let mut first = leaf(1, &[200; 12]);
        first.seal();
        medium.copy_from_slice(&first.bytes[..]);
        for _ in 0..3000 {
            let before = entries(&medium);
            let mut image = copy_of(&medium);
            if spare_is_all {
                image.add_spare(0..NODE_BYTES);
            }
            for _ in 0..4 {
                dice = dice
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                change(&mut image, dice >> 16);
            }
            image.seal();
            each_exact_run(&image.placeable(), |run| {
                placed += run.len();
                medium[run.clone()].copy_from_slice(&image.bytes[run]);
            });
            if before.is_none() || entries(&medium) != before {
                return true;
            }
            each_run(&image.dirty, |run| {
                medium[run.clone()].copy_from_slice(&image.bytes[run])
            });
            assert_eq!(entries(&medium), entries(&image.bytes));
        }
        assert!(placed > 100_000, "{placed}");
        false
    }

    #[test]
    fn what_is_placed_before_the_record_is_read_by_nobody() {
        assert!(!placing_shows(false));
        // Canary.
        assert!(placing_shows(true));
    }

    #[test]
    fn the_next_word_is_found_across_parts() {
        let words: DirtyWords = [1 << 5, 0, u64::MAX, u64::MAX, 0, 0, 0, 1 << 63];
        let set = |from| next_word(&words, from, true);
        let clear = |from| next_word(&words, from, false);
        assert_eq!([set(0), set(5), set(6), set(257)], [5, 5, 128, 511]);
        assert_eq!([clear(5), clear(128), clear(511)], [6, 256, 512]);
        assert_eq!(next_word(&[0; DIRTY_WORDS], 3, true), 512);
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
