//! Short forms of the store's calls.

use std::sync::atomic::Ordering::Relaxed;

use nacre_store::{CacheUpdates, ObjectGuard, Result, Store, WriteMode};
use nacre_testkit::image::volume_of;
use nacre_testkit::names;
pub use nacre_testkit::names::remove;
pub use nacre_testkit::pool::assert_sound_without_leaks as assert_sound;
use nacre_testkit::pool::{PRIVATE, memory_pool};
use nacre_types::{FileOffset, ObjectId, VolumeOffset};
use nacre_volume::{UserBytes, UserBytesMut};

pub const PAGE: u64 = 4096;

/// A fresh pool of `mib` MiB of memory.
pub fn pool(mib: u64) -> Store {
    memory_pool(mib << 20)
}

/// A pool on a copy of the bytes of another one, as after a crash.
pub fn revive(image: &[u8]) -> Result<Store> {
    Store::attach(volume_of(image), &PRIVATE)
}

pub fn image(store: &Store) -> Vec<u8> {
    let mut bytes = vec![0; store.volume().len() as usize];
    store.volume().read(VolumeOffset(0), &mut bytes);
    bytes
}

/// A regular file with one name in the root directory.
pub fn make_file(store: &Store, name: &str) -> ObjectId {
    names::create(store, name).unwrap()
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
    let hint = &store.session().shared().unit_hints.next;
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
    remove(store, "dirt");
    hint.store(0, Relaxed);
}
