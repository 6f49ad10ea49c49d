//! Opening a pool by any of its devices, and reading one device's label.

mod generation;
pub(crate) mod lock;
pub(crate) mod relabel;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre_media::{Access, Device, Granularity, Owner};

use crate::error::VolumeError;
use crate::label::placement::Stripe;
use crate::label::{self, LabelInfo};
use crate::layout::EMULATES_MAX;
use crate::members::labels::forget_front;
use crate::members::{Member, Members, trust_of};
use crate::open::relabel::Locked;
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
            let find = || Members::find_from(copy, access, trust_of(owner));
            match Self::of_members(&find, access) {
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
        Self::of_members(&|| Members::find(members, access), access)
    }

    fn of_members(
        find: &dyn Fn() -> Result<Members, VolumeError>,
        access: Access,
    ) -> Result<Self, VolumeError> {
        let mut found = find()?;
        if access == Access::ReadWrite
            && found.may_be_relabeled()?
            && !stale(&found, &found.table_now()).is_empty()
            && let Some(locked) = Locked::at_once(&found)?
        {
            // Who held the lock before may have changed them since they were read.
            found = find()?;
            if found.may_be_relabeled()? && locked.is_of(&found) {
                repair(&found)?;
            }
        }
        let (table, parts) = (&found.table, found.parts());
        let mut volume = match table.has_copies() {
            true => Self::assemble_copies(table, &parts, (found.trust, &found.damaged)),
            false => Self::assemble(table.pool, table.arrangement(), &parts, &table.gone()),
        }?;
        volume.sequence = Some(table.sequence);
        Ok(volume)
    }

    /// Whether its labels are those that it was opened by.
    pub fn is_as_opened(&self) -> Result<bool, VolumeError> {
        let Some(sequence) = self.sequence else {
            return Ok(true);
        };
        let is_as_told = |device: &Arc<Device>| {
            let label = label::read(device);
            label.is_ok_and(|it| it.pool == self.uuid() && it.sequence <= sequence)
        };
        Ok(self.all_devices()?.iter().all(is_as_told))
    }

    /// The volume as it is now, if its labels have changed since it was opened: devices may have
    /// come, left or grown before this process was present. To be called once it is. Who uses
    /// copies follows their labels, but to the addresses and the journal that they had at first.
    pub fn renewed(&self) -> Result<Option<Self>, VolumeError> {
        if self.is_as_opened()? {
            return Ok(None);
        }
        let mut found = Err(VolumeError::NoDevices);
        for device in self.all_devices()? {
            found = Self::open(device.path(), self.access());
            if found.as_ref().is_ok_and(|it| it.uuid() == self.uuid()) {
                break;
            }
        }
        let found = found?;
        // What was told about the header before counts, as that is not looked at again.
        let repaired = self.repaired.get().cloned();
        let _fresh = repaired.map(|devices| found.repaired.set(devices));
        Ok(Some(found))
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
        let (found, _lock) = Members::find_locked(member)?;
        for member in found.members.iter().filter(|it| is_stored_to(&found, it)) {
            let index = member.place.unwrap_or(0);
            let mut label = LabelInfo {
                index,
                intact: true,
                granularity: member.label.granularity,
                ..found.table.clone()
            };
            change(&mut label);
            forget_front(&found.table, &member.device)?;
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
    /// Whoever uses copies writes their labels himself.
    fn may_be_relabeled(&self) -> Result<bool, VolumeError> {
        Ok(!self.table.has_copies() || !self.in_use()?)
    }

    /// The newest table, with the places where the devices are now.
    fn table_now(&self) -> LabelInfo {
        let mut table = self.table.clone();
        let members = self.members.iter().filter(|_| self.table.devices.len() > 1);
        for member in members {
            let entry = &mut table.devices[member.place.unwrap_or(0)];
            entry.path = label::hint(&member.device.real_path());
        }
        table
    }

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
                beside: self.table.beside,
                sums: self.table.sums,
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
    member.is_stored_to(&found.table)
}

/// Those whose labels are not as they should be.
fn stale<'m>(found: &'m Members, table: &LabelInfo) -> Vec<&'m Member> {
    let is_stale = |member: &&Member| {
        let label = &member.label;
        let differs = label.devices != table.devices || label.home != table.home;
        let moved = table.has_copies() && !member.is_where_it_was();
        is_stored_to(found, member) && (!label.intact || differs || moved)
    };
    found.members.iter().filter(is_stale).collect()
}

/// Rewrites the labels that are not as they should be. Of copies one that fails is left to whoever
/// writes to it next, who gives it up, as long as others take theirs.
fn repair(found: &Members) -> Result<(), VolumeError> {
    let table = found.table_now();
    let stale = stale(found, &table);
    let written = stale.iter().map(|member| repair_label(member, &table));
    let failed: Vec<VolumeError> = written.filter_map(Result::err).collect();
    let may_fail = match table.has_copies() {
        true => found.members.len().saturating_sub(1),
        false => 0,
    };
    match failed.len() <= may_fail {
        true => Ok(()),
        false => failed.into_iter().next().map_or(Ok(()), Err),
    }
}

fn repair_label(member: &Member, table: &LabelInfo) -> Result<(), VolumeError> {
    let label = LabelInfo {
        index: member.place.unwrap_or(0),
        intact: true,
        granularity: member.label.granularity,
        ..table.clone()
    };
    forget_front(table, &member.device)?;
    label::write(&member.device, &label)
}
