//! Sets up the places and takes them down.

use super::report::{Backend, Report};
use super::site::Site;
use super::{Arguments, canary};
use crate::attached::Attached;
use crate::commands::create;
use crate::commands::run::{mounts, preload};
use crate::failure::{Failure, Result};
use crate::scratch::Scratch;
use crate::tree_path::absolute;
use nacre_store::WriteMode;
use nacre_volume::Access;
use rustix::fs::{FallocateFlags, fallocate, statfs};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;

const MEMORY: &str = "/dev/shm";
const TMPFS_MAGIC: u64 = 0x0102_1994;
const EXT4_MAGIC: u64 = 0xef53;
/// Folder of the benchmark in the pool.
const INSIDE: &str = "nacre-bench";
const DIRECT: mounts::Choice = mounts::Choice {
    mode: Some(WriteMode::Direct),
    granularity: None,
    read_only: false,
};

/// All places, ready to be measured.
pub struct Stage {
    pub sites: Vec<Site>,
    pub pool: PathBuf,
    attached: Attached,
    environment: Environment,
    is_own_pool: bool,
    disk: Option<Scratch>,
    /// The raw limit is that of the pool's kind of memory.
    beside_pool: Option<Scratch>,
    memory: Scratch,
}

/// What `nacre run` gives to a program.
pub struct Environment {
    preload: std::ffi::OsString,
    mounts: std::ffi::OsString,
    /// Which children of a program need not prove again.
    plans: Option<(String, OwnedFd)>,
}

impl Environment {
    pub fn new(library: &Path, mount: &[mounts::Mount], choice: &mounts::Choice) -> Environment {
        Environment {
            preload: preload::environment(library),
            mounts: mounts::environment(mount, &[], choice),
            plans: preload::plans(),
        }
    }

    pub fn give(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.preload);
        command.env("NACRE_MOUNTS", &self.mounts);
        command.env("NACRE_EMPTY_HANDED", std::process::id().to_string());
        if let Some((name, _)) = &self.plans {
            command.env("NACRE_PLANS", name);
        }
    }
}

impl Stage {
    /// Makes what is missing, starts all workers and proves where they work.
    pub fn set(arguments: &Arguments, pool_bytes: u64, report: &mut Report) -> Result<Stage> {
        let memory = Scratch::in_folder(Path::new(MEMORY))?;
        // It lies beside this program, whose path cannot be told below another root once the mounts
        // are our own.
        let library = preload::POOLS.find()?;
        let beside_pool = beside_pool(arguments, &memory, report)?;
        let (pool, is_own_pool) = match &arguments.pool {
            Some(pool) => (absolute(pool)?, false),
            None => {
                let home = beside_pool.as_ref().unwrap_or(&memory);
                (new_pool(home, pool_bytes)?, true)
            }
        };
        let mount = mounts::pair(std::slice::from_ref(&pool), &[memory.folder("mount")?])?;
        let environment = Environment::new(&library, &mount, &DIRECT);
        let disk = disk(arguments, report)?;
        let attached = Attached::open(&pool, Access::ReadWrite, Some(WriteMode::Direct))?;
        report.run.pool = describe(&attached);
        let mut stage = Stage {
            sites: Vec::new(),
            pool,
            attached,
            environment,
            is_own_pool,
            disk,
            beside_pool,
            memory,
        };
        match stage.start(&mount[0].folder, report) {
            Ok(()) => Ok(stage),
            Err(failure) => {
                stage.is_own_pool = true;
                stage.leave(|_| Ok(()))?;
                Err(failure)
            }
        }
    }

    /// Starts the workers of all places.
    fn start(&mut self, mount: &Path, report: &mut Report) -> Result<()> {
        let inside = format!("{INSIDE}-{}", std::process::id());
        let environment = &self.environment;
        let ours = Site::start(Backend::Nacre, &mount.join(&inside), |command| {
            environment.give(command);
        })?;
        self.sites.push(ours);
        canary::in_pool(&mut self.sites[0], &self.attached, &inside)?;
        self.sites.extend(tmpfs(&self.memory, report)?);
        if let Some(disk) = &self.disk {
            self.sites.push(host(Backend::Ext4, &disk.folder("ext4")?)?);
        }
        let beside = self.beside_pool.as_ref().unwrap_or(&self.memory);
        self.sites.push(host(Backend::Raw, &beside.folder("raw")?)?);
        Ok(())
    }

