//! Bytes that changed behind the mirror's back.

use super::{AT, LEN, Rig, START};
use crate::compare::{Evidence, Finding, Rules, Scrubbed};
use crate::device::Device;
use crate::kind::Access;
use crate::media::Media;
use crate::mirror::LegState;
use crate::mirror::layout::REGION;
use crate::mirror::sum::Sum;
use crate::token::Unfenced;
use nacre_types::{DeviceOffset, crc32c};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// Far behind what a store near the start sets bits of.
pub(super) const QUIET: u64 = START + (12 << 20);

fn scrub_with(rig: &Rig, rules: &mut Rules<'_>) -> Scrubbed {
    let mirror = rig.mirror();
    let mut all = Scrubbed::default();
    for span in mirror.division().all() {
        let one = mirror.scrub(span, rules).unwrap();
        all.found.extend(one.found);
        all.sealed += one.sealed;
        all.mapped += one.mapped;
    }
    all
}

pub(super) fn scrub(rig: &Rig) -> Scrubbed {
    let mut judge = |_: u64, _: &[&[u8]]| None;
    let rules = &mut Rules {
        judge: &mut judge,
        by_number: true,
        trusted: None,
    };
    scrub_with(rig, rules)
}

/// A rig with data everywhere that nobody stores to any more.
pub(super) fn quiet(names: &'static [&'static str]) -> Rig {
    let rig = Rig::of(names);
    let bytes: Vec<u8> = (0..LEN as u32).map(|n| (n % 251) as u8).collect();
    rig.write(DeviceOffset(START), &bytes);
    rig.mirror().close().unwrap();
    rig.reopened()
}

/// A rig whose data has been sealed.
pub(super) fn sealed() -> Rig {
    sealed_of(&["a", "b"])
}

pub(super) fn sealed_of(names: &'static [&'static str]) -> Rig {
    let rig = quiet(names);
    assert_eq!(scrub(&rig), all_sealed());
    rig
}

fn all_sealed() -> Scrubbed {
    Scrubbed {
        sealed: LEN,
        ..Scrubbed::default()
    }
}

pub(super) fn finding(at: u64, evidence: Option<Evidence>, wrong: &[u8]) -> Finding {
    let at = at / 4096 * 4096;
    Finding {
        range: at..at + 4096,
        evidence,
        wrong: wrong.iter().map(|id| [*id; 16]).collect(),
    }
}

fn all_equal(rig: &Rig) -> bool {
    rig.names
        .windows(2)
        .all(|pair| rig.bytes(pair[0]) == rig.bytes(pair[1]))
}

/// Whether damage to a sealed leg is found and repaired by what is given as a scrub.
fn repairs(name: &str, scrub: impl Fn(&Rig) -> Scrubbed) -> bool {
    let rig = sealed();
    let before = rig.bytes("a");
    rig.damage(name, QUIET + 5000, 9);
    let scrubbed = scrub(&rig);
    let wrong = [if name == "a" { 1 } else { 2 }];
    scrubbed.found == [finding(QUIET + 5000, Some(Evidence::Seal), &wrong)]
        && all_equal(&rig)
        && rig.bytes("a") == before
}

#[test]
fn a_flipped_byte_of_either_leg_is_repaired_by_the_seal() {
    assert!(repairs("a", scrub), "the leg that is read");
    assert!(repairs("b", scrub), "the other leg");
}

#[test]
fn canary_a_scrub_that_does_not_compare_is_noticed() {
    let blind = |rig: &Rig| {
        for span in rig.mirror().division().all() {
            rig.mirror().seal_of(span, std::iter::empty());
        }
        all_sealed()
    };
    assert!(!repairs("a", blind) && !repairs("b", blind));
}

/// The checksum of a region around [`QUIET`] of what both legs hold, in two parts. `None`: they
/// differ.
fn summed(rig: &Rig, mut sum: Sum) -> Option<u32> {
    let legs: Vec<&Media> = rig.mirror().mapped().map(|(_, leg)| leg).collect();
    let at = QUIET / REGION * REGION;
    let parts = [(at, 4096 + 64), (at + 4096 + 64, REGION - 4096 - 64)];
    let mut add = |&(at, len): &(u64, u64)| sum.add(DeviceOffset(at), len, [legs[0], legs[1]]);
    parts.iter().all(&mut add).then(|| sum.value())
}

