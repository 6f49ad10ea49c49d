//! Mirrors of two files in memory.

use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread::ScopedJoinHandle;

use nacre_types::{DeviceOffset, StoreKind, UNIT_SIZE};
use rustix::fs::{MemfdFlags, memfd_create};
use tempfile::TempDir;

mod large;
mod reads;
mod rebuilt;
mod repair;
mod scrub;

use super::{LegFacts, LegRegistry, LegState, Mirror, NewLeg};
use crate::address_range::AddressRange;
use crate::compare::Judge;
use crate::device::Device;
use crate::error::{CopyError, MediaFailed};
use crate::fault::install_handler;
use crate::kind::Access;
use crate::media::Media;
use crate::user::{UserBytes, UserBytesMut};

const START: u64 = 2 << 20;
const LEN: u64 = 16 << 20;
const AT: DeviceOffset = DeviceOffset(START + 8192);

struct Rig {
    folder: TempDir,
    names: &'static [&'static str],
    media: Media,
    records: Arc<Records>,
}

/// What was to be recorded in labels.
#[derive(Default)]
struct Records {
    all: Mutex<Vec<Vec<LegState>>>,
    added: Mutex<Vec<([u8; 16], Arc<Device>)>>,
    /// Legs over which something else was written.
    strange: Mutex<Vec<[u8; 16]>>,
    /// The next look at a leg's label finds one that is half written.
    half_written: AtomicBool,
}

impl LegRegistry for Records {
    fn open(&self, id: [u8; 16]) -> Option<Arc<Device>> {
        let added = self.added.lock().unwrap();
        added
            .iter()
            .find(|(known, _)| *known == id)
            .map(|(_, device)| Arc::clone(device))
    }

    fn is_still(&self, leg: [u8; 16], _device: &Arc<Device>) -> bool {
        !self.half_written.swap(false, Relaxed) && !self.strange.lock().unwrap().contains(&leg)
    }

    fn record(&self, legs: &[LegFacts]) -> Result<(), MediaFailed> {
        let states = legs.iter().map(|leg| leg.state).collect();
        self.all.lock().unwrap().push(states);
        Ok(())
    }
}

fn file() -> OwnedFd {
    memfd_create("mirror", MemfdFlags::CLOEXEC).unwrap()
}

impl Rig {
    fn new() -> Self {
        Self::of(&["a", "b"])
    }

    /// Works beside so many threads that store all over the legs. They have ended on return, and
    /// none has failed.
    fn beside_writers(&self, threads: u8, work: impl FnOnce(&[ScopedJoinHandle<'_, ()>])) {
        let store = |thread: u8| {
            for round in 0..400u64 {
                let at = START + (round * 37 + u64::from(thread)) * 4093 % (LEN - 9000);
                self.write(DeviceOffset(at), &[thread; 5000]);
            }
        };
        std::thread::scope(|scope| {
            let begin = |thread| scope.spawn(move || store(thread));
            let writers: Vec<_> = (1..=threads).map(begin).collect();
            work(&writers);
        });
    }

    fn of(names: &'static [&'static str]) -> Self {
        install_handler();
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        for name in names {
            Device::create(&folder.path().join(name), START + LEN).unwrap();
        }
        Self::open(folder, names)
    }

    fn open(folder: TempDir, names: &'static [&'static str]) -> Self {
        Self::judged(folder, names, &mut |_, _| None)
    }

