//! Reports that are not on a terminal: a line for each pool, or JSON.

use super::rates::{DiskRates, Rates, processor_percent, rates};
use super::sample::{Chosen, PoolSample, Sample};
use crate::commands::info::{CacheReport, CopyReport};
use crate::failure::{Failure, Result};
use crate::output::harmless;
use crate::size;
use serde::Serialize;
use std::io::{self, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// So often the names of the columns are told again.
const ROWS: u64 = 20;
const COLUMNS: &str = "CHANGES/s COMMITS/s     MS  JOURNAL/s     HOME/s     READ/s MEMORY      \
                       DIRTY       FREE PROGRAMS POOL\n";

#[derive(Serialize)]
struct Report<'s> {
    /// Seconds since 1970.
    time: f64,
    /// How long it was looked.
    seconds: f64,
    pools: Vec<PoolReport<'s>>,
}

#[derive(Serialize)]
struct PoolReport<'s> {
    pool: Option<&'s Path>,
    uuid: &'s str,
    mode: Option<&'s str>,
    bytes: Option<u64>,
    free_bytes: Option<u64>,
    per_second: Option<Rates>,
    copies: &'s [CopyReport],
    cache: Option<&'s CacheReport>,
    programs: Vec<ProgramReport<'s>>,
    /// Why nothing is known.
    unreadable: Option<&'s str>,
}

#[derive(Serialize)]
struct ProgramReport<'s> {
    pid: u32,
    command: &'s str,
    mounts: &'s [String],
    /// Of one processor.
    processor_percent: f64,
}

/// Prints reports until there were enough, or nobody reads them any more.
pub fn print(chosen: &Chosen, (every, times): (Duration, u64), json: bool) -> Result<()> {
    let mut before = chosen.look()?;
    for number in 0..times {
        thread::sleep(every);
        let now = chosen.look()?;
        let text = match json {
            true => document(&before, &now)?,
            false => table(&before, &now, number),
        };
        match write(&text) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            done => done.map_err(|error| Failure::io("standard output", error))?,
        }
        before = now;
    }
    Ok(())
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

fn document(before: &Sample, now: &Sample) -> Result<String> {
    let passed = now.at - before.at;
    let report = Report {
        time: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0.0, |now| now.as_secs_f64()),
        seconds: passed.as_secs_f64(),
        pools: now
            .pools
            .iter()
            .map(|pool| pool_report(before, pool, passed))
            .collect(),
    };
    let text = serde_json::to_string(&report);
    let text = text.map_err(|error| Failure::io("standard output", error))?;
    Ok(text + "\n")
}

fn pool_report<'s>(before: &Sample, pool: &'s PoolSample, passed: Duration) -> PoolReport<'s> {
    let facts = pool.facts.as_ref().ok();
    let programs = pool.programs.iter().map(|one| ProgramReport {
        pid: one.pid,
        command: &one.command,
        mounts: &one.mounts,
        processor_percent: processor_percent(before, one, passed),
    });
    PoolReport {
        pool: pool.pool.as_deref(),
        uuid: &pool.uuid,
        mode: facts.map(|facts| facts.mode),
        bytes: facts.map(|facts| facts.bytes),
        free_bytes: facts.map(|facts| facts.free_bytes),
        per_second: rates(before, pool, passed),
        copies: facts.map_or(&[], |facts| &facts.copies),
        cache: facts.and_then(|facts| facts.cache.as_ref()),
        programs: programs.collect(),
        unreadable: pool.facts.as_ref().err().map(String::as_str),
    }
}

fn table(before: &Sample, now: &Sample, number: u64) -> String {
    let mut text = match number % ROWS {
        0 => COLUMNS.to_string(),
        _ => String::new(),
    };
    for pool in &now.pools {
        text += &row(pool, rates(before, pool, now.at - before.at));
    }
    if now.pools.is_empty() {
        text += "no pool is in use\n";
    }
    text
}

fn row(pool: &PoolSample, rates: Option<Rates>) -> String {
    let name = pool.name();
    let facts = match &pool.facts {
        Ok(facts) => facts,
        Err(why) => return format!("{name}: {}\n", harmless(why)),
    };
    let rates = rates.unwrap_or_default();
    let dirty = facts
        .cache
        .as_ref()
        .map(|cache| size::human(cache.dirty_bytes));
    let warnings = facts.warnings().into_iter();
    let warnings: String = warnings.map(|text| format!(", {text}")).collect();
    format!(
        "{:>9.0} {} {:>10} {:>10} {:>8} {name}{warnings}\n",
        rates.changes,
        disk_columns(rates.disk.as_ref()),
        dirty.unwrap_or_else(|| "-".into()),
        size::human(facts.free_bytes),
        pool.programs.len(),
    )
}

fn disk_columns(disk: Option<&DiskRates>) -> String {
    let Some(disk) = disk else {
        return format!(
            "{:>9} {:>6} {:>10} {:>10} {:>10} {:>6}",
            "-", "-", "-", "-", "-", "-"
        );
    };
    let bytes = |bytes: f64| size::human(bytes as u64);
    let memory = disk.memory_part().map(|part| format!("{part:.1} %"));
    let each = disk.commit_ms.map(|ms| format!("{ms:.2}"));
    format!(
        "{:>9.0} {:>6} {:>10} {:>10} {:>10} {:>6}",
        disk.commits,
        each.unwrap_or_else(|| "-".into()),
        bytes(disk.journal_bytes),
        bytes(disk.home_bytes),
        bytes(disk.read_bytes),
        memory.unwrap_or_else(|| "-".into()),
    )
}
