//! Transactions on objects one after the other, in several lanes: their log tails become durable
//! late, and no old record may come back over a newer one.

use nacre_fs::Fs;
use nacre_objects::{Pool, Transaction};
use nacre_store::Store;

use crate::bench::Bench;
use crate::objects_seen::{DIRECT, World, attach, commit, contents, see, stamp};
use crate::sabotage::Sabotage;
use crate::workload::Worlds;
use nacre_testkit::medium::{Depth, Difference, Medium};
use nacre_testkit::pool::PRIVATE;
use nacre_testkit::random::Random;
use nacre_testkit::recorder::{Event, Recorder, What};

const DEPTH: Depth = Depth {
    all_up_to: 32,
    samples: 40,
    aimed: false,
};
/// After so many images in which a transaction is gone it is tried again.
const TRIED_AGAIN: u64 = 8;

/// What happens to the pool.
enum Happens {
    /// A transaction in this lane.
    Commit(u32, Transaction<'static>),
    /// All processes die, and another one comes.
    Death,
}

/// What was recorded of a story, and what the pool held after each transaction.
struct Told {
    events: Vec<Event>,
    worlds: Vec<World>,
}

/// Crashes a row of transactions at every fence; returns all events.
pub(crate) fn run(
    worlds: &Worlds,
    sabotage: Sabotage,
    seed: u64,
    images: &mut u64,
) -> Result<Vec<Event>, String> {
    let pool = attach(&worlds.beside)?;
    let mut t = Transaction::new();
    t.create_collection(b"c")
        .write(b"c", b"a", 0, stamp(9000))
        .write(b"c", b"b", 0, stamp(100));
    t.set_attribute(b"c", b"a", b"_", vec![1; 293])
        .set_omap(b"c", b"b", b"info", vec![1; 186]);
    commit(&pool, &t)?;
    let mut bench = Bench::new(contents(pool.store()).into())?;
    let mut told = tell(pool)?;
    sabotage.plant(&mut told.events);
    let crashed = crash(&mut bench, &told, sabotage, seed, images);
    crashed.map_err(|why| format!("a row of transactions crashed: {why}"))?;
    Ok(told.events)
}

fn story() -> Vec<Happens> {
    let mut list = Vec::new();
    for (round, lane) in (1..).zip([0, 1, 0, 0, 1]) {
        list.push(Happens::Commit(lane, like_an_osd(round)));
    }
    list.push(Happens::Death);
    list.push(Happens::Commit(0, like_an_osd(6)));
    let mut t = Transaction::new();
    t.remove(b"c", b"a").write(b"c", b"b", 0, stamp(20_000));
    list.push(Happens::Commit(1, t));
    let mut t = small(0);
    t.touch(b"c", b"d")
        .set_attribute(b"c", b"b", b"t", [0; 8].to_vec());
    list.push(Happens::Commit(0, t));
    list.push(Happens::Commit(0, small(1)));
    // More than the one before it changes: if that comes back over it, a part of it is left.
    let mut t = small(2);
    t.set_attribute(b"c", b"b", b"t", [2; 8].to_vec());
    list.push(Happens::Commit(1, t));
    list
}

/// So short that all of its record may be durable while the log tail before it is not.
fn small(round: u8) -> Transaction<'static> {
    let mut t = Transaction::new();
    t.set_attribute(b"c", b"b", b"s", vec![round; 8]);
    t
}

/// Changes the same structures each time.
fn like_an_osd(round: u8) -> Transaction<'static> {
    let mut t = Transaction::new();
    t.set_attribute(b"c", b"a", b"_", vec![round ^ 0x55; 293])
        .write(b"c", b"a", 1024, vec![round; 1024])
        .set_omap(b"c", b"b", &[b'l', round], vec![round; 234])
        .set_omap(b"c", b"b", b"info", vec![round ^ 0x77; 186])
        .remove_omap(b"c", b"b", &[b'l', round - 1]);
    if round.is_multiple_of(2) {
        t.write(b"c", b"a", 4096, vec![round; 4096]);
    }
    t
}

fn tell(pool: Pool) -> Result<Told, String> {
    let mut pool = pool;
    let mut worlds = vec![see(&pool)?];
    let recorder = Recorder::of(pool.store().volume());
    for happens in story() {
        match happens {
            Happens::Commit(lane, transaction) => {
                commit_in(&pool, lane, &transaction)?;
                recorder.mark_done();
                worlds.push(see(&pool)?);
            }
            Happens::Death => pool = reborn(pool)?,
        }
    }
    let events = recorder.stop();
    drop(pool.into_store().abandon());
    Ok(Told { events, worlds })
}

