//! Crashes in the middle of one call: what was there before stays, what is new is new or old,
//! nothing else appears.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;

use nacre_store::{EndOfFile, Extent, ObjectGuard, Result, Store, WriteMode};
use nacre_testkit::image::Image;
use nacre_testkit::medium::{Depth, Medium};
use nacre_testkit::pool::{PRIVATE, memory_pool};
use nacre_testkit::random::Random;
use nacre_testkit::recorder::{Event, Recorder, What};
use nacre_types::{FileOffset, ObjectId};
use nacre_volume::UserBytes;

use crate::pool::{
    PAGE, assert_sound, dirty_free_units, make_file, pattern, read_all, with, write,
};

const SAMPLES: u64 = 8;
const DIRECT: WriteMode = WriteMode::Direct;
const ATOMIC: WriteMode = WriteMode::Atomic;

/// A small pool with dirty free units, a file and its recorder.
struct Bench {
    store: Store,
    id: ObjectId,
}

impl Bench {
    fn new(old: &[u8]) -> Self {
        let store = memory_pool(16 << 20);
        dirty_free_units(&store);
        let id = make_file(&store, "f");
        if !old.is_empty() {
            write(&store, id, 0, old, DIRECT).unwrap();
        }
        Self { store, id }
    }

    /// What a call does to the medium, and what it found there.
    fn record(
        &self,
        call: impl FnOnce(&Store, &ObjectGuard<'_>) -> Result<()>,
    ) -> (Image, Vec<Event>) {
        let start = Image::of(self.store.volume());
        let recorder = Recorder::of(self.store.volume());
        with(&self.store, self.id, |guard| call(&self.store, guard));
        (start, recorder.stop())
    }

    /// Runs `call`, then shows the file of every crash image to `allowed`.
    fn explore(
        &self,
        call: impl FnOnce(&Store, &ObjectGuard<'_>) -> Result<()>,
        allowed: &mut dyn FnMut(&[u8], &Store),
    ) {
        let (start, events) = self.record(call);
        let (mut medium, floor) = (Medium::default(), |line| start.line(line));
        let mut random = Random::new(1, 1);
        let mut images = 0;
        let depth = Depth {
            all_up_to: SAMPLES,
            samples: SAMPLES,
            aimed: false,
        };
        let mut judge = |medium: &Medium| {
            let choices = medium.choices(&floor);
            let Ok(()) = medium.images(&choices, depth, &mut random, |image| {
                images += 1;
                let volume = start.clone().with(image).volume();
                let revived = Store::attach(volume, &PRIVATE).unwrap();
                allowed(&read_all(&revived, self.id), &revived);
                assert_sound(&revived);
                Ok::<_, Infallible>(())
            });
        };
        for event in &events {
            if let What::Fence = event.what {
                judge(&medium);
            }
            medium.apply(event, &floor);
        }
        judge(&medium);
        assert!(images > 2, "a call must have fenced something");
    }
}

fn write_call(
    at: u64,
    bytes: &[u8],
    mode: WriteMode,
) -> impl FnOnce(&Store, &ObjectGuard<'_>) -> Result<()> {
    move |store, guard| {
        let written = store.write(guard, FileOffset(at), UserBytes::from(bytes), mode)?;
        assert_eq!(written, bytes.len());
        Ok(())
    }
}

fn after_write(old: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut new = old.to_vec();
    new.resize(old.len().max(at + bytes.len()), 0);
    new[at..at + bytes.len()].copy_from_slice(bytes);
    new
}

/// Old and new contents, and the calls that lead from one to the other.
fn writes() -> Vec<(Vec<u8>, u64, Vec<u8>)> {
    let page = PAGE as usize;
    vec![
        (pattern(1, 3 * page), 100, pattern(9, 200)),
        (pattern(1, 3 * page), PAGE, pattern(9, page)),
        (pattern(1, 3 * page), 1000, pattern(9, 2 * page)),
        (pattern(1, 5000), 5000, pattern(9, 64)),
        (pattern(1, 5000), 5000, pattern(9, 9000)),
        (pattern(1, 5000), 4000, pattern(9, 3000)),
        (pattern(1, 5000), 5500, pattern(9, 300)),
        (pattern(1, 100), 3 * PAGE + 5, pattern(9, 5000)),
        (Vec::new(), 0, pattern(9, 300)),
        (Vec::new(), 0, pattern(9, 3 * page)),
        (pattern(1, page), PAGE, pattern(9, 2 * page)),
        (pattern(1, 1000), 2000, pattern(9, 600)),
    ]
}

#[test]
fn canary_a_flush_that_is_forgotten_is_found() {
    let bench = Bench::new(&pattern(1, 3 * PAGE as usize));
    let bytes = pattern(9, 200);
    let (start, mut events) = bench.record(write_call(5000, &bytes, DIRECT));
    let end = |events: &[Event]| {
        // What is not durable is lost.
        let (mut medium, floor) = (Medium::default(), |line| start.line(line));
        events.iter().for_each(|event| medium.apply(event, &floor));
        let volume = start.clone().with(&medium.settled).volume();
        read_all(&Store::attach(volume, &PRIVATE).unwrap(), bench.id)[5000..5200] == bytes
    };
    assert!(end(&events));
    events.retain(|event| !matches!(event.what, What::Flush { .. }));
    assert!(!end(&events));
}

#[test]
fn direct_writes_leave_old_or_new_bytes_and_touch_nothing_else() {
    for (old, at, bytes) in writes() {
        let bench = Bench::new(&old);
        let new = after_write(&old, at as usize, &bytes);
        bench.explore(write_call(at, &bytes, DIRECT), &mut |found, _| {
            assert!(found.len() == old.len() || found.len() == new.len());
            for (index, &byte) in found.iter().enumerate() {
                let before = old.get(index).copied().unwrap_or(0);
                assert!(
                    byte == before || byte == new[index],
                    "byte {index} of write at {at}"
                );
            }
        });
    }
}

#[test]
fn atomic_writes_are_there_as_a_whole_or_not_at_all() {
    for (old, at, bytes) in writes() {
        let bench = Bench::new(&old);
        let new = after_write(&old, at as usize, &bytes);
        bench.explore(write_call(at, &bytes, ATOMIC), &mut |found, _| {
            assert!(
                found == old || found == new,
                "write of {} at {at}",
                bytes.len()
            );
        });
    }
}

#[test]
fn writes_into_holes_and_reserved_units_expose_no_old_bytes() {
    for mode in [DIRECT, ATOMIC] {
        for reserve in [false, true] {
            let bench = Bench::new(&pattern(1, 100));
            with(&bench.store, bench.id, |guard| {
                bench.store.truncate(guard, 6 * PAGE)
            });
            if reserve {
                with(&bench.store, bench.id, |g| {
                    bench.store.preallocate(g, 0, 6 * PAGE, EndOfFile::Moves)
                });
            }
            let old = read_all(&bench.store, bench.id);
            let bytes = pattern(9, 6000);
            let new = after_write(&old, 9000, &bytes);
            bench.explore(write_call(9000, &bytes, mode), &mut |found, _| {
                let mixed = found
                    .iter()
                    .zip(&old)
                    .zip(&new)
                    .all(|((f, o), n)| f == o || f == n);
                assert!(found.len() == old.len() && mixed);
                assert!(mode == DIRECT || found == old || found == new);
            });
        }
    }
}

#[test]
fn truncation_is_atomic_and_growing_shows_zeros() {
    let old = pattern(1, 5 * PAGE as usize + 77);
    for size in [0, 10, PAGE, 3 * PAGE + 9, 5 * PAGE + 70, 9 * PAGE + 3] {
        let bench = Bench::new(&old);
        let mut new = old.clone();
        new.resize(size as usize, 0);
        bench.explore(
            |store, guard| store.truncate(guard, size),
            &mut |found, revived| {
                assert!(found == old || found == new, "truncate to {size}");
                with(revived, bench.id, |guard| {
                    revived.truncate(guard, 10 * PAGE)
                });
                let mut grown = found.to_vec();
                grown.resize(10 * PAGE as usize, 0);
                assert!(
                    read_all(revived, bench.id) == grown,
                    "growth after truncate to {size}"
                );
            },
        );
    }
}

#[test]
fn shrinking_and_growing_again_shows_zeros() {
    let old = pattern(1, 5 * PAGE as usize);
    let bench = Bench::new(&old);
    let calls = |store: &Store, guard: &ObjectGuard<'_>| {
        store.truncate(guard, 5000)?;
        store.truncate(guard, 4 * PAGE)?;
        store.write(
            guard,
            FileOffset(4 * PAGE + 100),
            UserBytes::from(&b"end"[..]),
            DIRECT,
        )?;
        Ok(())
    };
    let short = old[..5000].to_vec();
    let end = after_write(&short, 4 * PAGE as usize + 100, b"end");
    bench.explore(calls, &mut |found, _| {
        let zeros = found.len() > 5000
            && found[5000..]
                .iter()
                .zip(&end[5000..])
                .all(|(f, e)| *f == 0 || f == e);
        assert!(found == old || found == short || found.starts_with(&short) && zeros);
    });
}

#[test]
fn a_punched_hole_shows_old_bytes_or_zeros() {
    let old = pattern(1, 6 * PAGE as usize + 5);
    let bench = Bench::new(&old);
    let punch = |store: &Store, guard: &ObjectGuard<'_>| store.punch(guard, 1000, 3 * PAGE);
    bench.explore(punch, &mut |found, _| {
        let range = 1000..1000 + 3 * PAGE as usize;
        let fits = |(i, byte): (usize, &u8)| *byte == old[i] || range.contains(&i) && *byte == 0;
        assert!(found.len() == old.len() && found.iter().enumerate().all(fits));
    });
}

#[test]
fn a_clone_shows_old_bytes_zeros_or_new_bytes() {
    // The words of pages 0 and 16 lie in different cache lines.
    let old = pattern(1, 20 * PAGE as usize);
    let bench = Bench::new(&old);
    let clone = |store: &Store, guard: &ObjectGuard<'_>| {
        store
            .clone_range(guard, 0, guard, 16 * PAGE, 2 * PAGE)
            .map(drop)
    };
    bench.explore(clone, &mut |found, _| {
        let range = 16 * PAGE as usize..18 * PAGE as usize;
        let fits = |(i, byte): (usize, &u8)| {
            *byte == old[i] || range.contains(&i) && (*byte == 0 || *byte == old[i - range.start])
        };
        assert!(found.len() == old.len() && found.iter().enumerate().all(fits));
    });
}

