//! Where the bytes of a device lie: those of a loop device in its file, those of a partition in its
//! disk.

use std::ops::Range;
use std::path::Path;

use rustix::fs::{major, makedev, minor};

use crate::device::{Device, DeviceIdentity};
use crate::sysfs::{file_of_loop, line, number};

/// Devices that stand on each other are few.
const MOST_LEVELS: usize = 8;
/// In which the kernel tells where a partition begins.
const SECTOR: u64 = 512;

/// Bytes of a file, or of a device that stands on no other.
#[derive(Clone, PartialEq, Eq, Debug)]
struct PlaceBeneath {
    device: DeviceIdentity,
    bytes: Range<u64>,
}

impl Device {
    /// Whether two devices have bytes in common: they are one, a loop device and its file, or a
    /// partition and its disk.
    pub fn shares_bytes_with(&self, other: &Device) -> bool {
        let place = |device: &Device| {
            PlaceBeneath::by(Path::new("/sys/dev/block"), device.identity(), device.len())
        };
        self.identity() == other.identity() || place(self).overlaps(&place(other))
    }
}

impl PlaceBeneath {
    /// Of a device of so many bytes.
    fn by(sys: &Path, device: DeviceIdentity, len: u64) -> Self {
        let bytes = 0..len;
        let mut place = Self { device, bytes };
        for _ in 0..MOST_LEVELS {
            let Some((device, start)) = beneath(sys, place.device) else {
                break;
            };
            let Range { start: from, end } = place.bytes;
            let bytes = from.saturating_add(start)..end.saturating_add(start);
            place = Self { device, bytes };
        }
        place
    }

    /// Whether some of the bytes are the same.
    fn overlaps(&self, other: &Self) -> bool {
        let (one, two) = (&self.bytes, &other.bytes);
        self.device == other.device && one.start < two.end && two.start < one.end
    }
}

/// What a block device stands on, and where it begins there. `None`: on nothing that is known.
fn beneath(sys: &Path, device: DeviceIdentity) -> Option<(DeviceIdentity, u64)> {
    let number_of_device = device.block_number()?;
    let (major, minor) = (major(number_of_device), minor(number_of_device));
    let folder = sys.join(format!("{major}:{minor}"));
    if let Some((file, start)) = file_of_loop(&folder) {
        return Some((DeviceIdentity::at(&file).ok()?, start));
    }
    number(&folder.join("partition"))?;
    let disk = line(&folder.join("../dev"))?;
    let (major, minor) = disk.split_once(':')?;
    let disk = makedev(major.parse().ok()?, minor.parse().ok()?);
    let start = number(&folder.join("start"))?.checked_mul(SECTOR)?;
    Some((DeviceIdentity::of_block(disk), start))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use rustix::fs::makedev;

    use super::{DeviceIdentity, PlaceBeneath};

    const MIB: u64 = 1 << 20;

    fn put(folder: &Path, name: &str, text: &str) {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_loop_device_lies_in_its_file_and_a_partition_in_its_disk() {
        let folder = tempfile::tempdir().unwrap();
        let (sys, file) = (folder.path(), folder.path().join("file"));
        fs::write(&file, "").unwrap();
        let file_name = file.to_str().unwrap();
        for (number, offset) in [("7:0", 0), ("7:1", 64 * MIB)] {
            let of_loop = sys.join(number).join("loop");
            put(&of_loop, "backing_file", &format!("{file_name}\n"));
            put(&of_loop, "offset", &format!("{offset}\n"));
        }
        // As the kernel has it: a partition's folder is in that of its disk.
        put(sys, "disk/dev", "7:1\n");
        put(sys, "disk/part/partition", "1\n");
        put(sys, "disk/part/start", "2048\n");
        std::os::unix::fs::symlink("disk/part", sys.join("259:3")).unwrap();
        let block = |major, minor, len| {
            let device = DeviceIdentity::of_block(makedev(major, minor));
            PlaceBeneath::by(sys, device, len)
        };
        let whole = PlaceBeneath::by(sys, DeviceIdentity::at(&file).unwrap(), 128 * MIB);
        let (first, second) = (block(7, 0, 64 * MIB), block(7, 1, 64 * MIB));
        assert!(whole.overlaps(&first) && whole.overlaps(&second) && !first.overlaps(&second));
        let partition = block(259, 3, MIB);
        assert_eq!(partition.bytes, 65 * MIB..66 * MIB);
        assert!(partition.overlaps(&second) && partition.overlaps(&whole));
        assert!(!partition.overlaps(&first));
        let other = block(8, 0, 128 * MIB);
        assert!(other.overlaps(&other) && !other.overlaps(&whole));
    }
}
