//! Damaged pools: always an error or an answer, never a panic or an endless loop.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering::SeqCst;

use nacre_store::check::check;
use nacre_store::layout::{
    BLOCK_LIST_AT, BLOCKS_COME_BACK, FORMAT_VERSION, LANE_LIST_AT, ONODES_PER_BLOCK, STATE_AT,
    SUPERBLOCK_AT,
};
use nacre_store::{FormatOptions, NewObject, ObjectGuard, Store, StoreError, Tree};
use nacre_testkit::pool::{PRIVATE, formatted_memory, memory_pool};
use nacre_testkit::random::Random;
use nacre_types::{ObjectId, StoreKind, UNIT_SIZE, VolumeOffset, crc32c};
use nacre_volume::Volume;

const ROOT: ObjectId = ObjectId::ROOT;
const POOL: u64 = 16 << 20;
/// The root's onode: second one of the first metadata block.
const ROOT_ONODE: u64 = (4 << 20) + 256;

type Units = Vec<(u64, [u8; 4096])>;

fn sample_pool() -> Units {
    let store = memory_pool(POOL);
    for n in 0..200u32 {
        let guard = store.lock(ROOT).unwrap();
        change(&store, &guard, &n.to_be_bytes(), 30 + n as usize % 50).unwrap();
    }
    let guard = store.lock(ROOT).unwrap();
    change(&store, &guard, b"out of line", 30_000).unwrap();
    drop(guard);
    (0..store.volume().units())
        .map(|unit| {
            (
                unit,
                store.volume().read_array(VolumeOffset(unit * UNIT_SIZE)),
            )
        })
        .filter(|(_, bytes)| *bytes != [0; 4096])
        .collect()
}

fn change(
    store: &Store,
    guard: &ObjectGuard<'_>,
    key: &[u8],
    len: usize,
) -> Result<(), StoreError> {
    let mut tx = store.begin()?;
    tx.tree_insert(guard.id(), Tree::Entries, key, &vec![7; len])?;
    let new = NewObject {
        mode: 0o100_600,
        nlink: 1,
        ..NewObject::default()
    };
    tx.create(&new)?;
    tx.commit()
}

fn volume_of(units: &Units) -> Volume {
    let volume = Volume::memory(POOL).unwrap();
    for (unit, bytes) in units {
        let at = VolumeOffset(unit * UNIT_SIZE);
        volume
            .fence(volume.write(at, bytes, StoreKind::Data))
            .unwrap();
    }
    volume
}

fn flip(volume: &Volume, at: u64, with: u8) {
    let at = VolumeOffset(at);
    let byte = volume.load_u8(at) ^ with;
    volume
        .fence(volume.write(at, &[byte], StoreKind::Data))
        .unwrap();
}

/// Uses everything; errors are fine.
fn use_all(volume: Volume) -> Result<usize, StoreError> {
    let store = Store::attach(volume, &PRIVATE)?;
    let mut errors = check(&store, &mut |_| {}).problems.len();
    let mut value = Vec::new();
    for number in 0..300 {
        let id = ObjectId(number);
        errors += usize::from(store.attrs(id).is_err());
        for tree in [Tree::Entries, Tree::Xattrs] {
            let mut visit = |_: &[u8], _: &[u8], _: Option<&[u8]>| ControlFlow::Continue(());
            errors += usize::from(store.tree_scan(id, tree, &[], &mut visit).is_err());
            errors += usize::from(store.tree_get(id, tree, b"key", &mut value).is_err());
        }
    }
    for n in (0..200u32).step_by(7) {
        let Ok(guard) = store.lock(ROOT) else { break };
        errors += usize::from(change(&store, &guard, &n.to_be_bytes(), 99).is_err());
        let Ok(mut tx) = store.begin() else { break };
        let removed = tx.tree_remove(ROOT, Tree::Entries, &(n + 1).to_be_bytes());
        errors += usize::from(removed.and_then(|_| tx.commit()).is_err());
    }
    store.detach()?;
    Ok(errors)
}

