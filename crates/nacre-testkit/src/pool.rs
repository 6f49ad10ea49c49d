//! Pools of tests.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nacre_store::check::check;
use nacre_store::{AttachOptions, FormatOptions, Result, SessionChoice, Store, WriteMode};
use nacre_types::{Clock, Uuid};
use nacre_volume::{
    Access, Caching, Checksums, Common, CreateOptions, DeviceSpec, LegState, Stripe, Volume,
};

use crate::scratch::Scratch;

/// Takes devices that hold nothing.
pub const CAREFUL: CreateOptions = CreateOptions {
    force: false,
    least: 0,
    caching: Caching::Never,
    granularity: None,
    stripe: None,
    copies: 1,
    common: None,
    checksums: Checksums::Never,
    behind: 0,
};

/// Takes devices whatever they hold.
pub const FORCE: CreateOptions = CreateOptions {
    force: true,
    ..CAREFUL
};

/// A session of its own in private memory.
pub const PRIVATE: AttachOptions = AttachOptions {
    session: SessionChoice::Memory,
    mode: None,
    granularity: None,
    resume: false,
    parallel: false,
    clock: Clock::Real,
    looks: false,
};

/// A volume in memory that was just formatted.
pub fn formatted_memory(bytes: u64, options: &FormatOptions) -> Volume {
    let volume = Volume::memory(bytes).expect("memory");
    Store::format(&volume, options).expect("format");
    volume
}

/// A fresh pool in memory.
pub fn memory_pool(bytes: u64) -> Store {
    memory_pool_in(bytes, WriteMode::Direct)
}

/// As [`memory_pool`], with a write mode.
pub fn memory_pool_in(bytes: u64, mode: WriteMode) -> Store {
    let options = FormatOptions {
        mode,
        ..FormatOptions::default()
    };
    Store::attach(formatted_memory(bytes, &options), &PRIVATE).expect("a fresh pool")
}

/// Asserts that check finds nothing wrong.
pub fn assert_sound(store: &Store) {
    let report = check(store, &mut |_| {});
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
}

/// As [`assert_sound`]; no unit is used by nobody, either.
pub fn assert_sound_without_leaks(store: &Store) {
    assert_sound(store);
    assert_eq!(check(store, &mut |_| {}).counts.leaked_units, 0);
}

/// What pool a test wants in files; see [`PoolFiles::make`].
#[derive(Clone, Copy)]
pub struct PoolChoice<'a> {
    /// Where the folder of the files is made.
    pub base: &'a Path,
    /// Names of the devices; folders that they name are made.
    pub devices: &'a [&'a str],
    /// Size of each device.
    pub bytes: u64,
    /// Whether it is used through an image in memory, as on a disk.
    pub caching: Caching,
    /// How many devices hold the same; 0 if each holds a part.
    pub copies: usize,
    /// How much they do, if not all.
    pub common: Option<Common>,
    /// Whether its units have checksums.
    pub checksums: Checksums,
    /// How many devices, the last ones, stand behind the others.
    pub behind: usize,
    /// How it is spread over the devices; `None` as is usual.
    pub stripe: Option<Stripe>,
    /// How it is formatted; one with an image is in mode cached.
    pub format: FormatOptions,
}

impl Default for PoolChoice<'_> {
    fn default() -> Self {
        PoolChoice {
            base: Path::new("/dev/shm"),
            devices: &["pool"],
            bytes: 32 << 20,
            caching: Caching::Never,
            copies: 0,
            common: None,
            checksums: Checksums::Never,
            behind: 0,
            stripe: None,
            format: FormatOptions::default(),
        }
    }
}

/// A format whose root directory is this process's, as `nacre create` makes it.
pub fn own_format() -> FormatOptions {
    FormatOptions {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        ..FormatOptions::default()
    }
}

/// Devices in files of a folder of their own, which go with it.
pub struct Devices(Scratch);

