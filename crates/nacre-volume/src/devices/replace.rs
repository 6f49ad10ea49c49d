//! Copies that come into a pool while it is used, and those that go for them (D81).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre_media::{Device, LegFacts, LegState, Mirror};
use nacre_types::Uuid;

use crate::disk::LegsDisk;
use crate::error::VolumeError;
use crate::kinds::memory_copies::CopyInfo;
use crate::label::seats::Comes;
use crate::label::{self, LabelInfo};
use crate::volume::Volume;

impl Volume {
    /// Takes a device into a pool with copies for another one. One that was lost goes at once, and
    /// one that is there when the new one is current. It is rebuilt by [`Volume::rebuild_copies`].
    /// A file that does not exist is made.
    pub fn replace_copy(&self, old: Uuid, new: &Path, force: bool) -> Result<Uuid, VolumeError> {
        let copies = self.copies()?;
        let known = copies.iter().find(|copy| copy.uuid == old);
        let known = known.ok_or_else(|| self.refused("has no such device"))?;
        if copies.iter().any(|copy| copy.replaces == Some(old)) {
            return Err(
                self.refused("that device is being replaced already; nacre device rebuild goes on")
            );
        }
        let comes = match known.state.is_stored_to() {
            true => Comes::For(old),
            false => Comes::InPlaceOf(old),
        };
        self.take_in((new, None, force), comes)
    }

    /// Takes a device into a pool with copies as one more, which is rebuilt by
    /// [`Volume::rebuild_copies`]. A file that does not exist gets `size` bytes, or what it needs.
    pub fn add_copy(
        &self,
        new: &Path,
        size: Option<u64>,
        force: bool,
    ) -> Result<Uuid, VolumeError> {
        self.take_in((new, size, force), Comes::Further)
    }

    /// Lets copies go for which others have come that are current now. Answers where they are: they
    /// are no devices of the pool any more, and their labels are erased. In memory the one that is
    /// read stays while others use the pool: programs may have it mapped, and all are present on
    /// it.
    pub fn let_replaced_go(&self) -> Result<Vec<PathBuf>, VolumeError> {
        self.let_all_go(false)
    }

    /// As [`Volume::let_replaced_go`]; `is_alone`: nobody else uses the pool.
    pub(crate) fn let_all_go(&self, is_alone: bool) -> Result<Vec<PathBuf>, VolumeError> {
        let mut gone = Vec::new();
        for (old, new) in self.replaced_pairs()? {
            let has_gone = match (self.mirror(), self.legs()) {
                (Some(mirror), _) => self.let_leg_go(mirror, (&old, new), is_alone)?,
                (None, Some(legs)) => self.let_disk_go(legs, &old)?,
                (None, None) => false,
            };
            if has_gone {
                gone.push(old.path);
            }
        }
        Ok(gone)
    }

    /// Copies for which others have come that are current, and that are copies still. Not those
    /// that hold something alone, which is to move first.
    pub fn replaced_copies(&self) -> Result<Vec<CopyInfo>, VolumeError> {
        let pairs = self.replaced_pairs()?.into_iter();
        Ok(pairs.map(|(old, _)| old).collect())
    }

    /// As [`Volume::replaced_copies`], each with the one that came.
    fn replaced_pairs(&self) -> Result<Vec<(CopyInfo, Uuid)>, VolumeError> {
        if self.legs().is_some_and(|legs| legs.own().is_some()) {
            return Ok(Vec::new());
        }
        let copies = self.copies()?;
        let current = copies.iter().filter(|it| it.state == LegState::Current);
        let pair = |new: &CopyInfo| {
            let old = copies.iter().find(|it| Some(it.uuid) == new.replaces)?;
            Some((old.clone(), new.uuid))
        };
        Ok(current.filter_map(pair).collect())
    }

    /// First the labels say that it failed, so that all is well whoever dies before it has left the
    /// table.
    fn let_leg_go(
        &self,
        mirror: &Mirror,
        (old, new): (&CopyInfo, Uuid),
        is_alone: bool,
    ) -> Result<bool, VolumeError> {
        let facts = mirror.facts();
        let known = |uuid: Uuid| facts.iter().find(|fact| fact.id == uuid.0);
        let leg = known(old.uuid);
        let goes = |leg: &LegFacts| {
            let let_go = |new: &LegFacts| mirror.let_go(leg.slot, new.slot, is_alone);
            !leg.state.is_stored_to() || known(new).is_some_and(let_go)
        };
        if !leg.is_none_or(goes) {
            return Ok(false);
        }
        self.tell_missing(mirror)?;
        let device = leg.and_then(|leg| leg.device.clone());
        let device = device.or_else(|| self.device_of(mirror, old.uuid));
        mirror.changing_labels(|| {
            let next = self.next_without(&self.table_of(mirror)?, old.uuid)?;
            self.write_labels(mirror, next)
        })?;
        if let Some(leg) = leg {
            mirror.forget_leg(leg.slot);
        }
        forget(device, old.size);
        Ok(true)
    }

    fn device_of(&self, mirror: &Mirror, copy: Uuid) -> Option<Arc<Device>> {
        let table = self.table_of(mirror).ok()?;
        let entry = table.devices.iter().find(|entry| entry.uuid == copy)?;
        Some(self.copy_of(entry)?.device)
    }

    /// Nothing is written to a disk any more: all that was is on the new one, too.
    fn let_disk_go(&self, legs: &LegsDisk, old: &CopyInfo) -> Result<bool, VolumeError> {
        let known = legs.labels().known().into_iter();
        let device = known
            .filter(|(uuid, _)| *uuid == old.uuid)
            .map(|it| it.1)
            .next();
        let go = || {
            legs.settle_labels().map_err(|why| self.disk_failed(why))?;
            legs.changing_labels(|| {
                let table = legs.table().map_err(|why| self.disk_failed(why))?;
                let next = self.next_without(&table, old.uuid)?;
                let written = legs.write_table(next, 0);
                written.map_err(|why| self.disk_failed(why))
            })
        };
        self.while_nobody_commits(go)?;
        forget(device, old.size);
        Ok(true)
    }

    fn next_without(&self, table: &LabelInfo, old: Uuid) -> Result<LabelInfo, VolumeError> {
        let next = table.without_replaced(old);
        next.ok_or_else(|| self.refused("the new copy failed; the old one stays"))
    }
}

/// Erases the label of a copy that has gone. One that goes because it fails may refuse: nothing is
/// lost by that, as the labels of the others tell that its own is an old one.
fn forget(device: Option<Arc<Device>>, size: u64) {
    let _refused = device.map(|device| label::erase(&device, size));
}
