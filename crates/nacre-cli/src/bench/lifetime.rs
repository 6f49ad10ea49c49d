//! What Nacre adds to a process: its start, its memory; and what attaching a pool takes.

use super::report::{Backend, RowReport};
use super::row::{PROCESS, PROGRAM, is_chosen};
use super::stage::Stage;
use super::statistics::Figures;
use super::target::Target;
use crate::attached::Attached;
use crate::failure::{Failure, Result};
use nacre_store::WriteMode;
use nacre_volume::Access;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

const RUN: &str = "nacre run true";
const MEMORY: &str = "private memory of a worker";
const ATTACH: &str = "attach, alone";
const DETACH: &str = "detach, alone";
/// Rows that are measured here.
pub const NAMES: [&str; 4] = [RUN, MEMORY, ATTACH, DETACH];
/// This program, wherever it lies.
const OURSELVES: &str = "/proc/self/exe";

/// Warm: a moment ago the same was done.
const RUN_TAKES: f64 = 3e6;

/// Runs of a program by `nacre run` in all rounds, and alone.
#[derive(Default)]
pub struct Runs {
    ours: Vec<Figures>,
    plain: Vec<Figures>,
}

impl Runs {
    /// One round of `count` runs each.
    pub fn round(&mut self, pool: &Path, words: &[String], count: usize) -> Result<()> {
        if !is_chosen(RUN, words) {
            return Ok(());
        }
        let (mut ours, mut plain) = (Vec::new(), Vec::new());
        for _ in 0..count {
            plain.push(once(&mut Command::new(PROGRAM))?);
            let mut run = Command::new(OURSELVES);
            run.args(["run", "-q", "--pool"]).arg(pool);
            ours.push(once(run.args(["--", PROGRAM]))?);
        }
        self.ours.push(figures(ours));
        self.plain.push(figures(plain));
        Ok(())
    }

    /// `None` if it was not asked for.
    pub fn row(&self) -> Option<RowReport> {
        let mut row = RowReport::new(RUN, PROCESS, "ns");
        row.target = Some(Target::AtMost(RUN_TAKES));
        row.places
            .insert(Backend::Nacre, Figures::over_rounds(&self.ours)?);
        row.places
            .insert(Backend::Raw, Figures::over_rounds(&self.plain)?);
        Some(row)
    }
}

fn figures(mut samples: Vec<f64>) -> Figures {
    let mean = samples.iter().sum::<f64>() / samples.len() as f64;
    let count = samples.len() as u64;
    Figures::of(&mut samples, mean, count, 1)
}

fn once(command: &mut Command) -> Result<f64> {
    let begin = Instant::now();
    let status = command.status().map_err(|error| Failure::Start {
        program: command.get_program().to_string_lossy().into_owned(),
        error,
    })?;
    let took = begin.elapsed();
    if status.success() {
        return Ok(took.as_nanos() as f64);
    }
    let error = std::io::Error::other(format!("{status}"));
    Err(Failure::io(RUN, error))
}

/// Memory that a worker with an attached pool has for itself alone, beside one without.
pub fn memory(stage: &mut Stage, words: &[String]) -> Result<Option<RowReport>> {
    if !is_chosen(MEMORY, words) {
        return Ok(None);
    }
    let mut row = RowReport::new(MEMORY, PROCESS, "B");
    for site in &mut stage.sites {
        let bytes = site.memory()?;
        row.places
            .insert(site.place, Figures::exactly(bytes as f64));
    }
    Ok(Some(row))
}

/// Attaches and detaches a pool that nobody uses, `rounds` times.
pub fn attach(pool: &Path, rounds: usize, words: &[String]) -> Result<Vec<RowReport>> {
    let names = [ATTACH, DETACH];
    if !names.iter().any(|name| is_chosen(name, words)) {
        return Ok(Vec::new());
    }
    let (mut attach, mut detach) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let begin = Instant::now();
        let attached = Attached::open(pool, Access::ReadWrite, Some(WriteMode::Direct))?;
        attach.push(begin.elapsed().as_nanos() as f64);
        let begin = Instant::now();
        attached.detach()?;
        detach.push(begin.elapsed().as_nanos() as f64);
    }
    let rows = names.into_iter().zip([attach, detach]);
    let asked = rows.filter(|(name, _)| is_chosen(name, words));
    Ok(asked
        .map(|(name, samples)| {
            let mut row = RowReport::new(name, PROCESS, "ns");
            row.places.insert(Backend::Nacre, figures(samples));
            row
        })
        .collect())
}
