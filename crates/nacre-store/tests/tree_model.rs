//! The ordered tree against `BTreeMap`, through transactions.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nacre_store::structure_index::{Structure, survey};
use nacre_store::{Store, Tree};
use nacre_testkit::pool::memory_pool;
use nacre_types::ObjectId;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop, prop_oneof, proptest};

const ROOT: ObjectId = ObjectId::ROOT;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn pool(bytes: u64) -> Store {
    let store = memory_pool(bytes);
    // Nodes move at every other change.
    store.set_levelling(512);
    store
}

#[derive(Clone, Debug)]
enum TreeStep {
    Insert(Vec<u8>, Vec<u8>),
    /// So many keys in order behind the last one of their kind, before others.
    Grow(u16, usize),
    Remove(Vec<u8>),
    RemoveRange(Vec<u8>, usize),
    Get(Vec<u8>),
}

#[derive(Clone, Debug)]
struct Batch {
    steps: Vec<TreeStep>,
    commit: bool,
    /// As transactions on objects do.
    places_entries: bool,
    scan_from: Vec<u8>,
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => (0u16..400).prop_map(|n| n.to_be_bytes().to_vec()),
        4 => (0u16..300).prop_map(|n| [&[7; 8][..], &n.to_be_bytes()].concat()),
        2 => prop::collection::vec(0u8..3, 0..12),
        1 => (0u8..40, 1usize..1024).prop_map(|(n, len)| vec![n; len]),
    ]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    let len =
        prop_oneof![8 => 0usize..40, 3 => 0usize..1400, 1 => 1400usize..20_000, 1 => Just(65_536)];
    (len, any::<u8>()).prop_map(|(len, byte)| vec![byte; len])
}

fn step() -> impl Strategy<Value = TreeStep> {
    prop_oneof![
        10 => (key(), value()).prop_map(|(k, v)| TreeStep::Insert(k, v)),
        2 => (1u16..12, 0usize..600).prop_map(|(n, len)| TreeStep::Grow(n, len)),
        4 => key().prop_map(TreeStep::Remove),
        1 => (key(), 1usize..60).prop_map(|(k, n)| TreeStep::RemoveRange(k, n)),
        3 => key().prop_map(TreeStep::Get),
    ]
}

fn batch() -> impl Strategy<Value = Batch> {
    (
        prop::collection::vec(step(), 1..12),
        prop::bool::weighted(0.8),
        any::<bool>(),
        key(),
    )
        .prop_map(|(steps, commit, places_entries, scan_from)| Batch {
            steps,
            commit,
            places_entries,
            scan_from,
        })
}

/// Keys that come in order; others come behind them.
fn grown(number: u16) -> Vec<u8> {
    [&[7; 7][..], &[6], &number.to_be_bytes()].concat()
}

fn scan(store: &Store, from: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut seen = Vec::new();
    let mut visit = |key: &[u8], value: &[u8], _: Option<&[u8]>| {
        seen.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    };
    store
        .tree_scan(ROOT, Tree::Entries, from, &mut visit)
        .unwrap();
    seen
}

