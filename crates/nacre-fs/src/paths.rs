//! From objects back to their names.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::ControlFlow;

use nacre_store::Tree;
use nacre_store::layout::{EntryValue, split_entry_key};
use nacre_types::ObjectId;

use crate::Fs;
use crate::inode::ROOT;

/// Type of a directory in an entry.
const DIRECTORY: u8 = 4;

impl Fs {
    /// A path of each of some objects that have one. The whole tree is walked until all are found;
    /// what others rename meanwhile may be missed, and so may what is in a damaged directory.
    pub fn paths_of(&self, wanted: &HashSet<ObjectId>) -> HashMap<ObjectId, Vec<u8>> {
        let mut found = HashMap::new();
        let mut seen = HashSet::from([ROOT]);
        let mut folders = VecDeque::from([(ROOT, Vec::new())]);
        if wanted.contains(&ROOT) {
            found.insert(ROOT, b"/".to_vec());
        }
        while let Some((folder, path)) = folders.pop_front() {
            if found.len() == wanted.len() {
                break;
            }
            // A damaged directory has the names that can be read.
            let _readable = self.each_name(folder, &mut |name, entry| {
                let path = [&path, &b"/"[..], name].concat();
                if entry.kind == DIRECTORY && seen.insert(entry.object) {
                    folders.push_back((entry.object, path.clone()));
                }
                if wanted.contains(&entry.object) {
                    found.entry(entry.object).or_insert(path);
                }
            });
        }
        found
    }

    fn each_name(
        &self,
        folder: ObjectId,
        visit: &mut dyn FnMut(&[u8], EntryValue),
    ) -> nacre_store::Result<()> {
        let mut see = |key: &[u8], value: &[u8], _: Option<&[u8]>| {
            if let Some(((_, name), entry)) = split_entry_key(key).zip(EntryValue::decode(value)) {
                visit(name, entry);
            }
            ControlFlow::Continue(())
        };
        self.store.tree_scan(folder, Tree::Entries, &[], &mut see)
    }
}
