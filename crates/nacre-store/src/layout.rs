//! Every structure of a pool as it lies on the medium (docs/layout.md explains the order).
//!
//! All integers are little-endian. Offsets are in bytes, units are 4 KiB.

use std::mem::{offset_of, size_of};

use nacre_types::{
    BLOCK_SIZE, LINE_SIZE, ObjectId, UNIT_SIZE, UnitNo, VolumeOffset, name_hash, position_of,
};
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Magic of a superblock ("NACREPL1").
pub const SUPERBLOCK_MAGIC: u64 = u64::from_le_bytes(*b"NACREPL1");
/// Newest pool format that this code reads and the one that it writes.
pub const FORMAT_VERSION: u32 = 5;
/// Oldest pool format that this code reads, and writes on such pools.
pub const OLDEST_VERSION: u32 = 2;
/// The format from which on metadata blocks can be given back.
pub const BLOCKS_COME_BACK: u32 = 3;
/// The format from which on a record may name new bytes that become durable with it.
pub const RECORDS_NAME_NEW_BYTES: u32 = 4;
/// The format from which on parts of pages of objects may have places of their own.
pub const PARTS_HAVE_PLACES: u32 = 5;
/// Incompatible features that this code knows.
pub const KNOWN_INCOMPAT: u64 = 0;

/// Units before the first allocatable one: superblocks, state records, block lists.
pub const HEADER_UNITS: u64 = 64;
/// The two superblock copies.
pub const SUPERBLOCK_AT: [VolumeOffset; 2] = [VolumeOffset(0), VolumeOffset(63 * UNIT_SIZE)];
/// The two state records, written alternately.
pub const STATE_AT: [VolumeOffset; 2] = [VolumeOffset(UNIT_SIZE), VolumeOffset(UNIT_SIZE + 2048)];
/// The list of log blocks: one checked word for each lane.
pub const LANE_LIST_AT: VolumeOffset = VolumeOffset(2 * UNIT_SIZE);
/// Most lanes that a pool can have.
pub const MAX_LANES: usize = 32;
/// The list of metadata blocks: one checked word for each block.
pub const BLOCK_LIST_AT: VolumeOffset = VolumeOffset(16 * UNIT_SIZE);
/// Most metadata blocks that a pool can have.
pub const MAX_BLOCKS: u64 = 8192;
/// Smallest pool: pool header, one metadata block, one log block and some space.
pub const MIN_POOL_BYTES: u64 = 4 * BLOCK_SIZE;

/// One superblock copy. Written at format, not changed afterwards.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
pub struct RawSuperblock {
    /// [`SUPERBLOCK_MAGIC`].
    pub magic: U64,
    /// CRC-32C of everything behind this field.
    pub crc: U32,
    /// Format version.
    pub version: U32,
    /// Features that an older version may ignore.
    pub compat: U64,
    /// Features that an older version must refuse.
    pub incompat: U64,
    /// Uuid of the pool, same as in the device labels.
    pub uuid: [u8; 16],
    /// Units of the volume at format time.
    pub units: U64,
    /// Seed of directory entry hashes.
    pub dir_seed: U64,
    /// Secret that log record checksums start with.
    pub log_salt: U64,
    /// Time of format, ns since the epoch.
    pub created: I64,
    /// Write mode: 0 direct, 1 atomic, 2 cached.
    pub mode: U32,
    /// Unit size in bytes.
    pub unit_size: U32,
    /// Zero.
    pub reserved: [u8; 4008],
}

/// The mutable state of a pool in one cache line; the valid record with the higher `seq` counts.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
pub struct RawState {
    /// [`STATE_MAGIC`].
    pub magic: U32,
    /// CRC-32C of everything behind this field.
    pub crc: U32,
    /// Number of this record; record `seq` lies at `STATE_AT[seq % 2]`.
    pub seq: U64,
    /// Stamp of the session that works on the pool.
    pub stamp: U64,
    /// [`STATE_CLEAN`].
    pub flags: U64,
    /// Units of the volume.
    pub units: U64,
    /// First unit of the allocator snapshot, 0 for none.
    pub snapshot_unit: U64,
    /// Length of the allocator snapshot in bytes.
    pub snapshot_bytes: U64,
    /// Checksum of the allocator snapshot's head, and [`SNAPSHOT_IS_TOLD`]; 0: not told.
    pub snapshot_crc: U64,
}

