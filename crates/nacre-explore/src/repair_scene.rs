//! Crashes while damaged pools are repaired: whatever is left can be repaired, to the same end.

use std::mem::discriminant;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nacre_store::WriteMode;
use nacre_store::check::check;
use nacre_store::layout::{BLOCK_LIST_AT, LANE_LIST_AT};
use nacre_store::repair::repair;
use nacre_store::structure_index::{Part, Structure, survey};
use nacre_volume::Volume;

use crate::action::Action;
use crate::bench::Bench;
use crate::ground::Ground;
use crate::judge::examine;
use crate::sabotage::Sabotage;
use crate::visible::{Visible, look};
use crate::workload::Worlds;
use nacre_testkit::image::volume_of;
use nacre_testkit::medium::{Depth, Difference, LINE, Line, Medium};
use nacre_testkit::random::Random;
use nacre_testkit::recorder::{Event, Recorder, What, set_lane};

const DEPTH: Depth = Depth {
    all_up_to: 4,
    samples: 5,
    aimed: false,
};
/// Where a crash and damage come together.
const DEPTH_OF_TWO: Depth = Depth {
    all_up_to: 4,
    samples: 18,
    aimed: false,
};
/// Bytes that are damaged.
const SPOT: u64 = 8;

/// Bytes of a word that hold its own check.
const OWN_CHECK: u64 = 6;

/// Bytes of a part that are damaged.
type Spot = (Part, Range<u64>);

/// Damages structures of each kind, repairs and crashes that at every fence.
pub fn run(
    worlds: &Worlds,
    sabotage: Sabotage,
    seed: u64,
    images: &mut u64,
) -> Result<Vec<Event>, String> {
    turn_back(worlds, images)?;
    let mut all = lost_log(&worlds.alone, sabotage, seed, images)?;
    let wounds = wounds(&worlds.clean)?.into_iter();
    let wounds = wounds.map(|spots| (&worlds.clean, spots));
    let last = last_list_word(&worlds.beside)?;
    for (world, spots) in wounds.chain([(&worlds.beside, vec![last])]) {
        let mut base = world.to_vec();
        let mut names = String::new();
        for (part, bytes) in &spots {
            let (start, end) = (part.at.0 + bytes.start, part.at.0 + bytes.end);
            base[start as usize..end as usize]
                .iter_mut()
                .for_each(|byte| *byte ^= 0x5a);
            names.push_str(&format!("{:?} at {start:#x}; ", part.what));
        }
        let (done, whole) = crash(&base, sabotage, seed, images)
            .map_err(|why| format!("repair of {names}{why}"))?;
        let lists = spots
            .iter()
            .all(|(part, _)| part.what == Structure::ListWord);
        if lists && whole != repaired(volume_of(world))? {
            return Err(format!("repair of {names}something is lost"));
        }
        all.extend(done);
    }
    Ok(all)
}

/// A single turned bit costs nothing, wherever a checksum tells which one it is.
fn turn_back(worlds: &Worlds, images: &mut u64) -> Result<(), String> {
    let whole = repaired(volume_of(&worlds.clean))?;
    for (part, bytes) in wounds(&worlds.clean)?.into_iter().flatten() {
        // Of two states the older one does; long values are dropped.
        if matches!(part.what, Structure::State | Structure::Value) {
            continue;
        }
        let mut base = worlds.clean.to_vec();
        base[(part.at.0 + bytes.start) as usize] ^= 4;
        *images += 1;
        let seen = repaired(volume_of(&base));
        if seen.as_ref() != Ok(&whole) {
            let why = seen.err().unwrap_or_default();
            return Err(format!(
                "a turned bit of {:?} at {:#x} is not turned back: {why}",
                part.what, part.at.0
            ));
        }
    }
    Ok(())
}

/// A log block moves, and while its next record is applied a crash also damages the word that names
/// it: the block it was in must not be taken for it.
fn lost_log(
    base: &Arc<[u8]>,
    sabotage: Sabotage,
    seed: u64,
    images: &mut u64,
) -> Result<Vec<Event>, String> {
    let volume = volume_of(base);
    let recorder = Recorder::of(&volume);
    let fs = Bench::attach_clean(volume, WriteMode::Direct)?;
    let run = |action: Action, lane| {
        set_lane(lane);
        let done = action.run(Ground::of(&fs), 1).and(Ok(look(&fs)));
        set_lane(0);
        done.unwrap_or_else(|error| Err(error.to_string()))
    };
    // Behind all others, so that a repair which looks for the log comes by its old block first.
    let turn = &fs.store().session().shared().unit_hints.block;
    turn.store(u64::MAX, Ordering::Relaxed);
    let before = run(Action::MoveLog("e", 0o606), 0)?;
    recorder.mark_done();
    // Another program: its fences do nothing for the first one.
    let after = run(Action::Create("n"), 1)?;
    let mut events = recorder.stop();
    sabotage.plant(&mut events);
    let floor = |number: u64| line_of(base, number);
    let (mut medium, mut random) = (Medium::default(), Random::new(seed, 0));
    let mut moved = false;
    for event in &events {
        moved |= matches!(event.what, What::Done);
        if moved && matches!(event.what, What::Fence) {
            let (choices, depth) = (medium.choices(&floor), sabotage.aim(DEPTH_OF_TWO));
            let found = medium.images(&choices, depth, &mut random, |image| {
                *images += 1;
                let mut bytes = with(base, image);
                bytes[LANE_LIST_AT.0 as usize] ^= 0x5a;
                let seen = repaired(volume_of(&bytes))?;
                match seen == before || seen == after {
                    true => Ok(()),
                    false => Err("the record that waited is lost".to_owned()),
                }
            });
            found.map_err(|why| {
                format!("a crash behind a log that moved, its name damaged: {why}")
            })?;
        }
        medium.apply(event, &floor);
    }
    Ok(events)
}

