//! `nacre create`.

use crate::commands::survival::{SafeFrom, survival};

use crate::failure::{Failure, Result, store_failure};
use crate::mode::Mode;
use crate::users::refuse_if_open;
use crate::wish::Wish;
use crate::{emulated, output, size};
use clap::Args;
use nacre_store::{FormatOptions, MIN_POOL_BYTES, Store, StoreError, WriteMode};
use nacre_volume::{Caching, Checksums, Common, CreateOptions, DeviceSpec, Policy, Stripe, Volume};
use rustix::process::{getegid, geteuid};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  nacre create --size 10G /dev/shm/fast.pool         memory: survives processes, not a restart
  nacre create --size 10G my.pool                    a file: survives a power cut if its disk does
  nacre create /dev/dax0.0                           a whole device-DAX device
  nacre create --cache 4G /dev/nvme1n1               a whole disk, or a partition; 4 GiB of memory
  nacre create --size 2G --mode atomic safe.pool     every write call is all or nothing
  nacre create --mode cached /dev/dax0.0             slow memory: fsync makes durable, less wear
  nacre create --granularity optane:6 /dev/dax0.0    six modules: cut what many write at once
  nacre create --size 1G --emulate optane-100 slow   as slow as Optane in each `nacre run`
  nacre create --size 4G /mnt/a/p0 /mnt/b/p1         two disks or devices as one pool (4 GiB each)
  nacre create --stripe 4K --size 4G a.pool b.pool   files go round the devices in units of 4 KiB
  nacre create --copies 2 /dev/dax0.0 /dev/dax1.0    everything on both: one may be lost
  nacre create --copies metadata=2 --size 4G /mnt/a/p /mnt/b/p    names on both, contents on one
  nacre create --behind cold.img=500G /dev/dax0.0    what is cold goes to a file on a disk";

/// Why a wish for a cache has no effect.
pub const NO_CACHE: &str = "--cache is for a pool in mode cached; this one needs none";

/// Make a pool of one or more devices
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Files (made if missing), block devices or device-DAX devices; any mixture
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
    /// Size of each file that is made, for example 512M or 10G; a pool needs 20M
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,
    /// On how many devices everything is to be, from 2 to 4; as many are named, and the pool is as
    /// large as the smallest. With metadata=NUMBER only metadata is, and what has the attribute
    /// user.nacre.copies; other contents are on one. For disks, or files in mode cached
    #[arg(
        long,
        value_name = "[metadata=]NUMBER",
        value_parser = Copies::parse,
        default_value = "1",
        hide_default_value = true
    )]
    copies: Copies,
    /// With --copies metadata=NUMBER: how much is on all devices [default: an eighth of the
    /// smallest, at least 24M]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    copies_room: Option<u64>,
    /// A disk behind the devices, or a file on one: what was not used for longest moves there when
    /// they get full. A file that is made needs a size
    #[arg(long, value_name = "DEVICE[=SIZE]", value_parser = Behind::parse, conflicts_with = "copies")]
    behind: Vec<Behind>,
    /// What a write call promises when it returns; cached on a disk unless told, direct elsewhere.
    /// On memory cached keeps a copy in DRAM, which goes to the device at fsync and every 5 s
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    /// How much memory a cached pool may use for what is on its device, for example 4G; at least 1M
    /// [default: half of what /dev/shm has]
    #[arg(long, value_name = "SIZE", value_parser = cache_size)]
    cache: Option<u64>,
    /// Whether all that a disk gives back is compared with checksums, which take a thousandth of
    /// it: what is damaged is an error, or comes from another disk. On one disk, or several that
    /// hold the same [default: no]
    #[arg(long, value_name = "YES|NO", value_parser = yes_or_no)]
    checksums: Option<bool>,
    /// In which sizes to write and read: none, optane[:MODULES], or auto, by what the system tells
    /// of the devices; `nacre calibrate` measures what suits
    #[arg(long, value_name = "POLICY", default_value_t = Wish::Auto)]
    granularity: Wish,
    /// Bytes of a file that lie side by side on one of several devices before the next one's turn:
    /// a power of two from 4K to 2M, or none to fill one device after the other [default: 2M]
    #[arg(long, value_name = "SIZE")]
    stripe: Option<Stripe>,
    /// Device that each `nacre run` of the pool emulates: a shipped profile, or path of a TOML file
    #[arg(long, value_name = "PROFILE")]
    emulate: Option<String>,
    /// Overwrite devices that hold something; it is lost
    #[arg(long)]
    force: bool,
    /// Report as JSON
    #[arg(long)]
    json: bool,
    /// Say nothing but errors
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
}

