//! Reads from all legs: only of what is sealed, and never of what changed.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use nacre_types::{DeviceOffset, StoreKind};

use super::scrub::{QUIET, quiet, scrub, sealed};
use super::{AT, LEN, Rig, START};
use crate::device::Device;
use crate::error::CopyError;
use crate::mirror::layout::REGION;
use crate::mirror::reads::Choice;
use crate::mirror::{LegState, Mirror};
use crate::observer::Observer;
use crate::token::Unfenced;
use crate::user::UserBytesMut;

/// Bytes that were read of each leg, by its slot.
#[derive(Default)]
struct Traffic([AtomicU64; 4]);

impl Observer for Traffic {
    fn store(&self, _: u16, _: DeviceOffset, _: &[u8], _: StoreKind, _: bool) {}

    fn flush(&self, _: u16, _: DeviceOffset, _: u64) {}

    fn fence(&self, _: u16) {}

    fn wants_stores(&self) -> bool {
        false
    }

    fn read(&self, device: u16, _: DeviceOffset, len: u64) {
        self.0[usize::from(device)].fetch_add(len, Relaxed);
    }
}

impl Traffic {
    fn of(rig: &Rig) -> Arc<Self> {
        let traffic = Arc::new(Self::default());
        for (slot, leg) in rig.mirror().mapped() {
            leg.set_observer(slot as u16, Arc::clone(&traffic) as _);
        }
        traffic
    }

    /// What was read since it was asked last.
    fn take(&self) -> [u64; 4] {
        self.0.each_ref().map(|bytes| bytes.swap(0, Relaxed))
    }
}

fn read(rig: &Rig, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let to = UserBytesMut::from(&mut bytes[..]);
    rig.media.read_user(DeviceOffset(at), to).unwrap();
    bytes
}

/// Reads the spans around a place so often that they are summed up, if they are sealed.
fn warm(rig: &Rig, at: u64) {
    let first = at / REGION * REGION;
    for _ in 0..4 {
        read(rig, first, REGION as usize);
    }
}

/// What several threads read at a place: all the same.
fn read_by_threads(rig: &Rig, at: u64, len: usize) -> Vec<u8> {
    let all: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| (0..16).map(|_| read(rig, at, len)).collect::<Vec<_>>()))
            .collect();
        let read = threads.into_iter().map(|thread| thread.join().unwrap());
        read.flatten().collect()
    });
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
    all.into_iter().next().unwrap()
}

#[test]
fn what_is_sealed_is_read_from_all_legs_and_all_else_from_one() {
    let rig = quiet(&["a", "b"]);
    let traffic = Traffic::of(&rig);
    warm(&rig, QUIET);
    read_by_threads(&rig, QUIET, 4096);
    assert_eq!(traffic.take()[1], 0, "nothing is sealed");
    scrub(&rig);
    traffic.take();
    read_by_threads(&rig, QUIET, 4096);
    assert_eq!(traffic.take()[1], 0, "nobody has read much of it");
    warm(&rig, QUIET);
    traffic.take();
    read_by_threads(&rig, QUIET, 4096);
    let [a, b, ..] = traffic.take();
    assert!(a > 0 && b > 0 && a + b == 8 * 16 * 4096, "{a} {b}");
    read_by_threads(&rig, QUIET - REGION, 4096);
    assert_eq!(traffic.take()[1], 0, "another span");
    rig.write(DeviceOffset(QUIET), b"new");
    traffic.take();
    read_by_threads(&rig, QUIET, 4096);
    assert_eq!(traffic.take()[1], 0, "the seal is broken");
}

#[test]
fn threads_spread_evenly_over_four_legs() {
    let rig = quiet(&["a", "b", "c", "d"]);
    scrub(&rig);
    warm(&rig, QUIET);
    let traffic = Traffic::of(&rig);
    read_by_threads(&rig, QUIET, 4096);
    let read = traffic.take();
    assert!(read.iter().all(|&bytes| bytes > 0), "{read:?}");
}

