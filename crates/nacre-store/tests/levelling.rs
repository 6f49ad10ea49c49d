//! What is written again and again does not stay where it is.

use std::collections::BTreeSet;

use nacre_session::NUMBER_SHARDS;
use nacre_store::layout::{EntryValue, ONODES_PER_BLOCK, entry_hash, entry_key};
use nacre_store::{AttachOptions, FormatOptions, NewObject, SessionChoice, Store, Tree};
use nacre_types::ObjectId;
use nacre_volume::{Access, CreateOptions, DeviceSpec, Volume};

const ROOT: ObjectId = ObjectId::ROOT;
const MEMORY: AttachOptions = AttachOptions {
    session: SessionChoice::Memory,
    mode: None,
    resume: false,
    parallel: false,
    granularity: None,
};

fn pool() -> Store {
    let volume = Volume::memory(64 << 20).unwrap();
    Store::format(&volume, &FormatOptions::default()).unwrap();
    Store::attach(volume, &MEMORY).unwrap()
}

fn key(store: &Store, number: u32) -> Vec<u8> {
    let (name, mut key) = (format!("file {number}"), Vec::new());
    let hash = entry_hash(store.dir_seed(), name.as_bytes());
    entry_key(hash, name.as_bytes(), &mut key);
    key
}

fn create(store: &Store, number: u32) -> ObjectId {
    let _root = store.lock(ROOT).unwrap();
    let mut tx = store.begin().unwrap();
    let new = NewObject {
        mode: 0o100_644,
        nlink: 1,
        ..NewObject::default()
    };
    let object = tx.create(&new).unwrap();
    let value = EntryValue { object, kind: 8 }.encode();
    let key = key(store, number);
    tx.tree_insert(ROOT, Tree::Entries, &key, &value).unwrap();
    tx.commit().unwrap();
    object
}

fn remove(store: &Store, number: u32, object: ObjectId) {
    let _guards = store.lock_many(&[ROOT, object]).unwrap();
    let mut tx = store.begin().unwrap();
    let key = key(store, number);
    assert!(tx.tree_remove(ROOT, Tree::Entries, &key).unwrap());
    tx.remove(object).unwrap();
    tx.commit().unwrap();
}

/// Processes that made objects out of one shard would pass its lines to and fro.
#[test]
fn two_processes_never_take_object_numbers_from_one_shard_while_another_is_free() {
    const SHARD: u64 = ONODES_PER_BLOCK / NUMBER_SHARDS as u64;
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let device = DeviceSpec {
        path: folder.path().join("pool"),
        size: Some(64 << 20),
    };
    let volume = Volume::create(&[device], CreateOptions::default()).unwrap();
    Store::format(&volume, &FormatOptions::default()).unwrap();
    drop(volume);
    let attach = || {
        let volume = Volume::open(&folder.path().join("pool"), Access::ReadWrite).unwrap();
        Store::attach(volume, &AttachOptions::default()).unwrap()
    };
    let (one, other) = (attach(), attach());
    let mut shards = BTreeSet::new();
    for number in 0..2000 {
        let [a, b] = [create(&one, number), create(&other, 10_000 + number)];
        assert_ne!(a.0 / SHARD, b.0 / SHARD, "object {number} of each");
        shards.extend([a.0 / SHARD, b.0 / SHARD]);
    }
    assert!(shards.len() > 4, "{shards:?}");
}

#[test]
fn one_file_after_the_other_does_not_wear_one_onode() {
    let store = pool();
    let mut seen = BTreeSet::new();
    for number in 0..200 {
        let object = create(&store, number);
        remove(&store, number, object);
        seen.insert(object.0);
    }
    assert_eq!(seen.len(), 200);
}