#[test]
fn a_processor_that_cannot_fold_comes_to_the_same_sums() {
    let rig = sealed();
    let at = (QUIET / REGION * REGION - START) as usize;
    let expected = crc32c(&rig.bytes("a")[at..at + REGION as usize]);
    assert_eq!(summed(&rig, Sum::of(REGION)), Some(expected));
    assert_eq!(summed(&rig, Sum::Plain(0)), Some(expected));
    for name in ["a", "b"] {
        let rig = sealed();
        rig.damage(name, QUIET + 70_001, 9);
        assert_eq!(summed(&rig, Sum::of(REGION)), None, "{name}");
        assert_eq!(summed(&rig, Sum::Plain(0)), None, "{name}");
        for sum in [Sum::of(REGION), Sum::Plain(0)] {
            let rig = sealed();
            rig.truncate(name);
            summed(&rig, sum);
            let is_lost = |(_, leg): (usize, &Media)| leg.watched.is_lost();
            let lost: Vec<bool> = rig.mirror().mapped().map(is_lost).collect();
            assert_eq!(lost, [name == "a", name == "b"]);
        }
    }
}

#[test]
fn what_legs_agree_on_is_summed_up_whatever_its_length() {
    for names in [&["a"][..], &["a", "b"], &["a", "b", "c"]] {
        let rig = sealed_of(names);
        for len in [1, 8, 64, 200, 256, 4096, 4100, REGION] {
            let at = (QUIET - START) as usize;
            let expected = crc32c(&rig.bytes("a")[at..][..len as usize]);
            let agreed = || rig.mirror().agreed(QUIET..QUIET + len);
            assert_eq!(agreed(), Some(expected), "{names:?} {len}");
            for (name, at) in names[1..]
                .iter()
                .flat_map(|name| [(name, 0), (name, len - 1)])
            {
                rig.damage(
                    name,
                    QUIET + at,
                    !rig.bytes(name)[(QUIET + at - START) as usize],
                );
                assert_eq!(agreed(), None, "{name} at {at} of {len}");
                rig.damage(
                    name,
                    QUIET + at,
                    rig.bytes("a")[(QUIET + at - START) as usize],
                );
            }
        }
    }
}

#[test]
fn a_leg_that_is_truncated_is_left_by_who_compares() {
    for name in ["a", "b"] {
        let rig = sealed();
        let before = rig.bytes("a");
        rig.truncate(name);
        assert_eq!(scrub(&rig).found, [], "{name}");
        let (lost, other) = match name {
            "a" => (0, "b"),
            _ => (1, "a"),
        };
        assert_eq!(rig.states()[lost], LegState::Failed, "{name}");
        assert_eq!(rig.states()[1 - lost], LegState::Current, "{name}");
        assert!(rig.bytes(other) == before, "{name}");
    }
}

#[test]
fn both_legs_damaged_in_one_span_are_put_together() {
    let rig = sealed();
    let before = rig.bytes("a");
    rig.damage("a", QUIET, 9);
    rig.damage("b", QUIET + 4096, 9);
    rig.damage("b", QUIET + 100_000, 9);
    let scrubbed = scrub(&rig);
    assert_eq!(scrubbed.found.len(), 3);
    assert!(all_equal(&rig) && rig.bytes("b") == before);
    assert_eq!(scrub(&rig), all_sealed());
}

#[test]
fn without_a_seal_two_legs_that_differ_are_told_and_left() {
    let rig = quiet(&["a", "b"]);
    rig.damage("b", QUIET, 9);
    let scrubbed = scrub(&rig);
    assert_eq!(scrubbed.found, [finding(QUIET, None, &[])]);
    assert!(!all_equal(&rig));
    let mut judge = |_: u64, _: &[&[u8]]| None;
    let rules = &mut Rules {
        judge: &mut judge,
        by_number: true,
        trusted: Some([1; 16]),
    };
    let asked = scrub_with(&rig, rules);
    assert_eq!(asked.found, [finding(QUIET, Some(Evidence::Asked), &[2])]);
    assert!(all_equal(&rig));
    assert_eq!(scrub(&rig), all_sealed());
}

#[test]
fn of_two_legs_that_differ_the_one_that_is_asked_for_is_taken() {
    let rig = quiet(&["a", "b"]);
    let before = rig.bytes("b");
    rig.damage("a", QUIET, 9);
    let mut judge = |_: u64, _: &[&[u8]]| None;
    let rules = &mut Rules {
        judge: &mut judge,
        by_number: true,
        trusted: Some([2; 16]),
    };
    let asked = scrub_with(&rig, rules);
    assert_eq!(asked.found, [finding(QUIET, Some(Evidence::Asked), &[1])]);
    assert!(all_equal(&rig) && rig.bytes("a") == before);
}

#[test]
fn two_of_three_legs_are_right() {
    for (number, name) in (1..).zip(["a", "b", "c"]) {
        let rig = quiet(&["a", "b", "c"]);
        let before = rig.bytes("b");
        rig.damage(name, QUIET, before[QUIET as usize - START as usize] ^ 1);
        let scrubbed = scrub(&rig);
        let majority = finding(QUIET, Some(Evidence::Majority), &[number]);
        assert_eq!(scrubbed.found, [majority]);
        assert!(all_equal(&rig));
    }
}