/// Magic of a state record ("NSTA").
pub const STATE_MAGIC: u32 = u32::from_le_bytes(*b"NSTA");
/// The pool was detached cleanly and its allocator snapshot may be trusted.
pub const STATE_CLEAN: u64 = 1;

/// Above a checksum, which may be 0.
pub const SNAPSHOT_IS_TOLD: u64 = 1 << 32;

/// Head of the allocator snapshot; the body follows: unit bitmap, object bitmap, extra references.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
pub struct RawSnapshot {
    /// [`SNAPSHOT_MAGIC`].
    pub magic: U32,
    /// CRC-32C of the rest of this head.
    pub crc: U32,
    /// Words of the unit bitmap.
    pub unit_words: U64,
    /// Words of the object bitmap.
    pub object_words: U64,
    /// Entries (unit 48 bits, extra references 16 bits) of the list.
    pub shared: U64,
    /// CRC-32C of the body.
    pub body_crc: U32,
    /// Zero.
    pub reserved: [u8; 28],
}

/// Magic of an allocator snapshot ("NSAV").
pub const SNAPSHOT_MAGIC: u32 = u32::from_le_bytes(*b"NSAV");

/// Bytes of an onode.
pub const ONODE_SIZE: usize = 256;
/// Onodes of a metadata block.
pub const ONODES_PER_BLOCK: u64 = BLOCK_SIZE / ONODE_SIZE as u64;
/// Bytes that fit into line 3 of an onode.
pub const INLINE_MAX: usize = 64;

/// One object. Each line is a cache line; line 0 is written by single words, lines 1-3 by the log.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
pub struct RawOnode {
    // line 0: words that commit by themselves, and lazy words
    /// Size in bytes, checked by [`size_salt`].
    pub size: U64,
    /// Block-map root, checked by [`root_salt`].
    pub root: U64,
    /// Time of last change of the contents, ns since the epoch, lazy.
    pub mtime: I64,
    /// Time of last change of the onode, lazy.
    pub ctime: I64,
    /// Time of last read, lazy.
    pub atime: I64,
    /// Mapped units, lazy (a hint for `st_blocks`).
    pub mapped: U64,
    /// Root of the map of parts, checked by [`root_salt`] of [`parts_id`].
    pub parts_root: U64,
    /// Zero.
    pub reserved0: U64,
    // line 1: attributes
    /// Type and permissions as in `st_mode`; 0 means the onode is free.
    pub mode: U32,
    /// Owner.
    pub uid: U32,
    /// Group.
    pub gid: U32,
    /// Links.
    pub nlink: U32,
    /// Time of birth.
    pub btime: I64,
    /// Device number of device nodes.
    pub rdev: U64,
    /// Counts the generations of this object number.
    pub generation: U32,
    /// `FLAG_*` bits.
    pub flags: U32,
    /// Directories: the parent directory.
    pub parent: U64,
    /// Directories: hash of the own entry in the parent.
    pub parent_key: U64,
    /// Zero.
    pub reserved1: U64,
    // line 2: roots
    /// Root of the tree [`Tree::Entries`], checked by [`tree_salt`].
    pub entries_root: U64,
    /// Root of the tree [`Tree::Xattrs`], checked by [`tree_salt`].
    pub xattrs_root: U64,
    /// Keys in [`Tree::Xattrs`].
    pub xattrs: U64,
    /// Zero.
    pub reserved3: U64,
    /// CRC-32C of line 1, line 2 before this field and the used inline bytes, continued from
    /// `inline_len`.
    pub crc: U32,
    /// Bytes used of `inline`.
    pub inline_len: U32,
    /// Zero.
    pub reserved2: [u8; 24],
    // line 3
    /// Inline bytes (target of a short symbolic link).
    pub inline: [u8; INLINE_MAX],
}

