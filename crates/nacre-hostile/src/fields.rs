//! Fields that contradict the rules of their structures, though every checksum is right.

use std::mem::offset_of;

use nacre_store::keyed::layout::LINK_LEN;
use nacre_store::layout::{
    ENTRY_OVERFLOW, NODE_INDEX_AT, ONODE_SIZE, RawEntry, RawNode, RawOnode, RawRecord, RawSnapshot,
    RawState, RawSuperblock, entry_hash,
};
use nacre_store::structure_index::{Part, Structure};

use crate::site::Site;

/// What was done, and whether somebody must notice.
pub type Edit = Option<(&'static str, bool)>;

/// Bytes of an index entry; places are counted in grains.
const INDEX: usize = 2;
const GRAIN: usize = 8;
const HEAD: usize = size_of::<RawEntry>();
const PREFIX: usize = 8;
/// Begins the value of an entry that names another onode.
const LINK: u8 = 1;

/// Changes the bytes of a part.
pub fn edit(site: &mut Site<'_>, part: &Part, bytes: &mut [u8]) -> Edit {
    match part.what {
        Structure::Superblock => superblock(site, bytes),
        Structure::State => state(site, bytes),
        Structure::ListWord => list_word(site, part, bytes),
        Structure::LogTailWord => tail_word(site, bytes),
        Structure::Record(_) => record(site, bytes),
        Structure::Onode => onode(site, part, bytes),
        Structure::MapNode(..) | Structure::PartsNode(..) => map_node(site, part, bytes),
        Structure::TreeNode(_, level) => tree_node(site, part, level, bytes),
        Structure::Snapshot => saved(site, bytes),
        Structure::Value | Structure::Data(_) => None,
    }
}

fn put64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

fn get64(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
}

fn get32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].try_into().map_or(0, u32::from_le_bytes)
}

fn get16(bytes: &[u8], at: usize) -> usize {
    usize::from(bytes[at..at + 2].try_into().map_or(0, u16::from_le_bytes))
}

fn superblock(site: &mut Site<'_>, bytes: &mut [u8]) -> Edit {
    let worst = site.worst();
    let (text, must) = match site.random.below(6) {
        0 => {
            put64(bytes, offset_of!(RawSuperblock, units), worst);
            ("units", worst > site.volume.units())
        }
        1 => {
            put32(bytes, offset_of!(RawSuperblock, unit_size), worst as u32);
            ("unit size", worst as u32 != 4096)
        }
        2 => {
            put32(bytes, offset_of!(RawSuperblock, mode), worst as u32);
            ("mode", worst as u32 > 1)
        }
        3 => {
            put32(bytes, offset_of!(RawSuperblock, version), worst as u32);
            ("version", worst as u32 != 1)
        }
        4 => {
            put64(bytes, offset_of!(RawSuperblock, dir_seed), worst);
            ("seed of hashes", true)
        }
        _ => {
            put64(bytes, offset_of!(RawSuperblock, incompat), worst);
            ("features", worst != 0)
        }
    };
    Some((text, must))
}

fn state(site: &mut Site<'_>, bytes: &mut [u8]) -> Edit {
    let worst = site.worst();
    let places = [
        (offset_of!(RawState, seq), "sequence"),
        (offset_of!(RawState, flags), "flags"),
        (offset_of!(RawState, units), "units"),
        (offset_of!(RawState, snapshot_unit), "saved unit"),
        (offset_of!(RawState, snapshot_bytes), "saved bytes"),
        (offset_of!(RawState, snapshot_crc), "which one is saved"),
    ];
    let (at, text) = places[site.random.below(places.len() as u64) as usize];
    put64(bytes, at, worst);
    Some((text, false))
}

fn list_word(site: &mut Site<'_>, part: &Part, bytes: &mut [u8]) -> Edit {
    let lists = site.part_of(|p| p.what == Structure::ListWord && p.at != part.at);
    let other = lists.map_or(0, |other| site.volume.load_u64(other.at));
    let worst = site.worst();
    Some(match site.random.below(4) {
        0 => {
            put64(bytes, 0, other);
            ("the block of another list", true)
        }
        1 => {
            put64(bytes, 0, site.volume.units() & !1023);
            ("a block outside", true)
        }
        2 => {
            let unit = get64(bytes, 0) + 1;
            put64(bytes, 0, unit);
            ("a crooked block", true)
        }
        _ => {
            put64(bytes, 0, worst & ((1 << 48) - 1));
            ("another block", false)
        }
    })
}

