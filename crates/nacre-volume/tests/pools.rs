//! Pools on files in memory: create, open, grow, delete, and every way in which their devices can
//! be wrong.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nacre_testkit::pool::{CAREFUL, Devices, FORCE, commit_image};
use nacre_types::{StoreKind, VolumeOffset, crc32c};
use nacre_volume::{
    Access, CreateOptions, DeviceKind, DeviceSpec, FlushMethod, Granularity, MediaError, Owner,
    PieceTable, Policy, Presence, Stripe, Unfenced, UserBytes, UserBytesMut, Volume, VolumeError,
};

const MIB: u64 = 1 << 20;
struct Room(Devices);

impl Room {
    fn new() -> Self {
        Self(Devices::below(Path::new("/dev/shm")))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.file(name)
    }

    fn spec(&self, name: &str, mib: u64) -> DeviceSpec {
        self.0.spec(name, mib * MIB)
    }

    fn pool(&self, names: &[&str]) -> Volume {
        self.0.volume(names, 16 * MIB, CAREFUL)
    }

    /// A pool whose devices `a` and `b` hold the same.
    fn copies(&self) -> Volume {
        let twice = CreateOptions {
            copies: 2,
            ..CAREFUL
        };
        self.0.volume(&["a", "b"], 24 * MIB, twice)
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).unwrap();
    }

    fn open(&self, name: &str) -> Result<Volume, VolumeError> {
        Volume::open(&self.path(name), Access::ReadWrite)
    }

    fn open_both(&self, first: &str, second: &str) -> Result<Volume, VolumeError> {
        Volume::open_with(&[&self.path(first), &self.path(second)], Access::ReadWrite)
    }

    fn open_error(&self, name: &str) -> VolumeError {
        let error = self.open(name).expect_err("the pool must not open");
        assert!(error.to_string().contains("; "), "no remedy in: {error}");
        error
    }

    /// Overwrites a part of a device.
    fn scribble(&self, name: &str, at: u64, bytes: &[u8]) {
        let file = OpenOptions::new()
            .write(true)
            .open(self.path(name))
            .unwrap();
        file.write_all_at(bytes, at).unwrap();
    }

    fn label(&self, name: &str, at: u64) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        File::open(self.path(name))
            .unwrap()
            .read_exact_at(&mut bytes, at)
            .unwrap();
        bytes
    }
}

const SECOND: u64 = 16 * MIB - 4096;

fn put(volume: &Volume, at: u64, bytes: &[u8]) {
    volume
        .fence(volume.write(VolumeOffset(at), bytes, StoreKind::Data))
        .unwrap();
    volume.health().unwrap();
}

fn get(volume: &Volume, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    volume.read(VolumeOffset(at), &mut bytes);
    bytes
}

#[test]
fn a_pool_is_there_again_when_opened() {
    let room = Room::new();
    let made = room.pool(&["a"]);
    put(&made, 5000, b"mother-of-pearl");
    let (uuid, len) = (made.uuid(), made.len());
    drop(made);
    let volume = room.open("a").unwrap();
    assert_eq!((volume.uuid(), volume.len()), (uuid, len));
    assert_eq!(get(&volume, 5000, 15), b"mother-of-pearl");
    assert_eq!(len, 12 * MIB);
    assert_eq!(volume.devices()[0].kind, DeviceKind::MemoryFile);
    assert_eq!(volume.devices()[0].flush, FlushMethod::None);
    assert!(volume.survives().process_death && !volume.survives().power_loss);
}

#[test]
fn any_member_opens_a_pool_of_several_devices() {
    let room = Room::new();
    put(&room.pool(&["a", "b", "c"]), 12 * MIB - 2, b"abcd");
    for name in ["a", "b", "c"] {
        let volume = room.open(name).unwrap();
        let paths: Vec<_> = volume
            .devices()
            .into_iter()
            .map(|device| device.path)
            .collect();
        assert_eq!(paths, ["a", "b", "c"].map(|name| room.path(name)));
        assert_eq!(get(&volume, 12 * MIB - 2, 4), b"abcd");
    }
}

#[test]
fn ranges_across_devices_are_split_everywhere() {
    let room = Room::new();
    let volume = room.pool(&["a", "b", "c"]);
    let bytes: Vec<u8> = (0..13 * MIB).map(|i| (i * 7 + i / 4096) as u8).collect();
    let at = VolumeOffset(12 * MIB - 1000);
    let stored: Unfenced = volume
        .write_user(at, UserBytes::from(&bytes[..]), StoreKind::Data)
        .unwrap();
    volume
        .fence(stored.and(volume.flush(at, bytes.len() as u64)))
        .unwrap();
    let mut back = vec![0; bytes.len()];
    volume
        .read_user(at, UserBytesMut::from(&mut back[..]))
        .unwrap();
    assert!(back == bytes);
    assert!(get(&volume, at.get(), bytes.len()) == bytes);
    volume
        .fence(volume.zero(VolumeOffset(12 * MIB - 3), 6, StoreKind::Data))
        .unwrap();
    assert_eq!(get(&volume, 12 * MIB - 3, 6), [0; 6]);
    assert_eq!(volume.load_u8(VolumeOffset(12 * MIB + 3)), bytes[1003]);
    volume
        .fence(volume.store_u64(
            VolumeOffset(24 * MIB),
            0x0102_0304_0506_0708,
            StoreKind::Metadata,
        ))
        .unwrap();
    assert_eq!(
        volume.load_u64(VolumeOffset(24 * MIB)),
        0x0102_0304_0506_0708
    );
    assert_eq!(volume.load_u32(VolumeOffset(24 * MIB + 4)), 0x0102_0304);
    assert_eq!(volume.load_u16(VolumeOffset(24 * MIB + 2)), 0x0506);
    assert_eq!(volume.read_array::<2>(VolumeOffset(24 * MIB)), [8, 7]);
}

#[test]
fn places_are_found_behind_volume_offsets() {
    let room = Room::new();
    let volume = room.pool(&["a", "b"]);
    let (_, offset, len) = volume.locate(VolumeOffset(12 * MIB - 4096), MIB).unwrap();
    assert_eq!((offset.get(), len), (14 * MIB - 4096, 4096));
    let (fd, offset, len) = volume.locate(VolumeOffset(12 * MIB + 8192), MIB).unwrap();
    assert_eq!((offset.get(), len), (2 * MIB + 8192, MIB));
    let inode = rustix::fs::fstat(fd).unwrap().st_ino;
    assert_eq!(inode, fs::metadata(room.path("b")).unwrap().ino());
}

#[test]
#[should_panic(expected = "behind the end")]
fn offsets_behind_the_end_are_bugs() {
    let volume = Volume::memory(4 * MIB).unwrap();
    volume.load_u64(VolumeOffset(4 * MIB + 8));
}

#[test]
fn read_only_pools_are_left_alone() {
    let room = Room::new();
    drop(room.pool(&["a"]));
    room.scribble("a", 0, &[0; 4096]);
    let volume = Volume::open(&room.path("a"), Access::ReadOnly).unwrap();
    assert_eq!(volume.access(), Access::ReadOnly);
    assert_eq!(room.label("a", 0), [0; 4096]);
}

