//! The image of a disk: found or made by who comes, removed by who leaves last.

use std::os::fd::OwnedFd;

use nacre_media::lifted;
use nacre_runtime::{Folder, RuntimeError};
use nacre_volume::{Access, Presence, Volume};
use rustix::fs::{MemfdFlags, OFlags, memfd_create};
use rustix::io::Errno;

use crate::error::{Result, StoreError};
use crate::runtime::{COPIES, IMAGE, folder, in_folder, is_there};
use crate::worth::{recover_copies, repair_header, repair_tails};

const FRESH: &str = "image.new";

/// As [`bring_up_locked`], for who does not hold the pool's lock. Fails if the pool is another one
/// by now: devices that left are not to be written to, nor the image of those that came removed.
pub(crate) fn bring_up(volume: &Volume) -> Result<()> {
    if !volume.lacks_shared_file() {
        return Ok(());
    }
    let _lock = volume.lock_exclusive()?;
    if !volume.is_as_opened()? {
        return Err(StoreError::InUse);
    }
    bring_up_locked(volume)
}

/// Brings up the image of a disk, so that the volume can be used: the one that others use or have
/// left, else a new one of what the disk holds. Whoever may not write the disk has one of its own
/// if there is none.
pub(crate) fn bring_up_locked(volume: &Volume) -> Result<()> {
    if !volume.lacks_shared_file() {
        return Ok(());
    }
    if volume.access() == Access::ReadOnly {
        return bring_up_to_read(volume);
    }
    in_folder(volume, |folder| bring_up_in(folder, volume))
}

fn bring_up_in(folder: &Folder, volume: &Volume) -> Result<()> {
    is_there(folder)?;
    let name = name_of(volume);
    if let Some(found) = folder.open_file(name, OFlags::RDWR)?
        && join(volume, lifted(found))?
    {
        return Ok(());
    }
    // Those who are here have another one, which this process does not see: one in another folder,
    // or one that somebody has removed. It alone knows where their journal is.
    if !volume.enter(Presence::Alone)? {
        return Err(StoreError::InUse);
    }
    folder.remove(name)?;
    folder.remove(FRESH)?;
    let made = folder.make_file(FRESH)?;
    make(volume, lifted(made))?;
    Ok(folder.rename(FRESH, name)?)
}

/// Name of the file that processes share: the image of a disk, or what there is about copies.
fn name_of(volume: &Volume) -> &'static str {
    match volume.mirror().is_some() {
        true => COPIES,
        false => IMAGE,
    }
}

fn join(volume: &Volume, file: OwnedFd) -> Result<bool> {
    Ok(match volume.mirror().is_some() {
        true => volume.join_shared(file)?,
        false => volume.join_image(file)?,
    })
}

fn make(volume: &Volume, file: OwnedFd) -> Result<()> {
    volume.refuse_older_devices()?;
    match volume.mirror().is_some() {
        true => {
            volume.make_shared(file)?;
            volume.drop_older_copies()?;
            // Before all copies get what the one holds that is read.
            repair_header(volume)?;
            repair_tails(volume)?;
            recover_copies(volume);
        }
        false => {
            volume.make_image(file)?;
            repair_header(volume)?;
            repair_tails(volume)?;
        }
    }
    Ok(())
}

fn bring_up_to_read(volume: &Volume) -> Result<()> {
    let found = match folder(volume) {
        Ok(Some(folder)) => folder.open_file(name_of(volume), OFlags::RDWR),
        Ok(None) => Ok(None),
        Err(error) => Err(error),
    };
    // What memory holds is newer than the disk, and not for every user to see.
    if let Some(found) = found.map_err(|_| StoreError::InUse)?
        && join(volume, lifted(found))?
    {
        return Ok(());
    }
    let own = memfd_create("nacre-image", MemfdFlags::CLOEXEC).map_err(no_memory)?;
    make(volume, lifted(own))
}

fn no_memory(errno: Errno) -> RuntimeError {
    RuntimeError::System {
        action: "make",
        path: "an image in memory".into(),
        errno,
    }
}

/// Brings everything home and removes the image, if the disk has all that was stored and nobody
/// else uses the image. The caller holds the pool's lock, or is alone.
pub(crate) fn retire(volume: &Volume) -> Result<()> {
    if volume.close_copies()?
        && let Some(folder) = folder(volume)?
    {
        folder.remove(COPIES)?;
        folder.leave_if_unused();
    }
    if !volume.has_image() || volume.access() == Access::ReadOnly || !volume.is_clean() {
        return Ok(());
    }
    volume.checkpoint()?;
    if volume.is_last_of_image()
        && let Some(folder) = folder(volume)?
    {
        remove_from(&folder)?;
    }
    Ok(())
}

/// The disk has all that was stored, and there is no image any more; nothing else of the pool
/// changes. The caller holds the pool's exclusive lock and is alone.
pub fn give_all_to_disk(volume: &Volume) -> Result<()> {
    bring_up_locked(volume)?;
    if let Some(version) = volume.take_version() {
        volume.write_version(version)?;
    }
    retire(volume)
}

fn remove_from(folder: &Folder) -> Result<()> {
    folder.remove(IMAGE)?;
    folder.leave_if_unused();
    Ok(())
}
