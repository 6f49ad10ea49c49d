//! What is asked for without waiting is told of once, and used only if it is what the disk has.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use nacre_types::UNIT_SIZE;

use super::REGION;
use super::ahead_tests::{NEW, open_direct, read_unit, set_disk};
use super::loads::{PLACE, PLACES};
use super::tests::{Stage, byte_of, stage_of};

const TURN: Duration = Duration::from_millis(20);

fn bytes(units: Range<u64>) -> Range<u64> {
    units.start * UNIT_SIZE..units.end * UNIT_SIZE
}

/// A stage, if the kernel reads by itself here.
fn stage_that_loads() -> Option<Stage> {
    let stage = stage_of(3 * REGION, Some(open_direct));
    if !stage.image.begin_load(bytes(0..1), 1) {
        return None;
    }
    assert_eq!(told(&stage, 1), BTreeSet::from([1]));
    assert!(stage.image.present.has(0));
    Some(stage)
}

/// The tags of so many that come; each is told once.
fn told(stage: &Stage, count: usize) -> BTreeSet<u64> {
    let mut told = BTreeSet::new();
    while told.len() < count {
        let new = |tag| assert!(told.insert(tag), "{tag} is told again");
        stage.image.take_loaded(TURN, new);
    }
    told
}

#[test]
fn what_comes_is_what_the_disk_has() {
    let Some(stage) = stage_that_loads() else {
        return;
    };
    for (tag, unit) in (10..).zip([700, 3, 400]) {
        assert!(stage.image.begin_load(bytes(unit..unit + 8), tag));
    }
    assert_eq!(told(&stage, 3), BTreeSet::from([10, 11, 12]));
    // Nobody may do this: it tells that the disk is not read again.
    (0..3).for_each(|region| set_disk(&stage, region));
    for unit in [700, 707, 3, 10, 400, 407] {
        assert!(stage.image.present.has(unit));
        assert_eq!(read_unit(&stage.image, unit), byte_of(unit));
    }
    assert_eq!(read_unit(&stage.image, 411), NEW);
}

#[test]
fn what_was_there_meanwhile_is_read_again() {
    let Some(stage) = stage_that_loads() else {
        return;
    };
    assert!(stage.image.begin_load(bytes(20..24), 5));
    assert_eq!(read_unit(&stage.image, 22), byte_of(22));
    // As if it had been stored to and had gone home.
    set_disk(&stage, 0);
    stage.image.drop_all();
    assert_eq!(told(&stage, 1), BTreeSet::from([5]));
    assert!(!stage.image.present.has_any(20..24));
    assert_eq!(read_unit(&stage.image, 21), NEW);
}

#[test]
fn only_what_is_absent_and_comes_at_once_is_asked_for() {
    let Some(stage) = stage_that_loads() else {
        return;
    };
    let most = PLACE / UNIT_SIZE;
    let region = REGION / UNIT_SIZE;
    for refused in [0..1, 0..3, 20..21 + most, region - 1..region + 1] {
        assert!(
            !stage.image.begin_load(bytes(refused.clone()), 2),
            "{refused:?}"
        );
    }
    assert!(stage.image.begin_load(bytes(20..20 + most), 3));
    assert_eq!(told(&stage, 1), BTreeSet::from([3]));
}

#[test]
fn as_many_are_on_their_way_as_there_are_places() {
    let Some(stage) = stage_that_loads() else {
        return;
    };
    let places = PLACES as u64;
    for round in 0..3 {
        let first = 1 + round * places;
        for unit in first..first + places {
            assert!(stage.image.begin_load(bytes(unit..unit + 1), unit));
        }
        let one_more = first + places;
        assert!(!stage.image.begin_load(bytes(one_more..one_more + 1), 0));
        assert_eq!(told(&stage, PLACES), (first..first + places).collect());
    }
}
