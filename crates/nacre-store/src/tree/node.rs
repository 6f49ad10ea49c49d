//! Reading one tree node, on the medium or in DRAM, whatever its bytes are.

use std::cmp::Ordering;
use std::mem::offset_of;

use nacre_types::{
    CheckedWord, ObjectId, UNIT_SIZE, UnitNo, VolumeOffset, crc32c, crc32c_append, site,
};
use nacre_volume::Volume;
use zerocopy::{FromBytes, IntoBytes, transmute};

use crate::layout::{
    KEY_MAX, MAX_DEPTH, NODE_MAGIC, NODE_SLOTS_AT, RawNode, RawOverflow, RawSlot, Tree, tree_salt,
};

pub(super) const NODE_BYTES: usize = UNIT_SIZE as usize;
pub(super) const SLOT_BYTES: usize = size_of::<RawSlot>();
const PREFIX_BYTES: usize = 8;

/// The bytes of a node.
pub(crate) type NodeBytes = [u8; NODE_BYTES];

/// The node breaks a rule of the layout: damage, or a torn read by an optimistic reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damaged;

/// Where a node's bytes are read from. Offsets given are inside of the node.
pub(crate) trait Page {
    fn head(&self) -> RawNode;
    fn u64(&self, at: usize) -> u64;
    fn copy(&self, at: usize, to: &mut [u8]);
}

/// A node on the medium. `at` must be a unit of the volume.
#[derive(Clone, Copy)]
pub(crate) struct MediaPage<'v> {
    pub(crate) volume: &'v Volume,
    pub(crate) at: VolumeOffset,
}

impl MediaPage<'_> {
    fn offset(&self, at: usize) -> VolumeOffset {
        VolumeOffset(self.at.0 + at as u64)
    }
}

impl Page for MediaPage<'_> {
    #[inline]
    fn head(&self) -> RawNode {
        transmute!(self.volume.read_array::<NODE_SLOTS_AT>(self.at))
    }
    #[inline]
    fn u64(&self, at: usize) -> u64 {
        self.volume.load_u64(self.offset(at))
    }
    #[inline]
    fn copy(&self, at: usize, to: &mut [u8]) {
        self.volume.read(self.offset(at), to);
    }
}

impl Page for &NodeBytes {
    #[inline]
    fn head(&self) -> RawNode {
        head_of(self)
    }
    #[inline]
    fn u64(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self[at..at + 8]);
        u64::from_le_bytes(bytes)
    }
    #[inline]
    fn copy(&self, at: usize, to: &mut [u8]) {
        to.copy_from_slice(&self[at..at + to.len()]);
    }
}

/// The head of a node in DRAM.
#[inline]
pub(super) fn head_of(node: &NodeBytes) -> RawNode {
    let mut head = [0; NODE_SLOTS_AT];
    head.copy_from_slice(&node[..NODE_SLOTS_AT]);
    transmute!(head)
}

/// A key prepared for comparing.
#[derive(Clone, Copy)]
pub(crate) struct SearchKey<'k> {
    pub(super) bytes: &'k [u8],
    pub(super) prefix: u64,
}

impl<'k> SearchKey<'k> {
    pub(crate) fn new(bytes: &'k [u8]) -> SearchKey<'k> {
        SearchKey {
            bytes,
            prefix: prefix_of(bytes),
        }
    }

    /// What a slot keeps of the key in the heap.
    pub(super) fn tail(&self) -> &'k [u8] {
        self.bytes.get(PREFIX_BYTES..).unwrap_or_default()
    }
}

/// First 8 bytes of a key as a number that orders like the bytes.
pub(super) fn prefix_of(key: &[u8]) -> u64 {
    let mut bytes = [0; PREFIX_BYTES];
    let len = key.len().min(PREFIX_BYTES);
    bytes[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(bytes)
}

/// A slot whose ranges lie inside of the node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(super) prefix: u64,
    pub(super) at: usize,
    pub(super) key_len: usize,
    pub(super) value_len: usize,
    pub(crate) overflow: bool,
}

impl Slot {
    pub(super) fn tail_len(&self) -> usize {
        self.key_len.saturating_sub(PREFIX_BYTES)
    }

    pub(super) fn value_at(&self) -> usize {
        self.at + self.tail_len()
    }

    /// Bytes that the entry takes in the heap.
    pub(super) fn heap_len(&self) -> usize {
        self.tail_len() + self.value_len
    }
}

