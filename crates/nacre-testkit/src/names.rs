//! Files with a name in the root directory, made by calls of the store alone.

use nacre_store::layout::{EntryValue, entry_hash, entry_key};
use nacre_store::{NewObject, Result, Store, Tree, Tx};
use nacre_types::ObjectId;

const ROOT: ObjectId = ObjectId::ROOT;

/// Kind of a name: what `d_type` says of a regular file.
pub const FILE: u8 = 8;

/// An empty regular file that one name leads to.
pub const NEW_FILE: NewObject = NewObject {
    mode: 0o100_644,
    uid: 0,
    gid: 0,
    rdev: 0,
    nlink: 1,
    flags: 0,
    parent: 0,
    parent_key: 0,
    time: 5,
    past: None,
    size: 0,
};

/// The key of a name in the directories of this pool.
pub fn key(store: &Store, name: &str) -> Vec<u8> {
    let mut key = Vec::new();
    let hash = entry_hash(store.dir_seed(), name.as_bytes());
    entry_key(hash, name.as_bytes(), &mut key);
    key
}

/// Gives an object a name in the root directory.
pub fn link(tx: &mut Tx<'_>, store: &Store, name: &str, object: ObjectId, kind: u8) -> Result<()> {
    let value = EntryValue { object, kind }.encode();
    tx.tree_insert(ROOT, Tree::Entries, &key(store, name), &value)
        .map(drop)
}

/// Takes a name away, which must be there.
pub fn unlink(tx: &mut Tx<'_>, store: &Store, name: &str) {
    let there = tx.tree_remove(ROOT, Tree::Entries, &key(store, name));
    assert!(there.expect("a directory that can be changed"), "no {name}");
}

/// What a name of the root directory leads to.
pub fn find(store: &Store, name: &str) -> Option<ObjectId> {
    let mut value = Vec::new();
    let there = store.tree_get(ROOT, Tree::Entries, &key(store, name), &mut value);
    let there = there.expect("a directory that can be read");
    there.then(|| {
        EntryValue::decode(&value)
            .expect("an entry of a directory")
            .object
    })
}

/// Makes a regular file with a name in the root directory.
pub fn create(store: &Store, name: &str) -> Result<ObjectId> {
    let _root = store.lock(ROOT)?;
    let mut tx = store.begin()?;
    let id = tx.create(&NEW_FILE)?;
    link(&mut tx, store, name, id, FILE)?;
    tx.commit()?;
    Ok(id)
}

/// Removes a file and its only name.
pub fn remove(store: &Store, name: &str) {
    let id = find(store, name).expect("a name that is there");
    let _guards = store.lock_many(&[ROOT, id]).expect("locks");
    let mut tx = store.begin().expect("a transaction");
    unlink(&mut tx, store, name);
    tx.remove(id).expect("an object that is there");
    tx.commit().expect("a commit");
}
