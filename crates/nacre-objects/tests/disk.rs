//! Objects of a pool on a disk.

use std::fs;
use std::path::Path;

use nacre_objects::{Error, OpenOptions, Pool, Transaction};
use nacre_store::{MIN_POOL_BYTES, WriteMode};
use nacre_testkit::pool::{PoolChoice, PoolFiles, attach};
use nacre_volume::{Access, Caching, CreateOptions, DeviceSpec, Volume, VolumeError};

fn opened(path: &Path) -> Pool {
    Pool::of(attach(path, Access::ReadWrite).expect("attach"))
}

/// The copy has what the disk has at that moment, and nothing of what is in memory alone.
#[test]
fn a_transaction_is_on_the_disk_when_it_returns() {
    let files = PoolFiles::make(&PoolChoice {
        base: Path::new(env!("CARGO_TARGET_TMPDIR")),
        bytes: 64 << 20,
        caching: Caching::Always,
        ..PoolChoice::default()
    });
    let pool = opened(&files.path());
    let mut transaction = Transaction::new();
    transaction
        .create_collection(b"c")
        .write(b"c", b"o", 0, b"bytes".as_slice());
    pool.commit(&transaction).expect("commit");

    let copy = files.file("copy");
    fs::copy(files.path(), &copy).expect("copy");
    let found = opened(&copy);
    let mut bytes = [0; 5];
    assert_eq!(found.read(b"c", b"o", 0, &mut bytes).expect("read"), 5);
    assert_eq!(&bytes, b"bytes");
    found.close().expect("close");
    pool.close().expect("close");
}

/// Whether the program `nacre` would make a pool with an image there.
fn is_a_disk(folder: &Path) -> bool {
    let device = DeviceSpec {
        path: folder.join("of the program"),
        size: Some(64 << 20),
    };
    let how = CreateOptions {
        caching: Caching::Disks,
        ..CreateOptions::default()
    };
    let volume = Volume::create(&[device], how).expect("create");
    volume.is_cached()
}

#[test]
fn a_new_pool_has_the_mode_of_its_device() {
    for base in [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"] {
        let folder = tempfile::tempdir_in(base).expect("folder");
        let mode = match is_a_disk(folder.path()) {
            true => WriteMode::Cached,
            false => WriteMode::Direct,
        };
        let path = folder.path().join("of the library");
        let pool = Pool::create(&path, 64 << 20).expect("create");
        assert_eq!(pool.store().mode(), mode);
        pool.close().expect("close");
        let again = Pool::open(&path, OpenOptions::default()).expect("open");
        assert_eq!(again.store().mode(), mode);
        again.close().expect("close");
    }
}

#[test]
fn a_pool_that_would_be_too_small_is_told_what_suffices_and_not_made() {
    for base in [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"] {
        let folder = tempfile::tempdir_in(base).expect("folder");
        let path = folder.path().join("small");
        let refused = Pool::create(&path, MIN_POOL_BYTES / 2).map(drop);
        let Err(Error::Volume(VolumeError::TooSmall { least, .. })) = refused else {
            panic!("{refused:?}");
        };
        assert!(!path.exists());
        let pool = Pool::create(&path, least).expect("what suffices");
        pool.close().expect("close");
    }
}