fn run(store: &Store, model: &mut Model, batch: &Batch) {
    let _guard = store.lock(ROOT).unwrap();
    let mut tx = store.begin().unwrap();
    if batch.places_entries {
        tx.place_entries();
    }
    let mut working = model.clone();
    for step in &batch.steps {
        match step {
            TreeStep::Insert(key, value) => {
                let new = tx.tree_insert(ROOT, Tree::Entries, key, value).unwrap();
                assert_eq!(new, working.insert(key.clone(), value.clone()).is_none());
            }
            TreeStep::Grow(count, len) => {
                let last = working.range(grown(0)..=grown(u16::MAX)).next_back();
                let from = last.map_or(0, |(key, _)| u16::from_be_bytes([key[8], key[9]]) + 1);
                for key in (from..from + count).map(grown) {
                    let value = vec![*count as u8; *len];
                    assert!(tx.tree_insert(ROOT, Tree::Entries, &key, &value).unwrap());
                    working.insert(key, value);
                }
            }
            TreeStep::Remove(key) => {
                let there = tx.tree_remove(ROOT, Tree::Entries, key).unwrap();
                assert_eq!(there, working.remove(key).is_some());
            }
            TreeStep::RemoveRange(from, count) => {
                let keys: Vec<_> = working
                    .range(from.clone()..)
                    .take(*count)
                    .map(|(k, _)| k.clone())
                    .collect();
                for key in keys {
                    assert!(tx.tree_remove(ROOT, Tree::Entries, &key).unwrap());
                    working.remove(&key);
                }
            }
            TreeStep::Get(key) => {
                let mut value = Vec::new();
                let there = tx.tree_get(ROOT, Tree::Entries, key, &mut value).unwrap();
                assert_eq!(there.then_some(&value), working.get(key));
            }
        }
    }
    assert_eq!(tx.attrs(ROOT).unwrap().has_entries, !working.is_empty());
    if batch.commit {
        tx.commit().unwrap();
        *model = working;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_tree_behaves_like_an_ordered_map(batches in prop::collection::vec(batch(), 1..60)) {
        let store = pool(48 << 20);
        let free = store.statfs().free_units;
        let mut model = Model::new();
        for batch in &batches {
            run(&store, &mut model, batch);
            let expected: Vec<_> =
                model.range(batch.scan_from.clone()..).map(|(k, v)| (k.clone(), v.clone())).collect();
            assert_eq!(scan(&store, &batch.scan_from), expected);
        }
        let expected: Vec<_> = model.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        assert_eq!(scan(&store, &[]), expected);
        let all = Batch {
            steps: vec![TreeStep::RemoveRange(Vec::new(), usize::MAX)],
            commit: true,
            places_entries: false,
            scan_from: Vec::new(),
        };
        run(&store, &mut model, &all);
        assert_eq!(scan(&store, &[]), []);
        assert_eq!(store.statfs().free_units, free, "an empty tree owns no unit");
    }
}

#[test]
fn canary_a_model_that_forgets_a_removal_is_noticed() {
    let store = pool(48 << 20);
    let mut model = Model::new();
    let batch = |steps| Batch {
        steps,
        commit: true,
        places_entries: false,
        scan_from: Vec::new(),
    };
    let there = batch(vec![TreeStep::Insert(b"key".to_vec(), b"value".to_vec())]);
    run(&store, &mut model, &there);
    run(
        &store,
        &mut Model::clone(&model),
        &batch(vec![TreeStep::Remove(b"key".to_vec())]),
    );
    let get = batch(vec![TreeStep::Get(b"key".to_vec())]);
    let noticed = catch_unwind(AssertUnwindSafe(|| run(&store, &mut model, &get)));
    assert!(noticed.is_err() && scan(&store, &[]) != [(b"key".to_vec(), b"value".to_vec())]);
}

/// Inserts each key in a transaction of its own, like one on objects.
fn place(store: &Store, keys: impl Iterator<Item = Vec<u8>>, len: usize) {
    for key in keys {
        let _guard = store.lock(ROOT).unwrap();
        let mut tx = store.begin().unwrap();
        tx.place_entries();
        assert!(
            tx.tree_insert(ROOT, Tree::Entries, &key, &vec![1; len])
                .unwrap()
        );
        tx.commit().unwrap();
    }
}

fn leaves(store: &Store) -> usize {
    let is_leaf = |what| matches!(what, Structure::TreeNode(Tree::Entries, 0));
    survey(store)
        .iter()
        .filter(|part| is_leaf(part.what))
        .count()
}

#[test]
fn leaves_are_full_of_keys_that_come_in_order_before_others() {
    let store = memory_pool(48 << 20);
    place(&store, (0..6).map(|n| vec![9, n]), 200);
    place(&store, (0..600).map(grown), 234);
    // Fifteen in a leaf, and what was there before.
    let found = leaves(&store);
    assert!(found <= 600 / 15 + 3, "{found}");
    assert_eq!(scan(&store, &[]).len(), 606);
}

#[test]
fn a_key_like_those_behind_a_leaf_that_is_cut_is_found() {
    let store = memory_pool(48 << 20);
    let behind = |n: u16| [&[7; 8][..], &n.to_be_bytes()].concat();
    place(&store, (100..106).map(behind), 200);
    // As many as fit, then one more, which has more in common with those behind.
    place(&store, (0..10).map(grown), 234);
    assert_eq!(leaves(&store), 1);
    place(&store, (0..3).map(behind), 234);
    assert_eq!(leaves(&store), 2);
    let keys: Vec<_> = scan(&store, &[]).into_iter().map(|(key, _)| key).collect();
    let all = (0..10).map(grown).chain((0..3).chain(100..106).map(behind));
    assert_eq!(keys, all.collect::<Vec<_>>());
    let mut value = Vec::new();
    for key in keys {
        assert!(
            store
                .tree_get(ROOT, Tree::Entries, &key, &mut value)
                .unwrap()
        );
    }
}

#[test]
fn a_large_tree_stays_shallow_and_complete() {
    let store = pool(256 << 20);
    const KEYS: u64 = 60_000;
    let key = |n: u64| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 2).to_be_bytes();
    for n in 0..KEYS {
        let _guard = store.lock(ROOT).unwrap();
        let mut tx = store.begin().unwrap();
        assert!(
            tx.tree_insert(ROOT, Tree::Entries, &key(n), &n.to_le_bytes())
                .unwrap()
        );
        tx.commit().unwrap();
    }
    assert!(store.attrs(ROOT).unwrap().has_entries);
    let mut value = Vec::new();
    for n in 0..KEYS {
        assert!(
            store
                .tree_get(ROOT, Tree::Entries, &key(n), &mut value)
                .unwrap()
        );
        assert_eq!(value, n.to_le_bytes());
    }
    assert_eq!(scan(&store, &[]).len() as u64, KEYS);
    assert!(
        !store
            .tree_get(ROOT, Tree::Entries, b"missing", &mut value)
            .unwrap()
    );
    let used = store.statfs();
    let nodes = KEYS * 40 / 4096;
    assert!(
        used.units - used.free_units < nodes * 4 + 4096,
        "nodes are reasonably full"
    );
}

#[test]
fn keys_and_values_over_the_limit_are_refused() {
    let store = pool(32 << 20);
    let _guard = store.lock(ROOT).unwrap();
    let mut tx = store.begin().unwrap();
    assert!(
        tx.tree_insert(ROOT, Tree::Entries, &[1; 1025], &[])
            .is_err()
    );
    assert!(
        tx.tree_insert(ROOT, Tree::Entries, &[1; 1024], &[0; 65_537])
            .is_err()
    );
    assert!(
        tx.tree_insert(ROOT, Tree::Entries, &[1; 1024], &[0; 65_536])
            .unwrap()
    );
}
