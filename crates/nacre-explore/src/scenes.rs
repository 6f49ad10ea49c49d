//! What is explored beside the sequences, on all processors: each scene as it is, and with planted
//! bugs that it must notice.

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

/// Those that take longest come first.
const SCENES: &[Scene] = &[
    #[cfg(feature = "explore")]
    |_, seed| {
        let images = images(|images| disk_scene::run_twins(Sabotage::Nothing, seed, images))?;
        Ok(format!(
            "two disks behind an image: {images} images, also with either disk lost"
        ))
    },
    #[cfg(feature = "explore")]
    |_, seed| {
        let images = images(|images| disk_scene::run(Sabotage::Nothing, seed, images))?;
        Ok(format!(
            "a disk behind an image: {images} images, each a version that was to be there"
        ))
    },
    |worlds, seed| {
        let images = images(|images| objects_scene::run(worlds, Sabotage::Nothing, seed, images))?;
        Ok(format!(
            "transactions on objects: {images} images, all of each or nothing"
        ))
    },
    #[cfg(feature = "explore")]
    |_, seed| {
        let images = images(|images| disk_scene::run_common(Sabotage::Nothing, seed, images))?;
        Ok(format!("two disks with a common part: {images} images"))
    },
    #[cfg(feature = "explore")]
    |_, seed| {
        let images = images(|images| disk_scene::run_parts(Sabotage::Nothing, seed, images))?;
        Ok(format!("two disks that hold each a part: {images} images"))
    },
    #[cfg(feature = "explore")]
    |_, seed| {
        let images = images(|images| copies_scene::run(Sabotage::Nothing, seed, images))?;
        Ok(format!(
            "two copies: {images} images, each also with either device lost"
        ))
    },
    #[cfg(feature = "explore")]
    |_, seed| {
        let mut grown = grow::Grown::default();
        grow::run(Sabotage::Nothing, seed, &mut grown)?;
        let grow::Grown { images, bits, .. } = grown;
        Ok(format!(
            "growing by a device: {images} images, {bits} bits of labels flipped, nothing lost"
        ))
    },
    |worlds, seed| {
        let images = images(|images| repair_scene::run(worlds, Sabotage::Nothing, seed, images))?;
        Ok(format!(
            "repairs: {images} images, repaired again to the same end"
        ))
    },
    |worlds, _| {
        let mut damage = Damage::default();
        damage::run(worlds, &mut damage)?;
        let Damage { bits, noticed, .. } = damage;
        Ok(format!(
            "flipped bits {bits}, noticed {noticed}, none taken for truth"
        ))
    },
    #[cfg(feature = "explore")]
    |_, seed| {
        let images = images(|images| leave_scene::run(Sabotage::Nothing, seed, images))?;
        Ok(format!(
            "a device leaves: {images} images, all that was there is"
        ))
    },
    |worlds, seed| {
        let images = images(|images| format::run(worlds, Sabotage::Nothing, seed, images))?;
        Ok(format!(
            "making a pool: {images} images, an old pool, none or the new one"
        ))
    },
];

#[cfg(feature = "explore")]
const CANARIES: &[Scene] = canary::SCENES;
#[cfg(not(feature = "explore"))]
const CANARIES: &[Scene] = &[];

/// Plays all scenes. What each saw is `told` as it ends; the first error ends it.
pub fn run(worlds: &Worlds, seed: u64, told: fn(&str)) -> Result<(), String> {
    let all = [SCENES, CANARIES].concat();
    let next = AtomicUsize::new(0);
    each_processor(&|| {
        while let Some(scene) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            let seen = scene(worlds, seed);
            if seen.is_err() {
                next.store(all.len(), Ordering::Relaxed);
            }
            told(&seen?);
        }
        Ok(())
    })
}
