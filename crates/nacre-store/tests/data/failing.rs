//! A device that fails in the middle of a call.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use nacre_store::{NewObject, Store, StoreError, WriteMode};
use nacre_testkit::pool::{PRIVATE, PoolFiles};
use nacre_types::{DeviceOffset, FileOffset, ObjectId, StoreKind, VolumeOffset};
use nacre_volume::{Access, Observer, UserBytes, UserBytesMut, Volume};

use crate::pool::{PAGE, make_file, pattern, read_all, write};

const DIRECT: WriteMode = WriteMode::Direct;
const LOST: u64 = 8 << 20;

/// Takes the end of the device away, and touches it, when the next single word was stored, or the
/// next bytes of a program.
struct Failing {
    store: OnceLock<&'static Store>,
    device: PathBuf,
    armed: AtomicBool,
    armed_for_data: AtomicBool,
}

impl Observer for Failing {
    fn store(&self, _: u16, _: DeviceOffset, _: &[u8], kind: StoreKind, atomic: bool) {
        let Some(store) = self.store.get() else {
            return;
        };
        let data = kind == StoreKind::Data && self.armed_for_data.swap(false, SeqCst);
        if data || atomic && self.armed.swap(false, SeqCst) {
            let device = OpenOptions::new().write(true).open(&self.device).unwrap();
            let len = device.metadata().unwrap().len();
            device.set_len(len - LOST).unwrap();
            let last = VolumeOffset(store.volume().len() - PAGE);
            store.volume().read(last, &mut [0; 8]);
            assert!(store.volume().health().is_err());
        }
    }
    fn flush(&self, _: u16, _: DeviceOffset, _: u64) {}
    fn fence(&self, _: u16) {}
}

fn clone(store: &Store, from: ObjectId, to: ObjectId) {
    let (first, second) = store.lock_pair(from, to).unwrap();
    let copied = store.clone_range(&first, 0, &second.unwrap(), 0, PAGE);
    assert_eq!(copied.unwrap(), PAGE);
}

/// A pool on a device that fails once it is armed.
fn failing_pool(files: &PoolFiles) -> (&'static Store, Arc<Failing>) {
    nacre_media::fault::install_handler();
    let device = files.path();
    let volume = Volume::open(&device, Access::ReadWrite).unwrap();
    let failing = Arc::new(Failing {
        store: OnceLock::new(),
        device,
        armed: AtomicBool::new(false),
        armed_for_data: AtomicBool::new(false),
    });
    let observer: Arc<dyn Observer> = Arc::clone(&failing) as _;
    volume.set_observer(&observer);
    let store: &'static Store = Box::leak(Box::new(Store::attach(volume, &PRIVATE).unwrap()));
    assert!(failing.store.set(store).is_ok());
    (store, failing)
}

#[test]
fn units_that_a_failed_write_has_mapped_are_not_given_to_others() {
    let files = PoolFiles::new(64 << 20);
    let (store, failing) = failing_pool(&files);
    let [a, b, c] = ["a", "b", "c"].map(|name| make_file(store, name));
    write(store, a, 0, &pattern(1, 4096), DIRECT).unwrap();
    clone(store, a, b);
    let free = store.statfs().free_units;
    failing.armed.store(true, SeqCst);
    let new = pattern(2, 4096);
    let failed = write(store, b, 0, &new, DIRECT);
    assert!(matches!(failed, Err(StoreError::MediaFault)), "{failed:?}");
    assert!(!failing.armed.load(SeqCst), "the device failed");
    assert_eq!(store.statfs().free_units, free - 1, "a mapped unit is free");

    // Whoever takes the next unit must not find it in the other file.
    let _fails_too = write(store, c, 0, &pattern(3, 4096), DIRECT);
    assert_eq!(read_all(store, b), new);
}

/// A transaction that makes a directory without a name.
fn create(store: &Store) -> Result<(), StoreError> {
    let mut tx = store.begin()?;
    tx.create(&NewObject {
        mode: 0o040_755,
        ..NewObject::default()
    })?;
    tx.commit()
}

