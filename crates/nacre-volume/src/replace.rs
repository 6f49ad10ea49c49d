//! Copies that come into a pool while it is used, and those that go for them (D81).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre_media::{Device, LegState};
use nacre_types::Uuid;

use crate::copies::CopyInfo;
use crate::disk::LegsDisk;
use crate::error::VolumeError;
use crate::label::{self, LabelInfo};
use crate::seats::Comes;
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
    /// are no devices of the pool any more, and their labels are erased.
    pub fn let_replaced_go(&self) -> Result<Vec<PathBuf>, VolumeError> {
        // What one alone holds is to move first.
        let Some(legs) = self.legs().filter(|legs| legs.own().is_none()) else {
            return Ok(Vec::new());
        };
        let copies = self.copies()?;
        let is_current = |copy: &&CopyInfo| copy.state == LegState::Current;
        let replaced = copies
            .iter()
            .filter(is_current)
            .filter_map(|it| it.replaces);
        let mut gone = Vec::new();
        for old in replaced {
            let path = copies.iter().find(|copy| copy.uuid == old);
            let path = path.map_or_else(PathBuf::new, |copy| copy.path.clone());
            if let (Some(device), size) = self.let_disk_go(legs, old)? {
                label::erase(&device, size)?;
            }
            gone.push(path);
        }
        Ok(gone)
    }

    /// Nothing is written to a disk any more: all that was is on the new one, too.
    fn let_disk_go(
        &self,
        legs: &LegsDisk,
        old: Uuid,
    ) -> Result<(Option<Arc<Device>>, u64), VolumeError> {
        let known = legs.labels().known().into_iter();
        let device = known.filter(|(uuid, _)| *uuid == old).map(|it| it.1).next();
        let go = || {
            legs.settle_labels().map_err(|why| self.disk_failed(why))?;
            legs.changing_labels(|| {
                let table = legs.table().map_err(|why| self.disk_failed(why))?;
                let next = self.next_without(&table, old)?;
                let written = legs.write_table(next, 0);
                written.map_err(|why| self.disk_failed(why))?;
                Ok(size_of_entry(&table, old))
            })
        };
        let size = self.while_nobody_commits(go)?;
        Ok((device, size))
    }

    fn next_without(&self, table: &LabelInfo, old: Uuid) -> Result<LabelInfo, VolumeError> {
        let next = table.without_replaced(old);
        next.ok_or_else(|| self.refused("the new copy failed; the old one stays"))
    }
}

fn size_of_entry(table: &LabelInfo, of: Uuid) -> u64 {
    let entry = table.devices.iter().find(|entry| entry.uuid == of);
    entry.map_or(0, |entry| entry.size)
}
