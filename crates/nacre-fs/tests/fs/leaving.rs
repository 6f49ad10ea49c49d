//! Devices that leave their pool.

use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::pools::{
    assert_sound, dir, file, keep_writing, names, open, pattern, read, root, write,
};
use nacre_fs::{AllocateMode, Fs, InodeRef, MapAccess, XattrFlags};
use nacre_store::{Drained, FormatOptions, Holes, Store, StoreError, WriteMode, runtime};
use nacre_testkit::pool::{
    PRIVATE, PoolChoice, PoolFiles, assert_sound_without_leaks, device_spec,
};
use nacre_types::UNIT_SIZE;
use nacre_volume::{Access, Arrangement, Caching, Common, CreateOptions, Stripe, Volume};

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

/// A pool on disks that hold each a part, which are files in memory.
fn disks(names: &[&str], bytes: u64, stripe: &str) -> PoolFiles {
    let files = PoolFiles::make(&PoolChoice {
        devices: names,
        bytes,
        caching: Caching::Always,
        ..PoolChoice::default()
    });
    let stripe: Stripe = stripe.parse().expect("a stripe");
    Volume::store_stripe(&files.file(names[0]), stripe).expect("labels");
    files
}

fn volume_of(files: &PoolFiles, name: &str) -> Volume {
    Volume::open(&files.file(name), Access::ReadWrite).expect("open")
}

fn attach_disks(files: &PoolFiles, name: &str) -> Fs {
    let store = Store::attach(volume_of(files, name), &PRIVATE).expect("attach");
    assert!(store.volume().has_image());
    Fs::new(store)
}

/// What a power cut takes.
fn lose_memory(files: &PoolFiles, name: &str) {
    let folder = runtime::folder(&volume_of(files, name)).expect("a folder");
    if let Some(folder) = folder {
        folder.clear();
        folder.leave();
    }
}

/// Answers how many bytes moved.
fn leaves(files: &PoolFiles, asked: &str, leaves: &str) -> u64 {
    let (path, is_new) =
        Volume::begin_leaving(&files.file(asked), &files.file(leaves)).expect("it may");
    assert!(is_new && path == files.file(leaves));
    let fs = attach_disks(files, leaves);
    assert!(fs.store().volume().leaving().is_some());
    let (moved, left) = fs
        .into_store()
        .remove_device(&files.file(asked))
        .expect("remove");
    assert!(left.is_nothing(), "{left:?}");
    assert!(Volume::open(&files.file(leaves), Access::ReadWrite).is_err());
    std::fs::remove_file(files.file(leaves)).expect("its file");
    moved
}

/// With all that was there, in memory and after a power cut; what is committed later, too.
fn goes_on_without_it(files: &PoolFiles, asked: &str, salt: u64) {
    for round in 0..2 {
        let fs = attach_disks(files, asked);
        is_all_there(&fs);
        let (name, bytes) = (format!("later {salt} {round}"), pattern(3 << 20, salt));
        write(&fs, file(&fs, fs.root(), &name), 0, &bytes);
        fs.commit().expect("commit");
        drop(fs.into_store().abandon());
        lose_memory(files, asked);
        let fs = attach_disks(files, asked);
        assert!(read(&fs, open(&fs, &name), 0, 4 << 20) == bytes);
        assert_sound_without_leaks(fs.store());
        fs.into_store().detach().expect("detach");
    }
}

fn disks_leave(stripe: &str) {
    let files = disks(&["a", "b", "c"], 96 * MIB, stripe);
    let fs = attach_disks(&files, "a");
    fill(&fs);
    fs.into_store().detach().expect("detach");
    // Nothing need be on the second one if the first one is filled first.
    let moved = leaves(&files, "a", "b");
    assert!(moved > MIB || stripe == "none", "{moved}");
    goes_on_without_it(&files, "c", 1);
    // With the pool's header, and the journal.
    assert!(leaves(&files, "c", "a") > MIB);
    goes_on_without_it(&files, "c", 2);
    let grown = Volume::grow(
        &[&files.file("c")],
        &device_spec(&files.file("d"), 96 * MIB),
        CreateOptions::default(),
    );
    drop(grown.expect("grow"));
    goes_on_without_it(&files, "d", 3);
    // They move once more.
    assert!(leaves(&files, "d", "c") > MIB);
    goes_on_without_it(&files, "d", 4);
}