#[test]
fn a_transaction_fails_with_the_device_behind_its_commit_point_and_gives_nothing_back() {
    let files = PoolFiles::new(64 << 20);
    let (store, failing) = failing_pool(&files);
    create(store).unwrap();
    let free = store.statfs().free_objects;
    failing.armed.store(true, SeqCst);
    let failed = create(store);
    assert!(!failing.armed.load(SeqCst), "the device failed");
    assert!(matches!(failed, Err(StoreError::MediaFault)), "{failed:?}");
    assert_eq!(store.statfs().free_objects, free - 1, "the number is free");
    // Once failed, failed for good.
    assert!(matches!(create(store), Err(StoreError::MediaFault)));
}

#[test]
fn times_that_a_transaction_stores_alone_fail_with_the_device() {
    let files = PoolFiles::new(64 << 20);
    let (store, failing) = failing_pool(&files);
    let file = make_file(store, "a");
    let touch = || {
        let _guard = store.lock(file)?;
        let mut tx = store.begin()?;
        tx.touch_times(file, None, 7)?;
        tx.commit()
    };
    touch().unwrap();
    failing.armed.store(true, SeqCst);
    let failed = touch();
    assert!(!failing.armed.load(SeqCst), "the device failed");
    assert!(matches!(failed, Err(StoreError::MediaFault)), "{failed:?}");
}

#[test]
fn a_fast_path_that_fails_behind_its_stores_says_so_and_is_not_tried_again() {
    let from = UserBytes::from(&[7; 100][..]);
    for appends in [false, true] {
        let files = PoolFiles::new(64 << 20);
        let (store, failing) = failing_pool(&files);
        let file = make_file(store, "a");
        write(store, file, 0, &pattern(1, 200), DIRECT).unwrap();
        read_all(store, file);
        failing.armed_for_data.store(true, SeqCst);
        let failed = match appends {
            false => store.try_overwrite_fast(file, FileOffset(0), from, |_, _| true),
            true => store.try_append_fast(file, FileOffset(200), from, |_, _| true),
        };
        assert!(!failing.armed_for_data.load(SeqCst), "the device failed");
        assert!(
            matches!(failed, Some(Err(StoreError::MediaFault))),
            "{failed:?}"
        );
    }
}

/// What a new file of a pool says after its device was cut there.
fn read_of_a_device_cut_to(len: u64, bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
    let files = PoolFiles::new(64 << 20);
    let (store, failing) = failing_pool(&files);
    let file = make_file(store, "a");
    write(store, file, 0, bytes, DIRECT).unwrap();
    let device = OpenOptions::new().write(true).open(&failing.device);
    device.unwrap().set_len(len).unwrap();
    let mut found = vec![0; bytes.len()];
    let to = UserBytesMut::from(found.as_mut_slice());
    let read = store.read(file, FileOffset(0), to)?;
    found.truncate(read);
    Ok(found)
}

#[test]
fn what_a_device_has_lost_is_never_read_as_a_hole() {
    let bytes = pattern(1, 600 << 12);
    let mut lost = 0;
    for cut in (0..64 << 20).step_by(1 << 20) {
        match read_of_a_device_cut_to(cut, &bytes) {
            Ok(found) => assert!(
                found == bytes,
                "cut at {cut}: other bytes than were written"
            ),
            Err(StoreError::Corrupt(_) | StoreError::MediaFault) => lost += 1,
            Err(other) => panic!("cut at {cut}: {other}"),
        }
    }
    assert!(lost > 0, "no cut met the file");
}

#[test]
fn a_device_that_cannot_be_read_is_no_damage_of_the_pools_header() {
    nacre_media::fault::install_handler();
    const DATA_START: u64 = 2 << 20;
    for len in [DATA_START, DATA_START + PAGE] {
        let files = PoolFiles::new(64 << 20);
        let volume = Volume::open(&files.path(), Access::ReadWrite).unwrap();
        let device = OpenOptions::new().write(true).open(files.path());
        device.unwrap().set_len(len).unwrap();
        let attached = Store::attach(volume, &PRIVATE).map(drop);
        assert!(
            matches!(attached, Err(StoreError::MediaFault)),
            "{len}: {attached:?}"
        );
    }
}