#[test]
fn a_span_is_summed_up_once_on_each_leg() {
    let rig = sealed();
    let traffic = Traffic::of(&rig);
    warm(&rig, QUIET);
    for _ in 0..8 {
        read(&rig, QUIET / REGION * REGION, REGION as usize);
    }
    let [a, b, ..] = traffic.take();
    assert_eq!(a + b, (4 + 8 + 2) * REGION);
    // A scrub that seals something else leaves what is known.
    rig.write(AT, b"elsewhere");
    scrub(&rig);
    traffic.take();
    read(&rig, QUIET, 4096);
    let [a, b, ..] = traffic.take();
    assert_eq!(a + b, 4096);
}

#[test]
fn a_damaged_leg_is_never_believed_where_a_seal_tells() {
    for name in ["a", "b"] {
        let rig = sealed();
        let right = read(&rig, QUIET, 4096);
        rig.damage(name, QUIET + 5, !right[5]);
        warm(&rig, QUIET);
        assert_eq!(rig.mirror().take_suspect(), Some(QUIET / REGION));
        assert!(read_by_threads(&rig, QUIET, 4096) == right, "{name}");
        // All of the span is left, and other spans are not.
        let traffic = Traffic::of(&rig);
        read_by_threads(&rig, QUIET + 8192, 4096);
        assert_eq!(traffic.take()[usize::from(name == "b")], 0);
        assert_eq!(rig.mirror().take_suspect(), None, "told once");
        // Repaired, it is read again.
        assert_eq!(scrub(&rig).found.len(), 1);
        warm(&rig, QUIET);
        traffic.take();
        read_by_threads(&rig, QUIET, 4096);
        let [a, b, ..] = traffic.take();
        assert!(a > 0 && b > 0);
    }
}

#[test]
fn without_a_seal_what_is_read_is_what_it_was() {
    for name in ["a", "b"] {
        let rig = quiet(&["a", "b"]);
        rig.damage(name, QUIET, 9);
        warm(&rig, QUIET);
        let first = rig.bytes("a")[(QUIET - START) as usize];
        assert_eq!(read_by_threads(&rig, QUIET, 4096)[0], first);
        assert_eq!(rig.mirror().take_suspect(), None);
    }
}

#[test]
fn reads_over_several_spans_and_to_bad_pointers() {
    let rig = sealed();
    warm(&rig, QUIET);
    let len = 3 * REGION as usize;
    let at = QUIET - REGION - 100;
    let skip = (at - START) as usize;
    assert!(read(&rig, at, len) == rig.bytes("a")[skip..skip + len]);
    assert!(read(&rig, QUIET, 0).is_empty());
    // SAFETY: nothing is mapped at these addresses; the fault is caught.
    let bad = unsafe { UserBytesMut::from_raw(8 as *mut u8, 100) };
    let refused = rig.media.read_user(DeviceOffset(QUIET), bad);
    assert_eq!(refused.err(), Some(CopyError::UserFault));
    assert_eq!(rig.states(), [LegState::Current; 2]);
}

/// A choice of a leg other than the one that all read.
fn choice_of_other(mirror: &Mirror) -> Choice<'_> {
    // The thread after the next prefers another leg.
    mirror.set_share(0);
    let first = mirror.choose(QUIET, 4096).unwrap();
    if !std::ptr::eq(first.leg, mirror.reader()) {
        return first;
    }
    mirror.set_share(1);
    mirror.choose(QUIET, 4096).unwrap()
}

#[test]
fn a_store_behind_the_choice_is_seen_and_so_is_one_that_was_sealed_since() {
    let rig = sealed();
    warm(&rig, QUIET);
    let mirror = rig.mirror();
    let choice = choice_of_other(mirror);
    assert!(mirror.holds(&choice, QUIET, 4096));
    rig.write(DeviceOffset(QUIET), b"new");
    assert!(!mirror.holds(&choice, QUIET, 4096));
    // Now the bits are clear again: the epoch tells.
    scrub(&rig);
    assert!(!mirror.shared().intents.has(QUIET / REGION));
    assert!(!mirror.holds(&choice, QUIET, 4096));
    assert_eq!(read(&rig, QUIET, 3), b"new");
}

