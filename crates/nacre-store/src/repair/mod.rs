//! Repairing a pool: whatever check finds is put right or cut off, and said.
//!
//! First what the pool as a whole hangs on (`header`), then every structure by itself and against
//! the units that it names (`objects`, `nodes`), then names and links (`names`). Each change is one
//! store or one transaction, leaves the pool no worse, and is not repeated once it is done: a
//! repair may be cut off and started again anywhere. Nothing is allocated before all structures are
//! sound, because only then it is known what is free.

mod bit_flip;
mod header;
mod keyed;
mod names;
mod nodes;
mod objects;

use std::collections::BTreeMap;

use nacre_types::{Clock, ObjectId, StoreKind, VolumeOffset};
use nacre_volume::{Access, Volume};

use crate::check::{Problem, Report, check};
use crate::error::{Result, StoreError};
use crate::recovery::attach::{AttachOptions, SessionChoice, live_session};
use crate::recovery::image;
use crate::recovery::scan::MAX_PROBLEMS;
use crate::runtime::place;
use crate::store::Store;
use crate::superblock::{PoolState, Superblock};

/// Rounds of each stage: what one round cuts off can be what another one hangs on.
const MAX_ROUNDS: usize = 64;

/// Stages of a repair, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairStep {
    /// What is looked at.
    pub stage: &'static str,
    /// Which time.
    pub round: usize,
    /// Changes made so far.
    pub fixes: u64,
}

/// What a repair did.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What was done, or would be; at most 1000 entries.
    pub fixes: Vec<Problem>,
    /// Changes that found no place in the list.
    pub more_fixes: u64,
    /// What a check says afterwards; before, if nothing was to be changed.
    pub left: Report,
}

impl Outcome {
    fn note(&mut self, object: Option<ObjectId>, place: Option<VolumeOffset>, what: String) {
        if self.fixes.len() < MAX_PROBLEMS {
            self.fixes.push(Problem {
                object,
                place,
                what,
            });
        } else {
            self.more_fixes += 1;
        }
    }

    fn count(&self) -> u64 {
        self.fixes.len() as u64 + self.more_fixes
    }
}

/// Changes to structures, gathered in one round: each is applied by a transaction of its own.
#[derive(Default)]
struct Patches {
    words: BTreeMap<VolumeOffset, u64>,
    bytes: BTreeMap<VolumeOffset, Vec<u8>>,
}

impl Patches {
    fn apply(&self, store: &Store) -> Result<()> {
        for (&at, &word) in &self.words {
            let mut tx = store.begin()?;
            tx.put_word(at, word);
            tx.commit()?;
        }
        for (&at, bytes) in &self.bytes {
            let mut tx = store.begin()?;
            tx.put_bytes(at, bytes, StoreKind::Metadata);
            tx.commit()?;
        }
        Ok(())
    }
}

/// Repairs the pool on a volume that nobody uses, and leaves it detached. With `dry_run` nothing is
/// changed (the volume may be opened read-only) and only the first round of each stage is told:
/// what lies behind it shows when that is done.
pub fn repair(
    volume: Volume,
    dry_run: bool,
    progress: &mut dyn FnMut(RepairStep),
) -> Result<(Outcome, Volume)> {
    if volume.access() != Access::ReadWrite && !dry_run {
        return Err(StoreError::ReadOnly);
    }
    let _lock = volume.lock_exclusive()?;
    if !dry_run {
        volume.take_as_one_moment()?;
    }
    image::bring_up_locked(&volume)?;
    let mut outcome = Outcome::default();
    header::superblocks(&volume, dry_run, &mut outcome)?;
    let superblock = Superblock::read(&volume)?;
    if let Ok(state) = PoolState::read(&volume)
        && live_session(place(&volume, None)?, state.stamp, volume.access())?.is_some()
    {
        return Err(StoreError::InUse);
    }
    if dry_run {
        return foresee(volume, &superblock, outcome);
    }
    header::lists(&volume, &superblock, false, &mut outcome)?;
    let volume = rounds(volume, &superblock, &mut outcome, progress)?;
    let store = Store::open_for_repair(volume, superblock.clone())?;
    name_rounds(&store, &mut outcome, progress)?;
    // A fresh attachment finds out what is free and checks what is there.
    let store = Store::attach_locked(store.abandon(), superblock, &PRIVATE)?;
    finish(store, outcome)
}

/// Checks the pool and leaves it as a detach does.
fn finish(store: Store, mut outcome: Outcome) -> Result<(Outcome, Volume)> {
    outcome.left = check(&store, &mut |_| {});
    store.save()?;
    store.commit_now()?;
    image::retire(&store.volume)?;
    Ok((outcome, store.abandon()))
}

const PRIVATE: AttachOptions = AttachOptions {
    session: SessionChoice::Memory,
    mode: None,
    granularity: None,
    resume: false,
    parallel: true,
    clock: Clock::Real,
    looks: false,
};

/// Structures, round after round until nothing is left to do.
fn rounds(
    mut volume: Volume,
    superblock: &Superblock,
    outcome: &mut Outcome,
    progress: &mut dyn FnMut(RepairStep),
) -> Result<Volume> {
    for round in 1..=MAX_ROUNDS {
        progress(RepairStep {
            stage: "structures",
            round,
            fixes: outcome.count(),
        });
        let store = Store::open_for_repair(volume, superblock.clone())?;
        let patches = objects::examine(&store, outcome);
        patches.apply(&store)?;
        volume = store.abandon();
        if patches.words.is_empty() && patches.bytes.is_empty() {
            break;
        }
    }
    Ok(volume)
}

fn name_rounds(
    store: &Store,
    outcome: &mut Outcome,
    progress: &mut dyn FnMut(RepairStep),
) -> Result<()> {
    for round in 1..=MAX_ROUNDS {
        progress(RepairStep {
            stage: "names",
            round,
            fixes: outcome.count(),
        });
        if !names::put_right(store, false, outcome)? {
            break;
        }
    }
    Ok(())
}

/// What the first round of each stage would do.
fn foresee(
    volume: Volume,
    superblock: &Superblock,
    mut outcome: Outcome,
) -> Result<(Outcome, Volume)> {
    let before = outcome.count();
    header::lists(&volume, superblock, true, &mut outcome)?;
    if outcome.count() > before {
        // What is wrong at the header keeps the pool from being attached.
        return Ok((outcome, volume));
    }
    let store = Store::attach_locked(volume, superblock.clone(), &PRIVATE)?;
    let before = outcome.count();
    objects::examine(&store, &mut outcome);
    if outcome.count() == before {
        names::put_right(&store, true, &mut outcome)?;
    }
    finish(store, outcome)
}
