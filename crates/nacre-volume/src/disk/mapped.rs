//! A device that is memory as a disk: written by copies and fences.

use std::ops::Range;
use std::sync::Arc;

use nacre_cache::{Disk, DiskFailed};
use nacre_media::{Access, Device, Media, MediaError};
use nacre_types::{DeviceOffset, LINE_SIZE, StoreKind};

use super::Parts;

/// The data and the journal of a device, mapped. It is flushed, fenced and watched as what others
/// store to directly.
#[derive(Debug)]
pub(crate) struct MappedDisk {
    media: Arc<Media>,
    /// Where the journal begins.
    journal: u64,
}

impl MappedDisk {
    pub fn new(device: &Arc<Device>, parts: Parts) -> Result<Self, MediaError> {
        let Parts {
            start,
            data,
            journal,
        } = parts;
        let media = Media::map(device, DeviceOffset(start), data + journal, None)?;
        Ok(Self {
            media: Arc::new(media),
            journal: start + data,
        })
    }

    pub fn media(&self) -> &Arc<Media> {
        &self.media
    }

    /// A place that a record names may be anywhere.
    fn inside(&self, at: u64, len: usize) -> Result<DeviceOffset, DiskFailed> {
        let start = self.media.start().get();
        let end = start + self.media.len();
        match at.checked_add(len as u64) {
            Some(behind) if at >= start && behind <= end => Ok(DeviceOffset(at)),
            _ => Err(failed("a place that is not on it")),
        }
    }
}

fn failed(why: impl ToString) -> DiskFailed {
    DiskFailed(why.to_string())
}

impl Disk for MappedDisk {
    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), DiskFailed> {
        let at = self.inside(at, to.len())?;
        self.media.read_user(at, to.into()).map_err(failed)
    }

    /// Durable on return, as that costs a fence.
    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), DiskFailed> {
        let place = self.inside(at, bytes.len())?;
        if self.media.access() == Access::ReadOnly {
            return Err(failed("it is open for reading only"));
        }
        let kind = match at < self.journal {
            true => StoreKind::Data,
            false => StoreKind::Log,
        };
        let stored = self.media.write(place, bytes, kind);
        self.media.fence(stored).map_err(failed)
    }

    fn write_through(&self, at: u64, bytes: &[u8]) -> Result<(), DiskFailed> {
        self.write(at, bytes)
    }

    fn grain(&self) -> u64 {
        LINE_SIZE
    }

    fn sync(&self) -> Result<(), DiskFailed> {
        Ok(())
    }

    fn homes(&self) -> Range<u64> {
        self.media.start().get()..self.journal
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::{Arc, Mutex};

    use nacre_cache::Disk;
    use nacre_media::{Access, Device, Observer};
    use nacre_types::{DeviceOffset, StoreKind};

    use super::{MappedDisk, Parts};

    const PARTS: Parts = Parts {
        start: 4096,
        data: 8192,
        journal: 4096,
    };

    fn disk(path: &Path, access: Access) -> MappedDisk {
        let device = Arc::new(Device::open(path, access).unwrap());
        MappedDisk::new(&device, PARTS).unwrap()
    }

    fn file() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        file.as_file().set_len(5 * 4096).unwrap();
        file
    }

    #[derive(Default)]
    struct Seen(Mutex<Vec<(u64, u64, StoreKind)>>);

    impl Observer for Seen {
        fn store(&self, _: u16, _: DeviceOffset, _: &[u8], _: StoreKind, _: bool) {}

        fn flush(&self, _: u16, _: DeviceOffset, _: u64) {}

        fn fence(&self, _: u16) {}

        fn persisted(&self, _: u16, at: DeviceOffset, len: u64, kind: StoreKind) {
            self.0.lock().unwrap().push((at.get(), len, kind));
        }
    }

    #[test]
    fn what_is_written_is_in_the_file_and_seen() {
        let file = file();
        let disk = disk(file.path(), Access::ReadWrite);
        let seen = Arc::new(Seen::default());
        disk.media().set_observer(0, seen.clone());
        disk.write(12000, &[7; 288]).unwrap();
        disk.write_through(12288, &[8; 100]).unwrap();
        disk.sync().unwrap();
        let bytes = std::fs::read(file.path()).unwrap();
        assert!(bytes[12000..12288] == [7; 288] && bytes[12288..12388] == [8; 100]);
        let mut back = [0; 2];
        disk.read(12287, &mut back).unwrap();
        assert_eq!(back, [7, 8]);
        let known = [(12000, 288, StoreKind::Data), (12288, 100, StoreKind::Log)];
        assert_eq!(*seen.0.lock().unwrap(), known);
    }

    #[test]
    fn what_is_not_on_it_is_refused_and_nothing_written() {
        let file = file();
        let disk = disk(file.path(), Access::ReadWrite);
        for (at, len) in [(4095, 1), (16383, 2), (16384, 1), (u64::MAX, 2)] {
            assert!(disk.write(at, &vec![1; len]).is_err(), "{at}");
            assert!(disk.read(at, &mut vec![1; len]).is_err(), "{at}");
        }
        assert!(std::fs::read(file.path()).unwrap() == [0; 5 * 4096]);
    }

    #[test]
    fn who_may_only_read_writes_nothing() {
        let file = file();
        let disk = disk(file.path(), Access::ReadOnly);
        assert!(disk.write(4096, b"x").is_err() && disk.write_through(4096, b"x").is_err());
        assert_eq!(disk.read(4096, &mut [1]), Ok(()));
    }
}
