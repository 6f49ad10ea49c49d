//! Second units of pages take no room that anything else needs, and overwrites none that is new.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use nacre_objects::{Error, Pool, Transaction};
use nacre_store::{StoreError, check::check};
use nacre_testkit::pool::memory_pool;
use nacre_types::{DeviceOffset, ObjectId, StoreKind};
use nacre_volume::Observer;

const C: &[u8] = b"c";
const BYTES: u64 = 64 << 20;
const OBJECTS: u8 = 16;
const SIZE: usize = 1 << 20;
const PART: usize = 1024;
const PAGE: usize = 4096;

/// Objects of 1 MiB.
fn filled() -> Pool {
    let pool = Pool::of(memory_pool(BYTES));
    let mut t = Transaction::new();
    t.create_collection(C);
    pool.commit(&t).unwrap();
    for o in 0..OBJECTS {
        let mut t = Transaction::new();
        t.write(C, &[o], 0, vec![o; SIZE]);
        pool.commit(&t).unwrap();
    }
    pool
}

/// Overwrites these parts of each page, one after the other.
fn overwrite(pool: &Pool, parts: &[usize]) {
    for o in 0..OBJECTS {
        for part in parts {
            let mut t = Transaction::new();
            for page in (0..SIZE).step_by(PAGE) {
                let at = page + part * PART;
                t.write(C, &[o], at as u64, vec![100 + *part as u8; PART]);
            }
            pool.commit(&t).unwrap();
        }
    }
}

fn expected(o: u8, parts: &[usize]) -> Vec<u8> {
    let mut bytes = vec![o; SIZE];
    for (number, part) in bytes.chunks_exact_mut(PART).enumerate() {
        let number = number % (PAGE / PART);
        if parts.contains(&number) {
            part.fill(100 + number as u8);
        }
    }
    bytes
}

/// How many further objects of 64 KiB find room.
fn fill(pool: &Pool) -> u32 {
    for number in 0u32.. {
        let mut t = Transaction::new();
        t.write(C, &number.to_be_bytes(), 0, vec![7; 64 << 10]);
        match pool.commit(&t) {
            Ok(()) => {}
            Err(error) => {
                let cause = error.cause();
                assert!(
                    matches!(cause, Error::Store(StoreError::NoSpace)),
                    "{error}"
                );
                return number;
            }
        }
    }
    unreachable!()
}

fn assert_sound(pool: &Pool) {
    let report = check(pool.store(), &mut |_| {});
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert_eq!(report.counts.leaked_units, 0);
}

#[test]
fn pages_with_second_units_are_gathered_when_room_runs_short() {
    let room = fill(&filled());
    for parts in [&[0][..], &[1, 3], &[0, 1, 2], &[0, 1, 0]] {
        let pool = filled();
        let free = pool.store().statfs().free_units;
        overwrite(&pool, parts);
        let second = free - pool.store().statfs().free_units;
        assert!(
            second >= u64::from(OBJECTS) * (SIZE / PAGE) as u64,
            "{second} second units"
        );
        let found = fill(&pool);
        assert!(
            found.abs_diff(room) <= 2,
            "{parts:?}: {found} objects, {room} without parts"
        );
        for o in 0..OBJECTS {
            let mut bytes = vec![0; SIZE];
            assert_eq!(pool.read(C, &[o], 0, &mut bytes).unwrap(), SIZE);
            assert!(bytes == expected(o, parts), "{parts:?}, object {o}");
        }
        assert_sound(&pool);
    }
}

#[test]
fn objects_are_overwritten_in_pieces_in_a_full_pool() {
    let pool = filled();
    fill(&pool);
    overwrite(&pool, &[2]);
    for o in 0..OBJECTS {
        let mut bytes = vec![0; SIZE];
        pool.read(C, &[o], 0, &mut bytes).unwrap();
        assert!(bytes == expected(o, &[2]), "object {o}");
    }
    assert_sound(&pool);
}

