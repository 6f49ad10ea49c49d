//! Copies that come into a pool that is used, and those that go for them (D81): on disks behind an
//! image, and in memory.

use std::cell::Cell;
use std::fs;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nacre_testkit::pool::{CAREFUL, Devices, commit_image, memory_file};
use nacre_types::{StoreKind, VolumeOffset};
use nacre_volume::{Access, Caching, CreateOptions, LegState, Usage, Volume, VolumeError};

const MIB: u64 = 1 << 20;
const PLACE: VolumeOffset = VolumeOffset(3 << 20);

/// What lies on the devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Disks,
    Memory,
}

const KINDS: [Kind; 2] = [Kind::Disks, Kind::Memory];

struct Pool(Devices, Kind);

impl Pool {
    fn new(kind: Kind, names: &[&str]) -> Self {
        let devices = Devices::below(Path::new("/dev/shm"));
        let caching = match kind {
            Kind::Disks => Caching::Always,
            Kind::Memory => Caching::Never,
        };
        let options = CreateOptions {
            copies: names.len(),
            caching,
            ..CAREFUL
        };
        let volume = devices.volume(names, 32 * MIB, options);
        assert_eq!(volume.mirror().is_some(), kind == Kind::Memory);
        Self(devices, kind)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.file(name)
    }

    /// As after a power cut.
    fn open(&self, name: &str) -> Volume {
        match self.1 {
            Kind::Disks => self.0.imaged(name),
            Kind::Memory => {
                let volume = Volume::open(&self.path(name), Access::ReadWrite).unwrap();
                volume.make_shared(memory_file()).unwrap();
                volume.recover_copies(&mut |_, _| None);
                volume
            }
        }
    }

    /// Stores a byte, durably.
    fn put(&self, volume: &Volume, byte: u8) {
        let stored = volume.write(PLACE, &[byte; 100], StoreKind::Data);
        volume.fence(stored).unwrap();
        if self.1 == Kind::Disks {
            commit_image(volume);
        }
    }

    /// What the label of a device says of all copies.
    fn states(&self, name: &str) -> Vec<LegState> {
        let label = Volume::inspect(&self.path(name)).unwrap();
        label.copies().map(|(_, it)| it.state.unwrap()).collect()
    }

    /// What processes share that use it at the same time.
    fn shared(&self) -> OwnedFd {
        let mut options = fs::File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        options.open(self.path("shared")).unwrap().into()
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.path(name)).unwrap();
    }

    fn is_no_member(&self, name: &str) -> bool {
        let read = Volume::inspect(&self.path(name));
        matches!(read, Err(VolumeError::NotAPool { .. }))
    }
}

fn byte(volume: &Volume) -> u8 {
    let found: [u8; 100] = volume.read_array(PLACE);
    assert!(found.iter().all(|byte| *byte == found[0]));
    found[0]
}

fn uuid_of(volume: &Volume, name: &str) -> nacre_types::Uuid {
    let copies = volume.copies().unwrap();
    let found = copies.iter().find(|copy| copy.path.ends_with(name));
    found.unwrap().uuid
}

fn rebuild(volume: &Volume) -> usize {
    let whole = volume.rebuild_copies(|_| ControlFlow::Continue(()));
    whole.unwrap()
}

fn replace(volume: &Volume, pool: &Pool, old: &str, new: &str) {
    let old = uuid_of(volume, old);
    volume.replace_copy(old, &pool.path(new), false).unwrap();
}

/// In memory this one is read, and goes when nobody uses the pool.
fn is_read(kind: Kind, name: &str) -> bool {
    kind == Kind::Memory && name == "a"
}

/// One for which another one has come goes.
fn let_go(pool: &Pool, volume: Volume, old: &str, new: &str) -> Volume {
    let gone = volume.let_replaced_go().unwrap();
    if !is_read(pool.1, old) {
        assert_eq!(gone, [pool.path(old)]);
        assert!(pool.is_no_member(old));
        return volume;
    }
    assert_eq!(gone, Vec::<PathBuf>::new());
    assert!(!pool.is_no_member(old));
    assert!(volume.close_copies().unwrap());
    assert!(pool.is_no_member(old), "when the last one leaves");
    drop(volume);
    pool.open(new)
}

