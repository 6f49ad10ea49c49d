//! Planted bugs. An explorer that does not find them is broken.

use nacre_types::StoreKind;

#[cfg(feature = "explore")]
use crate::damage::{self, Damage};
#[cfg(feature = "explore")]
use crate::grow::{self, Grown};
use crate::plan::{counts, plan};
use crate::sabotage::Sabotage;
use crate::sequence::{Rig, Tally};
use crate::workload::Worlds;
#[cfg(feature = "explore")]
use crate::{copies_scene, disk_scene, leave_scene};
#[cfg(feature = "explore")]
use crate::{format, objects_scene, repair_scene};
use nacre_testkit::medium::Depth;

const BUGS: [Sabotage; 6] = [
    Sabotage::Flushes(StoreKind::Log),
    Sabotage::Flushes(StoreKind::Metadata),
    Sabotage::Flushes(StoreKind::Data),
    Sabotage::Fences(0),
    Sabotage::Fences(1),
    Sabotage::Fences(2),
];
const DEPTH: Depth = Depth {
    all_up_to: 16,
    samples: 10,
    aimed: false,
};

/// How many images it took to find each bug; the first that was not found is an error.
pub fn run(worlds: &Worlds, seed: u64) -> Result<Vec<(Sabotage, u64)>, String> {
    let mut rig = Rig::new(worlds)?;
    BUGS.into_iter()
        .map(|bug| hunt(&mut rig, bug, seed).map(|images| (bug, images)))
        .collect()
}

/// Played with a seed, answers what it saw.
pub type Scene = fn(&Worlds, u64) -> Result<String, String>;

/// What is said of a bug that was planted into a scene and noticed; an error if it was not.
#[cfg(feature = "explore")]
fn told(scene: &str, noticed: bool) -> Result<String, String> {
    match noticed {
        true => Ok(format!("canaries of the scene {scene}: found")),
        false => Err(format!(
            "the bug planted into the scene {scene} was not found"
        )),
    }
}

#[cfg(feature = "explore")]
const METADATA: Sabotage = Sabotage::Flushes(StoreKind::Metadata);

/// Whether a scene notices that any of its first three fences is left out.
#[cfg(feature = "explore")]
fn each_fence<T>(scene: fn(Sabotage, u64, &mut u64) -> Result<T, String>, seed: u64) -> bool {
    (0..3).all(|of| scene(Sabotage::Fences(of), seed, &mut 0).is_err())
}

/// Bugs planted into the scenes that stand beside the sequences.
#[cfg(feature = "explore")]
pub const SCENES: &[Scene] = &[
    |_, seed| told("twins", each_fence(disk_scene::run_twins, seed)),
    |_, seed| told("common", each_fence(disk_scene::run_common, seed)),
    |_, seed| told("parts", each_fence(disk_scene::run_parts, seed)),
    |_, seed| told("disk", each_fence(disk_scene::run, seed)),
    |_, seed| {
        // A fence of one device stands in for a missing one of the other.
        let mut flushes = BUGS
            .iter()
            .filter(|bug| matches!(bug, Sabotage::Flushes(_)));
        let noticed = flushes.all(|bug| copies_scene::run(*bug, seed, &mut 0).is_err());
        told("copies", noticed)
    },
    |worlds, seed| {
        let mut bugs = BUGS.iter();
        let noticed = bugs.all(|bug| objects_scene::run(worlds, *bug, seed, &mut 0).is_err());
        told("objects", noticed)
    },
    |worlds, _| told("damage", trusts_superblock(worlds)?),
    |worlds, seed| {
        told(
            "format",
            format::run(worlds, METADATA, seed, &mut 0).is_err(),
        )
    },
    |worlds, seed| {
        told(
            "repair",
            repair_scene::run(worlds, METADATA, seed, &mut 0).is_err(),
        )
    },
    |_, seed| told("leave", leave_scene::run(METADATA, seed, &mut 0).is_err()),
    |_, seed| {
        told(
            "grow",
            grow::run(METADATA, seed, &mut Grown::default()).is_err(),
        )
    },
];

/// Whether the scene of damage notices that the checksum of a superblock copy is not compared.
#[cfg(feature = "explore")]
fn trusts_superblock(worlds: &Worlds) -> Result<bool, String> {
    use nacre_types::site::{self, Kind};

    use crate::sabotage::Work;

    // This thread has met the places of checks then.
    damage::run(worlds, &mut Damage::default())?;
    let of = |place: &site::Site| place.file().ends_with("superblock.rs");
    let places = site::met().into_iter();
    let mut checks = places.filter(|(kind, place)| *kind == Kind::Check && of(place));
    let Some((_, place)) = checks.next() else {
        return Ok(false);
    };
    Sabotage::Off(Work::Check, place).switch();
    let played = damage::run(worlds, &mut Damage::default());
    Sabotage::Nothing.switch();
    Ok(played.is_err())
}

fn hunt(rig: &mut Rig, bug: Sabotage, seed: u64) -> Result<u64, String> {
    let mut tally = Tally::default();
    for number in 0..counts()[0] {
        let mut plan = plan(seed, number);
        plan.depth = DEPTH;
        rig.explore(&plan, bug, &mut tally);
        if !tally.violations.is_empty() {
            return Ok(tally.images);
        }
    }
    Err(format!("the planted bug {bug:?} was not found"))
}
