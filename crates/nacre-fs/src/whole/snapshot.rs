//! Snapshots: read-only clones of a folder, in the folder `.snapshots` of it.

use crate::Fs;
use crate::create::{check_new_name, insert_entry, touch_directory};
use crate::error::{FsError, Result};
use crate::inode::{FileType, Found, InodeRef, is_directory};
use crate::name::check_name;
use crate::permission::Cred;
use crate::remove::take_entry;
use crate::whole::plant::{Planted, Planting, RootPlace};
use crate::whole::space::TreeSpace;
use crate::whole::uproot::uproot;
use nacre_store::layout::EntryKey;
use nacre_store::layout::{FLAG_FROZEN, FLAG_SNAPSHOTS};
use nacre_store::{Attrs, NewObject, Tree, Tx};
use nacre_types::{ObjectId, Timestamp};

/// The folder in a folder that holds its snapshots.
pub const SNAPSHOTS: &[u8] = b".snapshots";

/// A snapshot of a folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Its name.
    pub name: Vec<u8>,
    /// When it was made.
    pub made: Timestamp,
    /// The room that it takes.
    pub space: TreeSpace,
}

/// The folder of snapshots of a folder.
enum Shelf {
    There(InodeRef),
    Missing,
}

impl Fs {
    /// Makes a read-only copy of a folder, under a name in its `.snapshots`.
    pub fn snapshot(&self, cred: &Cred, folder: InodeRef, name: &[u8]) -> Result<Planted> {
        check_new_name(name)?;
        let mut rooms = [EntryKey::room(), EntryKey::room()];
        let [shelf_room, room] = &mut rooms;
        let shelf_key = shelf_room.of(self.seed, SNAPSHOTS);
        let key = room.of(self.seed, name);
        let shelf = self.shelf(folder)?;
        let besides: Vec<ObjectId> = shelf.object().into_iter().collect();
        let mut held = self.hold_trees(&[folder_of(folder)], &besides)?;
        let tree = held.trees.remove(0);
        if self.shelf(folder)?.object() != shelf.object() {
            return Err(FsError::Busy);
        }
        let now = self.store.now();
        let mut tx = self.store.begin()?;
        tx.allow_any_size();
        let dir = match shelf {
            Shelf::There(dir) => {
                self.check_vacant(cred, dir, &self.attrs(dir)?, key)?;
                dir.object()
            }
            Shelf::Missing => {
                let attrs = &tree.members[0].attrs;
                self.check_vacant(cred, folder, attrs, shelf_key)?;
                make_shelf(&mut tx, (folder, attrs), shelf_key, now)?
            }
        };
        let place = RootPlace::New {
            parent: dir,
            key: key.hash(),
        };
        let planting = Planting::new(self, cred, &held, &tree, now).with_flags(FLAG_FROZEN);
        let (root, planted) = planting.plant(&mut tx, place)?;
        let dir = dir_ref(dir);
        insert_entry(&mut tx, dir, key, root, tree.members[0].attrs.mode)?;
        tx.set_attrs(dir.object(), |attrs| attrs.nlink += 1)?;
        touch_directory(&mut tx, dir, now)?;
        tx.commit()?;
        Ok(planted)
    }

    /// The snapshots of a folder.
    pub fn snapshots(&self, cred: &Cred, folder: InodeRef) -> Result<Vec<Snapshot>> {
        let Shelf::There(dir) = self.shelf(folder)? else {
            return Ok(Vec::new());
        };
        let mut names = Vec::new();
        self.readdir(dir, 0, &mut |group| {
            names.extend(group.iter().map(|entry| entry.name.to_vec()));
            true
        })?;
        names.retain(|name| name != b"." && name != b"..");
        names.sort();
        let mut found = Vec::new();
        for name in names {
            let root = self.lookup(cred, dir, &name)?;
            let attrs = self.attrs(root.node)?;
            if attrs.flags & FLAG_FROZEN != 0 {
                found.push(Snapshot {
                    made: Timestamp(attrs.btime),
                    space: self.tree_space(root)?,
                    name,
                });
            }
        }
        Ok(found)
    }

    /// Removes a snapshot.
    pub fn delete_snapshot(&self, cred: &Cred, folder: InodeRef, name: &[u8]) -> Result<()> {
        let (dir, root) = self.find_snapshot(cred, folder, name)?;
        let mut held = self.hold_trees(&[root], &[dir.object()])?;
        let tree = held.trees.remove(0);
        let parent = self.attrs(dir)?;
        self.check_writable()?;
        self.check_directory_write(cred, dir.object(), &parent)?;
        if !cred.owns(&tree.members[0].attrs) {
            return Err(FsError::NotPermitted);
        }
        let mut room = EntryKey::room();
        let key = room.of(self.seed, name);
        let mut tx = self.store.begin()?;
        tx.allow_any_size();
        take_entry(&mut tx, dir, key, root.node.object())?;
        tx.set_attrs(dir.object(), |attrs| {
            attrs.nlink = attrs.nlink.saturating_sub(1);
        })?;
        touch_directory(&mut tx, dir, self.store.now())?;
        let _unseen = uproot(self, &mut tx, &held, &tree, 0)?;
        Ok(tx.commit()?)
    }

