//! Devices that leave their pool.

use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::pools::{assert_sound, dir, file, names, read, root, write};
use nacre_fs::{AllocateMode, Fs, InodeRef, MapAccess, XattrFlags};
use nacre_store::{Drained, FormatOptions, Holes, Store, WriteMode};
use nacre_testkit::pool::{PRIVATE, assert_sound_without_leaks};
use nacre_types::UNIT_SIZE;
use nacre_volume::{Arrangement, Volume};

const MIB: u64 = 1 << 20;

fn pool(devices: usize, stripe: &str, mode: WriteMode) -> Fs {
    let arrangement = Arrangement {
        stripe: stripe.parse().expect("a stripe"),
        behind: 0,
    };
    let volume = Volume::memories(&vec![64 * MIB; devices], arrangement).expect("volume");
    let options = FormatOptions {
        mode,
        ..FormatOptions::default()
    };
    Store::format(&volume, &options).expect("format");
    Fs::new(Store::attach(volume, &PRIVATE).expect("attach"))
}

fn units(fs: &Fs, device: usize) -> Range<u64> {
    let range = &fs.store().volume().devices()[device].range;
    range.start.unit().0..range.end.unit().0
}

fn pattern(len: usize, salt: u64) -> Vec<u8> {
    let word = |place: u64| (place / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt;
    (0..len as u64)
        .map(|place| word(place).to_le_bytes()[(place % 8) as usize])
        .collect()
}

fn open(fs: &Fs, name: &str) -> InodeRef {
    let found = fs.lookup(&root(), fs.root(), name.as_bytes());
    found.expect("lookup").node
}

/// Pages of a file on a device.
fn pages_on(fs: &Fs, node: InodeRef, units: &Range<u64>) -> u64 {
    let mut pages = 0;
    fs.extents(node, &mut |extent| {
        let run = extent.unit.0..extent.unit.0 + extent.len / UNIT_SIZE;
        pages += run.filter(|unit| units.contains(unit)).count() as u64;
        ControlFlow::Continue(())
    })
    .expect("extents");
    pages
}

fn drain(fs: &Fs, units: &Range<u64>) -> Drained {
    let told = &mut |_| ControlFlow::Continue(());
    fs.store().drain_device(units, told).expect("drain")
}

/// Something of every kind.
fn fill(fs: &Fs) {
    write(fs, file(fs, fs.root(), "large"), 0, &pattern(24 << 20, 1));
    let far = file(fs, fs.root(), "far");
    write(fs, far, 3 << 30, &pattern(50_000, 2));
    let folder = dir(fs, fs.root(), "folder");
    for number in 0..3000 {
        let node = file(
            fs,
            folder,
            &format!("a name that takes room in its node {number}"),
        );
        if number % 10 == 0 {
            write(fs, node, 0, &pattern(6000, number));
        }
    }
    let shared = file(fs, fs.root(), "shared");
    write(fs, shared, 0, &pattern(3 << 20, 4));
    let clone = file(fs, fs.root(), "clone");
    fs.clone_range(&root(), (shared, 0), (clone, 0), 3 << 20)
        .expect("clone");
    for number in 0..40 {
        let (name, value) = (format!("user.{number}"), pattern(9000 + number, 5));
        fs.set_xattr(
            &root(),
            shared,
            name.as_bytes(),
            &value,
            XattrFlags::empty(),
        )
        .expect("xattr");
    }
    let reserved = file(fs, fs.root(), "reserved");
    fs.allocate(&root(), reserved, AllocateMode::Extend, 0, 2 << 20)
        .expect("reserve");
    fs.snapshot(&root(), folder, b"monday").expect("snapshot");
}

fn is_all_there(fs: &Fs) {
    assert!(read(fs, open(fs, "large"), 0, 25 << 20) == pattern(24 << 20, 1));
    assert!(read(fs, open(fs, "far"), 3 << 30, 60_000) == pattern(50_000, 2));
    for name in ["shared", "clone"] {
        assert!(
            read(fs, open(fs, name), 0, 4 << 20) == pattern(3 << 20, 4),
            "{name}"
        );
    }
    let folder = open(fs, "folder");
    assert_eq!(names(fs, folder).len(), 3001);
    for number in (0..3000).step_by(10) {
        let name = format!("a name that takes room in its node {number}");
        let node = fs
            .lookup(&root(), folder, name.as_bytes())
            .expect("lookup")
            .node;
        assert!(
            read(fs, node, 0, 7000) == pattern(6000, number as u64),
            "{name}"
        );
    }
    let shared = open(fs, "shared");
    for number in 0..40 {
        let mut value = vec![0; 10_000];
        let name = format!("user.{number}");
        let len = fs
            .get_xattr(&root(), shared, name.as_bytes(), &mut value)
            .expect("xattr");
        assert!(value[..len] == pattern(9000 + number, 5));
    }
    let reserved = open(fs, "reserved");
    assert!(read(fs, reserved, 0, 3 << 20) == vec![0; 2 << 20]);
    assert_sound(fs);
}

fn all_moves_off(device: usize, stripe: &str, mode: WriteMode) {
    let fs = pool(3, stripe, mode);
    fill(&fs);
    let units = units(&fs, device);
    let before = fs.store().left_on(&units);
    let shared_before = fs.store().statfs().free_units;
    fs.store().evacuate(&units).expect("evacuate");
    let left = fs.store().left_on(&units);
    assert!(left.is_nothing(), "{left:?} of {before:?}");
    is_all_there(&fs);
    let volume = fs.into_store().abandon();
    let fs = Fs::new(Store::attach(volume, &PRIVATE).expect("attach"));
    assert!(fs.store().left_on(&units).is_nothing());
    is_all_there(&fs);
    assert_sound_without_leaks(fs.store());
    // Nothing is shared less than before.
    let now = fs.store().statfs().free_units;
    assert!(
        shared_before.abs_diff(now) < 64,
        "{shared_before} and {now} units were free"
    );
}

#[test]
fn all_that_lies_on_a_device_moves_off_it() {
    for device in 0..3 {
        all_moves_off(device, "4K", WriteMode::Direct);
    }
    all_moves_off(1, "2M", WriteMode::Atomic);
    all_moves_off(0, "none", WriteMode::Direct);
    all_moves_off(2, "none", WriteMode::Direct);
}

#[test]
fn contents_move_off_a_device_while_programs_write_and_nothing_new_goes_there() {
    let fs = pool(3, "16K", WriteMode::Direct);
    for number in 0..4 {
        let node = file(&fs, fs.root(), &format!("f{number}"));
        write(&fs, node, 0, &pattern(6 << 20, number));
    }
    let units = units(&fs, 1);
    let (shared, done, leaving) = (&fs, AtomicBool::new(false), units.clone());
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|number| {
                scope.spawn(move || {
                    let node = open(shared, &format!("f{number}"));
                    let mut model = pattern(6 << 20, number);
                    for step in 0..400 {
                        let at = (step * 77_777 + 13) % (model.len() - 9000);
                        let bytes = pattern(1 + step * 13 % 9000, step as u64);
                        write(shared, node, at as u64, &bytes);
                        model[at..at + bytes.len()].copy_from_slice(&bytes);
                        if step % 16 == 0 {
                            assert!(read(shared, node, 0, model.len()) == model);
                        }
                    }
                    assert!(read(shared, node, 0, model.len() + 1) == model);
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                drain(shared, &leaving);
            }
        });
        writers
            .into_iter()
            .for_each(|it| it.join().expect("a writer"));
        done.store(true, Ordering::Relaxed);
    });
    let drained = drain(&fs, &units);
    assert_eq!((drained.in_use, drained.is_full), (0, false));
    assert_eq!(fs.store().left_on(&units).contents, 0);
    let node = file(&fs, fs.root(), "new");
    write(&fs, node, 0, &pattern(30 << 20, 9));
    fs.truncate(&root(), node, 5 << 20).expect("truncate");
    write(&fs, node, 0, &pattern(30 << 20, 9));
    assert_eq!(pages_on(&fs, node, &units), 0);
    assert_sound(&fs);
}

