//! Where every structure of a pool lies, and how to make its checks right after its bytes were
//! changed.
//!
//! For programs that damage pools on purpose: they know the layout from here, and so from the code
//! that reads it.

use nacre_types::{CheckedWord, ObjectId, UNIT_SIZE, UnitNo, VolumeOffset, crc32c, crc32c_append};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

use crate::block_map::layout::{FANOUT, FANOUT_SHIFT, Root, WORD_SIZE, entry_salt};
use crate::lane::lane_list_at;
use crate::lane::{read_tail, tail_at};
use crate::layout::{
    ONODE_SIZE, RawOnode, RawSnapshot, RawState, STATE_AT, SUPERBLOCK_AT, TAIL_WORDS, Tree,
    parts_id, root_salt, size_salt, tree_salt, word_salt,
};
use crate::log::record::Record;
use crate::object::blocks::block_list_at;
use crate::object::onode::onode_crc;
use crate::recovery::scan::for_each_object;
use crate::store::Store;
use crate::superblock::PoolState;
use crate::superblock::lane_seed;
use crate::tree::{self, TreePart};

const WORD: usize = WORD_SIZE as usize;

/// What a part of the medium is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Structure {
    /// A superblock copy.
    Superblock,
    /// A state record.
    State,
    /// A word of the list of log blocks or of metadata blocks.
    ListWord,
    /// A log tail word of a log block.
    LogTailWord,
    /// A record that waits for replay in this lane.
    Record(u32),
    /// An onode in use.
    Onode,
    /// A block-map node: its level, and the index in the level of its first word.
    MapNode(u32, u64),
    /// A node of a map of parts, as a node of a block map.
    PartsNode(u32, u64),
    /// A node of a tree and its level.
    TreeNode(Tree, u8),
    /// A value out of line.
    Value,
    /// A unit of file data, and its page.
    Data(u64),
    /// The allocator snapshot.
    Snapshot,
}

/// A part of the medium that is one structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it is.
    pub what: Structure,
    /// Its owner.
    pub object: Option<ObjectId>,
    /// Where it lies.
    pub at: VolumeOffset,
    /// Its length in bytes.
    pub len: u64,
}

/// All structures of a sound pool.
pub fn survey(store: &Store) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut add = |what, at, len| {
        parts.push(Part {
            what,
            object: None,
            at,
            len,
        });
    };
    SUPERBLOCK_AT
        .iter()
        .for_each(|&at| add(Structure::Superblock, at, UNIT_SIZE));
    STATE_AT
        .iter()
        .for_each(|&at| add(Structure::State, at, size_of::<RawState>() as u64));
    let lists = (0..store.block_count()).map(block_list_at);
    let lists = lists.chain((0..store.lane_count()).map(lane_list_at));
    lists.for_each(|at| add(Structure::ListWord, at, WORD_SIZE));
    if let Ok(state) = PoolState::read(&store.volume)
        && state.snapshot_unit != 0
    {
        let at = UnitNo(state.snapshot_unit).offset();
        add(Structure::Snapshot, at, state.snapshot_bytes);
    }
    for lane in 0..store.lane_count() {
        survey_lane(store, lane, &mut add);
    }
    for_each_object(store, &mut |id, onode| {
        let mut add = |what, at, len| {
            parts.push(Part {
                what,
                object: Some(id),
                at,
                len,
            });
        };
        add(Structure::Onode, onode, ONODE_SIZE as u64);
        survey_map(store, id, onode, &mut add);
        for tree in [Tree::Entries, Tree::Xattrs] {
            survey_tree(store, id, onode, tree, &mut add);
        }
    });
    parts
}

type Add<'a> = dyn FnMut(Structure, VolumeOffset, u64) + 'a;

fn survey_lane(store: &Store, lane: u32, add: &mut Add<'_>) {
    let Ok(block) = store.lane_block(lane) else {
        return;
    };
    for round in 0..TAIL_WORDS {
        add(Structure::LogTailWord, tail_at(block, round), WORD_SIZE);
    }
    let Ok(retired) = read_tail(&store.volume, block) else {
        return;
    };
    let seed = lane_seed(store.superblock.log_salt, lane);
    if let Some(record) = Record::read(&store.volume, block, seed, retired) {
        let at = block.offset().add(u64::from(retired.next) * 64);
        add(Structure::Record(lane), at, record.len());
    }
}

fn survey_map(store: &Store, id: ObjectId, onode: VolumeOffset, add: &mut Add<'_>) {
    let Ok(raw) = store.raw_onode(onode) else {
        return;
    };
    type Node = fn(u32, u64) -> Structure;
    let maps: [(ObjectId, U64, Node); 2] = [
        (id, raw.root, Structure::MapNode),
        (parts_id(id), raw.parts_root, Structure::PartsNode),
    ];
    for (id, root, node) in maps {
        let root = Root::decode(root.get(), root_salt(id), store.units);
        if let Some(root) = root
            && !root.entry.is_hole()
        {
            let mut add = |level, index, at| match level {
                0 => add(Structure::Data(index), at, UNIT_SIZE),
                _ => add(node(level, index), at, UNIT_SIZE),
            };
            survey_map_node(store, root.entry.unit(), root.height, 0, &mut add);
        }
    }
}

