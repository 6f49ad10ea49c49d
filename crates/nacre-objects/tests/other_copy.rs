//! Metadata that is damaged on one copy of a pool, while programs use it (D113, D127).

use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use nacre_objects::{OpenOptions, Pool, Transaction};
use nacre_store::Tree;
use nacre_store::scrub::{Doubtful, Owner, Report, scrub, scrub_spans};
use nacre_store::structure_index::{Part, Structure, survey};
use nacre_testkit::damage::{self, DATA_START, KINDS, NAMES, are_alike, two_copies, two_disks};
use nacre_testkit::pool::PoolFiles;

const OBJECTS: u8 = 3;
const KEYS: u8 = 60;
/// Whole units: nothing but the value lies in them.
const LONG: usize = 8192;
/// A value that has an onode of its own.
const OWN: usize = 40_000;
/// Where the second part of an object's contents lies: a map of three levels leads there.
const FAR: u64 = 2 << 30;

struct Rig {
    files: PoolFiles,
    parts: Vec<Part>,
}

fn name(number: u8) -> [u8; 4] {
    u32::from(number).to_be_bytes()
}

fn contents(number: u8) -> Vec<u8> {
    (0..9000).map(|at| number ^ at as u8).collect()
}

fn value(number: u8, len: usize) -> Vec<u8> {
    vec![number + 1; len]
}

impl Rig {
    /// A closed pool whose metadata nobody has looked at since.
    fn new() -> Rig {
        Rig::of(two_copies())
    }

    fn of(files: PoolFiles) -> Rig {
        let parts = Vec::new();
        let mut rig = Rig { files, parts };
        let pool = rig.open();
        let mut t = Transaction::new();
        t.create_collection(b"c");
        for number in 0..OBJECTS {
            let name = name(number);
            t.write(b"c", &name, 0, contents(number));
            t.write(b"c", &name, FAR, contents(number));
            t.set_attribute(b"c", &name, b"short", value(number, 300));
            t.set_attribute(b"c", &name, b"long", value(number, LONG));
            for key in 0..KEYS {
                t.set_omap(b"c", &name, &[key; 20], value(number, 300));
            }
            t.set_omap(b"c", &name, b"long", value(number, LONG));
            t.set_omap(b"c", &name, b"own", value(number, OWN));
            t.set_attribute(b"c", &name, b"own", value(number, OWN));
        }
        pool.commit(&t).unwrap();
        rig.parts = survey(pool.store());
        pool.close().unwrap();
        rig
    }

    fn open(&self) -> Pool {
        Pool::open(self.files.file("a"), OpenOptions::default()).unwrap()
    }

    /// Inverts what is of some kind on one device; answers how much that is.
    fn wreck(&self, name: &str, is_one: impl Fn(Structure) -> bool) -> usize {
        damage::wreck(&self.files.file(name), &self.parts, is_one)
    }

    /// Spoils where the first object's nodes of some kind begin.
    fn wreck_heads(&self, name: &str, is_one: impl Fn(Structure) -> bool) {
        let file = File::options().write(true).open(self.files.file(name));
        let file = file.unwrap();
        let mut parts = self.parts.iter().filter(|part| is_one(part.what));
        let object = parts.next_back().and_then(|part| part.object);
        for part in self
            .parts
            .iter()
            .filter(|part| is_one(part.what) && part.object == object)
        {
            file.write_all_at(&[255; 16], DATA_START + part.at.0)
                .unwrap();
        }
    }

    /// What is of some kind on a device.
    fn metadata(&self, name: &str, is_one: impl Fn(Structure) -> bool) -> Vec<u8> {
        let file = File::open(self.files.file(name)).unwrap();
        let parts = self.parts.iter().filter(|part| is_one(part.what));
        let bytes = parts.map(|part| {
            let mut bytes = vec![0; part.len as usize];
            let read = file.read_exact_at(&mut bytes, DATA_START + part.at.0);
            read.map(|()| bytes).unwrap()
        });
        bytes.collect::<Vec<_>>().concat()
    }
}

type Use = fn(&Pool, u8) -> nacre_objects::Result<()>;

fn is_there(pool: &Pool, number: u8, at: u64) -> nacre_objects::Result<()> {
    let mut bytes = [0; 9000];
    let len = pool.read(b"c", &name(number), at, &mut bytes)?;
    assert!(len == 9000 && bytes[..] == contents(number));
    Ok(())
}

fn listed(pool: &Pool, number: u8) -> nacre_objects::Result<()> {
    let found = pool.omap_range(b"c", &name(number), b"", 1000)?;
    assert_eq!(found.len(), usize::from(KEYS) + 2);
    for (key, found) in found {
        let len = match &key[..] {
            b"long" => LONG,
            b"own" => OWN,
            _ => 300,
        };
        assert_eq!(found, value(number, len));
    }
    Ok(())
}