#[test]
fn contents_that_tell_for_themselves_decide() {
    let rig = quiet(&["a", "b"]);
    rig.damage("a", QUIET, 9);
    let mut judge = |at: u64, copies: &[&[u8]]| {
        assert_eq!((at, copies.len()), (QUIET, 2));
        copies.iter().position(|copy| copy[0] != 9)
    };
    let rules = &mut Rules {
        judge: &mut judge,
        by_number: true,
        trusted: None,
    };
    let scrubbed = scrub_with(&rig, rules);
    let wrong = finding(QUIET, Some(Evidence::Contents), &[1]);
    assert_eq!(scrubbed.found, [wrong]);
    assert!(all_equal(&rig));
}

#[test]
fn what_all_legs_have_lost_is_told_and_sealed_only_when_asked() {
    let rig = sealed();
    for name in ["a", "b"] {
        rig.damage(name, QUIET, 9);
    }
    for _ in 0..2 {
        let scrubbed = scrub(&rig);
        let [lost] = &scrubbed.found[..] else {
            panic!("{:?}", scrubbed.found);
        };
        assert_eq!((lost.evidence, lost.range.start), (None, QUIET));
        assert_eq!(lost.wrong, [[1; 16], [2; 16]]);
    }
    let mut judge = |_: u64, _: &[&[u8]]| None;
    let rules = &mut Rules {
        judge: &mut judge,
        by_number: true,
        trusted: Some([1; 16]),
    };
    assert_eq!(scrub_with(&rig, rules).found.len(), 1);
    assert_eq!(scrub(&rig), all_sealed());
}

#[test]
fn a_store_breaks_the_seal_for_good() {
    let rig = sealed();
    rig.write(DeviceOffset(QUIET), b"new");
    // Damage where somebody stored since: nothing tells which leg is right.
    rig.damage("b", QUIET, 9);
    assert_eq!(scrub(&rig).found, [finding(QUIET, None, &[])]);
    rig.damage("b", QUIET, b'n');
    // After a crash, and after a clean end, the old seal is gone; a new one is made.
    let rig = rig.reopened();
    assert_eq!(scrub(&rig), all_sealed());
    rig.write(DeviceOffset(QUIET), b"newer");
    rig.mirror().close().unwrap();
    let rig = rig.reopened();
    assert_eq!(scrub(&rig), all_sealed());
    let mut found = [0; 5];
    rig.media.read(DeviceOffset(QUIET), &mut found);
    assert_eq!(&found, b"newer");
}

#[test]
fn what_was_stored_in_this_session_is_sealed_and_repaired_in_it() {
    let rig = quiet(&["a", "b"]);
    rig.write(DeviceOffset(QUIET), b"new");
    assert_eq!(scrub(&rig), all_sealed());
    rig.damage("a", QUIET, 9);
    rig.write(DeviceOffset(QUIET - (1 << 20)), b"a neighbour's");
    let right = finding(QUIET, Some(Evidence::Seal), &[1]);
    assert_eq!(scrub(&rig).found, [right]);
    // A store after the seal has its bit again, and a crash levels there.
    rig.write(DeviceOffset(QUIET), b"newer");
    rig.damage("b", QUIET + 4, 9);
    let rig = rig.reopened();
    assert!(all_equal(&rig));
    assert_eq!(rig.mirror().counts().repaired, 1);
}

#[test]
fn what_a_leg_lacks_is_not_forgotten_by_a_scrub() {
    let rig = quiet(&["a", "b"]);
    rig.truncate("b");
    rig.write(DeviceOffset(QUIET), b"degraded");
    rig.media.fence(Unfenced::nothing()).unwrap();
    assert!(scrub(&rig).found.is_empty());
    let region = QUIET / REGION;
    let leg = rig.mirror().leg(0).unwrap();
    assert_ne!(leg.bits(region as usize / 64) >> (region % 64) & 1, 0);
}

#[test]
fn what_programs_store_through_mappings_is_left_alone() {
    let rig = quiet(&["a", "b"]);
    rig.media.bring(DeviceOffset(QUIET), 4096);
    rig.damage("a", QUIET, 9);
    let scrubbed = scrub(&rig);
    assert_eq!((scrubbed.found.len(), scrubbed.mapped), (0, 4096));
    assert!(!all_equal(&rig));
}

#[test]
fn a_leg_that_comes_back_brings_no_seals() {
    let rig = sealed();
    std::fs::copy(rig.path("a"), rig.path("c")).unwrap();
    // Nobody knows of the copy when its seal breaks.
    rig.write(DeviceOffset(QUIET), b"later");
    rig.mirror().close().unwrap();
    let rig = rig.reopened();
    rig.truncate("b");
    rig.write(AT, b"degraded");
    let opened = Device::open(&rig.path("c"), Access::ReadWrite).unwrap();
    let device = Arc::new(opened);
    let slot = rig.mirror().add(&device, [3; 16], true).unwrap().unwrap();
    rig.mirror()
        .rebuild(slot, 1, &mut Vec::new(), |_| ControlFlow::Continue(()))
        .unwrap();
    assert_eq!(rig.states()[2], LegState::Current);
    let scrubbed = scrub(&rig);
    assert!(scrubbed.found.is_empty(), "{:?}", scrubbed.found);
}