type AddUnit<'a> = dyn FnMut(u32, u64, VolumeOffset) + 'a;

fn survey_map_node(store: &Store, unit: UnitNo, level: u32, index: u64, add: &mut AddUnit<'_>) {
    if level == 0 {
        add(0, index, unit.offset());
        return;
    }
    let first = index << FANOUT_SHIFT;
    add(level, first, unit.offset());
    for step in 0..FANOUT {
        let word = store.volume.load_u64(unit.offset().add(step * WORD_SIZE));
        let below = UnitNo(word & ((1 << 40) - 1));
        if store.is_unit(below.0) {
            survey_map_node(store, below, level - 1, first + step, add);
        }
    }
}

fn survey_tree(store: &Store, id: ObjectId, onode: VolumeOffset, which: Tree, add: &mut Add<'_>) {
    let Ok(Some(root)) = store.tree_root(id, onode, which) else {
        return;
    };
    let mut visit = |part| {
        match part {
            TreePart::Node(unit, level) => {
                add(Structure::TreeNode(which, level), unit.offset(), UNIT_SIZE);
            }
            TreePart::Value(value) => {
                let run = value.run();
                add(Structure::Value, run.start.offset(), run.count * UNIT_SIZE);
            }
        }
        true
    };
    tree::walk(store, id, which, UnitNo(root), &mut visit, &mut |_| {});
}

/// Makes every check in the bytes of a part right, whatever they say; `salt` is the pool's log
/// salt. Sound bytes stay as they are.
pub fn reseal(part: &Part, bytes: &mut [u8], salt: u64) {
    let id = part.object.unwrap_or(ObjectId(0));
    match part.what {
        Structure::Superblock => put_crc(bytes, 8, 12),
        Structure::State => put_crc(bytes, 4, 8),
        Structure::ListWord | Structure::LogTailWord => seal_word(bytes, word_salt(part.at)),
        Structure::Record(lane) => reseal_record(bytes, salt, lane),
        Structure::Onode => reseal_onode(bytes, id),
        Structure::MapNode(level, first) => reseal_map(bytes, id, level, first),
        Structure::PartsNode(level, first) => reseal_map(bytes, parts_id(id), level, first),
        Structure::TreeNode(..) => crate::node::reseal(bytes, tree_salt(id)),
        Structure::Snapshot => reseal_snapshot(bytes),
        Structure::Value | Structure::Data(_) => {}
    }
}

fn reseal_map(bytes: &mut [u8], id: ObjectId, level: u32, first: u64) {
    for (index, word) in (first..).zip(bytes.chunks_exact_mut(WORD)) {
        seal_word(word, entry_salt(id, level, index));
    }
}

fn put_crc(bytes: &mut [u8], at: usize, from: usize) {
    let crc = crc32c(&bytes[from..]);
    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

fn seal_word(bytes: &mut [u8], salt: u64) {
    let Some((word, _)) = bytes.split_first_chunk_mut::<WORD>() else {
        return;
    };
    let payload = u64::from_le_bytes(*word) & CheckedWord::MAX;
    *word = CheckedWord::seal(payload, salt).0.to_le_bytes();
}

fn reseal_record(bytes: &mut [u8], salt: u64, lane: u32) {
    let len = bytes.get(8..12).and_then(|len| len.try_into().ok());
    let len = len.map_or(0, u32::from_le_bytes) as usize;
    if let Some(record) = bytes.get_mut(..len.max(32)) {
        let crc = crc32c_append(lane_seed(salt, lane), &record[8..]);
        record[4..8].copy_from_slice(&crc.to_le_bytes());
    }
}

fn reseal_onode(bytes: &mut [u8], id: ObjectId) {
    let Ok(mut raw) = RawOnode::read_from_bytes(bytes) else {
        return;
    };
    seal_word(raw.size.as_mut_bytes(), size_salt(id));
    seal_word(raw.root.as_mut_bytes(), root_salt(id));
    seal_word(raw.parts_root.as_mut_bytes(), root_salt(parts_id(id)));
    seal_word(raw.entries_root.as_mut_bytes(), tree_salt(id));
    seal_word(raw.xattrs_root.as_mut_bytes(), tree_salt(id));
    raw.crc = onode_crc(&raw).into();
    bytes.copy_from_slice(raw.as_bytes());
}

fn reseal_snapshot(bytes: &mut [u8]) {
    const HEAD: usize = size_of::<RawSnapshot>();
    const BODY_CRC: usize = std::mem::offset_of!(RawSnapshot, body_crc);
    let Some((head, body)) = bytes.split_at_mut_checked(HEAD) else {
        return;
    };
    head[BODY_CRC..BODY_CRC + 4].copy_from_slice(&crc32c(body).to_le_bytes());
    put_crc(head, 4, 8);
}
