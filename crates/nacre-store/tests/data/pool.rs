//! Pools in memory and short forms of the store's calls.

use std::sync::atomic::Ordering::Relaxed;

use nacre_store::check::check;
use nacre_store::layout::{EntryValue, entry_hash, entry_key};
use nacre_store::{
    AttachOptions, CacheUpdates, FormatOptions, NewObject, ObjectGuard, Result, SessionChoice,
    Store, Tree, WriteMode,
};
use nacre_types::{FileOffset, ObjectId, StoreKind, VolumeOffset};
use nacre_volume::{Unfenced, UserBytes, UserBytesMut, Volume};

pub const PAGE: u64 = 4096;

pub fn options() -> AttachOptions {
    AttachOptions {
        session: SessionChoice::Memory,
        ..AttachOptions::default()
    }
}

/// A fresh pool of `mib` MiB of memory.
pub fn pool(mib: u64) -> Store {
    let volume = Volume::memory(mib << 20).unwrap();
    Store::format(&volume, &FormatOptions::default()).unwrap();
    Store::attach(volume, &options()).unwrap()
}

/// A pool on a copy of the bytes of another one, as after a crash.
pub fn revive(image: &[u8]) -> Result<Store> {
    let volume = Volume::memory(image.len() as u64).unwrap();
    let mut stores = Unfenced::nothing();
    for (page, bytes) in image.chunks(PAGE as usize).enumerate() {
        if bytes.iter().any(|byte| *byte != 0) {
            let at = VolumeOffset(page as u64 * PAGE);
            stores = stores.and(volume.write(at, bytes, StoreKind::Data));
        }
    }
    volume.fence(stores).unwrap();
    Store::attach(volume, &options())
}

pub fn image(store: &Store) -> Vec<u8> {
    let mut bytes = vec![0; store.volume().len() as usize];
    store.volume().read(VolumeOffset(0), &mut bytes);
    bytes
}

/// A regular file with one name in the root directory.
pub fn make_file(store: &Store, name: &str) -> ObjectId {
    let _root = store.lock(ObjectId::ROOT).unwrap();
    let mut tx = store.begin().unwrap();
    let new = NewObject {
        mode: 0o100_644,
        nlink: 1,
        ..NewObject::default()
    };
    let id = tx.create(&new).unwrap();
    let mut key = Vec::new();
    entry_key(
        entry_hash(store.dir_seed(), name.as_bytes()),
        name.as_bytes(),
        &mut key,
    );
    let value = EntryValue {
        object: id,
        kind: 8,
    };
    assert!(
        tx.tree_insert(ObjectId::ROOT, Tree::Entries, &key, &value.encode())
            .unwrap()
    );
    tx.commit().unwrap();
    id
}

/// Removes what [`make_file`] made.
pub fn remove_file(store: &Store, name: &str, id: ObjectId) {
    let _guards = store.lock_many(&[ObjectId::ROOT, id]).unwrap();
    let mut key = Vec::new();
    entry_key(
        entry_hash(store.dir_seed(), name.as_bytes()),
        name.as_bytes(),
        &mut key,
    );
    let mut tx = store.begin().unwrap();
    assert!(tx.tree_remove(ObjectId::ROOT, Tree::Entries, &key).unwrap());
    tx.remove(id).unwrap();
    tx.commit().unwrap();
}

/// As a file system does: at once if that can be.
pub fn write(store: &Store, id: ObjectId, at: u64, bytes: &[u8], mode: WriteMode) -> Result<usize> {
    if mode == WriteMode::Direct {
        let from = UserBytes::from(bytes);
        let done = store.try_overwrite_fast(id, FileOffset(at), from, |_, _| true);
        if let Some(done) = done {
            return done;
        }
    }
    let guard = store.lock(id)?;
    store.write(&guard, FileOffset(at), UserBytes::from(bytes), mode)
}

pub fn with<T>(store: &Store, id: ObjectId, f: impl FnOnce(&ObjectGuard<'_>) -> Result<T>) -> T {
    let guard = store.lock(id).unwrap();
    f(&guard).unwrap()
}

/// As a file system does: at once if that can be.
pub fn read(store: &Store, id: ObjectId, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xAA; len];
    let mut to = UserBytesMut::from(bytes.as_mut_slice());
    let known = store.try_read_fast(id, FileOffset(at), &mut to, CacheUpdates::Left, |_, _| true);
    if let Some((_, got)) = known {
        bytes.truncate(got);
        return bytes;
    }
    let got = store
        .read(id, FileOffset(at), UserBytesMut::from(bytes.as_mut_slice()))
        .unwrap();
    bytes.truncate(got);
    bytes
}

pub fn read_all(store: &Store, id: ObjectId) -> Vec<u8> {
    read(store, id, 0, store.attrs(id).unwrap().size as usize + 10)
}

/// `len` bytes that differ from page to page and from seed to seed.
pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed | 1)
        .collect()
}

/// Fills free units with 0xEE and lets the next allocations take these, so that a unit that leaks
/// old bytes is noticed.
pub fn dirty_free_units(store: &Store) {
    let hint = &store.session().shared().unit_hint;
    let id = make_file(store, "dirt");
    for page in 0..600 {
        hint.store(0, Relaxed);
        write(
            store,
            id,
            page * PAGE,
            &[0xEE; PAGE as usize],
            WriteMode::Direct,
        )
        .unwrap();
    }
    remove_file(store, "dirt", id);
    hint.store(0, Relaxed);
}

pub fn assert_sound(store: &Store) {
    let report = check(store, &mut |_| {});
    let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    assert!(problems.is_empty(), "{problems:#?}");
    assert_eq!(report.counts.leaked_units, 0);
}