#[derive(Serialize)]
struct Made {
    uuid: String,
    bytes: u64,
    mode: &'static str,
    granularity: String,
    stripe: String,
    emulates: String,
    devices: Vec<PathBuf>,
    behind: Vec<PathBuf>,
}

/// On how many devices what is.
#[derive(Clone, Copy, Debug)]
struct Copies {
    number: usize,
    /// Metadata alone.
    metadata: bool,
}

impl Copies {
    /// `NUMBER` or `metadata=NUMBER`.
    fn parse(text: &str) -> std::result::Result<Self, String> {
        let rest = text.strip_prefix("metadata=");
        let number = rest.unwrap_or(text).parse();
        let number = number.map_err(|_| "a number, or metadata= and a number".to_owned())?;
        let metadata = rest.is_some();
        match number {
            0 => Err("what is on no device is lost".to_owned()),
            1 if metadata => Err("metadata on one device is a pool without copies".to_owned()),
            _ => Ok(Self { number, metadata }),
        }
    }

    /// Devices that hold the same are not gone round.
    fn refuse_stripes(self, stripe: Option<Stripe>) -> Result<()> {
        match stripe {
            Some(_) if self.number > 1 && !self.metadata => Err(Failure::Usage(
                "--stripe says what is on which device; with --copies all hold the same".to_owned(),
            )),
            _ => Ok(()),
        }
    }

    /// How much all devices hold, if not the same.
    fn common(self, room: Option<u64>) -> Result<Option<Common>> {
        match (self.metadata, room) {
            (false, Some(_)) => Err(Failure::Usage(
                "--copies-room is for --copies metadata=NUMBER".to_owned(),
            )),
            (false, None) => Ok(None),
            (true, room) => Ok(Some(room.map_or(Common::Usual, Common::Bytes))),
        }
    }
}

/// A device behind the others.
#[derive(Clone, Debug)]
pub struct Behind {
    path: PathBuf,
    /// Size of a file that is made.
    size: Option<u64>,
}

impl Behind {
    /// `DEVICE` or `DEVICE=SIZE`.
    fn parse(text: &str) -> std::result::Result<Self, String> {
        let (path, size) = match text.rsplit_once('=') {
            Some((path, text)) => (path, Some(size::parse(text)?)),
            None => (text, None),
        };
        Ok(Self {
            path: PathBuf::from(path),
            size,
        })
    }
}

/// `yes` or `no`.
fn yes_or_no(text: &str) -> std::result::Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("yes or no".to_owned()),
    }
}

