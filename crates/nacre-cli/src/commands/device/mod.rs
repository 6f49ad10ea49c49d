//! `nacre device`: the devices of a pool.

mod add;
mod list;

use crate::failure::Result;
use clap::{Args, Subcommand};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  nacre device list my.pool                          sizes, what of them is used, how data is spread
  nacre device add --size 10G my.pool /mnt/more/c    what is written next goes there, too";

/// Tell and change which devices a pool has
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    List(list::Arguments),
    Add(add::Arguments),
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.what {
        What::List(arguments) => list::run(arguments),
        What::Add(arguments) => add::run(arguments),
    }
}
