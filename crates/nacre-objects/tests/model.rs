//! Random transactions against a model in memory, with look-ups of all kinds, crashes of the
//! process, damage of one copy, and check.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};

use nacre_objects::{Error, HashBits, KEY_MAX, OpenOptions, Pool, Transaction};
use nacre_store::Store;
use nacre_store::check::check;
use nacre_store::scrub::{Doubtful, scrub};
use nacre_store::structure_index::{Part, Structure, survey};
use nacre_testkit::damage::{NAMES, are_alike, wreck};
use nacre_testkit::pool::{PRIVATE, PoolChoice, PoolFiles, memory_pool};
use nacre_testkit::random::Random;

#[derive(Clone, Debug, Default, PartialEq)]
struct Object {
    bytes: Vec<u8>,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    omap: BTreeMap<Vec<u8>, Vec<u8>>,
    header: Vec<u8>,
}

type Collection = BTreeMap<Vec<u8>, Object>;
type Model = BTreeMap<Vec<u8>, Collection>;

fn pool(bytes: u64) -> Pool {
    Pool::of(memory_pool(bytes))
}

struct Dice(Random);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0.below(n)
    }

    fn len(&mut self) -> usize {
        let most = [20, 600, 5000, 40_000, 300_000][self.below(5) as usize];
        self.below(most) as usize
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        vec![1 + self.below(255) as u8; len]
    }

    /// A key of few, some long with common beginnings.
    fn key(&mut self) -> Vec<u8> {
        let number = self.below(6) as u8;
        match self.below(4) {
            0 => [vec![b'k'; 1000], vec![number]].concat(),
            1 => [vec![b'k'; 1000 + 600 * number as usize], vec![number]].concat(),
            2 => vec![b'k'; 999 + number as usize],
            _ => vec![b'a' + number],
        }
    }

    fn collection(&mut self) -> Vec<u8> {
        match self.below(8) {
            0 => vec![b'c'; 3000],
            n => vec![b'A' + (n % 3) as u8],
        }
    }
}

fn put(bytes: &mut Vec<u8>, at: usize, new: &[u8]) {
    if !new.is_empty() {
        bytes.resize(bytes.len().max(at + new.len()), 0);
        bytes[at..at + new.len()].copy_from_slice(new);
    }
}

/// Adds an operation; does it to the model; whether it is to be refused.
fn step(dice: &mut Dice, t: &mut Transaction<'_>, model: &mut Model) -> bool {
    let (c, o) = (dice.collection(), dice.key());
    let known = model.contains_key(&c);
    match dice.below(if model.len() < 2 { 3 } else { 60 }) {
        0 => {
            t.create_collection(&c);
            model.entry(c).or_default();
            return known;
        }
        1 => {
            t.remove_collection(&c);
            return model.get(&c).is_none_or(|c| !c.is_empty()) || model.remove(&c).is_none();
        }
        2 => return step_collections(dice, t, model, &c),
        _ if !known => return false,
        _ => {}
    }
    let objects = model.get_mut(&c).unwrap();
    let there = objects.contains_key(&o);
    let (mut at, mut len) = (dice.len(), dice.len());
    // Whole parts of pages get places of their own.
    if dice.below(3) == 0 {
        (at, len) = (at / 1024 * 1024, 1024 * (1 + len % 4));
    }
    match dice.below(20) {
        0 => {
            t.create(&c, &o);
            objects.entry(o).or_default();
            return there;
        }
        1 => {
            t.touch(&c, &o);
            objects.entry(o).or_default();
            return false;
        }
        2..=4 => {
            let bytes = dice.bytes(len);
            t.write(&c, &o, at as u64, bytes.clone());
            put(&mut objects.entry(o).or_default().bytes, at, &bytes);
            return false;
        }
        5 => {
            t.zero(&c, &o, at as u64, len as u64);
            put(&mut objects.entry(o).or_default().bytes, at, &vec![0; len]);
            return false;
        }
        _ => {}
    }
    if !there && dice.below(20) > 0 {
        return false;
    }
    let other = dice.key();
    let mut none = Object::default();
    let object = objects.get_mut(&o).unwrap_or(&mut none);
    match dice.below(13) {
        0 => {
            t.truncate(&c, &o, at as u64);
            object.bytes.resize(at, 0);
        }
        1 => {
            t.remove(&c, &o);
            objects.remove(&o);
        }
        2 => {
            let (name, value) = (other[..1].to_vec(), dice.bytes(len));
            t.set_attribute(&c, &o, &name, value.clone());
            object.attributes.insert(name, value);
        }
        3 => {
            t.remove_attribute(&c, &o, &other[..1]);
            object.attributes.remove(&other[..1]);
        }
        4 => {
            t.remove_attributes(&c, &o);
            object.attributes.clear();
        }
        5..=7 => {
            let value = dice.bytes(len);
            t.set_omap(&c, &o, &other, value.clone());
            object.omap.insert(other, value);
        }
        8 => {
            t.remove_omap(&c, &o, &other);
            object.omap.remove(&other);
        }
        9 => {
            let to = dice.key();
            t.remove_omap_range(&c, &o, &other, &to);
            object.omap.retain(|key, _| *key < other || *key >= to);
        }
        10 => {
            t.clear_omap(&c, &o);
            object.omap.clear();
            object.header.clear();
        }
        11 => {
            let header = dice.bytes(len);
            t.set_omap_header(&c, &o, header.clone());
            object.header = header;
        }
        _ => return step_two(dice, t, model, (&c, &o)) || !there,
    }
    if !there && dice.below(2) == 0 {
        t.if_exists();
        return false;
    }
    !there
}