fn tail_word(site: &mut Site<'_>, bytes: &mut [u8]) -> Edit {
    let word = get64(bytes, 0);
    let far = site.random.below(1 << 16);
    let (text, word) = match site.random.below(3) {
        0 => ("a place outside of the ring", (word & !0xffff) | (far % 64)),
        1 => ("a place in the ring", (word & !0xffff) | far),
        _ => ("another number", word.wrapping_add(far << 16)),
    };
    put64(bytes, 0, word);
    Some((text, false))
}

fn record(site: &mut Site<'_>, bytes: &mut [u8]) -> Edit {
    let worst = site.worst();
    const FIRST: usize = size_of::<RawRecord>();
    Some(match site.random.below(5) {
        0 => {
            put32(bytes, 8, worst as u32 & !7);
            ("length", false)
        }
        1 => {
            put32(bytes, 12, worst as u32);
            ("count of changes", false)
        }
        2 => {
            let word = get64(bytes, FIRST) & !((1 << 48) - 1);
            put64(bytes, FIRST, word | site.volume.len());
            ("a change outside", false)
        }
        3 => {
            let word = get64(bytes, FIRST) & !((1 << 48) - 1);
            put64(bytes, FIRST, word | 4096);
            ("a change of the front", true)
        }
        _ => {
            let word = get64(bytes, FIRST) | 0x7fff << 48;
            put64(bytes, FIRST, word);
            ("length of a change", false)
        }
    })
}

fn onode(site: &mut Site<'_>, part: &Part, bytes: &mut [u8]) -> Edit {
    match site.random.below(16) {
        0..6 => onode_attributes(site, part, bytes),
        _ => onode_references(site, part, bytes),
    }
}

fn onode_attributes(site: &mut Site<'_>, part: &Part, bytes: &mut [u8]) -> Edit {
    let (nlink, mode) = (offset_of!(RawOnode, nlink), offset_of!(RawOnode, mode));
    let links = get32(bytes, nlink);
    Some(match site.random.below(8) {
        0 => {
            put32(bytes, nlink, links.wrapping_add(1));
            ("a link too many", true)
        }
        1 => {
            put32(bytes, nlink, if links > 1 { 1 } else { u32::MAX });
            ("link count", true)
        }
        2 => {
            put32(bytes, nlink, 0);
            ("no link", part.object.is_some_and(|id| id.0 == 1))
        }
        3 => {
            let kinds = [0u32, 3, 5, 7, 9, 11, 13, 15];
            put32(
                bytes,
                mode,
                kinds[site.random.below(8) as usize] << 12 | 0o644,
            );
            ("an unknown type", true)
        }
        4 => {
            let other = if get32(bytes, mode) >> 12 == 4 {
                0o100_644
            } else {
                0o040_755
            };
            put32(bytes, mode, other);
            ("another type", true)
        }
        5 => {
            let most = u64::MAX - site.random.below(9);
            put64(bytes, offset_of!(RawOnode, mapped), most);
            ("count of mapped units", false)
        }
        6 => {
            let times = [
                offset_of!(RawOnode, atime),
                offset_of!(RawOnode, mtime),
                offset_of!(RawOnode, ctime),
            ];
            let worst = site.worst();
            put64(bytes, times[site.random.below(3) as usize], worst);
            ("a time", false)
        }
        _ => {
            put64(
                bytes,
                offset_of!(RawOnode, size),
                (1 << 48) - 1 - site.random.below(9),
            );
            ("the largest size", false)
        }
    })
}

