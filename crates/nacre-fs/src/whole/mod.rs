//! Whole trees in one step: clones and snapshots.
//!
//! All objects of a tree are locked, which stops the tree for as long as the step takes; one
//! transaction does the rest. Nobody ever sees a part, a crash leaves all or nothing.

mod hold;
mod plant;
mod snapshot;
mod space;
mod uproot;

pub use plant::Planted;
pub use snapshot::{SNAPSHOTS, Snapshot};
pub use space::TreeSpace;

use crate::Fs;
use crate::create::{check_new_name, insert_entry, touch_directory};
use crate::error::{FsError, Result};
use crate::inode::{Found, InodeRef};
use crate::permission::Cred;
use nacre_store::layout::EntryKey;
use plant::{Planting, RootPlace};

impl Fs {
    /// Makes `name` in `dir` a copy of a folder with all that is in it, or of a file. Units are
    /// shared and copied when written later. Folders of snapshots are left out.
    ///
    /// The copies belong to who they belonged to if the caller may give files away, else to the
    /// caller. What is stored through mappings meanwhile may be in the copy or not.
    pub fn clone_tree(
        &self,
        cred: &Cred,
        from: Found,
        dir: InodeRef,
        name: &[u8],
    ) -> Result<Planted> {
        check_new_name(name)?;
        let mut room = EntryKey::room();
        let key = room.of(self.seed, name);
        let mut held = self.hold_trees(&[from], &[dir.object()])?;
        let tree = held.trees.remove(0);
        let parent = self.attrs(dir)?;
        self.check_vacant(cred, dir, &parent, key)?;
        let now = self.store.now();
        let mut tx = self.store.begin()?;
        tx.allow_any_size();
        let place = RootPlace::New {
            parent: dir.object(),
            key: key.hash(),
        };
        let planting = Planting::new(self, cred, &held, &tree, now);
        let (root, planted) = planting.plant(&mut tx, place)?;
        insert_entry(&mut tx, dir, key, root, tree.members[0].attrs.mode)?;
        if tree.is_folder() {
            if parent.nlink >= crate::create::LINK_MAX {
                return Err(FsError::TooManyLinks);
            }
            tx.set_attrs(dir.object(), |attrs| attrs.nlink += 1)?;
        }
        touch_directory(&mut tx, dir, now)?;
        tx.commit()?;
        Ok(planted)
    }
}
