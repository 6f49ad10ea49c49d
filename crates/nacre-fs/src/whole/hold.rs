//! Locking a whole tree, and what is in it then.

use crate::Fs;
use crate::error::{FsError, Result};
use crate::inode::{FileType, Found, is_directory};
use crate::live::LiveEntry;
use crate::whole::SNAPSHOTS;
use nacre_store::layout::{FLAG_SNAPSHOTS, split_entry_key};
use nacre_store::{Attrs, ObjectGuard, Tree};
use nacre_types::ObjectId;
use std::collections::{HashMap, HashSet};
use std::ops::{ControlFlow, Range};

/// How often a tree is locked again because of what came into it meanwhile.
const ROUNDS: usize = 64;
/// How often the lock of a newcomer is tried.
const TRIES: usize = 100;

/// An object of a tree.
pub(crate) struct Member {
    pub(crate) id: ObjectId,
    pub(crate) attrs: Attrs,
    /// Names in the tree; of a folder its subfolders and 2.
    pub(crate) links: u32,
    /// Folders: the number of the parent among the members, and the hash of the name there.
    pub(crate) parent: usize,
    pub(crate) key_hash: u64,
    /// The number of its lock.
    lock: usize,
}

/// A name in a tree: numbers of members, and where the key of the entry is.
pub(crate) struct Name {
    pub(crate) dir: usize,
    pub(crate) child: usize,
    key: Range<usize>,
}

/// A tree as it is while it is locked. Parents come before what is in them.
#[derive(Default)]
pub(crate) struct Survey {
    pub(crate) members: Vec<Member>,
    /// Those of a folder are in the order of their keys.
    pub(crate) names: Vec<Name>,
    keys: Vec<u8>,
    /// Members that may be met again.
    numbers: HashMap<ObjectId, usize>,
}

impl Survey {
    pub(crate) fn is_folder(&self) -> bool {
        is_directory(&self.members[0].attrs)
    }

    /// Adds a member, which is locked, and returns its number.
    fn enter(
        &mut self,
        (id, lock): (ObjectId, usize),
        attrs: Attrs,
        parent: usize,
        key_hash: u64,
    ) -> usize {
        let number = self.members.len();
        let links = if is_directory(&attrs) { 2 } else { 1 };
        if may_be_met_again(&attrs) {
            self.numbers.insert(id, number);
        }
        self.members.push(Member {
            id,
            attrs,
            links,
            parent,
            key_hash,
            lock,
        });
        number
    }

    /// The key of a name.
    pub(crate) fn key(&self, name: &Name) -> &[u8] {
        &self.keys[name.key.clone()]
    }
}

fn may_be_met_again(attrs: &Attrs) -> bool {
    is_directory(attrs) || attrs.nlink > 1
}

/// Locked trees. Nothing changes in them but what programs store through mappings.
pub(crate) struct Held<'f> {
    /// In the order of their numbers, up to the newcomers.
    guards: Vec<ObjectGuard<'f>>,
    in_order: usize,
    newcomers: HashMap<ObjectId, usize>,
    pub(crate) trees: Vec<Survey>,
}

impl<'f> Held<'f> {
    /// The lock of a member.
    pub(crate) fn guard(&self, member: &Member) -> &ObjectGuard<'f> {
        &self.guards[member.lock]
    }

    fn find(&self, id: ObjectId) -> Option<usize> {
        let in_order = &self.guards[..self.in_order];
        match in_order.binary_search_by_key(&id, ObjectGuard::id) {
            Ok(at) => Some(at),
            Err(_) => self.newcomers.get(&id).copied(),
        }
    }
}

/// What a walk under locks ends with.
enum Walked {
    Whole(Survey),
    /// Somebody else has the lock of this one.
    Missed(ObjectId),
}

