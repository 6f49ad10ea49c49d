//! Disks that hold each a part, behind one image.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre_testkit::pool::{CAREFUL, Devices, commit_image as commit};
use nacre_types::{StoreKind, VolumeOffset};
use nacre_volume::{
    Access, Caching, Committer, CreateOptions, MediaFailed, Stripe, Volume, VolumeError,
};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 32 * MIB;

/// A pool on disks with these names, which are files in memory.
struct Pool(Devices);

impl Pool {
    fn new(names: &[&str]) -> Self {
        let devices = Devices::below(Path::new("/dev/shm"));
        let options = CreateOptions {
            caching: Caching::Always,
            ..CAREFUL
        };
        let volume = devices.volume(names, SIZE, options);
        assert!(volume.is_cached() && !volume.has_copies());
        assert_eq!(volume.devices().len(), names.len());
        Self(devices)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.file(name)
    }

    /// With a new image, as after a power cut.
    fn open(&self, name: &str) -> Volume {
        self.0.imaged(name)
    }

    /// With an image in a file of this name, which outlives whoever uses it.
    fn open_in(&self, image: &str) -> Volume {
        fs::write(self.path(image), []).unwrap();
        let volume = Volume::open(&self.path("a"), Access::ReadWrite).unwrap();
        volume.make_image(self.image(image)).unwrap();
        volume
    }

    /// With the image that was left in a file of this name, unless that is of no use.
    fn join(&self, name: &str, image: &str) -> Option<Volume> {
        let volume = Volume::open(&self.path(name), Access::ReadWrite).unwrap();
        let joined = volume.join_image(self.image(image)).unwrap();
        joined.then_some(volume)
    }

    fn image(&self, name: &str) -> OwnedFd {
        let file = fs::File::options()
            .read(true)
            .write(true)
            .open(self.path(name));
        file.unwrap().into()
    }

    fn grow(&self, name: &str) -> Result<Volume, VolumeError> {
        let added = self.0.spec(name, SIZE);
        Volume::grow(&[&self.path("a")], &added, CAREFUL)
    }

    /// What a disk holds at a place of its data.
    fn on(&self, name: &str, at: u64, len: usize) -> Vec<u8> {
        let bytes = fs::read(self.path(name)).unwrap();
        bytes[(2 * MIB + at) as usize..][..len].to_vec()
    }
}

/// Where the second device begins.
fn border(volume: &Volume) -> VolumeOffset {
    volume.devices()[1].range.start
}

fn store(volume: &Volume, at: VolumeOffset, bytes: &[u8]) {
    let stored = volume.write(at, bytes, StoreKind::Data);
    volume.fence(stored).unwrap();
}

/// As `store`, committed in pieces that a record has room for.
fn store_much(volume: &Volume, at: VolumeOffset, bytes: &[u8]) {
    for (number, piece) in (0..).zip(bytes.chunks(1 << 20)) {
        store(volume, at.add(number << 20), piece);
        commit(volume);
    }
}

fn bytes(volume: &Volume, at: VolumeOffset, len: usize) -> Vec<u8> {
    let mut found = vec![0; len];
    volume.read(at, &mut found);
    found
}

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at * 7 + at / 251 + salt) as u8)
        .collect()
}

#[test]
fn what_was_cut_or_written_over_takes_no_version() {
    for lost in ["a", "b"] {
        for cut in [true, false] {
            let pool = Pool::new(&["a", "b"]);
            let volume = pool.open("a");
            store(&volume, border(&volume), b"kept");
            commit(&volume);
            let before = fs::read(pool.path(lost)).unwrap();
            let there = match cut {
                true => before[..before.len() / 2].to_vec(),
                false => vec![7; before.len()],
            };
            fs::write(pool.path(lost), &there).unwrap();
            store(&volume, border(&volume), b"more");
            let failed = volume.write_version(volume.take_version().unwrap());
            let why = failed.unwrap_err().to_string();
            assert!(
                why.contains(&format!("{lost} was cut or written over")),
                "{why}"
            );
            volume.checkpoint().unwrap_err();
            assert!(
                fs::read(pool.path(lost)).unwrap() == there,
                "not written to"
            );
            fs::write(pool.path(lost), &before).unwrap();
            commit(&volume);
            drop(volume);
            let volume = pool.open(lost);
            assert_eq!(bytes(&volume, border(&volume), 4), b"more", "{lost}");
        }
    }
}

