//! `nacre run`: the supervisor of a program that runs on pools.

mod hidden_mounts;
pub mod kernel_mounts;
pub mod mounts;
pub mod preload;
mod program;
mod saved;
pub mod supervisor;

use super::{default_pool, sync, upkeep, wear};
use crate::attached::{self, Attached};
use crate::emulated::{self, Asked, Wish};
use crate::failure::{Failure, Result};
use crate::mode::Mode;
use crate::{every, output, size};
use clap::Args;
use kernel_mounts::KernelMounts;
use mounts::Mount;
use nacre_emulator::Emulation;
use nacre_store::WriteMode;
use nacre_types::reach::{self, Policy};
use nacre_volume::{Access, Policy as Granularity, Volume};
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  nacre run bash                                     a shell; /nacre is a pool in memory
  nacre run --pool my.pool -- bash                   a shell; /nacre is my.pool
  nacre run --pool my.pool -- sqlite3 /nacre/my.db   any program, unmodified
  nacre run --pool a --mount /a --pool b --mount /b -- cp -r /a/x /b
  nacre run --pool my.pool --mode atomic -- make     every write call is all or nothing
  nacre run --pool my.pool --cache 2G -- make        a pool on a disk; at most 2 GiB of it in memory
  nacre run --pool ram.pool --save-to ram.img --every 5s -- make
                                                     in memory; a restart finds it again in ram.img
  nacre run --pool my.pool --granularity optane:2 -- make
  nacre run --wear-html wear.html -- make            where make wears the pool, as a page of heat maps
  nacre run --emulate optane-100 --wear -- make      as slow as Optane; then `nacre wear`

Everything that the program starts sees the same files; so do other `nacre run`s of the pool, at
the same time. The folder DIR need not exist; what is outside of it stays as it is. Programs that
cannot be served (statically linked, Go, setuid, other C libraries) get the files through the
kernel, if DIR is empty or can be made and /dev/fuse can be used: the pool is mounted there when
the first of them starts, until all have ended. Otherwise they see the host's files only, and are
refused if an argument, a variable or the working directory names DIR. NACRE_LOG=1 shows each call
served; NACRE_DEFAULT_POOL names another file for the default pool.

Exit status: the program's own; 128 + N if signal N ended it; 125 if Nacre failed; 126 or 127 if
the program cannot be started.";

/// Run a program that sees pools as folders
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Pool to use; repeatable. Without it: a default pool in memory, made when needed
    #[arg(long = "pool", value_name = "POOL")]
    pools: Vec<PathBuf>,
    /// Size of the default pool, or of one that is saved, if it is not there yet [default: by what
    /// is free, at most 1G]
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,
    /// Use a pool in memory that is saved to this file on a disk, made if it is not there. A
    /// restart finds it again. No fsync waits for that. --pool gives it another name
    #[arg(long, value_name = "FILE", conflicts_with = "read_only")]
    save_to: Option<PathBuf>,
    /// How often what was stored is written to disks, for example 5s or 500ms; a pool that is saved
    /// remembers it [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = every::parse, conflicts_with = "read_only")]
    every: Option<Duration>,
    /// Pools with copies: how long after one scrub the next one begins [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = every::parse)]
    scrub_every: Option<Duration>,
    /// Where the pool appears; repeatable, one for each --pool [default: /nacre]
    #[arg(long = "mount", value_name = "DIR")]
    mounts: Vec<PathBuf>,
    /// What a write call promises when it returns [default: as the pool was made]
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    /// In which sizes to write and read devices: none, optane[:MODULES], calibrated
    /// [default: as the pool says]
    #[arg(long, value_name = "POLICY")]
    granularity: Option<Granularity>,
    /// How much memory pools on disks may use for what is on them, from now on; at least 1M
    /// [default: $NACRE_CACHE, or as the pool was made]
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with = "read_only")]
    cache: Option<u64>,
    /// Allow no changes
    #[arg(long)]
    read_only: bool,
    /// Be as slow as this device: a shipped profile (see `nacre model --show`), path of a TOML
    /// file, or none; repeatable, with DEVICE= in front for single devices of the pool
    /// [default: as the pool says]
    #[arg(long, value_name = "[DEVICE=]PROFILE")]
    emulate: Vec<String>,
    /// Count what is written by granules of so many bytes, for `nacre wear` [default: 4096]
    #[arg(long, value_name = "BYTES", value_parser = size::parse, num_args = 0..=1, require_equals = true, default_missing_value = "4096")]
    wear: Option<u64>,
    /// Count, and write a page with heat maps when the program has ended; further pools get a
    /// number before the extension
    #[arg(long, value_name = "FILE")]
    wear_html: Option<PathBuf>,
    /// Go on from what was counted before, and keep it in POOL.wear for the next time
    #[arg(long, requires = "wear")]
    keep: bool,
    /// Let the pool cover what is in DIR on the host
    #[arg(long)]
    cover: bool,
    /// Start programs that cannot be served (static, Go, setuid) even if they are told to use DIR
    #[arg(long)]
    allow_unserved: bool,
    /// Do not mount the pool with the kernel's FUSE for programs that cannot be served
    #[arg(long)]
    no_fuse: bool,
    /// Let other users use that mount, too, as far as the permissions of its files let them
    #[arg(long, conflicts_with = "no_fuse")]
    allow_other: bool,
    /// Say nothing but errors
    #[arg(short, long)]
    quiet: bool,
    /// Program and its arguments; default: $SHELL
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = false,
        value_name = "PROGRAM"
    )]
    pub program: Vec<OsString>,
}

