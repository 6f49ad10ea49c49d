//! The hidden subcommand that measures in one place, on demand, row by row.
//!
//! It talks in JSON lines: a [`Request`] on standard input, a [`Reply`] on standard output. A row
//! is answered twice: when it is ready, and, after an empty line has come, when it is measured.

use super::entries::{Entries, Readdir};
use super::files::{
    Append, Clock, Forks, NotOurs, Nothing, OpenReadClose, Places, Pread, Program, Pwrite,
    contents, data_file,
};
use super::measure::{Work, measure};
use super::raw;
use super::row::{Action, Row, Scale, Sharing};
use super::statistics::Figures;
use crate::failure::{Failure, Result};
use crate::parallel;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, BufRead, StdinLock, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &str = "Started by `nacre bench`; of no use alone.";

/// The process that `nacre bench` measures in
#[derive(Debug, Args)]
#[command(hide = true, after_help = EXAMPLES)]
pub struct Arguments {
    /// Measure the raw limit on a file in DIR, not the file system of DIR
    #[arg(long)]
    raw: bool,
    /// Where to measure
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// The file of [`Request::Canary`].
pub const CANARY: &str = "canary";

#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Write this to the file `canary`.
    Canary(String),
    /// How much memory is yours alone?
    Memory,
    /// Remove all that was made.
    Clear,
    Row(Job),
}