    fn judged(folder: TempDir, names: &'static [&'static str], judge: &mut Judge<'_>) -> Self {
        let path = |name: &&str| folder.path().join(name);
        let device = |name| Device::open(&path(name), Access::ReadWrite).ok();
        let devices: Vec<_> = names
            .iter()
            .map(|name| device(name).map(Arc::new))
            .collect();
        let legs = devices
            .into_iter()
            .enumerate()
            .map(|(number, device)| NewLeg {
                id: [number as u8 + 1; 16],
                state: LegState::Current,
                device,
                is_damaged: false,
            });
        let legs: Vec<NewLeg> = legs.collect();
        let mirror = Mirror::new([7; 16], START..START + LEN, true, &legs)
            .unwrap()
            .unwrap();
        let records = Arc::new(Records::default());
        mirror.set_registry(Arc::clone(&records) as _);
        mirror.create_shared(file()).unwrap();
        mirror.recover(judge);
        let media = Media::mirrored(mirror, AddressRange::reserve(LEN).unwrap()).unwrap();
        Self {
            folder,
            names,
            media,
            records,
        }
    }

    /// As after a crash.
    fn reopened(self) -> Self {
        let Rig { folder, names, .. } = self;
        Self::open(folder, names)
    }

    /// Something else comes over a leg, its label and what is at `AT`.
    fn write_over(&self, name: &str, leg: u8) {
        self.damage(name, AT.get(), 9);
        self.records.strange.lock().unwrap().push([leg; 16]);
    }

    fn mirror(&self) -> &Mirror {
        self.media.mirror().unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        let bytes = std::fs::read(self.path(name)).unwrap();
        bytes[START as usize..].to_vec()
    }

    fn write(&self, at: DeviceOffset, bytes: &[u8]) {
        let stored = self.media.write(at, bytes, StoreKind::Data);
        self.media.fence(stored).unwrap();
    }

    fn states(&self) -> Vec<LegState> {
        self.mirror().facts().iter().map(|leg| leg.state).collect()
    }

    fn truncate(&self, name: &str) {
        std::fs::OpenOptions::new()
            .write(true)
            .open(self.path(name))
            .unwrap()
            .set_len(0)
            .unwrap();
    }

    fn damage(&self, name: &str, at: u64, byte: u8) {
        use std::os::unix::fs::FileExt;
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(self.path(name))
            .unwrap();
        file.write_all_at(&[byte], at).unwrap();
    }
}

#[test]
fn every_kind_of_store_reaches_both_legs() {
    let rig = Rig::new();
    let media = &rig.media;
    let bytes: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8).collect();
    rig.write(DeviceOffset(START + 100), &bytes);
    let _ = media.store_u64(DeviceOffset(START), 77, StoreKind::Metadata);
    media.store_u64_lazy(DeviceOffset(START + 8), 78, StoreKind::Metadata);
    let range = media.checked_range::<64>(DeviceOffset(START + (1 << 20)));
    let _ = range.store_word(1, 79, StoreKind::Metadata);
    range.store_word_lazy(2, 80, StoreKind::Metadata);
    let _ = media.zero(DeviceOffset(START + 50_000), 5000, StoreKind::Data);
    let user = UserBytes::from(&bytes[..]);
    let _ = media
        .write_user_fresh(DeviceOffset(START + (2 << 20)), user, StoreKind::Data)
        .unwrap();
    assert_eq!([range.word(1), range.word(2)], [79, 80]);
    let (first, second) = (rig.bytes("a"), rig.bytes("b"));
    assert!(first == second);
    assert_eq!(
        first[0..16],
        [[77, 0, 0, 0, 0, 0, 0, 0], [78, 0, 0, 0, 0, 0, 0, 0]].concat()
    );
    assert_eq!(first[200], bytes[100]);
    assert_eq!(first[50_000..55_000], [0; 5000]);
    assert_eq!(first[2 << 20..(2 << 20) + 100_000], bytes);
    let mut found = vec![0; bytes.len()];
    media.read(DeviceOffset(START + (2 << 20)), &mut found);
    assert_eq!(found, bytes);
}

#[test]
fn a_truncated_leg_is_left_within_the_call() {
    for name in ["a", "b"] {
        let rig = Rig::new();
        rig.write(AT, b"acknowledged");
        rig.truncate(name);
        let mut found = [0; 12];
        rig.media.read(AT, &mut found);
        assert_eq!(&found, b"acknowledged", "{name}");
        rig.write(AT.add(4096), b"goes on");
        let mut found = [0; 7];
        let to = UserBytesMut::from(&mut found[..]);
        rig.media.read_user(AT.add(4096), to).unwrap();
        assert_eq!(&found, b"goes on");
        rig.media.health().unwrap();
        let lost = usize::from(name == "b");
        assert_eq!(rig.states()[lost], LegState::Failed);
        assert_eq!(rig.states()[1 - lost], LegState::Current);
        let records = rig.records.all.lock().unwrap();
        assert_eq!(records.last().unwrap()[lost], LegState::Failed);
    }
}