fn onode_references(site: &mut Site<'_>, part: &Part, bytes: &mut [u8]) -> Edit {
    let worst = site.worst();
    let own = part.at.unit().0;
    let mode = offset_of!(RawOnode, mode);
    let names_registry = part.object.is_some_and(|id| id.0 == 1) && !site.prepared.keyed.is_empty();
    Some(match site.random.below(10) {
        0 if names_registry => registry(site, bytes),
        0 => {
            put32(bytes, offset_of!(RawOnode, inline_len), worst as u32);
            ("inline length", worst as u32 > 64)
        }
        1 => {
            put64(bytes, offset_of!(RawOnode, btime), worst);
            ("time of birth", false)
        }
        2 => {
            let xattrs = get64(bytes, offset_of!(RawOnode, xattrs));
            put64(bytes, offset_of!(RawOnode, xattrs), xattrs + 1);
            ("count of attributes", true)
        }
        3 => {
            put64(
                bytes,
                offset_of!(RawOnode, root),
                own | site.random.below(6) << 40,
            );
            ("a map that is its own onode", true)
        }
        4 => {
            put64(
                bytes,
                offset_of!(RawOnode, root),
                (worst & 0xff_ffff_ffff) | site.random.below(8) << 40,
            );
            ("root of the map", false)
        }
        5 => {
            put64(
                bytes,
                offset_of!(RawOnode, entries_root),
                worst & ((1 << 48) - 1),
            );
            ("root of the entries", false)
        }
        6 => {
            let root = get64(bytes, offset_of!(RawOnode, entries_root));
            put64(bytes, offset_of!(RawOnode, xattrs_root), root);
            ("one root for both trees", root != 0)
        }
        7 => {
            put64(
                bytes,
                offset_of!(RawOnode, parent),
                part.object.map_or(0, |id| id.0),
            );
            ("its own parent", false)
        }
        8 => {
            put32(bytes, mode, 0);
            ("an object that is gone", true)
        }
        _ => {
            let other = site.part_of(|p| p.what == Structure::Onode && p.at != part.at)?;
            let theirs: [u8; ONODE_SIZE] = site.volume.read_array(other.at);
            // Empty objects look alike.
            let sized = get64(&theirs, offset_of!(RawOnode, size)) != 0;
            bytes.copy_from_slice(&theirs);
            ("the onode of another object", sized)
        }
    })
}

/// Changes what the root directory says of the registry.
fn registry(site: &mut Site<'_>, bytes: &mut [u8]) -> (&'static str, bool) {
    let at = offset_of!(RawOnode, inline) + 8 + site.random.below(12) as usize;
    bytes[at] ^= 1 << site.random.below(8);
    ("a registry that is not there", true)
}

fn map_node(site: &mut Site<'_>, part: &Part, bytes: &mut [u8]) -> Edit {
    let used: Vec<usize> = (0..512).filter(|&n| get64(bytes, n * 8) != 0).collect();
    let pick = site.random.below(used.len() as u64) as usize;
    let at = used.get(pick)? * 8;
    let word = get64(bytes, at) & ((1 << 48) - 1);
    let worst = site.worst();
    let other = site.part_of(|p| p.object.is_some() && p.object != part.object)?;
    Some(match site.random.below(7) {
        0 => {
            put64(bytes, at, part.at.unit().0);
            ("a node that names itself", true)
        }
        1 => {
            put64(bytes, at, site.volume.units() + site.random.below(1 << 30));
            ("an extent outside", true)
        }
        2 => {
            put64(bytes, at, 1 + site.random.below(63));
            ("an extent at the front", true)
        }
        3 => {
            put64(bytes, at, other.at.unit().0);
            ("the unit of another object", true)
        }
        4 => {
            let first = get64(bytes, used[0] * 8) & ((1 << 48) - 1);
            put64(bytes, at, first);
            ("one unit twice", used[0] * 8 != at)
        }
        5 => {
            put64(bytes, at, word ^ 1 << (40 + site.random.below(8)));
            ("flags", false)
        }
        _ => {
            let empty = site.random.below(512) as usize * 8;
            put64(bytes, empty, worst & ((1 << 48) - 1));
            ("one word more", false)
        }
    })
}