/// Offset of the size word in an onode.
pub const ONODE_SIZE_AT: u64 = offset_of!(RawOnode, size) as u64;
/// Offset of the block-map root word.
pub const ONODE_ROOT_AT: u64 = offset_of!(RawOnode, root) as u64;
/// Offset of the root word of the map of parts.
pub const ONODE_PARTS_AT: u64 = offset_of!(RawOnode, parts_root) as u64;
/// Offset of the modification time.
pub const ONODE_MTIME_AT: u64 = offset_of!(RawOnode, mtime) as u64;
/// Offset of the change time.
pub const ONODE_CTIME_AT: u64 = offset_of!(RawOnode, ctime) as u64;
/// Offset of the access time.
pub const ONODE_ATIME_AT: u64 = offset_of!(RawOnode, atime) as u64;
/// Offset of the count of mapped units.
pub const ONODE_MAPPED_AT: u64 = offset_of!(RawOnode, mapped) as u64;
/// Offset of the mode.
pub const ONODE_MODE_AT: u64 = offset_of!(RawOnode, mode) as u64;
/// Offset of the count of links.
pub const ONODE_NLINK_AT: u64 = offset_of!(RawOnode, nlink) as u64;
/// Offset of the generation.
pub const ONODE_GENERATION_AT: u64 = offset_of!(RawOnode, generation) as u64;
/// Offset of the flags.
pub const ONODE_FLAGS_AT: u64 = offset_of!(RawOnode, flags) as u64;
/// The object is an unnamed file that may be given a name (set by the file system).
pub const FLAG_LINKABLE: u32 = 1;
/// In [`RawOnode::flags`]: it belongs to a snapshot and does not change.
pub const FLAG_FROZEN: u32 = 2;
/// In [`RawOnode::flags`]: the folder that holds the snapshots of the one that it is in.
pub const FLAG_SNAPSHOTS: u32 = 4;
/// In [`RawOnode::flags`]: it has an access control list beside its mode, among its extended
/// attributes.
pub const FLAG_ACL: u32 = 8;
/// In [`RawOnode::flags`]: the same, for what is made in the directory.
pub const FLAG_DEFAULT_ACL: u32 = 16;

/// In [`RawOnode::flags`]: its contents are on all disks, where others are on one (D80). What is
/// made in a directory with it has it, too.
pub const FLAG_KEPT: u32 = 32;

/// Head of a tree node. The index follows: for each entry, in key order, its place in the node in
/// units of 8 bytes (16 bits). Entries lie in the heap, which grows down from the node's end.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
pub struct RawNode {
    /// [`NODE_MAGIC`].
    pub magic: U32,
    /// 0 for leaves, the distance to them above.
    pub level: u8,
    /// [`Tree`] as a number.
    pub tree: u8,
    /// Zero.
    pub reserved0: U16,
    /// Object that the tree belongs to.
    pub owner: U64,
    /// Unit of this node.
    pub unit: U64,
    /// CRC-32C of the head with this field as zero.
    pub crc: U32,
    /// Entries.
    pub count: U16,
    /// Lowest byte of the heap, an offset in the node.
    pub heap: U16,
    /// Bytes of the heap that belong to no entry.
    pub garbage: U16,
    /// Transactions that changed this node since it was placed here.
    pub wear: U16,
    /// The checksums of all entries, added up modulo 2^32.
    pub sum: U32,
}

/// Magic of a tree node ("NTRE").
pub const NODE_MAGIC: u32 = u32::from_le_bytes(*b"NTRE");
/// First byte of the index.
pub const NODE_INDEX_AT: usize = size_of::<RawNode>();
/// Greatest height of a tree, in nodes.
pub const MAX_DEPTH: usize = 12;

