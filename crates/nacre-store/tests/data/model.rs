//! Random operations against files that are byte vectors.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;

use nacre_store::{EndOfFile, Holes, Store, WriteMode};
use nacre_types::ObjectId;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof, proptest};

use crate::pool::{
    PAGE, assert_sound, dirty_free_units, image, make_file, pattern, pool, read_all, remove,
    revive, with, write,
};

const FILES: usize = 2;

#[derive(Clone, Debug)]
enum Op {
    Write {
        file: usize,
        at: u64,
        len: usize,
        seed: u8,
        mode: WriteMode,
    },
    Append {
        file: usize,
        len: usize,
        seed: u8,
        mode: WriteMode,
    },
    Truncate {
        file: usize,
        size: u64,
    },
    Punch {
        file: usize,
        at: u64,
        len: u64,
    },
    Zero {
        file: usize,
        at: u64,
        len: u64,
        keep_size: bool,
    },
    Reserve {
        file: usize,
        at: u64,
        len: u64,
        keep_size: bool,
    },
    Clone {
        from: usize,
        at: u64,
        to: usize,
        to_at: u64,
        pages: u64,
    },
    Map {
        file: usize,
    },
    Unmap {
        file: usize,
    },
    Crash,
}

fn eof(keep_size: bool) -> EndOfFile {
    match keep_size {
        true => EndOfFile::Stays,
        false => EndOfFile::Moves,
    }
}

fn mode() -> impl Strategy<Value = WriteMode> {
    prop_oneof![Just(WriteMode::Direct), Just(WriteMode::Atomic)]
}

