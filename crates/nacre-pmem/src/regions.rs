//! Which file lies at an address.
//!
//! The kernel knows; `/proc/self/maps` is read once for each region that a thread uses, and again
//! when regions that were used have been unmapped. Each thread remembers for itself: nothing is
//! shared but a count of changes.

use std::cell::RefCell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use nacre_emulator::{Emulation, FileId};

/// Regions that a thread remembers.
const REMEMBERED: usize = 8;

/// Addresses that show a stretch of a file, or of nothing that counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    pub start: usize,
    pub end: usize,
    /// Offset in the file of its start.
    pub offset: u64,
    /// `None`: no file.
    pub device: Option<u16>,
}

/// Counts what made remembered regions wrong.
static CHANGES: AtomicU64 = AtomicU64::new(0);
/// Between these addresses lie all regions that anybody remembers.
static LOWEST: AtomicU64 = AtomicU64::new(u64::MAX);
static HIGHEST: AtomicU64 = AtomicU64::new(0);

struct Memory {
    changes: u64,
    regions: Vec<Region>,
}

thread_local! {
    static MEMORY: RefCell<Memory> = const { RefCell::new(Memory { changes: 0, regions: Vec::new() }) };
}

/// The region around an address. `None` where nothing is mapped, or while a thread ends.
pub fn around(emulation: &Emulation, address: usize) -> Option<Region> {
    let found = MEMORY.try_with(|memory| {
        let mut memory = memory.try_borrow_mut().ok()?;
        let changes = CHANGES.load(Acquire);
        if memory.changes != changes {
            memory.regions.clear();
            memory.changes = changes;
        }
        let holds = |region: &Region| (region.start..region.end).contains(&address);
        if let Some(known) = memory.regions.iter().find(|region| holds(region)) {
            return Some(*known);
        }
        let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
        let region = maps
            .lines()
            .find_map(|line| parse(line, address))?
            .known(emulation);
        if memory.regions.len() == REMEMBERED {
            memory.regions.remove(0);
        }
        memory.regions.push(region);
        LOWEST.fetch_min(region.start as u64, Relaxed);
        HIGHEST.fetch_max(region.end as u64, Relaxed);
        Some(region)
    });
    found.ok().flatten()
}

/// These addresses may mean something else from now on.
pub fn changed(start: usize, len: usize) {
    let end = (start as u64).saturating_add(len as u64);
    if (start as u64) < HIGHEST.load(Relaxed) && end > LOWEST.load(Relaxed) {
        CHANGES.fetch_add(1, Release);
    }
}

/// A line of the list of mappings that holds an address.
#[derive(PartialEq, Eq, Debug)]
struct Mapped {
    start: usize,
    end: usize,
    offset: u64,
    /// `None`: no file, or not a shared mapping, which never reaches its file.
    file: Option<FileId>,
}

impl Mapped {
    fn known(self, emulation: &Emulation) -> Region {
        let end = self.offset + (self.end - self.start) as u64;
        Region {
            start: self.start,
            end: self.end,
            offset: self.offset,
            device: self.file.map(|file| emulation.device_of(file, end)),
        }
    }
}

/// `start-end permissions offset major:minor inode path`, all but the inode in hexadecimal digits.
fn parse(line: &str, address: usize) -> Option<Mapped> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = (hexadecimal(start)? as usize, hexadecimal(end)? as usize);
    if !(start..end).contains(&address) {
        return None;
    }
    let shared = words.next()?.ends_with('s');
    let offset = hexadecimal(words.next()?)?;
    let (major, minor) = words.next()?.split_once(':')?;
    let inode = words.next()?.parse().ok()?;
    let device = hexadecimal(major)? << 20 | hexadecimal(minor)?;
    let file = (shared && inode != 0).then_some(FileId { device, inode });
    Some(Mapped {
        start,
        end,
        offset,
        file,
    })
}

#[cfg(test)]
mod tests {
    use super::{FileId, Mapped, parse};

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let line = "7f0000000000-7f0000200000 rw-s 00100000 fe:01 131 /mnt/a file";
        let file = FileId {
            device: 0xfe << 20 | 1,
            inode: 131,
        };
        let expected = Mapped {
            start: 0x7f00_0000_0000,
            end: 0x7f00_0020_0000,
            offset: 0x10_0000,
            file: Some(file),
        };
        assert_eq!(parse(line, 0x7f00_001f_ffff), Some(expected));
        assert_eq!(parse(line, 0x7f00_0020_0000), None);
        let private = parse("1000-2000 rw-p 0 fe:01 131 /a", 0x1000);
        assert!(private.is_some_and(|mapped| mapped.file.is_none()));
        let heap = parse("1000-2000 rw-p 0 00:00 0 [heap]", 0x1000);
        assert!(heap.is_some_and(|mapped| mapped.file.is_none()));
        for nonsense in [
            "",
            "x",
            "1000-2000",
            "1000-2000 rw-s 0 0 0",
            "1000-2000 rw-s 0 0:0",
        ] {
            assert_eq!(parse(nonsense, 0x1000), None);
        }
    }
}