/// Reading calls.
const READS: [(&str, Use); 9] = [
    ("stat", |pool, number| {
        assert_eq!(pool.stat(b"c", &name(number))?.size, FAR + 9000);
        Ok(())
    }),
    ("read", |pool, number| is_there(pool, number, 0)),
    ("read far", |pool, number| is_there(pool, number, FAR)),
    ("extents", |pool, number| {
        let found = pool.extents(b"c", &name(number), 0..u64::MAX, 9)?;
        assert_eq!(found.len(), 2);
        Ok(())
    }),
    ("attribute", |pool, number| {
        let found = pool.attribute(b"c", &name(number), b"long")?;
        assert_eq!(found, value(number, LONG));
        let found = pool.attribute(b"c", &name(number), b"short")?;
        assert_eq!(found, value(number, 300));
        let found = pool.attribute(b"c", &name(number), b"own")?;
        assert_eq!(found, value(number, OWN));
        Ok(())
    }),
    ("attributes", |pool, number| {
        assert_eq!(pool.attributes(b"c", &name(number))?.len(), 3);
        Ok(())
    }),
    ("omap", |pool, number| {
        let found = pool.omap(b"c", &name(number), &[number; 20])?;
        assert_eq!(found, Some(value(number, 300)));
        let found = pool.omap(b"c", &name(number), b"long")?;
        assert_eq!(found, Some(value(number, LONG)));
        let found = pool.omap(b"c", &name(number), b"own")?;
        assert_eq!(found, Some(value(number, OWN)));
        Ok(())
    }),
    ("omap range", listed),
    ("objects", |pool, _| {
        assert_eq!(pool.objects(b"c", b"", 99)?.len(), usize::from(OBJECTS));
        Ok(())
    }),
];

