//! Copies that come into a pool while it is used, and those that go for them (D81).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre_media::{Device, LegState, Mirror};
use nacre_types::Uuid;

use crate::copies::CopyInfo;
use crate::disk::LegsDisk;
use crate::error::VolumeError;
use crate::label::{self, LabelInfo};
use crate::labels::write_as;
use crate::seats::Comes;
use crate::volume::Volume;

/// Copies for which others have come.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Replaced {
    /// They are no devices of the pool any more, and their labels are erased.
    pub gone: Vec<PathBuf>,
    /// Programs have mapped files of it: it stays, with all that is stored.
    pub mapped: Vec<PathBuf>,
}

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

    /// Lets copies go for which others have come that are current now.
    pub fn let_replaced_go(&self) -> Result<Replaced, VolumeError> {
        let copies = self.copies()?;
        let is_current = |copy: &&CopyInfo| copy.state == LegState::Current;
        let replaced = copies
            .iter()
            .filter(is_current)
            .filter_map(|it| it.replaces);
        let mut done = Replaced::default();
        for old in replaced {
            let path = copies.iter().find(|copy| copy.uuid == old);
            let path = path.map_or_else(PathBuf::new, |copy| copy.path.clone());
            match self.let_go(old)? {
                true => done.gone.push(path),
                false => done.mapped.push(path),
            }
        }
        Ok(done)
    }

    /// `false`: programs have mapped files of it.
    fn let_go(&self, old: Uuid) -> Result<bool, VolumeError> {
        let (device, size) = match (self.legs(), self.mirror()) {
            (Some(legs), _) => self.let_disk_go(legs, old)?,
            (None, Some(mirror)) => match self.let_leg_go(mirror, old)? {
                Some(gone) => gone,
                None => return Ok(false),
            },
            (None, None) => return Err(self.refused("is a pool without copies")),
        };
        if let Some(device) = device {
            label::erase(&device, size)?;
        }
        Ok(true)
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

    /// As [`Volume::let_disk_go`]. `None`: programs have mapped files of it.
    #[allow(clippy::type_complexity)]
    fn let_leg_go(
        &self,
        mirror: &Mirror,
        old: Uuid,
    ) -> Result<Option<(Option<Arc<Device>>, u64)>, VolumeError> {
        let facts = mirror.facts();
        let fact = facts.iter().find(|fact| fact.id == old.0);
        let device = fact.and_then(|fact| fact.device.clone());
        let others = facts.iter().filter(|it| it.id != old.0);
        let others = others.filter(|it| it.state.is_stored_to());
        let mut size = 0;
        let tell = || {
            mirror.changing_labels(|| {
                let table = self.table_of(mirror)?;
                size = size_of_entry(&table, old);
                let mut next = self.next_without(&table, old)?;
                next.sequence += 1;
                for other in others {
                    if let Some(device) = &other.device {
                        write_as(&next, Uuid(other.id), device)?;
                    }
                }
                Ok::<_, VolumeError>(())
            })
        };
        let gone = match fact {
            Some(fact) => mirror.let_go(fact.slot, tell)?,
            None => tell().map(|()| true)?,
        };
        self.tell_missing(mirror)?;
        Ok(gone.then_some((device, size)))
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
