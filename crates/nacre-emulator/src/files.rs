//! Files instead of a pool: what a program maps that was written for another library. Which files
//! there are is learned as they are used.

use std::path::Path;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use nacre_media::Owner;
use nacre_runtime::Trust;
use nacre_types::Uuid;

use crate::emulation::{Emulation, Pool, Settings};
use crate::error::EmulationError;
use crate::place::CounterPlace;
use crate::shared::DEVICES;

/// Granules that are counted one by one in each file; what lies behind is counted with the last.
const GRANULES: u64 = 1 << 24;
/// Stands for the pool that is not there.
const NO_POOL: Uuid = Uuid([0; 16]);

/// Which file of the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileId {
    /// Number of its file system.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

impl FileId {
    /// One number, not 0.
    fn key(self) -> u64 {
        (self.device.rotate_left(40) ^ self.inode).max(1)
    }
}

impl Emulation {
    /// Makes the emulation of a program's files.
    pub fn create_for_files(
        place: impl Into<CounterPlace>,
        settings: &Settings<'_>,
        owner: Owner,
    ) -> Result<Self, EmulationError> {
        let granularity = settings.wear.unwrap_or(4096);
        let room = granularity.checked_mul(GRANULES);
        let room = room.ok_or(EmulationError::Granularity(granularity))?;
        let files = Pool {
            uuid: NO_POOL,
            devices: vec![room; DEVICES],
            owner,
        };
        let emulation = Self::create(place, settings, &files)?;
        for used in &emulation.shared.header().used {
            used.store(0, Relaxed);
        }
        Ok(emulation)
    }

    /// Joins the emulation of a program's files. `None` if there is none, or it has ended.
    pub fn join_for_files(path: &Path) -> Result<Option<Self>, EmulationError> {
        let Trust { uid, gid, mode } = Trust::user()?;
        Self::join(
            CounterPlace::in_own_folder(path),
            NO_POOL,
            Owner { uid, gid, mode },
        )
    }

    /// The device for which a file stands, of which the first `len` bytes are in use. The sixteenth
    /// stands for all files behind it.
    pub fn device_of(&self, file: FileId, len: u64) -> u16 {
        let header = self.shared.header();
        let mine = |place: &std::sync::atomic::AtomicU64| {
            let key = file.key();
            match place.compare_exchange(0, key, AcqRel, Acquire) {
                Ok(_) => true,
                Err(other) => other == key,
            }
        };
        let device = header.files.iter().position(mine).unwrap_or(DEVICES - 1);
        let granules = len.div_ceil(header.granularity.load(Relaxed));
        header.used[device].fetch_max(granules.clamp(1, GRANULES), Relaxed);
        device as u16
    }
}

#[cfg(test)]
mod tests {
    use super::FileId;
    use crate::emulation::{Emulation, Settings};
    use crate::profile::Profile;
    use nacre_media::{Observer, Owner};
    use nacre_types::{DeviceOffset, StoreKind};

    #[test]
    fn files_become_devices_as_they_are_used() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("counters");
        let settings = Settings {
            profile: &Profile::plain(),
            delays: false,
            wear: Some(4096),
        };
        let owner = Owner {
            uid: 0,
            gid: 0,
            mode: 0o600,
        };
        let made = Emulation::create_for_files(&path, &settings, owner).expect("made");
        let joined = Emulation::join_for_files(&path)
            .expect("sound")
            .expect("on");
        let file = |inode| FileId { device: 5, inode };
        assert_eq!(made.device_of(file(7), 8192), 0);
        assert_eq!(joined.device_of(file(8), 4096), 1);
        assert_eq!(joined.device_of(file(7), 4096), 0);
        joined.persisted(0, DeviceOffset(5000), 8, StoreKind::Data);
        joined.persisted(1, DeviceOffset(0), 8, StoreKind::Data);
        joined.persisted(1, DeviceOffset(1 << 50), 8, StoreKind::Data);
        let wear = made.wear().expect("readable");
        assert_eq!(wear.granules, 3);
        let written: Vec<(u64, u64)> = wear.written.iter().map(|g| (g.number, g.total())).collect();
        assert_eq!(written[..2], [(1, 1), (2, 1)]);
        for more in 9..40 {
            assert!(made.device_of(file(more), 1) < 16);
        }
    }
}
