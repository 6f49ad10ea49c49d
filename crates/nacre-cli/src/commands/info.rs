//! `nacre info`.

use crate::attached::Attached;
use crate::commands::default_pool;
use crate::commands::survival::{SafeFrom, survival};
use crate::every;
use crate::failure::{Result, store_failure};
use crate::mode::Mode;
use crate::users::users;
use crate::{output, size};
use clap::Args;
use nacre_store::{AttachOptions, SessionChoice, Store, WriteMode};
use nacre_types::UNIT_SIZE;
use nacre_volume::{Access, LegState, Survives, Volume};
use serde::Serialize;
use std::fmt::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  nacre info my.pool                       any device of the pool will do
  nacre info                               the default pool of `nacre run`
  nacre info --json my.pool | jq .uuid     for programs";

/// Show what a pool is, how full it is, who uses it and what it survives
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Any device of the pool; without it, the default pool of `nacre run`
    #[arg(value_name = "POOL")]
    pool: Option<PathBuf>,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Survival {
    process_death: bool,
    kernel_crash: bool,
    power_loss: bool,
}

/// One device.
#[derive(Serialize)]
pub struct DeviceReport {
    /// Where it was found.
    pub path: PathBuf,
    uuid: String,
    kind: String,
    flush: String,
    /// Its size.
    pub bytes: u64,
    /// What of it is in use, with metadata; unknown if there is no `usage`.
    pub used_bytes: Option<u64>,
    /// In which sizes it is written and read.
    pub granularity: String,
    /// Whether all is well with it.
    pub state: &'static str,
    /// MB a second at which it stores and loads what it holds, measured; 0 if not.
    pub mb_s: u32,
    /// When that, and its best sizes, were measured, seconds since 1970; 0 for never.
    calibrated: u64,
}

/// One of several copies.
#[derive(Serialize)]
pub struct CopyReport {
    path: PathBuf,
    uuid: String,
    state: &'static str,
}

/// What only an attached pool can tell.
#[derive(Serialize)]
struct Usage {
    mode: &'static str,
    format_version: u32,
    /// With what comes back from empty metadata blocks when it is needed.
    free_bytes: u64,
    /// Where devices hold a part together, and the rest each alone: what all hold, and what is free
    /// of it.
    common_bytes: u64,
    free_common_bytes: u64,
    objects: u64,
    metadata_blocks: MetadataBlocks,
}

/// The blocks of 4 MiB that hold inodes.
#[derive(Serialize)]
struct MetadataBlocks {
    /// Something is in them.
    in_use: u64,
    /// Nothing is in them.
    empty: u64,
    /// They were, and are used for other things.
    given_back: u64,
}

/// What lies between the programs and a disk.
#[derive(Serialize, Default)]
pub struct CacheReport {
    /// Since the pool came into memory.
    pub commits: u64,
    /// Written to the journal.
    pub committed_bytes: u64,
    /// How long all of them took.
    pub commit_seconds: f64,
    pub failed_commits: u64,
    /// What the disk does not have yet.
    pub dirty_bytes: u64,
    /// What is in memory.
    pub memory_bytes: u64,
    /// How much memory it should use at most.
    pub room_bytes: u64,
    /// Read by programs.
    pub read_bytes: u64,
    /// Of these, what programs had to wait for.
    pub missed_bytes: u64,
    /// Came from the disk, also before anybody asked.
    pub loaded_bytes: u64,
    pub dropped_bytes: u64,
    /// Written to their home places, besides the journal.
    pub home_bytes: u64,
    pub journal_bytes: u64,
    /// Whether what comes from the disk is compared with checksums.
    pub checksums: bool,
    /// Units that programs asked for, and that no disk had as they were written.
    pub wrong_units: u64,
    /// Of a pool in memory that is saved: milliseconds after which the disk gets what was stored,
    /// and nobody waits for that; else 0.
    pub saved_every: u64,
}

