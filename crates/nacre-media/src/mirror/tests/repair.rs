//! What a reader repairs who knows what lies there.

use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use super::{AT, Rig, START};
use crate::compare::{Evidence, Finding};
use crate::mirror::{LegState, Mirror};
use nacre_types::{DeviceOffset, UNIT_SIZE, crc32c};

const UNIT: usize = UNIT_SIZE as usize;

/// A unit that tells by itself whether it is right.
fn unit(number: u32) -> Vec<u8> {
    let mut bytes = vec![number as u8; UNIT - 4];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    let crc = crc32c(&bytes);
    bytes.extend(crc.to_le_bytes());
    bytes
}

fn is_right(bytes: &[u8]) -> bool {
    let (bytes, crc) = bytes.split_at(bytes.len() - 4);
    crc == crc32c(bytes).to_le_bytes()
}

fn repair_unit(mirror: &Mirror, at: u64) -> bool {
    mirror.repair(at..at + UNIT_SIZE, &mut |_, copies| {
        copies.iter().position(|copy| is_right(copy))
    })
}

fn held(rig: &Rig, name: &str, at: u64) -> Vec<u8> {
    rig.bytes(name)[(at - START) as usize..][..UNIT].to_vec()
}

#[test]
fn what_one_leg_has_right_comes_to_the_other_and_is_told() {
    for (leg, name) in [(1, "a"), (2, "b")] {
        let rig = Rig::new();
        let (at, mirror) = (AT.get(), rig.mirror());
        rig.write(AT, &unit(5));
        rig.damage(name, at + 100, 77);
        assert!(repair_unit(mirror, at));
        assert!(
            ["a", "b"]
                .iter()
                .all(|name| held(&rig, name, at) == unit(5))
        );
        assert_eq!(mirror.counts().repaired, 1);
        let told = Finding {
            range: at..at + UNIT_SIZE,
            evidence: Some(Evidence::Contents),
            wrong: vec![[leg; 16]],
        };
        assert_eq!(mirror.take_repaired(), Some(told));
        assert_eq!(mirror.take_repaired(), None);
        assert_eq!(mirror.take_suspect(), Some(mirror.division().of(at)));
        assert!(!repair_unit(mirror, at), "there is nothing left to do");
    }
}

#[test]
fn what_no_leg_has_right_stays_as_it_is() {
    let rig = Rig::new();
    rig.write(AT, &unit(5));
    rig.damage("a", AT.get() + 100, 77);
    rig.damage("b", AT.get() + 200, 77);
    let before = ["a", "b"].map(|name| rig.bytes(name));
    assert!(!repair_unit(rig.mirror(), AT.get()));
    assert!(["a", "b"].map(|name| rig.bytes(name)) == before);
    assert_eq!(rig.mirror().take_repaired(), None);
}

#[test]
fn legs_that_agree_are_not_judged() {
    let rig = Rig::new();
    rig.write(AT, &[1; UNIT]);
    let range = AT.get()..AT.get() + UNIT_SIZE;
    let done = rig.mirror().repair(range, &mut |_, _| panic!("judged"));
    assert!(!done);
}

#[test]
fn a_part_is_repaired_and_nothing_beside_it() {
    let rig = Rig::new();
    rig.write(AT, &unit(5));
    let at = AT.get();
    rig.damage("a", at + 16, 77);
    rig.damage("a", at + 24, 77);
    let word = at + 16..at + 24;
    assert!(rig.mirror().repair(word, &mut |_, _| Some(1)));
    let a = held(&rig, "a", at);
    assert!(a[16] == 5 && a[24] == 77);
}

#[test]
fn a_value_of_many_units_at_any_place_is_repaired() {
    let rig = Rig::new();
    // Past the end of a run, and of the table of locks.
    let at = START + (4 << 20) - 5 * UNIT_SIZE;
    let bytes: Vec<u8> = (0..17 * UNIT).map(|n| (n % 249) as u8).collect();
    rig.write(DeviceOffset(at), &bytes);
    rig.damage("a", at + 9 * UNIT_SIZE, 255);
    rig.damage("a", at + 16 * UNIT_SIZE, 255);
    let range = at..at + 17 * UNIT_SIZE;
    let judge = &mut |_: u64, copies: &[&[u8]]| copies.iter().position(|copy| *copy == bytes);
    assert!(rig.mirror().repair(range, judge));
    assert_eq!(rig.bytes("a"), rig.bytes("b"));
    assert_eq!(
        rig.bytes("a")[(at - START) as usize..][..bytes.len()],
        bytes
    );
}

