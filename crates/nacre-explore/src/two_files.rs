//! Two devices as files in shared memory, and what they hold before anything is played.

use std::fs;
use std::path::{Path, PathBuf};

use crate::kept_file;
use nacre_testkit::medium::{Difference, LINE, Line};
use nacre_testkit::pool::Devices;
use nacre_testkit::recorder::DEVICE;
use nacre_volume::{DeviceSpec, MAX_DEVICES};

const NAMES: [&str; 2] = ["a", "b"];
const _: () = assert!(NAMES.len() <= MAX_DEVICES);

/// They are removed in the end.
pub(crate) struct TwoFiles {
    devices: Devices,
    base: [Vec<u8>; 2],
}

impl TwoFiles {
    pub fn new() -> TwoFiles {
        TwoFiles {
            devices: Devices::below(Path::new("/dev/shm")),
            base: [Vec::new(), Vec::new()],
        }
    }

    pub fn path(&self, index: usize) -> PathBuf {
        self.devices.file(NAMES[index])
    }

    pub fn paths(&self) -> Vec<PathBuf> {
        vec![self.path(0), self.path(1)]
    }

    /// A device of so many bytes.
    pub fn spec(&self, index: usize, bytes: u64) -> DeviceSpec {
        self.devices.spec(NAMES[index], bytes)
    }

    /// From now on this is what the files hold.
    pub fn keep(&mut self) -> Result<(), String> {
        for index in 0..NAMES.len() {
            self.base[index] = fs::read(self.path(index)).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// A line of what was kept.
    pub fn line(&self, number: u64) -> Line {
        let per_device = DEVICE / LINE as u64;
        let start = (number % per_device) as usize * LINE;
        let bytes = self.base[(number / per_device) as usize].get(start..start + LINE);
        bytes
            .and_then(|bytes| bytes.try_into().ok())
            .unwrap_or([0; LINE])
    }

    /// Gives the files what was kept, but for the lines of an image.
    pub fn lay_out(&self, image: &Difference) -> Result<(), String> {
        let write = || -> std::io::Result<()> {
            for (index, base) in self.base.iter().enumerate() {
                kept_file::fill_device(&self.path(index), base, image, index)?;
            }
            Ok(())
        };
        write().map_err(|e| e.to_string())
    }
}