fn parts_of(world: &[u8]) -> Result<Vec<Part>, String> {
    let fs = Bench::attach_clean(volume_of(world), WriteMode::Direct)?;
    Ok(survey(fs.store()))
}

/// Where the list of log blocks names the last one.
fn last_list_word(world: &[u8]) -> Result<Spot, String> {
    let parts = parts_of(world)?.into_iter();
    let words = parts.filter(|part| part.what == Structure::ListWord && part.at < BLOCK_LIST_AT);
    let last = words.max_by_key(|part| part.at);
    last.map(|part| (part, 0..SPOT))
        .ok_or_else(|| "no list has a word".into())
}

/// Sets of spots that are damaged together: in the first and the last part of each kind; in both
/// state records; of words that check themselves the check alone, too.
fn wounds(world: &[u8]) -> Result<Vec<Vec<Spot>>, String> {
    let parts = parts_of(world)?;
    let spot = |part: &Part| match part.what {
        Structure::Onode => Some((*part, 72..72 + SPOT)),
        Structure::TreeNode(..) => Some((*part, 48..48 + SPOT)),
        Structure::Superblock | Structure::State => Some((*part, 16..16 + SPOT)),
        Structure::Record(_) | Structure::Data(_) | Structure::Snapshot => None,
        _ => Some((*part, 0..SPOT)),
    };
    let states = parts.iter().filter(|part| part.what == Structure::State);
    let mut wounds = vec![states.filter_map(spot).collect()];
    for (index, part) in parts.iter().enumerate() {
        let alike = |other: &&Part| discriminant(&other.what) == discriminant(&part.what);
        let first = !parts[..index].iter().any(|other| alike(&other));
        let last = !parts[index + 1..].iter().any(|other| alike(&other));
        if first || last {
            wounds.extend(spot(part).map(|spot| vec![spot]));
        }
        if matches!(part.what, Structure::ListWord | Structure::LogTailWord) && (first || last) {
            wounds.push(vec![(*part, OWN_CHECK..SPOT)]);
        }
    }
    Ok(wounds)
}

fn crash(
    base: &[u8],
    sabotage: Sabotage,
    seed: u64,
    images: &mut u64,
) -> Result<(Vec<Event>, Visible), String> {
    let volume = volume_of(base);
    let recorder = Recorder::of(&volume);
    let whole = repaired(volume)?;
    recorder.mark_done();
    let mut events = recorder.stop();
    sabotage.plant(&mut events);
    let floor = |number: u64| line_of(base, number);
    let (mut medium, mut random) = (Medium::default(), Random::new(seed, 0));
    for event in &events {
        let done = matches!(event.what, What::Done);
        if done || matches!(event.what, What::Fence) {
            let found = medium.images(
                &medium.choices(&floor),
                sabotage.aim(DEPTH),
                &mut random,
                |image| {
                    *images += 1;
                    trust_nothing_old(volume_of(&with(base, image)))?;
                    let volume = volume_of(&with(base, image));
                    let seen = match done {
                        true => examine(&Bench::attach_clean(volume, WriteMode::Direct)?)?,
                        false => repaired(volume)?,
                    };
                    match seen == whole {
                        true => Ok(()),
                        false => Err("repairing again comes to another end".to_owned()),
                    }
                },
            );
            found.map_err(|why| format!("after a crash: {why}"))?;
        }
        medium.apply(event, &floor);
    }
    Ok((events, whole))
}

/// Whoever attaches instead of repairing again may be refused, but must not believe what was saved
/// before the repair.
fn trust_nothing_old(volume: Volume) -> Result<(), String> {
    let Ok(fs) = Bench::attach_clean(volume, WriteMode::Direct) else {
        return Ok(());
    };
    let problems = check(fs.store(), &mut |_| {}).problems;
    match problems
        .iter()
        .find(|problem| problem.what.contains("marked"))
    {
        Some(problem) => Err(format!(
            "a state from before the repair is trusted: {problem}"
        )),
        None => Ok(()),
    }
}

/// Repairs a pool and looks at it.
fn repaired(volume: Volume) -> Result<Visible, String> {
    let (outcome, volume) = repair(volume, false, &mut |_| {}).map_err(|e| e.to_string())?;
    if let Some(left) = outcome.left.problems.first() {
        return Err(format!("what is left: {left}"));
    }
    examine(&Bench::attach_clean(volume, WriteMode::Direct)?)
}

fn with(base: &[u8], image: &Difference) -> Vec<u8> {
    let mut bytes = base.to_vec();
    for (&number, line) in image {
        let start = number as usize * LINE;
        bytes[start..start + LINE].copy_from_slice(line);
    }
    bytes
}

fn line_of(bytes: &[u8], number: u64) -> Line {
    let start = number as usize * LINE;
    bytes[start..start + LINE].try_into().unwrap_or([0; LINE])
}