/// A transaction, while others hold all lanes but this one.
fn commit_in(pool: &Pool, lane: u32, transaction: &Transaction<'_>) -> Result<(), String> {
    let (session, me) = (pool.store().session(), pool.store().slot());
    let others: Vec<u32> = (0..pool.store().info().lanes as u32)
        .filter(|&other| other != lane)
        .collect();
    if others.is_empty() {
        return Err("there is one lane only".into());
    }
    for &other in &others {
        if !session.lane(other).lock.try_lock_free(me) {
            return Err("a lane is held".into());
        }
    }
    let done = commit(pool, transaction);
    others
        .iter()
        .for_each(|&other| session.lane(other).lock.unlock(me));
    done
}

/// The pool after the death of its process, which is no crash of the medium.
fn reborn(pool: Pool) -> Result<Pool, String> {
    let volume = pool.into_store().abandon();
    let store = Store::attach(volume, &PRIVATE).map_err(|error| error.to_string())?;
    Ok(Pool::of(store))
}

fn crash(
    bench: &mut Bench,
    told: &Told,
    sabotage: Sabotage,
    seed: u64,
    images: &mut u64,
) -> Result<(), String> {
    let (mut medium, mut done) = (Medium::default(), 0);
    let mut random = Random::new(seed, 0);
    for event in &told.events {
        if matches!(event.what, What::Done | What::Fence) {
            let choices = medium.choices(&|line| bench.line(line));
            medium.images(&choices, sabotage.aim(DEPTH), &mut random, |image| {
                *images += 1;
                let again = images.is_multiple_of(TRIED_AGAIN);
                recovered(bench, image, (told, done), again)
            })?;
        }
        done += usize::from(matches!(event.what, What::Done));
        medium.apply(event, &|line| bench.line(line));
    }
    Ok(())
}

/// What is there is all that returned, and of the next one all or nothing.
fn recovered(
    bench: &mut Bench,
    image: &Difference,
    (told, done): (&Told, usize),
    again: bool,
) -> Result<(), String> {
    let pool = Pool::of(bench.attach(image, DIRECT)?.fs.into_store());
    let (recorder, seen) = (bench.recorder(), see(&pool));
    recorder.start();
    let (pool, tried) = match (&seen, told.worlds.get(done + 1)) {
        (Ok(seen), Some(next)) if again && *seen != *next => tried_again(pool, done)?,
        _ => (pool, Ok(())),
    };
    let events = recorder.stop();
    bench.take_back(Fs::with_mode(pool.into_store(), DIRECT), &events);
    let (seen, next) = (seen?, told.worlds.get(done + 1));
    match seen {
        seen if seen == told.worlds[done] || Some(&seen) == next => tried,
        seen if told.worlds[..done].contains(&seen) => {
            Err("it returned and is not there".to_owned())
        }
        _ => Err("a part of it is there".to_owned()),
    }
}

/// Whoever got no answer tries again, here in the other lane. What the crash left of the first
/// attempt must not come back later.
fn tried_again(pool: Pool, done: usize) -> Result<(Pool, Result<(), String>), String> {
    let commits = story().into_iter().filter_map(|happens| match happens {
        Happens::Commit(lane, transaction) => Some((lane, transaction)),
        Happens::Death => None,
    });
    let Some((lane, transaction)) = commits.into_iter().nth(done) else {
        return Ok((pool, Ok(())));
    };
    let other = 1 - lane;
    commit_in(&pool, other, &transaction)?;
    let mut t = Transaction::new();
    t.set_attribute(b"c", b"b", b"_", vec![0xEE; 293])
        .write(b"c", b"b", 0, vec![9; 100])
        .set_omap(b"c", b"b", b"info", vec![0xEE; 186]);
    commit_in(&pool, other, &t)?;
    let before = see(&pool)?;
    let pool = reborn(pool)?;
    let after = see(&pool);
    let tried = after.and_then(|after| match after == before {
        true => Ok(()),
        false => Err("an attempt that a crash ended came back later".to_owned()),
    });
    Ok((pool, tried))
}

#[cfg(test)]
mod tests {
    use nacre_types::StoreKind;

    use super::run;
    use crate::sabotage::Sabotage;
    use crate::workload;

    #[test]
    fn a_row_of_transactions_in_two_lanes_loses_nothing_and_finds_a_planted_bug() {
        let worlds = workload::prepare().unwrap();
        let mut images = 0;
        run(&worlds, Sabotage::Nothing, 1, &mut images).unwrap();
        assert!(images > 500, "{images}");
        let bug = Sabotage::Flushes(StoreKind::Log);
        assert!(run(&worlds, bug, 1, &mut 0).is_err());
    }
}