#[test]
fn one_damaged_label_copy_is_repaired() {
    let room = Room::new();
    drop(room.pool(&["a"]));
    for at in [0, SECOND] {
        let intact = room.label("a", at);
        room.scribble("a", at + 100, b"damage");
        assert!(!Volume::inspect(&room.path("a")).unwrap().intact);
        drop(room.open("a").unwrap());
        assert!(Volume::inspect(&room.path("a")).unwrap().intact);
        assert_eq!(room.label("a", at), intact);
    }
}

#[test]
fn two_damaged_label_copies_are_an_error() {
    let room = Room::new();
    drop(room.pool(&["a"]));
    room.scribble("a", 100, b"damage");
    room.scribble("a", SECOND + 100, b"damage");
    assert_eq!(
        room.open_error("a"),
        VolumeError::LabelsDamaged(room.path("a"))
    );
}

#[test]
fn what_is_no_pool_is_an_error() {
    let room = Room::new();
    fs::write(room.path("text"), "hello").unwrap();
    fs::write(room.path("large"), vec![7; 16 << 20]).unwrap();
    fs::write(room.path("empty"), "").unwrap();
    fs::write(room.path("zeros"), vec![0; 16 << 20]).unwrap();
    for (name, is_blank) in [
        ("text", false),
        ("large", false),
        ("empty", true),
        ("zeros", true),
    ] {
        let path = room.path(name);
        assert_eq!(
            room.open_error(name),
            VolumeError::NotAPool { path, is_blank }
        );
    }
    let missing = VolumeError::Media(MediaError::NotFound(room.path("none")));
    assert_eq!(room.open_error("none"), missing);
    let directory = VolumeError::Media(MediaError::IsDirectory(room.path("")));
    assert_eq!(room.open_error(""), directory);
    assert_eq!(
        Volume::open(&room.path(""), Access::ReadOnly).unwrap_err(),
        directory
    );
    let special = VolumeError::Media(MediaError::UnsupportedType(PathBuf::from("/dev/null")));
    assert_eq!(
        Volume::open(Path::new("/dev/null"), Access::ReadWrite).unwrap_err(),
        special
    );
}

#[test]
fn a_newer_version_is_an_error() {
    let room = Room::new();
    drop(room.pool(&["a"]));
    let mut label = room.label("a", 0);
    label[8] = 9;
    label[12..16].fill(0);
    let crc = crc32c(&label);
    label[12..16].copy_from_slice(&crc.to_le_bytes());
    room.scribble("a", 0, &label);
    assert_eq!(
        room.open_error("a"),
        VolumeError::NewerVersion {
            path: room.path("a"),
            found: 9
        }
    );
}

#[test]
fn a_newer_format_with_another_checksum_is_newer_and_not_damaged() {
    let room = Room::new();
    drop(room.pool(&["a"]));
    let newer = |at: u64| {
        let mut label = room.label("a", at);
        label[8] = 9;
        room.scribble("a", at, &label);
    };
    newer(0);
    // The other copy is good: this one is damaged.
    assert!(Volume::open(&room.path("a"), Access::ReadOnly).is_ok());
    newer(SECOND);
    assert_eq!(
        room.open_error("a"),
        VolumeError::NewerVersion {
            path: room.path("a"),
            found: 9
        }
    );
    room.scribble("a", SECOND, &[0; 4096]);
    assert!(matches!(
        room.open_error("a"),
        VolumeError::NewerVersion { found: 9, .. }
    ));
}

#[test]
fn a_truncated_device_is_an_error() {
    let room = Room::new();
    drop(room.pool(&["a", "b"]));
    let file = OpenOptions::new().write(true).open(room.path("b")).unwrap();
    file.set_len(8 * MIB).unwrap();
    let error = VolumeError::Truncated {
        path: room.path("b"),
        actual: 8 * MIB,
        recorded: 16 * MIB,
    };
    assert_eq!(room.open_error("a"), error);
    assert_eq!(room.open_error("b"), error);
}

#[test]
fn a_device_that_became_longer_still_opens() {
    let room = Room::new();
    drop(room.pool(&["a"]));
    OpenOptions::new()
        .write(true)
        .open(room.path("a"))
        .unwrap()
        .set_len(20 * MIB)
        .unwrap();
    assert_eq!(room.open("a").unwrap().len(), 12 * MIB);
}

#[test]
fn a_missing_device_is_named() {
    let room = Room::new();
    let made = room.pool(&["a", "b"]);
    let (pool, device) = (made.uuid(), made.devices()[1].uuid);
    drop(made);
    fs::remove_file(room.path("b")).unwrap();
    assert_eq!(
        room.open_error("a"),
        VolumeError::Missing {
            asked: room.path("a"),
            path: room.path("b"),
            index: 1,
            device,
            pool
        }
    );
}

#[test]
fn devices_that_moved_are_found_if_named_and_remembered() {
    let room = Room::new();
    drop(room.pool(&["a", "b"]));
    fs::create_dir(room.path("else")).unwrap();
    room.rename("b", "else/z");
    assert!(matches!(
        room.open_error("a"),
        VolumeError::Missing { index: 1, .. }
    ));
    drop(room.open_both("else/z", "a").unwrap());
    assert_eq!(
        room.open("a").unwrap().devices()[1].path,
        room.path("else/z")
    );
}

#[test]
fn a_pool_that_moved_as_a_whole_is_found() {
    let room = Room::new();
    fs::create_dir(room.path("old")).unwrap();
    drop(room.pool(&["old/a", "old/b"]));
    room.rename("old", "new");
    assert_eq!(
        room.open("new/b").unwrap().devices()[0].path,
        room.path("new/a")
    );
}

/// The copy's labels say where the original's devices are.
#[test]
fn devices_of_a_pool_and_of_its_copy_are_not_mixed() {
    let room = Room::new();
    for folder in ["old", "copy"] {
        fs::create_dir(room.path(folder)).unwrap();
    }
    put(&room.pool(&["old/a", "old/b"]), 0, b"first");
    for name in ["a", "b"] {
        fs::copy(room.path("old").join(name), room.path("copy").join(name)).unwrap();
    }
    for name in ["copy/a", "copy/b"] {
        let error = room.open_error(name);
        assert!(matches!(error, VolumeError::Copied { .. }), "{error}");
    }
    let paths = |volume: Volume| volume.devices().iter().map(|d| d.path.clone()).collect();
    let of = |folder: &str| ["a", "b"].map(|name| room.path(folder).join(name)).to_vec();
    let opened: Vec<PathBuf> = paths(room.open("old/b").unwrap());
    assert_eq!(opened, of("old"));
    // Whoever names all devices says which are meant, and from then on the labels do.
    drop(room.open_both("copy/a", "copy/b").unwrap());
    for folder in ["copy", "old"] {
        let opened: Vec<PathBuf> = paths(room.open(&format!("{folder}/a")).unwrap());
        assert_eq!(opened, of(folder));
    }
}

/// One device of the copy is there, the other one only in the original.
#[test]
fn a_part_of_a_copy_is_not_completed_by_the_original() {
    let room = Room::new();
    fs::create_dir(room.path("copy")).unwrap();
    drop(room.pool(&["a", "b"]));
    fs::copy(room.path("a"), room.path("copy/a")).unwrap();
    let error = room.open_error("copy/a");
    assert!(matches!(error, VolumeError::Copied { .. }), "{error}");
}

