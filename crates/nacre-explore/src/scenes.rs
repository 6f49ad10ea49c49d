//! What is explored beside the sequences, on all processors: each scene as it is, and with planted
//! bugs that it must notice.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::canary::Scene;
use crate::damage::{self, Damage};
use crate::processors::each_processor;
use crate::sabotage::Sabotage;
use crate::workload::Worlds;
#[cfg(feature = "explore")]
use crate::{canary, copies_scene, disk_scene, grow, leave_scene};
use crate::{format, objects_scene, repair_scene};

/// How many images a scene looks at.
fn images<T>(scene: impl FnOnce(&mut u64) -> Result<T, String>) -> Result<u64, String> {
    let mut images = 0;
    scene(&mut images)?;
    Ok(images)
}

/// What is played under a name.
struct Named {
    name: &'static str,
    /// Played with so many seeds each time, from the one that is asked for on.
    seeds: u64,
    play: Scene,
}

const fn scene(name: &'static str, seeds: u64, play: Scene) -> Named {
    Named { name, seeds, play }
}

/// Those that take longest come first.
const SCENES: &[Named] = &[
    #[cfg(feature = "explore")]
    scene("twins", 1, |_, seed| {
        let images = images(|images| disk_scene::run_twins(Sabotage::Nothing, seed, images))?;
        Ok(format!(
            "two disks behind an image: {images} images, also with either disk lost"
        ))
    }),
    #[cfg(feature = "explore")]
    scene("disk", 4, |_, seed| {
        let images = images(|images| disk_scene::run(Sabotage::Nothing, seed, images))?;
        Ok(format!(
            "a disk behind an image: {images} images, each a version that was to be there"
        ))
    }),
    scene("objects", 1, |worlds, seed| {
        let images = images(|images| objects_scene::run(worlds, Sabotage::Nothing, seed, images))?;
        Ok(format!(
            "transactions on objects: {images} images, all of each or nothing"
        ))
    }),
    #[cfg(feature = "explore")]
    scene("common", 1, |_, seed| {
        let images = images(|images| disk_scene::run_common(Sabotage::Nothing, seed, images))?;
        Ok(format!("two disks with a common part: {images} images"))
    }),
    #[cfg(feature = "explore")]
    scene("parts", 2, |_, seed| {
        let images = images(|images| disk_scene::run_parts(Sabotage::Nothing, seed, images))?;
        Ok(format!("two disks that hold each a part: {images} images"))
    }),
    #[cfg(feature = "explore")]
    scene("copies", 1, |_, seed| {
        let images = images(|images| copies_scene::run(Sabotage::Nothing, seed, images))?;
        Ok(format!(
            "two copies: {images} images, each also with either device lost"
        ))
    }),
    #[cfg(feature = "explore")]
    scene("grow", 1, |_, seed| {
        let mut grown = grow::Grown::default();
        grow::run(Sabotage::Nothing, seed, &mut grown)?;
        let grow::Grown { images, bits, .. } = grown;
        Ok(format!(
            "growing by a device: {images} images, {bits} bits of labels flipped, nothing lost"
        ))
    }),
    scene("repair", 1, |worlds, seed| {
        let images = images(|images| repair_scene::run(worlds, Sabotage::Nothing, seed, images))?;
        Ok(format!(
            "repairs: {images} images, repaired again to the same end"
        ))
    }),
    scene("damage", 1, |worlds, _| {
        let mut damage = Damage::default();
        damage::run(worlds, &mut damage)?;
        let Damage { bits, noticed, .. } = damage;
        Ok(format!(
            "flipped bits {bits}, noticed {noticed}, none taken for truth"
        ))
    }),
    #[cfg(feature = "explore")]
    scene("leave", 1, |_, seed| {
        let images = images(|images| leave_scene::run(Sabotage::Nothing, seed, images))?;
        Ok(format!(
            "a device leaves: {images} images, all that was there is"
        ))
    }),
    scene("format", 1, |worlds, seed| {
        let images = images(|images| format::run(worlds, Sabotage::Nothing, seed, images))?;
        Ok(format!(
            "making a pool: {images} images, an old pool, none or the new one"
        ))
    }),
];

#[cfg(feature = "explore")]
const CANARIES: &[Scene] = canary::SCENES;
#[cfg(not(feature = "explore"))]
const CANARIES: &[Scene] = &[];

/// What is played with one seed.
#[derive(Clone, Copy)]
enum Job {
    Scene(&'static Named, u64),
    Canary(Scene, u64),
}

impl Job {
    fn play(self, worlds: &Worlds) -> Result<String, String> {
        match self {
            Job::Canary(play, seed) => play(worlds, seed),
            Job::Scene(Named { name, play, .. }, seed) => {
                let seen = play(worlds, seed);
                let again = format!("again: cargo xtask explore --scene {name} --seed {seed}");
                seen.map(|seen| format!("{seen} (seed {seed})"))
                    .map_err(|why| format!("scene {name}, seed {seed}: {why}\n{again}"))
            }
        }
    }
}

/// Plays all scenes, and the planted bugs. What each saw is `told` as it ends; the first error ends
/// it.
pub fn run(worlds: &Worlds, seed: u64, told: fn(&str)) -> Result<(), String> {
    let with_seeds =
        |it: &'static Named| (seed..seed + it.seeds).map(move |seed| Job::Scene(it, seed));
    let scenes = SCENES.iter().flat_map(with_seeds);
    let canaries = CANARIES.iter().map(|&play| Job::Canary(play, seed));
    play(worlds, &scenes.chain(canaries).collect::<Vec<_>>(), told)
}

/// Plays one scene with some seeds, as [`run`].
pub fn run_one(
    worlds: &Worlds,
    name: &str,
    seeds: Range<u64>,
    told: fn(&str),
) -> Result<(), String> {
    let Some(found) = SCENES.iter().find(|it| it.name == name) else {
        let names: Vec<_> = SCENES.iter().map(|it| it.name).collect();
        return Err(format!("no scene {name}; there are {}", names.join(", ")));
    };
    let jobs: Vec<_> = seeds.map(|seed| Job::Scene(found, seed)).collect();
    play(worlds, &jobs, told)
}

fn play(worlds: &Worlds, jobs: &[Job], told: fn(&str)) -> Result<(), String> {
    let next = AtomicUsize::new(0);
    each_processor(&|| {
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let seen = job.play(worlds);
            if seen.is_err() {
                next.store(jobs.len(), Ordering::Relaxed);
            }
            told(&seen?);
        }
        Ok(())
    })
}
