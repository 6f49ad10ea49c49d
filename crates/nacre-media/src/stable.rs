//! Whether memory may change while a device is written from it.

use std::path::PathBuf;

use rustix::fs::{FsWord, fstat, fstatfs, major, minor};

use crate::device::Device;
use crate::sysfs::{is_direct_loop, wants_stable_memory};

/// File systems that keep no checksums of data, as `statfs` tells them: ext2 to ext4, and XFS.
const WITHOUT_CHECKSUMS: [FsWord; 2] = [0xEF53, 0x5846_5342];

impl Device {
    /// Whether memory may change while a direct write of it is under way. Who keeps checksums of
    /// data takes one of what it was: the write fails, or what it wrote is not read any more.
    pub fn takes_changing_memory(&self) -> bool {
        let block = self.identity().block_number();
        let of_file_system = || {
            let kind = fstatfs(self.fd()).ok()?.f_type;
            let device = fstat(self.fd()).ok()?.st_dev;
            WITHOUT_CHECKSUMS.contains(&kind).then_some(device)
        };
        block.or_else(of_file_system).is_some_and(takes_changes)
    }
}

fn takes_changes(block: u64) -> bool {
    let folder = format!("/sys/dev/block/{}:{}", major(block), minor(block));
    let folder = PathBuf::from(folder);
    wants_stable_memory(&folder) == Some(false) && !is_direct_loop(&folder)
}
