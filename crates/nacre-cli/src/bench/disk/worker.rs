//! The hidden subcommand that makes the calls of one process of a row.
//!
//! It says when it is ready, waits for a line, and says when it is done.

use crate::failure::{Failure, Result};
use crate::output;
use clap::{Args, ValueEnum};
use rustix::fs::{Advice, fadvise};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "Started by `nacre bench --disk`; of no use alone.";

/// What is written at once.
const PAGE: usize = 4096;
const LARGE: usize = 1 << 20;
/// Length of each file, and of one that is read in order.
const FILE: u64 = 16 << 20;
const LONG_FILE: u64 = 64 << 20;
/// So long that the processor's caches hold it in each place.
const WARM_FILE: u64 = 1 << 20;
/// What a mail is made of, and added to it.
const MAIL: usize = 16 << 10;
/// `O_DIRECT` and `O_DSYNC` of x86-64.
const DIRECT: i32 = 0o40_000;
const DSYNC: i32 = 0o10_000;

/// What a process does again and again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Job {
    /// Writes a page anywhere in a file, and syncs.
    Overwrite,
    /// Makes a file of one page, and syncs it.
    Create,
    /// Makes a file, syncs it, reads it, adds to it, syncs it, removes the one before: as a mail
    /// server does.
    Mail,
    /// Reads 64 bytes anywhere in a file, which memory has.
    ReadBytes,
    /// Reads pages anywhere in it.
    ReadPages,
    /// Writes 64 bytes anywhere in it, and does not sync.
    WriteBytes,
    /// Writes pages so.
    WritePages,
    /// Makes a file and removes it.
    CreateAndRemove,
    /// Reads 1 MiB after the other of a file of which nothing is in memory.
    ReadInOrder,
    /// Reads pages anywhere in such a file, each once.
    ReadAnywhere,
}

impl Job {
    /// Bytes that one call writes or reads.
    pub fn bytes(self) -> u64 {
        let bytes = match self {
            Job::Overwrite | Job::Create | Job::ReadAnywhere => PAGE,
            Job::ReadPages | Job::WritePages => PAGE,
            Job::ReadBytes | Job::WriteBytes | Job::CreateAndRemove => 64,
            Job::ReadInOrder => LARGE,
            Job::Mail => 2 * MAIL,
        };
        bytes as u64
    }

    /// Whether it reads what memory does not have.
    pub fn reads_cold(self) -> bool {
        matches!(self, Job::ReadInOrder | Job::ReadAnywhere)
    }

    /// Whether it waits for no disk.
    pub fn is_warm(self) -> bool {
        let warm = [
            Job::ReadBytes,
            Job::ReadPages,
            Job::WriteBytes,
            Job::WritePages,
            Job::CreateAndRemove,
        ];
        warm.contains(&self)
    }

    const fn file(self) -> u64 {
        match self {
            Job::ReadInOrder => LONG_FILE,
            Job::ReadBytes | Job::ReadPages | Job::WriteBytes | Job::WritePages => WARM_FILE,
            _ => FILE,
        }
    }

    /// How many calls are made if so many are wanted: nothing is read twice, and so many pages that
    /// what leads to them counts little.
    pub fn calls(self, wanted: u64) -> u64 {
        let once = self.file() / self.bytes();
        match self {
            Job::ReadInOrder => once,
            Job::ReadAnywhere => once.min(10 * wanted),
            Job::CreateAndRemove => 10 * wanted,
            _ if self.is_warm() => 500 * wanted,
            _ => wanted,
        }
    }
}

/// A process that `nacre bench --disk` measures
#[derive(Debug, Args)]
#[command(hide = true, after_help = EXAMPLES)]
pub struct Arguments {
    /// Past the page cache, with nothing in between
    #[arg(long)]
    bare: bool,
    /// Number of the process
    part: usize,
    /// What to do
    job: Job,
    /// How often
    calls: u64,
    /// Where
    folder: PathBuf,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let failed = |error| Failure::io(arguments.folder.display(), error);
    let mut work = Work::prepare(arguments).map_err(failed)?;
    output::write(b"ready\n")?;
    let mut line = String::new();
    io::stdin().read_line(&mut line).map_err(failed)?;
    for call in 0..arguments.job.calls(arguments.calls) {
        work.call(call).map_err(failed)?;
    }
    output::write(b"done\n")?;
    Ok(ExitCode::SUCCESS)
}

struct Work<'a> {
    arguments: &'a Arguments,
    file: File,
    memory: Vec<u8>,
    /// Where in it direct I/O may begin.
    skip: usize,
}

impl<'a> Work<'a> {
    fn prepare(arguments: &'a Arguments) -> io::Result<Self> {
        let path = arguments.folder.join(format!("file-{}", arguments.part));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        let file = options.open(&path)?;
        let memory = vec![1; LARGE + PAGE];
        for at in (0..arguments.job.file()).step_by(LARGE) {
            file.write_all_at(&memory[..LARGE], at)?;
        }
        file.sync_all()?;
        let file = match arguments.bare {
            true => options.custom_flags(DIRECT | DSYNC).open(&path)?,
            false => file,
        };
        if arguments.job.reads_cold() {
            fadvise(&file, 0, None, Advice::DontNeed)?;
        }
        Ok(Self {
            skip: memory.as_ptr().align_offset(PAGE),
            memory,
            file,
            arguments,
        })
    }

    fn call(&mut self, number: u64) -> io::Result<()> {
        let job = self.arguments.job;
        // A journal's record of a page takes two.
        let len = match self.arguments.bare && job == Job::Overwrite {
            true => 2 * PAGE,
            false => job.bytes() as usize,
        };
        let bytes = &mut self.memory[self.skip..self.skip + len];
        let pages = job.file().min(FILE) / PAGE as u64;
        // An odd factor, so that each page comes once before any comes again.
        let anywhere = number.wrapping_mul(2_654_435_761) % pages * PAGE as u64;
        match job {
            Job::Overwrite if self.arguments.bare => {
                let at = number * len as u64 % FILE;
                self.file.write_all_at(bytes, at)
            }
            Job::Overwrite => {
                bytes.fill(number as u8);
                self.file.write_all_at(bytes, anywhere)?;
                self.file.sync_all()
            }
            Job::Create => {
                let name = format!("new-{}-{number}", self.arguments.part);
                let file = File::create_new(self.arguments.folder.join(name))?;
                file.write_all_at(bytes, 0)?;
                file.sync_all()
            }
            Job::Mail => self.mail(number),
            Job::ReadInOrder => self.file.read_exact_at(bytes, number * len as u64),
            Job::ReadAnywhere | Job::ReadBytes | Job::ReadPages => {
                self.file.read_exact_at(bytes, anywhere)
            }
            Job::WriteBytes | Job::WritePages => self.file.write_all_at(bytes, anywhere),
            Job::CreateAndRemove => {
                let name = format!("brief-{}", self.arguments.part);
                let path = self.arguments.folder.join(name);
                File::create_new(&path)?;
                fs::remove_file(path)
            }
        }
    }

    fn mail(&mut self, number: u64) -> io::Result<()> {
        let bytes = &mut self.memory[self.skip..self.skip + MAIL];
        let part = self.arguments.part;
        let path = |number| self.arguments.folder.join(format!("mail-{part}-{number}"));
        let options = || OpenOptions::new().read(true).append(true).clone();
        let mut file = options().create_new(true).open(path(number))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        drop(file);
        let mut file = options().open(path(number))?;
        file.read_exact(bytes)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        match number.checked_sub(1) {
            Some(before) => fs::remove_file(path(before)),
            None => Ok(()),
        }
    }
}
