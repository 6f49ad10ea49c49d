//! Comparing what the disks have at home (D78).

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nacre_types::{StoreKind, UNIT_SIZE, VolumeOffset};
use nacre_volume::{Difference, Evidence, LegState, ScrubRules, ScrubbedSpan, Usage, Volume};

use super::{MIB, Pool, commit, commit_at};

/// The beginning of a unit in the middle of a MiB.
pub(super) const PLACE: VolumeOffset = VolumeOffset((5 << 20) + (3 << 12));
/// Where it is on the disks.
pub(super) const AT: u64 = (2 << 20) + PLACE.0;

fn scrub_as(volume: &Volume, usage: Usage, trusted: Option<&Path>) -> ScrubbedSpan {
    volume.prepare_scrub().unwrap();
    let mut all = ScrubbedSpan::default();
    for span in volume.spans() {
        let rules = &mut ScrubRules {
            judge: &mut |_, _| None,
            usage: &|_| usage,
            knows_written: true,
            trusted,
        };
        let mut scrubbed = volume.scrub_span(span, rules).unwrap();
        all.found.append(&mut scrubbed.found);
        all.sealed += scrubbed.sealed;
    }
    all
}

pub(super) fn scrub(volume: &Volume) -> ScrubbedSpan {
    scrub_as(volume, Usage::Used, None)
}

fn verify(volume: &Volume) -> ScrubbedSpan {
    volume.verify_span(volume.span_of(PLACE)).unwrap()
}

/// What a disk holds of the unit.
pub(super) fn on(pool: &Pool, name: &str) -> Vec<u8> {
    let at = AT as usize;
    fs::read(pool.path(name)).unwrap()[at..at + UNIT_SIZE as usize].to_vec()
}

pub(super) fn found(pool: &Pool, evidence: Evidence, wrong: &str) -> Difference {
    Difference {
        range: PLACE..PLACE.add(UNIT_SIZE),
        evidence: Some(evidence),
        wrong: vec![pool.path(wrong)],
    }
}

/// A pool with a byte at home, and without any memory of it.
pub(super) fn written(byte: u8) -> Pool {
    let pool = Pool::new();
    let volume = pool.open("a");
    commit_at(&volume, PLACE, byte);
    volume.checkpoint().unwrap();
    pool
}

fn first(volume: &Volume) -> u8 {
    volume.read_array::<1>(PLACE)[0]
}

#[test]
fn a_seal_tells_which_disk_is_right_and_memory_is_made_right_too() {
    for spoilt in ["a", "b"] {
        let pool = written(1);
        let volume = pool.open("a");
        let len = volume.len();
        assert_eq!(scrub(&volume).sealed, len);
        pool.put(spoilt, AT, &[9; 50]);
        // Turns decide which disk it comes from.
        let read = first(&volume);
        let repaired = scrub(&volume);
        assert_eq!(repaired.found, [found(&pool, Evidence::Seal, spoilt)]);
        assert_eq!(repaired.sealed, len);
        assert_eq!(first(&volume), 1, "it was {read}");
        assert_eq!(on(&pool, "a"), on(&pool, "b"));
        assert_eq!(scrub(&volume).found, []);
    }
}

#[test]
fn memory_that_came_from_a_wrong_disk_is_seen_at_all() {
    let read = ["a", "b"].map(|spoilt| {
        let pool = written(1);
        let volume = pool.open("a");
        pool.put(spoilt, AT, &[9; 50]);
        first(&volume)
    });
    assert!(read == [1, 9] || read == [9, 1], "{read:?}");
}

#[test]
fn seals_outlive_everybody_and_end_with_what_goes_home() {
    let pool = written(1);
    let volume = pool.open("a");
    scrub(&volume);
    drop(volume);
    let volume = pool.open("b");
    assert_eq!(verify(&volume).sealed, MIB);
    commit_at(&volume, PLACE, 2);
    // The journal has it; home is as it was sealed, and not for long.
    assert_eq!(verify(&volume), ScrubbedSpan::default());
    volume.checkpoint().unwrap();
    assert_eq!(verify(&volume), ScrubbedSpan::default());
    pool.put("a", AT, &[9; 50]);
    let told = scrub(&volume).found;
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].evidence, told[0].range.start), (None, PLACE));
}

#[test]
fn what_the_journal_has_is_not_compared() {
    let pool = written(1);
    let volume = pool.open("a");
    commit_at(&volume, PLACE, 2);
    pool.put("a", AT, &[9; 50]);
    assert_eq!(scrub(&volume).found, []);
    volume.checkpoint().unwrap();
    assert_eq!(on(&pool, "a")[..101], [&[2; 100][..], &[0]].concat());
    assert_eq!(on(&pool, "a"), on(&pool, "b"));
}