fn commit(
    pool: &Pool,
    change: impl FnOnce(&mut Transaction<'static>),
) -> nacre_objects::Result<()> {
    let mut t = Transaction::new();
    change(&mut t);
    pool.commit(&t)
}

/// Changing calls, which leave what the reading ones look at.
const CHANGES: [(&str, Use); 7] = [
    ("write", |pool, number| {
        commit(pool, |t| {
            t.write(b"c", &name(number), 8 << 20, vec![1; 100]);
            t.write(
                b"c",
                &name(number),
                100,
                contents(number)[100..200].to_vec(),
            );
            t.zero(b"c", &name(number), 8 << 20, 4096);
        })
    }),
    ("set attribute", |pool, number| {
        commit(pool, |t| {
            t.set_attribute(b"c", &name(number), b"new", vec![7; 10]);
            t.set_attribute(b"c", &name(number), b"long", value(number, LONG));
            t.remove_attribute(b"c", &name(number), b"new");
        })
    }),
    ("set omap", |pool, number| {
        commit(pool, |t| {
            t.set_omap(b"c", &name(number), &[number; 20], value(number, 300));
            t.set_omap(b"c", &name(number), b"long", value(number, LONG));
            t.set_omap(b"c", &name(number), b"own", value(number, OWN));
            t.set_omap(b"c", &name(number), b"new", vec![7; 100]);
            t.remove_omap(b"c", &name(number), b"new");
        })
    }),
    ("truncate", |pool, number| {
        commit(pool, |t| {
            t.write(b"c", &name(number), FAR + 9000, vec![1; 100]);
            t.truncate(b"c", &name(number), FAR + 9000);
        })
    }),
    ("clone", |pool, number| {
        commit(pool, |t| {
            t.clone_object(b"c", &name(number), b"clone");
        })?;
        assert_eq!(pool.omap_range(b"c", b"clone", b"", 1000)?.len(), 62);
        commit(pool, |t| {
            t.remove(b"c", b"clone");
        })
    }),
    ("rename", |pool, number| {
        commit(pool, |t| {
            t.rename((b"c", &name(number)), (b"c", b"renamed"));
        })?;
        commit(pool, |t| {
            t.rename((b"c", b"renamed"), (b"c", &name(number)));
        })
    }),
    ("remove", |pool, number| {
        commit(pool, |t| {
            t.remove(b"c", &name(number));
        })?;
        commit(pool, |t| {
            t.write(b"c", &name(number), 0, contents(number));
            t.write(b"c", &name(number), FAR, contents(number));
            t.set_attribute(b"c", &name(number), b"short", value(number, 300));
            t.set_attribute(b"c", &name(number), b"long", value(number, LONG));
            for key in 0..KEYS {
                t.set_omap(b"c", &name(number), &[key; 20], value(number, 300));
            }
            t.set_omap(b"c", &name(number), b"long", value(number, LONG));
            t.set_omap(b"c", &name(number), b"own", value(number, OWN));
            t.set_attribute(b"c", &name(number), b"own", value(number, OWN));
        })
    }),
];

fn use_all(pool: &Pool, (call, one): (&str, Use), what: &str) {
    for number in 0..OBJECTS {
        one(pool, number).unwrap_or_else(|error| panic!("{what}, {call} of {number}: {error}"));
    }
}

fn read_all(pool: &Pool, what: &str) {
    READS.into_iter().for_each(|call| use_all(pool, call, what));
}

impl Rig {
    /// One device alone has everything.
    fn is_whole_alone(&self, name: &str, other: &str, what: &str) {
        let away = self.files.file("away");
        std::fs::rename(self.files.file(other), &away).unwrap();
        let pool = Pool::open(self.files.file(name), OpenOptions::default()).unwrap();
        read_all(&pool, what);
        pool.close().unwrap();
        let problems = Pool::check(self.files.file(name)).unwrap();
        assert!(problems.is_empty(), "{what}: {problems:?}");
        std::fs::rename(away, self.files.file(other)).unwrap();
    }
}

#[test]
fn what_is_damaged_on_the_copy_that_is_read_is_repaired_by_who_meets_it() {
    for (kind, is_one) in KINDS {
        for call in READS {
            let rig = Rig::new();
            assert!(rig.wreck("a", is_one) >= usize::from(OBJECTS), "{kind}");
            let pool = rig.open();
            use_all(&pool, call, kind);
            read_all(&pool, kind);
            assert!(pool.store().volume().copy_counts().repaired > 0, "{kind}");
            pool.close().unwrap();
            assert!(
                are_alike(&rig.files),
                "{kind}, {}: the copies differ",
                call.0
            );
            rig.is_whole_alone("a", "b", kind);
        }
    }
}

#[test]
fn a_change_meets_damage_and_is_made() {
    for (kind, is_one) in KINDS {
        for call in CHANGES {
            let rig = Rig::new();
            rig.wreck("a", is_one);
            let pool = rig.open();
            use_all(&pool, call, kind);
            read_all(&pool, kind);
            pool.close().unwrap();
            rig.is_whole_alone("a", "b", kind);
            rig.is_whole_alone("b", "a", kind);
        }
    }
}

#[test]
fn damage_of_the_copy_that_is_not_read_changes_nothing() {
    for (kind, is_one) in KINDS {
        let rig = Rig::new();
        rig.wreck("b", is_one);
        let before = rig.metadata("b", is_one);
        let pool = rig.open();
        read_all(&pool, kind);
        assert_eq!(pool.store().volume().copy_counts().repaired, 0, "{kind}");
        pool.close().unwrap();
        assert!(rig.metadata("b", is_one) == before, "{kind}");
    }
}

#[test]
fn what_is_damaged_after_it_was_read_is_repaired_too() {
    for (kind, is_one) in KINDS {
        for call in READS.into_iter().chain(CHANGES) {
            let rig = Rig::new();
            let pool = rig.open();
            read_all(&pool, kind);
            rig.wreck("a", is_one);
            use_all(&pool, call, kind);
            read_all(&pool, kind);
            scrub_suspects(&pool);
            pool.close().unwrap();
            rig.is_whole_alone("a", "b", kind);
            rig.is_whole_alone("b", "a", kind);
        }
    }
}

/// Who stores to objects while their metadata is damaged again and again loses nothing.
#[test]
fn nothing_that_is_committed_meanwhile_is_taken_back() {
    const ROUNDS: u32 = 150;
    let rig = Rig::new();
    let pool = rig.open();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let damager = scope.spawn(|| {
            while !done.load(Relaxed) {
                for (_, is_one) in &KINDS[2..4] {
                    rig.wreck_heads("a", is_one);
                    let _damage = READS.into_iter().all(|(_, one)| one(&pool, 0).is_ok());
                }
            }
        });
        for round in 1..=ROUNDS {
            let object = name(1 + (round % 2) as u8);
            let change = |t: &mut Transaction<'static>| {
                t.set_omap(b"c", &object, b"round", round.to_be_bytes().to_vec());
                t.set_attribute(b"c", &object, b"round", round.to_be_bytes().to_vec());
            };
            commit(&pool, change).unwrap();
            let found = pool.attribute(b"c", &object, b"round").unwrap();
            assert_eq!(found, round.to_be_bytes());
        }
        done.store(true, Relaxed);
        damager.join().unwrap();
    });
    let found = |object: u8| pool.omap(b"c", &name(object), b"round").unwrap().unwrap();
    assert_eq!(found(1), ROUNDS.to_be_bytes());
    assert_eq!(found(2), (ROUNDS - 1).to_be_bytes());
    pool.close().unwrap();
}

