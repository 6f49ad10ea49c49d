//! Damage is found and named, whatever it is, and never makes the store panic.

use nacre_store::check::{Report, check};
use nacre_store::layout::{ONODE_SIZE, SUPERBLOCK_AT};
use nacre_store::{EndOfFile, Holes, Store, WriteMode};
use nacre_types::{FileOffset, ObjectId, StoreKind, VolumeOffset};
use nacre_volume::{UserBytes, UserBytesMut};

use crate::pool::{
    PAGE, assert_sound, image, make_file, pattern, pool, read_all, revive, with, write,
};

const DIRECT: WriteMode = WriteMode::Direct;

fn flip(store: &Store, at: VolumeOffset) {
    let byte = store.volume().load_u8(at) ^ 0x10;
    let stores = store.volume().write(at, &[byte], StoreKind::Metadata);
    store.volume().fence(stores).unwrap();
}

fn report(store: &Store) -> Report {
    check(store, &mut |_| {})
}

/// Finds the onode of an object by its attributes on the medium: onodes lie in one block, in order.
fn onode_of(store: &Store, id: ObjectId) -> VolumeOffset {
    let bytes = image(store);
    let root_time = store.attrs(ObjectId::ROOT).unwrap().btime.to_le_bytes();
    let place = bytes
        .chunks(ONODE_SIZE)
        .position(|onode| onode[80..88] == root_time && onode[64..68] != [0; 4])
        .unwrap() as u64;
    VolumeOffset((place - 1 + id.0) * ONODE_SIZE as u64)
}

#[test]
fn a_busy_pool_is_sound_and_counted() {
    let store = pool(16);
    for name in ["a", "b", "c"] {
        let id = make_file(&store, name);
        write(&store, id, 0, &pattern(1, 10_000), DIRECT).unwrap();
    }
    let mut last = 0;
    let report = check(&store, &mut |progress| {
        assert!(progress.done >= last && progress.done <= progress.total);
        last = progress.done;
    });
    assert_eq!(report.problems, []);
    let counts = report.counts;
    assert_eq!(
        (counts.objects, counts.directories, counts.entries),
        (4, 1, 3)
    );
    assert_eq!(
        (counts.data_units, counts.leaked_units, counts.unlinked),
        (9, 0, 0)
    );
}

#[test]
fn every_damaged_word_of_an_onode_is_found() {
    let store = pool(16);
    let id = make_file(&store, "a");
    write(&store, id, 0, &pattern(1, 10_000), DIRECT).unwrap();
    let onode = onode_of(&store, id);
    // Bytes 16..64 are times, a count and padding, those from 168 on unused here: they carry no
    // check.
    for byte in (0..16).chain(64..168) {
        flip(&store, onode.add(byte));
        let report = report(&store);
        let named = report
            .problems
            .iter()
            .any(|problem| problem.object == Some(id));
        assert!(named, "byte {byte}: {:?}", report.problems);
        flip(&store, onode.add(byte));
    }
    assert_sound(&store);
}

#[test]
fn what_was_sound_when_it_was_looked_at_is_looked_at_again() {
    let store = pool(16);
    make_file(&store, "a");
    assert_sound(&store);
    let node = image(&store)
        .chunks(PAGE as usize)
        .position(|unit| unit.starts_with(b"NTRE"));
    let last = VolumeOffset((node.unwrap() as u64 + 1) * PAGE - 1);
    for at in [last, VolumeOffset(last.0 - 20)] {
        flip(&store, at);
        assert!(!report(&store).problems.is_empty());
        flip(&store, at);
    }
    assert_sound(&store);
}

#[test]
fn a_damaged_superblock_copy_is_found() {
    for at in SUPERBLOCK_AT {
        let store = pool(16);
        flip(&store, at.add(100));
        assert_eq!(report(&store).problems.len(), 1);
    }
}

#[test]
fn a_damaged_map_is_found_and_reads_say_so() {
    let store = pool(16);
    let (a, b) = (make_file(&store, "a"), make_file(&store, "b"));
    // Whole pages: where a write ends within one, the map is not asked again.
    const LEN: usize = 3 * PAGE as usize;
    write(&store, a, 0, &pattern(1, LEN), DIRECT).unwrap();
    write(&store, b, 0, &pattern(2, LEN), DIRECT).unwrap();
    let root = store.volume().load_u64(onode_of(&store, a).add(8)) & 0xff_ffff_ffff;
    flip(&store, VolumeOffset(root * PAGE + 8));
    let report = report(&store);
    assert_eq!(report.problems[0].object, Some(a));
    let mut bytes = [0; LEN];
    let all = UserBytesMut::from(bytes.as_mut_slice());
    assert!(store.read(a, FileOffset(0), all).is_err());
    assert_eq!(read_all(&store, b), pattern(2, LEN));
    let guard = store.lock(a).unwrap();
    assert!(store.punch(&guard, 0, LEN as u64).is_err());
    drop(guard);
    // After a crash nothing may be allocated, but what is sound stays readable.
    if let Ok(revived) = revive(&image(&store)) {
        assert_eq!(read_all(&revived, b), pattern(2, LEN));
    }
}

