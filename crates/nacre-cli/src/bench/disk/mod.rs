//! `nacre bench --disk`: a pool on a disk, the file system of a folder and the bare disk, in turns.

mod table;
pub mod worker;

use super::stage::Environment;
use crate::attached::Attached;
use crate::commands::create;
use crate::commands::run::{mounts, preload};
use crate::failure::{Failure, Result, store_failure};
use crate::output;
use crate::scratch::Scratch;
use crate::tree_path::absolute;
use clap::ValueEnum;
use nacre_volume::Access;
use serde::Serialize;
use std::fs;
use std::io::{BufRead, BufReader, Error, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Instant;
use table::{MeasuredAt, RowReport, Sample, Target};
use worker::Job;

/// Room for the files of all processes and for what they make.
const POOL_BYTES: u64 = 1 << 30;

/// What is measured.
struct Row {
    name: &'static str,
    job: Job,
    processes: usize,
    targets: &'static [Target],
}

/// A call that waits for no disk takes as long as in memory, and 15 % more at most.
const AS_IN_MEMORY: &[Target] = &[Target::Memory(0.87)];

const ROWS: [Row; 12] = [
    Row {
        name: "write 4 KiB + fsync",
        job: Job::Overwrite,
        processes: 1,
        targets: &[Target::Files(1.0), Target::Bare(0.8)],
    },
    Row {
        name: "write 4 KiB + fsync, 8 processes",
        job: Job::Overwrite,
        processes: 8,
        targets: &[Target::Files(1.5), Target::One(3.0)],
    },
    Row {
        name: "create, write 4 KiB, fsync, close",
        job: Job::Create,
        processes: 1,
        targets: &[Target::Files(2.0)],
    },
    Row {
        name: "mail: 2 synced writes, 1 removed",
        job: Job::Mail,
        processes: 1,
        targets: &[Target::Files(1.5)],
    },
    Row {
        name: "read 1 MiB in order, cold",
        job: Job::ReadInOrder,
        processes: 1,
        targets: &[Target::Files(1.0), Target::Bare(0.95)],
    },
    Row {
        name: "read 4 KiB anywhere, cold",
        job: Job::ReadAnywhere,
        processes: 1,
        targets: &[Target::Files(1.0), Target::Bare(0.95)],
    },
    Row {
        name: "read 64 B, in memory",
        job: Job::ReadBytes,
        processes: 1,
        targets: AS_IN_MEMORY,
    },
    Row {
        name: "read 4 KiB, in memory",
        job: Job::ReadPages,
        processes: 1,
        targets: AS_IN_MEMORY,
    },
    Row {
        name: "write 64 B, not synced",
        job: Job::WriteBytes,
        processes: 1,
        targets: AS_IN_MEMORY,
    },
    Row {
        name: "write 4 KiB, not synced",
        job: Job::WritePages,
        processes: 1,
        targets: AS_IN_MEMORY,
    },
    Row {
        name: "create, close, remove, not synced",
        job: Job::CreateAndRemove,
        processes: 1,
        targets: AS_IN_MEMORY,
    },
    Row {
        name: "read 4 KiB anywhere, cold, 8 processes",
        job: Job::ReadAnywhere,
        processes: 8,
        targets: &[Target::Files(1.0), Target::Bare(0.95)],
    },
];

/// All that was found.
#[derive(Serialize)]
pub struct DiskReport {
    folder: PathBuf,
    rounds: usize,
    calls: u64,
    rows: Vec<RowReport>,
}

/// How often.
pub struct Extent {
    pub rounds: usize,
    pub calls: u64,
}

pub fn run(
    folder: &Path,
    extent: &Extent,
    words: &[String],
    json: Option<&Path>,
) -> Result<ExitCode> {
    let scratch = Scratch::in_folder(&absolute(folder)?)?;
    let chosen = |row: &&Row| super::row::is_chosen(row.name, words);
    let rows: Vec<&Row> = ROWS.iter().filter(chosen).collect();
    if rows.is_empty() {
        let names = ROWS.map(|row| row.name).join(", ");
        return Err(Failure::Usage(format!("rows on a disk are: {names}")));
    }
    let bar = output::bar(
        (rows.len() * extent.rounds) as u64,
        "measuring",
        output::Counted::Steps,
    );
    let mut reports: Vec<RowReport> = rows
        .iter()
        .map(|row| RowReport::new(row.name, row.processes))
        .collect();
    let places = [
        MeasuredAt::Pool,
        MeasuredAt::Files,
        MeasuredAt::Bare,
        MeasuredAt::Memory,
    ];
    for round in 0..extent.rounds {
        for (row, report) in rows.iter().zip(&mut reports) {
            for turn in 0..places.len() {
                let place = places[(round + turn) % places.len()];
                if let Some(sample) = measure(&scratch, place, row, extent.calls)? {
                    report.add(place, sample);
                }
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let targets: Vec<&[Target]> = rows.iter().map(|row| row.targets).collect();
    table::judge(&mut reports, &targets);
    output::write(table::text(&reports).as_bytes())?;
    let report = DiskReport {
        folder: folder.to_path_buf(),
        rounds: extent.rounds,
        calls: extent.calls,
        rows: reports,
    };
    if let Some(path) = json {
        let text = output::json_text(&report)?;
        output::save(path, text)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// One row in one place; `None` if there is no such thing.
fn measure(scratch: &Scratch, place: MeasuredAt, row: &Row, calls: u64) -> Result<Option<Sample>> {
    if !is_measured(place, row) {
        return Ok(None);
    }
    let bare = place == MeasuredAt::Bare;
    let folder = match place {
        MeasuredAt::Memory => {
            let name = format!("nacre-bench-memory-{}", std::process::id());
            Scratch::named(Path::new("/dev/shm"), &name)?
        }
        _ => Scratch::named(scratch.path(), "turn")?,
    };
    if matches!(place, MeasuredAt::Files | MeasuredAt::Bare) {
        let stage = Stage {
            row,
            calls,
            on_disk: folder.path(),
            pool: None,
        };
        return stage
            .together(folder.path(), |command| {
                command.args(bare.then_some("--bare"));
            })
            .map(Some);
    }
    let library = preload::POOLS.find()?;
    let pool = folder.path().join("pool");
    let paths = std::slice::from_ref(&pool);
    drop(create::make(paths, create::Taking::new(POOL_BYTES), None)?);
    let mount = mounts::pair(paths, &[folder.folder("mount")?])?;
    let environment = Environment::new(&library, &mount, &mounts::Choice::default());
    let attached = Attached::open(&pool, Access::ReadWrite, None)?;
    let inside = &mount[0].folder;
    let stage = Stage {
        row,
        calls,
        on_disk: folder.path(),
        pool: Some(&attached),
    };
    let found = stage.together(inside, |command| environment.give(command));
    attached.detach()?;
    let mut left = fs::read_dir(inside).map_err(|error| Failure::io(inside.display(), error))?;
    match left.next() {
        Some(_) => Err(super::canary::not_intercepted(inside)),
        None => found.map(Some),
    }
}

/// Whether a row has such a place.
fn is_measured(place: MeasuredAt, row: &Row) -> bool {
    match place {
        MeasuredAt::Pool | MeasuredAt::Files => true,
        MeasuredAt::Bare => {
            row.job.reads_cold() || (row.job == Job::Overwrite && row.processes == 1)
        }
        MeasuredAt::Memory => row.job.is_warm(),
    }
}

/// One row, where it is measured.
struct Stage<'a> {
    row: &'a Row,
    calls: u64,
    /// A folder on the disk.
    on_disk: &'a Path,
    pool: Option<&'a Attached>,
}

impl Stage<'_> {
    /// Starts the processes of the row, lets them go at the same time, and waits for all.
    fn together(&self, folder: &Path, prepare: impl Fn(&mut Command)) -> Result<Sample> {
        let job = self.row.job;
        let start = |part| self.start(part, folder, &prepare);
        let callers = (0..self.row.processes).map(start);
        let mut callers = callers.collect::<Result<Vec<_>>>()?;
        callers
            .iter_mut()
            .try_for_each(|caller| caller.hear("ready"))?;
        let missed = self.cool_down()?;
        let (before, begin) = (written(self.on_disk), Instant::now());
        callers.iter_mut().try_for_each(Caller::go)?;
        callers
            .iter_mut()
            .try_for_each(|caller| caller.hear("done"))?;
        let took = begin.elapsed();
        let device = written(self.on_disk)
            .zip(before)
            .map(|(after, before)| after - before);
        let calls = job.calls(self.calls);
        let asked = calls * self.row.processes as u64 * job.bytes();
        if !is_cold(job, self.came(missed), asked) {
            return Err(lost(Error::other(
                "memory answered what was to be read cold",
            )));
        }
        Ok(Sample {
            microseconds: took.as_secs_f64() * 1e6 / calls as f64,
            device: device
                .filter(|_| !job.reads_cold() && !job.is_warm())
                .map(|bytes| bytes as f64 / asked as f64),
        })
    }

    fn start(&self, part: usize, folder: &Path, prepare: impl Fn(&mut Command)) -> Result<Caller> {
        let mut command = Command::new("/proc/self/exe");
        command.arg("bench-disk-worker");
        prepare(&mut command);
        let job = self.row.job.to_possible_value();
        let job = job.map_or(String::new(), |value| value.get_name().to_string());
        command
            .args([part.to_string(), job, self.calls.to_string()])
            .arg(folder);
        Caller::start(command)
    }

    /// Before reads the pool's memory gives back what its disk has. Answers how many bytes had to
    /// come from there so far.
    fn cool_down(&self) -> Result<u64> {
        let Some(attached) = self.pool.filter(|_| self.row.job.reads_cold()) else {
            return Ok(0);
        };
        let (store, failed) = (attached.fs.store(), |error| {
            store_failure(&attached.path, error)
        });
        store.commit_now().map_err(failed)?;
        store.volume().checkpoint()?;
        while store.volume().drop_memory() > 0 {}
        Ok(missed(attached))
    }

    /// How many bytes came from the pool's disk since it was asked before; all if it is no pool.
    fn came(&self, before: u64) -> u64 {
        self.pool
            .map_or(u64::MAX, |attached| missed(attached) - before)
    }
}

/// Whether so many bytes of those that were asked for came from the disk, not from memory.
fn is_cold(job: Job, came: u64, asked: u64) -> bool {
    match job {
        // What is read ahead is not waited for.
        Job::ReadInOrder => came >= asked / 64,
        Job::ReadAnywhere => came >= asked,
        _ => true,
    }
}

/// How many bytes of a pool somebody had to wait for.
fn missed(attached: &Attached) -> u64 {
    let info = attached.fs.store().volume().cache_info();
    info.map_or(0, |info| info.missed_bytes)
}

/// What the disk under a folder has written so far, in bytes, if it tells.
fn written(folder: &Path) -> Option<u64> {
    let number = fs::metadata(folder).ok()?.dev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let text = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    let sectors: u64 = text.split_whitespace().nth(6)?.parse().ok()?;
    Some(sectors * 512)
}

/// A process of a row.
struct Caller {
    child: Child,
    input: Option<ChildStdin>,
    output: Option<BufReader<ChildStdout>>,
}

impl Caller {
    fn start(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| Failure::Start {
            program: "bench-disk-worker".to_string(),
            error,
        })?;
        Ok(Self {
            input: child.stdin.take(),
            output: child.stdout.take().map(BufReader::new),
            child,
        })
    }

    fn go(&mut self) -> Result<()> {
        let said = self.input.as_mut().map(|input| input.write_all(b"go\n"));
        said.transpose().map(drop).map_err(lost)
    }

    fn hear(&mut self, word: &str) -> Result<()> {
        let mut line = String::new();
        if let Some(output) = &mut self.output {
            output.read_line(&mut line).map_err(lost)?;
        }
        match line.trim_end() == word {
            true => Ok(()),
            false => Err(lost(Error::other("it ended early"))),
        }
    }
}

impl Drop for Caller {
    /// It ends by itself, so that it leaves the pool properly.
    fn drop(&mut self) {
        drop(self.input.take());
        if let Err(error) = self.child.wait() {
            eprintln!("nacre: worker {}: {error}", self.child.id());
        }
    }
}

fn lost(error: Error) -> Failure {
    Failure::io("worker", error)
}

#[cfg(test)]
mod tests {
    use super::{Job, is_cold};

    #[test]
    fn canary_reads_that_memory_answers_are_no_cold_ones() {
        let asked = 16 << 20;
        for job in [Job::ReadAnywhere, Job::ReadInOrder] {
            assert!(is_cold(job, asked, asked), "{job:?}");
            assert!(!is_cold(job, 64 << 10, asked), "{job:?}");
        }
        assert!(is_cold(Job::Overwrite, 0, asked));
    }
}