    /// Ends the workers and leaves the pool; `then` finds it unused and as they left it.
    pub fn leave<T>(mut self, then: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        let is_cleared = if self.is_own_pool {
            Ok(())
        } else {
            self.sites[0].clear()
        };
        self.sites.clear();
        self.attached.detach()?;
        is_cleared?;
        then(&self.pool)
    }
}

/// The folder of the raw limit, and of a pool of our own; none where `memory` is that.
fn beside_pool(
    arguments: &Arguments,
    memory: &Scratch,
    report: &mut Report,
) -> Result<Option<Scratch>> {
    let Some(pool) = &arguments.pool else {
        let large = Scratch::of_large_pages(memory.folder("large-pages")?);
        if let Err(errno) = large {
            report.notes.push(format!(
                "small pages, as no tmpfs of large ones can be mounted ({}): docs/performance.md",
                errno.desc()
            ));
        }
        return Ok(large.ok());
    };
    let pool = absolute(pool)?;
    match pool.parent() {
        Some(folder) if !folder.starts_with("/dev") => Scratch::in_folder(folder).map(Some),
        _ => Ok(None),
    }
}

/// A pool whose memory is all there already, so that the kernel's work to find some is not
/// measured.
fn new_pool(memory: &Scratch, bytes: u64) -> Result<PathBuf> {
    let path = memory.path().join("pool");
    drop(create::make(
        std::slice::from_ref(&path),
        create::Taking::new(bytes),
        Some(WriteMode::Direct),
    )?);
    let failed = |error: std::io::Error| Failure::io(path.display(), error);
    let file = File::options().write(true).open(&path).map_err(failed)?;
    fallocate(&file, FallocateFlags::empty(), 0, bytes).map_err(|error| failed(error.into()))?;
    Ok(path)
}

fn describe(attached: &Attached) -> String {
    let survives = attached.fs.store().volume().survives();
    let kind = if survives.power_loss {
        "survives a power cut"
    } else {
        "memory, does not survive a power cut"
    };
    format!("{} ({kind}), mode direct", attached.path.display())
}

fn tmpfs(memory: &Scratch, report: &mut Report) -> Result<Option<Site>> {
    if kind(memory.path())? != TMPFS_MAGIC {
        report
            .notes
            .push(format!("tmpfs: {MEMORY} is none, skipped"));
        return Ok(None);
    }
    report.run.tmpfs = MEMORY.to_string();
    host(Backend::Tmpfs, &memory.folder("tmpfs")?).map(Some)
}

/// A folder on ext4: the one that was named, or one for temporary files.
fn disk(arguments: &Arguments, report: &mut Report) -> Result<Option<Scratch>> {
    let candidates = match &arguments.ext4 {
        Some(named) if kind(named)? != EXT4_MAGIC => {
            let text = format!("{}: is not on ext4; name a folder that is", named.display());
            return Err(Failure::Usage(text));
        }
        Some(named) => vec![absolute(named)?],
        None => vec![PathBuf::from("/var/tmp"), std::env::temp_dir()],
    };
    let found = candidates
        .iter()
        .find(|folder| kind(folder).is_ok_and(|kind| kind == EXT4_MAGIC));
    let Some(folder) = found else {
        let text = "ext4: no folder for temporary files is on one, skipped; name one with --ext4";
        report.notes.push(text.to_string());
        return Ok(None);
    };
    report.run.ext4 = folder.display().to_string();
    Scratch::in_folder(folder).map(Some)
}

fn kind(folder: &Path) -> Result<u64> {
    let found = statfs(folder).map_err(|error| Failure::io(folder.display(), error))?;
    Ok(found.f_type as u64)
}

/// Workers that run as any program does.
fn host(place: Backend, folder: &Path) -> Result<Site> {
    let mut site = Site::start(place, folder, |_| {})?;
    canary::on_host(&mut site)?;
    Ok(site)
}
