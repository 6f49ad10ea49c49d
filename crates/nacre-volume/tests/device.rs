//! A pool on a real device, named by `NACRE_TEST_DEVICE` (its contents are lost):
//! `NACRE_TEST_DEVICE=/dev/dax0.0 cargo test -p nacre-volume --test device -- --ignored`.
//!
//! `NACRE_TEST_KIND` tells what it must turn out to be: `device DAX`, `file on a DAX file system`,
//! `file in huge pages`.

use std::path::PathBuf;

use nacre_media::fault;
use nacre_testkit::pool::FORCE;
use nacre_types::{StoreKind, VolumeOffset};
use nacre_volume::{Access, DeviceKind, DeviceSpec, FlushMethod, Volume};

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 4096) as u8).collect()
}

#[test]
#[ignore = "needs NACRE_TEST_DEVICE and NACRE_TEST_KIND"]
fn a_pool_on_a_real_device_keeps_what_was_fenced() {
    fault::install_handler();
    let path = PathBuf::from(variable("NACRE_TEST_DEVICE"));
    let size = (!path.starts_with("/dev")).then_some(64 << 20);
    let spec = DeviceSpec {
        path: path.clone(),
        size,
    };
    let volume = Volume::create(&[spec], FORCE).unwrap();
    let bytes = pattern(100_001);
    for (at, len) in [(1, 7), (100, 250), (1000, 5000), (10_003, 100_001)] {
        volume
            .fence(volume.write(VolumeOffset(at), &bytes[..len], StoreKind::Data))
            .unwrap();
    }
    volume
        .fence(volume.store_u64(VolumeOffset(4 << 20), 77, StoreKind::Metadata))
        .unwrap();
    volume
        .fence(volume.zero(VolumeOffset(50_000), 9000, StoreKind::Data))
        .unwrap();
    let device = volume.devices().remove(0);
    println!("{device:?}");
    assert_eq!(device.kind.to_string(), variable("NACRE_TEST_KIND"));
    let dax = matches!(device.kind, DeviceKind::DevDax | DeviceKind::DaxFile);
    assert_eq!(device.flush != FlushMethod::None, dax);
    assert_eq!(volume.survives().power_loss, dax);
    drop(volume);
    let volume = Volume::open(&path, Access::ReadOnly).unwrap();
    let mut back = vec![0; 100_001];
    volume.read(VolumeOffset(10_003), &mut back);
    assert!(back[..39_997] == bytes[..39_997] && back[48_997..] == bytes[48_997..]);
    assert!(back[39_997..48_997].iter().all(|&byte| byte == 0));
    assert_eq!(volume.load_u64(VolumeOffset(4 << 20)), 77);
    assert_eq!(volume.health(), Ok(()));
    drop(volume);
    Volume::delete(&[&path]).unwrap();
    assert!(Volume::inspect(&path).is_err());
}
