//! `nacre top`: what the pools in use are doing.
//!
//! A look attaches each pool for a moment, so that whoever watches keeps none in use.

mod lines;
mod rates;
mod sample;
mod screen;

use crate::every;
use crate::failure::Result;
use clap::Args;
use sample::Chosen;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  nacre top                          all pools in use, until q is typed
  nacre top --every 5s my.pool       one of them
  nacre top | tee log                not on a terminal: a line for each pool each second
  nacre top --json --times 1         rates over one second, for programs

CHANGES are committed changes of names, attributes and objects. What programs read and write in
files is counted where a disk is behind: READ is what they read, in units of 4 KiB, and MEMORY which
part of it did not wait for the disk. MS is how long a commit took, JOURNAL what commits write, HOME
what goes from there to its place. Pools of other users are looked into if they are named.";

/// Watch what the pools in use are doing: changes, commits, the cache, their programs
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Any device of a pool to watch; without it, all pools in use
    #[arg(value_name = "POOL")]
    pools: Vec<PathBuf>,
    /// How long between two looks, for example 500ms or 5s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = every::parse)]
    every: Duration,
    /// End after so many reports
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    times: Option<u64>,
    /// Report as JSON, one document a line
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let chosen = Chosen::of(&arguments.pools)?;
    let times = arguments.times.unwrap_or(u64::MAX);
    match !arguments.json && io::stdout().is_terminal() {
        true => screen::show(&chosen, arguments.every, times)?,
        false => lines::print(&chosen, (arguments.every, times), arguments.json)?,
    }
    Ok(ExitCode::SUCCESS)
}
