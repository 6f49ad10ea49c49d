//! Crashes in the middle of transactions on objects: all of each is there, or nothing of it.

use std::sync::Arc;

use nacre_fs::Fs;
use nacre_objects::{HashBits, Pool, Transaction};

use crate::action::{Action, hoard};
use crate::bench::Bench;
use crate::ground::Ground;
use crate::object_plan::plan;
use crate::objects_lanes;
use crate::objects_seen::{DIRECT, World, attach_with_behind, commit, contents, look, see, stamp};
use crate::sabotage::Sabotage;
use crate::workload::{BEHIND, Worlds};
use nacre_store::Store;
use nacre_store::structure_index::{Part, Structure, survey};
use nacre_testkit::medium::{Depth, Difference, Medium};
use nacre_testkit::random::Random;
use nacre_testkit::recorder::{Event, Recorder, What};

const DEPTH: Depth = Depth {
    all_up_to: 48,
    samples: 60,
    aimed: false,
};
/// After so many images one is worked on.
const WORKED_ON: u64 = 16;

/// A transaction and what it is called.
type Named = (&'static str, Transaction<'static>);

/// Crashes each transaction at every fence; how many images were looked at. Returns all events.
pub fn run(
    worlds: &Worlds,
    sabotage: Sabotage,
    seed: u64,
    images: &mut u64,
) -> Result<Vec<Event>, String> {
    let mut all = each_alone(worlds, sabotage, seed, images)?;
    all.extend(objects_lanes::run(worlds, sabotage, seed, images)?);
    all.extend(makes_room(worlds, sabotage, seed, images)?);
    Ok(all)
}

fn each_alone(
    worlds: &Worlds,
    sabotage: Sabotage,
    seed: u64,
    images: &mut u64,
) -> Result<Vec<Event>, String> {
    let prepared = prepare(&worlds.alone, 0)?;
    let mut all = Vec::new();
    for (name, transaction) in transactions() {
        let found = crash(&prepared, &transaction, sabotage, seed, images);
        all.extend(found.map_err(|why| format!("transaction {name:?} crashed: {why}"))?);
    }
    Ok(all)
}

/// The pool on which transactions are tried.
pub struct Prepared(Vec<u8>);

impl Prepared {
    /// Makes it.
    pub fn new(worlds: &Worlds) -> Result<Prepared, String> {
        prepare(&worlds.alone, 0).map(Prepared)
    }

    /// Crashes the transaction of this number, one made at random.
    pub fn explore(
        &self,
        seed: u64,
        number: u64,
        sabotage: Sabotage,
        images: &mut u64,
    ) -> Result<(), String> {
        let crashed = crash(&self.0, &plan(seed, number), sabotage, seed, images);
        let what = |why| format!("transaction on objects {seed}:o{number} crashed: {why}");
        crashed.map(drop).map_err(what)
    }
}

/// A pool with files and with some objects, as the death of its process leaves it.
fn prepare(base: &Arc<[u8]>, behind: u64) -> Result<Vec<u8>, String> {
    let pool = attach_with_behind(base, behind)?;
    let mut t = Transaction::new();
    t.create_collection(b"c").create_collection(b"empty");
    for name in ["a", "b", "small", "kaaa"] {
        t.write(b"c", name.as_bytes(), 0, stamp(9000));
        t.set_attribute(b"c", name.as_bytes(), b"_", stamp(40));
        t.set_omap(b"c", name.as_bytes(), b"key", stamp(30));
    }
    t.truncate(b"c", b"small", 100);
    t.set_omap(b"c", b"b", b"big", stamp(40_000));
    t.set_omap(b"c", b"b", &long(b"l", 1), stamp(10));
    t.set_omap_header(b"c", b"b", stamp(20));
    t.create(b"c", &long(b"n", 1))
        .clone_object(b"c", b"a", b"twin");
    commit(&pool, &t)?;
    leave_gaps(&pool)?;
    fill_leaf(&pool)?;
    let is_parts = |part: &Part| matches!(part.what, Structure::PartsNode(..));
    if !survey(pool.store()).iter().any(is_parts) {
        return Err("no part of a page has a place of its own".into());
    }
    let contents = contents(pool.store());
    drop(pool.into_store().abandon());
    Ok(contents)
}