/// Offsets near the start and around the border of the first two leaves of the block map.
fn offset() -> impl Strategy<Value = u64> {
    let page = prop_oneof![4 => 0..12_u64, 1 => 508..516_u64];
    (page, prop_oneof![Just(0), 0..PAGE]).prop_map(|(page, byte)| page * PAGE + byte)
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![
        1..1100_usize,
        1..20_000_usize,
        (1..6_usize).prop_map(|n| n * PAGE as usize)
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let file = || 0..FILES;
    let long = || length().prop_map(|len| len as u64);
    prop_oneof![
        6 => (file(), offset(), length(), any::<u8>(), mode())
            .prop_map(|(file, at, len, seed, mode)| Op::Write { file, at, len, seed, mode }),
        3 => (file(), length(), any::<u8>(), mode())
            .prop_map(|(file, len, seed, mode)| Op::Append { file, len, seed, mode }),
        2 => (file(), offset()).prop_map(|(file, size)| Op::Truncate { file, size }),
        2 => (file(), offset(), long()).prop_map(|(file, at, len)| Op::Punch { file, at, len }),
        1 => (file(), offset(), long(), any::<bool>())
            .prop_map(|(file, at, len, keep_size)| Op::Zero { file, at, len, keep_size }),
        2 => (file(), offset(), long(), any::<bool>())
            .prop_map(|(file, at, len, keep_size)| Op::Reserve { file, at, len, keep_size }),
        3 => (file(), 0..10_u64, file(), 0..14_u64, 1..6_u64)
            .prop_map(|(from, at, to, to_at, pages)| Op::Clone { from, at, to, to_at, pages }),
        1 => file().prop_map(|file| Op::Map { file }),
        1 => file().prop_map(|file| Op::Unmap { file }),
        1 => Just(Op::Crash),
    ]
}

struct World {
    store: Store,
    ids: [ObjectId; FILES],
    files: [Vec<u8>; FILES],
    mapped: [bool; FILES],
    free_at_start: u64,
}

impl World {
    fn new() -> Self {
        let store = pool(32);
        dirty_free_units(&store);
        let free_at_start = store.statfs().free_units;
        let ids = [make_file(&store, "0"), make_file(&store, "1")];
        Self {
            store,
            ids,
            files: Default::default(),
            mapped: [false; FILES],
            free_at_start,
        }
    }

    fn model_write(&mut self, file: usize, at: u64, bytes: &[u8]) {
        let at = at as usize;
        let model = &mut self.files[file];
        if model.len() < at + bytes.len() {
            model.resize(at + bytes.len(), 0);
        }
        model[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn model_zero(&mut self, file: usize, at: u64, len: u64) {
        let model = &mut self.files[file];
        let size = model.len();
        let end = size.min((at + len) as usize);
        model[(at as usize).min(end)..end].fill(0);
    }

    fn model_extend(&mut self, file: usize, to: u64) {
        let model = &mut self.files[file];
        let size = model.len().max(to as usize);
        model.resize(size, 0);
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Write {
                file,
                at,
                len,
                seed,
                mode,
            } => self.write(file, at, len, seed, mode),
            Op::Append {
                file,
                len,
                seed,
                mode,
            } => {
                self.write(file, self.files[file].len() as u64, len, seed, mode);
            }
            Op::Truncate { file, size } => {
                with(&self.store, self.ids[file], |guard| {
                    self.store.truncate(guard, size)
                });
                self.files[file].resize(size as usize, 0);
            }
            Op::Punch { file, at, len } => {
                with(&self.store, self.ids[file], |guard| {
                    self.store.punch(guard, at, len)
                });
                self.model_zero(file, at, len);
            }
            Op::Zero {
                file,
                at,
                len,
                keep_size,
            } => {
                with(&self.store, self.ids[file], |g| {
                    self.store.zero_range(g, at, len, eof(keep_size))
                });
                self.model_zero(file, at, len);
                self.model_extend(file, if keep_size { 0 } else { at + len });
            }
            Op::Reserve {
                file,
                at,
                len,
                keep_size,
            } => {
                with(&self.store, self.ids[file], |g| {
                    self.store.preallocate(g, at, len, eof(keep_size))
                });
                self.model_extend(file, if keep_size { 0 } else { at + len });
            }
            Op::Clone {
                from,
                at,
                to,
                to_at,
                pages,
            } => self.clone(from, at, to, to_at, pages),
            Op::Map { file } => self.map(file),
            Op::Unmap { file } => self.unmap(file),
            Op::Crash => self.crash(),
        }
    }

    fn write(&mut self, file: usize, at: u64, len: usize, seed: u8, mode: WriteMode) {
        let bytes = pattern(seed, len);
        assert_eq!(
            write(&self.store, self.ids[file], at, &bytes, mode).unwrap(),
            len
        );
        self.model_write(file, at, &bytes);
    }

    fn clone(&mut self, from: usize, at: u64, to: usize, to_at: u64, pages: u64) {
        let overlap = from == to && at < to_at + pages && to_at < at + pages;
        if overlap || self.mapped[from] || self.mapped[to] {
            return;
        }
        let (at, to_at, len) = (at * PAGE, to_at * PAGE, pages * PAGE);
        let whole = self.files[from].len() as u64 & !(PAGE - 1);
        let len = len.min(whole.saturating_sub(at));
        let guards = self
            .store
            .lock_many(&[self.ids[from], self.ids[to]])
            .unwrap();
        let guard = |file: usize| guards.iter().find(|g| g.id() == self.ids[file]).unwrap();
        let cloned = self
            .store
            .clone_range(guard(from), at, guard(to), to_at, len)
            .unwrap();
        assert_eq!(cloned, len);
        drop(guards);
        if len > 0 {
            let bytes = self.files[from][at as usize..(at + len) as usize].to_vec();
            self.model_write(to, to_at, &bytes);
        }
    }

    fn map(&mut self, file: usize) {
        if !std::mem::replace(&mut self.mapped[file], true) {
            self.store
                .session()
                .icore(self.ids[file].0)
                .mapped
                .fetch_add(1, Relaxed);
            with(&self.store, self.ids[file], |guard| {
                self.store.map_for_sharing(guard, 0, 8, Holes::Fill)
            });
        }
    }

    fn unmap(&mut self, file: usize) {
        if std::mem::replace(&mut self.mapped[file], false) {
            self.store
                .session()
                .icore(self.ids[file].0)
                .mapped
                .fetch_sub(1, Relaxed);
            with(&self.store, self.ids[file], |guard| {
                self.store.after_unmap(guard)
            });
        }
    }

    /// Everything that returned is durable: another attach of the same bytes sees it.
    fn crash(&mut self) {
        (0..FILES).for_each(|file| self.unmap(file));
        self.store = revive(&image(&self.store)).unwrap();
    }

    fn assert_equal(&self) {
        for (file, model) in self.files.iter().enumerate() {
            let id = self.ids[file];
            assert_eq!(self.store.attrs(id).unwrap().size, model.len() as u64);
            let found = read_all(&self.store, id);
            let differs = found.iter().zip(model).position(|(a, b)| a != b);
            assert_eq!(differs, None, "file {file} differs");
            self.assert_holes(id, model);
        }
    }

    /// What counts as a hole must be zeros.
    fn assert_holes(&self, id: ObjectId, model: &[u8]) {
        let mut at = 0;
        while let Some(hole) = self.store.seek_hole(id, at).unwrap() {
            let end = self
                .store
                .seek_data(id, hole)
                .unwrap()
                .unwrap_or(model.len() as u64);
            assert!(
                model[hole as usize..end as usize]
                    .iter()
                    .all(|byte| *byte == 0)
            );
            at = end;
        }
    }

    fn finish(mut self) {
        (0..FILES).for_each(|file| self.unmap(file));
        assert_sound(&self.store);
        for name in ["0", "1"] {
            remove(&self.store, name);
        }
        assert_eq!(self.store.statfs().free_units, self.free_at_start);
        assert_sound(&self.store);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn files_behave_like_byte_vectors(ops in proptest::collection::vec(op(), 1..40)) {
        let mut world = World::new();
        for op in &ops {
            world.apply(op);
            world.assert_equal();
        }
        world.finish();
    }
}

#[test]
fn canary_a_model_that_forgets_a_write_is_noticed() {
    let mut world = World::new();
    world.write(0, 3, 5000, 7, WriteMode::Direct);
    world.assert_equal();
    let before = world.files[0].clone();
    world.write(0, 100, 1, 8, WriteMode::Direct);
    world.files[0] = before;
    assert!(catch_unwind(AssertUnwindSafe(|| world.assert_equal())).is_err());
}