#[test]
fn one_that_is_there_stays_current_until_the_new_one_is() {
    use LegState::{Current, Rebuilding};
    for kind in KINDS {
        for old in ["a", "b"] {
            let pool = Pool::new(kind, &["a", "b"]);
            let other = if old == "a" { "b" } else { "a" };
            let volume = pool.open("a");
            pool.put(&volume, 1);
            replace(&volume, &pool, old, "c");
            assert_eq!(pool.states(old), [Current, Current, Rebuilding]);
            let nothing = volume.let_replaced_go().unwrap();
            assert_eq!(nothing, Vec::<PathBuf>::new());
            let mut next = 2;
            let whole = volume.rebuild_copies(|_| {
                pool.put(&volume, next);
                next += 1;
                ControlFlow::Continue(())
            });
            assert_eq!(whole.unwrap(), 1);
            assert_eq!(pool.states("c"), [Current; 3]);
            let volume = let_go(&pool, volume, old, "c");
            assert_eq!(pool.states("c"), [Current; 2]);
            pool.put(&volume, 200);
            let lost = fs::read(pool.path(old)).unwrap();
            let has_it = lost.windows(100).any(|bytes| bytes == [200; 100]);
            assert!(!has_it, "nothing is written to it any more");
            drop(volume);
            pool.remove(other);
            pool.remove(old);
            assert_eq!(byte(&pool.open("c")), 200, "{kind:?} {old}");
        }
    }
}

#[test]
fn another_process_goes_over_to_the_new_one() {
    for kind in KINDS {
        let pool = Pool::new(kind, &["a", "b"]);
        let open = || Volume::open(&pool.path("a"), Access::ReadWrite).unwrap();
        let (one, other) = (open(), open());
        match kind {
            Kind::Disks => {
                one.make_image(pool.shared()).unwrap();
                assert!(other.join_image(pool.shared()).unwrap());
            }
            Kind::Memory => {
                one.make_shared(pool.shared()).unwrap();
                assert!(other.join_shared(pool.shared()).unwrap());
            }
        }
        let (old, stays) = match kind {
            Kind::Disks => ("a", "b"),
            Kind::Memory => ("b", "a"),
        };
        replace(&one, &pool, old, "c");
        assert_eq!(rebuild(&one), 1);
        pool.put(&other, 5);
        let one = let_go(&pool, one, old, "c");
        pool.put(&other, 6);
        other.check_copies().unwrap();
        assert_eq!(byte(&other), 6);
        let there = |it: nacre_volume::CopyInfo| (it.path, it.state);
        let copies: Vec<_> = other.copies().unwrap().into_iter().map(there).collect();
        let current = |name| (pool.path(name), LegState::Current);
        assert!(copies.contains(&current(stays)) && copies.contains(&current("c")));
        assert_eq!(copies.len(), 2);
        drop((one, other));
        pool.remove(stays);
        assert_eq!(byte(&pool.open("c")), 6, "{kind:?}");
    }
}

#[test]
fn killed_anywhere_it_goes_on() {
    for kind in KINDS {
        let pool = Pool::new(kind, &["a", "b"]);
        let volume = pool.open("a");
        pool.put(&volume, 1);
        replace(&volume, &pool, "b", "c");
        volume.rebuild_copies(|_| ControlFlow::Break(())).unwrap();
        drop(volume);
        let volume = pool.open("b");
        let again = volume.replace_copy(uuid_of(&volume, "b"), &pool.path("d"), false);
        assert!(matches!(again, Err(VolumeError::Copies { .. })));
        assert!(!pool.path("d").exists());
        assert_eq!(rebuild(&volume), 1);
        // Before it is let go.
        drop(volume);
        let before = fs::read(pool.path("b")).unwrap();
        let volume = pool.open("c");
        pool.put(&volume, 2);
        // In memory it has gone by now.
        volume.let_replaced_go().unwrap();
        assert!(pool.is_no_member("b"));
        pool.put(&volume, 3);
        drop(volume);
        // Before its label was erased.
        fs::write(pool.path("b"), &before).unwrap();
        let stranger = Volume::open(&pool.path("b"), Access::ReadWrite);
        assert!(matches!(stranger, Err(VolumeError::NotAMember { .. })));
        let (left, others) = (pool.path("b"), [pool.path("a")]);
        let owner = Some(pool.open("a").owner());
        let begun_with_it = Volume::open_or_copy(&left, &others, owner, Access::ReadWrite);
        assert!(begun_with_it.is_ok(), "by a program that knows the others");
        assert_eq!(byte(&pool.open("a")), 3);
        let forgot = Volume::forget_removed(&pool.path("a"), &pool.path("b")).unwrap();
        assert_eq!(forgot, Some(pool.path("b")));
        assert!(pool.is_no_member("b"));
    }
}