#[test]
fn random_damage_never_panics() {
    let units = sample_pool();
    let mut random = Random::new(0xfeed_beef_cafe_f00d, 0);
    for _ in 0..400 {
        let volume = volume_of(&units);
        for _ in 0..=random.below(4) {
            let (unit, _) = units[random.below(units.len() as u64) as usize];
            let at = unit * UNIT_SIZE + random.below(UNIT_SIZE);
            flip(&volume, at, 1 << random.below(8));
        }
        let _ = use_all(volume);
    }
}

#[test]
fn swapped_units_never_panic() {
    let units = sample_pool();
    let mut random = Random::new(0x0dd_ba11, 0);
    for _ in 0..200 {
        let volume = volume_of(&units);
        let (from, bytes) = units[random.below(units.len() as u64) as usize];
        let (to, _) = units[random.below(units.len() as u64) as usize];
        let at = VolumeOffset(to * UNIT_SIZE);
        volume
            .fence(volume.write(at, &bytes, StoreKind::Data))
            .unwrap();
        if from != to {
            let _ = use_all(volume);
        }
    }
}

#[test]
fn every_damaged_byte_of_an_onode_that_is_checked_is_noticed() {
    const CHECKED: std::ops::Range<u64> = 64..168;
    let units = sample_pool();
    for byte in CHECKED {
        let volume = volume_of(&units);
        flip(&volume, ROOT_ONODE + byte, 0x40);
        let store = Store::attach(volume, &PRIVATE).unwrap();
        assert!(
            matches!(store.attrs(ROOT), Err(StoreError::Corrupt(_))),
            "byte {byte}"
        );
    }
}

#[test]
fn a_damaged_size_word_is_noticed_and_neighbours_stay_readable() {
    let units = sample_pool();
    let volume = volume_of(&units);
    flip(&volume, ROOT_ONODE + 256 + 6, 1);
    let store = Store::attach(volume, &PRIVATE).unwrap();
    assert!(matches!(
        store.attrs(ObjectId(2)),
        Err(StoreError::Corrupt(_))
    ));
    store.attrs(ROOT).unwrap();
    store.attrs(ObjectId(4)).unwrap();
}

#[test]
fn a_pool_whose_units_cannot_be_accounted_for_is_served_read_only() {
    let volume = volume_of(&sample_pool());
    flip(&volume, ROOT_ONODE + 130, 1);
    let store = Store::attach(volume, &PRIVATE).unwrap();
    assert!(store.report().problems > 0);
    assert!(matches!(store.begin(), Err(StoreError::ReadOnly)));
    store.attrs(ObjectId(4)).unwrap();
}

#[test]
fn one_superblock_copy_suffices_and_two_damaged_ones_are_named() {
    let units = sample_pool();
    for [broken, whole] in [SUPERBLOCK_AT, [SUPERBLOCK_AT[1], SUPERBLOCK_AT[0]]] {
        let volume = volume_of(&units);
        flip(&volume, broken.0 + 100, 1);
        Store::attach(volume, &PRIVATE).unwrap();
        let volume = volume_of(&units);
        flip(&volume, broken.0 + 100, 1);
        flip(&volume, whole.0 + 40, 1);
        let error = Store::attach(volume, &PRIVATE).err().unwrap();
        assert!(
            matches!(&error, StoreError::Corrupt(found) if found.what == "superblock"),
            "{error}"
        );
    }
}

#[test]
fn a_newer_version_and_unknown_features_are_refused() {
    let units = sample_pool();
    let patched = |at: usize, value: u32| {
        let volume = volume_of(&units);
        for copy in SUPERBLOCK_AT {
            let mut bytes: [u8; 4096] = volume.read_array(copy);
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            let crc = crc32c(&bytes[12..]);
            bytes[8..12].copy_from_slice(&crc.to_le_bytes());
            volume
                .fence(volume.write(copy, &bytes, StoreKind::Metadata))
                .unwrap();
        }
        Store::attach(volume, &PRIVATE).err()
    };
    let newer = FORMAT_VERSION + 1;
    assert!(matches!(
        patched(12, newer),
        Some(StoreError::NewerFormat { version, .. }) if version == newer
    ));
    assert!(matches!(
        patched(12, 1),
        Some(StoreError::OlderFormat { version: 1, .. })
    ));
    assert!(matches!(
        patched(24, 8),
        Some(StoreError::UnknownFeatures(8))
    ));
    assert!(patched(16, 8).is_none(), "a compatible feature is ignored");
}

