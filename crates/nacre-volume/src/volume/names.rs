//! Whether the names of a pool's devices still lead to them (D88).

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use nacre_media::DeviceIdentity;

use crate::error::VolumeError;
use crate::volume::{DeviceInfo, Volume};

/// What the name of a device that is used leads to instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strayed {
    /// Nothing.
    Gone,
    /// Something else.
    Another,
    /// The device, but it is the pool's no more: it was cut or written over.
    WrittenOver,
}

impl Volume {
    /// The first device whose name does not lead to it any more. Somebody should ask for it now and
    /// then, as nothing tells. Of copies nothing is told: the pool is found by the others.
    pub fn strayed(&self) -> Option<(PathBuf, Strayed)> {
        if self.has_copies() {
            return None;
        }
        let each = self.devices().into_iter();
        let mut strayed =
            each.filter_map(|it| self.found_by_name(&it).map(|found| (it.path, found)));
        strayed.next()
    }

    fn found_by_name(&self, device: &DeviceInfo) -> Option<Strayed> {
        let identity = device.identity?;
        match DeviceIdentity::at(&device.path) {
            Ok(found) if found == identity => self.is_written_over(&device.path),
            Ok(_) => Some(Strayed::Another),
            Err(error) => (error.kind() == ErrorKind::NotFound).then_some(Strayed::Gone),
        }
    }

    fn is_written_over(&self, path: &Path) -> Option<Strayed> {
        let lost = match Self::inspect(path) {
            Ok(label) => label.pool != self.uuid(),
            Err(error) => matches!(
                error,
                VolumeError::NotAPool { .. }
                    | VolumeError::LabelsDamaged(_)
                    | VolumeError::Truncated { .. }
            ),
        };
        lost.then_some(Strayed::WrittenOver)
    }
}