#[test]
fn one_that_died_on_its_way_in_comes_again_without_force() {
    for kind in KINDS {
        let pool = Pool::new(kind, &["a", "b"]);
        let before = ["a", "b"].map(|name| fs::read(pool.path(name)).unwrap());
        let volume = pool.open("a");
        replace(&volume, &pool, "b", "c");
        drop(volume);
        // Only the new one had a label that named it.
        for (name, bytes) in ["a", "b"].iter().zip(before) {
            fs::write(pool.path(name), bytes).unwrap();
        }
        let volume = pool.open("a");
        assert_eq!(volume.copies().unwrap().len(), 2);
        replace(&volume, &pool, "b", "c");
        assert_eq!(rebuild(&volume), 1);
        assert_eq!(volume.let_replaced_go().unwrap(), [pool.path("b")]);
        // One that is current may not.
        fs::copy(pool.path("c"), pool.path("e")).unwrap();
        let refused = volume.add_copy(&pool.path("e"), None, false);
        assert!(
            matches!(refused, Err(VolumeError::AlreadyPool(_))),
            "{refused:?}"
        );
    }
}

#[test]
fn copies_become_as_many_as_four_and_each_can_be_replaced_then() {
    for kind in KINDS {
        let pool = Pool::new(kind, &["a", "b"]);
        let volume = pool.open("a");
        pool.put(&volume, 1);
        for name in ["c", "d"] {
            volume.add_copy(&pool.path(name), None, false).unwrap();
            assert_eq!(rebuild(&volume), 1);
        }
        assert_eq!(pool.states("d"), [LegState::Current; 4]);
        let full = volume.add_copy(&pool.path("e"), None, false);
        assert!(matches!(full, Err(VolumeError::Copies { .. })), "{full:?}");
        assert!(!pool.path("e").exists());
        let mut volume = volume;
        for (old, new) in [("c", "e"), ("a", "f"), ("e", "g")] {
            replace(&volume, &pool, old, new);
            assert_eq!(rebuild(&volume), 1);
            volume = let_go(&pool, volume, old, new);
            assert_eq!(pool.states(new), [LegState::Current; 4]);
        }
        pool.put(&volume, 9);
        drop(volume);
        for gone in ["b", "d", "f"] {
            pool.remove(gone);
        }
        assert_eq!(byte(&pool.open("g")), 9);
    }
}

#[test]
fn if_the_new_one_fails_the_old_one_stays() {
    for kind in KINDS {
        let pool = Pool::new(kind, &["a", "b"]);
        let volume = pool.open("a");
        replace(&volume, &pool, "b", "c");
        drop(volume);
        fs::write(pool.path("c"), vec![0; 32 << 20]).unwrap();
        let volume = pool.open("a");
        pool.put(&volume, 4);
        assert_eq!(rebuild(&volume), 0);
        assert_eq!(volume.let_replaced_go().unwrap(), Vec::<PathBuf>::new());
        // Another one for it takes its task over.
        replace(&volume, &pool, "c", "d");
        assert_eq!(rebuild(&volume), 1);
        assert_eq!(volume.let_replaced_go().unwrap(), [pool.path("b")]);
        drop(volume);
        pool.remove("a");
        assert_eq!(byte(&pool.open("d")), 4, "{kind:?}");
    }
}