#[test]
fn a_leg_without_seals_gets_those_of_the_others() {
    let rig = sealed();
    let all = || rig.mirror().division().all();
    let leg = rig.mirror().leg(1).unwrap();
    leg.set_seals(all(), 0).unwrap();
    assert_eq!(scrub(&rig), all_sealed());
    let has_seal = |span| rig.mirror().seal_of(span, std::iter::once(leg)).is_some();
    assert!(all().all(has_seal));
}

#[test]
fn a_scrub_while_others_store_finds_nothing() {
    let rig = sealed();
    rig.beside_writers(3, |writers| {
        while !writers.iter().all(|writer| writer.is_finished()) {
            let scrubbed = scrub(&rig);
            assert!(scrubbed.found.is_empty(), "{:?}", scrubbed.found);
        }
    });
    assert!(all_equal(&rig));
    assert_eq!(scrub(&rig), all_sealed());
    rig.damage("b", QUIET, 9);
    assert_eq!(scrub(&rig).found.len(), 1);
    assert!(all_equal(&rig));
}

#[test]
fn a_store_that_waited_while_its_bit_was_taken_back_sets_it_again() {
    let rig = sealed();
    for round in 0..40u64 {
        rig.write(DeviceOffset(QUIET), b"before");
        let held = rig.mirror().lock(QUIET, 8);
        std::thread::scope(|scope| {
            scope.spawn(|| rig.write(DeviceOffset(QUIET), &round.to_le_bytes()));
            scope.spawn(|| assert!(scrub(&rig).found.is_empty()));
            // Both wait for the lock, mostly; who gets it first is left to chance.
            std::thread::sleep(Duration::from_millis(3));
            drop(held);
        });
        let scrubbed = scrub(&rig);
        assert!(scrubbed.found.is_empty(), "{:?}", scrubbed.found);
    }
}

#[test]
fn who_scrubs_by_himself_takes_turns() {
    let rig = Rig::new();
    let mirror = rig.mirror();
    assert!(!mirror.take_scrub(100, 150), "the first one waits, too");
    assert!(!mirror.take_scrub(149, 500));
    assert!(mirror.take_scrub(150, 250));
    assert!(!mirror.take_scrub(151, 500), "somebody is at it");
    mirror.keep_scrub(300);
    assert!(!mirror.take_scrub(299, 500), "and still is");
    assert!(mirror.take_scrub(300, 400));
}

/// What verifying the span of a place finds.
fn verify(rig: &Rig, at: u64) -> Scrubbed {
    let mirror = rig.mirror();
    mirror.verify(mirror.division().of(at)).unwrap()
}

#[test]
fn a_span_is_verified_by_its_seal_and_repaired() {
    let rig = sealed();
    let before = rig.bytes("a");
    assert_eq!(
        (verify(&rig, QUIET).sealed, verify(&rig, QUIET).found),
        (REGION, vec![])
    );
    for (number, name) in (1..).zip(["a", "b"]) {
        rig.damage(name, QUIET + 5000, 9);
        let verified = verify(&rig, QUIET);
        let by_seal = finding(QUIET + 5000, Some(Evidence::Seal), &[number]);
        assert_eq!((verified.sealed, verified.found), (REGION, vec![by_seal]));
        assert!(all_equal(&rig) && rig.bytes("a") == before);
    }
}

#[test]
fn what_no_leg_has_as_it_was_sealed_is_told_and_left() {
    let rig = sealed();
    rig.damage("a", QUIET, 9);
    rig.damage("b", QUIET, 7);
    let before = (rig.bytes("a"), rig.bytes("b"));
    for _ in 0..2 {
        let verified = verify(&rig, QUIET);
        assert_eq!((verified.sealed, verified.found.len()), (0, 1));
        assert_eq!(verified.found[0].evidence, None);
    }
    assert!((rig.bytes("a"), rig.bytes("b")) == before);
}

#[test]
fn verifying_seals_nothing_and_leaves_what_was_stored_to() {
    let rig = quiet(&["a", "b"]);
    assert_eq!(verify(&rig, QUIET), Scrubbed::default());
    assert_eq!(scrub(&rig), all_sealed());
    rig.write(DeviceOffset(QUIET), &[1; 100]);
    rig.damage("b", QUIET, 9);
    assert_eq!(verify(&rig, QUIET), Scrubbed::default());
    assert!(!all_equal(&rig));
}