/// Head of an entry of a tree node. The key follows, zero-padded to 8 bytes if it is shorter, then
/// the value, then zeros up to a multiple of 8.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
pub struct RawEntry {
    /// Length of the key.
    pub key_len: U16,
    /// Length of what lies behind it: the value, a child word or a [`RawOverflow`]. The top bit
    /// ([`ENTRY_OVERFLOW`]) is set when the value lies out of line.
    pub value_len: U16,
    /// CRC-32C of all that follows this head, continued from the lengths
    /// (`value_len << 16 | key_len`).
    pub crc: U32,
}

/// Bit of [`RawEntry::value_len`]: the value lies out of line.
pub const ENTRY_OVERFLOW: u16 = 1 << 15;

/// Where a long value lies: contiguous units.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
pub struct RawOverflow {
    /// First unit, checked by [`tree_salt`].
    pub unit: U64,
    /// Length in bytes.
    pub len: U32,
    /// CRC-32C of the value.
    pub crc: U32,
}

/// Longest key of a tree.
pub const KEY_MAX: usize = 1024;
/// Longest value of a tree.
pub const VALUE_MAX: usize = 65536;
/// Key and value together may take this much of a node; longer values go out of line.
pub const INLINE_ENTRY_MAX: usize = 1280;

/// Which of an object's trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tree {
    /// Directory entries, or the omap of an object.
    Entries = 0,
    /// Extended attributes.
    Xattrs = 1,
}

/// Head of a log record; [`LogEntry`] words with their payloads follow, then [`LogEntry`] words
/// that name new bytes: without these the record does not count.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
pub struct RawRecord {
    /// [`RECORD_MAGIC`].
    pub magic: U32,
    /// CRC-32C of the pool's log salt, the lane number and everything behind this field.
    pub crc: U32,
    /// Bytes of the record with this head, a multiple of 8.
    pub len: U32,
    /// Entries.
    pub count: U32,
    /// Number of the record in its lane.
    pub seq: U32,
    /// Names of new bytes behind the entries.
    pub fresh: U32,
    /// CRC-32C of the new bytes.
    pub fresh_crc: U32,
    /// Records of several lanes are replayed in this order; 0 for those that need none.
    pub stamp: U32,
}

/// Magic of a log record ("NREC").
pub const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"NREC");
/// Magic of a short record whose changes lie in other units ("NLNG"); [`RawLong`] follows its head.
pub const LONG_MAGIC: u32 = u32::from_le_bytes(*b"NLNG");
/// Most bytes of the changes of a record.
pub const MAX_LONG_RECORD: usize = 1 << 30;

/// Where the changes of a long record are; [`RawSegment`]s follow.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
pub struct RawLong {
    /// Bytes of the changes.
    pub len: U64,
    /// CRC-32C of the changes, continued from the lane's seed.
    pub crc: U32,
    /// How many changes.
    pub count: U32,
}

/// Contiguous units that hold changes.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
pub struct RawSegment {
    /// First unit.
    pub start: U64,
    /// How many.
    pub count: U64,
}

/// First byte of the ring in a log block; the log tail words lie before it.
pub const RING_AT: u64 = TAIL_UNITS * UNIT_SIZE;
/// Units that hold log tail words, written in turn.
pub const TAIL_UNITS: u64 = if cfg!(feature = "explore") { 4 } else { 64 };
/// Distance of the log tail words in a unit.
pub const TAIL_STRIDE: u64 = 256;
/// Log tail words of a lane.
pub const TAIL_WORDS: u64 = RING_AT / TAIL_STRIDE;
/// Longest record in bytes. A record that could not be held before the end of the ring goes to its
/// start.
pub const MAX_RECORD: usize = BLOCK_SIZE as usize / 4;

/// What a log tail word says: everything up to record `seq` is applied, the next one lies at line
/// `next`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogTail {
    /// Number of the newest retired record.
    pub seq: u32,
    /// Offset of the next record in the log block, in cache lines.
    pub next: u16,
}

impl LogTail {
    /// What an empty log block says.
    pub const START: LogTail = LogTail {
        seq: 0,
        next: (RING_AT / LINE_SIZE) as u16,
    };

    /// Whether the place of the next record lies in the ring.
    pub fn is_in_ring(self) -> bool {
        u64::from(self.next) * LINE_SIZE >= RING_AT
    }