#[test]
fn a_leg_that_fails_meanwhile_is_left_and_the_other_one_stays_right() {
    let rig = Rig::new();
    rig.write(AT, &unit(5));
    rig.truncate("a");
    repair_unit(rig.mirror(), AT.get());
    assert_eq!(held(&rig, "b", AT.get()), unit(5));
    assert_eq!(rig.states(), [LegState::Failed, LegState::Current]);
}

/// What is stored while somebody repairs is there afterwards, on both legs: nothing is taken back.
#[test]
fn nothing_that_is_stored_meanwhile_is_taken_back() {
    const WRITERS: u32 = 3;
    const ROUNDS: u32 = 600;
    let rig = Rig::new();
    let place = |writer: u32| AT.get() + u64::from(writer) * UNIT_SIZE;
    (0..WRITERS).for_each(|writer| rig.write(DeviceOffset(place(writer)), &unit(0)));
    let a = std::fs::OpenOptions::new()
        .write(true)
        .open(rig.path("a"))
        .unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let rig = &rig;
                scope.spawn(move || {
                    for round in 1..=ROUNDS {
                        rig.write(DeviceOffset(place(writer)), &unit(round));
                    }
                })
            })
            .collect();
        for reader in 0..2_u64 {
            let (rig, a, done) = (&rig, &a, &done);
            scope.spawn(move || {
                let mut turn = reader;
                while !done.load(Relaxed) {
                    let at = place(turn as u32 % WRITERS);
                    a.write_all_at(&[255; 8], at + 64 * (turn % 60)).unwrap();
                    repair_unit(rig.mirror(), at);
                    turn += 1;
                }
            });
        }
        writers
            .into_iter()
            .for_each(|writer| writer.join().unwrap());
        done.store(true, Relaxed);
    });
    for writer in 0..WRITERS {
        repair_unit(rig.mirror(), place(writer));
        for name in ["a", "b"] {
            let found = held(&rig, name, place(writer));
            assert!(found == unit(ROUNDS), "{name}, writer {writer}");
        }
    }
}

/// Who stores while legs are judged stores behind the repair.
#[test]
fn a_store_waits_for_what_is_being_repaired() {
    let rig = Rig::new();
    rig.write(AT, &unit(5));
    rig.damage("a", AT.get() + 100, 77);
    let (begun, wait) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let range = AT.get()..AT.get() + UNIT_SIZE;
        let done = rig.mirror().repair(range, &mut |_, _| {
            let (begun, rig) = (begun.clone(), &rig);
            scope.spawn(move || {
                begun.send(()).unwrap();
                rig.write(AT, &unit(9));
            });
            wait.recv().unwrap();
            // Who does not wait is done by then.
            std::thread::sleep(std::time::Duration::from_millis(30));
            Some(1)
        });
        assert!(done);
    });
    assert!(
        ["a", "b"]
            .iter()
            .all(|name| held(&rig, name, AT.get()) == unit(9))
    );
}

/// Who repairs and dies leaves the other leg as it was: what is on the one that is read, half
/// repaired, is not taken for a store that is to be finished.
#[test]
fn who_dies_in_the_middle_of_a_repair_spoils_nothing() {
    let rig = Rig::new();
    rig.write(AT, &unit(5));
    let at = AT.get();
    // SAFETY: the child takes locks and dies.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let range = at..at + UNIT_SIZE;
        let _ = rig.mirror().repair(range, &mut |_, _| None);
        rig.damage("a", at + 100, 77);
        let range = at..at + UNIT_SIZE;
        rig.mirror().repair(range, &mut |_, _| {
            // SAFETY: it is this process, which holds the locks now.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            None
        });
        // SAFETY: it ends without running what is its parent's.
        unsafe { libc::_exit(1) };
    }
    let mut status = 0;
    // SAFETY: the child is this process's.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFSIGNALED(status));
    assert!(repair_unit(rig.mirror(), at));
    assert!(
        ["a", "b"]
            .iter()
            .all(|name| held(&rig, name, at) == unit(5))
    );
}
