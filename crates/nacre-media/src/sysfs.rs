//! What the kernel tells of devices in `/sys` and `/proc`.

use std::path::Path;

use rustix::fs::{Mode, OFlags, major, minor, open};
use rustix::io::read;

/// How far above a device's folder its NVDIMM region may be.
const REGION_LEVELS: usize = 6;

/// First line of a small file, without blanks around it.
fn line(path: &Path) -> Option<String> {
    let fd = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut buffer = [0; 128];
    let len = read(&fd, &mut buffer).ok()?;
    let text = std::str::from_utf8(&buffer[..len]).ok()?;
    Some(text.lines().next()?.trim().to_owned())
}

/// A number in a small file, decimal or `0x` hexadecimal.
fn number(path: &Path) -> Option<u64> {
    let text = line(path)?;
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Bytes of the device-DAX device whose `/sys/dev/char/...` folder this is; `None`: it is no such
/// device.
pub(crate) fn dax_size(device: &Path) -> Option<u64> {
    number(&device.join("size"))
}

/// The granule of mapping that device.
pub(crate) fn dax_alignment(device: &Path) -> Option<u64> {
    number(&device.join("align"))
}

/// Whether the processor's caches are part of what survives power loss (eADR) for the device of
/// this `/sys/dev/...` folder.
pub(crate) fn caches_persist(device: &Path) -> bool {
    let mut folder = device.to_owned();
    for _ in 0..REGION_LEVELS {
        if let Some(domain) = line(&folder.join("persistence_domain")) {
            return domain == "cpu_cache";
        }
        folder.push("..");
    }
    false
}

/// Whether the block device of this number is mounted where this process sees it.
pub(crate) fn is_mounted(device: u64) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    is_in_table(&table, device)
}

fn is_in_table(table: &str, device: u64) -> bool {
    let number = format!("{}:{}", major(device), minor(device));
    let mut lines = table.lines();
    lines.any(|line| line.split(' ').nth(2) == Some(&number))
}

#[cfg(test)]
mod tests {
    use rustix::fs::makedev;

    use super::{caches_persist, dax_alignment, dax_size, is_in_table};

    #[test]
    fn sizes_are_read_in_both_notations() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("size"), "2097152\n").unwrap();
        std::fs::write(dir.path().join("align"), "0x200000\n").unwrap();
        assert_eq!(dax_size(dir.path()), Some(2 << 20));
        assert_eq!(dax_alignment(dir.path()), Some(2 << 20));
        assert_eq!(dax_size(&dir.path().join("none")), None);
    }

    #[test]
    fn the_region_above_tells_whether_caches_persist() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("dax0.0/dax");
        std::fs::create_dir_all(&device).unwrap();
        assert!(!caches_persist(&device));
        std::fs::write(dir.path().join("persistence_domain"), "cpu_cache\n").unwrap();
        assert!(caches_persist(&device));
        std::fs::write(dir.path().join("persistence_domain"), "memory_controller\n").unwrap();
        assert!(!caches_persist(&device));
    }

    #[test]
    fn mounted_devices_stand_in_the_table_of_mounts() {
        let table = "22 1 254:0 / / rw - ext4 /dev/vda rw\n23 22 0:21 / /proc rw - proc proc rw\n";
        assert!(is_in_table(table, makedev(254, 0)));
        assert!(!is_in_table(table, makedev(254, 1)) && !is_in_table("", makedev(254, 0)));
    }
}
