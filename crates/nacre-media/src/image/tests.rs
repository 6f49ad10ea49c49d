//! Races of eviction, each forced at the one place where it could do harm.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::thread;
use std::time::Duration;

use nacre_types::{DeviceOffset, UNIT_SIZE};
use rustix::fs::{MemfdFlags, memfd_create};

use super::{Committer, DiskLegs, Image, ImageKey};
use crate::address_range::AddressRange;
use crate::device::Device;
use crate::error::MediaFailed;
use crate::kind::Access;
use crate::map::{Window, map_image};

pub(super) const SIZE: u64 = 2 << 20;
const AT: DeviceOffset = DeviceOffset(5 * UNIT_SIZE);

/// What happens at a moment, once.
pub(super) type Prank = Box<dyn FnOnce(&Image) + Send>;

#[derive(Default)]
pub(super) struct Jester {
    image: Mutex<Weak<Image>>,
    /// When all is to be given to the disk.
    pub at_commit: Mutex<Option<Prank>>,
    /// So often it has nothing new, then it fails.
    pub nothing_new: AtomicU64,
    /// How often who rests was woken.
    pub wakings: AtomicU64,
    /// The time.
    pub clock: AtomicU64,
    /// Before a store is let in.
    at_store: Mutex<Option<Prank>>,
    /// Before units are taken out.
    at_eviction: Mutex<Option<Prank>>,
    /// After that, before their memory goes.
    after_eviction: Mutex<Option<Prank>>,
    came_home: AtomicU32,
    /// Which process calls.
    number: AtomicU64,
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
        self.play(&self.at_commit);
        Ok(())
    }

    fn set_share(&self, _: u64) {}

    fn end_share(&self, _: u64) {}

    fn owner(&self) -> u64 {
        self.number.load(SeqCst)
    }

    fn while_nobody_stores(&self, work: &mut dyn FnMut()) {
        self.play(&self.at_eviction);
        work();
        self.play(&self.after_eviction);
    }

    fn make_room(&self) -> Result<bool, MediaFailed> {
        let left = |times: u64| times.checked_sub(1);
        let left = self.nothing_new.fetch_update(SeqCst, SeqCst, left);
        left.map(|_| false).map_err(|_| MediaFailed)
    }

    fn wake_who_rests(&self) {
        self.wakings.fetch_add(1, SeqCst);
    }

    fn now(&self) -> u64 {
        self.clock.load(SeqCst)
    }

    fn bring_home(&self) -> Result<(), MediaFailed> {
        self.came_home.fetch_add(1, SeqCst);
        Err(MediaFailed)
    }
}

pub(super) struct Stage {
    pub image: Arc<Image>,
    pub jester: Arc<Jester>,
    _place: AddressRange,
}

pub(super) fn byte_of(unit: u64) -> u8 {
    (unit % 251) as u8 + 1
}

/// An image of a disk whose units hold their numbers.
pub(super) fn stage() -> Stage {
    stage_of(SIZE, None)
}

/// The same of so many bytes, read past the page cache by the second one.
pub(super) fn stage_of(len: u64, direct: Option<fn(&Path) -> OwnedFd>) -> Stage {
    stage_on(len, direct, None)
}

