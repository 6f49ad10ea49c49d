//! Reads and overwrites of what is remembered, and writers that share an object by its parts.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use nacre_store::{CacheUpdates, Store, WriteMode};
use nacre_types::{DeviceOffset, FileOffset, ObjectId, StoreKind};
use nacre_volume::{Observer, UserBytes, UserBytesMut};

use crate::pool::{PAGE, assert_sound, make_file, pattern, pool, read, read_all, with, write};

const DIRECT: WriteMode = WriteMode::Direct;
const PART: u64 = 1 << 20;
const LEN: u64 = 3 * PART;

fn file(store: &Store) -> ObjectId {
    let id = make_file(store, "f");
    write(store, id, 0, &vec![1; LEN as usize], DIRECT).unwrap();
    for page in 0..LEN / PAGE {
        read(store, id, page * PAGE, 1);
    }
    id
}

fn range(store: &Store, id: ObjectId) {
    store.session().icore(id.0).ranged.store(1, SeqCst);
}

fn ranged(store: &Store, id: ObjectId) -> u64 {
    store.session().icore(id.0).ranged.load(SeqCst)
}

fn overwrite(store: &Store, id: ObjectId, at: u64, bytes: &[u8]) -> Option<usize> {
    let done = store.try_overwrite_fast(id, FileOffset(at), UserBytes::from(bytes), |_, _| true);
    done.map(Result::unwrap)
}

fn append(store: &Store, id: ObjectId, at: u64, bytes: &[u8]) -> Option<usize> {
    let done = store.try_append_fast(id, FileOffset(at), UserBytes::from(bytes), |_, _| true);
    done.map(Result::unwrap)
}

fn read_fast(store: &Store, id: ObjectId, at: u64, len: usize) -> Option<usize> {
    let mut bytes = vec![0; len];
    let mut to = UserBytesMut::from(&mut bytes[..]);
    let updates = CacheUpdates::Left;
    let done = store.try_read_fast(id, FileOffset(at), &mut to, updates, |_, _| true);
    done.map(|(_, len)| len)
}

/// Counts what is done to the medium.
#[derive(Default)]
struct Counting(AtomicUsize);

