//! Races of eviction, each forced at the one place where it could do harm.

use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, Weak};

use nacre_types::{DeviceOffset, UNIT_SIZE};
use rustix::fs::{MemfdFlags, memfd_create};

use super::{Committer, Image, ImageKey};
use crate::address_range::AddressRange;
use crate::device::Device;
use crate::error::MediaFailed;
use crate::kind::Access;
use crate::map::{Window, map_image};

const SIZE: u64 = 2 << 20;
const AT: DeviceOffset = DeviceOffset(5 * UNIT_SIZE);

/// What happens at a moment, once.
type Prank = Box<dyn FnOnce(&Image) + Send>;

#[derive(Default)]
struct Jester {
    image: Mutex<Weak<Image>>,
    /// Before a store is let in.
    at_store: Mutex<Option<Prank>>,
    /// Before units are taken out.
    at_eviction: Mutex<Option<Prank>>,
    came_home: AtomicU32,
}

impl Jester {
    fn play(&self, moment: &Mutex<Option<Prank>>) {
        let prank = moment.lock().unwrap().take();
        let image = self.image.lock().unwrap().upgrade();
        if let (Some(prank), Some(image)) = (prank, image) {
            prank(&image);
        }
    }
}

impl Committer for Jester {
    fn enter(&self) {
        self.play(&self.at_store);
    }

    fn leave(&self) {}

    fn commit(&self) -> Result<(), MediaFailed> {
        Ok(())
    }

    fn set_share(&self, _: u64) {}

    fn end_share(&self, _: u64) {}

    fn while_nobody_stores(&self, work: &mut dyn FnMut()) {
        self.play(&self.at_eviction);
        work();
    }

    fn bring_home(&self) -> Result<(), MediaFailed> {
        self.came_home.fetch_add(1, SeqCst);
        Err(MediaFailed)
    }
}

struct Stage {
    image: Arc<Image>,
    jester: Arc<Jester>,
    _place: AddressRange,
}

fn byte_of(unit: u64) -> u8 {
    (unit % 251) as u8 + 1
}

/// An image of a disk whose units hold their numbers.
fn stage() -> Stage {
    let bytes: Vec<u8> = (0..SIZE).map(|at| byte_of(at / UNIT_SIZE)).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let disk = Arc::new(Device::open(file.path(), Access::ReadWrite).unwrap());
    let memory: OwnedFd = memfd_create("image", MemfdFlags::CLOEXEC).unwrap();
    let key = ImageKey {
        pool: [1; 16],
        device: (2, 3),
    };
    let mut image = Image::create(memory, &disk, key).unwrap();
    let place = AddressRange::reserve(SIZE).unwrap();
    let window = Window {
        start: 0,
        len: SIZE,
    };
    map_image(image.fd(), window, &place).unwrap();
    image.use_window(0..SIZE, place.start());
    image.allow_drops(None);
    let image = Arc::new(image);
    let jester = Arc::new(Jester::default());
    *jester.image.lock().unwrap() = Arc::downgrade(&image);
    image.set_committer(Arc::clone(&jester) as Arc<dyn Committer>);
    Stage {
        image,
        jester,
        _place: place,
    }
}

fn first_byte(from: *const u8) -> u8 {
    // SAFETY: the place is mapped, in a file that is as long.
    unsafe { from.read_volatile() }
}

fn is_there(image: &Image) -> bool {
    image.present.has(AT.get() / UNIT_SIZE)
}

#[test]
fn what_went_and_came_back_during_a_copy_is_copied_again() {
    let stage = stage();
    let mut copies = 0;
    let read = stage.image.read(AT, 8, |from| {
        copies += 1;
        if copies > 1 {
            return first_byte(from);
        }
        assert!(stage.image.drop_all() > 0 && !is_there(&stage.image));
        let torn = first_byte(from);
        stage.image.ensure(AT, 8).unwrap();
        torn
    });
    assert_eq!((read, copies), (Ok(6), 2));
}

#[test]
fn a_unit_that_goes_before_a_store_comes_back_and_is_not_noted_before() {
    let stage = stage();
    stage.image.ensure(AT, 8).unwrap();
    let prank: Prank = Box::new(|image| {
        assert!(image.drop_all() > 0);
        assert!(!is_there(image) && image.is_clean());
    });
    *stage.jester.at_store.lock().unwrap() = Some(prank);
    let entered = stage.image.begin(AT, 8).unwrap();
    assert!(is_there(&stage.image) && !stage.image.is_clean());
    assert_eq!(first_byte(stage.image.address(AT.get())), 6);
    drop(entered);
}

#[test]
fn what_is_pinned_before_or_while_others_go_stays() {
    let stage = stage();
    stage.image.pin(AT, 8).unwrap();
    assert_eq!(stage.image.drop_all(), 0);
    assert!(is_there(&stage.image));
    stage.image.unpin(AT.get()..AT.get() + UNIT_SIZE);
    let prank: Prank = Box::new(|image| image.pin(AT, 8).unwrap());
    *stage.jester.at_eviction.lock().unwrap() = Some(prank);
    stage.image.drop_all();
    assert!(is_there(&stage.image));
    assert_eq!(first_byte(stage.image.address(AT.get())), 6);
}