#[test]
fn what_programs_map_is_read_from_one_leg() {
    let rig = sealed();
    warm(&rig, QUIET);
    rig.media.bring(DeviceOffset(QUIET), 4096);
    // A program stores through its mapping of the leg that is read.
    rig.damage("a", QUIET, 5);
    assert_eq!(read_by_threads(&rig, QUIET, 1), [5]);
}

#[test]
fn a_leg_that_is_lost_or_new_is_read_as_it_may_be() {
    let rig = sealed();
    let right = read(&rig, QUIET, 4096);
    warm(&rig, QUIET);
    rig.truncate("b");
    assert!(read_by_threads(&rig, QUIET, 4096) == right);
    rig.media.fence(Unfenced::nothing()).unwrap();
    assert_eq!(rig.states()[1], LegState::Failed);
    warm(&rig, QUIET);
    assert!(read_by_threads(&rig, QUIET, 4096) == right);
    let device = Arc::new(Device::create(&rig.path("c"), START + LEN).unwrap());
    let slot = rig.mirror().add(&device, [3; 16], true).unwrap().unwrap();
    let traffic = Traffic::of(&rig);
    let told = |_| {
        warm(&rig, QUIET);
        assert!(read_by_threads(&rig, QUIET, 4096) == right);
        ControlFlow::Continue(())
    };
    assert_eq!(
        rig.mirror().rebuild(slot, 1, &mut Vec::new(), told),
        Ok(true)
    );
    assert_eq!(traffic.take()[slot], 0, "nothing of it is known before");
    rig.mirror().forget_leg(1);
    for _ in 0..2 {
        scrub(&rig);
        warm(&rig, QUIET);
    }
    traffic.take();
    assert!(read_by_threads(&rig, QUIET, 4096) == right);
    let read = traffic.take();
    assert!(read[0] > 0 && read[slot] > 0, "{read:?}");
}

/// Reads a place of another leg while somebody stores there and scrubs, until so many stores are
/// over; `holds` is the second look. Whether each read that it let pass was of one store.
fn untorn_reads(holds: impl Fn(&Mirror, &Choice<'_>) -> bool + Sync, rounds: u64) -> bool {
    const BYTES: usize = 256 << 10;
    let rig = sealed();
    let done = AtomicU64::new(0);
    let torn = AtomicU64::new(0);
    let place = DeviceOffset(QUIET);
    let look = || {
        let mirror = rig.mirror();
        while done.load(SeqCst) < rounds && torn.load(SeqCst) == 0 {
            let Some(choice) = mirror.choose(QUIET, BYTES as u64) else {
                std::thread::yield_now();
                continue;
            };
            let before = done.load(SeqCst);
            let mut bytes = vec![0u8; BYTES];
            let to = UserBytesMut::from(&mut bytes[..]);
            choice.leg.read_user(place, to).unwrap();
            if holds(mirror, &choice) {
                let first = bytes[0];
                let is_known = [before, before + 1]
                    .iter()
                    .any(|&round| round as u8 == first);
                let is_one = is_known && bytes.iter().all(|&byte| byte == first);
                torn.fetch_add(u64::from(!is_one), SeqCst);
            }
        }
    };
    rig.write(place, &[0; BYTES]);
    scrub(&rig);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(look);
        }
        for round in 1..=rounds {
            warm(&rig, QUIET);
            if torn.load(SeqCst) > 0 {
                break;
            }
            rig.write(place, &vec![round as u8; BYTES]);
            done.store(round, SeqCst);
            let span = rig.mirror().division().of(QUIET);
            let mut judge = |_: u64, _: &[&[u8]]| None;
            let rules = &mut crate::compare::Rules {
                judge: &mut judge,
                by_number: true,
                trusted: None,
            };
            rig.mirror().scrub(span, rules).unwrap();
        }
        done.store(rounds, SeqCst);
    });
    torn.load(SeqCst) == 0
}

#[test]
fn a_read_beside_stores_is_of_one_of_them() {
    let holds = |mirror: &Mirror, choice: &Choice<'_>| mirror.holds(choice, QUIET, 256 << 10);
    assert!(untorn_reads(holds, 200));
}

#[test]
fn canary_without_the_second_look_reads_are_torn() {
    assert!(!untorn_reads(|_, _| true, 100_000));
}
