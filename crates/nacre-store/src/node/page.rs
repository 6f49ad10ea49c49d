//! Reading one tree node, on the medium or in DRAM, whatever its bytes are.

use std::cmp::Ordering;

use nacre_media::crc32c_append;
use nacre_types::{CheckedWord, ObjectId, UNIT_SIZE, UnitNo, site};
use nacre_volume::{CheckedRange, Volume};
use zerocopy::{FromBytes, IntoBytes, transmute};

use crate::layout::{
    ENTRY_OVERFLOW, KEY_MAX, MAX_DEPTH, NODE_INDEX_AT, NODE_MAGIC, RawEntry, RawNode, RawOverflow,
    Tree, tree_salt,
};

pub(crate) const NODE_BYTES: usize = UNIT_SIZE as usize;
/// Bytes that an entry takes in the index.
pub(crate) const INDEX_BYTES: usize = size_of::<u16>();
/// Places of entries are multiples of this.
pub(crate) const GRAIN: usize = 8;
const HEAD_WORDS: usize = NODE_INDEX_AT / 8;
const ENTRY_HEAD: usize = size_of::<RawEntry>();
const PREFIX_BYTES: usize = 8;

/// The bytes of a node.
pub(crate) type NodeBytes = [u8; NODE_BYTES];

/// The node breaks a rule of the layout: damage, or a torn read by an optimistic reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damaged;

/// Where a node's bytes are read from. Offsets given are inside of the node.
pub(crate) trait Page {
    fn head(&self) -> RawNode;
    /// `at` is even.
    fn u16(&self, at: usize) -> u16;
    /// `at` is a multiple of 8.
    fn u64(&self, at: usize) -> u64;
    fn copy(&self, at: usize, to: &mut [u8]);
}

/// A node on the medium.
#[derive(Clone, Copy)]
pub(crate) struct MediaPage<'v>(CheckedRange<'v, NODE_BYTES>);

impl<'v> MediaPage<'v> {
    /// `unit` must be a unit of the volume.
    #[inline]
    pub(crate) fn new(volume: &'v Volume, unit: UnitNo) -> MediaPage<'v> {
        MediaPage(volume.checked_range(unit.offset()))
    }
}

impl Page for MediaPage<'_> {
    #[inline]
    fn head(&self) -> RawNode {
        let mut words = [0; HEAD_WORDS];
        for (index, word) in words.iter_mut().enumerate() {
            *word = self.0.word(index).to_le();
        }
        transmute!(words)
    }
    #[inline]
    fn u16(&self, at: usize) -> u16 {
        self.0.u16(at)
    }
    #[inline]
    fn u64(&self, at: usize) -> u64 {
        self.0.word(at / 8)
    }
    #[inline]
    fn copy(&self, at: usize, to: &mut [u8]) {
        self.0.read(at, to);
    }
}

impl Page for &NodeBytes {
    #[inline]
    fn head(&self) -> RawNode {
        head_of(self)
    }
    #[inline]
    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self[at], self[at + 1]])
    }
    #[inline]
    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.as_chunks::<8>().0[at / 8])
    }
    #[inline]
    fn copy(&self, at: usize, to: &mut [u8]) {
        to.copy_from_slice(&self[at..at + to.len()]);
    }
}

/// The head of a node in DRAM.
#[inline]
pub(crate) fn head_of(node: &NodeBytes) -> RawNode {
    let (head, _) = node.as_chunks::<NODE_INDEX_AT>();
    transmute!(head[0])
}

/// A key prepared for comparing.
#[derive(Clone, Copy)]
pub(crate) struct SearchKey<'k> {
    pub(crate) bytes: &'k [u8],
    pub(crate) prefix: u64,
}

impl<'k> SearchKey<'k> {
    pub(crate) fn new(bytes: &'k [u8]) -> SearchKey<'k> {
        SearchKey {
            bytes,
            prefix: prefix_of(bytes),
        }
    }
}

/// First 8 bytes of a key as a number that orders like the bytes.
#[inline]
fn prefix_of(key: &[u8]) -> u64 {
    if let Some(bytes) = key.first_chunk() {
        return u64::from_be_bytes(*bytes);
    }
    let mut bytes = [0; PREFIX_BYTES];
    let len = key.len().min(PREFIX_BYTES);
    bytes[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(bytes)
}

/// An entry whose ranges lie inside of the node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) at: usize,
    pub(crate) key_len: usize,
    pub(crate) value_len: usize,
    pub(crate) overflow: bool,
    /// Its checksum, as the entry says.
    pub(crate) crc: u32,
}

impl Slot {
    #[inline]
    pub(crate) fn new(at: usize, key_len: usize, value_len: usize, overflow: bool) -> Slot {
        Slot {
            at,
            key_len,
            value_len,
            overflow,
            crc: 0,
        }
    }

