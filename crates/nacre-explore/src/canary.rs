//! Planted bugs. An explorer that does not find them is broken.

use nacre_types::StoreKind;

use crate::medium::Depth;
use crate::plan::{counts, plan};
use crate::sabotage::Sabotage;
use crate::sequence::{Rig, Tally};
use crate::workload::Worlds;

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
};

/// How many images it took to find each bug; the first that was not found is an error.
pub fn run(worlds: &Worlds, seed: u64) -> Result<Vec<(Sabotage, u64)>, String> {
    let mut rig = Rig::new(worlds)?;
    BUGS.into_iter()
        .map(|bug| hunt(&mut rig, bug, seed).map(|images| (bug, images)))
        .collect()
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
