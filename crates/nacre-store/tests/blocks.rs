//! Metadata blocks that nothing is in move, and nobody who knew the old place does harm there.

use std::collections::HashSet;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use nacre_session::step::{self, Fault};
use nacre_store::check::check;
use nacre_store::layout::ONODES_PER_BLOCK;
use nacre_store::{Store, StoreError, WriteMode};
use nacre_testkit::names::NEW_FILE;
use nacre_testkit::pool::memory_pool;
use nacre_types::{FileOffset, ObjectId, StoreKind, UNIT_SIZE, UNITS_PER_BLOCK, UnitNo};

/// So many blocks that one thirty-second of them is three.
const POOL: u64 = 3 * 32 * UNITS_PER_BLOCK * UNIT_SIZE;

fn store() -> Store {
    memory_pool(POOL)
}

/// All numbers of the block had their round.
fn end_round(store: &Store, block: u64) {
    let shared = store.session().shared();
    shared.object_round.store(block << 1, SeqCst);
    let len = ONODES_PER_BLOCK / shared.object_hints.len() as u64;
    let ends = (block * ONODES_PER_BLOCK..).step_by(len as usize).skip(1);
    for (hint, end) in shared.object_hints.iter().zip(ends) {
        hint.store(end, SeqCst);
    }
}

fn create(store: &Store) -> ObjectId {
    let mut tx = store.begin().unwrap();
    let id = tx.create(&NEW_FILE).unwrap();
    tx.commit().unwrap();
    id
}

fn remove(store: &Store, id: ObjectId) {
    let _guard = store.lock(id).unwrap();
    let mut tx = store.begin().unwrap();
    tx.remove(id).unwrap();
    tx.commit().unwrap();
}

fn place_of(store: &Store, block: usize) -> u64 {
    store.session().metadata_blocks()[block].load(SeqCst)
}

fn is_used(store: &Store, unit: u64) -> bool {
    store.session().unit_bits()[unit as usize / 64].load(SeqCst) >> (unit % 64) & 1 == 1
}

#[test]
fn a_block_that_nothing_is_in_moves_when_the_round_comes_to_it() {
    let store = store();
    end_round(&store, 0);
    let first = create(&store);
    assert_eq!(
        (first.0, store.info().metadata_blocks),
        (ONODES_PER_BLOCK, 2)
    );
    let (before, life) = (place_of(&store, 1), store.generation(first).unwrap());
    remove(&store, first);
    let free = store.statfs();
    end_round(&store, 1);
    assert_eq!(create(&store), first, "the number is used again");
    assert_eq!(store.info().metadata_blocks, 2);
    let after = place_of(&store, 1);
    assert_ne!(before, after);
    assert!(!is_used(&store, before) && is_used(&store, after));
    assert_eq!(store.generation(first).unwrap(), life + 1);
    remove(&store, first);
    assert_eq!(store.statfs(), free);
    assert_eq!(check(&store, &mut |_| {}).problems, []);
}

#[test]
fn a_block_with_an_object_in_it_stays() {
    let store = store();
    end_round(&store, 0);
    let kept = create(&store);
    let before = place_of(&store, 1);
    end_round(&store, 1);
    assert_eq!(
        create(&store).0,
        2 * ONODES_PER_BLOCK,
        "a third block is taken"
    );
    end_round(&store, 2);
    let again = create(&store);
    assert!(
        again.0 < ONODES_PER_BLOCK,
        "then numbers are used again: {again}"
    );
    assert_eq!(place_of(&store, 1), before);
    assert_eq!(store.attrs(kept).unwrap().mode, NEW_FILE.mode);
}

#[test]
fn a_block_of_which_somebody_holds_a_lock_stays() {
    let store = store();
    end_round(&store, 0);
    let id = create(&store);
    remove(&store, id);
    let before = place_of(&store, 1);
    let guard = store.lock(ObjectId(id.0 + 7)).unwrap();
    end_round(&store, 1);
    assert_eq!(create(&store).0, 2 * ONODES_PER_BLOCK);
    assert_eq!(place_of(&store, 1), before);
    drop(guard);
    end_round(&store, 2);
    let free = store.statfs().free_objects;
    assert_eq!(create(&store), id, "its numbers are all free again");
    assert_eq!(store.statfs().free_objects, free - 1);
    assert_ne!(place_of(&store, 1), before);
}