/// It knows no blocks that were given back: whoever reads it next may be an older program.
#[test]
fn a_pool_of_an_older_format_is_used_and_keeps_its_metadata_blocks() {
    let volume = formatted_memory(32 << 20, &FormatOptions::default());
    for copy in SUPERBLOCK_AT {
        let mut bytes: [u8; 4096] = volume.read_array(copy);
        bytes[12..16].copy_from_slice(&(BLOCKS_COME_BACK - 1).to_le_bytes());
        let crc = crc32c(&bytes[12..]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        let fenced = volume.fence(volume.write(copy, &bytes, StoreKind::Metadata));
        fenced.unwrap();
    }
    let store = Store::attach(volume, &PRIVATE).unwrap();
    let first = &store.session().object_bits()[..(ONODES_PER_BLOCK / 64) as usize];
    first.iter().for_each(|word| word.store(!0, SeqCst));
    let mut tx = store.begin().unwrap();
    let file = NewObject {
        mode: 0o100_644,
        ..NewObject::default()
    };
    tx.create(&file).unwrap();
    drop(tx);
    store.give_blocks_back().unwrap();
    let info = store.info();
    assert_eq!(
        (info.version, info.metadata_blocks),
        (BLOCKS_COME_BACK - 1, 2)
    );
    assert_eq!((info.empty_blocks, info.gone_blocks), (1, 0));
}

#[test]
fn a_newer_superblock_with_another_checksum_is_newer_and_not_damaged() {
    let units = sample_pool();
    let newer_copies = |copies: &[VolumeOffset]| {
        let volume = volume_of(&units);
        for &copy in copies {
            let version = VolumeOffset(copy.0 + 12);
            volume
                .fence(volume.write(version, &9u32.to_le_bytes(), StoreKind::Metadata))
                .unwrap();
        }
        Store::attach(volume, &PRIVATE).err()
    };
    assert!(matches!(
        newer_copies(&SUPERBLOCK_AT),
        Some(StoreError::NewerFormat { version: 9, .. })
    ));
    // One copy alone is damage, which the other one heals.
    for copy in SUPERBLOCK_AT {
        assert!(newer_copies(&[copy]).is_none());
    }
}

#[test]
fn damaged_lists_and_state_records_are_named() {
    let units = sample_pool();
    for at in [LANE_LIST_AT, BLOCK_LIST_AT] {
        let volume = volume_of(&units);
        flip(&volume, at.0, 1);
        let error = Store::attach(volume, &PRIVATE).err().unwrap();
        assert!(
            matches!(&error, StoreError::Corrupt(found) if found.at == at),
            "{error}"
        );
    }
    let volume = volume_of(&units);
    STATE_AT.iter().for_each(|at| flip(&volume, at.0 + 9, 1));
    assert!(Store::attach(volume, &PRIVATE).is_err());
    let volume = volume_of(&units);
    flip(&volume, STATE_AT[0].0 + 9, 1);
    Store::attach(volume, &PRIVATE).unwrap();
}

#[test]
fn a_cut_volume_is_refused() {
    let units = sample_pool();
    let volume = volume_of(&units);
    let mut bytes: [u8; 64] = volume.read_array(STATE_AT[0]);
    bytes[32..40].copy_from_slice(&(1u64 << 20).to_le_bytes());
    bytes[8..16].copy_from_slice(&100u64.to_le_bytes());
    let crc = crc32c(&bytes[8..]);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    volume
        .fence(volume.write(STATE_AT[0], &bytes, StoreKind::Metadata))
        .unwrap();
    assert!(matches!(
        Store::attach(volume, &PRIVATE),
        Err(StoreError::Shrunk { .. })
    ));
}
