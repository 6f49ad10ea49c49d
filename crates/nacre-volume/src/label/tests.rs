//! Labels as they are written and read, and what is refused.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre_media::{Access, Device, Granularity, LegState, PieceTable, Policy};
use nacre_types::{Uuid, crc32c};
use proptest::prelude::{any, proptest};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use super::LabelWatch;
use super::{Copy, LabelDevice, LabelInfo, RawLabel, decode, encode, hint, order, write};
use crate::label::placement::Stripe;
use crate::label::stay::{OnDevice, Stay};
use crate::layout::{
    BEHIND, COPIES, DISKS, JOURNAL, LEAVES, PARTS, PARTS_LEAVE, data_len, second_copy,
};

fn label() -> LabelInfo {
    let device = |path: &str| LabelDevice {
        uuid: Uuid::random(),
        size: 64 << 20,
        data: data_len(64 << 20).unwrap(),
        path: PathBuf::from(path),
        state: None,
        stay: Stay::Stays,
        replaces: None,
    };
    let devices = vec![device("/a/b"), device("/c"), device("")];
    LabelInfo {
        pool: Uuid::random(),
        index: 1,
        sequence: 7,
        intact: true,
        granularity: granularity(),
        emulates: "optane-100".into(),
        journal: 0,
        beside: false,
        sums: false,
        cache: 3 << 20,
        saved_every: 5000,
        common: 0,
        stripe: Stripe::Bytes(1 << 20),
        behind: 1,
        at: (0, 0),
        home: (0, 0),
        header: None,
        journal_at: None,
        devices,
    }
}

fn granularity() -> Granularity {
    let mut writes = PieceTable::default();
    writes.0[5][2] = 8;
    let reads = PieceTable([[18; 8]; 6]);
    Granularity {
        policy: Policy::Calibrated,
        measured: 1_700_000_000,
        writes,
        reads,
        speed: 3200,
    }
}

fn bytes(raw: &RawLabel) -> [u8; 4096] {
    raw.as_bytes().try_into().unwrap()
}

fn resealed(mut raw: RawLabel) -> [u8; 4096] {
    raw.crc = U32::ZERO;
    raw.crc = U32::new(crc32c(raw.as_bytes()));
    bytes(&raw)
}

/// What each change makes of a label contradicts itself.
fn each_is_damage(label: &LabelInfo, changes: &[fn(&mut RawLabel)]) {
    for (number, change) in changes.iter().enumerate() {
        let mut raw = encode(label);
        change(&mut raw);
        let copy = decode(&resealed(raw));
        assert!(matches!(copy, Copy::Damaged), "change {number}");
    }
}

/// Bytes of an empty device.
const SIZE: u64 = 64 << 20;

fn empty_device(folder: &Path) -> (File, Arc<Device>) {
    let path = folder.join("device");
    let file = File::create_new(&path).unwrap();
    file.set_len(SIZE).unwrap();
    let device = Device::open(&path, Access::ReadWrite).unwrap();
    (file, Arc::new(device))
}

#[test]
fn the_copy_that_alone_counts_is_written_last() {
    let folder = tempfile::tempdir().unwrap();
    let (file, device) = empty_device(folder.path());
    let second = second_copy(SIZE).unwrap();
    let mut label = label();
    // One that does not begin as a device of a pool is refused as written over.
    assert_eq!(order(&device, SIZE).unwrap(), [0, second]);
    write(&device, &label).unwrap();
    assert_eq!(order(&device, SIZE).unwrap(), [second, 0]);
    let put = |at: u64, bytes: &[u8]| file.write_all_at(bytes, at).unwrap();
    put(0, &[1; 100]);
    assert_eq!(order(&device, SIZE).unwrap(), [0, second]);
    write(&device, &label).unwrap();
    label.sequence += 1;
    put(second, encode(&label).as_bytes());
    assert_eq!(order(&device, SIZE).unwrap(), [0, second]);
    put(second, &[1; 100]);
    assert_eq!(order(&device, SIZE).unwrap(), [second, 0]);
}

