//! Copies whose beginning was cleared or written over: what they said of themselves there is gone.
//! And places of copies that left, of which labels say nothing any more.

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nacre_testkit::pool::{CAREFUL, Devices, commit_image, memory_file};
use nacre_types::{StoreKind, VolumeOffset};
use nacre_volume::{Access, Caching, CreateOptions, LegState, Volume};

const MIB: u64 = 1 << 20;
/// Where data begins on a device.
const DATA: u64 = 2 * MIB;
/// What is stored while a copy is away.
const LATER: VolumeOffset = VolumeOffset(9 << 20);
/// What is not.
const EARLIER: VolumeOffset = VolumeOffset(1 << 20);

const KINDS: [Caching; 2] = [Caching::Always, Caching::Never];

/// A pool on `a` and `b`.
struct Pool(Devices, Caching);

impl Pool {
    /// With a byte at both places.
    fn new(caching: Caching) -> Self {
        let options = CreateOptions {
            copies: 2,
            caching,
            ..CAREFUL
        };
        let devices = Devices::below(Path::new("/dev/shm"));
        devices.volume(&["a", "b"], 32 * MIB, options);
        let pool = Self(devices, caching);
        let volume = pool.open("a");
        pool.put(&volume, EARLIER, 1);
        pool.put(&volume, LATER, 1);
        pool.leave(volume);
        pool
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.file(name)
    }

    /// As after a power cut.
    fn open(&self, name: &str) -> Volume {
        if self.1 == Caching::Always {
            return self.0.imaged(name);
        }
        let volume = Volume::open(&self.path(name), Access::ReadWrite).unwrap();
        volume.make_shared(memory_file()).unwrap();
        volume.recover_copies(&mut |_, _| None);
        volume
    }

    /// As the last one.
    fn leave(&self, volume: Volume) {
        match self.1 {
            Caching::Always => volume.checkpoint().unwrap(),
            _ => assert!(volume.close_copies().unwrap()),
        }
    }

    fn put(&self, volume: &Volume, at: VolumeOffset, byte: u8) {
        let stored = volume.write(at, &[byte; 100], StoreKind::Data);
        volume.fence(stored).unwrap();
        if self.1 == Caching::Always {
            commit_image(volume);
        }
    }

    /// What a device holds of a place.
    fn on(&self, name: &str, at: VolumeOffset) -> u8 {
        let bytes = &fs::read(self.path(name)).unwrap()[(DATA + at.0) as usize..][..100];
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        bytes[0]
    }

    /// So much of a device is written over, from its start.
    fn write_over(&self, name: &str, len: u64, byte: u8) {
        let file = fs::File::options().write(true).open(self.path(name));
        let bytes = vec![byte; len as usize];
        file.unwrap().write_all_at(&bytes, 0).unwrap();
    }

    fn take_away(&self, name: &str) {
        fs::rename(self.path(name), self.path("away")).unwrap();
    }

    fn put_back(&self, name: &str) {
        fs::rename(self.path("away"), self.path(name)).unwrap();
    }
}

/// What was stored is on both, once `b` has what it lacks.
fn b_comes_back(pool: &Pool, volume: &Volume) {
    let lost = volume.copies().unwrap()[1].uuid;
    assert!(volume.return_copy(lost).unwrap());
    let told = |_| ControlFlow::Continue(());
    assert_eq!(volume.rebuild_copies(told).unwrap(), 1);
    let states = volume.copies().unwrap().into_iter().map(|it| it.state);
    assert!(states.into_iter().all(|it| it == LegState::Current));
    if pool.1 == Caching::Always {
        volume.checkpoint().unwrap();
    }
    for name in ["a", "b"] {
        let held = [EARLIER, LATER].map(|at| pool.on(name, at));
        assert_eq!(held, [1, 2], "{name} {:?}", pool.1);
    }
}

#[test]
fn a_copy_that_was_cleared_while_nobody_used_it_does_not_know_what_others_lack() {
    for kind in KINDS {
        let pool = Pool::new(kind);
        pool.take_away("b");
        let volume = pool.open("a");
        pool.put(&volume, LATER, 2);
        pool.leave(volume);
        pool.write_over("a", DATA, 0);
        pool.put_back("b");
        b_comes_back(&pool, &pool.open("a"));
    }
}