#[test]
fn what_is_committed_comes_to_the_disk_that_has_its_place() {
    let pool = Pool::new(&["a", "b", "c"]);
    let volume = pool.open("b");
    let (first, second) = (volume.devices()[0].range.end, volume.devices()[1].range.end);
    assert!(first < second, "{first} {second}");
    assert!(
        first.get() < SIZE - 4 * MIB,
        "the first one has the journal"
    );
    // Over both borders, all of the second device.
    let start = VolumeOffset(first.get() - 5000);
    let wanted = pattern((second.get() - first.get()) as usize + 10_000, 3);
    store_much(&volume, start, &wanted);
    drop(volume);
    let volume = pool.open("c");
    assert!(bytes(&volume, start, wanted.len()) == wanted);
    volume.checkpoint().unwrap();
    let at_second = (second.get() - first.get()) as usize;
    assert!(pool.on("a", start.get(), 5000) == wanted[..5000]);
    assert!(pool.on("b", 0, at_second) == wanted[5000..][..at_second]);
    assert!(pool.on("c", 0, 5000) == wanted[wanted.len() - 5000..]);
}

/// Who is alone.
struct Alone;

impl Committer for Alone {
    fn enter(&self) {}

    fn leave(&self) {}

    fn commit(&self) -> Result<(), MediaFailed> {
        Ok(())
    }

    fn set_share(&self, _: u64) {}

    fn end_share(&self, _: u64) {}

    fn owner(&self) -> u64 {
        0
    }

    fn while_nobody_stores(&self, work: &mut dyn FnMut()) {
        work();
    }

    fn bring_home(&self) -> Result<(), MediaFailed> {
        Err(MediaFailed)
    }

    fn make_room(&self) -> Result<bool, MediaFailed> {
        Err(MediaFailed)
    }

    fn now(&self) -> u64 {
        0
    }
}

#[test]
fn what_went_comes_back_from_its_disk() {
    let pool = Pool::new(&["a", "b"]);
    let volume = pool.open("a");
    volume.set_committer(Arc::new(Alone));
    let start = VolumeOffset(border(&volume).get() - 3 * MIB);
    let wanted = pattern(6 << 20, 9);
    store_much(&volume, start, &wanted);
    volume.checkpoint().unwrap();
    let gone = volume.drop_memory();
    assert!(gone >= 6 * MIB, "{gone}");
    assert!(bytes(&volume, start, wanted.len()) == wanted);
}

#[test]
fn what_was_not_committed_is_in_the_image_of_all() {
    let pool = Pool::new(&["a", "b"]);
    let volume = pool.open_in("image");
    let place = border(&volume);
    store(&volume, place, b"there");
    drop(volume);
    let volume = pool.join("b", "image").unwrap();
    assert_eq!(bytes(&volume, place, 5), b"there");
    assert_eq!(pool.on("b", 0, 5), [0; 5]);
}

#[test]
fn memory_does_not_count_when_somebody_has_used_the_disks_without_it() {
    for (committed, then_checkpoint) in [(false, false), (true, false), (true, true)] {
        let pool = Pool::new(&["a", "b"]);
        let mine = pool.open_in("mine");
        let place = border(&mine);
        if committed {
            store(&mine, place, b"both");
            commit(&mine);
        }
        store(&mine, place, b"mine");
        drop(mine);
        // Who changes nothing takes nothing away.
        let theirs = pool.open_in("theirs");
        store(&theirs, place.add(4096), b"lost");
        drop(theirs);
        let mine = pool.join("a", "mine").unwrap();
        assert_eq!(bytes(&mine, place, 4), b"mine");
        drop(mine);
        let theirs = pool.join("a", "theirs").unwrap();
        store(&theirs, place, b"their");
        commit(&theirs);
        if then_checkpoint {
            theirs.checkpoint().unwrap();
        }
        drop(theirs);
        assert!(pool.join("a", "mine").is_none(), "{committed}");
        assert_eq!(bytes(&pool.open("a"), place, 5), b"their");
    }
}