fn tree_node(site: &mut Site<'_>, part: &Part, level: u8, bytes: &mut [u8]) -> Edit {
    let most = (bytes.len() - NODE_INDEX_AT) / INDEX;
    let count = get16(bytes, offset_of!(RawNode, count)).min(most);
    if count == 0 || site.random.below(3) == 0 {
        return node_head(site, part, bytes);
    }
    let index = NODE_INDEX_AT + site.random.below(count as u64) as usize * INDEX;
    let entry = get16(bytes, index) * GRAIN;
    if entry < NODE_INDEX_AT || entry + HEAD + PREFIX > bytes.len() {
        return node_head(site, part, bytes);
    }
    match site.random.below(3) {
        0 => node_index(site, (index, entry), count, bytes),
        _ if level > 0 => node_child(site, part, entry, bytes),
        _ => node_entry(site, entry, bytes),
    }
}

fn node_head(site: &mut Site<'_>, part: &Part, bytes: &mut [u8]) -> Edit {
    let worst = site.worst();
    Some(match site.random.below(7) {
        0 => {
            bytes[offset_of!(RawNode, level)] = worst as u8;
            ("level", false)
        }
        1 => {
            bytes[offset_of!(RawNode, tree)] ^= 1;
            ("which tree", true)
        }
        2 => {
            put64(bytes, offset_of!(RawNode, owner), worst);
            ("owner", part.object.is_some_and(|id| id.0 != worst))
        }
        3 => {
            put64(bytes, offset_of!(RawNode, unit), worst);
            ("own unit", worst != part.at.unit().0)
        }
        4 => {
            put16(bytes, offset_of!(RawNode, count), worst as u16);
            ("count", false)
        }
        5 => {
            put16(bytes, offset_of!(RawNode, heap), worst as u16);
            ("heap", false)
        }
        _ => {
            put16(bytes, offset_of!(RawNode, garbage), worst as u16);
            ("garbage", false)
        }
    })
}

fn node_index(
    site: &mut Site<'_>,
    (index, entry): (usize, usize),
    count: usize,
    bytes: &mut [u8],
) -> Edit {
    let worst = site.worst();
    let lengths = offset_of!(RawEntry, value_len);
    Some(match site.random.below(6) {
        0 => {
            put16(bytes, index, worst as u16);
            ("place of an entry", false)
        }
        1 => {
            put16(bytes, entry + offset_of!(RawEntry, key_len), worst as u16);
            ("length of a key", false)
        }
        2 => {
            put16(bytes, entry + lengths, worst as u16);
            ("length of a value", false)
        }
        3 => {
            let len = get16(bytes, entry + lengths) as u16;
            put16(bytes, entry + lengths, len ^ ENTRY_OVERFLOW);
            ("kind of a value", false)
        }
        4 => {
            put64(bytes, entry + HEAD, worst.swap_bytes());
            ("prefix", false)
        }
        _ => {
            let other = NODE_INDEX_AT + site.random.below(count as u64) as usize * INDEX;
            for byte in 0..INDEX {
                bytes.swap(index + byte, other + byte);
            }
            ("order of entries", index != other)
        }
    })
}

/// Where the value of an entry lies, and its length, if it lies in the node.
fn value_of(bytes: &[u8], entry: usize) -> Option<(usize, usize)> {
    let key = get16(bytes, entry + offset_of!(RawEntry, key_len));
    let len = get16(bytes, entry + offset_of!(RawEntry, value_len));
    let len = len & usize::from(!ENTRY_OVERFLOW);
    let start = entry + HEAD + key.max(PREFIX);
    (start + len <= bytes.len()).then_some((start, len))
}

fn node_child(site: &mut Site<'_>, part: &Part, entry: usize, bytes: &mut [u8]) -> Edit {
    let (at, _) = value_of(bytes, entry).filter(|(_, len)| *len == 8)?;
    let first = get16(bytes, NODE_INDEX_AT) * GRAIN;
    let first = value_of(bytes, first.min(bytes.len() - HEAD)).map(|(at, _)| at);
    let worst = site.worst();
    Some(match site.random.below(4) {
        0 => {
            put64(bytes, at, part.at.unit().0);
            ("a node that is its own child", true)
        }
        1 => {
            let first = first.filter(|first| first + 8 <= bytes.len())?;
            let child = get64(bytes, first);
            put64(bytes, at, child);
            ("one child twice", first != at)
        }
        2 => {
            put64(bytes, at, site.volume.units());
            ("a child outside", true)
        }
        _ => {
            put64(bytes, at, worst & ((1 << 48) - 1));
            ("another child", true)
        }
    })
}

