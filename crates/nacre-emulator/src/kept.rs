//! Counters that go on from one use of a pool to the next, in a file that survives restarts.

use std::fs::File;
use std::io::{Error, ErrorKind, Result as IoResult};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::emulation::{Emulation, Pool, Settings};
use crate::error::EmulationError;

impl Emulation {
    /// As [`Emulation::create`], with what was counted before: in this run of the system, or, since
    /// it was started again, as it was kept in the file `kept`.
    pub fn go_on(
        path: &Path,
        kept: &Path,
        settings: &Settings<'_>,
        pool: &Pool,
    ) -> Result<Self, EmulationError> {
        if Self::open(path, pool.uuid)?.is_none() {
            let Some(before) = Self::open(kept, pool.uuid)? else {
                return Self::create(path, settings, pool);
            };
            let fresh = Self::create(path, settings, pool)?;
            // What does not fit the settings is found below.
            before.copy_to(&fresh.path)?;
        }
        let found = Self::open(path, pool.uuid)?;
        let found = found.ok_or_else(|| EmulationError::Foreign(path.to_owned()))?;
        found.resume(settings, pool)?;
        Ok(found)
    }

    /// Keeps what was counted so far in a file.
    pub fn keep(&self, file: &Path) -> Result<(), EmulationError> {
        let mut fresh = file.as_os_str().to_owned();
        fresh.push(".new");
        let fresh = PathBuf::from(fresh);
        let made = File::create(&fresh).map_err(failed(&fresh, "make it"))?;
        drop(made);
        self.copy_to(&fresh)?;
        std::fs::rename(&fresh, file).map_err(failed(file, "replace it"))
    }

    /// Copies what of the file has memory into one that is there.
    fn copy_to(&self, path: &Path) -> Result<(), EmulationError> {
        let to = File::options().write(true).open(path);
        let to = to.map_err(failed(path, "open it"))?;
        self.copy(&to).map_err(failed(path, "write it"))
    }

    fn copy(&self, to: &File) -> IoResult<()> {
        let from = File::from(self.shared.fd().try_clone_to_owned()?);
        let len = from.metadata()?.len();
        to.set_len(0)?;
        to.set_len(len)?;
        let mut bytes = vec![0; 1 << 16];
        let mut at = 0;
        while at < len {
            at = match seek(&from, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(Errno::NXIO) => break,
                Err(errno) => return Err(errno.into()),
            };
            let want = (len - at).min(bytes.len() as u64) as usize;
            let got = from.read_at(&mut bytes[..want], at)?;
            if got == 0 {
                break;
            }
            to.write_all_at(&bytes[..got], at)?;
            at += got as u64;
        }
        to.sync_all()
    }
}

fn failed<'p>(path: &'p Path, action: &'static str) -> impl Fn(Error) -> EmulationError + 'p {
    move |error| EmulationError::System {
        path: path.to_owned(),
        action,
        errno: Errno::from_io_error(&error).unwrap_or(match error.kind() {
            ErrorKind::NotFound => Errno::NOENT,
            _ => Errno::IO,
        }),
    }
}

#[cfg(test)]
mod tests {
    use crate::emulation::{Emulation, Pool, Settings};
    use crate::error::EmulationError;
    use crate::profile::Profile;
    use nacre_media::{Observer, Owner};
    use nacre_types::{DeviceOffset, StoreKind, Uuid};

    fn pool(number: u8) -> Pool {
        Pool {
            uuid: Uuid([number; 16]),
            devices: vec![1 << 20, 1 << 20],
            owner: Owner {
                uid: 0,
                gid: 0,
                mode: 0o600,
            },
        }
    }

    #[test]
    fn counts_go_on_after_a_restart_and_belong_to_one_pool() {
        let folder = tempfile::tempdir().expect("a folder");
        let [here, kept] = ["here", "kept"].map(|name| folder.path().join(name));
        let plain = Profile::plain();
        let by = |wear| Settings {
            profile: &plain,
            delays: false,
            wear: Some(wear),
        };
        let use_it = |expected: u64| {
            let emulation = Emulation::go_on(&here, &kept, &by(4096), &pool(1)).expect("on");
            emulation.persisted(1, DeviceOffset(4096), 8, StoreKind::Log);
            emulation.end_use();
            emulation.keep(&kept).expect("kept");
            let wear = emulation.wear().expect("readable");
            assert_eq!((wear.granules, wear.written.len()), (512, 1));
            assert_eq!(wear.written[0].total(), expected);
            assert_eq!(wear.totals.stores[StoreKind::Log.index()], expected);
            assert_eq!(wear.written[0].number, 257);
        };
        use_it(1);
        use_it(2);
        std::fs::remove_file(&here).expect("the system restarts");
        use_it(3);
        let other = Emulation::go_on(&here, &kept, &by(256), &pool(1));
        assert!(matches!(
            other,
            Err(EmulationError::OtherGranularity { found: 4096, .. })
        ));
        let other = Emulation::open(&kept, Uuid([2; 16]));
        let text = other.err().map(|error| error.to_string());
        assert!(text.is_some_and(|text| text.contains("of another pool")));
        let mut grown = pool(1);
        grown.devices[1] *= 2;
        let other = Emulation::go_on(&here, &kept, &by(4096), &grown);
        assert!(matches!(other, Err(EmulationError::OtherSize(_))));
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("counters");
        let plain = Profile::plain();
        let settings = Settings {
            profile: &plain,
            delays: false,
            wear: Some(4096),
        };
        drop(Emulation::create(&path, &settings, &pool(1)).expect("made"));
        let sound = std::fs::read(&path).expect("read");
        for word in 0..64 {
            let mut bytes = sound.clone();
            bytes[word * 8..word * 8 + 8].fill(0xff);
            std::fs::write(&path, &bytes).expect("written");
            if let Ok(Some(opened)) = Emulation::open(&path, Uuid([1; 16])) {
                if opened.resume(&settings, &pool(1)).is_ok() {
                    opened.persisted(1, DeviceOffset(4096), 8, StoreKind::Log);
                }
                opened.wear().expect("readable");
            }
        }
    }
}
