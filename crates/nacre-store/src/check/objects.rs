//! One object: onode, block map, trees, directory entries.

use std::ops::ControlFlow;

use nacre_types::{ObjectId, UNIT_SIZE, VolumeOffset};

use super::links::{is_directory, kind_of};
use super::{Check, Lost};
use crate::block_map::layout::MapWord;
use crate::data::map::{Map, Met, PartsMap};
use crate::error::StoreError;
use crate::keyed::layout::Kind;
use crate::layout::{EntryValue, INLINE_MAX, Tree, entry_hash, is_name, split_entry_key};
use crate::object::onode::Attrs;
use crate::recovery::scan::{MAX_PROBLEMS, pages_of_onode, walk_tree};

/// Types that an object can have, as in `d_type`: fifo, character device, directory, block device,
/// file, link, socket; and [`Kind`]s.
pub(crate) const KINDS: [u8; 12] = [1, 2, 4, 6, 8, 10, 12, 3, 5, 7, 9, 11];

impl Check<'_> {
    /// Checks an object and notes what it uses and names.
    pub(super) fn check_object(&mut self, id: ObjectId) {
        let store = self.store;
        let _guard = match store.lock(id) {
            Ok(guard) => Some(guard),
            Err(StoreError::NoSuchObject(_)) => return,
            Err(error) => {
                self.report.problem(Some(id), None, error);
                None
            }
        };
        let Ok(onode) = store.onode_at(id) else {
            return;
        };
        let Ok(raw) = store.raw_onode(onode) else {
            return;
        };
        self.report.counts.objects += 1;
        self.check_map(id, onode, pages_of_onode(&raw, id));
        self.check_parts(id, onode);
        self.check_tree(id, onode, Tree::Entries, None);
        self.check_tree(id, onode, Tree::Xattrs, Some(raw.xattrs.get()));
        match Attrs::decode(&raw, id, onode) {
            Ok(attrs) => self.check_attrs(id, onode, &attrs, raw.inline_len.get()),
            Err(error) => self.problem(id, onode, error),
        }
    }

    fn check_attrs(&mut self, id: ObjectId, onode: VolumeOffset, attrs: &Attrs, inline: u32) {
        if !KINDS.contains(&kind_of(attrs.mode)) {
            self.problem(
                id,
                onode,
                format!("mode {:o} has no known type", attrs.mode),
            );
        }
        let marked = &self.store.session().object_bits()[(id.0 / 64) as usize];
        if marked.load(std::sync::atomic::Ordering::Acquire) & 1 << (id.0 % 64) == 0 {
            self.problem(id, onode, "object exists but its number is marked as free");
        }
        if inline as usize > INLINE_MAX {
            let what = format!("inline length is {inline}, more than an onode holds");
            self.problem(id, onode, what);
        }
        self.links.object(id, attrs);
        if is_directory(attrs.mode) {
            self.check_entries(id, onode);
        } else if let Some(kind) = Kind::from_number(kind_of(attrs.mode)) {
            self.check_links_of(id, onode, kind);
        }
        if id == ObjectId::ROOT {
            self.check_registry(id, onode);
        }
    }

    fn check_map(&mut self, id: ObjectId, onode: VolumeOffset, pages: u64) {
        let map = Map::new(self.store, id, onode);
        map.walk(&mut |met| match met {
            Met::Node(unit) => {
                self.report.counts.metadata_units += 1;
                self.units.claim_sole(unit)
            }
            Met::Page(page, entry) => {
                self.report.counts.data_units += 1;
                self.report.counts.beyond_eof += u64::from(page >= pages && entry.is_written());
                if entry.is_written()
                    && page < pages
                    && self.store.allocator().is_lost(entry.unit())
                {
                    self.note_lost(id, page);
                }
                self.units.claim(entry);
                false
            }
            Met::Damaged(at) => {
                self.problem(id, at, "block map word is damaged");
                false
            }
        });
    }

    /// A page of an object is lost.
    fn note_lost(&mut self, object: ObjectId, page: u64) {
        let bytes = page * UNIT_SIZE..(page + 1) * UNIT_SIZE;
        let has_room = self.report.lost.len() < MAX_PROBLEMS;
        match self.report.lost.last_mut() {
            Some(last) if last.object == object && last.bytes.end == bytes.start => {
                last.bytes.end = bytes.end;
            }
            _ if has_room => self.report.lost.push(Lost { object, bytes }),
            _ => self.report.more_problems += 1,
        }
    }

    fn check_parts(&mut self, id: ObjectId, onode: VolumeOffset) {
        let map = PartsMap::of_parts(self.store, id, onode);
        let first_units = Map::new(self.store, id, onode);
        map.walk(&mut |met| match met {
            Met::Node(unit) => {
                self.report.counts.metadata_units += 1;
                self.units.claim_sole(unit)
            }
            Met::Page(page, entry) => {
                self.report.counts.data_units += 1;
                self.units.claim(entry);
                if first_units.entry(page).is_ok_and(MapWord::is_hole) {
                    self.problem(id, onode, "page with a second unit, but no first");
                }
                false
            }
            Met::Damaged(at) => {
                self.problem(id, at, "word of the map of parts is damaged");
                false
            }
        });
    }

    fn check_tree(&mut self, id: ObjectId, onode: VolumeOffset, tree: Tree, keys: Option<u64>) {
        let before = self.report.problems.len();
        walk_tree(self.store, id, onode, tree, &mut |met| match met {
            Ok(run) => {
                self.report.counts.metadata_units += run.count;
                self.units.claim_run(run)
            }
            Err(error) => {
                self.report.problem(Some(id), None, error);
                false
            }
        });
        if self.report.problems.len() == before {
            self.check_order(id, onode, tree, keys);
        }
    }

    /// The keys of a sound tree must ascend and be as many as the onode says; where it does not
    /// say, a root means that there are some.
    fn check_order(&mut self, id: ObjectId, onode: VolumeOffset, tree: Tree, keys: Option<u64>) {
        let mut last: Option<Vec<u8>> = None;
        let mut found = 0;
        let mut ordered = true;
        let scanned = self.store.tree_scan(id, tree, &[], &mut |key, _, _| {
            found += 1;
            ordered &= last.as_deref().is_none_or(|last| last < key);
            let last = last.get_or_insert_default();
            last.clear();
            last.extend_from_slice(key);
            ControlFlow::Continue(())
        });
        match scanned {
            Err(error) => self.problem(id, onode, error),
            Ok(()) if !ordered => self.problem(id, onode, "keys of a tree are out of order"),
            Ok(()) if keys.is_some_and(|keys| found != keys) => {
                let says = keys.unwrap_or_default();
                let what = format!("tree has {found} keys, the onode says {says}");
                self.problem(id, onode, what);
            }
            Ok(())
                if found == 0 && matches!(self.store.tree_root(id, onode, tree), Ok(Some(_))) =>
            {
                self.problem(id, onode, "tree has a root and no keys");
            }
            Ok(()) => {}
        }
    }

    fn check_entries(&mut self, id: ObjectId, onode: VolumeOffset) {
        let seed = self.store.dir_seed();
        let (mut entries, mut broken) = (0, Vec::new());
        let links = &mut self.links;
        // An error was reported by the tree's own check.
        let _reported = self
            .store
            .tree_scan(id, Tree::Entries, &[], &mut |key, value, _| {
                entries += 1;
                let parsed = split_entry_key(key).zip(EntryValue::decode(value));
                let sound = parsed.is_some_and(|((hash, name), value)| {
                    hash == entry_hash(seed, name)
                        && is_name(name)
                        && links.entry(id, hash, value.object, value.kind)
                });
                if !sound && broken.len() < 16 {
                    broken.push(String::from_utf8_lossy(key.get(8..).unwrap_or(key)).into_owned());
                }
                ControlFlow::Continue(())
            });
        self.report.counts.entries += entries;
        for name in broken {
            self.problem(id, onode, format!("directory entry {name:?} is damaged"));
        }
    }
}