impl Arguments {
    fn checksums(&self) -> Checksums {
        match self.checksums {
            Some(true) => Checksums::Always,
            None | Some(false) => Checksums::Never,
        }
    }
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    for device in &arguments.devices {
        refuse_if_open(device)?;
    }
    arguments.copies.refuse_stripes(arguments.stripe)?;
    if arguments.granularity == Wish::Policy(Policy::Calibrated) {
        let remedy = "nothing is measured yet: make the pool, then use `nacre calibrate`";
        return Err(Failure::Usage(format!(
            "--granularity calibrated: {remedy}"
        )));
    }
    let emulates = arguments
        .emulate
        .as_deref()
        .map(emulated::name_of)
        .transpose()?;
    let mode = arguments.mode.map(Mode::write_mode);
    let taking = Taking {
        bytes: arguments.size,
        force: arguments.force,
        granularity: arguments.granularity.policy(),
        stripe: arguments.stripe,
        copies: arguments.copies.number,
        common: arguments.copies.common(arguments.copies_room)?,
        checksums: arguments.checksums(),
        behind: &arguments.behind,
    };
    let (volume, mode) = make(&arguments.devices, taking, mode)?;
    if let Some(bytes) = arguments.cache {
        match volume.is_cached() {
            true => Volume::store_cache(&arguments.devices[0], bytes)?,
            false if arguments.quiet => {}
            false => eprintln!("nacre: {NO_CACHE}"),
        }
    }
    if let Some(profile) = &emulates {
        Volume::store_emulated(&arguments.devices[0], profile)?;
    }
    let made = Made {
        uuid: volume.uuid().to_string(),
        bytes: volume.len(),
        mode: Mode::name(mode),
        granularity: policies(&volume),
        stripe: volume.stripe().to_string(),
        emulates: emulates.unwrap_or_default(),
        devices: arguments.devices.clone(),
        behind: arguments.behind.iter().map(|it| it.path.clone()).collect(),
    };
    if arguments.json {
        output::json(&made)?;
    } else if !arguments.quiet {
        let from = match mode {
            WriteMode::Cached => SafeFrom::Sync,
            WriteMode::Direct | WriteMode::Atomic => SafeFrom::Return,
        };
        output::write(describe(&made, &survival(volume.survives(), from)).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The policies of a pool's devices; one if all have the same.
fn policies(volume: &Volume) -> String {
    let each = volume.devices().into_iter();
    let mut names: Vec<String> = each.map(|it| it.granularity.policy.to_string()).collect();
    names.dedup();
    names.join(", ")
}

/// How devices are taken.
#[derive(Clone, Copy, Default)]
pub struct Taking<'a> {
    /// Size of files that are made.
    pub bytes: Option<u64>,
    /// Overwrite what they hold.
    pub force: bool,
    /// In which sizes they are written and read; `None`: as each likes it.
    pub granularity: Option<Policy>,
    /// How data is spread over several; `None`: as is usual.
    pub stripe: Option<Stripe>,
    /// How many devices hold the same; 0 for 1.
    pub copies: usize,
    /// How much they do, if not all.
    pub common: Option<Common>,
    /// Whether units have checksums.
    pub checksums: Checksums,
    /// Further ones, which stand behind.
    pub behind: &'a [Behind],
}

impl Taking<'_> {
    /// Files that are made, of so many bytes.
    pub fn new(bytes: u64) -> Self {
        Self {
            bytes: Some(bytes),
            checksums: Checksums::Never,
            ..Self::default()
        }
    }
}

/// Makes and formats a pool whose root folder belongs to the caller.
pub fn make(
    devices: &[PathBuf],
    taking: Taking<'_>,
    mode: Option<WriteMode>,
) -> Result<(Volume, WriteMode)> {
    let front = devices.iter().map(|path| (path, taking.bytes));
    let behind = taking.behind.iter().map(|one| (&one.path, one.size));
    let spec = |(path, size): (&PathBuf, Option<u64>)| DeviceSpec {
        path: path.clone(),
        size: size.filter(|_| takes_size(path)),
    };
    let specs: Vec<DeviceSpec> = front.chain(behind).map(spec).collect();
    let missing = specs.iter().filter(|spec| !spec.path.exists());
    let missing: Vec<PathBuf> = missing.map(|spec| spec.path.clone()).collect();
    let spinner = output::Spinner::new(format!("making {}", devices[0].display()));
    let how = CreateOptions {
        force: taking.force,
        least: MIN_POOL_BYTES,
        caching: match mode {
            Some(WriteMode::Cached) => Caching::Always,
            _ => Caching::Disks,
        },
        granularity: taking.granularity,
        stripe: taking.stripe,
        copies: taking.copies,
        common: taking.common,
        checksums: taking.checksums,
        behind: taking.behind.len(),
    };
    let volume = Volume::create(&specs, how)?;
    let (usual, allowed) = match volume.is_cached() {
        true => (WriteMode::Cached, true),
        false => (WriteMode::Direct, mode != Some(WriteMode::Cached)),
    };
    let mode = mode.unwrap_or(usual);
    let options = FormatOptions {
        mode,
        uid: geteuid().as_raw(),
        gid: getegid().as_raw(),
        ..FormatOptions::default()
    };
    let formatted = match allowed {
        true => Store::format(&volume, &options),
        false => Err(StoreError::Invalid(
            "mode cached is for a single device, or several disks or files in memory, with room for a journal; this pool is durable without",
        )),
    };
    drop(spinner);
    formatted.map_err(|error| {
        for path in &missing {
            // The failure that is on its way says more than this one would.
            let _ = std::fs::remove_file(path);
        }
        store_failure(&devices[0], error)
    })?;
    Ok((volume, mode))
}

/// `--size` is for files; devices are as large as they are.
fn takes_size(path: &Path) -> bool {
    std::fs::metadata(path).map_or(true, |found| found.is_file())
}

/// A cache that holds less than this would hold more nevertheless.
fn cache_size(text: &str) -> std::result::Result<u64, String> {
    const LEAST: u64 = 1 << 20;
    match size::parse(text)? {
        bytes if bytes < LEAST => Err(format!("{text} is too little: 1M at least")),
        bytes => Ok(bytes),
    }
}

fn describe(made: &Made, survival: &str) -> String {
    let first = made.devices[0].display();
    let named = output::in_shell(&first.to_string());
    format!(
        "{first}: new pool {}, {}, mode {}\n{survival}\nUse it: nacre run --pool {named} -- bash\n",
        made.uuid,
        size::human(made.bytes),
        made.mode,
    )
}