#[test]
fn the_last_leg_is_not_given_up() {
    let rig = Rig::new();
    rig.write(AT, b"acknowledged");
    rig.truncate("a");
    rig.write(AT, b"acknowledged");
    rig.truncate("b");
    let stored = rig.media.write(AT, b"lost", StoreKind::Data);
    assert_eq!(rig.media.fence(stored), Err(MediaFailed));
    assert!(rig.media.health().is_err());
    assert!(rig.states().contains(&LegState::Current));
}

#[test]
fn a_bad_pointer_leaves_the_legs_equal() {
    let rig = Rig::new();
    rig.write(AT, &[1; 4096]);
    // SAFETY: nothing is mapped at these addresses; the fault is caught.
    let bad = unsafe { UserBytes::from_raw(8 as *const u8, 100) };
    let refused = rig.media.write_user(AT, bad, StoreKind::Data);
    assert_eq!(refused.err(), Some(CopyError::UserFault));
    assert!(rig.bytes("a") == rig.bytes("b"));
    assert_eq!(rig.states(), [LegState::Current; 2]);
}

#[test]
fn a_crash_levels_what_was_stored_to_and_nothing_else() {
    let rig = Rig::new();
    rig.write(AT, &[1; 4096]);
    // What a power cut leaves of a store that was never fenced; and what nobody stored to.
    rig.damage("b", AT.get(), 9);
    rig.damage("b", START + LEN - 1, 9);
    let rig = rig.reopened();
    let (first, second) = (rig.bytes("a"), rig.bytes("b"));
    assert_eq!(second[8192], 1);
    assert!(first[..LEN as usize - 1] == second[..LEN as usize - 1]);
    assert_eq!(
        second[LEN as usize - 1],
        9,
        "a region without its bit was copied"
    );
    assert_eq!(rig.mirror().counts().repaired, 1);
    // And the bits are gone.
    rig.damage("b", AT.get(), 9);
    let rig = rig.reopened();
    assert_eq!(rig.bytes("b")[8192], 9);
}

#[test]
fn a_clean_end_leaves_no_bits_and_levels_what_was_mapped() {
    let rig = Rig::new();
    rig.write(AT, &[1; 4096]);
    rig.media.bring(AT, 4096);
    // A program stores through a mapping of the leg that is read.
    rig.damage("a", AT.get(), 5);
    rig.mirror().close().unwrap();
    assert_eq!(rig.bytes("b")[8192], 5);
    rig.damage("b", AT.get(), 9);
    let rig = rig.reopened();
    assert_eq!(rig.mirror().counts().repaired, 0);
    assert_eq!(rig.bytes("b")[8192], 9);
}

#[test]
fn who_leaves_takes_nothing_from_a_leg_that_something_else_was_written_over() {
    let rig = Rig::new();
    rig.write(AT, &[1; 4096]);
    rig.media.bring(AT, 4096);
    rig.write_over("a", 1);
    rig.mirror().close().unwrap();
    assert_eq!(rig.bytes("b")[8192], 1);
    assert_eq!(rig.states(), [LegState::Failed, LegState::Current]);
    assert_eq!(rig.records.all.lock().unwrap().last(), Some(&rig.states()));
}

#[test]
fn a_label_that_is_half_written_when_it_is_looked_at_costs_no_leg() {
    let rig = Rig::new();
    rig.records.half_written.store(true, Relaxed);
    rig.mirror().check_labels();
    assert!(!rig.records.half_written.load(Relaxed), "nobody looked");
    assert_eq!(rig.states(), [LegState::Current; 2]);
    rig.write_over("b", 2);
    rig.mirror().check_labels();
    assert_eq!(rig.states(), [LegState::Current, LegState::Failed]);
}