#[test]
fn growing_into_a_shared_unit_shows_zeros() {
    let old = pattern(1, 3 * PAGE as usize);
    let bench = Bench::new(&old);
    let (store, id) = (&bench.store, bench.id);
    with(store, id, |guard| {
        store.clone_range(guard, 0, guard, 3 * PAGE, 3 * PAGE)
    });
    with(store, id, |guard| store.truncate(guard, 5 * PAGE + 100));
    let before = read_all(store, id);
    let mut after = before.clone();
    after.resize(6 * PAGE as usize, 0);
    bench.explore(
        |store, guard| store.truncate(guard, 6 * PAGE),
        &mut |found, _| {
            assert!(found == before || found == after);
        },
    );
}

#[test]
fn writes_to_shared_units_never_reach_the_other_owner() {
    for mode in [DIRECT, ATOMIC] {
        let old = pattern(1, 3 * PAGE as usize);
        let bench = Bench::new(&old);
        with(&bench.store, bench.id, |guard| {
            bench.store.clone_range(guard, 0, guard, 4 * PAGE, 3 * PAGE)
        });
        let before = read_all(&bench.store, bench.id);
        let bytes = pattern(9, 5000);
        let new = after_write(&before, 1000, &bytes);
        bench.explore(write_call(1000, &bytes, mode), &mut |found, _| {
            assert!(found[6000..] == before[6000..] && found[..1000] == before[..1000]);
            let mixed = found
                .iter()
                .zip(&before)
                .zip(&new)
                .all(|((f, o), n)| f == o || f == n);
            assert!(mixed && (mode == DIRECT || found == before || found == new));
        });
    }
}