#[test]
fn what_a_watch_has_seen_counts_as_long_as_it_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let (file, device) = empty_device(folder.path());
    let (label, second) = (label(), second_copy(SIZE).unwrap());
    let first_device = LabelInfo { index: 0, ..label };
    let whole = bytes(&encode(&first_device));
    let put = |at: u64, bytes: &[u8]| file.write_all_at(bytes, at).unwrap();
    put(0, &whole);
    put(second, &whole);
    let watch = LabelWatch::default();
    let has = || watch.has_one_of(&device, first_device.pool);
    assert!(!watch.has_one_of(&device, Uuid::random()));
    assert!(has() && has());
    for at in [0, 4095] {
        put(at, &[whole[at as usize] ^ 1]);
        assert!(has(), "the second one is whole");
        put(second, &[1; 100]);
        assert!(!has(), "both are damaged");
        put(0, &whole);
        assert!(has() && has(), "the first one is whole");
        put(second, &whole);
    }
    file.set_len(second + 4095).unwrap();
    assert!(!has(), "it was cut");
    file.set_len(SIZE).unwrap();
    assert!(has());
}

#[test]
fn what_was_encoded_decodes() {
    let label = label();
    let Copy::Good(decoded) = decode(&bytes(&encode(&label))) else {
        panic!("not decoded")
    };
    assert_eq!(*decoded, label);
}

#[test]
fn contradictions_behind_a_valid_crc_are_damage() {
    let changes: [fn(&mut RawLabel); 24] = [
        |raw| raw.sequence = U64::new(u64::MAX),
        |raw| raw.sequence = U64::new(1 << 48),
        |raw| raw.journal = U64::new(4 << 20),
        |raw| raw.incompatible.set(1),
        |raw| {
            raw.incompatible.set(1);
            raw.journal = U64::new(4 << 20);
        },
        |raw| raw.devices = U16::new(0),
        |raw| raw.devices = U16::new(17),
        |raw| raw.index = U16::new(3),
        |raw| raw.device[0] ^= 1,
        |raw| raw.table[2].device = raw.table[0].device,
        |raw| raw.table[0].data = raw.table[0].size,
        |raw| raw.table[0].path_len = U16::new(193),
        |raw| raw.granularity.policy = U16::new(3),
        |raw| raw.granularity.policy = U16::new(1),
        |raw| raw.granularity.modules = U16::new(1),
        |raw| raw.granularity.writes[0][0] = 7,
        |raw| raw.granularity.reads[5][7] = 64,
        |raw| raw.stripe = U64::new(2048),
        |raw| raw.stripe = U64::new(4096 + 512),
        |raw| raw.stripe = U64::new(4 << 20),
        |raw| raw.stripe = U64::new(1 << 63),
        |raw| raw.emulates[3] = 0,
        |raw| raw.emulates[63] = 1,
        |raw| raw.emulates[0] = 0xff,
    ];
    each_is_damage(&label(), &changes);
}

#[test]
fn lying_labels_of_copies_are_damage() {
    let copies = {
        let mut label = LabelInfo {
            behind: 0,
            ..label()
        };
        for device in &mut label.devices {
            device.state = Some(LegState::Current);
        }
        label.devices[2].state = Some(LegState::Failed);
        (label.at, label.home) = ((5, 6), (7, 8));
        label
    };
    let Copy::Good(decoded) = decode(&bytes(&encode(&copies))) else {
        panic!("not decoded")
    };
    assert_eq!(*decoded, copies);
    assert_eq!(decoded.volume_len(), decoded.devices[0].data);
    let changes: [fn(&mut RawLabel); 13] = [
        |raw| raw.table[0].state = 0,
        |raw| raw.table[0].state = 5,
        |raw| raw.incompatible = U64::new(0),
        |raw| raw.incompatible.set(3),
        |raw| raw.table[0].data = U64::new(4 << 20),
        |raw| raw.devices = U16::new(6),
        |raw| (raw.table[0].state, raw.table[1].state) = (3, 3),
        |raw| raw.table[0].vacant = 1,
        |raw| raw.table[2].vacant = 2,
        |raw| raw.table[0].replaces = 1,
        |raw| raw.table[0].replaces = 4,
        |raw| (raw.table[2].vacant, raw.table[0].replaces) = (1, 3),
        |raw| (raw.table[2].vacant, raw.table[2].replaces) = (1, 1),
    ];
    each_is_damage(&copies, &changes);
}

#[test]
fn a_copy_that_left_and_one_that_is_replaced_are_told() {
    let mut copies = LabelInfo {
        behind: 0,
        ..label()
    };
    for device in &mut copies.devices {
        device.state = Some(LegState::Current);
    }
    copies.devices[0].state = Some(LegState::Failed);
    copies.devices[0].stay = Stay::Gone;
    copies.devices[1].replaces = Some(copies.devices[2].uuid);
    let Copy::Good(decoded) = decode(&bytes(&encode(&copies))) else {
        panic!("not decoded")
    };
    assert_eq!(*decoded, copies);
    let there: Vec<usize> = decoded.copies().map(|(index, _)| index).collect();
    assert_eq!(there, [1, 2]);
}