/// Operations on two objects.
fn step_two(
    dice: &mut Dice,
    t: &mut Transaction<'_>,
    model: &mut Model,
    (c, o): (&[u8], &[u8]),
) -> bool {
    let other = dice.key();
    let Some(object) = model[c].get(o).cloned() else {
        t.remove(c, o);
        return true;
    };
    match dice.below(3) {
        0 => {
            t.clone_object(c, o, &other);
            model.get_mut(c).unwrap().insert(other, object);
            false
        }
        1 => {
            let (from, len) = (dice.len() / 4096 * 4096, dice.len());
            let to = dice.len() / 4096 * 4096;
            t.clone_range(c, o, from as u64..(from + len) as u64, &other, to as u64);
            let part = object.bytes.get(from..).unwrap_or_default();
            let part = &part[..part.len().min(len)];
            let target = model.get_mut(c).unwrap().entry(other).or_default();
            put(&mut target.bytes, to, part);
            false
        }
        _ => {
            let to = dice.collection();
            t.rename((c, o), (&to, &other));
            let refused = model.get(&to).is_none_or(|to| to.contains_key(&other));
            if !refused {
                model.get_mut(c).unwrap().remove(o);
                model.get_mut(&to).unwrap().insert(other, object);
            }
            refused
        }
    }
}

/// Splits and merges.
fn step_collections(
    dice: &mut Dice,
    t: &mut Transaction<'_>,
    model: &mut Model,
    from: &[u8],
) -> bool {
    let to = dice.collection();
    let merge = dice.below(2) == 0;
    let which = HashBits {
        offset: 0,
        bits: 8,
        value: u64::from(b'k'),
    };
    match merge {
        true => t.merge(from, &to),
        false => t.split(from, &to, which),
    };
    let both = model.contains_key(from) && model.contains_key(&to);
    if !both || (merge && from == to) {
        return true;
    }
    if from == to {
        return false;
    }
    let moves = |key: &[u8]| merge || key.len() >= 4 && key[0] == b'k';
    let moved: Vec<_> = model[from].keys().filter(|k| moves(k)).cloned().collect();
    if moved.iter().any(|key| model[&to].contains_key(key)) {
        return true;
    }
    for key in moved {
        let object = model.get_mut(from).unwrap().remove(&key).unwrap();
        model.get_mut(&to).unwrap().insert(key, object);
    }
    if merge {
        model.remove(from);
    }
    false
}

