//! The present users of a pool, and coming in alone.

use crate::failure::{Failure, Result, store_failure};
use nacre_session::{Liveness, Session, SlotRef};
use nacre_store::{StoreError, give_all_to_disk, runtime};
use nacre_volume::{Access, Presence, Volume};
use std::path::Path;

/// The processes that use a pool now.
pub fn users(volume: &Volume) -> Vec<u32> {
    users_that(volume, |_, _| true)
}

/// Those that commit for all, every few seconds: supervisors, mounts and stand-ins.
pub fn committers(volume: &Volume) -> Vec<u32> {
    users_that(volume, Session::commits_for_all)
}

/// All others.
pub fn programs(volume: &Volume) -> Vec<u32> {
    users_that(volume, |session, slot| !session.commits_for_all(slot))
}

fn users_that(volume: &Volume, wanted: impl Fn(&Session, SlotRef) -> bool) -> Vec<u32> {
    let Ok(session) = runtime::session(volume) else {
        return Vec::new();
    };
    let alive = session
        .current_slots()
        .filter(|&slot| session.liveness(slot) != Liveness::Dead);
    let wanted = alive.filter(|&slot| wanted(&session, slot));
    let mut pids: Vec<u32> = wanted.filter_map(|slot| session.pid_of(slot)).collect();
    // One that executes a program has two slots for a moment.
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// Comes in alone, until the volume is dropped; refuses when anybody uses the pool.
pub fn take_alone(path: &Path, volume: &Volume) -> Result<()> {
    refuse_if_used(path, volume)?;
    // Somebody else may have been alone just before, and have changed which devices there are.
    if !volume.enter(Presence::Alone)? || volume.renewed()?.is_some() {
        return Err(store_failure(path, StoreError::InUse));
    }
    Ok(())
}

/// Does something alone, when all of the pool is on its disks and memory has nothing of it.
pub fn at_home<T>(path: &Path, work: impl FnOnce(&Volume) -> Result<T>) -> Result<T> {
    let volume = Volume::open(path, Access::ReadWrite)?;
    let _alone = volume.lock_exclusive()?;
    take_alone(path, &volume)?;
    give_all_to_disk(&volume).map_err(|error| store_failure(path, error))?;
    work(&volume)
}

/// Refuses when anybody of this session uses the pool.
pub fn refuse_if_used(path: &Path, volume: &Volume) -> Result<()> {
    let pids = users(volume);
    if pids.is_empty() {
        return Ok(());
    }
    Err(Failure::InUse {
        pool: path.to_path_buf(),
        pids,
    })
}

/// As [`refuse_if_used`], of a pool that may be damaged, or be none.
pub fn refuse_if_open(path: &Path) -> Result<()> {
    match Volume::open(path, Access::ReadOnly) {
        Ok(volume) => refuse_if_used(path, &volume),
        Err(_) => Ok(()),
    }
}