/// A row to be measured.
#[derive(Debug, Serialize, Deserialize)]
pub struct Job {
    pub row: Row,
    /// Number of the worker among those that measure it at the same time.
    pub part: usize,
    pub budget: Duration,
    pub scale: Scale,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    Done,
    Ready,
    Bytes(u64),
    Measured(Figures),
    /// There is no such thing here.
    Nothing,
    Failed(String),
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut input = io::stdin().lock();
    while let Some(line) = next_line(&mut input)? {
        let request = serde_json::from_str(&line).map_err(|error| Failure::io("request", error))?;
        let reply = answer(arguments, request, &mut input);
        say(&reply.unwrap_or_else(|error| Reply::Failed(error.to_string())))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn next_line(input: &mut StdinLock<'_>) -> Result<Option<String>> {
    let mut line = String::new();
    let read = input
        .read_line(&mut line)
        .map_err(|error| Failure::io("standard input", error))?;
    Ok((read > 0).then_some(line))
}

fn say(reply: &Reply) -> Result<()> {
    let mut line =
        serde_json::to_vec(reply).map_err(|error| Failure::io("standard output", error))?;
    line.push(b'\n');
    let mut output = io::stdout().lock();
    let sent = output.write_all(&line).and_then(|()| output.flush());
    sent.map_err(|error| Failure::io("standard output", error))
}

fn answer(arguments: &Arguments, request: Request, input: &mut StdinLock<'_>) -> io::Result<Reply> {
    match request {
        Request::Canary(token) => {
            fs::create_dir_all(&arguments.folder)?;
            fs::write(arguments.folder.join(CANARY), token).map(|()| Reply::Done)
        }
        Request::Clear => fs::remove_dir_all(&arguments.folder).map(|()| Reply::Done),
        Request::Memory => private_bytes().map(Reply::Bytes),
        Request::Row(job) => {
            let mut callers = (0..job.row.threads)
                .map(|thread| ways(arguments, &job, job.part * job.row.threads + thread))
                .collect::<io::Result<Vec<_>>>()?;
            say(&Reply::Ready).map_err(io::Error::other)?;
            next_line(input).map_err(io::Error::other)?;
            perform(&mut callers, job.budget)
        }
    }
}

/// What a caller measures: one way, or for the raw limit those among which the fastest counts.
fn ways(arguments: &Arguments, job: &Job, caller: usize) -> io::Result<Vec<Box<dyn Work>>> {
    if arguments.raw {
        let file = format!("raw-{}", owner(&job.row, caller));
        return raw::ways(&job.row, &arguments.folder.join(file), caller, job.scale);
    }
    Ok(vec![work(&arguments.folder, &job.row, job.scale, caller)?])
}

/// The caller whose file or folder this one uses.
fn owner(row: &Row, caller: usize) -> usize {
    match row.sharing {
        Sharing::Same => 0,
        Sharing::Own => caller,
    }
}

/// What `caller` does for a row, in files of `folder` that are made if need be.
pub fn work(folder: &Path, row: &Row, scale: Scale, caller: usize) -> io::Result<Box<dyn Work>> {
    let owner = owner(row, caller);
    let bytes = scale.file_bytes;
    let places = || Places::new(bytes, row.size, caller, row.callers(), row.sharing);
    let data = || data_file(&folder.join(format!("data-{owner}")), bytes);
    Ok(match row.action {
        Action::Nothing => Box::new(Nothing(places())),
        Action::Clock => Box::new(Clock),
        Action::NotOurs => Box::new(NotOurs),
        Action::Fork => Box::new(Forks::start(folder)?),
        Action::Start => Box::new(Program::idle()),
        Action::StartReader => Box::new(Program::reader(folder)?),
        Action::Pread => Box::new(Pread {
            file: data()?,
            places: places(),
            buffer: vec![0; row.size],
        }),
        Action::Pwrite | Action::PwriteFsync => Box::new(Pwrite {
            file: data()?,
            places: places(),
            buffer: contents(row.size),
            syncs: row.action == Action::PwriteFsync,
        }),
        Action::Append => Box::new(Append::new(&folder.join("append"), row.size, bytes)?),
        Action::OpenReadClose => Box::new(OpenReadClose::new(&folder.join("small"), row.size)?),
        Action::Readdir => Box::new(Readdir::new(&folder.join("many"), scale.entries)?),
        action => {
            let inside = folder.join(format!("names-{owner}-{action:?}"));
            Box::new(Entries::new(action, &inside, caller, row.size)?)
        }
    })
}

fn perform(callers: &mut [Vec<Box<dyn Work>>], budget: Duration) -> io::Result<Reply> {
    let ways = callers.iter().map(Vec::len).min().unwrap_or(0);
    let mut best: Option<Figures> = None;
    for way in 0..ways {
        let works: Vec<&mut Box<dyn Work>> =
            callers.iter_mut().map(|list| &mut list[way]).collect();
        let found = together(works, budget / ways as u32)?;
        best = match best {
            Some(best) if best.p50 <= found.p50 => Some(best),
            _ => Some(found),
        };
    }
    Ok(best.map_or(Reply::Nothing, Reply::Measured))
}

/// Measures all at the same time, each in a thread; one in the thread that we have.
fn together(mut works: Vec<&mut Box<dyn Work>>, budget: Duration) -> io::Result<Figures> {
    if let [only] = works.as_mut_slice() {
        return measure(only.as_mut(), budget);
    }
    let measured = |work: &'_ mut Box<dyn Work>| measure(work.as_mut(), budget);
    let jobs = works.into_iter().map(|work| move || measured(work));
    let figures = parallel::together(jobs.collect())?;
    let figures = figures.into_iter().collect::<io::Result<Vec<_>>>()?;
    Ok(Figures::side_by_side(&figures))
}

/// Memory that no other process shares.
fn private_bytes() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/self/smaps_rollup")?;
    Ok(private_in(&text))
}

fn private_in(rollup: &str) -> u64 {
    let kibibytes = |line: &str| line.split_whitespace().nth(1)?.parse::<u64>().ok();
    let own = rollup
        .lines()
        .filter(|line| line.starts_with("Private_Clean:") || line.starts_with("Private_Dirty:"));
    own.filter_map(kibibytes).sum::<u64>() << 10
}

#[cfg(test)]
mod tests {
    use super::{Reply, perform, private_in};
    use crate::bench::measure::Work;
    use std::io;
    use std::time::Duration;

    struct Slow(Duration);
    impl Work for Slow {
        fn chunk(&self) -> usize {
            3
        }
        fn step(&mut self, _: usize) -> io::Result<()> {
            std::thread::sleep(self.0);
            Ok(())
        }
    }

    #[test]
    fn the_fastest_way_counts() {
        // The slow way can never be as fast as is asked for; the fast one may be woken late.
        let ways =
            [200, 1].map(|ms| -> Box<dyn Work> { Box::new(Slow(Duration::from_millis(ms))) });
        let reply = perform(&mut [Vec::from(ways)], Duration::from_millis(4)).expect("measured");
        let Reply::Measured(figures) = reply else {
            panic!("{reply:?}");
        };
        assert!(figures.p50 < 2e8);
    }

    #[test]
    fn without_a_way_there_is_nothing() {
        let reply = perform(&mut [Vec::new()], Duration::ZERO).expect("no error");
        assert!(matches!(reply, Reply::Nothing));
    }

    #[test]
    fn private_memory_is_clean_and_dirty() {
        let text = "Rss: 900 kB\nShared_Dirty: 5 kB\nPrivate_Clean:  3 kB\nPrivate_Dirty:  4 kB\n";
        assert_eq!(private_in(text), 7 << 10);
    }
}
