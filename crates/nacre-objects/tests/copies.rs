//! Pools with copies that programs open by the library, without a supervisor.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nacre_objects::{OpenOptions, Pool, Transaction};
use nacre_store::{FormatOptions, Store};
use nacre_testkit::pool::{CAREFUL, Devices};
use nacre_volume::{CreateOptions, LegState};

const NAMES: [&str; 2] = ["a", "b"];

fn pool() -> (Devices, Pool) {
    let devices = Devices::below(Path::new("/dev/shm"));
    let options = CreateOptions {
        copies: 2,
        ..CAREFUL
    };
    let volume = devices.volume(&NAMES, 32 << 20, options);
    Store::format(&volume, &FormatOptions::default()).unwrap();
    drop(volume);
    let pool = Pool::open(devices.file("a"), OpenOptions::default()).unwrap();
    (devices, pool)
}

#[test]
fn a_copy_that_something_was_written_over_is_given_up_by_who_changes_the_pool() {
    for name in NAMES {
        let (devices, pool) = pool();
        let file = File::options().write(true).open(devices.file(name));
        file.unwrap().write_all_at(&[7; 4 << 20], 0).unwrap();
        let mut t = Transaction::new();
        t.create_collection(b"one");
        t.write(b"one", b"object", 0, vec![5; 9000]);
        pool.commit(&t).unwrap();
        let copies = pool.store().volume().copies().unwrap();
        let lost = copies.iter().find(|copy| copy.path.ends_with(name));
        assert_eq!(lost.unwrap().state, LegState::Failed);
        pool.close().unwrap();
    }
}