/// Changes what an entry says: of directories the object, its type or the name, else the value.
fn node_entry(site: &mut Site<'_>, entry: usize, bytes: &mut [u8]) -> Edit {
    let (at, len) = value_of(bytes, entry)?;
    let flags = get16(bytes, entry + offset_of!(RawEntry, value_len)) as u16;
    let overflow = flags & ENTRY_OVERFLOW != 0;
    if overflow && len == 16 {
        let worst = site.worst();
        match site.random.below(2) {
            0 => put32(bytes, at + 8, worst as u32),
            _ => put64(bytes, at, worst & ((1 << 48) - 1)),
        }
        return Some(("where a long value lies", false));
    }
    if len == LINK_LEN && bytes[at] == LINK {
        return link(site, at, bytes);
    }
    if len != 9 {
        return None;
    }
    let (object, kind) = (get64(bytes, at), bytes[at + 8]);
    let worst = site.worst();
    Some(match site.random.below(6) {
        0 => {
            put64(bytes, at, worst | 1 << 40);
            ("an entry for no object", true)
        }
        1 => {
            put64(bytes, at, object + 1);
            ("an entry for another object", true)
        }
        2 => {
            put64(bytes, at, 1);
            ("an entry for the root", true)
        }
        3 => {
            bytes[at + 8] = if kind == 4 { 8 } else { 4 };
            ("an entry of another type", true)
        }
        4 => {
            bytes[at + 8] = worst as u8 | 16;
            ("an entry of no type", true)
        }
        _ => return rename(site, entry, bytes),
    })
}

/// Changes what a name of a collection or object, or a long key, leads to.
fn link(site: &mut Site<'_>, at: usize, bytes: &mut [u8]) -> Edit {
    let (object, generation, kind) = (at + 1, at + 9, at + 13);
    let worst = site.worst();
    Some(match site.random.below(6) {
        0 => {
            put64(bytes, object, worst | 1 << 40);
            ("a link to no object", true)
        }
        1 => {
            let other = get64(bytes, object) + 1;
            put64(bytes, object, other);
            ("a link to another object", true)
        }
        2 => {
            let other = get32(bytes, generation).wrapping_add(1);
            put32(bytes, generation, other);
            ("a link to an earlier object", true)
        }
        3 => {
            bytes[kind] = [3, 5, 7, 9, 11]
                .into_iter()
                .find(|other| *other != bytes[kind])
                .unwrap_or(0);
            ("a link to another kind", true)
        }
        4 => {
            bytes[kind] = worst as u8 & !1;
            ("a link to no kind", true)
        }
        _ => {
            bytes[at] = 0;
            ("a link that says it is a value", false)
        }
    })
}

/// Gives an entry a name that no directory may hold, or one that its hash does not fit.
fn rename(site: &mut Site<'_>, entry: usize, bytes: &mut [u8]) -> Edit {
    let key = entry + HEAD;
    let len = get16(bytes, entry + offset_of!(RawEntry, key_len));
    let name = bytes.get_mut(key + PREFIX..key + len)?;
    *name.last_mut()? = [b'/', 0][site.random.below(2) as usize];
    let hash = entry_hash(site.prepared.seed, name);
    if site.random.below(2) == 0 {
        put64(bytes, key, hash.swap_bytes());
        return Some(("a forbidden name", true));
    }
    Some(("a name with another hash", true))
}

fn saved(site: &mut Site<'_>, bytes: &mut [u8]) -> Edit {
    let worst = site.worst();
    let head = size_of::<RawSnapshot>();
    Some(match site.random.below(5) {
        0 => {
            put64(bytes, offset_of!(RawSnapshot, unit_words), worst);
            ("words of units", false)
        }
        1 => {
            put64(bytes, offset_of!(RawSnapshot, object_words), worst);
            ("words of objects", false)
        }
        2 => {
            put64(bytes, offset_of!(RawSnapshot, shared), worst);
            ("shared units", false)
        }
        3 => {
            bytes[head..].fill(0);
            ("all is free", true)
        }
        _ => {
            bytes[head..].fill(0xff);
            ("all is used", false)
        }
    })
}