#[test]
fn one_whose_label_cannot_be_erased_goes_all_the_same() {
    nacre_media::fault::install_handler();
    let pool = Pool::new(Kind::Disks, &["a", "b"]);
    let volume = pool.open("a");
    pool.put(&volume, 1);
    replace(&volume, &pool, "b", "c");
    assert_eq!(rebuild(&volume), 1);
    // Nobody has noticed so far.
    let file = fs::File::options().write(true).open(pool.path("b"));
    file.unwrap().set_len(MIB).unwrap();
    assert_eq!(volume.let_replaced_go().unwrap(), [pool.path("b")]);
    assert_eq!(pool.states("a"), [LegState::Current; 2]);
    drop(volume);
    fs::remove_file(pool.path("a")).unwrap();
    assert_eq!(byte(&pool.open("c")), 1);
}

#[test]
fn in_memory_what_is_read_stays_while_the_pool_is_in_use() {
    let pool = Pool::new(Kind::Memory, &["a", "b"]);
    let volume = pool.open("a");
    pool.put(&volume, 1);
    replace(&volume, &pool, "a", "c");
    assert_eq!(rebuild(&volume), 1);
    stays(&pool, &volume);
    // The other one goes.
    replace(&volume, &pool, "b", "d");
    assert_eq!(rebuild(&volume), 1);
    let volume = let_go(&pool, volume, "b", "c");
    pool.put(&volume, 2);
    let volume = let_go(&pool, volume, "a", "c");
    assert_eq!(pool.states("c"), [LegState::Current; 2]);
    drop(volume);
    pool.remove("d");
    assert_eq!(byte(&pool.open("c")), 2);
}

#[test]
fn in_memory_one_that_comes_for_the_new_one_takes_its_task_over() {
    let pool = Pool::new(Kind::Memory, &["a", "b"]);
    let volume = pool.open("a");
    pool.put(&volume, 1);
    replace(&volume, &pool, "a", "c");
    assert_eq!(rebuild(&volume), 1);
    stays(&pool, &volume);
    replace(&volume, &pool, "c", "d");
    assert_eq!(rebuild(&volume), 1);
    let volume = let_go(&pool, volume, "c", "d");
    let volume = let_go(&pool, volume, "a", "d");
    assert_eq!(pool.states("d"), [LegState::Current; 2]);
    assert_eq!(byte(&volume), 1);
}

#[test]
fn in_memory_the_one_that_is_read_stays_though_the_one_that_came_for_it_goes() {
    let pool = Pool::new(Kind::Memory, &["a", "b"]);
    let volume = pool.open("a");
    replace(&volume, &pool, "a", "c");
    assert_eq!(rebuild(&volume), 1);
    replace(&volume, &pool, "b", "d");
    assert_eq!(rebuild(&volume), 1);
    let volume = let_go(&pool, volume, "b", "d");
    // It gets a place before that of the one that goes for it.
    replace(&volume, &pool, "c", "e");
    assert_eq!(rebuild(&volume), 1);
    let volume = let_go(&pool, volume, "c", "e");
    assert_eq!(pool.states("a"), [LegState::Current; 3]);
    let volume = let_go(&pool, volume, "a", "e");
    assert_eq!(pool.states("e"), [LegState::Current; 2]);
    drop(volume);
}

/// The one that is read stays for now.
fn stays(pool: &Pool, volume: &Volume) {
    assert_eq!(volume.let_replaced_go().unwrap(), Vec::<PathBuf>::new());
    assert_eq!(pool.states("a"), [LegState::Current; 3]);
}

#[test]
fn in_memory_what_stayed_when_all_were_killed_goes_when_the_pool_is_used_again() {
    let pool = Pool::new(Kind::Memory, &["a", "b"]);
    let volume = pool.open("a");
    replace(&volume, &pool, "a", "c");
    assert_eq!(rebuild(&volume), 1);
    pool.put(&volume, 3);
    volume.let_replaced_go().unwrap();
    drop(volume);
    let volume = pool.open("a");
    assert!(pool.is_no_member("a"));
    assert_eq!(byte(&volume), 3);
    pool.put(&volume, 4);
    drop(volume);
    pool.remove("b");
    assert_eq!(byte(&pool.open("c")), 4);
}