#[test]
fn lying_labels_of_devices_behind_are_damage() {
    let changes: [fn(&mut RawLabel); 4] = [
        |raw| raw.behind = U16::new(0),
        |raw| raw.behind = U16::new(3),
        |raw| raw.incompatible = U64::new(0),
        |raw| raw.incompatible.set(6),
    ];
    each_is_damage(&label(), &changes);
}

#[test]
fn what_stands_in_front_is_there_and_has_the_header() {
    let mut good = label();
    (good.index, good.devices[1].stay) = (0, Stay::Gone);
    let mut moved = label();
    (moved.index, moved.devices[0].stay) = (1, Stay::Gone);
    moved.header = Some(OnDevice { device: 1, at: 0 });
    for label in [&good, &moved] {
        assert!(matches!(decode(&bytes(&encode(label))), Copy::Good(_)));
    }
    let mut behind = moved.clone();
    behind.header = Some(OnDevice { device: 2, at: 0 });
    let mut leaves = good.clone();
    leaves.devices[0].stay = Stay::Leaves;
    let mut gone = behind.clone();
    (gone.index, gone.devices[1].stay) = (2, Stay::Gone);
    for (number, label) in [behind, leaves, gone].iter().enumerate() {
        let copy = decode(&bytes(&encode(label)));
        assert!(matches!(copy, Copy::Damaged), "change {number}");
    }
}

#[test]
fn lying_labels_of_devices_that_leave_are_damage() {
    let leaving = {
        let mut label = LabelInfo {
            behind: 0,
            ..label()
        };
        label.devices[0].stay = Stay::Gone;
        label.devices[2].stay = Stay::Leaves;
        label.header = Some(OnDevice {
            device: 1,
            at: 8 << 20,
        });
        label
    };
    let Copy::Good(decoded) = decode(&bytes(&encode(&leaving))) else {
        panic!("not decoded")
    };
    assert_eq!(*decoded, leaving);
    let changes: [fn(&mut RawLabel); 9] = [
        |raw| raw.incompatible = U64::new(0),
        |raw| raw.incompatible.set(10),
        |raw| raw.table[0].state = 0,
        |raw| raw.table[0].state = 18,
        |raw| raw.table[0].state = 16,
        |raw| raw.table[1].state = 17,
        |raw| raw.header_device = U16::new(0),
        |raw| raw.header_device = U16::new(3),
        |raw| raw.header_at = U64::new(4096),
    ];
    each_is_damage(&leaving, &changes);
}

#[test]
fn copies_with_a_journal_have_a_feature_of_their_own() {
    let mut copies = label();
    (copies.journal, copies.behind) = (4 << 20, 0);
    let data = data_len((64 << 20) - copies.journal).unwrap();
    for device in &mut copies.devices {
        device.data = data;
        device.state = Some(LegState::Current);
    }
    let Copy::Good(read) = decode(&bytes(&encode(&copies))) else {
        panic!("it is refused");
    };
    assert_eq!(*read, copies);
    for features in [JOURNAL | COPIES, DISKS | COPIES, DISKS | JOURNAL, COPIES] {
        let mut raw = encode(&copies);
        raw.incompatible.set(features);
        assert!(
            matches!(decode(&resealed(raw)), Copy::Damaged),
            "{features}"
        );
    }
}

#[test]
fn copies_with_data_of_their_own_have_a_feature_and_a_length() {
    let mut copies = label();
    (copies.journal, copies.behind, copies.common) = (4 << 20, 0, 12 << 20);
    let room = data_len((64 << 20) - copies.journal).unwrap();
    for (device, left) in copies.devices.iter_mut().zip([0, 4 << 20, 8 << 20]) {
        device.data = room - copies.common - left;
        device.state = Some(LegState::Current);
    }
    let Copy::Good(read) = decode(&bytes(&encode(&copies))) else {
        panic!("it is refused");
    };
    assert_eq!(*read, copies);
    assert_eq!(read.volume_len(), 3 * room - (36 << 20));
    let changes: [fn(&mut RawLabel); 8] = [
        |raw| raw.table[0].data = U64::new(u64::MAX),
        |raw| raw.table[0].data = U64::new(u64::MAX - raw.common.get()),
        |raw| raw.common = U64::new(0),
        |raw| raw.common = U64::new(4096),
        |raw| raw.common = U64::new(16 << 20),
        |raw| raw.common = U64::new(1 << 63),
        |raw| raw.incompatible = U64::new(JOURNAL | COPIES | DISKS),
        |raw| raw.table[0].data = U64::new(raw.table[0].data.get() + (4 << 20)),
    ];
    each_is_damage(&copies, &changes);
}

