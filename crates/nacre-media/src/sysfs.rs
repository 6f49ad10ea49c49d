//! What the kernel tells of devices in `/sys` and `/proc`.

use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, major, minor, open};
use rustix::io::read;

/// How far above a device's folder its NVDIMM region may be.
const REGION_LEVELS: usize = 6;
/// JEDEC's number of Intel, as modules tell it.
const INTEL: u64 = 0x8089;

/// First line of a small file, without blanks around it.
pub(crate) fn line(path: &Path) -> Option<String> {
    let fd = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut buffer = [0; 128];
    let len = read(&fd, &mut buffer).ok()?;
    let text = std::str::from_utf8(&buffer[..len]).ok()?;
    Some(text.lines().next()?.trim().to_owned())
}

/// A number in a small file, decimal or `0x` hexadecimal.
pub(crate) fn number(path: &Path) -> Option<u64> {
    let text = line(path)?;
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The file of the loop device whose folder this is, and where the device begins in it.
pub(crate) fn file_of_loop(device: &Path) -> Option<(PathBuf, u64)> {
    let text = std::fs::read_to_string(device.join("loop/backing_file")).ok()?;
    let file = PathBuf::from(text.strip_suffix('\n').unwrap_or(&text));
    Some((file, number(&device.join("loop/offset")).unwrap_or(0)))
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
    let region = folder_above(device, "persistence_domain");
    region.and_then(|region| line(&region.join("persistence_domain")))
        == Some("cpu_cache".to_owned())
}

/// How many Optane modules the NVDIMM region of this `/sys/dev/...` folder is interleaved over;
/// `None`: it is no such region.
///
/// What the files mean stands in the kernel's `Documentation/driver-api/nvdimm/nvdimm.rst`.
pub(crate) fn optane_modules(device: &Path) -> Option<u16> {
    let region = folder_above(device, "mappings")?;
    let first = line(&region.join("mapping0"))?;
    let module = first.split(',').next()?;
    let vendor = number(&region.join("..").join(module).join("nfit/vendor"))?;
    let modules = number(&region.join("mappings"))?;
    let modules = u16::try_from(modules).ok().filter(|&modules| modules > 0);
    // Intel made no other NVDIMMs.
    modules.filter(|_| vendor == INTEL)
}

/// The nearest folder at or above `device` with a file of this name.
fn folder_above(device: &Path, name: &str) -> Option<PathBuf> {
    let mut folder = device.to_owned();
    for _ in 0..REGION_LEVELS {
        if line(&folder.join(name)).is_some() {
            return Some(folder);
        }
        folder.push("..");
    }
    None
}

/// Whether nobody may write the block device of this `/sys/dev/block/...` folder.
pub(crate) fn is_read_only(device: &Path) -> bool {
    number(&device.join("ro")) == Some(1)
}

/// Whether memory that the block device of this `/sys/dev/block/...` folder, or of a partition of
/// it, is written from must stay as it is until then. `None`: the kernel does not tell.
pub(crate) fn wants_stable_memory(device: &Path) -> Option<bool> {
    let disk = folder_above(device, "queue/stable_writes")?;
    Some(number(&disk.join("queue/stable_writes"))? != 0)
}

/// Whether the block device of this `/sys/dev/block/...` folder is written by direct I/O on a file.
pub(crate) fn is_direct_loop(device: &Path) -> bool {
    number(&device.join("loop/dio")) == Some(1)
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

    use super::{
        caches_persist, dax_alignment, dax_size, is_in_table, optane_modules, wants_stable_memory,
    };

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
    fn modules_are_those_of_the_region_if_intel_made_them() {
        let dir = tempfile::tempdir().unwrap();
        let region = dir.path().join("ndbus0/region0");
        let device = region.join("dax0.0/dax");
        std::fs::create_dir_all(&device).unwrap();
        assert_eq!(optane_modules(&device), None, "no region");
        std::fs::write(region.join("mappings"), "6\n").unwrap();
        std::fs::write(region.join("mapping0"), "nmem2,0,270582939648,0\n").unwrap();
        assert_eq!(optane_modules(&device), None, "modules of nobody");
        let module = dir.path().join("ndbus0/nmem2/nfit");
        std::fs::create_dir_all(&module).unwrap();
        for (vendor, modules) in [("0x8089", Some(6)), ("0x2c80", None)] {
            std::fs::write(module.join("vendor"), vendor).unwrap();
            assert_eq!(optane_modules(&device), modules, "{vendor}");
        }
    }

    #[test]
    fn partitions_want_what_their_disk_wants() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, partition) = (dir.path().join("vda"), dir.path().join("vda/vda1"));
        std::fs::create_dir_all(&partition).unwrap();
        assert_eq!(wants_stable_memory(&partition), None);
        std::fs::create_dir_all(disk.join("queue")).unwrap();
        for (text, wanted) in [("0\n", false), ("1\n", true)] {
            std::fs::write(disk.join("queue/stable_writes"), text).unwrap();
            assert_eq!(wants_stable_memory(&disk), Some(wanted));
            assert_eq!(wants_stable_memory(&partition), Some(wanted));
        }
    }

    #[test]
    fn mounted_devices_stand_in_the_table_of_mounts() {
        let table = "22 1 254:0 / / rw - ext4 /dev/vda rw\n23 22 0:21 / /proc rw - proc proc rw\n";
        assert!(is_in_table(table, makedev(254, 0)));
        assert!(!is_in_table(table, makedev(254, 1)) && !is_in_table("", makedev(254, 0)));
    }
}
