//! Crashes while a pool is made where an old one lies.

use std::sync::Arc;

use nacre_store::check::check;
use nacre_store::layout::SUPERBLOCK_AT;
use nacre_store::{FormatOptions, Store, WriteMode};
use nacre_types::{UNIT_SIZE, crc32c};

use crate::bench::Bench;
use crate::judge::examine;
use crate::sabotage::Sabotage;
use crate::visible::{Visible, look};
use crate::workload::Worlds;
use nacre_testkit::image::volume_of;
use nacre_testkit::medium::{Depth, Difference, LINE, Medium};
use nacre_testkit::random::Random;
use nacre_testkit::recorder::{Event, Recorder, What};

const DEPTH: Depth = Depth {
    all_up_to: 64,
    samples: 48,
    aimed: false,
};

/// Makes a pool and crashes at every fence: the old one is there, or none, or the new one; the new
/// one once it is made.
pub fn run(
    worlds: &Worlds,
    sabotage: Sabotage,
    seed: u64,
    images: &mut u64,
) -> Result<Vec<Event>, String> {
    let mut bench = Bench::new(Arc::clone(&worlds.alone))?;
    let (old, _) = seen(&mut bench, &Difference::new())?.ok_or("there is no old pool")?;
    let (events, new) = record(worlds, sabotage)?;
    let (mut medium, mut done, mut old_is_gone) = (Medium::default(), false, false);
    let mut random = Random::new(seed, 0);
    for event in &events {
        done |= matches!(event.what, What::Done);
        if matches!(event.what, What::Done | What::Fence) {
            let choices = medium.choices(&|line| bench.line(line));
            let found = medium.images(&choices, sabotage.aim(DEPTH), &mut random, |image| {
                *images += 1;
                match seen(&mut bench, image)? {
                    Some((pool, whole)) if pool == new && (whole || !done) => Ok(()),
                    Some((pool, _)) if pool == old && !done => Ok(()),
                    None if old_is_gone && is_named(&bench, image) => {
                        Err("what is there calls itself a pool and is none".to_owned())
                    }
                    None if !done => Ok(()),
                    Some(_) => Err("neither the old pool nor the new one is there".to_owned()),
                    None => Err("the new pool is gone".to_owned()),
                }
            });
            found.map_err(|why| format!("a crash while a pool is made: {why}"))?;
            old_is_gone = true;
        }
        medium.apply(event, &|line| bench.line(line));
    }
    Ok(events)
}

/// Whether both superblock copies are there as they were made: the second one is whole when its
/// checksum is.
fn is_named(bench: &Bench, image: &Difference) -> bool {
    let line = |number: u64| {
        image
            .get(&number)
            .copied()
            .unwrap_or_else(|| bench.line(number))
    };
    SUPERBLOCK_AT.iter().all(|at| {
        let lines = at.0 / LINE as u64..(at.0 + UNIT_SIZE) / LINE as u64;
        let bytes: Vec<u8> = lines.flat_map(line).collect();
        bytes[8..12] != [0; 4] && bytes[8..12] == crc32c(&bytes[12..]).to_le_bytes()
    })
}

fn record(worlds: &Worlds, sabotage: Sabotage) -> Result<(Vec<Event>, Visible), String> {
    let volume = volume_of(&worlds.alone);
    let recorder = Recorder::of(&volume);
    Store::format(&volume, &FormatOptions::default()).map_err(|e| e.to_string())?;
    recorder.mark_done();
    let mut events = recorder.stop();
    sabotage.plant(&mut events);
    let new = examine(&Bench::attach_clean(volume, WriteMode::Direct)?)?;
    Ok((events, new))
}

/// What the pool of an image holds, and whether both superblock copies are whole, which lie in no
/// order; `None` if there is no pool. An error if it is not sound.
fn seen(bench: &mut Bench, image: &Difference) -> Result<Option<(Visible, bool)>, String> {
    let fs = match bench.attach(image, WriteMode::Direct) {
        Ok(attached) => attached.fs,
        Err(why) if why.contains("panics") => return Err(why),
        Err(_) => return Ok(None),
    };
    let problems = check(fs.store(), &mut |_| {}).problems;
    let copies = problems
        .iter()
        .filter(|problem| problem.what.contains("superblock copy"));
    let torn = !problems.is_empty() && copies.count() == problems.len();
    let seen = if torn { look(&fs) } else { examine(&fs) };
    bench.take_back(fs, &[]);
    seen.map(|seen| Some((seen, !torn)))
}