impl Fs {
    /// Locks all that is in these trees, without folders of snapshots, and some objects besides.
    pub(crate) fn hold_trees(&self, roots: &[Found], besides: &[ObjectId]) -> Result<Held<'_>> {
        let mut wanted = besides.to_vec();
        for _ in 0..ROUNDS {
            for root in roots {
                self.collect(root, &mut wanted);
            }
            let mut held = self.lock_all(&mut wanted)?;
            match self.walk_all(roots, &mut held)? {
                None => return Ok(held),
                Some(missed) => wanted.push(missed),
            }
        }
        Err(FsError::Busy)
    }

    /// The numbers of a tree, as far as they can be told without locks.
    fn collect(&self, root: &Found, wanted: &mut Vec<ObjectId>) {
        let mut folders = Vec::new();
        let mut seen = HashSet::new();
        let mut add = |id: ObjectId, is_folder: bool, folders: &mut Vec<ObjectId>| {
            wanted.push(id);
            if is_folder && seen.insert(id) {
                folders.push(id);
            }
        };
        let is_folder = root.file_type == FileType::Directory;
        add(root.node.object(), is_folder, &mut folders);
        while let Some(dir) = folders.pop() {
            // What goes wrong here goes wrong again under the locks, or was only passing.
            let _passing = self.each_entry(dir, &mut |_, entry| {
                let is_folder = entry.file_type == FileType::Directory;
                add(entry.object, is_folder, &mut folders);
                Ok(())
            });
        }
    }

    fn lock_all(&self, wanted: &mut Vec<ObjectId>) -> Result<Held<'_>> {
        wanted.sort_unstable();
        wanted.dedup();
        let mut guards = Vec::with_capacity(wanted.len());
        for &id in &*wanted {
            guards.push(self.store.lock(id)?);
        }
        Ok(Held {
            in_order: guards.len(),
            guards,
            newcomers: HashMap::new(),
            trees: Vec::new(),
        })
    }

    /// Looks at all trees; who could not be locked.
    fn walk_all<'f>(&'f self, roots: &[Found], held: &mut Held<'f>) -> Result<Option<ObjectId>> {
        for root in roots {
            self.attrs(root.node)?;
            match self.walk_held(root.node.object(), held)? {
                Walked::Whole(tree) => held.trees.push(tree),
                Walked::Missed(id) => return Ok(Some(id)),
            }
        }
        Ok(None)
    }

    fn walk_held<'f>(&'f self, root: ObjectId, held: &mut Held<'f>) -> Result<Walked> {
        let mut tree = Survey::default();
        let Some(lock) = self.take_in(root, held)? else {
            return Ok(Walked::Missed(root));
        };
        tree.enter((root, lock), self.store.attrs_held(root)?, 0, 0);
        let mut next = 0;
        while next < tree.members.len() {
            let dir = next;
            next += 1;
            if !is_directory(&tree.members[dir].attrs) {
                continue;
            }
            if let Some(missed) = self.list_held(dir, &mut tree, held)? {
                return Ok(Walked::Missed(missed));
            }
        }
        Ok(Walked::Whole(tree))
    }

    /// Adds what is in a folder to the tree.
    fn list_held<'f>(
        &'f self,
        dir: usize,
        tree: &mut Survey,
        held: &mut Held<'f>,
    ) -> Result<Option<ObjectId>> {
        let mut entries = Vec::new();
        let keys = &mut tree.keys;
        self.each_entry(tree.members[dir].id, &mut |key, entry| {
            let start = keys.len();
            keys.extend_from_slice(key);
            entries.push((start..keys.len(), entry));
            Ok(())
        })?;
        for (key, entry) in entries {
            let Some(lock) = self.take_in(entry.object, held)? else {
                return Ok(Some(entry.object));
            };
            if self.holds_snapshots(&tree.keys[key.clone()], entry)? {
                continue;
            }
            let hash = split_entry_key(&tree.keys[key.clone()]).map_or(0, |(hash, _)| hash);
            let child = self.member(tree, (dir, hash), entry, lock)?;
            tree.names.push(Name { dir, child, key });
        }
        Ok(None)
    }

    /// The number of an object's lock, which is taken if the object has come into the tree; None if
    /// somebody else has it.
    fn take_in<'f>(&'f self, id: ObjectId, held: &mut Held<'f>) -> Result<Option<usize>> {
        if let Some(known) = held.find(id) {
            return Ok(Some(known));
        }
        // Not in the order of locks: so it does not wait.
        for _ in 0..TRIES {
            if let Some(guard) = self.store.try_lock(id)? {
                let number = held.guards.len();
                held.guards.push(guard);
                held.newcomers.insert(id, number);
                return Ok(Some(number));
            }
            std::hint::spin_loop();
        }
        Ok(None)
    }

    /// The number of the member that an entry of a folder leads to.
    fn member(
        &self,
        tree: &mut Survey,
        (dir, hash): (usize, u64),
        entry: LiveEntry,
        lock: usize,
    ) -> Result<usize> {
        let is_folder = entry.file_type == FileType::Directory;
        if is_folder {
            tree.members[dir].links += 1;
        }
        let attrs = self.store.attrs_held(entry.object)?;
        if may_be_met_again(&attrs)
            && let Some(&known) = tree.numbers.get(&entry.object)
        {
            if is_folder {
                let what = "the directory has two names";
                return Err(FsError::corrupt(entry.object, what));
            }
            tree.members[known].links += 1;
            return Ok(known);
        }
        let number = tree.enter((entry.object, lock), attrs, dir, hash);
        let known = LiveEntry::of(entry.object, tree.members[number].attrs.mode)?;
        match known == entry {
            true => Ok(number),
            false => Err(FsError::corrupt(
                entry.object,
                "the object is not of the type that its name says",
            )),
        }
    }

    fn holds_snapshots(&self, key: &[u8], entry: LiveEntry) -> Result<bool> {
        let named = split_entry_key(key).is_some_and(|(_, name)| name == SNAPSHOTS);
        if !named || entry.file_type != FileType::Directory {
            return Ok(false);
        }
        Ok(self.store.attrs(entry.object)?.flags & FLAG_SNAPSHOTS != 0)
    }

    /// Tells `visit` about all entries of a folder, in the order of their keys.
    fn each_entry(
        &self,
        dir: ObjectId,
        visit: &mut dyn FnMut(&[u8], LiveEntry) -> Result<()>,
    ) -> Result<()> {
        let mut failed = Ok(());
        self.store
            .tree_scan(dir, Tree::Entries, &[], &mut |key, value, _| {
                failed = LiveEntry::decode(dir, value).and_then(|entry| visit(key, entry));
                match failed {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(_) => ControlFlow::Break(()),
                }
            })?;
        failed
    }
}
