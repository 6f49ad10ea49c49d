//! Counters that go on from one use of a pool to the next, in a file that survives restarts.

use std::fs::File;
use std::io::{Error, ErrorKind, Result as IoResult};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::emulation::{Emulation, Pool, Settings};
use crate::error::EmulationError;
use crate::place::CounterPlace;

impl Emulation {
    /// As [`Emulation::create`], with what was counted before: in this run of the system, or, since
    /// it was started again, as it was kept in the file `kept`.
    pub fn go_on(
        place: impl Into<CounterPlace>,
        kept: &Path,
        settings: &Settings<'_>,
        pool: &Pool,
    ) -> Result<Self, EmulationError> {
        let place = place.into();
        let path = &place.path();
        if Self::open(place.clone(), pool.uuid, pool.owner)?.is_none() {
            let Some(before) = Self::open(kept, pool.uuid, pool.owner)? else {
                return Self::create(place, settings, pool);
            };
            let fresh = Self::create(place.clone(), settings, pool)?;
            // What does not fit the settings is found below.
            let to = File::from(
                fresh
                    .shared
                    .fd()
                    .try_clone_to_owned()
                    .map_err(failed(path, "open it"))?,
            );
            before.copy(&to).map_err(failed(path, "write it"))?;
        }
        let found = Self::open(place, pool.uuid, pool.owner)?;
        let found = found.ok_or_else(|| EmulationError::Foreign(path.to_owned()))?;
        found.resume(settings, pool)?;
        Ok(found)
    }

    /// Keeps what was counted so far in a file.
    pub fn keep(&self, file: &Path) -> Result<(), EmulationError> {
        let mut fresh = file.as_os_str().to_owned();
        fresh.push(".new");
        let fresh = PathBuf::from(fresh);
        // One that was left, or that somebody else put there, goes; a link is not followed.
        match std::fs::remove_file(&fresh) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(failed(&fresh, "remove it")(error));
            }
            _ => {}
        }
        let made = File::create_new(&fresh).map_err(failed(&fresh, "make it"))?;
        self.copy(&made).map_err(failed(&fresh, "write it"))?;
        std::fs::rename(&fresh, file).map_err(failed(file, "replace it"))
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
                uid: rustix::process::geteuid().as_raw(),
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
        let other = Emulation::open(&kept, Uuid([2; 16]), pool(2).owner);
        let text = other.err().map(|error| error.to_string());
        assert!(text.is_some_and(|text| text.contains("of another pool")));
        let mut grown = pool(1);
        grown.devices[1] *= 2;
        let other = Emulation::go_on(&here, &kept, &by(4096), &grown);
        assert!(matches!(other, Err(EmulationError::OtherSize(_))));
    }

    #[test]
    fn what_others_put_beside_a_pool_is_neither_read_nor_written() {
        use std::os::unix::fs::{PermissionsExt, chown, symlink};
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name| folder.path().join(name);
        let (plain, victim) = (Profile::plain(), at("victim"));
        let settings = Settings {
            profile: &plain,
            delays: false,
            wear: Some(4096),
        };
        std::fs::write(&victim, "precious").expect("written");
        symlink(&victim, at("kept.new")).expect("linked");
        let made = Emulation::create(&at("here"), &settings, &pool(1)).expect("made");
        made.keep(&at("kept")).expect("kept");
        let found = std::fs::read_to_string(&victim).expect("read");
        assert_eq!(found, "precious");
        let opens = || Emulation::open(&at("kept"), pool(1).uuid, pool(1).owner).is_ok();
        assert!(opens());
        let mode = |mode| {
            let mode = PermissionsExt::from_mode(mode);
            std::fs::set_permissions(at("kept"), mode).expect("changed");
        };
        mode(0o666);
        assert!(!opens(), "anybody could write it");
        mode(0o600);
        if rustix::process::geteuid().is_root() {
            chown(at("kept"), Some(60_001), None).expect("given away");
            assert!(!opens(), "a stranger's");
        }
        for name in ["kept", "kept.new"] {
            let _gone = std::fs::remove_file(at(name));
            symlink(at("here"), at(name)).expect("linked");
        }
        assert!(!opens(), "a link");
    }

    #[test]
    fn a_profile_that_does_not_end_or_makes_wait_is_none() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("profile.toml");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("made");
        for path in [path.to_str().expect("text"), "/dev/zero"] {
            assert!(Profile::load(path).is_err());
        }
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
            if let Ok(Some(opened)) = Emulation::open(&path, Uuid([1; 16]), pool(1).owner) {
                if opened.resume(&settings, &pool(1)).is_ok() {
                    opened.persisted(1, DeviceOffset(4096), 8, StoreKind::Log);
                }
                opened.wear().expect("readable");
            }
        }
    }
}
