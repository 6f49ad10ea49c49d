//! The presence on a device of whoever has its pool open, which the kernel ends with its holder.

use nacre_media::{Device, Hold};

use crate::error::VolumeError;

/// What somebody is to the others who have the pool open. It lasts until the last process that has
/// the volume mapped, this one or a child forked from it, ends or unmaps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// The only one. Needs a volume that is open for writing.
    Alone,
    /// One of the processes that change the pool together.
    Member,
    /// Reads while nobody changes the pool.
    Reader,
}

/// Subjects of holds on each device.
const MEMBERS: u32 = 0;
const READERS: u32 = 1;

/// Whether somebody else is present on a device.
pub(crate) fn is_held(device: &Device) -> Result<bool, VolumeError> {
    Ok(device.is_held_by_others(MEMBERS)? || device.is_held_by_others(READERS)?)
}

/// Becomes present on one device, or changes from one presence to another. `false`: others are
/// present whom that excludes.
pub(crate) fn enter(device: &Device, presence: Presence) -> Result<bool, VolumeError> {
    Ok(match presence {
        Presence::Alone => {
            device.hold(MEMBERS, Hold::Exclusive)? && !device.is_held_by_others(READERS)?
        }
        Presence::Member => device.hold(MEMBERS, Hold::Shared)?,
        Presence::Reader => {
            device.hold(READERS, Hold::Shared)?
                && device.release(MEMBERS).map(|()| true)?
                && !device.is_held_by_others(MEMBERS)?
        }
    })
}

/// Is present on one device no longer.
pub(crate) fn release(device: &Device) -> Result<(), VolumeError> {
    device.release(MEMBERS)?;
    device.release(READERS)?;
    Ok(())
}