#[test]
fn devices_whose_places_were_exchanged_are_told_apart() {
    let room = Room::new();
    put(&room.pool(&["a", "b"]), 0, b"first");
    room.rename("a", "x");
    room.rename("b", "a");
    room.rename("x", "b");
    for name in ["a", "b"] {
        let volume = room.open(name).unwrap();
        assert_eq!(volume.devices()[0].path, room.path("b"));
        assert_eq!(get(&volume, 0, 5), b"first");
    }
}

#[test]
fn another_member_in_a_devices_place_is_an_error() {
    let room = Room::new();
    let devices = room.pool(&["a", "b", "c"]).devices();
    fs::remove_file(room.path("b")).unwrap();
    room.rename("c", "b");
    let (wanted, found) = (devices[1].uuid, devices[2].uuid);
    assert_eq!(
        room.open_error("a"),
        VolumeError::Swapped {
            path: room.path("b"),
            index: 1,
            wanted,
            found
        }
    );
}

#[test]
fn a_foreign_device_is_an_error() {
    let room = Room::new();
    let wanted = room.pool(&["a", "b"]).uuid();
    let found = room.pool(&["c"]).uuid();
    let foreign = |name: &str| VolumeError::Foreign {
        path: room.path(name),
        found,
        wanted,
    };
    assert_eq!(room.open_both("a", "c").unwrap_err(), foreign("c"));
    room.rename("c", "b");
    assert_eq!(room.open_error("a"), foreign("b"));
}

#[test]
fn one_device_named_twice_is_an_error() {
    let room = Room::new();
    drop(room.pool(&["a"]));
    symlink(room.path("a"), room.path("link")).unwrap();
    let error = VolumeError::SameDevice(room.path("a"), room.path("link"));
    assert_eq!(room.open_both("a", "link").unwrap_err(), error);
    let specs = [room.spec("new", 16), room.spec("new", 16)];
    let error = VolumeError::SameDevice(room.path("new"), room.path("new"));
    assert_eq!(Volume::create(&specs, CAREFUL).unwrap_err(), error);
    assert!(!room.path("new").exists());
}

#[test]
fn a_copied_device_is_an_error() {
    let room = Room::new();
    let device = room.pool(&["a"]).devices()[0].uuid;
    fs::copy(room.path("a"), room.path("copy")).unwrap();
    let error = VolumeError::Copied {
        first: room.path("a"),
        second: room.path("copy"),
        device,
    };
    assert_eq!(room.open_both("a", "copy").unwrap_err(), error);
}

#[test]
fn pools_and_other_data_are_overwritten_only_by_force() {
    let room = Room::new();
    let old = room.pool(&["a"]).uuid();
    fs::write(room.path("photo"), vec![0xff; 16 << 20]).unwrap();
    fs::write(room.path("text"), "too short for a pool").unwrap();
    let error = |name, options| Volume::create(&[room.spec(name, 16)], options).unwrap_err();
    assert_eq!(
        error("a", CAREFUL),
        VolumeError::AlreadyPool(room.path("a"))
    );
    assert_eq!(
        error("photo", CAREFUL),
        VolumeError::HoldsData(room.path("photo"))
    );
    assert_eq!(
        error("text", CAREFUL),
        VolumeError::HoldsData(room.path("text"))
    );
    assert_eq!(room.open("a").unwrap().uuid(), old);
    room.scribble("a", 100, b"damage");
    room.scribble("a", SECOND + 100, b"damage");
    assert_eq!(
        error("a", CAREFUL),
        VolumeError::AlreadyPool(room.path("a"))
    );
    for name in ["a", "photo"] {
        assert_ne!(
            Volume::create(&[room.spec(name, 16)], FORCE)
                .unwrap()
                .uuid(),
            old
        );
    }
}

#[test]
fn sizes_are_checked_and_nothing_is_left_behind() {
    let room = Room::new();
    let create = |spec: DeviceSpec| Volume::create(&[spec], CAREFUL).unwrap_err();
    let none = DeviceSpec {
        path: room.path("a"),
        size: None,
    };
    assert_eq!(create(none), VolumeError::SizeNeeded(room.path("a")));
    let small = VolumeError::TooSmall {
        path: room.path("a"),
        size: 6 * MIB,
        least: 8 * MIB,
    };
    assert_eq!(create(room.spec("a", 6)), small);
    let size = 16 * MIB + 1;
    let odd = VolumeError::Media(MediaError::BadSize {
        path: room.path("a"),
        size,
        granule: 4096,
    });
    assert_eq!(
        create(DeviceSpec {
            path: room.path("a"),
            size: Some(size)
        }),
        odd
    );
    let size = 1 << 50;
    let huge = VolumeError::Media(MediaError::NoRoom {
        path: room.path("a"),
        size,
    });
    assert_eq!(
        create(DeviceSpec {
            path: room.path("a"),
            size: Some(size)
        }),
        huge
    );
    assert!(!room.path("a").exists());
    fs::write(room.path("zeros"), vec![0; 16 << 20]).unwrap();
    let (actual, wanted) = (16 * MIB, 32 * MIB);
    let differs = VolumeError::SizeDiffers {
        path: room.path("zeros"),
        actual,
        wanted,
    };
    assert_eq!(create(room.spec("zeros", 32)), differs);
    assert_eq!(
        Volume::create(&[], CAREFUL).unwrap_err(),
        VolumeError::NoDevices
    );
    let many: Vec<DeviceSpec> = (0..17).map(|i| room.spec(&i.to_string(), 16)).collect();
    assert_eq!(
        Volume::create(&many, CAREFUL).unwrap_err(),
        VolumeError::TooManyDevices(17)
    );
}

#[test]
fn when_a_later_device_cannot_be_had_earlier_files_are_removed() {
    let room = Room::new();
    let specs = [room.spec("a", 16), room.spec("no/such/folder", 16)];
    assert!(matches!(
        Volume::create(&specs, CAREFUL).unwrap_err(),
        VolumeError::Media(MediaError::NotFound(_))
    ));
    assert!(!room.path("a").exists());
}

#[test]
fn existing_files_are_used_as_they_are() {
    let room = Room::new();
    fs::write(room.path("empty"), "").unwrap();
    File::create(room.path("zeros"))
        .unwrap()
        .set_len(32 * MIB + 5)
        .unwrap();
    let zeros = DeviceSpec {
        path: room.path("zeros"),
        size: None,
    };
    let volume = Volume::create(&[room.spec("empty", 16), zeros], CAREFUL).unwrap();
    assert_eq!(volume.len(), 12 * MIB + 28 * MIB);
    drop(volume);
    assert_eq!(room.open("zeros").unwrap().len(), 40 * MIB);
}

const STRANGER: u32 = 60_001;

/// Gives a file to a stranger; false without the right to.
fn give(path: &Path, mode: u32) -> bool {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let root = rustix::process::geteuid().is_root();
    if root {
        std::os::unix::fs::chown(path, Some(STRANGER), Some(STRANGER)).unwrap();
    }
    root
}

