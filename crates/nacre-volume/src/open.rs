//! Opening a pool by any of its devices, and reading one device's label.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre_media::{Access, Device, Granularity, LegState, Owner};
use rustix::fs::FlockOperation;

use crate::error::VolumeError;
use crate::label::{self, LabelInfo};
use crate::layout::EMULATES_MAX;
use crate::lock::lock_device;
use crate::member::{Member, Members, trust_of};
use crate::placement::Stripe;
use crate::volume::{Part, Volume};

impl Volume {
    /// Opens the pool that the device at `member` belongs to. Its other devices are found by the
    /// paths in its label.
    pub fn open(member: &Path, access: Access) -> Result<Self, VolumeError> {
        Self::open_with(&[member], access)
    }

    /// As [`Volume::open`]; if the device is lost or has left, by the first of these copies of it
    /// that is there and whole. Nobody named them: they must be of those who may write a device of
    /// this owner.
    pub fn open_or_copy(
        member: &Path,
        copies: &[PathBuf],
        owner: Option<Owner>,
        access: Access,
    ) -> Result<Self, VolumeError> {
        let lost = match Self::open(member, access) {
            Err(error) if error.is_loss() => error,
            other => return other,
        };
        let Some(owner) = owner else {
            return Err(lost);
        };
        for copy in copies {
            let found = Members::find_from(copy, access, trust_of(owner));
            match found.and_then(|found| Self::of_members(&found, access)) {
                Err(error) if error.is_loss() => {}
                other => return other,
            }
        }
        Err(lost)
    }

    /// Opens the pool that all devices at `members` belong to; those that are not named are found
    /// by the paths in the labels.
    ///
    /// Opened for writing, labels that are damaged or tell an old table or place are rewritten,
    /// but not while others use a pool with copies.
    pub fn open_with(members: &[&Path], access: Access) -> Result<Self, VolumeError> {
        Self::of_members(&Members::find(members, access)?, access)
    }

    fn of_members(found: &Members, access: Access) -> Result<Self, VolumeError> {
        let has_copies = found.table.has_copies();
        let in_use = has_copies && found.in_use()?;
        let home = match has_copies {
            true => found.home(in_use),
            false => (0, 0),
        };
        // What happens to the label of a copy in use tells that the copy is written over.
        if access == Access::ReadWrite && !in_use {
            repair(found, home)?;
        }
        match has_copies {
            true => Self::assemble_copies(
                &found.table,
                home,
                &found.parts(),
                (found.trust, &found.damaged),
            ),
            false => Self::assemble(
                found.table.pool,
                found.table.arrangement(),
                &found.parts(),
                &found.table.gone(),
            ),
        }
    }

    /// Rewrites how the devices of a pool are to be written and read, one after the other: `choose`
    /// gets the number of each and what it knows so far. Whoever uses the pool already goes on as
    /// before.
    pub fn store_granularity(
        member: &Path,
        mut choose: impl FnMut(usize, Granularity) -> Granularity,
    ) -> Result<(), VolumeError> {
        Self::change_labels(member, |label| {
            label.granularity = choose(label.index, label.granularity);
        })
    }

    /// Remembers which device profile the pool emulates, by its name or path; empty for none.
    pub fn store_emulated(member: &Path, profile: &str) -> Result<(), VolumeError> {
        if profile.len() > EMULATES_MAX || profile.contains(char::is_control) {
            return Err(VolumeError::LongName(profile.to_owned()));
        }
        Self::change_labels(member, |label| label.emulates = profile.to_owned())
    }

    /// Remembers how much memory the image of a disk may take; 0 for no wish.
    pub fn store_cache(member: &Path, bytes: u64) -> Result<(), VolumeError> {
        Self::change_labels(member, |label| label.cache = bytes)
    }

