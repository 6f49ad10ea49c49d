//! `nacre scrub`.

use crate::attached::Attached;
use crate::failure::{Failure, Result};
use crate::{output, parallel, size};
use clap::Args;
use nacre_fs::Fs;
use nacre_store::scrub::{Damage, Doubtful, Owner, Report, scrub, scrub_alone};
use nacre_types::{ObjectId, UNIT_SIZE};
use nacre_volume::{Access, Evidence, Volume};
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::fmt::{Display, Write};
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  nacre scrub my.pool            programs may use the pool meanwhile
  nacre scrub --json my.pool     for programs
  nacre scrub --repair my.pool   where nothing tells which copy is right, take that of the device
                                 that was wrong nowhere else, or else the one that programs read
  nacre scrub --repair --from a.pool my.pool     take what a.pool holds there

What was quiet at the last scrub has checksums since; so the right copy is known there. Metadata has
checksums of its own, and of three copies two are right. A pool on a disk may have checksums of all
that went home (nacre create --checksums yes). Exit status: 0 all copies agree (now), or a disk has
what was written; 1 some differ and nothing tells which is right, or all have lost what was there.";

/// Compare the copies of a pool, and repair what differs; or a disk with its checksums
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Any device of the pool
    #[arg(value_name = "POOL")]
    pool: PathBuf,
    /// Where nothing tells which copy is right, take that of the device that was wrong nowhere else
    #[arg(long)]
    repair: bool,
    /// There take what this device holds
    #[arg(long, value_name = "DEVICE", requires = "repair")]
    from: Option<PathBuf>,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Scrubbed {
    /// Whether all copies agree now.
    clean: bool,
    bytes: u64,
    /// Bytes that differed and are equal now.
    repaired_bytes: u64,
    /// Bytes of which nothing tells what they should be.
    left_bytes: u64,
    /// Bytes that have checksums now.
    sealed_bytes: u64,
    /// Bytes that differ because programs store to mappings of them.
    mapped_bytes: u64,
    /// If anything differed: the device that was wrong least often.
    trusted: Option<PathBuf>,
    damages: Vec<Told>,
    more_damages: u64,
    seconds: f64,
    /// There are no copies.
    #[serde(skip)]
    alone: bool,
}

/// A place where copies differed.
#[derive(Serialize)]
pub struct Told {
    offset: u64,
    bytes: u64,
    /// Its owner.
    what: Vec<String>,
    /// What told which copy is right; none if nothing did.
    evidence: Option<&'static str>,
    /// Devices that held something else.
    wrong: Vec<PathBuf>,
    /// There was no copy.
    #[serde(skip)]
    alone: bool,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let pool = Attached::open(&arguments.pool, Access::ReadWrite, None)?;
    let done = scrub_pool(&pool.fs, arguments);
    let detached = pool.detach();
    let scrubbed = done?;
    detached?;
    match arguments.json {
        true => output::json(&scrubbed)?,
        false => output::write(describe(&arguments.pool, &scrubbed).as_bytes())?,
    }
    Ok(ExitCode::from(u8::from(!scrubbed.clean)))
}

/// What is done where nothing tells which copy is right.
fn doubtful(volume: &Volume, arguments: &Arguments) -> Result<Doubtful> {
    let Some(named) = &arguments.from else {
        return Ok(match arguments.repair {
            true => Doubtful::Repaired,
            false => Doubtful::Told,
        });
    };
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut current = volume.current_copies().into_iter();
    let device = current.find(|device| real(device) == real(named));
    device.map(Doubtful::TakenFrom).ok_or_else(|| {
        let (named, pool) = (named.display(), arguments.pool.display());
        let remedy = format!("nacre device list {pool} tells which are");
        Failure::Usage(format!("{named} is no current copy of {pool}; {remedy}"))
    })
}

fn scrub_pool(fs: &Fs, arguments: &Arguments) -> Result<Scrubbed> {
    let volume = fs.store().volume();
    if !volume.has_copies() {
        return scrub_alone_pool(fs, arguments);
    }
    let start = Instant::now();
    let bytes = match volume.common_units() {
        0 => volume.len(),
        units => units * UNIT_SIZE,
    };
    let spans = volume.spans();
    let bar = output::bar(bytes, "scrubbing", output::Counted::Bytes);
    let per_span = bytes / (spans.end - spans.start).max(1);
    let report = scrub(
        fs.store(),
        parallel::processors(),
        &doubtful(volume, arguments)?,
        &mut |progress| {
            bar.set_position(progress.done * per_span);
            ControlFlow::Continue(())
        },
    );
    bar.finish_and_clear();
    Ok(summary(fs, report?, bytes, start.elapsed().as_secs_f64()))
}