#[test]
fn parts_with_a_journal_have_a_feature_of_their_own_and_it_lies_on_the_first() {
    let mut parts = label();
    (parts.journal, parts.behind) = (4 << 20, 0);
    parts.devices[0].data = data_len((64 << 20) - parts.journal).unwrap();
    let Copy::Good(read) = decode(&bytes(&encode(&parts))) else {
        panic!("it is refused");
    };
    assert!(*read == parts && read.is_parts());
    let changes: [fn(&mut RawLabel); 6] = [
        |raw| raw.incompatible = U64::new(JOURNAL),
        |raw| raw.incompatible = U64::new(PARTS),
        |raw| raw.incompatible = U64::new(JOURNAL | PARTS | COPIES),
        |raw| {
            raw.incompatible = U64::new(JOURNAL | PARTS | BEHIND);
            raw.behind = U16::new(1);
        },
        |raw| raw.table[0].data = raw.table[1].data,
        |raw| raw.table[1].data = raw.table[0].data,
    ];
    each_is_damage(&parts, &changes);
}

#[test]
fn parts_that_leave_have_a_feature_and_their_journal_a_place() {
    let mut parts = label();
    (parts.journal, parts.behind) = (4 << 20, 0);
    parts.devices[0].data = data_len((64 << 20) - parts.journal).unwrap();
    (parts.devices[0].stay, parts.devices[2].stay) = (Stay::Gone, Stay::Leaves);
    let on = |device, at| Some(OnDevice { device, at });
    (parts.header, parts.journal_at) = (on(1, 8 << 20), on(2, 52 << 20));
    let Copy::Good(read) = decode(&bytes(&encode(&parts))) else {
        panic!("it is refused");
    };
    assert_eq!(*read, parts);
    let changes: [fn(&mut RawLabel); 6] = [
        |raw| raw.incompatible = U64::new(JOURNAL | PARTS | LEAVES),
        |raw| raw.incompatible = U64::new(JOURNAL | PARTS | PARTS_LEAVE),
        |raw| raw.journal_device = U16::new(0),
        |raw| raw.journal_device = U16::new(3),
        |raw| raw.journal_at = U64::new(4096),
        |raw| raw.journal_at = U64::new(60 << 20),
    ];
    each_is_damage(&parts, &changes);
}

#[test]
fn newer_versions_and_features_are_told_apart_from_damage() {
    let mut raw = encode(&label());
    raw.version = U32::new(2);
    assert!(matches!(decode(&resealed(raw)), Copy::Newer(2)));
    let mut raw = encode(&label());
    raw.incompatible.set(1 << 40);
    assert!(matches!(
        decode(&resealed(raw)),
        Copy::Features(0x100_0000_0000)
    ));
}

#[test]
fn hints_fit_or_shrink_to_the_file_name() {
    assert_eq!(hint(Path::new("/x/y")), Path::new("/x/y"));
    let long = format!("/{}/name", "d".repeat(200));
    assert_eq!(hint(Path::new(&long)), Path::new("name"));
    assert_eq!(hint(Path::new(&"n".repeat(200))), Path::new(""));
}

proptest! {
    #[test]
    fn every_changed_byte_is_noticed(at in 0usize..4096, xor in 1u8..) {
        let mut bytes = bytes(&encode(&label()));
        bytes[at] ^= xor;
        let copy = decode(&bytes);
        // A version is judged before the checksum, which a later format may compute otherwise.
        let is_version = (8..12).contains(&at);
        assert!(match copy {
            Copy::Damaged | Copy::None => true,
            Copy::PerhapsNewer(version) => is_version && version > super::VERSION,
            _ => false,
        });
    }

    #[test]
    fn anything_behind_a_valid_crc_decodes_without_panic(at in 8usize..4096, value in any::<[u8; 8]>()) {
        let mut raw = encode(&label());
        let end = (at + 8).min(4096);
        raw.as_mut_bytes()[at..end].copy_from_slice(&value[..end - at]);
        decode(&resealed(raw));
    }
}