/// Bytes of a granule of the counters, if not told.
const GRANULE: u64 = 4096;

impl Arguments {
    fn policy(&self) -> Policy {
        let inherited = env::var_os(reach::VARIABLE);
        match self.allow_unserved {
            true => Policy::Allow,
            false => Policy::of(inherited.as_deref().map(OsStr::as_bytes)),
        }
    }

    /// Nothing is mounted for a program that is to see the host's files.
    fn offer(&self, mounts: &[Mount], attached: &[Attached]) -> Option<KernelMounts> {
        let wanted = !self.no_fuse && self.policy() == Policy::Refuse;
        let choice = kernel_mounts::Choice {
            read_only: self.read_only,
            allow_other: self.allow_other,
            mode: self.mode.map(Mode::write_mode),
        };
        wanted
            .then(|| KernelMounts::offer(mounts, attached, choice))
            .flatten()
    }

    fn granule(&self) -> Option<u64> {
        self.wear.or(self.wear_html.as_ref().map(|_| GRANULE))
    }
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let (mounts, attached, emulations) =
        prepare(arguments).map_err(|error| Failure::BeforeStart(error.into()))?;
    sync::commit_for_all(&attached);
    attached.iter().for_each(|pool| pool.fs.only_looks());
    let program = program::Program::new(&arguments.program, &mounts);
    let offer = arguments.offer(&mounts, &attached);
    if let Some(offer) = offer.as_ref().filter(|_| program.is_unserved()) {
        offer.mount();
    }
    let checked = program.check(&mounts, arguments.policy());
    let command =
        checked.and_then(|()| command(arguments, &program, (&mounts, &attached), offer.as_ref()));
    let used = attached.iter().map(|pool| (pool.path.as_path(), &pool.fs));
    let status = upkeep::beside(used, arguments.scrub_every, || {
        command.and_then(|(command, _plans)| supervisor::keep(command, &program.name(), &attached))
    });
    if let Some(offer) = offer {
        offer.end();
    }
    attached.iter().for_each(sync::leave_stand_in);
    let detached = attached
        .into_iter()
        .map(Attached::detach)
        .collect::<Result<Vec<()>>>();
    let ended = end_emulations(emulations, &mounts, arguments);
    attached::sweep();
    let status = status?;
    if let Err(failure) = detached.map(|_| ()).and(ended) {
        output::tell(&failure);
    }
    Ok(status)
}

/// Saves what was counted, and switches off what was for this run alone.
fn end_emulations(
    emulations: Vec<Emulation>,
    mounts: &[Mount],
    arguments: &Arguments,
) -> Result<()> {
    for (number, (emulation, mount)) in emulations.into_iter().zip(mounts).enumerate() {
        emulation.end_use();
        if let Some(path) = &arguments.wear_html {
            wear::save_page(&emulation, &output::numbered(path, number))?;
        }
        let kept = arguments.keep.then(|| emulated::kept_beside(&mount.pool));
        emulated::end(emulation, arguments.granule().is_some(), kept)?;
    }
    Ok(())
}