#[test]
fn a_clone_shares_pages_that_had_two_units() {
    let pool = filled();
    overwrite(&pool, &[1, 3]);
    let before = pool.usage().free;
    for o in 0..OBJECTS {
        let mut t = Transaction::new();
        t.clone_object(C, &[o], &[o, 1]);
        pool.commit(&t).unwrap();
    }
    // The second units came free, and a clone has a map of its own and no bytes.
    assert!(pool.usage().free > before + u64::from(OBJECTS) * SIZE as u64 / 2);
    overwrite(&pool, &[0]);
    for o in 0..OBJECTS {
        let (mut original, mut clone) = (vec![0; SIZE], vec![0; SIZE]);
        pool.read(C, &[o], 0, &mut original).unwrap();
        pool.read(C, &[o, 1], 0, &mut clone).unwrap();
        assert!(original == expected(o, &[0, 1, 3]), "object {o}");
        assert!(clone == expected(o, &[1, 3]), "clone of object {o}");
    }
    let report = check(pool.store(), &mut |_| {});
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert_eq!(report.counts.leaked_units, 0);
}

#[test]
fn a_pool_that_gets_full_does_not_count_what_nobody_needs() {
    let pool = filled();
    overwrite(&pool, &[1]);
    let used = |pool: &Pool| 100 - 100 * pool.usage().free / pool.usage().total;
    assert!(
        used(&pool) > 50,
        "{} %: no page has a second unit",
        used(&pool)
    );
    // As much again and a half, in all less than three quarters.
    for o in 0..24 {
        let mut t = Transaction::new();
        t.write(C, &[100 + o], 0, vec![o; SIZE]);
        pool.commit(&t).unwrap();
        assert!(used(&pool) < 83, "{} % after {o}", used(&pool));
    }
    assert!(used(&pool) > 60);
    for o in 0..OBJECTS {
        let mut bytes = vec![0; SIZE];
        pool.read(C, &[o], 0, &mut bytes).unwrap();
        assert!(bytes == expected(o, &[1]), "object {o}");
    }
    assert_sound(&pool);
}

#[test]
fn what_is_in_use_is_not_looked_for_at_each_commit() {
    let pool = filled();
    overwrite(&pool, &[1]);
    let used = |pool: &Pool| 100 - 100 * pool.usage().free / pool.usage().total;
    let put = |o: u8, len: usize| {
        let mut t = Transaction::new();
        t.write(C, &[o], 0, vec![o; len]);
        pool.commit(&t).unwrap();
    };
    let store = pool.store();
    let is_ours = |id: &ObjectId| store.attrs(*id).is_ok_and(|it| it.size == SIZE as u64);
    let objects: Vec<ObjectId> = (1..1000).map(ObjectId).filter(is_ours).collect();
    assert_eq!(objects.len(), usize::from(OBJECTS));
    let held: Vec<_> = objects.iter().map(|id| store.lock(*id).unwrap()).collect();
    (0..20).for_each(|o| put(100 + o, SIZE));
    let full = used(&pool);
    assert!(
        full > 85,
        "{full} %: they are gathered, though they are in use"
    );
    drop(held);
    put(200, PAGE);
    assert!(
        used(&pool) >= full,
        "{} %: it was looked again",
        used(&pool)
    );
    // Who finds no room does.
    assert!(fill(&pool) >= 16 * u32::from(OBJECTS));
    assert_sound(&pool);
}

/// The pages of the medium that data was stored to.
#[derive(Default)]
struct Pages(Mutex<BTreeSet<u64>>);

impl Observer for Pages {
    fn store(&self, _: u16, at: DeviceOffset, bytes: &[u8], kind: StoreKind, _: bool) {
        if kind == StoreKind::Data {
            let (first, end) = (at.get(), at.get() + bytes.len() as u64);
            let pages = first / PAGE as u64..end.div_ceil(PAGE as u64);
            self.0.lock().unwrap().extend(pages);
        }
    }

    fn flush(&self, _: u16, _: DeviceOffset, _: u64) {}

    fn fence(&self, _: u16) {}
}

#[test]
fn what_was_overwritten_is_the_next_to_be_taken() {
    const WRITE: usize = 16 * PAGE;
    let pool = filled();
    let pages = Arc::new(Pages::default());
    let observer: Arc<dyn Observer> = pages.clone();
    pool.store().volume().set_observer(&observer);
    for round in 0..200 {
        let at = round * 7 % (SIZE / WRITE) * WRITE;
        let mut t = Transaction::new();
        t.write(C, &[0], at as u64, vec![round as u8; WRITE]);
        pool.commit(&t).unwrap();
    }
    // Pages that were never used would each cost a fault of the kernel.
    let used = pages.0.lock().unwrap().len();
    assert!((WRITE / PAGE..=2 * SIZE / PAGE).contains(&used), "{used}");
}
