//! What is new, and what of it goes home ahead of a version.

use std::sync::atomic::Ordering::SeqCst;

use nacre_types::{DeviceOffset, UNIT_SIZE};

use super::tests::{byte_of, first_byte, stage, store_new, version};
use super::{Image, Pace};

/// Stores a word to a unit.
fn store(image: &Image, unit: u64) {
    drop(image.begin(DeviceOffset(unit * UNIT_SIZE), 8).unwrap());
}

/// Brings what is new home; answers which units.
fn ahead(image: &Image, pace: Pace, succeeds: bool) -> Vec<u64> {
    let news = image.take_new(u64::MAX, pace, Vec::new());
    match succeeds {
        true => image.went_ahead(&news),
        false => image.did_not_go(&news),
    }
    let homes = news.homes().into_iter();
    homes
        .flat_map(|home| home.start / UNIT_SIZE..home.end / UNIT_SIZE)
        .collect()
}

#[test]
fn what_was_freed_before_a_version_that_failed_is_not_new_behind_it() {
    let stage = stage();
    let image = &stage.image;
    version(image, true);
    image.note_freed(60 * UNIT_SIZE, UNIT_SIZE);
    store_new(image, 50..52);
    assert_eq!(version(image, false), [50, 51]);
    store_new(image, 52..54);
    store_new(image, 60..61);
    // The disk may have 50 and 51, or may refer to 60.
    assert_eq!(version(image, false), [52, 53]);
    store_new(image, 60..61);
    assert_eq!(version(image, true), []);
    store_new(image, 60..61);
    store_new(image, 54..55);
    assert_eq!(version(image, true), [54]);
}

#[test]
fn so_is_what_was_freed_before_one_whose_maker_died() {
    let stage = stage();
    let image = &stage.image;
    version(image, true);
    image.note_freed(60 * UNIT_SIZE, UNIT_SIZE);
    image.take(|_, _| {});
    store_new(image, 57..58);
    store_new(image, 60..61);
    assert_eq!(ahead(image, Pace::All, true), [57]);
    assert_eq!(version(image, true), []);
}

#[test]
fn what_was_freed_before_one_that_is_on_its_way_counts_for_the_journal() {
    let stage = stage();
    let image = &stage.image;
    image
        .passes
        .store(true, std::sync::atomic::Ordering::Relaxed);
    version(image, true);
    image.note_freed(60 * UNIT_SIZE, 2 * UNIT_SIZE);
    image.take(|_, _| {});
    store_new(image, 60..61);
    assert_eq!(image.new_bytes(), 0);
    store_new(image, 57..58);
    assert_eq!(image.new_bytes(), UNIT_SIZE);
    image.written([].iter());
    store_new(image, 61..62);
    assert_eq!(image.new_bytes(), 2 * UNIT_SIZE);
}

#[test]
fn what_is_taken_after_another_count_of_what_is_free_is_not_new() {
    let stage = stage();
    let image = &stage.image;
    version(image, true);
    store_new(image, 55..56);
    image.unsettle();
    store_new(image, 56..57);
    assert_eq!(version(image, true), [55]);
    store_new(image, 58..59);
    assert_eq!(version(image, true), [58]);
}

#[test]
fn it_is_new_if_the_disk_has_what_was_counted() {
    let stage = stage();
    let image = &stage.image;
    image.unsettle();
    store_new(image, 56..57);
    assert_eq!(version(image, true), [56]);
}

#[test]
fn what_went_ahead_is_clean_and_in_no_record() {
    let stage = stage();
    let image = &stage.image;
    version(image, true);
    store_new(image, 20..24);
    store(image, 30);
    assert_eq!(ahead(image, Pace::All, true), [20, 21, 22, 23]);
    assert_eq!(image.dirty_bytes(), super::GRANULE, "what is not new stays");
    store(image, 21);
    assert_eq!(ahead(image, Pace::Once, true), []);
    assert_eq!(ahead(image, Pace::All, true), [21]);
    image.came_home();
    assert!(image.drop_all() > 0);
    assert!(!image.present.has(20) && image.present.has(30));
    assert_eq!(version(image, true), []);
}

#[test]
fn what_went_ahead_is_not_new_behind_the_version_that_has_it() {
    let stage = stage();
    let image = &stage.image;
    version(image, true);
    store_new(image, 20..22);
    ahead(image, Pace::All, true);
    version(image, true);
    store(image, 20);
    assert_eq!(ahead(image, Pace::All, true), []);
    assert_eq!(version(image, true), []);
}

#[test]
fn what_could_not_go_ahead_is_noted_still() {
    let stage = stage();
    let image = &stage.image;
    version(image, true);
    store_new(image, 20..22);
    assert_eq!(ahead(image, Pace::All, false), [20, 21]);
    assert_eq!(image.dirty_bytes(), 2 * UNIT_SIZE);
    // Whoever takes some more dies.
    image.take_new(u64::MAX, Pace::All, Vec::new());
    assert!(image.drop_all() == 0);
    assert_eq!(version(image, true), [20, 21]);
}

