//! Moving contents to 2 MiB-aligned units, for shared mappings on devices that map 2 MiB pages
//! only.

use std::sync::atomic::Ordering::Relaxed;

use nacre_store::{CHUNK_PAGES, EndOfFile, Store, StoreError, WriteMode};
use nacre_types::ObjectId;
use nacre_volume::Volume;

use crate::pool::{
    PAGE, assert_sound, dirty_free_units, make_file, pattern, pool, read, read_all, with, write,
};

const DIRECT: WriteMode = WriteMode::Direct;

/// Maps all of a file, and checks what it is told.
fn map(store: &Store, id: ObjectId) -> Vec<nacre_store::MappedRun> {
    store.session().icore(id.0).mapped.fetch_add(1, Relaxed);
    let runs = with(store, id, |guard| {
        store.map_chunks_for_sharing(guard, 0, u64::MAX)
    })
    .runs;
    for run in &runs {
        assert!(run.page.is_multiple_of(CHUNK_PAGES) && run.count.is_multiple_of(CHUNK_PAGES));
        assert!(run.unit.0.is_multiple_of(CHUNK_PAGES));
    }
    runs
}

fn unmap(store: &Store, id: ObjectId) {
    store.session().icore(id.0).mapped.fetch_sub(1, Relaxed);
    with(store, id, |guard| store.after_unmap(guard));
}

/// A file with scattered written pages, holes, reserved pages and an end within a page.
fn scattered(store: &Store) -> (ObjectId, Vec<u8>) {
    let (id, other) = (make_file(store, "f"), make_file(store, "other"));
    for page in [0, 3, 4, 9, 600, 601] {
        write(
            store,
            id,
            page * PAGE + 7,
            &pattern(page as u8, 3000),
            DIRECT,
        )
        .unwrap();
        write(store, other, page * PAGE, b"between", DIRECT).unwrap();
    }
    with(store, id, |guard| {
        store.preallocate(guard, 20 * PAGE, 30 * PAGE, EndOfFile::Stays)
    });
    (id, read_all(store, id))
}

#[test]
fn a_chunk_moves_once_keeps_every_byte_and_shows_zeros_behind_the_end() {
    let store = pool(32);
    dirty_free_units(&store);
    let (id, old) = scattered(&store);
    let free = store.statfs().free_units;
    let runs = map(&store, id);
    assert_eq!(
        runs.iter().map(|run| run.count).sum::<u64>(),
        2 * CHUNK_PAGES
    );
    assert!(read_all(&store, id) == old);
    let last = runs.last().unwrap();
    let skip = old.len() as u64 - last.page * PAGE;
    let mut tail = vec![1; (last.count * PAGE - skip) as usize];
    let at = last.unit.offset().add(skip);
    store.volume().read(at, &mut tail);
    assert!(tail.iter().all(|byte| *byte == 0));
    assert_eq!(map(&store, id), runs, "what is aligned stays");
    write(&store, id, 5000, &pattern(8, 9000), DIRECT).unwrap();
    write(&store, id, old.len() as u64 + 90_000, b"end", DIRECT).unwrap();
    with(&store, id, |guard| store.punch(guard, 0, 2 * PAGE));
    assert_eq!(map(&store, id), runs, "while it is mapped");
    assert_eq!(read(&store, id, old.len() as u64, 90_000), vec![0; 90_000]);
    with(&store, id, |guard| store.truncate(guard, 0));
    store.session().icore(id.0).mapped.fetch_sub(2, Relaxed);
    unmap(&store, id);
    assert!(store.statfs().free_units >= free, "all units came back");
    assert_sound(&store);
}

#[test]
fn units_shared_with_another_file_are_left_to_it() {
    let store = pool(32);
    dirty_free_units(&store);
    let (a, b) = (make_file(&store, "a"), make_file(&store, "b"));
    write(&store, a, 0, &pattern(1, 10 * PAGE as usize), DIRECT).unwrap();
    {
        let (first, second) = store.lock_pair(a, b).unwrap();
        let to = second.as_ref().unwrap();
        store.clone_range(&first, 0, to, 0, 10 * PAGE).unwrap();
    }
    let runs = map(&store, b);
    let stored = store.volume().write(
        runs[0].unit.offset(),
        &[9; 100],
        nacre_types::StoreKind::Data,
    );
    store.volume().fence(stored).unwrap();
    assert!(read_all(&store, a) == pattern(1, 10 * PAGE as usize));
    assert_eq!(read(&store, b, 0, 100), [9; 100]);
    unmap(&store, b);
    assert_sound(&store);
}

#[test]
fn without_a_free_aligned_run_the_file_stays_as_it_is() {
    let store = pool(16);
    let (id, old) = scattered(&store);
    let filler = make_file(&store, "filler");
    while store.statfs().free_units > 600 {
        let at = store.attrs(filler).unwrap().size;
        write(&store, filler, at, &[1; 64 << 10], DIRECT).unwrap();
    }
    let guard = store.lock(id).unwrap();
    let refused = store
        .map_chunks_for_sharing(&guard, 0, u64::MAX)
        .unwrap_err();
    drop(guard);
    assert!(matches!(refused, StoreError::NoSpace), "{refused}");
    assert!(read_all(&store, id) == old);
    with(&store, id, |guard| store.after_unmap(guard));
    assert_sound(&store);
}

#[test]
fn a_volume_of_memory_maps_small_pages() {
    assert_eq!(Volume::memory(16 << 20).unwrap().granule(), PAGE);
}
