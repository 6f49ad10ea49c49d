//! A pool on one device gets a second one that holds the same (D81).

use std::path::Path;
use std::sync::Arc;

use nacre_media::{Access, Device, LegState, MIRROR_MOST_BYTES, SEALS_AT};
use nacre_types::Uuid;

use crate::create::{is_by_calls, table_entry};
use crate::error::VolumeError;
use crate::kinds::memory_copies::take_copy;
use crate::label::placement::Stripe;
use crate::label::{self, LabelInfo};
use crate::layout::DATA_START;
use crate::members::Members;
use crate::members::labels::write_as;
use crate::volume::Volume;

impl Volume {
    /// From now on the only device of a pool is one of two that hold the same. The other one lacks
    /// everything: it comes by [`Volume::return_copy`], and is rebuilt. A file that does not exist
    /// gets `size` bytes, or what it needs.
    ///
    /// Nobody may have the pool open meanwhile, and there is no image of it; the caller sees to
    /// that. A crash leaves the pool as it was or with two copies.
    pub fn begin_copies(
        member: &Path,
        new: (&Path, Option<u64>),
        force: bool,
    ) -> Result<Uuid, VolumeError> {
        let found = Members::find(&[member], Access::ReadWrite)?;
        let (table, first) = (&found.table, &found.members[0].device);
        refuse_more_than_one(table, member)?;
        let data = table.devices[0].data;
        let (taken, mut part) = take_copy(
            (new.0, new.1, force),
            data + table.journal,
            (table, found.devices()),
        )?;
        refuse_unlike(first, &part.device, table)?;
        (part.data, part.state) = (data, Some(LegState::Failed));
        let mut next = LabelInfo {
            sequence: table.sequence + 1,
            stripe: Stripe::None,
            home: first.identity().numbers(),
            ..table.clone()
        };
        next.devices[0].state = Some(LegState::Current);
        next.devices[0].path = label::hint(&first.real_path());
        next.devices.push(table_entry(&part));
        // No seal and no bit counts that a single device may have in front of its data.
        label::wipe(first, SEALS_AT..DATA_START)?;
        // The label of the first device decides.
        write_as(&next, part.uuid, &part.device)?;
        write_as(&next, next.devices[0].uuid, first)?;
        taken.keep();
        Ok(part.uuid)
    }
}

fn refuse_more_than_one(table: &LabelInfo, pool: &Path) -> Result<(), VolumeError> {
    let why = match table.devices.len() {
        1 if table.has_copies() => "has copies already",
        1 => return Ok(()),
        _ => "has devices that each hold a part; make a pool with copies and copy (`nacre cp -r`)",
    };
    Err(VolumeError::Copies {
        path: pool.to_owned(),
        why,
    })
}

/// With a journal both are written by calls; without one all of it has bits.
fn refuse_unlike(
    first: &Arc<Device>,
    new: &Arc<Device>,
    table: &LabelInfo,
) -> Result<(), VolumeError> {
    if table.journal == 0 {
        return match DATA_START + table.devices[0].data > MIRROR_MOST_BYTES {
            true => Err(VolumeError::TooLargeForCopies(MIRROR_MOST_BYTES)),
            false => Ok(()),
        };
    }
    for device in [first, new] {
        if !is_by_calls(&label::kind(device)?) {
            return Err(VolumeError::Copies {
                path: device.path().to_owned(),
                why: "is memory that is used as a disk, which cannot be one of several yet",
            });
        }
    }
    Ok(())
}
