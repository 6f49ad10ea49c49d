//! What a rebuild copies is compared with what was sealed.

use super::scrub::{QUIET, finding, scrub, sealed_of};
use super::{AT, LEN, Rig, START};
use crate::compare::{Evidence, Finding};
use crate::device::Device;
use crate::kind::Access;
use crate::mirror::LegState;
use crate::mirror::layout::REGION;
use nacre_types::DeviceOffset;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Rebuilds a device, which may be there, as one more leg; answers what was found.
fn rebuild(rig: &Rig, name: &str) -> Vec<Finding> {
    let path = rig.path(name);
    let device = match path.exists() {
        true => Device::open(&path, Access::ReadWrite),
        false => Device::create(&path, START + LEN),
    };
    let device = Arc::new(device.unwrap());
    let slot = rig.mirror().add(&device, [9; 16], true).unwrap().unwrap();
    let mut found = Vec::new();
    let told = |_| ControlFlow::Continue(());
    let done = rig.mirror().rebuild(slot, 2, &mut found, told);
    assert_eq!(done, Ok(true));
    assert_eq!(rig.states()[slot], LegState::Current);
    found
}

/// What all legs hold of the data is this.
fn all_hold(rig: &Rig, names: &[&str], data: &[u8]) -> bool {
    let holds = |name: &&str| rig.bytes(name) == data;
    names.iter().all(holds)
}

#[test]
fn damage_of_the_leg_that_is_read_is_not_copied() {
    let names: [&'static [&'static str]; 2] = [&["a", "b"], &["a", "b", "d"]];
    for names in names {
        let rig = sealed_of(names);
        let before = rig.bytes("a");
        rig.damage("a", QUIET + 5000, 9);
        let repaired = finding(QUIET + 5000, Some(Evidence::Seal), &[1]);
        assert_eq!(rebuild(&rig, "c"), [repaired]);
        assert!(all_hold(&rig, names, &before) && all_hold(&rig, &["c"], &before));
        assert!(scrub(&rig).found.is_empty());
    }
}

#[test]
fn damage_in_different_units_of_the_legs_is_put_together() {
    let rig = sealed_of(&["a", "b"]);
    let before = rig.bytes("a");
    rig.damage("a", QUIET, 9);
    rig.damage("b", QUIET + 4096, 9);
    assert_eq!(rebuild(&rig, "c").len(), 2);
    assert!(all_hold(&rig, &["a", "b", "c"], &before));
}

#[test]
fn what_no_leg_has_is_told_and_the_new_one_does_not_vouch_for_it() {
    let rig = sealed_of(&["a", "b"]);
    rig.damage("a", QUIET + 5000, 9);
    rig.truncate("b");
    rig.write(AT, b"degraded");
    let span = rig.mirror().division().of(QUIET);
    let lost = Finding {
        range: rig.mirror().division().bytes(span),
        evidence: None,
        wrong: vec![[1; 16]],
    };
    assert_eq!(rebuild(&rig, "c"), [lost]);
    assert!(rig.bytes("a") == rig.bytes("c"));
    // Now the leg goes that alone had what was sealed there.
    rig.truncate("a");
    rig.write(AT, b"alone");
    let told = scrub(&rig).found;
    assert_eq!((told.len(), told[0].evidence), (1, None));
    assert_eq!(told[0].range, rig.mirror().division().bytes(span));
}

#[test]
fn a_leg_that_was_given_up_helps_where_it_alone_is_right() {
    let rig = sealed_of(&["a", "b"]);
    let before = rig.bytes("a");
    rig.mirror().lose(1, LegState::Failed);
    rig.damage("a", QUIET + 5000, 9);
    let repaired = finding(QUIET + 5000, Some(Evidence::Seal), &[1]);
    assert_eq!(rebuild(&rig, "b"), [repaired]);
    assert!(all_hold(&rig, &["a", "b"], &before));
}

#[test]
fn a_leg_that_was_rebuilt_has_the_seals_of_what_nobody_stores_to() {
    let rig = sealed_of(&["a", "b"]);
    rig.write(DeviceOffset(QUIET), b"later");
    assert!(rebuild(&rig, "c").is_empty());
    let mirror = rig.mirror();
    let leg = mirror.leg(2).unwrap();
    let stored_to = mirror.division().of(QUIET);
    for span in mirror.division().all() {
        let has_it = mirror.seal_of(span, std::iter::once(leg)).is_some();
        assert_eq!(has_it, span != stored_to, "{span}");
    }
    // What is stored from now on breaks them, also if only the new one is left.
    let other = QUIET + REGION;
    rig.write(DeviceOffset(other), b"later");
    rig.truncate("a");
    rig.write(AT, b"degraded");
    rig.truncate("b");
    rig.write(AT, b"alone");
    assert!(scrub(&rig).found.is_empty());
}

#[test]
fn what_is_stored_meanwhile_is_no_damage() {
    let rig = sealed_of(&["a", "b"]);
    let device = Arc::new(Device::create(&rig.path("c"), START + LEN).unwrap());
    let slot = rig.mirror().add(&device, [9; 16], true).unwrap().unwrap();
    let mut found = Vec::new();
    rig.beside_writers(2, |_| {
        let told = |_| ControlFlow::Continue(());
        let done = rig.mirror().rebuild(slot, 2, &mut found, told);
        assert_eq!(done, Ok(true));
    });
    assert!(found.is_empty(), "{found:?}");
    assert!(rig.bytes("a") == rig.bytes("c"));
    assert!(scrub(&rig).found.is_empty());
}

#[test]
fn one_that_is_truncated_while_it_is_rebuilt_does_not_become_current() {
    let rig = sealed_of(&["a", "b"]);
    let device = Arc::new(Device::create(&rig.path("c"), START + LEN).unwrap());
    let slot = rig.mirror().add(&device, [9; 16], true).unwrap().unwrap();
    rig.truncate("c");
    let told = |_| ControlFlow::Continue(());
    let done = rig.mirror().rebuild(slot, 2, &mut Vec::new(), told);
    assert_ne!(done, Ok(true));
    assert_ne!(rig.states()[slot], LegState::Current);
    assert_eq!(rig.states()[..2], [LegState::Current; 2]);
}