    /// Remembers that the disk gets what was stored after so many milliseconds, and that nobody
    /// waits for it; 0: who syncs does. Whoever uses the pool already goes on as before.
    pub fn store_saved_every(member: &Path, millis: u32) -> Result<(), VolumeError> {
        Self::change_labels(member, |label| label.saved_every = millis)
    }

    /// Spreads what is written from the next attach on over the devices like this.
    pub fn store_stripe(member: &Path, stripe: Stripe) -> Result<(), VolumeError> {
        Self::change_labels(member, |label| label.stripe = stripe)
    }

    /// Changes the labels of all devices of a pool that nobody relabels meanwhile.
    fn change_labels(
        member: &Path,
        mut change: impl FnMut(&mut LabelInfo),
    ) -> Result<(), VolumeError> {
        let found = Members::find(&[member], Access::ReadWrite)?;
        let first = &found.members[0].device;
        let Some(_lock) = lock_device(first, FlockOperation::LockExclusive)? else {
            return Ok(());
        };
        for member in found.members.iter().filter(|it| is_stored_to(&found, it)) {
            let index = member.place.unwrap_or(0);
            let mut label = LabelInfo {
                index,
                intact: true,
                granularity: member.label.granularity,
                ..found.table.clone()
            };
            change(&mut label);
            label::write(&member.device, &label)?;
        }
        Ok(())
    }

    /// What the label of the device at `path` says; looks at no other device.
    pub fn inspect(path: &Path) -> Result<LabelInfo, VolumeError> {
        Self::inspect_with_owner(path).map(|(label, _)| label)
    }

    /// As [`Volume::inspect`], and whose the device is.
    pub fn inspect_with_owner(path: &Path) -> Result<(LabelInfo, Owner), VolumeError> {
        let device = Arc::new(Device::open(path, Access::ReadOnly)?);
        Ok((label::read(&device)?, device.owner()))
    }
}

impl Members {
    /// The devices as parts of a volume, in table order.
    pub fn parts(&self) -> Vec<Part> {
        let part = |member: &Member| {
            let entry = &self.table.devices[member.place.unwrap_or(0)];
            Part {
                device: Arc::clone(&member.device),
                uuid: entry.uuid,
                size: entry.size,
                data: entry.data,
                granularity: member.label.granularity,
                journal: self.table.journal,
                cache: self.table.cache,
                saved_every: self.table.saved_every,
                state: entry.state,
                stay: entry.stay,
            }
        };
        self.members.iter().map(part).collect()
    }
}

/// Whether a device is part of the pool as it is now. A copy that was lost keeps the label that it
/// had then.
fn is_stored_to(found: &Members, member: &Member) -> bool {
    let entry = &found.table.devices[member.place.unwrap_or(0)];
    entry.state.is_none_or(LegState::is_stored_to)
}

/// Rewrites the labels that are not as they should be. Somebody else who does it at the moment is
/// left alone.
fn repair(found: &Members, home: (u64, u64)) -> Result<(), VolumeError> {
    let mut table = found.table.clone();
    let mut moved = home != table.home;
    table.home = home;
    for member in &found.members {
        let entry = &mut table.devices[member.place.unwrap_or(0)];
        if found.table.devices.len() > 1 {
            let hint = label::hint(&member.device.real_path());
            moved |= hint != entry.path;
            entry.path = hint;
        }
    }
    let stale = |member: &&Member| {
        let label = &member.label;
        let differs = label.devices != table.devices || label.home != table.home;
        is_stored_to(found, member) && (!label.intact || differs)
    };
    if !moved && !found.members.iter().any(|member| stale(&member)) {
        return Ok(());
    }
    let Some(_lock) = lock_device(
        &found.members[0].device,
        FlockOperation::NonBlockingLockExclusive,
    )?
    else {
        return Ok(());
    };
    for member in found.members.iter().filter(stale) {
        let label = LabelInfo {
            index: member.place.unwrap_or(0),
            intact: true,
            granularity: member.label.granularity,
            ..table.clone()
        };
        label::write(&member.device, &label)?;
    }
    Ok(())
}