#[test]
fn what_is_mapped_or_shared_waits_until_nobody_uses_the_pool() {
    let fs = pool(2, "64K", WriteMode::Direct);
    let bytes = pattern(8 << 20, 5);
    for name in ["mapped", "shared", "free"] {
        write(&fs, file(&fs, fs.root(), name), 0, &bytes);
    }
    let clone = file(&fs, fs.root(), "clone");
    fs.clone_range(&root(), (open(&fs, "shared"), 0), (clone, 0), 8 << 20)
        .expect("clone");
    let (mapped, units) = (open(&fs, "mapped"), units(&fs, 1));
    fs.pin(mapped).expect("pin");
    fs.map_begin(mapped, MapAccess::Store).expect("map");
    fs.map_pages(mapped, 0, 64, Holes::Fill).expect("pages");
    let drained = drain(&fs, &units);
    assert_eq!(drained.in_use, 1);
    assert_eq!(pages_on(&fs, open(&fs, "free"), &units), 0);
    for name in ["mapped", "shared"] {
        assert!(pages_on(&fs, open(&fs, name), &units) > 256, "{name}");
    }
    assert!(fs.store().left_on(&units).contents > 4 << 20);
    for name in ["mapped", "shared", "clone", "free"] {
        assert!(
            read(&fs, open(&fs, name), 0, bytes.len()) == bytes,
            "{name}"
        );
    }
}

#[test]
fn a_device_stays_where_the_others_have_no_room() {
    let fs = pool(2, "64K", WriteMode::Direct);
    write(&fs, file(&fs, fs.root(), "large"), 0, &pattern(80 << 20, 1));
    let units = units(&fs, 1);
    let (used, free) = fs.store().room_to_leave(&units);
    assert!(used > free, "{used} of {free}");
    assert!(drain(&fs, &units).is_full);
    assert!(read(&fs, open(&fs, "large"), 0, 80 << 20) == pattern(80 << 20, 1));
    assert_sound(&fs);
    assert!(fs.store().evacuate(&units).is_err());
    assert!(read(&fs, open(&fs, "large"), 0, 80 << 20) == pattern(80 << 20, 1));
    let volume = fs.into_store().abandon();
    let fs = Fs::new(Store::attach(volume, &PRIVATE).expect("attach"));
    assert!(read(&fs, open(&fs, "large"), 0, 80 << 20) == pattern(80 << 20, 1));
    assert_sound_without_leaks(fs.store());
}