/// A disk that is alone may have checksums.
fn scrub_alone_pool(fs: &Fs, arguments: &Arguments) -> Result<Scrubbed> {
    let (volume, path) = (fs.store().volume(), arguments.pool.display());
    let why = match (volume.checked_spans(), arguments.repair) {
        (0, _) => "is a pool without copies or checksums; see nacre check",
        (_, true) => "is a pool without copies: nothing has what was there",
        (_, false) => "",
    };
    if !why.is_empty() {
        return Err(Failure::Usage(format!("{path}: {why}")));
    }
    let (start, bytes) = (Instant::now(), volume.len());
    let bar = output::bar(bytes, "comparing", output::Counted::Bytes);
    let report = scrub_alone(fs.store(), parallel::processors(), &mut |progress| {
        bar.set_position(bytes / progress.total.max(1) * progress.done);
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    let mut scrubbed = summary(fs, report?, bytes, start.elapsed().as_secs_f64());
    scrubbed.alone = true;
    scrubbed.damages.iter_mut().for_each(|one| one.alone = true);
    Ok(scrubbed)
}

/// What is said of damages, for people.
pub fn sentences(fs: &Fs, damages: &[&Damage]) -> Vec<String> {
    let paths = paths_of(fs, damages.iter().copied());
    let told = damages.iter().map(|damage| told(damage, &paths));
    told.map(|one| output::harmless(&sentence(&one))).collect()
}

/// The places of a report.
pub fn all_told(fs: &Fs, report: &Report) -> Vec<Told> {
    let paths = paths_of(fs, report.damages.iter());
    report.damages.iter().map(|it| told(it, &paths)).collect()
}

fn paths_of<'d>(fs: &Fs, damages: impl Iterator<Item = &'d Damage>) -> HashMap<ObjectId, Vec<u8>> {
    let owners = damages.flat_map(|damage| &damage.owners);
    let objects: HashSet<ObjectId> = owners.map(|(id, _)| *id).collect();
    match objects.is_empty() {
        true => HashMap::new(),
        false => fs.paths_of(&objects),
    }
}

fn summary(fs: &Fs, report: Report, bytes: u64, seconds: f64) -> Scrubbed {
    Scrubbed {
        damages: all_told(fs, &report),
        clean: report.left == 0,
        bytes,
        repaired_bytes: report.repaired,
        left_bytes: report.left,
        sealed_bytes: report.sealed,
        mapped_bytes: report.mapped,
        trusted: report.trusted,
        more_damages: report.more,
        seconds,
        alone: false,
    }
}

fn told(damage: &Damage, paths: &HashMap<ObjectId, Vec<u8>>) -> Told {
    let range = &damage.difference.range;
    let owners = damage.owners.iter();
    let evidence = damage.difference.evidence.map(|evidence| match evidence {
        Evidence::Seal => "checksum",
        Evidence::Contents => "contents",
        Evidence::Majority => "majority",
        Evidence::Neighbours => "neighbours",
        Evidence::Asked => "asked",
    });
    Told {
        offset: range.start.0,
        bytes: range.end.0 - range.start.0,
        what: owners.map(|owner| name(*owner, paths)).collect(),
        evidence,
        wrong: damage.difference.wrong.clone(),
        alone: false,
    }
}

fn name((id, owner): (ObjectId, Owner), paths: &HashMap<ObjectId, Vec<u8>>) -> String {
    let whose = match paths.get(&id) {
        Some(path) => String::from_utf8_lossy(path).into_owned(),
        None => format!("object {id}"),
    };
    match owner {
        Owner::Data(page) | Owner::Unwritten(page) => {
            format!("{whose}, from byte {} on", page * 4096)
        }
        Owner::Map(..) | Owner::PartsMap(..) | Owner::Tree => format!("{whose}, metadata"),
        Owner::Value(_) => format!("{whose}, a long value of an attribute or key"),
    }
}

/// A line for each place, and one for those that found no room in the list.
pub fn describe_places(pool: &dyn Display, places: &[Told], more: u64) -> String {
    let mut text = String::new();
    for place in places {
        let _ = writeln!(text, "{pool}: {}", output::harmless(&sentence(place)));
    }
    if more > 0 {
        let _ = writeln!(text, "{pool}: {more} places more");
    }
    text
}

fn describe(pool: &Path, scrubbed: &Scrubbed) -> String {
    let pool = pool.display();
    let mut text = describe_places(&pool, &scrubbed.damages, scrubbed.more_damages);
    if scrubbed.mapped_bytes > 0 {
        let bytes = size::human(scrubbed.mapped_bytes);
        let _ = writeln!(
            text,
            "{pool}: {bytes} are being stored to by mappings: left alone"
        );
    }
    if scrubbed.alone {
        let _ = writeln!(
            text,
            "{pool}: {} compared in {:.1} s: {} damaged",
            size::human(scrubbed.bytes),
            scrubbed.seconds,
            size::human(scrubbed.left_bytes),
        );
        return text;
    }
    let _ = writeln!(
        text,
        "{pool}: {} compared in {:.1} s: {} repaired, {} left; {} have checksums",
        size::human(scrubbed.bytes),
        scrubbed.seconds,
        size::human(scrubbed.repaired_bytes),
        size::human(scrubbed.left_bytes),
        size::human(scrubbed.sealed_bytes),
    );
    if let Some(trusted) = scrubbed.trusted.as_ref().filter(|_| !scrubbed.clean) {
        let trusted = output::harmless(&trusted.display().to_string());
        let _ = writeln!(
            text,
            "{pool}: to take what {trusted} holds there: nacre scrub --repair --from {trusted} {pool}"
        );
    }
    text
}

fn sentence(damage: &Told) -> String {
    let whose = match damage.what.as_slice() {
        [] => "the pool's own, or free".to_string(),
        what => what.join("; "),
    };
    let place = format!(
        "{} bytes at volume offset {:#x}",
        damage.bytes, damage.offset
    );
    let wrong: Vec<String> = damage
        .wrong
        .iter()
        .map(|it| it.display().to_string())
        .collect();
    let wrong = wrong.join(" and ");
    match damage.evidence {
        Some("asked") => {
            format!(
                "{whose}: {place}: {wrong} held something else; all hold the same now, as asked"
            )
        }
        Some(evidence) => format!("{whose}: {place}: repaired on {wrong} (by {evidence})"),
        None if damage.alone => {
            format!("{whose}: {place}: {wrong} does not hold what was written; write it again")
        }
        None if damage.wrong.is_empty() => {
            format!("{whose}: {place}: copies differ, and nothing tells which one is right")
        }
        None => {
            format!("{whose}: {place}: all copies have lost what was there (--repair keeps it)")
        }
    }
}