    /// The 48-bit payload of the word.
    pub fn payload(self) -> u64 {
        u64::from(self.seq) << 16 | u64::from(self.next)
    }

    /// Inverse of [`LogTail::payload`].
    pub fn from_payload(payload: u64) -> LogTail {
        LogTail {
            seq: (payload >> 16) as u32,
            next: payload as u16,
        }
    }
}

/// Head of one change in a log record: bits 0..47 volume offset, 48..62 length in bytes, 63 data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Where the bytes go.
    pub at: VolumeOffset,
    /// How many, at most [`LogEntry::MAX_LEN`].
    pub len: usize,
    /// The bytes are file data.
    pub data: bool,
}

impl LogEntry {
    /// Longest payload of one entry.
    pub const MAX_LEN: usize = 0x7ff8;

    /// The entry's head word.
    pub fn encode(self) -> u64 {
        self.at.0 | (self.len as u64) << 48 | u64::from(self.data) << 63
    }

    /// Inverse of [`LogEntry::encode`].
    pub fn decode(word: u64) -> LogEntry {
        LogEntry {
            at: VolumeOffset(word & ((1 << 48) - 1)),
            len: (word >> 48 & 0x7fff) as usize,
            data: word >> 63 == 1,
        }
    }
}

/// What a word of the list of metadata blocks says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListedBlock {
    /// Where the block lies.
    At(UnitNo),
    /// Nowhere: nothing was in it, and its units are used for other things.
    GivenBack {
        /// No onode of it had a higher generation; when it comes back, all go on from this one.
        generation: u32,
    },
}

impl ListedBlock {
    const IS_GIVEN_BACK: u64 = 1 << 47;

    /// The 48-bit payload of the word.
    pub fn payload(self) -> u64 {
        match self {
            ListedBlock::At(block) => block.0,
            ListedBlock::GivenBack { generation } => Self::IS_GIVEN_BACK | u64::from(generation),
        }
    }

    /// Inverse of [`ListedBlock::payload`]; the place is not checked.
    pub fn from_payload(payload: u64) -> ListedBlock {
        match payload ^ Self::IS_GIVEN_BACK {
            generation if generation <= u64::from(u32::MAX) => ListedBlock::GivenBack {
                generation: generation as u32,
            },
            _ => ListedBlock::At(UnitNo(payload)),
        }
    }
}

/// Salt of the size word of an object.
pub fn size_salt(id: ObjectId) -> u64 {
    1 << 56 | id.0
}

/// Salt of the block-map root word of an object.
pub fn root_salt(id: ObjectId) -> u64 {
    2 << 56 | id.0
}

/// Set in the number that stands for an object in the salts of its map of parts.
const OF_PARTS: u64 = 1 << 47;

/// What stands for an object in the salts of its map of parts.
pub fn parts_id(id: ObjectId) -> ObjectId {
    ObjectId(id.0 | OF_PARTS)
}

/// Whether `id` is what [`parts_id`] gives.
pub(crate) fn is_of_parts(id: ObjectId) -> bool {
    id.0 & OF_PARTS != 0
}

/// The object itself.
pub(crate) fn owner_of_map(id: ObjectId) -> ObjectId {
    ObjectId(id.0 & !OF_PARTS)
}

/// Salt of the root, child and overflow words of an object's trees.
pub fn tree_salt(id: ObjectId) -> u64 {
    3 << 56 | id.0
}

/// Salt of a word that is checked by its own address (lists, log tail words).
pub fn word_salt(at: VolumeOffset) -> u64 {
    4 << 56 | at.0
}

/// Object and slot of a metadata block list: (list index, onode index in the block).
pub fn onode_index(id: ObjectId) -> (u64, u64) {
    (id.0 / ONODES_PER_BLOCK, id.0 % ONODES_PER_BLOCK)
}

/// Address of the `index`-th onode in the metadata block that starts at `block`.
pub fn onode_address(block: UnitNo, index: u64) -> VolumeOffset {
    VolumeOffset(block.offset().0 + index * ONODE_SIZE as u64)
}

