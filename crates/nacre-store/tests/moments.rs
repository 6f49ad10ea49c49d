//! Devices that each hold a part of a pool are of one moment, or refused; copies of an earlier
//! moment are dropped.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use nacre_store::repair::repair;
use nacre_store::{AttachOptions, Store, StoreError};
use nacre_testkit::names::{create, find, remove};
use nacre_testkit::pool::{PoolChoice, PoolFiles, assert_sound};
use nacre_volume::{Access, Caching, LegState, Volume, VolumeError};

const NAMES: [&str; 2] = ["one", "two"];
const BOTH: [Access; 2] = [Access::ReadWrite, Access::ReadOnly];

/// In memory, on disks, and with a device behind.
fn pools() -> impl Iterator<Item = PoolFiles> {
    let kinds = [
        (Caching::Never, 0),
        (Caching::Always, 0),
        (Caching::Never, 1),
    ];
    kinds.into_iter().map(|(caching, behind)| {
        PoolFiles::make(&PoolChoice {
            devices: &NAMES,
            caching,
            behind,
            ..PoolChoice::default()
        })
    })
}

fn attach(path: &Path, access: Access) -> Result<Store, StoreError> {
    Store::attach(Volume::open(path, access)?, &AttachOptions::default())
}

fn use_once(pool: &PoolFiles) {
    let store = attach(&pool.file("one"), Access::ReadWrite).unwrap();
    store.detach().unwrap();
}

fn assert_older(pool: &PoolFiles, older: &Path, accesses: &[Access]) {
    for access in accesses {
        let refused = attach(&pool.file("one"), *access).err().unwrap();
        let StoreError::Volume(why) = refused else {
            panic!("{refused}");
        };
        let is_told = matches!(&*why, VolumeError::OlderDevice(told) if told == older);
        assert!(is_told, "{why}");
    }
}

#[test]
fn a_device_that_was_put_back_from_an_older_copy_is_refused_by_name() {
    for pool in pools() {
        for name in NAMES {
            let (path, newest) = (pool.file(name), pool.file("newest"));
            use_once(&pool);
            let copies: Vec<PathBuf> = NAMES.iter().map(|it| pool.file(it)).collect();
            let older: Vec<_> = copies.iter().map(|it| fs::read(it).unwrap()).collect();
            use_once(&pool);
            fs::copy(&path, &newest).unwrap();
            let own = NAMES.iter().position(|it| *it == name).unwrap();
            fs::write(&path, &older[own]).unwrap();
            assert_older(&pool, &path, &BOTH);
            fs::copy(&newest, &path).unwrap();
            use_once(&pool);
            // All of one backup are of one moment.
            copies
                .iter()
                .zip(&older)
                .for_each(|(path, held)| fs::write(path, held).unwrap());
            use_once(&pool);
            fs::remove_file(&newest).unwrap();
        }
    }
}

#[test]
fn a_repair_takes_devices_as_they_are() {
    for pool in pools() {
        use_once(&pool);
        let older = fs::read(pool.file("two")).unwrap();
        use_once(&pool);
        fs::write(pool.file("two"), older).unwrap();
        assert_older(&pool, &pool.file("two"), &BOTH);
        let volume = Volume::open(&pool.file("one"), Access::ReadWrite).unwrap();
        repair(volume, false, &mut |_| {}).unwrap();
        use_once(&pool);
    }
}

#[test]
fn a_use_that_was_cut_short_makes_no_device_older() {
    for pool in pools() {
        for name in NAMES {
            use_once(&pool);
            let volume = Volume::open(&pool.file("one"), Access::ReadWrite).unwrap();
            volume.begin_use().unwrap();
            drop(volume);
            let path = pool.file(name);
            // Where the number is, without its mark that all have it.
            let mut begun = fs::read(&path).unwrap();
            begun[4096 + 40] = 0;
            let crc = nacre_types::crc32c(&begun[4096..4096 + 44]);
            begun[4096 + 44..4096 + 48].copy_from_slice(&crc.to_le_bytes());
            fs::write(&path, begun).unwrap();
            use_once(&pool);
        }
    }
}

fn make_in_it(path: &Path, name: &str) {
    let store = attach(path, Access::ReadWrite).unwrap();
    create(&store, name).unwrap();
    store.detach().unwrap();
}

fn rebuild(store: &Store, index: usize) {
    let volume = store.volume();
    let lost = volume.copies().unwrap()[index].uuid;
    assert!(volume.return_copy(lost).unwrap());
    volume
        .rebuild_copies(|_| ControlFlow::Continue(()))
        .unwrap();
}

#[test]
fn a_copy_that_was_put_back_from_an_older_one_is_a_copy_no_more() {
    for (index, name) in NAMES.into_iter().enumerate() {
        let pool = PoolFiles::make(&PoolChoice {
            devices: &NAMES,
            copies: 2,
            ..PoolChoice::default()
        });
        let (path, other) = (pool.file(name), pool.file(NAMES[1 - index]));
        make_in_it(&other, "before");
        let older = fs::read(&path).unwrap();
        make_in_it(&other, "later");
        fs::write(&path, older).unwrap();
        assert_older(&pool, &path, &[Access::ReadOnly]);
        for first in [&path, &other] {
            let store = attach(first, Access::ReadWrite).unwrap();
            assert!(find(&store, "later").is_some());
            let states = store.volume().copies().unwrap();
            let states: Vec<LegState> = states.iter().map(|it| it.state).collect();
            assert_eq!(states[index], LegState::Failed, "{states:?}");
            assert_eq!(states[1 - index], LegState::Current, "{states:?}");
            store.detach().unwrap();
        }
        let store = attach(&other, Access::ReadWrite).unwrap();
        rebuild(&store, index);
        store.detach().unwrap();
        for _ in 0..2 {
            make_in_it(&other, "again");
            let store = attach(&path, Access::ReadWrite).unwrap();
            let mut states = store.volume().copies().unwrap().into_iter();
            assert!(states.all(|it| it.state == LegState::Current));
            remove(&store, "again");
            store.detach().unwrap();
        }
        fs::remove_file(&other).unwrap();
        let store = attach(&path, Access::ReadWrite).unwrap();
        assert!(find(&store, "later").is_some());
        assert_sound(&store);
        store.detach().unwrap();
    }
}