/// Others look at numbers of objects that are gone, and set their times, until `done`.
fn look_at(store: &Store, id: ObjectId, done: &AtomicBool, looks: &AtomicUsize) {
    while !done.load(Relaxed) {
        store.set_atime_lazy(id, 7).unwrap();
        match store.attrs(id) {
            Ok(attrs) => assert_eq!(attrs.mode, NEW_FILE.mode),
            Err(error) => assert!(matches!(error, StoreError::NoSuchObject(_)), "{error}"),
        }
        looks.fetch_add(1, Relaxed);
    }
}

/// Has others look at an object while `leave` makes its block leave its place, 12 times; it says
/// which, if it did. The place is filled with ones, which nobody may see or change.
fn who_knew_the_old_place_does_no_harm(
    store: &Store,
    id: ObjectId,
    leave: impl Fn() -> Option<u64> + Sync,
) {
    let (done, looks) = (&AtomicBool::new(false), &AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(move || look_at(store, id, done, looks));
        }
        scope.spawn(|| {
            let mut left = 0;
            while left < 12 {
                let Some(old) = leave() else {
                    continue; // A reader held a lock just then.
                };
                fill_onode(store, old, [0xff; 256]);
                // Nothing moves meanwhile: a later move may well take this place.
                let enough = looks.load(Relaxed) + 100;
                while looks.load(Relaxed) < enough {
                    std::thread::yield_now();
                }
                let at = UnitNo(old).offset();
                assert_eq!(store.volume().read_array::<256>(at), [0xff; 256]);
                left += 1;
            }
            done.store(true, Relaxed);
        });
    });
}

#[test]
fn who_knew_the_old_place_sees_and_changes_nothing_there() {
    let store = &store();
    end_round(store, 0);
    let id = create(store);
    remove(store, id);
    who_knew_the_old_place_does_no_harm(store, id, || {
        let old = place_of(store, 1);
        end_round(store, 0);
        let made = create(store);
        remove(store, made);
        (made == id && place_of(store, 1) != old).then_some(old)
    });
}

/// Makes and removes an object while all numbers of the first block are in use.
fn use_second_block(store: &Store) -> ObjectId {
    let words = &store.session().object_bits()[..(ONODES_PER_BLOCK / 64) as usize];
    let before: Vec<u64> = words
        .iter()
        .map(|word| word.swap(u64::MAX, SeqCst))
        .collect();
    let made = create(store);
    remove(store, made);
    for (word, before) in words.iter().zip(before) {
        word.store(before, SeqCst);
    }
    made
}

#[test]
fn who_knew_a_block_that_is_given_back_sees_and_changes_nothing_there() {
    let store = &memory_pool(64 << 20);
    let id = use_second_block(store);
    who_knew_the_old_place_does_no_harm(store, id, || {
        use_second_block(store);
        let old = place_of(store, 1);
        store.give_blocks_back().unwrap();
        (place_of(store, 1) != old).then_some(old)
    });
}

/// Fills the pool with the pages of one file; how many it took.
fn fill(store: &Store, id: ObjectId) -> u64 {
    let guard = store.lock(id).unwrap();
    let page = [0x5a; UNIT_SIZE as usize];
    let mut pages = 0;
    loop {
        match store.write(
            &guard,
            FileOffset(pages * UNIT_SIZE),
            page[..].into(),
            WriteMode::Direct,
        ) {
            Ok(_) => pages += 1,
            Err(StoreError::NoSpace) => return pages,
            Err(error) => panic!("{error}"),
        }
    }
}

/// A pool of 64 MiB had 13 248 free units, and 3008 once 180 000 names had been made and removed.
#[test]
fn metadata_blocks_come_back_when_what_was_in_them_is_gone() {
    let store = &memory_pool(64 << 20);
    let kept = create(store);
    let free = store.statfs();
    let made: Vec<ObjectId> = (0..3 * ONODES_PER_BLOCK).map(|_| create(store)).collect();
    let blocks = store.info().metadata_blocks;
    assert!(blocks > 3 && store.statfs().free_units <= free.free_units - 3 * UNITS_PER_BLOCK);
    made.iter().for_each(|&id| remove(store, id));
    assert_eq!(store.statfs(), free);
    assert_eq!(store.info().empty_blocks, blocks - 1);
    let pages = fill(store, kept);
    // The nodes of the block map: one for each 512 pages, and those above.
    assert!(
        pages >= free.free_units - free.free_units / 512 - 3,
        "{pages}"
    );
    assert_eq!(
        (store.info().empty_blocks, store.info().gone_blocks),
        (0, blocks - 1)
    );
    remove(store, kept);
    assert_eq!(check(store, &mut |_| {}).problems, []);
}

