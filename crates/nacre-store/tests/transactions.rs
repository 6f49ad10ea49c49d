//! Transactions over several objects, aborts, a full pool.

use std::sync::atomic::Ordering;

use nacre_store::{INLINE_MAX, NewObject, StoreError, Tree};
use nacre_testkit::pool::memory_pool;
use nacre_types::ObjectId;

const ROOT: ObjectId = ObjectId::ROOT;

fn regular(time: i64) -> NewObject {
    NewObject {
        mode: 0o100_644,
        uid: 7,
        gid: 8,
        nlink: 1,
        time,
        ..NewObject::default()
    }
}

#[test]
fn a_transaction_sees_its_own_changes_and_others_only_after_the_commit() {
    let store = memory_pool(32 << 20);
    let _root = store.lock(ROOT).unwrap();
    let mut tx = store.begin().unwrap();
    let a = tx.create(&regular(5)).unwrap();
    let b = tx.create(&regular(6)).unwrap();
    tx.set_attrs(a, |attrs| attrs.uid = 99).unwrap();
    tx.tree_insert(b, Tree::Xattrs, b"user.k", b"v").unwrap();
    tx.set_inline(b, b"target").unwrap();
    tx.set_attrs(ROOT, |attrs| attrs.nlink = 17).unwrap();
    assert_eq!(tx.attrs(a).unwrap().uid, 99);
    assert_eq!(tx.attrs(b).unwrap().xattrs, 1);
    assert!(matches!(store.attrs(a), Err(StoreError::NoSuchObject(_))));
    assert_eq!(store.attrs(ROOT).unwrap().nlink, 2);
    tx.commit().unwrap();
    let attrs = store.attrs(a).unwrap();
    assert_eq!(
        (attrs.uid, attrs.gid, attrs.mtime, attrs.btime),
        (99, 8, 5, 5)
    );
    assert_eq!(store.attrs(ROOT).unwrap().nlink, 17);
    let mut value = Vec::new();
    assert!(
        store
            .tree_get(b, Tree::Xattrs, b"user.k", &mut value)
            .unwrap()
    );
    let mut inline = [0; INLINE_MAX];
    let len = store.inline(b, &mut inline).unwrap();
    assert_eq!((&value[..], &inline[..len]), (&b"v"[..], &b"target"[..]));
}

#[test]
fn values_and_generations_are_read_without_allocating() {
    let store = memory_pool(32 << 20);
    let _root = store.lock(ROOT).unwrap();
    let mut tx = store.begin().unwrap();
    tx.tree_insert(ROOT, Tree::Entries, b"short", b"value")
        .unwrap();
    tx.tree_insert(ROOT, Tree::Entries, b"long", &[3; 9000])
        .unwrap();
    tx.commit().unwrap();
    let mut buffer = [0; 8];
    let get = |key: &[u8], buffer: &mut [u8; 8]| {
        let found = store.tree_get_into(ROOT, Tree::Entries, key, buffer);
        found.unwrap()
    };
    assert_eq!(get(b"short", &mut buffer), Some(5));
    assert_eq!(&buffer[..5], b"value");
    assert_eq!(get(b"long", &mut buffer), Some(9000));
    assert_eq!(buffer, [3; 8]);
    assert_eq!(get(b"none", &mut buffer), None);
    assert_eq!(store.generation(ROOT).unwrap(), 1);
    assert!(store.generation(ObjectId(9)).is_err());
}

#[test]
fn a_dropped_transaction_leaves_no_trace() {
    let store = memory_pool(32 << 20);
    let before = (store.statfs(), store.attrs(ROOT).unwrap());
    {
        let _root = store.lock(ROOT).unwrap();
        let mut tx = store.begin().unwrap();
        let id = tx.create(&regular(1)).unwrap();
        tx.tree_insert(ROOT, Tree::Entries, b"name", &[1; 5000])
            .unwrap();
        tx.set_attrs(ROOT, |attrs| attrs.mtime = 1).unwrap();
        drop(tx);
        assert!(store.attrs(id).is_err());
        assert!(
            store.try_lock(id).unwrap().is_some(),
            "its lock is free again"
        );
    }
    let after = (store.statfs(), store.attrs(ROOT).unwrap());
    assert_eq!(before.0.free_units, after.0.free_units);
    assert_eq!(before.0.free_objects, after.0.free_objects);
    assert_eq!(before.1, after.1);
}