#[test]
fn a_file_that_a_stranger_made_becomes_a_pool_only_by_force() {
    let room = Room::new();
    File::create(room.path("a")).unwrap();
    if !give(&room.path("a"), 0o666) {
        return;
    }
    let made = Volume::create(&[room.spec("a", 16)], CAREFUL);
    let foreign = VolumeError::ForeignFile {
        path: room.path("a"),
        owner: STRANGER,
    };
    assert_eq!(made.unwrap_err(), foreign);
    let len = fs::metadata(room.path("a")).unwrap().len();
    assert_eq!(len, 0, "nothing was done to it");
    assert!(Volume::create(&[room.spec("a", 16)], FORCE).is_ok());
}

#[test]
fn a_strangers_file_in_a_devices_place_is_not_taken() {
    let room = Room::new();
    drop(room.pool(&["a", "b"]));
    fs::create_dir(room.path("elsewhere")).unwrap();
    let moved = room.path("elsewhere/b");
    fs::copy(room.path("b"), &moved).unwrap();
    fs::rename(&moved, room.path("b")).unwrap();
    assert!(room.open("a").is_ok(), "the owner's copy");
    if !give(&room.path("b"), 0o600) {
        return;
    }
    assert_eq!(
        room.open_error("a"),
        VolumeError::ForeignDevice(room.path("b"))
    );
    // One's own that more may write than the first.
    std::os::unix::fs::chown(room.path("b"), Some(0), Some(0)).unwrap();
    fs::set_permissions(room.path("b"), fs::Permissions::from_mode(0o602)).unwrap();
    assert_eq!(
        room.open_error("a"),
        VolumeError::ForeignDevice(room.path("b"))
    );
    let both = [room.path("a"), room.path("b")];
    let both = [both[0].as_path(), both[1].as_path()];
    assert!(Volume::open_with(&both, Access::ReadOnly).is_ok(), "named");
}

