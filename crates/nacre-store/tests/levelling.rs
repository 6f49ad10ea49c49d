//! What is written again and again does not stay where it is.

use std::collections::BTreeSet;

use nacre_session::NUMBER_SHARDS;
use nacre_store::Store;
use nacre_store::layout::ONODES_PER_BLOCK;
use nacre_testkit::names::{self, remove};
use nacre_testkit::pool::{PoolFiles, memory_pool};
use nacre_types::ObjectId;
use nacre_volume::Access;

fn name(number: u32) -> String {
    format!("file {number}")
}

fn create(store: &Store, name: &str) -> ObjectId {
    names::create(store, name).unwrap()
}

/// Processes that made objects out of one shard would pass its lines to and fro.
#[test]
fn two_processes_never_take_object_numbers_from_one_shard_while_another_is_free() {
    const SHARD: u64 = ONODES_PER_BLOCK / NUMBER_SHARDS as u64;
    let pool = PoolFiles::new(64 << 20);
    let attach = || pool.attach(Access::ReadWrite).unwrap();
    let (one, other) = (attach(), attach());
    let mut shards = BTreeSet::new();
    for number in 0..2000 {
        let [a, b] = [
            create(&one, &name(number)),
            create(&other, &name(10_000 + number)),
        ];
        assert_ne!(a.0 / SHARD, b.0 / SHARD, "object {number} of each");
        shards.extend([a.0 / SHARD, b.0 / SHARD]);
    }
    assert!(shards.len() > 4, "{shards:?}");
}

#[test]
fn one_file_after_the_other_does_not_wear_one_onode() {
    let store = memory_pool(64 << 20);
    let mut seen = BTreeSet::new();
    for number in 0..200 {
        let object = create(&store, &name(number));
        remove(&store, &name(number));
        seen.insert(object.0);
    }
    assert_eq!(seen.len(), 200);
}
