//! Words and bytes of a transaction, which only the store itself may give it.

use std::sync::atomic::Ordering;

use nacre_types::{ObjectId, StoreKind, UNIT_SIZE, UnitNo};
use nacre_volume::Volume;

use crate::{AttachOptions, FormatOptions, SessionChoice, Store, StoreError, Tree};

const ROOT: ObjectId = ObjectId::ROOT;

/// The test kit's pools are of another build of this crate than its own tests.
pub(crate) fn memory_pool(bytes: u64) -> Store {
    let volume = Volume::memory(bytes).unwrap();
    Store::format(&volume, &FormatOptions::default()).unwrap();
    let options = AttachOptions {
        session: SessionChoice::Memory,
        ..AttachOptions::default()
    };
    Store::attach(volume, &options).unwrap()
}

#[test]
fn a_single_word_commits_without_a_record() {
    let store = memory_pool(32 << 20);
    let unit = UnitNo(3000).offset();
    let tail = |store: &Store| store.session().lane(0).tail.load(Ordering::Relaxed);
    let mut tx = store.begin().unwrap();
    tx.put_word(unit, 42);
    let before = tail(&store);
    tx.commit().unwrap();
    assert_eq!(store.volume().load_u64(unit), 42);
    assert_eq!(tail(&store), before);
    let mut tx = store.begin().unwrap();
    tx.put_word(unit, 43);
    tx.put_bytes(unit.add(100), b"odd place", StoreKind::Data);
    tx.commit().unwrap();
    assert_eq!(store.volume().read_array::<9>(unit.add(100)), *b"odd place");
    assert_ne!(tail(&store), before, "two changes need a record");
}

#[test]
fn a_transaction_over_the_record_limit_changes_nothing() {
    let store = memory_pool(32 << 20);
    let mut tx = store.begin().unwrap();
    let at = UnitNo(2 * 1024 + 2000).offset();
    for piece in 0..300 {
        tx.put_bytes(at.add(piece * UNIT_SIZE), &[1; 4096], StoreKind::Data);
    }
    assert!(matches!(tx.commit(), Err(StoreError::TooLarge { .. })));
    assert_eq!(store.volume().load_u64(at), 0);
}

#[test]
fn the_ring_of_a_lane_goes_round_many_times() {
    let store = memory_pool(16 << 20);
    for n in 0..3000u32 {
        let _root = store.lock(ROOT).unwrap();
        let mut tx = store.begin().unwrap();
        tx.tree_insert(ROOT, Tree::Entries, &[n as u8 % 7], &[n as u8; 1200])
            .unwrap();
        let filler = UnitNo(1000).offset();
        tx.put_bytes(filler, &[n as u8; 4000], StoreKind::Data);
        tx.commit().unwrap();
    }
    let mut value = Vec::new();
    assert!(
        store
            .tree_get(ROOT, Tree::Entries, &[2999u32 as u8 % 7], &mut value)
            .unwrap()
    );
    assert_eq!(value.len(), 1200);
}