#[test]
fn in_memory_a_process_that_comes_later_knows_copies_by_what_they_are() {
    let pool = Pool::new(Kind::Memory, &["a", "b"]);
    let volume = Volume::open(&pool.path("a"), Access::ReadWrite).unwrap();
    volume.make_shared(pool.shared()).unwrap();
    let idle = Volume::open(&pool.path("b"), Access::ReadWrite).unwrap();
    assert!(idle.join_shared(pool.shared()).unwrap());
    for (number, (old, new)) in [("b", "c"), ("c", "d"), ("d", "e")].into_iter().enumerate() {
        replace(&volume, &pool, old, new);
        assert_eq!(rebuild(&volume), 1);
        assert_eq!(volume.let_replaced_go().unwrap(), [pool.path(old)]);
        let later = Volume::open(&pool.path(new), Access::ReadWrite).unwrap();
        assert!(later.join_shared(pool.shared()).unwrap());
        let value = 10 + number as u8;
        pool.put(&later, value);
        assert_eq!(byte(&volume), value);
        all_have(&later, value);
    }
    // One of the copies that it knew is one still.
    assert_eq!(byte(&idle), 12);
    pool.put(&idle, 20);
    all_have(&idle, 20);
    all_have(&volume, 20);
}

fn all_have(volume: &Volume, byte: u8) {
    let copies = volume.copies().unwrap();
    assert_eq!(copies.len(), 2);
    for copy in copies {
        assert_eq!(copy.state, LegState::Current);
        let bytes = fs::read(&copy.path).unwrap();
        let has_it = bytes.windows(100).any(|bytes| bytes == [byte; 100]);
        assert!(has_it, "{}", copy.path.display());
    }
}

#[test]
fn in_memory_who_finds_no_copy_that_is_current_stores_nothing_and_says_so() {
    let pool = Pool::new(Kind::Memory, &["a", "b"]);
    let open = || Volume::open(&pool.path("a"), Access::ReadWrite).unwrap();
    let (volume, idle) = (open(), open());
    volume.make_shared(pool.shared()).unwrap();
    assert!(idle.join_shared(pool.shared()).unwrap());
    pool.put(&volume, 1);
    for (slot, old, new) in [(0, "a", "c"), (1, "b", "d")] {
        volume.mirror().unwrap().lose(slot, LegState::Failed);
        volume.check_copies().unwrap();
        replace(&volume, &pool, old, new);
        assert_eq!(rebuild(&volume), 1);
    }
    let move_all = |from: &str, to: &str| {
        for name in ["c", "d"] {
            let of = |end: &str| pool.path(&format!("{name}{end}"));
            fs::rename(of(from), of(to)).unwrap();
        }
    };
    move_all("", ".away");
    let stored = idle.write(PLACE, &[9; 100], StoreKind::Data);
    assert!(idle.fence(stored).is_err());
    move_all(".away", "");
    pool.put(&volume, 2);
    all_have(&volume, 2);
}

#[test]
fn in_memory_who_brought_a_copy_goes_on_with_it_when_the_others_are_lost() {
    let pool = Pool::new(Kind::Memory, &["a", "b"]);
    let volume = pool.open("a");
    pool.put(&volume, 1);
    replace(&volume, &pool, "b", "c");
    assert_eq!(rebuild(&volume), 1);
    let volume = let_go(&pool, volume, "b", "c");
    let len = fs::metadata(pool.path("a")).unwrap().len();
    let a = fs::File::options()
        .write(true)
        .open(pool.path("a"))
        .unwrap();
    for at in [0, len - 4096] {
        a.write_all_at(&[0; 4096], at).unwrap();
    }
    volume.check_copies().unwrap();
    pool.put(&volume, 2);
    assert_eq!(pool.states("c"), [LegState::Failed, LegState::Current]);
    drop(volume);
    assert_eq!(byte(&pool.open("c")), 2);
}

/// What else may be written to a device begins at its start.
fn write_over(pool: &Pool, name: &str, at: u64) {
    let file = fs::File::options().write(true).open(pool.path(name));
    file.unwrap().write_all_at(&[9; 8 << 20], at).unwrap();
}