/// As who stays beside programs does: what was read before and is not read again is damaged, too.
fn scrub_suspects(pool: &Pool) {
    while let Some(span) = pool.store().volume().take_suspect() {
        let go_on = &mut |_| ControlFlow::Continue(());
        scrub_spans(pool.store(), span..span + 1, &Doubtful::Told, go_on).unwrap();
    }
}

fn scrub_all(pool: &Pool) -> Report {
    let go_on = &mut |_| ControlFlow::Continue(());
    scrub(pool.store(), 1, &Doubtful::Told, go_on).unwrap()
}

#[test]
fn a_scrub_repairs_log_tails() {
    for name in NAMES {
        let rig = Rig::new();
        let pool = rig.open();
        rig.wreck(name, |what| what == Structure::LogTailWord);
        let report = scrub_all(&pool);
        assert!(
            report.left == 0 && report.repaired > 0,
            "{name}: {report:?}"
        );
        pool.close().unwrap();
        assert!(are_alike(&rig.files), "{name}: the copies differ");
    }
}

#[test]
fn a_scrub_repairs_long_values_and_says_whose_they_are() {
    for name in NAMES {
        let rig = Rig::new();
        let wrecked = rig.wreck(name, |what| what == Structure::Value);
        let pool = rig.open();
        let report = scrub_all(&pool);
        assert_eq!((report.left, report.more), (0, 0), "{name}");
        assert_eq!(report.damages.len(), wrecked, "{name}");
        for damage in &report.damages {
            assert!(
                matches!(damage.owners[..], [(_, Owner::Value(_))]),
                "{damage:?}"
            );
            assert_eq!(damage.difference.wrong, [rig.files.file(name)]);
        }
        read_all(&pool, name);
        pool.close().unwrap();
        assert!(are_alike(&rig.files), "{name}: the copies differ");
    }
}

/// Nobody reads the room of a node between its index and its entries.
#[test]
fn a_scrub_makes_copies_agree_in_what_says_nothing() {
    for name in NAMES {
        let rig = Rig::new();
        let pool = rig.open();
        let is_leaf = |part: &&Part| part.what == Structure::TreeNode(Tree::Entries, 0);
        // That of the names of collections: the first one.
        let leaf = rig
            .parts
            .iter()
            .filter(is_leaf)
            .min_by_key(|part| part.object);
        let file = File::options().write(true).open(rig.files.file(name));
        let room = DATA_START + leaf.unwrap().at.0 + 2048;
        file.unwrap().write_all_at(&[7; 64], room).unwrap();
        let report = scrub_all(&pool);
        assert_eq!((report.left, report.damages.len()), (0, 1), "{name}");
        read_all(&pool, name);
        pool.close().unwrap();
        assert!(are_alike(&rig.files), "{name}: the copies differ");
    }
}

#[test]
fn log_tails_and_lists_that_are_damaged_while_the_pool_is_used_come_from_the_other_copy() {
    let is_one = |what| matches!(what, Structure::LogTailWord | Structure::ListWord);
    for name in NAMES {
        let rig = Rig::new();
        let pool = rig.open();
        assert!(rig.wreck(name, is_one) > 1024);
        use_all(&pool, CHANGES[0], name);
        read_all(&pool, name);
        pool.close().unwrap();
        let pool = rig.open();
        use_all(&pool, CHANGES[0], name);
        pool.close().unwrap();
        rig.is_whole_alone("a", "b", name);
    }
}

#[test]
fn what_is_damaged_on_both_copies_is_an_error_and_stays_as_it_is() {
    for (kind, is_one) in KINDS {
        let rig = Rig::new();
        rig.wreck("a", is_one);
        rig.wreck("b", is_one);
        let before = NAMES.map(|name| rig.metadata(name, is_one));
        let pool = rig.open();
        let failed = READS.into_iter().filter(|(_, one)| one(&pool, 0).is_err());
        assert!(failed.count() > 0, "{kind}");
        assert_eq!(pool.store().volume().copy_counts().repaired, 0, "{kind}");
        pool.close().unwrap();
        let after = NAMES.map(|name| rig.metadata(name, is_one));
        assert!(after == before, "{kind}");
    }
}

#[test]
fn what_is_damaged_on_one_disk_comes_from_the_other() {
    for (kind, is_one) in KINDS {
        for (number, call) in READS.into_iter().chain(CHANGES).enumerate() {
            let wrecked = NAMES[number % 2];
            let rig = Rig::of(two_disks());
            assert!(rig.wreck(wrecked, is_one) >= usize::from(OBJECTS), "{kind}");
            let pool = rig.open();
            use_all(&pool, call, kind);
            read_all(&pool, kind);
            let report = scrub_all(&pool);
            assert_eq!(report.left, 0, "{kind}, {} on {wrecked}", call.0);
            read_all(&pool, kind);
            pool.close().unwrap();
            rig.is_whole_alone("a", "b", kind);
            rig.is_whole_alone("b", "a", kind);
        }
    }
}
