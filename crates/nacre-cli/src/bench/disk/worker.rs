//! The hidden subcommand that makes the calls of one process of a row.
//!
//! It says when it is ready, waits for a line, and says when it is done.

use crate::failure::{Failure, Result};
use crate::output;
use clap::{Args, ValueEnum};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "Started by `nacre bench --disk`; of no use alone.";

/// What is written at once.
pub const PAGE: usize = 4096;
const LARGE: usize = 1 << 20;
/// Length of each file.
pub const FILE: u64 = 16 << 20;
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
    for call in 0..arguments.calls {
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
        for at in (0..FILE).step_by(LARGE) {
            file.write_all_at(&memory[..LARGE], at)?;
        }
        file.sync_all()?;
        let file = match arguments.bare {
            true => options.custom_flags(DIRECT | DSYNC).open(&path)?,
            false => file,
        };
        Ok(Self {
            skip: memory.as_ptr().align_offset(PAGE),
            memory,
            file,
            arguments,
        })
    }

    fn call(&mut self, number: u64) -> io::Result<()> {
        // A journal's record of a page takes two.
        let len = match self.arguments.bare {
            true => 2 * PAGE,
            false => PAGE,
        };
        let bytes = &mut self.memory[self.skip..self.skip + len];
        let pages = FILE / PAGE as u64;
        // An odd factor, so that each page comes once before any comes again.
        let anywhere = number.wrapping_mul(2_654_435_761) % pages * PAGE as u64;
        match self.arguments.job {
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
        }
    }
}
