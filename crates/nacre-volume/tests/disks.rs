//! Disks that hold the same, behind one image.

#[path = "disks/home.rs"]
mod home;
#[path = "disks/rebuilt.rs"]
mod rebuilt;
#[path = "disks/scrub.rs"]
mod scrub;

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nacre_testkit::pool::{CAREFUL, Devices, commit_image, memory_file, states_of_copies};
use nacre_types::{StoreKind, VolumeOffset};
use nacre_volume::{Access, Caching, CreateOptions, LegState, Volume, VolumeError};

const MIB: u64 = 1 << 20;
const PLACE: VolumeOffset = VolumeOffset(3 << 20);

/// A pool on the disks `a` and `b`, which are files in memory.
struct Pool(Devices);

impl Pool {
    fn new() -> Self {
        let devices = Devices::below(Path::new("/dev/shm"));
        let pool = Self(devices);
        let volume = pool.make(CAREFUL);
        assert!(volume.is_cached() && volume.has_copies() && volume.mirror().is_none());
        pool
    }

    fn make(&self, options: CreateOptions) -> Volume {
        let options = CreateOptions {
            copies: 2,
            caching: Caching::Always,
            ..options
        };
        self.0.volume(&["a", "b"], 32 * MIB, options)
    }

    /// Of disks that hold something.
    fn make_again(&self) -> Volume {
        self.make(CreateOptions {
            force: true,
            ..CAREFUL
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.file(name)
    }

    /// With a new image, as after a power cut.
    fn open(&self, name: &str) -> Volume {
        self.0.imaged(name)
    }

    /// What the label of a disk says.
    fn states(&self, name: &str) -> Vec<LegState> {
        states_of_copies(&self.path(name))
    }

    fn put_back(&self, name: &str, bytes: &[u8]) {
        self.put(name, 0, bytes);
    }

    fn at(&self, name: &str, at: u64) -> [u8; 16] {
        let bytes = fs::read(self.path(name)).unwrap();
        bytes[at as usize..][..16].try_into().unwrap()
    }

    fn put(&self, name: &str, at: u64, bytes: &[u8]) {
        let file = fs::File::options().write(true).open(self.path(name));
        file.unwrap().write_all_at(bytes, at).unwrap();
    }
}

/// Stores a byte, and commits it.
fn commit(volume: &Volume, byte: u8) {
    commit_at(volume, PLACE, byte);
}

fn commit_at(volume: &Volume, at: VolumeOffset, byte: u8) {
    let stored = volume.write(at, &[byte; 100], StoreKind::Data);
    volume.fence(stored).unwrap();
    commit_image(volume);
}

fn byte(volume: &Volume) -> u8 {
    let found: [u8; 100] = volume.read_array(PLACE);
    assert!(found.iter().all(|byte| *byte == found[0]));
    found[0]
}

#[test]
fn disks_that_were_all_written_over_take_no_version() {
    let pool = Pool::new();
    let volume = pool.open("a");
    commit(&volume, 1);
    let before = ["a", "b"].map(|name| fs::read(pool.path(name)).unwrap());
    pool.put("a", 0, &before[0].iter().map(|_| 7).collect::<Vec<u8>>());
    commit(&volume, 2);
    pool.put("b", 0, &[7; 32 << 20]);
    volume
        .write_version(volume.take_version().unwrap())
        .unwrap_err();
    pool.put_back("b", &before[1]);
    commit(&volume, 3);
    drop(volume);
    assert_eq!(byte(&pool.open("b")), 3);
}

#[test]
fn a_disk_that_shows_no_records_any_more_is_lost_and_the_others_go_on() {
    for lost in ["a", "b"] {
        let pool = Pool::new();
        let volume = pool.open("a");
        commit(&volume, 1);
        let label = Volume::inspect(&pool.path(lost)).unwrap();
        let journal = (2 << 20) + label.own().data;
        pool.put(lost, journal, &[0; 1 << 20]);
        volume.checkpoint().unwrap();
        commit(&volume, 2);
        drop(volume);
        fs::remove_file(pool.path(lost)).unwrap();
        let other = if lost == "a" { "b" } else { "a" };
        assert_eq!(byte(&pool.open(other)), 2, "without {lost}");
    }
}

#[test]
fn who_is_missing_is_known_before_anything_is_stored() {
    let pool = Pool::new();
    fs::rename(pool.path("b"), pool.path("away")).unwrap();
    let reads = Volume::open(&pool.path("a"), Access::ReadOnly).unwrap();
    reads.make_image(memory_file()).unwrap();
    assert_eq!(pool.states("a"), [LegState::Current; 2]);
    drop(reads);
    let volume = pool.open("a");
    assert_eq!(pool.states("a"), [LegState::Current, LegState::Missing]);
    commit(&volume, 1);
    drop(volume);
    fs::rename(pool.path("away"), pool.path("b")).unwrap();
    assert_eq!(pool.states("b"), [LegState::Current; 2], "it does not know");
    let volume = pool.open("b");
    assert_eq!(byte(&volume), 1);
    assert_eq!(volume.copies().unwrap()[1].state, LegState::Missing);
}

#[test]
fn a_disk_a_step_behind_is_brought_up_and_one_further_behind_is_lost() {
    for (steps, state) in [(1, LegState::Current), (2, LegState::Failed)] {
        let pool = Pool::new();
        let volume = pool.open("a");
        commit(&volume, 1);
        let before = fs::read(pool.path("b")).unwrap();
        (0..steps).for_each(|step| commit(&volume, 2 + step));
        drop(volume);
        pool.put_back("b", &before);
        let volume = pool.open("b");
        assert_eq!(byte(&volume), 1 + steps);
        assert_eq!(pool.states("a"), [LegState::Current, state]);
        drop(volume);
        if state == LegState::Current {
            fs::remove_file(pool.path("a")).unwrap();
            assert_eq!(byte(&pool.open("b")), 2);
        }
    }
}

#[test]
fn a_disk_that_was_lost_comes_back_by_a_rebuild_while_others_commit() {
    let pool = Pool::new();
    fs::rename(pool.path("b"), pool.path("away")).unwrap();
    let volume = pool.open("a");
    commit(&volume, 1);
    let lost = volume.copies().unwrap()[1].uuid;
    assert!(!volume.return_copy(lost).unwrap());
    fs::rename(pool.path("away"), pool.path("b")).unwrap();
    assert!(volume.return_copy(lost).unwrap());
    commit(&volume, 2);
    let broken_off = volume.rebuild_copies(|_| ControlFlow::Break(())).unwrap();
    assert_eq!(broken_off, 0);
    assert_eq!(pool.states("b"), [LegState::Current, LegState::Rebuilding]);
    let mut next = 3;
    let rebuilt = volume.rebuild_copies(|_| {
        commit(&volume, next);
        next += 1;
        ControlFlow::Continue(())
    });
    assert_eq!(rebuilt.unwrap(), 1);
    assert_eq!(pool.states("b"), [LegState::Current; 2]);
    commit(&volume, 100);
    drop(volume);
    fs::remove_file(pool.path("a")).unwrap();
    assert_eq!(byte(&pool.open("b")), 100);
}

#[test]
fn of_two_who_rebuild_a_disk_neither_fails() {
    let pool = Pool::new();
    fs::rename(pool.path("b"), pool.path("away")).unwrap();
    let volume = pool.open("a");
    commit(&volume, 1);
    let lost = volume.copies().unwrap()[1].uuid;
    fs::rename(pool.path("away"), pool.path("b")).unwrap();
    assert!(volume.return_copy(lost).unwrap());
    let mut other = None;
    let one = volume.rebuild_copies(|_| {
        other.get_or_insert_with(|| {
            volume
                .rebuild_copies(|_| ControlFlow::Continue(()))
                .unwrap()
        });
        ControlFlow::Continue(())
    });
    assert_eq!((one.unwrap(), other), (1, Some(1)));
    assert_eq!(pool.states("b"), [LegState::Current; 2]);
    drop(volume);
    fs::remove_file(pool.path("a")).unwrap();
    assert_eq!(byte(&pool.open("b")), 1);
}

#[test]
fn a_rebuild_goes_on_where_it_was_broken_off() {
    let pool = Pool::new();
    fs::rename(pool.path("b"), pool.path("away")).unwrap();
    let volume = pool.open("a");
    commit_at(&volume, VolumeOffset(18 * MIB), 1);
    let lost = volume.copies().unwrap()[1].uuid;
    fs::rename(pool.path("away"), pool.path("b")).unwrap();
    assert!(volume.return_copy(lost).unwrap());
    let rebuild = |volume: &Volume, most: u64| {
        let mut seen = Vec::new();
        let whole = volume.rebuild_copies(|progress| {
            seen.push(progress.done / MIB);
            match progress.done >= most {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        (whole.unwrap(), seen[0])
    };
    assert_eq!(rebuild(&volume, 17 * MIB), (0, 1));
    // It gets what is written since; what was copied is not copied again.
    commit(&volume, 2);
    volume.checkpoint().unwrap();
    pool.put("b", 9 * MIB, &[9; 10]);
    drop(volume);
    let volume = pool.open("a");
    assert_eq!(rebuild(&volume, u64::MAX), (1, 17));
    let differ = |at: u64| pool.at("a", at) != pool.at("b", at);
    assert!(differ(9 * MIB) && !differ(5 * MIB) && !differ(20 * MIB));
    drop(volume);
    // One that was away again begins at the start.
    fs::rename(pool.path("b"), pool.path("away")).unwrap();
    let volume = pool.open("a");
    fs::rename(pool.path("away"), pool.path("b")).unwrap();
    assert!(volume.return_copy(lost).unwrap());
    assert_eq!(rebuild(&volume, u64::MAX), (1, 1));
    assert!(!differ(9 * MIB));
}

#[test]
fn what_was_lost_is_replaced_at_once_and_never_the_last() {
    let pool = Pool::new();
    let volume = pool.open("a");
    let copies = volume.copies().unwrap();
    // Something else is written over both labels: the last one stays.
    pool.put_back("b", &[0; 8192]);
    let len = fs::metadata(pool.path("b")).unwrap().len();
    let file = fs::File::options()
        .write(true)
        .open(pool.path("b"))
        .unwrap();
    file.set_len(len - 4096).unwrap();
    file.set_len(len).unwrap();
    volume.check_copies().unwrap();
    assert_eq!(pool.states("a"), [LegState::Current, LegState::Failed]);
    pool.put_back("a", &[0; 4096]);
    commit(&volume, 1);
    let new = volume
        .replace_copy(copies[1].uuid, &pool.path("c"), false)
        .unwrap();
    assert_eq!(
        volume
            .rebuild_copies(|_| ControlFlow::Continue(()))
            .unwrap(),
        1
    );
    assert_eq!(volume.copies().unwrap()[1].uuid, new);
    drop(volume);
    fs::remove_file(pool.path("a")).unwrap();
    assert_eq!(byte(&pool.open("c")), 1);
}

#[test]
fn a_disk_is_lost_with_either_copy_of_its_label_and_not_where_they_differ() {
    let pool = Pool::new();
    let volume = pool.open("a");
    let bytes = fs::read(pool.path("b")).unwrap();
    // Who writes labels may have died between the two copies.
    Volume::store_emulated(&pool.path("a"), "slow").unwrap();
    pool.put_back("b", &bytes[..4096]);
    assert!(!Volume::inspect(&pool.path("b")).unwrap().intact);
    volume.check_copies().unwrap();
    assert_eq!(pool.states("a"), [LegState::Current; 2]);
    pool.put_back("b", &[1; 4096]);
    // Somebody may be writing labels.
    let lock = volume.lock_exclusive().unwrap();
    volume.check_copies().unwrap();
    assert_eq!(pool.states("a"), [LegState::Current; 2]);
    drop(lock);
    volume.check_copies().unwrap();
    assert_eq!(pool.states("a"), [LegState::Current, LegState::Failed]);
}

#[test]
fn what_comes_from_a_disk_that_something_is_written_over_does_not_count() {
    let pool = Pool::new();
    let places = || (3..7).map(|mib| VolumeOffset(mib * MIB));
    let volume = pool.open("a");
    places().for_each(|at| commit_at(&volume, at, 5));
    volume.checkpoint().unwrap();
    drop(volume);
    let volume = pool.open("a");
    pool.put("b", 0, &[7; 20 << 20]);
    let held: Vec<[u8; 100]> = places().map(|at| volume.read_array(at)).collect();
    assert_eq!(held, [[5; 100]; 4]);
    assert_eq!(pool.states("a"), [LegState::Current; 2]);
    volume.check_copies().unwrap();
    assert_eq!(pool.states("a"), [LegState::Current, LegState::Failed]);
}

#[test]
fn what_a_disk_that_was_cut_had_behind_the_cut_comes_from_another() {
    for how in ["cut", "longer again"] {
        let pool = Pool::new();
        let places = || (9..13).map(|mib| VolumeOffset(mib * MIB));
        let volume = pool.open("a");
        places().for_each(|at| commit_at(&volume, at, 5));
        volume.checkpoint().unwrap();
        drop(volume);
        let volume = pool.open("a");
        let file = fs::File::options().write(true).open(pool.path("b"));
        let file = file.unwrap();
        file.set_len(8 * MIB).unwrap();
        if how == "longer again" {
            file.set_len(31 * MIB).unwrap();
        }
        let held: Vec<[u8; 100]> = places().map(|at| volume.read_array(at)).collect();
        assert_eq!(held, [[5; 100]; 4], "{how}");
    }
}

#[test]
fn a_disk_that_was_cut_is_lost_before_anything_is_written_to_it() {
    let pool = Pool::new();
    let volume = pool.open("a");
    commit(&volume, 1);
    let file = fs::File::options().write(true).open(pool.path("b"));
    file.unwrap().set_len(8 * MIB).unwrap();
    commit(&volume, 2);
    assert_eq!(pool.states("a"), [LegState::Current, LegState::Failed]);
    assert_eq!(fs::metadata(pool.path("b")).unwrap().len(), 8 * MIB);
}

#[test]
fn what_is_not_there_is_refused() {
    let pool = Pool::new();
    drop(pool.open("a"));
    let more = pool.0.spec("c", 32 * MIB);
    let refused = Volume::grow(&[&pool.path("a")], &more, CAREFUL);
    assert!(matches!(refused, Err(VolumeError::Copies { .. })));
}