#[test]
fn disks_that_hold_each_a_part_leave_one_after_the_other() {
    for stripe in ["4K", "2M", "none"] {
        disks_leave(stripe);
    }
}

#[test]
fn what_removed_objects_still_name_may_leave() {
    let files = disks(&["a", "b"], 64 * MIB, "4K");
    let fs = attach_disks(&files, "a");
    let names: Vec<String> = (0..60).map(|number| format!("file {number}")).collect();
    for name in &names {
        let node = file(&fs, fs.root(), name);
        for attribute in ["user.a", "user.b"] {
            let value = pattern(1500, 1);
            fs.set_xattr(
                &root(),
                node,
                attribute.as_bytes(),
                &value,
                XattrFlags::empty(),
            )
            .expect("xattr");
        }
    }
    for name in names.iter().filter(|name| !name.ends_with('7')) {
        fs.unlink(&root(), fs.root(), name.as_bytes())
            .expect("unlink");
    }
    fs.into_store().detach().expect("detach");
    leaves(&files, "a", "b");
    let fs = attach_disks(&files, "a");
    let mut value = vec![0; 2000];
    let len = fs.get_xattr(&root(), open(&fs, "file 7"), b"user.b", &mut value);
    assert!(value[..len.expect("xattr")] == pattern(1500, 1));
    assert_sound_without_leaks(fs.store());
}

/// Attaches a pool that was opened before it changed.
fn is_the_pool_as_it_is(opened: Volume, files: &PoolFiles, by: &str) {
    let fs = Fs::new(Store::attach(opened, &PRIVATE).expect("attach"));
    let now = volume_of(files, by).devices();
    assert_eq!(fs.store().volume().devices(), now);
    let name = format!("later {by}");
    write(&fs, file(&fs, fs.root(), &name), 0, b"later");
    fs.into_store().detach().expect("detach");
    let fs = Fs::new(Store::attach(volume_of(files, by), &PRIVATE).expect("attach"));
    assert!(read(&fs, open(&fs, &name), 0, 9) == b"later");
    is_all_there(&fs);
    assert_sound_without_leaks(fs.store());
    fs.into_store().detach().expect("detach");
}

#[test]
fn who_opened_a_pool_before_a_device_left_or_came_uses_it_as_it_is() {
    for gone in ["a", "b"] {
        let files = PoolFiles::make(&PoolChoice {
            devices: &["a", "b"],
            bytes: 96 * MIB,
            ..PoolChoice::default()
        });
        let fs = Fs::new(Store::attach(volume_of(&files, "a"), &PRIVATE).expect("attach"));
        fill(&fs);
        fs.into_store().detach().expect("detach");
        let stays = if gone == "a" { "b" } else { "a" };
        let before = volume_of(&files, stays);
        Volume::begin_leaving(&files.file(stays), &files.file(gone)).expect("it may");
        let store = Store::attach(volume_of(&files, stays), &PRIVATE).expect("attach");
        let (_, left) = store.remove_device(&files.file(stays)).expect("remove");
        assert!(left.is_nothing(), "{left:?}");
        is_the_pool_as_it_is(before, &files, stays);
        let before = volume_of(&files, stays);
        let new = device_spec(&files.file("c"), 96 * MIB);
        let grown = Volume::grow(&[&files.file(stays)], &new, CreateOptions::default());
        drop(grown.expect("grow"));
        is_the_pool_as_it_is(before, &files, "c");
    }
}

/// What a pool with copies becomes while nobody uses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Becomes {
    Larger,
    OfOneDevice,
    OfThree,
}

fn become_other(files: &PoolFiles, becomes: Becomes) {
    let [a, b, c] = ["a", "b", "c"].map(|name| files.file(name));
    match becomes {
        Becomes::Larger => drop(Volume::grow_copies(&a, Some(192 * MIB)).expect("grow")),
        Becomes::OfOneDevice => drop(Volume::remove_copy(&a, &b).expect("remove")),
        Becomes::OfThree => drop(Volume::join_disk(&a, (&c, None, false), None).expect("join")),
    }
}

