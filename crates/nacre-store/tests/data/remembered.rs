//! What a process remembers of where pages lie ends with the layout: no stale unit is read or
//! written.

use nacre_store::{Store, WriteMode};
use nacre_types::ObjectId;

use crate::pool::{
    PAGE, assert_sound, make_file, pattern, pool, read, read_all, remove, with, write,
};

const DIRECT: WriteMode = WriteMode::Direct;
const PAGES: usize = 8;
const LEN: usize = PAGES * PAGE as usize;

/// A file whose translations are remembered by this process, as they were read and written.
fn known_file(store: &Store) -> (ObjectId, Vec<u8>) {
    let id = make_file(store, "f");
    let bytes = pattern(1, LEN);
    write(store, id, 0, &bytes, DIRECT).unwrap();
    for _ in 0..3 {
        assert_eq!(read_all(store, id), bytes);
        write(store, id, 0, &bytes, DIRECT).unwrap();
    }
    (id, bytes)
}

/// Another file that takes the units that were just freed.
fn taker(store: &Store) -> (ObjectId, Vec<u8>) {
    let id = make_file(store, "taker");
    let bytes = pattern(7, 4 * LEN);
    store
        .session()
        .shared()
        .unit_hints
        .next
        .store(0, std::sync::atomic::Ordering::Relaxed);
    write(store, id, 0, &bytes, DIRECT).unwrap();
    (id, bytes)
}

/// The file is as expected, can be written everywhere, and the taker keeps its bytes.
fn check(store: &Store, id: ObjectId, expected: &[u8]) {
    let (other, theirs) = taker(store);
    assert_eq!(read(store, id, 0, expected.len()), expected);
    let ours = pattern(3, expected.len());
    write(store, id, 0, &ours, DIRECT).unwrap();
    assert_eq!(read_all(store, other), theirs);
    assert_eq!(read(store, id, 0, ours.len()), ours);
    assert_sound(store);
}

#[test]
fn units_of_a_truncated_file_are_not_touched_again() {
    let store = pool(16);
    let (id, _) = known_file(&store);
    with(&store, id, |guard| store.truncate(guard, 0));
    with(&store, id, |guard| store.truncate(guard, LEN as u64));
    check(&store, id, &vec![0; LEN]);
}

#[test]
fn units_of_a_punched_file_are_not_touched_again() {
    let store = pool(16);
    let (id, mut bytes) = known_file(&store);
    with(&store, id, |guard| store.punch(guard, PAGE, 4 * PAGE));
    bytes[PAGE as usize..5 * PAGE as usize].fill(0);
    check(&store, id, &bytes);
}

#[test]
fn units_that_became_shared_are_not_overwritten() {
    let store = pool(16);
    let (id, bytes) = known_file(&store);
    let copy = make_file(&store, "copy");
    {
        let (from, to) = store.lock_pair(id, copy).unwrap();
        let to = to.unwrap();
        store.clone_range(&from, 0, &to, 0, LEN as u64).unwrap();
    }
    assert_eq!(read_all(&store, copy), bytes);
    write(&store, id, PAGE, &pattern(9, 2 * PAGE as usize), DIRECT).unwrap();
    assert_eq!(read_all(&store, copy), bytes);
    write(&store, copy, 0, &pattern(5, LEN), DIRECT).unwrap();
    assert_eq!(read(&store, id, 0, PAGE as usize), bytes[..PAGE as usize]);
    assert_sound(&store);
}

#[test]
fn units_replaced_by_an_atomic_write_are_not_touched_again() {
    let store = pool(16);
    let (id, _) = known_file(&store);
    let new = pattern(2, LEN);
    write(&store, id, 0, &new, WriteMode::Atomic).unwrap();
    check(&store, id, &new);
}

#[test]
fn the_next_object_of_a_number_does_not_inherit_translations() {
    let store = pool(16);
    known_file(&store);
    remove(&store, "f");
    let (other, theirs) = taker(&store);
    let again = make_file(&store, "f");
    write(&store, again, 0, b"short", DIRECT).unwrap();
    assert_eq!(read_all(&store, again), b"short");
    assert_eq!(read_all(&store, other), theirs);
    assert_sound(&store);
}
