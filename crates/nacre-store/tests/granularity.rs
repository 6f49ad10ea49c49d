//! The sizes in which the devices of a pool are written, from label and options down to the medium.

use std::path::Path;
use std::sync::{Arc, Mutex};

use nacre_store::{AttachOptions, Store};
use nacre_testkit::pool::{PRIVATE, PoolFiles};
use nacre_types::{DeviceOffset, StoreKind, VolumeOffset};
use nacre_volume::{Access, Granularity, Observer, PieceTable, Policy, UserBytes, Volume};

/// Lengths of what is stored.
#[derive(Default)]
struct Pieces(Mutex<Vec<u64>>);

impl Observer for Pieces {
    fn store(&self, _: u16, _: DeviceOffset, _: &[u8], _: StoreKind, _: bool) {}

    fn flush(&self, _: u16, _: DeviceOffset, _: u64) {}

    fn fence(&self, _: u16) {}

    fn persisted(&self, _: u16, _: DeviceOffset, len: u64, kind: StoreKind) {
        if kind == StoreKind::Data {
            self.0.lock().unwrap().push(len);
        }
    }
}

/// How 16 KiB of contents reach the medium.
fn pieces(path: &Path, granularity: Option<Policy>) -> Vec<u64> {
    let volume = Volume::open(path, Access::ReadWrite).unwrap();
    let options = AttachOptions {
        granularity,
        ..PRIVATE
    };
    let store = Store::attach(volume, &options).unwrap();
    let pieces = Arc::new(Pieces::default());
    let observer: Arc<dyn Observer> = pieces.clone();
    store.volume().set_observer(&observer);
    let bytes = [7; 16384];
    // A free place, and nobody reads it.
    let at = VolumeOffset(16 << 20);
    let volume = store.volume();
    let stored = volume.write_user(at, UserBytes::from(&bytes[..]), StoreKind::Data);
    volume.fence(stored.unwrap()).unwrap();
    store.detach().unwrap();
    pieces.0.lock().unwrap().clone()
}

#[test]
fn the_label_decides_and_an_option_overrides_it() {
    let pool = PoolFiles::new(32 << 20);
    let path = pool.path();
    assert_eq!(pieces(&path, None), [16384]);
    let optane = Policy::Optane { modules: 1 };
    assert_eq!(pieces(&path, Some(optane)), [16384], "one writer");
    assert_eq!(
        pieces(&path, Some(Policy::Calibrated)),
        [16384],
        "nothing was measured"
    );
    let mut writes = PieceTable::default();
    writes.0[0][3] = 9;
    Volume::store_granularity(&path, |_, _| Granularity {
        policy: Policy::Calibrated,
        measured: 1,
        writes,
        ..Granularity::default()
    })
    .unwrap();
    assert_eq!(pieces(&path, None), [512; 32]);
    assert_eq!(pieces(&path, Some(Policy::None)), [16384]);
}