#[test]
fn nor_one_that_was_cleared_while_it_was_used() {
    for kind in KINDS {
        for is_killed in [false, true] {
            let pool = Pool::new(kind);
            pool.take_away("b");
            let mut volume = pool.open("a");
            pool.put(&volume, LATER, 2);
            pool.write_over("a", DATA, 0);
            volume.check_copies().unwrap();
            pool.put(&volume, EARLIER, 1);
            if is_killed {
                drop(volume);
                volume = pool.open("a");
            }
            pool.put_back("b");
            b_comes_back(&pool, &volume);
        }
    }
}

#[test]
fn a_copy_that_was_written_over_while_it_was_away_has_nothing_that_counts() {
    for kind in KINDS {
        let pool = Pool::new(kind);
        pool.take_away("b");
        let volume = pool.open("a");
        pool.put(&volume, LATER, 2);
        pool.put_back("b");
        pool.write_over("b", DATA + 5 * MIB, 7);
        b_comes_back(&pool, &volume);
    }
}

#[test]
fn a_copy_that_was_half_rebuilt_and_cleared_is_not_whole() {
    for kind in KINDS {
        let pool = Pool::new(kind);
        pool.take_away("b");
        let volume = pool.open("a");
        pool.put(&volume, LATER, 2);
        pool.put_back("b");
        let lost = volume.copies().unwrap()[1].uuid;
        assert!(volume.return_copy(lost).unwrap());
        drop(volume);
        pool.write_over("b", DATA, 0);
        let volume = pool.open("a");
        let told = |_| ControlFlow::Continue(());
        assert_eq!(volume.rebuild_copies(told).unwrap(), 0);
        b_comes_back(&pool, &volume);
    }
}

#[test]
fn one_of_two_that_is_cleared_in_use_is_lost_and_the_other_has_all() {
    for kind in KINDS {
        for (cleared, other) in [("a", "b"), ("b", "a")] {
            let pool = Pool::new(kind);
            let volume = pool.open("a");
            pool.write_over(cleared, DATA, 0);
            pool.put(&volume, LATER, 2);
            // All are killed before anybody looks.
            drop(volume);
            let volume = pool.open(other);
            let state = |it: &nacre_volume::CopyInfo| it.path.ends_with(cleared);
            let copies = volume.copies().unwrap();
            let lost = copies.iter().find(|it| state(it)).unwrap();
            assert_eq!(lost.state, LegState::Failed);
            assert_eq!(
                [EARLIER, LATER].map(|at| volume.read_array::<1>(at)[0]),
                [1, 2]
            );
            assert!(volume.return_copy(lost.uuid).unwrap());
            let told = |_| ControlFlow::Continue(());
            assert_eq!(volume.rebuild_copies(told).unwrap(), 1);
            assert_eq!([EARLIER, LATER].map(|at| pool.on(cleared, at)), [1, 2]);
        }
    }
}

#[test]
fn in_memory_the_place_of_a_copy_that_labels_do_not_name_is_out_of_use() {
    /// Where the states of all copies are among what processes share, four bits for each.
    const STATES_AT: u64 = 40;
    let pool = Pool::new(Caching::Never);
    let file = fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(pool.path("shared"))
        .unwrap();
    let volume = Volume::open(&pool.path("a"), Access::ReadWrite).unwrap();
    volume
        .make_shared(file.try_clone().unwrap().into())
        .unwrap();
    let old = volume.copies().unwrap()[1].uuid;
    volume.replace_copy(old, &pool.path("c"), false).unwrap();
    let told = |_| ControlFlow::Continue(());
    assert_eq!(volume.rebuild_copies(told).unwrap(), 1);
    assert_eq!(volume.let_replaced_go().unwrap(), [pool.path("b")]);
    let is_known = || {
        let facts = volume.mirror().unwrap().facts();
        facts.iter().any(|fact| fact.id == old.0)
    };
    assert!(!is_known());
    // As if who let it go had died when it had told the labels.
    let mut states = [0; 8];
    file.read_exact_at(&mut states, STATES_AT).unwrap();
    assert_eq!(states[0] >> 4, 0xf, "a place that is out of use");
    states[0] = states[0] & 0xf | (LegState::Failed as u8) << 4;
    file.write_all_at(&states, STATES_AT).unwrap();
    assert!(is_known());
    volume.check_copies().unwrap();
    assert!(!is_known());
    // Nothing lacks anything any more: what both hold can be known again.
    assert!(!volume.mirror().unwrap().states().is_degraded());
}