/// Leaves parts of pages in second units, and bytes between entries of nodes that belong to none:
/// where values were replaced, and where entries were removed from a full node.
fn leave_gaps(pool: &Pool) -> Result<(), String> {
    let mut t = Transaction::new();
    t.write(b"c", b"b", 1024, vec![5; 1024])
        .write(b"c", b"b", 4096, vec![6; 3072]);
    commit(pool, &t)?;
    for round in 1..4 {
        let mut t = Transaction::new();
        t.set_attribute(b"c", b"a", b"_", vec![round; 293])
            .set_omap(b"c", b"b", b"info", vec![round; 186]);
        commit(pool, &t)?;
    }
    let key = |number: u8| [b'f', number];
    let mut t = Transaction::new();
    for number in 0..13 {
        t.set_omap(b"c", b"kaaa", &key(number), vec![number; 260]);
    }
    commit(pool, &t)?;
    let mut t = Transaction::new();
    for number in (0..13).step_by(2) {
        t.remove_omap(b"c", b"kaaa", &key(number));
    }
    commit(pool, &t)
}

/// Fills a leaf with keys that come in order before another one.
fn fill_leaf(pool: &Pool) -> Result<(), String> {
    let mut t = Transaction::new();
    t.set_omap(b"c", b"a", b"z", vec![1; 186]);
    commit(pool, &t)?;
    for number in 0..14 {
        let mut t = Transaction::new();
        t.set_omap(b"c", b"a", &[b'r', number], vec![number; 234]);
        commit(pool, &t)?;
    }
    Ok(())
}

fn long(first: &[u8], number: u8) -> Vec<u8> {
    [first, &[b'.'; 1400], &[number]].concat()
}

/// What is tried.
fn transactions() -> Vec<Named> {
    let mut list = Vec::new();
    bytes(&mut list);
    objects(&mut list);
    collections(&mut list);
    long_ones(&mut list);
    list
}

fn add(list: &mut Vec<Named>, name: &'static str, make: &dyn Fn(&mut Transaction<'static>)) {
    let mut transaction = Transaction::new();
    make(&mut transaction);
    list.push((name, transaction));
}

fn bytes(list: &mut Vec<Named>) {
    add(list, "like an OSD", &|t| {
        t.set_attribute(b"c", b"a", b"_", stamp(293));
        t.set_attribute(b"c", b"a", b"snapset", stamp(35));
        t.write(b"c", b"a", 1024, vec![7; 1024]);
        t.set_omap(b"c", b"b", b"log.1", stamp(234));
        t.set_omap(b"c", b"b", b"info", stamp(186));
        t.remove_omap(b"c", b"b", b"key");
    });
    add(list, "pages", &|t| {
        t.write(b"c", b"a", 4096, vec![7; 8192])
            .write(b"c", b"small", 50, vec![8; 20_000]);
    });
    add(list, "a page and then a part of it", &|t| {
        t.write(b"c", b"a", 4096, vec![7; 4096])
            .write(b"c", b"a", 5000, vec![8; 100])
            .write(b"c", b"small", 5000, vec![9; 10]);
    });
    parts(list);
    add(list, "shared pages", &|t| {
        t.write(b"c", b"twin", 10, vec![7; 10])
            .write(b"c", b"a", 4000, vec![8; 200]);
    });
    add(list, "behind the end", &|t| {
        t.write(b"c", b"small", 5000, vec![1; 10])
            .write(b"c", b"kaaa", 2_500_000, vec![2; 10]);
    });
    add(list, "another height", &|t| {
        t.truncate(b"c", b"small", 10)
            .write(b"c", b"small", 100_000, vec![1; 5000])
            .zero(b"c", b"small", 2, 3);
    });
}