#[test]
fn what_is_freed_is_spent_until_a_version_has_that_and_the_journal_nothing_of_it() {
    let stage = stage();
    let image = &stage.image;
    let is_spent = |unit: u64| {
        let word = image.spent_of(unit / 64 * 64 * UNIT_SIZE);
        let is_spent = image.is_spent(unit * UNIT_SIZE, UNIT_SIZE);
        assert_eq!(word >> (unit % 64) & 1 == 1, is_spent, "unit {unit}");
        is_spent
    };
    let regained = || {
        let mut found = Vec::new();
        image.each_regained(|range| found.push(range.start / UNIT_SIZE..range.end / UNIT_SIZE));
        found
    };
    version(image, true);
    store_new(image, 20..22);
    image.note_freed(20 * UNIT_SIZE, UNIT_SIZE);
    image.note_freed(60 * UNIT_SIZE, 2 * UNIT_SIZE);
    assert_eq!([20, 60, 61].map(is_spent), [false, true, true]);
    image.take(|_, _| {});
    image.note_freed(63 * UNIT_SIZE, UNIT_SIZE);
    assert_eq!([60, 63].map(is_spent), [true, true], "it may fail");
    image.written([].iter());
    assert_eq!([60, 61, 63].map(is_spent), [false, false, true]);
    assert_eq!(regained(), std::slice::from_ref(&(60..62)));
    store(image, 65);
    image.note_freed(64 * UNIT_SIZE, 3 * UNIT_SIZE);
    version(image, true);
    assert_eq!([63, 64, 65].map(is_spent), [false, false, true]);
    assert_eq!(regained(), [63..65, 66..67]);
    image.came_home();
    assert!(!is_spent(65));
}

#[test]
fn units_that_are_not_there_are_stored_without_being_read() {
    let stage = stage();
    let image = &stage.image;
    let bytes = [200; 3 * UNIT_SIZE as usize];
    let put = |unit: u64, len: u64| {
        image.put_absent(DeviceOffset(unit * UNIT_SIZE), bytes.as_ptr(), len as usize)
    };
    assert!(put(5, 2 * UNIT_SIZE) && image.traffic().loaded == 0);
    assert_eq!(image.dirty_bytes(), 2 * UNIT_SIZE);
    let first = |unit: u64| image.read(DeviceOffset(unit * UNIT_SIZE), 8, first_byte);
    assert_eq!((first(5), first(6)), (Ok(200), Ok(200)));
    assert_eq!(first(7), Ok(byte_of(7)));
    assert!(!put(9, 100), "not a whole one");
    assert!(!put(6, 3 * UNIT_SIZE), "one is there");
    assert!(!image.put_absent(DeviceOffset(0), std::ptr::null(), UNIT_SIZE as usize));
    assert_eq!(first(0), Ok(byte_of(0)), "nothing to be stored");
}

#[test]
fn much_that_waits_for_the_journal_is_overwritten_elsewhere() {
    let stage = stage();
    let image = &stage.image;
    image.limit.store(64, std::sync::atomic::Ordering::Relaxed);
    image
        .passes
        .store(true, std::sync::atomic::Ordering::Relaxed);
    image.set_room(1 << 30);
    version(image, true);
    store_new(image, 20..24);
    assert!(!image.had_better_move(8), "that is new");
    assert!(image.had_better_move(64 << 10), "a large call");
    assert!(!image.fills());
    (30..46).for_each(|unit| store(image, unit));
    assert!(image.had_better_move(8) && !image.fills());
    let first = |unit: u64, count| image.first_alike(unit * UNIT_SIZE, count);
    assert_eq!(first(22, 4), (2, false));
    assert_eq!(first(24, 10), (6, true));
    assert_eq!(first(30, 20), (16, false), "the journal gets them anyway");
    (46..62).for_each(|unit| store(image, unit));
    assert!(image.fills());
    assert_eq!(image.new_bytes(), 4 * UNIT_SIZE);
}

#[test]
fn who_waits_while_nothing_is_new_commits() {
    use std::sync::atomic::Ordering::SeqCst;
    let stage = stage();
    let image = &stage.image;
    image.limit.store(1 << 20, SeqCst);
    image.passes.store(true, SeqCst);
    image.set_room(1 << 30);
    // As right behind a sync.
    image.head().allowed.store(16, SeqCst);
    version(image, true);
    store_new(image, 30..158);
    stage.jester.nothing_new.store(100, SeqCst);
    let commits = |image: &Image| assert_eq!(version(image, true).len(), 128);
    *stage.jester.at_commit.lock().unwrap() = Some(Box::new(commits));
    store(image, 310);
    assert_eq!(stage.jester.nothing_new.load(SeqCst), 99);
    assert_eq!(
        image.dirty_bytes(),
        super::GRANULE,
        "the rest was committed"
    );
}

/// Another thread syncs.
fn another_asks(image: &Image) {
    std::thread::scope(|scope| scope.spawn(|| image.note_asked()).join().unwrap());
}