#[test]
fn what_lies_beside_what_the_journal_has_is_compared() {
    let pool = written(1);
    let volume = pool.open("a");
    for byte in [2, 3] {
        commit_at(&volume, PLACE, byte);
        pool.put("b", AT + 2048, &[9; 50]);
        let rules = &mut ScrubRules {
            judge: &mut |_, copies| copies.iter().position(|copy| copy[2048] != 9),
            usage: &|_| Usage::Used,
            knows_written: true,
            trusted: None,
        };
        let found = volume.scrub_span(volume.span_of(PLACE), rules).unwrap();
        assert_eq!(found.found, [self::found(&pool, Evidence::Contents, "b")]);
        assert_eq!(on(&pool, "a"), on(&pool, "b"));
        assert_eq!(first(&volume), byte);
    }
}

#[test]
fn verifying_repairs_and_tells_what_is_lost() {
    let pool = written(1);
    let volume = pool.open("a");
    assert_eq!(verify(&volume), ScrubbedSpan::default());
    scrub(&volume);
    pool.put("b", AT, &[9; 50]);
    let verified = verify(&volume);
    assert_eq!(verified.found, [found(&pool, Evidence::Seal, "b")]);
    assert_eq!(on(&pool, "a"), on(&pool, "b"));
    pool.put("a", AT, &[9; 50]);
    pool.put("b", AT, &[8; 50]);
    let lost = verify(&volume);
    assert_eq!((lost.sealed, lost.found.len()), (0, 1));
    assert_eq!(lost.found[0].evidence, None);
}

#[test]
fn where_nothing_tells_a_disk_can_be_named() {
    let pool = written(1);
    let volume = pool.open("a");
    pool.put("b", AT, &[9; 50]);
    assert_eq!(scrub(&volume).found[0].evidence, None);
    assert_ne!(on(&pool, "a"), on(&pool, "b"));
    let asked = scrub_as(&volume, Usage::Used, Some(&pool.path("a")));
    assert_eq!(asked.found, [found(&pool, Evidence::Asked, "b")]);
    assert_eq!(on(&pool, "a"), on(&pool, "b"));
    assert_eq!(first(&volume), 1);
}

#[test]
fn what_nobody_uses_is_no_damage() {
    for usage in [Usage::Free, Usage::Unwritten] {
        let pool = written(1);
        let volume = pool.open("a");
        pool.put("b", AT, &[9; 50]);
        let scrubbed = scrub_as(&volume, usage, None);
        assert_eq!((scrubbed.found, scrubbed.sealed), (vec![], volume.len()));
        assert_eq!(on(&pool, "a"), on(&pool, "b"));
    }
    // It was freed, and the version that the disks have refers to it.
    let pool = written(1);
    let volume = pool.open("a");
    commit(&volume, 1);
    volume.note_freed(PLACE, UNIT_SIZE);
    pool.put("b", AT, &[9; 50]);
    assert_eq!(scrub_as(&volume, Usage::Free, None).found.len(), 1);
    commit(&volume, 2);
    assert_eq!(scrub_as(&volume, Usage::Free, None).found, []);
}

#[test]
fn a_disk_that_is_rebuilt_has_no_seals_of_before() {
    let pool = written(1);
    let volume = pool.open("a");
    scrub(&volume);
    drop(volume);
    fs::rename(pool.path("b"), pool.path("away")).unwrap();
    let volume = pool.open("a");
    commit_at(&volume, PLACE, 2);
    volume.checkpoint().unwrap();
    fs::rename(pool.path("away"), pool.path("b")).unwrap();
    let lost = volume.copies().unwrap()[1].uuid;
    assert!(volume.return_copy(lost).unwrap());
    volume
        .rebuild_copies(|_| ControlFlow::Continue(()))
        .unwrap();
    assert_eq!(volume.copies().unwrap()[1].state, LegState::Current);
    let scrubbed = scrub(&volume);
    assert_eq!((scrubbed.found, scrubbed.sealed), (vec![], volume.len()));
}