/// Parts of pages that have places of their own.
fn parts(list: &mut Vec<Named>) {
    add(list, "a part of a page", &|t| {
        t.write(b"c", b"kaaa", 5120, vec![7; 1024]);
    });
    add(list, "more parts, and a part back", &|t| {
        t.write(b"c", b"b", 0, vec![7; 1024])
            .write(b"c", b"b", 4096, vec![8; 1024]);
    });
    add(list, "the last part, the only part back", &|t| {
        t.write(b"c", b"b", 7168, vec![7; 1024])
            .write(b"c", b"b", 1024, vec![8; 1024]);
    });
    add(list, "bytes of parts", &|t| {
        t.write(b"c", b"b", 1000, vec![7; 100])
            .write(b"c", b"b", 2048, vec![8; 1024])
            .write(b"c", b"b", 2050, vec![9; 3]);
    });
    add(list, "copies of pages with parts", &|t| {
        t.clone_object(b"c", b"b", b"copy")
            .truncate(b"c", b"b", 1500);
    });
    add(list, "pages that had parts", &|t| {
        t.write(b"c", b"b", 0, vec![7; 4096])
            .zero(b"c", b"b", 4096, 4096);
    });
    add(list, "an object with parts", &|t| {
        t.remove(b"c", b"b");
    });
}

fn objects(list: &mut Vec<Named>) {
    add(list, "new objects", &|t| {
        t.write(b"c", b"new", 0, vec![3; 5000])
            .set_omap(b"c", b"new", b"k", vec![4; 100])
            .write(b"c", &long(b"n", 2), 4096, vec![5; 4096])
            .touch(b"empty", b"x");
    });
    add(list, "replaced", &|t| {
        t.truncate(b"c", b"a", 0)
            .write(b"c", b"a", 0, vec![9; 6000])
            .zero(b"c", b"b", 1000, 5000)
            .truncate(b"c", b"kaaa", 4500);
    });
    add(list, "removed", &|t| {
        t.remove(b"c", b"b")
            .remove(b"c", &long(b"n", 1))
            .remove(b"c", b"a");
    });
    add(list, "clones", &|t| {
        t.clone_object(b"c", b"b", b"copy")
            .clone_range(b"c", b"a", 0..8192, b"small", 4096)
            .write(b"c", b"b", 0, vec![1; 600]);
    });
    add(list, "long values", &|t| {
        t.set_omap(b"c", b"b", b"big", vec![1; 50_000])
            .set_omap(b"c", b"a", &long(b"l", 3), vec![2; 33_000])
            .remove_omap_range(b"c", b"b", b"k", b"z");
    });
    add(list, "between entries", &|t| {
        t.set_omap(b"c", b"kaaa", b"f\x02", stamp(200))
            .set_omap(b"c", b"kaaa", b"f\x05", stamp(260))
            .remove_omap(b"c", b"kaaa", b"f\x07")
            .set_omap(b"c", b"kaaa", b"g", stamp(260));
    });
    add(list, "no room in one piece", &|t| {
        t.set_omap(b"c", b"kaaa", b"h", stamp(900));
    });
    add(list, "a leaf is cut where it grows", &|t| {
        t.set_omap(b"c", b"a", b"r\x0e", stamp(234))
            .set_omap(b"c", b"a", b"z", stamp(186));
    });
    add(list, "a leaf is cut, and split", &|t| {
        t.set_omap(b"c", b"a", b"r\x0e", stamp(900));
    });
    add(list, "cleared", &|t| {
        t.clear_omap(b"c", b"b").remove_attributes(b"c", b"a");
    });
}

fn collections(list: &mut Vec<Named>) {
    add(list, "moved", &|t| {
        t.rename((b"c", b"a"), (b"empty", &long(b"m", 1)));
    });
    add(list, "collections", &|t| {
        t.create_collection(&long(b"c", 1))
            .touch(&long(b"c", 1), b"x")
            .remove_collection(b"empty");
    });
    let which = HashBits {
        offset: 0,
        bits: 8,
        value: u64::from(b'k'),
    };
    add(list, "split", &|t| {
        t.split(b"c", b"empty", which);
    });
    add(list, "merge", &|t| {
        t.merge(b"c", b"empty");
    });
}