impl Observer for Counting {
    fn store(&self, _: u16, _: DeviceOffset, _: &[u8], _: StoreKind, _: bool) {
        self.0.fetch_add(1, SeqCst);
    }
    fn flush(&self, _: u16, _: DeviceOffset, _: u64) {
        self.0.fetch_add(1, SeqCst);
    }
    fn fence(&self, _: u16) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn a_fast_path_that_does_not_apply_has_done_nothing() {
    let store = pool(32);
    let counting = Arc::new(Counting::default());
    let observer: Arc<dyn Observer> = Arc::clone(&counting) as _;
    store.volume().set_observer(&observer);
    let [id, shared] = [file(&store), make_file(&store, "g")];
    let (first, second) = store.lock_pair(id, shared).unwrap();
    let second = second.unwrap();
    assert_eq!(
        store.clone_range(&first, PART, &second, 0, PAGE).unwrap(),
        PAGE
    );
    drop((first, second));
    for page in [0, PART / PAGE] {
        read(&store, id, page * PAGE, 1);
    }
    read(&store, shared, 0, 1);
    let size = LEN;

    let before = (
        counting.0.load(SeqCst),
        read_all(&store, id),
        read_all(&store, shared),
    );
    let none = |what: &str, done: Option<usize>| assert_eq!(done, None, "{what}");
    none("past EOF", overwrite(&store, id, size - 1, &[7; 2]));
    none("at EOF", overwrite(&store, id, size, &[7]));
    none("no bytes", overwrite(&store, id, 0, &[]));
    none("a shared unit", overwrite(&store, shared, 0, &[7; 10]));
    none("not remembered", overwrite(&store, ObjectId(99), 0, &[7]));
    none("behind EOF", append(&store, id, size + 1, &[7]));
    none("before EOF", append(&store, id, size - 1, &[7]));
    none("no bytes", append(&store, id, size, &[]));
    none("read at EOF", read_fast(&store, id, size, 1));
    none(
        "read of what is not there",
        read_fast(&store, ObjectId(99), 0, 1),
    );
    let refused = UserBytes::from(&[7][..]);
    let checked = store.try_overwrite_fast(id, FileOffset(0), refused, |_, _| false);
    assert!(checked.is_none());
    let checked = store.try_append_fast(id, FileOffset(size), refused, |_, _| false);
    assert!(checked.is_none());
    assert!(store.persist_now(id).is_none(), "an observer looks on");
    let held = store.lock(id).unwrap();
    none("locked", append(&store, id, size, &[7]));
    let changing = held.begin_change();
    none("being changed", read_fast(&store, id, 0, 1));
    drop((changing, held));
    let after = (
        counting.0.load(SeqCst),
        read_all(&store, id),
        read_all(&store, shared),
    );
    assert!(before == after, "something was done");

    read(&store, id, 0, 1);
    assert_eq!(overwrite(&store, id, 0, &[7]), Some(1));
    assert!(counting.0.load(SeqCst) > before.0, "nothing is counted");
}

#[test]
fn only_what_is_there_is_overwritten_at_once() {
    let store = pool(16);
    let id = file(&store);
    assert_eq!(overwrite(&store, id, 5000, &[2; 100]), Some(100));
    assert_eq!(overwrite(&store, id, LEN - 10, &[2; 10]), Some(10));
    assert_eq!(overwrite(&store, id, LEN - 10, &[2; 11]), None);
    assert_eq!(overwrite(&store, id, LEN, &[2; 1]), None);
    assert_eq!(overwrite(&store, id, 0, &[]), None);
    let refused =
        store.try_overwrite_fast(id, FileOffset(0), UserBytes::from(&[2][..]), |_, _| false);
    assert!(refused.is_none());
    with(&store, id, |guard| store.truncate(guard, 5050));
    assert_eq!(
        overwrite(&store, id, 5040, &[3; 10]),
        None,
        "not known under this mapping_epoch"
    );
    assert_eq!(read(&store, id, 5000, 100), [2; 50]);
    assert_eq!(overwrite(&store, id, 5040, &[3; 10]), Some(10));
    assert_eq!(overwrite(&store, id, 5040, &[3; 11]), None);
    let expected = [&[1; 5000][..], &[2; 40], &[3; 10]].concat();
    assert_eq!(read_all(&store, id), expected);
    assert_sound(&store);
}

#[test]
fn bytes_are_appended_at_once_where_the_end_is_and_nowhere_else() {
    let store = pool(16);
    let id = make_file(&store, "f");
    let append = |at: u64, bytes: &[u8]| append(&store, id, at, bytes);
    let mut expected = Vec::new();
    for (round, len) in (0..).zip([1, 4095, 4096, 5000, 64, 20_000]) {
        let bytes = pattern(round, len);
        let end = expected.len() as u64;
        assert_eq!(append(end + 1, &bytes), None);
        assert_eq!(append(end, &bytes), Some(len));
        expected.extend(bytes);
    }
    assert_eq!(append(0, &[1]), None);
    assert_eq!(append(expected.len() as u64, &[]), None);
    let held = store.lock(id).unwrap();
    assert_eq!(append(expected.len() as u64, &[1]), None, "it is locked");
    drop(held);
    let end = FileOffset(expected.len() as u64);
    let refused = store.try_append_fast(id, end, UserBytes::from(&[2][..]), |_, _| false);
    assert!(refused.is_none());
    assert_eq!(read_all(&store, id), expected);
    assert_sound(&store);
}

#[test]
fn who_locks_an_object_is_alone_whatever_writers_in_place_do() {
    let store = pool(32);
    let id = file(&store);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..3u64 {
            let (store, done) = (&store, &done);
            scope.spawn(move || {
                let mut random = seed;
                while !done.load(Relaxed) {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    let page = (random >> 33) % (LEN / PAGE);
                    let bytes = [random as u8 | 1; PAGE as usize];
                    write(store, id, page * PAGE, &bytes, DIRECT).unwrap();
                }
            });
        }
        for round in 0..150 {
            let guard = store.lock(id).unwrap();
            assert_eq!(ranged(&store, id), 0);
            let seen = read_all(&store, id);
            assert_eq!(read_all(&store, id), seen, "round {round}");
            for page in seen.chunks(PAGE as usize) {
                assert!(
                    page.iter().all(|&byte| byte == page[0]),
                    "two writers mixed"
                );
            }
            if round % 10 == 9 {
                store.truncate(&guard, 0).unwrap();
                let bytes = pattern(9, PAGE as usize)[0];
                let all = vec![bytes; LEN as usize];
                let from = UserBytes::from(&all[..]);
                store.write(&guard, FileOffset(0), from, DIRECT).unwrap();
            }
            range(&store, id);
        }
        done.store(true, Relaxed);
    });
    assert_sound(&store);
}

#[test]
fn writers_that_meet_share_the_object_until_it_is_locked() {
    let store = pool(16);
    let id = file(&store);
    range(&store, id);
    assert_eq!(overwrite(&store, id, 0, &[2; 10]), Some(10));
    assert_eq!(ranged(&store, id), 1);
    // A write that reaches over parts takes the whole object.
    for page in [PART / PAGE - 1, PART / PAGE] {
        read(&store, id, page * PAGE, 1);
    }
    write(&store, id, PART - 5, &[2; 10], DIRECT).unwrap();
    assert_eq!(ranged(&store, id), 0);
}

#[test]
fn a_death_while_writing_or_draining_stops_nobody() {
    let store = pool(16);
    let id = file(&store);
    let session = store.session();
    let dead = session.claim_slot().unwrap();
    for left in [1, 2] {
        session.icore(id.0).ranged.store(left, SeqCst);
        session.range_lock(id.0, 0).lock(session, dead).unwrap();
        session.release_slot(dead);
        drop(store.lock(id).unwrap());
        assert_eq!(ranged(&store, id), 0);
        assert!(session.range_locks().all(|range| range.is_free()));
    }
}