    #[inline]
    fn decode(at: usize, head: u64) -> Slot {
        let value_len = (head >> 16) as u16;
        Slot {
            at,
            key_len: usize::from(head as u16),
            value_len: usize::from(value_len & !ENTRY_OVERFLOW),
            overflow: value_len & ENTRY_OVERFLOW != 0,
            crc: (head >> 32) as u32,
        }
    }

    pub(crate) fn head(&self) -> RawEntry {
        let flag = if self.overflow { ENTRY_OVERFLOW } else { 0 };
        RawEntry {
            key_len: (self.key_len as u16).into(),
            value_len: (self.value_len as u16 | flag).into(),
            crc: self.crc.into(),
        }
    }

    #[inline]
    pub(crate) fn key_at(&self) -> usize {
        self.at + ENTRY_HEAD
    }

    #[inline]
    pub(crate) fn value_at(&self) -> usize {
        self.key_at() + self.key_len.max(PREFIX_BYTES)
    }

    /// Bytes that the entry takes in the heap.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        entry_len(self.key_len, self.value_len)
    }
}

/// Bytes that an entry takes in the heap.
#[inline]
pub(crate) fn entry_len(key_len: usize, value_len: usize) -> usize {
    (ENTRY_HEAD + key_len.max(PREFIX_BYTES) + value_len).next_multiple_of(GRAIN)
}

/// A node whose head keeps the rules.
pub(crate) struct View<P: Page> {
    page: P,
    count: usize,
    level: u8,
    /// Bytes that index and entries take.
    used: usize,
}

impl<P: Page> View<P> {
    /// Checks the head: it must belong to this tree of this object, with the index inside of the
    /// node.
    #[inline]
    pub(crate) fn open(page: P, owner: ObjectId, tree: Tree) -> Result<Self, Damaged> {
        let head = page.head();
        let count = usize::from(head.count.get());
        let idle = usize::from(head.heap.get()) + usize::from(head.garbage.get());
        let sound = head.magic.get() == NODE_MAGIC
            && head.owner.get() == owner.0
            && head.tree == tree as u8
            && usize::from(head.level) < MAX_DEPTH
            && index_at(count) <= NODE_BYTES;
        if !sound {
            return Err(Damaged);
        }
        Ok(View {
            page,
            count,
            level: head.level,
            used: count * INDEX_BYTES + NODE_BYTES.saturating_sub(idle),
        })
    }

    /// The head as it is now.
    #[inline]
    pub(crate) fn head(&self) -> RawNode {
        self.page.head()
    }

    /// The same node behind another kind of page.
    #[inline]
    pub(crate) fn map<Q: Page>(self, page: impl FnOnce(P) -> Q) -> View<Q> {
        View {
            page: page(self.page),
            count: self.count,
            level: self.level,
            used: self.used,
        }
    }

    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn level(&self) -> u8 {
        self.level
    }

