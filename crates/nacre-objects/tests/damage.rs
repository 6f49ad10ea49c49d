//! Damaged pools with objects: nothing panics or hangs, repair makes them sound, and what was not
//! damaged is there.

use nacre_objects::{Error, Pool, Transaction};
use nacre_store::check::check;
use nacre_store::keyed::layout::{Item, Link, split_key};
use nacre_store::repair::repair;
use nacre_store::structure_index::{Part, Structure, reseal, survey};
use nacre_store::{Store, Tree};
use nacre_testkit::pool::{PRIVATE, memory_pool};
use nacre_testkit::random::Random;
use nacre_types::{ObjectId, StoreKind};
use nacre_volume::Volume;

fn name(number: u32) -> Vec<u8> {
    match number % 5 {
        0 => [vec![b'l'; 1500], number.to_be_bytes().to_vec()].concat(),
        _ => format!("object {number}").into_bytes(),
    }
}

fn filled() -> Pool {
    let pool = Pool::of(memory_pool(32 << 20));
    let mut t = Transaction::new();
    t.create_collection(b"one").create_collection(&[b'c'; 2500]);
    for number in 0..40 {
        let o = name(number);
        t.write(b"one", &o, 0, vec![number as u8; 9000]);
        t.set_attribute(b"one", &o, b"_", vec![3; 300]);
        t.set_omap(b"one", &o, &name(number), vec![4; 2000]);
        t.set_omap(b"one", &o, b"long", vec![5; 50_000]);
        t.touch(&[b'c'; 2500], &o);
    }
    pool.commit(&t).unwrap();
    let mut t = Transaction::new();
    for number in 0..40 {
        t.write(b"one", &name(number), 1024, vec![number as u8; 1024]);
    }
    pool.commit(&t).unwrap();
    pool
}

/// Looks at all there is; errors are fine.
fn look(pool: &Pool) -> usize {
    let mut seen = 0;
    for c in pool.collections(&[], 100).unwrap_or_default() {
        for o in pool.objects(&c, &[], 1000).unwrap_or_default() {
            let mut bytes = vec![0; 10_000];
            let _answers = (
                pool.stat(&c, &o).map(drop),
                pool.read(&c, &o, 0, &mut bytes).map(drop),
                pool.attributes(&c, &o).map(drop),
                pool.omap_range(&c, &o, &[], 100).map(drop),
                pool.omap_header(&c, &o).map(drop),
            );
            seen += 1;
        }
    }
    seen
}

/// Changes of the pool; errors are fine.
fn work(pool: &Pool) {
    for number in 0..8 {
        let mut t = Transaction::new();
        let o = name(number * 3);
        match number % 4 {
            0 => t.remove(b"one", &o),
            1 => t
                .clear_omap(b"one", &o)
                .write(b"one", &o, 100, vec![1; 100])
                .write(b"one", &o, 2048, vec![1; 1024]),
            2 => t.clone_object(b"one", &o, &name(number * 7)),
            _ => t.rename((b"one", &o), (b"one", b"new")),
        };
        let _any = pool.commit(&t);
    }
    let _any = pool.commit(Transaction::new().merge(b"one", &[b'c'; 2500]));
}

fn damage(volume: &Volume, part: &Part, dice: &mut Random) {
    let mut bytes = vec![0; part.len as usize];
    volume.read(part.at, &mut bytes);
    for _ in 0..1 + dice.below(3) {
        let at = dice.below(bytes.len() as u64) as usize;
        bytes[at] = match dice.below(3) {
            0 => bytes[at] ^ 1 << dice.below(8),
            1 => dice.below(256) as u8,
            _ => bytes[at].wrapping_add(1),
        };
    }
    // Sometimes by somebody who knows how to make checksums right.
    if dice.below(3) > 0 {
        reseal(part, &mut bytes, 0);
    }
    volume
        .fence(volume.write(part.at, &bytes, StoreKind::Metadata))
        .unwrap();
}