fn copies_become(becomes: Becomes, caching: Caching) {
    let common = (becomes == Becomes::OfThree).then_some(Common::Bytes(32 * MIB));
    let files = PoolFiles::make(&PoolChoice {
        devices: &["a", "b"],
        bytes: 128 * MIB,
        copies: 2,
        common,
        caching,
        ..PoolChoice::default()
    });
    let fs = Fs::new(Store::attach(volume_of(&files, "a"), &PRIVATE).expect("attach"));
    fill(&fs);
    fs.into_store().detach().expect("detach");
    let before = volume_of(&files, "a");
    become_other(&files, becomes);
    let left = std::fs::read(files.file("b")).expect("b");
    is_the_pool_as_it_is(before, &files, "a");
    let is_left = becomes == Becomes::OfOneDevice;
    assert!(!is_left || std::fs::read(files.file("b")).expect("b") == left);
}

#[test]
fn who_opened_a_pool_with_copies_before_it_changed_uses_it_as_it_is() {
    copies_become(Becomes::Larger, Caching::Always);
    copies_become(Becomes::Larger, Caching::Never);
    copies_become(Becomes::OfOneDevice, Caching::Always);
    copies_become(Becomes::OfOneDevice, Caching::Never);
    copies_become(Becomes::OfThree, Caching::Always);
}

#[test]
fn contents_move_off_a_disk_while_programs_write() {
    let files = disks(&["a", "b", "c"], 64 * MIB, "16K");
    let fs = attach_disks(&files, "a");
    // Units come and go meanwhile.
    fs.store().volume().set_room(8 * MIB);
    moves_while_programs_write(&fs);
    fs.into_store().detach().expect("detach");
}

#[test]
fn a_disk_with_the_journal_stays_where_the_others_have_no_room_for_that() {
    let files = disks(&["a", "b"], 32 * MIB, "none");
    let (path, _) = Volume::begin_leaving(&files.file("b"), &files.file("a")).expect("it may");
    assert_eq!(path, files.file("a"));
    let fs = attach_disks(&files, "a");
    let units = fs.store().volume().leaving().expect("it leaves");
    assert!(
        fs.store().blocks_to_leave(&units) >= 8 * MIB,
        "header and journal"
    );
    let bytes = pattern(24 << 20, 7);
    write(&fs, file(&fs, fs.root(), "much"), 0, &bytes);
    let refused = fs.into_store().remove_device(&files.file("a"));
    assert!(matches!(refused, Err(StoreError::NoSpace)));
    Volume::end_leaving(&files.file("a")).expect("it stays");
    let fs = attach_disks(&files, "b");
    assert!(fs.store().volume().leaving().is_none());
    assert!(read(&fs, open(&fs, "much"), 0, 25 << 20) == bytes);
    assert_sound_without_leaks(fs.store());
    fs.into_store().detach().expect("detach");
}

#[test]
fn contents_move_off_a_device_while_programs_write_and_nothing_new_goes_there() {
    moves_while_programs_write(&pool(3, "16K", WriteMode::Direct));
}

fn moves_while_programs_write(fs: &Fs) {
    for number in 0..4 {
        let node = file(fs, fs.root(), &format!("f{number}"));
        write(fs, node, 0, &pattern(6 << 20, number));
    }
    let units = units(fs, 1);
    let (shared, done, leaving) = (fs, AtomicBool::new(false), units.clone());
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|number| scope.spawn(move || keep_writing(shared, number, 400)))
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
    let drained = drain(fs, &units);
    assert_eq!((drained.in_use, drained.is_full), (0, false));
    assert_eq!(fs.store().left_on(&units).contents, 0);
    let node = file(fs, fs.root(), "new");
    write(fs, node, 0, &pattern(30 << 20, 9));
    fs.truncate(&root(), node, 5 << 20).expect("truncate");
    write(fs, node, 0, &pattern(30 << 20, 9));
    assert_eq!(pages_on(fs, node, &units), 0);
    assert_sound(fs);
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