impl Devices {
    /// A folder below `base`; no device yet.
    pub fn below(base: &Path) -> Devices {
        Devices(Scratch::below(base).expect("a folder"))
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    /// A file of the folder, whether it is there or not.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    /// A device that is to be made.
    pub fn spec(&self, name: &str, bytes: u64) -> DeviceSpec {
        device_spec(&self.file(name), bytes)
    }

    /// A fresh volume, which no store has formatted.
    pub fn volume(&self, names: &[&str], bytes: u64, options: CreateOptions) -> Volume {
        let specs: Vec<DeviceSpec> = names.iter().map(|name| self.spec(name, bytes)).collect();
        Volume::create(&specs, options).expect("a fresh volume")
    }

    /// The pool of a device, with a new image, as after a power cut.
    pub fn imaged(&self, name: &str) -> Volume {
        let volume = Volume::open(&self.file(name), Access::ReadWrite).expect("a pool");
        volume.make_image(memory_file()).expect("an image");
        volume
    }
}

/// What the label of a device says of each copy.
pub fn states_of_copies(device: &Path) -> Vec<LegState> {
    let label = Volume::inspect(device).expect("a label");
    let states = label.devices.iter().map(|entry| entry.state);
    states.collect::<Option<_>>().expect("copies")
}

/// An empty file in memory without a name.
pub fn memory_file() -> OwnedFd {
    let file = tempfile::tempfile_in("/dev/shm").expect("a file in memory");
    file.into()
}

/// Makes a version of what is stored to an image; its disk has it.
pub fn commit_image(volume: &Volume) {
    let version = volume.take_version().expect("an image");
    volume.write_version(version).expect("a disk that takes it");
}

/// A fresh pool in files. When it goes, the files go, and what processes that died have left of its
/// sessions.
pub struct PoolFiles {
    devices: Devices,
    pool: Uuid,
}

impl PoolFiles {
    /// One device in memory.
    pub fn new(bytes: u64) -> PoolFiles {
        PoolFiles::with(&["pool"], bytes, &FormatOptions::default())
    }

    /// Devices in memory with these names, each of so many bytes.
    pub fn with(devices: &[&str], bytes: u64, options: &FormatOptions) -> PoolFiles {
        PoolFiles::make(&PoolChoice {
            devices,
            bytes,
            format: *options,
            ..PoolChoice::default()
        })
    }

    /// As chosen.
    pub fn make(choice: &PoolChoice<'_>) -> PoolFiles {
        let devices = Devices::below(choice.base);
        for name in choice.devices {
            let path = devices.file(name);
            let folder = path.parent().expect("a name of a file");
            std::fs::create_dir_all(folder).expect("a folder");
        }
        let options = CreateOptions {
            caching: choice.caching,
            copies: choice.copies,
            common: choice.common,
            checksums: choice.checksums,
            behind: choice.behind,
            stripe: choice.stripe,
            ..CreateOptions::default()
        };
        let volume = devices.volume(choice.devices, choice.bytes, options);
        let mut format = choice.format;
        if volume.is_cached() {
            format.mode = WriteMode::Cached;
        }
        Store::format(&volume, &format).expect("format");
        PoolFiles {
            devices,
            pool: volume.uuid(),
        }
    }

    /// Which pool it is.
    pub fn uuid(&self) -> Uuid {
        self.pool
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        self.devices.folder()
    }

    /// A file of the folder, whether it is there or not.
    pub fn file(&self, name: &str) -> PathBuf {
        self.devices.file(name)
    }

    /// The device of [`PoolFiles::new`].
    pub fn path(&self) -> PathBuf {
        self.file("pool")
    }

    /// Attaches [`PoolFiles::path`] in the session that all share.
    pub fn attach(&self, access: Access) -> Result<Store> {
        attach(&self.path(), access)
    }
}

impl Drop for PoolFiles {
    fn drop(&mut self) {
        let ours = format!("nacre-{}-", self.pool);
        let entries = std::fs::read_dir(nacre_runtime::base());
        for entry in entries.into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&ours) {
                // The last process may be removing it, too.
                let _gone = std::fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// Attaches the pool of a device in the session that all share.
pub fn attach(device: &Path, access: Access) -> Result<Store> {
    let volume = Volume::open(device, access).expect("a device of a pool");
    Store::attach(volume, &AttachOptions::default())
}

/// A device that is to be made.
pub fn device_spec(path: &Path, bytes: u64) -> DeviceSpec {
    DeviceSpec {
        path: path.to_owned(),
        size: Some(bytes),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nacre_volume::Access;

    use super::{PoolFiles, attach};

    const POOL: &str = "NACRE_TESTKIT_POOL";

    /// Not a test by itself: a process that leaves without detaching.
    #[test]
    fn dying_process() {
        if let Ok(path) = std::env::var(POOL) {
            let _store = attach(path.as_ref(), Access::ReadWrite).unwrap();
            std::process::exit(0);
        }
    }

    #[test]
    fn nothing_is_left_of_a_pool_whose_processes_died() {
        let pool = PoolFiles::new(32 << 20);
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "pool::tests::dying_process"]);
        assert!(child.env(POOL, pool.path()).status().unwrap().success());
        let ours = format!("nacre-{}-", pool.pool);
        let left = || {
            let entries = std::fs::read_dir(nacre_runtime::base()).unwrap().flatten();
            let mut names = entries.map(|entry| entry.file_name());
            names.any(|name| name.to_string_lossy().starts_with(&ours))
        };
        let folder = pool.folder().to_owned();
        assert!(left(), "the process has left its session");
        drop(pool);
        assert!(!left() && !folder.exists());
    }
}
