//! Adding a device to a pool.

use std::path::{Path, PathBuf};

use nacre_media::{Access, Policy};

use crate::create::{
    Caching, CreateOptions, DeviceSpec, Shared, Taken, fit, leave_whole, write_labels,
};
use crate::error::VolumeError;
use crate::label;
use crate::layout::MAX_DEVICES;
use crate::member::Members;
use crate::placement::{Arrangement, Stripe};
use crate::volume::{Part, Volume};

impl Members {
    /// What a new device of which nothing is known is taken to be like: its neighbours, as far as
    /// they were not measured.
    fn inherited(&self) -> Policy {
        let last = self.members.last();
        let policy = last.map(|member| member.label.granularity.policy);
        policy
            .filter(|policy| *policy != Policy::Calibrated)
            .unwrap_or_default()
    }
}

/// How a pool spreads data once it has one device more.
fn stripe_of(devices: usize, before: Stripe) -> Stripe {
    match devices {
        1 => Stripe::USUAL,
        _ => before,
    }
}

/// Gives a device that is added what the others of a pool behind an image have.
fn join(parts: &mut [Part], options: CreateOptions) -> Result<(), VolumeError> {
    let Some((new, old)) = parts.split_last_mut() else {
        return Ok(());
    };
    let first = old.first().ok_or(VolumeError::NoDevices)?;
    let kinds = [label::kind(&first.device)?, label::kind(&new.device)?];
    if !fit(&kinds, Caching::Always) {
        return Err(VolumeError::Journaled(new.device.path().into()));
    }
    (new.journal, new.cache, new.saved_every) = (first.journal, first.cache, first.saved_every);
    leave_whole(new, options.granularity);
    Ok(())
}

impl Volume {
    /// Adds a device behind the end of the volume of the pool that `members` belong to, and opens
    /// the larger volume.
    ///
    /// Nobody may have the pool open meanwhile, and there is no image of it; the caller sees to
    /// that. A crash leaves the pool as it was or grown.
    pub fn grow(
        members: &[&Path],
        added: &DeviceSpec,
        options: CreateOptions,
    ) -> Result<Self, VolumeError> {
        let found = Members::find(members, Access::ReadWrite)?;
        if found.table.has_copies() {
            return Err(VolumeError::Copies {
                path: found.members[0].device.path().into(),
                why: "grows by its own devices, all of them: name none (`nacre grow --size`), or add a copy (`nacre device add`)",
            });
        }
        if found.table.behind > 0 {
            return Err(VolumeError::Behind {
                path: found.members[0].device.path().into(),
                why: "a pool with a disk behind it cannot grow yet; make a larger one and copy (`nacre cp -r`)",
            });
        }
        let count = found.table.devices.len() + 1;
        if count > MAX_DEVICES {
            return Err(VolumeError::TooManyDevices(count));
        }
        let mut taken = Taken::sharing(0, 1);
        taken.take(added, options.force)?;
        let mut parts = found.parts();
        parts.append(&mut taken.parts(options.granularity)?);
        if let (Some(new), None) = (parts.last_mut(), options.granularity)
            && new.granularity.policy == Policy::None
        {
            new.granularity.policy = found.inherited();
        }
        if found.table.journal > 0 {
            join(&mut parts, options)?;
        }
        let (new, old) = parts.split_last().ok_or(VolumeError::NoDevices)?;
        if let Some(same) = old
            .iter()
            .find(|part| part.device.identity() == new.device.identity())
        {
            return Err(VolumeError::SameDevice(
                PathBuf::from(same.device.path()),
                added.path.clone(),
            ));
        }
        let table = &found.table;
        let stripe = options
            .stripe
            .unwrap_or_else(|| stripe_of(old.len(), table.stripe));
        let arrangement = Arrangement { stripe, behind: 0 };
        let shared = Shared {
            pool: table.pool,
            sequence: table.sequence + 1,
            emulates: &table.emulates,
            arrangement,
            common: 0,
            gone: &table.gone(),
        };
        write_labels(shared, &parts)?;
        taken.keep();
        Self::assemble(found.table.pool, arrangement, &parts, &found.table.gone())
    }
}
