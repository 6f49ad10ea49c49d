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

/// Bugs planted into the scenes that stand beside the sequences; the first that is not noticed is
/// an error. This thread must have played the scene of damage before, so that it knows the places
/// of checks.
#[cfg(feature = "explore")]
pub fn scenes(worlds: &Worlds, seed: u64) -> Result<(), String> {
    let bug = Sabotage::Flushes(StoreKind::Metadata);
    let noticed = [
        ("damage", trusts_superblock(worlds)),
        ("format", format::run(worlds, bug, seed, &mut 0).is_err()),
        ("grow", grow::run(bug, seed, &mut Grown::default()).is_err()),
        ("leave", leave_scene::run(bug, seed, &mut 0).is_err()),
        (
            "repair",
            repair_scene::run(worlds, bug, seed, &mut 0).is_err(),
        ),
        (
            "disk",
            (0..3).all(|of| disk_scene::run(Sabotage::Fences(of), seed, &mut 0).is_err()),
        ),
        (
            "twins",
            (0..3).all(|of| disk_scene::run_twins(Sabotage::Fences(of), seed, &mut 0).is_err()),
        ),
        (
            "parts",
            (0..3).all(|of| disk_scene::run_parts(Sabotage::Fences(of), seed, &mut 0).is_err()),
        ),
        (
            "common",
            (0..3).all(|of| disk_scene::run_common(Sabotage::Fences(of), seed, &mut 0).is_err()),
        ),
        (
            "copies",
            // A fence of one device stands in for a missing one of the other.
            BUGS.iter()
                .filter(|bug| matches!(bug, Sabotage::Flushes(_)))
                .all(|bug| copies_scene::run(*bug, seed, &mut 0).is_err()),
        ),
        (
            "objects",
            BUGS.iter()
                .all(|bug| objects_scene::run(worlds, *bug, seed, &mut 0).is_err()),
        ),
    ];
    match noticed.iter().find(|(_, noticed)| !noticed) {
        Some((scene, _)) => Err(format!(
            "the bug planted into the scene {scene} was not found"
        )),
        None => Ok(()),
    }
}

/// Whether the scene of damage notices that the checksum of a superblock copy is not compared.
#[cfg(feature = "explore")]
fn trusts_superblock(worlds: &Worlds) -> bool {
    use nacre_types::site::{self, Kind};

    use crate::sabotage::Work;

    let of = |place: &site::Site| place.file().ends_with("superblock.rs");
    let places = site::met().into_iter();
    let mut checks = places.filter(|(kind, place)| *kind == Kind::Check && of(place));
    let Some((_, place)) = checks.next() else {
        return false;
    };
    Sabotage::Off(Work::Check, place).switch();
    let played = damage::run(worlds, &mut Damage::default());
    Sabotage::Nothing.switch();
    played.is_err()
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