fn long_ones(list: &mut Vec<Named>) {
    add(list, "many entries", &|t| {
        for number in 0..60u32 {
            let key = [&number.to_be_bytes()[..], b"key"].concat();
            t.set_omap(b"c", b"small", &key, vec![number as u8; 600]);
            t.set_omap(b"c", b"b", &key, vec![1; 100]);
        }
        for page in 0..3 {
            let at = page * 4096;
            for piece in 0..4 {
                t.write(b"c", b"a", at + piece * 900, vec![6; 800]);
            }
        }
    });
    add(list, "longer than a record", &|t| {
        for round in 0..34u8 {
            t.write(b"c", b"kaaa", 100, vec![round; 1000]).write(
                b"c",
                b"b",
                5000,
                vec![round; 1000],
            );
        }
    });
}

/// What makes room; whether anything came free.
type Way = fn(&Store) -> nacre_store::Result<bool>;

/// How room is made, and what it is called.
const WAYS: [(&str, Way); 2] = [
    ("contents move behind", |store| {
        Ok(store.move_cold(u64::MAX)? > 0)
    }),
    ("second units are gathered", Store::make_room),
];

/// Room is made where contents lie of which the log has a record whose retirement lags, and a file
/// gets the units that come free.
fn makes_room(
    worlds: &Worlds,
    sabotage: Sabotage,
    seed: u64,
    images: &mut u64,
) -> Result<Vec<Event>, String> {
    let prepared = prepare(&worlds.behind, BEHIND)?;
    let mut t = Transaction::new();
    t.write(b"c", b"a", 0, vec![7; 8192])
        .write(b"c", b"b", 1024, vec![8; 1024]);
    let mut events = Vec::new();
    for (what, way) in WAYS {
        let then = |pool: Pool| {
            hoard(pool.store());
            match way(pool.store()) {
                Ok(true) => {}
                Ok(false) => return Err("nothing came free".into()),
                Err(error) => return Err(error.to_string()),
            }
            let fs = Fs::with_mode(pool.into_store(), DIRECT);
            let devoured = Action::Devour("e").run(Ground::of(&fs), 1);
            devoured.map_err(|error| error.to_string())?;
            Ok(Pool::of(fs.into_store()))
        };
        let crashed = crash_then((&prepared, BEHIND), &t, then, sabotage, seed, images);
        events.extend(crashed.map_err(|why| format!("{what}: {why}"))?);
    }
    Ok(events)
}

fn crash(
    prepared: &[u8],
    transaction: &Transaction<'_>,
    sabotage: Sabotage,
    seed: u64,
    images: &mut u64,
) -> Result<Vec<Event>, String> {
    crash_then((prepared, 0), transaction, Ok, sabotage, seed, images)
}

/// Crashes a transaction and what is done `then`, which changes no object. So many of the prepared
/// bytes are a device behind.
fn crash_then(
    (prepared, behind): (&[u8], u64),
    transaction: &Transaction<'_>,
    then: impl Fn(Pool) -> Result<Pool, String>,
    sabotage: Sabotage,
    seed: u64,
    images: &mut u64,
) -> Result<Vec<Event>, String> {
    let pool = attach_with_behind(prepared, behind)?;
    let mut bench = Bench::with_behind(contents(pool.store()).into(), behind)?;
    let before = see(&pool)?;
    let recorder = Recorder::of(pool.store().volume());
    recorder.note_offsets(pool.store().volume());
    commit(&pool, transaction)?;
    recorder.mark_done();
    let pool = then(pool)?;
    let mut events = recorder.stop();
    sabotage.plant(&mut events);
    // Units that were taken from all are in use.
    let after = look(&pool)?;
    drop(pool.into_store().abandon());
    if before == after {
        return Err("it changes nothing".into());
    }
    let (mut medium, mut done) = (Medium::default(), false);
    let mut random = Random::new(seed, 0);
    for event in &events {
        done |= matches!(event.what, What::Done);
        if matches!(event.what, What::Done | What::Fence) {
            let choices = medium.choices(&|line| bench.line(line));
            medium.images(&choices, sabotage.aim(DEPTH), &mut random, |image| {
                *images += 1;
                let works = images.is_multiple_of(WORKED_ON);
                let seen = recovered(&mut bench, image, works)?;
                match seen {
                    seen if seen == after => Ok(()),
                    seen if seen == before && !done => Ok(()),
                    seen if seen == before => Err("it returned and is not there".to_owned()),
                    _ => Err("a part of it is there".to_owned()),
                }
            })?;
        }
        medium.apply(event, &|line| bench.line(line));
    }
    Ok(events)
}