#[test]
fn who_synced_last_may_store_more() {
    const MIB: u64 = 1 << 20;
    let stage = stage();
    let image = &stage.image;
    let allowed = || image.allowed_by_now() * super::GRANULE;
    image.note_asked();
    assert_eq!(allowed(), 4 * MIB);
    image.head().allowed.store(4 * MIB / super::GRANULE, SeqCst);
    image.note_asked();
    assert_eq!(image.head().allowed.load(SeqCst), 4 * MIB / super::GRANULE);
    another_asks(image);
    assert_eq!(allowed(), MIB / 2, "another one waits for that");
    assert_eq!(image.head().allowed.load(SeqCst), MIB / 2 / super::GRANULE);
    image.note_asked();
    image.take_new(u64::MAX, Pace::Presses, Vec::new());
    assert_eq!(allowed(), MIB / 2, "others press");
}

#[test]
fn the_longer_nobody_synced_the_more_may_be_dirty() {
    use std::sync::atomic::Ordering::SeqCst;
    use std::time::Duration;
    const MIB: u64 = 1 << 20;
    let stage = stage();
    let image = &stage.image;
    let allowed = |now: u64| {
        stage.jester.clock.store(now, SeqCst);
        image.allowed_by_now() * super::GRANULE
    };
    for _ in 0..100 {
        image.note_rate(8 * MIB, Duration::from_millis(8));
    }
    stage.jester.clock.store(5000, SeqCst);
    another_asks(image);
    assert_eq!([5000, 5004].map(allowed), [MIB / 2; 2], "in any case");
    let about = |allowed: u64, mibs: u64| allowed.abs_diff(mibs * MIB) < MIB / 4;
    assert!(about(allowed(5080), 5) && about(allowed(5800), 50));
    another_asks(image);
    assert_eq!(allowed(5801), MIB / 2);
    image.take_new(u64::MAX, Pace::Presses, Vec::new());
    assert_eq!(allowed(9000), MIB / 2, "while somebody presses");
    image.end_press();
    assert!(about(allowed(9000), 200));
    // Where each call waits for a processor, more goes with it.
    another_asks(image);
    for (millis, allowed_then) in [(2, MIB), (4, 3 * MIB), (50, 4 * MIB), (0, MIB / 2)] {
        for _ in 0..100 {
            image.note_rate(MIB, Duration::from_millis(millis));
        }
        assert!(
            allowed(9000).abs_diff(allowed_then) < MIB / 8,
            "{millis} ms"
        );
    }
}

#[test]
fn who_rests_is_woken_once_before_those_who_store_must_wait() {
    let stage = stage();
    let image = &stage.image;
    image.passes.store(true, SeqCst);
    // Of 64 units 16 may be dirty, half of which are for whoever rests.
    image.set_room(64 * UNIT_SIZE);
    let wakings = |units: std::ops::Range<u64>| {
        units.for_each(|unit| store_new(image, unit..unit + 1));
        stage.jester.wakings.load(SeqCst)
    };
    version(image, true);
    assert_eq!(wakings(20..25), 0, "nobody rests");
    image.set_rests(true);
    assert_eq!(wakings(25..28), 0);
    assert_eq!(wakings(28..31), 1);
    image.set_rests(true);
    assert_eq!(wakings(31..32), 2);
    image.set_rests(true);
    image.set_rests(false);
    assert_eq!(wakings(32..33), 2);
}

#[test]
fn what_is_new_goes_home_in_the_background_where_much_of_it_may_be_dirty() {
    const MIB: u64 = (1 << 20) / super::GRANULE;
    let stage = stage();
    let (image, head) = (&stage.image, stage.image.head());
    image.passes.store(true, SeqCst);
    image.set_room(1 << 30);
    let fills = |allowed: u64, dirty: u64| {
        head.allowed.store(allowed, SeqCst);
        head.dirty.store(dirty, SeqCst);
        image.news_fill()
    };
    assert!(!fills(u64::MAX, 15 * MIB) && fills(u64::MAX, 16 * MIB));
    assert!(!fills(12 * MIB, 5 * MIB) && fills(12 * MIB, 6 * MIB));
    assert!(!fills(4 * MIB, 4 * MIB), "somebody syncs often");
}

#[test]
fn what_went_home_beside_a_record_is_not_new_again_before_the_next_one() {
    let stage = stage();
    let image = &stage.image;
    version(image, true);
    store_new(image, 20..24);
    // Nothing refers to it, but the version has it.
    image.note_freed(21 * UNIT_SIZE, UNIT_SIZE);
    image.take(|_, _| {});
    image.note_beside(20 * UNIT_SIZE..24 * UNIT_SIZE);
    image.written([].iter());
    assert!(image.is_spent(21 * UNIT_SIZE, UNIT_SIZE));
    store_new(image, 21..22);
    image.note_freed(21 * UNIT_SIZE, UNIT_SIZE);
    store_new(image, 21..22);
    assert_eq!(version(image, false), [], "and it fails");
    store_new(image, 21..22);
    assert_eq!(version(image, true), []);
    image.came_home();
    image.note_freed(21 * UNIT_SIZE, UNIT_SIZE);
    version(image, true);
    store_new(image, 21..22);
    assert_eq!(version(image, true), [21]);
}
