//! Full pools, holes, shared units, mapped objects, limits.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;

use nacre_store::{EndOfFile, Holes, MAX_FILE_SIZE, StoreError, WriteMode};
use nacre_types::{FileOffset, ObjectId, VolumeOffset};
use nacre_volume::UserBytes;

use crate::pool::{
    PAGE, assert_sound, dirty_free_units, image, make_file, pattern, pool, read, read_all, remove,
    revive, with, write,
};

const DIRECT: WriteMode = WriteMode::Direct;
const ATOMIC: WriteMode = WriteMode::Atomic;

#[test]
fn a_full_pool_writes_short_then_refuses_and_recovers() {
    for mode in [DIRECT, ATOMIC] {
        let store = pool(16);
        let free = store.statfs().free_units;
        let id = make_file(&store, "f");
        let big = pattern(3, 17 << 20);
        let got = write(&store, id, 0, &big, mode).unwrap();
        assert!(
            got < big.len() && got as u64 > (free - 40) * PAGE,
            "{got} of {free} units"
        );
        assert_eq!(read_all(&store, id), big[..got]);
        let mut at = got as u64;
        while let Ok(more) = write(&store, id, at, &big[at as usize..], mode) {
            at += more as u64;
        }
        assert!(store.statfs().free_units <= 4);
        assert!(matches!(
            write(&store, id, at + PAGE, b"x", mode),
            Err(StoreError::NoSpace)
        ));
        assert_eq!(read_all(&store, id), big[..at as usize]);
        assert_sound(&store);
        remove(&store, "f");
        assert_eq!(store.statfs().free_units, free);
        let again = make_file(&store, "g");
        assert_eq!(write(&store, again, 5, b"hello", mode).unwrap(), 5);
        assert_sound(&store);
    }
}

#[test]
fn a_reservation_that_cannot_fit_takes_nothing() {
    let store = pool(16);
    let id = make_file(&store, "f");
    let free = store.statfs().free_units;
    let guard = store.lock(id).unwrap();
    let refused = store.preallocate(&guard, 0, 1 << 30, EndOfFile::Moves);
    assert!(matches!(refused, Err(StoreError::NoSpace)));
    drop(guard);
    assert_eq!(store.statfs().free_units, free);
    assert_eq!(store.attrs(id).unwrap().size, 0);
}

#[test]
fn holes_read_as_zeros_and_take_no_space() {
    let store = pool(16);
    dirty_free_units(&store);
    let id = make_file(&store, "f");
    write(&store, id, 5 << 30, b"far", DIRECT).unwrap();
    assert_eq!(store.attrs(id).unwrap().units, 1);
    assert_eq!(read(&store, id, (5 << 30) - 4, 100), b"\0\0\0\0far");
    assert_eq!(store.seek_data(id, 0).unwrap(), Some(5 << 30));
    assert_eq!(store.seek_hole(id, 5 << 30).unwrap(), Some((5 << 30) + 3));
    assert_eq!(store.seek_data(id, (5 << 30) + 3).unwrap(), None);
    write(&store, id, 10_000, b"near", DIRECT).unwrap();
    assert_eq!(read(&store, id, 8190, 4100)[..10], [0; 10]);
    assert_eq!(store.seek_data(id, 0).unwrap(), Some(8192));
    assert_eq!(store.seek_hole(id, 9000).unwrap(), Some(12288));
    assert_sound(&store);
}

#[test]
fn a_file_never_grows_past_the_limit() {
    let store = pool(16);
    let id = make_file(&store, "f");
    assert_eq!(
        write(&store, id, MAX_FILE_SIZE - 2, b"abcd", DIRECT).unwrap(),
        2
    );
    assert!(matches!(
        write(&store, id, MAX_FILE_SIZE, b"x", DIRECT),
        Err(StoreError::FileTooBig)
    ));
    assert_eq!(read(&store, id, MAX_FILE_SIZE - 3, 9), b"\0ab");
    let guard = store.lock(id).unwrap();
    assert!(matches!(
        store.truncate(&guard, MAX_FILE_SIZE + 1),
        Err(StoreError::FileTooBig)
    ));
    assert!(matches!(
        store.punch(&guard, u64::MAX, 2),
        Err(StoreError::FileTooBig)
    ));
    store.truncate(&guard, 0).unwrap();
    drop(guard);
    assert_eq!(store.attrs(id).unwrap().units, 0);
    assert_sound(&store);
}