#[test]
fn a_rebuild_leaves_the_legs_alone_that_are_current() {
    let rig = Rig::of(&["a", "b"]);
    rig.write(AT, &[1; 4096]);
    rig.damage("a", AT.get(), 9);
    let device = Arc::new(Device::create(&rig.path("c"), START + LEN).unwrap());
    let slot = rig.mirror().add(&device, [3; 16], true).unwrap().unwrap();
    let done = rig
        .mirror()
        .rebuild(slot, 1, &mut Vec::new(), |_| ControlFlow::Continue(()));
    assert_eq!(done, Ok(true));
    let held = ["a", "b", "c"].map(|name| rig.bytes(name)[8192]);
    assert_eq!(held, [9, 1, 9]);
}

#[test]
fn what_a_rebuild_took_from_a_leg_that_was_lost_meanwhile_does_not_count() {
    let rig = Rig::new();
    rig.write(AT, &[1; 4096]);
    let device = Arc::new(Device::create(&rig.path("c"), START + LEN).unwrap());
    let slot = rig.mirror().add(&device, [3; 16], true).unwrap().unwrap();
    let mut rounds = 0;
    rig.damage("a", AT.get(), 9);
    let done = rig.mirror().rebuild(slot, 1, &mut Vec::new(), |progress| {
        rounds += 1;
        if progress.done == progress.total {
            rig.write_over("a", 1);
        }
        ControlFlow::Continue(())
    });
    assert_eq!((done, rounds), (Ok(true), 2 * (LEN >> 20)));
    assert!(rig.bytes("b") == rig.bytes("c"));
    let states = [LegState::Failed, LegState::Current, LegState::Current];
    assert_eq!(rig.states(), states);
}

#[test]
fn what_was_mapped_reaches_the_other_leg_when_it_is_flushed() {
    let rig = Rig::new();
    rig.write(AT, &[1; 4096]);
    rig.media.bring(AT, 4096);
    rig.damage("a", AT.get(), 5);
    let flushed = rig.media.flush_as(AT, 4096, StoreKind::Data);
    rig.media.fence(flushed).unwrap();
    assert_eq!(rig.bytes("b")[8192], 5);
}

#[test]
fn a_new_leg_gets_all_while_others_store() {
    let rig = Rig::new();
    let bytes: Vec<u8> = (0..LEN as u32 / 2).map(|n| (n % 251) as u8).collect();
    rig.write(DeviceOffset(START), &bytes);
    rig.truncate("a");
    rig.write(AT, b"degraded");
    let device = Arc::new(Device::create(&rig.path("c"), START + LEN).unwrap());
    let slot = rig.mirror().add(&device, [3; 16], true).unwrap().unwrap();
    let mut rounds = 0;
    let done = rig.mirror().rebuild(slot, 1, &mut Vec::new(), |progress| {
        rounds += 1;
        let at = DeviceOffset(START + progress.done - (1 << 20) + 5);
        rig.write(at, &[rounds; 3]);
        ControlFlow::Continue(())
    });
    assert_eq!(done, Ok(true));
    assert_eq!(u64::from(rounds), LEN >> 20);
    assert!(rig.bytes("b") == rig.bytes("c"));
    assert_eq!(
        rig.states(),
        [LegState::Failed, LegState::Current, LegState::Current]
    );
    // It does for the other one.
    rig.truncate("b");
    let mut found = [0; 8];
    rig.media.read(AT, &mut found);
    assert_eq!(&found, b"degraded");
    rig.write(AT, b"alone");
}

#[test]
fn a_new_leg_gets_all_by_several_threads_while_others_store() {
    let rig = Rig::new();
    let bytes: Vec<u8> = (0..LEN as u32).map(|n| (n % 251) as u8).collect();
    rig.write(DeviceOffset(START), &bytes);
    let device = Arc::new(Device::create(&rig.path("c"), START + LEN).unwrap());
    let slot = rig.mirror().add(&device, [3; 16], true).unwrap().unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 1..=2u8 {
            let (rig, is_over) = (&rig, &is_over);
            scope.spawn(move || {
                for round in 0.. {
                    let at = START + (round * 4093 * u64::from(thread)) % (LEN - 9000);
                    rig.write(DeviceOffset(at), &[thread; 5000]);
                    if is_over.load(Relaxed) {
                        return;
                    }
                }
            });
        }
        let done = rig
            .mirror()
            .rebuild(slot, 3, &mut Vec::new(), |_| ControlFlow::Continue(()));
        is_over.store(true, Relaxed);
        assert_eq!(done, Ok(true));
    });
    assert_eq!(rig.states()[2], LegState::Current);
    assert!(rig.bytes("a") == rig.bytes("c") && rig.bytes("b") == rig.bytes("c"));
}