/// Hash of a directory entry's name: the readdir cookie, in [2, 2^62).
#[inline]
pub fn entry_hash(seed: u64, name: &[u8]) -> u64 {
    (name_hash(seed, name) >> 2).max(2)
}

/// Longest name of a directory entry in bytes.
pub const NAME_MAX: usize = 255;

/// Whether a directory entry may have this name.
#[inline]
pub fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..")
        && name.len() <= NAME_MAX
        && position_of(name, *b"/\0").is_none()
}

const HASH_LEN: usize = 8;

/// The key of a directory entry, without memory of its own; see [`entry_key`].
pub struct EntryKey {
    bytes: [u8; HASH_LEN + NAME_MAX],
    len: usize,
    hash: u64,
}

impl EntryKey {
    /// Room for a key, to be filled where it lies: it is too large to be moved about.
    #[inline]
    pub const fn room() -> EntryKey {
        EntryKey {
            bytes: [0; HASH_LEN + NAME_MAX],
            len: 0,
            hash: 0,
        }
    }

    /// The key of `name`, which is at most [`NAME_MAX`] bytes long.
    #[inline]
    pub fn of(&mut self, seed: u64, name: &[u8]) -> &EntryKey {
        self.hash = entry_hash(seed, name);
        self.len = HASH_LEN + name.len();
        self.bytes[..HASH_LEN].copy_from_slice(&self.hash.to_be_bytes());
        self.bytes[HASH_LEN..self.len].copy_from_slice(name);
        self
    }

    /// As trees have it.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Where the name stands among the others of its directory.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

/// Key of a directory entry: the hash, big-endian so that keys sort by it, and the name.
pub fn entry_key(hash: u64, name: &[u8], key: &mut Vec<u8>) {
    key.clear();
    key.extend_from_slice(&hash.to_be_bytes());
    key.extend_from_slice(name);
}

/// Splits a directory entry's key into hash and name.
#[inline]
pub fn split_entry_key(key: &[u8]) -> Option<(u64, &[u8])> {
    let (hash, name) = key.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*hash), name))
}

/// Value of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryValue {
    /// The object that the entry names.
    pub object: ObjectId,
    /// Its type as in `d_type`.
    pub kind: u8,
}

impl EntryValue {
    /// Bytes on the medium.
    pub fn encode(self) -> [u8; 9] {
        let mut bytes = [0; 9];
        bytes[..8].copy_from_slice(&self.object.0.to_le_bytes());
        bytes[8] = self.kind;
        bytes
    }

    /// Inverse of [`EntryValue::encode`]; `None` when the length is wrong or the object is 0.
    pub fn decode(bytes: &[u8]) -> Option<EntryValue> {
        let (object, rest) = bytes.split_first_chunk::<8>()?;
        let object = u64::from_le_bytes(*object);
        let [kind] = *rest else { return None };
        (object != 0).then_some(EntryValue {
            object: ObjectId(object),
            kind,
        })
    }
}

const _: () = {
    assert!(size_of::<RawSuperblock>() == UNIT_SIZE as usize);
    assert!(offset_of!(RawSuperblock, version) == 12);
    assert!(size_of::<RawState>() == 64);
    assert!(size_of::<RawSnapshot>() == 64);
    assert!(size_of::<RawOnode>() == ONODE_SIZE);
    assert!(offset_of!(RawOnode, mode) == 64);
    assert!(offset_of!(RawOnode, parent) == 104);
    assert!(offset_of!(RawOnode, entries_root) == 128);
    assert!(offset_of!(RawOnode, crc) == 160);
    assert!(offset_of!(RawOnode, inline) == 192);
    assert!(size_of::<RawNode>() == 40);
    assert!(offset_of!(RawNode, crc) == 24);
    assert!(size_of::<RawEntry>() == 8);
    assert!(size_of::<RawOverflow>() == 16);
    assert!(size_of::<RawRecord>() == 32);
    assert!(size_of::<RawLong>() == 16 && size_of::<RawSegment>() == 16);
};