/// A node whose head keeps the rules.
pub(crate) struct View<P: Page> {
    page: P,
    count: usize,
    level: u8,
    /// Bytes that slots and live heap take, without the head.
    used: usize,
}

impl<P: Page> View<P> {
    /// Checks the head: it must belong to this tree of this object, with the slots inside of the node.
    #[inline]
    pub(crate) fn open(page: P, owner: ObjectId, tree: Tree) -> Result<Self, Damaged> {
        let head = page.head();
        let count = usize::from(head.count.get());
        let idle = usize::from(head.heap.get()) + usize::from(head.garbage.get());
        let sound = head.magic.get() == NODE_MAGIC
            && head.owner.get() == owner.0
            && head.tree == tree as u8
            && usize::from(head.level) < MAX_DEPTH
            && NODE_SLOTS_AT + count * SLOT_BYTES <= NODE_BYTES;
        if !sound {
            return Err(Damaged);
        }
        Ok(View {
            page,
            count,
            level: head.level,
            used: count * SLOT_BYTES + NODE_BYTES.saturating_sub(idle),
        })
    }

    /// The same node behind another kind of page.
    #[inline]
    pub(super) fn map<Q: Page>(self, page: impl FnOnce(P) -> Q) -> View<Q> {
        View {
            page: page(self.page),
            count: self.count,
            level: self.level,
            used: self.used,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn level(&self) -> u8 {
        self.level
    }

    /// Bytes that slots and live heap take, without the head.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    pub(crate) fn is_leaf(&self) -> bool {
        self.level == 0
    }

    /// Slot `index`, which must be below [`View::count`].
    #[inline]
    pub(crate) fn slot(&self, index: usize) -> Result<Slot, Damaged> {
        let at = slot_at(index);
        let place = self.page.u64(at + offset_of!(RawSlot, at));
        let slot = Slot {
            prefix: self.page.u64(at),
            at: usize::from(place as u16),
            key_len: usize::from((place >> 16) as u16),
            value_len: usize::from((place >> 32) as u16),
            overflow: place >> 48 == 1,
        };
        let slots_end = slot_at(self.count);
        let sound = slot.key_len <= KEY_MAX
            && slot.at >= slots_end
            && slot.at + slot.heap_len() <= NODE_BYTES
            && place >> 48 <= 1;
        if sound { Ok(slot) } else { Err(Damaged) }
    }

    /// Index of the key, or where it would be inserted.
    pub(crate) fn find(&self, key: &SearchKey<'_>) -> Result<Result<usize, usize>, Damaged> {
        let first = self.first_from(key.prefix);
        if first == self.count || self.page.u64(slot_at(first)) != key.prefix {
            return Ok(Err(first));
        }
        match self.compare(first, key)? {
            Ordering::Less => {}
            Ordering::Greater => return Ok(Err(first)),
            Ordering::Equal => return Ok(Ok(first)),
        }
        let (mut low, mut high) = (first + 1, self.count);
        while low < high {
            let middle = (low + high) / 2;
            match self.compare(middle, key)? {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(Ok(middle)),
            }
        }
        Ok(Err(low))
    }

    /// Index of the first slot whose prefix is not lower.
    fn first_from(&self, prefix: u64) -> usize {
        let (mut low, mut len) = (0, self.count);
        while len > 0 {
            let half = len / 2;
            let lower = self.page.u64(slot_at(low + half)) < prefix;
            low = if lower { low + half + 1 } else { low };
            len = if lower { len - half - 1 } else { half };
        }
        low
    }

    /// Index of the child that covers the key. The first entry's key counts as lowest.
    pub(crate) fn find_child(&self, key: &SearchKey<'_>) -> Result<usize, Damaged> {
        if self.count == 0 {
            return Err(Damaged);
        }
        Ok(match self.find(key)? {
            Ok(index) => index,
            Err(index) => index.saturating_sub(1),
        })
    }

    /// Unit of the child at `index` of an inner node.
    pub(crate) fn child(&self, index: usize, owner: ObjectId) -> Result<UnitNo, Damaged> {
        let slot = self.slot(index)?;
        if slot.value_len != 8 || slot.overflow {
            return Err(Damaged);
        }
        let mut word = [0; 8];
        self.page.copy(slot.value_at(), &mut word);
        let unit = CheckedWord(u64::from_le_bytes(word)).open(tree_salt(owner));
        unit.filter(|&unit| unit != 0).map(UnitNo).ok_or(Damaged)
    }

    /// The key at `index`, appended to nothing: `key` is overwritten.
    pub(crate) fn key_into(&self, slot: &Slot, key: &mut Vec<u8>) {
        key.clear();
        let head = slot.prefix.to_be_bytes();
        key.extend_from_slice(&head[..slot.key_len.min(PREFIX_BYTES)]);
        let start = key.len();
        key.resize(start + slot.tail_len(), 0);
        self.page.copy(slot.at, &mut key[start..]);
    }

    /// The bytes in the node behind the key; `value` is overwritten.
    pub(crate) fn value_into(&self, slot: &Slot, value: &mut Vec<u8>) {
        value.clear();
        value.resize(slot.value_len, 0);
        self.page.copy(slot.value_at(), value);
    }

    /// Copies what fits of the bytes behind the key; returns how many there are.
    pub(crate) fn value_prefix(&self, slot: &Slot, value: &mut [u8]) -> usize {
        let len = slot.value_len.min(value.len());
        self.page.copy(slot.value_at(), &mut value[..len]);
        slot.value_len
    }

    /// Where an out-of-line value lies.
    pub(crate) fn overflow(&self, slot: &Slot) -> Result<RawOverflow, Damaged> {
        let mut bytes = [0; size_of::<RawOverflow>()];
        if !slot.overflow || slot.value_len != bytes.len() {
            return Err(Damaged);
        }
        self.page.copy(slot.value_at(), &mut bytes);
        RawOverflow::read_from_bytes(&bytes).map_err(|_| Damaged)
    }

    fn compare(&self, index: usize, key: &SearchKey<'_>) -> Result<Ordering, Damaged> {
        let prefix = self.page.u64(slot_at(index));
        if prefix != key.prefix {
            return Ok(prefix.cmp(&key.prefix));
        }
        let slot = self.slot(index)?;
        let mut buffer = [0; 256];
        let (mut at, mut rest) = (slot.at, key.tail());
        let mut left = slot.tail_len();
        while left > 0 && !rest.is_empty() {
            let len = left.min(rest.len()).min(buffer.len());
            self.page.copy(at, &mut buffer[..len]);
            match buffer[..len].cmp(&rest[..len]) {
                Ordering::Equal => {}
                unequal => return Ok(unequal),
            }
            (at, left, rest) = (at + len, left - len, &rest[len..]);
        }
        Ok(slot.key_len.cmp(&key.bytes.len()))
    }
}

/// Where slot `index` lies in the node.
#[inline]
pub(super) fn slot_at(index: usize) -> usize {
    NODE_SLOTS_AT + index * SLOT_BYTES
}

/// The part of a node's checksum that covers the head behind it.
pub(super) fn head_crc(head: &RawNode) -> u32 {
    crc32c(&head.as_bytes()[offset_of!(RawNode, owner)..])
}

/// The part of a node's checksum that covers one entry: its slot and its bytes in the heap.
pub(super) fn entry_crc(node: &NodeBytes, index: usize, slot: &Slot) -> u32 {
    let slot_crc = crc32c(&node[slot_at(index)..slot_at(index + 1)]);
    crc32c_append(slot_crc, &node[slot.at..slot.at + slot.heap_len()])
}

/// Checks a copy of a whole node as on first touch: head, self-description, checksum, every slot.
pub(super) fn verify(
    node: &NodeBytes,
    unit: UnitNo,
    owner: ObjectId,
    tree: Tree,
) -> Result<(), Damaged> {
    let view = View::open(node, owner, tree)?;
    let head = head_of(node);
    let heap = usize::from(head.heap.get());
    let garbage = usize::from(head.garbage.get());
    let sound =
        head.unit.get() == unit.0 && heap >= slot_at(view.count()) && heap + garbage <= NODE_BYTES;
    if !sound {
        return Err(Damaged);
    }
    let (mut used, mut crc) = (0, head_crc(&head));
    for index in 0..view.count() {
        let slot = view.slot(index)?;
        if slot.at < heap {
            return Err(Damaged);
        }
        used += slot.heap_len();
        crc = crc.wrapping_add(entry_crc(node, index, &slot));
    }
    // Entries that overlap would let an edit write outside of the node.
    (used + garbage + heap == NODE_BYTES && site::check(crc == head.crc.get()))
        .then_some(())
        .ok_or(Damaged)
}
