//! Readers without locks beside writers.

use std::sync::atomic::{AtomicBool, Ordering};

use nacre_store::{NewObject, Store, Tree};
use nacre_testkit::pool::memory_pool;
use nacre_types::ObjectId;

const ROOT: ObjectId = ObjectId::ROOT;

fn insert(store: &Store, id: ObjectId, key: &[u8], value: &[u8]) {
    let _guard = store.lock(id).unwrap();
    let mut tx = store.begin().unwrap();
    tx.tree_insert(id, Tree::Entries, key, value).unwrap();
    tx.commit().unwrap();
}

#[test]
fn a_reader_never_sees_half_a_transaction() {
    let store = memory_pool(64 << 20);
    let done = AtomicBool::new(false);
    insert(&store, ROOT, b"left", &0u64.to_le_bytes());
    insert(&store, ROOT, b"right", &0u64.to_le_bytes());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..3000u64 {
                let _guard = store.lock(ROOT).unwrap();
                let mut tx = store.begin().unwrap();
                tx.tree_insert(ROOT, Tree::Entries, b"left", &n.to_le_bytes())
                    .unwrap();
                tx.tree_insert(ROOT, Tree::Entries, b"right", &n.to_le_bytes())
                    .unwrap();
                let noise = [b"noise".as_slice(), &(n % 500).to_be_bytes()].concat();
                tx.tree_insert(ROOT, Tree::Entries, &noise, &[1; 60])
                    .unwrap();
                let old = [b"noise".as_slice(), &((n + 250) % 500).to_be_bytes()].concat();
                tx.tree_remove(ROOT, Tree::Entries, &old).unwrap();
                tx.commit().unwrap();
            }
            done.store(true, Ordering::Release);
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let (mut left, mut right) = (Vec::new(), Vec::new());
                let mut last = Vec::new();
                while !done.load(Ordering::Acquire) {
                    let pair = || {
                        let found = store.tree_get(ROOT, Tree::Entries, b"left", &mut left)?
                            && store.tree_get(ROOT, Tree::Entries, b"right", &mut right)?;
                        Ok((found, left.clone(), right.clone()))
                    };
                    let (found, one, two) = store.read_stable(ROOT, pair).unwrap();
                    assert!(found);
                    assert_eq!(one, two);
                    last.clone_from(&one);
                }
            });
        }
    });
    assert!(store.session().icore(ROOT.0).version.look().is_some());
}

#[test]
fn threads_create_in_different_objects_at_once() {
    let store = memory_pool(64 << 20);
    const EACH: u32 = 400;
    let directories: Vec<ObjectId> = (0..4u8)
        .map(|n| {
            let _root = store.lock(ROOT).unwrap();
            let mut tx = store.begin().unwrap();
            let new = NewObject {
                mode: 0o040_755,
                nlink: 2,
                ..NewObject::default()
            };
            let id = tx.create(&new).unwrap();
            tx.tree_insert(ROOT, Tree::Entries, &[n], &[]).unwrap();
            tx.commit().unwrap();
            id
        })
        .collect();
    std::thread::scope(|scope| {
        for &dir in &directories {
            let store = &store;
            scope.spawn(move || {
                for n in 0..EACH {
                    let _guard = store.lock(dir).unwrap();
                    let mut tx = store.begin().unwrap();
                    let new = NewObject {
                        mode: 0o100_644,
                        nlink: 1,
                        ..NewObject::default()
                    };
                    let id = tx.create(&new).unwrap();
                    tx.tree_insert(dir, Tree::Entries, &n.to_be_bytes(), &id.0.to_le_bytes())
                        .unwrap();
                    tx.commit().unwrap();
                }
            });
        }
    });
    let mut seen = std::collections::HashSet::new();
    let mut value = Vec::new();
    for &dir in &directories {
        assert!(store.attrs(dir).unwrap().has_entries);
        for n in 0..EACH {
            assert!(
                store
                    .tree_get(dir, Tree::Entries, &n.to_be_bytes(), &mut value)
                    .unwrap()
            );
            assert!(
                seen.insert(value.clone()),
                "an object number was given out twice"
            );
        }
    }
    assert!(store.info().lanes >= 1);
}

#[test]
fn objects_are_created_beyond_one_metadata_block_and_reused() {
    let store = memory_pool(64 << 20);
    let new = NewObject {
        mode: 0o100_644,
        nlink: 1,
        ..NewObject::default()
    };
    let mut ids = Vec::new();
    for _ in 0..170 {
        let mut tx = store.begin().unwrap();
        ids.extend((0..100).map(|_| tx.create(&new).unwrap()));
        tx.commit().unwrap();
    }
    assert_eq!(store.info().metadata_blocks, 2);
    let first = store.attrs(ids[0]).unwrap();
    for &id in &ids {
        let _guard = store.lock(id).unwrap();
        let mut tx = store.begin().unwrap();
        tx.remove(id).unwrap();
        tx.commit().unwrap();
    }
    assert!(store.attrs(ids[0]).is_err());
    let mut tx = store.begin().unwrap();
    let mut again = Vec::new();
    // Numbers are used again when all others had their turn.
    for _ in 0..30_000 {
        again.push(tx.create(&new).unwrap());
        if again.len() % 100 == 0 {
            tx.commit().unwrap();
            tx = store.begin().unwrap();
        }
    }
    tx.commit().unwrap();
    assert_eq!(store.info().metadata_blocks, 2);
    let reused = store.attrs(ids[0]).unwrap();
    assert_eq!(reused.generation, first.generation + 1);
}