#[test]
fn clones_are_independent_and_give_their_units_back() {
    let store = pool(16);
    let free = store.statfs().free_units;
    let (a, b) = (make_file(&store, "a"), make_file(&store, "b"));
    let old = pattern(1, 9 * PAGE as usize + 100);
    write(&store, a, 0, &old, DIRECT).unwrap();
    let before = store.statfs().free_units;
    clone(&store, a, b, old.len() as u64);
    assert!(
        before - store.statfs().free_units <= 1,
        "a clone takes no data units"
    );
    assert_eq!(read_all(&store, b), old);
    write(&store, b, 5000, b"changed", DIRECT).unwrap();
    write(&store, a, 20_000, b"other", ATOMIC).unwrap();
    assert_eq!(read(&store, a, 0, 20_000), old[..20_000]);
    assert_eq!(read(&store, b, 20_000, 99_999), old[20_000..]);
    assert_eq!(
        read(&store, b, 4999, 9),
        [&old[4999..5000], b"changed", &old[5007..5008]].concat()
    );
    assert_sound(&store);
    let revived = revive(&image(&store)).unwrap();
    assert_sound(&revived);
    assert_eq!(read_all(&revived, b), read_all(&store, b));
    remove(&store, "a");
    assert_eq!(read(&store, b, 8192, 99_999), old[8192..]);
    remove(&store, "b");
    assert_eq!(store.statfs().free_units, free);
}

fn clone(store: &nacre_store::Store, from: ObjectId, to: ObjectId, len: u64) {
    let (first, second) = store.lock_pair(from, to).unwrap();
    let second = second.unwrap();
    let (source, target) = if first.id() == from {
        (&first, &second)
    } else {
        (&second, &first)
    };
    assert_eq!(store.clone_range(source, 0, target, 0, len).unwrap(), len);
}

#[test]
fn extending_a_shortened_clone_leaves_the_other_alone() {
    let store = pool(16);
    let (a, b) = (make_file(&store, "a"), make_file(&store, "b"));
    let old = pattern(9, 8000);
    write(&store, a, 0, &old, DIRECT).unwrap();
    clone(&store, a, b, 8000);
    with(&store, b, |guard| store.truncate(guard, 100));
    with(&store, b, |guard| store.truncate(guard, 4096));
    assert_eq!(read_all(&store, a), old);
    assert_eq!(read_all(&store, b), [&old[..100], &[0; 3996]].concat());
    assert_sound(&store);
}

