//! Bytes of objects changed by transactions, against a model; records longer than a lane holds.

use nacre_store::check::check;
use nacre_store::{FileHead, NewObject, Store, StoreError, Tree};
use nacre_testkit::pool::{PRIVATE, memory_pool};
use nacre_testkit::random::Random;
use nacre_types::{FileOffset, ObjectId};

const ROOT: ObjectId = ObjectId::ROOT;
const MIB: usize = 1 << 20;

fn file() -> NewObject {
    NewObject {
        mode: 0o100_644,
        nlink: 1,
        ..NewObject::default()
    }
}

fn contents(store: &Store, id: ObjectId) -> Vec<u8> {
    let size = store.attrs(id).unwrap().size as usize;
    let mut bytes = vec![0; size];
    let sound = |_: &FileHead| Ok::<_, StoreError>(());
    let read = store.read_parts_checked(id, FileOffset(0), bytes.as_mut_slice().into(), sound);
    assert_eq!(read.unwrap().1, size);
    bytes
}

fn put(model: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if !bytes.is_empty() {
        model.resize(model.len().max(at + bytes.len()), 0);
        model[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// What the objects of a transaction shall hold; `None` where there is none.
type Model = Vec<Option<(ObjectId, Vec<u8>)>>;

fn step(dice: &mut Random, tx: &mut nacre_store::Tx<'_>, model: &mut Model) {
    let span = [600, 5000, 40_000, 3 * MIB as u64][dice.below(4) as usize];
    let slot = dice.below(model.len() as u64) as usize;
    let Some((id, bytes)) = &mut model[slot] else {
        let id = tx.create(&file()).unwrap();
        model[slot] = Some((id, Vec::new()));
        return;
    };
    let (at, len) = (dice.below(span) as usize, dice.below(span) as usize);
    match dice.below(8) {
        0 => {
            let (at, len) = (at / 1024 * 1024, 1024 * (1 + len % 4));
            let new = vec![1 + dice.below(255) as u8; len];
            tx.data_write(*id, at as u64, &new).unwrap();
            put(bytes, at, &new);
        }
        1..=2 => {
            let byte = 1 + dice.below(255) as u8;
            let new = vec![byte; len];
            tx.data_write(*id, at as u64, &new).unwrap();
            put(bytes, at, &new);
        }
        3 => {
            tx.data_zero(*id, at as u64, len as u64).unwrap();
            put(bytes, at, &vec![0; len]);
        }
        4 => {
            tx.data_truncate(*id, at as u64).unwrap();
            bytes.resize(at, 0);
        }
        5 => {
            let mut seen = vec![0; len];
            let read = tx.data_read(*id, at as u64, &mut seen).unwrap();
            assert_eq!(read, bytes.len().saturating_sub(at).min(len));
            assert!(read == 0 || seen[..read] == bytes[at..at + read]);
        }
        6 => {
            let to = at / 4096 * 4096;
            let from = dice.below(span) as usize / 4096 * 4096 + (at % 3 / 2) * 100;
            let (from_id, source) = (*id, bytes.clone());
            let other = dice.below(model.len() as u64) as usize;
            let Some((to_id, target)) = &mut model[other] else {
                return;
            };
            let done = tx.data_clone((from_id, from as u64), len as u64, (*to_id, to as u64));
            let part = source.get(from..).unwrap_or_default();
            let part = &part[..part.len().min(len)];
            assert_eq!(done.unwrap(), part.len() as u64);
            put(target, to, part);
        }
        _ if len % 4 == 0 => {
            tx.remove(*id).unwrap();
            model[slot] = None;
        }
        _ => {}
    }
}

fn play(seed: u64, rounds: u64) {
    let store = memory_pool(128 << 20);
    let mut dice = Random::new(seed, 0);
    let mut model: Model = vec![None; 4];
    for round in 0..rounds {
        let mut next = model.clone();
        let ids: Vec<_> = model.iter().flatten().map(|(id, _)| *id).collect();
        let guards = store.lock_many(&ids).unwrap();
        let mut tx = store.begin().unwrap();
        tx.allow_any_size();
        for _ in 0..1 + dice.below(6) {
            step(&mut dice, &mut tx, &mut next);
        }
        // What a transaction creates, it does not create and remove: that is for layers above to
        // avoid.
        if dice.below(5) == 0 {
            drop(tx);
        } else {
            tx.commit().unwrap();
            model = next;
        }
        drop(guards);
        for (id, bytes) in model.iter().flatten() {
            assert!(
                contents(&store, *id) == *bytes,
                "seed {seed}, round {round}"
            );
        }
        if round % 8 == 0 {
            sound(&store, &format!("seed {seed}, round {round}"));
        }
    }
    sound(&store, &format!("seed {seed}"));
    let store = Store::attach(store.abandon(), &PRIVATE).unwrap();
    assert_eq!(store.report().problems, 0);
    for (id, bytes) in model.iter().flatten() {
        assert!(contents(&store, *id) == *bytes, "seed {seed}, again");
    }
}

/// Nothing is wrong but that the objects have no names, and no unit is lost.
fn sound(store: &Store, what: &str) {
    let report = check(store, &mut |_| {});
    let wrong = report.problems.iter().map(|problem| problem.what.clone());
    let wrong: Vec<_> = wrong
        .filter(|what| what != "link count is 1, but 0 links were found")
        .collect();
    assert!(wrong.is_empty(), "{what}: {wrong:?}");
    assert_eq!(report.counts.leaked_units, 0, "{what}");
}

#[test]
fn bytes_changed_by_transactions_are_those_of_a_model() {
    for seed in 1..=12 {
        play(seed, 40);
    }
}

/// Each step looks at what is there: page by page, this would take hours, and copying holes all
/// memory.
#[test]
fn holes_of_any_length_are_zeroed_shared_and_copied() {
    const END: u64 = 1 << 47;
    let store = memory_pool(64 << 20);
    let mut tx = store.begin().unwrap();
    let ids = [(); 3].map(|()| tx.create(&file()).unwrap());
    let [a, b, c] = ids;
    tx.data_write(a, 5000, b"first").unwrap();
    tx.data_write(a, END, b"last").unwrap();
    tx.data_write(b, 1 << 40, b"hidden").unwrap();
    tx.commit().unwrap();
    let guards = store.lock_many(&ids).unwrap();
    let mut tx = store.begin().unwrap();
    let len = END + 4;
    assert_eq!(tx.data_clone((a, 0), len, (b, 0)).unwrap(), len);
    assert_eq!(tx.data_clone((a, 0), len, (c, 7)).unwrap(), len);
    // To behind itself and back, over what is there.
    assert_eq!(tx.data_clone((a, 0), len, (a, 9)).unwrap(), len);
    assert_eq!(tx.data_clone((a, 9), len, (a, 4096)).unwrap(), len);
    assert_eq!(tx.data_clone((a, 4096), len, (a, 1)).unwrap(), len);
    tx.data_zero(a, 6000, END - 7000).unwrap();
    let mut see = |id, at, len| {
        let mut bytes = vec![0; len];
        let read = tx.data_read(id, at, &mut bytes).unwrap();
        bytes.truncate(read);
        bytes
    };
    assert_eq!(see(b, 5000, 5), b"first");
    assert_eq!(see(b, 1 << 40, 6), [0; 6]);
    assert_eq!(see(b, END, 9), b"last");
    assert_eq!(see(c, 5006, 7), b"\0first\0");
    assert_eq!(see(c, END + 7, 9), b"last");
    assert_eq!(see(a, 5001, 5), b"first");
    assert_eq!(see(a, END, 5), b"\0last");
    tx.commit().unwrap();
    drop(guards);
    assert!(store.statfs().free_units > (40 << 20) / 4096);
    sound(&store, "holes");
}

#[test]
fn a_transaction_longer_than_a_record_is_whole() {
    let store = memory_pool(256 << 20);
    let guard = store.lock(ROOT).unwrap();
    let fill = |limit: bool| {
        let mut tx = store.begin().unwrap();
        if !limit {
            tx.allow_any_size();
        }
        for number in 0..8000u32 {
            let key = [b"user.".as_slice(), &number.to_be_bytes()].concat();
            tx.tree_insert(ROOT, Tree::Xattrs, &key, &[7; 200]).unwrap();
        }
        tx.commit().unwrap();
        let mut tx = store.begin().unwrap();
        if !limit {
            tx.allow_any_size();
        }
        for number in 0..8000u32 {
            let key = [b"user.".as_slice(), &number.to_be_bytes()].concat();
            tx.tree_insert(ROOT, Tree::Xattrs, &key, &[8; 200]).unwrap();
        }
        tx.commit()
    };
    assert!(matches!(fill(true), Err(StoreError::TooLarge { .. })));
    fill(false).unwrap();
    drop(guard);
    let mut value = Vec::new();
    let key = [b"user.".as_slice(), &7999u32.to_be_bytes()].concat();
    assert!(
        store
            .tree_get(ROOT, Tree::Xattrs, &key, &mut value)
            .unwrap()
    );
    assert_eq!(value, [8; 200]);
    let report = check(&store, &mut |_| {});
    assert_eq!((report.problems.len(), report.counts.leaked_units), (0, 0));
}

#[test]
fn a_transaction_goes_through_a_tree_in_order() {
    let store = memory_pool(64 << 20);
    let _guard = store.lock(ROOT).unwrap();
    let mut tx = store.begin().unwrap();
    let key = |number: u32| [b"user.".as_slice(), &number.to_be_bytes()].concat();
    for number in (0..900).step_by(3) {
        tx.tree_insert(ROOT, Tree::Xattrs, &key(number), &[1; 100])
            .unwrap();
    }
    tx.commit().unwrap();
    let mut tx = store.begin().unwrap();
    for number in (0..900).step_by(9) {
        tx.tree_remove(ROOT, Tree::Xattrs, &key(number)).unwrap();
        tx.tree_insert(ROOT, Tree::Xattrs, &key(number + 1), b"new")
            .unwrap();
    }
    let mut seen = Vec::new();
    let mut from = Vec::new();
    let mut value = Vec::new();
    while let Some(found) = tx.tree_next(ROOT, Tree::Xattrs, &from, &mut value).unwrap() {
        assert_eq!(value == b"new", value.len() == 3);
        from = [&found[..], &[0]].concat();
        seen.push(found);
    }
    let wanted: Vec<_> = (0..900)
        .filter(|n| n % 9 == 1 || n % 3 == 0 && n % 9 != 0)
        .map(key)
        .collect();
    assert_eq!(seen, wanted);
}