#[derive(Serialize)]
struct Report {
    uuid: String,
    bytes: u64,
    devices: Vec<DeviceReport>,
    /// How data is spread over several devices.
    stripe: String,
    /// With copies: all of them, those that are lost too.
    copies: Vec<CopyReport>,
    survives: Survival,
    /// Device profile that `nacre run` emulates; empty for none.
    emulates: String,
    used_by: Vec<u32>,
    /// What lies between the programs and a disk.
    cache: Option<CacheReport>,
    /// Why there is no `usage`.
    unreadable: Option<String>,
    usage: Option<Usage>,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let (report, survives) = gather(&default_pool::unless(arguments.pool.as_ref())?)?;
    if arguments.json {
        output::json(&report)?;
    } else {
        output::write(describe(&report, survives).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// How the data of a pool is spread, and its devices.
pub fn devices(pool: &Path) -> Result<(String, Vec<DeviceReport>)> {
    let (report, _) = gather(pool)?;
    Ok((report.stripe, report.devices))
}

fn gather(pool: &Path) -> Result<(Report, Survives)> {
    let volume = Volume::open(pool, Access::ReadOnly)?;
    let survives = volume.survives();
    let emulates = Volume::inspect(pool)?.emulates;
    let devices = volume.devices().into_iter().map(|device| DeviceReport {
        path: device.path,
        uuid: device.uuid.to_string(),
        kind: device.kind.to_string(),
        flush: device.flush.to_string(),
        bytes: device.size,
        used_bytes: None,
        granularity: device.granularity.policy.to_string(),
        state: match () {
            () if device.is_leaving => "leaving",
            () if device.is_behind => "behind",
            () => "present",
        },
        mb_s: device.granularity.speed,
        calibrated: device.granularity.measured,
    });
    let mut report = Report {
        uuid: volume.uuid().to_string(),
        bytes: volume.present_units() * UNIT_SIZE,
        devices: devices.collect(),
        stripe: volume.stripe().to_string(),
        copies: copies(&volume)?,
        survives: Survival {
            process_death: survives.process_death,
            kernel_crash: survives.kernel_crash,
            power_loss: survives.power_loss,
        },
        emulates,
        used_by: users(&volume),
        cache: None,
        unreadable: None,
        usage: None,
    };
    match usage(pool, volume, report.used_by.is_empty()) {
        Ok((usage, cache, used)) => {
            (report.usage, report.cache) = (Some(usage), cache);
            for (device, units) in report.devices.iter_mut().zip(used) {
                device.used_bytes = Some(units * UNIT_SIZE);
            }
        }
        Err(failure) => report.unreadable = Some(failure.to_string()),
    }
    Ok((report, survives))
}

impl CopyReport {
    #[cfg(test)]
    pub fn of(path: &str, state: LegState) -> CopyReport {
        CopyReport {
            path: path.into(),
            uuid: String::new(),
            state: state.name(),
        }
    }

    /// Whether it has all.
    pub fn is_whole(&self) -> bool {
        self.state == LegState::Current.name()
    }
}

/// The copies of a pool; none if it has one alone.
pub fn copies(volume: &Volume) -> Result<Vec<CopyReport>> {
    let copies = volume.copies()?.into_iter().map(|copy| CopyReport {
        path: copy.path,
        uuid: copy.uuid.to_string(),
        state: copy.state.name(),
    });
    Ok(copies.collect())
}

/// What an attached pool tells; the used units of each device at last.
type Known = (Usage, Option<CacheReport>, Vec<u64>);

/// Counts in private memory, changing nothing; or, while others use the pool, in their session.
fn usage(pool: &Path, volume: Volume, alone: bool) -> Result<Known> {
    if !alone {
        drop(volume);
        let attached = Attached::open_to_read(pool, None)?;
        let usage = read_all(attached.fs.store());
        attached.detach()?;
        return Ok(usage);
    }
    let options = AttachOptions {
        session: SessionChoice::Memory,
        parallel: true,
        ..AttachOptions::default()
    };
    let store = Store::attach(volume, &options).map_err(|error| store_failure(pool, error))?;
    let usage = read_all(&store);
    store.detach().map_err(|error| store_failure(pool, error))?;
    Ok(usage)
}

fn read_all(store: &Store) -> Known {
    let (usage, cache) = (read_usage(store), cache_report(store));
    (usage, cache, store.used_by_device())
}

/// What lies between the programs and a disk, if there is one.
pub fn cache_report(store: &Store) -> Option<CacheReport> {
    store.volume().cache_info().map(|cache| CacheReport {
        commits: cache.commits,
        committed_bytes: cache.committed_bytes,
        commit_seconds: cache.commit_time.as_secs_f64(),
        failed_commits: cache.failures,
        dirty_bytes: cache.dirty_bytes,
        memory_bytes: cache.present_bytes,
        room_bytes: cache.room_bytes,
        read_bytes: cache.read_bytes,
        missed_bytes: cache.missed_bytes,
        loaded_bytes: cache.loaded_bytes,
        dropped_bytes: cache.dropped_bytes,
        home_bytes: cache.home_bytes,
        journal_bytes: cache.journal_bytes,
        checksums: cache.wrong_units.is_some(),
        wrong_units: cache.wrong_units.unwrap_or(0),
        saved_every: store
            .volume()
            .saved_every()
            .map_or(0, |it| it.as_millis() as u64),
    })
}

fn read_usage(store: &Store) -> Usage {
    let (info, space) = (store.info(), store.statfs());
    Usage {
        mode: Mode::name(info.mode),
        format_version: info.version,
        free_bytes: space.free_units * UNIT_SIZE,
        common_bytes: store.volume().common_units() * UNIT_SIZE,
        free_common_bytes: (space.free_units - space.free_alone) * UNIT_SIZE,
        // Object number 0 names nothing.
        objects: (space.objects - space.free_objects).saturating_sub(1),
        metadata_blocks: MetadataBlocks {
            in_use: info.metadata_blocks - info.empty_blocks - info.gone_blocks,
            empty: info.empty_blocks,
            given_back: info.gone_blocks,
        },
    }
}

impl fmt::Display for MetadataBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.in_use == 1 { "" } else { "s" };
        write!(f, "in {} metadata block{plural} of 4 MiB", self.in_use)?;
        if self.empty > 0 {
            write!(f, "; {} empty, counted as free", self.empty)?;
        }
        if self.given_back > 0 {
            write!(f, "; {} given back", self.given_back)?;
        }
        Ok(())
    }
}

fn copy_lines(copies: &[CopyReport]) -> String {
    let line = |copy: &CopyReport| format!("copy      {}: {}\n", copy.path.display(), copy.state);
    copies.iter().map(line).collect()
}

fn describe(report: &Report, survives: Survives) -> String {
    let mut text = format!(
        "pool      {}\nsize      {}",
        report.uuid,
        size::human(report.bytes)
    );
    match (&report.usage, &report.unreadable) {
        (Some(usage), _) => {
            let _ = write!(
                text,
                ", {} free\nobjects   {}, {}\nmode      {}\nformat    {}\n",
                size::human(usage.free_bytes),
                usage.objects,
                usage.metadata_blocks,
                usage.mode,
                usage.format_version
            );
        }
        (None, why) => {
            let _ = write!(text, "\nunknown   {}\n", why.as_deref().unwrap_or(""));
        }
    }
    if let Some(usage) = report.usage.as_ref().filter(|it| it.common_bytes > 0) {
        let _ = writeln!(
            text,
            "on all    {}, {} free; on one {} free",
            size::human(usage.common_bytes),
            size::human(usage.free_common_bytes),
            size::human(usage.free_bytes - usage.free_common_bytes),
        );
    }
    describe_devices(report, &mut text);
    text.push_str(&copy_lines(&report.copies));
    if let Some(cache) = &report.cache {
        describe_cache(&mut text, cache, !report.used_by.is_empty());
    }
    if !report.emulates.is_empty() {
        let _ = writeln!(text, "emulates  {}", report.emulates);
    }
    let pids: Vec<String> = report.used_by.iter().map(ToString::to_string).collect();
    let users = match (pids.is_empty(), &report.usage) {
        (true, Some(_)) => "nobody".to_string(),
        (true, None) => "nobody of this session".to_string(),
        (false, _) => pids.join(" "),
    };
    let survival = survival(survives, safe_from(report));
    let _ = writeln!(text, "used by   {users}\n{survival}");
    text
}

/// From when on contents are safe. Of a pool that cannot be read no more is promised than of any.
fn safe_from(report: &Report) -> SafeFrom {
    let saved = report.cache.as_ref().is_some_and(|it| it.saved_every > 0);
    match &report.usage {
        _ if saved => SafeFrom::Save,
        Some(usage) if usage.mode != Mode::name(WriteMode::Cached) => SafeFrom::Return,
        _ => SafeFrom::Sync,
    }
}

fn describe_cache(text: &mut String, cache: &CacheReport, in_use: bool) {
    let (memory, room) = (
        size::human(cache.memory_bytes),
        size::human(cache.room_bytes),
    );
    let dirty = size::human(cache.dirty_bytes);
    let _ = match in_use {
        true => writeln!(
            text,
            "cache     {memory} of {room} in memory, {dirty} not on the disk yet; {}\n{}",
            hits(cache),
            traffic(cache)
        ),
        // Room and counts are those of a session.
        false => writeln!(
            text,
            "cache     {memory} in memory, {dirty} not on the disk yet\n\
             disk      a journal of {}; commits are counted while the pool is in use",
            size::human(cache.journal_bytes)
        ),
    };
    if cache.wrong_units > 0 {
        let _ = writeln!(
            text,
            "damage    {} times a unit of 4 KiB was not on the disk as it was written: EIO; nacre \
             scrub names files",
            cache.wrong_units
        );
    }
    if cache.saved_every > 0 {
        let every = every::human(Duration::from_millis(cache.saved_every));
        let _ = writeln!(
            text,
            "saved     every {every}; fsync does not wait for that"
        );
    }
}

/// What one commit took.
fn each(cache: &CacheReport) -> String {
    match cache.commits {
        0 => String::new(),
        commits => {
            let each = cache.commit_seconds / commits as f64 * 1e3;
            format!(" of {each:.2} ms")
        }
    }
}

fn traffic(cache: &CacheReport) -> String {
    format!(
        "disk      {} commits{}, {} failed; {} to the journal of {}, {} home; {} read",
        cache.commits,
        each(cache),
        cache.failed_commits,
        size::human(cache.committed_bytes),
        size::human(cache.journal_bytes),
        size::human(cache.home_bytes),
        size::human(cache.loaded_bytes),
    )
}

fn describe_devices(report: &Report, text: &mut String) {
    for device in &report.devices {
        let _ = writeln!(
            text,
            "device    {}: {}{}, {}, flush: {}, granularity: {}{}",
            device.path.display(),
            size::human(device.bytes),
            used(device, report),
            device.kind,
            device.flush,
            device.granularity,
            remarks(device),
        );
    }
    if report.devices.len() > 1 {
        let _ = writeln!(text, "stripe    {}", report.stripe);
    }
}

fn remarks(device: &DeviceReport) -> String {
    let measured = if device.calibrated > 0 {
        " (measured)"
    } else {
        ""
    };
    let behind = match device.state {
        "behind" => ", holds what is cold",
        "leaving" => ", leaving",
        _ => "",
    };
    format!("{measured}{behind}")
}

/// What of one of several devices is in use.
fn used(device: &DeviceReport, report: &Report) -> String {
    match device.used_bytes.filter(|_| report.devices.len() > 1) {
        Some(bytes) => format!(", {} used", size::human(bytes)),
        None => String::new(),
    }
}

/// Which part of what programs read was in memory.
fn hits(cache: &CacheReport) -> String {
    match cache.read_bytes {
        0 => "nothing read yet".into(),
        read => {
            let missed = cache.missed_bytes.min(read);
            let hits = (read - missed) as f64 * 100.0 / read as f64;
            format!("{hits:.1} % of {} read was there", size::human(read))
        }
    }
}