#[test]
fn in_memory_a_copy_is_lost_as_soon_as_its_first_label_is() {
    let pool = Pool::new(Kind::Memory, &["a", "b"]);
    let volume = pool.open("a");
    pool.put(&volume, 1);
    write_over(&pool, "a", 0);
    volume.check_copies().unwrap();
    assert_eq!(byte(&volume), 1);
    assert_eq!(pool.states("b"), [LegState::Failed, LegState::Current]);
    // The last one stays.
    write_over(&pool, "b", 0);
    volume.check_copies().unwrap();
    assert_eq!(volume.copies().unwrap()[1].state, LegState::Current);
}

#[test]
fn a_copy_that_something_was_written_over_while_nobody_used_it_is_none() {
    for kind in KINDS {
        let pool = Pool::new(kind, &["a", "b"]);
        pool.put(&pool.open("a"), 1);
        write_over(&pool, "a", 0);
        let volume = pool.open("a");
        assert_eq!(byte(&volume), 1);
        assert_eq!(pool.states("b"), [LegState::Failed, LegState::Current]);
        drop(volume);
        // One that is alone is what there is.
        fs::remove_file(pool.path("a")).unwrap();
        write_over(&pool, "b", 0);
        assert!(Volume::open(&pool.path("b"), Access::ReadOnly).is_ok());
    }
}

#[test]
fn in_memory_so_many_come_in_one_use_and_no_more() {
    let pool = Pool::new(Kind::Memory, &["a", "b"]);
    let volume = pool.open("a");
    pool.put(&volume, 1);
    for number in 0..10 {
        let old = if number == 0 {
            "b"
        } else {
            &format!("c{}", number - 1)
        };
        replace(&volume, &pool, old, &format!("c{number}"));
        assert_eq!(rebuild(&volume), 1);
        assert_eq!(volume.let_replaced_go().unwrap(), [pool.path(old)]);
    }
    let full = volume.replace_copy(uuid_of(&volume, "a"), &pool.path("e"), false);
    assert!(matches!(full, Err(VolumeError::Copies { .. })), "{full:?}");
    assert!(!pool.path("e").exists());
    assert_eq!(pool.states("a"), [LegState::Current; 2]);
    drop(volume);
    let volume = pool.open("c9");
    replace(&volume, &pool, "a", "e");
    assert_eq!((rebuild(&volume), byte(&volume)), (1, 1));
}

/// A pool on the device `a` alone.
fn single(kind: Kind) -> Pool {
    let devices = Devices::below(Path::new("/dev/shm"));
    let caching = match kind {
        Kind::Disks => Caching::Always,
        Kind::Memory => Caching::Never,
    };
    devices.volume(&["a"], 32 * MIB, CreateOptions { caching, ..CAREFUL });
    Pool(devices, kind)
}

#[test]
fn one_device_becomes_two_that_hold_the_same() {
    for kind in KINDS {
        let pool = single(kind);
        let volume = match kind {
            Kind::Disks => pool.open("a"),
            Kind::Memory => Volume::open(&pool.path("a"), Access::ReadWrite).unwrap(),
        };
        pool.put(&volume, 3);
        if kind == Kind::Disks {
            volume.checkpoint().unwrap();
        }
        drop(volume);
        // Nothing of a copy counts that the device had in front of its data.
        let front = vec![255; 3 << 19];
        let file = fs::File::options().write(true).open(pool.path("a"));
        file.unwrap().write_all_at(&front, 512 << 10).unwrap();
        let alone = fs::read(pool.path("a")).unwrap();
        let second = pool.path("b");
        let new = (second.as_path(), None);
        let begin = || Volume::begin_copies(&pool.path("a"), new, false).unwrap();
        begin();
        // Killed before the first device says so, it is alone, and begins again.
        fs::write(pool.path("a"), alone).unwrap();
        assert_eq!(Volume::inspect(&pool.path("a")).unwrap().devices.len(), 1);
        let uuid = begin();
        let volume = pool.open("a");
        pool.put(&volume, 4);
        assert_eq!(pool.states("a"), [LegState::Current, LegState::Failed]);
        assert!(volume.return_copy(uuid).unwrap());
        assert_eq!(rebuild(&volume), 1);
        assert_eq!(pool.states("b"), [LegState::Current; 2]);
        pool.put(&volume, 5);
        let more = Volume::begin_copies(&pool.path("a"), new, false);
        assert!(matches!(more, Err(VolumeError::Copies { .. })));
        drop(volume);
        pool.remove("a");
        assert_eq!(byte(&pool.open("b")), 5, "{kind:?}");
    }
}

