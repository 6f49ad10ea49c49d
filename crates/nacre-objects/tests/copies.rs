//! Pools with copies that programs open by the library, without a supervisor.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nacre_objects::{OpenOptions, Pool, Transaction};
use nacre_store::structure_index::{Structure, survey};
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

const OBJECTS: u32 = 100;
/// Where data begins on a device.
const DATA_START: u64 = 2 << 20;

fn filled(pool: &Pool) {
    let mut t = Transaction::new();
    t.create_collection(b"c");
    for number in 0..OBJECTS {
        let name = number.to_be_bytes();
        t.write(b"c", &name, 0, vec![number as u8; 3000]);
        t.set_attribute(b"c", &name, b"_", vec![number as u8; 300]);
        t.set_omap(b"c", &name, b"key", vec![number as u8; 200]);
    }
    pool.commit(&t).unwrap();
}

/// Inverts all onodes and nodes of trees on one device; answers how many.
fn wreck(device: &Path, pool: &Pool) -> usize {
    let is_judged = |what| matches!(what, Structure::Onode | Structure::TreeNode(..));
    let parts = survey(pool.store()).into_iter();
    let wrecked: Vec<_> = parts.filter(|part| is_judged(part.what)).collect();
    let file = File::options().read(true).write(true).open(device).unwrap();
    for part in &wrecked {
        let mut bytes = vec![0; part.len as usize];
        file.read_exact_at(&mut bytes, DATA_START + part.at.0)
            .unwrap();
        bytes.iter_mut().for_each(|byte| *byte = !*byte);
        file.write_all_at(&bytes, DATA_START + part.at.0).unwrap();
    }
    wrecked.len()
}

#[test]
fn metadata_that_was_damaged_on_one_copy_comes_from_the_other_after_a_crash() {
    for name in NAMES {
        let (devices, pool) = pool();
        filled(&pool);
        assert!(wreck(&devices.file(name), &pool) > 2 * OBJECTS as usize);
        drop(pool.into_store().abandon());
        let problems = Pool::check(devices.file("b")).unwrap();
        assert!(problems.is_empty(), "{name}: {problems:?}");
        let pool = Pool::open(devices.file("b"), OpenOptions::default()).unwrap();
        for number in 0..OBJECTS {
            let (name, mut bytes) = (number.to_be_bytes(), [0; 3001]);
            let expected = vec![number as u8; 3000];
            assert_eq!(pool.read(b"c", &name, 0, &mut bytes).unwrap(), 3000);
            assert_eq!(bytes[..3000], expected);
            assert_eq!(pool.attribute(b"c", &name, b"_").unwrap(), expected[..300]);
            let value = pool.omap(b"c", &name, b"key").unwrap();
            assert_eq!(value.unwrap(), expected[..200]);
        }
        pool.close().unwrap();
        let data = |name| {
            std::fs::read(devices.file(name))
                .unwrap()
                .split_off(DATA_START as usize)
        };
        assert!(
            data("a")[..24 << 20] == data("b")[..24 << 20],
            "{name}: the copies differ"
        );
    }
}
