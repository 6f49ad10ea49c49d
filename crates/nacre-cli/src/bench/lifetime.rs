//! What Nacre adds to a process: its start, its memory; and what attaching a pool takes.

use super::report::{Backend, RowReport};
use super::row::{PROCESS, is_chosen};
use super::stage::Stage;
use super::statistics::Figures;
use super::target::Target;
use super::worker::CANARY;
use crate::attached::Attached;
use crate::failure::{Failure, Result};
use nacre_store::WriteMode;
use nacre_volume::Access;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

const START: &str = "start and end of /bin/true";
const READER: &str = "cat of a small file";
const RUN: &str = "nacre run true";
const MEMORY: &str = "private memory of a worker";
const ATTACH: &str = "attach, alone";
const DETACH: &str = "detach, alone";
/// Rows that are measured here.
pub const NAMES: [&str; 6] = [START, READER, RUN, MEMORY, ATTACH, DETACH];
/// This program, wherever it lies.
const OURSELVES: &str = "/proc/self/exe";

/// A program that is started again and again, with Nacre and without.
struct Start {
    name: &'static str,
    target: Target,
    /// The program where `with` says, in a stage.
    command: fn(&Stage, with: bool) -> Command,
}

const STARTS: [Start; 3] = [
    Start {
        name: START,
        target: Target::PlusRaw(250e3),
        command: |stage, with| served(stage, with, Command::new("/bin/true")),
    },
    Start {
        name: READER,
        target: Target::PlusRaw(400e3),
        command: |stage, with| {
            let mut cat = Command::new("/bin/cat");
            cat.arg(stage.folder(with).join(CANARY))
                .stdout(Stdio::null());
            served(stage, with, cat)
        },
    },
    Start {
        name: RUN,
        target: Target::AtMost(3e6),
        command: |stage, with| match with {
            false => Command::new("/bin/true"),
            true => {
                let mut run = Command::new(OURSELVES);
                run.args(["run", "-q", "--pool"]).arg(&stage.pool);
                run.args(["--", "/bin/true"]);
                run
            }
        },
    },
];

fn served(stage: &Stage, with: bool, mut command: Command) -> Command {
    if with {
        stage.environment().give(&mut command);
    }
    command
}

/// What was measured of all programs that were asked for.
pub struct Starts(Vec<(Start, [Vec<Figures>; 2])>);

impl Starts {
    /// Those that were asked for.
    pub fn chosen(words: &[String]) -> Starts {
        let asked = STARTS.into_iter().filter(|one| is_chosen(one.name, words));
        Starts(asked.map(|start| (start, Default::default())).collect())
    }

    /// One round of `count` starts each.
    pub fn round(&mut self, stage: &Stage, count: usize) -> Result<()> {
        for (start, [ours, plain]) in &mut self.0 {
            let mut samples = [Vec::new(), Vec::new()];
            for _ in 0..count {
                for (with, samples) in [false, true].into_iter().zip(&mut samples) {
                    samples.push(once(start.name, &mut (start.command)(stage, with))?);
                }
            }
            let [without, with] = samples.map(figures);
            ours.push(with);
            plain.push(without);
        }
        Ok(())
    }

    /// What was measured.
    pub fn rows(&self) -> Vec<RowReport> {
        let row = |(start, [ours, plain]): &(Start, [Vec<Figures>; 2])| {
            let mut row = RowReport::new(start.name, PROCESS, "ns");
            row.target = Some(start.target.clone());
            let places = [(Backend::Nacre, ours), (Backend::Raw, plain)];
            for (place, rounds) in places {
                row.places.insert(place, Figures::over_rounds(rounds)?);
            }
            Some(row)
        };
        self.0.iter().filter_map(row).collect()
    }
}

fn figures(mut samples: Vec<f64>) -> Figures {
    let mean = samples.iter().sum::<f64>() / samples.len() as f64;
    let count = samples.len() as u64;
    Figures::of(&mut samples, mean, count, 1)
}

fn once(name: &str, command: &mut Command) -> Result<f64> {
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
    Err(Failure::io(name, error))
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