/// A place behind the end of what [`Pool::new`] makes.
const FAR: VolumeOffset = VolumeOffset(40 * MIB);

#[test]
fn copies_grow_as_far_as_all_have_room() {
    for kind in KINDS {
        let pool = Pool::new(kind, &["a", "b"]);
        let volume = pool.open("a");
        pool.put(&volume, 1);
        let before = volume.len();
        volume.close_copies().unwrap();
        drop(volume);
        let a = pool.path("a");
        let none = Volume::grow_copies(&a, None);
        assert!(
            matches!(none, Err(VolumeError::NoRoomToGrow { .. })),
            "{none:?}"
        );
        let smaller = Volume::grow_copies(&a, Some(24 * MIB));
        assert!(matches!(smaller, Err(VolumeError::NotLarger { .. })));
        // One of them alone is no room.
        let file = fs::File::options().write(true).open(&a).unwrap();
        file.set_len(64 * MIB).unwrap();
        assert!(matches!(
            Volume::grow_copies(&a, None),
            Err(VolumeError::NoRoomToGrow { .. })
        ));
        let old = ["a", "b"].map(|name| fs::read(pool.path(name)).unwrap());
        let grown = Volume::grow_copies(&a, Some(64 * MIB)).unwrap();
        assert!(grown > before + 16 * MIB);
        // Killed when one label says so, the others follow.
        let first = |name: &str| fs::read(pool.path(name)).unwrap()[..4096].to_vec();
        let new = first("b");
        let file = fs::File::options().write(true).open(pool.path("b"));
        file.unwrap().write_all_at(&old[1][..4096], 0).unwrap();
        let volume = pool.open("b");
        assert!(new != old[1][..4096]);
        assert_eq!((volume.len(), byte(&volume)), (grown, 1));
        let stored = volume.write(FAR, &[9; 100], StoreKind::Data);
        volume.fence(stored).unwrap();
        pool.put(&volume, 2);
        drop(volume);
        pool.remove("a");
        let volume = pool.open("b");
        let far: [u8; 100] = volume.read_array(FAR);
        assert_eq!((byte(&volume), far), (2, [9; 100]), "{kind:?}");
        let one = Volume::grow_copies(&pool.path("b"), Some(96 * MIB));
        assert!(matches!(one, Err(VolumeError::Copies { .. })), "{one:?}");
    }
}

#[test]
fn a_pool_that_did_not_grow_yet_is_what_it_was() {
    for kind in KINDS {
        let pool = Pool::new(kind, &["a", "b"]);
        let volume = pool.open("a");
        pool.put(&volume, 1);
        volume.close_copies().unwrap();
        let before = volume.len();
        drop(volume);
        // All but the labels, which are written last.
        let labels = ["a", "b"].map(|name| {
            let bytes = fs::read(pool.path(name)).unwrap();
            (
                name,
                bytes[..4096].to_vec(),
                bytes[bytes.len() - 4096..].to_vec(),
            )
        });
        Volume::grow_copies(&pool.path("a"), Some(64 * MIB)).unwrap();
        for (name, first, second) in labels {
            let file = fs::File::options()
                .write(true)
                .open(pool.path(name))
                .unwrap();
            file.write_all_at(&first, 0).unwrap();
            file.write_all_at(&second, 32 * MIB - 4096).unwrap();
        }
        let volume = pool.open("a");
        assert_eq!((volume.len(), byte(&volume)), (before, 1));
        pool.put(&volume, 2);
        drop(volume);
        pool.remove("a");
        assert_eq!(byte(&pool.open("b")), 2, "{kind:?}");
    }
}