#[test]
fn what_is_stored_to_while_others_are_chosen_stays() {
    let stage = stage();
    stage.image.ensure(AT, 8).unwrap();
    let prank: Prank = Box::new(|image| drop(image.begin(AT, 8).unwrap()));
    *stage.jester.at_eviction.lock().unwrap() = Some(prank);
    stage.image.drop_all();
    assert!(is_there(&stage.image));
    // Nor does it go when it is in the journal alone.
    stage.image.take(|_, _| {});
    assert_eq!(stage.image.drop_all(), 0);
    stage
        .image
        .written(std::iter::once(&(AT.get()..AT.get() + 8)));
    assert!(stage.image.is_clean());
    assert_eq!(stage.image.drop_all(), 0);
    assert!(stage.jester.came_home.load(SeqCst) > 0);
    stage.image.came_home();
    assert!(stage.image.drop_all() > 0 && !is_there(&stage.image));
}

/// Takes a version of which the disk gets all into its journal, if `written`; answers which units
/// of it were new.
fn version(image: &Image, written: bool) -> Vec<u64> {
    let (mut ranges, mut new) = (Vec::new(), Vec::new());
    image.take(|range, is_new| {
        let units = super::units(range.clone());
        new.extend(units.filter(|_| is_new));
        ranges.push(range);
    });
    match written {
        true => image.written(ranges.iter()),
        false => image.not_written(),
    }
    new
}

/// Takes units and stores to all of them.
fn store_new(image: &Image, units: std::ops::Range<u64>) {
    let (at, len) = (
        units.start * UNIT_SIZE,
        (units.end - units.start) * UNIT_SIZE,
    );
    image.note_taken(at, len);
    drop(image.begin(DeviceOffset(at), len).unwrap());
}

#[test]
fn what_was_free_in_the_last_version_is_new() {
    let stage = stage();
    let image = &stage.image;
    store_new(image, 10..12);
    assert_eq!(
        version(image, true),
        [],
        "nobody knows what was free before"
    );
    store_new(image, 20..24);
    drop(image.begin(DeviceOffset(24 * UNIT_SIZE), 8).unwrap());
    assert_eq!(version(image, true), [20, 21, 22, 23]);
    drop(
        image
            .begin(DeviceOffset(20 * UNIT_SIZE), UNIT_SIZE)
            .unwrap(),
    );
    assert_eq!(version(image, true), [], "it is in the version before");
    image.note_taken(25 * UNIT_SIZE, UNIT_SIZE);
    version(image, true);
    drop(image.begin(DeviceOffset(25 * UNIT_SIZE), 8).unwrap());
    let new = version(image, true);
    assert_eq!(new, [25], "nothing was stored to it before");
}

#[test]
fn what_the_last_version_has_is_not_new_when_it_is_freed_and_taken() {
    let stage = stage();
    let image = &stage.image;
    version(image, true);
    image.note_freed(30 * UNIT_SIZE, 2 * UNIT_SIZE);
    store_new(image, 29..33);
    assert_eq!(version(image, true), [29, 32]);
    image.came_home();
    image.note_freed(30 * UNIT_SIZE, 2 * UNIT_SIZE);
    version(image, true);
    store_new(image, 30..32);
    assert_eq!(version(image, true), [30, 31]);
}

#[test]
fn what_the_journal_has_is_not_new() {
    let stage = stage();
    let image = &stage.image;
    drop(image.begin(DeviceOffset(40 * UNIT_SIZE), 8).unwrap());
    version(image, true);
    store_new(image, 40..42);
    assert_eq!(version(image, true), [41]);
    image.came_home();
    image.note_freed(40 * UNIT_SIZE, UNIT_SIZE);
    version(image, true);
    store_new(image, 40..41);
    assert_eq!(version(image, true), [40]);
}

#[test]
fn nothing_is_new_behind_a_version_that_failed_or_another_count_of_what_is_free() {
    let stage = stage();
    let image = &stage.image;
    version(image, true);
    store_new(image, 50..52);
    version(image, false);
    store_new(image, 52..54);
    assert_eq!(version(image, true), []);
    store_new(image, 54..55);
    assert_eq!(version(image, true), [54]);
    store_new(image, 55..56);
    image.unsettle();
    assert_eq!(version(image, true), []);
    store_new(image, 56..57);
    // Its taker dies.
    image.take(|_, _| {});
    store_new(image, 57..58);
    assert_eq!(version(image, true), []);
}

#[test]
fn a_cache_stays_near_its_room() {
    let stage = stage();
    assert_eq!(stage.image.room_bytes(), SIZE, "nobody has set one");
    stage.image.set_room(64 * UNIT_SIZE);
    assert_eq!(stage.image.room_bytes(), 64 * UNIT_SIZE);
    for unit in 0..SIZE / UNIT_SIZE {
        let at = DeviceOffset(unit * UNIT_SIZE);
        assert_eq!(stage.image.read(at, 8, first_byte), Ok(byte_of(unit)));
    }
    let (there, least) = (stage.image.present_bytes(), super::evict::LEAST * UNIT_SIZE);
    assert!(there <= least && there > 0, "{there}");
    let traffic = stage.image.traffic();
    assert!(traffic.dropped > 0 && traffic.read == SIZE / UNIT_SIZE);
    assert!(traffic.missed < traffic.loaded);
}