    /// Makes a folder again what it was when the snapshot was made. What is open stays without a
    /// name until it is closed; snapshots stay.
    pub fn restore_snapshot(&self, cred: &Cred, folder: InodeRef, name: &[u8]) -> Result<Planted> {
        let (dir, root) = self.find_snapshot(cred, folder, name)?;
        let mut held = self.hold_trees(&[folder_of(folder), root], &[dir.object()])?;
        let saved = held.trees.remove(1);
        let current = held.trees.remove(0);
        self.check_writable()?;
        self.check_replaceable(cred, &current.members)?;
        let mut tx = self.store.begin()?;
        tx.allow_any_size();
        let _unseen = uproot(self, &mut tx, &held, &current, 1)?;
        self.clear_root(&mut tx, current.members[0].id)?;
        let planting = Planting::new(self, cred, &held, &saved, self.store.now());
        let (_, planted) = planting.plant(&mut tx, RootPlace::Old(folder.object()))?;
        let links = saved.members[0].links + 1;
        tx.set_attrs(folder.object(), |attrs| {
            attrs.nlink = links;
            attrs.ctime = self.store.now().0;
        })?;
        tx.commit()?;
        Ok(planted)
    }

    /// Takes away what a folder that stays has of its own.
    fn clear_root(&self, tx: &mut Tx<'_>, root: ObjectId) -> Result<()> {
        let mut names = Vec::new();
        self.store
            .tree_scan(root, Tree::Xattrs, &[], &mut |name, _, _| {
                names.push(name.to_vec());
                std::ops::ControlFlow::Continue(())
            })?;
        for name in names {
            tx.tree_remove(root, Tree::Xattrs, &name)?;
        }
        Ok(())
    }

    /// All folders of a tree may lose their names, and the first one belongs to the caller.
    fn check_replaceable(&self, cred: &Cred, members: &[crate::whole::hold::Member]) -> Result<()> {
        if !cred.owns(&members[0].attrs) {
            return Err(FsError::NotPermitted);
        }
        let folders = members.iter().filter(|member| is_directory(&member.attrs));
        for folder in folders {
            self.check_directory_write(cred, folder.id, &folder.attrs)?;
        }
        Ok(())
    }

    fn find_snapshot(
        &self,
        cred: &Cred,
        folder: InodeRef,
        name: &[u8],
    ) -> Result<(InodeRef, Found)> {
        check_name(name)?;
        let Shelf::There(dir) = self.shelf(folder)? else {
            return Err(FsError::NotFound);
        };
        let root = self.lookup(cred, dir, name)?;
        match self.attrs(root.node)?.flags & FLAG_FROZEN {
            0 => Err(FsError::Invalid),
            _ => Ok((dir, root)),
        }
    }

    /// `Exists`: there is something else with the name.
    fn shelf(&self, folder: InodeRef) -> Result<Shelf> {
        let attrs = self.attrs(folder)?;
        if !is_directory(&attrs) {
            return Err(FsError::NotDirectory);
        }
        if attrs.flags & (FLAG_FROZEN | FLAG_SNAPSHOTS) != 0 {
            return Err(FsError::Invalid);
        }
        let mut room = EntryKey::room();
        let key = room.of(self.seed, SNAPSHOTS);
        let Some(entry) = self.entry(folder.object(), key)? else {
            return Ok(Shelf::Missing);
        };
        let attrs = self.store.attrs(entry.object)?;
        match attrs.flags & FLAG_SNAPSHOTS {
            0 => Err(FsError::Exists),
            _ => Ok(Shelf::There(InodeRef {
                ino: entry.object.ino(),
                generation: attrs.generation,
            })),
        }
    }
}

impl Shelf {
    fn object(&self) -> Option<ObjectId> {
        match self {
            Shelf::There(dir) => Some(dir.object()),
            Shelf::Missing => None,
        }
    }
}

fn folder_of(node: InodeRef) -> Found {
    Found {
        node,
        file_type: FileType::Directory,
    }
}

/// A directory that the transaction changes; nobody looks at its generation.
fn dir_ref(dir: ObjectId) -> InodeRef {
    InodeRef {
        ino: dir.ino(),
        generation: 0,
    }
}

/// Makes the folder of snapshots of a locked folder.
fn make_shelf(
    tx: &mut Tx<'_>,
    (folder, attrs): (InodeRef, &Attrs),
    key: &EntryKey,
    now: Timestamp,
) -> Result<ObjectId> {
    let mode = FileType::Directory.mode_bits() | 0o755;
    let shelf = tx.create(&NewObject {
        mode,
        uid: attrs.uid,
        gid: attrs.gid,
        nlink: 2,
        flags: FLAG_SNAPSHOTS,
        parent: folder.object().0,
        parent_key: key.hash(),
        time: now.0,
        ..NewObject::default()
    })?;
    insert_entry(tx, folder, key, shelf, mode)?;
    tx.set_attrs(folder.object(), |attrs| attrs.nlink += 1)?;
    touch_directory(tx, folder, now)?;
    Ok(shelf)
}
