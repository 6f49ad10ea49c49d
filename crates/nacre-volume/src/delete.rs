//! Undoing a pool.

use std::path::{Path, PathBuf};

use nacre_media::Access;
use rustix::fs::unlink;

use crate::error::VolumeError;
use crate::label;
use crate::members::{Member, Members};
use crate::volume::Volume;

fn is_link(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|it| it.is_symlink())
}

impl Volume {
    /// Destroys the pool that `members` belong to: erases all labels and removes devices that are
    /// files. Answers the path of each device, and whether it was removed.
    ///
    /// Nobody may have the pool open meanwhile; the caller sees to that.
    pub fn delete(members: &[&Path]) -> Result<Vec<(PathBuf, bool)>, VolumeError> {
        let found = Members::find(members, Access::ReadWrite)?;
        for member in &found.members {
            let entry = &found.table.devices[member.place.unwrap_or(0)];
            label::erase(&member.device, entry.size)?;
        }
        for member in found
            .members
            .iter()
            .filter(|member| member.device.is_file())
        {
            let path = member.device.path();
            let real = member.device.real_path();
            // A link to it, too.
            let names = [real.as_path(), path];
            let names = &names[usize::from(!is_link(path))..];
            for path in names {
                unlink(*path).map_err(|errno| VolumeError::System {
                    path: (*path).to_owned(),
                    action: "remove it",
                    errno,
                })?;
            }
        }
        let device = |member: &Member| (member.device.path().to_owned(), member.device.is_file());
        Ok(found.members.iter().map(device).collect())
    }
}