fn round(seed: u64) -> usize {
    let mut dice = Random::new(seed, 0);
    let pool = filled();
    let parts: Vec<Part> = survey(pool.store())
        .into_iter()
        .filter(|part| {
            matches!(
                part.what,
                Structure::Onode
                    | Structure::TreeNode(..)
                    | Structure::Value
                    | Structure::MapNode(..)
                    | Structure::PartsNode(..)
            )
        })
        .collect();
    let all = look(&pool);
    let volume = pool.into_store().abandon();
    for _ in 0..1 + dice.below(3) {
        let part = &parts[dice.below(parts.len() as u64) as usize];
        damage(&volume, part, &mut dice);
    }
    let what = format!("seed {seed}");
    let volume = match Store::attach(volume, &PRIVATE) {
        Ok(store) => {
            let pool = Pool::of(store);
            look(&pool);
            if dice.below(2) == 0 {
                work(&pool);
                look(&pool);
            }
            pool.into_store().abandon()
        }
        Err(error) => panic!("{what}: {error}"),
    };
    let (_, volume) = repair(volume, false, &mut |_| {}).unwrap();
    let pool = Pool::of(Store::attach(volume, &PRIVATE).unwrap());
    let report = check(pool.store(), &mut |_| {});
    assert!(report.problems.is_empty(), "{what}: {:?}", report.problems);
    let left = look(&pool);
    work(&pool);
    let report = check(pool.store(), &mut |_| {});
    assert!(report.problems.is_empty(), "{what}: {:?}", report.problems);
    let mut t = Transaction::new();
    t.create_collection(&seed.to_be_bytes())
        .write(&seed.to_be_bytes(), b"o", 0, vec![1; 5000]);
    pool.commit(&t).unwrap();
    all.saturating_sub(left)
}

#[test]
fn damaged_pools_are_repaired() {
    let lost: usize = (1..=60).map(round).sum();
    // One damaged leaf holds a dozen names at most.
    assert!(lost < 60 * 12, "{lost}");
}

#[test]
fn a_page_that_lost_its_first_unit_reads_as_zeros_once_it_is_repaired() {
    let pool = filled();
    let parts = survey(pool.store());
    let second = parts
        .iter()
        .rfind(|part| matches!(part.what, Structure::PartsNode(..)))
        .unwrap();
    let first = parts
        .iter()
        .find(|part| matches!(part.what, Structure::MapNode(..)) && part.object == second.object)
        .unwrap();
    let volume = pool.into_store().abandon();
    let word = volume.write(first.at, &[0; 8], StoreKind::Metadata);
    volume.fence(word).unwrap();
    let store = Store::attach(volume, &PRIVATE).unwrap();
    let mut problems = check(&store, &mut |_| {}).problems.into_iter();
    assert!(problems.any(|problem| problem.what == "page with a second unit, but no first"));
    let (_, volume) = repair(store.abandon(), false, &mut |_| {}).unwrap();
    let pool = Pool::of(Store::attach(volume, &PRIVATE).unwrap());
    assert!(check(pool.store(), &mut |_| {}).problems.is_empty());
    let lost = |number: &u32| {
        let mut bytes = vec![9; 4096];
        pool.read(b"one", &name(*number), 0, &mut bytes).unwrap();
        bytes == [0; 4096]
    };
    // The contents of the first object are zeros anyway.
    assert_eq!((1..40).filter(lost).count(), 1);
}

/// What the entry tree of an onode has for a key.
fn entry(store: &Store, of: ObjectId, key: &[u8]) -> Link {
    let mut item = Vec::new();
    assert!(store.tree_get(of, Tree::Entries, key, &mut item).unwrap());
    match Item::decode(&item) {
        Some(Item::Link(link)) => link,
        other => panic!("{other:?}"),
    }
}

/// Whose number is nowhere too large, and whose checksums are right.
#[test]
fn a_layer_that_names_itself_is_told() {
    let pool = Pool::of(memory_pool(32 << 20));
    let key = [b'k'; 1500];
    let mut t = Transaction::new();
    t.create_collection(b"c").touch(b"c", b"o");
    t.set_omap(b"c", b"o", &key, vec![4; 20]);
    pool.commit(&t).unwrap();
    let store = pool.store();
    let mut bytes = [0; nacre_store::INLINE_MAX];
    let len = store.inline(ObjectId::ROOT, &mut bytes).unwrap();
    let registry = Link::decode_registry(&bytes[..len]).unwrap();
    let collection = entry(store, registry.object, b"c");
    let object = entry(store, collection.object, b"o");
    let (part, _) = split_key(&key);
    let layer = entry(store, object.object, &part);
    let mut tx = store.begin().unwrap();
    let guard = store.lock(layer.object).unwrap();
    tx.tree_put(layer.object, Tree::Entries, &part, &layer.encode(), &mut [])
        .unwrap();
    tx.commit().unwrap();
    drop(guard);

    let damaged = |done: nacre_objects::Result<()>| {
        let error = done.unwrap_err();
        assert!(matches!(error.cause(), Error::Damaged(_)), "{error}");
    };
    damaged(pool.omap_range(b"c", b"o", &[], 100).map(drop));
    damaged(pool.commit(Transaction::new().clear_omap(b"c", b"o")));
    damaged(pool.commit(Transaction::new().clone_object(b"c", b"o", b"p")));
    damaged(pool.commit(Transaction::new().remove(b"c", b"o")));
}