    /// Bytes that index and entries take.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    pub(crate) fn is_leaf(&self) -> bool {
        self.level == 0
    }

    /// NodeEntry `index`, which must be below [`View::count`].
    #[inline]
    pub(crate) fn slot(&self, index: usize) -> Result<Slot, Damaged> {
        let at = self.place(index);
        if at < index_at(self.count) || at >= NODE_BYTES {
            return Err(Damaged);
        }
        let slot = Slot::decode(at, self.page.u64(at));
        let sound = slot.key_len <= KEY_MAX && at + slot.len() <= NODE_BYTES;
        if sound { Ok(slot) } else { Err(Damaged) }
    }

    /// Where the index says that an entry lies; perhaps not in the node.
    #[inline]
    fn place(&self, index: usize) -> usize {
        usize::from(self.page.u16(index_at(index))) * GRAIN
    }

    /// The prefix of the key at `index`; of anything if the index is damaged.
    #[inline]
    fn prefix(&self, index: usize) -> u64 {
        let at = (self.place(index) + ENTRY_HEAD) % NODE_BYTES;
        self.page.u64(at).swap_bytes()
    }

    /// Index of the key, or where it would be inserted.
    pub(crate) fn find(&self, key: &SearchKey<'_>) -> Result<Result<usize, usize>, Damaged> {
        let first = self.first_from(key.prefix);
        if first == self.count || self.prefix(first) != key.prefix {
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

    /// Index of the first entry whose prefix is not lower.
    fn first_from(&self, prefix: u64) -> usize {
        let (mut low, mut len) = (0, self.count);
        while len > 0 {
            let half = len / 2;
            let lower = self.prefix(low + half) < prefix;
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
        let unit = CheckedWord(self.word_at(slot.value_at())).open(tree_salt(owner));
        unit.filter(|&unit| unit != 0).map(UnitNo).ok_or(Damaged)
    }

    /// The 8 bytes at any place, little-endian.
    fn word_at(&self, at: usize) -> u64 {
        let (word, skip) = (at / 8 * 8, at % 8 * 8);
        let low = self.page.u64(word) >> skip;
        match skip {
            0 => low,
            _ => low | (self.page.u64(word + 8) << (64 - skip)),
        }
    }

    /// The entry's key; `key` is overwritten.
    pub(crate) fn key_into(&self, slot: &Slot, key: &mut Vec<u8>) {
        key.resize(slot.key_len, 0);
        self.page.copy(slot.key_at(), key);
    }

    /// The bytes in the node behind the key; `value` is overwritten.
    pub(crate) fn value_into(&self, slot: &Slot, value: &mut Vec<u8>) {
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
        let at = self.place(index);
        if at < index_at(self.count) || at + ENTRY_HEAD + PREFIX_BYTES > NODE_BYTES {
            return Err(Damaged);
        }
        let prefix = self.page.u64(at + ENTRY_HEAD).swap_bytes();
        if prefix != key.prefix {
            return Ok(prefix.cmp(&key.prefix));
        }
        let key_len = usize::from(self.page.u64(at) as u16);
        if key_len > KEY_MAX || at + entry_len(key_len, 0) > NODE_BYTES {
            return Err(Damaged);
        }
        let both = key_len.min(key.bytes.len());
        // Keys begin at a multiple of 8: compare them word by word.
        let mut done = PREFIX_BYTES;
        while let Some(mine) = key.bytes[..both].get(done..done + PREFIX_BYTES) {
            let other = self.page.u64(at + ENTRY_HEAD + done).swap_bytes();
            let mine = prefix_of(mine);
            if other != mine {
                return Ok(other.cmp(&mine));
            }
            done += PREFIX_BYTES;
        }
        let lengths = key_len.cmp(&key.bytes.len());
        if done >= both {
            return Ok(lengths);
        }
        // The last eight bytes are there, as the prefix is: the rest alone is compared.
        let unused = 64 - 8 * (both - done);
        let last = key.bytes[..both].last_chunk().copied().unwrap_or_default();
        let mine = u64::from_be_bytes(last) << unused;
        let other = self.page.u64(at + ENTRY_HEAD + done).swap_bytes() >> unused << unused;
        Ok(other.cmp(&mine).then(lengths))
    }
}

impl<'n> View<&'n NodeBytes> {
    /// All bytes of the entry.
    #[inline]
    pub(crate) fn entry(&self, slot: &Slot) -> &'n [u8] {
        &self.page[slot.at..slot.at + slot.len()]
    }

    /// The entry's key.
    #[inline]
    pub(crate) fn key(&self, slot: &Slot) -> &'n [u8] {
        &self.page[slot.key_at()..slot.key_at() + slot.key_len]
    }

    /// The bytes in the node behind the key.
    #[inline]
    pub(crate) fn value(&self, slot: &Slot) -> &'n [u8] {
        &self.page[slot.value_at()..slot.value_at() + slot.value_len]
    }
}

/// Where the index says where entry `index` lies.
#[inline]
pub(crate) fn index_at(index: usize) -> usize {
    NODE_INDEX_AT + index * INDEX_BYTES
}

/// The checksum of a node's head.
pub(crate) fn head_crc(head: &RawNode) -> u32 {
    let mut head = *head;
    head.crc = 0.into();
    crc32c_append(0, head.as_bytes())
}

/// The checksum of an entry.
pub(crate) fn entry_crc(node: &NodeBytes, slot: &Slot) -> u32 {
    body_crc(slot, &node[slot.key_at()..slot.at + slot.len()])
}

/// The checksum of an entry of which `body` is what lies behind its head.
#[inline]
fn body_crc(slot: &Slot, body: &[u8]) -> u32 {
    let head = slot.head();
    let lengths = u32::from(head.key_len.get()) | u32::from(head.value_len.get()) << 16;
    crc32c_append(lengths, body)
}