#[test]
fn what_disks_held_before_they_became_copies_is_no_damage() {
    let pool = Pool::new();
    let len = fs::metadata(pool.path("a")).unwrap().len();
    for (name, byte) in [("a", 7), ("b", 8)] {
        fs::write(pool.path(name), vec![byte; len as usize]).unwrap();
    }
    let end = (2 << 20) + pool.make_again().len() as usize;
    let [a, b] = ["a", "b"].map(|name| fs::read(pool.path(name)).unwrap());
    let data = 2 << 20..end;
    assert!(a[data.clone()] == b[data]);
    assert_eq!(scrub(&pool.open("a")).found, []);
    let file = fs::metadata(pool.path("a")).unwrap();
    assert!(file.blocks() * 512 >= len, "its room stays its own");
}

#[test]
fn what_differs_around_the_first_bytes_of_a_unit_is_made_alike() {
    let pool = written(1);
    // In what is free, by a power cut.
    pool.put("b", AT + UNIT_SIZE, &[9; UNIT_SIZE as usize]);
    let volume = pool.open("a");
    commit_at(&volume, PLACE, 2);
    let free = PLACE.add(UNIT_SIZE);
    volume.note_taken(free, UNIT_SIZE);
    commit_at(&volume, free.add(300), 5);
    volume.checkpoint().unwrap();
    assert_eq!(scrub(&volume).found, []);
    let unit =
        |name| fs::read(pool.path(name)).unwrap()[(AT + UNIT_SIZE) as usize..][..4096].to_vec();
    assert!(unit("a") == unit("b") && unit("a")[300] == 5);
}

/// Gives the pool a disk `c` for `b`, where nothing counts but the unit that is named.
fn renew(pool: &Pool, volume: &Volume) {
    let old = volume.copies().unwrap()[1].uuid;
    let len = fs::metadata(pool.path("a")).unwrap().len();
    fs::write(pool.path("c"), vec![9; len as usize]).unwrap();
    volume.replace_copy(old, &pool.path("c"), true).unwrap();
    let usage = |at| match at == PLACE {
        true => Usage::Used,
        false => Usage::Free,
    };
    let mut looked = 0;
    let rebuilt = volume.rebuild_used(&usage, 1, |progress| {
        looked = progress.looked;
        ControlFlow::Continue(())
    });
    assert_eq!((rebuilt.unwrap().whole, looked), (1, UNIT_SIZE));
    volume.let_replaced_go().unwrap();
}

/// Only what was written is used; answers how many bytes have a seal.
fn finds_nothing(volume: &Volume) -> u64 {
    volume.prepare_scrub().unwrap();
    let scrubbed = scrub_as(volume, Usage::Free, None);
    assert_eq!(scrubbed.found, []);
    scrubbed.sealed
}

#[test]
fn what_a_rebuild_skipped_is_no_damage_though_it_was_sealed() {
    let pool = written(1);
    let volume = pool.open("a");
    commit(&volume, 1);
    volume.checkpoint().unwrap();
    assert_eq!(scrub(&volume).sealed, volume.len());
    renew(&pool, &volume);
    assert!(on(&pool, "c") == on(&pool, "a") && on(&pool, "c")[..100] == [1; 100]);
    let at = (AT + UNIT_SIZE) as usize;
    assert_eq!(fs::read(pool.path("c")).unwrap()[at..at + 50], [9; 50]);
    assert_eq!(finds_nothing(&volume), volume.len());
    assert_eq!(scrub(&volume).found, [], "all is alike by now");
}

#[test]
fn what_is_taken_behind_a_rebuild_is_alike_as_a_whole() {
    for (fails, blind) in [(false, false), (true, false), (false, true), (true, true)] {
        let pool = written(1);
        let volume = pool.open("a");
        commit(&volume, 1);
        volume.checkpoint().unwrap();
        renew(&pool, &volume);
        if blind {
            let stored = volume.write(PLACE, &[2; 8], StoreKind::Data);
            volume.fence(stored).unwrap();
            volume.unsettle();
        }
        let free = PLACE.add(UNIT_SIZE);
        volume.note_taken(free, UNIT_SIZE);
        let stored = volume.write(free.add(300), &[5; 20], StoreKind::Data);
        volume.fence(stored).unwrap();
        if fails {
            // As if its maker died.
            drop(volume.take_version().unwrap());
        }
        commit(&volume, 3);
        volume.checkpoint().unwrap();
        let unit =
            |name| fs::read(pool.path(name)).unwrap()[(AT + UNIT_SIZE) as usize..][..4096].to_vec();
        assert!(unit("a") == unit("c"), "{fails} {blind}");
        assert_eq!(unit("a")[300..320], [5; 20]);
    }
}

