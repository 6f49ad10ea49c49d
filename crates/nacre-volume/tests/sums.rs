//! Checksums of units: what a disk gives back is compared with what was given to it (D130).

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nacre_testkit::pool::{CAREFUL, Devices, commit_image};
use nacre_types::{StoreKind, VolumeOffset};
use nacre_volume::{Caching, Checksums, CreateOptions, Pace, UserBytesMut, Volume};

const MIB: u64 = 1 << 20;
const DATA: u64 = 2 * MIB;
const PLACE: VolumeOffset = VolumeOffset(9 * MIB);
const UNIT: usize = 4096;

struct Pool(Devices, &'static [&'static str]);

impl Pool {
    fn new(disks: &'static [&'static str]) -> Self {
        // A file in memory alone would be mapped.
        let base = match disks.len() {
            1 => Path::new("/var/tmp"),
            _ => Path::new("/dev/shm"),
        };
        let devices = Devices::below(base);
        let options = CreateOptions {
            copies: disks.len(),
            caching: Caching::Always,
            checksums: Checksums::Always,
            ..CAREFUL
        };
        drop(devices.volume(disks, 32 * MIB, options));
        Self(devices, disks)
    }

    /// With a new image, as after a power cut.
    fn open(&self) -> Volume {
        self.0.imaged(self.1[0])
    }

    fn damage(&self, disk: usize, at: VolumeOffset) {
        let file = fs::File::options()
            .write(true)
            .open(self.0.file(self.1[disk]));
        file.unwrap().write_all_at(&[0xee; 3], DATA + at.0).unwrap();
    }
}

fn store(volume: &Volume, at: VolumeOffset, bytes: &[u8]) {
    let stored = volume.write(at, bytes, StoreKind::Data);
    volume.fence(stored).unwrap();
}

/// What a unit holds; `None` if it cannot be read.
fn unit(volume: &Volume, at: VolumeOffset) -> Option<Vec<u8>> {
    let mut bytes = vec![0; UNIT];
    let read = volume.read_user(at, UserBytesMut::from(&mut bytes[..]));
    read.ok().map(|()| bytes)
}

fn bring_home(volume: &Volume) {
    commit_image(volume);
    volume.checkpoint().unwrap();
}

fn behind(at: VolumeOffset, units: u64) -> VolumeOffset {
    VolumeOffset(at.0 + units * UNIT as u64)
}

fn bring_news(volume: &Volume) {
    let news = volume.take_news(Pace::All, volume.room_for_news()).unwrap();
    volume.write_news(news).unwrap();
}

#[test]
fn a_block_of_each_part_is_nobodys() {
    let pool = Pool::new(&["a"]);
    let volume = pool.open();
    let closed: Vec<_> = volume.closed_units().iter().cloned().flatten().collect();
    assert_eq!(closed, (3072..4096).collect::<Vec<_>>());
    assert_eq!(volume.present_units(), volume.units() - 1024);
}

#[test]
fn what_is_damaged_is_an_error_and_what_is_beside_it_is_not() {
    let pool = Pool::new(&["a"]);
    let volume = pool.open();
    store(&volume, PLACE, &[1; 3 * UNIT]);
    // A part of the unit alone is in the second version.
    commit_image(&volume);
    store(&volume, VolumeOffset(behind(PLACE, 1).0 + 300), &[2; 10]);
    bring_home(&volume);
    drop(volume);
    let volume = pool.open();
    let mut second = vec![1; UNIT];
    second[300..310].fill(2);
    assert_eq!(unit(&volume, behind(PLACE, 1)), Some(second));
    drop(volume);
    pool.damage(0, behind(PLACE, 1));
    let volume = pool.open();
    assert_eq!(unit(&volume, PLACE), Some(vec![1; UNIT]));
    assert_eq!(unit(&volume, behind(PLACE, 1)), None);
    assert_eq!(unit(&volume, behind(PLACE, 2)), Some(vec![1; UNIT]));
    assert_eq!(volume.wrong_units(), Some((1, behind(PLACE, 1))));
    // Who stores all of it makes it right.
    store(&volume, behind(PLACE, 1), &[3; UNIT]);
    bring_home(&volume);
    drop(volume);
    assert_eq!(unit(&pool.open(), behind(PLACE, 1)), Some(vec![3; UNIT]));
}

#[test]
fn what_one_disk_gives_wrong_comes_from_the_other() {
    for damaged in 0..2 {
        let pool = Pool::new(&["a", "b"]);
        let volume = pool.open();
        store(&volume, PLACE, &[1; 2 * UNIT]);
        bring_home(&volume);
        drop(volume);
        pool.damage(damaged, PLACE);
        let volume = pool.open();
        assert_eq!(unit(&volume, PLACE), Some(vec![1; UNIT]));
        assert_eq!(volume.wrong_units(), Some((0, VolumeOffset(0))));
    }
}

#[test]
fn what_goes_home_ahead_of_a_version_or_beside_it_has_checksums() {
    for is_ahead in [false, true] {
        let pool = Pool::new(&["a"]);
        let volume = pool.open();
        commit_image(&volume);
        volume.note_taken(PLACE, 32 * UNIT as u64);
        store(&volume, PLACE, &[1; 32 * UNIT]);
        if is_ahead {
            bring_news(&volume);
            // It is stored to again, and the version has that.
            store(&volume, PLACE, &[2; 10]);
        }
        commit_image(&volume);
        drop(volume);
        let last = behind(PLACE, 31);
        let volume = pool.open();
        assert!(unit(&volume, PLACE).is_some());
        assert_eq!(unit(&volume, last), Some(vec![1; UNIT]));
        drop(volume);
        pool.damage(0, last);
        assert_eq!(unit(&pool.open(), last), None);
    }
}

#[test]
fn what_was_freed_and_went_home_again_without_a_version_is_no_damage_where_it_is_taken() {
    let pool = Pool::new(&["a"]);
    let volume = pool.open();
    store(&volume, PLACE, &[1; UNIT]);
    bring_home(&volume);
    volume.note_freed(PLACE, UNIT as u64);
    commit_image(&volume);
    commit_image(&volume);
    volume.note_taken(PLACE, UNIT as u64);
    store(&volume, PLACE, &[2; UNIT]);
    bring_news(&volume);
    drop(volume);
    // The disk has what no version knows of.
    let volume = pool.open();
    volume.note_taken(PLACE, UNIT as u64);
    store(&volume, PLACE, &[3; 10]);
    bring_home(&volume);
    drop(volume);
    assert_eq!(unit(&pool.open(), PLACE).unwrap()[..10], [3; 10]);
}

#[test]
fn what_programs_map_has_none_until_they_do_not() {
    let pool = Pool::new(&["a"]);
    let volume = pool.open();
    store(&volume, PLACE, &[1; UNIT]);
    bring_home(&volume);
    volume.locate(PLACE, UNIT as u64).unwrap();
    // A program stores to its mapping, and says nothing; somebody stores by a call.
    store(&volume, behind(PLACE, 0), &[2; 10]);
    bring_home(&volume);
    drop(volume);
    pool.damage(0, PLACE);
    assert!(unit(&pool.open(), PLACE).is_some());
}