#[test]
fn a_full_pool_refuses_and_gives_everything_back() {
    let store = memory_pool(16 << 20);
    let free = store.statfs().free_units;
    let mut kept = 0u32;
    let error = loop {
        let _root = store.lock(ROOT).unwrap();
        let mut tx = store.begin().unwrap();
        let done = tx.tree_insert(ROOT, Tree::Entries, &kept.to_be_bytes(), &[1; 50_000]);
        if let Err(error) = done.and_then(|_| tx.commit()) {
            break error;
        }
        kept += 1;
    };
    assert!(matches!(error, StoreError::NoSpace), "{error}");
    assert_eq!(store.attrs(ROOT).unwrap().has_entries, kept > 0);
    for n in 0..kept {
        let _root = store.lock(ROOT).unwrap();
        let mut tx = store.begin().unwrap();
        assert!(
            tx.tree_remove(ROOT, Tree::Entries, &n.to_be_bytes())
                .unwrap()
        );
        tx.commit().unwrap();
    }
    assert_eq!(store.statfs().free_units, free);
}

#[test]
fn wrong_arguments_are_refused() {
    let store = memory_pool(16 << 20);
    let mut tx = store.begin().unwrap();
    assert!(
        tx.create(&NewObject::default()).is_err(),
        "mode 0 means free"
    );
    let id = tx.create(&regular(0)).unwrap();
    assert!(tx.set_inline(id, &[0; INLINE_MAX + 1]).is_err());
    assert!(tx.set_attrs(id, |attrs| attrs.mode = 0).is_err());
    assert!(matches!(
        store.attrs(ObjectId(0)),
        Err(StoreError::NoSuchObject(_))
    ));
    assert!(matches!(
        store.attrs(ObjectId(u64::MAX)),
        Err(StoreError::NoSuchObject(_))
    ));
    assert!(store.lock(ObjectId(1 << 40)).is_err());
}

#[test]
fn what_is_put_where_the_same_transaction_removed_an_entry_stays() {
    let store = memory_pool(32 << 20);
    let _root = store.lock(ROOT).unwrap();
    let insert = |keys: &[&[u8]], removed: Option<&[u8]>, byte: u8| {
        let mut tx = store.begin().unwrap();
        if let Some(key) = removed {
            assert!(tx.tree_remove(ROOT, Tree::Entries, key).unwrap());
        }
        for key in keys {
            let value = [byte; 26];
            tx.tree_insert(ROOT, Tree::Entries, key, &value).unwrap();
        }
        tx.commit().unwrap();
    };
    insert(&[b"first", b"second", b"lowest"], None, 1);
    // The last one replaces a value, for which the whole node is needed.
    insert(&[b"new", b"newer", b"first"], Some(b"lowest"), 2);
    let mut value = Vec::new();
    for (key, byte) in [
        (&b"first"[..], 2),
        (b"second", 1),
        (b"new", 2),
        (b"newer", 2),
    ] {
        let found = store
            .tree_get(ROOT, Tree::Entries, key, &mut value)
            .unwrap();
        assert!(found && value == [byte; 26], "{key:?} {value:?}");
    }
}