/// What a disk holds at a place of the volume, as who reads it there gets it.
fn read_at(volume: &Volume, at: u64) -> u8 {
    volume.read_array::<1>(VolumeOffset(at))[0]
}

#[test]
fn a_disk_that_was_wrong_is_read_last_until_all_of_it_was_scrubbed() {
    for spoilt in ["a", "b"] {
        let pool = written(1);
        scrub(&pool.open("a"));
        let places = [9, 10].map(|mib| mib << 20);
        pool.put(spoilt, AT, &[9; 50]);
        for place in places {
            pool.put(spoilt, (2 << 20) + place, &[9; 50]);
        }
        let volume = pool.open("a");
        assert_eq!(
            verify(&volume).found,
            [found(&pool, Evidence::Seal, spoilt)]
        );
        // One of them would be read from each disk.
        assert_eq!(places.map(|place| read_at(&volume, place)), [0, 0]);
        assert_eq!(scrub(&volume).found.len(), 2);
        volume.trust_copies();
        pool.put(spoilt, (2 << 20) + (11 << 20), &[9; 50]);
        pool.put(spoilt, (2 << 20) + (12 << 20), &[9; 50]);
        let read = [11, 12].map(|mib| read_at(&volume, mib << 20));
        assert!(read == [0, 9] || read == [9, 0], "{read:?}");
    }
}

/// Two places in one span, and one in another, are spoilt on a disk; the latter is met.
fn in_doubt(spoilt: &str) -> (Pool, Volume, u8) {
    const OTHER: u64 = 9 << 20;
    let pool = written(1);
    scrub(&pool.open("a"));
    pool.put(spoilt, AT + 2 * UNIT_SIZE, &[9; 3 * UNIT_SIZE as usize]);
    pool.put(spoilt, (2 << 20) + OTHER, &[9; 50]);
    let volume = pool.open("a");
    let read = read_at(&volume, PLACE.0 + 2 * UNIT_SIZE);
    let met = volume.verify_span(volume.span_of(VolumeOffset(OTHER)));
    assert_eq!(met.unwrap().found.len(), 1);
    (pool, volume, read)
}

#[test]
fn what_goes_home_while_a_disk_is_in_doubt_leaves_nothing_undecided() {
    let read = ["a", "b"].map(|spoilt| {
        let (pool, volume, read) = in_doubt(spoilt);
        commit_at(&volume, PLACE, 2);
        volume.checkpoint().unwrap();
        assert_eq!(read_at(&volume, PLACE.0 + 2 * UNIT_SIZE), 0, "in memory");
        let disks = ["a", "b"].map(|name| fs::read(pool.path(name)).unwrap());
        let [a, b] = disks.map(|bytes| bytes[2 << 20..(2 << 20) + volume.len() as usize].to_vec());
        assert!(a == b, "on disks");
        assert_eq!((scrub(&volume).found, first(&volume)), (vec![], 2));
        read
    });
    assert!(read == [0, 9] || read == [9, 0], "{read:?}");
}

#[test]
fn what_is_stored_in_a_span_that_is_made_right_stays() {
    for spoilt in ["a", "b"] {
        let (_pool, volume, _) = in_doubt(spoilt);
        let at = PLACE.add(2 * UNIT_SIZE);
        let put = |at: VolumeOffset, byte: u8| {
            let stored = volume.write(at, &[byte; 100], StoreKind::Data);
            volume.fence(stored).unwrap();
        };
        put(at, 5);
        commit_at(&volume, PLACE, 2);
        put(at.add(UNIT_SIZE), 6);
        volume.checkpoint().unwrap();
        put(at.add(2 * UNIT_SIZE), 7);
        let now = [0, 1, 2].map(|unit| read_at(&volume, at.0 + unit * UNIT_SIZE));
        assert_eq!(now, [5, 6, 7]);
        commit_at(&volume, PLACE, 3);
        volume.checkpoint().unwrap();
        assert_eq!(scrub(&volume).found, []);
    }
}

#[test]
fn what_is_given_up_while_a_disk_is_in_doubt_leaves_nothing_undecided() {
    let (_pool, volume, _) = in_doubt("b");
    volume.discard(PLACE, UNIT_SIZE, true).unwrap();
    assert_eq!(scrub(&volume).found, []);
}