#[test]
fn extents_tell_units_and_flags() {
    let store = pool(16);
    let (a, b) = (make_file(&store, "a"), make_file(&store, "b"));
    write(&store, a, 0, &pattern(1, 3 * PAGE as usize), DIRECT).unwrap();
    clone(&store, a, b, PAGE);
    with(&store, a, |guard| {
        store.preallocate(guard, 5 * PAGE, 2 * PAGE, EndOfFile::Stays)
    });
    let mut seen = Vec::new();
    store
        .extents(a, 0, u64::MAX >> 8, &mut |extent| {
            seen.push((
                extent.offset / PAGE,
                extent.len / PAGE,
                extent.unwritten,
                extent.shared,
            ));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(
        seen,
        [
            (0, 1, false, true),
            (1, 2, false, false),
            (5, 2, true, false)
        ]
    );
    assert_eq!(store.attrs(a).unwrap().size, 3 * PAGE);
}

#[test]
fn units_of_a_mapped_object_stay_where_they_are() {
    let store = pool(16);
    dirty_free_units(&store);
    for mode in [DIRECT, ATOMIC] {
        let id = make_file(&store, "f");
        write(&store, id, 0, &pattern(1, 10_000), mode).unwrap();
        let icore = &store.session().icore(id.0).mapped;
        icore.fetch_add(1, Relaxed);
        let runs = with(&store, id, |guard| {
            store.map_for_sharing(guard, 0, 100, Holes::Fill)
        })
        .runs;
        assert_eq!(runs.iter().map(|run| run.count).sum::<u64>(), 3);
        let tail = runs[0].unit.offset().add(10_000);
        assert_eq!(
            store.volume().read_array::<100>(tail),
            [0; 100],
            "bytes behind EOF are zeros"
        );
        write(&store, id, 3000, &pattern(7, 2000), mode).unwrap();
        with(&store, id, |guard| store.punch(guard, 4096, 4096));
        with(&store, id, |guard| store.truncate(guard, 5000));
        with(&store, id, |guard| store.truncate(guard, 12_288));
        let again = with(&store, id, |guard| {
            store.map_for_sharing(guard, 0, 100, Holes::Fill)
        })
        .runs;
        assert_eq!(again, runs);
        let mapped: [u8; 1000] = store
            .volume()
            .read_array(VolumeOffset(runs[0].unit.offset().0 + 3000));
        assert_eq!(mapped, pattern(7, 1000)[..]);
        assert_eq!(read(&store, id, 4096, 99_999), vec![0; 8192]);
        with(&store, id, |guard| store.truncate(guard, 0));
        icore.fetch_sub(1, Relaxed);
        with(&store, id, |guard| store.after_unmap(guard));
        assert_eq!(store.attrs(id).unwrap().units, 0);
        assert_sound(&store);
        remove(&store, "f");
    }
}

#[test]
fn a_mapping_leaves_holes_and_what_is_only_reserved_as_they_are() {
    let store = pool(16);
    for mode in [DIRECT, ATOMIC] {
        let id = make_file(&store, "f");
        write(&store, id, 2 * PAGE, &pattern(1, 4096), mode).unwrap();
        with(&store, id, |guard| {
            store.preallocate(guard, 4 * PAGE, PAGE, EndOfFile::Moves)
        });
        with(&store, id, |guard| store.truncate(guard, 100_000 * PAGE));
        let (free, units) = (store.statfs().free_units, store.attrs(id).unwrap().units);
        store.session().icore(id.0).mapped.fetch_add(1, Relaxed);
        let map = |first, count, holes| {
            with(&store, id, |guard| {
                store.map_for_sharing(guard, first, count, holes)
            })
        };
        let left = map(0, u64::MAX, Holes::Leave);
        let pages: Vec<_> = left.runs.iter().map(|run| (run.page, run.count)).collect();
        assert_eq!((pages, left.end), (vec![(2, 1)], 100_000));
        assert_eq!(store.statfs().free_units, free);
        assert_eq!(store.attrs(id).unwrap().units, units);
        let filled = map(3, 3, Holes::Fill);
        assert_eq!(filled.runs.iter().map(|run| run.count).sum::<u64>(), 3);
        assert_eq!(store.attrs(id).unwrap().units, units + 2);
        store.session().icore(id.0).mapped.fetch_sub(1, Relaxed);
        assert_sound(&store);
        remove(&store, "f");
    }
}

#[test]
fn a_mapping_fills_holes_and_breaks_sharing() {
    let store = pool(16);
    dirty_free_units(&store);
    let (a, b) = (make_file(&store, "a"), make_file(&store, "b"));
    write(&store, a, 0, &pattern(1, 8192), DIRECT).unwrap();
    clone(&store, a, b, 8192);
    with(&store, b, |guard| store.truncate(guard, 4 * PAGE));
    with(&store, b, |guard| {
        store.preallocate(guard, 3 * PAGE, PAGE, EndOfFile::Moves)
    });
    store.session().icore(b.0).mapped.fetch_add(1, Relaxed);
    let runs = with(&store, b, |guard| {
        store.map_for_sharing(guard, 0, 4, Holes::Fill)
    })
    .runs;
    for run in runs {
        for step in 0..run.count {
            let at = run.unit.add(step).offset();
            let volume = store.volume();
            let stores = volume.write(
                at,
                &[run.page as u8 + 0x40; 16],
                nacre_types::StoreKind::Data,
            );
            volume.fence(stores).unwrap();
        }
    }
    assert_eq!(read_all(&store, a), pattern(1, 8192));
    assert_eq!(read(&store, b, 2 * PAGE + 16, 4080), [0; 4080]);
    let (first, second) = store.lock_pair(a, b).unwrap();
    let refused = store.clone_range(&first, 0, second.as_ref().unwrap(), 0, PAGE);
    assert!(matches!(refused, Err(StoreError::Busy)));
    drop((first, second));
    store.session().icore(b.0).mapped.fetch_sub(1, Relaxed);
    assert_sound(&store);
}

#[test]
fn nonsense_ranges_of_a_clone_are_refused() {
    let store = pool(16);
    let id = make_file(&store, "f");
    write(&store, id, 0, &pattern(1, 20_000), DIRECT).unwrap();
    let guard = store.lock(id).unwrap();
    for (from, to, len) in [
        (1, 8192, 4096),
        (0, 1, 4096),
        (0, 8192, 100),
        (0, 4096, 8192),
    ] {
        let refused = store.clone_range(&guard, from, &guard, to, len);
        assert!(
            matches!(refused, Err(StoreError::Invalid(_))),
            "{from} {to} {len}"
        );
    }
    assert_eq!(
        store.clone_range(&guard, 0, &guard, 8192, 8192).unwrap(),
        8192
    );
    drop(guard);
    let mut expected = pattern(1, 20_000);
    expected.copy_within(0..8192, 8192);
    assert_eq!(read_all(&store, id), expected);
    assert_sound(&store);
}

#[test]
fn an_empty_write_changes_nothing() {
    let store = pool(16);
    let id = make_file(&store, "f");
    let before = store.attrs(id).unwrap();
    assert_eq!(write(&store, id, 1000, b"", DIRECT).unwrap(), 0);
    assert_eq!(store.attrs(id).unwrap(), before);
    let guard = store.lock(id).unwrap();
    store
        .write(&guard, FileOffset(0), UserBytes::from(&b"x"[..]), DIRECT)
        .unwrap();
    drop(guard);
    assert_eq!(store.attrs(id).unwrap().size, 1);
}