fn numbers_come_back() {
    let store = &memory_pool(64 << 20);
    let kept = create(store);
    let mut seen = HashSet::new();
    for _ in 0..3 {
        let made: Vec<ObjectId> = (3..2 * ONODES_PER_BLOCK).map(|_| create(store)).collect();
        for &id in made.iter().filter(|id| id.0 >= ONODES_PER_BLOCK) {
            let fresh = seen.insert((id, store.generation(id).unwrap()));
            assert!(fresh, "a generation came twice");
        }
        made.iter().for_each(|&id| remove(store, id));
        store.give_blocks_back().unwrap();
        assert_eq!(store.info().gone_blocks, 1);
        let gone = store.attrs(ObjectId(ONODES_PER_BLOCK + 3));
        assert!(matches!(gone, Err(StoreError::NoSuchObject(_))));
    }
    assert_eq!(seen.len() as u64, 3 * ONODES_PER_BLOCK);
    remove(store, kept);
    assert_eq!(check(store, &mut |_| {}).problems, []);
}

#[test]
fn numbers_of_a_block_that_came_back_have_no_generation_twice() {
    numbers_come_back();
}

/// A block in which an object is, and one of which somebody holds a lock.
fn give_back_what_is_in_use(locked: bool) {
    let store = &memory_pool(64 << 20);
    let id = use_second_block(store);
    let word = &store.session().object_bits()[id.0 as usize / 64];
    let guard = locked.then(|| store.lock(id).unwrap());
    if !locked {
        word.fetch_or(1 << (id.0 % 64), SeqCst);
    }
    store.give_blocks_back().unwrap();
    assert_eq!(store.info().gone_blocks, 0, "given back in use");
    drop(guard);
    word.fetch_and(!(1 << (id.0 % 64)), SeqCst);
    store.give_blocks_back().unwrap();
    assert_eq!(store.info().gone_blocks, 1);
}

#[test]
fn a_block_in_use_is_not_given_back() {
    give_back_what_is_in_use(false);
    give_back_what_is_in_use(true);
}

/// While somebody reads an onode its block is given back and becomes something else.
fn give_back_under_a_reader() {
    let store = &memory_pool(64 << 20);
    let id = use_second_block(store);
    let old = place_of(store, 1);
    let mut tries = 0;
    let read = store.read_stable(id, || {
        tries += 1;
        if tries == 1 {
            store.give_blocks_back()?;
            fill_onode(store, old, [0xff; 256]);
            return Ok(store.volume().load_u64(UnitNo(old).offset()));
        }
        Ok(0)
    });
    assert_eq!(store.info().gone_blocks, 1);
    assert_eq!(read.unwrap(), 0, "what became of the block was believed");
}

#[test]
fn a_reader_whose_block_is_given_back_looks_again() {
    give_back_under_a_reader();
}

macro_rules! noticed {
    ($($name:ident: $fault:ident, $scene:expr, $expected:literal;)*) => {
        $(
            #[test]
            #[should_panic(expected = $expected)]
            fn $name() {
                let _planted = step::plant(Fault::$fault);
                $scene;
            }
        )*
    };
}

noticed! {
    canary_a_block_given_back_while_it_is_locked:
        GoneWhileLocked, give_back_what_is_in_use(true), "given back in use";
    canary_a_block_given_back_in_silence:
        GoneInSilence, give_back_under_a_reader(), "was believed";
    canary_a_block_that_comes_back_without_generations:
        GenerationsForgotten, numbers_come_back(), "a generation came twice";
}

/// What may become of a free unit: the first onode's place in the block.
fn fill_onode(store: &Store, unit: u64, bytes: [u8; 256]) {
    let volume = store.volume();
    volume
        .fence(volume.write(UnitNo(unit).offset(), &bytes, StoreKind::Data))
        .unwrap();
}