#[test]
fn what_lies_beside_what_is_known_to_be_wrong_is_wrong_too() {
    let pool = written(1);
    let volume = pool.open("a");
    pool.put("b", AT, &[9; 3 * UNIT_SIZE as usize]);
    pool.put("b", AT + 4 * UNIT_SIZE, &[9; 50]);
    volume.prepare_scrub().unwrap();
    let rules = &mut ScrubRules {
        judge: &mut |at, copies| {
            let is_known = at == PLACE.add(UNIT_SIZE);
            is_known.then(|| copies.iter().position(|copy| copy[0] != 9))?
        },
        usage: &|_| Usage::Used,
        knows_written: true,
        trusted: None,
    };
    let scrubbed = volume.scrub_span(volume.span_of(PLACE), rules).unwrap();
    let told = scrubbed.found.iter().map(|one| one.evidence);
    let beside = Some(Evidence::Neighbours);
    let expected = [beside, Some(Evidence::Contents), beside, None];
    assert_eq!(told.collect::<Vec<_>>(), expected);
    assert_eq!(on(&pool, "a"), on(&pool, "b"));
}

/// Who reads so many bytes there, and knows how right ones begin, repairs them.
fn repair_as_reader(volume: &Volume, len: u64, right: u8) -> bool {
    volume.repair(PLACE..PLACE.add(len), &mut |_, copies| {
        copies.iter().position(|copy| copy[0] == right)
    })
}

#[test]
fn who_meets_damage_in_memory_takes_what_another_disk_holds() {
    let read = ["a", "b"].map(|spoilt| {
        let pool = written(1);
        pool.put(spoilt, AT, &[9; 5000]);
        let volume = pool.open("a");
        let read = first(&volume);
        assert_eq!(repair_as_reader(&volume, 100, 1), read == 9);
        assert_eq!(first(&volume), 1);
        let all = volume.read_array::<3000>(PLACE);
        assert!(all[100..].iter().all(|byte| *byte == 0), "all of the unit");
        let suspect = (read == 9).then(|| volume.span_of(PLACE));
        assert_eq!(volume.take_suspect(), suspect);
        read
    });
    assert!(read == [1, 9] || read == [9, 1], "{read:?}");
}

#[test]
fn what_is_newer_than_the_disks_is_not_taken_back_by_a_reader() {
    let pool = written(1);
    let volume = pool.open("a");
    let put = |byte: u8| {
        let stored = volume.write(PLACE, &[byte; 100], StoreKind::Data);
        volume.fence(stored).unwrap();
    };
    put(2);
    assert!(!repair_as_reader(&volume, 100, 1), "noted");
    assert!(!repair_as_reader(&volume, 8, 1), "a word that is noted");
    commit(&volume, 2);
    assert!(!repair_as_reader(&volume, 100, 1), "in the journal");
    // One disk has got it before the other one.
    pool.put("a", AT, &[2; 100]);
    assert!(!repair_as_reader(&volume, 100, 1), "on its way home");
    volume.checkpoint().unwrap();
    put(3);
    pool.put("b", AT, &[1; 100]);
    assert!(!repair_as_reader(&volume, 100, 1), "another disk is wrong");
    assert_eq!(first(&volume), 3);
}

#[test]
fn what_may_be_half_of_a_change_is_left_alone_but_for_a_word() {
    for spoilt in ["a", "b"] {
        let pool = written(1);
        pool.put(spoilt, AT, &[9; 600]);
        let volume = pool.open("a");
        if first(&volume) != 9 {
            continue;
        }
        // In the same granule.
        let stored = volume.write(PLACE.add(200), &[7; 8], StoreKind::Data);
        volume.fence(stored).unwrap();
        assert!(!repair_as_reader(&volume, 100, 1));
        assert_eq!(volume.read_array::<1>(PLACE.add(300)), [0], "the next one");
        assert!(repair_as_reader(&volume, 8, 1));
        assert_eq!(first(&volume), 1);
        assert_eq!(
            volume.read_array::<1>(PLACE.add(200)),
            [7],
            "what was stored"
        );
    }
}

#[test]
fn memory_that_is_not_what_the_wrong_disk_holds_stays() {
    let mut met = 0;
    for (spoilt, other) in [("a", "b"), ("b", "a")] {
        let pool = written(1);
        pool.put(spoilt, AT, &[9; 100]);
        let volume = pool.open("a");
        if first(&volume) != 9 {
            continue;
        }
        met += 1;
        // In memory is what was stored since.
        pool.put(spoilt, AT + 512, &[6; 10]);
        pool.put(other, AT + 512, &[5; 10]);
        assert!(repair_as_reader(&volume, 100, 1));
        assert_eq!(
            (first(&volume), volume.read_array(PLACE.add(512))),
            (1, [0])
        );
    }
    assert_eq!(met, 1);
}