#[test]
fn a_device_that_the_first_ones_owner_may_not_write_is_not_taken() {
    let room = Room::new();
    drop(room.pool(&["a", "b"]));
    if !give(&room.path("a"), 0o600) {
        return;
    }
    // Root's: by the stranger's label it would become a part of the stranger's pool.
    let foreign = VolumeError::ForeignDevice(room.path("b"));
    assert_eq!(room.open_error("a"), foreign);
    fs::set_permissions(room.path("b"), fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(room.open_error("a"), foreign);
    // The group of the first may write both.
    std::os::unix::fs::chown(room.path("b"), Some(0), Some(STRANGER)).unwrap();
    for file in ["a", "b"] {
        fs::set_permissions(room.path(file), fs::Permissions::from_mode(0o660)).unwrap();
    }
    assert!(room.open("a").is_ok(), "of one group");
    give(&room.path("b"), 0o660);
    assert!(room.open("a").is_ok(), "of one owner");
}

#[test]
fn the_label_of_a_copy_that_something_was_written_over_is_not_repaired() {
    let room = Room::new();
    drop(room.copies());
    let user = room.open("a").unwrap();
    assert!(user.enter(Presence::Member).unwrap());
    room.scribble("b", 0, &[7; 4096]);
    // Who comes meanwhile would hide that the device is being written over.
    drop(room.open("a").unwrap());
    assert!(!Volume::inspect(&room.path("b")).unwrap().intact);
    drop(user);
    // Nor is it one of the copies afterwards: what stands behind is not known.
    drop(room.open("a").unwrap());
    assert!(!Volume::inspect(&room.path("b")).unwrap().intact);
}

#[test]
fn the_label_of_a_copy_whose_writer_died_is_repaired() {
    let room = Room::new();
    drop(room.copies());
    room.scribble("b", 100, &[7; 3000]);
    assert!(!Volume::inspect(&room.path("b")).unwrap().intact);
    drop(room.open("a").unwrap());
    assert!(Volume::inspect(&room.path("b")).unwrap().intact);
}

#[test]
fn copies_of_a_lost_device_are_found_if_they_are_of_its_owner() {
    let room = Room::new();
    drop(room.copies());
    fs::remove_file(room.path("a")).unwrap();
    let others = [room.path("b")];
    let open = |owner| Volume::open_or_copy(&room.path("a"), &others, owner, Access::ReadOnly);
    let meta = fs::metadata(room.path("b")).unwrap();
    let owner: Owner = format!("{}:{}:600", meta.uid(), meta.gid())
        .parse()
        .unwrap();
    assert_eq!(owner.to_string().parse(), Ok(owner));
    let lost = VolumeError::Media(MediaError::NotFound(room.path("a")));
    assert_eq!(open(None).unwrap_err(), lost, "nobody says whose they are");
    assert!(open(Some(owner)).is_ok());
    if give(&room.path("b"), 0o666) {
        let foreign = VolumeError::ForeignDevice(room.path("b"));
        assert_eq!(open(Some(owner)).unwrap_err(), foreign);
    }
}

#[test]
fn a_strangers_copy_of_a_device_keeps_nobody_off() {
    let room = Room::new();
    fs::create_dir(room.path("home")).unwrap();
    drop(room.pool(&["a", "home/b"]));
    fs::copy(room.path("home/b"), room.path("b")).unwrap();
    assert!(matches!(room.open_error("a"), VolumeError::Copied { .. }));
    if give(&room.path("b"), 0o600) {
        assert!(room.open("a").is_ok());
    }
}

#[test]
fn a_strangers_file_in_the_place_of_a_copy_keeps_nobody_off_unless_it_is_that_copy() {
    let room = Room::new();
    drop(room.copies());
    let kept = fs::read(room.path("b")).unwrap();
    if !give(&room.path("b"), 0o600) {
        return;
    }
    let foreign = VolumeError::ForeignDevice(room.path("b"));
    assert_eq!(room.open_error("a"), foreign, "it may be the right one");
    fs::write(room.path("b"), b"something else").unwrap();
    assert!(room.open("a").is_ok(), "no device");
    drop(room.pool(&["other"]));
    fs::rename(room.path("other"), room.path("b")).unwrap();
    give(&room.path("b"), 0o600);
    assert!(room.open("a").is_ok(), "a device of another pool");
    fs::write(room.path("b"), kept).unwrap();
    assert_eq!(room.open_error("a"), foreign);
}

#[test]
fn permission_is_needed_and_new_files_are_private() {
    let room = Room::new();
    let owner = room.pool(&["a"]).owner();
    assert_eq!(owner.mode, 0o600);
    assert_eq!(
        fs::metadata(room.path("a")).unwrap().permissions().mode() & 0o777,
        0o600
    );
    if rustix::process::geteuid().is_root() {
        return;
    }
    fs::set_permissions(room.path("a"), fs::Permissions::from_mode(0o400)).unwrap();
    assert_eq!(
        room.open_error("a"),
        VolumeError::Media(MediaError::PermissionDenied(room.path("a")))
    );
}

#[test]
fn a_pool_grows_by_a_device() {
    let room = Room::new();
    let made = room.pool(&["a"]);
    put(&made, 100, b"stays");
    let uuid = made.uuid();
    drop(made);
    let member = room.path("a");
    let grown = Volume::grow(&[&member], &room.spec("b", 32), CAREFUL).unwrap();
    assert_eq!((grown.uuid(), grown.len()), (uuid, 40 * MIB));
    put(&grown, 39 * MIB, b"new room");
    drop(grown);
    for name in ["a", "b"] {
        let volume = room.open(name).unwrap();
        assert_eq!(get(&volume, 100, 5), b"stays");
        assert_eq!(get(&volume, 39 * MIB, 8), b"new room");
    }
    let again = Volume::grow(&[&member], &room.spec("b", 32), FORCE).unwrap_err();
    assert_eq!(again, VolumeError::InPool(room.path("b")));
    assert!(matches!(
        Volume::grow(&[&member], &room.spec("c", 1), CAREFUL).unwrap_err(),
        VolumeError::TooSmall { .. }
    ));
    assert_eq!(room.open("a").unwrap().len(), 40 * MIB);
}

#[test]
fn a_pool_remembers_what_it_emulates() {
    let room = Room::new();
    drop(room.pool(&["a"]));
    let known = || Volume::inspect(&room.path("a")).unwrap().emulates;
    assert_eq!(known(), "");
    Volume::store_emulated(&room.path("a"), "optane-100").unwrap();
    Volume::store_granularity(&room.path("a"), |_, _| measured()).unwrap();
    drop(Volume::grow(&[&room.path("a")], &room.spec("b", 16), CAREFUL).unwrap());
    assert_eq!(known(), "optane-100");
    assert_eq!(
        Volume::inspect(&room.path("b")).unwrap().emulates,
        "optane-100"
    );
    let long = Volume::store_emulated(&room.path("a"), &"x".repeat(65));
    assert!(long.unwrap_err().to_string().contains("shorter"));
    Volume::store_emulated(&room.path("b"), "").unwrap();
    assert_eq!(known(), "");
}

/// A measured device.
fn measured() -> Granularity {
    let mut writes = PieceTable::default();
    writes.0[4][7] = 8;
    Granularity {
        policy: Policy::Calibrated,
        measured: 7,
        writes,
        ..Granularity::default()
    }
}

#[test]
fn each_device_remembers_its_granularity() {
    let room = Room::new();
    drop(room.pool(&["a", "b"]));
    let known = |name: &str| {
        let devices = room.open(name).unwrap().devices();
        devices
            .into_iter()
            .map(|device| device.granularity)
            .collect::<Vec<_>>()
    };
    assert_eq!(known("a"), [Granularity::default(); 2]);
    let optane = Granularity {
        policy: Policy::Optane { modules: 6 },
        ..Granularity::default()
    };
    Volume::store_granularity(&room.path("b"), |index, before| {
        assert_eq!(before, Granularity::default());
        [measured(), optane][index]
    })
    .unwrap();
    assert_eq!(known("b"), [measured(), optane]);
    assert!(Volume::inspect(&room.path("a")).unwrap().intact);
    // A label that is rewritten, as its device has moved or lost a copy, keeps it.
    room.rename("b", "c");
    drop(room.open_both("a", "c").unwrap());
    room.scribble("a", 0, &[7; 4096]);
    assert_eq!(known("c"), [measured(), optane]);
}

#[test]
fn a_device_that_comes_later_is_taken_to_be_like_the_others_but_not_measured() {
    let room = Room::new();
    drop(room.pool(&["a"]));
    let policy = Policy::Optane { modules: 2 };
    let all = Granularity {
        policy,
        ..measured()
    };
    Volume::store_granularity(&room.path("a"), |_, _| all).unwrap();
    let grown = Volume::grow(&[&room.path("a")], &room.spec("b", 16), CAREFUL).unwrap();
    let devices = grown.devices();
    assert_eq!(devices[0].granularity, all);
    let fresh = Granularity {
        policy,
        ..Granularity::default()
    };
    assert_eq!(devices[1].granularity, fresh);
    drop(grown);
    Volume::store_granularity(&room.path("a"), |_, _| measured()).unwrap();
    let grown = Volume::grow(&[&room.path("a")], &room.spec("c", 16), CAREFUL).unwrap();
    assert_eq!(grown.devices()[2].granularity, Granularity::default());
}

#[test]
fn what_may_be_measured_holds_nothing_of_the_pool() {
    let room = Room::new();
    let volume = room.pool(&["a", "b"]);
    put(&volume, 100, b"stays");
    let before: Vec<_> = [0, SECOND].map(|at| room.label("b", at)).into();
    for ground in volume.proving_grounds().unwrap() {
        let len = (ground.range.end.get() - ground.range.start.get()) as usize;
        let stored = ground
            .reserved
            .write(ground.range.start, &vec![1; len], StoreKind::Data);
        ground.reserved.fence(stored).unwrap();
        assert!(ground.data.len() >= 12 * MIB);
    }
    assert_eq!(get(&volume, 100, 5), b"stays");
    drop(volume);
    let after: Vec<_> = [0, SECOND].map(|at| room.label("b", at)).into();
    assert!(before == after);
    assert!(Volume::inspect(&room.path("b")).unwrap().intact);
    assert_eq!(get(&room.open("b").unwrap(), 100, 5), b"stays");
}

#[test]
fn growing_that_stopped_halfway_is_completed() {
    let room = Room::new();
    drop(room.pool(&["a", "b"]));
    let before: Vec<_> = [0, SECOND].map(|at| room.label("a", at)).into();
    drop(Volume::grow(&[&room.path("a")], &room.spec("c", 16), CAREFUL).unwrap());
    for (at, label) in [0, SECOND].into_iter().zip(&before) {
        room.scribble("a", at, label);
    }
    assert_eq!(Volume::inspect(&room.path("a")).unwrap().devices.len(), 2);
    assert_eq!(room.open("a").unwrap().len(), 36 * MIB);
    assert_eq!(Volume::inspect(&room.path("a")).unwrap().devices.len(), 3);
}

#[test]
fn a_device_that_was_left_out_is_no_member() {
    let room = Room::new();
    let pool = room.pool(&["a"]).uuid();
    let before: Vec<_> = [0, SECOND].map(|at| room.label("a", at)).into();
    drop(Volume::grow(&[&room.path("a")], &room.spec("b", 16), CAREFUL).unwrap());
    room.rename("b", "gone");
    for (at, label) in [0, SECOND].into_iter().zip(&before) {
        room.scribble("a", at, label);
    }
    drop(Volume::grow(&[&room.path("a")], &room.spec("b", 16), CAREFUL).unwrap());
    drop(Volume::grow(&[&room.path("a")], &room.spec("c", 16), CAREFUL).unwrap());
    let error = room.open_both("a", "gone").unwrap_err();
    assert_eq!(
        error,
        VolumeError::NotAMember {
            path: room.path("gone"),
            pool
        }
    );
}

#[test]
fn a_deleted_pool_is_gone() {
    let room = Room::new();
    drop(room.pool(&["a", "b"]));
    fs::hard_link(room.path("a"), room.path("other name")).unwrap();
    Volume::delete(&[&room.path("b")]).unwrap();
    assert!(!room.path("a").exists() && !room.path("b").exists());
    assert_eq!(
        room.open_error("other name"),
        VolumeError::NotAPool {
            path: room.path("other name"),
            is_blank: true
        }
    );
}

#[test]
fn labels_are_told_without_opening_the_pool() {
    let room = Room::new();
    let volume = room.pool(&["a", "b"]);
    let label = Volume::inspect(&room.path("b")).unwrap();
    assert_eq!(
        (label.pool, label.index, label.intact),
        (volume.uuid(), 1, true)
    );
    assert_eq!(label.own().path, room.path("b"));
    assert_eq!(label.volume_len(), volume.len());
}

#[test]
fn locks_keep_others_off_until_dropped() {
    let room = Room::new();
    let volume = room.pool(&["a"]);
    let other = room.open("a").unwrap();
    let held = volume.lock_exclusive().unwrap();
    assert!(other.try_lock_exclusive().unwrap().is_none());
    drop(held);
    assert!(other.try_lock_exclusive().unwrap().is_some());
}

#[test]
fn pools_on_a_disk_file_system_write_back_at_the_fence() {
    let devices = Devices::below(Path::new(env!("CARGO_TARGET_TMPDIR")));
    let path = devices.file("pool");
    let spec = DeviceSpec {
        path: path.clone(),
        size: Some(16 * MIB),
    };
    let volume = Volume::create(&[spec], CAREFUL).unwrap();
    put(&volume, 9000, b"to the disk");
    if volume.devices()[0].kind == DeviceKind::CachedFile {
        assert_eq!(volume.devices()[0].flush, FlushMethod::Msync);
        assert!(volume.survives().power_loss);
    }
    drop(volume);
    let volume = Volume::open(&path, Access::ReadOnly).unwrap();
    assert_eq!(get(&volume, 9000, 11), b"to the disk");
}

#[test]
fn how_data_is_spread_is_kept_and_begins_with_the_second_device() {
    let room = Room::new();
    let one = room.pool(&["a"]);
    assert_eq!((one.stripe(), one.placement()), (Stripe::None, None));
    drop(one);
    let grown = Volume::grow(&[&room.path("a")], &room.spec("b", 16), CAREFUL).unwrap();
    assert_eq!(grown.stripe(), Stripe::USUAL);
    drop(grown);
    Volume::store_stripe(&room.path("b"), Stripe::Bytes(4096)).unwrap();
    let grown = Volume::grow(&[&room.path("a")], &room.spec("c", 16), CAREFUL).unwrap();
    drop(grown);
    let open = room.open("b").unwrap();
    assert_eq!(open.stripe(), Stripe::Bytes(4096));
    let placement = open.placement().unwrap();
    assert_eq!((placement.devices(), placement.stripe()), (3, 1));
    drop(open);
    Volume::store_stripe(&room.path("c"), Stripe::None).unwrap();
    assert_eq!(room.open("a").unwrap().placement(), None);
}

fn fill(volume: &Volume, at: u64, byte: u8) {
    let stored = volume.write(VolumeOffset(at), &[byte; 5000], StoreKind::Data);
    volume.fence(stored).unwrap();
}

fn holds(volume: &Volume, at: u64, byte: u8) -> bool {
    let mut bytes = [0; 5000];
    volume.read(VolumeOffset(at), &mut bytes);
    bytes == [byte; 5000]
}

/// A pool of three devices, with something at the start of each part.
fn three(room: &Room) -> [u64; 3] {
    let volume = room.pool(&["a", "b", "c"]);
    let starts = [0, 1, 2].map(|device: usize| volume.devices()[device].range.start.0);
    for (start, byte) in starts.into_iter().zip(1..) {
        fill(&volume, start, byte);
    }
    starts
}

#[test]
fn a_device_that_left_is_used_for_something_else_and_all_addresses_stay() {
    let room = Room::new();
    let starts = three(&room);
    let (path, begun) = Volume::begin_leaving(&room.path("a"), &room.path("b")).unwrap();
    assert_eq!((path, begun), (room.path("b"), true));
    let again = Volume::begin_leaving(&room.path("c"), &room.path("b")).unwrap();
    assert!(!again.1);
    let second = Volume::begin_leaving(&room.path("a"), &room.path("c"));
    assert!(
        matches!(second, Err(VolumeError::CannotLeave { .. })),
        "{second:?}"
    );
    let before = room.open("a").unwrap();
    assert_eq!(before.leaving().unwrap().start << 12, starts[1]);
    assert_eq!(before.header_goes_to(), None);
    let [old_a, old] = ["a", "b"].map(|name| fs::read(room.path(name)).unwrap());
    drop(before);
    assert_eq!(
        Volume::remove_leaving(&room.path("c"), nacre_volume::Room::default()).unwrap(),
        room.path("b")
    );
    for name in ["a", "c"] {
        let volume = room.open(name).unwrap();
        assert_eq!(volume.devices().len(), 2);
        assert_eq!(
            (volume.units(), volume.leaving()),
            ((starts[2] * 3 / 2) >> 12, None)
        );
        assert_eq!(volume.present_units() << 12, starts[2]);
        assert!(holds(&volume, 0, 1) && holds(&volume, starts[2], 3));
        assert!(
            holds(&volume, starts[1], 0),
            "something is left of what is gone"
        );
    }
    let error = room.open_error("b");
    assert!(matches!(error, VolumeError::NotAPool { .. }), "{error}");
    // A crash before its label was erased.
    fs::write(room.path("b"), &old).unwrap();
    let error = room.open_error("b");
    assert!(matches!(error, VolumeError::NotAMember { .. }), "{error}");
    // One before another label was written, which names the device.
    fs::write(room.path("a"), &old_a).unwrap();
    let error = room.open_error("b");
    assert!(matches!(error, VolumeError::NotAMember { .. }), "{error}");
    for name in ["a", "c"] {
        let volume = room.open(name).unwrap();
        assert_eq!(volume.devices().len(), 2);
        assert!(holds(&volume, 0, 1) && holds(&volume, starts[2], 3));
    }
    let forget = |name| Volume::forget_removed(&room.path("a"), &room.path(name)).unwrap();
    assert_eq!((forget("c"), forget("b")), (None, Some(room.path("b"))));
    // Both: nothing may lead to what is forgotten, whichever device the pool is opened by.
    fs::write(room.path("a"), old_a).unwrap();
    fs::write(room.path("b"), old).unwrap();
    assert_eq!(forget("b"), Some(room.path("b")));
    for name in ["a", "c"] {
        assert_eq!(room.open(name).unwrap().devices().len(), 2);
    }
    Volume::create(&[room.spec("b", 16)], CAREFUL).unwrap();
    assert_eq!(forget("b"), None, "it belongs to another pool");
}

#[test]
fn the_first_device_leaves_the_header_with_one_that_stays() {
    let room = Room::new();
    let starts = three(&room);
    let leave = |member: &str, named: &str, block: u64| {
        Volume::begin_leaving(&room.path(member), &room.path(named)).unwrap();
        let volume = room.open(member).unwrap();
        let among = volume.header_goes_to().expect("the header is there");
        let to = (among.start << 12) + block * (4 * MIB);
        let mut header = vec![0; 4 << 20];
        volume.read(VolumeOffset(0), &mut header);
        let stored = volume.write(VolumeOffset(to), &header, StoreKind::Metadata);
        volume.fence(stored).unwrap();
        drop(volume);
        let moved = nacre_volume::Room {
            header: Some(VolumeOffset(to)),
            ..nacre_volume::Room::default()
        };
        Volume::remove_leaving(&room.path(member), moved).unwrap();
    };
    leave("b", "a", 1);
    let volume = room.open("c").unwrap();
    assert!(holds(&volume, 0, 1) && holds(&volume, starts[1], 2) && holds(&volume, starts[2], 3));
    assert_eq!(volume.path(), room.path("b"));
    // What is stored to the header is there for who opens it next.
    fill(&volume, 8192, 7);
    let closed: u64 = volume
        .closed_units()
        .iter()
        .map(|it| it.end - it.start)
        .sum();
    assert_eq!(closed << 12, starts[1] + 4 * MIB);
    drop(volume);
    leave("c", "b", 2);
    let volume = room.open("c").unwrap();
    assert!(holds(&volume, 0, 1) && holds(&volume, 8192, 7) && holds(&volume, starts[2], 3));
    assert_eq!(volume.devices().len(), 1);
    drop(volume);
    // It grows again, and keeps what it has.
    Volume::grow(&[&room.path("c")], &room.spec("d", 16), CAREFUL).unwrap();
    let volume = room.open("d").unwrap();
    assert!(holds(&volume, 0, 1) && holds(&volume, 8192, 7) && holds(&volume, starts[2], 3));
    assert_eq!(volume.devices().len(), 2);
    let only = Volume::begin_leaving(&room.path("c"), &room.path("nobody"));
    assert!(
        matches!(only, Err(VolumeError::CannotLeave { .. })),
        "{only:?}"
    );
}

#[test]
fn a_leaving_device_can_stay_and_one_of_several_copies_can_go() {
    let room = Room::new();
    three(&room);
    Volume::begin_leaving(&room.path("a"), &room.path("2")).unwrap_err();
    Volume::begin_leaving(&room.path("a"), Path::new("2")).unwrap();
    assert!(room.open("a").unwrap().devices()[2].is_leaving);
    let stays = Volume::end_leaving(&room.path("a")).unwrap();
    assert_eq!(stays, Some(room.path("c")));
    assert_eq!(Volume::end_leaving(&room.path("a")).unwrap(), None);
    assert_eq!(room.open("a").unwrap().leaving(), None);
    let room = Room::new();
    room.copies();
    assert_eq!(
        Volume::remove_copy(&room.path("b"), &room.path("a")).unwrap(),
        room.path("a")
    );
    assert_eq!(room.open("b").unwrap().copies().unwrap().len(), 1);
    let error = room.open_error("a");
    assert!(matches!(error, VolumeError::NotAPool { .. }), "{error}");
    let last = Volume::remove_copy(&room.path("b"), &room.path("b"));
    assert!(
        matches!(last, Err(VolumeError::CannotLeave { .. })),
        "{last:?}"
    );
}

/// A pool whose device `b` stands behind `a`, with something at the start of each.
fn behind(room: &Room) {
    let options = CreateOptions {
        behind: 1,
        ..CAREFUL
    };
    let volume = room.0.volume(&["a", "b"], 16 * MIB, options);
    put(&volume, 5000, b"in front");
    put(&volume, 12 * MIB, b"what is cold");
}

/// As [`behind`], but nothing need be free.
fn assert_kept_behind(volume: &Volume, stands_behind: &[bool]) {
    let told: Vec<bool> = volume.devices().iter().map(|it| it.is_behind).collect();
    assert_eq!(told, stands_behind);
    assert_eq!(volume.front_len(), 12 * MIB);
    assert_eq!(get(volume, 5000, 8), b"in front");
    assert_eq!(get(volume, 12 * MIB, 12), b"what is cold");
}

fn put_behind(room: &Room, name: &str, mib: u64) -> Result<Volume, VolumeError> {
    let options = CreateOptions {
        behind: 1,
        ..CAREFUL
    };
    Volume::grow(&[&room.path("a")], &room.spec(name, mib), options)
}

#[test]
fn further_devices_come_behind() {
    let room = Room::new();
    behind(&room);
    let before = ["a", "b"].map(|name| fs::read(room.path(name)).unwrap());
    let grown = put_behind(&room, "c", 32).unwrap();
    assert_kept_behind(&grown, &[false, true, true]);
    assert_eq!(grown.len(), 52 * MIB);
    put(&grown, 51 * MIB, b"new room");
    drop(grown);
    for name in ["a", "b", "c"] {
        let volume = room.open(name).unwrap();
        assert_kept_behind(&volume, &[false, true, true]);
        assert_eq!(get(&volume, 51 * MIB, 8), b"new room");
    }
    // It was killed when only the new one had its label.
    for (name, bytes) in ["a", "b"].into_iter().zip(before) {
        fs::write(room.path(name), bytes).unwrap();
    }
    let alone = room.open("a").unwrap();
    assert_eq!(alone.len(), 24 * MIB);
    // As whoever lets it grow has it.
    let lock = alone.lock_exclusive().unwrap();
    let grown = put_behind(&room, "c", 32).unwrap();
    assert_kept_behind(&grown, &[false, true, true]);
    drop((grown, lock));
    for name in ["a", "b"] {
        assert_eq!(Volume::inspect(&room.path(name)).unwrap().devices.len(), 3);
    }
    // Its own pool is not to be deleted for it.
    let again = put_behind(&room, "c", 32).unwrap_err();
    assert_eq!(again, VolumeError::InPool(room.path("c")));
}

#[test]
fn a_pool_that_has_nothing_behind_gets_it() {
    let room = Room::new();
    put(&room.pool(&["a"]), 5000, b"in front");
    let grown = put_behind(&room, "b", 32).unwrap();
    let told: Vec<bool> = grown.devices().iter().map(|it| it.is_behind).collect();
    assert_eq!(told, [false, true]);
    assert_eq!((grown.front_len(), grown.len()), (12 * MIB, 40 * MIB));
    assert_eq!(
        (grown.stripe(), get(&grown, 5000, 8)),
        (Stripe::None, b"in front".to_vec())
    );
}

#[test]
fn memory_is_not_added_to_what_stands_in_front_of_others() {
    let room = Room::new();
    behind(&room);
    let refused = Volume::grow(&[&room.path("a")], &room.spec("c", 16), CAREFUL).unwrap_err();
    assert!(matches!(refused, VolumeError::Behind { .. }), "{refused}");
    assert!(!room.path("c").exists());
    assert_kept_behind(&room.open("b").unwrap(), &[false, true]);
}

#[test]
fn only_what_is_memory_gets_something_behind() {
    let room = Room::new();
    let cached = CreateOptions {
        caching: nacre_volume::Caching::Always,
        ..CAREFUL
    };
    drop(room.0.volume(&["a"], 64 * MIB, cached));
    let refused = put_behind(&room, "b", 16).unwrap_err();
    assert!(refused.to_string().contains("mode cached"), "{refused}");
    assert!(!room.path("b").exists());
}

fn lengthen(room: &Room, name: &str, mib: u64) {
    let file = OpenOptions::new().write(true).open(room.path(name));
    file.unwrap().set_len(mib * MIB).unwrap();
}

#[test]
fn the_last_device_grows() {
    let room = Room::new();
    behind(&room);
    let none = Volume::grow_last(&room.path("a"), None).unwrap_err();
    assert!(matches!(none, VolumeError::CannotGrow { .. }), "{none}");
    let less = Volume::grow_last(&room.path("a"), Some(12 * MIB)).unwrap_err();
    assert!(matches!(less, VolumeError::NotLarger { .. }), "{less}");
    let before = fs::read(room.path("a")).unwrap();
    // A file may be larger than the pool knows, and a block device.
    lengthen(&room, "b", 40);
    assert_kept_behind(&room.open("b").unwrap(), &[false, true]);
    assert_eq!(Volume::grow_last(&room.path("a"), None), Ok(room.path("b")));
    assert_eq!(room.open("a").unwrap().len(), 48 * MIB);
    let named = Volume::grow_last(&room.path("b"), Some(64 * MIB));
    assert_eq!(named, Ok(room.path("b")));
    for name in ["a", "b"] {
        let volume = room.open(name).unwrap();
        assert_kept_behind(&volume, &[false, true]);
        assert_eq!(volume.len(), 72 * MIB);
        // Where the second copies of older labels were.
        for second in [SECOND, 40 * MIB - 4096] {
            assert_eq!(get(&volume, 10 * MIB + second, 4096), [0; 4096]);
        }
        put(&volume, 71 * MIB, b"new room");
    }
    // It was killed when only the last one had its label; that is completed, and its second copy
    // is enough.
    fs::write(room.path("a"), before).unwrap();
    room.scribble("b", 0, &[7; 4096]);
    let volume = room.open("a").unwrap();
    assert_kept_behind(&volume, &[false, true]);
    assert_eq!(get(&volume, 71 * MIB, 8), b"new room");
    drop(volume);
    for name in ["a", "b"] {
        assert!(Volume::inspect(&room.path(name)).unwrap().intact);
    }
}

/// A pool of 64 MiB on a disk, with something that only its journal has.
fn disk(room: &Room) -> u64 {
    let cached = CreateOptions {
        caching: nacre_volume::Caching::Always,
        ..CAREFUL
    };
    drop(room.0.volume(&["a"], 64 * MIB, cached));
    let volume = room.0.imaged("a");
    put(&volume, 5000, b"stays");
    commit_image(&volume);
    volume.len()
}

#[test]
fn a_pool_on_one_disk_grows_and_its_journal_moves() {
    let room = Room::new();
    let (a, before) = (room.path("a"), disk(&room));
    let smaller = Volume::grow_last(&a, Some(48 * MIB)).unwrap_err();
    assert!(
        matches!(smaller, VolumeError::NotLarger { .. }),
        "{smaller}"
    );
    for size in [None, Some(68 * MIB)] {
        let least = Volume::grow_last(&a, size).unwrap_err();
        assert!(matches!(least, VolumeError::NoRoomToGrow { .. }), "{least}");
    }
    assert_eq!(Volume::grow_last(&a, Some(96 * MIB)), Ok(a.clone()));
    // A block device that has become larger needs no size.
    lengthen(&room, "a", 128);
    assert_eq!(Volume::grow_last(&a, None), Ok(a.clone()));
    let volume = room.0.imaged("a");
    let (new, far) = (volume.len(), volume.len() - 100);
    assert!(volume.is_cached() && new == before + 64 * MIB);
    assert_eq!(get(&volume, 5000, 5), b"stays");
    put(&volume, far, b"far");
    commit_image(&volume);
    drop(volume);
    // The second copy of its label is where the disk ends now.
    room.scribble("a", 0, &[7; 4096]);
    let volume = room.0.imaged("a");
    assert_eq!(
        (get(&volume, 5000, 5), get(&volume, far, 3)),
        (b"stays".to_vec(), b"far".to_vec())
    );
}

#[test]
fn a_pool_on_one_disk_that_did_not_grow_yet_is_what_it_was() {
    let room = Room::new();
    let (a, before) = (room.path("a"), disk(&room));
    let bytes = fs::read(&a).unwrap();
    let old = [0, bytes.len() - 4096].map(|at| (at, bytes[at..][..4096].to_vec()));
    Volume::grow_last(&a, Some(96 * MIB)).unwrap();
    // The labels are written last.
    for (at, label) in old {
        room.scribble("a", at as u64, &label);
    }
    let volume = room.0.imaged("a");
    assert_eq!(
        (volume.len(), get(&volume, 5000, 5)),
        (before, b"stays".to_vec())
    );
    put(&volume, 5000, b"later");
    commit_image(&volume);
    drop(volume);
    Volume::grow_last(&a, Some(96 * MIB)).unwrap();
    assert_eq!(get(&room.0.imaged("a"), 5000, 5), b"later");
}

#[test]
fn a_file_that_is_larger_than_its_pool_knows_stays_so_when_labels_change() {
    let room = Room::new();
    put(&room.pool(&["a", "b"]), 5000, b"stays");
    for name in ["a", "b"] {
        lengthen(&room, name, 32);
    }
    drop(Volume::grow(&[&room.path("a")], &room.spec("c", 16), CAREFUL).unwrap());
    for name in ["a", "b", "c"] {
        let volume = room.open(name).unwrap();
        assert_eq!(
            (volume.len(), get(&volume, 5000, 5)),
            (36 * MIB, b"stays".to_vec())
        );
    }
    // Its last one is another one now.
    let refused = Volume::grow_last(&room.path("a"), None).unwrap_err();
    assert!(
        matches!(refused, VolumeError::CannotGrow { .. }),
        "{refused}"
    );
}

#[test]
fn what_stands_behind_leaves_and_what_is_alone_in_front_stays() {
    let room = Room::new();
    behind(&room);
    drop(put_behind(&room, "c", 16).unwrap());
    let alone = Volume::begin_leaving(&room.path("b"), &room.path("a")).unwrap_err();
    assert!(
        alone.to_string().contains("only device in front"),
        "{alone}"
    );
    let leave = |name: &str| {
        Volume::begin_leaving(&room.path("a"), &room.path(name)).unwrap();
        let volume = room.open("a").unwrap();
        assert!(volume.leaving().is_some() && volume.header_goes_to().is_none());
        drop(volume);
        Volume::remove_leaving(&room.path("a"), nacre_volume::Room::default()).unwrap();
    };
    leave("c");
    let volume = room.open("a").unwrap();
    assert_kept_behind(&volume, &[false, true]);
    assert!(volume.has_behind());
    let refused = Volume::grow_last(&room.path("a"), None).unwrap_err();
    assert!(refused.to_string().contains("has left"), "{refused}");
    // A new one comes behind it, and the next one leaves.
    drop(volume);
    drop(put_behind(&room, "d", 16).unwrap());
    assert_kept_behind(&room.open("d").unwrap(), &[false, true, true]);
    leave("b");
    leave("d");
    let volume = room.open("a").unwrap();
    assert!(!volume.has_behind() && volume.devices().len() == 1);
    assert_eq!((volume.len(), volume.front_len()), (48 * MIB, 12 * MIB));
    assert_eq!(volume.present_units() << 12, 12 * MIB);
    drop(volume);
    // Nothing is behind any more: it grows in front.
    let grown = Volume::grow(&[&room.path("a")], &room.spec("e", 16), CAREFUL).unwrap();
    assert!(grown.devices().iter().all(|it| !it.is_behind));
    assert_eq!((grown.len(), grown.stripe()), (60 * MIB, Stripe::USUAL));
    assert_eq!(grown.front_len(), 60 * MIB);
    assert_eq!(get(&grown, 5000, 8), b"in front");
}