/// Where the bytes of a place lie on a device.
fn on_device(pool: &Pool, name: &str, at: VolumeOffset) -> Vec<u8> {
    let bytes = fs::read(pool.path(name)).unwrap();
    bytes[(at.0 + 2 * MIB) as usize..][..100].to_vec()
}

#[test]
fn a_rebuild_of_a_disk_skips_what_is_free_in_the_version_that_the_disks_have() {
    let pool = Pool::new(Kind::Disks, &["a", "b"]);
    let volume = pool.open("a");
    let places = [8, 9, 10, 11].map(|mib| VolumeOffset(mib * MIB));
    let [used, free, freed, taken] = places;
    let store = |at: VolumeOffset, byte: u8| {
        let stored = volume.write(at, &[byte; 100], StoreKind::Data);
        volume.fence(stored).unwrap();
    };
    places.iter().for_each(|&at| store(at, 7));
    commit_image(&volume);
    volume.checkpoint().unwrap();
    // The version that the disks have refers to it still.
    volume.note_freed(freed, 4096);
    let is_free = |at: VolumeOffset| at != used && places.contains(&at);
    let taken_by_now = Cell::new(false);
    let usage = |at| match is_free(at) && !(at == taken && taken_by_now.get()) {
        true => Usage::Free,
        false => Usage::Used,
    };
    replace(&volume, &pool, "b", "c");
    let whole = volume.rebuild_used(&usage, 1, |progress| {
        if progress.done > 12 * MIB && !taken_by_now.replace(true) {
            // When the rebuild has passed it.
            volume.note_taken(taken, 4096);
            store(taken, 8);
            commit_image(&volume);
        }
        ControlFlow::Continue(())
    });
    assert_eq!(whole.unwrap().whole, 1);
    volume.checkpoint().unwrap();
    let has = |at, byte: u8| on_device(&pool, "c", at) == [byte; 100];
    assert!(has(used, 7) && has(freed, 7) && has(taken, 8));
    assert!(has(free, 0), "nobody needs it");
    // When they have a version without it, it is skipped.
    commit_image(&volume);
    commit_image(&volume);
    volume.let_replaced_go().unwrap();
    replace(&volume, &pool, "a", "d");
    assert_eq!(
        volume
            .rebuild_used(&usage, 1, |_| ControlFlow::Continue(()))
            .unwrap()
            .whole,
        1
    );
    let has = |at, byte: u8| on_device(&pool, "d", at) == [byte; 100];
    assert!(has(used, 7) && has(taken, 8) && has(freed, 0));
}

#[test]
fn a_rebuild_of_what_is_nearly_empty_looks_at_little() {
    let pool = Pool::new(Kind::Disks, &["a", "b"]);
    let volume = pool.open("a");
    pool.put(&volume, 7);
    commit_image(&volume);
    volume.checkpoint().unwrap();
    let len = fs::metadata(pool.path("a")).unwrap().len();
    fs::write(pool.path("c"), vec![9; len as usize]).unwrap();
    let old = uuid_of(&volume, "b");
    volume.replace_copy(old, &pool.path("c"), true).unwrap();
    let before = read_by_me();
    let usage = |at| match at == PLACE {
        true => Usage::Used,
        false => Usage::Free,
    };
    let (mut looked, mut done) = (0, 0);
    let rebuilt = volume.rebuild_used(&usage, 1, |progress| {
        (looked, done) = (progress.looked, progress.done);
        assert_eq!(progress.total, volume.len());
        ControlFlow::Continue(())
    });
    let read = read_by_me() - before;
    assert_eq!(
        (rebuilt.unwrap().whole, looked, done),
        (1, 4096, volume.len())
    );
    assert!(read < MIB, "{read}");
    let start = 2 * MIB as usize;
    let contents = &fs::read(pool.path("c")).unwrap()[start..start + volume.len() as usize];
    let copied = contents.iter().filter(|byte| **byte != 9).count();
    assert_eq!(copied, 4096);
}

/// Bytes that calls of this thread have read so far.
fn read_by_me() -> u64 {
    let io = fs::read_to_string("/proc/thread-self/io").unwrap();
    let read = io.lines().find_map(|line| line.strip_prefix("rchar: "));
    read.unwrap().parse().unwrap()
}