#[test]
fn growing_the_map_by_a_level_loses_nothing() {
    for mode in [DIRECT, ATOMIC] {
        let old = pattern(1, PAGE as usize);
        let bench = Bench::new(&old);
        let at = 600 * PAGE + 17;
        let bytes = pattern(9, 100);
        bench.explore(write_call(at, &bytes, mode), &mut |found, _| {
            assert!(found[..PAGE as usize] == old);
            let rest = &found[PAGE as usize..];
            assert!(rest.is_empty() || found.len() == at as usize + 100);
            assert!(
                rest.iter()
                    .take(at as usize - PAGE as usize)
                    .all(|byte| *byte == 0)
            );
        });
    }
}

#[test]
fn freed_units_reach_another_file_only_when_they_are_durably_gone() {
    type Free = fn(&Store, &ObjectGuard<'_>) -> Result<()>;
    let frees: [Free; 4] = [
        |store, guard| store.truncate(guard, 0),
        |store, guard| store.truncate(guard, PAGE),
        |store, guard| store.punch(guard, PAGE, PAGE),
        |store, guard| {
            let bytes = UserBytes::from(&[9; PAGE as usize][..]);
            store
                .write(guard, FileOffset(PAGE), bytes, ATOMIC)
                .map(drop)
        },
    ];
    for free in frees {
        let old = pattern(1, 3 * PAGE as usize);
        let bench = Bench::new(&old);
        let other = make_file(&bench.store, "other");
        write(&bench.store, other, 0, b"x", DIRECT).unwrap();
        write(&bench.store, other, 2 * PAGE, b"x", DIRECT).unwrap();
        let freed = unit_of(&bench.store, bench.id, PAGE);
        let foreign = pattern(0x55, PAGE as usize);
        let reuse = |store: &Store, guard: &ObjectGuard<'_>| {
            free(store, guard)?;
            store
                .session()
                .icore(other.0)
                .alloc_hint
                .store(freed, Relaxed);
            write(store, other, PAGE, &foreign, DIRECT)?;
            assert_eq!(
                unit_of(store, other, PAGE),
                freed,
                "the test must reuse the unit"
            );
            Ok(())
        };
        bench.explore(reuse, &mut |found, _| {
            let range = PAGE as usize..2 * PAGE as usize;
            let page = found.get(range.clone()).unwrap_or(&[]);
            let leaked = page.iter().zip(&foreign).zip(&old[range]);
            let leaked = leaked.filter(|((byte, foreign), old)| byte == foreign && byte != old);
            assert!(leaked.count() < 200, "bytes of another file");
        });
    }
}

#[test]
fn a_crash_while_contents_move_for_a_mapping_changes_no_byte() {
    let bench = Bench::new(&pattern(1, 5000));
    write(&bench.store, bench.id, 70_000, &pattern(2, 9000), DIRECT).unwrap();
    with(&bench.store, bench.id, |guard| {
        bench
            .store
            .preallocate(guard, 100_000, 20_000, EndOfFile::Stays)
    });
    let old = read_all(&bench.store, bench.id);
    bench.explore(
        |store, guard| store.map_chunks_for_sharing(guard, 0, 100).map(drop),
        &mut |found, revived| {
            assert!(found == old);
            with(revived, bench.id, |guard| revived.truncate(guard, 300_000));
            let mut grown = old.clone();
            grown.resize(300_000, 0);
            assert!(read_all(revived, bench.id) == grown);
        },
    );
}

fn unit_of(store: &Store, id: ObjectId, offset: u64) -> u64 {
    let mut unit = 0;
    let mut note = |extent: Extent| {
        unit = extent.unit.0;
        ControlFlow::Break(())
    };
    store.extents(id, offset, offset + PAGE, &mut note).unwrap();
    unit
}