/// Makes sure that the pools are there and attached before the program starts: its processes then
/// join a session that is ready, and its last one does not have to take it down. Also where the
/// program gets no write access, as far as there is any: the supervisor can then repair what others
/// leave.
fn prepare(arguments: &Arguments) -> Result<(Vec<Mount>, Vec<Attached>, Vec<Emulation>)> {
    let asked = Asked::parse(&arguments.emulate)?;
    if let Some(page) = &arguments.wear_html {
        // Better now than when the program has ended.
        output::create(page)?;
    }
    let pools = pools(arguments)?;
    let mounts = mounts::pair(&pools, &arguments.mounts)?;
    if !arguments.cover {
        mounts::refuse_covering(&mounts)?;
    }
    let used: Vec<&Path> = mounts.iter().map(|mount| mount.pool.as_path()).collect();
    asked.refuse_strangers(&used)?;
    let wish = Wish {
        asked,
        wear: arguments.granule(),
        keep: arguments.keep,
    };
    let emulations = mounts
        .iter()
        .filter_map(|mount| wish.grant(&mount.pool).transpose())
        .collect::<Result<Vec<Emulation>>>()?;
    let mode = arguments.mode.map(Mode::write_mode);
    let attached = mounts
        .iter()
        .map(|mount| open(&mount.pool, mode, arguments))
        .collect::<Result<Vec<Attached>>>()?;
    Ok((mounts, attached, emulations))
}

/// The pools to use, those that may be made made.
fn pools(arguments: &Arguments) -> Result<Vec<PathBuf>> {
    let given = &arguments.pools;
    let usage = |text: &str| Err(Failure::Usage(text.into()));
    match (&arguments.save_to, &given[..]) {
        (Some(_), [_, _, ..]) => usage("--save-to is for one pool; start one run inside the other"),
        (None, [_, ..]) if arguments.size.is_some() => {
            usage("--size is for a pool that `nacre run` makes; --pool names one that is there")
        }
        (None, [_, ..]) => Ok(given.clone()),
        (None, []) => Ok(vec![default_pool::find_or_make(
            arguments.quiet,
            arguments.size,
        )?]),
        (Some(file), _) => {
            let saved = saved::Saved {
                file,
                name: given.first().map(PathBuf::as_path),
                every: arguments.every,
                size: arguments.size,
                cache: arguments.cache,
                quiet: arguments.quiet,
            };
            Ok(vec![saved.find_or_make()?])
        }
    }
}

fn open(pool: &Path, mode: Option<WriteMode>, arguments: &Arguments) -> Result<Attached> {
    if arguments.granularity == Some(Granularity::Calibrated) {
        let label = Volume::inspect(pool)?;
        if label.granularity.measured == 0 {
            let pool = pool.display();
            return Err(Failure::Usage(format!(
                "{pool}: nothing was measured yet; use `nacre calibrate {pool}` first"
            )));
        }
    }
    if arguments.read_only {
        Attached::open_to_read(pool, mode)
    } else {
        let mut attached = Attached::open_as(pool, Access::ReadWrite, mode, arguments.granularity)?;
        attached.commit_every = arguments.every.unwrap_or(attached.commit_every);
        attached.limit_cache(arguments.cache)?;
        Ok(attached)
    }
}

/// What starts the program, and a file that must live as long.
fn command(
    arguments: &Arguments,
    program: &program::Program,
    (mounts, attached): (&[Mount], &[Attached]),
    offer: Option<&KernelMounts>,
) -> Result<(Command, Option<OwnedFd>)> {
    let library = preload::POOLS
        .find()
        .map_err(|error| Failure::BeforeStart(error.into()))?;
    let mut command = program.command();
    if program.may_load() {
        command.env("LD_PRELOAD", preload::environment(&library));
    }
    command.env("ASAN_OPTIONS", preload::sanitizer_options());
    let choice = mounts::Choice {
        mode: arguments.mode.map(Mode::write_mode),
        granularity: arguments.granularity,
        read_only: arguments.read_only,
    };
    if arguments.allow_unserved {
        command.env(reach::VARIABLE, "allow");
    }
    command.env(
        "NACRE_MOUNTS",
        mounts::environment(mounts, attached, &choice),
    );
    if env::var_os("NACRE_MOUNTS").is_none() {
        command.env("NACRE_EMPTY_HANDED", std::process::id().to_string());
    }
    let by_kernel = match offer {
        Some(offer) => Some(offer.setting(mounts)),
        None => kernel_mounts::outer(mounts),
    };
    match by_kernel {
        Some(setting) => command.env(reach::BY_KERNEL, setting),
        None => command.env_remove(reach::BY_KERNEL),
    };
    let Some((name, plans)) = preload::plans() else {
        return Ok((command, None));
    };
    command.env("NACRE_PLANS", name);
    Ok((command, Some(plans)))
}