/// As [`stage_of`], unless its units come from these disks.
pub(super) fn stage_on(
    len: u64,
    direct: Option<fn(&Path) -> OwnedFd>,
    legs: Option<Arc<dyn DiskLegs>>,
) -> Stage {
    let bytes: Vec<u8> = (0..len).map(|at| byte_of(at / UNIT_SIZE)).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let disk = Arc::new(Device::open(file.path(), Access::ReadWrite).unwrap());
    let direct = direct.map(|open| Arc::new(open(file.path())));
    let memory: OwnedFd = memfd_create("image", MemfdFlags::CLOEXEC).unwrap();
    let key = ImageKey {
        pool: [1; 16],
        device: (2, 3),
        len,
    };
    let mut image = Image::create(memory, &disk, key).unwrap();
    let place = AddressRange::reserve(len).unwrap();
    let window = Window { start: 0, len };
    map_image(image.fd(), window, &place).unwrap();
    image.use_window(0..len, place.start());
    image.allow_drops(direct);
    if let Some(legs) = legs {
        image.load_from_legs(legs);
    }
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

pub(super) fn first_byte(from: *const u8) -> u8 {
    // SAFETY: the place is mapped, in a file that is as long.
    unsafe { from.read_volatile() }
}

fn is_there(image: &Image) -> bool {
    image.present.has(AT.get() / UNIT_SIZE)
}

#[test]
fn what_another_version_has_made_is_not_thrown_away() {
    let stage = stage();
    let image = &stage.image;
    let key = ImageKey {
        pool: [1; 16],
        device: (2, 3),
        len: SIZE,
    };
    let open = |key| {
        let file = rustix::io::dup(image.fd()).unwrap();
        Image::open(file, &image.disk, key)
    };
    assert!(open(key).unwrap().is_some());
    let other_pool = ImageKey {
        pool: [9; 16],
        ..key
    };
    assert!(open(other_pool).unwrap().is_none());
    image.head().version.fetch_add(1, SeqCst);
    let why = open(key).unwrap_err().to_string();
    assert!(
        why.contains("another version") && why.contains("memfd:image"),
        "{why}"
    );
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
fn what_is_present_is_read_if_it_stays() {
    let stage = stage();
    let range = AT.get()..AT.get() + 8;
    let unit = AT.get() / UNIT_SIZE..AT.get() / UNIT_SIZE + 1;
    let is_copied = |from| first_byte(from) == 6;
    assert!(stage.image.read_present(range.clone(), is_copied).is_none());
    assert!(!is_there(&stage.image), "it does not come for that");
    stage.image.ensure(AT, 8).unwrap();
    stage.image.used.clear_all(unit.clone());
    assert!(stage.image.read_present(range.clone(), is_copied).is_some());
    assert!(stage.image.used.has_all(unit));
    let comes_back = |_| {
        stage.image.drop_all();
        stage.image.ensure(AT, 8).is_ok()
    };
    let read = |copy: &dyn Fn(*const u8) -> bool| stage.image.read_present(range.clone(), copy);
    assert!(read(&comes_back).is_none(), "what was copied may be torn");
    assert!(read(&|_| stage.image.drop_all() > 0).is_none());
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

#[test]
fn what_comes_back_while_it_goes_is_whole() {
    let stage = stage();
    stage.image.ensure(AT, 8).unwrap();
    let (sender, receiver) = mpsc::channel();
    let image = Arc::clone(&stage.image);
    let prank: Prank = Box::new(move |_| {
        let comes = thread::spawn(move || {
            image.ensure(AT, 8).unwrap();
            // Nobody listens any more, as it should be.
            sender.send(()).ok();
        });
        // It cannot come before the memory has gone; if it could, it would be in time.
        assert!(receiver.recv_timeout(Duration::from_millis(100)).is_err());
        drop(comes);
    });
    *stage.jester.after_eviction.lock().unwrap() = Some(prank);
    assert!(stage.image.drop_all() > 0);
    stage.image.ensure(AT, 8).unwrap();
    assert_eq!(first_byte(stage.image.address(AT.get())), 6);
}

#[test]
fn a_region_does_not_wait_for_another() {
    let stage = stage();
    let other = DeviceOffset(super::REGION + AT.get());
    let held = stage.image.region(AT.get() / UNIT_SIZE).lock();
    stage.image.ensure(other, 8).unwrap();
    stage
        .image
        .claim(other.get() + UNIT_SIZE..other.get() + 2 * UNIT_SIZE)
        .unwrap();
    drop(held);
    stage.image.ensure(AT, 8).unwrap();
    // Nor does anything go from it while it is held.
    let held = stage.image.region(AT.get() / UNIT_SIZE).lock();
    assert!(stage.image.drop_all() > 0 && is_there(&stage.image));
    drop(held);
    assert!(goes(&stage.image));
}

/// Takes a version of which the disk gets all into its journal, if `written`; answers which units
/// of it were new.
pub(super) fn version(image: &Image, written: bool) -> Vec<u64> {
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
pub(super) fn store_new(image: &Image, units: std::ops::Range<u64>) {
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

/// Reads a unit and answers how many were not there for it.
fn missed(image: &Image, unit: u64) -> u64 {
    let before = image.traffic().missed;
    let at = DeviceOffset(unit * UNIT_SIZE);
    assert_eq!(image.read(at, 8, first_byte), Ok(byte_of(unit)));
    image.traffic().missed - before
}

#[test]
fn what_is_read_again_outlives_what_is_read_once() {
    let stage = stage();
    stage.image.set_room(super::evict::LEAST * UNIT_SIZE);
    let (often, all) = (64, SIZE / UNIT_SIZE);
    // In an order that nothing is read ahead for.
    let once = (0..4 * all).map(|n| often + n * 167 % (all - often));
    let mut missed_later = (0, 0);
    for (n, (one, other)) in once.zip((0..often).cycle()).enumerate() {
        let (one, other) = (missed(&stage.image, one), missed(&stage.image, other));
        if n as u64 > all {
            missed_later = (missed_later.0 + one, missed_later.1 + other);
        }
    }
    assert!(missed_later.0 > all, "canary: there was no need");
    assert_eq!(missed_later.1, 0);
}

/// What nobody has in a window goes when there is need.
fn goes(image: &Image) -> bool {
    image.drop_all() > 0 && !is_there(image)
}

const WINDOW: std::ops::Range<u64> = AT.get()..AT.get() + 2 * UNIT_SIZE;

#[test]
fn what_is_in_a_window_stays_until_that_ends() {
    let stage = stage();
    let image = &stage.image;
    assert_eq!(image.begin_window(WINDOW, false), Ok(true));
    assert_eq!(
        image.begin_window(WINDOW, false),
        Ok(false),
        "a second time"
    );
    assert!(is_there(image) && image.drop_all() == 0);
    // So it does if only another process has it.
    stage.jester.number.store(7, SeqCst);
    assert_eq!(image.begin_window(WINDOW, false), Ok(true));
    assert_eq!(image.end_window(WINDOW), Ok(()));
    assert_eq!(image.drop_all(), 0);
    stage.jester.number.store(0, SeqCst);
    assert_eq!(image.end_window(WINDOW), Ok(()));
    assert!(image.is_clean() && goes(image));
}

#[test]
fn what_comes_into_a_window_while_others_are_chosen_stays() {
    let stage = stage();
    stage.image.ensure(AT, 8).unwrap();
    let unit = AT.get()..AT.get() + UNIT_SIZE;
    let prank: Prank = Box::new(|image| assert_eq!(image.begin_window(unit, true), Ok(true)));
    *stage.jester.at_eviction.lock().unwrap() = Some(prank);
    stage.image.drop_all();
    assert!(is_there(&stage.image));
    assert_eq!(first_byte(stage.image.address(AT.get())), 6);
}

#[test]
fn what_may_have_been_stored_through_a_window_is_noted_when_it_ends() {
    let stage = stage();
    let image = &stage.image;
    assert_eq!(image.begin_window(WINDOW, false), Ok(true));
    image.store_through_window(AT.get()..AT.get() + UNIT_SIZE);
    let (word, bit) = (
        (AT.get() / UNIT_SIZE / 64) as usize,
        AT.get() / UNIT_SIZE % 64,
    );
    assert_eq!(image.may_be_stored_to(word), 1 << bit);
    assert_eq!(image.end_window(WINDOW), Ok(()));
    assert_eq!(image.may_be_stored_to(word), 0);
    assert!(!image.is_clean() && !goes(image));
    assert_eq!(image.dirty_bytes(), UNIT_SIZE);
}

#[test]
fn the_windows_of_a_dead_process_end_and_are_noted() {
    for all in [false, true] {
        let stage = stage();
        let image = &stage.image;
        stage.jester.number.store(7, SeqCst);
        assert_eq!(image.begin_window(WINDOW, true), Ok(true));
        stage.jester.number.store(0, SeqCst);
        image.end_windows_of(8);
        assert!(image.drop_all() == 0 && image.is_clean());
        match all {
            true => image.end_all_windows(),
            false => image.end_windows_of(7),
        }
        assert_eq!(image.dirty_bytes(), 2 * UNIT_SIZE);
        assert!(!goes(image) && image.in_windows() == 0);
    }
}

#[test]
fn who_comes_when_all_have_windows_must_pin() {
    let stage = stage();
    for number in 0..64 {
        stage.jester.number.store(number, SeqCst);
        assert_eq!(stage.image.begin_window(WINDOW, false), Ok(true));
    }
    stage.jester.number.store(64, SeqCst);
    assert_eq!(stage.image.begin_window(WINDOW, false), Ok(false));
    stage.image.end_windows_of(3);
    assert_eq!(stage.image.begin_window(WINDOW, false), Ok(true));
}

#[test]
fn what_is_mapped_comes_by_windows_before_it_fills_the_room() {
    let stage = stage();
    let (image, small) = (&stage.image, 4 * UNIT_SIZE);
    image.set_room(256 * UNIT_SIZE);
    assert!(!image.wants_windows(small) && image.wants_windows(65 * UNIT_SIZE));
    image.pin_range(0..120 * UNIT_SIZE).unwrap();
    assert!(!image.wants_windows(small), "less than half is pinned");
    image.pin_range(120 * UNIT_SIZE..126 * UNIT_SIZE).unwrap();
    assert!(image.wants_windows(small));
}

#[test]
fn canary_a_window_that_nobody_knows_of_goes() {
    let stage = stage();
    let image = &stage.image;
    assert_eq!(image.begin_window(WINDOW, false), Ok(true));
    image.windows[0].shown.clear();
    assert!(goes(image));
}

#[test]
fn canary_a_store_through_a_window_that_is_not_known_goes() {
    let stage = stage();
    let image = &stage.image;
    assert_eq!(image.begin_window(WINDOW, true), Ok(true));
    image.windows[0].stored.clear();
    assert_eq!(image.end_window(WINDOW), Ok(()));
    assert!(image.is_clean() && goes(image));
}

#[test]
fn what_a_dead_process_did_alone_is_finished_first() {
    let legs = stage().image.shared_legs(SIZE).unwrap();
    let mut finished = 0;
    legs.alone(|| finished += 1, || ());
    assert_eq!(finished, 0);
    // A thread is as good.
    thread::scope(|scope| scope.spawn(|| legs.die_alone()).join().unwrap());
    legs.alone(|| finished += 1, || ());
    legs.alone(|| finished += 1, || ());
    assert_eq!(finished, 1);
}