/// Several changes of one leaf, and of two, by one transaction: first ones that need no copy of the
/// leaf, then others.
#[test]
fn changes_of_one_leaf_in_one_transaction_add_up() {
    let store = memory_pool(32 << 20);
    let root = store.lock(ROOT).unwrap();
    let key = |n: usize| format!("key-{:03}", n * 37 % 200);
    let mut model = std::collections::BTreeMap::new();
    let mut value = Vec::new();
    for round in 0..120 {
        let mut tx = store.begin().unwrap();
        for change in 0..1 + round % 4 {
            let name = key(round * 5 + change * 3);
            let bytes = vec![round as u8; 1 + round % 60];
            let known = model.contains_key(&name);
            if change % 2 == 1 || round % 7 == 6 {
                let removed = tx.tree_remove(ROOT, Tree::Xattrs, name.as_bytes());
                assert_eq!(removed.unwrap(), known);
                model.remove(&name);
            } else {
                let new = tx.tree_insert(ROOT, Tree::Xattrs, name.as_bytes(), &bytes);
                assert_eq!(new.unwrap(), !known);
                model.insert(name.clone(), bytes);
            }
            if round % 3 == 0 {
                let found = tx.tree_get(ROOT, Tree::Xattrs, name.as_bytes(), &mut value);
                assert_eq!(found.unwrap().then_some(&value), model.get(&name));
            }
        }
        tx.commit().unwrap();
        let mut seen = std::collections::BTreeMap::new();
        store
            .tree_scan(ROOT, Tree::Xattrs, b"", &mut |key, value, _| {
                seen.insert(String::from_utf8(key.to_vec()).unwrap(), value.to_vec());
                std::ops::ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(seen, model, "round {round}");
    }
    drop(root);
    let report = nacre_store::check::check(&store, &mut |_| {});
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

/// One entry comes and one goes in a leaf, at all places of each, without a copy of the leaf or
/// with one.
#[test]
fn an_entry_that_comes_while_another_goes_takes_its_place_in_the_order() {
    let store = memory_pool(32 << 20);
    let root = store.lock(ROOT).unwrap();
    let key = |n: usize| format!("key-{n:03}").into_bytes();
    let keys = || {
        let mut keys = Vec::new();
        store
            .tree_scan(ROOT, Tree::Xattrs, b"", &mut |key, value, _| {
                assert_eq!(value, &key[4..]);
                keys.push(key.to_vec());
                std::ops::ControlFlow::Continue(())
            })
            .unwrap();
        keys
    };
    let change = |come: &[u8], gone: &[u8], settled: bool| {
        let mut tx = store.begin().unwrap();
        assert!(
            tx.tree_insert(ROOT, Tree::Xattrs, come, &come[4..])
                .unwrap()
        );
        assert!(tx.tree_remove(ROOT, Tree::Xattrs, gone).unwrap());
        let mut value = Vec::new();
        if settled {
            assert!(
                !tx.tree_get(ROOT, Tree::Xattrs, gone, &mut value).unwrap()
                    && tx.tree_get(ROOT, Tree::Xattrs, come, &mut value).unwrap()
            );
        }
        tx.commit().unwrap();
    };
    const ENTRIES: usize = 40;
    let mut expected: Vec<Vec<u8>> = (0..ENTRIES).map(|n| key(2 * n + 1)).collect();
    for key in &expected {
        let mut tx = store.begin().unwrap();
        tx.tree_insert(ROOT, Tree::Xattrs, key, &key[4..]).unwrap();
        tx.commit().unwrap();
    }
    for come in 0..=ENTRIES {
        for gone in 0..ENTRIES {
            let (new, old) = (key(2 * come), expected[gone].clone());
            let settled = (come + gone) % 5 == 0;
            change(&new, &old, settled);
            expected[gone] = new.clone();
            expected.sort();
            assert_eq!(keys(), expected, "{come} {gone}");
            change(&old, &new, !settled);
            let back = expected.iter().position(|key| *key == new).unwrap();
            expected[back] = old;
            expected.sort();
        }
    }
    assert_eq!(keys(), expected);
    drop(root);
    let report = nacre_store::check::check(&store, &mut |_| {});
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

#[test]
fn only_a_change_of_attributes_makes_a_directorys_names_unknown() {
    let store = memory_pool(32 << 20);
    let root = store.lock(ROOT).unwrap();
    let attribute_epoch = || root.icore().attribute_epoch.load(Ordering::Relaxed);
    let change = |change: &dyn Fn(&mut nacre_store::Attrs)| {
        let before = attribute_epoch();
        let mut tx = store.begin().unwrap();
        tx.set_attrs(ROOT, |attrs| change(attrs)).unwrap();
        tx.commit().unwrap();
        attribute_epoch() != before
    };
    assert!(!change(&|attrs| attrs.nlink += 1));
    assert!(!change(&|attrs| attrs.mtime += 1));
    assert!(change(&|attrs| attrs.mode ^= 0o010));
    assert!(change(&|attrs| attrs.uid += 1));
    assert!(change(&|attrs| attrs.gid += 1));
}