#[test]
fn without_one_of_them_it_is_refused() {
    let pool = Pool::new(&["a", "b"]);
    for (away, asked) in [("a", "b"), ("b", "a")] {
        fs::rename(pool.path(away), pool.path("away")).unwrap();
        let missing = Volume::open(&pool.path(asked), Access::ReadWrite);
        assert!(
            matches!(missing, Err(VolumeError::Missing { .. })),
            "{away}"
        );
        fs::rename(pool.path("away"), pool.path(away)).unwrap();
    }
    let other = Pool::new(&["a", "b"]);
    fs::rename(other.path("b"), pool.path("b")).unwrap();
    let foreign = Volume::open(&pool.path("a"), Access::ReadWrite);
    assert!(matches!(foreign, Err(VolumeError::Foreign { .. })));
}

#[test]
fn a_disk_that_was_written_over_while_nobody_used_it_is_refused_until_it_is_put_right() {
    for (spoilt, asked) in [("a", "a"), ("a", "b"), ("b", "a"), ("b", "b")] {
        let pool = Pool::new(&["a", "b"]);
        let volume = pool.open("a");
        let at = border(&volume);
        store(&volume, at, b"its own");
        commit(&volume);
        volume.checkpoint().unwrap();
        drop(volume);
        let path = pool.path(spoilt);
        let before = fs::read(&path).unwrap();
        let other = [&[7; MIB as usize], &before[MIB as usize..]].concat();
        fs::write(&path, other).unwrap();
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let refused = Volume::open(&pool.path(asked), access).unwrap_err();
            assert!(matches!(refused, VolumeError::WrittenOver { .. }));
            // It says what to do.
            let told = refused.to_string();
            let command = told.split_once("back: ").unwrap().1;
            assert!(command.starts_with("dd if="), "{told}");
        }
        let refused = Volume::open(&path, Access::ReadOnly).unwrap_err();
        let VolumeError::WrittenOver { label_at, .. } = refused else {
            panic!("{refused}");
        };
        let mut repaired = fs::read(&path).unwrap();
        repaired.copy_within(label_at as usize..label_at as usize + 4096, 0);
        fs::write(&path, repaired).unwrap();
        assert_eq!(bytes(&pool.open(asked), at, 7), b"its own");
    }
}

#[test]
fn a_disk_gets_a_second_and_a_third_one() {
    let pool = Pool::new(&["a"]);
    let volume = pool.open("a");
    assert_eq!(volume.stripe(), Stripe::None);
    let old = volume.len();
    // In the journal alone.
    store(&volume, VolumeOffset(old - 4096), b"old");
    commit(&volume);
    drop(volume);
    let mut before = old;
    for name in ["b", "c"] {
        let grown = pool.grow(name).unwrap();
        assert!(grown.is_cached() && grown.stripe() == Stripe::USUAL);
        assert_eq!(grown.len(), before + 28 * MIB);
        before = grown.len();
        drop(grown);
        let volume = pool.open(name);
        assert_eq!(bytes(&volume, VolumeOffset(old - 4096), 3), b"old");
        store(&volume, VolumeOffset(before - 4096), name.as_bytes());
        commit(&volume);
    }
    let volume = pool.open("b");
    assert_eq!(bytes(&volume, VolumeOffset(before - 4096), 1), b"c");
    let leaves = Volume::may_leave(&pool.path("a"), &pool.path("b"));
    assert_eq!(leaves.unwrap(), 1);
}

#[test]
fn several_get_no_journal_where_they_are_not_alike_or_not_asked_for() {
    let devices = Devices::below(Path::new("/dev/shm"));
    for caching in [Caching::Never, Caching::Disks] {
        let options = CreateOptions {
            caching,
            force: true,
            ..CAREFUL
        };
        // A file in memory is no disk.
        let volume = devices.volume(&["a", "b"], SIZE, options);
        assert!(!volume.is_cached());
    }
    let grown = Volume::grow(&[&devices.file("a")], &devices.spec("c", SIZE), CAREFUL);
    assert!(!grown.unwrap().is_cached());
}