#[test]
fn a_unit_with_two_owners_names_both() {
    let store = pool(16);
    let (a, b) = (make_file(&store, "a"), make_file(&store, "b"));
    write(&store, a, 0, &pattern(1, 100), DIRECT).unwrap();
    write(&store, b, 0, &pattern(2, 100), DIRECT).unwrap();
    with(&store, b, |guard| {
        store.clone_range(guard, 0, guard, PAGE, 0).map(drop)
    });
    let root = |id| onode_of(&store, id).add(8);
    let unit = store.volume().load_u64(root(a)) & 0xff_ffff_ffff;
    let salt = nacre_store::layout::root_salt(b);
    let word = nacre_types::CheckedWord::seal(unit, salt).0;
    let stores = store.volume().store_u64(root(b), word, StoreKind::Metadata);
    store.volume().fence(stores).unwrap();
    let found = report(&store)
        .problems
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>();
    let both = format!("used twice, by object {a} and object {b}");
    assert!(
        found.iter().any(|problem| problem.contains(&both)),
        "{found:?}"
    );
}

#[test]
fn a_wrong_link_count_is_found() {
    let store = pool(16);
    let id = make_file(&store, "a");
    let guard = store.lock(id).unwrap();
    let mut tx = store.begin().unwrap();
    tx.set_attrs(id, |attrs| attrs.nlink = 2).unwrap();
    tx.commit().unwrap();
    drop(guard);
    let found = report(&store).problems;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].object, Some(id));
    assert!(found[0].what.contains("link count is 2, but 1"));
}

#[test]
fn random_damage_never_panics_and_never_reaches_sound_files() {
    let store = pool(16);
    let ids = ["a", "b", "c"].map(|name| make_file(&store, name));
    for (seed, &id) in ids.iter().enumerate() {
        write(&store, id, 0, &pattern(seed as u8, 50_000), DIRECT).unwrap();
    }
    let sound = image(&store);
    let used: Vec<usize> = (0..sound.len() / 64)
        .filter(|line| {
            sound[line * 64..line * 64 + 64]
                .iter()
                .any(|byte| *byte != 0)
        })
        .collect();
    let mut state = 88172645463325252_u64;
    for _ in 0..300 {
        let mut bytes = sound.clone();
        for _ in 0..3 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let line = used[(state >> 8) as usize % used.len()];
            bytes[line * 64 + (state >> 40) as usize % 64] ^= 1 << (state >> 61);
        }
        let Ok(revived) = revive(&bytes) else {
            continue;
        };
        let found = report(&revived);
        for (seed, &id) in ids.iter().enumerate() {
            let mut copy = vec![0; 50_000];
            let got = revived.read(id, FileOffset(0), UserBytesMut::from(copy.as_mut_slice()));
            if got.is_ok() && found.problems.is_empty() {
                let wrong = copy
                    .iter()
                    .zip(pattern(seed as u8, 50_000))
                    .filter(|(a, b)| *a != b);
                assert!(wrong.count() <= 3, "only flipped data bytes may differ");
            }
        }
        ids.iter().for_each(|&id| change_everything(&revived, id));
    }
}

/// What fails must fail with an error.
fn change_everything(store: &Store, id: ObjectId) {
    let Ok(guard) = store.lock(id) else { return };
    let bytes = pattern(9, 9000);
    for mode in [WriteMode::Direct, WriteMode::Atomic] {
        let _may_fail = store.write(&guard, FileOffset(3000), UserBytes::from(&bytes[..]), mode);
    }
    let _may_fail = store.clone_range(&guard, 0, &guard, 20 * PAGE, 2 * PAGE);
    let _may_fail = store.map_for_sharing(&guard, 0, 30, Holes::Fill);
    let _may_fail = store.zero_range(&guard, 100, 30_000, EndOfFile::Moves);
    let _may_fail = store.seek_hole(id, 0);
    let _may_fail = store.truncate(&guard, 10);
    let _may_fail = store.begin().and_then(|mut tx| {
        tx.remove(id)?;
        tx.commit()
    });
}