fn compare(pool: &Pool, model: &Model, what: &str) {
    let names = pool.collections(&[], 1000).unwrap();
    assert_eq!(names, model.keys().cloned().collect::<Vec<_>>(), "{what}");
    for (name, objects) in model {
        let keys: Vec<_> = objects.keys().cloned().collect();
        assert_eq!(pool.objects(name, &[], 1000).unwrap(), keys, "{what}");
        if let Some(from) = keys.get(keys.len() / 2) {
            let rest = pool.objects(name, from, 2).unwrap();
            let wanted = &keys[keys.len() / 2..];
            assert_eq!(rest, wanted[..wanted.len().min(2)], "{what}");
        }
        for (key, object) in objects {
            compare_object(pool, (name, key), object, what);
        }
    }
}

fn compare_object(pool: &Pool, (c, o): (&[u8], &[u8]), object: &Object, what: &str) {
    let stat = pool.stat(c, o).unwrap();
    let wanted = (object.bytes.len() as u64, object.attributes.len() as u64);
    assert_eq!((stat.size, stat.attributes), wanted, "{what}");
    assert_eq!(stat.has_omap, !object.omap.is_empty(), "{what}");
    let mut bytes = vec![7; object.bytes.len() + 10];
    let (len, size) = pool.read_with_size(c, o, 0, &mut bytes).unwrap();
    assert_eq!(size, object.bytes.len() as u64);
    assert!(bytes[..len] == object.bytes, "{what}: bytes of {o:?}");
    compare_extents(pool, (c, o), &object.bytes, what);
    let attributes = pool.attributes(c, o).unwrap();
    assert!(
        attributes == Vec::from_iter(object.attributes.clone()),
        "{what}"
    );
    for (name, value) in &object.attributes {
        assert!(pool.attribute(c, o, name).unwrap() == *value, "{what}");
    }
    let omap = pool.omap_range(c, o, &[], 1000).unwrap();
    assert!(omap == Vec::from_iter(object.omap.clone()), "{what}: omap");
    for (key, value) in &object.omap {
        assert!(
            pool.omap(c, o, key).unwrap().as_ref() == Some(value),
            "{what}"
        );
        let from = pool.omap_range(c, o, key, 1).unwrap();
        assert!(from == [(key.clone(), value.clone())], "{what}");
    }
    assert!(pool.omap_header(c, o).unwrap() == object.header, "{what}");
}

/// What lies in no extent reads as zeros; a part of an object has the extents of the whole that it
/// touches.
fn compare_extents(pool: &Pool, (c, o): (&[u8], &[u8]), bytes: &[u8], what: &str) {
    let size = bytes.len() as u64;
    let all = pool.extents(c, o, 0..u64::MAX, usize::MAX).unwrap();
    let mut rest = bytes.to_vec();
    let mut end = 0;
    for extent in &all {
        assert!(end <= extent.start && extent.start < extent.end, "{what}");
        rest[extent.start as usize..extent.end as usize].fill(0);
        end = extent.end;
    }
    assert!(end <= size, "{what}");
    assert!(
        rest.iter().all(|&byte| byte == 0),
        "{what}: extents {all:?}"
    );
    let (from, to) = (size / 3, size - size / 4);
    let within = |extent: &Range<u64>| extent.start.max(from)..extent.end.min(to);
    let part: Vec<_> = all.iter().map(within).filter(|e| e.start < e.end).collect();
    assert_eq!(
        pool.extents(c, o, from..to, usize::MAX).unwrap(),
        part,
        "{what}"
    );
    let one = pool.extents(c, o, from..to, 1).unwrap();
    assert_eq!(one, part[..part.len().min(1)], "{what}");
}

fn sound(pool: &Pool, what: &str) {
    let report = check(pool.store(), &mut |_| {});
    assert!(report.problems.is_empty(), "{what}: {:?}", report.problems);
    assert_eq!(report.counts.leaked_units, 0, "{what}");
}

