//! Omaps that are cleared, and objects that are removed with theirs, give back all that they took.

use nacre_objects::{Pool, Transaction};
use nacre_store::check::check;
use nacre_testkit::pool::memory_pool;

const C: &[u8] = b"c";
const O: &[u8] = b"o";

/// Keys of all kinds, of several leaves: short and long ones, values that lie elsewhere.
fn fill(t: &mut Transaction<'_>, salt: u8) {
    t.touch(C, O).set_omap_header(C, O, vec![salt; 30]);
    for key in 0..2000u32 {
        t.set_omap(C, O, &key.to_be_bytes(), vec![salt; 100]);
    }
    for key in 0..3u8 {
        let long = [&[b'l'; 2500][..], &[key, salt]].concat();
        t.set_omap(C, O, &long, vec![salt; 20]);
        t.set_omap(C, O, &[b'v', key], vec![salt; 50_000]);
        t.set_omap(C, O, &[b'w', key], vec![salt; 20_000]);
    }
}

fn commit(pool: &Pool, fill: impl FnOnce(&mut Transaction<'_>)) {
    let mut t = Transaction::new();
    fill(&mut t);
    pool.commit(&t).unwrap();
}

/// What a change of a full omap leaves: its keys, and whether all other room is free.
fn leaves(change: impl FnOnce(&mut Transaction<'_>), keys: &[&[u8]]) {
    let pool = Pool::of(memory_pool(64 << 20));
    commit(&pool, |t| {
        t.create_collection(C).touch(C, O);
    });
    // Numbers and lanes are there afterwards.
    commit(&pool, |t| fill(t, 1));
    commit(&pool, |t| {
        t.remove(C, O).touch(C, O);
    });
    let free = pool.usage().free;
    commit(&pool, |t| fill(t, 2));
    assert!(pool.usage().free < free - (100 << 12));
    commit(&pool, change);
    let found = pool.omap_range(C, O, &[], 10).unwrap();
    let found: Vec<&[u8]> = found.iter().map(|(key, _)| &key[..]).collect();
    assert_eq!(found, keys);
    assert_eq!(pool.omap_header(C, O).unwrap(), b"");
    let report = check(pool.store(), &mut |_| ());
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    commit(&pool, |t| {
        t.remove(C, O).touch(C, O);
    });
    assert_eq!(pool.usage().free, free);
    pool.close().unwrap();
}

#[test]
fn nothing_is_left() {
    leaves(
        |t| {
            t.clear_omap(C, O);
        },
        &[],
    );
    leaves(
        |t| {
            t.clear_omap(C, O).clear_omap(C, O);
        },
        &[],
    );
    leaves(
        |t| {
            t.clear_omap(C, O).remove(C, O).touch(C, O);
        },
        &[],
    );
}

#[test]
fn what_is_set_behind_it_stays() {
    let change = |t: &mut Transaction<'_>| {
        t.clear_omap(C, O).set_omap(C, O, b"new", &b"value"[..]);
    };
    leaves(change, &[b"new"]);
}

#[test]
fn what_the_transaction_has_set_before_goes_too() {
    let change = |t: &mut Transaction<'_>| {
        t.set_omap(C, O, b"x", vec![3; 40_000]).clear_omap(C, O);
        t.set_omap(C, O, b"y", vec![3; 40_000]);
    };
    leaves(change, &[b"y"]);
    leaves(
        |t| {
            t.remove_omap(C, O, b"v\0").clear_omap(C, O);
        },
        &[],
    );
}

#[test]
fn what_fails_leaves_all() {
    let pool = Pool::of(memory_pool(64 << 20));
    commit(&pool, |t| {
        t.create_collection(C);
        fill(t, 1);
    });
    let (before, free) = (pool.omap_range(C, O, &[], 9999).unwrap(), pool.usage().free);
    let mut t = Transaction::new();
    t.clear_omap(C, O).create_collection(C);
    pool.commit(&t).unwrap_err();
    assert_eq!(pool.omap_range(C, O, &[], 9999).unwrap(), before);
    assert_eq!(pool.usage().free, free);
    let report = check(pool.store(), &mut |_| ());
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}