/// Fills `entry`, of the length that `slot` says, with an entry, and `slot` with its checksum.
pub(crate) fn encode_entry(entry: &mut [u8], slot: &mut Slot, key: &[u8], value: &[u8]) {
    let (head, body) = entry.split_at_mut(ENTRY_HEAD);
    let value_at = slot.value_at() - slot.key_at();
    // What neither key nor value reaches: behind a short key and behind the value.
    if let Some(first) = body.first_chunk_mut::<PREFIX_BYTES>() {
        *first = [0; PREFIX_BYTES];
    }
    if let Some(last) = body.last_chunk_mut::<GRAIN>() {
        *last = [0; GRAIN];
    }
    body[..key.len()].copy_from_slice(key);
    body[value_at..value_at + value.len()].copy_from_slice(value);
    slot.crc = body_crc(slot, body);
    let word: [u8; ENTRY_HEAD] = transmute!(slot.head());
    head.copy_from_slice(&word);
}

/// Checks a copy of a whole node as on first touch: head, self-description, checksum, every entry,
/// their order.
pub(crate) fn verify(
    node: &NodeBytes,
    unit: UnitNo,
    owner: ObjectId,
    tree: Tree,
) -> Result<(), Damaged> {
    let view = View::open(node, owner, tree)?;
    let head = head_of(node);
    let heap = usize::from(head.heap.get());
    let garbage = usize::from(head.garbage.get());
    let sound = head.unit.get() == unit.0
        && heap >= index_at(view.count())
        && heap + garbage <= NODE_BYTES
        && (heap + garbage).is_multiple_of(GRAIN)
        && heap.is_multiple_of(GRAIN);
    if !sound {
        return Err(Damaged);
    }
    let (mut used, mut sum) = (0, 0_u32);
    let mut before: Option<&[u8]> = None;
    for index in 0..view.count() {
        let slot = view.slot(index)?;
        let key = view.key(&slot);
        // The order is what the checksum does not cover.
        let in_order = before.is_none_or(|before| before < key);
        // Searches compare eight bytes even of shorter keys.
        let padded = view.prefix(index) == prefix_of(key);
        let sound = site::check(slot.crc == entry_crc(node, &slot)) && padded;
        if slot.at < heap || !sound || !in_order {
            return Err(Damaged);
        }
        before = Some(key);
        used += slot.len();
        sum = sum.wrapping_add(slot.crc);
    }
    let intact = site::check(head_crc(&head) == head.crc.get() && sum == head.sum.get());
    // Entries that overlap would let an edit write outside of the node.
    (used + garbage + heap == NODE_BYTES && intact)
        .then_some(())
        .ok_or(Damaged)
}

/// Makes child words, references to long values and all checksums of a node right, as far as its
/// entries lie inside of it.
pub(crate) fn reseal(bytes: &mut [u8], salt: u64) {
    let Some((node, _)) = bytes.split_first_chunk_mut::<NODE_BYTES>() else {
        return;
    };
    let mut head = head_of(node);
    let count = usize::from(head.count.get()).min((NODE_BYTES - NODE_INDEX_AT) / INDEX_BYTES);
    let mut sum = 0_u32;
    for index in 0..count {
        let Some(mut slot) = slot_of(node, count, index) else {
            continue;
        };
        let value = &mut node[slot.value_at()..slot.value_at() + slot.value_len];
        if (head.level > 0 || slot.overflow)
            && let Some(word) = value.first_chunk_mut::<8>()
        {
            let payload = u64::from_le_bytes(*word) & CheckedWord::MAX;
            *word = CheckedWord::seal(payload, salt).0.to_le_bytes();
        }
        slot.crc = entry_crc(node, &slot);
        node[slot.at..slot.at + ENTRY_HEAD].copy_from_slice(slot.head().as_bytes());
        sum = sum.wrapping_add(slot.crc);
    }
    head.sum = sum.into();
    head.crc = head_crc(&head).into();
    node[..NODE_INDEX_AT].copy_from_slice(head.as_bytes());
}

/// Entries of a node that is not sound whose own checksum is right, by their place in the index.
pub(crate) fn salvage(node: &NodeBytes) -> impl Iterator<Item = (&[u8], &[u8], bool)> {
    let head = head_of(node);
    let count = usize::from(head.count.get()).min((NODE_BYTES - NODE_INDEX_AT) / INDEX_BYTES);
    (0..count).filter_map(move |index| {
        let slot = slot_of(node, count, index)?;
        let value = &node[slot.value_at()..slot.value_at() + slot.value_len];
        let key = &node[slot.key_at()..slot.key_at() + slot.key_len];
        (slot.crc == entry_crc(node, &slot)).then_some((key, value, slot.overflow))
    })
}

/// An entry of a node whose head may say anything.
fn slot_of(node: &NodeBytes, count: usize, index: usize) -> Option<Slot> {
    let view = View {
        page: node,
        count,
        level: 0,
        used: 0,
    };
    view.slot(index).ok()
}