/// A random transaction; whether it was done.
fn turn(pool: &Pool, dice: &mut Dice, model: &mut Model, what: &str) -> bool {
    let mut next = model.clone();
    let mut t = Transaction::new();
    let mut refused = false;
    for _ in 0..1 + dice.below(8) {
        refused = step(dice, &mut t, &mut next);
        if refused {
            break;
        }
    }
    match pool.commit(&t) {
        Ok(()) => {
            assert!(!refused, "{what}: {t:?}");
            *model = next;
            true
        }
        Err(Error::Operation { number, source }) => {
            assert!(
                refused && number + 1 == t.len(),
                "{what}: {number} {source} {t:?}"
            );
            false
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

/// How many transactions were done.
fn play(seed: u64, rounds: u64) -> u64 {
    let mut done = 0;
    let mut pool = pool(192 << 20);
    let mut dice = Dice(Random::new(seed, 0));
    let mut model = Model::new();
    for round in 0..rounds {
        let what = format!("seed {seed}, round {round}");
        done += u64::from(turn(&pool, &mut dice, &mut model, &what));
        compare(&pool, &model, &what);
        if round % 10 == 0 {
            sound(&pool, &what);
        }
        if round % 25 == 24 {
            // As after the death of the process: nothing was saved.
            let store = Store::attach(pool.into_store().abandon(), &PRIVATE).unwrap();
            assert_eq!(store.report().problems, 0, "{what}");
            pool = Pool::of(store);
        }
    }
    sound(&pool, &format!("seed {seed}"));
    done
}

#[test]
fn transactions_do_what_a_model_does() {
    let done: u64 = (1..=30).map(|seed| play(seed, 100)).sum();
    // Enough of them were not refused.
    assert!(done > 1500, "{done}");
}

#[test]
fn the_longest_keys_are_found_listed_and_removed() {
    let pool = pool(192 << 20);
    let key = |last: u8| [&vec![b'k'; KEY_MAX - 1][..], &[last]].concat();
    let mut t = Transaction::new();
    t.create_collection(&key(0)).touch(&key(0), &key(1));
    t.set_omap(&key(0), &key(1), &key(2), b"two".as_slice());
    t.set_omap(&key(0), &key(1), &key(3), b"three".as_slice());
    pool.commit(&t).unwrap();
    assert_eq!(pool.collections(&[], 9).unwrap(), [key(0)]);
    assert_eq!(pool.objects(&key(0), &key(1), 9).unwrap(), [key(1)]);
    let found = pool.omap_range(&key(0), &key(1), &key(3), 9).unwrap();
    assert_eq!(found, [(key(3), b"three".to_vec())]);
    sound(&pool, "long keys");
    let mut t = Transaction::new();
    t.set_omap(
        &key(0),
        &key(1),
        &[&key(2)[..], b"x"].concat(),
        b"".as_slice(),
    );
    assert!(matches!(
        pool.commit(&t).unwrap_err().cause(),
        Error::Invalid(_)
    ));
    let mut t = Transaction::new();
    t.remove(&key(0), &key(1)).remove_collection(&key(0));
    pool.commit(&t).unwrap();
    sound(&pool, "long keys, gone");
}

#[test]
fn what_does_not_exist_may_be_told_to_be_left_alone() {
    let pool = pool(64 << 20);
    let mut t = Transaction::new();
    t.create_collection(b"c");
    t.remove(b"c", b"none").if_exists();
    t.rename((b"c", b"none"), (b"c", b"other")).if_exists();
    t.write(b"c", b"none", 0, b"bytes".as_slice()).if_exists();
    t.zero(b"c", b"none", 0, 5).if_exists();
    t.touch(b"c", b"none").if_exists();
    t.create(b"c", b"none").if_exists();
    t.clone_object(b"c", b"none", b"other").if_exists();
    t.clone_range(b"c", b"none", 0..5, b"other", 0).if_exists();
    t.touch(b"c", b"there").truncate(b"c", b"there", 5);
    t.truncate(b"c", b"there", 7).if_exists();
    pool.commit(&t).unwrap();
    assert_eq!(pool.objects(b"c", b"", 9).unwrap(), [b"there"]);
    assert_eq!(pool.stat(b"c", b"there").unwrap().size, 7);
    // A collection that does not exist is another matter.
    let mut t = Transaction::new();
    t.remove(b"d", b"none").if_exists();
    let error = pool.commit(&t).unwrap_err();
    assert!(matches!(error.cause(), Error::NoSuchCollection(_)));
}

#[test]
fn thousands_of_objects_are_split_and_merged_in_one_transaction() {
    let pool = pool(192 << 20);
    // As names of Ceph's objects: a common beginning, a number, something behind it whose length
    // differs, so that some nodes are full to the last bytes.
    let key = |number: u32| {
        let bits = number.reverse_bits().to_be_bytes();
        let name = "o".repeat(number as usize % 40);
        [
            &[0x7f, 0x80, 0, 0, 0, 0, 0, 0, 52][..],
            &bits,
            &[0, 1],
            name.as_bytes(),
        ]
        .concat()
    };
    let mut t = Transaction::new();
    t.create_collection(b"a").create_collection(b"b");
    for number in 0..6000 {
        t.touch(b"a", &key(number));
    }
    pool.commit(&t).unwrap();
    let mut t = Transaction::new();
    let which = HashBits {
        offset: 9,
        bits: 1,
        value: 1,
    };
    t.split(b"a", b"b", which);
    pool.commit(&t).unwrap();
    let listed = |collection: &[u8]| pool.objects(collection, b"", 10_000).unwrap();
    let wanted = |first: u32| {
        let mut keys: Vec<_> = (first..6000).step_by(2).map(key).collect();
        keys.sort();
        keys
    };
    assert!(listed(b"a") == wanted(0) && listed(b"b") == wanted(1));
    sound(&pool, "split");
    let mut t = Transaction::new();
    t.merge(b"b", b"a");
    pool.commit(&t).unwrap();
    assert_eq!(listed(b"a").len(), 6000);
    sound(&pool, "merged");
}

/// Something of one kind of metadata.
fn something(parts: &[Part], dice: &mut Dice) -> Part {
    const KINDS: [fn(Structure) -> bool; 6] = [
        |what| what == Structure::Onode,
        |what| matches!(what, Structure::MapNode(..)),
        |what| matches!(what, Structure::TreeNode(..)),
        |what| what == Structure::Value,
        |what| what == Structure::LogTailWord,
        |what| what == Structure::ListWord,
    ];
    let is_one = KINDS[dice.below(6) as usize];
    let mut of_kind: Vec<Part> = parts.to_vec();
    of_kind.retain(|part| is_one(part.what));
    match of_kind.is_empty() {
        true => something(parts, dice),
        false => of_kind[dice.below(of_kind.len() as u64) as usize],
    }
}

fn scrub_all(pool: &Pool, wanted: &Doubtful, what: &str) {
    let go_on = &mut |_| ControlFlow::Continue(());
    let report = scrub(pool.store(), 1, wanted, go_on).unwrap();
    assert_eq!(report.left, 0, "{what}: {:?}", report.damages);
}

/// Transactions and look-ups meet what is damaged on one copy, a part at a time.
fn play_beside_damage(seed: u64, rounds: u64) {
    let files = PoolFiles::make(&PoolChoice {
        devices: &NAMES,
        copies: 2,
        bytes: 128 << 20,
        ..PoolChoice::default()
    });
    let open = |name| Pool::open(files.file(name), OpenOptions::default()).unwrap();
    let mut pool = open("a");
    let mut dice = Dice(Random::new(seed, 7));
    let mut model = Model::new();
    for round in 0..rounds {
        let name = NAMES[dice.below(2) as usize];
        let what = format!("seed {seed}, round {round}, {name}");
        for _ in 0..3 {
            turn(&pool, &mut dice, &mut model, &what);
        }
        let part = something(&survey(pool.store()), &mut dice);
        let what = format!("{what}, {part:?}");
        let damage = || wreck(&files.file(name), &[part], |_| true);
        if dice.below(2) == 0 {
            damage();
        } else {
            pool.close().unwrap();
            damage();
            pool = open("a");
        }
        // What a transaction gives back may differ: nobody reads it.
        let wanted = match dice.below(2) == 0 && turn(&pool, &mut dice, &mut model, &what) {
            true => Doubtful::Repaired,
            false => Doubtful::Told,
        };
        compare(&pool, &model, &what);
        scrub_all(&pool, &wanted, &what);
        sound(&pool, &what);
    }
    pool.close().unwrap();
    assert!(are_alike(&files), "seed {seed}: the copies differ");
    let pool = open("b");
    compare(&pool, &model, "opened again");
    pool.close().unwrap();
}

#[test]
fn transactions_do_what_a_model_does_while_metadata_of_one_copy_is_damaged() {
    (1..=2).for_each(|seed| play_beside_damage(seed, 15));
}
