//! What a rebuild copies is compared with what was sealed (D111).

use std::fs;
use std::ops::ControlFlow;

use nacre_types::{UNIT_SIZE, VolumeOffset};
use nacre_volume::{Difference, Evidence, LegState, Rebuilt, Usage, Volume};

use super::scrub::{AT, PLACE, found, on, scrub, written};
use super::{MIB, Pool, commit_at};

/// Rebuilds what is to be rebuilt, of which only what `is_used` counts.
fn rebuild(volume: &Volume, is_used: impl Fn(VolumeOffset) -> bool) -> Rebuilt {
    let usage = |at| match is_used(at) {
        true => Usage::Used,
        false => Usage::Free,
    };
    let rebuilt = volume.rebuild_used(&usage, 1, |_| ControlFlow::Continue(()));
    let rebuilt = rebuilt.unwrap();
    assert_eq!(rebuilt.whole, 1);
    rebuilt
}

/// A new disk `c`, which holds something, comes for one of the others.
fn replace(pool: &Pool, volume: &Volume, old: &str) {
    let copies = volume.copies().unwrap();
    let old = copies.iter().find(|it| it.path == pool.path(old)).unwrap();
    let len = fs::metadata(pool.path("a")).unwrap().len();
    fs::write(pool.path("c"), vec![9; len as usize]).unwrap();
    volume
        .replace_copy(old.uuid, &pool.path("c"), true)
        .unwrap();
}

/// A sealed pool.
fn sealed() -> (Pool, Volume) {
    let pool = written(1);
    let volume = pool.open("a");
    commit_at(&volume, PLACE, 1);
    volume.checkpoint().unwrap();
    assert_eq!(scrub(&volume).sealed, volume.len());
    (pool, volume)
}

/// Damages the unit on one disk.
fn spoil(pool: &Pool, name: &str, byte: u8) {
    pool.put(name, AT, &[byte; 50]);
}

fn lost(pool: &Pool, wrong: &str) -> Difference {
    let start = VolumeOffset(PLACE.0 / MIB * MIB);
    Difference {
        range: start..start.add(MIB),
        evidence: None,
        wrong: vec![pool.path(wrong)],
    }
}

fn without_b(pool: &Pool, volume: Volume) -> Volume {
    drop(volume);
    fs::remove_file(pool.path("b")).unwrap();
    pool.open("a")
}

#[test]
fn damage_of_either_disk_is_not_copied() {
    let mut repaired = 0;
    for spoilt in ["a", "b"] {
        let (pool, volume) = sealed();
        let before = on(&pool, "a");
        spoil(&pool, spoilt, 9);
        replace(&pool, &volume, if spoilt == "a" { "b" } else { "a" });
        let all = rebuild(&volume, |_| true).found;
        // Only the disk that is read is compared.
        assert!(all.is_empty() || all == [found(&pool, Evidence::Seal, spoilt)]);
        repaired += all.len();
        assert_eq!(on(&pool, "c"), before);
        volume.let_replaced_go().unwrap();
        scrub(&volume);
        assert_eq!(on(&pool, spoilt), before);
    }
    assert_eq!(repaired, 1);
}

#[test]
fn damage_of_the_disk_that_is_read_is_repaired_where_most_is_free() {
    for spoilt in ["a", "b"] {
        let (pool, volume) = sealed();
        let before = on(&pool, "a");
        spoil(&pool, spoilt, 9);
        replace(&pool, &volume, if spoilt == "a" { "b" } else { "a" });
        rebuild(&volume, |at| at == PLACE);
        assert_eq!(on(&pool, "c"), before);
    }
}

#[test]
fn what_no_disk_has_is_told_and_the_new_one_does_not_vouch_for_it() {
    let everything: fn(VolumeOffset) -> bool = |_| true;
    for is_used in [everything, |at| at == PLACE] {
        let (pool, volume) = sealed();
        spoil(&pool, "a", 9);
        let volume = without_b(&pool, volume);
        replace(&pool, &volume, "b");
        assert_eq!(rebuild(&volume, is_used).found, [lost(&pool, "a")]);
        assert_eq!(on(&pool, "a"), on(&pool, "c"));
        // Now the disk goes that alone had what was sealed there.
        drop(volume);
        fs::remove_file(pool.path("a")).unwrap();
        let volume = pool.open("c");
        let told = scrub(&volume).found;
        assert_eq!(told, [lost(&pool, "c")]);
    }
}

#[test]
fn a_disk_that_was_given_up_helps_where_it_alone_is_right() {
    let (pool, volume) = sealed();
    let before = on(&pool, "b");
    let (label, copies) = (fs::read(pool.path("b")).unwrap(), volume.copies().unwrap());
    pool.put("b", 0, &[7; 4096]);
    volume.check_copies().unwrap();
    assert_eq!(volume.copies().unwrap()[1].state, LegState::Failed);
    pool.put_back("b", &label[..4096]);
    spoil(&pool, "a", 9);
    assert!(volume.return_copy(copies[1].uuid).unwrap());
    let all = rebuild(&volume, |_| true).found;
    assert_eq!(all, [found(&pool, Evidence::Seal, "a")]);
    assert_eq!([on(&pool, "a"), on(&pool, "b")], [before.clone(), before]);
}

#[test]
fn a_disk_that_was_rebuilt_has_the_seals_of_what_was_copied_whole() {
    let (pool, volume) = sealed();
    let volume = without_b(&pool, volume);
    replace(&pool, &volume, "b");
    assert_eq!(rebuild(&volume, |_| true).found, []);
    drop(volume);
    fs::remove_file(pool.path("a")).unwrap();
    let volume = pool.open("c");
    let verified = |volume: &Volume| volume.verify_span(volume.span_of(PLACE)).unwrap().sealed;
    assert_eq!(verified(&volume), MIB);
    commit_at(&volume, PLACE, 2);
    volume.checkpoint().unwrap();
    assert_eq!(verified(&volume), 0);
    assert_eq!(on(&pool, "c")[..UNIT_SIZE as usize][..100], [2; 100]);
}