#[test]
fn a_device_that_was_prepared_and_no_more_lacks_everything() {
    let rig = Rig::new();
    let device = Arc::new(Device::create(&rig.path("c"), START + LEN).unwrap());
    assert!(rig.mirror().prepare(&device, [3; 16]).unwrap());
    // Here a label tells of it, and the process dies.
    let front = Media::map(&device, DeviceOffset(0), START, None).unwrap();
    let all = super::shared::regions(START..START + LEN);
    let word = front.load_u64(DeviceOffset(super::layout::BITMAP_AT));
    assert_eq!(word, all.map(|region| 1 << region).sum::<u64>());
}

#[test]
fn a_rebuild_that_was_broken_off_goes_on() {
    let rig = Rig::new();
    let bytes: Vec<u8> = (0..LEN as u32).map(|n| (n % 251) as u8).collect();
    rig.write(DeviceOffset(START), &bytes);
    rig.truncate("b");
    rig.write(AT, b"degraded");
    let device = Arc::new(Device::create(&rig.path("c"), START + LEN).unwrap());
    let slot = rig.mirror().add(&device, [3; 16], true).unwrap().unwrap();
    let first = rig
        .mirror()
        .rebuild(slot, 1, &mut Vec::new(), |_| ControlFlow::Break(()));
    assert_eq!(first, Ok(false));
    let mut total = 0;
    let second = rig.mirror().rebuild(slot, 1, &mut Vec::new(), |progress| {
        total = progress.total;
        ControlFlow::Continue(())
    });
    assert_eq!(second, Ok(true));
    assert_eq!(total, LEN - (1 << 20));
    assert!(rig.bytes("a") == rig.bytes("c"));
}

#[test]
fn threads_that_store_to_one_place_leave_the_legs_equal() {
    let rig = Rig::new();
    std::thread::scope(|scope| {
        for thread in 1..=4u8 {
            let rig = &rig;
            scope.spawn(move || {
                for _ in 0..500 {
                    rig.write(AT.add(u64::from(thread)), &[thread; 3000]);
                    let _ = rig.media.store_u64(AT, thread.into(), StoreKind::Metadata);
                }
            });
        }
    });
    assert!(rig.bytes("a") == rig.bytes("b"));
}

#[test]
fn who_dies_in_the_middle_of_a_store_leaves_the_legs_equal() {
    let rig = Rig::new();
    rig.write(AT, &[1; 4096]);
    // SAFETY: the child makes stores and dies.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            for byte in 0..=255 {
                let _ = rig.media.write(AT, &[byte; 4096], StoreKind::Data);
            }
        }
    }
    std::thread::sleep(std::time::Duration::from_millis(20));
    // SAFETY: the child is ours.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    // The next one who stores there finishes what was begun.
    rig.write(AT.add(4000), b"x");
    assert!(rig.bytes("a") == rig.bytes("b"));
}

#[test]
fn behind_a_crash_legs_get_what_is_judged_to_be_right() {
    for (right, expected) in [(None, *b"xoth"), (Some(0), *b"xoth"), (Some(1), *b"both")] {
        let rig = Rig::new();
        rig.write(AT, b"both");
        rig.damage("a", AT.get(), b'x');
        let Rig { folder, names, .. } = rig;
        let mut asked = Vec::new();
        let rig = Rig::judged(folder, names, &mut |at, copies| {
            let differing = (AT.get() - at) as usize;
            asked.push((at, copies[0][differing], copies[1][differing]));
            right
        });
        assert_eq!(asked, [(AT.get() / UNIT_SIZE * UNIT_SIZE, b'x', b'b')]);
        let at = (AT.get() - START) as usize;
        assert_eq!(rig.bytes("a")[at..at + 4], expected);
        assert_eq!(rig.bytes("b")[at..at + 4], expected);
    }
}