/// What the pool of an image holds once it is recovered; an error if it is not sound.
fn recovered(bench: &mut Bench, image: &Difference, works: bool) -> Result<World, String> {
    let pool = Pool::of(bench.attach(image, DIRECT)?.fs.into_store());
    let seen = see(&pool);
    let recorder = bench.recorder();
    recorder.start();
    let worked = if works { work(&pool) } else { Ok(()) };
    let events = recorder.stop();
    bench.take_back(Fs::with_mode(pool.into_store(), DIRECT), &events);
    worked.and(seen)
}

/// The recovered pool can be worked on.
fn work(pool: &Pool) -> Result<(), String> {
    let mut t = Transaction::new();
    t.create_collection(b"later")
        .write(b"later", b"o", 100, vec![1; 9000])
        .set_omap(b"later", b"o", b"k", vec![2; 40_000]);
    commit(pool, &t)?;
    let mut bytes = vec![0; 9100];
    let read = pool.read(b"later", b"o", 0, &mut bytes);
    let sound = read.is_ok_and(|len| len == 9100) && bytes[..100] == [0; 100];
    match sound && bytes[100..] == [1; 9000] {
        true => see(pool).map(drop),
        false => Err("what was written after the recovery is not there".into()),
    }
}

#[cfg(test)]
mod tests {
    use nacre_types::StoreKind;

    use super::{Event, Prepared, Worlds, each_alone, makes_room, objects_lanes, run};
    use crate::sabotage::Sabotage;
    use crate::workload;

    type Scene = fn(&Worlds, Sabotage, u64, &mut u64) -> Result<Vec<Event>, String>;

    fn images_of(scene: Scene) -> u64 {
        let mut images = 0;
        scene(
            &workload::prepare().unwrap(),
            Sabotage::Nothing,
            1,
            &mut images,
        )
        .unwrap();
        images
    }

    #[test]
    fn all_of_a_transaction_is_there_or_nothing() {
        let images = images_of(each_alone);
        assert!(images > 1000, "{images}");
    }

    #[test]
    fn transactions_of_two_lanes_are_whole() {
        let images = images_of(objects_lanes::run);
        assert!(images > 100, "{images}");
    }

    #[test]
    fn what_makes_room_is_whole() {
        let images = images_of(makes_room);
        assert!(images > 100, "{images}");
    }

    #[test]
    fn a_planted_bug_is_found() {
        let worlds = workload::prepare().unwrap();
        let bug = Sabotage::Flushes(StoreKind::Log);
        assert!(run(&worlds, bug, 1, &mut 0).is_err());
    }

    #[test]
    fn transactions_at_random_are_whole_and_find_a_planted_bug() {
        let prepared = Prepared::new(&workload::prepare().unwrap()).unwrap();
        let mut images = 0;
        for number in 0..12 {
            let explored = prepared.explore(1, number, Sabotage::Nothing, &mut images);
            explored.unwrap();
        }
        assert!(images > 500, "{images}");
        let bug = Sabotage::Flushes(StoreKind::Log);
        let mut missed = (0..12).filter(|n| prepared.explore(1, *n, bug, &mut 0).is_ok());
        assert_eq!(missed.next(), None);
    }
}
